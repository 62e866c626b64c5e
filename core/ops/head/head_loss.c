/* SPDX-License-Identifier: MIT
 *
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
 * tree over the grains. If V has grains, tt_graph_phase_head replaces the node (core/graph/phases.h): here the softmax
 * is over the local rows of w.
 *   attr rows (N), out (V), z_loss
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/math/tree.h"
#include "core/ops/grains.h"
#include "core/ops/head/head.h"

enum { TILE_ELEMENTS = 16384, LINE = 16 /* floats of a cache line */ };

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

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
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

    TT_TRY(infer(graph, node, name));
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

static void run(const struct tt_call *call)
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

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
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
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
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
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .part = TT_PART_HEAD,
    .infer = infer_grad,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
    .alias = {0, 1, 4},
};
