/* SPDX-License-Identifier: MIT
 *
 * From configuration and number of ranks to the options of the engine.
 */
#include "trainer/job/job.h"

#include <math.h>
#include <string.h>

#include <unistd.h>

#include "checkpoint/save/save.h"
#include "checkpoint/steps/steps.h"
#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/os/machine.h"
#include "core/os/team.h"
#include "parallel/layout/init.h"
#include "parallel/layout/units.h"
#include "trainer/job/tensors.h"

/* --- the engine --- */

enum tt_reduce_when tt_job_reduce_when(enum tt_sync_choice sync)
{
    return sync == TT_SYNC_LAST_MICROBATCH ? TT_REDUCE_LAST
           : sync == TT_SYNC_EVERY_RUN     ? TT_REDUCE_RUNS
                                           : TT_REDUCE_EACH;
}

enum tt_sync_choice tt_job_sync_of(enum tt_reduce_when when)
{
    return when == TT_REDUCE_LAST   ? TT_SYNC_LAST_MICROBATCH
           : when == TT_REDUCE_RUNS ? TT_SYNC_EVERY_RUN
                                    : TT_SYNC_EVERY_MICROBATCH;
}

int tt_job_threads(const struct tt_config *cfg, int local_size)
{
    if (cfg->parallelism.threads_per_rank > 0)
        return (int)cfg->parallelism.threads_per_rank;
    return tt_team_fair_cores(local_size);
}

int tt_job_ranks_on_host(int n_ranks, int threads)
{
    int cores = tt_cores()->cores, room = threads > 0 ? cores / threads : cores;

    room = room < 1 ? 1 : room;
    return n_ranks < room ? n_ranks : room;
}

double tt_job_machine_bytes(void)
{
    return fmin((double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE), tt_limits_read("").memory_bytes);
}

int64_t tt_job_memory_limit(const struct tt_config *cfg, int local_size)
{
    if (cfg->parallelism.memory_limit != TT_NULL_INT)
        return cfg->parallelism.memory_limit;
    return (int64_t)(0.9 * tt_job_machine_bytes() / local_size);
}

/* auto: a user who chooses bfloat16 wants to save memory, and recomputing light operations takes hardly any time. */
static struct tt_recompute recompute_of(const struct tt_config *cfg)
{
    bool is_bf16 = cfg->training.mixed_precision_param == TT_DTYPE_BFLOAT16;
    const enum tt_recompute_mode modes[] = {[TT_AC_NONE] = TT_RECOMPUTE_NONE,
                                            [TT_AC_FULL] = TT_RECOMPUTE_FULL,
                                            [TT_AC_SELECTIVE] = TT_RECOMPUTE_SELECTIVE,
                                            [TT_AC_AUTO] = is_bf16 ? TT_RECOMPUTE_OP : TT_RECOMPUTE_NONE};
    struct tt_recompute recompute = {.mode = modes[cfg->activation_checkpoint.mode]};

    if (recompute.mode != TT_RECOMPUTE_SELECTIVE)
        return recompute;
    recompute.every = (int)cfg->activation_checkpoint.selective_ac_option;
    if (recompute.every < 1) /* the word "op" */
        recompute.mode = TT_RECOMPUTE_OP;
    return recompute;
}

static enum tt_dtype dtype_of(int choice)
{
    return choice == TT_DTYPE_BFLOAT16 ? TT_BF16 : TT_F32;
}

int tt_job_machine(const struct tt_config *cfg, struct tt_machine *ret_machine)
{
    const char *path = cfg->parallelism.machine_file;
    int rc = 0;

    *ret_machine = tt_machine_builtin();
    if (path && (rc = tt_machine_load(path, ret_machine)) < 0)
        return tt_fail_key(rc, TT_KEY(parallelism.machine_file), "%s", tt_error_message());
    return 0;
}

static int engine_options(const struct tt_config *cfg, const struct tt_job *job, int threads, int64_t memory_limit,
                          struct tt_engine_options *ret_options)
{
    const char *reshard = cfg->parallelism.fsdp_reshard_after_forward.word[0];
    struct tt_engine_options o = {
        .model = job->model,
        .mesh = job->mesh,
        .sharding = tt_sharding_of(cfg->parallelism.fsdp_wrap_policy, cfg->parallelism.fsdp_reshard_after_forward),
        .reduce = tt_job_reduce_when(cfg->training.gradient_sync),
        .prefetch = (int)cfg->parallelism.fsdp_prefetch,
        .moe_window = cfg->parallelism.moe_window,
        .threads = threads,
        .recompute = recompute_of(cfg),
        .init = cfg->training.init,
        .muon_steps = (int)cfg->optimizer.muon_ns_steps,
        .shard_dtype = dtype_of((int)cfg->training.dtype),
        .param_dtype = dtype_of((int)cfg->training.mixed_precision_param),
        .reduce_dtype = dtype_of((int)cfg->training.mixed_precision_reduce),
        .z_loss = cfg->training.z_loss,
        .router_losses = {.sequence = cfg->training.sequence_balance_loss,
                          .microbatch = cfg->training.microbatch_balance_loss,
                          .z = cfg->training.router_z_loss,
                          .global_batch = cfg->training.global_batch_balance_loss},
        .averages = !isnan(cfg->ema.decay),
        .documents = cfg->training.document_mask,
        .places = job->places,
        .pipeline = job->pipeline,
        .local_batch = job->microbatch_size,
        .seq_len = cfg->training.seq_len,
        .microbatches = (int)job->microbatches,
        .scheduler = cfg->parallelism.fsdp_engine,
        .bucket_bytes = cfg->parallelism.fsdp_bucket_bytes,
        .memory_limit = memory_limit,
        .choose_reshard_by_limit = strcmp(reshard, "auto") == 0};
    int rc = 0;

    if (cfg->validation.enable) {
        o.validation_batch = cfg->validation.local_batch_size;
        o.validation_seq_len = cfg->validation.seq_len;
    }
    if (cfg->float64)
        o.shard_dtype = o.param_dtype = o.reduce_dtype = TT_F64;
    TT_TRY(tt_job_machine(cfg, &o.machine));
    *ret_options = o;
out:
    return rc;
}

/* --- checkpoints --- */

const char *tt_job_policy_name(const struct tt_config *cfg)
{
    return tt_config_choice_word(tt_config_row(TT_KEY(checkpoint.save_policy))->choices,
                                 (int)cfg->checkpoint.save_policy);
}

const char *tt_job_filter_name(const struct tt_config *cfg)
{
    return tt_config_choice_word(tt_config_row(TT_KEY(checkpoint.filter))->choices, (int)cfg->checkpoint.filter);
}

int tt_job_policy(const struct tt_config *cfg, const struct tt_ckpt_policy **ret_policy)
{
    return tt_ckpt_policy_find(tt_job_policy_name(cfg), tt_job_filter_name(cfg), ret_policy);
}

enum tt_dtype tt_job_export_dtype(const struct tt_config *cfg)
{
    static const enum tt_dtype types[] = {
        [TT_EXPORT_FLOAT32] = TT_F32, [TT_EXPORT_FLOAT16] = TT_F16, [TT_EXPORT_BFLOAT16] = TT_BF16};

    return types[cfg->checkpoint.export_dtype];
}

/* The most bytes that any rank needs to stage its part of a checkpoint; depends only on model and mesh. */
static int staging_bytes(const struct tt_config *cfg, const struct tt_job *job, int64_t *ret_bytes)
{
    const struct tt_ckpt_policy *policy = NULL;
    struct tt_job_tensors tensors = {0};
    int rc = 0;

    *ret_bytes = 0;
    if (!cfg->checkpoint.enable || cfg->checkpoint.load_only || cfg->checkpoint.async_mode != TT_ASYNC_ASYNC)
        return 0;
    TT_TRY(tt_job_policy(cfg, &policy));
    tt_job_tensors_init(&job->engine, NULL, &tensors);
    for (int place = 0; place < tt_mesh_size(&job->mesh, TT_GROUP_PP); place++) {
        int rank = tt_mesh_member(&job->mesh, 0, TT_GROUP_PP, place);
        int64_t bytes = tt_ckpt_staging_bytes(&tensors.state, &job->mesh, policy, rank);

        *ret_bytes = bytes > *ret_bytes ? bytes : *ret_bytes;
    }
out:
    tt_job_tensors_release(&tensors);
    return rc;
}

/* A token of the prompt takes at least one byte, but a chat template adds text. */
struct tt_generator_options tt_job_sampling(const struct tt_config *cfg, const struct tt_engine_options *engine)
{
    enum { OF_TEMPLATE = 1024, ROWS = 5 * TT_ATTENTION_ROWS };
    int64_t prompt = OF_TEMPLATE + (cfg->metrics.sample_prompt ? (int64_t)strlen(cfg->metrics.sample_prompt) : 0);
    int64_t positions = engine->model->dims.max_positions, context = prompt + cfg->metrics.sample_tokens;

    if (engine->model->row->learned_positions && context > positions)
        context = positions;
    return (struct tt_generator_options){.model = engine->model,
                                         .dtype = engine->param_dtype,
                                         .context = context,
                                         .prompt_rows = ROWS,
                                         .threads = engine->threads};
}

/* Most tasks have four answers. The rows are those of titan eval, which gives the same bits. */
struct tt_generator_options tt_job_scoring(const struct tt_config *cfg, const struct tt_engine_options *engine)
{
    enum { ROWS = 256, TOGETHER = 4 };

    return (struct tt_generator_options){.model = engine->model,
                                         .dtype = engine->param_dtype,
                                         .context = cfg->training.seq_len,
                                         .sequences = TOGETHER,
                                         .prompt_rows = ROWS,
                                         .threads = engine->threads};
}

static int sampling_bytes(const struct tt_config *cfg, const struct tt_job *job, int64_t *ret_bytes)
{
    const struct tt_generator_options options[] = {tt_job_sampling(cfg, &job->engine),
                                                   tt_job_scoring(cfg, &job->engine)};
    const int64_t freq[] = {cfg->metrics.sample_freq, cfg->metrics.task_freq};
    struct tt_generator *generator = NULL;
    int rc = 0;

    for (int i = 0; i < 2; i++) {
        int64_t bytes;

        if (!freq[i])
            continue;
        TT_TRY(tt_generator_new(&options[i], &generator));
        bytes = tt_generator_memory(generator).total;
        *ret_bytes = bytes > *ret_bytes ? bytes : *ret_bytes;
        tt_generator_free(generator);
        generator = NULL;
    }
out:
    tt_generator_free(generator);
    return rc;
}

int tt_job_skip_flags(const struct tt_config *cfg, unsigned *ret_skip)
{
    const struct tt_words *words = &cfg->checkpoint.exclude_from_loading;
    unsigned flag = 0;
    int rc = 0;

    *ret_skip = 0;
    for (int i = 0; i < words->n; i++) {
        TT_TRY(tt_ckpt_skip_flag(words->word[i], &flag));
        *ret_skip |= flag;
    }
out:
    return rc;
}

int tt_job_resume_request(const struct tt_config *cfg, struct tt_ckpt_request *ret_request)
{
    *ret_request = (struct tt_ckpt_request){.line.load_step = cfg->checkpoint.load_step,
                                            .reading = cfg->checkpoint.load_policy,
                                            .as_asked = cfg->checkpoint.load_only};
    return tt_job_skip_flags(cfg, &ret_request->line.skip);
}

/* --- the job --- */

/* Splits a rank's batch into the microbatches of a run through the pipeline. */
static int add_pipeline(const struct tt_config *cfg, struct tt_job *job)
{
    struct tt_stage_split split = {0};
    int run = 0, rc = 0;

    TT_TRY(tt_job_pipeline_microbatches(cfg, &run));
    TT_TRY(tt_job_pipeline_split(cfg, (int)job->model->dims.n_layers, &split));
    TT_TRY(tt_job_pipeline_new(cfg, split.n_stages, run, &job->pipeline));
    if (cfg->training.gradient_sync == TT_SYNC_LAST_MICROBATCH && !tt_pipeline_ascends(job->pipeline))
        TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY(training.gradient_sync),
                           "last_microbatch, but %s computes backward in an order other than the microbatches'\n"
                           "help: use every_run, every_microbatch or auto",
                           job->pipeline->schedule->name));
    job->microbatches *= run;
    job->microbatch_size /= run;
    job->places = tt_calloc(1, sizeof *job->places);
    job->places->n_stages = split.n_stages;
    job->places->module_stage = split.module_stage;
    split.module_stage = NULL;
    job->places->rank_of_stage = job->pipeline->rank_of_stage;
out:
    tt_stage_split_release(&split);
    return rc;
}

/* The model, with the rules for its initial weights and the optimizer's parameter groups; the caller frees it
 * (tt_model_free). Errors: as tt_model_new; TT_EUSAGE for a rule that is wrong. */
static int make_model(const struct tt_config *cfg, struct tt_model **ret_model)
{
    struct tt_model_dims over = tt_job_model_overrides(cfg);
    struct tt_model *model = NULL;
    int rc = 0;

    TT_TRY(tt_model_new(cfg->model.name, cfg->model.flavor, &over, cfg->model.hf_assets_path, &model));
    TT_TRY(tt_init_rules_apply(model, cfg->model.init_std, cfg->model.init_rules));
    TT_TRY(tt_param_groups_apply(model, cfg->optimizer.no_decay, cfg->optimizer.lr_factors));
    tt_param_groups_set_optim(model, (enum tt_optim_choice)cfg->optimizer.name);
    *ret_model = model;
    model = NULL;
out:
    tt_model_free(model);
    return rc;
}

int tt_job_init(struct tt_config *cfg, int n_ranks, int threads, int64_t memory_limit, struct tt_job *ret_job)
{
    int64_t tp = cfg->parallelism.tensor_parallel_degree, exact_tp = cfg->parallelism.exact_tensor_parallel_degree;
    int64_t cp = cfg->parallelism.context_parallel_degree;
    struct tt_job job = {0};
    struct tt_model_dims *d;
    int rc = 0;

    TT_TRY(tt_mesh_configure(cfg, n_ranks, &job.mesh));
    TT_TRY(tt_mesh_microbatches(&job.mesh, cfg->training.local_batch_size, cfg->training.global_batch_size,
                                &job.microbatches));
    job.microbatch_size = cfg->training.local_batch_size;
    job.global_batch = job.microbatches * job.microbatch_size * tt_mesh_size(&job.mesh, TT_GROUP_BATCH);
    TT_TRY(tt_job_adopt_folder(cfg));
    TT_TRY(tt_job_adopt_family(cfg));
    TT_TRY(tt_job_adopt_vocabulary(cfg));
    TT_TRY(make_model(cfg, &job.model));
    d = &job.model->dims;
    /* without learned positions, the run's sequence length becomes the model's limit, in exports too */
    if (!job.model->row->learned_positions && !d->rope.dynamic && d->max_positions &&
        cfg->training.seq_len > d->max_positions) {
        job.told_positions = d->max_positions;
        d->max_positions = cfg->training.seq_len;
    }
    TT_TRY(tt_model_check_seq_len(job.model, cfg->training.seq_len, cfg->training.document_mask));
    if (cfg->validation.enable)
        TT_TRY(tt_model_check_seq_len(job.model, cfg->validation.seq_len, cfg->training.document_mask));
    TT_TRY(tt_job_check_divisions(cfg, job.model));
    /* the ranks that share a sequence either gather keys and values, or exchange heads */
    job.mesh.cp_gathers = cfg->parallelism.context_parallel_method == TT_CONTEXT_AUTO
                              ? d->n_kv_heads % (cp * (tp > exact_tp ? tp : exact_tp)) != 0
                              : cfg->parallelism.context_parallel_method == TT_CONTEXT_GATHER;
    TT_TRY(tt_job_resolve_model(cfg, job.model));
    if (job.mesh.size[TT_MESH_PP] > 1)
        TT_TRY(add_pipeline(cfg, &job));
    TT_TRY(engine_options(cfg, &job, threads, memory_limit, &job.engine));
    TT_TRY(staging_bytes(cfg, &job, &job.staging_bytes));
    TT_TRY(sampling_bytes(cfg, &job, &job.sampling_bytes));
    job.staging_bytes += job.sampling_bytes;
    job.engine.memory_limit -= job.staging_bytes;
    *ret_job = job;
    job = (struct tt_job){0};
out:
    tt_job_release(&job);
    return rc;
}

void tt_job_release(struct tt_job *job)
{
    if (job->places)
        tt_stage_places_release(job->places);
    tt_free(job->places);
    tt_pipeline_free(job->pipeline);
    tt_free(job->sync_why);
    tt_model_free(job->model);
    *job = (struct tt_job){0};
}

void tt_job_readers_text(const struct tt_job *job, struct tt_text *out)
{
    int n = tt_mesh_size(&job->mesh, TT_GROUP_BATCH), ranks = job->mesh.n_ranks / n;
    const char *s = n == 1 ? "" : "s";

    if (job->pipeline)
        tt_text_add(out, "%d pipeline%s", n, s);
    else if (ranks > 1)
        tt_text_add(out, "%d group%s of %d ranks", n, s, ranks);
    else
        tt_text_add(out, "%d rank%s", n, s);
}

void tt_job_policies_text(const struct tt_config *cfg, struct tt_text *out)
{
    static const struct {
        const char *name;
        enum tt_key key;
    } policies[] = {
        {"wrap", TT_KEY(parallelism.fsdp_wrap_policy)},    {"reshard", TT_KEY(parallelism.fsdp_reshard_after_forward)},
        {"engine", TT_KEY(parallelism.fsdp_engine)},       {"prefetch", TT_KEY(parallelism.fsdp_prefetch)},
        {"gradient sync", TT_KEY(training.gradient_sync)},
    };
    static const char *const recomputes[] = {[TT_RECOMPUTE_NONE] = "none",
                                             [TT_RECOMPUTE_FULL] = "full",
                                             [TT_RECOMPUTE_SELECTIVE] = "selective",
                                             [TT_RECOMPUTE_OP] = "op"};

    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        tt_text_add(out, "%s%s ", i ? ", " : "", policies[i].name);
        tt_config_value_text(cfg, tt_config_row(policies[i].key), out);
    }
    tt_text_add(out, ", recompute %s, parameters ", recomputes[recompute_of(cfg).mode]);
    tt_config_value_text(cfg, tt_config_row(TT_KEY(training.mixed_precision_param)), out);
}
