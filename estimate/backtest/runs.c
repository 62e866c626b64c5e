/* SPDX-License-Identifier: MIT
 *
 * Tables of measured runs: comma-separated values, and their rows as jobs. titan-predictions(7) describes the columns.
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

/* Copies one field from *at to *out, and advances both; returns the character that ended the field, 0 at the end. */
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
    const char *at = text, *end = text + size;
    int line = 1, columns = 0, in_row = 0, n = 0, cap = 0, rc = 0;
    char *to;

    if (size >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0) /* a byte order mark, which spreadsheets write */
        at += 3;
    *csv = (struct tt_csv){.text = tt_calloc(size + 2, 1)};
    to = csv->text;
    while (at < end) {
        char *field = to, last = take(&at, end, &to, &line);

        TT_PUSH(csv->name, n, cap) = field;
        in_row++;
        if (last == ',')
            continue;
        if (in_row == 1 && !*field) { /* skips an empty line */
            n--;
            in_row = 0;
            continue;
        }
        columns = columns ? columns : in_row;
        if (in_row != columns)
            TT_TRY(tt_fail(TT_EDATA, "%s: the row that ends before line %d has %d fields, but the first row has %d",
                           where, line, in_row, columns));
        in_row = 0;
    }
    if (columns == 0)
        TT_TRY(tt_fail(TT_EDATA, "%s: no row with the names of columns", where));
    for (int i = 0; i < columns; i++)
        for (int k = 0; k < i; k++)
            if (*csv->name[i] && strcmp(csv->name[i], csv->name[k]) == 0)
                TT_TRY(tt_fail(TT_EDATA, "%s: columns %d and %d are both named '%.60s'", where, k + 1, i + 1,
                               csv->name[i]));
    csv->field = csv->name + columns;
    csv->n_columns = columns;
    csv->n_rows = n / columns - 1;
out:
    if (rc < 0)
        tt_csv_release(csv);
    return rc;
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

/* A field; "" if there is no such column in the table. */
static const char *csv_get(const struct tt_csv *csv, int row, const char *column)
{
    int i = csv_column(csv, column);

    return i < 0 ? "" : csv->field[(size_t)row * (size_t)csv->n_columns + (size_t)i];
}

/* The numbers of a row, by the names of their columns. An empty cell is the column's default, or 0. */
struct cells {
    double params, hidden, layers, heads, vocab, gpus, tp, pp, cp, ep, dp_shard, dp_replicate, sp, virtual_stages,
        loss_chunks, state_copies, offload_layers, lora_rank, base_bits, document, node_gbps, seq_len, local_batch,
        global_batch, micro_batch, step_s, tps_per_gpu, mfu_percent, tflops_per_gpu, peak_mem_gib;
};

/* Columns of numbers, their defaults, and their limits; beyond the limits, sums would overflow. */
static const struct {
    const char *name;
    size_t offset; /* offset in struct cells */
    double otherwise, low, high;
    bool is_whole;
} columns[] = {
#define COLUMN(name, ...)                                \
    {                                                    \
#name, offsetof(struct cells, name), __VA_ARGS__ \
    }
    COLUMN(params, 0, 1, 1e15, false),
    COLUMN(hidden, 0, 1, 1e6, true),
    COLUMN(layers, 0, 1, 1e5, true),
    COLUMN(heads, 0, 1, 1e5, true),
    COLUMN(vocab, 0, 1, 1e8, true),
    COLUMN(gpus, 0, 1, 1e7, true),
    COLUMN(tp, 1, 1, 65536, true),
    COLUMN(pp, 1, 1, 4096, true),
    COLUMN(cp, 1, 1, 65536, true),
    COLUMN(ep, 1, 1, 65536, true),
    COLUMN(dp_shard, 1, 1, 1e7, true),
    COLUMN(dp_replicate, 1, 1, 1e7, true),
    COLUMN(sp, 0, 0, 65536, true),
    COLUMN(virtual_stages, 1, 1, 1e5, true),
    COLUMN(loss_chunks, 1, 1, 1e6, true),
    COLUMN(state_copies, 1, 1, 1e7, true),
    COLUMN(offload_layers, 0, 0, 1e5, true),
    COLUMN(lora_rank, 0, 1, 65536, true),
    COLUMN(base_bits, 0, 2, 16, false),
    COLUMN(document, 0, 1, 1e9, false),
    COLUMN(node_gbps, 0, 1e-3, 1e9, false),
    COLUMN(seq_len, 0, 1, 1e9, true),
    COLUMN(local_batch, 0, 1, 1e9, true),
    COLUMN(global_batch, 0, 1, 1e9, true),
    COLUMN(micro_batch, 0, 1, 1e9, true),
    COLUMN(step_s, 0, 1e-9, 1e9, false),
    COLUMN(tps_per_gpu, 0, 1e-9, 1e12, false),
    COLUMN(mfu_percent, 0, 1e-9, 100, false),
    COLUMN(tflops_per_gpu, 0, 1e-9, 1e9, false),
    COLUMN(peak_mem_gib, 0, 1e-9, 1e6, false)};
#undef COLUMN

static int read_cells(const struct tt_csv *csv, const char *where, int row, struct cells *ret_cells)
{
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        const char *text = csv_get(csv, row, columns[i].name);
        char *end = NULL;
        double value = strtod(text, &end);
        bool is_empty = !text[strspn(text, " \t")];

        end += strspn(end, " \t");
        if (!is_empty && (*end || !(value >= columns[i].low && value <= columns[i].high) ||
                          (columns[i].is_whole && floor(value) != value)))
            return tt_fail(TT_EDATA, "%s: row %d, column %s: '%.40s' is not a %snumber from %g to %g", where, row + 1,
                           columns[i].name, text, columns[i].is_whole ? "whole " : "", columns[i].low, columns[i].high);
        *(double *)((char *)ret_cells + columns[i].offset) = is_empty ? columns[i].otherwise : value;
    }
    return 0;
}

/* --- rows --- */

/* The machine of a row whose machine is not in the tables; nothing is predicted for it. */
static const struct tt_cluster_machine unknown_machine = {.name = "unknown",
                                                          .title = "a device for which titan has no table"};

/* Copies the word in a cell without its "?", which marks a guess. Returns whether there is a word that is not a
 * guess. */
static bool is_stated(const char *cell, char *word, size_t size)
{
    size_t n = strcspn(cell, "?");

    (void)snprintf(word, size, "%.*s", (int)n, cell);
    return n > 0 && !cell[n];
}

/* The default stack; for tensor or pipeline parallelism with unsharded parameters, a stack of Megatron's kind. */
static const char *default_stack(const struct cells *c, const struct tt_cluster_machine *machine)
{
    if (c->dp_shard > 1 || c->tp * c->pp <= 1)
        return "torchtitan-compile-2025";
    return strncmp(machine->name, "a100", 4) == 0 ? "megatron-2023" : "megatron-bridge";
}

static void hardware(const struct tt_csv *csv, int row, const struct cells *c, struct tt_cluster_run *run)
{
    const struct tt_cluster_machine *machine;
    const struct tt_cluster_stack *stack;
    char name[64];

    run->job.machine = &unknown_machine;
    run->job.stack = tt_cluster_stack_at(0);
    run->excluded = "titan has no table of the device";
    for (int i = 0; (machine = tt_cluster_machine_at(i)); i++)
        if (strcasecmp(machine->name, csv_get(csv, row, "machine")) == 0) {
            run->job.machine = machine;
            run->excluded = NULL;
        }
    run->stack_assumed = !is_stated(csv_get(csv, row, "stack"), name, sizeof name);
    for (int i = 0; (stack = tt_cluster_stack_at(i)); i++)
        if (strcasecmp(stack->name, *name ? name : default_stack(c, run->job.machine)) == 0) {
            run->job.stack = stack;
            return;
        }
    run->excluded = "titan has no stack of that name";
}

/* Finds the model. Sizes in the row replace those of the named model. */
static bool model(const char *name, const struct cells *c, struct tt_cluster_shape *s)
{
    bool known = tt_cluster_shape_find(name, s), is_llama = strcasestr(name, "llama") != NULL;
    double params = c->params, dim = c->hidden, layers = c->layers, heads = c->heads;

    if (known && s->experts > 0)
        return true;
    if (!known && !(dim > 0 && layers > 0)) {
        if (params <= 0)
            return false;
        /* a GPT with 12 x layers x dim^2 parameters and dim = 128 x layers */
        dim = 128 * round(cbrt(params * 128 / 12) / 128);
        layers = round(params / (12 * dim * dim));
    }
    if (!known) {
        *s = (struct tt_cluster_shape){.vocab = 51200, .gated = is_llama, .tied = !is_llama};
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
    s->vocab = c->vocab > 0 ? c->vocab : s->vocab;
    s->params = params;
    return true;
}

/* Reads the recomputation: "none", "op", "layers 10", "attention", "modules mlp", "full"; empty: the software's
 * default. */
static void recompute(const struct tt_csv *csv, int row, struct tt_cluster_run *run)
{
    struct tt_cluster_job *job = &run->job;
    char text[128];
    size_t n;

    run->ac_stated = is_stated(csv_get(csv, row, "ac"), text, sizeof text);
    n = strcspn(text, " ");
    job->again = strncmp(job->stack->name, "torchtitan", 10) == 0 ? TT_AGAIN_OP
                 : strcmp(job->stack->name, "megatron-2023") == 0 ? TT_AGAIN_ATTENTION
                                                                  : TT_AGAIN_NONE;
    for (int i = 0; i < TT_AGAIN_KINDS; i++)
        if (strlen(tt_cluster_again_words[i]) == n && strncmp(text, tt_cluster_again_words[i], n) == 0)
            job->again = (enum tt_cluster_again)i;
    job->again_layers = job->again == TT_AGAIN_LAYERS && text[n] ? strtod(text + n, NULL) : job->shape.layers;
    job->again_modules = tt_cluster_modules(text);
}

static bool has_option(const struct tt_csv *csv, int row, const char *option)
{
    const char *text = csv_get(csv, row, "options"), *at = strstr(text, option);
    size_t n = strlen(option);

    return at && (at == text || at[-1] == ' ') && (!at[n] || at[n] == ' ');
}

static void layout(const struct tt_csv *csv, int row, const struct cells *c, struct tt_cluster_job *job)
{
    static const char *const kernels[] = {"unfused", "flash1", "flash2", "flash3"};
    double ranks = c->dp_shard * c->dp_replicate;
    double local = c->local_batch > 0 ? c->local_batch : c->global_batch / ranks;

    job->tp = c->tp;
    job->pp = c->pp;
    job->cp = c->cp;
    job->ep = c->ep;
    job->shard = c->dp_shard;
    job->replicate = c->dp_replicate;
    job->sequence_parallel = c->sp >= 1 && job->tp > 1;
    job->seq_len = c->seq_len;
    job->virtual_stages = c->virtual_stages;
    job->micro_batch = c->micro_batch > 0 ? c->micro_batch : job->pp > 1 ? 1 : local;
    job->n_micro = fmax(1, round((c->global_batch > 0 ? c->global_batch / ranks : local) / job->micro_batch));
    job->kernel = -1;
    for (int i = 0; i < (int)(sizeof kernels / sizeof *kernels); i++)
        if (strcmp(kernels[i], csv_get(csv, row, "kernel")) == 0)
            job->kernel = i;
    job->loss_chunks = c->loss_chunks;
    job->state_copies = c->state_copies;
    job->offload_layers = c->offload_layers;
    job->node_net = c->node_gbps * 1e9 / 8;
    job->float8 = has_option(csv, row, "float8");
    job->float8_rows = has_option(csv, row, "float8_rows");
    job->float8 = job->float8 || job->float8_rows;
    job->async_tp = has_option(csv, row, "async_tp");
    job->keep_gathered = has_option(csv, row, "keep_gathered");
    job->balanced = has_option(csv, row, "balanced");
    job->adjacent = has_option(csv, row, "adjacent");
    job->expert_overlap = has_option(csv, row, "expert_overlap");
    job->unfused_norm = has_option(csv, row, "unfused_norm");
    job->float_scores = has_option(csv, row, "float_scores");
    job->document = c->document;
    job->lora_rank = c->lora_rank;
    job->base_bits = c->base_bits;
    job->lora_targets = tt_cluster_targets(csv_get(csv, row, "lora_targets"));
    if (has_option(csv, row, "pure_bf16"))
        tt_cluster_pure_bf16(job);
}

/* --- the measurements --- */

/* Hardware flops of a step as Megatron's papers count them, recomputation included. */
static double megatron_flops(const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;
    double d = s->dim, l = s->layers, again = job->again == TT_AGAIN_FULL ? 96 : 72;

    return again * tt_cluster_tokens(job) * l * d * d * (1 + job->seq_len / (6 * d) + s->vocab / (16 * l * d));
}

static double measured(const struct cells *c, const struct tt_cluster_job *job)
{
    double tokens = tt_cluster_tokens(job), devices = tt_cluster_devices(job);
    double model_flops = tokens * tt_cluster_token_flops(&job->shape, job->seq_len);

    if (c->step_s > 0)
        return c->step_s;
    if (c->tps_per_gpu > 0)
        return tokens / (c->tps_per_gpu * devices);
    if (c->tflops_per_gpu > 0)
        return (strstr(job->stack->name, "megatron") ? megatron_flops(job) : model_flops) /
               (c->tflops_per_gpu * 1e12 * devices);
    if (c->mfu_percent > 0)
        return model_flops / (c->mfu_percent / 100 * job->machine->number[TT_M_PEAK_BF16].value * devices);
    return 0;
}

static void read_row(const struct tt_csv *csv, int row, const struct cells *c, struct tt_cluster_run *run)
{
    bool sweep = csv_column(csv, "sweep") >= 0;
    const char *result = csv_get(csv, row, "result"), *own = csv_get(csv, row, "excluded");
    double devices;

    *run = (struct tt_cluster_run){.id = csv_get(csv, row, sweep ? "sweep" : "id"),
                                   .source = csv_get(csv, row, "source"),
                                   .memory_excluded = csv_get(csv, row, "memory_excluded"),
                                   .layout_of_sweep = sweep,
                                   .oom = strcmp(result, "oom") == 0,
                                   .failed = strcmp(result, "error") == 0,
                                   .bytes = c->peak_mem_gib * 1024 * 1024 * 1024};
    hardware(csv, row, c, run);
    if (run->excluded)
        return;
    if (!model(csv_get(csv, row, "model"), c, &run->job.shape)) {
        run->excluded = "the model's sizes are unknown";
        return;
    }
    layout(csv, row, c, &run->job);
    recompute(csv, row, run);
    devices = tt_cluster_devices(&run->job);
    if (run->job.seq_len <= 0)
        run->excluded = "the sequence length is not stated";
    else if (!(run->job.n_micro > 0) || !(run->job.micro_batch > 0))
        run->excluded = "the batch is not stated";
    else if (c->gpus > 0 && fabs(devices - c->gpus) > 0.5 && (run->job.ep <= 1 || !*csv_get(csv, row, "dp_shard")))
        run->excluded = "the degrees of parallelism do not multiply to the devices";
    if (run->excluded)
        return;
    run->four_bits = strstr(csv_get(csv, row, "precision"), "FP4") != NULL;
    run->plain =
        !run->job.float8 && !(run->job.shape.experts > 0) && !(run->job.lora_rank > 0) && run->job.seq_len < 131072;
    run->sec = measured(c, &run->job);
    if (run->oom || run->failed)
        run->excluded = "out of memory or failed";
    else if (run->sec <= 0)
        run->excluded = "no time, rate or share is published";
    else if (*own)
        run->excluded = own;
}

int tt_cluster_runs(const struct tt_csv *csv, const char *where, struct tt_cluster_run **ret_runs)
{
    struct tt_cluster_run *runs;
    int rc = 0;

    if ((csv_column(csv, "sweep") < 0 && csv_column(csv, "id") < 0) || csv_column(csv, "machine") < 0 ||
        csv_column(csv, "model") < 0)
        return tt_fail(
            TT_EDATA,
            "%s: no columns id (or sweep), machine and model\nhelp: titan-predictions(7) describes the columns", where);
    runs = tt_calloc((size_t)csv->n_rows + 1, sizeof *runs);
    for (int i = 0; i < csv->n_rows; i++) {
        struct cells cells;

        TT_TRY(read_cells(csv, where, i, &cells));
        read_row(csv, i, &cells, &runs[i]);
    }
out:
    if (rc < 0)
        tt_free(runs);
    else
        *ret_runs = runs;
    return rc;
}
