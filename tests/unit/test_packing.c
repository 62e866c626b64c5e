/* SPDX-License-Identifier: MIT
 *
 * Packed matrices, compared with bitsandbytes and gguf: data/packing.json, which data/make_packing.py writes, holds the
 * results of these packages for the matrices of this file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/format/base.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/math/packing.h"
#include "core/os/file.h"

enum { ROWS = 64, WIDTH = 320, N = ROWS * WIDTH };

static json_t *golden;

static int set_up(void **state)
{
    return tt_json_load(TT_SOURCE_DIR "/tests/unit/data/packing.json", &golden);
}

static int tear_down(void **state)
{
    json_decref(golden);
    return 0;
}

/* The matrices of make_packing.py. */
static float *matrix(const char *kind)
{
    float *x = tt_calloc(N, sizeof *x);
    uint64_t random = 1;

    for (int i = 0; i < N; i++) {
        int block = i / 64 % 5;

        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        x[i] = (float)((int)((random >> 33) % 8192) - 4096) / 65536.0F;
        if (strcmp(kind, "extreme") != 0)
            continue;
        if (block == 0 || (block == 1 && i % 64))
            x[i] = 0.0F;
        else if (block == 2 || block == 3)
            x[i] *= block == 2 ? 0x1p-13F : 256.0F;
        else if (block == 4)
            x[i] = x[i] < 0.0F ? x[i] : -x[i];
    }
    return x;
}

struct digest {
    uint64_t value;
    char text[17];
};

static void begin(struct digest *d)
{
    d->value = UINT64_C(0xcbf29ce484222325);
}

static void add(struct digest *d, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        d->value = (d->value ^ ((const uint8_t *)data)[i]) * UINT64_C(0x100000001b3);
}

static void must_be(struct digest *d, const json_t *of, const char *key)
{
    (void)snprintf(d->text, sizeof d->text, "%016llx", (unsigned long long)d->value);
    if (strcmp(d->text, json_string_value(json_object_get(of, key))) != 0)
        fail_msg("%s: wanted %s, found %s", key, json_string_value(json_object_get(of, key)), d->text);
    begin(d);
}

/* The elements of n rows, unpacked in pieces. */
static float *unpacked(enum tt_packing_choice packing, const uint8_t *rows, int64_t n, int64_t width, int64_t piece)
{
    int64_t bytes = tt_packing_row_bytes(packing, width);
    float *x = tt_calloc((size_t)(n * width), sizeof *x);

    for (int64_t r = 0; r < n; r++)
        for (int64_t at = 0; at < width; at += piece)
            tt_unpack(packing, rows + r * bytes, width, at, at + piece < width ? piece : width - at,
                      x + r * width + at);
    return x;
}

static void check_unpacked(enum tt_packing_choice packing, const uint8_t *rows, const json_t *of)
{
    float *x = unpacked(packing, rows, ROWS, WIDTH, WIDTH), *in_pieces = unpacked(packing, rows, ROWS, WIDTH, 37);
    struct digest d;

    begin(&d);
    assert_memory_equal(x, in_pieces, N * sizeof *x);
    add(&d, x, N * sizeof *x);
    must_be(&d, of, "unpacked");
    tt_free(x);
    tt_free(in_pieces);
}

/* --- the four packings --- */

static void nf4_is_that_of_bitsandbytes(void **state)
{
    static const char *const kinds[] = {"random", "extreme"};
    enum { FACTORS = 8, NUMBERS = 16, ELEMENTS = 21, BYTES = 184 };

    assert_int_equal(tt_packing_row_bytes(TT_PACKING_NF4, WIDTH), BYTES);
    for (int k = 0; k < 2; k++) {
        const json_t *of = json_object_get(json_object_get(golden, kinds[k]), "nf4");
        uint8_t *rows = tt_calloc(ROWS, BYTES), *parts = tt_calloc(ROWS, BYTES);
        float *x = matrix(kinds[k]);
        uint32_t word;
        struct digest d;

        begin(&d);
        tt_pack(TT_PACKING_NF4, x, ROWS, WIDTH, 0, ROWS, rows);
        for (int r = 0; r < ROWS; r++)
            add(&d, rows + r * BYTES + ELEMENTS, WIDTH / 2);
        must_be(&d, of, "elements");
        for (int r = 0; r < ROWS; r++)
            add(&d, rows + r * BYTES + NUMBERS, WIDTH / 64);
        must_be(&d, of, "numbers");
        memcpy(&word, rows, sizeof word);
        assert_int_equal(word, json_integer_value(json_object_get(of, "offset")));
        memcpy(&word, rows + FACTORS, sizeof word);
        assert_int_equal(word, json_integer_value(json_array_get(json_object_get(of, "groups"), 0)));
        memcpy(&word, rows + (ROWS - 1) * BYTES + FACTORS, sizeof word);
        assert_int_equal(word, json_integer_value(json_array_get(json_object_get(of, "groups"), 1)));
        check_unpacked(TT_PACKING_NF4, rows, of);
        for (int r = 0; r < ROWS; r += 16) /* as ranks do */
            tt_pack(TT_PACKING_NF4, x, ROWS, WIDTH, r, 16, parts + r * BYTES);
        assert_memory_equal(rows, parts, ROWS * BYTES);
        tt_free(rows);
        tt_free(parts);
        tt_free(x);
    }
}

static void int8_is_that_of_bitsandbytes(void **state)
{
    static const char *const kinds[] = {"random", "extreme"};

    for (int k = 0; k < 2; k++) {
        const json_t *of = json_object_get(json_object_get(golden, kinds[k]), "int8");
        int64_t bytes = tt_packing_row_bytes(TT_PACKING_INT8, WIDTH);
        uint8_t *rows = tt_calloc(ROWS, (size_t)bytes);
        float *x = matrix(kinds[k]);
        struct digest d;

        begin(&d);
        assert_int_equal(bytes, WIDTH + 4);
        tt_pack(TT_PACKING_INT8, x, ROWS, WIDTH, 0, ROWS, rows);
        for (int r = 0; r < ROWS; r++)
            add(&d, rows + r * bytes + 4, WIDTH);
        must_be(&d, of, "elements");
        for (int r = 0; r < ROWS; r++)
            add(&d, rows + r * bytes, 4);
        must_be(&d, of, "largest");
        check_unpacked(TT_PACKING_INT8, rows, of);
        tt_free(rows);
        tt_free(x);
    }
}

static void blocks_are_those_of_gguf(void **state)
{
    static const char *const kinds[] = {"random", "extreme"};

    for (int k = 0; k < 4; k++) {
        enum tt_packing_choice packing = k % 2 ? TT_PACKING_Q8_0 : TT_PACKING_Q4_0;
        const json_t *of = json_object_get(json_object_get(golden, kinds[k / 2]), tt_packing_name(packing));
        int64_t bytes = tt_packing_row_bytes(packing, WIDTH);
        uint8_t *rows = tt_calloc(ROWS, (size_t)bytes);
        float *x = matrix(kinds[k / 2]);
        struct digest d;

        begin(&d);
        tt_pack(packing, x, ROWS, WIDTH, 0, ROWS, rows);
        add(&d, rows, (size_t)(ROWS * bytes));
        must_be(&d, of, "packed");
        check_unpacked(packing, rows, of);
        tt_free(rows);
        tt_free(x);
    }
}

static void not_finite_values_do_no_harm(void **state)
{
    static const float bad[] = {0.0F, 1e38F, -1e38F, 1e-42F};

    for (enum tt_packing_choice packing = TT_PACKING_NONE + 1; packing < TT_PACKINGS; packing++)
        for (int k = 0; k < 4; k++) {
            uint8_t *rows = tt_calloc(1, (size_t)tt_packing_row_bytes(packing, 64));
            float x[64], back[64];

            for (int i = 0; i < 64; i++)
                x[i] = bad[k];
            tt_pack(packing, x, 1, 64, 0, 1, rows);
            tt_unpack(packing, rows, 64, 0, 64, back);
            if (k == 0)
                for (int i = 0; i < 64; i++)
                    assert_true(back[i] == 0.0F);
            tt_free(rows);
        }
}

/* --- parts of rows --- */

/* Ranks that share a matrix by columns have the same elements, and the digests of their parts add up to the whole's.
 * The rows are shorter and longer than a group of nf4's blocks. */
static void parts_of_rows_have_their_elements(void **state)
{
    float *x = matrix("random"), got[N], want[N];

    for (int k = 0; k < 2 * TT_PACKINGS; k++) {
        enum tt_packing_choice packing = (enum tt_packing_choice)(k / 2);
        int64_t shape[2] = {k % 2 ? ROWS : 1, k % 2 ? WIDTH : N}, n = shape[1] / 5;
        int64_t bytes = tt_packing_row_bytes(packing, shape[1]), part_bytes = tt_packing_row_bytes(packing, n);
        struct tt_box whole = tt_box_whole(2, shape);
        uint8_t *rows, *parts;
        uint64_t digest, sum = 0;

        if (!packing)
            continue;
        rows = tt_calloc((size_t)shape[0], (size_t)bytes);
        parts = tt_calloc((size_t)shape[0], (size_t)part_bytes);
        tt_pack(packing, x, shape[0], shape[1], 0, shape[0], rows);
        digest = tt_base_digest(packing, TT_F32, shape, &whole, rows);
        for (int64_t begin = 0; begin < shape[1]; begin += n) {
            struct tt_box part = {2, {0, begin}, {shape[0], n}};

            for (int64_t r = 0; r < shape[0]; r++) {
                tt_packing_cut(packing, rows + r * bytes, shape[1], begin, n, parts + r * part_bytes);
                tt_unpack(packing, rows + r * bytes, shape[1], begin, n, want);
                tt_unpack(packing, parts + r * part_bytes, n, 0, n, got);
                if (memcmp(got, want, (size_t)n * sizeof *got) != 0)
                    fail_msg("%s: row %d, columns from %d on", tt_packing_name(packing), (int)r, (int)begin);
            }
            sum += tt_base_digest(packing, TT_F32, shape, &part, parts);
        }
        if (sum != digest)
            fail_msg("%s: the digests of parts do not add up", tt_packing_name(packing));
        rows[shape[0] * bytes / 2] ^= 1;
        if (tt_base_digest(packing, TT_F32, shape, &whole, rows) == digest)
            fail_msg("%s: a changed bit has no effect", tt_packing_name(packing));
        tt_free(rows);
        tt_free(parts);
    }
    tt_free(x);
}

/* --- products --- */

/* The product with packed rows has the bits of the product with their elements, for any threads and grains. b is so
 * large that neither its columns nor its rows are unpacked all at once, and tiles do not begin where blocks do. */
static void products_have_the_bits_of_the_elements(void **state)
{
    enum { M = 70, B_ROWS = 204, B_WIDTH = 1344, ELEMENTS = B_ROWS * B_WIDTH };
    float *x = matrix("random"), *a = tt_calloc((size_t)M * B_WIDTH, sizeof *a);
    tt_bf16 *half_a = tt_calloc((size_t)M * B_WIDTH, sizeof *half_a), *half_b = tt_calloc(ELEMENTS, sizeof *half_b);
    float *w = tt_calloc(ELEMENTS, sizeof *w);

    for (int i = 0; i < M * B_WIDTH; i++) {
        a[i] = x[(i * 7) % N] * 16.0F;
        half_a[i] = tt_bf16_from_float(a[i]);
    }
    for (int i = 0; i < ELEMENTS; i++)
        w[i] = x[(i * 11) % N];
    for (int k = 0; k < (TT_PACKINGS - 1) * 16; k++) {
        enum tt_packing_choice packing = (enum tt_packing_choice)(1 + k / 16);
        bool trans = k & 1, bf16 = k & 2, grains = k & 4, grains_of_k = k & 8;
        uint8_t *rows = tt_calloc(B_ROWS, (size_t)tt_packing_row_bytes(packing, B_WIDTH));
        float *b;
        struct tt_matmul g = {.bf16 = bf16,
                              .trans_b = trans,
                              .m = M,
                              .n = trans ? B_ROWS : B_WIDTH,
                              .k = trans ? B_WIDTH : B_ROWS,
                              .lda = trans ? B_WIDTH : B_ROWS,
                              .ldb = B_WIDTH,
                              .ldc = trans ? B_ROWS : B_WIDTH};
        float *want = tt_calloc((size_t)(g.m * g.n), sizeof *want), *got = tt_calloc((size_t)(g.m * g.n), sizeof *got);

        tt_pack(packing, w, B_ROWS, B_WIDTH, 0, B_ROWS, rows);
        b = unpacked(packing, rows, B_ROWS, B_WIDTH, B_WIDTH);
        for (int i = 0; i < ELEMENTS; i++)
            half_b[i] = tt_bf16_from_float(b[i]);
        g.a = bf16 ? (const void *)half_a : a;
        g.b = bf16 ? (const void *)half_b : b;
        g.m_grain = g.m;
        g.n_grain = grains ? g.n / 4 : g.n;
        g.k_grain = grains_of_k ? g.k / 4 : 0;
        for (int threads = 0; threads <= 3; threads++) {
            struct tt_team *team = NULL;

            g.c = threads ? got : want;
            g.partial = tt_calloc((size_t)tt_matmul_partial_floats(&g, false) + 1, sizeof(float));
            g.scratch = tt_calloc((size_t)(4 * tt_matmul_scratch_floats(&g)) + 16, sizeof(float));
            assert_int_equal(tt_team_new(threads ? threads : 1, &team), 0);
            tt_matmul(team, &g);
            tt_team_free(team);
            tt_free(g.partial);
            tt_free(g.scratch);
            if (threads && memcmp(want, got, (size_t)(g.m * g.n) * sizeof *got) != 0)
                fail_msg("%s, transposed %d, bfloat16 %d, grains %d%d, %d threads", tt_packing_name(packing), trans,
                         bf16, grains, grains_of_k, threads);
            g.b = rows;
            g.b_packing = packing;
            g.b_width = B_WIDTH;
        }
        tt_free(rows);
        tt_free(b);
        tt_free(want);
        tt_free(got);
    }
    tt_free(x);
    tt_free(w);
    tt_free(a);
    tt_free(half_a);
    tt_free(half_b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nf4_is_that_of_bitsandbytes),       cmocka_unit_test(int8_is_that_of_bitsandbytes),
        cmocka_unit_test(blocks_are_those_of_gguf),          cmocka_unit_test(not_finite_values_do_no_harm),
        cmocka_unit_test(parts_of_rows_have_their_elements), cmocka_unit_test(products_have_the_bits_of_the_elements),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("packing", tests, set_up, tear_down);
}
