/* SPDX-License-Identifier: MIT
 *
 * The products of the output projection.
 */
#include "core/ops/head/head.h"

#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/math/tree.h"
#include "core/ops/rule.h"

enum {
    DX_TILES_WANTED = 16,
    SLICE_MIN = 2048, /* of the vocabulary */
    LINE = 16         /* floats of a cache line */
};

/* --- how the products are cut --- */

/* The products of a chunk of `rows`, without addresses: logits, dw, and dx of a part of the vocabulary. */
static struct tt_matmul logits_product(const struct tt_head *head, int64_t rows)
{
    return (struct tt_matmul){.bf16 = head->bf16,
                              .trans_b = true,
                              .m = rows,
                              .n = head->vocab,
                              .k = head->width,
                              .lda = head->width,
                              .ldb = head->width,
                              .ldc = head->vocab,
                              .n_grain = head->vocab_grain};
}

static struct tt_matmul dw_product(const struct tt_head *head, int64_t rows)
{
    return (struct tt_matmul){.bf16 = head->bf16,
                              .trans_a = true,
                              .m = head->vocab,
                              .n = head->width,
                              .k = rows,
                              .lda = head->grad_stride,
                              .ldb = head->width,
                              .ldc = head->width,
                              .m_grain = head->vocab_grain};
}

static struct tt_matmul dx_product(const struct tt_head *head, int64_t rows, int64_t vocab)
{
    return (struct tt_matmul){.bf16 = head->bf16,
                              .m = rows,
                              .n = head->width,
                              .k = vocab,
                              .lda = head->grad_stride,
                              .ldb = head->width,
                              .ldc = head->row_step};
}

static int64_t vocab_grains(const struct tt_head *head)
{
    return tt_tiles(head->vocab, head->vocab_grain);
}

/* Floats of a row of logits that its gradient fills in bfloat16. */
static int64_t half_row(const struct tt_head *head)
{
    return tt_round_up(tt_div_up(head->vocab, 2), LINE);
}

struct tt_head tt_head_of(const struct tt_graph *graph, const struct tt_node *node, int x, int w, int64_t rows,
                          bool grad)
{
    struct tt_head head = {.bf16 = tt_op_is_bf16(graph, node),
                           .rows = rows,
                           .width = tt_value_width(&graph->values[x]),
                           .vocab = tt_value_rows(&graph->values[w]),
                           .slices = 1};
    struct tt_matmul slice;

    head.vocab_grain = tt_grain_or(&node->attr.out, head.vocab);
    head.grad_stride = head.bf16 ? 2 * head.vocab : head.vocab;
    if (!grad)
        return head;
    head.slice_step = rows * head.width;
    head.row_step = head.width;
    slice = dx_product(&head, rows, head.vocab_grain);
    while (head.slices * tt_matmul_tiles(&slice) < DX_TILES_WANTED &&
           head.vocab_grain / (2 * head.slices) >= SLICE_MIN) {
        head.slices *= 2;
        slice.k = head.vocab_grain / head.slices;
    }
    head.in_rows = head.bf16 && half_row(&head) + vocab_grains(&head) * head.slices * head.width <= head.vocab;
    if (head.in_rows) {
        head.slice_step = head.width;
        head.row_step = head.vocab;
    }
    return head;
}

int64_t tt_head_slice_floats(const struct tt_head *head)
{
    return head->in_rows ? 0 : vocab_grains(head) * head->slices * head->slice_step;
}

int64_t tt_head_worker_floats(const struct tt_head *head)
{
    struct tt_matmul products[3] = {logits_product(head, head->rows), dw_product(head, head->rows),
                                    dx_product(head, head->rows, head->vocab_grain)};
    int64_t most = 0;

    for (int i = 0; i < 3; i++) {
        int64_t floats = tt_matmul_scratch_floats(&products[i]);

        most = floats > most ? floats : most;
    }
    return most;
}

/* --- the products of a chunk --- */

void tt_head_logits(const struct tt_head_chunk *chunk)
{
    struct tt_matmul product = logits_product(chunk->head, chunk->n);

    product.a = chunk->x;
    product.b = chunk->w;
    product.c = chunk->logits;
    product.scratch = chunk->workers;
    tt_matmul(chunk->team, &product);
}

static struct tt_matmul chunk_dw(const struct tt_head_chunk *chunk)
{
    struct tt_matmul product = dw_product(chunk->head, chunk->n);

    product.a = chunk->logits;
    product.b = chunk->x;
    product.acc = chunk->acc;
    product.c = chunk->dw;
    return product;
}

/* Row `row` of slice i of dx: the slices of the first grain of the vocabulary, then of the next. */
static float *dx_slice(const struct tt_head_chunk *chunk, int64_t i, int64_t row)
{
    const struct tt_head *head = chunk->head;
    float *first = head->in_rows ? chunk->logits + half_row(head) : chunk->slices;

    return first + i * head->slice_step + row * head->row_step;
}

static struct tt_matmul chunk_dx(const struct tt_head_chunk *chunk, int64_t i)
{
    const struct tt_head *head = chunk->head;
    int64_t size = head->bf16 ? (int64_t)sizeof(tt_bf16) : (int64_t)sizeof(float);
    struct tt_range grain = tt_tile_range(head->vocab, head->vocab_grain, i / head->slices);
    int64_t begin = grain.begin + grain.n * (i % head->slices) / head->slices;
    int64_t end = grain.begin + grain.n * (i % head->slices + 1) / head->slices;
    struct tt_matmul product = dx_product(head, chunk->n, end - begin);

    product.a = (const char *)chunk->logits + begin * size;
    product.b = (const char *)chunk->w + begin * head->width * size;
    product.c = dx_slice(chunk, i, 0);
    return product;
}

static int64_t dx_slices(const struct tt_head_chunk *chunk)
{
    return vocab_grains(chunk->head) * chunk->head->slices;
}

/* The tiles of all slices. A slice of the last grain may have fewer than others. */
static int64_t dx_tiles(const struct tt_head_chunk *chunk)
{
    int64_t tiles = 0;

    for (int64_t i = 0; i < dx_slices(chunk); i++) {
        struct tt_matmul slice = chunk_dx(chunk, i);

        tiles += tt_matmul_tiles(&slice);
    }
    return tiles;
}

/* The product that has this tile, and the tile's number in it: those of dx, which are longer, then those of dw. */
static struct tt_matmul product_of(const struct tt_head_chunk *chunk, int64_t *tile)
{
    for (int64_t i = 0; i < dx_slices(chunk); i++) {
        struct tt_matmul slice = chunk_dx(chunk, i);
        int64_t tiles = tt_matmul_tiles(&slice);

        if (*tile < tiles)
            return slice;
        *tile -= tiles;
    }
    return chunk_dw(chunk);
}

static void grad_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_head_chunk *chunk = arg;
    struct tt_matmul product = product_of(chunk, &tile);

    /* workers that run another product meanwhile use other parts of the scratch */
    product.scratch =
        chunk->workers + worker * (tt_head_worker_floats(chunk->head) - tt_matmul_scratch_floats(&product));
    tt_matmul_tile(&product, tile, worker);
}

/* Adds the slices of a grain in order, then the grains as a tree. */
static void dx_sum_row(const struct tt_head_chunk *chunk, int64_t row)
{
    int64_t n = chunk->head->width, slices = chunk->head->slices;
    struct tt_tree_walk walk = tt_tree_walk_make(vocab_grains(chunk->head));
    int64_t into, from;

    for (int64_t i = 0; i < dx_slices(chunk); i++) {
        float *grain = dx_slice(chunk, i / slices * slices, row);

        if (i % slices)
            tt_kernels()->add(grain, grain, dx_slice(chunk, i, row), n);
    }
    while (tt_tree_walk_next(&walk, &into, &from))
        tt_kernels()->add(dx_slice(chunk, into * slices, row), dx_slice(chunk, into * slices, row),
                          dx_slice(chunk, from * slices, row), n);
    if (chunk->dx_bf16)
        tt_kernels()->bf16_round((tt_bf16 *)chunk->dx + row * n, dx_slice(chunk, 0, row), n);
    else
        memcpy((float *)chunk->dx + row * n, dx_slice(chunk, 0, row), (size_t)n * sizeof(float));
}

static void dx_sum_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_head_chunk *chunk = arg;
    struct tt_range part = tt_tile_range(chunk->n, TT_HEAD_TILE_ROWS, tile);

    (void)worker;
    for (int64_t row = part.begin; row < part.begin + part.n; row++)
        dx_sum_row(chunk, row);
}

void tt_head_grads(const struct tt_head_chunk *chunk)
{
    struct tt_matmul dw = chunk_dw(chunk);
    int64_t dw_tiles = chunk->dw ? tt_matmul_tiles(&dw) : 0;

    tt_team_run(chunk->team, dx_tiles(chunk) + dw_tiles, grad_tile, (void *)chunk);
    tt_team_run(chunk->team, tt_tiles(chunk->n, TT_HEAD_TILE_ROWS), dx_sum_tile, (void *)chunk);
}

/*
 * HEAD_LOSS: the output projection and the cross-entropy of every token in one op.
 *   in   x (N, D), w (V, D), labels (B, T) I32 in [0, V) or TT_LABEL_IGNORED
 *   out  token_loss (N), or with a z-loss (2, N): the losses, then the z-losses
 *
 * HEAD_LOSS_GRAD: the same, and the gradients of sum(token_loss) * inv_valid_tokens in the same pass.
 *   in   the same, acc (V, D) or none
 *   out  token_loss, dx (N, D), may take x's memory, dw (V, D) = [acc +] the gradient, may take acc's memory; not
 *        if w is constant
 *
 * Logits exist for TT_HEAD_CHUNK tokens at a time, in scratch, as floats whatever the node computes in; they are turned
 * into their gradient in place, in the type of the node, and never computed twice. The chunks depend on N only, and dw
 * adds them in order. The products are those of head.h. If N has grains, each grain has its own chunks, and dw is a
 * tree over the grains. If V has grains, tt_graph_phase_head replaces the node (core/passes/phases.h): here the softmax
 * is over the local rows of w.
 *   attr rows (N), out (V), z_loss
 */

enum { TILE_ELEMENTS = 16384, /* floats of a cache line */ };

static int check(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *x = &graph->values[node->in[0]], *w = &graph->values[node->in[1]];
    const struct tt_value *labels = &graph->values[node->in[2]];

    if (tt_value_width(x) == tt_value_width(w) && tt_grain_fits(&node->attr.rows, tt_value_rows(x)) &&
        tt_grain_fits(&node->attr.out, tt_value_rows(w)) && tt_value_elements(labels) == tt_value_rows(x) &&
        tt_op_acc_fits(graph, node, 3, tt_value_rows(w), tt_value_width(w)))
        return 0;
    return tt_op_mismatch(graph, node, "x (N, D), w (V, D), labels (B, T) I32[, acc (V, D)]");
}

static int loss_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const int64_t shape[2] = {2, tt_value_rows(&graph->values[node->in[0]])};
    bool z = node->attr.z_loss > 0.0F;
    int rc = 0;

    TT_TRY(check(graph, node));
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, z ? 2 : 1, z ? shape : shape + 1));
out:
    return rc;
}

static int infer_grad(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]], w = graph->values[node->in[1]];
    int rc = 0;

    TT_TRY(loss_infer(graph, node, name));
    TT_TRY(tt_op_output(graph, node, 1, name, "dx", x.ndim, x.shape));
    if (tt_rule_wanted(graph, node->in[1]))
        TT_TRY(tt_op_output(graph, node, 2, name, "dw", w.ndim, w.shape));
out:
    return rc;
}

/* Replaces the evaluating op by the training op, which also gives the gradients of x and w. */
static int backward_of_loss(struct tt_graph *graph, int node, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    struct tt_node with_grads = forward;
    int n_out = tt_rule_wanted(graph, forward.in[1]) ? 3 : 2, rc = 0;

    with_grads.op = TT_OP_HEAD_LOSS_GRAD;
    with_grads.in[with_grads.n_in++] = TT_NONE; /* no earlier gradient of w to add to */
    for (int k = 1; k < n_out; k++) {
        with_grads.out[with_grads.n_out++] = tt_graph_grad_value(graph, forward.in[k - 1]);
        graph->values[with_grads.out[k]].producer = node;
        with_grads.attr.partial = with_grads.attr.partial || graph->values[with_grads.out[k]].partial;
    }
    TT_TRY(tt_op_infer(graph, &with_grads, ""));
    graph->nodes[node] = with_grads;
    for (int k = 1; k < n_out; k++)
        TT_TRY(tt_rule_add(graph, &forward, k - 1, with_grads.out[k], grad_in));
out:
    return rc;
}

/* The grains of rows, and the chunks that each of them has. */
struct cuts {
    struct tt_head head;
    int64_t rows, row_grain;
};

static struct cuts cuts_of(const struct tt_graph *graph, const struct tt_node *node)
{
    struct cuts cuts = {.rows = tt_value_rows(&graph->values[node->in[0]])};

    cuts.row_grain = tt_grain_or(&node->attr.rows, cuts.rows);
    cuts.head = tt_head_of(graph, node, node->in[0], node->in[1], tt_head_chunk_rows(graph, node),
                           node->op == TT_OP_HEAD_LOSS_GRAD);
    return cuts;
}

int64_t tt_head_chunk_rows(const struct tt_graph *graph, const struct tt_node *node)
{
    int64_t grain = tt_grain_or(&node->attr.rows, tt_value_rows(&graph->values[node->in[0]]));

    return grain < TT_HEAD_CHUNK ? grain : TT_HEAD_CHUNK;
}

/* Logits of a chunk, the slices of its dx. */
static int64_t chunk_floats(const struct cuts *cuts)
{
    return cuts->head.rows * cuts->head.vocab + tt_head_slice_floats(&cuts->head);
}

/* Entries of the stack of dw's sums over grains of rows, after them; none without dw. */
static int64_t stack_floats(const struct tt_node *node, const struct cuts *cuts)
{
    if (node->op != TT_OP_HEAD_LOSS_GRAD || node->n_out < 3 || !tt_grain_size(&node->attr.rows))
        return 0;
    return tt_tree_stack_depth(tt_tiles(cuts->rows, cuts->row_grain)) * cuts->head.vocab * cuts->head.width;
}

/* The rows [begin, begin + chunk.n). */
struct part {
    const struct tt_call *call;
    const struct cuts *cuts;
    struct tt_head_chunk chunk;
    int64_t begin;
};

static void loss_tile(void *arg, int64_t tile, int worker)
{
    const struct part *p = arg;
    const struct tt_call *call = p->call;
    struct tt_range part = tt_tile_range(p->chunk.n, TT_HEAD_TILE_ROWS, tile);
    int64_t vocab = p->cuts->head.vocab;
    float *logits = p->chunk.logits + part.begin * vocab;
    float *loss = (float *)call->out[0] + p->begin + part.begin;
    float z_loss = call->node->attr.z_loss, *z = z_loss > 0.0F ? loss + p->cuts->rows : NULL;
    const int32_t *labels = (const int32_t *)call->in[2] + p->begin + part.begin;

    (void)worker;
    if (call->node->op == TT_OP_HEAD_LOSS_GRAD) {
        TT_RUN_KERNEL(call, cross_entropy_grad, loss, z, logits, labels, part.n, vocab, call->scalars->inv_valid_tokens,
                      z_loss);
    } else {
        tt_kernels()->cross_entropy(loss, z, logits, labels, part.n, vocab, z_loss);
    }
}

static void run_part(struct part *p)
{
    const struct tt_call *call = p->call;
    struct tt_head_chunk *chunk = &p->chunk;
    int64_t first = p->begin * p->cuts->head.width;

    chunk->x = tt_call_in_at(call, 0, first);
    tt_head_logits(chunk);
    tt_team_run(call->team, tt_tiles(chunk->n, TT_HEAD_TILE_ROWS), loss_tile, p);
    if (call->node->op != TT_OP_HEAD_LOSS_GRAD)
        return;
    chunk->dx = tt_call_out_at(call, 1, first);
    tt_head_grads(chunk);
}

/* Runs the chunks of a grain of rows. dw = [acc +] its gradient. */
static void run_grain(const struct tt_call *call, const struct cuts *cuts, int64_t grain, const float *acc, float *dw)
{
    struct tt_range rows = tt_tile_range(cuts->rows, cuts->row_grain, grain);
    float *scratch = call->scratch;
    struct part p = {.call = call, .cuts = cuts};

    p.chunk = (struct tt_head_chunk){.head = &cuts->head,
                                     .team = call->team,
                                     .w = call->in[1],
                                     .logits = scratch,
                                     .slices = scratch + cuts->head.rows * cuts->head.vocab,
                                     .workers = scratch +
                                                tt_round_up(chunk_floats(cuts) + stack_floats(call->node, cuts), LINE),
                                     .dx_bf16 = call->node->n_out > 1 && tt_call_out(call, 1)->dtype == TT_BF16,
                                     .dw = dw};
    for (int64_t i = 0; i < tt_tiles(rows.n, cuts->head.rows); i++) {
        struct tt_range part = tt_tile_range(rows.n, cuts->head.rows, i);

        p.begin = rows.begin + part.begin;
        p.chunk.n = part.n;
        p.chunk.acc = i ? dw : acc;
        run_part(&p);
    }
}

struct sum {
    float *to;
    const float *a, *b;
    int64_t n;
};

static void sum_tile(void *arg, int64_t tile, int worker)
{
    const struct sum *sum = arg;
    struct tt_range part = tt_tile_range(sum->n, TILE_ELEMENTS, tile);

    (void)worker;
    tt_kernels()->add(sum->to + part.begin, sum->a + part.begin, sum->b + part.begin, part.n);
}

static void add(struct tt_team *team, float *to, const float *a, const float *b, int64_t n)
{
    tt_team_run(team, tt_tiles(n, TILE_ELEMENTS), sum_tile, &(struct sum){to, a, b, n});
}

/* Entry `depth` of the stack of dw's sums over grains of rows, in scratch. */
static float *dw_entry(const struct tt_call *call, const struct cuts *cuts, int depth)
{
    return (float *)call->scratch + chunk_floats(cuts) + depth * cuts->head.vocab * cuts->head.width;
}

/* dw is a tree over the grains of rows. */
static void run_grains(const struct tt_call *call, const struct cuts *cuts)
{
    int64_t grains = tt_tiles(cuts->rows, cuts->row_grain), n = cuts->head.vocab * cuts->head.width;
    int depth = 0;

    for (int64_t g = 0; g < grains; g++) {
        int carries = g + 1 < grains ? tt_tree_carries(g) : depth;

        run_grain(call, cuts, g, NULL, dw_entry(call, cuts, depth++));
        for (; carries > 0; carries--, depth--)
            add(call->team, dw_entry(call, cuts, depth - 2), dw_entry(call, cuts, depth - 2),
                dw_entry(call, cuts, depth - 1), n);
    }
    if (call->in[3])
        add(call->team, call->out[2], call->in[3], dw_entry(call, cuts, 0), n);
    else
        memcpy(call->out[2], dw_entry(call, cuts, 0), (size_t)n * sizeof(float));
}

static void loss_run(const struct tt_call *call)
{
    struct cuts cuts = cuts_of(call->graph, call->node);
    bool grad = call->node->op == TT_OP_HEAD_LOSS_GRAD;

    if (grad && call->out[2] && tt_grain_size(&call->node->attr.rows)) {
        run_grains(call, &cuts);
        return;
    }
    for (int64_t g = 0; g < tt_tiles(cuts.rows, cuts.row_grain); g++)
        run_grain(call, &cuts, g, grad ? call->in[3] : NULL, grad ? call->out[2] : NULL);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct cuts cuts = cuts_of(graph, node);
    int64_t floats = tt_round_up(chunk_floats(&cuts) + stack_floats(node, &cuts), LINE);

    return (floats + threads * tt_head_worker_floats(&cuts.head)) * (int64_t)sizeof(float);
}

static void loss_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_value *x = &graph->values[node->in[0]], *w = &graph->values[node->in[1]];
    double products = node->n_out; /* the logits, dx and dw */

    ret_cost->flops = products * 2.0 * (double)tt_value_rows(x) * (double)tt_value_elements(w);
    ret_cost->bytes = tt_op_bytes(graph, node);
    ret_cost->inner = (double)tt_value_width(w);
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

const struct tt_op_row tt_op_head_loss = {
    .name = "head_loss",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .part = TT_PART_HEAD,
    .infer = loss_infer,
    .backward_of_loss = backward_of_loss,
    .run = loss_run,
    .cost = loss_cost,
    .scratch_bytes = scratch,
};

const struct tt_op_row tt_op_head_loss_grad = {
    .name = "head_loss_grad",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32},
    .out = {TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .part = TT_PART_HEAD,
    .infer = infer_grad,
    .run = loss_run,
    .cost = loss_cost,
    .scratch_bytes = scratch,
    .alias = {0, 1, 4},
};

/*
 * LOGITS: what generation chooses the next token from: the output projection of the last row that is a token.
 *   in   x (N, D), w (V, D)      out  logits (1, V) of row scalars->rows - 1
 *
 * No backward: training has HEAD_LOSS.
 */

static int logits_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]], w = graph->values[node->in[1]];
    int64_t shape[2] = {1, tt_value_rows(&w)};

    if (w.ndim != 2 || tt_value_width(&x) != tt_value_width(&w))
        return tt_op_mismatch(graph, node, "x (N, D), w (V, D)");
    return tt_op_output(graph, node, 0, name, NULL, 2, shape);
}

static void logits_run(const struct tt_call *call)
{
    const struct tt_value *w = tt_call_in(call, 1);
    int64_t width = tt_value_width(w);

    tt_gemv(call->team, &(struct tt_gemv){.bf16 = tt_op_is_bf16(call->graph, call->node),
                                          .w = call->in[1],
                                          .x = tt_call_in_at(call, 0, (call->scalars->rows - 1) * width),
                                          .y = call->out[0],
                                          .rows = tt_value_rows(w),
                                          .width = width});
}

static void logits_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_value *w = &graph->values[node->in[1]];

    ret_cost->flops = 2.0 * (double)tt_value_elements(w);
    ret_cost->bytes = (double)tt_value_bytes(w);
}

const struct tt_op_row tt_op_logits = {
    .name = "logits",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_F32},
    .weight = TT_WEIGHT_MATMUL,
    .infer = logits_infer,
    .run = logits_run,
    .cost = logits_cost,
};

/*
 * ACCUMULATE: y = [acc +] x, a sum of gradients that goes on from an earlier one, which may be absent.
 *   in   x, acc of one shape or none, in F32      out  y of that shape, may take acc's memory
 */

enum { TILE = 16384 };

static int accumulate_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];

    if (!tt_op_acc_fits(graph, node, 1, tt_value_rows(&x), tt_value_width(&x)))
        return tt_op_mismatch(graph, node, "x, acc of one shape");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

static void run_tile(const struct tt_call *call, struct tt_range part)
{
    const float *x = (const float *)call->in[0] + part.begin, *acc = call->in[1];
    float *y = (float *)call->out[0] + part.begin;

    if (acc)
        tt_kernels()->add(y, acc + part.begin, x, part.n);
    else
        memcpy(y, x, (size_t)part.n * sizeof *y);
}

static void accumulate_run(const struct tt_call *call)
{
    tt_op_run_tiles(call, tt_value_elements(tt_call_out(call, 0)), TILE, run_tile);
}

static void accumulate_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = node->in[1] == TT_NONE ? 0.0 : tt_op_elements(graph, node);
    ret_cost->bytes = tt_op_bytes(graph, node);
}

const struct tt_op_row tt_op_accumulate = {
    .name = "accumulate",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32),
    .infer = accumulate_infer,
    .run = accumulate_run,
    .cost = accumulate_cost,
    .alias = {2},
};
