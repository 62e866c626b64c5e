/* SPDX-License-Identifier: MIT
 *
 * One case per kernel: its arrays, how much it moves or computes, and one call.
 */
#include "core/kernels/kernel_cases.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/base/mem.h"
#include "core/math/bf16.h"

/* --- one call each --- */

static void run_add(const struct tt_bench_work *w)
{
    w->table->add(w->x[2], w->x[0], w->x[1], w->n);
}

/* The numbers of a step in the middle of a run. */
static const struct tt_adamw_numbers adamw_numbers = {.decoupled = true,
                                                      .clip = 0.5F,
                                                      .decay = 0.99F,
                                                      .mix1 = 0.1F,
                                                      .beta2 = 0.95F,
                                                      .mix2 = 0.05F,
                                                      .step_size = 1e-5F,
                                                      .root_correction2 = 1.0F,
                                                      .eps = 1e-8F};

static void run_adamw(const struct tt_bench_work *w)
{
    w->table->adamw(&adamw_numbers, w->x[0], w->x[1], w->x[2], w->x[3], w->n);
}

static void run_bf16_round(const struct tt_bench_work *w)
{
    w->table->bf16_round((tt_bf16 *)(void *)w->x[1], w->x[0], w->n);
}

static void run_bf16_widen(const struct tt_bench_work *w)
{
    w->table->bf16_widen(w->x[1], (const tt_bf16 *)(const void *)w->x[0], w->n);
}

static void run_squares(const struct tt_bench_work *w)
{
    double sum = 0.0;

    w->table->squares(&sum, w->x[0], w->n);
}

static void run_exp(const struct tt_bench_work *w)
{
    w->table->exp(w->x[1], w->x[0], w->n);
}

static void run_cross_entropy(const struct tt_bench_work *w)
{
    w->table->cross_entropy(w->x[1], NULL, w->x[0], w->labels, w->rows, w->width, 0.0F);
}

static void run_cross_entropy_grad(const struct tt_bench_work *w)
{
    w->table->cross_entropy_grad(w->x[1], NULL, w->x[0], w->labels, w->rows, w->width, 1e-3F, 0.0F);
}

static void run_softmax_sum(const struct tt_bench_work *w)
{
    for (int64_t r = 0; r < w->rows; r++)
        w->table->softmax_sum(w->x[1] + r, w->x[2] + r, w->x[0] + r * w->width, w->width);
}

static void run_softmax_grad(const struct tt_bench_work *w)
{
    for (int64_t r = 0; r < w->rows; r++)
        w->table->softmax_grad(w->x[1] + r * w->width, w->x[0] + r * w->width, w->width, 3.0F, 1e-3F);
}

static void run_gelu_fwd(const struct tt_bench_work *w)
{
    w->table->gelu_fwd(w->x[1], w->x[0], w->n);
}

static void run_gelu_bwd(const struct tt_bench_work *w)
{
    w->table->gelu_bwd(w->x[2], w->x[1], w->x[0], w->n);
}

static void run_gemv(const struct tt_bench_work *w)
{
    w->table->gemv(w->x[2], w->x[0], w->x[1], w->rows, w->width);
}

static void run_layernorm_fwd(const struct tt_bench_work *w)
{
    w->table->layernorm_fwd(w->x[2], w->x[4], w->x[3], w->x[0], w->x[1], w->x[5], w->rows, w->width, 1e-5F);
}

static void run_layernorm_bwd(const struct tt_bench_work *w)
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
static void run_mix_rows(const struct tt_bench_work *w)
{
    w->table->mix_rows(w->x[1], NULL, w->x[0], w->labels, w->x[3], w->rows, 1, w->width);
}

static void run_mix_rows_bwd(const struct tt_bench_work *w)
{
    w->table->mix_rows_bwd(w->x[1], w->x[4], w->x[2], w->x[0], w->labels, w->x[3], w->rows, 1, w->width);
}

static void run_rmsnorm_fwd(const struct tt_bench_work *w)
{
    w->table->rmsnorm_fwd(w->x[2], w->x[3], w->x[0], w->x[1], w->rows, w->width, 1e-5F);
}

static void run_rmsnorm_bwd(const struct tt_bench_work *w)
{
    w->table->rmsnorm_bwd(w->x[2], w->x[4], NULL, w->x[5], w->x[0], w->x[1], w->x[3], w->rows, w->width);
}

/* The arrays as bfloat16. */
static tt_bf16 *half(const struct tt_bench_work *w, int i)
{
    return (tt_bf16 *)(void *)w->x[i];
}

static void run_adamw_bf16(const struct tt_bench_work *w)
{
    static const struct tt_adamw_rounding rounding = {1, 2, 3};

    w->table->adamw_bf16(&adamw_numbers, &rounding, half(w, 0), w->x[1], half(w, 2), half(w, 3), w->n);
}

static void run_add_bf16(const struct tt_bench_work *w)
{
    w->table->add_bf16(half(w, 2), half(w, 0), half(w, 1), w->n);
}

static void run_cross_entropy_grad_bf16(const struct tt_bench_work *w)
{
    w->table->cross_entropy_grad_bf16(w->x[1], NULL, w->x[0], w->labels, w->rows, w->width, 1e-3F, 0.0F);
}

static void run_softmax_grad_bf16(const struct tt_bench_work *w)
{
    for (int64_t r = 0; r < w->rows; r++)
        w->table->softmax_grad_bf16(half(w, 1) + r * w->width, w->x[0] + r * w->width, w->width, 3.0F, 1e-3F);
}

static void run_gelu_fwd_bf16(const struct tt_bench_work *w)
{
    w->table->gelu_fwd_bf16(half(w, 1), half(w, 0), w->n);
}

static void run_gelu_bwd_bf16(const struct tt_bench_work *w)
{
    w->table->gelu_bwd_bf16(half(w, 2), half(w, 1), half(w, 0), w->n);
}

static void run_gemv_bf16(const struct tt_bench_work *w)
{
    w->table->gemv_bf16(w->x[2], half(w, 0), half(w, 1), w->rows, w->width);
}

static void run_layernorm_fwd_bf16(const struct tt_bench_work *w)
{
    w->table->layernorm_fwd_bf16(half(w, 2), w->x[4], w->x[3], half(w, 0), half(w, 1), half(w, 5), w->rows, w->width,
                                 1e-5F);
}

static void run_layernorm_bwd_bf16(const struct tt_bench_work *w)
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

static void run_mix_rows_bf16(const struct tt_bench_work *w)
{
    w->table->mix_rows_bf16(half(w, 1), NULL, half(w, 0), w->labels, w->x[3], w->rows, 1, w->width);
}

static void run_mix_rows_bwd_bf16(const struct tt_bench_work *w)
{
    w->table->mix_rows_bwd_bf16(half(w, 1), w->x[4], half(w, 2), half(w, 0), w->labels, w->x[3], w->rows, 1, w->width);
}

static void run_rmsnorm_fwd_bf16(const struct tt_bench_work *w)
{
    w->table->rmsnorm_fwd_bf16(half(w, 2), w->x[3], half(w, 0), half(w, 1), w->rows, w->width, 1e-5F);
}

static void run_rmsnorm_bwd_bf16(const struct tt_bench_work *w)
{
    w->table->rmsnorm_bwd_bf16(half(w, 2), w->x[4], NULL, half(w, 5), half(w, 0), half(w, 1), w->x[3], w->rows,
                               w->width);
}

enum { ROPE_HEAD = 64, ROPE_LENGTH = 1024 };

static void run_rope(const struct tt_bench_work *w)
{
    struct tt_rope_shape shape = {
        .seq_len = ROPE_LENGTH, .heads = w->width / ROPE_HEAD, .head_dim = ROPE_HEAD, .inverse = false};

    w->table->rope(w->x[2], w->x[0], w->x[1], &shape, 0, w->rows);
}

static void run_scale(const struct tt_bench_work *w)
{
    w->table->scale(w->x[1], w->x[0], 0.5F, w->n);
}

static void run_scale_bf16(const struct tt_bench_work *w)
{
    w->table->scale_bf16(half(w, 1), half(w, 0), 0.5F, w->n);
}

static void run_scatter_add(const struct tt_bench_work *w)
{
    w->table->scatter_add(w->x[1], w->x[0], w->labels, w->rows, w->width, w->width);
}

static void run_sum_rows(const struct tt_bench_work *w)
{
    w->table->sum_rows(w->x[1], NULL, w->x[0], w->rows, w->width, w->width);
}

static void run_swiglu_fwd(const struct tt_bench_work *w)
{
    w->table->swiglu_fwd(w->x[2], w->x[0], w->x[1], w->n);
}

static void run_swiglu_bwd(const struct tt_bench_work *w)
{
    w->table->swiglu_bwd(w->x[3], w->x[4], w->x[2], w->x[0], w->x[1], w->n);
}

/* n elements of pairs. */
static void run_swiglu_clamped_fwd(const struct tt_bench_work *w)
{
    w->table->swiglu_clamped_fwd(w->x[1], w->x[0], w->n / 2);
}

static void run_swiglu_clamped_bwd(const struct tt_bench_work *w)
{
    w->table->swiglu_clamped_bwd(w->x[2], w->x[1], w->x[0], w->n / 2);
}

static void run_swiglu_clamped_fwd_bf16(const struct tt_bench_work *w)
{
    w->table->swiglu_clamped_fwd_bf16(half(w, 1), half(w, 0), w->n / 2);
}

static void run_swiglu_clamped_bwd_bf16(const struct tt_bench_work *w)
{
    w->table->swiglu_clamped_bwd_bf16(half(w, 2), half(w, 1), half(w, 0), w->n / 2);
}

static void run_rope_bf16(const struct tt_bench_work *w)
{
    struct tt_rope_shape shape = {
        .seq_len = ROPE_LENGTH, .heads = w->width / ROPE_HEAD, .head_dim = ROPE_HEAD, .inverse = false};

    w->table->rope_bf16(half(w, 2), half(w, 0), w->x[1], &shape, 0, w->rows);
}

static void run_scatter_add_bf16(const struct tt_bench_work *w)
{
    w->table->scatter_add_bf16(w->x[1], half(w, 0), w->labels, w->rows, w->width, w->width);
}

static void run_sum_rows_bf16(const struct tt_bench_work *w)
{
    w->table->sum_rows_bf16(w->x[1], NULL, half(w, 0), w->rows, w->width, w->width);
}

static void run_swiglu_fwd_bf16(const struct tt_bench_work *w)
{
    w->table->swiglu_fwd_bf16(half(w, 2), half(w, 0), half(w, 1), w->n);
}

static void run_swiglu_bwd_bf16(const struct tt_bench_work *w)
{
    w->table->swiglu_bwd_bf16(half(w, 3), half(w, 4), half(w, 2), half(w, 0), half(w, 1), w->n);
}

/* The query heads of one key/value head. q, k, v, o, dout and lse are the arrays 0 to 4 and 5. */
static void run_attention_fwd(const struct tt_bench_work *w)
{
    const struct tt_attention_shape *s = &w->attention;

    for (int64_t h = 0; h < s->heads; h++)
        for (int64_t row = 0; row < s->seq_len; row += TT_ATTENTION_ROWS) {
            int64_t left = s->seq_len - row, q = h * s->head_dim;

            w->table->attention_fwd(w->x[3] + q, w->x[5] + h, w->x[0] + q, w->x[1], w->x[2], s, row,
                                    left < TT_ATTENTION_ROWS ? left : TT_ATTENTION_ROWS, w->scratch);
        }
}

static void run_attention_fwd_bf16(const struct tt_bench_work *w)
{
    const struct tt_attention_shape *s = &w->attention;

    for (int64_t h = 0; h < s->heads; h++)
        for (int64_t row = 0; row < s->seq_len; row += TT_ATTENTION_ROWS) {
            int64_t left = s->seq_len - row, q = h * s->head_dim;

            w->table->attention_fwd_bf16(half(w, 3) + q, w->x[5] + h, half(w, 0) + q, half(w, 1), half(w, 2), s, row,
                                         left < TT_ATTENTION_ROWS ? left : TT_ATTENTION_ROWS, w->scratch);
        }
}

static void run_attention_bwd(const struct tt_bench_work *w)
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

static void run_attention_bwd_bf16(const struct tt_bench_work *w)
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
static void run_attention_row(const struct tt_bench_work *w)
{
    w->table->attention_row(w->x[3], w->x[0], w->x[1], w->x[2], &w->attention, w->attention.seq_len, w->scratch);
}

static void run_attention_row_bf16(const struct tt_bench_work *w)
{
    w->table->attention_row_bf16(half(w, 3), half(w, 0), half(w, 1), half(w, 2), &w->attention, w->attention.seq_len,
                                 w->scratch);
}

/* A row is one head. */
static void run_sinks_bwd(const struct tt_bench_work *w)
{
    w->table->sinks_bwd(w->x[2], w->x[0], w->x[1], w->x[3], w->x[4], w->rows, 1, w->width);
}

static void run_sinks_bwd_bf16(const struct tt_bench_work *w)
{
    w->table->sinks_bwd_bf16(w->x[2], half(w, 0), half(w, 1), w->x[3], half(w, 4), w->rows, 1, w->width);
}

/* A layer's product y = x W^T with y in bfloat16. */
static void run_bgemm(const struct tt_bench_work *w)
{
    w->table->bgemm(&w->product);
}

static void run_sgemm(const struct tt_bench_work *w)
{
    w->table->sgemm(&w->product);
}

static void prepare_sgemm(struct tt_bench_work *w)
{
    struct tt_matmul *p = &w->product;

    w->scratch = tt_calloc((size_t)tt_matmul_scratch_floats(p), sizeof(float));
    p->a = w->x[1];
    p->b = w->x[2];
    p->c = w->x[3];
    p->scratch = w->scratch;
}

static void prepare_bgemm(struct tt_bench_work *w)
{
    struct tt_matmul *p = &w->product;

    w->scratch = tt_calloc((size_t)tt_matmul_scratch_floats(p), sizeof(float));
    p->a = half(w, 1);
    p->b = half(w, 2);
    p->c = w->x[3];
    p->scratch = w->scratch;
}

/* The backward kernel reads what the forward one writes. */
static void prepare_attention(struct tt_bench_work *w)
{
    int64_t forward = tt_attention_fwd_scratch(&w->attention);
    int64_t backward = tt_attention_bwd_scratch(&w->attention, w->attention.seq_len);

    w->scratch = tt_calloc((size_t)(forward > backward ? forward : backward) + 16, sizeof(float));
    run_attention_fwd(w);
}

/* --- families of kernels with sizes of their own --- */

/* The reference of attention computes every pair again for every element, so it gets a shorter sequence. */
static void choose_attention(struct tt_bench_work *w, char *shape, size_t shape_size)
{
    int64_t length = w->table == tt_kernels_variant(0) ? 64 : 1024;

    w->attention = (struct tt_attention_shape){.seq_len = length, .heads = 3, .kv_heads = 1, .head_dim = 64};
    w->n = 2 * length * w->attention.heads * w->attention.head_dim;
    w->flops = (double)length * (double)(length + 1) * (double)(w->attention.heads * w->attention.head_dim);
    (void)snprintf(shape, shape_size, "seq_len %" PRId64 ", 3 heads of 64 on one kv head", length);
}

static void prepare_attention_bf16(struct tt_bench_work *w)
{
    int64_t forward = tt_attention_fwd_bf16_scratch(&w->attention);
    int64_t backward = tt_attention_bwd_bf16_scratch(&w->attention, w->attention.seq_len);

    w->bf16 = true;
    w->scratch = tt_calloc((size_t)(forward > backward ? forward : backward), sizeof(float));
    run_attention_fwd_bf16(w);
}

static void choose_sgemm(struct tt_bench_work *w, char *shape, size_t shape_size)
{
    int64_t m = w->table == tt_kernels_variant(0) ? 16 : 512, width = 768;

    w->product =
        (struct tt_matmul){.trans_b = true, .m = m, .n = width, .k = width, .lda = width, .ldb = width, .ldc = width};
    w->n = width * width;
    w->flops = 2.0 * (double)m * (double)(width * width);
    (void)snprintf(shape, shape_size, "%" PRId64 " x %" PRId64 " x %" PRId64, m, width, width);
}

static void choose_bgemm(struct tt_bench_work *w, char *shape, size_t shape_size)
{
    choose_sgemm(w, shape, shape_size);
    w->product.bf16 = w->product.c_bf16 = true;
    w->bf16 = true;
}

static const struct tt_bench_family attention = {choose_attention, prepare_attention};
static const struct tt_bench_family attention_bf16 = {choose_attention, prepare_attention_bf16};
static const struct tt_bench_family matrices = {choose_sgemm, prepare_sgemm};
static const struct tt_bench_family matrices_bf16 = {choose_bgemm, prepare_bgemm};

/* --- the cases --- */

const struct tt_bench_case tt_bench_cases[] = {
    {"add", run_add, 3.0, 0.0, 512, NULL},
    {"add_bf16", run_add_bf16, 1.5, 0.0, 512, NULL},
    {"adamw", run_adamw, 7.0, 0.0, 512, NULL},
    {"adamw_bf16", run_adamw_bf16, 4.0, 0.0, 512, NULL},
    {"attention_fwd", run_attention_fwd, 0.0, 2.0, 0, &attention},
    {"attention_fwd_bf16", run_attention_fwd_bf16, 0.0, 2.0, 0, &attention_bf16},
    {"attention_bwd", run_attention_bwd, 0.0, 5.0, 0, &attention},
    {"attention_bwd_bf16", run_attention_bwd_bf16, 0.0, 5.0, 0, &attention_bf16},
    /* reads k and v, one head each; n is of three heads */
    {"attention_row", run_attention_row, 1.0 / 3.0, 0.0, 0, &attention},
    {"attention_row_bf16", run_attention_row_bf16, 1.0 / 6.0, 0.0, 0, &attention_bf16},
    {"bgemm", run_bgemm, 0.0, 1.0, 0, &matrices_bf16},
    {"bf16_round", run_bf16_round, 1.5, 0.0, 512, NULL},
    {"bf16_widen", run_bf16_widen, 1.5, 0.0, 512, NULL},
    {"cross_entropy", run_cross_entropy, 1.0, 0.0, 4096, NULL},
    {"cross_entropy_grad", run_cross_entropy_grad, 2.0, 0.0, 4096, NULL},
    {"cross_entropy_grad_bf16", run_cross_entropy_grad_bf16, 1.5, 0.0, 4096, NULL},
    {"exp", run_exp, 2.0, 0.0, 512, NULL},
    {"gelu_fwd", run_gelu_fwd, 2.0, 0.0, 512, NULL},
    {"gelu_fwd_bf16", run_gelu_fwd_bf16, 1.0, 0.0, 512, NULL},
    {"gelu_bwd", run_gelu_bwd, 3.0, 0.0, 512, NULL},
    {"gelu_bwd_bf16", run_gelu_bwd_bf16, 1.5, 0.0, 512, NULL},
    {"gemv", run_gemv, 1.0, 0.0, 512, NULL},
    {"gemv_bf16", run_gemv_bf16, 0.5, 0.0, 512, NULL},
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
    {"rmsnorm_bwd", run_rmsnorm_bwd, 3.0, 0.0, 512, NULL},
    {"rmsnorm_bwd_bf16", run_rmsnorm_bwd_bf16, 1.5, 0.0, 512, NULL},
    {"rope", run_rope, 2.0, 0.0, 512, NULL},
    {"rope_bf16", run_rope_bf16, 1.0, 0.0, 512, NULL},
    {"scale", run_scale, 2.0, 0.0, 512, NULL},
    {"scale_bf16", run_scale_bf16, 1.0, 0.0, 512, NULL},
    {"scatter_add", run_scatter_add, 1.0, 0.0, 512, NULL},
    {"scatter_add_bf16", run_scatter_add_bf16, 0.5, 0.0, 512, NULL},
    {"sgemm", run_sgemm, 0.0, 1.0, 0, &matrices},
    {"sinks_bwd", run_sinks_bwd, 2.0, 0.0, 512, NULL},
    {"sinks_bwd_bf16", run_sinks_bwd_bf16, 1.0, 0.0, 512, NULL},
    {"softmax_grad", run_softmax_grad, 2.0, 0.0, 4096, NULL},
    {"softmax_grad_bf16", run_softmax_grad_bf16, 1.5, 0.0, 4096, NULL},
    {"softmax_sum", run_softmax_sum, 1.0, 0.0, 4096, NULL},
    {"squares", run_squares, 1.0, 0.0, 512, NULL},
    {"sum_rows", run_sum_rows, 1.0, 0.0, 512, NULL},
    {"sum_rows_bf16", run_sum_rows_bf16, 0.5, 0.0, 512, NULL},
    {"swiglu_fwd", run_swiglu_fwd, 3.0, 0.0, 512, NULL},
    {"swiglu_fwd_bf16", run_swiglu_fwd_bf16, 1.5, 0.0, 512, NULL},
    {"swiglu_bwd", run_swiglu_bwd, 5.0, 0.0, 512, NULL},
    {"swiglu_bwd_bf16", run_swiglu_bwd_bf16, 2.5, 0.0, 512, NULL},
    {"swiglu_clamped_fwd", run_swiglu_clamped_fwd, 1.5, 0.0, 512, NULL},
    {"swiglu_clamped_fwd_bf16", run_swiglu_clamped_fwd_bf16, 0.75, 0.0, 512, NULL},
    {"swiglu_clamped_bwd", run_swiglu_clamped_bwd, 2.5, 0.0, 512, NULL},
    {"swiglu_clamped_bwd_bf16", run_swiglu_clamped_bwd_bf16, 1.25, 0.0, 512, NULL},
};
const int tt_n_bench_cases = sizeof tt_bench_cases / sizeof *tt_bench_cases;
