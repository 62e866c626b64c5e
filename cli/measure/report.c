/* SPDX-License-Identifier: MIT
 *
 * The output of `titan bench`: tables, JSON, the machine file.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "cli/measure/bench.h"
#include "cli/run/screen.h"
#include "core/base/text.h"
#include "core/config/config.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/os/machine.h"
#include "core/os/team.h"

/* --- what both show --- */

static double collective_rate(const struct tt_bench *b, const struct tt_bench_collective *c)
{
    return (double)tt_measured_bytes(c->kind, b->ranks, c->bytes) / c->sec;
}

/* The rate divided by the rate of plain copies of the same number of bytes. */
static double of_copy(const struct tt_bench *b, const struct tt_bench_collective *c)
{
    /* rows of the same size are ordered by kind */
    const struct tt_bench_collective *copy = c - c->kind + TT_MEASURE_COPY;

    return collective_rate(b, c) / collective_rate(b, copy);
}

/* Whether the step computes in bfloat16; mfu then refers to the peak of bfloat16. */
static bool steps_in_bf16(const struct tt_bench *b)
{
    return b->cfg->training.mixed_precision_param == TT_DTYPE_BFLOAT16;
}

static double peak(const struct tt_bench *b)
{
    return steps_in_bf16(b) ? b->bgemm_flops : b->sgemm_flops;
}

static double mfu(const struct tt_bench *b, double flops_per_sec)
{
    return flops_per_sec / peak(b);
}

/* --- tables --- */

/* titan-bench(1) lists the order in which columns are left out on a narrow terminal. */
static void print_sgemm(const struct tt_bench *b)
{
    static const struct tt_column columns[] = {{"product (m x n x k)", 24, false, 0, 0, 0},
                                               {"threads", 8, true, 1, 1, 0},
                                               {"sgemm GF/s", 12, true, 1, 0, 0},
                                               {"bf16 GF/s", 12, true, 1, 0, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};

    for (int i = 0; i < b->n_sgemm; i++) {
        const struct tt_bench_sgemm *s = &b->sgemm[i];

        tt_columns_cell(&table, "%" PRId64 " x %" PRId64 " x %" PRId64, s->m, s->n, s->k);
        tt_columns_cell(&table, "%d", s->threads);
        tt_columns_cell(&table, "%.1f", s->flops_per_sec * 1e-9);
        tt_columns_cell(&table, "%.1f", s->bf16_flops_per_sec * 1e-9);
    }
    tt_print("\n");
    tt_columns_print(&table);
    tt_print_broken(2, "peak of a rank: %.1f GF/s in float32 (%s), %.1f GF/s in bfloat16\n", b->sgemm_flops * 1e-9,
                    tt_sgemm_is_blas() ? "OpenBLAS" : "titan's kernel", b->bgemm_flops * 1e-9);
}

static void print_memory(const struct tt_bench *b)
{
    static const struct tt_column columns[] = {{"memory", 24, false, 0, 0, 0},
                                               {"threads", 8, true, 1, 0, 0},
                                               {"copy GB/s", 12, true, 1, 0, 0},
                                               {"add GB/s", 12, true, 1, 0, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};

    for (int i = 0; i < (b->threads > 1 ? 2 : 1); i++) {
        tt_columns_cell(&table, "%s", "");
        tt_columns_cell(&table, "%d", b->memory[i].threads);
        tt_columns_cell(&table, "%.1f", b->memory[i].copy * 1e-9);
        tt_columns_cell(&table, "%.1f", b->memory[i].add * 1e-9);
    }
    tt_print("\n");
    tt_columns_print(&table);
}

static void print_step(const struct tt_bench *b)
{
    const struct tt_bench_step *s = &b->step;
    double percent[TT_SPLIT_PARTS];
    char tokens[32], parameters[32];

    tt_print_broken(2, "\nstep of %s: %s parameters, seq_len %" PRId64 ", %" PRId64 " x %" PRId64 " sequences a rank\n",
                    s->model, tt_text_count(parameters, sizeof parameters, s->parameters), b->cfg->training.seq_len,
                    s->microbatches, s->microbatch_size);
    tt_print_broken(4, "  %s\n", s->policies);
    tt_print_broken(4, "  %.2f ms (median of %d), %s tokens/s, mfu %.1f%%, causal %.1f%% of the %s peak, %.1f GF/s\n",
                    1e3 * s->step_sec, s->n, tt_text_count(tokens, sizeof tokens, (int64_t)llround(s->tokens_per_sec)),
                    100.0 * mfu(b, s->flops_per_sec_rank), 100.0 * mfu(b, s->causal_flops_per_sec_rank),
                    steps_in_bf16(b) ? "bgemm" : "sgemm", peak(b) * 1e-9);
    tt_split_percent(&s->split, percent);
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        tt_print("  %-14s %6.2f%%\n", tt_split_name((enum tt_split_part)p), percent[p]);
}

static void print_ops(const struct tt_bench *b)
{
    static const struct tt_column columns[] = {{"op (one thread)", 24, false, 0, 0, 0},
                                               {"type", 10, false, 1, 0, 0},
                                               {"ns / Mflop", 14, true, 1, 0, 0},
                                               {"ns / MB", 14, true, 1, 0, 0},
                                               {"ns / k sums", 14, true, 1, 1, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};

    for (int i = 0; i < b->ops.n; i++) {
        const struct tt_op_price *p = &b->ops.of[i];

        tt_columns_cell(&table, "%s", p->op);
        tt_columns_cell(&table, "%s", tt_op_price_dtype(p->dtype));
        tt_columns_cell(&table, "%.1f", 1e15 * p->flop_sec);
        tt_columns_cell(&table, "%.1f", 1e15 * p->byte_sec);
        tt_columns_cell(&table, "%.1f", 1e12 * p->sum_sec);
    }
    tt_print("\n");
    tt_columns_print(&table);
    tt_print_broken(2, "an op takes the sum of the three; predictions use it (--parallelism.machine_file)\n");
}

static void print_collectives(const struct tt_bench *b)
{
    static const struct tt_column columns[] = {{"collective", 16, false, 0, 0, 0},
                                               {"of", 14, true, 1, 0, 0},
                                               {"time", 12, true, 1, 0, 0},
                                               {"GB/s", 12, true, 1, 0, 0},
                                               {"of copy", 10, true, 1, 1, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    char bytes[32];

    if (b->n_collectives == 0)
        return;
    for (int i = 0; i < b->n_collectives; i++) {
        const struct tt_bench_collective *c = &b->collectives[i];

        tt_columns_cell(&table, "%s", tt_measured_name(c->kind));
        tt_columns_cell(&table, "%s", tt_text_bytes(bytes, sizeof bytes, (double)c->bytes));
        tt_columns_cell(&table, "%.1f us", 1e6 * c->sec);
        tt_columns_cell(&table, "%.2f", collective_rate(b, c) * 1e-9);
        tt_columns_cell(&table, "%.2f", of_copy(b, c));
    }
    tt_print("\n");
    tt_columns_print(&table);
    tt_print_broken(2, "GB/s that each rank receives; one small message takes %.1f us\n", 1e6 * b->message_sec);
    tt_print_broken(2, "a transfer takes %.0f %% of a computing thread, and %.2f times as long as alone\n",
                    100.0 * b->transfer_share, b->transfer_stretch);
}

void tt_bench_print(const struct tt_bench *b)
{
    tt_print_broken(2, "%s, %d cores, %d rank%s x %d thread%s, kernels %s, %s\n", tt_cores()->model, tt_cores()->cores,
                    b->ranks, b->ranks == 1 ? "" : "s", b->threads, b->threads == 1 ? "" : "s", tt_kernels()->name,
                    tt_blas_library());
    if (b->others)
        tt_print_broken(2, "%s; the rates below are too low\n", b->others);
    if (b->n_sgemm)
        print_sgemm(b);
    if (b->memory[0].threads)
        print_memory(b);
    if (b->step.n)
        print_step(b);
    if (b->ops.n)
        print_ops(b);
    print_collectives(b);
    if (b->storage_folder)
        tt_print_broken(2, "\nstorage: %.2f GB/s written and synced in %s\n", b->storage_bytes_per_sec * 1e-9,
                        b->storage_folder);
}

/* --- JSON --- */

static json_t *sgemm_json(const struct tt_bench *b)
{
    json_t *rows = json_array();

    for (int i = 0; i < b->n_sgemm; i++) {
        const struct tt_bench_sgemm *s = &b->sgemm[i];

        (void)json_array_append_new(rows, json_pack("{s:I, s:I, s:I, s:i, s:f, s:f}", "m", (json_int_t)s->m, "n",
                                                    (json_int_t)s->n, "k", (json_int_t)s->k, "threads", s->threads,
                                                    "sgemm_gflops", s->flops_per_sec * 1e-9, "bgemm_gflops",
                                                    s->bf16_flops_per_sec * 1e-9));
    }
    return rows;
}

static json_t *memory_json(const struct tt_bench *b)
{
    json_t *rows = json_array();

    for (int i = 0; i < (b->threads > 1 ? 2 : 1); i++)
        (void)json_array_append_new(rows,
                                    json_pack("{s:i, s:f, s:f}", "threads", b->memory[i].threads, "copy_gbytes_per_s",
                                              b->memory[i].copy * 1e-9, "add_gbytes_per_s", b->memory[i].add * 1e-9));
    return rows;
}

static json_t *step_json(const struct tt_bench *b)
{
    const struct tt_bench_step *s = &b->step;
    json_t *secs = json_array(), *split = json_object();
    double percent[TT_SPLIT_PARTS];

    tt_split_percent(&s->split, percent);
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        (void)json_object_set_new(split, tt_split_name((enum tt_split_part)p), json_real(percent[p]));
    for (int i = 0; i < s->n; i++)
        (void)json_array_append_new(secs, json_real(s->secs[i]));
    return json_pack("{s:f, s:o, s:f, s:f, s:f, s:f, s:o, s:I, s:{s:s, s:s, s:I, s:I, s:I, s:I, s:s}}", "step_time_s",
                     s->step_sec, "step_times_s", secs, "tokens_per_s", s->tokens_per_sec, "mfu",
                     mfu(b, s->flops_per_sec_rank), "mfu_causal", mfu(b, s->causal_flops_per_sec_rank),
                     "comm_exposed_s", s->exposed_sec, "split", split, "peak_bytes", (json_int_t)s->peak_bytes, "model",
                     "name", b->cfg->model.name, "flavor", b->cfg->model.flavor, "parameters",
                     (json_int_t)s->parameters, "seq_len", (json_int_t)b->cfg->training.seq_len, "local_batch_size",
                     (json_int_t)b->cfg->training.local_batch_size, "microbatches", (json_int_t)s->microbatches,
                     "policies", s->policies);
}

static json_t *collectives_json(const struct tt_bench *b)
{
    json_t *rows = json_array();

    for (int i = 0; i < b->n_collectives; i++) {
        const struct tt_bench_collective *c = &b->collectives[i];

        (void)json_array_append_new(rows,
                                    json_pack("{s:s, s:I, s:f, s:f, s:f}", "collective", tt_measured_name(c->kind),
                                              "bytes", (json_int_t)c->bytes, "time_s", c->sec, "gbytes_per_s",
                                              collective_rate(b, c) * 1e-9, "of_copy", of_copy(b, c)));
    }
    return rows;
}

/* Adds the members of schema 2: the same numbers per rank, in the form that `titan estimate --machine` reads. Numbers
 * that were not measured come from a built-in machine. */
static void add_device(const struct tt_bench *b, json_t *o)
{
    static const char *const measured[] = {"device.peak_flops.float32",   "device.peak_flops.bfloat16",
                                           "device.memory.bytes_per_sec", "levels.0.bytes_per_sec",
                                           "levels.0.base_sec",           "levels.0.step_sec",
                                           "node.network_bytes_per_sec"};
    const struct tt_machine *m = &b->machine;
    double host = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
    const char *but = b->others ? "; too low: " : "", *others = b->others ? b->others : "";
    json_t *origin = json_object();

    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++)
        (void)json_object_set_new(origin, measured[i],
                                  i < 3 || b->n_collectives > 0 ? json_sprintf("measured: titan bench%s%s", but, others)
                                                                : json_string("not measured: titan's built-in table"));
    if (b->storage_folder) { /* the rate of a single rank: a file system that hosts share may be faster for several */
        (void)json_object_set_new(origin, "storage.bytes_per_sec",
                                  json_sprintf("measured: titan bench, one rank%s%s", but, others));
        (void)json_object_set_new(o, "storage", json_pack("{s:f}", "bytes_per_sec", b->storage_bytes_per_sec));
    }
    (void)json_object_update_new(
        o, json_pack("{s:i, s:s, s:o, s:{s:s, s:f, s:i, s:{s:f, s:f, s:i}, s:{s:i, s:i}, s:i, s:{s:f, s:i}}}", "schema",
                     2, "base", "genoa-9654", "origin", origin, "device", "kind", "cpu", "memory_bytes",
                     host / (b->ranks > 0 ? b->ranks : 1), "units", b->threads, "peak_flops", "float32",
                     m->sgemm_flops * b->threads, "bfloat16", m->bgemm_flops * b->threads, "float8", 0, "gemm",
                     "max_share", 1, "float32_share", 1, "clock_share", 1, "memory", "bytes_per_sec",
                     m->memory_bytes_per_sec, "share", 1));
    (void)json_object_update_new(o, json_pack("{s:{s:i, s:f}, s:[{s:f, s:i, s:f, s:f}, {s:i, s:f}]}", "node", "devices",
                                              b->ranks, "network_bytes_per_sec", m->link_bytes_per_sec * b->ranks,
                                              "levels", "bytes_per_sec", m->link_bytes_per_sec, "share", 1, "base_sec",
                                              m->call_sec, "step_sec", m->message_sec, "share", 1, "step_sec",
                                              m->message_sec));
}

json_t *tt_bench_machine_json(const struct tt_bench *b)
{
    json_t *o = tt_machine_to_json(&b->machine), *fits = json_array();

    for (int kind = TT_MEASURE_COPY + 1; kind < TT_MEASURED_KINDS && b->n_collectives; kind++) {
        const struct tt_bench_collective *small = &b->collectives[kind];
        const struct tt_bench_collective *large = &b->collectives[b->n_collectives - TT_MEASURED_KINDS + kind];
        double bytes = (double)(tt_measured_bytes(large->kind, b->ranks, large->bytes) -
                                tt_measured_bytes(small->kind, b->ranks, small->bytes));

        (void)json_array_append_new(fits, json_pack("{s:s, s:i, s:f, s:f}", "collective", tt_measured_name(small->kind),
                                                    "ranks", b->ranks, "alpha_s", small->sec, "beta_s_per_byte",
                                                    fmax(large->sec - small->sec, 0.0) / bytes));
    }
    add_device(b, o);
    (void)json_object_update_new(o, json_pack("{s:s, s:i, s:i, s:o}", "cpu", tt_cores()->model, "ranks", b->ranks,
                                              "threads_per_rank", b->threads, "collectives", fits));
    if (b->storage_folder)
        (void)json_object_set_new(o, "storage_bytes_per_sec", json_real(b->storage_bytes_per_sec));
    return o;
}

json_t *tt_bench_json(const struct tt_bench *b)
{
    char host[256] = "";
    json_t *o;

    (void)gethostname(host, sizeof host - 1);
    o = json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i}", "type", "bench", "schema", 1, "version",
                  TITAN_VERSION, "host", host, "cpu", tt_cores()->model, "isa", tt_kernels()->name, "blas",
                  tt_blas_library(), "cores", tt_cores()->cores, "packages", tt_cores()->packages, "ranks", b->ranks,
                  "threads_per_rank", b->threads);
    if (b->others)
        (void)json_object_set_new(o, "others", json_string(b->others));
    if (b->n_sgemm) {
        (void)json_object_set_new(o, "sgemm_gflops", json_real(b->sgemm_flops * 1e-9));
        (void)json_object_set_new(o, "bgemm_gflops", json_real(b->bgemm_flops * 1e-9));
        (void)json_object_set_new(o, "sgemm", sgemm_json(b));
    }
    if (b->memory[0].threads)
        (void)json_object_set_new(o, "memory", memory_json(b));
    if (b->step.n)
        (void)json_object_update_new(o, step_json(b));
    if (b->n_collectives)
        (void)json_object_set_new(o, "collectives", collectives_json(b));
    if (b->storage_folder)
        (void)json_object_set_new(o, "storage",
                                  json_pack("{s:o, s:f}", "folder", tt_json_string(b->storage_folder),
                                            "fsync_gbytes_per_s", b->storage_bytes_per_sec * 1e-9));
    (void)json_object_set_new(o, "machine", tt_bench_machine_json(b));
    return o;
}
