/* SPDX-License-Identifier: MIT
 *
 * The graphs with experts (cases.h).
 */
#include <stdlib.h>

#include "core/passes/autodiff.h"
#include "tests/grad/build.h"
#include "tests/grad/cases.h"

/* The weights of an expert layer of width M. */
struct experts {
    struct tt_attr attr;
    int gate, w1, w2, w3, bias;
};

static struct experts experts_of(struct tt_graph *graph, int64_t dim, int64_t width, struct tt_attr attr)
{
    struct experts e = {.attr = attr, .bias = TT_NONE};

    e.gate = param(graph, attr.experts, dim);
    e.w1 = matrices(graph, attr.experts, width, dim);
    e.w2 = matrices(graph, attr.experts, dim, width);
    e.w3 = matrices(graph, attr.experts, width, dim);
    return e;
}

/* One node if there is a window, which the graph does not use. */
static int feed_forwards(struct tt_graph *graph, const struct experts *e, int x, int ends)
{
    int in[5] = {x, ends, e->w1, e->w3, e->w2}, h;

    if (e->attr.window)
        return tt_graph_out(graph, tt_graph_node(graph, TT_OP_EXPERTS_FFN, "y", in, 5, &e->attr));
    h = op(graph, TT_OP_SWIGLU, NULL, op(graph, TT_OP_EXPERTS, &e->attr, x, e->w1, ends),
           op(graph, TT_OP_EXPERTS, &e->attr, x, e->w3, ends), TT_NONE);
    return op(graph, TT_OP_EXPERTS, &e->attr, h, e->w2, ends);
}

/* ret_combine: what COMBINE reads. */
static int run_experts(struct tt_graph *graph, const struct experts *e, int x, int *ret_combine)
{
    int in[5] = {x, e->gate, e->bias, TT_NONE, graph->labels};
    int router = tt_graph_node(graph, TT_OP_ROUTER, "y", in, 5, &e->attr), sent;
    const int *chosen = graph->nodes[router].out;
    int rows[2] = {x, chosen[0]}, gates = chosen[1], places, ends;

    sent = tt_graph_node(graph, TT_OP_DISPATCH, "y", rows, 2, &e->attr);
    x = graph->nodes[sent].out[0];
    places = graph->nodes[sent].out[1];
    ends = graph->nodes[sent].out[2];
    ret_combine[0] = feed_forwards(graph, e, x, ends);
    ret_combine[1] = gates;
    ret_combine[2] = places;
    return op(graph, TT_OP_COMBINE, NULL, ret_combine[0], gates, places);
}

static void build_experts_of(struct tt_graph *graph, int64_t rows, struct tt_attr attr)
{
    struct experts e;
    int x, in[3];

    inputs(graph, 1, rows);
    x = activation(graph, rows, 6);
    e = experts_of(graph, 6, 5, attr);
    head(graph, add(graph, run_experts(graph, &e, x, in), x), TT_NONE);
}

/* Some experts have no rows. A small step, so that no token changes its experts. */
void build_experts(struct tt_graph *graph)
{
    build_experts_of(graph, 4, (struct tt_attr){.experts = 7, .top_k = 2, .router = {.normalize = true}});
}

void build_experts_plain(struct tt_graph *graph)
{
    build_experts_of(graph, 5, (struct tt_attr){.experts = 5, .top_k = 3});
}

/* More rows than a tile. */
void build_experts_balanced(struct tt_graph *graph)
{
    build_experts_of(graph, 75,
                     (struct tt_attr){.experts = 4, .top_k = 3, .router = {.normalize = true, .balanced = true}});
}

static void build_routed(struct tt_graph *graph, int64_t rows, bool biased, int top_k, struct tt_router router)
{
    struct experts e;
    int x, in[3];

    inputs(graph, 1, rows);
    x = activation(graph, rows, 6);
    e = experts_of(graph, 6, 5, (struct tt_attr){.experts = 8, .top_k = top_k, .router = router});
    if (biased)
        e.bias = frozen(graph, named(graph, 'f', 0, 8));
    head(graph, add(graph, run_experts(graph, &e, x, in), x), TT_NONE);
}

void build_experts_scaled(struct tt_graph *graph)
{
    build_routed(graph, 2, false, 2, (struct tt_router){.scale = 2.5F, .groups = 4, .kept_groups = 2});
}

void build_experts_sigmoid(struct tt_graph *graph)
{
    build_routed(graph, 4, false, 2, (struct tt_router){.score = TT_SCORE_SIGMOID, .scale = 1.5F});
}

/* DeepSeek-V3's. */
void build_experts_biased(struct tt_graph *graph)
{
    build_routed(graph, 4, true, 3,
                 (struct tt_router){.score = TT_SCORE_SIGMOID,
                                    .normalize = true,
                                    .scale = 2.5F,
                                    .groups = 4,
                                    .kept_groups = 2,
                                    .group_rule = TT_GROUP_TWO_BEST});
}

/* Losses of two sequences. */
static void build_with_losses(struct tt_graph *graph, struct tt_router router, struct tt_router_losses losses)
{
    struct experts e;
    int x, in[3];

    graph->block = 1; /* of which the loads are known */
    inputs(graph, 2, 3);
    x = activation(graph, 6, 6);
    e = experts_of(graph, 6, 5, (struct tt_attr){.experts = 5, .top_k = 2, .seq_len = 3, .router = router});
    head(graph, add(graph, run_experts(graph, &e, x, in), x), TT_NONE);
    if (tt_graph_add_router_losses(graph, &losses) < 0)
        abort();
}

void build_experts_losses(struct tt_graph *graph)
{
    build_with_losses(graph, (struct tt_router){.normalize = true}, (struct tt_router_losses){0.7F, 0.4F, 0.3F, 0.0F});
}

void build_experts_losses_sigmoid(struct tt_graph *graph)
{
    build_with_losses(graph, (struct tt_router){.score = TT_SCORE_SIGMOID},
                      (struct tt_router_losses){0.9F, 0.6F, 0.0F, 0.0F});
}

void build_experts_global_loss(struct tt_graph *graph)
{
    build_with_losses(graph, (struct tt_router){.normalize = true}, (struct tt_router_losses){.global_batch = 0.8F});
}

void build_experts_global_loss_sigmoid(struct tt_graph *graph)
{
    build_with_losses(graph, (struct tt_router){.score = TT_SCORE_SIGMOID},
                      (struct tt_router_losses){.global_batch = 0.8F});
}

void build_experts_ffn(struct tt_graph *graph)
{
    build_experts_of(graph, 4, (struct tt_attr){.experts = 7, .top_k = 2, .router = {.normalize = true}, .window = 1});
}

/* The same experts are used twice; the rows of the second use are combined twice with the same gates. */
static void build_twice(struct tt_graph *graph, int64_t window)
{
    struct tt_attr attr = {.experts = 4, .top_k = 2, .router = {.normalize = true, .balanced = true}, .window = window};
    struct experts e;
    int x, y, in[3];

    inputs(graph, 1, 6);
    x = activation(graph, 6, 6);
    e = experts_of(graph, 6, 5, attr);
    y = add(graph, run_experts(graph, &e, x, in), x);
    y = run_experts(graph, &e, rmsnorm(graph, y, param(graph, 0, 6)), in);
    head(graph, add(graph, y, op(graph, TT_OP_COMBINE, NULL, in[0], in[1], in[2])), TT_NONE);
}

void build_experts_again(struct tt_graph *graph)
{
    build_twice(graph, 0);
}

void build_experts_ffn_again(struct tt_graph *graph)
{
    build_twice(graph, 1);
}
