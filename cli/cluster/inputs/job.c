/* SPDX-License-Identifier: MIT
 *
 * The configuration of a run as a job on a cluster.
 */
#include "cli/job/job.h"

#include <math.h>
#include <string.h>

#include "cli/cluster/inputs/job.h"
#include "cli/cluster/screen/screen.h"
#include "cli/job/model.h"
#include "cli/job/pipeline.h"
#include "core/base/mem.h"
#include "core/models/model.h"
#include "parallel/pipeline/schedule.h"

/* Layers whose attention has a window. */
static double windowed_layers(const struct tt_model_dims *d)
{
    int64_t n = 0;

    for (int64_t l = 0; l < d->n_layers; l++)
        n += tt_model_is_windowed(d, l);
    return (double)n;
}

static struct tt_cluster_shape shape_of(const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;
    double expert = (double)(d->moe.ffn_dim ? d->moe.ffn_dim : d->ffn_dim);
    struct tt_cluster_latent latent = {.key_rank = (double)d->mla.kv_rank,
                                       .query_rank = (double)d->mla.q_rank,
                                       .rope = (double)d->mla.rope_dim,
                                       .nope = (double)(d->head_dim - d->mla.rope_dim),
                                       .value = (double)d->mla.value_dim};
    struct tt_cluster_shape s = {.dim = (double)d->dim,
                                 .layers = (double)d->n_layers,
                                 .heads = (double)d->n_heads,
                                 .kv_heads = (double)d->n_kv_heads,
                                 .head_dim = (double)d->head_dim,
                                 .ffn = (double)d->ffn_dim,
                                 .vocab = (double)d->vocab_size,
                                 .gated = !model->row->learned_positions,
                                 .tied = d->tied == 1,
                                 .params = (double)tt_model_n_elements(model),
                                 .experts = (double)d->moe.experts,
                                 .active = (double)d->moe.top_k,
                                 .moe_ffn = expert,
                                 .shared_ffn = (double)d->moe.shared * expert,
                                 .dense_layers = (double)tt_model_dense_layers(d),
                                 .window = (double)d->sliding_window,
                                 .window_layers = windowed_layers(d),
                                 .positions = model->row->learned_positions ? (double)d->max_positions : 0};

    if (d->mla.kv_rank > 0)
        tt_cluster_shape_set_latent(&s, &latent);
    return s;
}

static int find_shape(const struct tt_config *cfg, const struct tt_cluster_beyond *beyond,
                      struct tt_cluster_shape *ret_shape)
{
    struct tt_model_dims over = tt_job_model_overrides(cfg);
    struct tt_model *model = NULL;
    int rc = 0;

    if (beyond->shape) {
        *ret_shape = *beyond->shape;
        return 0;
    }
    TT_TRY(tt_model_new(cfg->model.name, cfg->model.flavor, &over, cfg->model.hf_assets_path, &model));
    *ret_shape = shape_of(model);
out:
    tt_model_free(model);
    return rc;
}

static void recomputation(const struct tt_config *cfg, struct tt_cluster_job *job)
{
    switch (cfg->activation_checkpoint.mode) {
    case TT_AC_NONE:
        job->again = TT_AGAIN_NONE;
        break;
    case TT_AC_FULL:
        job->again = TT_AGAIN_FULL;
        break;
    case TT_AC_AUTO:
        job->again = TT_AGAIN_OP;
        break;
    case TT_AC_SELECTIVE:
        job->again = cfg->activation_checkpoint.selective_ac_option == 0 ? TT_AGAIN_OP : TT_AGAIN_LAYERS;
        if (job->again == TT_AGAIN_LAYERS)
            job->again_layers = floor(job->shape.layers / (double)cfg->activation_checkpoint.selective_ac_option);
        break;
    }
}

static int batches(const struct tt_config *cfg, struct tt_cluster_job *job)
{
    double ranks = job->shard * job->replicate, local = (double)cfg->training.local_batch_size, sequences;

    sequences = cfg->training.global_batch_size > 0 ? (double)cfg->training.global_batch_size : local * ranks;
    job->micro_batch = job->pp > 1 ? (double)cfg->parallelism.pipeline_parallel_microbatch_size : local;
    job->n_micro = sequences / ranks / job->micro_batch;
    if (job->n_micro < 1 || floor(job->n_micro) != job->n_micro)
        return tt_fail(TT_EUSAGE,
                       "estimate: a step of %.0f sequences is no multiple of %.0f ranks of data parallelism x %.0f "
                       "sequences\nhelp: change training.global_batch_size or training.local_batch_size",
                       sequences, ranks, job->micro_batch);
    return 0;
}

static int degrees(const struct tt_config *cfg, const struct tt_cluster_beyond *beyond, int ranks,
                   struct tt_cluster_job *job)
{
    double inner;

    job->tp = (double)cfg->parallelism.tensor_parallel_degree;
    job->pp = (double)cfg->parallelism.pipeline_parallel_degree;
    job->cp = (double)cfg->parallelism.context_parallel_degree;
    job->ep = beyond->shape ? beyond->ep : (double)cfg->parallelism.expert_parallel_degree;
    job->replicate = (double)cfg->parallelism.data_parallel_replicate_degree;
    job->shard = (double)cfg->parallelism.data_parallel_shard_degree;
    inner = job->tp * job->pp * job->cp * job->replicate;
    if (job->shard < 1)
        job->shard = floor(ranks / inner);
    if (inner * job->shard != ranks)
        return tt_fail(TT_EUSAGE,
                       "estimate: the degrees of parallelism multiply to %.0f, not to %d ranks\nhelp: let "
                       "parallelism.data_parallel_shard_degree be -1, or choose another --ranks",
                       inner * fmax(job->shard, 1), ranks);
    if (beyond->stack->number[TT_S_STATE_WHOLE].value > 0 && cfg->parallelism.data_parallel_shard_degree < 1) {
        job->replicate *= job->shard; /* ranks of such a stack have copies of parameters, and at most divide state */
        job->shard = 1;
    }
    job->sequence_parallel = job->tp > 1 && !beyond->whole_rows;
    job->expert_tp = beyond->megatron ? beyond->megatron->expert_tp : 0;
    return 0;
}

static enum tt_cluster_order order_of(const struct tt_config *cfg, const struct tt_cluster_job *job)
{
    const char *name = cfg->parallelism.pipeline_parallel_schedule;

    if (job->pp <= 1)
        return TT_ORDER_1F1B;
    if (strcmp(name, "GPipe") == 0 || strcmp(name, "LoopedBFS") == 0)
        return TT_ORDER_ALL_FORWARD;
    if (strcmp(name, "InterleavedZeroBubble") == 0)
        return TT_ORDER_INTERLEAVED_ZERO_BUBBLE;
    if (strcmp(name, "ZBVZeroBubble") == 0)
        return TT_ORDER_ZBV_ZERO_BUBBLE;
    return strcmp(name, "DualPipeV") == 0 ? TT_ORDER_DUAL_PIPE_V : TT_ORDER_1F1B;
}

/* Stages of a pipeline, as torchtitan counts them: the ends of the model count as layers too. Older files do not count
 * them, so a number that does not go into the ranks is counted so. */
static double n_stages(const struct tt_config *cfg, struct tt_cluster_job *job, double each)
{
    double ends = (double)(cfg->parallelism.pipeline_parallel_first_stage_less_layers +
                           cfg->parallelism.pipeline_parallel_last_stage_less_layers);
    double all = ceil((job->shape.layers + ends) / each);

    if (fmod(all, job->pp) == 0)
        return all;
    job->first_less = job->last_less = 0;
    return ceil(job->shape.layers / each);
}

int tt_cluster_stages_of(const struct tt_config *cfg, struct tt_cluster_beyond *beyond)
{
    struct tt_cluster_shape shape;
    struct tt_stage_split split;
    int rc = 0;

    if (cfg->parallelism.module_fqns_per_model_part.n == 0 || cfg->parallelism.pipeline_parallel_degree <= 1)
        return 0;
    TT_TRY(find_shape(cfg, beyond, &shape));
    TT_TRY(tt_job_pipeline_split(cfg, (int)shape.layers, &split));
    beyond->n_stages = split.n_stages;
    beyond->stage_layers = tt_calloc((size_t)split.n_stages, sizeof *beyond->stage_layers);
    for (int i = 0; i < split.n_stages; i++)
        beyond->stage_layers[i] = tt_stage_split_layers(&split, i).n_layers;
    tt_stage_split_release(&split);
out:
    return rc;
}

static int stages_of_a_rank(const struct tt_config *cfg, const struct tt_cluster_beyond *beyond,
                            struct tt_cluster_job *job)
{
    const char *name = cfg->parallelism.pipeline_parallel_schedule;
    bool several =
        strstr(name, "Interleaved") || strstr(name, "Looped") || strstr(name, "ZBV") || strstr(name, "DualPipe");
    double each = (double)cfg->parallelism.pipeline_parallel_layers_per_stage, all;

    job->virtual_stages = beyond->stages_of_a_rank > 0 ? beyond->stages_of_a_rank : several ? 2 : 1;
    if (job->pp <= 1)
        job->virtual_stages = 1;
    if (job->pp > 1 && beyond->stage_layers) {
        job->virtual_stages = beyond->n_stages / job->pp;
        job->stage_layers = beyond->stage_layers;
        job->split_known = true;
        return 0;
    }
    if (job->pp <= 1 || beyond->stages_of_a_rank > 0 ||
        cfg->parallelism.pipeline_parallel_layers_per_stage == TT_NULL_INT)
        return 0;
    all = n_stages(cfg, job, each);
    job->virtual_stages = all / job->pp;
    if (fmod(all, job->pp) != 0 || (job->virtual_stages > 1) != several)
        return tt_fail(TT_EUSAGE,
                       "estimate: %.0f layers make %.0f stages of parallelism.pipeline_parallel_layers_per_stage %.0f, "
                       "and %s needs %s on each of %.0f ranks\nhelp: leave the key out, or change it",
                       job->shape.layers, all, each, name, several ? "two or more, equally many," : "one", job->pp);
    return 0;
}

/* The kernel of attention that flags ask for; the stack's fused one is not slower than FlashAttention 2. */
static int kernel_of(const struct tt_cluster_beyond *beyond)
{
    int asked = beyond->megatron ? beyond->megatron->kernel : -1;

    return asked == 2 && beyond->stack->number[TT_S_KERNEL].value >= 2 ? -1 : asked;
}

/* Sequences of a step: with local_batch_size alone, those of as many ranks of data parallelism as the layout has. */
int tt_cluster_batch_of(const struct tt_config *cfg, const struct tt_cluster_beyond *beyond, int ranks,
                        struct tt_cluster_job *ret_job)
{
    struct tt_cluster_job job = {.machine = beyond->machine, .stack = beyond->stack, .kernel = kernel_of(beyond)};
    int rc = 0;

    TT_TRY(find_shape(cfg, beyond, &job.shape));
    TT_TRY(degrees(cfg, beyond, ranks, &job));
    job.seq_len = (double)cfg->training.seq_len;
    job.virtual_stages = 1;
    job.micro_batch = 1;
    job.n_micro = cfg->training.global_batch_size > 0
                      ? (double)cfg->training.global_batch_size / (job.shard * job.replicate)
                      : (double)cfg->training.local_batch_size;
    job.float8 = beyond->float8;
    job.float32 = strcmp(beyond->stack->name, "titan") == 0 && cfg->training.mixed_precision_param == TT_DTYPE_FLOAT32;
    job.async_tp = beyond->async_tp;
    job.loss_chunks = beyond->loss_chunks;
    job.whole_logits = job.tp > 1 && beyond->whole_logits;
    job.split_known = !(beyond->stack->number[TT_S_STATE_WHOLE].value > 0);
    job.first_less = (double)cfg->parallelism.pipeline_parallel_first_stage_less_layers;
    job.last_less = (double)cfg->parallelism.pipeline_parallel_last_stage_less_layers;
    *ret_job = job;
out:
    return rc;
}

int tt_cluster_job_of(const struct tt_config *cfg, const struct tt_cluster_beyond *beyond, int ranks,
                      struct tt_cluster_job *ret_job)
{
    struct tt_cluster_job job = {.kernel = -1};
    const struct tt_words *reshard = &cfg->parallelism.fsdp_reshard_after_forward;
    const char *fault;
    char text[200];
    int rc = 0;

    TT_TRY(tt_cluster_batch_of(cfg, beyond, ranks, &job));
    TT_TRY(stages_of_a_rank(cfg, beyond, &job));
    job.order = order_of(cfg, &job);
    recomputation(cfg, &job);
    if (beyond->megatron) {
        job.again = beyond->megatron->again;
        job.again_layers = beyond->megatron->again_layers;
        job.again_modules = beyond->megatron->again_modules;
        job.gradient_bytes = beyond->megatron->gradient_bytes;
        job.balanced = beyond->megatron->balanced;
        job.expert_overlap = beyond->megatron->expert_overlap;
    }
    job.keep_gathered =
        reshard->n == 1 && (strcmp(reshard->word[0], "never") == 0 || strcmp(reshard->word[0], "false") == 0);
    TT_TRY(batches(cfg, &job));
    fault = tt_cluster_fault(&job);
    if (fault)
        rc = tt_fail(TT_EUSAGE, "estimate: the layout cannot run on %d ranks: %s (%s)", ranks, fault,
                     tt_cluster_layout_text(text, sizeof text, &job));
    *ret_job = job;
out:
    return rc;
}
