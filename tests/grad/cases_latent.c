/* SPDX-License-Identifier: MIT
 *
 * Graphs of latent attention (cases.h), as the builder of DeepSeek's models writes them.
 */
#include <stdlib.h>

#include "core/base/mem.h"
#include "core/models/model.h"
#include "tests/grad/build.h"
#include "tests/grad/cases.h"

/* Names that tell interp_fill and interp_use_bf16 the role of a leaf. */
static void rename_params(struct tt_graph *graph)
{
    int n = 0;

    for (int v = 0; v < graph->n_values; v++) {
        struct tt_value *value = &graph->values[v];

        if (value->kind != TT_VALUE_PARAM)
            continue;
        tt_free(value->name);
        value->name = tt_format("%c%d", n == 0 ? 'x' : 'w', n); /* the embeddings come first */
        n++;
    }
}

/* A model whose layers are dense. q_rank 0: queries have no latent. */
static void build(struct tt_graph *graph, int64_t layers, int64_t q_rank)
{
    const struct tt_model_dims dims = {
        .dim = 12,
        .n_layers = layers,
        .n_heads = 3,
        .head_dim = 6,
        .ffn_dim = 16,
        .vocab_size = VOCAB,
        .mla = {.kv_rank = 5, .q_rank = q_rank, .rope_dim = 2, .value_dim = 4},
        .moe = {.dense_layers = layers},
    };
    struct tt_model *model = NULL;
    struct tt_graph *made = NULL, empty;

    if (tt_model_new("deepseek_v3", "debugmodel", &dims, NULL, &model) < 0)
        abort();
    if (tt_model_graph(model, TT_GRAPH_VALIDATE, graph->dtype, 2, 9, false, &made, NULL) < 0)
        abort();
    empty = *graph;
    *graph = *made;
    *made = empty;
    tt_graph_free(made);
    rename_params(graph);
    tt_model_free(model);
}

void build_latent(struct tt_graph *graph)
{
    build(graph, 2, 0);
}

void build_latent_queries(struct tt_graph *graph)
{
    graph->documents = true;
    build(graph, 1, 7);
}

/* One second part for six heads in three grains: its gradient is a tree over them. */
void build_join_grains(struct tt_graph *graph)
{
    struct tt_attr attr = {.heads = 6, .head_dim = 6, .prefix = 4, .shared = true, .out = {6, 3}};
    int x, y;

    inputs(graph, 5, 14);
    y = activation(graph, 70, 2);
    x = op(graph, TT_OP_JOIN, &attr, activation(graph, 70, 24), y, TT_NONE);
    x = op(graph, TT_OP_LINEAR, NULL, x, param(graph, 2, 36), TT_NONE);
    head(graph, add(graph, x, y), TT_NONE);
}
