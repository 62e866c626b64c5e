/* SPDX-License-Identifier: MIT
 *
 * Products of bfloat16. Products of two bfloat16 are exact in float32, so only the additions round: at most k times,
 * each time by 2^-24 of at most sum |a| |b|. The last rounding to bfloat16 adds 2^-8 of the result. Kernels may treat
 * denormal numbers as 0.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kernels/kernelcheck.h"

struct shape {
    int64_t m, n, k;
};

static const struct shape shapes[] = {
    {1, 1, 1},     {8, 48, 2},    {7, 47, 3},   {9, 49, 16},   {16, 33, 17}, {33, 17, 31},  {65, 130, 97},
    {3, 100, 767}, {12, 50, 768}, {5, 60, 771}, {4, 20, 1601}, {520, 20, 5}, {10, 800, 33}, {2, 65, 256},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

enum add { ADD_NOTHING, ADD_OTHER, ADD_SAME, N_ADDS };

/* n elements; the last one is beside the guard. */
static tt_bf16 *bf16_array(struct check *check, int64_t n)
{
    return (tt_bf16 *)(void *)check_array(check, (n + 1) / 2) + n % 2;
}

static tt_bf16 *bf16_filled(struct check *check, int64_t n, enum fill fill)
{
    float *x = check_filled(check, n, fill);
    tt_bf16 *to = bf16_array(check, n);

    for (int64_t i = 0; i < n; i++)
        to[i] = tt_bf16_from_float(x[i]);
    return to;
}

static float *widened(struct check *check, const tt_bf16 *x, int64_t n)
{
    float *to = check_array(check, n);

    tt_bf16_widen_ref(to, x, n);
    return to;
}

/* A product with its own strides: a few elements longer than the rows. */
static struct tt_matmul make(struct check *check, const struct shape *shape, int flags, enum fill fill)
{
    struct tt_matmul g = {
        .bf16 = true, .trans_a = flags & 1, .trans_b = flags & 2, .m = shape->m, .n = shape->n, .k = shape->k};

    g.lda = (g.trans_a ? g.m : g.k) + check_draw(check, 4);
    g.ldb = (g.trans_b ? g.k : g.n) + check_draw(check, 4);
    g.ldc = g.n + check_draw(check, 4);
    g.a = bf16_filled(check, (g.trans_a ? g.k : g.m) * g.lda, fill);
    g.b = bf16_filled(check, (g.trans_b ? g.n : g.k) * g.ldb, FILL_NORMAL);
    return g;
}

static double *tolerance_of(struct check *check, const struct tt_matmul *g, const float *want, const float *acc,
                            bool c_bf16)
{
    double *near = check_doubles(check, g->m * g->ldc);
    const tt_bf16 *x = g->a, *y = g->b;

    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            double size = acc ? fabs((double)acc[i * g->ldc + j]) : 0.0, lost = 1.0, *to = &near[i * g->ldc + j];

            for (int64_t p = 0; p < g->k; p++) {
                double a = fabs((double)tt_bf16_to_float(x[g->trans_a ? p * g->lda + i : i * g->lda + p]));
                double b = fabs((double)tt_bf16_to_float(y[g->trans_b ? j * g->ldb + p : p * g->ldb + j]));

                size += a * b;
                lost += a + b;
            }
            *to = (double)(g->k + 2) * 0x1p-24 * size + (double)FLT_MIN * lost;
            if (c_bf16)
                *to += 0x1p-8 * (fabs((double)want[i * g->ldc + j]) + *to);
            if (!isfinite(*to))
                *to = 0.0;
        }
    }
    return near;
}

/* One product by one call of the kernel. */
static void check_product(struct check *check, const struct shape *shape, int flags, enum fill fill, enum add add)
{
    struct tt_matmul g = make(check, shape, flags, fill), exact = g;
    int64_t n_c = g.m * g.ldc;
    tt_bf16 *given = bf16_filled(check, n_c, FILL_NORMAL), *c = bf16_array(check, n_c);
    float *acc = widened(check, given, n_c), *got = check_array(check, n_c), *want = check_array(check, n_c);
    char text[96];

    (void)snprintf(text, sizeof text, "%lld x %lld x %lld trans %d%d fill %d acc %d", (long long)g.m, (long long)g.n,
                   (long long)g.k, g.trans_a, g.trans_b, (int)fill, (int)add);
    exact.c = want;
    exact.acc = add == ADD_NOTHING ? NULL : acc;
    tt_bgemm_ref(&exact);

    g.c_bf16 = true; /* scratch for both */
    g.scratch = check_array(check, tt_matmul_scratch_floats(&g));
    if (add == ADD_SAME)
        memcpy(c, given, (size_t)n_c * sizeof *c);
    g.c = c;
    g.acc = add == ADD_NOTHING ? NULL : add == ADD_SAME ? c : given;
    check->table->bgemm(&g);

    g.c_bf16 = false;
    g.scratch = check_array(check, tt_matmul_scratch_floats(&g));
    if (add == ADD_SAME)
        memcpy(got, acc, (size_t)n_c * sizeof *got);
    g.c = got;
    g.acc = add == ADD_NOTHING ? NULL : add == ADD_SAME ? got : acc;
    check->table->bgemm(&g);

    check_compare_rows(check, "c", text, &g, got, want, tolerance_of(check, &g, want, exact.acc, false));
    check_compare_rows(check, "c in bf16", text, &g, widened(check, c, n_c), want,
                       tolerance_of(check, &g, want, exact.acc, true));
    if (add == ADD_NOTHING) { /* the same sums, rounded once */
        for (int64_t i = 0; i < n_c; i++)
            got[i] = tt_bf16_to_float(tt_bf16_from_float(got[i]));
        check_compare_rows(check, "c rounded", text, &g, widened(check, c, n_c), got, NULL);
    }
    check_reset(check, text);
}

/* Returns c of a product with grains, computed by a team or, if threads is 0, tile by tile, beginning with the last
 * one. acc is in c. */
static float *run_grains(struct check *check, struct tt_matmul g, const float *acc, int threads)
{
    int64_t n_c = g.m * g.ldc, scratch = tt_matmul_scratch_floats(&g);
    tt_bf16 *c = bf16_array(check, n_c);
    float *sums = check_array(check, n_c);
    struct tt_team *team = NULL;

    if (acc) {
        tt_bf16_round_ref(c, acc, n_c);
        memcpy(sums, acc, (size_t)n_c * sizeof *sums);
    }
    g.c = g.c_bf16 ? (void *)c : (void *)sums;
    g.acc = acc ? g.c : NULL;
    g.partial = check_array(check, tt_matmul_partial_floats(&g, acc) + 1);
    g.scratch = check_array(check, (threads + 1) * scratch);
    for (int64_t tile = tt_matmul_tiles(&g); !threads && tile-- > 0;)
        tt_matmul_tile(&g, tile, 0);
    if (!threads)
        return g.c_bf16 ? widened(check, c, n_c) : sums;
    if (tt_team_new(threads, &team))
        check->failures++;
    else
        tt_matmul(team, &g);
    tt_team_free(team);
    return g.c_bf16 ? widened(check, c, n_c) : sums;
}

/*
 * The result does not depend on the number of threads. The first half of the grains of m, n or k alone gets the same
 * bits as in the whole product; the sums over the two halves of k are added last.
 */
static void check_grains(struct check *check, int cut, int flags, bool c_bf16, bool has_acc)
{
    static const struct shape shape = {96, 160, 128};
    struct tt_matmul g = make(check, &shape, flags, FILL_NORMAL), part;
    float *acc = check_filled(check, g.m * g.ldc, FILL_NORMAL), *want, *got, *half;
    char text[96];

    for (int64_t i = 0; i < g.m * g.ldc; i++)
        acc[i] = tt_bf16_to_float(tt_bf16_from_float(acc[i]));
    g.c_bf16 = c_bf16;
    g.m_grain = cut == 0 ? g.m / 4 : g.m;
    g.n_grain = cut == 1 ? g.n / 4 : g.n;
    g.k_grain = cut == 2 ? g.k / 4 : 0;
    (void)snprintf(text, sizeof text, "grains of %c, trans %d%d, c_bf16 %d, acc %d", "mnk"[cut], g.trans_a, g.trans_b,
                   c_bf16, has_acc);
    want = run_grains(check, g, has_acc ? acc : NULL, 0);
    got = run_grains(check, g, has_acc ? acc : NULL, 3);
    check_compare_rows(check, "on three threads", text, &g, got, want, NULL);
    part = g;
    part.m /= cut == 0 ? 2 : 1;
    part.n /= cut == 1 ? 2 : 1;
    part.k /= cut == 2 ? 2 : 1;
    if (cut < 2) {
        half = run_grains(check, part, has_acc ? acc : NULL, 1);
        check_compare_rows(check, "half of the grains", text, &part, half, want, NULL);
    } else {
        part.c_bf16 = g.c_bf16 = false;
        want = run_grains(check, g, NULL, 1);
        half = run_grains(check, part, NULL, 1);
        part.a = (const tt_bf16 *)g.a + (g.trans_a ? part.k * g.lda : part.k);
        part.b = (const tt_bf16 *)g.b + (g.trans_b ? part.k : part.k * g.ldb);
        got = run_grains(check, part, half, 1); /* acc is added last */
        check_compare_rows(check, "half of the grains", text, &g, got, want, NULL);
    }
    check_reset(check, text);
}

/* Normal numbers are tried with every way to add, the others with one of them. */
static void check_bgemm(struct check *check)
{
    enum { TRIALS = N_FILLS + N_ADDS - 1 };

    for (int i = 0; i < N_SHAPES * 4 * TRIALS; i++) {
        int k = i / TRIALS, f = i % TRIALS < N_FILLS ? i % TRIALS : FILL_NORMAL;
        int add = i % TRIALS < N_FILLS ? k + f : k + i % TRIALS - N_FILLS + 1;

        if (!check_skips(check, i))
            check_product(check, &shapes[k / 4], k % 4, (enum fill)f, (enum add)(add % N_ADDS));
    }
    tt_kernels_use(check->table);
    for (int k = 0; k < 3 * 4 * 4; k++)
        if (!check_skips(check, k / 3 + k))
            check_grains(check, k % 3, k / 3 % 4, k / 12 % 2, k / 24);
    tt_kernels_use(NULL);
}

const struct check_case bgemm_cases[] = {
    {"bgemm", check_bgemm},
};
const int n_bgemm_cases = sizeof bgemm_cases / sizeof *bgemm_cases;
