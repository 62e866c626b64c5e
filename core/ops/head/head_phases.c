/* SPDX-License-Identifier: MIT
 *
 * The head in phases, for a vocabulary in grains (attr out), of which each of the peers has as many. A chunk of the
 * tokens has R rows, from attr.first_row on. core/passes/phases.c makes these nodes from HEAD_LOSS and HEAD_LOSS_GRAD.
 *
 * HEAD_LOGITS: the logits of this rank's part of the vocabulary, and what the loss must know of them.
 *   in   x (N, D), w (V of this rank, D), labels (B, T) I32
 *   out  logits (R, V of this rank), sums (R, S): for each grain of this rank the largest logit and the sum of
 *        exp(logit - the largest), then the logit of the label, 0 if it is not of this rank
 *   attr chunk_rows (R)
 *
 * HEAD_CHUNK: the losses of a chunk.
 *   in   sums of all peers (peers R, S), labels, token_loss of the chunks before or none
 *   out  token_loss (N), or with a z-loss (2, N), which may take the earlier one's memory
 *
 * HEAD_CHUNK_GRAD: the same, and the gradients.
 *   in   logits, sums of all peers, x or none, w, labels, token_loss, dx of the chunks before or none, dw of the chunks
 *        before or none. Without x, the rows of dx from this chunk on are those of x.
 *   out  token_loss; dx (N, D), which may take the earlier one's memory; the gradient of the logits, which may take the
 *        logits' memory, in the type of x: in bfloat16 it fills half of each row; dw = [dw +] the gradient, not if w is
 *        constant
 *
 * Rows of token_loss and dx that no chunk has made yet are 0, or x. The sums of all grains are added as a tree.
 *   attr out (V), peers, first_row, z_loss
 */
#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/math/tree.h"
#include "core/ops/head/head.h"
#include "core/ops/rule.h"

enum { LINE = 16 /* floats of a cache line */ };

/* --- the vocabulary --- */

/* The vocabulary in grains: `each` for every peer, of which the last may lack some. */
struct vocabulary {
    int64_t whole, grain, grains, each, peers;
    int64_t begin, n; /* of this rank */
};

static struct vocabulary vocabulary_of(const struct tt_attr *attr)
{
    struct vocabulary v = {.whole = attr->out.whole, .peers = attr->peers.n > 1 ? attr->peers.n : 1};

    if (attr->out.grains < 1 || attr->out.grains % v.peers != 0)
        return v;
    v.grain = tt_div_up(v.whole, attr->out.grains);
    v.grains = tt_div_up(v.whole, v.grain);
    v.each = attr->out.grains / v.peers;
    v.begin = (v.peers > 1 ? attr->peers.index : 0) * v.each * v.grain;
    v.n = v.whole - v.begin < v.each * v.grain ? v.whole - v.begin : v.each * v.grain;
    return v;
}

/* The width of the sums. */
static int64_t sums_width(const struct vocabulary *v)
{
    return 2 * v->each + 1;
}

static int64_t chunk_end(const struct tt_node *node, int64_t rows)
{
    return node->attr.first_row + rows;
}

/* --- HEAD_LOGITS --- */

static int infer_logits(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *x = &graph->values[node->in[0]], *w = &graph->values[node->in[1]];
    struct vocabulary v = vocabulary_of(&node->attr);
    int64_t rows = node->attr.chunk_rows, logits[2] = {rows, v.n}, sums[2] = {rows, sums_width(&v)};
    int rc = 0;

    if (!v.grain || tt_value_rows(w) != v.n || tt_value_width(x) != tt_value_width(w) || rows < 1 ||
        chunk_end(node, rows) > tt_value_rows(x) || tt_value_elements(&graph->values[node->in[2]]) != tt_value_rows(x))
        return tt_op_mismatch(graph, node, "x (N, D), w (grains of V, D), labels (B, T) I32");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, 2, logits));
    TT_TRY(tt_op_output(graph, node, 1, name, "sums", 2, sums));
out:
    return rc;
}

static struct tt_head head_of_logits(const struct tt_graph *graph, const struct tt_node *node)
{
    return tt_head_of(graph, node, node->in[0], node->in[1], node->attr.chunk_rows, false);
}

static void sums_of_row(const struct tt_call *call, const struct vocabulary *v, int64_t row)
{
    const float *logits = (const float *)call->out[0] + row * v->n;
    float *sums = (float *)call->out[1] + row * sums_width(v);
    int64_t label = ((const int32_t *)call->in[2])[call->node->attr.first_row + row] - v->begin;

    for (int64_t g = 0; g < v->each; g++) {
        int64_t begin = g * v->grain, n = v->n - begin < v->grain ? v->n - begin : v->grain;

        sums[2 * g] = -INFINITY;
        sums[2 * g + 1] = 0.0F;
        if (n > 0)
            tt_kernels()->softmax_sum(&sums[2 * g], &sums[2 * g + 1], logits + begin, n);
    }
    sums[2 * v->each] = label >= 0 && label < v->n ? logits[label] : 0.0F;
}

static void sums_tile(const struct tt_call *call, struct tt_range part)
{
    struct vocabulary v = vocabulary_of(&call->node->attr);

    for (int64_t row = part.begin; row < part.begin + part.n; row++)
        sums_of_row(call, &v, row);
}

static void run_logits(const struct tt_call *call)
{
    const struct tt_attr *attr = &call->node->attr;
    struct tt_head head = head_of_logits(call->graph, call->node);

    tt_head_logits(&(struct tt_head_chunk){.head = &head,
                                           .team = call->team,
                                           .n = attr->chunk_rows,
                                           .x = tt_call_in_at(call, 0, attr->first_row * head.width),
                                           .w = call->in[1],
                                           .logits = call->out[0],
                                           .workers = call->scratch});
    tt_op_run_tiles(call, attr->chunk_rows, TT_HEAD_TILE_ROWS, sums_tile);
}

static int64_t scratch_logits(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_head head = head_of_logits(graph, node);

    return threads * tt_head_worker_floats(&head) * (int64_t)sizeof(float);
}

static void cost_logits(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = 2.0 * tt_op_elements(graph, node) * (double)tt_value_width(&graph->values[node->in[1]]);
    ret_cost->bytes = tt_op_bytes(graph, node);
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

/* --- the softmax of a row --- */

struct softmax {
    float largest;
    double sum; /* of exp(logit - the largest) over the whole vocabulary */
    float target;
};

/* The exponential's weight when the sums of two grains are added. */
static double share(double largest, double of_both)
{
    return largest == of_both ? 1.0 : exp(largest - of_both); /* both may be -inf */
}

/* Row r of a chunk of `rows`, from the sums of all peers. */
static struct softmax softmax_of(const struct vocabulary *v, const float *sums, int64_t rows, int64_t r, int64_t label)
{
    double largest[TT_MOST_GRAINS], sum[TT_MOST_GRAINS];
    struct tt_tree_walk walk = tt_tree_walk_make(v->grains);
    int64_t owner = label / v->grain / v->each, into, from;

    for (int64_t g = 0; g < v->grains; g++) {
        const float *of_peer = sums + (g / v->each * rows + r) * sums_width(v);

        largest[g] = (double)of_peer[2 * (g % v->each)];
        sum[g] = (double)of_peer[2 * (g % v->each) + 1];
    }
    while (tt_tree_walk_next(&walk, &into, &from)) {
        double of_both = fmax(largest[into], largest[from]);

        sum[into] = sum[into] * share(largest[into], of_both) + sum[from] * share(largest[from], of_both);
        largest[into] = of_both;
    }
    return (struct softmax){(float)largest[0], sum[0], sums[(owner * rows + r) * sums_width(v) + 2 * v->each]};
}

/* --- HEAD_CHUNK, HEAD_CHUNK_GRAD --- */

/* A run of either op. */
struct run {
    const struct tt_call *call;
    struct vocabulary vocabulary;
    int64_t rows; /* of the chunk */
    const float *sums;
    const int32_t *labels; /* of the chunk */
    float *loss, *z;       /* of the chunk; z may be NULL */
    struct tt_head_chunk chunk;
};

static void loss_of_row(const struct run *run, int64_t r, const struct softmax *s)
{
    double log_sum = log(s->sum), l = log_sum + (double)s->largest;

    run->loss[r] = (float)(log_sum + ((double)s->largest - (double)s->target));
    if (run->z)
        run->z[r] = (float)((double)run->call->node->attr.z_loss * l * l);
}

/* Turns a row of logits into scale * the gradient of the losses, in the type of the node. */
static void grad_of_row(const struct run *run, int64_t r, const struct softmax *s)
{
    const struct vocabulary *v = &run->vocabulary;
    const float *logits = (const float *)run->call->in[0] + r * v->n;
    float scale = run->call->scalars->inv_valid_tokens, z_loss = run->call->node->attr.z_loss, target = 0.0F;
    double z_share = run->z ? 1.0 + 2.0 * (double)z_loss * (log(s->sum) + (double)s->largest) : 1.0;
    float factor = (float)((double)scale / s->sum * z_share), *grad = run->chunk.logits + r * v->n;
    int64_t label = run->labels[r] - v->begin;
    bool has_label = label >= 0 && label < v->n;

    if (has_label)
        tt_kernels()->softmax_grad(&target, logits + label, 1, s->largest, factor);
    target -= scale;
    if (run->chunk.head->bf16) {
        tt_bf16 *half = (tt_bf16 *)(void *)grad;

        tt_kernels()->softmax_grad_bf16(half, logits, v->n, s->largest, factor);
        if (has_label)
            half[label] = tt_bf16_from_float(target);
        memset(half + v->n, 0, (size_t)v->n * sizeof *half);
    } else {
        tt_kernels()->softmax_grad(grad, logits, v->n, s->largest, factor);
        if (has_label)
            grad[label] = target;
    }
}

static void ignore_row(const struct run *run, int64_t r)
{
    run->loss[r] = 0.0F;
    if (run->z)
        run->z[r] = 0.0F;
    if (run->chunk.logits)
        memset(run->chunk.logits + r * run->vocabulary.n, 0, (size_t)run->vocabulary.n * sizeof(float));
}

static void row_tile(void *arg, int64_t tile, int worker)
{
    const struct run *run = arg;
    struct tt_range part = tt_tile_range(run->rows, TT_HEAD_TILE_ROWS, tile);

    (void)worker;
    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        struct softmax s;

        if (run->labels[r] < 0) {
            ignore_row(run, r);
            continue;
        }
        s = softmax_of(&run->vocabulary, run->sums, run->rows, r, run->labels[r]);
        loss_of_row(run, r, &s);
        if (run->chunk.logits)
            grad_of_row(run, r, &s);
    }
}

/* What is in output k before this chunk: the chunks before, in input i or already in place; 0 for none. */
static void continue_from(const struct tt_call *call, int i, int k)
{
    size_t bytes = (size_t)tt_value_bytes(tt_call_out(call, k));

    if (!call->in[i])
        memset(call->out[k], 0, bytes);
    else if (call->in[i] != call->out[k])
        memcpy(call->out[k], call->in[i], bytes);
}

/* sums, labels, loss: the inputs. */
static struct run run_of(const struct tt_call *call, int sums, int labels, int loss)
{
    const struct tt_attr *attr = &call->node->attr;
    struct run run = {.call = call, .vocabulary = vocabulary_of(attr), .sums = call->in[sums]};

    run.rows = tt_value_rows(tt_call_in(call, sums)) / run.vocabulary.peers;
    run.labels = (const int32_t *)call->in[labels] + attr->first_row;
    run.loss = (float *)call->out[0] + attr->first_row;
    if (attr->z_loss > 0.0F)
        run.z = run.loss + tt_value_width(tt_call_out(call, 0));
    continue_from(call, loss, 0);
    return run;
}

static void run_chunk(const struct tt_call *call)
{
    struct run run = run_of(call, 0, 1, 2);

    tt_team_run(call->team, tt_tiles(run.rows, TT_HEAD_TILE_ROWS), row_tile, &run);
}

enum { LOGITS, SUMS, X, W, LABELS, LOSS, DX, DW }; /* inputs of HEAD_CHUNK_GRAD */

static struct tt_head head_of_grad(const struct tt_graph *graph, const struct tt_node *node)
{
    return tt_head_of(graph, node, node->in[DX] == TT_NONE ? node->in[X] : node->in[DX], node->in[W],
                      tt_value_rows(&graph->values[node->in[LOGITS]]), true);
}

static void run_grad(const struct tt_call *call)
{
    struct tt_head head = head_of_grad(call->graph, call->node);
    struct run run = run_of(call, SUMS, LABELS, LOSS);
    int64_t first = call->node->attr.first_row * head.width;

    run.chunk =
        (struct tt_head_chunk){.head = &head,
                               .team = call->team,
                               .n = run.rows,
                               .x = tt_call_in_at(call, call->in[X] ? X : DX, first),
                               .w = call->in[W],
                               .logits = call->out[2],
                               .slices = call->scratch,
                               .workers = (float *)call->scratch + tt_round_up(tt_head_slice_floats(&head), LINE),
                               .dx = tt_call_out_at(call, 1, first),
                               .dx_bf16 = tt_call_out(call, 1)->dtype == TT_BF16,
                               .acc = call->in[DW],
                               .dw = call->node->n_out > 3 ? call->out[3] : NULL};
    continue_from(call, DX, 1);
    tt_team_run(call->team, tt_tiles(run.rows, TT_HEAD_TILE_ROWS), row_tile, &run);
    tt_head_grads(&run.chunk);
}

static int64_t scratch_grad(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_head head = head_of_grad(graph, node);

    return (tt_round_up(tt_head_slice_floats(&head), LINE) + threads * tt_head_worker_floats(&head)) *
           (int64_t)sizeof(float);
}

static bool is_loss(const struct tt_graph *graph, const struct tt_node *node, int i, int64_t tokens)
{
    return node->in[i] == TT_NONE ||
           tt_value_elements(&graph->values[node->in[i]]) == (node->attr.z_loss > 0.0F ? 2 : 1) * tokens;
}

static int infer_loss(struct tt_graph *graph, struct tt_node *node, const char *name, int64_t tokens)
{
    bool z = node->attr.z_loss > 0.0F;
    const int64_t shape[2] = {2, tokens};

    return tt_op_output(graph, node, 0, name, NULL, z ? 2 : 1, z ? shape : shape + 1);
}

static int infer_chunk(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value *sums = &graph->values[node->in[0]];
    struct vocabulary v = vocabulary_of(&node->attr);
    int64_t tokens = tt_value_elements(&graph->values[node->in[1]]);

    if (!v.grain || tt_value_width(sums) != sums_width(&v) || tt_value_rows(sums) % v.peers != 0 ||
        chunk_end(node, tt_value_rows(sums) / v.peers) > tokens || !is_loss(graph, node, 2, tokens))
        return tt_op_mismatch(graph, node, "sums (peers R, S), labels (B, T) I32[, token_loss]");
    return infer_loss(graph, node, name, tokens);
}

static int infer_grad(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value logits = graph->values[node->in[LOGITS]], w = graph->values[node->in[W]];
    const struct tt_value sums = graph->values[node->in[SUMS]];
    int x = node->in[X] == TT_NONE ? node->in[DX] : node->in[X];
    struct vocabulary v = vocabulary_of(&node->attr);
    int64_t tokens = tt_value_elements(&graph->values[node->in[LABELS]]), rows = tt_value_rows(&logits);
    int rc = 0;

    if (x == TT_NONE || !v.grain || tt_value_width(&logits) != v.n || tt_value_rows(&w) != v.n ||
        tt_value_width(&sums) != sums_width(&v) || tt_value_rows(&sums) != rows * v.peers ||
        chunk_end(node, rows) > tokens || tt_value_rows(&graph->values[x]) != tokens ||
        tt_value_width(&graph->values[x]) != tt_value_width(&w) || !is_loss(graph, node, LOSS, tokens) ||
        !tt_op_acc_fits(graph, node, DX, tokens, tt_value_width(&w)) ||
        !tt_op_acc_fits(graph, node, DW, tt_value_rows(&w), tt_value_width(&w)))
        return tt_op_mismatch(graph, node,
                              "logits (R, V), sums (peers R, S)[, x (N, D)], w (V, D), labels (B, T) I32[, token_loss]"
                              "[, dx (N, D)][, dw (V, D)]");
    TT_TRY(infer_loss(graph, node, name, tokens));
    TT_TRY(tt_op_output(graph, node, 1, name, "dx", graph->values[x].ndim, graph->values[x].shape));
    TT_TRY(tt_op_output(graph, node, 2, name, "dlogits", 2, logits.shape));
    if (tt_rule_wanted(graph, node->in[W]))
        TT_TRY(tt_op_output(graph, node, 3, name, "dw", w.ndim, w.shape));
out:
    return rc;
}

/* The products of dx and dw. Of x and dx only the rows of the chunk move. */
static void cost_grad(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_value *logits = &graph->values[node->in[LOGITS]], *w = &graph->values[node->in[W]];

    ret_cost->flops =
        (node->n_out > 3 ? 2.0 : 1.0) * 2.0 * (double)tt_value_elements(logits) * (double)tt_value_width(w);
    ret_cost->bytes = 2.0 * (double)tt_value_bytes(logits) + (double)tt_value_bytes(w) +
                      (node->n_out > 3 ? 2.0 * (double)tt_value_bytes(&graph->values[node->out[3]]) : 0.0);
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

const struct tt_op_row tt_op_head_logits = {
    .name = "head_logits",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_OUT,
    .part = TT_PART_HEAD,
    .infer = infer_logits,
    .run = run_logits,
    .cost = cost_logits,
    .scratch_bytes = scratch_logits,
};

const struct tt_op_row tt_op_head_chunk = {
    .name = "head_chunk",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .cuts = TT_CUT_OUT,
    .computes = TT_COMPUTES(TT_F32),
    .part = TT_PART_HEAD,
    .infer = infer_chunk,
    .run = run_chunk,
    .alias = {3},
};

const struct tt_op_row tt_op_head_chunk_grad = {
    .name = "head_chunk_grad",
    .in = {TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32, TT_TYPE_COMPUTE,
           TT_TYPE_F32},
    .out = {TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_OUT,
    .part = TT_PART_HEAD,
    .infer = infer_grad,
    .run = run_grad,
    .cost = cost_grad,
    .scratch_bytes = scratch_grad,
    .alias = {LOSS + 1, DX + 1, LOGITS + 1, DW + 1},
};
