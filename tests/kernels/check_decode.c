/* SPDX-License-Identifier: MIT
 *
 * The kernels of generation: a matrix times a vector, and attention of one row over cached keys and values.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/kernels/kernelcheck.h"

static const double eps32 = (double)FLT_EPSILON;

static void check_gemv(struct check *check)
{
    static const int64_t widths[] = {1, 2, 5, 15, 16, 17, 33, 64, 100, 127, 256, 1021, 4096, 5003};
    enum { N_WIDTHS = sizeof widths / sizeof *widths };

    for (int k = 0; k < N_WIDTHS * N_FILLS; k++) {
        int64_t width = widths[k / N_FILLS], rows = 1 + check_draw(check, 9);
        float *w = check_filled(check, rows * width, FILL_NORMAL), *x = check_filled(check, width, k % N_FILLS);
        float *y = check_array(check, rows), *want = check_array(check, rows), *alone = check_array(check, rows);
        double *near = check_doubles(check, rows);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "%lld x %lld fill %d", (long long)rows, (long long)width, k % N_FILLS);
        tt_gemv_ref(want, w, x, rows, width);
        check->table->gemv(y, w, x, rows, width);
        for (int64_t r = 0; r < rows; r++) {
            check->table->gemv(alone + r, w + r * width, x, 1, width);
            for (int64_t i = 0; i < width; i++)
                near[r] += fabs((double)w[r * width + i] * (double)x[i]);
            near[r] = isfinite(near[r]) ? 2.0 * eps32 * sqrt((double)width) * near[r] + (double)FLT_MIN : 0.0;
        }
        check_compare(check, "y", shape, y, want, rows, near, 0.0);
        check_compare(check, "rows alone", shape, alone, y, rows, NULL, 0.0);
        check_reset(check, shape);
    }
}

/* Rounds n values to bfloat16; they end at a guard. */
static tt_bf16 *bf16_of(struct check *check, float *x, int64_t n)
{
    tt_bf16 *to = (tt_bf16 *)(void *)check_array(check, (n + 1) / 2) + n % 2;

    tt_bf16_round_ref(to, x, n);
    tt_bf16_widen_ref(x, to, n);
    return to;
}

/* y from the variant under test, for vectors of floats, or rounded to bfloat16 (half). */
static float *run_packed(struct check *check, struct tt_packed_rows w, const float *x, const tt_bf16 *half)
{
    float *y = check_array(check, w.vectors * w.y_row);

    if (half)
        check->table->gemv_packed_bf16(y, &w, half);
    else
        check->table->gemv_packed(y, &w, x);
    return y;
}

/*
 * Rows of every packing, which end at a guard, with one and with several vectors. Each row and vector must have the
 * bits that it has alone, and vectors in bfloat16 those of the same floats; for packings whose elements are exact, they
 * are the bits of the unpacked rows.
 */
static void check_gemv_packed(struct check *check)
{
    static const int64_t widths[] = {64, 128, 192, 576, 1024, 1088, 4160, 8192 + 64, 24, 33, 100};
    enum { N_WIDTHS = sizeof widths / sizeof *widths };
    bool bf16 = strcmp(check->kernel, "gemv_packed_bf16") == 0, own = strcmp(check->table->name, "blas") != 0;

    for (int k = 0; k < N_WIDTHS * (TT_PACKINGS - 1) * N_FILLS; k++) {
        enum tt_packing_choice packing = (enum tt_packing_choice)(1 + k / N_FILLS % (TT_PACKINGS - 1));
        int64_t width = widths[k / N_FILLS / (TT_PACKINGS - 1)], rows = 1 + check_draw(check, 9);
        int64_t vectors = check_draw(check, 2) ? 1 : 1 + check_draw(check, 9), bytes;
        struct tt_packed_rows w = {packing, NULL, rows, width, vectors, rows + check_draw(check, 3)};
        float *plain, *x, *y, *want;
        uint8_t *data;
        tt_bf16 *half;
        double *near;
        char shape[80];

        if (width % tt_packing_block(packing))
            continue;
        (void)snprintf(shape, sizeof shape, "%s %lld x %lld, %lld vectors, fill %d", tt_packing_name(packing),
                       (long long)rows, (long long)width, (long long)vectors, k % N_FILLS);
        plain = check_filled(check, rows * width, FILL_NORMAL);
        for (int64_t i = 0; check_draw(check, 2) && i < rows * width; i++)
            plain[i] *= 1e-3F * (float)(1 + i % 7); /* scales that are subnormal in float16 */
        bytes = tt_packing_row_bytes(packing, width);
        data = (uint8_t *)check_array(check, (rows * bytes + 3) / 4) + (4 - rows * bytes % 4) % 4;
        tt_pack(packing, plain, rows, width, 0, rows, data);
        for (int64_t r = 0; r < rows; r++)
            tt_unpack(packing, data + r * bytes, width, 0, width, plain + r * width);
        w.data = data;
        x = check_filled(check, vectors * width, k % N_FILLS);
        half = bf16 ? bf16_of(check, x, vectors * width) : NULL;
        y = run_packed(check, w, x, half);
        want = check_array(check, vectors * w.y_row);
        near = check_doubles(check, vectors * w.y_row);
        tt_gemv_packed_ref(want, &w, x);
        for (int64_t v = 0; v < vectors; v++)
            for (int64_t r = 0; r < rows; r++) {
                struct tt_packed_rows one = {packing, data + r * bytes, 1, width, 1, 1};
                double *of = &near[v * w.y_row + r];
                float alone[1];

                for (int64_t i = 0; i < width; i++)
                    *of += fabs((double)plain[r * width + i] * (double)x[v * width + i]);
                *of = isfinite(*of) ? 2.0 * eps32 * (sqrt((double)width) + 2.0) * *of + (double)FLT_MIN : 0.0;
                check_compare(check, "y", shape, y + v * w.y_row + r, want + v * w.y_row + r, 1, of, 0.0);
                check->table->gemv_packed(alone, &one, x + v * width);
                check_compare(check, "row alone", shape, alone, y + v * w.y_row + r, 1, NULL, 0.0);
                check->table->gemv(alone, plain + r * width, x + v * width, 1, width);
                if (own && packing != TT_PACKING_NF4 && packing != TT_PACKING_INT8)
                    check_compare(check, "row unpacked", shape, alone, y + v * w.y_row + r, 1, NULL, 0.0);
            }
        check_reset(check, shape);
    }
}

/* Elements of a row of 8 or 4 bits with scales from the whole range of float16, infinite ones too. */
static void draw_scales(struct check *check, enum tt_packing_choice packing, uint8_t *row, int64_t bytes)
{
    int64_t block = packing == TT_PACKING_Q8_0 ? 34 : 18;

    for (int64_t at = 0; at < bytes; at += block) {
        uint16_t scale = (uint16_t)check_draw(check, 0x10000);

        if (check_draw(check, 2) && (scale & 0x7fffU) <= 0x7c00U)
            memcpy(row + at, &scale, sizeof scale);
    }
}

/* Any part of a row of every packing, which ends at a guard, has exactly the elements of the reference. */
static void check_unpack(struct check *check)
{
    static const int64_t widths[] = {64, 128, 1088, 4160, 24, 33, 100, 1536};
    enum { N_WIDTHS = sizeof widths / sizeof *widths, TRIALS = 12 };
    bool bf16 = strcmp(check->kernel, "unpack_bf16") == 0;

    for (int k = 0; k < N_WIDTHS * (TT_PACKINGS - 1) * TRIALS; k++) {
        enum tt_packing_choice packing = (enum tt_packing_choice)(1 + k / TRIALS % (TT_PACKINGS - 1));
        int64_t width = widths[k / TRIALS / (TT_PACKINGS - 1)], begin, n, bytes;
        float *x, *got, *want;
        uint8_t *row;
        char shape[80];

        if (width % tt_packing_block(packing))
            continue;
        begin = k % TRIALS ? check_draw(check, width) : 0;
        n = k % TRIALS ? check_draw(check, width - begin + 1) : width;
        (void)snprintf(shape, sizeof shape, "%s %lld, %lld from %lld on", tt_packing_name(packing), (long long)width,
                       (long long)n, (long long)begin);
        x = check_filled(check, width, k % 3 ? FILL_NORMAL : k % 2 ? FILL_TINY : FILL_LARGE);
        bytes = tt_packing_row_bytes(packing, width);
        row = (uint8_t *)check_array(check, (bytes + 3) / 4) + (4 - bytes % 4) % 4;
        tt_pack(packing, x, 1, width, 0, 1, row);
        if (packing == TT_PACKING_Q8_0 || packing == TT_PACKING_Q4_0)
            draw_scales(check, packing, row, bytes);
        got = check_array(check, n);
        want = check_array(check, n);
        if (bf16) {
            tt_bf16 *to = (tt_bf16 *)(void *)check_array(check, (n + 1) / 2) + n % 2;
            tt_bf16 *exact = (tt_bf16 *)(void *)check_array(check, (n + 1) / 2) + n % 2;

            check->table->unpack_bf16(to, packing, row, width, begin, n);
            tt_unpack_bf16_ref(exact, packing, row, width, begin, n);
            tt_bf16_widen_ref(got, to, n);
            tt_bf16_widen_ref(want, exact, n);
        } else {
            check->table->unpack(got, packing, row, width, begin, n);
            tt_unpack_ref(want, packing, row, width, begin, n);
        }
        check_compare(check, "element", shape, got, want, n, NULL, 0.0);
        check_reset(check, shape);
    }
}

/* The shape of one row of attention; the heads of one key/value head are computed. */
struct row {
    int64_t heads, kv_heads, head_dim, keys;
    int64_t value_dim; /* 0: as head_dim; else the values are the first elements of the keys */
};

/* o from the variant under test in bfloat16, with q, k and v rounded to it. */
static void run_row(struct check *check, const struct tt_attention_shape *shape, bool bf16, float *q, float *k,
                    float *v, float *o)
{
    int64_t n = shape->heads / shape->kv_heads * shape->head_dim, cached = shape->seq_len * shape->head_dim;
    int64_t n_out = shape->heads / shape->kv_heads * tt_attention_value_dim(shape);
    float *scratch;

    if (bf16) {
        tt_bf16 *half = (tt_bf16 *)(void *)check_array(check, (n_out + 1) / 2) + n_out % 2;
        const tt_bf16 *keys = bf16_of(check, k, cached), *values = v == k ? keys : bf16_of(check, v, cached);

        scratch = check_array(check, tt_attention_row_scratch(shape, shape->seq_len, true));
        check->table->attention_row_bf16(half, bf16_of(check, q, n), keys, values, shape, shape->seq_len, scratch);
        tt_bf16_widen_ref(o, half, n_out);
    } else {
        scratch = check_array(check, tt_attention_row_scratch(shape, shape->seq_len, false));
        check->table->attention_row(o, q, k, v, shape, shape->seq_len, scratch);
    }
}

/* In bfloat16 there is one more rounding, by at most 2^-8 of the result. */
static void check_attention_row(struct check *check)
{
    static const struct row rows[] = {{1, 1, 8, 1, 0},    {2, 1, 2, 2, 0},   {3, 3, 6, 7, 0},   {4, 2, 16, 15, 0},
                                      {8, 2, 64, 16, 0},  {5, 1, 10, 33, 0}, {2, 2, 128, 9, 0}, {4, 1, 18, 257, 0},
                                      {1, 1, 4, 1021, 0}, {3, 1, 5, 70, 0},  {4, 1, 9, 40, 7},  {3, 1, 72, 300, 64}};
    enum { N_ROWS = sizeof rows / sizeof *rows };
    bool bf16 = strcmp(check->kernel, "attention_row_bf16") == 0;

    for (int k = 0; k < N_ROWS * N_FILLS; k++) {
        const struct row *row = &rows[k / N_FILLS];
        enum fill fill = k % N_FILLS == FILL_LARGE ? FILL_NORMAL : (enum fill)(k % N_FILLS);
        struct tt_attention_shape shape = {
            .seq_len = row->keys, .heads = row->heads, .kv_heads = row->kv_heads, .head_dim = row->head_dim};
        int64_t n = row->heads / row->kv_heads * row->head_dim, cached = row->keys * row->head_dim;
        float *q = check_filled(check, n, fill), *k_cache = check_filled(check, cached, FILL_NORMAL);
        float *v_cache = row->value_dim ? k_cache : check_filled(check, cached, FILL_NORMAL), *o, *want;
        int64_t n_out = row->heads / row->kv_heads * (row->value_dim ? row->value_dim : row->head_dim);
        double *near = check_doubles(check, n_out), size = 4.0;
        char text[80];

        if (row->value_dim) {
            shape.value_dim = row->value_dim;
            shape.value_stride = row->head_dim;
            shape.scale = 0.2F;
        }
        if (check_draw(check, 2))
            shape.sinks = check_filled(check, row->heads / row->kv_heads, FILL_NORMAL);
        shape.soft_cap = check_draw(check, 3) ? 0.0F : check_draw(check, 2) ? 1.5F : 50.0F;
        o = check_array(check, n_out);
        want = check_array(check, n_out);

        (void)snprintf(text, sizeof text, "H=%lld K=%lld E=%lld keys %lld cap %g fill %d%s", (long long)row->heads,
                       (long long)row->kv_heads, (long long)row->head_dim, (long long)row->keys, (double)shape.soft_cap,
                       k % N_FILLS, shape.sinks ? " sinks" : "");
        for (int64_t i = 0; k % N_FILLS == FILL_LARGE && i < n; i++)
            q[i] *= 30.0F; /* makes the softmax sharp; errors of the scores grow with their size */
        if (k % N_FILLS == FILL_LARGE)
            size = 30.0 * sqrt((double)row->head_dim);
        run_row(check, &shape, bf16, q, k_cache, v_cache, o);
        tt_attention_row_ref(want, q, k_cache, v_cache, &shape, row->keys, NULL);
        for (int64_t i = 0; i < n_out; i++)
            near[i] = 8.0 * size * eps32 + (bf16 && isfinite(want[i]) ? 0x1p-8 * fabs((double)want[i]) : 0.0);
        check_compare(check, "o", text, o, want, n_out, near, 0.0);
        check_reset(check, text);
    }
}

const struct check_case decode_cases[] = {
    {"gemv", check_gemv},
    {"gemv_packed", check_gemv_packed},
    {"gemv_packed_bf16", check_gemv_packed},
    {"unpack", check_unpack},
    {"unpack_bf16", check_unpack},
    {"attention_row", check_attention_row},
    {"attention_row_bf16", check_attention_row},
};
const int n_decode_cases = sizeof decode_cases / sizeof *decode_cases;
