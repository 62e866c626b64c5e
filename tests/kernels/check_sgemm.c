/* SPDX-License-Identifier: MIT
 *
 * Products of floats. Each of the k products and of the additions rounds by at most 2^-24 of sum |a| |b|.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kernels/kernelcheck.h"

struct shape {
    int64_t m, n, k;
};

static const struct shape shapes[] = {
    {1, 1, 1},     {8, 48, 2},    {7, 47, 3},   {9, 49, 16},   {16, 33, 17}, {33, 17, 31},  {65, 130, 97},
    {3, 100, 383}, {12, 50, 384}, {5, 60, 385}, {4, 20, 1001}, {520, 20, 5}, {10, 200, 33}, {513, 65, 400},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

enum add { ADD_NOTHING, ADD_OTHER, ADD_SAME, N_ADDS };

/* A product with its own strides: a few elements longer than the rows. */
static struct tt_matmul make(struct check *check, const struct shape *shape, int flags, enum fill fill)
{
    struct tt_matmul g = {.trans_a = flags & 1, .trans_b = flags & 2, .m = shape->m, .n = shape->n, .k = shape->k};

    g.lda = (g.trans_a ? g.m : g.k) + check_draw(check, 4);
    g.ldb = (g.trans_b ? g.k : g.n) + check_draw(check, 4);
    g.ldc = g.n + check_draw(check, 4);
    g.a = check_filled(check, (g.trans_a ? g.k : g.m) * g.lda, fill);
    g.b = check_filled(check, (g.trans_b ? g.n : g.k) * g.ldb, FILL_NORMAL);
    g.scratch = check_array(check, tt_matmul_scratch_floats(&g));
    return g;
}

static double *tolerance_of(struct check *check, const struct tt_matmul *g, const float *acc)
{
    double *near = check_doubles(check, g->m * g->ldc);
    const float *x = g->a, *y = g->b;

    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            double size = acc ? fabs((double)acc[i * g->ldc + j]) : 0.0, *to = &near[i * g->ldc + j];

            for (int64_t p = 0; p < g->k; p++)
                size += fabs((double)x[g->trans_a ? p * g->lda + i : i * g->lda + p]) *
                        fabs((double)y[g->trans_b ? j * g->ldb + p : p * g->ldb + j]);
            *to = (double)(g->k + 2) * (0x1p-24 * size + 0x1p-149);
            if (!isfinite(*to))
                *to = 0.0;
        }
    }
    return near;
}

static void check_product(struct check *check, const struct shape *shape, int flags, enum fill fill, enum add add)
{
    struct tt_matmul g = make(check, shape, flags, fill), exact = g;
    int64_t n_c = g.m * g.ldc;
    float *acc = check_filled(check, n_c, FILL_NORMAL), *got = check_array(check, n_c);
    float *want = check_array(check, n_c);
    char text[96];

    (void)snprintf(text, sizeof text, "%lld x %lld x %lld trans %d%d fill %d acc %d", (long long)g.m, (long long)g.n,
                   (long long)g.k, g.trans_a, g.trans_b, (int)fill, (int)add);
    exact.c = want;
    exact.acc = add == ADD_NOTHING ? NULL : acc;
    tt_sgemm_ref(&exact);
    if (add == ADD_SAME)
        memcpy(got, acc, (size_t)n_c * sizeof *got);
    g.c = got;
    g.acc = add == ADD_NOTHING ? NULL : add == ADD_SAME ? got : acc;
    check->table->sgemm(&g);
    check_compare_rows(check, "c", text, &g, got, want, tolerance_of(check, &g, exact.acc));
    check_reset(check, text);
}

/* A product on a team or, if threads is 0, tile by tile from the last on. */
static float *run(struct check *check, struct tt_matmul g, int threads)
{
    float *c = check_array(check, g.m * g.ldc);
    struct tt_team *team = NULL;

    g.c = c;
    g.partial = check_array(check, tt_matmul_partial_floats(&g, false) + 1);
    g.scratch = check_array(check, (threads + 1) * tt_matmul_scratch_floats(&g));
    for (int64_t tile = tt_matmul_tiles(&g); !threads && tile-- > 0;)
        tt_matmul_tile(&g, tile, 0);
    if (!threads)
        return c;
    if (tt_team_new(threads, &team))
        check->failures++;
    else
        tt_matmul(team, &g);
    tt_team_free(team);
    return c;
}

/*
 * The result does not depend on the number of threads. The first half of the grains of m or n alone gets the same bits
 * as in the whole product.
 */
static void check_grains(struct check *check, int cut, int flags)
{
    static const struct shape shape = {96, 160, 128};
    struct tt_matmul g = make(check, &shape, flags, FILL_NORMAL), part;
    char text[96];
    float *want;

    g.m_grain = cut == 0 ? g.m / 4 : g.m;
    g.n_grain = cut == 1 ? g.n / 4 : g.n;
    g.k_grain = cut == 2 ? g.k / 4 : 0;
    (void)snprintf(text, sizeof text, "grains of %c, trans %d%d", "mnk"[cut], g.trans_a, g.trans_b);
    want = run(check, g, 0);
    check_compare_rows(check, "on three threads", text, &g, run(check, g, 3), want, NULL);
    part = g;
    part.m /= cut == 0 ? 2 : 1;
    part.n /= cut == 1 ? 2 : 1;
    if (cut < 2)
        check_compare_rows(check, "half of the grains", text, &part, run(check, part, 1), want, NULL);
    check_reset(check, text);
}

static void check_sgemm(struct check *check)
{
    for (int k = 0; k < N_SHAPES * 4; k++) {
        for (int f = 0; f < N_FILLS; f++)
            check_product(check, &shapes[k / 4], k % 4, (enum fill)f, (enum add)((k + f) % N_ADDS));
        check_product(check, &shapes[k / 4], k % 4, FILL_NORMAL, (enum add)((k + 1) % N_ADDS));
        check_product(check, &shapes[k / 4], k % 4, FILL_NORMAL, (enum add)((k + 2) % N_ADDS));
    }
    tt_kernels_use(check->table);
    for (int k = 0; k < 3 * 4; k++)
        check_grains(check, k % 3, k / 3);
    tt_kernels_use(NULL);
}

const struct check_case sgemm_cases[] = {
    {"sgemm", check_sgemm},
};
const int n_sgemm_cases = sizeof sgemm_cases / sizeof *sgemm_cases;
