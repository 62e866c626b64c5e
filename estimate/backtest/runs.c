/* SPDX-License-Identifier: MIT
 *
 * Tables of comma-separated values.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/mem.h"
#include "estimate/backtest/backtest.h"

/* --- tables of comma-separated values --- */

struct fields {
    char **item;
    int n, cap;
};

/* Takes one field from *at into *out, and moves both; the character that ended it is returned, 0 at the end. */
static char take(const char **at, const char *end, char **out, int *line)
{
    bool quoted = *at < end && **at == '"';

    if (quoted)
        (*at)++;
    while (*at < end) {
        char c = *(*at)++;

        if (quoted && c == '"') {
            if (*at < end && **at == '"')
                (*at)++;
            else {
                quoted = false;
                continue;
            }
        } else if (!quoted && (c == ',' || c == '\n')) {
            *(*out)++ = 0;
            *line += c == '\n';
            return c;
        } else if (!quoted && c == '\r')
            continue;
        *line += c == '\n';
        *(*out)++ = c;
    }
    *(*out)++ = 0;
    return 0;
}

int tt_csv_parse(const char *text, size_t size, const char *where, struct tt_csv *csv)
{
    struct fields fields = {0};
    const char *at = text, *end = text + size;
    int line = 1, columns = 0, in_row = 0;
    char *out;

    if (size >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0) /* a mark of UTF-8, as spreadsheets write it */
        at += 3;
    *csv = (struct tt_csv){.text = tt_calloc(size + 2, 1)};
    out = csv->text;
    while (at < end) {
        char *field = out, last = take(&at, end, &out, &line);

        TT_PUSH(fields.item, fields.n, fields.cap) = field;
        in_row++;
        if (last == ',')
            continue;
        if (in_row == 1 && !*field) { /* an empty line */
            fields.n--;
            in_row = 0;
            continue;
        }
        columns = columns ? columns : in_row;
        if (in_row != columns) {
            tt_free(fields.item);
            tt_csv_release(csv);
            return tt_fail(TT_EDATA, "%s: the row that ends before line %d has %d fields, the first row has %d", where,
                           line, in_row, columns);
        }
        in_row = 0;
    }
    if (columns == 0) {
        tt_free(fields.item);
        tt_csv_release(csv);
        return tt_fail(TT_EDATA, "%s: no row with the names of columns", where);
    }
    for (int i = 0; i < columns; i++)
        for (int k = 0; k < i; k++)
            if (*fields.item[i] && strcmp(fields.item[i], fields.item[k]) == 0) {
                int rc = tt_fail(TT_EDATA, "%s: columns %d and %d are both named '%.60s'", where, k + 1, i + 1,
                                 fields.item[i]);

                tt_free(fields.item);
                tt_csv_release(csv);
                return rc;
            }
    csv->name = fields.item;
    csv->field = fields.item + columns;
    csv->n_columns = columns;
    csv->n_rows = fields.n / columns - 1;
    return 0;
}

void tt_csv_release(struct tt_csv *csv)
{
    tt_free(csv->text);
    tt_free(csv->name);
    *csv = (struct tt_csv){0};
}

/* The column of that name, or -1. */
static int csv_column(const struct tt_csv *csv, const char *name)
{
    for (int i = 0; i < csv->n_columns; i++)
        if (strcmp(csv->name[i], name) == 0)
            return i;
    return -1;
}

const char *tt_csv_get(const struct tt_csv *csv, int row, const char *column)
{
    int i = csv_column(csv, column);

    return i < 0 ? "" : csv->field[(size_t)row * (size_t)csv->n_columns + (size_t)i];
}

/* A field as a number; `otherwise` if it is empty or no number. */
static double csv_number(const struct tt_csv *csv, int row, const char *column, double otherwise)
{
    const char *text = tt_csv_get(csv, row, column);
    char *end = NULL;
    double value = strtod(text, &end);

    return end == text ? otherwise : value;
}

/* --- Megatron Bridge's recipes --- */

static const struct recipe {
    const char *model, *machine;
    bool float8;
    double from, before; /* containers */
    unsigned modules;
    bool graph, overlap;
} recipes[] = {
#define R(model, machine, float8, from, before, modules, graph, overlap) \
    {(model), (machine), (float8), (from), (before), (modules), (graph), (overlap)},
#include "estimate/backtest/recipes.def"
#undef R
};

/* The release that a source names: "container 26.04.01" is 26.0401. The tables of the newest are on one page. */
static double container(const char *source)
{
    const char *at = strcasestr(source, "container ");
    char *end;
    double release, patch = 0;

    if (!at)
        return strcasestr(source, "performance-summary.md") ? 26.08 : 0;
    release = strtod(at + strlen("container "), &end);
    if (*end == '.')
        patch = strtod(end + 1, NULL);
    return release + patch / 10000;
}

/* Completes a run of Megatron Bridge's tables of models with experts; does nothing to others. Tokens are spread equally
 * over experts, as a footnote says. What is recomputed and overlapped, and whether a graph captures whole steps, is in
 * the recipe of the release; where none is known, the exchange is overlapped if it crosses nodes and there is a
 * pipeline. What the row itself states stays. */
static int as_in_recipes(const struct tt_csv *csv, int row, struct tt_cluster_run *run)
{
    struct tt_cluster_job *job = &run->job;
    const char *source = tt_csv_get(csv, row, "source"), *name = tt_csv_get(csv, row, "model");
    double devices = job->machine->number[TT_M_DEVICES].value, release = container(source) + 1e-6;
    bool graph = release >= 26.06 && job->float8 && devices > 8;

    if (!(job->shape.experts > 0) || !(strcasestr(source, "Megatron Bridge") || strcasestr(source, "Megatron-Bridge")))
        return 0;
    job->balanced = true;
    job->expert_overlap = job->pp > 1 && job->ep * job->tp > devices;
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        const struct recipe *r = &recipes[i];

        if (strcasecmp(r->model, name) != 0 || strncmp(job->machine->name, r->machine, strlen(r->machine)) != 0 ||
            r->float8 != job->float8 || release < r->from || release >= r->before)
            continue;
        job->expert_overlap = r->overlap;
        graph = r->graph;
        if (!run->ac_stated && r->modules) {
            job->again = TT_AGAIN_MODULES;
            job->again_modules = r->modules;
        }
    }
    if (graph && !*tt_csv_get(csv, row, "stack"))
        return tt_cluster_stack_find("megatron-bridge-2026", &job->stack);
    return 0;
}

/* --- rows --- */

static bool has(const char *text, const char *word)
{
    return strcasestr(text, word) != NULL;
}

/* The number after `word`; `otherwise` if there is none. */
static double number_after(const char *text, const char *word, double otherwise)
{
    const char *at = strcasestr(text, word);
    char *end = NULL;
    double value;

    if (!at)
        return otherwise;
    value = strtod(at + strlen(word), &end);
    return end == at + strlen(word) || !(fabs(value) < 1e6) ? otherwise : value; /* "layers inf" is no number */
}

/* --- which machine, which stack --- */

struct rule {
    const char *word, *name;
};

static const struct rule machine_rules[] = {
    {"GB300", "gb300"},       {"GB200", "gb200"},
    {"B300", "b300"},         {"B200", "b200"},
    {"H200", "h200"},         {"H800", "h800"},
    {"H100 NVL", "h100-nvl"}, {"H100 PCIe", "h100-pcie"},
    {"HBM2e", "h100-hbm2e"},  {"500W", "h100-hbm2e"},
    {"H100", "h100-sxm"},     {"A100 40", "a100-40"},
    {"A100-40", "a100-40"},   {"A100-SXM4-40", "a100-40"},
    {"A100", "a100-80"},      {"MI300X", "mi300x"},
    {"MI325X", "mi325x"},     {"MI355X", "mi355x"},
};

/* By the words of a row's source; the first that fits. */
static const struct rule stack_rules[] = {
    {"2104.04473", "megatron-2021"},
    {"2205.05198", "megatron-2023"},
    {"2402.15627", "megatron-2023"},
    {"2201.11990", "megatron-deepspeed"},
    {"2407.21783", "llama3-internal"},
    {"2412.19437", "megatron-bridge"},
    {"vTrain", "megatron-deepspeed-2023"},
    {"parallelization layouts", "colm"},
    {"COLM", "colm"},
    {"Megatron-DeepSpeed", "megatron-deepspeed"},
    {"Megatron Bridge", "megatron-bridge"},
    {"Megatron-Bridge", "megatron-bridge"},
    {"NeMo", "megatron-bridge"},
    {"Megatron", "megatron-2023"},
    {"llm-foundry", "fsdp1"},
    {"fms-fsdp", "fsdp1-compile"},
    {"YaFSDP", "fsdp1-2024"},
    {"2304.11277", "fsdp1"},
    {"Primus", "primus"},
    {"ml-engineering", "pytorch-plain"},
    {"FSDP", "fsdp1-compile"},
    {"torchtune", "torchtitan-eager-2025"},
};

/* Of a device that no rule names; nothing is predicted for it. */
static const struct tt_cluster_machine unknown_machine = {.name = "unknown",
                                                          .title = "a device that titan has no table of"};

static const char *stack_name(const struct tt_csv *csv, int row, bool *assumed)
{
    const char *source = tt_csv_get(csv, row, "source"), *compile = tt_csv_get(csv, row, "compile");
    const char *notes = tt_csv_get(csv, row, "notes");

    *assumed = false;
    if (has(notes, "MegaScale:"))
        return "megascale";
    if (has(notes, "SimpleFSDP"))
        return "torchtitan-simple";
    for (size_t i = 0; !has(source, "torchtitan") && i < sizeof stack_rules / sizeof *stack_rules; i++)
        if (has(source, stack_rules[i].word)) /* Megatron has fused attention since there are devices after A100 */
            return strcmp(stack_rules[i].name, "megatron-2023") == 0 && !has(tt_csv_get(csv, row, "gpu"), "A100")
                       ? "megatron-bridge"
                       : stack_rules[i].name;
    *assumed = !has(source, "torchtitan") && !has(source, "2410.06511") && !has(notes, "torchtitan");
    if (!has(source, "torchtitan") && !has(source, "2410.06511") && csv_number(csv, row, "dp_shard", 1) <= 1 &&
        csv_number(csv, row, "tp", 1) * csv_number(csv, row, "pp", 1) > 1) /* tensors cut, copies of the rest */
        return has(tt_csv_get(csv, row, "gpu"), "A100") ? "megatron-2023" : "megatron-bridge";
    if (has(compile, "graph"))
        return "torchtitan-graph";
    if (has(source, "#1881") || has(source, "#2080"))
        return "torchtitan-eager-2025";
    if (!has(compile, "no") && !has(source, "2024") && !has(source, "2410.06511"))
        return "torchtitan-compile-2025";
    if (!has(compile, "no"))
        return "torchtitan-compile";
    return "torchtitan-eager";
}

/* The machine and the stack of a row. */
static int hardware(const struct tt_csv *csv, int row, struct tt_cluster_run *run)
{
    const char *gpu = tt_csv_get(csv, row, "gpu"), *own = tt_csv_get(csv, row, "stack"), *name = NULL;
    int rc = 0;

    for (size_t i = 0; !name && i < sizeof machine_rules / sizeof *machine_rules; i++)
        if (has(gpu, machine_rules[i].word))
            name = machine_rules[i].name;
    run->job.machine = &unknown_machine;
    if (name)
        TT_TRY(tt_cluster_machine_find(name, &run->job.machine));
    else
        run->excluded = "titan has no table of the device";
    TT_TRY(tt_cluster_stack_find(stack_name(csv, row, &run->stack_assumed), &run->job.stack));
    if (*own) { /* a table of one's own may name it */
        bool known = false;

        run->stack_assumed = false;
        for (int i = 0; tt_cluster_stack_at(i); i++)
            if (strcmp(tt_cluster_stack_at(i)->name, own) == 0) {
                run->job.stack = tt_cluster_stack_at(i);
                known = true;
            }
        if (!known)
            run->excluded = "titan has no stack of that name";
    }
out:
    return rc;
}

/* Network of a node as notes say it: "8 x 200 Gb/s RoCE a node", "400 Gb/s a node", "400 a node", "2 Tb/s a node". */
static double node_network(const char *text)
{
    const char *at = text, *end;

    while ((end = strstr(at, " a node"))) {
        const char *begin = end;
        double count = 1, rate = 0;
        char *rest;

        while (begin > text && end - begin < 24 && !strchr(",;(", begin[-1]))
            begin--;
        while (begin < end && (*begin < '0' || *begin > '9'))
            begin++;
        rate = strtod(begin, &rest);
        if (strncmp(rest, " x ", 3) == 0) {
            count = rate;
            rate = strtod(rest + 3, &rest);
        }
        if (rest != begin)
            return rate > 0 ? count * rate * (strncmp(rest, " T", 2) == 0 ? 1e12 : 1e9) / 8 : 0;
        at = end + 1;
    }
    return has(text, "4 HDR IB") ? 4 * 200e9 / 8 : 0;
}

/* --- the model --- */

/* Sizes that the table or its notes give replace those of the name. */
static bool model(const struct tt_csv *csv, int row, struct tt_cluster_shape *s)
{
    const char *notes = tt_csv_get(csv, row, "notes"), *name = tt_csv_get(csv, row, "model");
    bool known = tt_cluster_shape_find(name, s);
    double params = csv_number(csv, row, "params", 0);
    double dim = csv_number(csv, row, "hidden", number_after(notes, "hidden ", 0));
    double layers = csv_number(csv, row, "layers", number_after(notes, "layers ", 0));
    double heads = csv_number(csv, row, "heads", number_after(notes, "heads ", 0));
    double vocab = csv_number(csv, row, "vocab", number_after(notes, "vocab ", 0));

    if (known && s->experts > 0)
        return true;
    if (!known && !(dim > 0 && layers > 0)) {
        if (params <= 0)
            return false;
        layers = dim = 0; /* a GPT of the usual form: 12 layers x dim^2, dim = 128 layers */
        dim = 128 * round(cbrt(params * 128 / 12) / 128);
        layers = round(params / (12 * dim * dim));
    }
    if (!known) {
        *s = (struct tt_cluster_shape){.vocab = 51200, .gated = has(name, "llama"), .tied = !has(name, "llama")};
        heads = heads > 0 ? heads : dim / 128;
        s->ffn = s->gated ? 256 * ceil(dim * 8 / 3 / 256) : 4 * dim;
        s->kv_heads = heads;
    }
    if (dim > 0 && layers > 0 && heads > 0) {
        s->dim = dim;
        s->layers = layers;
        if (s->heads != heads)
            s->kv_heads = heads;
        s->heads = heads;
        s->head_dim = dim / heads;
    }
    if (vocab > 0)
        s->vocab = vocab;
    s->params = params;
    return true;
}

/* --- the layout --- */

static enum tt_cluster_again recompute(const struct tt_csv *csv, int row, const struct tt_cluster_job *job,
                                       double *layers)
{
    const char *ac = tt_csv_get(csv, row, "ac"), *stack = job->stack->name;
    double some = number_after(ac, "full on ", 0);

    *layers = job->shape.layers;
    if (some > 0) {
        *layers = some;
        return TT_AGAIN_LAYERS;
    }
    if (has(ac, "full") || has(ac, "every_layer"))
        return TT_AGAIN_FULL;
    if (has(ac, "attention"))
        return TT_AGAIN_ATTENTION;
    if (strncmp(ac, "modules ", 8) == 0)
        return TT_AGAIN_MODULES;
    if (has(ac, "op") || has(ac, "default save") || (strcmp(ac, "selective") == 0 && has(stack, "torchtitan")))
        return TT_AGAIN_OP;
    if (has(ac, "layer") || has(ac, "selective")) {
        *layers = job->shape.layers / 2;
        return TT_AGAIN_LAYERS;
    }
    if (!*ac && strncmp(stack, "torchtitan", 10) == 0)
        return TT_AGAIN_OP;
    if (!*ac && strcmp(stack, "megatron-2023") == 0)
        return TT_AGAIN_ATTENTION;
    return TT_AGAIN_NONE;
}

static int kernel(const char *text)
{
    if (has(text, "flash_attention2"))
        return 2;
    if (has(text, "flash"))
        return 1;
    return has(text, "torch") || has(text, "fused") ? 0 : -1;
}

/* Stages of a rank that are not given: about two layers each for torchtitan, else as many as divide the layers, at
 * most 3. */
static double stages(const struct tt_csv *csv, int row, const struct tt_cluster_job *job)
{
    const char *notes = tt_csv_get(csv, row, "notes");
    double given = number_after(notes, "interleaving ", number_after(notes, "virtual stages ", 0));
    double own = job->shape.layers / job->pp;

    if (given >= 1)
        return given;
    if (job->pp <= 1 || !has(tt_csv_get(csv, row, "schedule"), "interleaved"))
        return 1;
    if (strncmp(job->stack->name, "torchtitan", 10) == 0)
        return 2;
    if (strncmp(job->stack->name, "megatron", 8) != 0)
        return fmax(2, round(own));
    for (int v = 3; v > 1; v--)
        if (fmod(own, v) == 0)
            return v;
    return 1;
}

/* Sequences of a microbatch that are not given: all of the rank's without a pipeline, else 1. */
static double micro_batch(const struct tt_csv *csv, int row, const struct tt_cluster_job *job, double local)
{
    const char *source = tt_csv_get(csv, row, "source");
    double given = csv_number(csv, row, "micro_batch", number_after(tt_csv_get(csv, row, "notes"), "micro batch ", 0));

    if (given > 0)
        return given;
    if (strncmp(job->stack->name, "mega", 4) == 0)
        return job->pp > 1 ? 1 : fmin(local, 4);
    if (job->pp > 1 && (has(source, "202412") || has(source, "2410.06511"))) /* as many microbatches as stages */
        return fmax(1, floor(local / job->pp));
    return job->pp > 1 ? 1 : local;
}

/* "8 loss chunks" */
static double loss_chunks(const char *notes)
{
    const char *at = strstr(notes, " loss chunks");

    while (at && at > notes && at[-1] >= '0' && at[-1] <= '9')
        at--;
    return at ? fmax(strtod(at, NULL), 1) : 1;
}

static void divide(const struct tt_csv *csv, int row, struct tt_cluster_run *run)
{
    struct tt_cluster_job *job = &run->job;
    const char *notes = tt_csv_get(csv, row, "notes"), *ac_kernel = tt_csv_get(csv, row, "kernel");
    const char *float8 = tt_csv_get(csv, row, "float8"), *precision = tt_csv_get(csv, row, "precision");
    double local = csv_number(csv, row, "local_batch", 0), global = csv_number(csv, row, "global_batch", 0), ranks;

    job->tp = csv_number(csv, row, "tp", 1);
    job->pp = csv_number(csv, row, "pp", 1);
    job->cp = csv_number(csv, row, "cp", 1);
    job->ep = csv_number(csv, row, "ep", 1);
    job->shard = csv_number(csv, row, "dp_shard", 1);
    job->replicate = csv_number(csv, row, "dp_replicate", csv_number(csv, row, "dp", 1));
    ranks = job->shard * job->replicate;
    job->sequence_parallel = csv_number(csv, row, "sp", 0) >= 1 && job->tp > 1 &&
                             (csv_number(csv, row, "sp", 0) > 1 || csv_column(csv, "sweep") >= 0);
    job->seq_len = csv_number(csv, row, "seq_len", 0);
    local = local > 0 ? local : global / ranks;
    job->virtual_stages = stages(csv, row, job);
    job->micro_batch = micro_batch(csv, row, job, local);
    job->n_micro = fmax(1, round((global > 0 ? global / ranks : local) / job->micro_batch));
    job->again = recompute(csv, row, job, &job->again_layers);
    job->again_modules = tt_cluster_modules(tt_csv_get(csv, row, "ac"));
    job->kernel = kernel(ac_kernel);
    job->float_scores = strcmp(ac_kernel, "torch") == 0;
    job->loss_chunks = loss_chunks(notes);
    job->float8 = (*float8 && !has(float8, "no")) || has(precision, "fp8");
    job->unfused_norm =
        *ac_kernel && csv_column(csv, "sweep") >= 0 && !has(ac_kernel, "RMS") && strcmp(job->stack->name, "colm") == 0;
    job->async_tp = has(notes, "async TP");
    job->keep_gathered = has(notes, "SHARD_GRAD_OP") || has(notes, "does not reshard");
    job->balanced = has(notes, "force-balanced");
    job->expert_overlap = has(notes, "exchange overlapped");
    job->node_net =
        has(notes, "NIC not stated") ? 0 : node_network(has(notes, " a node") ? notes : tt_csv_get(csv, row, "gpu"));
}

/* --- what was measured --- */

/* Hardware flops of a step as Megatron's papers count them, recomputation included. */
static double megatron_flops(const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;
    double d = s->dim, l = s->layers, again = job->again == TT_AGAIN_FULL ? 96 : 72;

    return again * tt_cluster_tokens(job) * l * d * d * (1 + job->seq_len / (6 * d) + s->vocab / (16 * l * d));
}

static double measured(const struct tt_csv *csv, int row, const struct tt_cluster_job *job)
{
    double tokens = tt_cluster_tokens(job), devices = tt_cluster_devices(job), flops;
    double sec = csv_number(csv, row, "step_s", number_after(tt_csv_get(csv, row, "notes"), "step_s=", 0));
    double tps = csv_number(csv, row, "tps_per_gpu", 0), mfu = csv_number(csv, row, "mfu_percent", 0);
    double tflops = csv_number(csv, row, "tflops_per_gpu", 0);

    if (sec > 0)
        return sec;
    if (tps > 0)
        return tokens / (tps * devices);
    flops = has(job->stack->name, "megatron") ? megatron_flops(job)
                                              : tokens * tt_cluster_token_flops(&job->shape, job->seq_len);
    if (tflops > 0)
        return flops / (tflops * 1e12 * devices);
    if (mfu > 0)
        return tokens * tt_cluster_token_flops(&job->shape, job->seq_len) /
               (mfu / 100 * job->machine->number[TT_M_PEAK_BF16].value * devices);
    return 0;
}

/* Why a row's time is not scored; the reasons are those of the notes of the table. */
static const char *exclusion(const struct tt_csv *csv, int row, const struct tt_cluster_run *run)
{
    const char *notes = tt_csv_get(csv, row, "notes"), *id = run->id;

    if (run->oom || run->failed)
        return "out of memory or failed";
    if (run->sec <= 0)
        return "no time, rate or share is published";
    if (strncmp(id, "meg21-zero3", 11) == 0)
        return "its time does not follow from its traffic: an implementation's limit, not the network's";
    if (has(notes, "recalled") && has(notes, "more than"))
        return "a lower bound, with a sequence length that is recalled";
    if (has(notes, "whole-run average"))
        return "a whole-run average with overheads";
    return NULL;
}

static int read_row(const struct tt_csv *csv, int row, struct tt_cluster_run *run)
{
    bool sweep = csv_column(csv, "sweep") >= 0;
    const char *result = tt_csv_get(csv, row, "result"), *notes = tt_csv_get(csv, row, "notes");
    double devices;
    int rc = 0;

    *run = (struct tt_cluster_run){.id = tt_csv_get(csv, row, sweep ? "sweep" : "id"),
                                   .source = tt_csv_get(csv, row, "source"),
                                   .layout_of_sweep = sweep};
    TT_TRY(hardware(csv, row, run));
    run->oom = strcmp(result, "oom") == 0 || strncmp(notes, "OOM:", 4) == 0;
    run->failed = strcmp(result, "error") == 0;
    run->bytes = csv_number(csv, row, "peak_mem_gib", 0) * 1024 * 1024 * 1024;
    if (run->excluded)
        return 0;
    if (!model(csv, row, &run->job.shape)) {
        run->excluded = "the model's sizes are unknown";
        return 0;
    }
    divide(csv, row, run);
    run->ac_stated = *tt_csv_get(csv, row, "ac") && !has(tt_csv_get(csv, row, "ac"), "not stated");
    TT_TRY(as_in_recipes(csv, row, run));
    devices = tt_cluster_devices(&run->job);
    if (run->job.seq_len <= 0) {
        run->excluded = "the sequence length is not stated";
        return 0;
    }
    if (!(run->job.n_micro > 0) || !(run->job.micro_batch > 0)) {
        run->excluded = "the batch is not stated";
        return 0;
    }
    if (fabs(devices - csv_number(csv, row, "gpus", devices)) > 0.5 &&
        (run->job.ep <= 1 || !*tt_csv_get(csv, row, "dp_shard"))) {
        run->excluded = "the degrees of parallelism do not multiply to the devices";
        return 0;
    }
    run->four_bits = has(tt_csv_get(csv, row, "precision"), "FP4");
    run->plain = !run->job.float8 && !(run->job.shape.experts > 0) && run->job.seq_len < 131072;
    run->sec = measured(csv, row, &run->job);
    run->excluded = exclusion(csv, row, run);
out:
    return rc;
}

/* Columns of numbers, and the numbers that they can have: beyond them sums overflow. */
static const struct {
    const char *name;
    double low, high;
    bool is_whole;
} columns[] = {{"params", 1, 1e15, false},
               {"hidden", 1, 1e6, true},
               {"layers", 1, 1e5, true},
               {"heads", 1, 1e5, true},
               {"vocab", 1, 1e8, true},
               {"gpus", 1, 1e7, true},
               {"tp", 1, 65536, true},
               {"pp", 1, 4096, true},
               {"cp", 1, 65536, true},
               {"ep", 1, 65536, true},
               {"dp_shard", 1, 1e7, true},
               {"dp_replicate", 1, 1e7, true},
               {"dp", 1, 1e7, true},
               {"sp", 0, 65536, true},
               {"seq_len", 1, 1e9, true},
               {"local_batch", 1, 1e9, true},
               {"global_batch", 1, 1e9, true},
               {"micro_batch", 1, 1e9, true},
               {"step_s", 1e-9, 1e9, false},
               {"tps_per_gpu", 1e-9, 1e12, false},
               {"mfu_percent", 1e-9, 100, false},
               {"tflops_per_gpu", 1e-9, 1e9, false},
               {"peak_mem_gib", 1e-9, 1e6, false}};

static int check_cells(const struct tt_csv *csv, const char *where, int row)
{
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        const char *text = tt_csv_get(csv, row, columns[i].name);
        char *end = NULL;
        double value = strtod(text, &end);

        end += strspn(end, " \t");
        if (!text[strspn(text, " \t")] || (!*end && value >= columns[i].low && value <= columns[i].high &&
                                           (!columns[i].is_whole || floor(value) == value)))
            continue;
        return tt_fail(TT_EDATA, "%s: row %d, column %s: '%.40s' is no %snumber from %g to %g", where, row + 1,
                       columns[i].name, text, columns[i].is_whole ? "whole " : "", columns[i].low, columns[i].high);
    }
    return 0;
}

int tt_cluster_runs(const struct tt_csv *csv, const char *where, struct tt_cluster_run **ret_runs, bool *ret_sweeps)
{
    struct tt_cluster_run *runs;
    int rc = 0;

    *ret_sweeps = csv_column(csv, "sweep") >= 0;
    if (csv_column(csv, *ret_sweeps ? "sweep" : "id") < 0 || csv_column(csv, "gpu") < 0 || csv_column(csv, "model") < 0)
        return tt_fail(
            TT_EDATA,
            "%s: no columns id (or sweep), gpu and model\nhelp: the columns are those of published_runs.csv or "
            "layout_sweeps.csv",
            where);
    runs = tt_calloc((size_t)csv->n_rows + 1, sizeof *runs);
    for (int i = 0; i < csv->n_rows; i++) {
        TT_TRY(check_cells(csv, where, i));
        TT_TRY(read_row(csv, i, &runs[i]));
    }
out:
    if (rc < 0)
        tt_free(runs);
    else
        *ret_runs = runs;
    return rc;
}
