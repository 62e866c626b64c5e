/* SPDX-License-Identifier: MIT
 *
 * HEAD_LOSS: the output projection and the cross-entropy of every token in one op.
 *   in   x (N, D), w (V, D), labels (B, T) I32 in [0, V) or TT_LABEL_IGNORED      out  token_loss (N)
 *
 * HEAD_LOSS_GRAD: the same, and the gradients of sum(token_loss) * inv_valid_tokens in the same pass.
 *   in   the same, acc (V, D) or none
 *   out  token_loss (N), dx (N, D), may take x's memory, dw (V, D) = [acc +] the gradient, may take acc's memory
 *
 * Logits exist for CHUNK tokens at a time, in scratch; they turn into their own gradient in place and are never made
 * twice. The chunks are a function of N only and dw adds them in order. The product for dx has few elements and a long sum
 * over the vocabulary: it is cut into slices of the vocabulary, in scratch, which are added in order; so both products of
 * the gradient keep a whole team busy, and dx can take x's memory although dw's product reads x at the same time.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/blas.h"
#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum {
    CHUNK = 512,
    TILE_ROWS = 8,
    DX_TILES_WANTED = 16,
    SLICE_MIN = 2048 /* of the vocabulary */
};

/* The row's logsumexp; also its largest logit. */
static double logsumexp(const float *logits, int64_t vocab)
{
    double largest = -INFINITY, sum = 0.0;

    for (int64_t v = 0; v < vocab; v++)
        largest = fmax(largest, (double)logits[v]);
    for (int64_t v = 0; v < vocab; v++)
        sum += exp((double)logits[v] - largest);
    return largest + log(sum);
}

void tt_cross_entropy_ref(float *loss, const float *logits, const int32_t *labels, int64_t rows, int64_t vocab)
{
    for (int64_t r = 0; r < rows; r++, logits += vocab)
        loss[r] = labels[r] == TT_LABEL_IGNORED ? 0.0F : (float)(logsumexp(logits, vocab) - (double)logits[labels[r]]);
}

void tt_cross_entropy_grad_ref(float *loss, float *logits, const int32_t *labels, int64_t rows, int64_t vocab,
                               float scale)
{
    tt_cross_entropy_ref(loss, logits, labels, rows, vocab);
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        double lse = logsumexp(logits, vocab);

        for (int64_t v = 0; v < vocab; v++) {
            double p = exp((double)logits[v] - lse) - (v == labels[r] ? 1.0 : 0.0);

            logits[v] = labels[r] == TT_LABEL_IGNORED ? 0.0F : (float)((double)scale * p);
        }
    }
}

static int check(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *x = &graph->values[node->in[0]], *w = &graph->values[node->in[1]];
    const struct tt_value *labels = &graph->values[node->in[2]];

    if (tt_value_width(x) == tt_value_width(w) && tt_value_elements(labels) == tt_value_rows(x) &&
        tt_op_acc_fits(graph, node, 3, tt_value_rows(w), tt_value_width(w)))
        return 0;
    return tt_op_mismatch(graph, node, "x (N, D), w (V, D), labels (B, T) I32[, acc (V, D)]");
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    int64_t rows = tt_value_rows(&graph->values[node->in[0]]);
    int rc = 0;

    TT_TRY(check(graph, node));
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, 1, &rows));
out:
    return rc;
}

static int infer_grad(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]], w = graph->values[node->in[1]];
    int64_t rows = tt_value_rows(&x);
    int rc = 0;

    TT_TRY(check(graph, node));
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, 1, &rows));
    TT_TRY(tt_op_output(graph, node, 1, name, "dx", x.ndim, x.shape));
    TT_TRY(tt_op_output(graph, node, 2, name, "dw", w.ndim, w.shape));
out:
    return rc;
}

/* Exchanges the evaluating op for the training one, which yields the gradients of x and w too. */
static int backward_of_loss(struct tt_graph *graph, int node, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    struct tt_node with_grads = forward;
    int rc = 0;

    with_grads.op = TT_OP_HEAD_LOSS_GRAD;
    with_grads.in[with_grads.n_in++] = TT_NONE; /* no earlier gradient of w to add to */
    for (int k = 1; k < 3; k++) {
        with_grads.out[with_grads.n_out++] = tt_graph_grad_value(graph, forward.in[k - 1]);
        graph->values[with_grads.out[k]].producer = node;
    }
    TT_TRY(tt_op_infer(graph, &with_grads, ""));
    graph->nodes[node] = with_grads;
    for (int k = 1; k < 3; k++)
        TT_TRY(tt_rule_add(graph, &forward, k - 1, with_grads.out[k], grad_in));
out:
    return rc;
}

struct chunk {
    const struct tt_call *call;
    int64_t begin, n;
    int64_t width, vocab;
    bool grad;
    int64_t slices;
};

static int64_t chunk_rows(int64_t rows)
{
    return rows < CHUNK ? rows : CHUNK;
}

/* The slices of the vocabulary that dx is summed in; of the shape of whole chunks, so that a short one has no more. */
static int64_t slices_of(int64_t rows, int64_t width, int64_t vocab)
{
    int64_t slices = 1;

    while (slices * tt_gemm_tiles(chunk_rows(rows), width, vocab / slices) < DX_TILES_WANTED &&
           vocab / (2 * slices) >= SLICE_MIN)
        slices *= 2;
    return slices;
}

static void loss_tile(void *arg, int64_t tile, int worker)
{
    const struct chunk *chunk = arg;
    const struct tt_call *call = chunk->call;
    struct tt_range part = tt_tile_range(chunk->n, TILE_ROWS, tile);
    float *logits = (float *)call->scratch + part.begin * chunk->vocab;
    float *loss = (float *)call->out[0] + chunk->begin + part.begin;
    const int32_t *labels = (const int32_t *)call->in[2] + chunk->begin + part.begin;

    (void)worker;
    if (chunk->grad) {
        tt_kernels()->cross_entropy_grad(loss, logits, labels, part.n, chunk->vocab, call->scalars->inv_valid_tokens);
    } else {
        tt_kernels()->cross_entropy(loss, logits, labels, part.n, chunk->vocab);
    }
}

static void chunk_loss(struct chunk *chunk)
{
    const struct tt_call *call = chunk->call;

    tt_gemm(call->team, &(struct tt_gemm){.trans_b = true,
                                          .m = chunk->n,
                                          .n = chunk->vocab,
                                          .k = chunk->width,
                                          .a = (const float *)call->in[0] + chunk->begin * chunk->width,
                                          .lda = chunk->width,
                                          .b = call->in[1],
                                          .ldb = chunk->width,
                                          .c = call->scratch,
                                          .ldc = chunk->vocab});
    tt_team_run(call->team, tt_tiles(chunk->n, TILE_ROWS), loss_tile, chunk);
}

static struct tt_gemm dw_product(const struct chunk *chunk)
{
    const struct tt_call *call = chunk->call;

    return (struct tt_gemm){.trans_a = true,
                            .m = chunk->vocab,
                            .n = chunk->width,
                            .k = chunk->n,
                            .a = call->scratch,
                            .lda = chunk->vocab,
                            .b = (const float *)call->in[0] + chunk->begin * chunk->width,
                            .ldb = chunk->width,
                            .acc = chunk->begin > 0 ? call->out[2] : call->in[3],
                            .c = call->out[2],
                            .ldc = chunk->width};
}

/* Slice i of dx, in scratch behind the logits. */
static float *dx_slice(const struct chunk *chunk, int64_t i)
{
    int64_t rows = chunk_rows(tt_value_rows(tt_call_in(chunk->call, 0)));

    return (float *)chunk->call->scratch + rows * (chunk->vocab + i * chunk->width);
}

static struct tt_gemm dx_product(const struct chunk *chunk, int64_t i)
{
    int64_t begin = chunk->vocab * i / chunk->slices, end = chunk->vocab * (i + 1) / chunk->slices;

    return (struct tt_gemm){.m = chunk->n,
                            .n = chunk->width,
                            .k = end - begin,
                            .a = (const float *)chunk->call->scratch + begin,
                            .lda = chunk->vocab,
                            .b = (const float *)chunk->call->in[1] + begin * chunk->width,
                            .ldb = chunk->width,
                            .c = dx_slice(chunk, i),
                            .ldc = chunk->width};
}

static int64_t dx_tiles(const struct chunk *chunk)
{
    return tt_gemm_tiles(chunk->n, chunk->width, chunk->vocab / chunk->slices);
}

static int64_t dw_tiles(const struct chunk *chunk)
{
    return tt_gemm_tiles(chunk->vocab, chunk->width, chunk->n);
}

/* The tiles of dx, which are longer, then those of dw. */
static void grad_tile(void *arg, int64_t tile, int worker)
{
    const struct chunk *chunk = arg;
    int64_t of_slice = dx_tiles(chunk), of_dx = of_slice * chunk->slices;
    struct tt_gemm gemm = tile < of_dx ? dx_product(chunk, tile / of_slice) : dw_product(chunk);

    (void)worker;
    if (tile < of_dx) {
        tt_gemm_tile(&gemm, tile % of_slice, of_slice);
    } else {
        tt_gemm_tile(&gemm, tile - of_dx, dw_tiles(chunk));
    }
}

static void dx_sum_tile(void *arg, int64_t tile, int worker)
{
    const struct chunk *chunk = arg;
    struct tt_range part = tt_tile_range(chunk->n, TILE_ROWS, tile);
    int64_t at = part.begin * chunk->width, n = part.n * chunk->width;
    float *dx = (float *)chunk->call->out[1] + chunk->begin * chunk->width + at;

    (void)worker;
    memcpy(dx, dx_slice(chunk, 0) + at, (size_t)n * sizeof *dx);
    for (int64_t i = 1; i < chunk->slices; i++)
        tt_kernels()->add(dx, dx, dx_slice(chunk, i) + at, n);
}

static void chunk_grads(struct chunk *chunk)
{
    struct tt_team *team = chunk->call->team;

    tt_team_run(team, dx_tiles(chunk) * chunk->slices + dw_tiles(chunk), grad_tile, chunk);
    tt_team_run(team, tt_tiles(chunk->n, TILE_ROWS), dx_sum_tile, chunk);
}

static void run(const struct tt_call *call)
{
    const struct tt_value *x = tt_call_in(call, 0);
    struct chunk chunk = {
        .call = call,
        .width = tt_value_width(x),
        .vocab = tt_value_rows(tt_call_in(call, 1)),
        .grad = call->node->op == TT_OP_HEAD_LOSS_GRAD,
    };

    chunk.slices = slices_of(tt_value_rows(x), chunk.width, chunk.vocab);
    for (int64_t i = 0; i < tt_tiles(tt_value_rows(x), CHUNK); i++) {
        struct tt_range part = tt_tile_range(tt_value_rows(x), CHUNK, i);

        chunk.begin = part.begin;
        chunk.n = part.n;
        chunk_loss(&chunk);
        if (chunk.grad)
            chunk_grads(&chunk);
    }
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    const struct tt_value *x = &graph->values[node->in[0]];
    int64_t rows = tt_value_rows(x), width = tt_value_width(x), vocab = tt_value_rows(&graph->values[node->in[1]]);
    int64_t slices = node->op == TT_OP_HEAD_LOSS_GRAD ? slices_of(rows, width, vocab) : 0;

    (void)threads;
    return chunk_rows(rows) * (vocab + slices * width) * (int64_t)sizeof(float);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_value *x = &graph->values[node->in[0]], *w = &graph->values[node->in[1]];
    double products = node->op == TT_OP_HEAD_LOSS ? 1.0 : 3.0;

    ret_cost->flops = products * 2.0 * (double)tt_value_rows(x) * (double)tt_value_elements(w);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_head_loss = {
    .name = "head_loss",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32),
    .part = TT_PART_HEAD,
    .infer = infer,
    .backward_of_loss = backward_of_loss,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
};

const struct tt_op_row tt_op_head_loss_grad = {
    .name = "head_loss_grad",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32},
    .out = {TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32),
    .part = TT_PART_HEAD,
    .infer = infer_grad,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
    .alias = {0, 1, 4},
};
