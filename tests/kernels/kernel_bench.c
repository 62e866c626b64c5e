/* SPDX-License-Identifier: MIT
 *
 * Times kernels: one case per kernel, with its arrays, the amount that it moves or computes, and one call.
 */
#include "tests/kernels/kernel_bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/kernels/matmul.h"
#include "core/math/bf16.h"
#include "core/math/rng.h"
#include "core/math/stats.h"
#include "core/os/file.h"
#include "tests/kernels/kernelcheck.h"

enum { ARRAYS = 6 };

/* The operands of a call. kernel_bench_run makes and frees the arrays and frees `scratch`. */
struct work {
    const struct tt_kernels *table;
    int64_t rows, width, n; /* n = rows * width */
    struct tt_attention_shape attention;
    struct tt_matmul product;
    float *x[ARRAYS];
    float *scratch;
    int32_t *labels; /* [n] in [0, width) */
    double flops;    /* of one matrix product of the kernel */
    bool bf16;       /* its products are of bfloat16 */
};

/* Kernels that choose their own sizes. */
struct family {
    void (*choose)(struct work *work, char *shape, size_t shape_size); /* sets n, flops, and the shape as text */
    void (*prepare)(struct work *work); /* sets scratch and arguments, after the arrays are filled */
};

struct bench_case {
    const char *kernel;
    void (*run)(const struct work *work);
    double arrays;   /* arrays of n floats read and written (bfloat16: half); 0: arithmetic limits the kernel */
    double products; /* matrix products; in attention, only the pairs that the mask leaves count */
    int64_t width;   /* of rows; 0: the family chooses the sizes */
    const struct family *family; /* NULL: the kernel has a width */
};

/* --- one call each --- */

/* Hyperparameters of a step in the middle of a run. */
static const struct tt_adamw_numbers adamw_numbers = {.decoupled = true,
                                                      .clip = 0.5F,
                                                      .decay = 0.99F,
                                                      .mix1 = 0.1F,
                                                      .beta2 = 0.95F,
                                                      .mix2 = 0.05F,
                                                      .step_size = 1e-5F,
                                                      .root_correction2 = 1.0F,
                                                      .eps = 1e-8F};

static void run_adamw(const struct work *w)
{
    w->table->adamw(&adamw_numbers, w->x[0], w->x[1], w->x[2], w->x[3], w->n);
}

static void run_bf16_round(const struct work *w)
{
    w->table->bf16_round((tt_bf16 *)(void *)w->x[1], w->x[0], w->n);
}

static void run_bf16_widen(const struct work *w)
{
    w->table->bf16_widen(w->x[1], (const tt_bf16 *)(const void *)w->x[0], w->n);
}

static void run_squares(const struct work *w)
{
    double sum = 0.0;

    w->table->squares(&sum, w->x[0], w->n);
}

static void run_exp(const struct work *w)
{
    w->table->exp(w->x[1], w->x[0], w->n);
}

static void run_cross_entropy(const struct work *w)
{
    w->table->cross_entropy(w->x[1], NULL, w->x[0], w->labels, w->rows, w->width, 0.0F);
}

static void run_cross_entropy_grad(const struct work *w)
{
    w->table->cross_entropy_grad(w->x[1], NULL, w->x[0], w->labels, w->rows, w->width, 1e-3F, 0.0F);
}

static void run_softmax_sum(const struct work *w)
{
    for (int64_t r = 0; r < w->rows; r++)
        w->table->softmax_sum(w->x[1] + r, w->x[2] + r, w->x[0] + r * w->width, w->width);
}

static void run_softmax_grad(const struct work *w)
{
    for (int64_t r = 0; r < w->rows; r++)
        w->table->softmax_grad(w->x[1] + r * w->width, w->x[0] + r * w->width, w->width, 3.0F, 1e-3F, 0.0F);
}

static void run_soft_cap(const struct work *w)
{
    w->table->soft_cap(w->x[1], w->x[0], w->n, 30.0F);
}

static void run_gemv(const struct work *w)
{
    w->table->gemv(w->x[2], w->x[0], w->x[1], w->rows, w->width);
}

static struct tt_packed_rows packed_rows(const struct work *w)
{
    return (struct tt_packed_rows){TT_PACKING_Q8_0, w->x[0], w->rows, w->width, 1, w->rows};
}

static void run_gemv_packed(const struct work *w)
{
    const struct tt_packed_rows rows = packed_rows(w);

    w->table->gemv_packed(w->x[2], &rows, w->x[1]);
}

static void run_unpack(const struct work *w)
{
    w->table->unpack(w->x[1], TT_PACKING_Q8_0, w->x[0], w->n, 0, w->n);
}

static void run_layernorm_fwd(const struct work *w)
{
    w->table->layernorm_fwd(w->x[2], w->x[4], w->x[3], w->x[0], w->x[1], w->x[5], w->rows, w->width, 1e-5F);
}

static void run_layernorm_bwd(const struct work *w)
{
    const struct tt_layernorm_grads of = {.dx = w->x[2],
                                          .dw = w->x[4],
                                          .db = w->x[4] + w->width,
                                          .dy = w->x[5],
                                          .x = w->x[0],
                                          .w = w->x[1],
                                          .mean = w->x[3],
                                          .rstd = w->x[3] + w->rows};

    w->table->layernorm_bwd(&of, w->rows, w->width);
}

/* One expert each, the same for several rows. */
static void run_mix_rows(const struct work *w)
{
    w->table->mix_rows(w->x[1], NULL, w->x[0], w->labels, w->x[3], w->rows, 1, w->width);
}

static void run_mix_rows_bwd(const struct work *w)
{
    w->table->mix_rows_bwd(w->x[1], w->x[4], w->x[2], w->x[0], w->labels, w->x[3], w->rows, 1, w->width);
}

static void run_rmsnorm_fwd(const struct work *w)
{
    w->table->rmsnorm_fwd(w->x[2], w->x[3], w->x[0], w->x[1], 0.0F, w->rows, w->width, 1e-5F);
}

static void run_rmsnorm_bwd(const struct work *w)
{
    w->table->rmsnorm_bwd(w->x[2], w->x[4], NULL, w->x[5], w->x[0], w->x[1], 0.0F, w->x[3], w->rows, w->width);
}

/* The arrays in bfloat16. */
static tt_bf16 *half(const struct work *w, int i)
{
    return (tt_bf16 *)(void *)w->x[i];
}

/* The inputs are the first arrays, the outputs the next. */
#define RUN(kernel, n_in, n_out, call)                                \
    static void run_##kernel(const struct work *w)                    \
    {                                                                 \
        float *const *in = w->x, *const *out = w->x + (n_in);         \
        const int64_t n = w->n;                                       \
                                                                      \
        w->table->kernel call;                                        \
    }                                                                 \
    static void run_##kernel##_bf16(const struct work *w)             \
    {                                                                 \
        tt_bf16 *x[ARRAYS], *const *in = x, *const *out = x + (n_in); \
        const int64_t n = w->n;                                       \
                                                                      \
        for (int i = 0; i < ARRAYS; i++)                              \
            x[i] = half(w, i);                                        \
        w->table->kernel##_bf16 call;                                 \
    }
CHECK_ELEMENTWISE(RUN)

static void run_adamw_bf16(const struct work *w)
{
    static const struct tt_adamw_rounding rounding = {1, 2, 3};

    w->table->adamw_bf16(&adamw_numbers, &rounding, half(w, 0), w->x[1], half(w, 2), half(w, 3), w->n);
}

/* x[2] has the codes of both moments, x[3] the largest magnitudes. */
static struct tt_moment_blocks blocks_of(const struct work *w)
{
    return (struct tt_moment_blocks){.code = {(uint8_t *)w->x[2], (uint8_t *)w->x[2] + w->n},
                                     .largest = {w->x[3], w->x[3] + w->n / 2},
                                     .map = {tt_dynamic_map(true), tt_dynamic_map(false)}};
}

static void run_adamw_8bit(const struct work *w)
{
    const struct tt_moment_blocks moments = blocks_of(w);

    w->table->adamw_8bit(&adamw_numbers, w->x[0], w->x[1], &moments, w->n);
}

static void run_adamw_8bit_bf16(const struct work *w)
{
    static const struct tt_adamw_rounding rounding = {1, 2, 3};
    const struct tt_moment_blocks moments = blocks_of(w);

    w->table->adamw_8bit_bf16(&adamw_numbers, &rounding, half(w, 0), w->x[1], &moments, w->n);
}

static void run_cross_entropy_grad_bf16(const struct work *w)
{
    w->table->cross_entropy_grad_bf16(w->x[1], NULL, w->x[0], w->labels, w->rows, w->width, 1e-3F, 0.0F);
}

static void run_softmax_grad_bf16(const struct work *w)
{
    for (int64_t r = 0; r < w->rows; r++)
        w->table->softmax_grad_bf16(half(w, 1) + r * w->width, w->x[0] + r * w->width, w->width, 3.0F, 1e-3F, 0.0F);
}

static void run_gemv_bf16(const struct work *w)
{
    w->table->gemv_bf16(w->x[2], half(w, 0), half(w, 1), w->rows, w->width);
}

static void run_gemv_packed_bf16(const struct work *w)
{
    const struct tt_packed_rows rows = packed_rows(w);

    w->table->gemv_packed_bf16(w->x[2], &rows, half(w, 1));
}

static void run_unpack_bf16(const struct work *w)
{
    w->table->unpack_bf16(half(w, 1), TT_PACKING_Q8_0, w->x[0], w->n, 0, w->n);
}

static void run_layernorm_fwd_bf16(const struct work *w)
{
    w->table->layernorm_fwd_bf16(half(w, 2), w->x[4], w->x[3], half(w, 0), half(w, 1), half(w, 5), w->rows, w->width,
                                 1e-5F);
}

static void run_layernorm_bwd_bf16(const struct work *w)
{
    const struct tt_layernorm_grads of = {.dx = half(w, 2),
                                          .dw = w->x[4],
                                          .db = w->x[4] + w->width,
                                          .dy = half(w, 5),
                                          .x = half(w, 0),
                                          .w = half(w, 1),
                                          .mean = w->x[3],
                                          .rstd = w->x[3] + w->rows};

    w->table->layernorm_bwd_bf16(&of, w->rows, w->width);
}

static void run_mix_rows_bf16(const struct work *w)
{
    w->table->mix_rows_bf16(half(w, 1), NULL, half(w, 0), w->labels, w->x[3], w->rows, 1, w->width);
}

static void run_mix_rows_bwd_bf16(const struct work *w)
{
    w->table->mix_rows_bwd_bf16(half(w, 1), w->x[4], half(w, 2), half(w, 0), w->labels, w->x[3], w->rows, 1, w->width);
}

static void run_rmsnorm_fwd_bf16(const struct work *w)
{
    w->table->rmsnorm_fwd_bf16(half(w, 2), w->x[3], half(w, 0), half(w, 1), 0.0F, w->rows, w->width, 1e-5F);
}

static void run_rmsnorm_bwd_bf16(const struct work *w)
{
    w->table->rmsnorm_bwd_bf16(half(w, 2), w->x[4], NULL, half(w, 5), half(w, 0), half(w, 1), 0.0F, w->x[3], w->rows,
                               w->width);
}

static void run_dora_fwd(const struct work *w)
{
    w->table->dora_fwd(w->x[2], w->x[0], w->x[1], w->x[3], w->rows, w->width);
}

static void run_dora_fwd_bf16(const struct work *w)
{
    w->table->dora_fwd_bf16(half(w, 2), half(w, 0), half(w, 1), w->x[3], w->rows, w->width);
}

static void run_dora_bwd(const struct work *w)
{
    w->table->dora_bwd(w->x[2], w->x[4], NULL, w->x[5], w->x[0], w->x[1], w->x[3], w->rows, w->width);
}

static void run_dora_bwd_bf16(const struct work *w)
{
    w->table->dora_bwd_bf16(half(w, 2), w->x[4], NULL, half(w, 5), half(w, 0), half(w, 1), w->x[3], w->rows, w->width);
}

/* Each row of x[0] with an adapter of rank 1, whose A is the first row of x[1]. */
static void run_row_squares(const struct work *w)
{
    for (int64_t r = 0; r < w->rows; r++)
        w->table->row_squares(w->x[2] + r, w->x[0] + r * w->width, w->x[1], w->x[3], 1, w->width, w->width);
}

enum { ROPE_HEAD = 64, ROPE_LENGTH = 1024 };

static void run_rope(const struct work *w)
{
    struct tt_rope_shape shape = {
        .seq_len = ROPE_LENGTH, .heads = w->width / ROPE_HEAD, .head_dim = ROPE_HEAD, .inverse = false};

    w->table->rope(w->x[2], w->x[0], w->x[1], &shape, 0, w->rows);
}

static void run_scatter_add(const struct work *w)
{
    w->table->scatter_add(w->x[1], w->x[0], w->labels, w->rows, w->width, w->width);
}

static void run_sum_rows(const struct work *w)
{
    w->table->sum_rows(w->x[1], NULL, w->x[0], w->rows, w->width, w->width);
}

/* n elements of pairs. */
static void run_swiglu_clamped_fwd(const struct work *w)
{
    w->table->swiglu_clamped_fwd(w->x[1], w->x[0], w->n / 2);
}

static void run_swiglu_clamped_bwd(const struct work *w)
{
    w->table->swiglu_clamped_bwd(w->x[2], w->x[1], w->x[0], w->n / 2);
}

static void run_swiglu_clamped_fwd_bf16(const struct work *w)
{
    w->table->swiglu_clamped_fwd_bf16(half(w, 1), half(w, 0), w->n / 2);
}

static void run_swiglu_clamped_bwd_bf16(const struct work *w)
{
    w->table->swiglu_clamped_bwd_bf16(half(w, 2), half(w, 1), half(w, 0), w->n / 2);
}

static void run_rope_bf16(const struct work *w)
{
    struct tt_rope_shape shape = {
        .seq_len = ROPE_LENGTH, .heads = w->width / ROPE_HEAD, .head_dim = ROPE_HEAD, .inverse = false};

    w->table->rope_bf16(half(w, 2), half(w, 0), w->x[1], &shape, 0, w->rows);
}

static void run_scatter_add_bf16(const struct work *w)
{
    w->table->scatter_add_bf16(w->x[1], half(w, 0), w->labels, w->rows, w->width, w->width);
}

static void run_sum_rows_bf16(const struct work *w)
{
    w->table->sum_rows_bf16(w->x[1], NULL, half(w, 0), w->rows, w->width, w->width);
}

/* The query heads of one key/value head. Arrays 0 to 4 are q, k, v, o and dout, array 5 is lse. */
static void run_attention_fwd(const struct work *w)
{
    const struct tt_attention_shape *s = &w->attention;

    for (int64_t h = 0; h < s->heads; h++)
        for (int64_t row = 0; row < s->seq_len; row += TT_ATTENTION_ROWS) {
            int64_t left = s->seq_len - row, q = h * s->head_dim;

            w->table->attention_fwd(w->x[3] + q, w->x[5] + h, w->x[0] + q, w->x[1], w->x[2], s, row,
                                    left < TT_ATTENTION_ROWS ? left : TT_ATTENTION_ROWS, w->scratch);
        }
}

static void run_attention_fwd_bf16(const struct work *w)
{
    const struct tt_attention_shape *s = &w->attention;

    for (int64_t h = 0; h < s->heads; h++)
        for (int64_t row = 0; row < s->seq_len; row += TT_ATTENTION_ROWS) {
            int64_t left = s->seq_len - row, q = h * s->head_dim;

            w->table->attention_fwd_bf16(half(w, 3) + q, w->x[5] + h, half(w, 0) + q, half(w, 1), half(w, 2), s, row,
                                         left < TT_ATTENTION_ROWS ? left : TT_ATTENTION_ROWS, w->scratch);
        }
}

static void run_attention_bwd(const struct work *w)
{
    int64_t half = w->n / 2; /* each gradient follows the array that it belongs to */
    struct tt_attention_grads head = {.dq = w->x[0] + half,
                                      .dk = w->x[1] + half,
                                      .dv = w->x[2] + half,
                                      .dout = w->x[4],
                                      .q = w->x[0],
                                      .k = w->x[1],
                                      .v = w->x[2],
                                      .o = w->x[3],
                                      .lse = w->x[5]};

    w->table->attention_bwd(&head, &w->attention, w->attention.heads, 0, w->attention.seq_len, w->scratch);
}

static void run_attention_bwd_bf16(const struct work *w)
{
    int64_t half_n = w->n / 2; /* each gradient follows the array that it belongs to */
    struct tt_attention_bf16_grads head = {.dq = w->x[0] + half_n,
                                           .dk = w->x[1] + half_n,
                                           .dv = w->x[2] + half_n,
                                           .dout = half(w, 4),
                                           .q = half(w, 0),
                                           .k = half(w, 1),
                                           .v = half(w, 2),
                                           .o = half(w, 3),
                                           .lse = w->x[5]};

    w->table->attention_bwd_bf16(&head, &w->attention, w->attention.heads, 0, w->attention.seq_len, w->scratch);
}

/* One token's query heads over all keys. */
static void run_attention_row(const struct work *w)
{
    w->table->attention_row(w->x[3], w->x[0], w->x[1], w->x[2], &w->attention, w->attention.seq_len, w->scratch);
}

static void run_attention_row_bf16(const struct work *w)
{
    w->table->attention_row_bf16(half(w, 3), half(w, 0), half(w, 1), half(w, 2), &w->attention, w->attention.seq_len,
                                 w->scratch);
}

/* A row is one head. */
static void run_sinks_bwd(const struct work *w)
{
    w->table->sinks_bwd(w->x[2], w->x[0], w->x[1], w->x[3], w->x[4], w->rows, 1, w->width);
}

static void run_sinks_bwd_bf16(const struct work *w)
{
    w->table->sinks_bwd_bf16(w->x[2], half(w, 0), half(w, 1), w->x[3], half(w, 4), w->rows, 1, w->width);
}

/* A layer's product y = x W^T with y in bfloat16. */
static void run_bgemm(const struct work *w)
{
    w->table->bgemm(&w->product);
}

static void run_sgemm(const struct work *w)
{
    w->table->sgemm(&w->product);
}

static void prepare_sgemm(struct work *w)
{
    struct tt_matmul *p = &w->product;

    w->scratch = tt_calloc((size_t)tt_matmul_scratch_floats(p), sizeof(float));
    p->a = w->x[1];
    p->b = w->x[2];
    p->c = w->x[3];
    p->scratch = w->scratch;
}

static void prepare_bgemm(struct work *w)
{
    struct tt_matmul *p = &w->product;

    w->scratch = tt_calloc((size_t)tt_matmul_scratch_floats(p), sizeof(float));
    p->a = half(w, 1);
    p->b = half(w, 2);
    p->c = w->x[3];
    p->scratch = w->scratch;
}

/* The backward kernel reads the forward kernel's outputs. */
static void prepare_attention(struct work *w)
{
    int64_t forward = tt_attention_fwd_scratch(&w->attention, false);
    int64_t backward = tt_attention_bwd_scratch(&w->attention, w->attention.seq_len, false);

    w->scratch = tt_calloc((size_t)(forward > backward ? forward : backward) + 16, sizeof(float));
    run_attention_fwd(w);
}

/* --- families of kernels with their own sizes --- */

/* The reference of attention computes every pair again for every element, so it gets a shorter sequence. */
static void choose_attention(struct work *w, char *shape, size_t shape_size)
{
    int64_t length = w->table == kernels_variant(0) ? 64 : 1024;

    w->attention = (struct tt_attention_shape){.seq_len = length, .heads = 3, .kv_heads = 1, .head_dim = 64};
    w->n = 2 * length * w->attention.heads * w->attention.head_dim;
    w->flops = (double)length * (double)(length + 1) * (double)(w->attention.heads * w->attention.head_dim);
    (void)snprintf(shape, shape_size, "seq_len %" PRId64 ", 3 heads of 64 on one kv head", length);
}

static void prepare_attention_bf16(struct work *w)
{
    int64_t forward = tt_attention_fwd_scratch(&w->attention, true);
    int64_t backward = tt_attention_bwd_scratch(&w->attention, w->attention.seq_len, true);

    w->bf16 = true;
    w->scratch = tt_calloc((size_t)(forward > backward ? forward : backward), sizeof(float));
    run_attention_fwd_bf16(w);
}

static void choose_sgemm(struct work *w, char *shape, size_t shape_size)
{
    int64_t m = w->table == kernels_variant(0) ? 16 : 512, width = 768;

    w->product =
        (struct tt_matmul){.trans_b = true, .m = m, .n = width, .k = width, .lda = width, .ldb = width, .ldc = width};
    w->n = width * width;
    w->flops = 2.0 * (double)m * (double)(width * width);
    (void)snprintf(shape, shape_size, "%" PRId64 " x %" PRId64 " x %" PRId64, m, width, width);
}

static void choose_bgemm(struct work *w, char *shape, size_t shape_size)
{
    choose_sgemm(w, shape, shape_size);
    w->product.bf16 = w->product.c_bf16 = true;
    w->bf16 = true;
}

static const struct family attention = {choose_attention, prepare_attention};
static const struct family attention_bf16 = {choose_attention, prepare_attention_bf16};
static const struct family matrices = {choose_sgemm, prepare_sgemm};
static const struct family matrices_bf16 = {choose_bgemm, prepare_bgemm};

/* --- the cases --- */

static const struct bench_case bench_cases[] = {
    {"adamw", run_adamw, 7.0, 0.0, 512, NULL},
    {"adamw_bf16", run_adamw_bf16, 4.0, 0.0, 512, NULL},
    {"adamw_8bit", run_adamw_8bit, 4.0, 0.0, 512, NULL},
    {"adamw_8bit_bf16", run_adamw_8bit_bf16, 3.0, 0.0, 512, NULL},
    {"attention_fwd", run_attention_fwd, 0.0, 2.0, 0, &attention},
    {"attention_fwd_bf16", run_attention_fwd_bf16, 0.0, 2.0, 0, &attention_bf16},
    {"attention_bwd", run_attention_bwd, 0.0, 5.0, 0, &attention},
    {"attention_bwd_bf16", run_attention_bwd_bf16, 0.0, 5.0, 0, &attention_bf16},
    /* reads k and v, one head each; n counts three heads */
    {"attention_row", run_attention_row, 1.0 / 3.0, 0.0, 0, &attention},
    {"attention_row_bf16", run_attention_row_bf16, 1.0 / 6.0, 0.0, 0, &attention_bf16},
    {"bgemm", run_bgemm, 0.0, 1.0, 0, &matrices_bf16},
    {"bf16_round", run_bf16_round, 1.5, 0.0, 512, NULL},
    {"bf16_widen", run_bf16_widen, 1.5, 0.0, 512, NULL},
    {"cross_entropy", run_cross_entropy, 1.0, 0.0, 4096, NULL},
    {"cross_entropy_grad", run_cross_entropy_grad, 2.0, 0.0, 4096, NULL},
    {"cross_entropy_grad_bf16", run_cross_entropy_grad_bf16, 1.5, 0.0, 4096, NULL},
    {"exp", run_exp, 2.0, 0.0, 512, NULL},
    {"gemv", run_gemv, 1.0, 0.0, 512, NULL},
    {"gemv_bf16", run_gemv_bf16, 0.5, 0.0, 512, NULL},
    {"gemv_packed", run_gemv_packed, 34.0 / 128.0, 0.0, 512, NULL}, /* q8_0: 34 bytes for 32 elements */
    {"gemv_packed_bf16", run_gemv_packed_bf16, 34.0 / 128.0, 0.0, 512, NULL},
    {"layernorm_fwd", run_layernorm_fwd, 2.0, 0.0, 512, NULL},
    {"layernorm_fwd_bf16", run_layernorm_fwd_bf16, 1.0, 0.0, 512, NULL},
    {"layernorm_bwd", run_layernorm_bwd, 3.0, 0.0, 512, NULL},
    {"layernorm_bwd_bf16", run_layernorm_bwd_bf16, 1.5, 0.0, 512, NULL},
    {"mix_rows", run_mix_rows, 2.0, 0.0, 512, NULL},
    {"mix_rows_bf16", run_mix_rows_bf16, 1.0, 0.0, 512, NULL},
    {"mix_rows_bwd", run_mix_rows_bwd, 3.0, 0.0, 512, NULL},
    {"mix_rows_bwd_bf16", run_mix_rows_bwd_bf16, 1.5, 0.0, 512, NULL},
    {"rmsnorm_fwd", run_rmsnorm_fwd, 2.0, 0.0, 512, NULL},
    {"rmsnorm_fwd_bf16", run_rmsnorm_fwd_bf16, 1.0, 0.0, 512, NULL},
    {"dora_fwd", run_dora_fwd, 2.0, 0.0, 512, NULL},
    {"dora_fwd_bf16", run_dora_fwd_bf16, 1.0, 0.0, 512, NULL},
    {"dora_bwd", run_dora_bwd, 3.0, 0.0, 512, NULL},
    {"dora_bwd_bf16", run_dora_bwd_bf16, 1.5, 0.0, 512, NULL},
    {"row_squares", run_row_squares, 1.0, 0.0, 512, NULL},
    {"rmsnorm_bwd", run_rmsnorm_bwd, 3.0, 0.0, 512, NULL},
    {"rmsnorm_bwd_bf16", run_rmsnorm_bwd_bf16, 1.5, 0.0, 512, NULL},
    {"rope", run_rope, 2.0, 0.0, 512, NULL},
    {"rope_bf16", run_rope_bf16, 1.0, 0.0, 512, NULL},
    {"scatter_add", run_scatter_add, 1.0, 0.0, 512, NULL},
    {"scatter_add_bf16", run_scatter_add_bf16, 0.5, 0.0, 512, NULL},
    {"sgemm", run_sgemm, 0.0, 1.0, 0, &matrices},
    {"sinks_bwd", run_sinks_bwd, 2.0, 0.0, 512, NULL},
    {"sinks_bwd_bf16", run_sinks_bwd_bf16, 1.0, 0.0, 512, NULL},
    {"soft_cap", run_soft_cap, 2.0, 0.0, 512, NULL},
    {"softmax_grad", run_softmax_grad, 2.0, 0.0, 4096, NULL},
    {"softmax_grad_bf16", run_softmax_grad_bf16, 1.5, 0.0, 4096, NULL},
    {"softmax_sum", run_softmax_sum, 1.0, 0.0, 4096, NULL},
    {"squares", run_squares, 1.0, 0.0, 512, NULL},
    {"sum_rows", run_sum_rows, 1.0, 0.0, 512, NULL},
    {"sum_rows_bf16", run_sum_rows_bf16, 0.5, 0.0, 512, NULL},
    {"swiglu_clamped_fwd", run_swiglu_clamped_fwd, 1.5, 0.0, 512, NULL},
    {"swiglu_clamped_fwd_bf16", run_swiglu_clamped_fwd_bf16, 0.75, 0.0, 512, NULL},
    {"swiglu_clamped_bwd", run_swiglu_clamped_bwd, 2.5, 0.0, 512, NULL},
    {"swiglu_clamped_bwd_bf16", run_swiglu_clamped_bwd_bf16, 1.25, 0.0, 512, NULL},
    {"unpack", run_unpack, 1.0 + 34.0 / 128.0, 0.0, 512, NULL}, /* q8_0: 34 bytes for 32 elements */
    {"unpack_bf16", run_unpack_bf16, 0.5 + 34.0 / 128.0, 0.0, 512, NULL},
#define CASE(kernel, n_in, n_out, call)                        \
    {#kernel, run_##kernel, (n_in) + (n_out), 0.0, 512, NULL}, \
        {#kernel "_bf16", run_##kernel##_bf16, ((n_in) + (n_out)) / 2.0, 0.0, 512, NULL},
    CHECK_ELEMENTWISE(CASE)
#undef CASE
};
enum { N_CASES = sizeof bench_cases / sizeof *bench_cases };

/* --- times --- */

int kernel_bench_count(void)
{
    return N_CASES;
}

const char *kernel_bench_name(int i)
{
    return bench_cases[i].kernel;
}

static bool same_code(const char *kernel, const struct tt_kernels *a, const struct tt_kernels *b)
{
#define TT_KERNEL(name, args)       \
    if (strcmp(kernel, #name) == 0) \
        return a->name == b->name;
#include "core/kernels/kernels.def"
#undef TT_KERNEL
    return false;
}

bool kernel_bench_is_own(int i, const struct tt_kernels *variant)
{
    for (int v = 0; kernels_variant(v) != variant; v++)
        if (same_code(bench_cases[i].kernel, variant, kernels_variant(v)))
            return false;
    return true;
}

static void choose_shape(const struct bench_case *c, struct work *w, char *shape, size_t shape_size)
{
    if (c->family) {
        c->family->choose(w, shape, shape_size);
        return;
    }
    w->width = c->width;
    w->rows = w->n / w->width;
    (void)snprintf(shape, shape_size, "%" PRId64 " x %" PRId64, w->rows, w->width);
}

static void fill(struct work *w)
{
    enum { PERIOD = 4096 }; /* divides every n */
    const struct tt_rng rng = tt_rng_make(1, "kernel bench");
    float pattern[PERIOD];
    int32_t label[PERIOD];

    for (int i = 0; i < PERIOD; i++) {
        tt_bf16 value = tt_bf16_from_float((float)(tt_rng_uniform(&rng, (uint64_t)i) * 2.0 - 1.0));
        uint32_t twice = (uint32_t)value << 16 | value; /* normal numbers as floats and as pairs of bfloat16 */

        memcpy(&pattern[i], &twice, sizeof twice);
        label[i] = w->width ? (int32_t)(tt_rng_bits(&rng, (uint64_t)i) % (uint64_t)w->width) : 0;
    }
    w->labels = tt_calloc((size_t)w->n, sizeof *w->labels);
    for (int64_t i = 0; i < w->n; i += PERIOD)
        memcpy(w->labels + i, label, sizeof label);
    for (int a = 0; a < ARRAYS; a++) {
        w->x[a] = tt_calloc((size_t)w->n, sizeof(float));
        for (int64_t i = 0; i < w->n; i += PERIOD)
            memcpy(w->x[a] + i, pattern, sizeof pattern);
    }
    for (int64_t i = 0; i < w->n; i++) /* a second moment is not negative */
        w->x[3][i] = fabsf(w->x[3][i]);
}

static void release(struct work *w)
{
    for (int a = 0; a < ARRAYS; a++)
        tt_free(w->x[a]);
    tt_free(w->labels);
    tt_free(w->scratch);
}

static double time_calls(const struct bench_case *c, const struct work *w, double seconds, int fewest)
{
    enum { MOST = 1000 };
    double times[MOST], start, last;
    int n = 0;

    c->run(w); /* touches the pages of the outputs */
    start = last = tt_clock_sec();
    while (n < fewest || (n < MOST && last - start < seconds)) {
        double now;

        c->run(w);
        now = tt_clock_sec();
        times[n++] = now - last;
        last = now;
    }
    return tt_median(times, n);
}

void kernel_bench_run(int i, const struct tt_kernels *variant, int64_t elements, double seconds, int fewest,
                      struct kernel_time *ret_time)
{
    const struct bench_case *c = &bench_cases[i];
    struct kernel_time time = {.kernel = c->kernel, .variant = variant->name};
    struct work w = {.table = variant, .n = elements};

    choose_shape(c, &w, time.shape, sizeof time.shape);
    fill(&w);
    if (c->family)
        c->family->prepare(&w);
    time.sec = time_calls(c, &w, seconds, fewest);
    time.bytes = c->arrays * sizeof(float) * (double)w.n;
    time.flops = c->products * w.flops;
    time.bf16 = w.bf16;
    release(&w);
    *ret_time = time;
}
