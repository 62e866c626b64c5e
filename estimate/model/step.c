/* SPDX-License-Identifier: MIT
 *
 * The time of a step: GEMMs by shape, the work of a layer, the pipeline of microbatches, data-parallel traffic, and the
 * update.
 */
#include <math.h>

#include "estimate/model/internal.h"

/* --- GEMMs by shape: tiles, waves, and the roofline --- */

/* The tiles that libraries choose from, and each one's rate, relative to the best. */
static const struct {
    double m, n, rate;
} tiles[] = {{128, 256, 1.0}, {256, 128, 1.0}, {128, 128, 0.93}, {64, 128, 0.80}, {64, 64, 0.62}};

/* Seconds that a tile takes besides its products, such as to fill its pipeline and to write its result, for the largest
 * tile; smaller tiles write less. From XLA's measured table (backends/gpu/cost_model/matmul_interpolator_data.h): four
 * products 4096 x 4096 x k, for k from 512 to 4096, take as long as if k were 160 longer on H100 and 327 on B200. Both
 * are 1.4 us at the rate of one of their units. */
static const double tile_sec = 1.4e-6, largest_tile = 128 * 256;

/* The inner dimension of the products whose best rates are the machines' numbers. */
static const double best_inner = 4096;

static double product_sec(const struct tt_cluster_machine *machine, const struct tt_cluster_product *p, double m,
                          double n, double k, double out_bytes)
{
    const struct tt_cluster_number *v = machine->number;
    double peak = v[TT_M_PEAK_BF16].value * v[TT_M_GEMM_SHARE].value * v[TT_M_CLOCK].value, units = v[TT_M_UNITS].value,
           best = 0;
    double together = p->together > 0 ? fmin(p->together, p->groups) : p->groups;
    double moved = p->groups * (p->in_bytes * (m * k + k * n) + out_bytes * m * n) /
                   (v[TT_M_MEMORY_RATE].value * v[TT_M_MEMORY_SHARE].value);
    double longer = tile_sec * v[TT_M_PEAK_BF16].value / units / (2 * largest_tile); /* the same as an inner length */

    if (m <= 0 || n <= 0 || k <= 0)
        return 0;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        double blocks = together * ceil(m / tiles[i].m) * ceil(n / tiles[i].n);
        double waves = ceil(blocks / units) * ceil(p->groups / together);
        double work = waves * units * tiles[i].m * tiles[i].n * 2 * (k + longer);
        double sec = work / (peak * (1 + longer / best_inner) * tiles[i].rate);

        if (best <= 0 || sec < best)
            best = sec;
    }
    return fmax(best / p->gain, moved);
}

/* The additional time of a GEMM, as a share, if rows of an operand do not begin at multiples of 128 bytes: a tile
 * reads 128 bytes of a row at a time, which then touch five sectors of 32 bytes instead of four. Each operand
 * accounts for half of the sectors. */
static double misaligned(const struct tt_cluster_product *p, double row)
{
    bool is_real = floor(row) == row; /* sizes that stand for those of latent attention are not */

    return !is_real || fmod(row * p->in_bytes, 128) == 0 ? 0 : 0.5 * 0.25;
}

double tt_cluster_linear_sec(const struct tt_cluster_machine *machine, const struct tt_cluster_product *p,
                             bool backward)
{
    double inputs = misaligned(p, p->k), outputs = misaligned(p, p->n), both = 1 + inputs + outputs;

    if (!backward) /* both operands have rows of inputs */
        return (1 + 2 * inputs) * product_sec(machine, p, p->m, p->n, p->k, 2);
    return both * product_sec(machine, p, p->m, p->k, p->n, 2) +
           (p->frozen ? 0 : both * product_sec(machine, p, p->n, p->k, p->m, p->gradient_bytes));
}

/* --- the work of a layer for one microbatch --- */

/* Lengths at which attention kernels reach half of their rate. */
static const double half_length = 500;

/* Bytes of unfused attention per score: written, scaled and normalised, dropped, read; and the same backward. */
static const double score_bytes = 12, score_bytes_backward = 14;

/* Bytes of the two norms of a layer if they run as chains of kernels, per token and dimension; from COLM's runs with
 * and without the fused kernel. */
static const double norm_bytes = 80;

/* With latent attention, GEMMs write queries, keys and values, and a kernel reads and writes them to rotate and join
 * their parts. layer_bytes_per_dim counts those of a Llama block, 1.5 x dim. */
static const double latent_bytes = 6;

/* Attention with context parallelism: smaller blocks, uneven masks, merging of partial results. Fitted to five runs of
 * torchtitan and Llama 3. In TransformerEngine's ring, ranks have equal work and merge beside the next block, so the
 * only loss is that of shorter blocks, of which a rank holds two. */
static const double ring_work = 1.3;

/* For a layer with experts: the share of forward in the host's time, and the part of it up to the router. From issues
 * 2897 (1.2 of 3.3 ms) and 2939 (2.4 of 5.8 ms) of TransformerEngine. */
static const double host_forward = 0.36, host_router = 0.4;

/* The time of the busiest of several groups of experts, relative to the mean, unless the router is forced to balance
 * them. */
static const double uneven = 1.2;

/* Share of the all-to-all that stays exposed beside another microbatch. Measured by Megatron Bridge (skill moe-comm-
 * overlap): 16 H100 hid 37 % of it. */
static const double overlap_exposed = 0.63;

static double machine_number(const struct tt_cluster_job *job, enum tt_machine_key key)
{
    return job->machine->number[key].value;
}

static double stack_number(const struct tt_cluster_job *job, enum tt_stack_key key)
{
    return job->stack->number[key].value;
}

static double memory_rate(const struct tt_cluster_job *job)
{
    return machine_number(job, TT_M_MEMORY_RATE) * machine_number(job, TT_M_MEMORY_SHARE);
}

/* The tokens of a microbatch on a tensor-parallel rank. */
static double rows(const struct tt_cluster_job *job)
{
    return job->micro_batch * job->seq_len / job->cp;
}

/* Adds factor times `more` to the work. */
static void add_work(struct tt_cluster_work *work, double factor, const struct tt_cluster_work *more)
{
    work->gemm += factor * more->gemm;
    work->attention += factor * more->attention;
    work->memory += factor * more->memory;
    work->tensor += factor * more->tensor;
    work->context += factor * more->context;
    work->expert += factor * more->expert;
    work->host += factor * more->host;
    work->stall += factor * more->stall;
    work->forward += factor * more->forward;
    work->weight += factor * more->weight;
}

static double device_sec(const struct tt_cluster_work *w)
{
    return w->gemm + w->attention + w->memory + w->tensor + w->context + w->expert;
}

/* Seconds of the work: the device's, including its waits, or the host's if these are more. */
static double work_sec(const struct tt_cluster_work *w)
{
    return fmax(device_sec(w) + w->stall, w->host);
}

static double imbalance(const struct tt_cluster_job *job)
{
    return job->balanced ? 1 : uneven;
}

double tt_cluster_widened(const struct tt_cluster_job *job)
{
    return job->float32 ? 4 / stack_number(job, TT_S_BLOCK_BYTES) : 1;
}

/* --- products --- */

/* The time of GEMMs in the job's type, relative to their time in bfloat16. */
static double slower(const struct tt_cluster_job *job)
{
    if (!job->float32)
        return 1;
    return machine_number(job, TT_M_PEAK_BF16) * machine_number(job, TT_M_GEMM_SHARE) /
           (machine_number(job, TT_M_PEAK_F32) * machine_number(job, TT_M_GEMM_F32_SHARE));
}

/* The rate of float8 GEMMs with a scale for each row, relative to one scale. Derived from torchao's float8 tables: a
 * Llama 3 8B on 8 H100 is 10 to 11 % faster than in bfloat16 with scales for rows, and 25 % with one for the tensor. */
static const double rows_gain = 0.8;

/* The time of a linear layer, or of several of the same shape in one kernel, with frozen or trained weights. Megatron's
 * kernels add gradients of weights to float32 sums. */
static double grouped_as(const struct tt_cluster_job *job, bool frozen, double groups, double m, double n, double k,
                         bool backward)
{
    struct tt_cluster_product p = {
        .groups = groups, .m = m, .n = n, .k = k, .gain = 1, .in_bytes = 2, .frozen = frozen};
    double sec;

    p.together = stack_number(job, TT_S_EXPERT_STREAMS);
    p.gradient_bytes = tt_cluster_stack_is_megatron(job->stack) ? 8 : 2;
    if (job->float8) {
        p.gain = machine_number(job, TT_M_GEMM_F8_GAIN) * (job->float8_rows ? rows_gain : 1);
        p.in_bytes = 1;
    }
    sec = slower(job) * tt_cluster_linear_sec(job->machine, &p, backward) / stack_number(job, TT_S_GEMM);
    if (job->float8) /* operands must be quantized first */
        sec += groups * m * (backward ? n : k) * 3.0 / memory_rate(job);
    return sec;
}

static double grouped(const struct tt_cluster_job *job, double groups, double m, double n, double k, bool backward)
{
    return grouped_as(job, job->lora_rank > 0, groups, m, n, k, backward);
}

static double linear(const struct tt_cluster_job *job, double m, double n, double k, bool backward)
{
    return grouped(job, 1, m, n, k, backward);
}

static double ffn(const struct tt_cluster_job *job, double groups, double m, double width, bool gated, bool backward)
{
    double d = job->shape.dim;

    return grouped(job, groups, m, (gated ? 2 : 1) * width, d, backward) + grouped(job, groups, m, d, width, backward);
}

static double attention_products(const struct tt_cluster_job *job, bool backward)
{
    const struct tt_cluster_shape *s = &job->shape;
    double m = rows(job), t = job->tp;

    return linear(job, m, (s->heads + 2 * s->kv_heads) * s->head_dim / t, s->dim, backward) +
           linear(job, m, s->dim, s->heads * s->head_dim / t, backward);
}

/* Adds seconds of the adapters of a layer: two thin GEMMs for each, and the sum of their output and that of the frozen
 * weight, which is read and written. */
static void adapters(const struct tt_cluster_job *job, bool experts, bool backward, double *gemm, double *memory)
{
    const struct tt_cluster_shape *s = &job->shape;

    for (int bit = TT_TARGET_Q; bit <= TT_TARGET_DOWN; bit *= 2) {
        bool of_expert = experts && bit >= TT_TARGET_GATE, splits_inputs = bit == TT_TARGET_O || bit == TT_TARGET_DOWN;
        double groups = of_expert ? s->experts / job->ep : 1, n, k, r = job->lora_rank;
        double m = rows(job) * (of_expert ? s->active * job->ep / s->experts : 1);

        if (!tt_cluster_adapts(job, (enum tt_cluster_target)bit) ||
            !tt_cluster_target_size(s, (enum tt_cluster_target)bit, of_expert, &n, &k))
            continue;
        *(splits_inputs ? &k : &n) /= job->tp;
        *gemm += grouped_as(job, false, groups, m, r, k, backward) + grouped_as(job, false, groups, m, n, r, backward);
        *memory += 6 * groups * m * (backward ? k : n) / memory_rate(job);
    }
}

/* Kernels that unpack weights in 4 bits reach a third of the memory's rate: on A100, litgpt's runs of 7B and 13B with
 * bitsandbytes take 79 and 191 ms longer than the same runs with weights in bfloat16 (its resource-tables.md). */
static const double unpack_share = 1.0 / 3;

/* Seconds of a pass over the quantised weights of a layer: they are read, and written in bfloat16 before each GEMM. */
static double dequantise(const struct tt_cluster_job *job, bool experts)
{
    double bytes = tt_cluster_gathered_bytes(job), held = experts ? 1 / job->ep : 1;

    if (!(job->lora_rank > 0) || !(job->base_bits > 0) || job->base_bits >= 16)
        return 0;
    return (bytes + 2) * tt_cluster_block_params(&job->shape, experts) * held / job->tp /
           (unpack_share * memory_rate(job));
}

static double products(const struct tt_cluster_job *job, bool experts, bool backward)
{
    const struct tt_cluster_shape *s = &job->shape;
    double m = rows(job), t = job->tp, cut = tt_cluster_expert_tp(job), sec = attention_products(job, backward);

    if (!experts)
        return sec + ffn(job, 1, m, s->ffn / t, s->gated, backward);
    /* a rank holds experts / ep experts, each with those tokens of all ranks of its group that chose it */
    if (s->shared_ffn > 0)
        sec += ffn(job, 1, m, s->shared_ffn / t, true, backward);
    return sec + imbalance(job) / stack_number(job, TT_S_EXPERT_GEMM) *
                     ffn(job, s->experts / job->ep, m * cut / t * s->active * job->ep / s->experts, s->moe_ffn / cut,
                         true, backward);
}

/* --- attention --- */

int tt_cluster_kernel(const struct tt_cluster_job *job)
{
    bool fills = !tt_cluster_stack_is_megatron(job->stack) || job->shape.score_dim > 0;

    if (!fills && fmod(job->shape.head_dim, 8) != 0)
        return 0;
    return job->kernel >= 0 ? job->kernel : (int)stack_number(job, TT_S_KERNEL);
}

/* The rate of the two GEMMs of unfused attention, relative to that for heads at multiples of 16 bytes. With 8 bytes
 * there are twice as many loads, and tensor cores reach half of their rate (flash-attention issue 1141: heads of 132 on
 * H100, 219 instead of 370 TF/s in all). With 4 or 2 bytes the libraries of 2022 have only kernels with small tiles,
 * which are taken to be as slow as the vector units. */
static double unaligned_heads(const struct tt_cluster_job *job)
{
    double bytes = 2 * job->shape.head_dim;

    if (job->float32 || job->shape.score_dim > 0 || fmod(bytes, 16) == 0)
        return 1;
    return fmod(bytes, 8) == 0 ? 0.5 : machine_number(job, TT_M_PEAK_F32) / machine_number(job, TT_M_PEAK_BF16);
}

/* Seconds of a forward or backward pass over the scores of sequences of `length` tokens; the mask leaves half of the
 * scores. */
static double scores(const struct tt_cluster_job *job, double length, bool backward)
{
    const struct tt_cluster_shape *s = &job->shape;
    int kernel = tt_cluster_kernel(job);
    double width = tt_cluster_score_width(s) / job->tp, share = machine_number(job, TT_M_FLASH2), flops, sec, block;
    double peak = tt_cluster_peak_flops(job) * machine_number(job, TT_M_CLOCK);

    flops = 4 * rows(job) * length * width;
    if (kernel == 0) { /* both GEMMs without using the mask, with the scores in memory */
        share = machine_number(job, TT_M_GEMM_SHARE) * 0.6 * unaligned_heads(job);
        sec = (backward ? 2 : 1) * flops / (peak * share * stack_number(job, TT_S_ATTENTION));
        return sec + (backward ? score_bytes_backward : score_bytes) * rows(job) * length * s->heads / job->tp /
                         memory_rate(job);
    }
    if (kernel == 1)
        share = machine_number(job, TT_M_FLASH1);
    else if (kernel == 3)
        share = machine_number(job, TT_M_FLASH3);
    block = job->cp > 1 && tt_cluster_stack_is_megatron(job->stack) ? length / (2 * job->cp) : length;
    share *= stack_number(job, TT_S_ATTENTION) * block / (block + half_length);
    if (job->cp > 1 && block >= length)
        share /= ring_work;
    if (s->head_dim < 100) /* small heads use the GEMM units less efficiently */
        share *= 0.9;
    return (backward ? 2.5 : 1) * flops / 2 / (peak * share);
}

/* The mean over the layers, some of which may have a window. */
static double attention(const struct tt_cluster_job *job, bool backward)
{
    double share = job->shape.window > 0 ? job->shape.window_layers / job->shape.layers : 0, sec;
    double length = job->document > 0 ? fmin(job->document, job->seq_len) : job->seq_len;

    sec = (1 - share) * scores(job, length, backward);
    if (job->contiguous) /* the last of n ranks has 2 n - 1 of n^2 parts */
        sec *= (2 * job->cp - 1) / job->cp;
    if (share > 0)
        sec += share * scores(job, fmin(2 * job->shape.window, length), backward);
    return sec;
}

/* --- the layer --- */

/* The GEMMs that torchtitan's selective op recomputes. These are every second GEMM of a layer (for the keys, for the
 * output of attention, and the second one of the feed-forward layer), and all GEMMs of experts. */
static double every_second(const struct tt_cluster_job *job, bool experts, double forward)
{
    const struct tt_cluster_shape *s = &job->shape;
    double m = rows(job), t = job->tp, width = s->heads * s->head_dim / t, kept = s->kv_heads * s->head_dim / t;
    double output = linear(job, m, s->dim, width, false), keys = linear(job, m, kept, s->dim, false);

    if (experts)
        return forward - linear(job, m, width + 2 * kept, s->dim, false) + keys;
    return keys + output +
           (s->gated ? linear(job, m, s->ffn / t, s->dim, false) : linear(job, m, s->dim, s->ffn / t, false));
}

/* Memory traffic per dimension for copying tokens before and after the all-to-all. Without an all-to-all, tokens are
 * sorted only once. */
static double copy_bytes(const struct tt_cluster_job *job)
{
    const double sorted_once = 12;

    return job->ep > 1 ? stack_number(job, TT_S_EXPERT_BYTES) : fmin(sorted_once, stack_number(job, TT_S_EXPERT_BYTES));
}

/* Recomputation, on average over the layers: seconds of GEMMs; shares of attention, of memory-bound traffic, of
 * tensor-parallel sums and of the all-to-all. */
struct again {
    double gemm, core, rest, sums, exchange;
};

static bool repeats(const struct tt_cluster_job *job, enum tt_cluster_module module)
{
    return (job->again_modules & module) != 0;
}

/* Bytes of the kernels between the two GEMMs of a feed-forward part of this width: they read the result of the first
 * GEMM, and write half as many bytes, or the same number without a gate. */
static double activation_bytes(const struct tt_cluster_job *job, double width, bool gated)
{
    return rows(job) * width / job->tp * (gated ? 6 : 4);
}

static double latent_traffic(const struct tt_cluster_job *job)
{
    return latent_bytes * rows(job) * (3 * tt_cluster_score_width(&job->shape) - 1.5 * job->shape.dim) / job->tp;
}

/* The time of the GEMMs from latents to queries, keys and values. */
static double latent_up(const struct tt_cluster_job *job)
{
    const struct tt_cluster_latent *l = &job->shape.latent;
    double heads = job->shape.heads / job->tp, sec;

    if (!(l->key_rank > 0))
        return 0;
    sec = linear(job, rows(job), heads * (l->nope + l->value), l->key_rank, false);
    return sec + (l->query_rank > 0 ? linear(job, rows(job), heads * (l->nope + l->rope), l->query_rank, false) : 0);
}

/* Megatron's modules in a layer with or without experts. `bytes` is the memory traffic of its forward. */
static struct again modules(const struct tt_cluster_job *job, bool experts, double forward, double bytes)
{
    const struct tt_cluster_shape *s = &job->shape;
    struct again a = {.core = repeats(job, TT_MODULE_CORE_ATTENTION)};
    double moved = 0;

    if (repeats(job, TT_MODULE_NORMS)) /* two norms, each of which reads and writes a row */
        moved += 8 * rows(job) * s->dim * (job->sequence_parallel ? 1 / job->tp : 1);
    if (repeats(job, TT_MODULE_LATENT_UP) && s->score_dim > 0) {
        a.gemm += latent_up(job);
        moved += latent_traffic(job);
    }
    if (!experts && repeats(job, TT_MODULE_FFN)) {
        a.gemm += ffn(job, 1, rows(job), s->ffn / job->tp, s->gated, false);
        moved += activation_bytes(job, s->ffn, s->gated);
        a.sums = 0.5;
    }
    if (experts && repeats(job, TT_MODULE_EXPERTS)) {
        a.gemm += forward - attention_products(job, false);
        moved += activation_bytes(job, s->active * s->moe_ffn + s->shared_ffn, true) +
                 copy_bytes(job) / 3 * rows(job) * s->dim * s->active / job->tp;
        a.sums = a.exchange = 0.5;
    } else if (experts) {
        if (repeats(job, TT_MODULE_SHARED_EXPERTS) && s->shared_ffn > 0) {
            a.gemm += ffn(job, 1, rows(job), s->shared_ffn / job->tp, true, false);
            moved += activation_bytes(job, s->shared_ffn, true);
        }
        if (repeats(job, TT_MODULE_EXPERT_ACT))
            moved +=
                activation_bytes(job, s->active * s->moe_ffn, true) +
                (s->expert_bias ? stack_number(job, TT_S_EXPERT_BIAS) / 3 * rows(job) * s->dim * s->active / job->tp
                                : 0);
    }
    a.rest = moved / bytes;
    return a;
}

static struct again recomputed(const struct tt_cluster_job *job, bool experts, double forward, double bytes)
{
    const struct tt_cluster_shape *s = &job->shape;
    double share = job->again == TT_AGAIN_LAYERS ? job->again_layers / s->layers : 1;
    struct again a = {0};

    switch (job->again) {
    case TT_AGAIN_NONE:
        break;
    case TT_AGAIN_OP:
        a.gemm = fmin(every_second(job, experts, forward), forward);
        a.rest = 1;
        a.sums = a.gemm / forward;
        break;
    case TT_AGAIN_ATTENTION:
        a.core = 1;
        break;
    case TT_AGAIN_MODULES:
        a = modules(job, experts, forward, bytes);
        break;
    case TT_AGAIN_LAYERS:
    case TT_AGAIN_FULL: /* backward does not need the result of the last GEMM of a layer */
        a.gemm = forward;
        if (!experts && !(stack_number(job, TT_S_RECOMPUTE_LAST) > 0))
            a.gemm -= linear(job, rows(job), s->dim, s->ffn / job->tp, false);
        a.gemm *= share;
        a.core = a.rest = share;
        a.sums = a.gemm / forward;
        a.exchange = share / 2;
        break;
    }
    return a;
}

static double tensor_sec(const struct tt_cluster_job *job, bool experts, double again)
{
    /* half of the 4 all-reduces are around attention; unsplit experts need none, shared experts do */
    bool is_half = experts && tt_cluster_expert_tp(job) < job->tp && !(job->shape.shared_ffn > 0);
    struct tt_cluster_group g = tt_cluster_group(job, job->tp, 1);
    double bytes = 2 * tt_cluster_widened(job) * rows(job) * job->shape.dim;
    double hidden = job->async_tp ? 0.5 : 1;
    double gathered = job->float8 && job->sequence_parallel ? 0.5 : 1; /* gathered tensors are quantized first */

    /* 4 all-reduces, or 4 pairs of a gather and a reduce-scatter; a recomputed forward adds 2 */
    return hidden * stack_number(job, TT_S_TP_EXPOSED) * (is_half ? 0.5 : 1) * (4 + 2 * again) *
           (job->sequence_parallel
                ? tt_cluster_gather_sec(job, g, gathered * bytes) + tt_cluster_gather_sec(job, g, bytes)
                : tt_cluster_reduce_sec(job, g, bytes));
}

/* Of the traffic of keys and values. In TransformerEngine's ring it runs beside attention on the block before. */
static double context_sec(const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;
    double bytes =
        2 * 2 * tt_cluster_widened(job) * job->micro_batch * job->seq_len * s->kv_heads * s->head_dim / job->tp;
    double sec = 3 * tt_cluster_gather_sec(job, tt_cluster_group(job, job->cp, job->tp), bytes);

    return tt_cluster_stack_is_megatron(job->stack) ? fmax(0, sec - attention(job, false) - attention(job, true)) : sec;
}

/* The time of the all-to-all that takes tokens to their experts and back, in forward and backward; quantized tokens
 * take half the bytes. GEMMs wait for it, even in stacks that hide tensor-parallel traffic. */
static double expert_sec(const struct tt_cluster_job *job)
{
    double cut = job->sequence_parallel ? job->tp : 1,
           bytes = 2 * tt_cluster_widened(job) * rows(job) / cut * job->shape.dim;
    double exposed = stack_number(job, TT_S_EXPERT_EXPOSED);
    struct tt_cluster_group g = tt_cluster_group(job, job->ep, job->sequence_parallel ? 1 : job->tp);

    if (job->expert_overlap)
        exposed = fmin(exposed, overlap_exposed);
    return exposed * (job->float8 ? 3.5 : 4) * imbalance(job) *
           tt_cluster_exchange_sec(job, g, bytes, job->shape.active);
}

/* Seconds of the host for a layer with experts. The host launches the GEMMs of each expert. */
static double expert_host(const struct tt_cluster_job *job)
{
    return stack_number(job, TT_S_EXPERT_HOST) + stack_number(job, TT_S_EXPERT_EACH) * job->shape.experts / job->ep;
}

/* Seconds for which the device waits for the host in a layer with experts, given the device's forward time up to the
 * router, and the number of times that forward is recomputed. The host waits until it knows the number of rows of
 * each expert, so from the router on, up to the next one, it is not ahead of the device. In backward it knows these
 * numbers. */
static double stall_sec(const struct tt_cluster_job *job, const struct tt_cluster_work *work, double router,
                        double again)
{
    double host = expert_host(job), forward = host_forward * host;
    double backward = device_sec(work) - (1 + again) * work->forward;

    return (1 + again) * (fmax(0, host_router * forward - router) +
                          fmax(0, (1 - host_router) * forward - (work->forward - router))) +
           fmax(0, host - forward - backward);
}

/* Seconds of the host for a layer without experts. An adapter adds launches to the 120 of a layer without them: of a
 * cast, dropout, two products, a scale and a sum in forward, and two for each of these in backward. */
static double dense_host(const struct tt_cluster_job *job)
{
    const double launches = 18.0 / 120;
    int n = 0;

    for (int bit = TT_TARGET_Q; bit <= TT_TARGET_DOWN; bit *= 2)
        n += tt_cluster_adapts(job, (enum tt_cluster_target)bit);
    return stack_number(job, TT_S_HOST) * (1 + launches * n);
}

/* Seconds of adding gradients of a rank's parameters to the sum over microbatches, on average over these, unless the
 * products add them, or the ranks divide the sum. */
static double add_gradients(const struct tt_cluster_job *job, double params)
{
    bool is_whole = tt_cluster_stack_is_megatron(job->stack) || job->pp > 1;

    if (!is_whole || job->lora_rank > 0)
        return 0;
    return (1 - 1 / job->n_micro) * stack_number(job, TT_S_GRAD_ADD) * params / memory_rate(job);
}

/* The parameters of a rank in a layer. */
static double rank_params(const struct tt_cluster_job *job, bool experts)
{
    const struct tt_cluster_shape *s = &job->shape;
    double all = tt_cluster_block_params(s, experts), routed = 0;

    if (experts)
        routed = tt_cluster_expert_params(s) / (s->layers - s->dense_layers + s->mtp_layers);
    return (all - routed) / job->tp + routed / job->ep / tt_cluster_expert_tp(job);
}

/* The forward, backward and recomputation of one layer; recomputation is averaged over the layers. */
static void layer_work(const struct tt_cluster_job *job, bool experts, struct tt_cluster_work *work)
{
    double forward = products(job, experts, false), backward = products(job, experts, true);
    double adapt[2] = {0}, join[2] = {0}; /* of adapters: their GEMMs and memory traffic, forward and backward */
    bool waits = experts && job->ep > 1;  /* the host waits for the sizes in the all-to-all */
    double divided = job->sequence_parallel ? 1 / job->tp : 0.4 + 0.6 / job->tp;
    double bytes = tt_cluster_widened(job) * stack_number(job, TT_S_LAYER_BYTES) * rows(job) * job->shape.dim * divided;
    struct again again;

    if (job->unfused_norm)
        bytes += norm_bytes * rows(job) * job->shape.dim * (job->sequence_parallel ? 1 / job->tp : 1);
    if (job->shape.score_dim > 0) /* heads of latent attention are wider than the model */
        bytes += latent_traffic(job);
    if (experts)
        bytes += (copy_bytes(job) + (job->shape.expert_bias ? stack_number(job, TT_S_EXPERT_BIAS) : 0)) * rows(job) *
                 job->shape.dim * job->shape.active / job->tp;
    again = recomputed(job, experts, forward, bytes);
    for (int i = 0; i < 2; i++)
        adapters(job, experts, i > 0, &adapt[i], &join[i]);
    *work = (struct tt_cluster_work){
        .gemm = forward + again.gemm + backward + (1 + again.gemm / forward) * adapt[0] + adapt[1],
        .attention = (1 + again.core) * attention(job, false) + attention(job, true),
        .memory = (1 + again.rest + 2) * bytes / memory_rate(job) + (1 + again.gemm / forward) * join[0] + join[1] +
                  (2 + again.gemm / forward) * dequantise(job, experts) + add_gradients(job, rank_params(job, experts)),
        .tensor = tensor_sec(job, experts, again.sums),
        .context = context_sec(job),
        .expert = experts ? (1 + again.exchange) * expert_sec(job) : 0,
        .host =
            waits ? 0 : (experts ? expert_host(job) : dense_host(job)) * (1 + (again.gemm / forward + again.rest) / 6),
    };
    work->forward = forward + adapt[0] + join[0] + attention(job, false) + bytes / memory_rate(job) +
                    work->tensor / (2 + again.sums) + work->context / 3 + (experts ? expert_sec(job) / 2 : 0);
    /* of the two GEMMs for a matrix in backward, one is for the weights */
    work->weight = (job->lora_rank > 0 ? adapt[1] : backward) / 2;
    work->stall = stack_number(job, TT_S_HOST_WAIT) * (1 + (again.gemm / forward + again.rest) / 6);
    if (waits)
        work->stall +=
            stall_sec(job, work, attention_products(job, false) + attention(job, false) + bytes / 2 / memory_rate(job),
                      job->again == TT_AGAIN_FULL || job->again == TT_AGAIN_LAYERS ? again.core : 0);
}

/* The output layer and the loss, forward and backward. */
static void output_layer(const struct tt_cluster_job *job, struct tt_cluster_work *work)
{
    const struct tt_cluster_shape *s = &job->shape;
    double m = rows(job), v = s->vocab / job->tp, whole = job->whole_logits ? s->vocab : v;
    struct tt_cluster_product p = {.groups = 1,
                                   .m = m,
                                   .n = v,
                                   .k = s->dim,
                                   .gain = 1,
                                   .in_bytes = 2,
                                   .gradient_bytes = 2,
                                   .frozen = job->lora_rank > 0};
    double peak = tt_cluster_linear_sec(job->machine, &p, false) + tt_cluster_linear_sec(job->machine, &p, true);
    double adds = add_gradients(job, s->dim * v);

    *work = (struct tt_cluster_work){
        .gemm = slower(job) * peak / stack_number(job, TT_S_GEMM),
        .memory = stack_number(job, TT_S_LOGIT_TRAFFIC) * m * whole / memory_rate(job) + adds,
    };
    if (job->whole_logits) /* the gradients of the loss are divided without traffic */
        work->tensor = tt_cluster_gather_sec(job, tt_cluster_group(job, job->tp, 1), 2 * m * whole);
    work->forward = (work->gemm + work->memory - adds) / 3 + work->tensor;
    work->weight = job->lora_rank > 0 ? 0 : work->gemm / 3;
}

/* The work after the layers: the output layer with the loss, and the layers for multi-token prediction. Each of the
 * latter joins two rows, is like the last layer, and has its own loss. */
static void output_work(const struct tt_cluster_job *job, struct tt_cluster_work *work)
{
    struct tt_cluster_work head, layer;
    double project, back;

    output_layer(job, work);
    if (!(job->shape.mtp_layers > 0))
        return;
    head = *work;
    layer_work(job, job->shape.experts > 0, &layer);
    project = linear(job, rows(job), job->shape.dim / job->tp, 2 * job->shape.dim, false);
    back = linear(job, rows(job), job->shape.dim / job->tp, 2 * job->shape.dim, true);
    layer.gemm += project + back;
    layer.forward += project;
    layer.weight += back / 2;
    add_work(work, job->shape.mtp_layers, &layer);
    add_work(work, job->shape.mtp_layers, &head);
}

/* --- the pipeline --- */

/* The mean work of a layer, over layers with and without experts. */
static void mean_layer(const struct tt_cluster_job *job, struct tt_cluster_work *ret_work)
{
    const struct tt_cluster_shape *s = &job->shape;
    struct tt_cluster_work dense, moe;
    double share = s->experts > 0 ? 1 - s->dense_layers / s->layers : 0;

    *ret_work = (struct tt_cluster_work){0};
    if (share < 1) {
        layer_work(job, false, &dense);
        add_work(ret_work, 1 - share, &dense);
    }
    if (share > 0) {
        layer_work(job, true, &moe);
        add_work(ret_work, share, &moe);
    }
}

/* Seconds of a rank's messages to other stages in a step. */
static double message_sec(const struct tt_cluster_job *job)
{
    /* the boundary is scattered over the tensor-parallel ranks, and gathered inside the node */
    double bytes = 2 * tt_cluster_widened(job) * job->micro_batch * job->seq_len / job->cp * job->shape.dim / job->tp;

    if (job->pp <= 1)
        return 0;
    return 2 * job->virtual_stages * job->n_micro * stack_number(job, TT_S_PP_EXPOSED) *
           tt_cluster_message_sec(job, job->tp * job->cp * job->shard * job->replicate, bytes);
}

/* --- data parallelism --- */

/* Exposed seconds of traffic that overlaps compute. */
static double beside(const struct tt_cluster_job *job, double compute, double traffic)
{
    return fmax(traffic - compute, 0) + stack_number(job, TT_S_DP_EXPOSED) * fmin(compute, traffic);
}

/* Parameters of a rank that are sharded and replicated in the same way. */
struct part {
    double params, shards, copies, stride;
};

static double trained_share(const struct tt_cluster_job *job)
{
    return job->lora_rank > 0 ? tt_cluster_trained(job) / tt_cluster_params(&job->shape) : 1;
}

/* Seconds of an all-reduce of gradients. If only some of the copies share the optimizer's state, these scatter and
 * gather it, and the others with the same part reduce that part. */
static double reduce_sec(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes)
{
    double ranks = tt_cluster_state_ranks(job, g.n);
    struct tt_cluster_group near, far;

    if (ranks >= g.n)
        return tt_cluster_reduce_sec(job, g, bytes);
    near = tt_cluster_group(job, ranks, g.stride);
    far = tt_cluster_group(job, g.n / ranks, g.stride * ranks);
    return 2 * tt_cluster_gather_sec(job, near, bytes) + tt_cluster_reduce_sec(job, far, bytes / ranks);
}

static void add_part(const struct tt_cluster_job *job, const struct part *p, double *gather, double *scatter,
                     double *reduce)
{
    double wire = tt_cluster_gradient_bytes(job) * trained_share(job), link = stack_number(job, TT_S_LINK);
    double param = tt_cluster_gathered_bytes(job);
    double buckets = job->shape.layers / job->pp * stack_number(job, TT_S_BUCKETS);
    struct tt_cluster_group g = tt_cluster_group(job, p->shards, p->stride);
    struct tt_cluster_group r = tt_cluster_group(job, p->copies, p->stride * p->shards);

    if (p->shards > 1) {
        *gather += tt_cluster_gather_sec(job, g, param * p->params / buckets) * buckets / link;
        *scatter += tt_cluster_gather_sec(job, g, wire * p->params / buckets) * buckets / link;
    }
    if (p->copies > 1)
        *reduce += reduce_sec(job, r, wire * p->params / p->shards) / link;
}

/* The parameters of a rank in two parts: the experts that it holds, and all others, which every rank along ep holds. */
static void parts_of(const struct tt_cluster_job *job, struct part ret_part[2])
{
    double experts = tt_cluster_expert_params(&job->shape), inner = job->tp * job->pp;
    double cut = tt_cluster_expert_tp(job);

    ret_part[0] = (struct part){(tt_cluster_params(&job->shape) - experts) / inner, tt_cluster_shards(job),
                                tt_cluster_copies(job), job->tp};
    ret_part[1] = (struct part){experts / (cut * job->pp) / job->ep, tt_cluster_expert_shards(job),
                                tt_cluster_expert_copies(job), cut * job->ep};
}

/* Exposed seconds of all-reduces of gradients. They hide behind one microbatch (the backward of the last one and the
 * first forward of the next step) and in the bubble of the pipeline. */
static double reduce_exposed(const struct tt_cluster_job *job, double busy, double bubble, double reduce)
{
    double share = stack_number(job, TT_S_GRAD_EXPOSED), window = busy / job->n_micro + bubble;

    return share * fmin(reduce, window) + fmax(0, reduce - window);
}

/* --- the update, and state in the host's memory --- */

/* Parameters per second that the processors of a node update with Adam (ZeRO-Offload, 2101.06840: 10 billion in 2.5 s).
 */
static const double host_updates = 4e9;

/* The number of a rank's parameters that the rank itself updates. */
static double own_params(const struct tt_cluster_job *job)
{
    bool divides = tt_cluster_stack_is_megatron(job->stack) && stack_number(job, TT_S_STATE_SHARD) > 0;
    struct part part[2];
    double own = 0;

    parts_of(job, part);
    for (int i = 0; i < 2; i++) {
        double ranks = divides ? tt_cluster_state_ranks(job, part[i].copies) : 1;

        own += part[i].params / (part[i].shards > 1 ? part[i].shards : ranks);
    }
    return own;
}

/* Seconds in which a rank's state and activations cross the link to the host: weights to the device, and gradients to
 * the host; activations in forward, and back in backward. */
static void host_copies(const struct tt_cluster_job *job, double runs, double *in, double *out)
{
    double activations = job->offload_layers / job->pp * job->n_micro;

    double own = own_params(job), rate = machine_number(job, TT_M_HOST_RATE), all = runs * own;
    double weight = job->lora_rank > 0 ? tt_cluster_gathered_bytes(job) : job->weight_bytes > 0 ? job->weight_bytes : 4;
    double gradient = trained_share(job) * (job->state_gradient_bytes > 0 ? job->state_gradient_bytes : 4);

    *in = job->offload == TT_OFFLOAD_ALL ? all * weight / rate : 0;
    *out = job->offload == TT_OFFLOAD_ALL         ? all * gradient / rate
           : job->offload == TT_OFFLOAD_OPTIMIZER ? own * gradient / rate
                                                  : 0;
    if (activations > 0) {
        *in += activations * tt_cluster_saved_bytes(job) / rate;
        *out += activations * tt_cluster_saved_bytes(job) / rate;
    }
}

/* Exposed seconds of data-parallel traffic in a step whose compute takes `busy` seconds, and of copies of state from
 * and to the host, which use other links at the same time. */
static double data_sec(const struct tt_cluster_job *job, double busy, double bubble)
{
    double gather = 0, scatter = 0, reduce = 0, runs = job->pp > 1 ? 1 : job->n_micro, sec = 0, in, out;
    struct part part[2];

    parts_of(job, part);
    for (int i = 0; i < 2; i++)
        if (part[i].params > 0)
            add_part(job, &part[i], &gather, &scatter, &reduce);
    host_copies(job, runs, &in, &out);
    if (gather > 0 || in > 0 || out > 0) {
        double again = job->keep_gathered || job->pp > 1 ? 0 : 1;

        sec += beside(job, busy / 3, fmax(runs * gather, in));
        sec += beside(job, 2 * busy / 3, fmax(runs * (scatter + again * gather), out + again * in));
    }
    return sec + reduce_exposed(job, busy, bubble, reduce);
}

/* Seconds of Muon's Newton-Schulz iterations. Ranks of data parallelism share the matrices: they gather the gradients
 * in bfloat16, and scatter the updates. */
static double orthogonal_sec(const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;
    double moe = s->experts > 0 ? s->layers - s->dense_layers : 0, flops = 0, ranks = tt_cluster_devices(job);
    double rate = tt_cluster_peak_flops(job) * machine_number(job, TT_M_GEMM_SHARE) * machine_number(job, TT_M_CLOCK);
    struct tt_cluster_group g = tt_cluster_group(job, ranks / job->tp / job->pp, job->tp);
    const double iterations = 5;

    for (int bit = TT_TARGET_Q; bit <= TT_TARGET_DOWN; bit *= 2)
        for (int expert = 0; expert < 2; expert++) {
            bool is_ffn = bit >= TT_TARGET_GATE;
            double m, n, count = !is_ffn ? (expert ? 0 : s->layers) : expert ? moe * s->experts : s->layers - moe;

            if (tt_cluster_target_size(s, (enum tt_cluster_target)bit, expert, &m, &n)) {
                double few = fmin(m, n), many = fmax(m, n);

                flops += count * iterations * (4 * few * few * many + 2 * few * few * few);
            }
        }
    return flops / ranks / (rate * stack_number(job, TT_S_GEMM)) +
           2 * tt_cluster_gather_sec(job, g, 2 * tt_cluster_params(s) / job->tp / job->pp);
}

/* The stack's number is for AdamW, which reads and writes a weight and two moments and reads a gradient, in float32. */
static double optimizer_sec(const struct tt_cluster_job *job)
{
    double own = own_params(job), share = trained_share(job);
    double weight = job->weight_bytes > 0 ? job->weight_bytes : 4;
    struct tt_cluster_job usual = *job;
    double bytes = stack_number(job, TT_S_OPTIMIZER_BYTES) - 24 + 2 * weight + 2 * tt_cluster_moment_bytes(job);
    double devices = fmin(machine_number(job, TT_M_DEVICES), tt_cluster_devices(job)), sec;

    usual.state_gradient_bytes = 0;
    bytes += tt_cluster_kept_gradient(job) - tt_cluster_kept_gradient(&usual);
    sec = job->offload == TT_OFFLOAD_NONE
              ? fmax(bytes, 0) * share * own / memory_rate(job)
              : share * own *
                    (devices / host_updates +
                     (job->offload == TT_OFFLOAD_OPTIMIZER ? 2 / machine_number(job, TT_M_HOST_RATE) : 0));
    return sec + (job->optimizer == TT_OPT_MUON && !(job->lora_rank > 0) ? orthogonal_sec(job) : 0);
}

/* Every step waits for the slowest node. Its delay is the largest of `nodes` normal deviates, and perhaps the delay
 * of a slow node. */
static double noise_share(const struct tt_cluster_job *job)
{
    const struct tt_cluster_number *v = job->machine->number;
    double nodes = ceil(tt_cluster_devices(job) / v[TT_M_DEVICES].value);

    if (nodes <= 1)
        return 0;
    return v[TT_M_STEP_SIGMA].value * sqrt(2 * log(nodes)) +
           (1 - pow(1 - v[TT_M_SLOW_HOST].value, nodes)) * (v[TT_M_SLOW_FACTOR].value - 1);
}

/* Seconds of a microbatch on the busiest rank; mean: the average of the layers alone. If the split is not known, the
 * rank with the output gets fewer layers if ranks cannot have equally many; otherwise stacks may move some layers away
 * from it. */
static double busiest_stage(const struct tt_cluster_job *job, double mean, double head)
{
    double layers = job->shape.layers / job->pp, most = tt_cluster_stage_layers(job), busiest = 0;
    double each = most / job->virtual_stages, last = most - 1;

    if (job->shape.mtp_layers > 0) /* these count as layers; their rank holds the remaining layers */
        last = fmax(0, most - (each * job->pp * job->virtual_stages - job->shape.layers));

    for (int i = 0; job->split_known && i < (int)job->pp; i++)
        busiest =
            fmax(busiest, mean * tt_cluster_rank_layers(job, i) / layers + (tt_cluster_has_output(job, i) ? head : 0));
    if (job->split_known)
        return busiest;
    if (most <= layers)
        return mean + stack_number(job, TT_S_OUTPUT_SHARE) * head;
    return fmax(mean * most / layers, mean * last / layers + head);
}

/* The three passes of a microbatch with work of `sec` seconds. */
static struct tt_cluster_passes passes_of(const struct tt_cluster_work *work, double sec)
{
    double scale = sec / device_sec(work);
    struct tt_cluster_passes p = {.forward = scale * work->forward, .weight = scale * work->weight};

    p.input = sec - p.forward - p.weight;
    return p;
}

void tt_cluster_stage_passes(const struct tt_cluster_job *job, struct tt_cluster_passes *ret_pass,
                             struct tt_cluster_passes *ret_output)
{
    struct tt_cluster_work layer, head, stages = {0};
    double mean, most;

    mean_layer(job, &layer);
    output_work(job, &head);
    add_work(&stages, job->shape.layers / job->pp, &layer);
    mean = work_sec(&stages);
    *ret_pass = passes_of(&stages, mean);
    most = job->split_known ? mean + device_sec(&head) : busiest_stage(job, mean, device_sec(&head));
    *ret_output = passes_of(&head, fmax(0, most - mean));
}

/* Seconds for which ranks wait: at the ends of the pipeline, and for the rank with most work. */
static double waiting_sec(const struct tt_cluster_job *job, const struct tt_cluster_work *stages, double head)
{
    double mean = work_sec(stages), most = busiest_stage(job, mean, head), ends;
    struct tt_cluster_passes pass = passes_of(stages, mean);

    ends = tt_cluster_bubble(job, &pass) + (mean + head - most) / job->virtual_stages;
    return fmax(0, ends + job->n_micro * (most - mean));
}

void tt_cluster_step(const struct tt_cluster_job *job, struct tt_cluster_time *ret_time)
{
    struct tt_cluster_time *t = ret_time;
    struct tt_cluster_work layer, head, whole = {0};
    double most, m = job->n_micro;

    mean_layer(job, &layer);
    output_work(job, &head);
    add_work(&whole, job->shape.layers / job->pp, &layer);
    if (job->pp <= 1)
        add_work(&whole, 1, &head);
    most = work_sec(&whole);
    if (job->pp > 1)
        most = busiest_stage(job, most, device_sec(&head));
    *t = (struct tt_cluster_time){
        .gemm = m * whole.gemm,
        .attention = m * whole.attention,
        .memory = m * whole.memory,
        .tensor = m * whole.tensor,
        .context = m * whole.context,
        .expert = m * whole.expert,
        .host = m * (work_sec(&whole) - device_sec(&whole)),
        .optimizer = optimizer_sec(job),
        .pipeline = message_sec(job),
        .bubble = job->pp > 1 ? waiting_sec(job, &whole, device_sec(&head)) : 0,
    };
    t->data = data_sec(job, m * most, t->bubble);
    t->noise = noise_share(job) * (m * most + t->bubble);
    t->total = t->gemm + t->attention + t->memory + t->tensor + t->context + t->expert + t->host + t->optimizer +
               t->pipeline + t->bubble + t->data + t->noise;
}

#define PART(member, title, is_traffic)                                          \
    {                                                                            \
#member, (title), (is_traffic), offsetof(struct tt_cluster_time, member) \
    }

const struct tt_cluster_part tt_cluster_parts[TT_CLUSTER_PARTS] = {PART(gemm, "gemm", false),
                                                                   PART(attention, "attention", false),
                                                                   PART(memory, "memory-bound", false),
                                                                   PART(host, "host", false),
                                                                   PART(tensor, "tensor exposed", true),
                                                                   PART(context, "context exposed", true),
                                                                   PART(expert, "experts exposed", true),
                                                                   PART(data, "data exposed", true),
                                                                   PART(pipeline, "pipeline messages", true),
                                                                   PART(bubble, "bubble", false),
                                                                   PART(optimizer, "optimizer", false),
                                                                   PART(noise, "noise", false)};

double tt_cluster_part_sec(const struct tt_cluster_time *time, const struct tt_cluster_part *part)
{
    return *(const double *)((const char *)time + part->offset);
}

const struct tt_cluster_part *tt_cluster_dominant(const struct tt_cluster_time *time)
{
    const struct tt_cluster_part *most = tt_cluster_parts;

    for (int i = 1; i < TT_CLUSTER_PARTS; i++)
        if (tt_cluster_part_sec(time, &tt_cluster_parts[i]) > tt_cluster_part_sec(time, most))
            most = &tt_cluster_parts[i];
    return most;
}
