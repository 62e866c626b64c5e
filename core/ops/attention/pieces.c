/* SPDX-License-Identifier: MIT
 *
 * ATTENTION_BWD of sequences in grains, which ranks may share: queries are those of some grains, keys and values those
 * of all. The gradients of keys and values are sums over rows. Each grain has one term, and the terms are added as a
 * tree, which ranks continue; so the bits do not depend on who has which grain.
 *
 * A task is a key/value head of a sequence, with all its query heads, and a range of its keys. It computes the terms of
 * one grain after the other into a stack. dq of the ranges is added in order at the end. The number of ranges depends
 * on the whole sequence only, and not on the heads of this rank.
 */
#include "core/graph/pieces.h"

#include <string.h>

#include "core/kernels/attention.h"
#include "core/math/tree.h"
#include "core/ops/grains.h"

enum { SUM_ROWS = 64 };

struct run {
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

static int grains_own(const struct run *run)
{
    return run->pieces.of.own;
}

static struct run run_of(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_attr *attr = &node->attr;
    int64_t keys = tt_value_rows(&graph->values[node->in[2]]), longest, tasks;
    struct run run = {.shape = tt_attention_shape_of(attr),
                      .pieces = tt_attention_pieces_of(attr, keys),
                      .kv_heads = attr->kv_heads,
                      .bf16 = tt_op_is_bf16(graph, node),
                      .dq_is_output = graph->values[node->out[0]].dtype == TT_F32};

    run.shape.kv_heads = 1; /* the rows of a key/value head are contiguous */
    tasks = run.pieces.sequences * tt_grain_or(&attr->out, attr->kv_heads) * attr->pieces.head_ranks;
    run.ranges = tt_attention_ranges(attr->seq_len, tasks);
    longest = tt_attention_longest_range(attr->seq_len, run.ranges);
    run.dq = tt_attention_lines(tt_value_elements(&graph->values[node->in[1]]));
    run.widths[0] = attr->head_dim;
    run.widths[1] = tt_attention_value_dim(&run.shape);
    run.values = tt_attention_lines(longest * run.widths[0]);
    run.term = run.values + tt_attention_lines(longest * run.widths[1]);
    run.kernel = tt_attention_lines(run.bf16 ? tt_attention_bwd_bf16_scratch(&run.shape, longest)
                                             : tt_attention_bwd_scratch(&run.shape, longest));
    run.worker = run.kernel + (tt_tree_stack_depth(grains_own(&run)) + 1) * run.term;
    return run;
}

static float *dq_of(const struct run *run, int64_t range)
{
    int64_t at = range - (run->dq_is_output ? 1 : 0);

    return at < 0 ? run->call->out[0] : run->dqs + at * run->dq;
}

struct task {
    const struct run *run;
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
    const struct run *run = task->run;
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
    float *dq = dq_of(run, task->range) + q_at, *dk = term_of(task, to, 0), *dv = term_of(task, to, 1);

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
    const struct run *run = task->run;
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
    const struct run *run = task->run;
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

static void run_task(void *arg, int64_t tile, int worker)
{
    const struct run *run = arg;
    int64_t groups = run->kv_heads * run->pieces.sequences, range = tile / groups, T = run->shape.seq_len;
    struct task task = {.run = run,
                        .sequence = tile / run->kv_heads % run->pieces.sequences,
                        .kv_head = tile % run->kv_heads,
                        .range = range,
                        .begin = tt_attention_range_begin(T, range, run->ranges),
                        .kernel = run->workers + worker * run->worker};
    int depth = 0;

    task.keys = tt_attention_range_begin(T, range + 1, run->ranges) - task.begin;
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
static void sum_task(void *arg, int64_t tile, int worker)
{
    const struct run *run = arg;
    const struct tt_attention_pieces *pieces = &run->pieces;
    int64_t rows = pieces->own * pieces->sequences * pieces->length, width = run->shape.heads * run->shape.head_dim;
    struct tt_range part = tt_tile_range(rows, SUM_ROWS, tile);

    (void)worker;
    for (int64_t row = part.begin; row < part.begin + part.n; row++) {
        int64_t place = pieces->first + row / (pieces->sequences * pieces->length);
        int64_t at = tt_piece_at(&pieces->of, place) * pieces->length + row % pieces->length;
        float *dq = dq_of(run, 0) + row * width;

        for (int64_t i = 1; i < run->ranges; i++)
            if (at >= tt_attention_range_begin(run->shape.seq_len, i, run->ranges))
                tt_kernels()->add(dq, dq, dq_of(run, i) + row * width, width);
        if (!run->dq_is_output)
            tt_kernels()->bf16_round(tt_call_out_at(run->call, 0, row * width), dq, width);
    }
}

void tt_attention_bwd_pieces(const struct tt_call *call)
{
    struct run run = run_of(call->graph, call->node);
    int64_t rows = run.pieces.own * run.pieces.sequences * run.pieces.length;

    run.call = call;
    run.dqs = (float *)((char *)call->scratch + tt_attention_heads_bytes(call->graph, call->node, 2) +
                        tt_attention_heads_bytes(call->graph, call->node, 3));
    run.workers = run.dqs + (run.ranges - (run.dq_is_output ? 1 : 0)) * run.dq;
    tt_attention_by_heads(call, 2);
    tt_team_run(call->team, run.ranges * run.pieces.sequences * run.kv_heads, run_task, &run);
    if (run.ranges > 1 || !run.dq_is_output)
        tt_team_run(call->team, tt_tiles(rows, SUM_ROWS), sum_task, &run);
}

int64_t tt_attention_bwd_pieces_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct run run = run_of(graph, node);

    return tt_attention_heads_bytes(graph, node, 2) + tt_attention_heads_bytes(graph, node, 3) +
           ((run.ranges - (run.dq_is_output ? 1 : 0)) * run.dq + threads * run.worker) * (int64_t)sizeof(float);
}
