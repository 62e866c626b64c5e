/* SPDX-License-Identifier: MIT
 *
 * `titan tune`: command line, combinations, and the table. The trials themselves are tune.c.
 */
#include "cli/measure/tune.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/ranks.h"
#include "cli/run/columns.h"
#include "cli/run/screen.h"
#include "cli/run/signals.h"
#include "core/base/mem.h"
#include "core/graph/graph.h"

const struct tt_option tt_tune_options[] = {
    TT_OPTION_CONFIG,
    {"over", NULL, "KEY,...",
     "what to vary: engine, reshard, gradient_sync, prefetch (default: these), and the degrees of "
     "parallelism: pipeline_parallel_degree, context_parallel_degree, tensor_parallel_degree, "
     "expert_parallel_degree"},
    {"steps", NULL, "K", "steps of a trial that are timed, after one that is not (default: 3)"},
    {"rounds", NULL, "R", "trials of each combination, interleaved (default: 2)"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: mpirun -n N titan tune [--config FILE]... [--over KEY,...] [--section.key=value]...\n\n"
    "Trains a few steps under each combination of policies, on the same data and weights, and names the\n"
    "fastest. Writes nothing but the token cache. Without --config: the built-in quick run.\n\n";

/* --- combinations --- */

#define DEGREES                                     \
    {                                               \
        "1", "2", "4", "8", "16", "32", "64", "128" \
    }

static const struct dimension {
    const char *name, *key;
    const char *values[8];
    int n;
    const char *label; /* before the value */
} dimensions[] = {
    {"engine", "parallelism.fsdp_engine", {"eager", "planned"}, 2, ""},
    {"reshard", "parallelism.fsdp_reshard_after_forward", {"default", "always", "never"}, 3, ""},
    {"gradient_sync", "training.gradient_sync", {"every_microbatch", "every_run", "last_microbatch"}, 3, ""},
    {"prefetch", "parallelism.fsdp_prefetch", {"1", "0", "2"}, 3, "prefetch "},
    {"pipeline_parallel_degree", "parallelism.pipeline_parallel_degree", DEGREES, 8, "pp "},
    {"context_parallel_degree", "parallelism.context_parallel_degree", DEGREES, 8, "cp "},
    {"tensor_parallel_degree", "parallelism.tensor_parallel_degree", DEGREES, 8, "tp "},
    {"expert_parallel_degree", "parallelism.expert_parallel_degree", DEGREES, 8, "ep "},
};
enum { ENGINE, RESHARD, SYNC, PREFETCH, PIPELINE, CONTEXT, TENSOR, EXPERTS, N_DIMENSIONS };
_Static_assert((int)N_DIMENSIONS < (int)TT_TUNE_FLAGS, "a flag per dimension, and the batch");

static bool is_degree(int d)
{
    return d >= PIPELINE;
}

/* Degrees that leave fewer ranks for data. Experts are shared by ranks that have data of their own, or share it. */
static bool divides_data(int d)
{
    return is_degree(d) && d != EXPERTS;
}

/* Reads which dimensions --over names; all that every model has if it is not given. */
static int read_over(const char *text, bool over[N_DIMENSIONS])
{
    const char *at = text;

    for (int d = 0; d < N_DIMENSIONS; d++)
        over[d] = !text && !is_degree(d);
    while (at && *at) {
        size_t size = strcspn(at, ",");
        int found = TT_NONE;

        for (int d = 0; d < N_DIMENSIONS; d++)
            if ((strlen(dimensions[d].name) == size && strncmp(dimensions[d].name, at, size) == 0) ||
                (strlen(dimensions[d].key) == size && strncmp(dimensions[d].key, at, size) == 0))
                found = d;
        if (found == TT_NONE)
            return tt_fail(TT_EUSAGE,
                           "tune: --over '%.*s' cannot be varied\nhelp: a list of engine, reshard, gradient_sync, "
                           "prefetch, pipeline_parallel_degree, context_parallel_degree, tensor_parallel_degree, "
                           "expert_parallel_degree",
                           (int)size, at);
        over[found] = true;
        at += size + (at[size] == ',');
    }
    return 0;
}

static bool is_value(const struct dimension *d, int value, const char *word)
{
    return strcmp(d->values[value], word) == 0;
}

/* Whether a combination differs from another one only by a key that has no effect. */
static bool is_idle(const int choice[N_DIMENSIONS], const bool over[N_DIMENSIONS])
{
    return over[PREFETCH] && choice[PREFETCH] > 0 && over[ENGINE] &&
           is_value(&dimensions[ENGINE], choice[ENGINE], "planned");
}

/* What is configured where degrees are varied. */
struct configured {
    int64_t degree[N_DIMENSIONS]; /* of each kind of parallelism */
    int64_t batch;                /* sequences of a step; 0: no degree that would change it is varied */
};

/* How many ranks share the data of one; with other degrees than the configured ones. */
static int64_t ranks_of_data(const int choice[N_DIMENSIONS], const bool over[N_DIMENSIONS],
                             const struct configured *configured)
{
    int64_t ranks = 1;

    for (int d = 0; d < N_DIMENSIONS; d++)
        if (divides_data(d))
            ranks *= over[d] ? INT64_C(1) << choice[d] : configured->degree[d];
    return ranks;
}

/* All combinations have the same batch, so that their steps do the same work. */
static void add_combination(struct tt_tune *tune, const int choice[N_DIMENSIONS], const bool over[N_DIMENSIONS],
                            const struct configured *configured)
{
    struct tt_tune_row row = {0};
    struct tt_text label = {0};

    for (int d = 0; d < N_DIMENSIONS; d++) {
        if (!over[d])
            continue;
        row.flag[row.n_flags++] = tt_format("--%s=%s", dimensions[d].key, dimensions[d].values[choice[d]]);
        tt_text_add(&label, "%s%s%s", label.size ? ", " : "", dimensions[d].label, dimensions[d].values[choice[d]]);
        row.may_fail = row.may_fail || is_degree(d);
    }
    if (configured->batch)
        row.flag[row.n_flags++] = tt_format("--training.global_batch_size=%" PRId64, configured->batch);
    row.label = label.text ? label.text : tt_strdup("as configured");
    TT_PUSH(tune->rows, tune->n, tune->cap) = row;
}

/* How many values are tried: of degrees, those that are not larger than the number of ranks. */
static int values_of(const struct tt_tune *tune, int d)
{
    int n = dimensions[d].n;

    while (is_degree(d) && n > 1 && 1 << (n - 1) > tune->ranks)
        n--;
    return n;
}

static void make_combinations(struct tt_tune *tune, const bool over[N_DIMENSIONS], const struct configured *configured)
{
    int choice[N_DIMENSIONS] = {0};

    for (;;) {
        int d = N_DIMENSIONS - 1;

        if (!is_idle(choice, over) && tune->ranks % ranks_of_data(choice, over, configured) == 0)
            add_combination(tune, choice, over, configured);
        while (d >= 0 && (!over[d] || choice[d] == values_of(tune, d) - 1))
            choice[d--] = 0;
        if (d < 0)
            return;
        choice[d]++;
    }
}

/* Reads what the command line configures. */
static int read_configured(const struct tt_tune *tune, const bool over[N_DIMENSIONS], struct configured *ret_configured)
{
    struct configured c = {.degree = {0}};
    const bool nothing[N_DIMENSIONS] = {false};
    const int first[N_DIMENSIONS] = {0};
    struct tt_config *cfg = NULL;
    int rc = 0;

    TT_TRY(tt_cli_load_config("tune", tune->args, &cfg));
    c.degree[PIPELINE] = cfg->parallelism.pipeline_parallel_degree;
    c.degree[CONTEXT] = cfg->parallelism.context_parallel_degree;
    c.degree[TENSOR] = cfg->parallelism.tensor_parallel_degree;
    c.batch = cfg->training.global_batch_size;
    if (c.batch < 1)
        c.batch = cfg->training.local_batch_size * (tune->ranks / ranks_of_data(first, nothing, &c));
    if (!over[PIPELINE] && !over[CONTEXT] && !over[TENSOR])
        c.batch = 0;
    *ret_configured = c;
out:
    tt_config_free(cfg);
    return rc;
}

/* --- output --- */

/* The order in which columns are left out on a narrow terminal is in titan-tune(1). */
static const struct tt_column columns[] = {
    {"combination", 48, false, 0, 0, 24}, {"step", 10, true, 1, 0, 0},      {"predicted", 10, true, 1, 3, 0},
    {"exposed", 10, true, 1, 2, 0},       {"predicted", 10, true, 1, 4, 0}, {"sent", 12, true, 1, 5, 0},
    {"peak memory", 12, true, 1, 1, 0},   {"same bits", 0, false, 2, 0, 0},
};

static void add_row(const struct tt_tune *t, const struct tt_tune_row *r, struct tt_columns *table)
{
    const double sec[] = {r->step_sec, r->predicted_step_sec, r->exposed_sec, r->predicted_exposed_sec};
    char bytes[32];

    tt_columns_cell(table, "%s", r->label);
    if (r->problem) {
        tt_columns_rest(table, 1, r->problem);
        return;
    }
    for (size_t i = 0; i < sizeof sec / sizeof *sec; i++)
        tt_columns_cell(table, "%.1f ms", 1e3 * sec[i]);
    tt_columns_cell(table, "%s", tt_text_bytes(bytes, sizeof bytes, (double)r->payload_bytes));
    tt_columns_cell(table, "%s", tt_text_bytes(bytes, sizeof bytes, (double)r->peak_bytes));
    tt_columns_cell(table, "%s%s", r->same_bits ? "yes" : "no",
                    t->best != TT_NONE && r == &t->rows[t->best] ? "  <- fastest" : "");
}

static void print_table(const struct tt_tune *t)
{
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};

    for (int i = 0; i < t->n; i++)
        add_row(t, &t->rows[i], &table);
    tt_columns_print(&table);
    tt_print_broken(2, "\nmedian of %d steps on %d ranks; predicted for %s\n", t->steps * t->rounds, t->ranks,
                    t->machine);
    tt_print_broken(2, "same bits: losses and gradient norms of the first combination with the same gradient_sync\n");
    if (t->best == TT_NONE) {
        tt_print("nothing fits\n");
        return;
    }
    tt_print("fastest that fits:");
    for (int f = 0; f < t->rows[t->best].n_flags; f++)
        tt_print(" %s", t->rows[t->best].flag[f]);
    tt_print("\n");
}

static json_t *flags_json(const struct tt_tune_row *r)
{
    json_t *list = json_array();

    for (int f = 0; f < r->n_flags; f++)
        (void)json_array_append_new(list, json_string(r->flag[f]));
    return list;
}

static json_t *row_json(const struct tt_tune_row *r)
{
    if (r->problem)
        return json_pack("{s:s, s:o, s:o, s:b}", "combination", r->label, "flags", flags_json(r), "problem",
                         tt_json_string(r->problem), "fits", r->fits);
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:b, s:b}", "combination", r->label, "flags",
                     flags_json(r), "step_s", tt_json_number(r->step_sec), "exposed_s", tt_json_number(r->exposed_sec),
                     "predicted_step_s", tt_json_number(r->predicted_step_sec), "predicted_exposed_s",
                     tt_json_number(r->predicted_exposed_sec), "payload_bytes_per_step", (json_int_t)r->payload_bytes,
                     "peak_bytes", (json_int_t)r->peak_bytes, "loss",
                     tt_json_number(r->n_losses ? r->losses[r->n_losses - 1] : (double)NAN), "same_bits", r->same_bits,
                     "fits", r->fits);
}

static json_t *to_json(const struct tt_tune *t)
{
    json_t *rows = json_array();

    for (int i = 0; i < t->n; i++)
        (void)json_array_append_new(rows, row_json(&t->rows[i]));
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:o, s:o}", "type", "tune", "schema", 1, "ranks", t->ranks,
                     "steps", t->steps, "rounds", t->rounds, "machine", t->machine, "rows", rows, "fastest",
                     t->best == TT_NONE ? json_null() : flags_json(&t->rows[t->best]));
}

/* --- the command --- */

static int read_command(const struct tt_args *args, struct tt_tune *tune)
{
    bool over[N_DIMENSIONS];
    struct configured configured;
    int64_t steps = 3, rounds = 2;
    int rc = 0;

    TT_TRY(read_over(tt_args_last(args, "over"), over));
    TT_TRY(tt_cli_count("tune", args, "steps", 1, 10000, &steps));
    TT_TRY(tt_cli_count("tune", args, "rounds", 1, 1000, &rounds));
    tune->steps = (int)steps;
    tune->rounds = (int)rounds;
    TT_TRY(read_configured(tune, over, &configured));
    make_combinations(tune, over, &configured);
out:
    return rc;
}

/* The work of a rank, while it has a communicator. Returns the same code on every rank. */
static int tune(struct tt_comm *comm, void *arg)
{
    const struct tt_args *args = arg;
    struct tt_tune t = {.args = args, .ranks = comm->size};
    int rc = read_command(args, &t);

    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_tune_run(&t, comm));
    if (comm->rank == 0 && tt_args_has(args, "json"))
        rc = tt_cli_print_json(to_json(&t));
    else if (comm->rank == 0)
        print_table(&t);
out:
    tt_tune_release(&t);
    return rc;
}

int tt_command_tune(int argc, char **argv)
{
    struct tt_args *args = NULL;
    int rc = tt_cli_parse(argc, argv, tt_tune_options, &args), code;

    if (rc == 0 && tt_args_has(args, "help"))
        code = tt_cli_print_help(usage, tt_tune_options);
    else
        code = tt_cli_run_ranks(rc, args, tune, args);
    tt_args_free(args);
    return code;
}
