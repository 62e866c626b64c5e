/* SPDX-License-Identifier: MIT
 *
 * The parts that Llama-like models share: parameters named as in torchtitan, initialised by its rules (the same for
 * all), and mapped to Hugging Face's names; the graph of a block, with grouped-query attention or with multi-head
 * latent attention.
 */
#include <math.h>
#include <string.h>

#include "core/models/internal.h"

static const struct tt_normal plain = {.cut = 2.0, .depth = 1.0}; /* the cut is absolute, so it has no effect */

static void add_matrix(struct tt_model *m, int l, const char *name, const char *hf_name, int64_t rows, int64_t columns,
                       struct tt_normal normal, enum tt_param_tp tp)
{
    tt_params_matrix(m, l, name, hf_name, rows, columns, normal)->tp = tp;
}

/* --- multi-head latent attention --- */

/* Epsilon of the norms of latents: transformers uses it whatever the configuration says. */
static const double latent_eps = 1e-6;

/* The number of elements in a head of keys that are not rotated. */
static int64_t plain_dim(const struct tt_model_dims *d)
{
    return d->head_dim - d->mla.rope_dim;
}

/* Adds the parameters that replace wq, wk and wv in block l, and wo. `deep`: the init rule of wo. */
static void add_latent_attention(struct tt_model *m, int l, struct tt_normal deep)
{
    const struct tt_model_dims d = m->dims;
    int64_t queries = d.n_heads * d.head_dim;

    if (d.mla.q_rank) {
        add_matrix(m, l, "attention.wq_a.weight", "self_attn.q_a_proj.weight", d.mla.q_rank, d.dim, plain, TT_TP_WHOLE);
        tt_params_norm(m, l, "attention.q_norm", "self_attn.q_a_layernorm", d.mla.q_rank);
        add_matrix(m, l, "attention.wq_b.weight", "self_attn.q_b_proj.weight", queries, d.mla.q_rank, plain,
                   TT_TP_ROWS);
    } else {
        add_matrix(m, l, "attention.wq.weight", "self_attn.q_proj.weight", queries, d.dim, plain, TT_TP_ROWS);
    }
    add_matrix(m, l, "attention.wkv_a.weight", "self_attn.kv_a_proj_with_mqa.weight", d.mla.kv_rank + d.mla.rope_dim,
               d.dim, plain, TT_TP_WHOLE);
    tt_params_norm(m, l, "attention.kv_norm", "self_attn.kv_a_layernorm", d.mla.kv_rank);
    add_matrix(m, l, "attention.wkv_b.weight", "self_attn.kv_b_proj.weight",
               d.n_heads * (plain_dim(&d) + d.mla.value_dim), d.mla.kv_rank, plain, TT_TP_ROWS);
    add_matrix(m, l, "attention.wo.weight", "self_attn.o_proj.weight", d.dim, d.n_heads * d.mla.value_dim, deep,
               TT_TP_COLUMNS);
}

static int latent_queries(struct tt_build *b, int x)
{
    if (!b->model->dims.mla.q_rank)
        return tt_build_linear(b, "attention.q", "attention.wq", x);
    x = tt_build_linear(b, "attention.q_latent", "attention.wq_a", x);
    x = tt_build_rmsnorm_of(b, "attention.q_norm", x, latent_eps);
    return tt_build_linear(b, "attention.q", "attention.wq_b", x);
}

/* The last elements of every head, from `prefix` on, rotated as pairs (2i, 2i+1). */
static int rotate(struct tt_build *b, const char *name, int x, int64_t heads, int64_t prefix)
{
    struct tt_attr attr = {.seq_len = b->seq_len,
                           .heads = (int)heads,
                           .head_dim = (int)(prefix + b->model->dims.mla.rope_dim),
                           .prefix = (int)prefix,
                           .from_position = tt_build_from_position(b)};
    int in[3] = {x, b->graph->rope_table, b->graph->positions}, out;

    tt_build_node(b, TT_OP_ROPE, name, in, 3, &attr, 1, &out);
    return out;
}

static void split(struct tt_build *b, const char *name, int x, int64_t heads, int64_t first, int64_t second,
                  int *ret_parts)
{
    struct tt_attr attr = {.heads = (int)heads, .head_dim = (int)(first + second), .prefix = (int)first};

    tt_build_node(b, TT_OP_SPLIT, name, &x, 1, &attr, 2, ret_parts);
}

static int join(struct tt_build *b, const char *name, const int *parts, int64_t heads, int64_t first, int64_t second,
                bool shared)
{
    struct tt_attr attr = {
        .heads = (int)heads, .head_dim = (int)(first + second), .prefix = (int)first, .shared = shared};
    int out;

    tt_build_node(b, TT_OP_JOIN, name, parts, 2, &attr, 1, &out);
    return out;
}

/* The scale of scores, and the sizes of heads of keys and values. */
static struct tt_attr attention_attr(const struct tt_build *b, int64_t kv_heads, int64_t head_dim, int64_t value_dim)
{
    const struct tt_model_dims *d = &b->model->dims;

    return (struct tt_attr){.seq_len = b->seq_len,
                            .heads = (int)d->n_heads,
                            .kv_heads = (int)kv_heads,
                            .head_dim = (int)head_dim,
                            .value_dim = (int)value_dim,
                            .scale = tt_rope_score_scale(&d->rope) / sqrt((double)d->head_dim)};
}

/* Makes the keys and values of all heads, and attends to them. */
static int expanded(struct tt_build *b, int q, int latent, int rotated)
{
    const struct tt_model_dims *d = &b->model->dims;
    struct tt_attr attr = attention_attr(b, d->n_heads, d->head_dim, d->mla.value_dim);
    int kv = tt_build_linear(b, "attention.kv", "attention.wkv_b", latent), parts[2], k[2], in[4], out;

    split(b, "attention.k_plain", kv, d->n_heads, plain_dim(d), d->mla.value_dim, parts);
    k[0] = parts[0];
    k[1] = rotated;
    in[0] = q;
    in[1] = join(b, "attention.k", k, d->n_heads, plain_dim(d), d->mla.rope_dim, true);
    in[2] = parts[1];
    in[3] = b->graph->positions;
    tt_build_node(b, TT_OP_ATTENTION, "attention.heads", in, 4, &attr, 1, &out);
    return out;
}

/* Every head's product with its part of wkv_b: from its queries to the latent, or from the latent to its values. */
static int through(struct tt_build *b, const char *name, int x, bool to_values)
{
    const struct tt_model_dims *d = &b->model->dims;
    struct tt_attr attr = {.heads = (int)d->n_heads,
                           .head_dim = (int)(plain_dim(d) + d->mla.value_dim),
                           .prefix = (int)plain_dim(d),
                           .inverse = to_values};
    int in[2] = {x, tt_build_param(b, "attention.wkv_b", "weight")}, out;

    tt_build_node(b, TT_OP_HEAD_LINEAR, name, in, 2, &attr, 1, &out);
    return out;
}

/* The same on the latents: q W^T c = (q W) c, so all heads share one key, whose first part is their value too. */
static int on_latents(struct tt_build *b, int q, int latent, int rotated)
{
    const struct tt_model_dims *d = &b->model->dims;
    int64_t width = d->mla.kv_rank + d->mla.rope_dim;
    struct tt_attr attr = attention_attr(b, 1, width, d->mla.kv_rank);
    int parts[2], key[2] = {latent, rotated}, in[7], out;

    split(b, "attention.q_plain", q, d->n_heads, plain_dim(d), d->mla.rope_dim, parts);
    parts[0] = through(b, "attention.q_on_latent", parts[0], false);
    in[0] = join(b, "attention.q_joined", parts, d->n_heads, d->mla.kv_rank, d->mla.rope_dim, false);
    in[1] = join(b, "attention.k_joined", key, 1, d->mla.kv_rank, d->mla.rope_dim, false);
    in[2] = TT_NONE;
    in[3] = tt_build_cache(b, "attention.heads", "latent_cache", 1, width);
    in[4] = in[5] = TT_NONE;
    in[6] = b->graph->positions;
    tt_build_node(b, TT_OP_CACHED_ATTENTION, "attention.heads", in, 7, &attr, 1, &out);
    return through(b, "attention.values", out, true);
}

/*
 * The attention of x (N, D), from the heads of queries to wo. In a decode graph, the only cache holds the latents with
 * the rotated keys, and the heads' part of wkv_b is applied to queries and results instead of to every latent.
 */
static int latent_attention(struct tt_build *b, int x)
{
    const struct tt_model_dims *d = &b->model->dims;
    int q = rotate(b, "attention.q_rope", latent_queries(b, x), d->n_heads, plain_dim(d)), parts[2], latent, rotated,
        heads;

    x = tt_build_linear(b, "attention.kv_latent", "attention.wkv_a", x);
    split(b, "attention.latent", x, 1, d->mla.kv_rank, d->mla.rope_dim, parts);
    latent = tt_build_rmsnorm_of(b, "attention.kv_norm", parts[0], latent_eps);
    rotated = rotate(b, "attention.k_rope", parts[1], 1, 0);
    heads = b->graph->cache_len ? on_latents(b, q, latent, rotated) : expanded(b, q, latent, rotated);
    return tt_build_linear(b, "attention.out", "attention.wo", heads);
}

/* --- blocks --- */

/* Hugging Face's names, for layers to which the decoder gives none. */
static const char *const llama_heads[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                          "self_attn.o_proj"};
static const char *const llama_ffn[] = {"mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"};

static const char *const *heads_names(const struct tt_decoder *of)
{
    return of->hf_heads[0] ? of->hf_heads : llama_heads;
}

static const char *const *ffn_names(const struct tt_decoder *of)
{
    return of->hf_ffn[0] ? of->hf_ffn : llama_ffn;
}

bool tt_model_is_gated(const struct tt_model_row *row)
{
    return row->decoder ? ffn_names(row->decoder)[2] != NULL : !row->learned_positions;
}

/*
 * A linear layer (rows, columns), perhaps with a bias, that tensor parallelism cuts as `tp` says. Returns its weight:
 * the last parameter or the one before.
 */
static struct tt_param *add_layer(struct tt_model *m, int l, const char *name, const char *hf_name, int64_t rows,
                                  int64_t columns, struct tt_normal normal, bool bias, enum tt_param_tp tp)
{
    struct tt_param *p = tt_params_linear(m, l, name, hf_name, rows, columns, normal, bias);

    p[0].tp = tp;
    if (bias)
        p[1].tp = tp == TT_TP_ROWS ? tp : TT_TP_WHOLE;
    return p;
}

/* Marks which of the parameters from `first` on, in order, are parts of one tensor. */
static void join_parts(struct tt_model *m, int first)
{
    for (int i = first; i < m->n_params; i++) {
        int64_t rows = 0;
        int n = 0;

        for (int k = first; k < m->n_params; k++) {
            if (strcmp(m->params[k].hf_name, m->params[i].hf_name) != 0)
                continue;
            if (k == i) {
                m->params[i].hf_part = n;
                m->params[i].hf_row = rows;
            }
            rows += m->params[k].shape[0];
            n++;
        }
        m->params[i].hf_parts = n > 1 ? n : 0;
        m->params[i].hf_rows = n > 1 ? rows : 0;
    }
}

/*
 * Adds q, k or v. In files for rotating halves, the rows of each head are in another order than for pairs.
 *   is_whole   every rank that shares the layer has all of it
 */
static void add_heads(struct tt_model *m, int l, const char *name, const char *hf_name, int64_t heads, bool is_rotated,
                      bool is_whole)
{
    const struct tt_decoder *decoder = m->row->decoder;
    struct tt_param *p = add_layer(m, l, name, hf_name, heads * m->dims.head_dim, m->dims.dim, plain,
                                   decoder->qkv_bias || m->dims.qkv_bias, is_whole ? TT_TP_WHOLE : TT_TP_ROWS);

    for (; p < m->params + m->n_params; p++) {
        if (decoder->heads_in_turn) {
            p->hf_transform = TT_HF_HEADS_IN_TURN;
            p->hf_heads = (int)heads;
        }
        if (!is_rotated || decoder->rotate_half || decoder->pairs_in_files)
            continue;
        p->hf_transform = TT_HF_ROPE_PAIRS;
        p->hf_heads = (int)heads;
    }
}

/* Adds the norm of q or of k, which have `heads` heads. Weights of each head's own are cut as the heads are. */
static void add_qk_norm(struct tt_model *m, int l, const char *name, const char *hf_name, int64_t heads)
{
    enum tt_qk_norm kind = tt_qk_norm_of(m);
    struct tt_param *p;

    if (kind == TT_QK_NONE)
        return;
    tt_params_norm(m, l, name, hf_name, m->dims.head_dim * (kind == TT_QK_WIDTH ? heads : 1));
    if (kind != TT_QK_EACH)
        return;
    p = &m->params[m->n_params - 1];
    p->ndim = 2;
    p->shape[0] = heads;
    p->shape[1] = m->dims.head_dim;
    p->vectors = true;
    p->tp = TT_TP_ROWS;
}

/* q and k, whose norms over all heads need them whole, are made by each rank for its rows of tokens. */
static void add_attention(struct tt_model *m, int l, struct tt_normal deep)
{
    const struct tt_decoder *of = m->row->decoder;
    const struct tt_model_dims d = m->dims;
    const char *const *hf = heads_names(of);
    bool whole = tt_qk_norm_of(m) == TT_QK_WIDTH;
    int first = m->n_params;

    add_heads(m, l, "attention.wq", hf[0], d.n_heads, true, whole);
    add_heads(m, l, "attention.wk", hf[1], d.n_kv_heads, true, whole);
    add_qk_norm(m, l, "attention.q_norm", "self_attn.q_norm", d.n_heads);
    add_qk_norm(m, l, "attention.k_norm", "self_attn.k_norm", d.n_kv_heads);
    add_heads(m, l, "attention.wv", hf[2], d.n_kv_heads, false, false);
    join_parts(m, first);
    add_layer(m, l, "attention.wo", hf[3], d.dim, d.n_heads * d.head_dim, deep, d.out_bias, TT_TP_COLUMNS);
}

/* torchtitan's order and init rules: the router and the layers that add to the residual have the same small initial
 * weights. */
static void add_experts(struct tt_model *m, int l, struct tt_normal deep)
{
    const struct tt_decoder *of = m->row->decoder;
    const struct tt_model_dims d = m->dims;
    const char *const *hf = of->hf_experts, *const *shared = of->hf_shared;
    int64_t width = tt_moe_shared_width(&d.moe);

    (void)tt_params_experts(m, l, "moe.experts.w1", hf[1], d.moe.experts, d.moe.ffn_dim, d.dim, plain);
    (void)tt_params_experts(m, l, "moe.experts.w2", hf[2], d.moe.experts, d.dim, d.moe.ffn_dim, deep);
    (void)tt_params_experts(m, l, "moe.experts.w3", hf[3], d.moe.experts, d.moe.ffn_dim, d.dim, deep);
    (void)tt_params_matrix(m, l, "moe.router.gate.weight", hf[0], d.moe.experts, d.dim, deep);
    if (d.moe.biased)
        (void)tt_params_buffer(m, l, "moe.expert_bias", d.moe.score == TT_SCORE_SIGMOID ? of->hf_bias : NULL,
                               d.moe.experts);
    if (width == 0)
        return;
    add_matrix(m, l, "moe.shared_experts.w1.weight", shared[0], width, d.dim, plain, TT_TP_ROWS);
    add_matrix(m, l, "moe.shared_experts.w2.weight", shared[1], d.dim, width, deep, TT_TP_COLUMNS);
    add_matrix(m, l, "moe.shared_experts.w3.weight", shared[2], width, d.dim, deep, TT_TP_ROWS);
    if (d.moe.shared_dim)
        add_matrix(m, l, "moe.shared_experts.gate.weight", of->hf_shared_gate, 1, d.dim, deep, TT_TP_WHOLE);
}

static void add_dense(struct tt_model *m, int l, struct tt_normal deep)
{
    const struct tt_model_dims d = m->dims;
    const char *const *hf = ffn_names(m->row->decoder);
    int first = m->n_params;

    add_layer(m, l, "feed_forward.w1", hf[0], d.ffn_dim, d.dim, plain, d.mlp_bias, TT_TP_ROWS);
    if (hf[2])
        add_layer(m, l, "feed_forward.w3", hf[2], d.ffn_dim, d.dim, deep, d.mlp_bias, TT_TP_ROWS);
    join_parts(m, first);
    add_layer(m, l, "feed_forward.w2", hf[1], d.dim, d.ffn_dim, deep, d.mlp_bias, TT_TP_COLUMNS);
}

static void add_norm(struct tt_model *m, int l, const char *name, const char *hf_name)
{
    if (hf_name)
        tt_params_norm(m, l, name, hf_name, m->dims.dim);
}

static void add_block(struct tt_model *m, int l)
{
    const struct tt_norm_names *norms = tt_norm_names_of(m->row);
    struct tt_normal deep = {.cut = 2.0, .depth = sqrt(2.0 * (l + 1.0))}; /* the residual's share, by depth */

    add_norm(m, l, "attention_norm", norms->before_attention);
    (m->dims.mla.kv_rank ? add_latent_attention : add_attention)(m, l, deep);
    add_norm(m, l, "attention_post_norm", norms->after_attention);
    add_norm(m, l, "ffn_norm", norms->before_ffn);
    (tt_model_has_experts(&m->dims, l) ? add_experts : add_dense)(m, l, deep);
    add_norm(m, l, "ffn_post_norm", norms->after_ffn);
}

/* The product with a layer, including its bias if `bias` is set. */
static int product(struct tt_build *b, const char *name, const char *layer, int x, bool bias)
{
    return bias ? tt_build_affine(b, name, layer, x) : tt_build_linear(b, name, layer, x);
}

static int grouped_attention(struct tt_build *b, int layer, int x)
{
    const struct tt_decoder *decoder = b->model->row->decoder;
    const struct tt_model_dims *d = &b->model->dims;
    bool bias = decoder->qkv_bias || d->qkv_bias;
    int qkv[3];

    qkv[0] = product(b, "attention.q", "attention.wq", x, bias);
    qkv[1] = product(b, "attention.k", "attention.wk", x, bias);
    qkv[2] = product(b, "attention.v", "attention.wv", x, bias);
    if (tt_qk_norm_of(b->model) != TT_QK_NONE) {
        qkv[0] = tt_build_norm(b, "attention.q_norm", qkv[0]);
        qkv[1] = tt_build_norm(b, "attention.k_norm", qkv[1]);
    }
    qkv[0] = tt_build_rope(b, "attention.q_rope", qkv[0], d->n_heads, decoder->rotate_half);
    qkv[1] = tt_build_rope(b, "attention.k_rope", qkv[1], d->n_kv_heads, decoder->rotate_half);
    x = tt_build_attention(b, "attention.heads", qkv, TT_NONE, tt_model_is_windowed(d, layer) ? d->sliding_window : 0);
    return product(b, "attention.out", "attention.wo", x, d->out_bias);
}

static int dense(struct tt_build *b, int x)
{
    const struct tt_decoder *of = b->model->row->decoder;
    bool bias = b->model->dims.mlp_bias, exact = of->activation == TT_ACTIVATION_GELU && !b->model->dims.tanh_gelu;
    int up, hidden;

    if (!tt_model_is_gated(b->model->row)) {
        hidden = product(b, "feed_forward.in", "feed_forward.w1", x, bias);
        tt_build_node(b, exact ? TT_OP_GELU_ERF : TT_OP_GELU, "feed_forward.hidden", &hidden, 1, NULL, 1, &hidden);
    } else {
        hidden = product(b, "feed_forward.gate", "feed_forward.w1", x, bias);
        up = product(b, "feed_forward.up", "feed_forward.w3", x, bias);
        hidden = tt_build_gated(b, "feed_forward.hidden", hidden, up);
    }
    return product(b, "feed_forward.out", "feed_forward.w2", hidden, bias);
}

/* The rows of each expert times its matrix of `weight`. */
static int products(struct tt_build *b, const char *name, const char *weight, int rows, int ends,
                    const struct tt_attr *attr)
{
    int in[3] = {rows, tt_build_param(b, "moe.experts", weight), ends}, out;

    tt_build_node(b, TT_OP_EXPERTS, name, in, 3, attr, 1, &out);
    return out;
}

static int expert(struct tt_build *b, int rows, int ends, const struct tt_attr *attr)
{
    int gate = products(b, "moe.gate", "w1", rows, ends, attr), up = products(b, "moe.up", "w3", rows, ends, attr);

    return products(b, "moe.down", "w2", tt_build_gated(b, "moe.hidden", gate, up), ends, attr);
}

/* The sum of the outputs of a token's own experts and of the shared ones. */
static int experts(struct tt_build *b, int x)
{
    int gate, up, hidden, routed = tt_build_experts(b, x, false, expert), shared[2];

    if (tt_moe_shared_width(&b->model->dims.moe) == 0)
        return routed;
    gate = tt_build_linear(b, "moe.shared_gate", "moe.shared_experts.w1", x);
    up = tt_build_linear(b, "moe.shared_up", "moe.shared_experts.w3", x);
    hidden = tt_build_gated(b, "moe.shared_hidden", gate, up);
    shared[0] = tt_build_linear(b, "moe.shared_out", "moe.shared_experts.w2", hidden);
    if (b->model->dims.moe.shared_dim) {
        shared[1] = tt_build_linear(b, "moe.shared_share", "moe.shared_experts.gate", x);
        tt_build_node(b, TT_OP_GATE_ROWS, "moe.shared_gated", shared, 2, NULL, 1, shared);
    }
    return tt_build_add(b, "moe.all", routed, shared[0]);
}

static int attention(struct tt_build *b, int layer, int x)
{
    return b->model->dims.mla.kv_rank ? latent_attention(b, x) : grouped_attention(b, layer, x);
}

static int feed_forward(struct tt_build *b, int layer, int x)
{
    return tt_model_has_experts(&b->model->dims, layer) ? experts(b, x) : dense(b, x);
}

const struct tt_model_parts tt_decoder_parts = {add_block, attention, feed_forward};
