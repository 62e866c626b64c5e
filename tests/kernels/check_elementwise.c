/* SPDX-License-Identifier: MIT
 *
 * add, scale, swiglu and rope, also in place.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "tests/kernels/kernelcheck.h"

static const int64_t lengths[] = {1, 2, 3, 7, 15, 16, 17, 31, 64, 97, 257, 1000, 4099};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static void check_add(struct check *check)
{
    for (int k = 0; k < N_LENGTHS * N_FILLS; k++) {
        int64_t n = lengths[k / N_FILLS];
        float *a = check_filled(check, n, k % N_FILLS), *b = check_filled(check, n, FILL_NORMAL);
        float *want = check_array(check, n), *got = check_array(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        tt_add_ref(want, a, b, n);
        check->table->add(got, a, b, n);
        check_compare(check, "y", shape, got, want, n, NULL, 0.0);
        check->table->add(b, a, b, n);
        check_compare(check, "y on b", shape, b, want, n, NULL, 0.0);
        check->table->add(got, a, a, n);
        check->table->add(a, a, a, n);
        check_compare(check, "y on a", shape, a, got, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

static void check_swiglu(struct check *check)
{
    for (int k = 0; k < N_LENGTHS * N_FILLS; k++) {
        int64_t n = lengths[k / N_FILLS];
        float *g = check_filled(check, n, k % N_FILLS), *u = check_filled(check, n, FILL_NORMAL);
        float *want = check_array(check, n), *got = check_array(check, n), *copy;
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        for (int64_t i = 0; i < n; i += 3)
            g[i] *= 20.0F;
        tt_swiglu_fwd_ref(want, g, u, n);
        check->table->swiglu_fwd(got, g, u, n);
        for (int64_t i = 0; i < n; i++) /* below -87 the sigmoid is denormal, so its last digits are lost */
            want[i] = g[i] < -87.0F && fabsf(want[i]) < 1e-30F ? got[i] : want[i];
        check_compare(check, "h", shape, got, want, n, NULL, 4.0);
        copy = check_copy(check, g, n);
        check->table->swiglu_fwd(copy, copy, u, n);
        check_compare(check, "h on g", shape, copy, got, n, NULL, 0.0);
        check->table->swiglu_fwd(u, g, u, n);
        check_compare(check, "h on u", shape, u, got, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

/* dg and du in the memory of every pair of inputs. */
static void check_swiglu_bwd_shared(struct check *check, const char *shape, int64_t n, const float *dh, const float *g,
                                    const float *u, const float *dg, const float *du)
{
    for (int pair = 0; pair < 9; pair++) {
        float *in[3] = {check_copy(check, dh, n), check_copy(check, g, n), check_copy(check, u, n)};

        if (pair % 3 == pair / 3)
            continue;
        check->table->swiglu_bwd(in[pair % 3], in[pair / 3], in[0], in[1], in[2], n);
        check_compare(check, "dg in place", shape, in[pair % 3], dg, n, NULL, 0.0);
        check_compare(check, "du in place", shape, in[pair / 3], du, n, NULL, 0.0);
    }
}

static void check_swiglu_bwd(struct check *check)
{
    for (int k = 0; k < N_LENGTHS * N_FILLS; k++) {
        int64_t n = lengths[k / N_FILLS];
        float *g = check_filled(check, n, k % N_FILLS), *u = check_filled(check, n, FILL_NORMAL);
        float *dh = check_filled(check, n, FILL_NORMAL);
        float *dg = check_array(check, n), *du = check_array(check, n);
        float *want_dg = check_array(check, n), *want_du = check_array(check, n);
        double *near_dg = check_doubles(check, n), *near_du = check_doubles(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        for (int64_t i = 0; i < n; i += 3)
            g[i] *= 20.0F;
        tt_swiglu_bwd_ref(want_dg, want_du, dh, g, u, n);
        check->table->swiglu_bwd(dg, du, dh, g, u, n);
        for (int64_t i = 0; i < n; i++) { /* 1 - sigmoid loses digits, and g multiplies the error, up to g = 17 */
            near_dg[i] =
                (double)FLT_EPSILON * fabs((double)dh[i] * (double)u[i]) * (4.0 + fmin(fabs((double)g[i]), 17.0)) +
                0x1p-140;
            near_du[i] = 4.0 * (double)FLT_EPSILON * fabs((double)want_du[i]) + 1e-36 + 0x1p-140;
        }
        check_compare(check, "dg", shape, dg, want_dg, n, near_dg, 0.0);
        check_compare(check, "du", shape, du, want_du, n, near_du, 0.0);
        check_swiglu_bwd_shared(check, shape, n, dh, g, u, dg, du);
        check_reset(check, shape);
    }
}

static void check_scale(struct check *check)
{
    for (int k = 0; k < N_LENGTHS * N_FILLS; k++) {
        int64_t n = lengths[k / N_FILLS];
        float *x = check_filled(check, n, k % N_FILLS), factor = k % 2 ? -1.7F : 0.3F;
        float *want = check_array(check, n), *got = check_array(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        tt_scale_ref(want, x, factor, n);
        check->table->scale(got, x, factor, n);
        check_compare(check, "y", shape, got, want, n, NULL, 0.0);
        check->table->scale(x, x, factor, n);
        check_compare(check, "y in place", shape, x, want, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

/* The mean stays, and the share of zeros is the rate, within 5 standard deviations. */
static void check_rate(struct check *check)
{
    enum { N = 1 << 18 };
    float *x = check_array(check, N), *y = check_array(check, N);
    struct tt_dropout dropout = {3, 4, UINT32_C(429496730), 1.1111112F}; /* a tenth */
    double sum = 0.0, zeros = 0.0, sigma = sqrt(0.1 * 0.9 * N);

    for (int i = 0; i < N; i++)
        x[i] = 1.0F;
    check->table->dropout(y, x, NULL, &dropout, 1, N);
    for (int i = 0; i < N; i++) {
        sum += (double)y[i];
        zeros += y[i] == 0.0F;
    }
    if (fabs(zeros - 0.1 * N) > 5.0 * sigma || fabs(sum - N) > 6.0 * sigma) {
        check->failures++;
        printf("# dropout (%s): %.0f of %d elements are 0, and the sum is %.1f\n", check->table->name, zeros, N, sum);
    }
    check_reset(check, "a tenth of many ones");
}

/* Also from an even and an odd number on, without acc, and in place of either. */
static void check_dropping(struct check *check)
{
    check_rate(check);
    for (int k = 0; k < N_LENGTHS * N_FILLS; k++) {
        int64_t n = lengths[k / N_FILLS];
        float *x = check_filled(check, n, k % N_FILLS), *acc = check_filled(check, n, (k + 1) % N_FILLS);
        float *want = check_array(check, n), *got = check_array(check, n);
        uint64_t first = (UINT64_C(1) << 33) - 3 + (uint64_t)(k % 5);
        struct tt_dropout dropout = {UINT64_C(7) << 40, 11, k % 3 == 0 ? 0 : UINT32_C(400000000) * (uint32_t)(k % 10),
                                     1.25F};
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d from %llu", (long long)n, k % N_FILLS,
                       (unsigned long long)first);
        tt_dropout_ref(want, x, NULL, &dropout, first, n);
        check->table->dropout(got, x, NULL, &dropout, first, n);
        check_compare(check, "y", shape, got, want, n, NULL, 0.0);
        tt_dropout_ref(want, x, acc, &dropout, first, n);
        check->table->dropout(got, x, acc, &dropout, first, n);
        check_compare(check, "acc + y", shape, got, want, n, NULL, 0.0);
        check->table->dropout(acc, x, acc, &dropout, first, n);
        check_compare(check, "acc + y in place", shape, acc, want, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

struct check_rope check_rope_make(struct check *check, int k)
{
    static const int64_t dims[] = {2, 6, 8, 16, 64, 80, 128};
    struct check_rope rope = {.shape = {7, 1 + k % 3, dims[k % 7], k / 7 % 2, k / 14 % 2, NULL, 0, 0},
                              .fill = k / 28 % N_FILLS};
    int32_t *positions = (int32_t *)(void *)check_array(check, ROPE_ROWS);
    int64_t n_table = rope.shape.seq_len * rope.shape.head_dim;

    if (k % 5 == 1) { /* the rest of a head is rotated, as far as it has pairs */
        rope.shape.head_dim += 1 + k % 3;
        rope.shape.unrotated = 1 + k % 3;
    }
    if (k % 5 == 2 || k % 5 == 3) { /* the beginning of a head is rotated, or its middle */
        rope.shape.rotated = rope.shape.head_dim;
        rope.shape.unrotated = k % 5 == 3 ? 4 : 0;
        rope.shape.head_dim += rope.shape.unrotated + 1 + k % 19;
    }
    rope.rows = 1 + check_draw(check, 20);
    rope.first = check_draw(check, 10);
    for (int i = 0; i < ROPE_ROWS; i++)
        positions[i] = (int32_t)check_draw(check, rope.shape.seq_len);
    rope.shape.positions = k / 28 / N_FILLS ? positions : NULL;
    rope.n = rope.rows * rope.shape.heads * rope.shape.head_dim;
    rope.table = check_array(check, n_table);
    for (int64_t i = 0; i < n_table; i++)
        rope.table[i] = i % 2 ? sinf((float)i) : cosf((float)(i + 1));
    (void)snprintf(rope.text, sizeof rope.text, "%lld rows H=%lld E=%lld-%lld R=%lld half=%d%s", (long long)rope.rows,
                   (long long)rope.shape.heads, (long long)rope.shape.head_dim, (long long)rope.shape.unrotated,
                   (long long)tt_rope_rotated(&rope.shape), rope.shape.rotate_half,
                   rope.shape.positions ? " positions" : "");
    return rope;
}

static void check_rope(struct check *check)
{
    for (int k = 0; k < N_CHECK_ROPES; k++) {
        struct check_rope r = check_rope_make(check, k);
        float *x = check_filled(check, r.n, r.fill), *want = check_array(check, r.n), *got = check_array(check, r.n);
        double *near = check_doubles(check, r.n);
        int64_t first = r.shape.unrotated, dim = tt_rope_rotated(&r.shape);

        tt_rope_ref(want, x, r.table, &r.shape, r.first, r.rows);
        check->table->rope(got, x, r.table, &r.shape, r.first, r.rows);
        for (int64_t i = 0; i < r.n; i++) {
            int64_t head = i / r.shape.head_dim * r.shape.head_dim + first, at = i - head;
            int64_t pair = at < 0 ? i : head + (r.shape.rotate_half ? (at + dim / 2) % dim : at ^ 1);

            if (at >= dim)
                pair = i;
            near[i] = at < 0 || at >= dim
                          ? 0.0
                          : (double)FLT_EPSILON * (fabs((double)x[i]) + fabs((double)x[pair])) + 0x1p-148;
        }
        check_compare(check, "y", r.text, got, want, r.n, near, 0.0);
        check->table->rope(x, x, r.table, &r.shape, r.first, r.rows);
        check_compare(check, "y in place", r.text, x, got, r.n, NULL, 0.0);
        check_reset(check, r.text);
    }
}

const struct check_case elementwise_cases[] = {
    {"add", check_add},     {"rope", check_rope},         {"dropout", check_dropping},
    {"scale", check_scale}, {"swiglu_fwd", check_swiglu}, {"swiglu_bwd", check_swiglu_bwd},
};
const int n_elementwise_cases = sizeof elementwise_cases / sizeof *elementwise_cases;
