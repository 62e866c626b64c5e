/* SPDX-License-Identifier: MIT
 *
 * The products of experts: against the reference, on several threads, and alone.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/math/bf16.h"
#include "core/math/rng.h"
#include "core/ops/experts/experts.h"
#include "tests/help/sweep.h"

enum { M = 200, K = 272 };

/* None, few, several tiles, and sums over several blocks. */
static const int64_t expert_rows[] = {0, 1, 3, 4, 5, 1300, 64, 0, 200, 13, 170, 2, 330, 90, 250, 0};
enum { N = sizeof expert_rows / sizeof *expert_rows };

static const enum tt_op_id ops[] = {TT_OP_EXPERTS, TT_OP_EXPERTS_BWD_X, TT_OP_EXPERTS_BWD_W};
enum { N_OPS = sizeof ops / sizeof *ops };

static int64_t all_rows(void)
{
    int64_t rows = 0;

    for (int i = 0; i < N; i++)
        rows += expert_rows[i];
    return rows;
}

/* n numbers, rounded to bfloat16 on request. They repeat, but not at a multiple of a row. */
static void *numbers(int64_t n, bool bf16)
{
    enum { PERIOD = 4093 };
    const struct tt_rng rng = tt_rng_make(5, "experts");
    int64_t size = bf16 ? (int64_t)sizeof(tt_bf16) : (int64_t)sizeof(float);
    char *x = tt_calloc((size_t)(n + PERIOD), sizeof(float));

    for (int64_t i = 0; i < PERIOD; i++) {
        float value = (float)tt_rng_uniform(&rng, (uint64_t)i) - 0.5F;

        if (bf16)
            ((tt_bf16 *)(void *)x)[i] = tt_bf16_from_float(value);
        else
            ((float *)(void *)x)[i] = value;
    }
    for (int64_t i = PERIOD; i < n; i += PERIOD)
        memcpy(x + i * size, x, (size_t)(PERIOD * size));
    return x;
}

/* A layer: x (rows, K), y (rows, M), w (N, M, K), dw in float32, and what gradients are added to. */
struct layer {
    bool bf16;
    char *x, *y, *w;
    float *dw;
    char *acc, *acc_half;
};

static struct layer layer_new(bool bf16)
{
    int64_t most = N * M * K > all_rows() * K ? N * M * K : all_rows() * K;

    return (struct layer){.bf16 = bf16,
                          .x = numbers(all_rows() * K, bf16),
                          .y = numbers(all_rows() * M, bf16),
                          .w = numbers((int64_t)N * M * K, bf16),
                          .dw = numbers((int64_t)N * M * K, false),
                          .acc = numbers(most, false),
                          .acc_half = numbers(most, true)};
}

static void layer_free(struct layer *l)
{
    tt_free(l->x);
    tt_free(l->y);
    tt_free(l->w);
    tt_free(l->dw);
    tt_free(l->acc);
    tt_free(l->acc_half);
}

static void *output_of(const struct layer *l, enum tt_op_id op)
{
    return op == TT_OP_EXPERTS ? l->y : op == TT_OP_EXPERTS_BWD_X ? (void *)l->x : (void *)l->dw;
}

static int64_t output_bytes(const struct layer *l, enum tt_op_id op)
{
    int64_t size = l->bf16 ? (int64_t)sizeof(tt_bf16) : (int64_t)sizeof(float);

    return op == TT_OP_EXPERTS         ? all_rows() * M * size
           : op == TT_OP_EXPERTS_BWD_X ? all_rows() * K * size
                                       : (int64_t)N * M * K * (int64_t)sizeof(float);
}

/* The array that a result is added to. */
static char *acc_of(const struct layer *l, enum tt_op_id op)
{
    return l->bf16 && op == TT_OP_EXPERTS_BWD_X ? l->acc_half : l->acc;
}

/* Runs experts [first, first + n) on a team. An expert without rows gets no weight, so that a read of one would
 * show. */
static void run(const struct layer *l, enum tt_op_id op, bool adds, int first, int n, int threads)
{
    int64_t size = l->bf16 ? (int64_t)sizeof(tt_bf16) : (int64_t)sizeof(float), begin = 0;
    struct tt_experts_products p = {.op = op, .bf16 = l->bf16, .m = M, .k = K, .n = n};
    struct tt_expert_rows of[N] = {{0}};
    struct tt_team *team = NULL;

    assert_int_equal(tt_team_new(threads, &team), 0);
    for (int e = 0; e < N; e++) {
        char *x = l->x + begin * K * size, *y = l->y + begin * M * size, *acc = adds ? acc_of(l, op) : NULL;
        char *w = expert_rows[e] ? l->w + (int64_t)e * M * K * size : NULL;

        if (op == TT_OP_EXPERTS)
            of[e] = (struct tt_expert_rows){.in = {x, w}, .out = y};
        else if (op == TT_OP_EXPERTS_BWD_X)
            of[e] = (struct tt_expert_rows){.in = {y, w}, .out = x, .acc = adds ? acc + begin * K * size : NULL};
        else
            of[e] = (struct tt_expert_rows){.in = {y, x},
                                            .out = l->dw + (int64_t)e * M * K,
                                            .acc = adds ? acc + (int64_t)e * M * K * (int64_t)sizeof(float) : NULL};
        of[e].rows = expert_rows[e];
        begin += expert_rows[e];
    }
    p.of = of + first;
    p.scratch_floats = tt_experts_scratch_floats(&p, all_rows());
    p.scratch = tt_map((size_t)(threads * p.scratch_floats) * sizeof(float));
    tt_experts_run(team, &p);
    tt_unmap(p.scratch, (size_t)(threads * p.scratch_floats) * sizeof(float));
    tt_team_free(team);
}

static double value(const void *x, bool bf16, int64_t i)
{
    return bf16 ? (double)tt_bf16_to_float(((const tt_bf16 *)x)[i]) : (double)((const float *)x)[i];
}

/* An element of expert e's result, and the sum of the absolute values of its terms. */
static double exact(const struct layer *l, enum tt_op_id op, int e, int64_t begin, int64_t i, int64_t j,
                    double *ret_size)
{
    int64_t n = op == TT_OP_EXPERTS ? K : op == TT_OP_EXPERTS_BWD_X ? M : expert_rows[e], w = (int64_t)e * M * K;
    double sum = 0.0, size = 0.0;

    for (int64_t p = 0; p < n; p++) {
        double a = op == TT_OP_EXPERTS         ? value(l->x, l->bf16, (begin + i) * K + p)
                   : op == TT_OP_EXPERTS_BWD_X ? value(l->y, l->bf16, (begin + i) * M + p)
                                               : value(l->y, l->bf16, (begin + p) * M + i);
        double b = op == TT_OP_EXPERTS         ? value(l->w, l->bf16, w + j * K + p)
                   : op == TT_OP_EXPERTS_BWD_X ? value(l->w, l->bf16, w + p * K + j)
                                               : value(l->x, l->bf16, (begin + p) * K + j);

        sum += a * b;
        size += fabs(a * b);
    }
    *ret_size = size;
    return sum;
}

/* Compares some elements of every expert's result. */
static void compare(const struct layer *l, enum tt_op_id op, bool adds)
{
    bool half = l->bf16 && op != TT_OP_EXPERTS_BWD_W;
    int64_t begin = 0, columns = op == TT_OP_EXPERTS ? M : K;

    for (int e = 0; e < N; begin += expert_rows[e++]) {
        int64_t rows = op == TT_OP_EXPERTS_BWD_W ? M : expert_rows[e];
        int64_t first = (op == TT_OP_EXPERTS_BWD_W ? (int64_t)e * M : begin) * columns;

        for (int64_t at = 0; at < rows * columns; at += at % 3 ? 37 : 211) {
            double size, want = exact(l, op, e, begin, at / columns, at % columns, &size);
            double got = value(output_of(l, op), half, first + at);

            want += adds ? value(acc_of(l, op), half, first + at) : 0.0;
            size = 2e-5 * (size + 1e-3) + (half ? 0x1p-8 * fabs(want) : 0.0);
            if (!(fabs(got - want) <= size))
                fail_msg("op %d, expert %d, element %lld: %g, not %g", (int)op, e, (long long)at, got, want);
        }
    }
}

/* Calls a function for every op, in float and in bfloat16, with and without an array to add to, on every kernel. */
static void for_all(void (*check)(struct layer *l, enum tt_op_id op, bool adds))
{
    for (int v = 0; tt_kernels_variant(v); v++) {
        if (sweep_leaves_out(tt_kernels_variant(v)->name))
            continue;
        tt_kernels_use(tt_kernels_variant(v));
        for (int i = 0; i < N_OPS * 4; i++) {
            struct layer layer = layer_new(i % 2);

            if (ops[i / 4] != TT_OP_EXPERTS || i % 4 < 2)
                check(&layer, ops[i / 4], i % 4 >= 2);
            layer_free(&layer);
        }
    }
    tt_kernels_use(NULL);
}

static void check_products(struct layer *l, enum tt_op_id op, bool adds)
{
    memset(output_of(l, op), 0x7f, (size_t)output_bytes(l, op));
    run(l, op, adds, 0, N, 1);
    compare(l, op, adds);
}

static void products_are_those_of_the_reference(void **state)
{
    for_all(check_products);
}

static void check_threads(struct layer *l, enum tt_op_id op, bool adds)
{
    int64_t bytes = output_bytes(l, op);
    char *one = tt_calloc(1, (size_t)bytes);

    run(l, op, adds, 0, N, 1);
    memcpy(one, output_of(l, op), (size_t)bytes);
    for (int threads = 2; threads < 5; threads++) {
        memset(output_of(l, op), 0, (size_t)bytes);
        run(l, op, adds, 0, N, threads);
        assert_memory_equal(one, output_of(l, op), (size_t)bytes);
    }
    tt_free(one);
}

/* Each worker has its own scratch, even while others compute products of other sizes. */
static void more_threads_have_the_same_bits(void **state)
{
    for_all(check_threads);
}

static void check_alone(struct layer *l, enum tt_op_id op, bool adds)
{
    int64_t bytes = output_bytes(l, op);
    char *all = tt_calloc(1, (size_t)bytes);

    memset(output_of(l, op), 0, (size_t)bytes);
    run(l, op, adds, 0, N, 2);
    memcpy(all, output_of(l, op), (size_t)bytes);
    memset(output_of(l, op), 0, (size_t)bytes);
    for (int e = 0; e < N; e++)
        run(l, op, adds, e, 1, 1);
    assert_memory_equal(all, output_of(l, op), (size_t)bytes);
    tt_free(all);
}

/* The same result as when another rank computes an expert's rows. */
static void a_product_alone_has_the_bits_that_it_has_among_others(void **state)
{
    for_all(check_alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_the_reference),
        cmocka_unit_test(more_threads_have_the_same_bits),
        cmocka_unit_test(a_product_alone_has_the_bits_that_it_has_among_others),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
