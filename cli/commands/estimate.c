/* SPDX-License-Identifier: MIT
 *
 * `titan estimate`: what a configuration needs on any number of ranks, under each policy. The code that trains plans
 * every row. Nothing large is allocated and no rank is started.
 */
#include "cli/estimate/estimate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/estimate/typed.h"
#include "cli/run/screen.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/config/args.h"
#include "core/config/config.h"
#include "estimate/model/job.h"
#include "trainer/job/predict.h"
#include "trainer/job/summary.h"

/**
 * Estimates: one row per number of ranks and policy. The code that plans a training run also plans each row.
 *
 *     struct tt_estimate e = {.args = args, .memory = limit or 0};
 *     TT_TRY(begin(&e));
 *     TT_TRY(add_ranks(&e, 8));   may be repeated
 *     release(&e);
 */
struct tt_estimate_row {
    int ranks;
    char *policy;  /* such as "default", or "never, last_microbatch" */
    char *problem; /* why there are no numbers (the ranks do not divide, a feature is not modelled); or NULL */
    char *reshard, *sync, *engine;
    int64_t microbatches;
    char *largest;              /* in a pipeline, "rank 3 (stage 1)"; or NULL */
    char *sync_why;             /* why gradient_sync auto became this value; NULL: it is configured */
    struct tt_job_prediction p; /* only makespan and bubble_share of its `run` */
    int64_t libraries;          /* bytes of the process that are not the arena */
    int64_t staging;            /* memory into which async checkpoints are copied */
    int64_t resident;           /* the sum of arena, libraries and staging */
    int64_t limit;              /* bytes that a rank may use */
    bool fits;                  /* enough for both the step and the initialisation by training.init */
    bool least_memory, fastest; /* among the rows of this number of ranks; fastest: among those that fit */
};

struct tt_estimate {
    const struct tt_args *args; /* the command line: files and overrides */
    int64_t memory;             /* bytes that a rank may use; 0: parallelism.memory_limit or this machine's */
    char *head;                 /* a line about the model; NULL until a number of ranks could be planned */
    struct tt_text policies;    /* the policies of the configuration, in words */
    char machine[64];           /* the machine for which times are predicted */
    char *configured;           /* the configured reshard policy, if it is not one of the usual rows */
    char *sync;                 /* the configured gradient_sync */
    char *not_modelled;         /* "parallelism.tensor_parallel_degree=2", or NULL */
    struct tt_estimate_row *rows;
    int n, cap;
};

/* The rows of `titan estimate`. A policy is a set of flags that is added to the command line, so the estimate describes
 * exactly the run that `titan train` would do with these flags. A policy that is not built yet gives no row. */

/*
 * Resident bytes of a rank in addition to its arena: program, OpenBLAS, MPI and its buffers, the loader. Measured on
 * x86-64 with Open MPI 4.1 and OpenBLAS 0.3.21, on one host, with two models (6M and 15M parameters), as the largest
 * resident size of a rank minus its arena: 18.5 and 18.6 MiB for a single rank with 2 threads, 28.0 to 29.0 MiB on 2
 * and 4 ranks of one thread. More threads, more hosts and longer runs were not measured.
 */
static const int64_t libraries_alone = 19LL << 20, libraries_with_mpi = 29LL << 20;

static const char *const reshard_key = TT_KEY_NAME(parallelism.fsdp_reshard_after_forward),
                         *const sync_key = TT_KEY_NAME(training.gradient_sync);

/* --- what cannot be modelled --- */

/* Those of a list of "key=value" lines that change memory, traffic or time; NULL if none does. */
static char *relevant(const char *lines)
{
    static const char *const matter[] = {"parallelism.",
                                         TT_KEY_NAME(training.gradient_sync),
                                         TT_KEY_NAME(training.dtype),
                                         "training.mixed_precision",
                                         TT_KEY_NAME(training.init),
                                         "activation_checkpoint."};
    struct tt_text found = {0};

    for (const char *line = lines; line && *line; line = strchr(line, '\n') + 1) {
        for (size_t i = 0; i < sizeof matter / sizeof matter[0]; i++)
            if (strncmp(line, matter[i], strlen(matter[i])) == 0)
                tt_text_add(&found, "%s%.*s", found.size ? ", " : "", (int)strcspn(line, "\n"), line);
    }
    return found.text;
}

static char *value_of(const struct tt_config *cfg, enum tt_key key)
{
    struct tt_text text = {0};

    tt_config_value_text(cfg, tt_config_row(key), &text);
    return text.text;
}

static const char *const reshard_words[] = {"always", "default", "never"};
enum { N_RESHARD = sizeof reshard_words / sizeof reshard_words[0] };

/* Reads the configuration; TT_EUSAGE when it is wrong. */
static int begin(struct tt_estimate *e)
{
    struct tt_text unbuilt = {0};
    struct tt_cli_variant variant = {.unbuilt = &unbuilt};
    struct tt_machine machine;
    struct tt_config *cfg = NULL;
    bool has_row = false;
    int rc = 0;

    tt_cli_install_log(); /* notes about keys are shown once; the variants would repeat them */
    rc = tt_cli_load_variant("estimate", e->args, &variant, &cfg);
    tt_log_set_sink(NULL, NULL);
    TT_TRY(rc);
    TT_TRY(tt_config_locate(cfg, tt_job_machine(cfg, &machine)));
    memcpy(e->machine, machine.name, sizeof e->machine);
    tt_job_policies_text(cfg, &e->policies);
    e->not_modelled = relevant(unbuilt.text);
    e->sync = value_of(cfg, TT_KEY(training.gradient_sync));
    e->configured = value_of(cfg, TT_KEY(parallelism.fsdp_reshard_after_forward));
    for (int i = 0; i < N_RESHARD; i++)
        has_row = has_row || strcmp(e->configured, reshard_words[i]) == 0;
    if (has_row || strcmp(e->configured, "true") == 0 || strcmp(e->configured, "false") == 0) {
        tt_free(e->configured);
        e->configured = NULL;
    }
out:
    tt_text_release(&unbuilt);
    tt_config_free(cfg);
    return rc;
}

/* --- one row --- */

static int fill(struct tt_estimate_row *row, const struct tt_config *cfg, const struct tt_job *job,
                const struct tt_engine *engine)
{
    struct tt_text largest = {0};
    double makespan, bubble_share;
    int rc = tt_job_predict(job, &job->engine.machine, engine, 0, &row->p);

    if (rc < 0)
        return rc;
    makespan = row->p.run.makespan;
    bubble_share = row->p.run.bubble_share;
    tt_pipeline_run_release(&row->p.run);
    row->p.run = (struct tt_pipeline_run){.makespan = makespan, .bubble_share = bubble_share};
    row->libraries = row->ranks > 1 ? libraries_with_mpi : libraries_alone;
    row->staging = job->staging_bytes;
    row->resident = row->p.memory.total + row->libraries + row->staging;
    if (job->pipeline)
        tt_job_rank_text(job, row->p.rank, &largest);
    row->largest = largest.text;
    row->reshard = value_of(cfg, TT_KEY(parallelism.fsdp_reshard_after_forward));
    row->sync = value_of(cfg, TT_KEY(training.gradient_sync));
    row->sync_why = tt_strdup(job->sync_why);
    row->engine = value_of(cfg, TT_KEY(parallelism.fsdp_engine));
    return 0;
}

static char *policy_of(const struct tt_estimate *e, const char *reshard, const char *sync)
{
    return strcmp(sync, e->sync) == 0 ? tt_strdup(reshard) : tt_format("%s, %s", reshard, sync);
}

/* In a pipeline, `default` keeps everything gathered, as `never` does, so the row of `default` is copied. False: there
 * is no such row. */
static bool is_as_default(const struct tt_estimate *e, const char *reshard, const char *sync, const struct tt_job *job,
                          struct tt_estimate_row *row)
{
    char *policy = policy_of(e, "default", sync), *own = row->policy;
    bool found = false;

    for (int i = 0; i < e->n && job->pipeline && strcmp(reshard, "never") == 0 && !found; i++) {
        const struct tt_estimate_row *same = &e->rows[i];

        found = same->ranks == row->ranks && !same->problem && strcmp(same->policy, policy) == 0;
        if (!found)
            continue;
        *row = *same;
        row->policy = own;
        row->reshard = tt_strdup(reshard);
        row->sync = tt_strdup(same->sync);
        row->sync_why = tt_strdup(same->sync_why);
        row->engine = tt_strdup(same->engine);
        row->largest = tt_strdup(same->largest);
    }
    tt_free(policy);
    return found;
}

/* If a number of ranks is impossible, its row says so. Only a fault that applies to every number is an error. */
static int predict_row(struct tt_estimate *e, int n_ranks, const char *reshard, const char *sync, bool *ret_stop)
{
    struct tt_estimate_row row = {.ranks = n_ranks, .p = {.step_sec = (double)NAN, .exposed_sec = (double)NAN}};
    char *reshard_flag = tt_format("--%s=%s", reshard_key, reshard), *sync_flag = tt_format("--%s=%s", sync_key, sync);
    struct tt_text unbuilt = {0};
    struct tt_cli_variant variant = {.flag = {reshard_flag, sync_flag}, .n = 2, .unbuilt = &unbuilt};
    struct tt_config *cfg = NULL;
    struct tt_job job = {0};
    struct tt_engine *engine = NULL;
    char count[32], active[32], used[64] = "";
    int threads, rc = 0;

    TT_TRY(tt_cli_load_variant("estimate", e->args, &variant, &cfg));
    if (unbuilt.text && (strstr(unbuilt.text, reshard_key) || strstr(unbuilt.text, sync_key)))
        goto out; /* a flag needs a feature that is not built */
    threads = tt_job_threads(cfg, n_ranks);
    row.policy = policy_of(e, reshard, sync);
    row.limit = e->memory ? e->memory : tt_job_memory_limit(cfg, tt_job_ranks_on_host(n_ranks, threads));
    rc = tt_job_init(cfg, n_ranks, threads, row.limit, &job);
    if (rc == 0 && is_as_default(e, reshard, sync, &job, &row)) {
        TT_PUSH(e->rows, e->n, e->cap) = row;
        row = (struct tt_estimate_row){0};
        goto out;
    }
    if (rc == 0 && !e->head) {
        if (job.model->dims.moe.experts)
            (void)snprintf(used, sizeof used, " (a token uses %s)",
                           tt_text_count(active, sizeof active, tt_model_n_active(job.model)));
        e->head = tt_format("model     %s, %s parameters%s, local batch %lld x %lld tokens\n", job.model->title,
                            tt_text_count(count, sizeof count, tt_model_n_elements(job.model)), used,
                            (long long)cfg->training.local_batch_size, (long long)cfg->training.seq_len);
        tt_cli_install_log();
        tt_cli_note_idle(cfg, job.model);
        tt_log_set_sink(NULL, NULL);
    }
    if (rc == 0) {
        row.microbatches = job.microbatches;
        rc = tt_job_engine_alone(cfg, &job, 0, &engine);
    }
    /* leave the row out if the order cannot carry gradients */
    *ret_stop = rc == TT_EUSAGE && tt_error_key() != TT_KEY(training.gradient_sync);
    rc = tt_config_locate(cfg, rc);
    if (rc == TT_EUSAGE) {
        tt_error_drop_hint();
        row.problem = tt_strdup(tt_error_message());
        rc = 0;
    }
    TT_TRY(rc);
    if (!row.problem)
        TT_TRY(fill(&row, cfg, &job, engine));
    row.fits = !row.problem && row.resident <= row.limit &&
               row.p.init_bytes[job.engine.init] + row.libraries + row.staging <= row.limit;
    TT_PUSH(e->rows, e->n, e->cap) = row;
    row = (struct tt_estimate_row){0};
out:
    tt_text_release(&unbuilt);
    tt_free(reshard_flag);
    tt_free(sync_flag);
    tt_free(row.policy);
    tt_engine_free(engine);
    tt_job_release(&job);
    tt_config_free(cfg);
    return rc;
}

/* --- all rows of a number of ranks --- */

static void mark_best(struct tt_estimate_row *rows, int n)
{
    int least = TT_NONE, fastest = TT_NONE;

    for (int i = 0; i < n; i++) {
        if (rows[i].problem)
            continue;
        if (least == TT_NONE || rows[i].p.memory.total < rows[least].p.memory.total)
            least = i;
        if (rows[i].fits && (fastest == TT_NONE || rows[i].p.step_sec < rows[fastest].p.step_sec))
            fastest = i;
    }
    if (least != TT_NONE)
        rows[least].least_memory = true;
    if (fastest != TT_NONE)
        rows[fastest].fastest = true;
}

/* Appends the rows of a number of ranks. */
static int add_ranks(struct tt_estimate *e, int n_ranks)
{
    static const char *const sync_words[] = {"every_microbatch", "every_run", "last_microbatch"};
    enum { N_SYNC = sizeof sync_words / sizeof sync_words[0] };
    int first = e->n, at, rc = 0;
    bool stop = false;

    if (e->not_modelled) {
        TT_PUSH(e->rows, e->n, e->cap) = (struct tt_estimate_row){
            .ranks = n_ranks, .policy = tt_strdup("-"), .problem = tt_format("not modelled: %s", e->not_modelled)};
        return 0;
    }
    for (int r = 0; r <= N_RESHARD && !stop; r++) {
        const char *reshard = r < N_RESHARD ? reshard_words[r] : e->configured;

        if (!reshard)
            continue;
        TT_TRY(predict_row(e, n_ranks, reshard, e->sync, &stop));
        at = e->n - 1;                            /* the row of the configured sync, or of the one that `auto` became */
        for (int s = 0; s < N_SYNC && !stop; s++) /* with one microbatch, no reduction can be deferred */
            if (at >= first && e->rows[at].microbatches > 1 && strcmp(sync_words[s], e->rows[at].sync) != 0)
                TT_TRY(predict_row(e, n_ranks, reshard, sync_words[s], &stop));
    }
    mark_best(&e->rows[first], e->n - first);
out:
    return rc;
}

static void release(struct tt_estimate *e)
{
    for (int i = 0; i < e->n; i++) {
        tt_free(e->rows[i].policy);
        tt_free(e->rows[i].problem);
        tt_free(e->rows[i].largest);
        tt_free(e->rows[i].reshard);
        tt_free(e->rows[i].sync);
        tt_free(e->rows[i].sync_why);
        tt_free(e->rows[i].engine);
    }
    tt_free(e->rows);
    tt_free(e->head);
    tt_text_release(&e->policies);
    tt_free(e->configured);
    tt_free(e->sync);
    tt_free(e->not_modelled);
}

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
    TT_TRY(begin(&e));
    for (int i = 0; i < ranks.n; i++)
        TT_TRY(add_ranks(&e, ranks.count[i]));
    if (tt_args_has(args, "json"))
        rc = tt_cli_print_json(to_json(&e));
    else
        print_table(&e);
out:
    release(&e);
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
