/* SPDX-License-Identifier: MIT
 *
 * Functions for the files of families, which append parameters to a model's list and layers to its graph; and the
 * graphs that consist of a row's parts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/math/rng.h"
#include "core/models/hf.h"
#include "core/models/internal.h"
#include "core/models/lora.h"
#include "core/ops/op.h"
#include "core/passes/autodiff.h"

/* --- parameters --- */

static struct tt_param *add_param(struct tt_model *model, int block, const char *name, const char *hf_name)
{
    struct tt_param *p = &TT_PUSH(model->params, model->n_params, model->cap_params);

    *p = (struct tt_param){.block = block, .lr_factor = 1.0};
    if (block < 0) {
        p->name = tt_strdup(name);
        p->hf_name = hf_name ? tt_strdup(hf_name) : NULL;
    } else {
        p->name = tt_format("layers.%d.%s", block, name);
        p->hf_name = hf_name ? tt_format("%s%d.%s", model->row->hf_blocks, block, hf_name) : NULL;
    }
    return p;
}

struct tt_param *tt_params_matrix(struct tt_model *model, int block, const char *name, const char *hf_name,
                                  int64_t rows, int64_t columns, struct tt_normal normal)
{
    struct tt_param *p = add_param(model, block, name, hf_name);

    p->ndim = 2;
    p->shape[0] = rows;
    p->shape[1] = columns;
    p->init = TT_PARAM_NORMAL;
    p->std = normal.depth > 0.0 ? TT_INIT_STD / normal.depth : normal.std;
    p->cut = normal.cut;
    p->depth = normal.depth;
    return p;
}

static void add_bias(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t n)
{
    char *bias = tt_format("%s.bias", name), *hf_bias = tt_format("%s.bias", hf_name);

    (void)tt_params_vector(model, block, bias, hf_bias, n, TT_PARAM_ZEROS);
    tt_free(bias);
    tt_free(hf_bias);
}

struct tt_param *tt_params_linear(struct tt_model *model, int block, const char *name, const char *hf_name,
                                  int64_t rows, int64_t columns, struct tt_normal normal, bool bias)
{
    char *weight = tt_format("%s.weight", name), *hf_weight = tt_format("%s.weight", hf_name);
    int at = model->n_params;

    (void)tt_params_matrix(model, block, weight, hf_weight, rows, columns, normal);
    if (bias)
        add_bias(model, block, name, hf_name, rows);
    tt_free(weight);
    tt_free(hf_weight);
    return &model->params[at];
}

void tt_params_norm(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t n)
{
    char *weight = tt_format("%s.weight", name), *hf_weight = tt_format("%s.weight", hf_name);

    (void)tt_params_vector(model, block, weight, hf_weight, n,
                           model->row->norm == TT_NORM_RMS_OFFSET ? TT_PARAM_ZEROS : TT_PARAM_ONES);
    if (model->row->norm == TT_NORM_LAYER)
        add_bias(model, block, name, hf_name, n);
    tt_free(weight);
    tt_free(hf_weight);
}

struct tt_param *tt_params_experts(struct tt_model *model, int block, const char *name, const char *hf_name,
                                   int64_t experts, int64_t rows, int64_t columns, struct tt_normal normal)
{
    struct tt_param *p = tt_params_matrix(model, block, name, hf_name, rows, columns, normal);

    p->ndim = 3;
    p->shape[0] = experts;
    p->shape[1] = rows;
    p->shape[2] = columns;
    p->hf_transform = TT_HF_EXPERTS;
    p->of_experts = true;
    return p;
}

struct tt_param *tt_params_vector(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t n,
                                  enum tt_param_init init)
{
    struct tt_param *p = add_param(model, block, name, hf_name);

    p->ndim = 1;
    p->shape[0] = n;
    p->init = init;
    return p;
}

struct tt_param *tt_params_buffer(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t n)
{
    struct tt_param *p = tt_params_vector(model, block, name, hf_name, n, TT_PARAM_ZEROS);

    p->frozen = p->buffer = true;
    return p;
}

/* --- layers --- */

/* The number of elements of a head that are rotated. */
static int64_t rope_dim(const struct tt_model_dims *dims)
{
    return dims->mla.kv_rank ? dims->mla.rope_dim : dims->rotary_dim ? dims->rotary_dim : dims->head_dim;
}

void tt_build_begin(struct tt_build *b, const struct tt_model *model, int64_t batch, int64_t seq_len,
                    struct tt_graph *graph)
{
    int64_t context = graph->cache_len ? graph->cache_len : seq_len;
    int64_t tokens[2] = {batch, seq_len}, table[3] = {context, rope_dim(&model->dims) / 2, 2};

    *b = (struct tt_build){.model = model, .graph = graph, .dtype = graph->dtype, .seq_len = context};
    graph->tokens = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "tokens", 2, tokens);
    if (!graph->cache_len)
        graph->labels = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "labels", 2, tokens);
    if (graph->documents || (graph->cache_len && batch > 1))
        graph->positions = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "positions", 2, tokens);
    graph->rope = tt_rope_of_context(&model->dims.rope, rope_dim(&model->dims), context);
    graph->local_rope = (struct tt_rope){.theta = model->dims.local_theta};
    if (!model->row->learned_positions)
        graph->rope_table = tt_graph_value(graph, TT_VALUE_CONST, tt_dtype_sums(graph->dtype), "rope_table", 3, table);
    if (model->dims.local_theta != 0.0 && model->dims.sliding_window > 0)
        graph->local_rope_table =
            tt_graph_value(graph, TT_VALUE_CONST, tt_dtype_sums(graph->dtype), "local_rope_table", 3, table);
}

void tt_build_block(struct tt_build *b, int block)
{
    b->graph->block = block;
    b->layer = block;
    b->prefix[0] = 0;
    if (block != TT_NONE)
        (void)snprintf(b->prefix, sizeof b->prefix, "layers.%d.", block);
}

/* The value of the parameter "<prefix><name>.<which>": of the part for the output, or of the part for all other
 * uses. */
static int find_param(struct tt_build *b, const char *layer, const char *which, bool output)
{
    const struct tt_model *model = b->model;
    char *name = tt_format("%s%s.%s", b->prefix, layer, which);
    int value = TT_NONE;

    /* Layers ask for their parameters almost in the order in which models list them. */
    for (int k = 0; k < model->n_params && value == TT_NONE; k++) {
        int i = (b->next_param + k) % model->n_params;

        if (strcmp(model->params[i].name, name) != 0)
            continue;
        value = tt_graph_param(b->graph, i, output && model->params[i].tied,
                               model->params[i].buffer ? tt_dtype_sums(b->dtype) : b->dtype, name,
                               model->params[i].ndim, model->params[i].shape);
        b->graph->values[value].constant = model->params[i].frozen;
        b->graph->values[value].tp = model->params[i].tp;
        b->graph->values[value].packing = model->params[i].packing;
        b->next_param = i;
    }
    if (value == TT_NONE) {
        (void)fprintf(stderr, "titan: bug in the builder of %s: no parameter '%s'\n", model->row->name, name);
        abort();
    }
    tt_free(name);
    return value;
}

int tt_build_param(struct tt_build *b, const char *layer, const char *which)
{
    return find_param(b, layer, which, false);
}

/* A node called "<prefix><layer>.<name>", or without a layer "<prefix><name>". */
static void add_node(struct tt_build *b, enum tt_op_id op, const char *layer, const char *name, const int *in, int n_in,
                     const struct tt_attr *attr, int n, int *ret_out)
{
    char *full = tt_format("%s%s%s%s", b->prefix, layer ? layer : "", layer ? "." : "", name);
    int id = tt_graph_node(b->graph, op, full, in, n_in, attr);

    for (int k = 0; k < n; k++)
        ret_out[k] = b->graph->nodes[id].out[k];
    tt_free(full);
}

void tt_build_node(struct tt_build *b, enum tt_op_id op, const char *name, const int *in, int n_in,
                   const struct tt_attr *attr, int n, int *ret_out)
{
    add_node(b, op, NULL, name, in, n_in, attr, n, ret_out);
}

static int node(struct tt_build *b, enum tt_op_id op, const char *name, const int *in, int n_in,
                const struct tt_attr *attr)
{
    int out;

    add_node(b, op, NULL, name, in, n_in, attr, 1, &out);
    return out;
}

int tt_build_embedding(struct tt_build *b, const char *name, const char *weight)
{
    int in[2] = {b->graph->tokens, tt_build_param(b, weight, "weight")};

    return node(b, TT_OP_EMBEDDING, name, in, 2, NULL);
}

int tt_build_rmsnorm_of(struct tt_build *b, const char *name, int x, double eps)
{
    struct tt_attr attr = {.eps = eps, .unit_offset = b->model->row->norm == TT_NORM_RMS_OFFSET};
    int in[2] = {x, tt_build_param(b, name, "weight")};

    return node(b, TT_OP_RMSNORM, name, in, 2, &attr);
}

static int layernorm(struct tt_build *b, const char *name, int x)
{
    struct tt_attr attr = {.eps = tt_hf_decimal(b->model->dims.norm_eps)};
    bool has_bias = b->model->row->norm == TT_NORM_LAYER;
    int in[3] = {x, tt_build_param(b, name, "weight"), has_bias ? tt_build_param(b, name, "bias") : TT_NONE};

    return node(b, TT_OP_LAYERNORM, name, in, 3, &attr);
}

int tt_build_norm(struct tt_build *b, const char *name, int x)
{
    enum tt_norm_kind kind = b->model->row->norm;

    return kind == TT_NORM_LAYER || kind == TT_NORM_LAYER_PLAIN
               ? layernorm(b, name, x)
               : tt_build_rmsnorm_of(b, name, x, tt_hf_decimal(b->model->dims.norm_eps));
}

/* x times a constant; a constant of 0 stands for 1. */
static int scaled(struct tt_build *b, const char *name, int x, double by)
{
    struct tt_attr attr = {.scale = by};

    return by == 0.0 || by == 1.0 ? x : node(b, TT_OP_SCALE, name, &x, 1, &attr);
}

/* A node "<name>.<suffix>" that reads x and perhaps a weight. */
static int part(struct tt_build *b, enum tt_op_id op, const char *name, const char *suffix, int x, int w,
                const struct tt_attr *attr)
{
    int in[2] = {x, w}, out;

    add_node(b, op, name, suffix, in, w == TT_NONE ? 1 : 2, attr, 1, &out);
    return out;
}

/* The input of A. Each A has its own random numbers. */
static int dropped(struct tt_build *b, const char *name, int a, int x)
{
    double rate = b->model->dims.lora.dropout;
    char *stream = tt_format("dropout of %s", b->model->params[a].name);
    struct tt_attr attr = {.seq_len = b->seq_len, .dropout = {rate, tt_rng_make(0, stream).stream, 0}};

    tt_free(stream);
    if (b->trains && rate > 0.0)
        add_node(b, TT_OP_DROPOUT, name, "lora_dropout", (const int[]){x, TT_NONE}, 2, &attr, 1, &x);
    return x;
}

/* The product with the adapter. Scales the narrow product, which is cheaper than scaling the wide one. Parts of one
 * tensor share it. */
static int adapter(struct tt_build *b, const char *name, const char *weight, int a, int x)
{
    struct tt_attr attr = {.scale = tt_lora_scale(&b->model->dims.lora)};

    if (b->narrow_of != a) {
        b->dropped = dropped(b, name, a, x);
        b->lora_a = tt_build_param(b, weight, "lora_a.weight");
        b->narrow = part(b, TT_OP_LINEAR, name, "lora_a", b->dropped, b->lora_a, NULL);
        b->narrow = part(b, TT_OP_SCALE, name, "lora_scale", b->narrow, TT_NONE, &attr);
        b->narrow_of = a;
    }
    return part(b, TT_OP_LINEAR, name, "lora_b", b->narrow, tt_build_param(b, weight, "lora_b.weight"), NULL);
}

/* y = x m / |W + s B A|, where x is the product with W and the adapter. */
static int magnified(struct tt_build *b, const char *name, const char *weight, int w, int x)
{
    struct tt_attr attr = {.scale = tt_lora_scale(&b->model->dims.lora)};
    int of[3] = {w, b->lora_a, tt_build_param(b, weight, "lora_b.weight")}, in[3], y;

    add_node(b, TT_OP_ROW_SQUARES, name, "squares", of, 3, &attr, 1, &in[2]);
    in[0] = x;
    in[1] = tt_build_param(b, weight, "lora_m.weight");
    add_node(b, TT_OP_DORA, name, "magnified", in, 3, NULL, 1, &y);
    return y;
}

int tt_build_linear(struct tt_build *b, const char *name, const char *weight, int x)
{
    const struct tt_attr minus = {.scale = -1.0};
    int in[2] = {x, tt_build_param(b, weight, "weight")}, base, added, of_dropped, y;
    const struct tt_param *param = &b->model->params[b->next_param];

    if (!param->adapted)
        return node(b, TT_OP_LINEAR, name, in, 2, NULL);
    base = part(b, TT_OP_LINEAR, name, "base", x, in[1], NULL);
    added = adapter(b, name, weight, param->lora_a, x);
    if (!param->lora_m)
        return tt_build_add(b, name, base, added);
    if (b->dropped == x)
        return magnified(b, name, weight, in[1], part(b, TT_OP_ADD, name, "sum", base, added, NULL));
    /* as in PEFT, the frozen product is of x, and what DoRA adds to it is of the x that dropout leaves */
    of_dropped = part(b, TT_OP_LINEAR, name, "of_dropped", b->dropped, in[1], NULL);
    y = magnified(b, name, weight, in[1], part(b, TT_OP_ADD, name, "sum", of_dropped, added, NULL));
    of_dropped = part(b, TT_OP_SCALE, name, "less", of_dropped, TT_NONE, &minus);
    return tt_build_add(b, name, part(b, TT_OP_ADD, name, "base_less", base, of_dropped, NULL), y);
}

int tt_build_affine(struct tt_build *b, const char *name, const char *layer, int x)
{
    char *product = tt_format("%s.product", name);
    int in[2] = {tt_build_linear(b, product, layer, x), tt_build_param(b, layer, "bias")};

    tt_free(product);
    return node(b, TT_OP_BIAS, name, in, 2, NULL);
}

/* x plus the learned embedding of each token's position. */
static int add_positions(struct tt_build *b, const char *name, const char *weight, int x)
{
    struct tt_attr attr = {.seq_len = b->seq_len, .from_position = tt_build_from_position(b)};
    int in[3] = {x, tt_build_param(b, weight, "weight"), b->graph->positions};

    return node(b, TT_OP_POSITION, name, in, 3, &attr);
}

int tt_build_rope(struct tt_build *b, const char *name, int x, int64_t heads, bool rotate_half)
{
    struct tt_attr attr = {.seq_len = b->seq_len,
                           .heads = (int)heads,
                           .head_dim = (int)b->model->dims.head_dim,
                           .rotated = (int)b->model->dims.rotary_dim,
                           .rotate_half = rotate_half,
                           .from_position = tt_build_from_position(b)};
    int in[3] = {x, b->graph->rope_table, b->graph->positions};

    if (b->layer != TT_NONE && tt_layers_have(&b->model->dims.unrotated, b->layer))
        return x;
    if (b->graph->local_rope_table != TT_NONE && tt_model_is_windowed(&b->model->dims, b->layer))
        in[1] = b->graph->local_rope_table;
    return node(b, TT_OP_ROPE, name, in, 3, &attr);
}

int tt_build_cache(struct tt_build *b, const char *name, const char *what, int64_t heads, int64_t dim)
{
    int64_t shape[3] = {b->graph->sequences * heads, b->graph->cache_len, dim};
    char *full = tt_format("%s%s.%s", b->prefix, name, what);
    int value = tt_graph_value(b->graph, TT_VALUE_CACHE, b->dtype, full, 3, shape);

    tt_free(full);
    return value;
}

int tt_build_attention(struct tt_build *b, const char *name, const int *qkv, int sinks, int64_t window)
{
    const struct tt_model_dims *d = &b->model->dims;
    struct tt_attr attr = {.seq_len = b->seq_len,
                           .heads = (int)d->n_heads,
                           .kv_heads = (int)d->n_kv_heads,
                           .head_dim = (int)d->head_dim,
                           .sliding_window = window,
                           .scale = d->multipliers.attention,
                           .soft_cap = d->score_cap};
    int in[7] = {qkv[0], qkv[1], qkv[2], b->graph->positions, sinks, sinks, b->graph->positions};

    if (!b->graph->cache_len)
        return node(b, TT_OP_ATTENTION, name, in, 5, &attr);
    in[3] = tt_build_cache(b, name, "k_cache", d->n_kv_heads, d->head_dim);
    in[4] = tt_build_cache(b, name, "v_cache", d->n_kv_heads, d->head_dim);
    return node(b, TT_OP_CACHED_ATTENTION, name, in, 7, &attr);
}

int tt_build_add(struct tt_build *b, const char *name, int x, int y)
{
    int in[2] = {x, y};

    return node(b, TT_OP_ADD, name, in, 2, NULL);
}

static struct tt_router router_of(const struct tt_moe *moe)
{
    return (struct tt_router){.score = moe->score,
                              .group_rule = moe->group_rule,
                              .normalize = !moe->gates_as_scored,
                              .balanced = moe->balanced,
                              .groups = (int)moe->groups,
                              .kept_groups = (int)moe->kept_groups,
                              .scale = moe->route_scale};
}

int tt_build_experts(struct tt_build *b, int x, bool router_bias, tt_expert_fn expert)
{
    const struct tt_moe *moe = &b->model->dims.moe;
    struct tt_attr attr = {
        .seq_len = b->seq_len, .experts = (int)moe->experts, .top_k = (int)moe->top_k, .router = router_of(moe)};
    int routed[5] = {x, tt_build_param(b, "moe.router.gate", "weight"),
                     moe->biased ? tt_build_param(b, "moe", "expert_bias") : TT_NONE,
                     router_bias ? tt_build_param(b, "moe.router.gate", "bias") : TT_NONE, b->graph->labels};
    int chosen[2], sent[3], in[3];

    tt_build_node(b, TT_OP_ROUTER, "moe.router", routed, 5, &attr, 2, chosen);
    tt_build_node(b, TT_OP_DISPATCH, "moe.rows", (const int[]){x, chosen[0]}, 2, &attr, 3, sent);
    in[0] = expert(b, sent[0], sent[2], &attr);
    in[1] = chosen[1];
    in[2] = sent[1];
    return node(b, TT_OP_COMBINE, "moe.out", in, 3, NULL);
}

int tt_build_gated(struct tt_build *b, const char *name, int gate, int up)
{
    const struct tt_decoder *decoder = b->model->row->decoder;
    bool gelu = decoder && decoder->activation == TT_ACTIVATION_GELU_TANH;
    int in[2] = {gate, up};

    return node(b, gelu ? TT_OP_GEGLU : TT_OP_SWIGLU, name, in, 2, NULL);
}

void tt_build_head_loss(struct tt_build *b, const char *weight, int x)
{
    struct tt_attr attr = {.soft_cap = b->model->dims.logit_cap};
    int in[3] = {x, find_param(b, weight, "weight", true), b->graph->labels};

    if (b->graph->cache_len)
        b->graph->logits = node(b, TT_OP_LOGITS, "logits", in, 2, &attr);
    else
        b->graph->token_loss = node(b, TT_OP_HEAD_LOSS, "token_loss", in, 3, &attr);
}

const struct tt_norm_names *tt_norm_names_of(const struct tt_model_row *row)
{
    static const struct tt_norm_names llama = {"input_layernorm", NULL, "post_attention_layernorm", NULL};
    const struct tt_norm_names *names = row->decoder ? &row->decoder->hf_norms : &llama;

    return names->before_attention || names->after_attention || names->before_ffn || names->after_ffn ? names : &llama;
}

static int norm_if(struct tt_build *b, const char *wanted, const char *name, int x)
{
    return wanted ? tt_build_norm(b, name, x) : x;
}

/* x plus `y`, the output of a part of a block. */
static int add_residual(struct tt_build *b, const char *name, const char *scaled_name, int x, int y)
{
    return tt_build_add(b, name, x, scaled(b, scaled_name, y, b->model->dims.multipliers.residual));
}

/*
 * A copy of x for attention, if the feed-forward reads x too. With tensor parallelism, each of the two parts sums the
 * gradient of its input over grains, so each needs its own input.
 */
static int apart(struct tt_build *b, const char *name, int x)
{
    const struct tt_attr exactly = {.scale = 1.0F};

    return b->graph->cache_len ? x : node(b, TT_OP_SCALE, name, &x, 1, &exactly);
}

static int block(struct tt_build *b, int layer, int x)
{
    const struct tt_model_row *row = b->model->row;
    const struct tt_norm_names *norms = tt_norm_names_of(row);
    bool parallel = b->model->dims.parallel;
    int read = norm_if(b, norms->before_attention, "attention_norm", x);
    int own = parallel && !norms->before_ffn ? apart(b, "attention_input", read) : read;
    int y = norm_if(b, norms->after_attention, "attention_post_norm", row->parts->attention(b, layer, own));
    int after = add_residual(b, "attention_residual", "attention_scaled", x, y);

    if (!parallel)
        read = norm_if(b, norms->before_ffn, "ffn_norm", after);
    else if (norms->before_ffn)
        read = tt_build_norm(b, "ffn_norm", x);
    y = norm_if(b, norms->after_ffn, "ffn_post_norm", row->parts->feed_forward(b, layer, read));
    return add_residual(b, "out", "ffn_scaled", after, y);
}

/* The graph of a row's parts: the embedding, blocks with two residuals, the last norm, the head. */
static void build(const struct tt_model *model, bool trains, int64_t batch, int64_t seq_len, struct tt_graph *graph)
{
    const struct tt_multipliers *multipliers = &model->dims.multipliers;
    bool by_width = model->row->decoder && model->row->decoder->scaled_embeddings;
    double embedding = by_width ? sqrt((double)model->dims.dim) : multipliers->embedding;
    struct tt_build b;
    int x;

    tt_build_begin(&b, model, batch, seq_len, graph);
    b.trains = trains;
    x = tt_build_embedding(&b, "embeddings", "tok_embeddings");
    x = scaled(&b, "embeddings_scaled", x, embedding);
    if (model->row->learned_positions)
        x = add_positions(&b, "positions", "pos_embeddings", x);
    for (int l = 0; l < model->dims.n_layers; l++) {
        tt_build_block(&b, l);
        x = block(&b, l, x);
    }
    tt_build_block(&b, TT_NONE);
    x = scaled(&b, "norm_scaled", tt_build_norm(&b, "norm", x), multipliers->logits);
    tt_build_head_loss(&b, model->dims.tied ? "tok_embeddings" : "output", x);
}

/* Appends the backward pass from the loss; ret_param_grad by parameter. */
static int differentiate(struct tt_graph *graph, int n_params, int *ret_param_grad)
{
    const struct tt_seed loss = {graph->token_loss, TT_GRAD_OF_LOSS};
    int n_values = graph->n_values, rc = 0;
    int *grad = tt_calloc((size_t)n_values, sizeof *grad);

    TT_TRY(tt_graph_differentiate(graph, &loss, 1, grad));
    for (int p = 0; p < n_params; p++)
        ret_param_grad[p] = TT_NONE;
    for (int v = 0; v < n_values; v++)
        if (graph->values[v].kind == TT_VALUE_PARAM && graph->values[v].part == 0)
            ret_param_grad[graph->values[v].param] = grad[v];
out:
    tt_free(grad);
    return rc;
}

int tt_model_graph(const struct tt_model *model, enum tt_graph_mode mode, enum tt_dtype dtype, int64_t batch,
                   int64_t seq_len, bool documents, struct tt_graph **ret_graph, int *ret_param_grad)
{
    struct tt_graph *graph;
    int rc = 0;

    if ((rc = tt_model_check_seq_len(model, seq_len, documents)) < 0)
        return rc;
    graph = tt_graph_new();
    graph->dtype = dtype;
    graph->documents = documents;
    build(model, mode != TT_GRAPH_VALIDATE, batch, seq_len, graph);
    if (mode == TT_GRAPH_TRAIN)
        TT_TRY(differentiate(graph, model->n_params, ret_param_grad));
    *ret_graph = graph;
    graph = NULL;
out:
    tt_graph_free(graph);
    return rc;
}

int tt_model_decode_graph(const struct tt_model *model, enum tt_dtype dtype, const struct tt_decode *of,
                          struct tt_graph **ret_graph)
{
    struct tt_graph *graph;
    const struct tt_rope *rope = &model->dims.rope;
    int rc = tt_model_check_seq_len(model, of->context, false);

    if (rc < 0)
        return rc;
    if (rope->dynamic && (double)of->context > rope->original_max)
        return tt_fail(
            TT_EUSAGE,
            "a context of %lld tokens is longer than the %g positions of %s, whose rope_type is dynamic: "
            "beyond these its base changes with every token, which titan does not support\nhelp: shorten the "
            "prompt or generate fewer tokens, or change rope_scaling in config.json to yarn or linear",
            (long long)of->context, rope->original_max, model->title);
    graph = tt_graph_new();
    graph->dtype = dtype;
    graph->cache_len = of->context;
    graph->sequences = of->sequences ? of->sequences : 1;
    build(model, false, of->each ? graph->sequences : 1, of->each ? 1 : of->rows, graph);
    *ret_graph = graph;
    return 0;
}

int tt_model_packable(const struct tt_model *model, bool generation, bool *ret_packable)
{
    const struct tt_decode one = {.context = 1, .rows = 1};
    struct tt_graph *graph = NULL;
    int rc = 0;

    TT_TRY(generation ? tt_model_decode_graph(model, TT_F32, &one, &graph)
                      : tt_model_graph(model, TT_GRAPH_VALIDATE, TT_F32, 1, 1, false, &graph, NULL));
    for (int p = 0; p < model->n_params; p++)
        ret_packable[p] = model->params[p].ndim == 2 && !model->params[p].buffer;
    for (int n = 0; n < graph->n_nodes; n++) {
        const struct tt_node *node = &graph->nodes[n];

        for (int i = 0; i < node->n_in; i++) {
            const struct tt_value *value = node->in[i] == TT_NONE ? NULL : &graph->values[node->in[i]];

            if (value && value->kind == TT_VALUE_PARAM && !(tt_op_row(node->op)->unpacks & 1U << i))
                ret_packable[value->param] = false;
        }
    }
out:
    tt_graph_free(graph);
    return rc;
}
