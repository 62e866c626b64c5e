/* SPDX-License-Identifier: MIT
 *
 * The peak memory of a rank, for software whose steps titan does not plan itself.
 */
#include <math.h>
#include <strings.h>

#include "estimate/model/internal.h"

static const double gib = 1024.0 * 1024.0 * 1024.0;

/* Bytes per dimension that the two norms of a layer save if they run as chains of float32 kernels. */
static const double norm_bytes = 20;

static double stack_number(const struct tt_cluster_job *job, enum tt_stack_key key)
{
    return job->stack->number[key].value;
}

/* --- optimizers --- */

/* The names of an optimizer, its moments per parameter of a matrix and of other parameters, and bytes of a moment. */
static const struct {
    const char *names[5];
    double moments, others, bytes;
} optimizers[TT_CLUSTER_OPTIMIZERS] = {
    [TT_OPT_ADAMW] = {{"AdamW", "Adam"}, 2, 2, 4},
    [TT_OPT_ADAMW_8BIT] = {{"AdamW8bit", "adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "Adam8bit"},
                           2,
                           2,
                           1 + 4.0 / 256},
    [TT_OPT_MUON] = {{"Muon"}, 1, 2, 4},
    [TT_OPT_LION] = {{"Lion"}, 1, 1, 4},
    [TT_OPT_SGD_MOMENTUM] = {{"SGD_momentum"}, 1, 1, 4},
    [TT_OPT_SGD] = {{"SGD"}, 0, 0, 4},
};

const char *const tt_cluster_optimizer_words[] = {
    [TT_OPT_ADAMW] = "AdamW", [TT_OPT_ADAMW_8BIT] = "AdamW8bit",      [TT_OPT_MUON] = "Muon",
    [TT_OPT_LION] = "Lion",   [TT_OPT_SGD_MOMENTUM] = "SGD_momentum", [TT_OPT_SGD] = "SGD"};
const char *const tt_cluster_offload_words[] = {
    [TT_OFFLOAD_NONE] = "none", [TT_OFFLOAD_OPTIMIZER] = "optimizer", [TT_OFFLOAD_ALL] = "all"};

bool tt_cluster_optimizer_find(const char *name, enum tt_cluster_optimizer *ret_optimizer)
{
    for (int i = 0; i < TT_CLUSTER_OPTIMIZERS; i++)
        for (int k = 0; k < 5 && optimizers[i].names[k]; k++)
            if (strcasecmp(optimizers[i].names[k], name) == 0) {
                *ret_optimizer = (enum tt_cluster_optimizer)i;
                return true;
            }
    return false;
}

void tt_cluster_pure_bf16(struct tt_cluster_job *job)
{
    job->weight_bytes = job->state_gradient_bytes = job->gradient_bytes = 2;
    if (job->optimizer != TT_OPT_ADAMW_8BIT)
        job->moment_bytes = 2;
}

double tt_cluster_moment_bytes(const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;
    double ends = job->lora_rank > 0 ? 0 : (s->tied ? 1 : 2) * s->vocab * s->dim / tt_cluster_params(s);
    double n = (1 - ends) * optimizers[job->optimizer].moments + ends * optimizers[job->optimizer].others;

    return n * (job->moment_bytes > 0 ? job->moment_bytes : optimizers[job->optimizer].bytes);
}

/* --- activations --- */

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
        bytes += 6 * s->dim / t; /* the bytes that other code counts for them */
    if (m & TT_MODULE_FFN)
        bytes += (1 - moe) * act * (s->gated ? 1 : 0.5) * s->ffn;
    if (m & TT_MODULE_EXPERTS)
        return bytes + moe * act * (s->active * s->moe_ffn + s->shared_ffn);
    if (m & TT_MODULE_SHARED_EXPERTS)
        bytes += moe * act * s->shared_ffn;
    return bytes + (m & TT_MODULE_EXPERT_ACT ? moe * 2 * s->active * s->moe_ffn / t : 0);
}

/* Bytes per token that attention's heads save, in stacks that do not count them with the other values of width dim:
 * the kernel's backward needs queries, keys, values and the output. The output's GEMM shares this output as its
 * input, unless it is float8. */
static double heads_bytes(const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;
    double each = stack_number(job, TT_S_ACT_HEADS), width = tt_cluster_score_width(s);

    if (s->score_dim > 0) /* there are as many keys as queries, and latents are saved beside them */
        return (each * 4 * width + (job->float8 ? each / 2 * width : 0)) / job->tp;
    return each * s->head_dim * (2 * s->heads + 2 * s->kv_heads + (job->float8 ? s->heads / 2 : 0)) / job->tp;
}

/* Bytes per token that a layer need not save. TransformerEngine keeps the inputs of float8 GEMMs (two of width dim,
 * and one of the feed-forward part) in float8 only. With frozen weights, a GEMM needs its input only for an adapter,
 * whose smaller product is saved, too; the kernel of attention keeps the input of the output's GEMM in any case. */
static double unsaved_bytes(const struct tt_cluster_job *job, double norm, double ff)
{
    double bytes = 0, wide = 2 * tt_cluster_widened(job), d = job->shape.dim * norm;
    unsigned targets = job->lora_targets ? job->lora_targets : TT_TARGETS_ALL;

    if (job->float8 && stack_number(job, TT_S_ACT_HEADS) > 0)
        bytes += 2 * d + ff / job->tp;
    if (!(job->lora_rank > 0))
        return bytes;
    for (unsigned t = TT_TARGET_Q; t <= TT_TARGET_DOWN; t *= 2)
        bytes -= targets & t ? wide * job->lora_rank : 0;
    if (!(targets & (TT_TARGET_Q | TT_TARGET_K | TT_TARGET_V)))
        bytes += wide * d;
    if (!(targets & (TT_TARGET_GATE | TT_TARGET_UP)))
        bytes += wide * d;
    return bytes + (targets & TT_TARGET_DOWN ? 0 : wide * ff / job->tp);
}

/* Bytes per token of the sorted copies that a layer with experts saves: the input of the first GEMM and, for the
 * gradient of the scores, the output of the last one, which torchtitan (token_dispatcher.py) multiplies by them in
 * float32. Megatron multiplies inside the activation, and keeps fewer copies (published runs with it fit). */
static double copies_bytes(const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;

    return tt_cluster_stack_is_megatron(job->stack) ? 0 : 6 * s->active * s->dim / job->tp;
}

/* Bytes that a layer saves for the backward of a microbatch, and bytes of its temporary memory. */
static void saved(const struct tt_cluster_job *job, double *layer, double *working)
{
    const struct tt_cluster_shape *s = &job->shape;
    double rows = job->micro_batch * job->seq_len / job->cp, t = job->tp;
    double norm = job->sequence_parallel ? 1 / t : 1,
           ff = s->experts > 0 ? s->active * s->moe_ffn + s->shared_ffn : s->ffn;
    double scores = tt_cluster_kernel(job) == 0 ? (job->float_scores ? 10 : 5) * s->heads * job->seq_len / t : 0;
    double act = stack_number(job, TT_S_ACT_DIM), share = fmax(stack_number(job, TT_S_ACT_WORKING), 1),
           wide = tt_cluster_widened(job);
    double others, again, full, input = 2 * wide * s->dim * norm,
                                heads = 2 * wide * s->head_dim * (s->heads + s->kv_heads) / t;
    double gathered =
        job->sequence_parallel && stack_number(job, TT_S_KEEPS_GATHERED) > 0 ? 4 * s->dim * (1 - norm) : 0;

    /* among the values of width dim, tensor parallelism does not split ten bytes */
    full = wide * (fmin(act, 10) * s->dim * norm + fmax(act - 10, 0) * s->dim / t +
                   stack_number(job, TT_S_ACT_FF) * (s->gated ? 1 : 0.5) * ff / t) +
           heads_bytes(job) + scores - unsaved_bytes(job, norm, ff);
    others = (s->experts > 0 ? copies_bytes(job) : 0) + (job->unfused_norm ? norm_bytes * s->dim * norm : 0);
    again = share * full + others;
    full += others;
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
        *working = again;
        break;
    case TT_AGAIN_LAYERS:
        *layer = full + gathered + job->again_layers / s->layers * (input - full - gathered);
        *working = again;
        break;
    case TT_AGAIN_FULL:
        *layer = input;
        *working = again;
        break;
    }
    if (t > 1 && job->sequence_parallel) /* gathered inputs of GEMMs, and their gradients */
        *working += 12 * s->dim;
    *layer *= rows;
    *working *= rows;
}

double tt_cluster_saved_bytes(const struct tt_cluster_job *job)
{
    double layer, working;

    saved(job, &layer, &working);
    return layer;
}

/* Bytes of activations that a rank holds at its peak, over all microbatches. A microbatch keeps recomputed activations
 * until its weight part. */
static double held_bytes(const struct tt_cluster_job *job, int rank, double layer, double working)
{
    struct tt_cluster_held h = tt_cluster_held(job, rank);
    double late = job->again == TT_AGAIN_NONE                                          ? layer
                  : job->again == TT_AGAIN_ATTENTION || job->again == TT_AGAIN_MODULES ? layer + working
                                                                                       : fmax(layer, working);

    return (1 - job->offload_layers / job->shape.layers) * tt_cluster_rank_layers(job, rank) *
           fmax((h.most - h.now) * layer + h.now * late, h.beside * layer + h.pending * late);
}

/* --- state --- */

/* Bytes of state per trained parameter: whole on each rank, divided over the ranks that share it, and in the host. */
struct state {
    double whole, shard, host;
};

static struct state state_of_param(const struct tt_cluster_job *job)
{
    double whole = stack_number(job, TT_S_STATE_WHOLE), shard = stack_number(job, TT_S_STATE_SHARD);
    bool has_copy = whole > 0; /* bytes of the weights in bfloat16, beside those that the optimizer updates */
    double divided = shard > 0 ? 12 : 0, in_whole = has_copy ? whole - 2 - (12 - divided) : 0; /* gradients there */
    double in_shard = shard - divided, bytes = job->state_gradient_bytes;
    double update = (job->weight_bytes > 0 ? job->weight_bytes : 4) + tt_cluster_moment_bytes(job);
    struct state s = {.whole = has_copy ? 2 + job->weight_copies : 0, .shard = shard > 0 ? update : 0};

    s.whole += shard > 0 ? 0 : update;
    s.whole += in_whole > 0 && bytes > 0 ? bytes : in_whole;
    s.shard += in_shard > 0 && bytes > 0 ? bytes : in_shard;
    if (job->offload == TT_OFFLOAD_NONE)
        return s;
    s.host = shard > 0 ? s.shard : update;
    if (!(shard > 0))
        s.whole -= update;
    /* without a copy, the device keeps the weights in bfloat16 unless all is offloaded */
    s.shard = has_copy || job->offload == TT_OFFLOAD_ALL ? 0 : 2;
    return s;
}

/* Adds the state of parameters that data-parallel ranks shard and replicate. Frozen weights need no other state. */
static void add_state(const struct tt_cluster_job *job, double params, double shards, double copies,
                      struct tt_cluster_memory *m)
{
    struct state s = state_of_param(job);
    double trained = params * tt_cluster_trained(job) / tt_cluster_params(&job->shape);
    double frozen = job->lora_rank > 0 ? params * tt_cluster_gathered_bytes(job) / shards : 0;
    double divided = shards > 1                                 ? shards
                     : tt_cluster_stack_is_megatron(job->stack) ? tt_cluster_state_ranks(job, copies)
                                                                : 1;

    m->state += trained * (s.whole / shards + s.shard / divided);
    m->host += trained * s.host / divided;
    *(job->offload == TT_OFFLOAD_ALL ? &m->host : &m->state) += frozen;
}

static void state(const struct tt_cluster_job *job, int stage, struct tt_cluster_memory *m)
{
    const struct tt_cluster_shape *s = &job->shape;
    double ends = s->vocab * s->dim, experts = tt_cluster_expert_params(s), own;
    double share = job->split_known ? tt_cluster_rank_layers(job, stage) / s->layers : 1 / job->pp;

    own = share * (tt_cluster_params(s) - (s->tied ? 1 : 2) * ends - experts);
    if (stage == 0)
        own += ends;
    if (tt_cluster_has_output(job, stage) && (stage > 0 || !s->tied))
        own += ends;
    add_state(job, own / job->tp, tt_cluster_shards(job), tt_cluster_copies(job), m);
    add_state(job, share * experts / tt_cluster_expert_tp(job) / job->ep, tt_cluster_expert_shards(job),
              tt_cluster_expert_copies(job), m);
}

/* The largest weight of a layer in bfloat16, beside its quantised form. */
static double dequantised_bytes(const struct tt_cluster_job *job)
{
    bool is_quantised = job->lora_rank > 0 && job->base_bits > 0 && job->base_bits < 16;

    return is_quantised ? 2 * job->shape.dim * fmax(job->shape.ffn, job->shape.moe_ffn) / job->tp : 0;
}

static double buffer_bytes(const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;
    double moe = s->layers - s->dense_layers + s->mtp_layers, experts = tt_cluster_expert_params(s), bytes;
    double block = tt_cluster_block_params(s, s->experts > 0) / job->tp, ends = s->vocab * s->dim / job->tp;
    double whole = (tt_cluster_params(s) - experts * (1 - 1 / job->ep)) / job->tp / job->pp;
    double gathered = stack_number(job, TT_S_BLOCK_BYTES) * tt_cluster_widened(job), kept = 2 * tt_cluster_widened(job);
    double gradient = tt_cluster_gradient_bytes(job) * tt_cluster_trained(job) / tt_cluster_params(s);

    if (job->lora_rank > 0 || (job->float8 && stack_number(job, TT_S_ACT_HEADS) > 0)) /* as they are sent */
        gathered = kept = tt_cluster_gathered_bytes(job);
    if (tt_cluster_shards(job) <= 1)
        return dequantised_bytes(job);
    if (experts > 0)
        block -= experts / moe / job->tp * (1 - 1 / job->ep);
    bytes = gathered * (stack_number(job, TT_S_BUFFER_BLOCKS) * block + ends);
    bytes += gradient * fmax(block, ends); /* the input of the reduction */
    if (job->keep_gathered || job->pp > 1)
        bytes += kept * fmax(whole - 2 * block, 0);
    if (job->pp > 1) /* gradients are summed unsharded, and reduced once */
        bytes += gradient * whole;
    return bytes + dequantised_bytes(job);
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
    *m = (struct tt_cluster_memory){.stage = stage, .buffers = buffer_bytes(job)};
    state(job, stage, m);
    m->activations = held_bytes(job, stage, layer, working);
    if (tt_cluster_has_output(job, stage))
        m->logits = (job->logit_bytes > 0 ? job->logit_bytes : stack_number(job, TT_S_LOGITS)) * rows *
                    job->shape.vocab / fmax(job->loss_chunks, 1) /
                    (job->whole_logits || stack_number(job, TT_S_LOGITS_WHOLE) > 0 ? 1 : job->tp);
    /* the first layer of backward begins while the last part of the loss is still in memory */
    m->activations += working;
    m->host += job->offload_layers / job->shape.layers * held_bytes(job, stage, layer, working);
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

void tt_cluster_inference(const struct tt_cluster_job *job, struct tt_cluster_inference *ret)
{
    const struct tt_cluster_shape *s = &job->shape;
    struct tt_cluster_job frozen = *job;
    double experts = tt_cluster_expert_params(s), windowed = s->window > 0 ? s->window_layers : 0;
    double tokens =
        job->micro_batch * ((s->layers - windowed) * job->seq_len + windowed * fmin(s->window, job->seq_len));
    double each = s->latent.key_rank > 0 ? s->latent.key_rank + s->latent.rope
                                         : 2 * s->kv_heads * s->head_dim / fmin(job->tp, s->kv_heads);

    frozen.lora_rank = 1;
    *ret = (struct tt_cluster_inference){.weights = tt_cluster_gathered_bytes(&frozen) *
                                                    (tt_cluster_params(s) - experts * (1 - 1 / job->ep)) / job->tp /
                                                    job->pp,
                                         .cache = 2 * each * tokens / job->pp,
                                         .usable = job->machine->number[TT_M_MEMORY].value};
    ret->total = ret->weights + ret->cache + job->machine->number[TT_M_RESERVED].value +
                 (job->tp * job->pp > 1 ? stack_number(job, TT_S_COMM_BASE) : 0);
}

#define PART(name, member, is_other)                                   \
    {                                                                  \
        (name), offsetof(struct tt_cluster_memory, member), (is_other) \
    }

const struct tt_cluster_memory_part tt_cluster_memory_parts[TT_CLUSTER_MEMORY_PARTS] = {
    PART("state", state, false),
    PART("gathered", buffers, false),
    PART("activations", activations, false),
    PART("logits", logits, false),
    PART("communicators", communicators, true),
    PART("context", context, true),
    PART("allocator", allocator, true)};
#undef PART

double tt_cluster_memory_part_bytes(const struct tt_cluster_memory *m, const struct tt_cluster_memory_part *part)
{
    return *(const double *)((const char *)m + part->offset);
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
