/* SPDX-License-Identifier: MIT
 *
 * What Llama-like models share: parameters named as in torchtitan, initialised by its rules (the same for both), and
 * mapped to Hugging Face's names; the graph of a block.
 */
#include "core/models/parts/decoder.h"

#include <math.h>

#include "core/models/build.h"
#include "core/models/hf/config.h"
#include "core/models/params.h"
#include "core/models/parts/mla.h"

int tt_decoder_read_hf(const void *config, const char *where, struct tt_model_dims *ret_dims)
{
    struct tt_model_dims d = tt_hf_class(config)->dims;
    int rc = 0;

    TT_TRY(tt_hf_check(config, where));
    TT_TRY(tt_hf_must_be(config, "hidden_act", "silu", where));
    TT_TRY(tt_hf_must_be_off(config, "attention_bias", where));
    TT_TRY(tt_hf_must_be_off(config, "mlp_bias", where));
    TT_TRY(tt_hf_sizes(config, where, &d));
    TT_TRY(tt_hf_windows(config, where, &d));
    if (!d.mla.kv_rank) /* there, of what is rotated */
        TT_TRY(tt_hf_int(config, "head_dim", d.head_dim, where, &d.head_dim));
    *ret_dims = d;
out:
    return rc;
}

static void add_norm(struct tt_model *m, int block, const char *name, const char *hf_name, int64_t width)
{
    (void)tt_params_vector(m, block, name, hf_name, width, TT_PARAM_ONES);
}

/* Adds q or k. Files for rotating halves have the rows of each head in a different order from that for pairs. */
static void add_rotated(struct tt_model *m, const struct tt_decoder *decoder, int block, const char *name,
                        const char *hf_name, int64_t heads)
{
    struct tt_param *p = tt_params_matrix(m, block, name, hf_name, heads * m->dims.head_dim, m->dims.dim,
                                          (struct tt_normal){.cut = 2.0, .depth = 1.0});

    p->tp = TT_TP_ROWS;
    if (decoder->rotate_half)
        return;
    p->hf_transform = TT_HF_ROPE_PAIRS;
    p->hf_heads = (int)heads;
}

static void add_attention(struct tt_model *m, const struct tt_decoder *decoder, int l, struct tt_normal deep)
{
    const struct tt_model_dims *d = &m->dims;

    add_rotated(m, decoder, l, "attention.wq.weight", "self_attn.q_proj.weight", d->n_heads);
    add_rotated(m, decoder, l, "attention.wk.weight", "self_attn.k_proj.weight", d->n_kv_heads);
    if (decoder->qk_norm) {
        add_norm(m, l, "attention.q_norm.weight", "self_attn.q_norm.weight", d->head_dim);
        add_norm(m, l, "attention.k_norm.weight", "self_attn.k_norm.weight", d->head_dim);
    }
    tt_params_matrix(m, l, "attention.wv.weight", "self_attn.v_proj.weight", d->n_kv_heads * d->head_dim, d->dim,
                     (struct tt_normal){.cut = 2.0, .depth = 1.0})
        ->tp = TT_TP_ROWS;
    tt_params_matrix(m, l, "attention.wo.weight", "self_attn.o_proj.weight", d->dim, d->n_heads * d->head_dim, deep)
        ->tp = TT_TP_COLUMNS;
}

static void add_shared(struct tt_model *m, const struct tt_decoder *decoder, int l, struct tt_normal plain,
                       struct tt_normal deep)
{
    const char *const *hf = decoder->hf_shared;
    int64_t width = m->dims.moe.shared * m->dims.moe.ffn_dim, dim = m->dims.dim;

    tt_params_matrix(m, l, "moe.shared_experts.w1.weight", hf[0], width, dim, plain)->tp = TT_TP_ROWS;
    tt_params_matrix(m, l, "moe.shared_experts.w2.weight", hf[1], dim, width, deep)->tp = TT_TP_COLUMNS;
    tt_params_matrix(m, l, "moe.shared_experts.w3.weight", hf[2], width, dim, deep)->tp = TT_TP_ROWS;
}

/* torchtitan's order and init rules: the router begins as small as what is added to the residual. */
static void add_experts(struct tt_model *m, const struct tt_decoder *decoder, int l, struct tt_normal plain,
                        struct tt_normal deep)
{
    const struct tt_model_dims *d = &m->dims;
    const char *const *hf = decoder->hf_experts;
    const char *hf_bias = d->moe.score == TT_SCORE_SIGMOID ? decoder->hf_bias : NULL;

    (void)tt_params_experts(m, l, "moe.experts.w1", hf[1], d->moe.experts, d->moe.ffn_dim, d->dim, plain);
    (void)tt_params_experts(m, l, "moe.experts.w2", hf[2], d->moe.experts, d->dim, d->moe.ffn_dim, deep);
    (void)tt_params_experts(m, l, "moe.experts.w3", hf[3], d->moe.experts, d->moe.ffn_dim, d->dim, deep);
    (void)tt_params_matrix(m, l, "moe.router.gate.weight", hf[0], d->moe.experts, d->dim, deep);
    if (d->moe.biased)
        (void)tt_params_buffer(m, l, "moe.expert_bias", hf_bias, d->moe.experts);
    if (d->moe.shared > 0)
        add_shared(m, decoder, l, plain, deep);
}

static void add_block(struct tt_model *m, const struct tt_decoder *decoder, int l)
{
    const struct tt_model_dims *d = &m->dims;
    struct tt_normal plain = {.cut = 2.0, .depth = 1.0};                  /* the cut is absolute, so it has no effect */
    struct tt_normal deep = {.cut = 2.0, .depth = sqrt(2.0 * (l + 1.0))}; /* the residual's share, by depth */

    add_norm(m, l, "attention_norm.weight", "input_layernorm.weight", d->dim);
    if (d->mla.kv_rank)
        tt_mla_params(m, l, deep);
    else
        add_attention(m, decoder, l, deep);
    add_norm(m, l, "ffn_norm.weight", "post_attention_layernorm.weight", d->dim);
    if (tt_model_has_experts(d, l)) {
        add_experts(m, decoder, l, plain, deep);
        return;
    }
    tt_params_matrix(m, l, "feed_forward.w1.weight", "mlp.gate_proj.weight", d->ffn_dim, d->dim, plain)->tp =
        TT_TP_ROWS;
    tt_params_matrix(m, l, "feed_forward.w3.weight", "mlp.up_proj.weight", d->ffn_dim, d->dim, deep)->tp = TT_TP_ROWS;
    tt_params_matrix(m, l, "feed_forward.w2.weight", "mlp.down_proj.weight", d->dim, d->ffn_dim, deep)->tp =
        TT_TP_COLUMNS;
}

void tt_decoder_params(struct tt_model *m, const struct tt_decoder *decoder)
{
    const struct tt_model_dims *d = &m->dims;
    double head_std = 1.0 / sqrt((double)d->dim);
    struct tt_normal head = {.std = head_std, .cut = 3.0 * head_std}, embeddings = {.std = 1.0};
    struct tt_param *p;

    p = tt_params_matrix(m, TT_BLOCK_EMBEDDINGS, "tok_embeddings.weight", "model.embed_tokens.weight", d->vocab_size,
                         d->dim, d->tied ? head : embeddings);
    p->tied = d->tied == 1;
    p->tp = TT_TP_ROWS;
    for (int l = 0; l < d->n_layers; l++)
        add_block(m, decoder, l);
    add_norm(m, TT_BLOCK_HEAD, "norm.weight", "model.norm.weight", d->dim);
    if (!d->tied)
        tt_params_matrix(m, TT_BLOCK_HEAD, "output.weight", "lm_head.weight", d->vocab_size, d->dim, head)->tp =
            TT_TP_ROWS;
}

static int attention(struct tt_build *b, const struct tt_decoder *decoder, int layer, int x)
{
    const struct tt_model_dims *d = &b->model->dims;
    int qkv[3];

    qkv[0] = tt_build_linear(b, "attention.q", "attention.wq", x);
    qkv[1] = tt_build_linear(b, "attention.k", "attention.wk", x);
    qkv[2] = tt_build_linear(b, "attention.v", "attention.wv", x);
    if (decoder->qk_norm) {
        qkv[0] = tt_build_rmsnorm(b, "attention.q_norm", qkv[0]);
        qkv[1] = tt_build_rmsnorm(b, "attention.k_norm", qkv[1]);
    }
    qkv[0] = tt_build_rope(b, "attention.q_rope", qkv[0], d->n_heads, decoder->rotate_half);
    qkv[1] = tt_build_rope(b, "attention.k_rope", qkv[1], d->n_kv_heads, decoder->rotate_half);
    x = tt_build_attention_of(b, "attention.heads", qkv, TT_NONE,
                              tt_model_is_windowed(d, layer) ? d->sliding_window : 0);
    return tt_build_linear(b, "attention.out", "attention.wo", x);
}

static int feed_forward(struct tt_build *b, int x)
{
    int gate = tt_build_linear(b, "feed_forward.gate", "feed_forward.w1", x);
    int up = tt_build_linear(b, "feed_forward.up", "feed_forward.w3", x);
    int hidden = tt_build_swiglu(b, "feed_forward.hidden", gate, up);

    return tt_build_linear(b, "feed_forward.out", "feed_forward.w2", hidden);
}

/* What experts make of each token: those that it is sent to, and the shared ones. */
static int experts(struct tt_build *b, int x)
{
    int gate, up, hidden, routed = tt_build_experts(b, "moe", x);

    if (b->model->dims.moe.shared == 0)
        return routed;
    gate = tt_build_linear(b, "moe.shared_gate", "moe.shared_experts.w1", x);
    up = tt_build_linear(b, "moe.shared_up", "moe.shared_experts.w3", x);
    hidden = tt_build_swiglu(b, "moe.shared_hidden", gate, up);
    return tt_build_add(b, "moe.all", routed, tt_build_linear(b, "moe.shared_out", "moe.shared_experts.w2", hidden));
}

void tt_decoder_build(const struct tt_model *model, const struct tt_decoder *decoder, int64_t batch, int64_t seq_len,
                      struct tt_graph *graph)
{
    struct tt_build b;
    int x, h;

    tt_build_begin(&b, model, batch, seq_len, graph);
    x = tt_build_embedding(&b, "embeddings", "tok_embeddings");
    for (int l = 0; l < model->dims.n_layers; l++) {
        tt_build_block(&b, l);
        h = tt_build_rmsnorm(&b, "attention_norm", x);
        h = model->dims.mla.kv_rank ? tt_mla_build(&b, h) : attention(&b, decoder, l, h);
        x = tt_build_add(&b, "attention_residual", x, h);
        h = tt_build_rmsnorm(&b, "ffn_norm", x);
        h = tt_model_has_experts(&model->dims, l) ? experts(&b, h) : feed_forward(&b, h);
        x = tt_build_add(&b, "out", x, h);
    }
    tt_build_block(&b, TT_NONE);
    x = tt_build_rmsnorm(&b, "norm", x);
    tt_build_head_loss(&b, model->dims.tied ? "tok_embeddings" : "output", x);
}
