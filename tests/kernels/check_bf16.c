/* SPDX-License-Identifier: MIT
 *
 * Kernels on bfloat16. Each gives the bits of the same variant's float kernel on the same values, with each result
 * rounded once: that kernel's cases bound the error before the rounding, and the rounding is at most 2^-8 of the
 * result. Arrays end at their guard.
 */
#include <stdio.h>
#include <string.h>

#include "core/math/bf16.h"
#include "tests/kernels/kernelcheck.h"

static const int64_t widths[] = {1, 2, 5, 8, 15, 16, 17, 33, 64, 100, 127, 256, 1021};
enum { N_WIDTHS = sizeof widths / sizeof *widths, MOST = 3 };

static tt_bf16 *halves(struct check *check, int64_t n)
{
    return (tt_bf16 *)(void *)check_array(check, (n + 1) / 2) + n % 2;
}

/* n values of bfloat16, and the same values as floats. */
struct both {
    tt_bf16 *half;
    float *wide;
};

static struct both filled(struct check *check, int64_t n, enum fill fill)
{
    struct both x = {halves(check, n), check_filled(check, n, fill)};

    for (int64_t i = 0; i < n; i++) {
        x.half[i] = tt_bf16_from_float(x.wide[i]);
        x.wide[i] = tt_bf16_to_float(x.half[i]);
    }
    return x;
}

static struct both empty(struct check *check, int64_t n)
{
    return (struct both){halves(check, n), check_array(check, n)};
}

static tt_bf16 *copy(struct check *check, const tt_bf16 *x, int64_t n)
{
    return memcpy(halves(check, n), x, (size_t)n * sizeof *x);
}

static void compare(struct check *check, const char *what, const char *shape, const tt_bf16 *got, const float *want,
                    int64_t n)
{
    float *g = check_array(check, n), *w = check_array(check, n);

    for (int64_t i = 0; i < n; i++) {
        g[i] = tt_bf16_to_float(got[i]);
        w[i] = tt_bf16_to_float(tt_bf16_from_float(want[i]));
    }
    check_compare(check, what, shape, g, w, n, NULL, 0.0);
}

/* --- element by element --- */

#define CALLS(kernel, n_in, n_out, call)                                                                          \
    static void kernel(const struct tt_kernels *table, float *const *out, float *const *in, int64_t n)            \
    {                                                                                                             \
        table->kernel call;                                                                                       \
    }                                                                                                             \
    static void kernel##_bf16(const struct tt_kernels *table, tt_bf16 *const *out, tt_bf16 *const *in, int64_t n) \
    {                                                                                                             \
        table->kernel##_bf16 call;                                                                                \
    }
CHECK_ELEMENTWISE(CALLS)

static const struct elementwise {
    const char *kernel;
    int n_in, n_out;
    void (*wide)(const struct tt_kernels *table, float *const *out, float *const *in, int64_t n);
    void (*half)(const struct tt_kernels *table, tt_bf16 *const *out, tt_bf16 *const *in, int64_t n);
} elementwise[] = {
#define ROW(kernel, n_in, n_out, call) {#kernel "_bf16", n_in, n_out, kernel, kernel##_bf16},
    CHECK_ELEMENTWISE(ROW)
#undef ROW
};

/* Every output in the memory of every input; the other output has its own memory. */
static void check_in_place(struct check *check, const struct elementwise *e, const char *shape, int64_t n,
                           tt_bf16 *const *in, float *const *want)
{
    for (int k = 0; k < e->n_out * e->n_in; k++) {
        tt_bf16 *out[MOST], *ins[MOST];

        for (int i = 0; i < e->n_in; i++)
            ins[i] = copy(check, in[i], n);
        for (int i = 0; i < e->n_out; i++)
            out[i] = i == k / e->n_in ? ins[k % e->n_in] : halves(check, n);
        e->half(check->table, out, ins, n);
        for (int i = 0; i < e->n_out; i++)
            compare(check, "in place", shape, out[i], want[i], n);
    }
}

static void check_elementwise(struct check *check)
{
    const struct elementwise *e = elementwise;

    while (strcmp(e->kernel, check->kernel) != 0)
        e++;
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t n = widths[k / N_FILLS];
        tt_bf16 *in[MOST], *out[MOST];
        float *wide[MOST], *want[MOST];
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        for (int i = 0; i < e->n_in; i++) {
            struct both x = filled(check, n, i ? FILL_NORMAL : k % N_FILLS);

            in[i] = x.half;
            wide[i] = x.wide;
        }
        for (int i = 0; i < e->n_out; i++) {
            out[i] = halves(check, n);
            want[i] = check_array(check, n);
        }
        e->wide(check->table, want, wide, n);
        e->half(check->table, out, in, n);
        for (int i = 0; i < e->n_out; i++)
            compare(check, i ? "second output" : "output", shape, out[i], want[i], n);
        check_in_place(check, e, shape, n, in, want);
        check_reset(check, shape);
    }
}

static void check_rope(struct check *check)
{
    for (int k = 0; k < N_CHECK_ROPES; k++) {
        struct check_rope r = check_rope_make(check, k);
        struct both x = filled(check, r.n, r.fill), y = empty(check, r.n);

        check->table->rope(y.wide, x.wide, r.table, &r.shape, r.first, r.rows);
        check->table->rope_bf16(y.half, x.half, r.table, &r.shape, r.first, r.rows);
        compare(check, "y", r.text, y.half, y.wide, r.n);
        check->table->rope_bf16(x.half, x.half, r.table, &r.shape, r.first, r.rows);
        compare(check, "y in place", r.text, x.half, y.wide, r.n);
        check_reset(check, r.text);
    }
}

/* --- rows --- */

static void check_rmsnorm(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t width = widths[k / N_FILLS], rows = 1 + check_draw(check, 9), n = rows * width;
        struct both x = filled(check, n, k % N_FILLS), w = filled(check, width, FILL_NORMAL), y = empty(check, n);
        float *rstd = check_array(check, rows), *want = check_array(check, rows), offset = k % 2 ? 1.0F : 0.0F;
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld fill %d", (long long)rows, (long long)width, k % N_FILLS);
        check->table->rmsnorm_fwd(y.wide, want, x.wide, w.wide, offset, rows, width, 1e-5F);
        check->table->rmsnorm_fwd_bf16(y.half, rstd, x.half, w.half, offset, rows, width, 1e-5F);
        compare(check, "y", shape, y.half, y.wide, n);
        check_compare(check, "rstd", shape, rstd, want, rows, NULL, 0.0);
        check->table->rmsnorm_fwd_bf16(x.half, rstd, x.half, w.half, offset, rows, width, 1e-5F);
        compare(check, "y in place", shape, x.half, y.wide, n);
        check_reset(check, shape);
    }
}

static void check_rmsnorm_bwd(struct check *check)
{
    for (int k = 0; k < 2 * N_WIDTHS; k++) {
        int64_t width = widths[k / 2], rows = 1 + check_draw(check, 9), n = rows * width;
        struct both x = filled(check, n, FILL_NORMAL), w = filled(check, width, FILL_NORMAL);
        struct both dy = filled(check, n, FILL_NORMAL), dx = empty(check, n);
        struct both acc = k % 2 ? filled(check, n, FILL_NORMAL) : (struct both){0};
        float *rstd = check_filled(check, rows, FILL_NORMAL), offset = k % 4 / 2 ? 1.0F : 0.0F;
        float *dw = check_array(check, width), *want = check_array(check, width);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld acc %d", (long long)rows, (long long)width, k % 2);
        check->table->rmsnorm_bwd(dx.wide, want, acc.wide, dy.wide, x.wide, w.wide, offset, rstd, rows, width);
        check->table->rmsnorm_bwd_bf16(dx.half, dw, acc.half, dy.half, x.half, w.half, offset, rstd, rows, width);
        compare(check, "dx", shape, dx.half, dx.wide, n);
        check_compare(check, "dw", shape, dw, want, width, NULL, 0.0);
        if (acc.half) {
            check->table->rmsnorm_bwd_bf16(acc.half, dw, acc.half, dy.half, x.half, w.half, offset, rstd, rows, width);
            compare(check, "dx in place", shape, acc.half, dx.wide, n);
        }
        check_reset(check, shape);
    }
}

static void check_dora_fwd(struct check *check)
{
    for (int k = 0; k < N_WIDTHS; k++) {
        int64_t width = widths[k], rows = 1 + check_draw(check, 9), n = rows * width;
        struct both x = filled(check, n, FILL_NORMAL), m = filled(check, width, FILL_NORMAL), y = empty(check, n);
        float *squares = check_filled(check, width, FILL_NORMAL);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld", (long long)rows, (long long)width);
        for (int64_t c = 0; c < width; c++)
            squares[c] *= squares[c];
        check->table->dora_fwd(y.wide, x.wide, m.wide, squares, rows, width);
        check->table->dora_fwd_bf16(y.half, x.half, m.half, squares, rows, width);
        compare(check, "y", shape, y.half, y.wide, n);
        check_reset(check, shape);
    }
}

static void check_dora_bwd(struct check *check)
{
    for (int k = 0; k < 2 * N_WIDTHS; k++) {
        int64_t width = widths[k / 2], rows = 1 + check_draw(check, 9), n = rows * width;
        struct both x = filled(check, n, FILL_NORMAL), m = filled(check, width, FILL_NORMAL), dx = empty(check, n);
        struct both dy = filled(check, n, FILL_NORMAL);
        struct both acc = k % 2 ? filled(check, n, FILL_NORMAL) : (struct both){0};
        float *squares = check_filled(check, width, FILL_NORMAL), *dm = check_array(check, width);
        float *want = check_array(check, width);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld acc %d", (long long)rows, (long long)width, k % 2);
        for (int64_t c = 0; c < width; c++)
            squares[c] *= squares[c];
        check->table->dora_bwd(dx.wide, want, acc.wide, dy.wide, x.wide, m.wide, squares, rows, width);
        check->table->dora_bwd_bf16(dx.half, dm, acc.half, dy.half, x.half, m.half, squares, rows, width);
        compare(check, "dx", shape, dx.half, dx.wide, n);
        check_compare(check, "dm", shape, dm, want, width, NULL, 0.0);
        check_reset(check, shape);
    }
}

static void check_layernorm(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t width = widths[k / N_FILLS], rows = 1 + check_draw(check, 9), n = rows * width;
        struct both x = filled(check, n, k % N_FILLS), w = filled(check, width, FILL_NORMAL);
        struct both b = filled(check, width, FILL_NORMAL), y = empty(check, n);
        float *mean = check_array(check, rows), *want_mean = check_array(check, rows);
        float *rstd = check_array(check, rows), *want_rstd = check_array(check, rows);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld fill %d", (long long)rows, (long long)width, k % N_FILLS);
        check->table->layernorm_fwd(y.wide, want_mean, want_rstd, x.wide, w.wide, b.wide, rows, width, 1e-5F);
        check->table->layernorm_fwd_bf16(y.half, mean, rstd, x.half, w.half, b.half, rows, width, 1e-5F);
        compare(check, "y", shape, y.half, y.wide, n);
        check_compare(check, "mean", shape, mean, want_mean, rows, NULL, 0.0);
        check_compare(check, "rstd", shape, rstd, want_rstd, rows, NULL, 0.0);
        check->table->layernorm_fwd_bf16(x.half, mean, rstd, x.half, w.half, b.half, rows, width, 1e-5F);
        compare(check, "y in place", shape, x.half, y.wide, n);
        check_reset(check, shape);
    }
}

static void check_layernorm_bwd(struct check *check)
{
    for (int k = 0; k < 2 * N_WIDTHS; k++) {
        int64_t width = widths[k / 2], rows = 1 + check_draw(check, 9), n = rows * width;
        struct both x = filled(check, n, FILL_NORMAL), w = filled(check, width, FILL_NORMAL);
        struct both dy = filled(check, n, FILL_NORMAL), dx = empty(check, n);
        struct both acc = k % 2 ? filled(check, n, FILL_NORMAL) : (struct both){0};
        float *mean = check_filled(check, rows, FILL_NORMAL), *rstd = check_filled(check, rows, FILL_NORMAL);
        float *dw = check_array(check, width), *want_dw = check_array(check, width);
        float *db = check_array(check, width), *want_db = check_array(check, width);
        struct tt_layernorm_grads want = {dx.wide, want_dw, want_db, acc.wide, dy.wide, x.wide, w.wide, mean, rstd, 0};
        struct tt_layernorm_grads got = {dx.half, dw, db, acc.half, dy.half, x.half, w.half, mean, rstd, 0};
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld acc %d", (long long)rows, (long long)width, k % 2);
        check->table->layernorm_bwd(&want, rows, width);
        check->table->layernorm_bwd_bf16(&got, rows, width);
        compare(check, "dx", shape, dx.half, dx.wide, n);
        check_compare(check, "dw", shape, dw, want_dw, width, NULL, 0.0);
        check_compare(check, "db", shape, db, want_db, width, NULL, 0.0);
        if (acc.half) {
            got.dx = acc.half;
            check->table->layernorm_bwd_bf16(&got, rows, width);
            compare(check, "dx in place", shape, acc.half, dx.wide, n);
        }
        check_reset(check, shape);
    }
}

static void check_gemv(struct check *check)
{
    for (int k = 0; k < (N_WIDTHS + 1) * N_FILLS; k++) {
        int64_t width = k / N_FILLS < N_WIDTHS ? widths[k / N_FILLS] : 8195, rows = 1 + check_draw(check, 9);
        struct both w = filled(check, rows * width, FILL_NORMAL), x = filled(check, width, k % N_FILLS);
        float *y = check_array(check, rows), *want = check_array(check, rows);

        check->table->gemv(want, w.wide, x.wide, rows, width);
        check->table->gemv_bf16(y, w.half, x.half, rows, width);
        check_compare(check, "y", "gemv", y, want, rows, NULL, 0.0);
        check_reset(check, "gemv");
    }
}

static void check_sum_rows(struct check *check)
{
    for (int k = 0; k < 2 * N_WIDTHS; k++) {
        int64_t columns = widths[k / 2], width = columns + check_draw(check, 5), rows = 1 + check_draw(check, 9);
        struct both x = filled(check, rows * width, FILL_NORMAL);
        float *acc = k % 2 ? check_filled(check, columns, FILL_NORMAL) : NULL;
        float *y = check_array(check, columns), *want = check_array(check, columns);

        check->table->sum_rows(want, acc, x.wide, rows, width, columns);
        check->table->sum_rows_bf16(y, acc, x.half, rows, width, columns);
        check_compare(check, "y", "sum_rows", y, want, columns, NULL, 0.0);
        check_reset(check, "sum_rows");
    }
}

static void check_scatter_add(struct check *check)
{
    for (int k = 0; k < 3 * N_WIDTHS; k++) {
        int64_t columns = widths[k / 3], width = columns + check_draw(check, 5), n = 1 + check_draw(check, 40);
        int64_t rows = 1 + k % 3 * 5, elements = (rows - 1) * width + columns;
        float *dw = check_filled(check, elements, FILL_NORMAL), *want = check_copy(check, dw, elements);
        struct both dx = filled(check, (n - 1) * width + columns, FILL_NORMAL);
        int32_t *tokens = check_labels(check, n, rows, false);

        check->table->scatter_add(want, dx.wide, tokens, n, width, columns);
        check->table->scatter_add_bf16(dw, dx.half, tokens, n, width, columns);
        check_compare(check, "dw", "scatter_add", dw, want, elements, NULL, 0.0);
        check_reset(check, "scatter_add");
    }
}

static void check_cross_entropy_grad(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t vocab = widths[k / N_FILLS], rows = 1 + check_draw(check, 9), n = rows * vocab;
        float *logits = check_filled(check, n, k % N_FILLS), *want = check_copy(check, logits, n);
        float *loss = check_array(check, rows), *want_loss = check_array(check, rows);
        float *z = k % 2 ? check_array(check, rows) : NULL, *want_z = k % 2 ? check_array(check, rows) : NULL;
        int32_t *labels = check_labels(check, rows, vocab, true);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld fill %d", (long long)rows, (long long)vocab, k % N_FILLS);
        check->table->cross_entropy_grad(want_loss, want_z, want, labels, rows, vocab, 0.125F, 0x1p-6F);
        check->table->cross_entropy_grad_bf16(loss, z, logits, labels, rows, vocab, 0.125F, 0x1p-6F);
        for (int64_t r = 0; r < rows; r++)
            compare(check, "dlogits", shape, (const tt_bf16 *)(const void *)(logits + r * vocab), want + r * vocab,
                    vocab);
        check_compare(check, "loss", shape, loss, want_loss, rows, NULL, 0.0);
        if (z)
            check_compare(check, "z", shape, z, want_z, rows, NULL, 0.0);
        check_reset(check, shape);
    }
}

static void check_softmax_grad(struct check *check)
{
    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t n = widths[k / N_FILLS];
        float *x = check_filled(check, n, k % N_FILLS), *want = check_array(check, n), largest, sum;
        float cap = k % 3 ? 0.0F : 2.0F;
        struct both y = empty(check, n);

        check->table->softmax_sum(&largest, &sum, x, n);
        check->table->softmax_grad(want, x, n, largest, 0.3F, cap);
        check->table->softmax_grad_bf16(y.half, x, n, largest, 0.3F, cap);
        compare(check, "y", "softmax_grad", y.half, want, n);
        check->table->softmax_grad_bf16((tt_bf16 *)(void *)x, x, n, largest, 0.3F, cap);
        compare(check, "y in place", "softmax_grad", (const tt_bf16 *)(const void *)x, want, n);
        check_reset(check, "softmax_grad");
    }
}

/* clang-format off */
const struct check_case bf16_cases[] = {
#define CASE(kernel, n_in, n_out, call) {#kernel "_bf16", check_elementwise},
    CHECK_ELEMENTWISE(CASE)
#undef CASE
    {"rope_bf16", check_rope},
    {"rmsnorm_fwd_bf16", check_rmsnorm},
    {"dora_fwd_bf16", check_dora_fwd},
    {"dora_bwd_bf16", check_dora_bwd},
    {"rmsnorm_bwd_bf16", check_rmsnorm_bwd},
    {"layernorm_fwd_bf16", check_layernorm},
    {"layernorm_bwd_bf16", check_layernorm_bwd},
    {"gemv_bf16", check_gemv},
    {"sum_rows_bf16", check_sum_rows},
    {"scatter_add_bf16", check_scatter_add},
    {"cross_entropy_grad_bf16", check_cross_entropy_grad},
    {"softmax_grad_bf16", check_softmax_grad},
};
/* clang-format on */
const int n_bf16_cases = sizeof bf16_cases / sizeof *bf16_cases;
