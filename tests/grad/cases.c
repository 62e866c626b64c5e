/* SPDX-License-Identifier: MIT
 *
 * The graphs of the gradient check: every op alone, then every op whose gradients are added to gradients of other ops,
 * then models like Llama.
 */
#include "tests/grad/cases.h"

#include <stdlib.h>

#include "core/passes/autodiff.h"
#include "tests/grad/build.h"

static void build_head(struct tt_graph *graph)
{
    inputs(graph, 3, 5);
    head(graph, activation(graph, 15, 6), TT_NONE);
}

/* The number of tokens is no multiple of the head's chunk. */
static void build_head_chunks(struct tt_graph *graph)
{
    inputs(graph, 1, 1030);
    head(graph, activation(graph, 1030, 3), TT_NONE);
}

/* The head cuts this vocabulary into slices of different sizes. */
static void build_head_slices(struct tt_graph *graph)
{
    inputs(graph, 1, 7);
    head(graph, activation(graph, 7, 3), param(graph, 4099, 3));
}

static void add_z_loss(struct tt_graph *graph, float coefficient)
{
    if (tt_graph_add_z_loss(graph, coefficient) < 0)
        abort();
}

/* A cap so low that it changes many logits visibly. */
static void cap_logits(struct tt_graph *graph)
{
    graph->nodes[graph->values[graph->token_loss].producer].attr.soft_cap = 1.0F;
}

static void build_head_capped(struct tt_graph *graph)
{
    build_head(graph);
    cap_logits(graph);
}

static void build_head_capped_z_loss(struct tt_graph *graph)
{
    build_head_chunks(graph);
    cap_logits(graph);
    add_z_loss(graph, 0.25F);
}

/* A coefficient so large that the z-loss gives a third of the gradient. */
static void build_head_z_loss(struct tt_graph *graph)
{
    build_head(graph);
    add_z_loss(graph, 0.25F);
}

static void build_head_chunks_z_loss(struct tt_graph *graph)
{
    build_head_chunks(graph);
    add_z_loss(graph, 0.25F);
}

/* The vocabulary has grains, so the head runs in phases; the last grain is shorter. */
static void use_phases(struct tt_graph *graph)
{
    struct tt_node *node = &graph->nodes[graph->values[graph->token_loss].producer];

    node->attr.out = (struct tt_extent){graph->values[node->in[1]].shape[0], 4};
}

static void build_head_phases_z_loss(struct tt_graph *graph)
{
    build_head_chunks_z_loss(graph);
    use_phases(graph);
}

static void build_head_phases_capped(struct tt_graph *graph)
{
    build_head_capped_z_loss(graph);
    use_phases(graph);
}

static void build_head_phases_slices(struct tt_graph *graph)
{
    inputs(graph, 1, 7);
    head(graph, activation(graph, 7, 3), param(graph, 16399, 3));
    use_phases(graph);
}

/* The gradient of w is a tree over grains of rows; each grain has two chunks. */
static void build_head_phases_rows(struct tt_graph *graph)
{
    inputs(graph, 1, 1602);
    head(graph, activation(graph, 1602, 3), TT_NONE);
    use_phases(graph);
    graph->nodes[graph->n_nodes - 1].attr.rows = (struct tt_extent){1602, 3};
}

static void build_head_phases_frozen(struct tt_graph *graph)
{
    inputs(graph, 1, 530);
    head(graph, activation(graph, 530, 3), frozen(graph, param(graph, VOCAB, 3)));
    use_phases(graph);
}

static void build_add(struct tt_graph *graph)
{
    int a, b;

    inputs(graph, 1, 9);
    a = activation(graph, 9, 5);
    b = activation(graph, 9, 5);
    head(graph, add(graph, a, b), TT_NONE);
}

/* (a + b) + a, then the sum with itself. */
static void build_add_again(struct tt_graph *graph)
{
    int a, b, sum;

    inputs(graph, 1, 9);
    a = activation(graph, 9, 5);
    b = activation(graph, 9, 5);
    sum = add(graph, add(graph, a, b), a);
    head(graph, add(graph, sum, sum), TT_NONE);
}

static void build_linear(struct tt_graph *graph)
{
    int x, w;

    inputs(graph, 2, 7);
    x = activation(graph, 14, 5);
    w = param(graph, 9, 5);
    head(graph, op(graph, TT_OP_LINEAR, NULL, x, w, TT_NONE), TT_NONE);
}

/* x and w are read twice, so both backward ops accumulate. */
static void build_linear_again(struct tt_graph *graph)
{
    int x, w, y;

    inputs(graph, 2, 7);
    x = activation(graph, 14, 6);
    w = param(graph, 6, 6);
    y = op(graph, TT_OP_LINEAR, NULL, op(graph, TT_OP_LINEAR, NULL, x, w, TT_NONE), w, TT_NONE);
    head(graph, add(graph, y, op(graph, TT_OP_LINEAR, NULL, x, param(graph, 6, 6), TT_NONE)), TT_NONE);
}

/* Three products of one x, whose outputs are in grains: their gradients of x are one node. */
static void build_linears(struct tt_graph *graph)
{
    int x, y;

    inputs(graph, 2, 7);
    x = activation(graph, 14, 5);
    y = op(graph, TT_OP_LINEAR, &(struct tt_attr){.out = {6, 2}}, x, param(graph, 6, 5), TT_NONE);
    y = add(graph, y, op(graph, TT_OP_LINEAR, &(struct tt_attr){.out = {6, 2}}, x, param(graph, 6, 5), TT_NONE));
    y = add(graph, y, op(graph, TT_OP_LINEAR, &(struct tt_attr){.out = {6, 2}}, x, param(graph, 6, 5), TT_NONE));
    head(graph, y, TT_NONE);
}

static void build_embedding(struct tt_graph *graph)
{
    inputs(graph, 3, 8);
    head(graph, op(graph, TT_OP_EMBEDDING, NULL, graph->tokens, param(graph, VOCAB, 70), TT_NONE), TT_NONE);
}

/* The second of two peers: its rows are the second half of the tokens. */
static void build_pick_rows(struct tt_graph *graph)
{
    const int64_t tokens[2] = {2, 7}, labels[2] = {1, 7};
    struct tt_attr attr = {.out = {VOCAB, 2}, .peers = {TT_AXIS_TP, 2, 1}};

    graph->tokens = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "tokens", 2, tokens);
    graph->labels = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "labels", 2, labels);
    head(graph, op(graph, TT_OP_PICK_ROWS, &attr, activation(graph, 14, 5), graph->tokens, TT_NONE), TT_NONE);
}

static void build_embedding_tied(struct tt_graph *graph)
{
    int w, x;

    inputs(graph, 3, 8);
    w = param(graph, VOCAB, 6);
    x = op(graph, TT_OP_EMBEDDING, NULL, graph->tokens, w, TT_NONE);
    head(graph, op(graph, TT_OP_LINEAR, NULL, x, param(graph, 6, 6), TT_NONE), w);
}

/* More rows than one block of dw. */
static void build_rmsnorm(struct tt_graph *graph)
{
    int x;

    inputs(graph, 2, 70);
    x = activation(graph, 140, 9);
    head(graph, rmsnorm(graph, x, param(graph, 0, 9)), TT_NONE);
}

/* Weights of 1 + w. */
static void build_rmsnorm_offset(struct tt_graph *graph)
{
    struct tt_attr attr = {.eps = 1e-5F, .unit_offset = true};
    int x;

    inputs(graph, 2, 70);
    x = activation(graph, 140, 18);
    head(graph, op(graph, TT_OP_RMSNORM, &attr, x, param(graph, 0, 9), TT_NONE), TT_NONE);
}

/* There is a residual around the norm, and the weight is used twice. */
static void build_rmsnorm_again(struct tt_graph *graph)
{
    int x, w, y;

    inputs(graph, 2, 5);
    x = activation(graph, 10, 6);
    w = param(graph, 0, 6);
    y = add(graph, x, op(graph, TT_OP_LINEAR, NULL, rmsnorm(graph, x, w), param(graph, 6, 6), TT_NONE));
    head(graph, rmsnorm(graph, y, w), TT_NONE);
}

static void build_rope_kind(struct tt_graph *graph, bool inverse, bool rotate_half)
{
    struct tt_attr attr = {.seq_len = 7, .heads = 2, .head_dim = 6, .inverse = inverse, .rotate_half = rotate_half};
    int x;

    inputs(graph, 2, 7);
    table(graph, 7, 6);
    x = activation(graph, 14, 12);
    head(graph, add(graph, op(graph, TT_OP_ROPE, &attr, x, graph->rope_table, TT_NONE), x), TT_NONE);
}

static void build_rope(struct tt_graph *graph)
{
    build_rope_kind(graph, false, false);
}

static void build_rope_inverse(struct tt_graph *graph)
{
    build_rope_kind(graph, true, false);
}

static void build_rope_half(struct tt_graph *graph)
{
    build_rope_kind(graph, false, true);
}

static void build_rope_documents(struct tt_graph *graph)
{
    graph->documents = true;
    build_rope_kind(graph, false, true);
}

static void build_swiglu(struct tt_graph *graph)
{
    int g, u;

    inputs(graph, 2, 7);
    g = activation(graph, 14, 9);
    u = activation(graph, 14, 9);
    head(graph, op(graph, TT_OP_SWIGLU, NULL, g, u, TT_NONE), TT_NONE);
}

/* swiglu(g, g) + g */
static void build_swiglu_again(struct tt_graph *graph)
{
    int g;

    inputs(graph, 2, 7);
    g = activation(graph, 14, 9);
    head(graph, add(graph, op(graph, TT_OP_SWIGLU, NULL, g, g, TT_NONE), g), TT_NONE);
}

/* A row has three heads of 6, with one weight for all. */
static void build_rmsnorm_heads(struct tt_graph *graph)
{
    int x;

    inputs(graph, 2, 35);
    x = activation(graph, 70, 18);
    head(graph, add(graph, rmsnorm(graph, x, param(graph, 0, 6)), x), TT_NONE);
}

static int layernorm(struct tt_graph *graph, int x, int w, int b)
{
    return op(graph, TT_OP_LAYERNORM, &(struct tt_attr){.eps = 1e-5F}, x, w, b);
}

/* More rows than a block of dw. */
static void build_layernorm(struct tt_graph *graph)
{
    int x;

    inputs(graph, 2, 70);
    x = activation(graph, 140, 9);
    head(graph, layernorm(graph, x, param(graph, 0, 9), param(graph, 0, 9)), TT_NONE);
}

/* There is a residual around the norm, and the weights are used twice. */
static void build_layernorm_again(struct tt_graph *graph)
{
    int x, w, b, y;

    inputs(graph, 2, 5);
    x = activation(graph, 10, 6);
    w = param(graph, 0, 6);
    b = param(graph, 0, 6);
    y = op(graph, TT_OP_LINEAR, NULL, layernorm(graph, x, w, b), param(graph, 6, 6), TT_NONE);
    head(graph, layernorm(graph, add(graph, x, y), w, b), TT_NONE);
}

static void build_gelu(struct tt_graph *graph)
{
    inputs(graph, 2, 7);
    head(graph, op(graph, TT_OP_GELU, NULL, activation(graph, 14, 9), TT_NONE, TT_NONE), TT_NONE);
}

static void build_gelu_again(struct tt_graph *graph)
{
    int x;

    inputs(graph, 2, 7);
    x = activation(graph, 14, 9);
    head(graph, add(graph, op(graph, TT_OP_GELU, NULL, x, TT_NONE, TT_NONE), x), TT_NONE);
}

static void build_layernorm_plain(struct tt_graph *graph)
{
    int x;

    inputs(graph, 2, 70);
    x = activation(graph, 140, 9);
    head(graph, layernorm(graph, x, param(graph, 0, 9), TT_NONE), TT_NONE);
}

static void build_layernorm_plain_again(struct tt_graph *graph)
{
    int x, w;

    inputs(graph, 2, 5);
    x = activation(graph, 10, 6);
    w = param(graph, 0, 6);
    x = add(graph, x, op(graph, TT_OP_GELU, NULL, layernorm(graph, x, w, TT_NONE), TT_NONE, TT_NONE));
    head(graph, layernorm(graph, x, w, TT_NONE), TT_NONE);
}

/* A row has three heads of 6, each with its own weights, which are used twice. */
static void build_layernorm_heads(struct tt_graph *graph)
{
    int x, w;

    inputs(graph, 2, 5);
    x = activation(graph, 10, 18);
    w = param(graph, 3, 6);
    x = add(graph, x, op(graph, TT_OP_GELU, NULL, layernorm(graph, x, w, TT_NONE), TT_NONE, TT_NONE));
    head(graph, layernorm(graph, x, w, param(graph, 3, 6)), TT_NONE);
}

/* More rows than a tile. */
static void build_gate_rows(struct tt_graph *graph)
{
    int x, g;

    inputs(graph, 2, 35);
    x = activation(graph, 70, 9);
    g = activation(graph, 70, 1);
    head(graph, op(graph, TT_OP_GATE_ROWS, NULL, x, g, TT_NONE), TT_NONE);
}

/* The gate of x is a product of x. */
static void build_gate_rows_again(struct tt_graph *graph)
{
    int x, g;

    inputs(graph, 2, 7);
    x = activation(graph, 14, 9);
    g = op(graph, TT_OP_LINEAR, NULL, x, param(graph, 1, 9), TT_NONE);
    head(graph, add(graph, op(graph, TT_OP_GATE_ROWS, NULL, x, g, TT_NONE), x), TT_NONE);
}

static void build_gelu_erf(struct tt_graph *graph)
{
    inputs(graph, 2, 7);
    head(graph, op(graph, TT_OP_GELU_ERF, NULL, activation(graph, 14, 9), TT_NONE, TT_NONE), TT_NONE);
}

static void build_gelu_erf_again(struct tt_graph *graph)
{
    int x;

    inputs(graph, 2, 7);
    x = activation(graph, 14, 9);
    head(graph, add(graph, op(graph, TT_OP_GELU_ERF, NULL, x, TT_NONE, TT_NONE), x), TT_NONE);
}

static void build_geglu(struct tt_graph *graph)
{
    int g, u;

    inputs(graph, 2, 7);
    g = activation(graph, 14, 9);
    u = activation(graph, 14, 9);
    head(graph, op(graph, TT_OP_GEGLU, NULL, g, u, TT_NONE), TT_NONE);
}

/* geglu(g, g) + g */
static void build_geglu_again(struct tt_graph *graph)
{
    int g;

    inputs(graph, 2, 7);
    g = activation(graph, 14, 9);
    head(graph, add(graph, op(graph, TT_OP_GEGLU, NULL, g, g, TT_NONE), g), TT_NONE);
}

/* More rows than a block of the sum. */
static void build_bias(struct tt_graph *graph)
{
    int x;

    inputs(graph, 2, 70);
    x = activation(graph, 140, 9);
    head(graph, op(graph, TT_OP_BIAS, NULL, x, param(graph, 0, 9), TT_NONE), TT_NONE);
}

/* x is read again and b added twice. */
static void build_bias_again(struct tt_graph *graph)
{
    int x, b, y;

    inputs(graph, 2, 7);
    x = activation(graph, 14, 9);
    b = param(graph, 0, 9);
    y = op(graph, TT_OP_GELU, NULL, op(graph, TT_OP_BIAS, NULL, x, b, TT_NONE), TT_NONE, TT_NONE);
    head(graph, add(graph, op(graph, TT_OP_BIAS, NULL, y, b, TT_NONE), x), TT_NONE);
}

/* The table is longer than the sequence; the gradient of the rest is 0. */
static void build_position_of(struct tt_graph *graph, int64_t batch, int64_t seq_len, int64_t width)
{
    struct tt_attr attr = {.seq_len = seq_len};
    int x;

    inputs(graph, batch, seq_len);
    x = activation(graph, batch * seq_len, width);
    head(graph, op(graph, TT_OP_POSITION, &attr, x, param(graph, seq_len + 3, width), TT_NONE), TT_NONE);
}

static void build_position(struct tt_graph *graph)
{
    build_position_of(graph, 3, 5, 6);
}

/* The sequence is longer than a tile. */
static void build_position_long(struct tt_graph *graph)
{
    build_position_of(graph, 2, 300, 20);
}

static void build_position_again(struct tt_graph *graph)
{
    struct tt_attr attr = {.seq_len = 5};
    int x, w;

    inputs(graph, 3, 5);
    x = activation(graph, 15, 6);
    w = param(graph, 7, 6);
    x = op(graph, TT_OP_GELU, NULL, op(graph, TT_OP_POSITION, &attr, x, w, TT_NONE), TT_NONE, TT_NONE);
    head(graph, op(graph, TT_OP_POSITION, &attr, x, w, TT_NONE), TT_NONE);
}

static void build_position_documents(struct tt_graph *graph)
{
    graph->documents = true;
    build_position_of(graph, 3, 40, 70);
}

static void build_position_documents_again(struct tt_graph *graph)
{
    graph->documents = true;
    build_position_again(graph);
}

static void build_attention_of(struct tt_graph *graph, int64_t batch, int64_t seq_len, int heads, int kv_heads, int dim)
{
    struct tt_attr attr = {.seq_len = seq_len, .heads = heads, .kv_heads = kv_heads, .head_dim = dim};
    int q, k, v;

    inputs(graph, batch, seq_len);
    q = activation(graph, batch * seq_len, (int64_t)heads * dim);
    k = activation(graph, batch * seq_len, (int64_t)kv_heads * dim);
    v = activation(graph, batch * seq_len, (int64_t)kv_heads * dim);
    head(graph, op(graph, TT_OP_ATTENTION, &attr, q, k, v), TT_NONE);
}

static void build_attention_8(struct tt_graph *graph)
{
    build_attention_of(graph, 2, 9, 2, 2, 8);
}

static void build_attention_16(struct tt_graph *graph)
{
    build_attention_of(graph, 4, 70, 8, 4, 16);
}

static void build_attention_64(struct tt_graph *graph)
{
    build_attention_of(graph, 2, 6, 6, 2, 64);
}

static void build_attention_128(struct tt_graph *graph)
{
    build_attention_of(graph, 1, 5, 2, 1, 128);
}

/* Forward has two tiles of keys. Backward has two ranges of keys, each with a task per query head. */
static void build_attention_long(struct tt_graph *graph)
{
    build_attention_of(graph, 1, 530, 3, 1, 4);
}

static void build_attention_documents(struct tt_graph *graph)
{
    graph->documents = true;
    build_attention_of(graph, 3, 150, 4, 2, 16);
}

static void build_attention_documents_long(struct tt_graph *graph)
{
    graph->documents = true;
    build_attention_of(graph, 1, 530, 3, 1, 4);
}

/* Heads whose values are narrower or wider than their keys, and scores with their own scale. */
static void build_attention_widths(struct tt_graph *graph, int64_t batch, int64_t seq_len, struct tt_attr attr)
{
    int64_t rows = batch * seq_len;
    int q, k, v;

    attr.seq_len = seq_len;
    inputs(graph, batch, seq_len);
    q = activation(graph, rows, (int64_t)attr.heads * attr.head_dim);
    k = activation(graph, rows, (int64_t)attr.kv_heads * attr.head_dim);
    v = activation(graph, rows, (int64_t)attr.kv_heads * attr.value_dim);
    head(graph, op(graph, TT_OP_ATTENTION, &attr, q, k, v), TT_NONE);
}

static void build_attention_narrow(struct tt_graph *graph)
{
    build_attention_widths(graph, 2, 57,
                           (struct tt_attr){.heads = 4, .kv_heads = 4, .head_dim = 12, .value_dim = 8, .scale = 0.5F});
}

static void build_attention_wide(struct tt_graph *graph)
{
    build_attention_widths(graph, 1, 530, (struct tt_attr){.heads = 3, .kv_heads = 1, .head_dim = 4, .value_dim = 7});
}

/* Rotates the ends of heads. */
static void build_rope_part(struct tt_graph *graph)
{
    struct tt_attr attr = {.seq_len = 7, .heads = 2, .head_dim = 9, .prefix = 5};

    inputs(graph, 2, 7);
    table(graph, 7, 4);
    head(graph, op(graph, TT_OP_ROPE, &attr, activation(graph, 14, 18), graph->rope_table, TT_NONE), TT_NONE);
}

/* Rotates the beginnings of heads. */
static void build_rope_beginning(struct tt_graph *graph)
{
    struct tt_attr attr = {.seq_len = 7, .heads = 2, .head_dim = 9, .rotated = 4, .rotate_half = true};

    inputs(graph, 2, 7);
    table(graph, 7, 4);
    head(graph, op(graph, TT_OP_ROPE, &attr, activation(graph, 14, 18), graph->rope_table, TT_NONE), TT_NONE);
}

/* Two heads, each in two parts that swap places; or only one of the parts is read. */
static void build_split(struct tt_graph *graph)
{
    struct tt_attr attr = {.heads = 2, .head_dim = 5, .prefix = 2}, back = {.heads = 2, .head_dim = 5, .prefix = 3};
    int x, node, y;

    inputs(graph, 3, 25);
    x = activation(graph, 75, 10);
    node = tt_graph_node(graph, TT_OP_SPLIT, "y", &x, 1, &attr);
    y = op(graph, TT_OP_JOIN, &back, graph->nodes[node].out[1], graph->nodes[node].out[0], TT_NONE);
    node = tt_graph_node(graph, TT_OP_SPLIT, "y", &y, 1, &attr);
    y = op(graph, TT_OP_GELU, NULL, graph->nodes[node].out[1], TT_NONE, TT_NONE);
    head(graph, add(graph, x, op(graph, TT_OP_JOIN, &back, y, graph->nodes[node].out[0], TT_NONE)), TT_NONE);
}

static void build_split_one(struct tt_graph *graph)
{
    struct tt_attr attr = {.heads = 2, .head_dim = 5, .prefix = 2};
    int x, node;

    inputs(graph, 1, 9);
    x = activation(graph, 9, 10);
    node = tt_graph_node(graph, TT_OP_SPLIT, "y", &x, 1, &attr);
    head(graph, graph->nodes[node].out[1], TT_NONE);
}

/* One second part for three heads, which is read again. */
static void build_join_shared(struct tt_graph *graph)
{
    struct tt_attr attr = {.heads = 3, .head_dim = 6, .prefix = 4, .shared = true};
    int x, y;

    inputs(graph, 5, 14);
    y = activation(graph, 70, 2);
    x = op(graph, TT_OP_JOIN, &attr, activation(graph, 70, 12), y, TT_NONE);
    x = op(graph, TT_OP_LINEAR, NULL, x, param(graph, 2, 18), TT_NONE);
    head(graph, add(graph, x, y), TT_NONE);
}

/* q, k and v are one value, which is also read elsewhere. */
static void build_attention_again(struct tt_graph *graph)
{
    struct tt_attr attr = {.seq_len = 8, .heads = 2, .kv_heads = 2, .head_dim = 4};
    int x;

    inputs(graph, 1, 8);
    x = activation(graph, 8, 8);
    head(graph, add(graph, op(graph, TT_OP_ATTENTION, &attr, x, x, x), x), TT_NONE);
}

static int llama_attention(struct tt_graph *graph, const struct llama *m, int x)
{
    struct tt_attr attr = {.seq_len = m->seq_len,
                           .heads = (int)m->heads,
                           .kv_heads = (int)m->kv_heads,
                           .head_dim = (int)m->head_dim,
                           .rotate_half = m->rotate_half};
    struct tt_attr kv = attr;
    int q = op(graph, TT_OP_LINEAR, NULL, x, param(graph, m->heads * m->head_dim, m->dim), TT_NONE);
    int k = op(graph, TT_OP_LINEAR, NULL, x, param(graph, m->kv_heads * m->head_dim, m->dim), TT_NONE);
    int v = op(graph, TT_OP_LINEAR, NULL, x, param(graph, m->kv_heads * m->head_dim, m->dim), TT_NONE);
    int o;

    kv.heads = (int)m->kv_heads;
    q = op(graph, TT_OP_ROPE, &attr, q, graph->rope_table, TT_NONE);
    k = op(graph, TT_OP_ROPE, &kv, k, graph->rope_table, TT_NONE);
    o = op(graph, TT_OP_ATTENTION, &attr, q, k, v);
    return op(graph, TT_OP_LINEAR, NULL, o, param(graph, m->dim, m->heads * m->head_dim), TT_NONE);
}

static int llama_ffn(struct tt_graph *graph, const struct llama *m, int x)
{
    int g = op(graph, TT_OP_LINEAR, NULL, x, param(graph, m->ffn, m->dim), TT_NONE);
    int u = op(graph, TT_OP_LINEAR, NULL, x, param(graph, m->ffn, m->dim), TT_NONE);

    return op(graph, TT_OP_LINEAR, NULL, op(graph, TT_OP_SWIGLU, NULL, g, u, TT_NONE), param(graph, m->dim, m->ffn),
              TT_NONE);
}

void build_llama(struct tt_graph *graph, const struct llama *m)
{
    int embeddings, x;

    inputs(graph, m->batch, m->seq_len);
    table(graph, m->seq_len, m->head_dim);
    embeddings = activation(graph, m->vocab, m->dim);
    x = op(graph, TT_OP_EMBEDDING, NULL, graph->tokens, embeddings, TT_NONE);
    for (int64_t layer = 0; layer < m->layers; layer++) {
        x = add(graph, x, llama_attention(graph, m, rmsnorm(graph, x, param(graph, 0, m->dim))));
        x = add(graph, x, llama_ffn(graph, m, rmsnorm(graph, x, param(graph, 0, m->dim))));
    }
    x = rmsnorm(graph, x, param(graph, 0, m->dim));
    head(graph, x, m->tied ? embeddings : param(graph, m->vocab, m->dim));
}

static void build_llama_small(struct tt_graph *graph)
{
    build_llama(graph, &(struct llama){2, 9, 2, 12, 4, 2, 4, 20, VOCAB, false, false});
}

static void build_llama_tied(struct tt_graph *graph)
{
    build_llama(graph, &(struct llama){2, 9, 2, 12, 2, 1, 6, 20, VOCAB, true, true});
}

static void build_llama_documents(struct tt_graph *graph)
{
    graph->documents = true;
    build_llama(graph, &(struct llama){2, 21, 2, 12, 4, 2, 4, 20, VOCAB, false, false});
}

static void build_scale(struct tt_graph *graph)
{
    struct tt_attr attr = {.scale = 1.75F};

    inputs(graph, 2, 7);
    head(graph, op(graph, TT_OP_SCALE, &attr, activation(graph, 14, 5), TT_NONE, TT_NONE), TT_NONE);
}

/* x is read twice. */
static void build_scale_again(struct tt_graph *graph)
{
    struct tt_attr attr = {.scale = -0.5F};
    int x;

    inputs(graph, 2, 7);
    x = activation(graph, 14, 5);
    head(graph, add(graph, op(graph, TT_OP_SCALE, &attr, x, TT_NONE, TT_NONE), x), TT_NONE);
}

/* A layer with an adapter and magnitudes, of which the second layer reads the result; x is read again. */
static void build_dora(struct tt_graph *graph)
{
    struct tt_attr attr = {.scale = 1.5F};
    int x;

    inputs(graph, 2, 7);
    x = activation(graph, 14, 6);
    for (int layer = 0; layer < 2; layer++) {
        int w = frozen(graph, param(graph, 6, 6)), squares, y;

        /* the gradient takes the norms as constants, so these do not depend on what is trained */
        squares = op(graph, TT_OP_ROW_SQUARES, &attr, w, frozen(graph, param(graph, 2, 6)),
                     frozen(graph, param(graph, 6, 2)));
        y = op(graph, TT_OP_LINEAR, NULL, x, w, TT_NONE);
        x = add(graph, x, op(graph, TT_OP_DORA, NULL, y, param(graph, 0, 6), squares));
    }
    head(graph, x, frozen(graph, param(graph, VOCAB, 6)));
}

/* x is read three times, and one of the others is the whole of x. */
static void build_dropout(struct tt_graph *graph)
{
    struct tt_attr attr = {.seq_len = 7, .dropout = {.rate = 0.4, .stream = 3}}, again = attr;
    int x, y;

    again.dropout.stream = 4;
    inputs(graph, 2, 7);
    x = activation(graph, 14, 5);
    y = op(graph, TT_OP_DROPOUT, &attr, x, TT_NONE, TT_NONE);
    head(graph, add(graph, add(graph, y, x), op(graph, TT_OP_DROPOUT, &again, x, TT_NONE, TT_NONE)), TT_NONE);
}

/* Only the first weight is trained. Of the later ops that can train weights, all have frozen ones. */
static void build_frozen(struct tt_graph *graph)
{
    struct tt_attr norm = {.eps = 1e-5F}, positions = {.seq_len = 7};
    int x;

    inputs(graph, 2, 7);
    x = op(graph, TT_OP_EMBEDDING, NULL, graph->tokens, frozen(graph, param(graph, VOCAB, 5)), TT_NONE);
    x = op(graph, TT_OP_LINEAR, NULL, x, param(graph, 6, 5), TT_NONE);
    x = op(graph, TT_OP_LINEAR, NULL, x, frozen(graph, param(graph, 6, 6)), TT_NONE);
    x = op(graph, TT_OP_RMSNORM, &norm, x, frozen(graph, param(graph, 0, 6)), TT_NONE);
    x = op(graph, TT_OP_BIAS, NULL, x, frozen(graph, param(graph, 0, 6)), TT_NONE);
    x = op(graph, TT_OP_POSITION, &positions, x, frozen(graph, param(graph, 7, 6)), TT_NONE);
    x = op(graph, TT_OP_LAYERNORM, &norm, x, frozen(graph, param(graph, 0, 6)), frozen(graph, param(graph, 0, 6)));
    head(graph, x, frozen(graph, param(graph, VOCAB, 6)));
}

/* Two layers with low-rank adapters; the second layer reads the first adapter's result. */
static void build_adapters(struct tt_graph *graph)
{
    struct tt_attr attr = {.scale = 1.5F};
    int x;

    inputs(graph, 2, 7);
    x = op(graph, TT_OP_EMBEDDING, NULL, graph->tokens, frozen(graph, param(graph, VOCAB, 6)), TT_NONE);
    for (int layer = 0; layer < 2; layer++) {
        int y = op(graph, TT_OP_LINEAR, NULL, x, frozen(graph, param(graph, 6, 6)), TT_NONE);
        int narrow = op(graph, TT_OP_LINEAR, NULL, x, param(graph, 2, 6), TT_NONE);

        narrow = op(graph, TT_OP_SCALE, &attr, narrow, TT_NONE, TT_NONE);
        x = add(graph, y, op(graph, TT_OP_LINEAR, NULL, narrow, param(graph, 6, 2), TT_NONE));
    }
    head(graph, x, frozen(graph, param(graph, VOCAB, 6)));
}

/* Columns become blocks of rows; then the rows of two pieces of three sequences become rows of whole sequences; x is
 * read again. */
static void build_reorder(struct tt_graph *graph)
{
    struct tt_attr blocks = {.reorder = {12, 2, 24}}, sequences = {.reorder = {2, 3, 24}};
    int x, y;

    inputs(graph, 3, 8);
    x = activation(graph, 12, 10);
    y = op(graph, TT_OP_REORDER, &blocks, x, TT_NONE, TT_NONE);
    y = op(graph, TT_OP_GELU, NULL, y, TT_NONE, TT_NONE);
    y = add(graph, y, op(graph, TT_OP_REORDER, &blocks, x, TT_NONE, TT_NONE));
    head(graph, op(graph, TT_OP_REORDER, &sequences, y, TT_NONE, TT_NONE), TT_NONE);
}

/* The gradient of the table is a tree over grains of rows. */
static void build_embedding_rows(struct tt_graph *graph)
{
    struct tt_attr attr = {.rows = {21, 3}};

    inputs(graph, 3, 7);
    head(graph, op(graph, TT_OP_EMBEDDING, &attr, graph->tokens, activation(graph, VOCAB, 70), TT_NONE), TT_NONE);
}

const struct grad_case grad_cases[] = {
    {"head_loss", build_head, 0.05},
    {"head_loss: chunks", build_head_chunks, 0.05},
    {"head_loss: slices", build_head_slices, 0.05},
    {"head_loss: z-loss", build_head_z_loss, 0.05},
    {"head_loss: z-loss, chunks", build_head_chunks_z_loss, 0.05},
    {"head_loss: soft cap", build_head_capped, 0.05},
    {"head_loss: soft cap, z-loss, chunks", build_head_capped_z_loss, 0.05},
    {"head in phases: soft cap, z-loss, chunks", build_head_phases_capped, 0.05},
    {"head in phases: z-loss, chunks", build_head_phases_z_loss, 0.05},
    {"head in phases: slices", build_head_phases_slices, 0.05},
    {"head in phases: grains of rows", build_head_phases_rows, 0.05},
    {"head in phases: frozen weight", build_head_phases_frozen, 0.05},
    {"add", build_add, 0.05},
    {"add: accumulated", build_add_again, 0.05},
    {"linear", build_linear, 0.05},
    {"linear: accumulated", build_linear_again, 0.05},
    {"linears of one x, in grains", build_linears, 0.05},
    {"pick_rows", build_pick_rows, 0.05},
    {"embedding", build_embedding, 0.05},
    {"embedding: tied to the head", build_embedding_tied, 0.05},
    {"embedding: grains of rows", build_embedding_rows, 0.05},
    {"reorder", build_reorder, 0.05},
    {"rmsnorm", build_rmsnorm, 0.05},
    {"rmsnorm: accumulated", build_rmsnorm_again, 0.05},
    {"rmsnorm: weights of 1 + w", build_rmsnorm_offset, 0.05},
    {"rmsnorm: heads", build_rmsnorm_heads, 0.05},
    {"layernorm", build_layernorm, 0.05},
    {"layernorm: accumulated", build_layernorm_again, 0.05},
    {"gelu", build_gelu, 0.05},
    {"gelu: accumulated", build_gelu_again, 0.05},
    {"layernorm: no bias", build_layernorm_plain, 0.05},
    {"layernorm: no bias, accumulated", build_layernorm_plain_again, 0.05},
    {"layernorm: heads", build_layernorm_heads, 0.05},
    {"gate_rows", build_gate_rows, 0.05},
    {"gate_rows: accumulated", build_gate_rows_again, 0.05},
    {"gelu_erf", build_gelu_erf, 0.05},
    {"gelu_erf: accumulated", build_gelu_erf_again, 0.05},
    {"geglu", build_geglu, 0.05},
    {"geglu: accumulated", build_geglu_again, 0.05},
    {"bias", build_bias, 0.05},
    {"bias: accumulated", build_bias_again, 0.05},
    {"position", build_position, 0.05},
    {"position: two tiles", build_position_long, 0.05},
    {"position: accumulated", build_position_again, 0.05},
    {"position: documents", build_position_documents, 0.05},
    {"position: documents, accumulated", build_position_documents_again, 0.05},
    {"rope", build_rope, 0.05},
    {"rope: inverse", build_rope_inverse, 0.05},
    {"rope: halves", build_rope_half, 0.05},
    {"rope: documents", build_rope_documents, 0.05},
    {"swiglu", build_swiglu, 0.05},
    {"swiglu: accumulated", build_swiglu_again, 0.05},
    {"attention: head_dim 8", build_attention_8, 0.05},
    {"attention: head_dim 16, two blocks, groups", build_attention_16, 0.05},
    {"attention: head_dim 64, groups", build_attention_64, 0.05},
    {"attention: head_dim 128, groups", build_attention_128, 0.05},
    {"attention: two tiles of keys", build_attention_long, 0.15},
    {"attention: narrow values, scale", build_attention_narrow, 0.05},
    {"attention: wide values", build_attention_wide, 0.15},
    {"rope: a part of each head", build_rope_part, 0.05},
    {"rope: the beginning of each head", build_rope_beginning, 0.05},
    {"split, join", build_split, 0.05},
    {"split: one part is read", build_split_one, 0.05},
    {"join: a shared part", build_join_shared, 0.05},
    {"join: a shared part, grains of heads", build_join_grains, 0.05},
    {"attention: accumulated", build_attention_again, 0.05},
    {"attention: documents", build_attention_documents, 0.05},
    {"attention: documents, two tiles of keys", build_attention_documents_long, 0.15},
    {"attention: sliding window", build_attention_window, 0.05},
    {"attention: sliding window, sinks, two tiles of keys", build_attention_window_long, 0.15},
    {"attention: sliding window, sinks, documents", build_attention_window_documents, 0.05},
    {"attention: sinks", build_attention_sinks, 0.05},
    {"attention: soft cap, window, sinks", build_attention_capped, 0.05},
    {"attention: soft cap, two tiles of keys", build_attention_capped_long, 0.15},
    {"attention: sinks, accumulated", build_attention_sinks_again, 0.05},
    {"swiglu_clamped", build_swiglu_clamped, 0.005},
    {"swiglu_clamped: accumulated", build_swiglu_clamped_again, 0.05},
    {"experts", build_experts, 0.005},
    {"experts: gates as they are", build_experts_plain, 0.02},
    {"experts: groups of a softmax, scaled", build_experts_scaled, 0.005},
    {"experts: sigmoid", build_experts_sigmoid, 0.005},
    {"experts: sigmoid, bias, groups, normalized", build_experts_biased, 0.005},
    {"experts: in turn", build_experts_balanced, 0.05},
    {"experts: auxiliary losses", build_experts_losses, 0.005},
    {"experts: auxiliary losses of sigmoids", build_experts_losses_sigmoid, 0.005},
    {"experts: loss of the global batch", build_experts_global_loss, 0.005},
    {"experts: loss of the global batch, sigmoids", build_experts_global_loss_sigmoid, 0.005},
    {"experts: accumulated", build_experts_again, 0.02},
    {"experts in one node", build_experts_ffn, 0.005},
    {"experts in one node: accumulated", build_experts_ffn_again, 0.02},
    {"experts with biases", build_experts_affine, 0.005},
    {"experts with biases: accumulated", build_experts_affine_again, 0.05},
    {"dora", build_dora, 0.05},
    {"dropout", build_dropout, 0.05},
    {"scale", build_scale, 0.05},
    {"scale: accumulated", build_scale_again, 0.05},
    {"frozen weights", build_frozen, 0.01},
    {"low-rank adapters", build_adapters, 0.05},
    {"attention of latents", build_latent, 0.01},
    {"attention of latents, also of queries: documents", build_latent_queries, 0.02},
    {"llama", build_llama_small, 0.02},
    {"llama: tied, halves, one kv head", build_llama_tied, 0.02},
    {"llama: documents", build_llama_documents, 0.02},
};
const int n_grad_cases = sizeof grad_cases / sizeof *grad_cases;
