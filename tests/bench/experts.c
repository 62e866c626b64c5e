/* SPDX-License-Identifier: MIT
 *
 * The products of experts, forward and both gradients, compared with the dense product of the same number of rows with
 * one weight; the two are timed in turn. A benchmark, never a test:
 *
 *   build/tests/bench/bench_experts [ROUNDS [THREADS [WEIGHTS]]]
 *
 * WEIGHTS: only those whose names contain it. Rates are medians, ratios medians of ratios within a round: the dense
 * product's time by that of the experts. On one thread times are processor time. Loads: equal for all experts;
 * proportional to 1 / (i + 1) for expert i; half of the rows for one expert.
 */
#include "core/ops/experts/experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/math/bf16.h"
#include "core/os/file.h"

enum { MOST_ROUNDS = 1000, MOST_EXPERTS = 256 };
enum load { EQUAL, FALLING, ONE, N_LOADS };

static const char *const load_names[] = {"equal", "falling", "one"};

/* Each expert's weight (M, K) of one layer, and the rows of all experts. */
struct layer {
    const char *name;
    int64_t experts, rows, m, k;
};

static const struct layer layers[] = {
    {"debugmodel_moe, w1, 2048 tokens", 64, 2048 * 8, 768, 256},
    {"debugmodel_moe, w2, 2048 tokens", 64, 2048 * 8, 256, 768},
    {"debugmodel_moe, w1, 512 tokens", 64, 512 * 8, 768, 256},
    {"debugmodel_moe, w1, 8 rows each", 64, 64 * 8, 768, 256},
    {"debugmodel_moe, w1, 4 rows each", 64, 64 * 4, 768, 256},
    {"debugmodel_moe, w1, a row each", 64, 64, 768, 256},
    {"30B-A3B, w1, 32 experts", 32, 8192, 768, 2048},
    {"30B-A3B, w2, 32 experts", 32, 8192, 2048, 768},
};
enum { N_LAYERS = sizeof layers / sizeof *layers };

static const struct {
    const char *name;
    enum tt_op_id op;
} ops[] = {{"y", TT_OP_EXPERTS}, {"dx", TT_OP_EXPERTS_BWD_X}, {"dw", TT_OP_EXPERTS_BWD_W}};
enum { N_OPS = sizeof ops / sizeof *ops };

/* All arrays, as floats or as bfloat16. */
struct work {
    const struct layer *layer;
    struct tt_team *team;
    bool bf16;
    char *x, *y, *w, *dw; /* (rows, K), (rows, M), (experts, M, K), the same in float32 */
    float *scratch;
    int64_t rows[MOST_EXPERTS];
    struct tt_expert_rows of[MOST_EXPERTS];
};

static double now(bool processor)
{
    struct timespec t;

    (void)clock_gettime(processor ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, compare);
    return x[n / 2];
}

static void *filled(int64_t n, bool bf16)
{
    void *x = tt_map((size_t)n * (bf16 ? sizeof(tt_bf16) : sizeof(float)));

    for (int64_t i = 0; x && i < n; i++) {
        float value = (float)(i % 1000) * 1e-3F - 0.5F;

        if (bf16)
            ((tt_bf16 *)x)[i] = tt_bf16_from_float(value);
        else
            ((float *)x)[i] = value;
    }
    return x;
}

static void divide(struct work *w, enum load load)
{
    int64_t n = w->layer->experts, left = w->layer->rows;
    double total = 0.0;

    for (int64_t e = 0; e < n; e++)
        total += 1.0 / (double)(e + 1);
    for (int64_t e = 0; e < n; e++) {
        int64_t rows = load == EQUAL     ? w->layer->rows / n
                       : load == FALLING ? (int64_t)((double)w->layer->rows / (double)(e + 1) / total)
                       : e == n / 2      ? w->layer->rows / 2
                                         : w->layer->rows / 2 / (n - 1);

        w->rows[e] = e == n - 1 ? left : rows;
        left -= w->rows[e];
    }
}

static struct tt_experts_products experts_of(struct work *w, enum tt_op_id op)
{
    int64_t size = w->bf16 ? 2 : 4, begin = 0, m = w->layer->m, k = w->layer->k;
    struct tt_experts_products p = {
        .op = op, .bf16 = w->bf16, .m = m, .k = k, .of = w->of, .n = w->layer->experts, .scratch = w->scratch};

    p.scratch_floats = tt_experts_scratch_floats(&p, w->layer->rows);
    for (int64_t e = 0; e < p.n; e++) {
        char *x = w->x + begin * k * size, *y = w->y + begin * m * size, *weight = w->w + e * m * k * size;
        float *dw = (float *)(void *)w->dw + e * m * k;

        w->of[e] = op == TT_OP_EXPERTS         ? (struct tt_expert_rows){.in = {x, weight}, .out = y}
                   : op == TT_OP_EXPERTS_BWD_X ? (struct tt_expert_rows){.in = {y, weight}, .out = x}
                                               : (struct tt_expert_rows){.in = {y, x}, .out = dw};
        w->of[e].rows = w->rows[e];
        begin += w->rows[e];
    }
    return p;
}

static struct tt_matmul dense_of(const struct work *w, enum tt_op_id op)
{
    int64_t rows = w->layer->rows, m = w->layer->m, k = w->layer->k;
    struct tt_matmul p = {.m = rows, .n = k, .k = m, .lda = m, .ldb = k, .ldc = k, .a = w->y, .b = w->w, .c = w->x};

    if (op == TT_OP_EXPERTS)
        p = (struct tt_matmul){
            .trans_b = true, .m = rows, .n = m, .k = k, .lda = k, .ldb = k, .ldc = m, .a = w->x, .b = w->w, .c = w->y};
    else if (op == TT_OP_EXPERTS_BWD_W)
        p = (struct tt_matmul){
            .trans_a = true, .m = m, .n = k, .k = rows, .lda = m, .ldb = k, .ldc = k, .a = w->y, .b = w->x, .c = w->dw};
    p.bf16 = w->bf16;
    p.c_bf16 = w->bf16 && op != TT_OP_EXPERTS_BWD_W;
    p.scratch = w->scratch;
    return p;
}

static void measure(struct work *w, int op, enum load load, int rounds)
{
    static double sec[2][MOST_ROUNDS], ratio[MOST_ROUNDS];
    double gflop = 2e-9 * (double)w->layer->rows * (double)w->layer->m * (double)w->layer->k;
    struct tt_matmul dense = dense_of(w, ops[op].op);
    struct tt_experts_products experts = experts_of(w, ops[op].op);
    bool one = tt_team_threads(w->team) == 1;

    for (int round = -1; round < rounds; round++) { /* the first round warms up */
        for (int i = 0; i < 2; i++) {
            int which = (i + round + 1) % 2;
            double start = now(one);

            if (which)
                tt_experts_run(w->team, &experts);
            else
                tt_matmul(w->team, &dense);
            if (round >= 0)
                sec[which][round] = now(one) - start;
        }
        if (round >= 0)
            ratio[round] = sec[0][round] / sec[1][round];
    }
    (void)printf("%-32s %-4s %-8s %-2s %10.1f %10.1f %10.3f\n", w->layer->name, w->bf16 ? "bf16" : "f32",
                 load_names[load], ops[op].name, gflop / median(sec[0], rounds), gflop / median(sec[1], rounds),
                 median(ratio, rounds));
    (void)fflush(stdout);
}

static int measure_layer(const struct layer *layer, struct tt_team *team, bool bf16, int rounds)
{
    int64_t n_x = layer->rows * layer->k, n_y = layer->rows * layer->m, n_w = layer->experts * layer->m * layer->k;
    int64_t size = bf16 ? 2 : 4, floats = 8 << 20;
    struct work w = {.layer = layer,
                     .team = team,
                     .bf16 = bf16,
                     .x = filled(n_x, bf16),
                     .y = filled(n_y, bf16),
                     .w = filled(n_w, bf16),
                     .dw = filled(n_w, false),
                     .scratch = tt_map((size_t)(tt_team_threads(team) * floats) * sizeof(float))};

    if (!w.x || !w.y || !w.w || !w.dw || !w.scratch)
        return 1;
    for (int op = 0; op < N_OPS; op++) {
        for (int load = 0; load < N_LOADS; load++) {
            divide(&w, (enum load)load);
            measure(&w, op, (enum load)load, rounds);
        }
    }
    tt_unmap(w.x, (size_t)(n_x * size));
    tt_unmap(w.y, (size_t)(n_y * size));
    tt_unmap(w.w, (size_t)(n_w * size));
    tt_unmap(w.dw, (size_t)n_w * sizeof(float));
    tt_unmap(w.scratch, (size_t)(tt_team_threads(team) * floats) * sizeof(float));
    return 0;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 15, rc = 0;
    int threads = argc > 2 ? (int)strtol(argv[2], NULL, 10) : tt_team_cores();
    struct tt_team *team = NULL;

    if (rounds < 1 || rounds > MOST_ROUNDS || threads < 1 || tt_team_new(threads, &team))
        return 1;
    (void)printf("%-32s %-4s %-8s %-2s %10s %10s %10s\n", "weights", "type", "load", "of", "dense GF/s", "experts",
                 "ratio");
    for (int i = 0; i < 2 * N_LAYERS && !rc; i++)
        if (argc < 4 || strstr(layers[i / 2].name, argv[3]))
            rc = measure_layer(&layers[i / 2], team, i % 2, rounds);
    tt_team_free(team);
    return rc;
}
