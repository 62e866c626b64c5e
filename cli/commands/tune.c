/* SPDX-License-Identifier: MIT
 *
 * `titan tune`: tries combinations of policies, and prints them as a table.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "cli/run/signals.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/comm/comm.h"
#include "core/config/args.h"
#include "core/graph/graph.h"
#include "core/math/stats.h"
#include "core/os/file.h"
#include "trainer/data/data.h"
#include "trainer/job/facts.h"
#include "trainer/job/predict.h"
#include "trainer/job/setup.h"
#include "trainer/step/peak.h"
#include "trainer/step/step.h"

/*
 * Trials of combinations of policies: each combination trains a few steps from the same weights on the same data. All
 * of them run in one job and take turns, so that other load on the machine affects them equally.
 */
enum { TT_TUNE_FLAGS = 10 };

struct row {
    char *label;
    char *flag[TT_TUNE_FLAGS]; /* the overrides that make this combination */
    int n_flags;
    bool may_fail;                    /* one of its degrees may be impossible */
    char *problem;                    /* why the combination was not tried; NULL: it was tried */
    bool is_absent;                   /* it needs a feature that is not built; no row is shown */
    double *step_secs, *exposed_secs; /* [steps] of each timed step, on its slowest rank */
    int n_steps, cap_steps, cap_exposed;
    double *losses; /* losses of the first trial, after every step */
    int n_losses, cap_losses;
    double step_sec, exposed_sec; /* medians of the above */
    double predicted_step_sec, predicted_exposed_sec;
    int64_t payload_bytes; /* bytes that rank 0 sent in a step, rows of experts included */
    int64_t peak_bytes;    /* the size of rank 0's arena */
    int64_t sync;          /* TT_SYNC_*: the order in which gradients were added */
    bool same_bits;        /* same bits as the first combination that was tried with the same sync */
    bool fits;
};

struct tune {
    const struct tt_args *args; /* the command line: files and overrides */
    int ranks, steps, rounds;
    struct row *rows;
    int n, cap;
    int best;          /* index of the best row; TT_NONE if no row fits */
    char machine[160]; /* the machine of the predictions */
};

/* --- one trial: the trainer without folder, checkpoints and reports, so that the timed code is the code that trains
 * --- */

static int load(const struct tune *tune, const struct row *row, struct tt_config **ret_cfg, bool *ret_absent)
{
    struct tt_text unbuilt = {0};
    struct tt_cli_variant variant = {.n = row->n_flags, .unbuilt = &unbuilt};
    struct tt_config *cfg = NULL;
    int rc = 0;

    for (int f = 0; f < row->n_flags; f++)
        variant.flag[f] = row->flag[f];
    TT_TRY(tt_cli_load_variant("tune", tune->args, &variant, &cfg));
    for (int f = 0; f < row->n_flags && unbuilt.text; f++)
        if (strstr(unbuilt.text, row->flag[f] + 2)) /* compare without the dashes */
            *ret_absent = true;
    if (unbuilt.text && !*ret_absent) { /* the command line itself needs the feature, so report the usual error */
        tt_config_free(cfg);
        cfg = NULL;
        TT_TRY(tt_cli_load_config("tune", tune->args, &cfg));
    }
    *ret_cfg = cfg;
    cfg = NULL;
out:
    tt_text_release(&unbuilt);
    tt_config_free(cfg);
    return rc;
}

struct trial {
    struct tt_setup setup;
    struct tt_train_data data;
    struct tt_train_progress at;
};

static int time_step(struct trial *t, struct row *row, bool timed, bool keep_loss)
{
    struct tt_comm *comm = t->setup.comm;
    struct tt_train_step done;
    double sec[2];
    int rc = 0;

    TT_TRY(tt_comm_barrier(comm));
    comm->wait_sec = 0.0;
    comm->payload_bytes = comm->routed_bytes = 0;
    sec[0] = tt_clock_sec();
    TT_TRY(tt_train_step(&t->setup, &t->data, NULL, NULL, &t->at, &done));
    sec[0] = tt_clock_sec() - sec[0] - done.data_sec;
    sec[1] = comm->wait_sec;
    row->payload_bytes = comm->payload_bytes + comm->routed_bytes;
    TT_TRY(tt_comm_max_f64(comm, sec, 2));
    if (keep_loss) {
        TT_PUSH(row->losses, row->n_losses, row->cap_losses) = done.step.loss;
        TT_PUSH(row->losses, row->n_losses, row->cap_losses) = done.step.grad_norm;
    }
    if (timed) {
        int n = row->n_steps;

        TT_PUSH(row->step_secs, row->n_steps, row->cap_steps) = sec[0];
        TT_PUSH(row->exposed_secs, n, row->cap_exposed) = sec[1];
    }
out:
    return rc;
}

/* The cost table of the prediction: the configured one, else the built-in one at this machine's
 * matrix-multiply rate. */
static int find_machine(struct tune *tune, const struct tt_setup *s, struct tt_machine *machine)
{
    enum tt_dtype dtype = s->job.engine.param_dtype;
    double peak = 0.0, float_peak = 0.0;
    int rc = 0;

    *machine = s->job.engine.machine;
    (void)snprintf(tune->machine, sizeof tune->machine, "%s", machine->name);
    if (s->cfg->parallelism.machine_file)
        return 0;
    TT_TRY(tt_comm_barrier(s->comm));
    TT_TRY(tt_peak_measure_slowest(s->comm, tt_engine_team(s->engine), dtype, &peak));
    if (dtype != TT_F32)
        TT_TRY(tt_peak_measure_slowest(s->comm, tt_engine_team(s->engine), TT_F32, &float_peak));
    tt_machine_take_peaks(machine, dtype, peak / s->threads, float_peak / s->threads);
    (void)snprintf(tune->machine, sizeof tune->machine, "%s, at the measured %.0f GF/s a thread", machine->name,
                   peak / s->threads / 1e9);
out:
    return rc;
}

static int predict(struct tune *tune, const struct tt_setup *s, struct tt_machine *machine, struct row *row)
{
    struct tt_job_prediction p = {0};
    int rc = 0;

    if (machine->sgemm_flops == 0.0)
        TT_TRY(find_machine(tune, s, machine));
    TT_TRY(tt_job_predict_once(&s->job, s->comm, machine, s->engine, &p));
    row->predicted_step_sec = p.step_sec;
    row->predicted_exposed_sec = p.exposed_sec;
    row->peak_bytes = p.memory.total; /* memory of the rank that needs most */
out:
    tt_job_prediction_release(&p);
    return rc;
}

/* Whether only this combination caused the error, because it does not fit or is impossible; other errors end the
 * job. */
static bool is_of_row(const struct row *row, int code)
{
    return code == TT_EFIT ||
           (code == TT_EUSAGE && (row->may_fail || tt_error_key() == TT_KEY(training.gradient_sync)));
}

/* Records the first line of the error message. */
static void note_problem(struct row *row)
{
    tt_error_drop_hint();
    row->problem = tt_format("%.*s", (int)strcspn(tt_error_message(), "\n"), tt_error_message());
}

/* If a combination does not fit or is impossible, its row says so. Only a failure of the job is an error. */
static int try_row(struct tune *tune, struct tt_comm *comm, int round, struct tt_machine *machine, struct row *row)
{
    struct trial t = {.setup = {.cfg = NULL}};
    struct tt_config *cfg = NULL;
    int rc = load(tune, row, &cfg, &row->is_absent);

    rc = tt_comm_agree(comm, rc);
    if (rc < 0 && is_of_row(row, rc)) {
        note_problem(row);
        return 0;
    }
    TT_TRY(rc);
    if (row->is_absent)
        goto out;
    TT_TRY(tt_facts_agree_on_config(comm, cfg, tune->args));
    rc = tt_setup_init(cfg, comm, false, &t.setup);
    if (rc < 0 && is_of_row(row, rc)) {
        note_problem(row);
        rc = 0;
        goto out;
    }
    TT_TRY(rc);
    TT_TRY(tt_datasets_open_training(&t.setup, &t.data));
    TT_TRY(tt_comm_agree(comm, tt_engine_allocate(t.setup.engine)));
    TT_TRY(tt_engine_init_params(t.setup.engine, (uint64_t)cfg->debug.seed));
    comm->timeout_sec = (double)cfg->comm.train_timeout_seconds;
    row->peak_bytes = t.setup.memory.total;
    row->sync = (int64_t)cfg->training.gradient_sync;
    row->fits = true;
    if (round == 0)
        TT_TRY(predict(tune, &t.setup, machine, row));
    /* do not time the first step, which touches the memory for the first time */
    for (int s = 0; s <= tune->steps; s++)
        TT_TRY(time_step(&t, row, s > 0, round == 0));
out:
    rc = tt_config_locate(cfg, rc);
    tt_train_data_release(&t.data);
    tt_setup_release(&t.setup);
    tt_config_free(cfg);
    return rc;
}

/* --- all of them --- */

static void conclude(struct tune *tune)
{
    tune->best = TT_NONE;
    for (int i = 0; i < tune->n; i++) {
        struct row *row = &tune->rows[i];
        const struct row *first = tune->rows;

        if (!row->fits)
            continue;
        while (!first->fits || first->sync != row->sync) /* deferred gradients are added in another order */
            first++;
        row->step_sec = tt_median(row->step_secs, row->n_steps);
        row->exposed_sec = tt_median(row->exposed_secs, row->n_steps);
        row->same_bits = row->n_losses == first->n_losses &&
                         memcmp(row->losses, first->losses, (size_t)row->n_losses * sizeof *row->losses) == 0;
        if (tune->best == TT_NONE || row->step_sec < tune->rows[tune->best].step_sec)
            tune->best = i;
    }
}

static void release_row(struct row *row)
{
    for (int f = 0; f < row->n_flags; f++)
        tt_free(row->flag[f]);
    tt_free(row->label);
    tt_free(row->problem);
    tt_free(row->step_secs);
    tt_free(row->exposed_secs);
    tt_free(row->losses);
}

/* Tries every row (collective): measures the ones that fit, and marks the others. */
static int run_trials(struct tune *tune, struct tt_comm *comm)
{
    struct tt_machine machine = {.sgemm_flops = 0.0};
    int rc = 0;

    for (int round = 0; round < tune->rounds; round++) {
        int n = 0;

        for (int i = 0; i < tune->n; i++) {
            if (tune->rows[i].problem)
                continue;
            TT_TRY(try_row(tune, comm, round, &machine, &tune->rows[i]));
            tt_progress("trials", (double)(round * tune->n + i + 1), (double)(tune->rounds * tune->n));
        }
        for (int i = 0; i < tune->n; i++) {
            if (tune->rows[i].is_absent)
                release_row(&tune->rows[i]);
            else
                tune->rows[n++] = tune->rows[i];
        }
        tune->n = n;
    }
    conclude(tune);
out:
    return rc;
}

/* --- the command --- */

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"over", NULL, "KEY,...",
     "what to vary: engine, reshard, gradient_sync, prefetch (default: these), and the degrees of "
     "parallelism: pipeline_parallel_degree, context_parallel_degree, tensor_parallel_degree, "
     "expert_parallel_degree"},
    {"steps", NULL, "K", "timed steps of a trial, after one that is not timed (default: 3)"},
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
    const char *label; /* the text before the value */
} dimensions[] = {
    {"engine", TT_KEY_NAME(parallelism.fsdp_engine), {"eager", "planned"}, 2, ""},
    {"reshard", TT_KEY_NAME(parallelism.fsdp_reshard_after_forward), {"default", "always", "never"}, 3, ""},
    {"gradient_sync", TT_KEY_NAME(training.gradient_sync), {"every_microbatch", "every_run", "last_microbatch"}, 3, ""},
    {"prefetch", TT_KEY_NAME(parallelism.fsdp_prefetch), {"1", "0", "2"}, 3, "prefetch "},
    {"pipeline_parallel_degree", TT_KEY_NAME(parallelism.pipeline_parallel_degree), DEGREES, 8, "pp "},
    {"context_parallel_degree", TT_KEY_NAME(parallelism.context_parallel_degree), DEGREES, 8, "cp "},
    {"tensor_parallel_degree", TT_KEY_NAME(parallelism.tensor_parallel_degree), DEGREES, 8, "tp "},
    {"expert_parallel_degree", TT_KEY_NAME(parallelism.expert_parallel_degree), DEGREES, 8, "ep "},
};
enum { ENGINE, RESHARD, SYNC, PREFETCH, PIPELINE, CONTEXT, TENSOR, EXPERTS, N_DIMENSIONS };
_Static_assert((int)N_DIMENSIONS < (int)TT_TUNE_FLAGS, "a flag per dimension, and the batch");

static bool is_degree(int d)
{
    return d >= PIPELINE;
}

/* Reads the dimensions that --over names; by default, all dimensions that every model has. */
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

/* The configured values of the degrees that are varied. */
struct configured {
    int64_t degree[N_DIMENSIONS]; /* one per kind of parallelism */
    int64_t batch;                /* sequences per step; 0: no varied degree changes it */
};

/* The number of ranks that work on the same data, with the varied degrees instead of the configured ones. The degree of
 * expert parallelism does not count, since ranks with different data may share experts. */
static int64_t ranks_of_data(const int choice[N_DIMENSIONS], const bool over[N_DIMENSIONS],
                             const struct configured *configured)
{
    int64_t ranks = 1;

    for (int d = PIPELINE; d < EXPERTS; d++)
        ranks *= over[d] ? INT64_C(1) << choice[d] : configured->degree[d];
    return ranks;
}

/* All combinations have the same batch, so that their steps do the same work. */
static void add_combination(struct tune *tune, const int choice[N_DIMENSIONS], const bool over[N_DIMENSIONS],
                            const struct configured *configured)
{
    struct row row = {0};
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

static void make_combinations(struct tune *tune, const bool over[N_DIMENSIONS], const struct configured *configured)
{
    int choice[N_DIMENSIONS] = {0}, last[N_DIMENSIONS];

    for (int d = 0; d < N_DIMENSIONS; d++)
        for (last[d] = dimensions[d].n - 1; is_degree(d) && last[d] > 0 && 1 << last[d] > tune->ranks;)
            last[d]--;
    for (;;) {
        const char *engine = dimensions[ENGINE].values[choice[ENGINE]];
        /* prefetch has no effect on the planned scheduler */
        bool is_idle = over[PREFETCH] && choice[PREFETCH] > 0 && over[ENGINE] && strcmp(engine, "planned") == 0;
        int d = N_DIMENSIONS - 1;

        if (!is_idle && tune->ranks % ranks_of_data(choice, over, configured) == 0)
            add_combination(tune, choice, over, configured);
        while (d >= 0 && (!over[d] || choice[d] == last[d]))
            choice[d--] = 0;
        if (d < 0)
            return;
        choice[d]++;
    }
}

/* Reads the values that the command line configures. */
static int read_configured(const struct tune *tune, const bool over[N_DIMENSIONS], struct configured *ret_configured)
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

/* titan-tune(1) lists the order in which columns are left out on a narrow terminal. */
static const struct tt_column columns[] = {
    {"combination", 48, false, 0, 0, 24}, {"step", 10, true, 1, 0, 0},      {"predicted", 10, true, 1, 3, 0},
    {"exposed", 10, true, 1, 2, 0},       {"predicted", 10, true, 1, 4, 0}, {"sent", 12, true, 1, 5, 0},
    {"peak memory", 12, true, 1, 1, 0},   {"same bits", 0, false, 2, 0, 0},
};

static void add_row(const struct tune *t, const struct row *r, struct tt_columns *table)
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

static void print_table(const struct tune *t)
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

static json_t *flags_json(const struct row *r)
{
    json_t *list = json_array();

    for (int f = 0; f < r->n_flags; f++)
        (void)json_array_append_new(list, json_string(r->flag[f]));
    return list;
}

static json_t *row_json(const struct row *r)
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

static json_t *to_json(const struct tune *t)
{
    json_t *rows = json_array();

    for (int i = 0; i < t->n; i++)
        (void)json_array_append_new(rows, row_json(&t->rows[i]));
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:o, s:o}", "type", "tune", "schema", 1, "ranks", t->ranks,
                     "steps", t->steps, "rounds", t->rounds, "machine", t->machine, "rows", rows, "fastest",
                     t->best == TT_NONE ? json_null() : flags_json(&t->rows[t->best]));
}

/* --- the command --- */

/* What a rank does, with its communicator. Returns the same code on every rank. */
static int tune(struct tt_comm *comm, void *args)
{
    struct tune t = {.args = args, .ranks = comm->size};
    bool over[N_DIMENSIONS];
    struct configured configured;
    int64_t steps = 3, rounds = 2;
    int rc = read_over(tt_args_last(args, "over"), over);

    if (rc == 0)
        rc = tt_cli_count("tune", args, "steps", 1, 10000, &steps);
    if (rc == 0)
        rc = tt_cli_count("tune", args, "rounds", 1, 1000, &rounds);
    t.steps = (int)steps;
    t.rounds = (int)rounds;
    if (rc == 0)
        rc = read_configured(&t, over, &configured);
    TT_TRY(tt_comm_agree(comm, rc));
    make_combinations(&t, over, &configured);
    TT_TRY(run_trials(&t, comm));
    if (comm->rank == 0 && tt_args_has(args, "json"))
        rc = tt_cli_print_json(to_json(&t));
    else if (comm->rank == 0)
        print_table(&t);
out:
    for (int i = 0; i < t.n; i++)
        release_row(&t.rows[i]);
    tt_free(t.rows);
    return rc;
}

const struct tt_command tt_command_tune = {
    .name = "tune",
    .arguments = "[--config FILE]... [--over KEY,...]",
    .summary = "try combinations of policies on these ranks; name the fastest",
    .usage = usage,
    .options = options,
    .run_ranks = tune,
};
