/* SPDX-License-Identifier: MIT
 *
 * The peak memory of a rank, for software whose steps titan does not plan itself.
 */
#include <math.h>

#include "estimate/model/job.h"

static const double gib = 1024.0 * 1024.0 * 1024.0;

/* Bytes per dimension that the two norms of a layer save if they run as chains of float32 kernels. */
static const double norm_bytes = 20;

static double stack_number(const struct tt_cluster_job *job, enum tt_stack_key key)
{
    return job->stack->number[key].value;
}

/* Bytes per token that recomputed modules do not save, on average over the layers: each of two norms writes a row;
 * queries, keys and values from latents are as wide as the scores; a feed-forward part saves only its input. */
static double repeated_bytes(const struct tt_cluster_job *job, double scores)
{
    const struct tt_cluster_shape *s = &job->shape;
    double t = job->tp, norm = job->sequence_parallel ? 1 / t : 1, act = stack_number(job, TT_S_ACT_FF) / t;
    double moe = s->experts > 0 ? 1 - s->dense_layers / s->layers : 0, bytes = 0;
    unsigned m = job->again_modules;

    if (m & TT_MODULE_CORE_ATTENTION)
        bytes += scores;
    if (m & TT_MODULE_NORMS)
        bytes += 4 * s->dim * norm;
    if ((m & TT_MODULE_LATENT_UP) && s->score_dim > 0)
        bytes += 6 * s->dim / t; /* the bytes that are otherwise counted for them */
    if (m & TT_MODULE_FFN)
        bytes += (1 - moe) * act * (s->gated ? 1 : 0.5) * s->ffn;
    if (m & TT_MODULE_EXPERTS)
        return bytes + moe * act * (s->active * s->moe_ffn + s->shared_ffn);
    if (m & TT_MODULE_SHARED_EXPERTS)
        bytes += moe * act * s->shared_ffn;
    return bytes + (m & TT_MODULE_EXPERT_ACT ? moe * 2 * s->active * s->moe_ffn / t : 0);
}

/* Bytes that a layer saves for the backward of a microbatch, and bytes of its temporary memory. */
static void saved(const struct tt_cluster_job *job, double *layer, double *working)
{
    const struct tt_cluster_shape *s = &job->shape;
    double rows = job->micro_batch * job->seq_len / job->cp, t = job->tp;
    double norm = job->sequence_parallel ? 1 / t : 1,
           ff = s->experts > 0 ? s->active * s->moe_ffn + s->shared_ffn : s->ffn;
    int kernel = job->kernel >= 0 ? job->kernel : (int)stack_number(job, TT_S_KERNEL);
    double scores = kernel == 0 ? (job->float_scores ? 10 : 5) * s->heads * job->seq_len / t : 0;
    double act = stack_number(job, TT_S_ACT_DIM);
    double full, input = 2 * s->dim * norm, heads = 2 * s->head_dim * (s->heads + s->kv_heads) / t;
    double gathered =
        job->sequence_parallel && stack_number(job, TT_S_KEEPS_GATHERED) > 0 ? 4 * s->dim * (1 - norm) : 0;

    /* of the values of width dim, tensor parallelism does not split ten bytes */
    full = fmin(act, 10) * s->dim * norm + fmax(act - 10, 0) * s->dim / t +
           stack_number(job, TT_S_ACT_FF) * (s->gated ? 1 : 0.5) * ff / t + scores;
    /* copies of tokens for the all-to-all; Megatron keeps fewer, since published runs with it fit */
    if (s->experts > 0 && !tt_cluster_stack_is_megatron(job->stack))
        full += (job->ep > 1 ? 4 : 2) * s->active * s->dim / t;
    if (job->unfused_norm)
        full += norm_bytes * s->dim * norm;
    *layer = *working = 0;
    switch (job->again) {
    case TT_AGAIN_MODULES:
        *working = fmin(repeated_bytes(job, scores), full);
        *layer = full + gathered - *working;
        break;
    case TT_AGAIN_NONE:
        *layer = full + gathered;
        break;
    case TT_AGAIN_ATTENTION:
        *layer = full + gathered - scores;
        *working = scores;
        break;
    case TT_AGAIN_OP: /* input, output of attention with q, k, v, and every second GEMM; for experts the sent tokens */
        if (s->experts > 0)
            ff = s->shared_ffn + (job->ep > 1 ? 2 * s->active * s->dim : 0);
        *layer = 2 * input + heads + 2 * ff / t + 2 * s->dim * norm;
        *working = full;
        break;
    case TT_AGAIN_LAYERS: {
        double share = job->again_layers / s->layers;

        *layer = share * input + (1 - share) * (full + gathered);
        *working = full;
        break;
    }
    case TT_AGAIN_FULL:
        *layer = input;
        *working = full;
        break;
    }
    if (t > 1 && job->sequence_parallel) /* gathered inputs of GEMMs, and their gradients */
        *working += 12 * s->dim;
    *layer *= rows;
    *working *= rows;
}

/* Bytes of activations that a rank holds at its peak, over all microbatches. A microbatch keeps recomputed activations
 * until its weight part. */
static double held_bytes(const struct tt_cluster_job *job, int rank, double layer, double working)
{
    struct tt_cluster_held h = tt_cluster_held(job, rank);
    double late = job->again == TT_AGAIN_NONE                                          ? layer
                  : job->again == TT_AGAIN_ATTENTION || job->again == TT_AGAIN_MODULES ? layer + working
                                                                                       : fmax(layer, working);

    return tt_cluster_rank_layers(job, rank) *
           fmax((h.most - h.now) * layer + h.now * late, h.beside * layer + h.pending * late);
}

/* Bytes of state for parameters that data-parallel ranks shard and replicate. */
static double state_of(const struct tt_cluster_job *job, double params, double shards, double copies)
{
    double whole = stack_number(job, TT_S_STATE_WHOLE), shard = stack_number(job, TT_S_STATE_SHARD);

    if (shards > 1)
        return params * (whole + shard) / shards;
    return params * (whole + shard / (whole > 0 ? copies : 1));
}

static double state_bytes(const struct tt_cluster_job *job, int stage)
{
    const struct tt_cluster_shape *s = &job->shape;
    double ends = s->vocab * s->dim, experts = tt_cluster_expert_params(s), own;
    double share = job->split_known ? tt_cluster_rank_layers(job, stage) / s->layers : 1 / job->pp;

    own = share * (tt_cluster_params(s) - (s->tied ? 1 : 2) * ends - experts);
    if (stage == 0)
        own += ends;
    if (tt_cluster_has_output(job, stage) && (stage > 0 || !s->tied))
        own += ends;
    return state_of(job, own / job->tp, tt_cluster_shards(job), tt_cluster_copies(job)) +
           state_of(job, share * experts / tt_cluster_expert_tp(job) / job->ep, tt_cluster_expert_shards(job),
                    tt_cluster_expert_copies(job));
}

static double buffer_bytes(const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;
    double moe = s->layers - s->dense_layers + s->mtp_layers, experts = tt_cluster_expert_params(s), bytes;
    double block = tt_cluster_block_params(s, s->experts > 0) / job->tp, ends = s->vocab * s->dim / job->tp;
    double whole = (tt_cluster_params(s) - experts * (1 - 1 / job->ep)) / job->tp / job->pp;

    if (tt_cluster_shards(job) <= 1)
        return 0;
    if (experts > 0)
        block -= experts / moe / job->tp * (1 - 1 / job->ep);
    bytes = stack_number(job, TT_S_BLOCK_BYTES) * (stack_number(job, TT_S_BUFFER_BLOCKS) * block + ends);
    bytes += tt_cluster_gradient_bytes(job) * fmax(block, ends); /* the input of the reduction */
    if (job->keep_gathered || job->pp > 1)
        bytes += 2 * fmax(whole - 2 * block, 0);
    if (job->pp > 1) /* gradients are summed unsharded, and reduced once */
        bytes += tt_cluster_gradient_bytes(job) * whole;
    return bytes;
}

static double n_communicators(const struct tt_cluster_job *job)
{
    return 1 + (job->replicate > 1) + (job->shard > 1) + (job->tp > 1) + (job->cp > 1) + (job->ep > 1) +
           2 * (job->pp > 1);
}

void tt_cluster_stage_peak(const struct tt_cluster_job *job, int stage, struct tt_cluster_memory *m)
{
    double layer, working, rows = job->micro_batch * job->seq_len / job->cp;

    saved(job, &layer, &working);
    *m = (struct tt_cluster_memory){.stage = stage, .state = state_bytes(job, stage), .buffers = buffer_bytes(job)};
    m->activations = held_bytes(job, stage, layer, working);
    if (tt_cluster_has_output(job, stage))
        m->logits = stack_number(job, TT_S_LOGITS) * rows * job->shape.vocab / fmax(job->loss_chunks, 1) /
                    (job->whole_logits || stack_number(job, TT_S_LOGITS_WHOLE) > 0 ? 1 : job->tp);
    /* the first layer of backward begins while the last part of the loss is still in memory */
    m->activations += working;
    m->allocator = stack_number(job, TT_S_ALLOCATOR) * (m->buffers + m->activations + m->logits);
    m->communicators =
        stack_number(job, TT_S_COMM_BASE) + (n_communicators(job) - 1) * stack_number(job, TT_S_COMM_EACH);
    m->context = job->machine->number[TT_M_RESERVED].value;
    m->allocated = m->state + m->buffers + m->activations + m->logits + m->allocator;
    m->total = m->allocated + m->communicators + m->context;
    m->usable = job->machine->number[TT_M_MEMORY].value;
}

void tt_cluster_peak(const struct tt_cluster_job *job, struct tt_cluster_memory *ret_memory)
{
    tt_cluster_stage_peak(job, 0, ret_memory);
    for (int i = 1; i < (int)job->pp; i++) {
        struct tt_cluster_memory m;

        tt_cluster_stage_peak(job, i, &m);
        if (m.total > ret_memory->total)
            *ret_memory = m;
    }
}

const char *const tt_cluster_fit_words[] = {
    [TT_FIT_YES] = "fits", [TT_FIT_TIGHT] = "tight", [TT_FIT_NO] = "does not fit"};

enum tt_cluster_fit tt_cluster_fits(const struct tt_cluster_memory *m)
{
    double margin = fmax(2 * gib, 0.04 * m->total);

    if (m->total > m->usable)
        return TT_FIT_NO;
    return m->total + margin <= m->usable ? TT_FIT_YES : TT_FIT_TIGHT;
}
