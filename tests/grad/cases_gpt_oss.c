/* SPDX-License-Identifier: MIT
 *
 * Graphs for gpt-oss and Gemma 2: sliding windows, sinks, soft caps, clamped experts with biases (cases.h).
 */
#include "tests/grad/build.h"
#include "tests/grad/cases.h"

static int attend(struct tt_graph *graph, const struct tt_attr *attr, int q, int k, int v, int sinks)
{
    int in[5] = {q, k, v, graph->positions, sinks};

    return tt_graph_out(graph, tt_graph_node(graph, TT_OP_ATTENTION, "y", in, 5, attr));
}

static void build_attention(struct tt_graph *graph, int64_t batch, struct tt_attr attr, bool has_sinks)
{
    int64_t rows = batch * attr.seq_len, q_width = (int64_t)attr.heads * attr.head_dim;
    int64_t k_width = (int64_t)attr.kv_heads * attr.head_dim;
    int q, k, v;

    inputs(graph, batch, attr.seq_len);
    q = activation(graph, rows, q_width);
    k = activation(graph, rows, k_width);
    v = activation(graph, rows, k_width);
    head(graph, attend(graph, &attr, q, k, v, has_sinks ? param(graph, 0, attr.heads) : TT_NONE), TT_NONE);
}

void build_attention_window(struct tt_graph *graph)
{
    build_attention(graph, 2,
                    (struct tt_attr){.seq_len = 70, .heads = 4, .kv_heads = 2, .head_dim = 16, .sliding_window = 11},
                    false);
}

/* A cap so low that it changes many scores visibly. */
void build_attention_capped(struct tt_graph *graph)
{
    build_attention(graph, 2,
                    (struct tt_attr){.seq_len = 70,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 16,
                                     .sliding_window = 20,
                                     .scale = 0.5F,
                                     .soft_cap = 2.0F},
                    true);
}

/* Two tiles and two ranges of keys. */
void build_attention_capped_long(struct tt_graph *graph)
{
    build_attention(
        graph, 1, (struct tt_attr){.seq_len = 530, .heads = 3, .kv_heads = 1, .head_dim = 4, .soft_cap = 1.0F}, false);
}

void build_attention_sinks(struct tt_graph *graph)
{
    build_attention(graph, 3, (struct tt_attr){.seq_len = 9, .heads = 6, .kv_heads = 2, .head_dim = 8}, true);
}

/* Two tiles and two ranges of keys, more than a window apart. */
void build_attention_window_long(struct tt_graph *graph)
{
    build_attention(graph, 1,
                    (struct tt_attr){.seq_len = 530, .heads = 3, .kv_heads = 1, .head_dim = 4, .sliding_window = 60},
                    true);
}

void build_attention_window_documents(struct tt_graph *graph)
{
    graph->documents = true;
    build_attention(graph, 3,
                    (struct tt_attr){.seq_len = 150, .heads = 4, .kv_heads = 2, .head_dim = 16, .sliding_window = 20},
                    true);
}

/* Two layers with the same sinks. */
void build_attention_sinks_again(struct tt_graph *graph)
{
    struct tt_attr attr = {.seq_len = 8, .heads = 2, .kv_heads = 2, .head_dim = 4, .sliding_window = 3};
    int x, sinks;

    inputs(graph, 1, 8);
    x = activation(graph, 8, 8);
    sinks = param(graph, 0, 2);
    x = add(graph, attend(graph, &attr, x, x, x, sinks), x);
    head(graph, add(graph, attend(graph, &attr, x, x, x, sinks), x), TT_NONE);
}

/* Some elements of each kind are clamped. A small step, since the slope jumps there. */
void build_swiglu_clamped(struct tt_graph *graph)
{
    struct tt_attr wide = {.scale = 6.0F};

    inputs(graph, 1, 7);
    head(graph,
         op(graph, TT_OP_SWIGLU_CLAMPED, NULL, op(graph, TT_OP_SCALE, &wide, activation(graph, 7, 8), TT_NONE, TT_NONE),
            TT_NONE, TT_NONE),
         TT_NONE);
}

void build_swiglu_clamped_again(struct tt_graph *graph)
{
    int x;

    inputs(graph, 1, 5);
    x = activation(graph, 5, 8);
    head(graph,
         add(graph, op(graph, TT_OP_SWIGLU_CLAMPED, NULL, x, TT_NONE, TT_NONE),
             op(graph, TT_OP_LINEAR, NULL, x, param(graph, 4, 8), TT_NONE)),
         TT_NONE);
}

/* The weights of an expert layer with biases. */
struct experts {
    struct tt_attr attr;
    int gate, gate_bias, w1, b1, w2, b2;
};

static struct experts experts_of(struct tt_graph *graph, int64_t dim, int64_t width, struct tt_attr attr)
{
    struct experts e = {.attr = attr};

    e.gate = param(graph, attr.experts, dim);
    e.gate_bias = param(graph, 0, attr.experts);
    e.w1 = matrices(graph, attr.experts, 2 * width, dim);
    e.b1 = param(graph, attr.experts, 2 * width);
    e.w2 = matrices(graph, attr.experts, dim, width);
    e.b2 = param(graph, attr.experts, dim);
    return e;
}

static int run_experts(struct tt_graph *graph, const struct experts *e, int x)
{
    int in[4] = {x, e->gate, TT_NONE, e->gate_bias};
    int router = tt_graph_node(graph, TT_OP_ROUTER, "y", in, 4, &e->attr), rows[2], sent, ends;
    int gates = graph->nodes[router].out[1], places;

    rows[0] = x;
    rows[1] = graph->nodes[router].out[0];
    sent = tt_graph_node(graph, TT_OP_DISPATCH, "y", rows, 2, &e->attr);
    x = graph->nodes[sent].out[0];
    places = graph->nodes[sent].out[1];
    ends = graph->nodes[sent].out[2];
    x = op(graph, TT_OP_EXPERTS_BIAS, &e->attr, op(graph, TT_OP_EXPERTS, &e->attr, x, e->w1, ends), e->b1, ends);
    x = op(graph, TT_OP_SWIGLU_CLAMPED, NULL, x, TT_NONE, TT_NONE);
    x = op(graph, TT_OP_EXPERTS_BIAS, &e->attr, op(graph, TT_OP_EXPERTS, &e->attr, x, e->w2, ends), e->b2, ends);
    return op(graph, TT_OP_COMBINE, NULL, x, gates, places);
}

/* Some experts have no rows. A small step, so that no token changes its experts. */
void build_experts_affine(struct tt_graph *graph)
{
    struct experts e;
    int x;

    inputs(graph, 1, 4);
    x = activation(graph, 4, 6);
    e = experts_of(graph, 6, 5, (struct tt_attr){.experts = 7, .top_k = 2, .router = {.normalize = true}});
    head(graph, add(graph, run_experts(graph, &e, x), x), TT_NONE);
}

/* The same experts twice, with more rows than a tile. */
void build_experts_affine_again(struct tt_graph *graph)
{
    struct tt_attr attr = {.experts = 3, .top_k = 2, .router = {.normalize = true, .balanced = true}};
    struct experts e;
    int x;

    inputs(graph, 1, 70);
    x = activation(graph, 70, 6);
    e = experts_of(graph, 6, 5, attr);
    x = add(graph, run_experts(graph, &e, x), x);
    x = run_experts(graph, &e, rmsnorm(graph, x, param(graph, 0, 6)));
    head(graph, x, TT_NONE);
}
