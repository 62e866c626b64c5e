/* SPDX-License-Identifier: MIT
 *
 * Numbers that follow from a model's parameters and sizes: counts, flops, initial weights. Everything here is
 * arithmetic on shapes, except that tt_param_fill writes weights into the caller's memory.
 */
#include "core/models/model.h"

#include "core/base/mem.h"
#include "core/math/rng.h"

/* A cut beyond the reach of the uniform numbers (the smallest, 2^-54, gives 8.3) has no effect. */
static const double cut_beyond_reach = 9.0;

void tt_model_free(struct tt_model *model)
{
    if (!model)
        return;
    for (int i = 0; i < model->n_params; i++) {
        tt_free(model->params[i].name);
        tt_free(model->params[i].hf_name);
    }
    tt_free(model->params);
    tt_free((void *)(uintptr_t)model->dims.lora.targets);
    tt_free(model->flavor);
    tt_free(model->title);
    tt_free(model);
}

static int64_t param_elements(const struct tt_param *param)
{
    int64_t n = 1;

    for (int i = 0; i < param->ndim; i++)
        n *= param->shape[i];
    return n;
}

int64_t tt_model_n_elements(const struct tt_model *model)
{
    int64_t n = 0;

    for (int i = 0; i < model->n_params; i++)
        n += model->params[i].buffer ? 0 : param_elements(&model->params[i]);
    return n;
}

int64_t tt_model_n_trained(const struct tt_model *model)
{
    int64_t n = 0;

    for (int p = 0; p < model->n_params; p++)
        n += model->params[p].frozen ? 0 : param_elements(&model->params[p]);
    return n;
}

int64_t tt_model_n_active(const struct tt_model *model)
{
    const struct tt_moe *moe = &model->dims.moe;
    int64_t of_experts = 0;

    for (int p = 0; p < model->n_params; p++)
        of_experts += tt_param_is_of_experts(&model->params[p]) ? param_elements(&model->params[p]) : 0;
    return tt_model_n_elements(model) - of_experts + (moe->experts ? of_experts * moe->top_k / moe->experts : 0);
}

/* The number of elements in a token's matrix products; an embedding counts if it is also the head. */
static int64_t counted_elements(const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;
    int64_t looked_up = (d->tied ? 0 : d->vocab_size) + (model->row->learned_positions ? d->max_positions : 0);

    return tt_model_n_active(model) - looked_up * d->dim;
}

/* Weights of matmuls for which backward computes no gradient; the embedding is none unless it is tied. */
static int64_t frozen_elements(const struct tt_model *model)
{
    const struct tt_moe *moe = &model->dims.moe;
    int64_t n = 0, of_experts = 0;

    for (int p = 0; p < model->n_params; p++)
        if (model->params[p].frozen && !model->params[p].buffer &&
            (model->params[p].block != TT_BLOCK_EMBEDDINGS || model->params[p].tied))
            *(tt_param_is_of_experts(&model->params[p]) ? &of_experts : &n) += param_elements(&model->params[p]);
    return n + (moe->experts ? of_experts * moe->top_k / moe->experts : 0);
}

/* 6 per element: a multiplication and an addition, once in forward and twice in backward; if it is frozen, only once in
 * backward. */
static double flops_per_token(const struct tt_model *model, double keys_per_query, double keys_of_window)
{
    const struct tt_model_dims *d = &model->dims;
    double elements = (double)(d->head_dim + (d->mla.kv_rank ? d->mla.value_dim : d->head_dim)); /* of keys, values */
    double keys, attention;
    int64_t windows = 0;

    for (int64_t l = 0; l < d->n_layers; l++)
        windows += tt_model_is_windowed(d, l);
    keys = (double)(d->n_layers - windows) * keys_per_query + (double)windows * keys_of_window;
    attention = (double)d->n_heads * elements * keys;
    return 6.0 * (double)counted_elements(model) - 2.0 * (double)frozen_elements(model) + 6.0 * attention;
}

double tt_model_flops_per_token(const struct tt_model *model, int64_t seq_len)
{
    return flops_per_token(model, (double)seq_len, (double)seq_len);
}

double tt_model_flops_per_token_causal(const struct tt_model *model, int64_t seq_len)
{
    double all = ((double)seq_len + 1.0) / 2.0, window = (double)model->dims.sliding_window, hidden;

    if (window >= (double)seq_len)
        return flops_per_token(model, all, all);
    hidden = ((double)seq_len - window) * ((double)seq_len - window + 1.0) / 2.0; /* of the pairs under the mask */
    return flops_per_token(model, all, all - hidden / (double)seq_len);
}

int tt_model_check_seq_len(const struct tt_model *model, int64_t seq_len, bool documents)
{
    long long positions = (long long)model->dims.max_positions;

    if (documents && model->dims.rope.dynamic && (double)seq_len > model->dims.rope.original_max)
        return tt_fail(
            TT_EUSAGE,
            "seq_len %lld is longer than the %g positions of %s, whose rope_type is dynamic: beyond these "
            "the base depends on the longest document of a batch, which titan does not support\nhelp: set %s to "
            "false, set %s and %s to at most %g, or change rope_scaling in config.json to yarn or linear",
            (long long)seq_len, model->dims.rope.original_max, model->title, TT_KEY_NAME(training.document_mask),
            TT_KEY_NAME(training.seq_len), TT_KEY_NAME(validation.seq_len), model->dims.rope.original_max);
    if (!model->row->learned_positions || seq_len <= model->dims.max_positions)
        return 0;
    return tt_fail(TT_EUSAGE,
                   "seq_len %lld is longer than the %lld positions that %s has learned\nhelp: set %s and %s to at most "
                   "%lld; a model that starts from random weights may have more (%s)",
                   (long long)seq_len, positions, model->title, TT_KEY_NAME(training.seq_len),
                   TT_KEY_NAME(validation.seq_len), positions, TT_KEY_NAME(model.max_position_embeddings));
}

/* Fills n consecutive elements, from element `first` of the whole parameter on. */
static void fill_run(const struct tt_param *param, uint64_t seed, int64_t first, int64_t n, float *data)
{
    struct tt_rng rng = tt_rng_make(seed, param->name);
    float value = param->init == TT_PARAM_ONES ? 1.0F : param->init == TT_PARAM_ZEROS ? 0.0F : (float)param->low;

    switch (param->init) {
    case TT_PARAM_NONE:
        break;
    case TT_PARAM_NORMAL:
        tt_rng_normals(&rng, (uint64_t)first, n, param->std,
                       param->cut / param->std > cut_beyond_reach ? 0.0 : param->cut / param->std, data);
        break;
    case TT_PARAM_UNIFORM:
        for (int64_t i = 0; i < n; i++)
            data[i] = (float)(param->low + (param->high - param->low) * tt_rng_uniform(&rng, (uint64_t)(first + i)));
        break;
    case TT_PARAM_ONES:
    case TT_PARAM_ZEROS:
    case TT_PARAM_CONSTANT:
        for (int64_t i = 0; i < n; i++)
            data[i] = value;
        break;
    }
}

void tt_param_fill(const struct tt_param *param, uint64_t seed, const struct tt_box *part, float *data)
{
    struct tt_box whole = tt_box_whole(param->ndim, param->shape);
    int64_t run = tt_box_run(part, &whole), n = tt_box_volume(part);

    for (int64_t at = 0; at < n; at += run)
        fill_run(param, seed, tt_box_position(part, at, &whole), run, data + at);
}
