/* SPDX-License-Identifier: MIT
 *
 * ATTENTION_BWD: computes the probabilities again from lse, tile by tile.
 *   in   do, q, k, v, o, lse, positions or absent      out  dq, dk, dv      (shapes as in attention.c)
 *
 * A task is a key/value head of a sequence with some of its query heads and a range of its keys. dk and dv of the other
 * query heads and dq of the other ranges are partial sums in scratch, added in order at the end. Their number depends
 * on the shape of a grain only: few enough to cost little, and enough to keep 16 threads busy. Sequences in grains are
 * the work of pieces.c.
 */
#include <math.h>

#include "core/kernels/attention.h"
#include "core/kernels/kernels.h"
#include "core/ops/grains.h"
#include "core/ops/rule.h"

enum {
    TASKS_WANTED = 32,
    KEYS_MIN = 256, /* of a range, on average; with fewer, the sums of dq and the packing of q cost too much */
    SUM_ROWS = 64,
};

struct split {
    int64_t rows, sequences;
    int64_t parts; /* of the query heads of a key/value head */
    int64_t heads; /* in each part */
    int64_t ranges;
};

int64_t tt_attention_ranges(int64_t seq_len, int64_t tasks)
{
    int64_t ranges = 1;

    while (tasks * ranges < TASKS_WANTED && seq_len / (2 * ranges) >= KEYS_MIN)
        ranges *= 2;
    return ranges;
}

static struct split split_of(const struct tt_attr *attr, const struct tt_attention_shape *shape, int64_t rows)
{
    int64_t group = shape->heads / shape->kv_heads;
    struct split split = {.rows = rows, .sequences = rows / shape->seq_len, .parts = 1, .ranges = 1};
    int64_t tasks = tt_grain_or(&attr->rows, rows) / shape->seq_len * tt_grain_or(&attr->out, shape->kv_heads);

    while (split.parts < group && (tasks * split.parts < TASKS_WANTED || group % split.parts != 0))
        split.parts++;
    split.heads = group / split.parts;
    split.ranges = tt_attention_ranges(shape->seq_len, tasks * split.parts);
    return split;
}

int64_t tt_attention_range_begin(int64_t seq_len, int64_t i, int64_t n)
{
    double share = 1.0 - sqrt(1.0 - (double)i / (double)n);

    if (i == n)
        return seq_len;
    return (int64_t)(share * (double)seq_len) / TT_ATTENTION_PANEL * TT_ATTENTION_PANEL;
}

static int64_t widest(const struct tt_attention_shape *shape)
{
    int64_t width = tt_attention_value_dim(shape);

    return shape->head_dim > width ? shape->head_dim : width;
}

int64_t tt_attention_longest_range(int64_t seq_len, int64_t n)
{
    int64_t most = 0;

    for (int64_t i = 0; i < n; i++) {
        int64_t keys = tt_attention_range_begin(seq_len, i + 1, n) - tt_attention_range_begin(seq_len, i, n);

        most = keys > most ? keys : most;
    }
    return most;
}

int64_t tt_attention_bwd_scratch(const struct tt_attention_shape *shape, int64_t keys)
{
    int64_t tile = shape->seq_len < TT_ATTENTION_KEYS ? shape->seq_len : TT_ATTENTION_KEYS;
    int64_t portable = tile * 2 * TT_ATTENTION_ROWS, dim = widest(shape), wide = tt_attention_lines(dim);
    int64_t panels = tt_tiles(keys, TT_ATTENTION_PANEL), rows = tt_attention_lines(shape->seq_len);
    int64_t vectors = (rows < TT_ATTENTION_STRIP ? rows : TT_ATTENTION_STRIP) * (2 * dim + wide + 2) +
                      TT_ATTENTION_PANEL * (2 * dim + wide) + INT64_C(2) * TT_ATTENTION_BLOCK * TT_ATTENTION_PANEL +
                      2 * panels * TT_ATTENTION_PANEL * dim;

    return portable > vectors ? portable : vectors;
}

/* With room for widened rows of q, do, k and v, or for pairs of them. */
int64_t tt_attention_bwd_bf16_scratch(const struct tt_attention_shape *shape, int64_t keys)
{
    int64_t tile = shape->seq_len < TT_ATTENTION_KEYS ? shape->seq_len : TT_ATTENTION_KEYS;
    int64_t dim = tt_attention_lines(widest(shape));
    int64_t portable = INT64_C(2) * TT_ATTENTION_ROWS * tile + 2 * (TT_ATTENTION_ROWS + tile) * dim;
    int64_t panels = tt_tiles(keys, TT_ATTENTION_PANEL), rows = tt_attention_lines(shape->seq_len);
    int64_t vectors = (rows < TT_ATTENTION_STRIP ? rows : TT_ATTENTION_STRIP) * (3 * dim + 2) +
                      TT_ATTENTION_PANEL * (4 * dim + INT64_C(4) * TT_ATTENTION_BLOCK + 2 * panels * dim);

    return portable > vectors ? portable : vectors;
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value q = graph->values[node->in[1]], k = graph->values[node->in[2]],
                          v = graph->values[node->in[3]];
    const struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    int64_t out = shape.heads * tt_attention_value_dim(&shape);
    int rc = 0;

    if (!tt_attention_fits(graph, node, 1, 6) || !tt_op_acc_fits(graph, node, 0, tt_value_rows(&q), out) ||
        !tt_op_acc_fits(graph, node, 4, tt_value_rows(&q), out) ||
        !tt_op_acc_fits(graph, node, 5, tt_value_rows(&q), node->attr.heads))
        return tt_op_mismatch(graph, node,
                              "do, o (N, H*Ev), q (N, H*E), k (B*T, K*E), v (B*T, K*Ev), lse (N, H), positions (N)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, q.ndim, q.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "k", k.ndim, k.shape));
    TT_TRY(tt_op_output(graph, node, 2, name, "v", v.ndim, v.shape));
out:
    return rc;
}

/*
 * Scratch: dq of ranges 1.., dk of parts 1.., dv of parts 1.., and the scratch of each worker. In bfloat16 range 0 and
 * part 0 are there too, since the kernel's gradients are floats.
 */
struct layout {
    int64_t outputs;    /* 1 if range 0 and part 0 are the node's outputs, otherwise 0 */
    int64_t dq, dk, dv; /* floats of one */
    int64_t worker;
    int64_t first_worker;
};

static struct layout layout_of(const struct tt_attention_shape *shape, const struct split *split, bool bf16)
{
    struct layout layout = {.outputs = bf16 ? 0 : 1,
                            .dq = tt_attention_lines(split->rows * shape->heads * shape->head_dim),
                            .dk = tt_attention_lines(split->rows * shape->kv_heads * shape->head_dim),
                            .dv = tt_attention_lines(split->rows * shape->kv_heads * tt_attention_value_dim(shape))};
    int64_t keys = tt_attention_longest_range(shape->seq_len, split->ranges);

    layout.worker =
        tt_attention_lines(bf16 ? tt_attention_bwd_bf16_scratch(shape, keys) : tt_attention_bwd_scratch(shape, keys));
    layout.first_worker =
        (split->ranges - layout.outputs) * layout.dq + (split->parts - layout.outputs) * (layout.dk + layout.dv);
    return layout;
}

struct run {
    const struct tt_call *call;
    struct tt_attention_shape shape;
    struct split split;
    struct layout layout;
};

static float *dq_of(const struct run *run, int64_t range)
{
    int64_t outputs = run->layout.outputs;

    return range < outputs ? run->call->out[0] : (float *)run->call->scratch + (range - outputs) * run->layout.dq;
}

/* k: 1 for dk, 2 for dv */
static float *dk_of(const struct run *run, int k, int64_t part)
{
    int64_t outputs = run->layout.outputs, others = run->split.parts - outputs;

    if (part < outputs)
        return run->call->out[k];
    return (float *)run->call->scratch + (run->split.ranges - outputs) * run->layout.dq +
           (k == 1 ? (part - outputs) * run->layout.dk : others * run->layout.dk + (part - outputs) * run->layout.dv);
}

static void run_task(void *arg, int64_t tile, int worker)
{
    const struct run *run = arg;
    const struct tt_call *call = run->call;
    struct tt_attention_shape of = run->shape, *shape = &of;
    int64_t part = tile % run->split.parts, kv_head = tile / run->split.parts % shape->kv_heads;
    int64_t sequence = tile / (run->split.parts * shape->kv_heads) % run->split.sequences;
    int64_t range = tile / (run->split.parts * shape->kv_heads * run->split.sequences);
    int64_t begin = tt_attention_range_begin(shape->seq_len, range, run->split.ranges);
    int64_t end = tt_attention_range_begin(shape->seq_len, range + 1, run->split.ranges);
    int64_t row = sequence * shape->seq_len;
    int64_t head = (kv_head * run->split.parts + part) * run->split.heads;
    int64_t width = tt_attention_value_dim(shape), query = row * shape->heads + head,
            key = row * shape->kv_heads + kv_head, to = key + begin * shape->kv_heads;
    int64_t q_at = query * shape->head_dim, k_at = key * shape->head_dim, o_at = query * width, v_at = key * width;
    float *dq = dq_of(run, range) + q_at, *dk = dk_of(run, 1, part) + to * shape->head_dim;
    float *dv = dk_of(run, 2, part) + to * width;
    float *scratch = (float *)call->scratch + run->layout.first_worker + worker * run->layout.worker;
    const void *dout = tt_call_in_at(call, 0, o_at), *q = tt_call_in_at(call, 1, q_at);
    const void *k = tt_call_in_at(call, 2, k_at), *v = tt_call_in_at(call, 3, v_at), *o = tt_call_in_at(call, 4, o_at);
    const float *lse = tt_call_in_at(call, 5, row * shape->heads + head);

    of.positions = tt_call_in_at(call, 6, row);
    if (run->layout.outputs)
        tt_kernels()->attention_bwd(&(struct tt_attention_grads){dq, dk, dv, dout, q, k, v, o, lse}, shape,
                                    run->split.heads, begin, end - begin, scratch);
    else
        tt_kernels()->attention_bwd_bf16(&(struct tt_attention_bf16_grads){dq, dk, dv, dout, q, k, v, o, lse}, shape,
                                         run->split.heads, begin, end - begin, scratch);
}

static void sum_task(void *arg, int64_t tile, int worker)
{
    const struct run *run = arg;
    struct tt_range part = tt_tile_range(run->split.rows, SUM_ROWS, tile);
    int64_t q_width = run->shape.heads * run->shape.head_dim;
    int64_t widths[] = {0, run->shape.kv_heads * run->shape.head_dim,
                        run->shape.kv_heads * tt_attention_value_dim(&run->shape)};

    (void)worker;
    for (int64_t row = part.begin; row < part.begin + part.n; row++) {
        float *dq = dq_of(run, 0) + row * q_width;

        for (int64_t i = 1; i < run->split.ranges; i++) {
            if (row % run->shape.seq_len >= tt_attention_range_begin(run->shape.seq_len, i, run->split.ranges))
                tt_kernels()->add(dq, dq, dq_of(run, i) + row * q_width, q_width);
        }
        for (int k = 1; k <= 2; k++) {
            int64_t k_width = widths[k];
            float *dk = dk_of(run, k, 0) + row * k_width;

            for (int64_t i = 1; i < run->split.parts; i++)
                tt_kernels()->add(dk, dk, dk_of(run, k, i) + row * k_width, k_width);
            if (!run->layout.outputs)
                tt_kernels()->bf16_round(tt_call_out_at(run->call, k, row * k_width), dk, k_width);
        }
        if (!run->layout.outputs)
            tt_kernels()->bf16_round(tt_call_out_at(run->call, 0, row * q_width), dq, q_width);
    }
}

static void run(const struct tt_call *call)
{
    struct run run = {.call = call, .shape = tt_attention_shape_of(&call->node->attr)};

    if (call->node->attr.pieces.grains > 1) {
        tt_attention_bwd_pieces(call);
        return;
    }
    run.split = split_of(&call->node->attr, &run.shape, tt_value_rows(tt_call_in(call, 1)));
    run.layout = layout_of(&run.shape, &run.split, tt_op_is_bf16(call->graph, call->node));
    tt_team_run(call->team, run.split.sequences * run.shape.kv_heads * run.split.parts * run.split.ranges, run_task,
                &run);
    if (run.split.parts > 1 || run.split.ranges > 1 || !run.layout.outputs)
        tt_team_run(call->team, tt_tiles(run.split.rows, SUM_ROWS), sum_task, &run);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_attention_shape shape = tt_attention_shape_of(&node->attr);
    struct split split;
    struct layout layout;

    if (node->attr.pieces.grains > 1)
        return tt_attention_bwd_pieces_scratch(graph, node, threads);
    split = split_of(&node->attr, &shape, tt_value_rows(&graph->values[node->in[1]]));
    layout = layout_of(&shape, &split, tt_op_is_bf16(graph, node));
    return (layout.first_worker + threads * layout.worker) * (int64_t)sizeof(float);
}

const struct tt_op_row tt_op_attention_bwd = {
    .name = "attention_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32,
           TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ROWS | TT_CUT_OUT,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .part = TT_PART_ATTENTION,
    .infer = infer,
    .run = run,
    .cost = tt_attention_cost,
    .scratch_bytes = scratch,
};
