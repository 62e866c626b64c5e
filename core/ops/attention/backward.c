/* SPDX-License-Identifier: MIT
 *
 * ATTENTION_BWD: computes the probabilities again from lse, tile by tile.
 *   in   do, q, k, v, o, lse, positions or absent      out  dq, dk, dv      (shapes as in attention.c)
 *
 * A task is a key/value head of a sequence with some of its query heads and a range of its keys. dk and dv of the other
 * query heads and dq of the other ranges are partial sums in scratch, added in order at the end. Their number depends
 * on the shape of a grain only: few enough to cost little, and enough to keep 16 threads busy. Sequences in grains are
 * the work of run_pieces.
 */
#include <math.h>
#include <string.h>

#include "core/graph/pieces.h"
#include "core/kernels/kernels.h"
#include "core/math/tree.h"
#include "core/ops/attention/attention.h"
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

/* The number of ranges if there are so many tasks without them. */
static int64_t ranges_of(int64_t seq_len, int64_t tasks)
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
    split.ranges = ranges_of(shape->seq_len, tasks * split.parts);
    return split;
}

/* The first key of range i of n. Ranges have equal work, so they grow, because fewer rows see later keys. */
static int64_t range_begin(int64_t seq_len, int64_t i, int64_t n)
{
    double share = 1.0 - sqrt(1.0 - (double)i / (double)n);

    if (i == n)
        return seq_len;
    return (int64_t)(share * (double)seq_len) / TT_ATTENTION_PANEL * TT_ATTENTION_PANEL;
}

/* The keys of the longest of n ranges. */
static int64_t longest_range(int64_t seq_len, int64_t n)
{
    int64_t most = 0;

    for (int64_t i = 0; i < n; i++) {
        int64_t keys = range_begin(seq_len, i + 1, n) - range_begin(seq_len, i, n);

        most = keys > most ? keys : most;
    }
    return most;
}

static int64_t bwd_floats(const struct tt_attention_shape *shape, int64_t keys)
{
    int64_t tile = shape->seq_len < TT_ATTENTION_KEYS ? shape->seq_len : TT_ATTENTION_KEYS;
    int64_t portable = tile * 2 * TT_ATTENTION_ROWS, dim = tt_attention_widest(shape), wide = tt_attention_lines(dim);
    int64_t panels = tt_tiles(keys, TT_ATTENTION_PANEL), rows = tt_attention_lines(shape->seq_len);
    int64_t vectors = (rows < TT_ATTENTION_STRIP ? rows : TT_ATTENTION_STRIP) * (2 * dim + wide + 2) +
                      TT_ATTENTION_PANEL * (2 * dim + wide) + INT64_C(2) * TT_ATTENTION_BLOCK * TT_ATTENTION_PANEL +
                      2 * panels * TT_ATTENTION_PANEL * dim;

    return portable > vectors ? portable : vectors;
}

/* With room for widened rows of q, do, k and v, or for pairs of them. */
static int64_t bwd_bf16_floats(const struct tt_attention_shape *shape, int64_t keys)
{
    int64_t tile = shape->seq_len < TT_ATTENTION_KEYS ? shape->seq_len : TT_ATTENTION_KEYS;
    int64_t dim = tt_attention_lines(tt_attention_widest(shape));
    int64_t portable = INT64_C(2) * TT_ATTENTION_ROWS * tile + 2 * (TT_ATTENTION_ROWS + tile) * dim;
    int64_t panels = tt_tiles(keys, TT_ATTENTION_PANEL), rows = tt_attention_lines(shape->seq_len);
    int64_t vectors = (rows < TT_ATTENTION_STRIP ? rows : TT_ATTENTION_STRIP) * (3 * dim + 2) +
                      TT_ATTENTION_PANEL * (4 * dim + INT64_C(4) * TT_ATTENTION_BLOCK + 2 * panels * dim);

    return portable > vectors ? portable : vectors;
}

int64_t tt_attention_bwd_scratch(const struct tt_attention_shape *shape, int64_t keys, bool bf16)
{
    return bf16 ? bwd_bf16_floats(shape, keys) : bwd_floats(shape, keys);
}

/*
 * --- sequences in pieces ---
 *
 * Sequences in grains, which ranks may share: queries are those of some grains, keys and values those
 * of all. The gradients of keys and values are sums over rows. Each grain has one term, and the terms are added as a
 * tree, which ranks continue; so the bits do not depend on who has which grain.
 *
 * A task is a key/value head of a sequence, with all its query heads, and a range of its keys. It computes the terms of
 * one grain after the other into a stack. dq of the ranges is added in order at the end. The number of ranges depends
 * on the whole sequence only, and not on the heads of this rank.
  */

struct piece_work {
    const struct tt_call *call;
    struct tt_attention_shape shape;
    struct tt_attention_pieces pieces;
    int64_t kv_heads, ranges;
    bool bf16;
    bool dq_is_output; /* of range 0; else its place in scratch is the first */
    int64_t dq, term;  /* floats of dq, and of a term of dk and dv */
    int64_t values;    /* where dv is in a term */
    int64_t widths[2]; /* of a key and a value */
    int64_t kernel, worker;
    float *dqs, *workers; /* in scratch */
};

static int grains_own(const struct piece_work *run)
{
    return run->pieces.of.own;
}

static struct piece_work run_of(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_attr *attr = &node->attr;
    int64_t keys = tt_value_rows(&graph->values[node->in[2]]), longest, tasks;
    struct piece_work run = {.shape = tt_attention_shape_of(attr),
                             .pieces = tt_attention_pieces_of(attr, keys),
                             .kv_heads = attr->kv_heads,
                             .bf16 = tt_op_is_bf16(graph, node),
                             .dq_is_output = graph->values[node->out[0]].dtype == TT_F32};

    run.shape.kv_heads = 1; /* the rows of a key/value head are contiguous */
    tasks = run.pieces.sequences * tt_grain_or(&attr->out, attr->kv_heads) * attr->pieces.head_ranks;
    run.ranges = ranges_of(attr->seq_len, tasks);
    longest = longest_range(attr->seq_len, run.ranges);
    run.dq = tt_attention_lines(tt_value_elements(&graph->values[node->in[1]]));
    run.widths[0] = attr->head_dim;
    run.widths[1] = tt_attention_value_dim(&run.shape);
    run.values = tt_attention_lines(longest * run.widths[0]);
    run.term = run.values + tt_attention_lines(longest * run.widths[1]);
    run.kernel = tt_attention_lines(tt_attention_bwd_scratch(&run.shape, longest, run.bf16));
    run.worker = run.kernel + (tt_tree_stack_depth(grains_own(&run)) + 1) * run.term;
    return run;
}

static float *piece_dq_of(const struct piece_work *run, int64_t range)
{
    int64_t at = range - (run->dq_is_output ? 1 : 0);

    return at < 0 ? run->call->out[0] : run->dqs + at * run->dq;
}

struct task {
    const struct piece_work *run;
    int64_t sequence, kv_head, range;
    int64_t begin, keys; /* of the range */
    float *kernel, *terms;
};

/* dk of a place of the stack (k 0), or dv (k 1). */
static float *term_of(const struct task *task, int64_t place, int k)
{
    return task->terms + place * task->run->term + k * task->run->values;
}

static void add_terms(const struct task *task, int64_t into, int64_t from)
{
    for (int k = 0; k < 2; k++) {
        float *to = term_of(task, into, k);

        tt_kernels()->add(to, to, term_of(task, from, k), task->keys * task->run->widths[k]);
    }
}

/* The rows of the own piece at `place` against the keys of the range. */
static void run_piece(const struct task *task, int64_t place, struct tt_attention_shape shape, int64_t to)
{
    const struct piece_work *run = task->run;
    const struct tt_call *call = run->call;
    const struct tt_attention_pieces *pieces = &run->pieces;
    int64_t row = (place * pieces->sequences + task->sequence) * pieces->length;
    int64_t heads = shape.heads / run->kv_heads, head = row * shape.heads + task->kv_head * heads;
    int64_t q_at = head * run->widths[0], o_at = head * run->widths[1];
    int64_t by_heads = (task->sequence * run->kv_heads + task->kv_head) * shape.seq_len *
                       (int64_t)tt_dtype_size(tt_call_in(call, 2)->dtype);
    const char *keys = call->scratch, *values = keys + tt_attention_heads_bytes(call->graph, call->node, 2);
    const void *k = keys + by_heads * run->widths[0], *v = values + by_heads * run->widths[1];
    const void *dout = tt_call_in_at(call, 0, o_at), *q = tt_call_in_at(call, 1, q_at);
    const void *o = tt_call_in_at(call, 4, o_at);
    const float *lse = tt_call_in_at(call, 5, head);
    float *dq = piece_dq_of(run, task->range) + q_at, *dk = term_of(task, to, 0), *dv = term_of(task, to, 1);

    shape.positions = tt_call_in_at(call, 6, row);
    if (run->bf16)
        tt_kernels()->attention_bwd_bf16(&(struct tt_attention_bf16_grads){dq, dk, dv, dout, q, k, v, o, lse}, &shape,
                                         heads, task->begin, task->keys, task->kernel);
    else
        tt_kernels()->attention_bwd(&(struct tt_attention_grads){dq, dk, dv, dout, q, k, v, o, lse}, &shape, heads,
                                    task->begin, task->keys, task->kernel);
}

/* The terms of own grain g: those of its pieces, except of one whose rows all come before the keys. */
static void run_grain(const struct task *task, int64_t g, int64_t to)
{
    const struct piece_work *run = task->run;
    const struct tt_attention_pieces *pieces = &run->pieces;
    int64_t n = tt_pieces_of_grain(&pieces->of), spare = tt_tree_stack_depth(grains_own(run));
    struct tt_attention_shape shape = run->shape;
    bool is_there = false;

    for (int64_t place = g * n; place < (g + 1) * n; place++) {
        shape.begin = tt_piece_at(&pieces->of, pieces->first + place) * pieces->length;
        shape.end = shape.begin + pieces->length;
        if (shape.end <= task->begin)
            continue;
        run_piece(task, place, shape, is_there ? spare : to);
        if (is_there)
            add_terms(task, to, spare);
        is_there = true;
    }
    if (!is_there)
        memset(term_of(task, to, 0), 0, (size_t)run->term * sizeof(float));
}

/* The sums go to the rows of the keys, which are in the order of pieces. */
static void store_sums(const struct task *task)
{
    const struct piece_work *run = task->run;
    const struct tt_attention_pieces *pieces = &run->pieces;

    for (int64_t j = 0; j < task->keys; j++) {
        int64_t key = task->begin + j, place = tt_piece_place(&pieces->of, key / pieces->length);
        int64_t row = (place * pieces->sequences + task->sequence) * pieces->length + key % pieces->length;

        for (int k = 0; k < 2; k++) {
            int64_t dim = run->widths[k];
            const float *sum = term_of(task, 0, k) + j * dim;
            void *to = tt_call_out_at(run->call, 1 + k, (row * run->kv_heads + task->kv_head) * dim);

            if (tt_call_out(run->call, 1 + k)->dtype == TT_F32)
                memcpy(to, sum, (size_t)dim * sizeof *sum);
            else
                tt_kernels()->bf16_round(to, sum, dim);
        }
    }
}

static void piece_run_task(void *arg, int64_t tile, int worker)
{
    const struct piece_work *run = arg;
    int64_t groups = run->kv_heads * run->pieces.sequences, range = tile / groups, T = run->shape.seq_len;
    struct task task = {.run = run,
                        .sequence = tile / run->kv_heads % run->pieces.sequences,
                        .kv_head = tile % run->kv_heads,
                        .range = range,
                        .begin = range_begin(T, range, run->ranges),
                        .kernel = run->workers + worker * run->worker};
    int depth = 0;

    task.keys = range_begin(T, range + 1, run->ranges) - task.begin;
    task.terms = task.kernel + run->kernel;
    for (int g = 0; g < grains_own(run); g++) {
        int carries = g + 1 < grains_own(run) ? tt_tree_carries(g) : depth;

        run_grain(&task, g, depth++);
        for (; carries > 0; carries--, depth--)
            add_terms(&task, depth - 2, depth - 1);
    }
    store_sums(&task);
}

/* dq of the ranges that a row sees. */
static void piece_sum_task(void *arg, int64_t tile, int worker)
{
    const struct piece_work *run = arg;
    const struct tt_attention_pieces *pieces = &run->pieces;
    int64_t rows = pieces->own * pieces->sequences * pieces->length, width = run->shape.heads * run->shape.head_dim;
    struct tt_range part = tt_tile_range(rows, SUM_ROWS, tile);

    (void)worker;
    for (int64_t row = part.begin; row < part.begin + part.n; row++) {
        int64_t place = pieces->first + row / (pieces->sequences * pieces->length);
        int64_t at = tt_piece_at(&pieces->of, place) * pieces->length + row % pieces->length;
        float *dq = piece_dq_of(run, 0) + row * width;

        for (int64_t i = 1; i < run->ranges; i++)
            if (at >= range_begin(run->shape.seq_len, i, run->ranges))
                tt_kernels()->add(dq, dq, piece_dq_of(run, i) + row * width, width);
        if (!run->dq_is_output)
            tt_kernels()->bf16_round(tt_call_out_at(run->call, 0, row * width), dq, width);
    }
}

static void run_pieces(const struct tt_call *call)
{
    struct piece_work run = run_of(call->graph, call->node);
    int64_t rows = run.pieces.own * run.pieces.sequences * run.pieces.length;

    run.call = call;
    run.dqs = (float *)((char *)call->scratch + tt_attention_heads_bytes(call->graph, call->node, 2) +
                        tt_attention_heads_bytes(call->graph, call->node, 3));
    run.workers = run.dqs + (run.ranges - (run.dq_is_output ? 1 : 0)) * run.dq;
    tt_attention_by_heads(call, 2);
    tt_team_run(call->team, run.ranges * run.pieces.sequences * run.kv_heads, piece_run_task, &run);
    if (run.ranges > 1 || !run.dq_is_output)
        tt_team_run(call->team, tt_tiles(rows, SUM_ROWS), piece_sum_task, &run);
}

static int64_t pieces_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct piece_work run = run_of(graph, node);

    return tt_attention_heads_bytes(graph, node, 2) + tt_attention_heads_bytes(graph, node, 3) +
           ((run.ranges - (run.dq_is_output ? 1 : 0)) * run.dq + threads * run.worker) * (int64_t)sizeof(float);
}

/* --- whole sequences --- */

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
    int64_t keys = longest_range(shape->seq_len, split->ranges);

    layout.worker = tt_attention_lines(tt_attention_bwd_scratch(shape, keys, bf16));
    layout.first_worker =
        (split->ranges - layout.outputs) * layout.dq + (split->parts - layout.outputs) * (layout.dk + layout.dv);
    return layout;
}

struct work {
    const struct tt_call *call;
    struct tt_attention_shape shape;
    struct split split;
    struct layout layout;
};

static float *dq_of(const struct work *run, int64_t range)
{
    int64_t outputs = run->layout.outputs;

    return range < outputs ? run->call->out[0] : (float *)run->call->scratch + (range - outputs) * run->layout.dq;
}

/* k: 1 for dk, 2 for dv */
static float *dk_of(const struct work *run, int k, int64_t part)
{
    int64_t outputs = run->layout.outputs, others = run->split.parts - outputs;

    if (part < outputs)
        return run->call->out[k];
    return (float *)run->call->scratch + (run->split.ranges - outputs) * run->layout.dq +
           (k == 1 ? (part - outputs) * run->layout.dk : others * run->layout.dk + (part - outputs) * run->layout.dv);
}

static void run_task(void *arg, int64_t tile, int worker)
{
    const struct work *run = arg;
    const struct tt_call *call = run->call;
    struct tt_attention_shape of = run->shape, *shape = &of;
    int64_t part = tile % run->split.parts, kv_head = tile / run->split.parts % shape->kv_heads;
    int64_t sequence = tile / (run->split.parts * shape->kv_heads) % run->split.sequences;
    int64_t range = tile / (run->split.parts * shape->kv_heads * run->split.sequences);
    int64_t begin = range_begin(shape->seq_len, range, run->split.ranges);
    int64_t end = range_begin(shape->seq_len, range + 1, run->split.ranges);
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
    const struct work *run = arg;
    struct tt_range part = tt_tile_range(run->split.rows, SUM_ROWS, tile);
    int64_t q_width = run->shape.heads * run->shape.head_dim;
    int64_t widths[] = {0, run->shape.kv_heads * run->shape.head_dim,
                        run->shape.kv_heads * tt_attention_value_dim(&run->shape)};

    (void)worker;
    for (int64_t row = part.begin; row < part.begin + part.n; row++) {
        float *dq = dq_of(run, 0) + row * q_width;

        for (int64_t i = 1; i < run->split.ranges; i++) {
            if (row % run->shape.seq_len >= range_begin(run->shape.seq_len, i, run->split.ranges))
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
    struct work run = {.call = call, .shape = tt_attention_shape_of(&call->node->attr)};

    if (call->node->attr.pieces.grains > 1) {
        run_pieces(call);
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
        return pieces_scratch(graph, node, threads);
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
    .part = TT_PART_ATTENTION,
    .infer = infer,
    .run = run,
    .cost = tt_attention_cost,
    .scratch_bytes = scratch,
};
