/* SPDX-License-Identifier: MIT
 *
 * `titan estimate`: what a configuration needs on any number of ranks, under each policy. The code that trains plans
 * every row. Nothing large is allocated and no rank is started.
 */
#include "cli/plan/estimate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/estimate/estimate.h"
#include "cli/estimate/typed.h"
#include "cli/run/screen.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "estimate/model/job.h"

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"ranks", NULL, "N,N...", "numbers of ranks (default: 1)"},
    {"memory", NULL, "SIZE",
     "memory that a rank may use, such as 80GiB (default: parallelism.memory_limit, or its share of this machine's)"},
    {"machine", "gpu", "NAME",
     "predict one training job on a cluster of this machine: built in, such as h100-sxm, or a file"},
    {"gpus", NULL, "[N x] NAME", "GPUs of a cluster, such as 64xh100; a name alone: find the number that is needed"},
    {"nodes", "num_nodes|nnodes", "N", "number of nodes, in place of a number of GPUs"},
    {"days", NULL, "D", "with --tokens: find the number of GPUs with which the run ends in D days"},
    {"price", "cost", "P", "dollars for an hour of a GPU; prints what the run costs"},
    {"mfu", NULL, "P", "the MFU of your run in percent: how far it is from the prediction"},
    {"network", NULL, "RATE", "the network of a node, such as 100Gb, 8x400Gb or 50GB/s (default: the machine's)"},
    {"seq", "seq_len|seq_length|sequence_length|max_seq_len|max_seq_length", "N",
     "tokens of a sequence, such as 8192 or 128k"},
    {"batch", NULL, "N", "sequences of a step, or with a K or M behind it, tokens"},
    {"recompute", NULL, "WHAT", "activations to recompute: none, op, full (default: the search decides)"},
    {"tp", "tensor_parallel|tensor_parallel_size", "N", "ranks of tensor parallelism (default: the search decides)"},
    {"pp", "pipeline_parallel|pipeline_parallel_size", "N", "stages of a pipeline (default: the search decides)"},
    {"cp", "context_parallel|context_parallel_size", "N", "ranks of context parallelism (default: the search decides)"},
    {"ep", "expert_parallel|expert_parallel_size", "N", "ranks of expert parallelism (default: the search decides)"},
    {"micro_batch", "micro_batch_size|mbs|per_device_train_batch_size", "N",
     "sequences of a microbatch (default: the search decides)"},
    {"zero", "zero_stage", "STAGE", "DeepSpeed with ZeRO of stage 1, 2 or 3"},
    {"float8", "fp8", NULL, "compute matrix products in float8"},
    {"lora", "lora_rank|lora_r", "RANK", "train adapters of this rank"},
    {"qlora", "load_in_4bit", NULL, "train adapters of a model in 4 bits"},
    {"dtype", NULL, "TYPE", "mixed or fp16: weights and moments in float32; bf16: all in bfloat16; fp8; fp32"},
    {"optimizer", "optim", "NAME", "adamw, adamw8bit, muon, lion, sgd"},
    {"offload", NULL, "WHAT", "keep the optimizer's state (optimizer), or parameters too (all), in host memory"},
    {"stack", NULL, "NAME",
     "with --machine: the software that trains, built in or a file (default: torchtitan-compile-2025)"},
    {"model", NULL, "NAME", "with --machine: a published model, such as deepseek-v3-671b, or a config.json"},
    {"torchtitan", NULL, "FILE", "with --machine: read torchtitan's TOML or saved JSON; its flags may follow after --"},
    {"megatron", NULL, "FILE",
     "with --machine: read flags of Megatron-LM, also from a script; more may follow after --"},
    {"set", NULL, "NAME=VALUE", "with --megatron: a variable, or an argument (3=7B), of the script; may repeat"},
    {"script_args", NULL, "WORDS", "with --megatron: all arguments of the script, such as '7B 1 256'"},
    {"ignore_flag", NULL, "NAME",
     "with --machine: leave this flag of Megatron, or key of torchtitan, out of the prediction; may repeat"},
    {"search", NULL, NULL, "with --machine: print the best layouts for the job's batch on each number of ranks"},
    {"emit", NULL, "FORM", "with --machine: print the layout as a configuration of titan, torchtitan or megatron"},
    {"tokens", NULL, "N", "with --machine: tokens of the whole run (default: those of training.steps)"},
    {"calibrate", NULL, "LOG",
     "with --machine: fit the stack to this log of a torchtitan run on the first number of "
     "ranks"},
    {"nccl", NULL, "FILE", "with --machine: take rates of links from this output of nccl-tests; may repeat"},
    {"save", NULL, "FILE", "with --machine: write the machine as a file, and do nothing else"},
    {"save_stack", NULL, "FILE", "with --machine: write the stack as a file; with --calibrate, the calibrated stack"},
    {"svg", NULL, "FILE", "with --machine: write a picture of how the job scales and what its steps consist of"},
    {"html", NULL, "FILE", "write a page: verdict, memory, step, cost against the number of GPUs, alternatives"},
    {"backtest", NULL, NULL,
     "predict measured runs of GPU clusters, those of a table (CSV) or the built-in ones, and print the errors"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan estimate MODEL --gpus [N x] NAME [--days D] [--tokens N] [--price P] [--lora RANK] [--seq N] "
    "[--search] [--html FILE]\n"
    "       titan estimate [--config FILE]... --ranks N[,N...] [--memory SIZE] [--section.key=value]...\n"
    "       titan estimate --machine NAME [--stack NAME] [--search] [--emit FORM] [--tokens N] [--config FILE]... "
    "--ranks N[,N...] [--memory SIZE] [--section.key=value]...\n"
    "       titan estimate --backtest [CSV] [--json]\n\n"
    "Estimates memory, traffic and time of a step for each number of ranks and each reshard policy.\n"
    "Starts no ranks. Without --config: the built-in quick run, with --machine Llama 3 8B.\n\n";

/* --- options --- */

struct ranks {
    int *count;
    int n, cap;
};

static int read_ranks(const char *text, struct ranks *ranks)
{
    const char *at = text;

    while (*at) {
        char *end = NULL;
        long value = strtol(at, &end, 10);

        if (end == at || value < 1 || value > TT_MOST_RANKS || (*end && (*end != ',' || !end[1])))
            return tt_fail(TT_EUSAGE,
                           "estimate: --ranks '%s' is not a list of numbers of ranks, each from 1 to %d\nhelp: for "
                           "instance --ranks 8,64,512",
                           text, TT_MOST_RANKS);
        TT_PUSH(ranks->count, ranks->n, ranks->cap) = (int)value;
        at = *end ? end + 1 : end;
    }
    if (ranks->n == 0)
        return tt_fail(TT_EUSAGE, "estimate: --ranks is empty\nhelp: for instance --ranks 8,64,512");
    return 0;
}

/* --- output as text --- */

/* "12.3G", "840M": short, since columns are narrow. */
static const char *brief(char *buf, size_t size, double bytes)
{
    static const char unit[] = "BKMGTP";
    int u = 0;

    while (bytes >= 1000.0 && unit[u + 1]) {
        bytes /= 1024.0;
        u++;
    }
    (void)snprintf(buf, size, bytes < 10.0 && u ? "%.2f%c" : bytes < 100.0 && u ? "%.1f%c" : "%.0f%c", bytes, unit[u]);
    return buf;
}

/* titan-estimate(1) lists the order in which columns are left out on a narrow terminal. */
static const struct tt_column columns[] = {
    {"ranks", 6, true, 0, 0, 0},  {"policy", 24, false, 1, 0, 0}, {"params", 6, true, 1, 4, 0},
    {"optim", 6, true, 1, 3, 0},  {"grads", 6, true, 1, 5, 0},    {"activ", 6, true, 1, 2, 0},
    {"gather", 6, true, 1, 6, 0}, {"other", 6, true, 1, 7, 0},    {"stage", 6, true, 1, 9, 0},
    {"libs", 6, true, 1, 8, 0},   {"total", 6, true, 1, 0, 0},    {"sent", 6, true, 1, 1, 0},
    {"step", 11, true, 1, 0, 0},  {"fits", 0, false, 1, 0, 0},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns, LIMIT = 120 };

static void add_bytes(struct tt_columns *table, double bytes)
{
    char buf[32];

    tt_columns_cell(table, "%s", brief(buf, sizeof buf, bytes));
}

static void add_row(struct tt_columns *table, const struct tt_estimate_row *r)
{
    const int64_t *k = r->p.memory.by_kind;
    char step[32];

    tt_columns_cell(table, "%d", r->ranks);
    tt_columns_cell(table, "%s", r->policy);
    if (r->problem) {
        tt_columns_rest(table, 2, r->problem);
        return;
    }
    add_bytes(table, (double)k[TT_MEMORY_PARAM]);
    add_bytes(table, (double)k[TT_MEMORY_OPTIMIZER]);
    add_bytes(table, (double)k[TT_MEMORY_GRAD]);
    add_bytes(table, (double)(k[TT_MEMORY_ACTIVATION] + k[TT_MEMORY_ACTIVATION_GRAD] + k[TT_MEMORY_INPUT]));
    add_bytes(table, (double)(k[TT_MEMORY_UNSHARDED] + k[TT_MEMORY_KEPT] + k[TT_MEMORY_PARAM_GRAD]));
    add_bytes(table, (double)(k[TT_MEMORY_STAGING] + k[TT_MEMORY_SCRATCH] + k[TT_MEMORY_CONST] +
                              tt_summary_padding(&r->p.memory)));
    add_bytes(table, (double)r->staging);
    add_bytes(table, (double)r->libraries);
    add_bytes(table, (double)r->resident);
    add_bytes(table, (double)r->p.payload_bytes);
    tt_columns_cell(table, "%s", tt_text_duration(step, sizeof step, r->p.step_sec));
    tt_columns_cell(table, "%s%s%s%s", r->fits ? "yes" : "no", r->least_memory || r->fastest ? " " : "",
                    r->least_memory ? "m" : "", r->fastest ? "f" : "");
}

static const char *const init_words[TT_INIT_MODES] = {
    [TT_INIT_META] = "meta", [TT_INIT_FULL] = "full", [TT_INIT_LAYERWISE] = "layerwise"};

/* Prints the memory of a rank while it initialises the weights. Policies do not matter then, so there is one row per
 * number of ranks. */
static void print_init(const struct tt_estimate *e)
{
    char buf[32];
    int last = 0;

    for (int i = 0; i < e->n; i++) {
        if (e->rows[i].problem || e->rows[i].ranks == last)
            continue;
        if (!last) {
            tt_print("\nwhile the weights are made, a rank holds\n%7s", "ranks");
            for (int k = 0; k < TT_INIT_MODES; k++)
                tt_print(" %14s", init_words[k]);
            tt_print("  (training.init)\n");
        }
        last = e->rows[i].ranks;
        tt_print("%7d", last);
        for (int k = 0; k < TT_INIT_MODES; k++)
            tt_print(" %14s", brief(buf, sizeof buf, (double)(e->rows[i].p.init_bytes[k] + e->rows[i].libraries)));
        tt_print("\n");
    }
}

/* "wrap block, reshard default, ...", broken into two lines if it is too long for one. */
static void print_policies(const char *text)
{
    enum { WIDTH = LIMIT, INDENT = 10 };
    size_t n = strlen(text);
    int terminal = tt_screen_columns(STDOUT_FILENO);

    if (terminal && terminal < WIDTH) {
        tt_print_broken(INDENT, "policies  configured: %s\n\n", text);
        return;
    }
    if (n > WIDTH - INDENT - strlen("configured: "))
        for (n = WIDTH - INDENT - strlen("configured: "); n > 1 && text[n - 1] != ','; n--)
            ;
    tt_print("policies  configured: %.*s\n", (int)n, text);
    while (text[n] == ' ')
        n++;
    if (text[n])
        tt_print("%*s%s\n", INDENT, "", text + n);
    tt_print("\n");
}

/* Prints facts that the columns do not show: the idle time of pipelines, the traffic of expert parallelism (which
 * depends on the data), and the choices of gradient_sync auto. */
static void print_notes(const struct tt_estimate *e)
{
    enum { PIPELINES, EXPERTS, CHOICES, NOTES };
    static const char *const titles[NOTES] = {
        "\npipelines; idle: predicted share of the time in which ranks wait for other stages\n",
        "\nrows of experts are sent in addition; step assumes the same number of rows for every expert\n",
        "\ngradient_sync auto reduces gradients\n"};
    char a[32], b[32], sec[32];

    for (int note = 0; note < NOTES; note++) {
        struct tt_columns table = {.column = columns, .n = N_COLUMNS, .no_titles = true};

        for (int i = 0; i < e->n; i++) {
            const struct tt_estimate_row *r = &e->rows[i];
            struct tt_text text = {0};

            if (note == PIPELINES && r->largest)
                tt_text_add(&text, "most memory: %s; all ranks send %s; idle %.0f %%", r->largest,
                            brief(a, sizeof a, (double)r->p.payload_sum), 100.0 * r->p.run.bubble_share);
            else if (note == EXPERTS && r->p.routed_most)
                tt_text_add(&text, "about %s, at most %s; step at most %s",
                            brief(a, sizeof a, (double)r->p.routed_bytes), brief(b, sizeof b, (double)r->p.routed_most),
                            tt_text_duration(sec, sizeof sec, r->p.step_most_sec));
            else if (note == CHOICES && r->sync_why)
                tt_text_add(&text, "%s", r->sync_why);
            if (!text.size)
                continue;
            if (!table.rows)
                tt_print_broken(2, "%s", titles[note]);
            tt_columns_cell(&table, "%d", r->ranks);
            tt_columns_cell(&table, "%s", r->policy);
            tt_columns_rest(&table, 1, text.text);
            tt_text_release(&text);
        }
        tt_columns_print(&table);
    }
}

static void print_table(const struct tt_estimate *e)
{
    struct tt_columns table = {.column = columns, .n = N_COLUMNS, .limit = LIMIT};
    int last = 0;
    char limit[32];

    tt_print_broken(10, "%s", e->head ? e->head : "");
    print_policies(e->policies.text);
    for (int i = 0; i < e->n; i++) {
        if (last && e->rows[i].ranks != last)
            tt_columns_rest(&table, 0, "");
        last = e->rows[i].ranks;
        add_row(&table, &e->rows[i]);
    }
    tt_columns_print(&table);
    print_init(e);
    print_notes(e);
    tt_print_broken(
        3, "\nm: least memory; f: fastest of those that fit; total: memory that a rank needs; sent: bytes that a rank "
           "sends in a step\n");
    if (e->memory)
        tt_print("fits: at most %s a rank\n", tt_text_bytes(limit, sizeof limit, (double)e->memory));
    else
        tt_print_broken(
            6, "fits: at most parallelism.memory_limit, or else this machine's share of a rank (or --memory SIZE)\n");
    tt_print_broken(6, "step: predicted for %s\n", e->machine);
}

/* --- output as JSON --- */

static json_t *row_json(const struct tt_estimate_row *r)
{
    json_t *init, *kinds, *o;

    if (r->problem)
        return json_pack("{s:i, s:s, s:o, s:n}", "ranks", r->ranks, "policy", r->policy, "problem",
                         tt_json_string(r->problem), "fits");
    init = json_object();
    for (int i = 0; i < TT_INIT_MODES; i++)
        (void)json_object_set_new(init, init_words[i], json_integer(r->p.init_bytes[i]));
    kinds = tt_summary_by_kind(&r->p.memory);
    (void)json_object_set_new(kinds, "libraries", json_integer(r->libraries));
    (void)json_object_set_new(kinds, "staging", json_integer(r->staging));
    o = json_pack("{s:i, s:s, s:s, s:s, s:s, s:I}", "ranks", r->ranks, "policy", r->policy, "reshard", r->reshard,
                  "gradient_sync", r->sync, "engine", r->engine, "microbatches", (json_int_t)r->microbatches);
    (void)json_object_update_new(
        o, json_pack("{s:I, s:I, s:I, s:I, s:o, s:o}", "peak_bytes", (json_int_t)r->p.memory.total, "libraries_bytes",
                     (json_int_t)r->libraries, "staging_bytes", (json_int_t)r->staging, "resident_bytes",
                     (json_int_t)r->resident, "by_kind", kinds, "init_peak_bytes", init));
    if (r->sync_why)
        (void)json_object_set_new(o, "gradient_sync_choice", tt_json_string(r->sync_why));
    if (r->p.routed_most)
        (void)json_object_update_new(o, json_pack("{s:I, s:I, s:o}", "expert_bytes_per_step",
                                                  (json_int_t)r->p.routed_bytes, "most_expert_bytes_per_step",
                                                  (json_int_t)r->p.routed_most, "step_most_s",
                                                  tt_json_number(r->p.step_most_sec)));
    if (r->largest)
        (void)json_object_update_new(o, json_pack("{s:i, s:I, s:o}", "largest_rank", r->p.rank, "payload_bytes_all",
                                                  (json_int_t)r->p.payload_sum, "bubble_share",
                                                  tt_json_number(r->p.run.bubble_share)));
    (void)json_object_update_new(o, json_pack("{s:I, s:o, s:o, s:I, s:b, s:b, s:b}", "payload_bytes_per_step",
                                              (json_int_t)r->p.payload_bytes, "step_s", tt_json_number(r->p.step_sec),
                                              "exposed_s", tt_json_number(r->p.exposed_sec), "memory_bytes",
                                              (json_int_t)r->limit, "fits", r->fits, "least_memory", r->least_memory,
                                              "fastest", r->fastest));
    return o;
}

static json_t *to_json(const struct tt_estimate *e)
{
    json_t *rows = json_array();

    for (int i = 0; i < e->n; i++)
        (void)json_array_append_new(rows, row_json(&e->rows[i]));
    return json_pack("{s:s, s:i, s:o, s:s, s:[]}", "type", "estimate", "schema", 1, "rows", rows, "machine", e->machine,
                     "not_modelled");
}

/* --- the command --- */

static int estimate(const struct tt_args *args)
{
    static const char *const of_machine[] = {"stack",     "search",   "emit",       "tokens",      "nccl",
                                             "save",      "model",    "save_stack", "torchtitan",  "svg",
                                             "calibrate", "megatron", "set",        "script_args", "html"};
    const char *list = tt_args_last(args, "ranks"), *memory = tt_args_last(args, "memory");
    struct ranks ranks = {0};
    struct tt_estimate e = {.args = args};
    int rc = 0;

    if (tt_args_has(args, "backtest"))
        return tt_print_backtest(args);
    TT_TRY(read_ranks(list ? list : "1", &ranks));
    if (memory && (!tt_text_to_bytes(memory, &e.memory) || e.memory < 1))
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: --memory '%s' is not a size\nhelp: for instance --memory 80GiB", memory));
    if (memory && e.memory < 1 << 20 && !memory[strspn(memory, "0123456789.")])
        TT_TRY(tt_fail(TT_EUSAGE, "estimate: --memory '%s' has no unit, and would be bytes\nhelp: --memory %sGiB",
                       memory, memory));
    if (tt_cluster_typed_is(args)) {
        rc = tt_print_cluster(args, ranks.count, list ? ranks.n : 0, e.memory);
        goto out;
    }
    for (size_t i = 0; i < sizeof of_machine / sizeof *of_machine; i++)
        if (tt_args_has(args, of_machine[i]))
            TT_TRY(tt_fail(TT_EUSAGE, "estimate: --%s needs --machine\nhelp: for instance --machine h100-sxm",
                           of_machine[i]));
    TT_TRY(tt_estimate_begin(&e));
    for (int i = 0; i < ranks.n; i++)
        TT_TRY(tt_estimate_ranks(&e, ranks.count[i]));
    if (tt_args_has(args, "json"))
        rc = tt_cli_print_json(to_json(&e));
    else
        print_table(&e);
out:
    tt_estimate_release(&e);
    tt_free(ranks.count);
    return rc;
}

/* Appends the names of machines, stacks and models. */
static void add_names(struct tt_text *out)
{
    enum { INDENT = 12 };
    const struct tt_cluster_machine *machine;
    const struct tt_cluster_stack *stack;
    struct tt_text machines = {0}, stacks = {0}, models = {0};

    for (int i = 0; (machine = tt_cluster_machine_at(i)); i++)
        tt_text_add(&machines, "%s%s", i ? " " : "", machine->name);
    for (int i = 0; (stack = tt_cluster_stack_at(i)); i++)
        tt_text_add(&stacks, "%s%s", i ? " " : "", stack->name);
    (void)tt_cluster_shape_names("", &models);
    tt_text_add(out, "\n");
    tt_args_help_row(out, INDENT, "machines", machines.text);
    tt_args_help_row(out, INDENT, "stacks", stacks.text);
    tt_args_help_row(out, INDENT, "models", models.text);
    tt_text_release(&machines);
    tt_text_release(&stacks);
    tt_text_release(&models);
}

const struct tt_command tt_command_estimate = {
    .name = "estimate",
    .arguments = "MODEL --gpus [N x] NAME | [--config FILE]... --ranks N[,N...]",
    .summary = "will it fit, how fast, what does it cost; per policy",
    .usage = usage,
    .options = options,
    .add_more = add_names,
    .run = estimate,
};
