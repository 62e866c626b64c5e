/* SPDX-License-Identifier: MIT
 *
 * Parameters and flops of a model, from its sizes.
 */
#include <math.h>

#include "cluster/model/job.h"

double tt_cluster_devices(const struct tt_cluster_job *job)
{
    return job->replicate * job->shard * job->tp * job->pp * job->cp;
}

double tt_cluster_tokens(const struct tt_cluster_job *job)
{
    return job->micro_batch * job->n_micro * job->replicate * job->shard * job->seq_len;
}

double tt_cluster_peak_flops(const struct tt_cluster_job *job)
{
    return job->machine->number[job->float32 ? TT_M_PEAK_F32 : TT_M_PEAK_BF16].value;
}

double tt_cluster_shards(const struct tt_cluster_job *job)
{
    /* torchtitan shards over context parallelism too; Megatron has copies there */
    return job->shard > 1 || job->stack->number[TT_S_STATE_WHOLE].value <= 0 ? job->shard * job->cp : 1;
}

double tt_cluster_gradient_bytes(const struct tt_cluster_job *job)
{
    return job->gradient_bytes > 0 ? job->gradient_bytes : job->stack->number[TT_S_GRAD_WIRE].value;
}

double tt_cluster_copies(const struct tt_cluster_job *job)
{
    return job->replicate * job->shard * job->cp / tt_cluster_shards(job);
}

double tt_cluster_stage_layers(const struct tt_cluster_job *job)
{
    return ceil(job->shape.layers / (job->pp * job->virtual_stages)) * job->virtual_stages;
}

double tt_cluster_expert_tp(const struct tt_cluster_job *job)
{
    return job->expert_tp > 0 ? job->expert_tp : job->tp;
}

/* Ranks that have the same experts: those of tensor parallelism too, as far as it does not divide experts. */
static double expert_ranks(const struct tt_cluster_job *job, double ranks)
{
    return ranks * job->tp / tt_cluster_expert_tp(job) / job->ep;
}

double tt_cluster_expert_shards(const struct tt_cluster_job *job)
{
    double shards = tt_cluster_shards(job) > 1 ? expert_ranks(job, tt_cluster_shards(job)) : 1;

    return shards > 1 ? shards : 1;
}

double tt_cluster_expert_copies(const struct tt_cluster_job *job)
{
    double copies = expert_ranks(job, tt_cluster_shards(job) * tt_cluster_copies(job)) / tt_cluster_expert_shards(job);

    return copies > 1 ? copies : 1;
}

double tt_cluster_expert_params(const struct tt_cluster_shape *s)
{
    return s->experts > 0 ? (s->layers - s->dense_layers + s->mtp_layers) * 3 * s->dim * s->experts * s->moe_ffn : 0;
}

static double attention_params(const struct tt_cluster_shape *s)
{
    return s->dim * s->head_dim * (2 * s->heads + 2 * s->kv_heads);
}

static double dense_params(const struct tt_cluster_shape *s)
{
    return (s->gated ? 3 : 2) * s->dim * s->ffn;
}

/* Parameters of a layer with experts: all of them, or those that a token meets. */
static double expert_params(const struct tt_cluster_shape *s, bool met)
{
    return 3 * s->dim * ((met ? s->active : s->experts) * s->moe_ffn + s->shared_ffn) + s->dim * s->experts;
}

double tt_cluster_block_params(const struct tt_cluster_shape *s, bool experts)
{
    return attention_params(s) + (experts && s->experts > 0 ? expert_params(s, false) : dense_params(s));
}

double tt_cluster_params(const struct tt_cluster_shape *s)
{
    double moe = s->experts > 0 ? s->layers - s->dense_layers : 0;

    if (s->params > 0)
        return s->params;
    return moe * tt_cluster_block_params(s, true) + (s->layers - moe) * tt_cluster_block_params(s, false) +
           s->mtp_layers * (tt_cluster_block_params(s, true) + 2 * s->dim * s->dim) +
           ((s->tied ? 1 : 2) * s->vocab + s->positions) * s->dim;
}

void tt_cluster_shape_set_latent(struct tt_cluster_shape *s, const struct tt_cluster_latent *l)
{
    double params =
        s->dim * (l->key_rank + l->rope) + l->key_rank * s->heads * (l->nope + l->value) + s->heads * l->value * s->dim;

    params += l->query_rank > 0 ? l->query_rank * (s->dim + s->heads * (l->rope + l->nope))
                                : s->dim * s->heads * (l->rope + l->nope);
    s->latent = *l;
    s->kv_heads = s->heads;
    s->head_dim = params / (4 * s->dim * s->heads);
    s->score_dim = (l->rope + l->nope + l->value) / 2;
}

double tt_cluster_score_width(const struct tt_cluster_shape *s)
{
    return s->heads * (s->score_dim > 0 ? s->score_dim : s->head_dim);
}

double tt_cluster_token_flops(const struct tt_cluster_shape *s, double seq_len)
{
    double moe = s->experts > 0 ? s->layers - s->dense_layers : 0;
    double met = s->layers * attention_params(s) + (s->layers - moe) * dense_params(s);

    if (moe > 0)
        met += moe * expert_params(s, true);
    met += s->mtp_layers * (attention_params(s) + (moe > 0 ? expert_params(s, true) : dense_params(s)) +
                            (2 * s->dim + s->vocab) * s->dim);
    return 6 * (met + s->vocab * s->dim) + 12 * (s->layers + s->mtp_layers) * tt_cluster_score_width(s) * seq_len;
}
