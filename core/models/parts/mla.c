/* SPDX-License-Identifier: MIT
 *
 * Multi-head latent attention: parameters named as in torchtitan and in Hugging Face's DeepSeek, and the graph.
 */
#include "core/models/parts/mla.h"

#include <math.h>

/* Of the norms of latents: transformers has it whatever the configuration says. */
static const float latent_eps = 1e-6F;

static void add(struct tt_model *m, int l, const char *name, const char *hf_name, int64_t rows, int64_t columns,
                enum tt_param_tp tp)
{
    tt_params_matrix(m, l, name, hf_name, rows, columns, (struct tt_normal){.cut = 2.0, .depth = 1.0})->tp = tp;
}

/* Elements of a head of keys that are not rotated. */
static int64_t plain_dim(const struct tt_model_dims *d)
{
    return d->head_dim - d->mla.rope_dim;
}

void tt_mla_params(struct tt_model *m, int l, struct tt_normal deep)
{
    const struct tt_model_dims d = m->dims;
    int64_t queries = d.n_heads * d.head_dim;

    if (d.mla.q_rank) {
        add(m, l, "attention.wq_a.weight", "self_attn.q_a_proj.weight", d.mla.q_rank, d.dim, TT_TP_WHOLE);
        (void)tt_params_vector(m, l, "attention.q_norm.weight", "self_attn.q_a_layernorm.weight", d.mla.q_rank,
                               TT_PARAM_ONES);
        add(m, l, "attention.wq_b.weight", "self_attn.q_b_proj.weight", queries, d.mla.q_rank, TT_TP_ROWS);
    } else {
        add(m, l, "attention.wq.weight", "self_attn.q_proj.weight", queries, d.dim, TT_TP_ROWS);
    }
    add(m, l, "attention.wkv_a.weight", "self_attn.kv_a_proj_with_mqa.weight", d.mla.kv_rank + d.mla.rope_dim, d.dim,
        TT_TP_WHOLE);
    (void)tt_params_vector(m, l, "attention.kv_norm.weight", "self_attn.kv_a_layernorm.weight", d.mla.kv_rank,
                           TT_PARAM_ONES);
    add(m, l, "attention.wkv_b.weight", "self_attn.kv_b_proj.weight", d.n_heads * (plain_dim(&d) + d.mla.value_dim),
        d.mla.kv_rank, TT_TP_ROWS);
    tt_params_matrix(m, l, "attention.wo.weight", "self_attn.o_proj.weight", d.dim, d.n_heads * d.mla.value_dim, deep)
        ->tp = TT_TP_COLUMNS;
}

static int queries(struct tt_build *b, int x)
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
                           .from_position = b->graph->cache_len > 0};
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
                            .scale = (float)(tt_rope_score_scale(&d->rope) / sqrt((double)d->head_dim))};
}

/* Keys and values of all heads, and attention among them. */
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
    int in[2] = {x, tt_build_param(b, "attention.wkv_b")}, out;

    tt_build_node(b, TT_OP_HEAD_LINEAR, name, in, 2, &attr, 1, &out);
    return out;
}

/* The same on the latents: q W^T c = (q W) c, so all heads share one key, whose first part is their value too. */
static int on_latents(struct tt_build *b, int q, int latent, int rotated)
{
    const struct tt_model_dims *d = &b->model->dims;
    int64_t width = d->mla.kv_rank + d->mla.rope_dim;
    struct tt_attr attr = attention_attr(b, 1, width, d->mla.kv_rank);
    int parts[2], key[2] = {latent, rotated}, in[5], out;

    split(b, "attention.q_plain", q, d->n_heads, plain_dim(d), d->mla.rope_dim, parts);
    parts[0] = through(b, "attention.q_on_latent", parts[0], false);
    in[0] = join(b, "attention.q_joined", parts, d->n_heads, d->mla.kv_rank, d->mla.rope_dim, false);
    in[1] = join(b, "attention.k_joined", key, 1, d->mla.kv_rank, d->mla.rope_dim, false);
    in[2] = TT_NONE;
    in[3] = tt_build_cache(b, "attention.heads", "latent_cache", 1, width);
    in[4] = TT_NONE;
    tt_build_node(b, TT_OP_CACHED_ATTENTION, "attention.heads", in, 5, &attr, 1, &out);
    return through(b, "attention.values", out, true);
}

int tt_mla_build(struct tt_build *b, int x)
{
    const struct tt_model_dims *d = &b->model->dims;
    int q = rotate(b, "attention.q_rope", queries(b, x), d->n_heads, plain_dim(d)), parts[2], latent, rotated, heads;

    x = tt_build_linear(b, "attention.kv_latent", "attention.wkv_a", x);
    split(b, "attention.latent", x, 1, d->mla.kv_rank, d->mla.rope_dim, parts);
    latent = tt_build_rmsnorm_of(b, "attention.kv_norm", parts[0], latent_eps);
    rotated = rotate(b, "attention.k_rope", parts[1], 1, 0);
    heads = b->graph->cache_len ? on_latents(b, q, latent, rotated) : expanded(b, q, latent, rotated);
    return tt_build_linear(b, "attention.out", "attention.wo", heads);
}
