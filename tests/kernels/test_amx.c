/* SPDX-License-Identifier: MIT
 *
 * The products and the attention of bfloat16 by AMX. What a tile product computes is compared with Intel's description
 * by hand, the products over emulated tiles with sums that this file makes in the order that amx.c states, attention
 * with the same attention cut into other calls (kernelcheck compares it with a reference), and the compiled
 * instructions, carried out one by one, with the emulation.
 */
#define TT_AMX_EMULATED
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/kernels/vector/amx_tile.h"
#include "core/math/bf16.h"
#include "core/math/rng.h"
#include "tests/kernels/amx_trap.h"
#include "tests/kernels/references.h"

/* --- one tile product --- */

/* `sum` after the product of a row and a column of 32 elements, which fill the tiles. */
static float dot(const float *row, const float *column, float sum)
{
    tt_bf16 a[TILE_LINES][2 * TILE_LINES], b[TILE_LINES][2 * TILE_LINES];
    float c[TILE_LINES][TILE_LINES];

    for (int i = 0; i < TILE_LINES; i++) {
        for (int p = 0; p < 2 * TILE_LINES; p++) {
            a[i][p] = tt_bf16_from_float(row[p]);
            b[p / 2][2 * i + p % 2] = tt_bf16_from_float(column[p]);
        }
        for (int j = 0; j < TILE_LINES; j++)
            c[i][j] = sum;
    }
    tile_configure();
    TILE_LOAD(0, c);
    TILE_LOAD(1, a);
    TILE_LOAD(2, b);
    TILE_DOT(0, 1, 2);
    TILE_STORE(0, c, TILE_BYTES);
    tile_release();
    for (int i = 1; i < TILE_LINES * TILE_LINES; i++)
        assert_memory_equal(&c[0][0] + i, &c[0][0], sizeof c[0][0]);
    return c[0][0];
}

static const float ones[32] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

static void assert_bits(float got, float want)
{
    assert_memory_equal(&got, &want, sizeof want);
}

/* Above 2^24 an addition of 1 is lost. */
static void a_tile_product_sums_even_and_odd_elements_from_zero(void **state)
{
    const float even[32] = {0x1p24F, 0, 1, 0, 1}, odd[32] = {0x1p24F, 1, 0, 1, 0, 1};
    const float in_order[32] = {1, 0, 0x1p24F, 0, -0x1p24F};

    assert_bits(dot(ones, ones, 0x1p24F), 0x1p24F + 32.0F);
    assert_bits(dot(even, ones, 0.0F), 0x1p24F);
    assert_bits(dot(odd, ones, 0.0F), 0x1p24F + 4.0F); /* 2^24 + 3 is no float; of its neighbours, the even one */
    assert_bits(dot(in_order, ones, 0.0F), 0.0F);
}

static void a_tile_product_rounds_each_sum_once(void **state)
{
    const float a[32] = {-0x1p127F, 0, 0x1p64F}, b[32] = {1, 0, 0x1p64F};

    assert_bits(dot(a, b, 0.0F), 0x1p127F); /* 2^128 is no float */
    assert_bits(dot(ones, ones, -0x1p-20F), 32.0F);
}

static void a_tile_product_takes_denormals_as_zero(void **state)
{
    const float tiny[32] = {0x1p-130F, 0x1p-130F}, large[32] = {0x1p100F, 0x1p100F};
    const float small[32] = {-0x1p-70F, -0x1p-70F}, smaller[32] = {0x1p-70F, 0x1p-70F};
    const float below_a[32] = {0x1p-63F, 0, 0x1.8p-75F}, below_b[32] = {0x1p-63F, 0, -0x1p-76F};

    assert_bits(dot(tiny, large, 0.0F), 0.0F);
    assert_bits(dot(small, smaller, 0.0F), 0.0F);
    assert_bits(dot(ones, (const float[32]){0}, 0x1p-140F), 0.0F);
    assert_bits(dot(ones, (const float[32]){0x1p-126F}, -0x1.8p-126F), -0.0F); /* -2^-127 */
    assert_bits(dot(below_a, below_b, 0.0F), 0.0F); /* below 2^-126 with 24 bits, although the next float is 2^-126 */
}

static void a_tile_product_keeps_what_is_not_finite(void **state)
{
    const float inf[32] = {INFINITY}, nan[32] = {[31] = NAN};

    assert_bits(dot(inf, ones, 1.0F), INFINITY);
    assert_true(isnan(dot(inf, (const float[32]){0}, 1.0F)));
    assert_true(isnan(dot(ones, nan, 1.0F)));
}

/* --- whole products --- */

static const struct shape {
    int64_t m, n, k;
} shapes[] = {
    {1, 1, 1},    {16, 16, 32}, {17, 16, 33}, {16, 17, 31}, {33, 65, 96}, {31, 15, 64},
    {5, 47, 511}, {48, 33, 70}, {3, 2, 1300}, {520, 3, 40}, {2, 800, 34}, {64, 64, 769},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, AWAY = 3 };

static float number(int64_t stream, int64_t i)
{
    static struct tt_rng rng;

    rng = tt_rng_make(3, "amx");
    return (float)tt_rng_uniform(&rng, (uint64_t)(stream * (1 << 20) + i)) - 0.5F;
}

/* Elements of a product with these flags: 1 trans_a, 2 trans_b, 4 c_bf16, 8 acc. */
struct product {
    struct tt_matmul gemm;
    tt_bf16 *a, *b;
    void *c; /* acc is in c first */
    float *scratch;
};

static void *fresh_c(const struct tt_matmul *gemm)
{
    int64_t n = gemm->m * gemm->ldc;
    void *c = tt_calloc((size_t)n, sizeof(float));

    for (int64_t i = 0; i < n; i++) {
        if (gemm->c_bf16)
            ((tt_bf16 *)c)[i] = tt_bf16_from_float(number(2, i));
        else
            ((float *)c)[i] = number(2, i);
    }
    return c;
}

static struct product make(const struct shape *shape, int flags)
{
    struct product x = {.gemm = {.bf16 = true,
                                 .trans_a = flags & 1,
                                 .trans_b = flags & 2,
                                 .c_bf16 = flags & 4,
                                 .m = shape->m,
                                 .n = shape->n,
                                 .k = shape->k,
                                 .ldc = shape->n + AWAY}};
    struct tt_matmul *g = &x.gemm;
    int64_t n_a, n_b;

    g->lda = (g->trans_a ? g->m : g->k) + AWAY;
    g->ldb = (g->trans_b ? g->k : g->n) + AWAY;
    n_a = (g->trans_a ? g->k : g->m) * g->lda;
    n_b = (g->trans_b ? g->n : g->k) * g->ldb;
    x.a = tt_calloc((size_t)n_a, sizeof *x.a);
    x.b = tt_calloc((size_t)n_b, sizeof *x.b);
    for (int64_t i = 0; i < n_a; i++)
        x.a[i] = tt_bf16_from_float(number(0, i));
    for (int64_t i = 0; i < n_b; i++)
        x.b[i] = tt_bf16_from_float(number(1, i));
    x.c = fresh_c(g);
    x.scratch = tt_calloc((size_t)tt_bgemm_scratch(g), sizeof(float));
    g->a = x.a;
    g->b = x.b;
    g->c = x.c;
    g->acc = flags & 8 ? x.c : NULL;
    g->scratch = x.scratch;
    return x;
}

static void release(struct product *x)
{
    tt_free(x->a);
    tt_free(x->b);
    tt_free(x->c);
    tt_free(x->scratch);
}

/* Element (i, j) over [begin, begin + n), n <= 32, added to sum as Intel describes it. No denormals here. */
static float add_step(const struct tt_matmul *g, int64_t i, int64_t j, int64_t begin, int64_t n, float sum)
{
    float part[2] = {0.0F, 0.0F};

    for (int64_t p = begin; p < begin + n; p++) {
        float a = tt_bf16_to_float(((const tt_bf16 *)g->a)[g->trans_a ? p * g->lda + i : i * g->lda + p]);
        float b = tt_bf16_to_float(((const tt_bf16 *)g->b)[g->trans_b ? j * g->ldb + p : p * g->ldb + j]);

        part[(p - begin) % 2] = fmaf(a, b, part[(p - begin) % 2]);
    }
    return sum + (part[0] + part[1]);
}

/* One element, in the order that amx.c states: steps of 32 within blocks of 768. */
static float element(const struct tt_matmul *g, int64_t i, int64_t j, float acc)
{
    enum { STEP = 32, BLOCK = 768 };
    float total = 0.0F;

    for (int64_t begin = 0; begin < g->k; begin += BLOCK) {
        int64_t end = begin + BLOCK < g->k ? begin + BLOCK : g->k;
        float sum = 0.0F;

        for (int64_t p = begin; p < end; p += STEP)
            sum = add_step(g, i, j, p, p + STEP < end ? STEP : end - p, sum);
        total = begin ? total + sum : g->acc && !g->c_bf16 ? acc + sum : sum;
    }
    return g->acc && g->c_bf16 ? total + acc : total;
}

static void an_element_depends_on_its_row_and_column_only(void **state)
{
    for (int s = 0; s < N_SHAPES; s++) {
        for (int flags = 0; flags < 16; flags++) {
            struct product x = make(&shapes[s], flags);
            void *before = fresh_c(&x.gemm);

            kernels_amx_emulated()->bgemm(&x.gemm);
            for (int64_t i = 0; i < x.gemm.m; i++) {
                for (int64_t j = 0; j < x.gemm.n; j++) {
                    int64_t at = i * x.gemm.ldc + j;

                    if (x.gemm.c_bf16)
                        assert_int_equal(
                            ((tt_bf16 *)x.c)[at],
                            tt_bf16_from_float(element(&x.gemm, i, j, tt_bf16_to_float(((tt_bf16 *)before)[at]))));
                    else
                        assert_bits(((float *)x.c)[at], element(&x.gemm, i, j, ((float *)before)[at]));
                }
                for (int64_t j = x.gemm.n; j < x.gemm.ldc; j++) { /* between the rows */
                    int64_t at = (i * x.gemm.ldc + j) * (x.gemm.c_bf16 ? 2 : 4);

                    assert_memory_equal((char *)x.c + at, (char *)before + at, x.gemm.c_bf16 ? 2 : 4);
                }
            }
            tt_free(before);
            release(&x);
        }
    }
}

static void compare_with_emulation(const struct tt_kernels *kernels, const struct shape *shape, int flags)
{
    struct product x = make(shape, flags), y = make(shape, flags);

    kernels->bgemm(&x.gemm);
    kernels_amx_emulated()->bgemm(&y.gemm);
    assert_memory_equal(x.c, y.c, (size_t)(x.gemm.m * x.gemm.ldc) * sizeof(float));
    release(&x);
    release(&y);
}

/* --- attention --- */

/* Sizes of heads, rows, documents and calls that never fill whole tiles. */
static const struct tt_attention_shape attentions[] = {
    {.seq_len = 150, .heads = 2, .kv_heads = 1, .head_dim = 40, .value_dim = 33},
    {.seq_len = 200, .heads = 1, .kv_heads = 1, .head_dim = 16, .soft_cap = 2.0F},
    {.seq_len = 133, .heads = 1, .kv_heads = 1, .head_dim = 7, .window = 50},
};
enum { N_ATTENTIONS = sizeof attentions / sizeof *attentions };

struct attention {
    struct tt_attention_shape shape;
    int32_t *positions;
    int64_t nq, nk, no, nv; /* elements */
    tt_bf16 *q, *k, *v, *dout, *o;
    float *lse, *dq, *dk, *dv, *scratch;
};

static tt_bf16 *numbers(int64_t stream, int64_t n)
{
    tt_bf16 *x = tt_calloc((size_t)n, sizeof *x);

    for (int64_t i = 0; i < n; i++)
        x[i] = tt_bf16_from_float(4.0F * number(stream, i));
    return x;
}

static struct attention make_attention(const struct tt_attention_shape *shape, bool documents)
{
    struct attention x = {.shape = *shape};
    int64_t T = shape->seq_len, width = tt_attention_value_dim(shape), forward, backward;

    x.positions = tt_calloc((size_t)T, sizeof *x.positions);
    for (int64_t i = 1; i < T; i++)
        x.positions[i] = i % 71 == 0 ? 0 : x.positions[i - 1] + 1;
    x.shape.positions = documents ? x.positions : NULL;
    x.nq = T * shape->heads * shape->head_dim;
    x.nk = T * shape->kv_heads * shape->head_dim;
    x.no = T * shape->heads * width;
    x.nv = T * shape->kv_heads * width;
    x.q = numbers(0, x.nq);
    x.k = numbers(1, x.nk);
    x.v = numbers(2, x.nv);
    x.dout = numbers(3, x.no);
    x.o = numbers(4, x.no);
    x.lse = tt_calloc((size_t)(T * shape->heads), sizeof(float));
    x.dq = tt_calloc((size_t)x.nq, sizeof(float));
    x.dk = tt_calloc((size_t)x.nk, sizeof(float));
    x.dv = tt_calloc((size_t)x.nv, sizeof(float));
    forward = tt_attention_fwd_scratch(shape, true);
    backward = tt_attention_bwd_scratch(shape, T, true);
    x.scratch = tt_calloc((size_t)(forward > backward ? forward : backward), sizeof(float));
    return x;
}

static void release_attention(struct attention *x)
{
    void *arrays[] = {x->positions, x->q, x->k, x->v, x->dout, x->o, x->lse, x->dq, x->dk, x->dv, x->scratch};

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        tt_free(arrays[i]);
}

/* Rows [begin, end), forward in calls of `step` rows, and backward. */
static void attend(const struct tt_kernels *kernels, struct attention *x, int64_t begin, int64_t end, int64_t step)
{
    struct tt_attention_shape of = x->shape;
    int64_t heads = of.heads, width = tt_attention_value_dim(&of), at = begin * heads;

    of.begin = begin;
    of.end = end;
    of.positions = of.positions ? of.positions + begin : NULL;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t row = begin; row < end; row += step)
            kernels->attention_fwd_bf16(x->o + (at + h) * width, x->lse + at + h, x->q + (at + h) * of.head_dim, x->k,
                                        x->v, &of, row, end - row < step ? end - row : step, x->scratch);
    kernels->attention_bwd_bf16(&(struct tt_attention_bf16_grads){x->dq + at * of.head_dim, x->dk, x->dv,
                                                                  x->dout + at * width, x->q + at * of.head_dim, x->k,
                                                                  x->v, x->o + at * width, x->lse + at},
                                &of, heads, 0, of.seq_len, x->scratch);
}

static void assert_same_rows(const struct attention *x, const struct attention *y)
{
    assert_memory_equal(x->o, y->o, (size_t)x->no * sizeof *x->o);
    assert_memory_equal(x->lse, y->lse, (size_t)(x->shape.seq_len * x->shape.heads) * sizeof(float));
    assert_memory_equal(x->dq, y->dq, (size_t)x->nq * sizeof(float));
}

static void a_row_of_attention_has_the_same_bits_in_every_call(void **state)
{
    for (int i = 0; i < 2 * N_ATTENTIONS; i++) {
        struct attention x = make_attention(&attentions[i / 2], i % 2), y = make_attention(&attentions[i / 2], i % 2);

        attend(kernels_amx_emulated(), &x, 0, x.shape.seq_len, TT_ATTENTION_ROWS);
        attend(kernels_amx_emulated(), &y, 0, 45, 19);
        attend(kernels_amx_emulated(), &y, 45, x.shape.seq_len, 37);
        assert_same_rows(&x, &y);
        release_attention(&x);
        release_attention(&y);
    }
}

static void compare_attention_with_emulation(const struct tt_kernels *kernels)
{
    for (int i = 0; i < 2 * N_ATTENTIONS; i++) {
        struct attention x = make_attention(&attentions[i / 2], i % 2), y = make_attention(&attentions[i / 2], i % 2);

        attend(kernels, &x, 0, x.shape.seq_len, TT_ATTENTION_ROWS);
        attend(kernels_amx_emulated(), &y, 0, x.shape.seq_len, TT_ATTENTION_ROWS);
        assert_same_rows(&x, &y);
        assert_memory_equal(x.dk, y.dk, (size_t)x.nk * sizeof(float));
        assert_memory_equal(x.dv, y.dv, (size_t)x.nv * sizeof(float));
        release_attention(&x);
        release_attention(&y);
    }
}

#if defined(TT_HAS_AMX_TRAPPED)

/* amx.c for processors with AVX2, under another name */
extern const struct tt_kernels tt_kernels_amx_trapped;

static void the_compiled_instructions_give_the_same_bits(void **state)
{
    static const struct shape whole = {64, 96, 160};
    struct amx_trap_counts counts;

    if (!__builtin_cpu_supports("avx2") || !amx_trap_works())
        return; /* a processor with tiles runs them in the next case */
    amx_trap_begin();
    for (int s = 0; s < N_SHAPES; s++)
        for (int flags = 0; flags < 16; flags++)
            compare_with_emulation(&tt_kernels_amx_trapped, &shapes[s], flags);
    counts = amx_trap_end();
    assert_int_equal(counts.configured, N_SHAPES * 16);
    assert_int_equal(counts.released, N_SHAPES * 16);

    amx_trap_begin(); /* a step of two by two tiles loads four and multiplies four times */
    compare_with_emulation(&tt_kernels_amx_trapped, &whole, 0);
    counts = amx_trap_end();
    assert_int_equal(counts.dots, 2 * 3 * 5 * 4);
    assert_int_equal(counts.loads, 2 * 3 * 5 * 4);

    amx_trap_begin();
    compare_attention_with_emulation(&tt_kernels_amx_trapped);
    (void)amx_trap_end();
}

#endif

static void a_processor_with_amx_gives_the_same_bits(void **state)
{
    const struct tt_kernels *amx = NULL;

    for (int v = 0; tt_kernels_variant(v); v++)
        if (strcmp(tt_kernels_variant(v)->name, "amx") == 0)
            amx = tt_kernels_variant(v);
    if (!amx)
        return;
    for (int s = 0; s < N_SHAPES; s++)
        for (int flags = 0; flags < 16; flags++)
            compare_with_emulation(amx, &shapes[s], flags);
    compare_attention_with_emulation(amx);
}

/* --- trust --- */

static void forgets_the_last_row(const struct tt_matmul *gemm)
{
    struct tt_matmul most = *gemm;

    most.m--;
    kernels_amx_emulated()->bgemm(&most);
}

static void forgets_what_is_added(const struct tt_matmul *gemm)
{
    struct tt_matmul less = *gemm;

    less.acc = NULL;
    kernels_amx_emulated()->bgemm(&less);
}

static void forgets_the_last_of_k(const struct tt_matmul *gemm)
{
    struct tt_matmul less = *gemm;

    less.k--;
    kernels_amx_emulated()->bgemm(&less);
}

static void is_off_in_one_element(const struct tt_matmul *gemm)
{
    kernels_amx_emulated()->bgemm(gemm);
    if (!gemm->c_bf16)
        ((float *)gemm->c)[gemm->ldc + 1] += 1.0F;
}

static void only_a_kernel_that_multiplies_right_is_trusted(void **state)
{
    for (int v = 1; kernels_variant(v); v++)
        assert_true(tt_bgemm_is_right(kernels_variant(v)->bgemm));
    assert_false(tt_bgemm_is_right(forgets_the_last_row));
    assert_false(tt_bgemm_is_right(forgets_what_is_added));
    assert_false(tt_bgemm_is_right(forgets_the_last_of_k));
    assert_false(tt_bgemm_is_right(is_off_in_one_element));
    for (int v = 0; tt_kernels_variant(v); v++)
        assert_true(tt_attention_is_right(kernels_amx_emulated(), tt_kernels_variant(v)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tile_product_sums_even_and_odd_elements_from_zero),
        cmocka_unit_test(a_tile_product_rounds_each_sum_once),
        cmocka_unit_test(a_tile_product_takes_denormals_as_zero),
        cmocka_unit_test(a_tile_product_keeps_what_is_not_finite),
        cmocka_unit_test(an_element_depends_on_its_row_and_column_only),
        cmocka_unit_test(a_row_of_attention_has_the_same_bits_in_every_call),
#if defined(TT_HAS_AMX_TRAPPED)
        cmocka_unit_test(the_compiled_instructions_give_the_same_bits),
#endif
        cmocka_unit_test(a_processor_with_amx_gives_the_same_bits),
        cmocka_unit_test(only_a_kernel_that_multiplies_right_is_trusted),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("amx", tests, NULL, NULL);
}
