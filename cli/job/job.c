/* SPDX-License-Identifier: MIT
 *
 * From configuration and number of ranks to the options of the engine.
 */
#include "cli/job/job.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/save/save.h"
#include "checkpoint/steps/steps.h"
#include "cli/job/divisions.h"
#include "cli/job/pipeline.h"
#include "cli/job/sync.h"
#include "cli/job/tensors.h"
#include "cli/run/records/metrics.h"
#include "core/base/mem.h"
#include "core/models/parts/lora.h"
#include "core/os/cores.h"
#include "core/os/path.h"
#include "core/os/team.h"
#include "core/tokenizer/tokenizer.h"
#include "parallel/layout/init_rules.h"
#include "parallel/layout/param_groups.h"

/* --- the model --- */

static int64_t or_zero(int64_t nullable)
{
    return nullable == TT_NULL_INT ? 0 : nullable;
}

static double or_zero_real(double nullable)
{
    return isnan(nullable) ? 0.0 : nullable;
}

static struct tt_lora lora_of(const struct tt_config *cfg)
{
    struct tt_lora lora = {.rank = cfg->lora.rank, .alpha = cfg->lora.alpha};

    for (int i = 0; i < cfg->lora.target_modules.n; i++)
        lora.modules |= tt_lora_module(cfg->lora.target_modules.word[i]);
    return lora;
}

struct tt_model_dims tt_job_model_overrides(const struct tt_config *cfg)
{
    return (struct tt_model_dims){
        .dim = or_zero(cfg->model.dim),
        .n_layers = or_zero(cfg->model.n_layers),
        .n_heads = or_zero(cfg->model.n_heads),
        .n_kv_heads = or_zero(cfg->model.n_kv_heads),
        .head_dim = or_zero(cfg->model.head_dim),
        .ffn_dim = or_zero(cfg->model.ffn_dim),
        .vocab_size = or_zero(cfg->model.vocab_size),
        .norm_eps = (float)or_zero_real(cfg->model.norm_eps),
        .rope = {.theta = or_zero_real(cfg->model.rope_theta),
                 .factor = or_zero_real(cfg->model.rope_scaling.factor),
                 .low_freq_factor = or_zero_real(cfg->model.rope_scaling.low_freq_factor),
                 .high_freq_factor = or_zero_real(cfg->model.rope_scaling.high_freq_factor),
                 .original_max = (double)or_zero(cfg->model.rope_scaling.original_max)},
        .moe = {.biased = cfg->training.load_balance_coeff > 0.0, .balanced = cfg->debug.moe_force_load_balance},
        .tied = cfg->model.tie_embeddings == TT_NULL_BOOL ? -1 : cfg->model.tie_embeddings,
        .lora = lora_of(cfg),
    };
}

/* The user did not set a default, nor a value of the built-in run. */
static bool is_default(const char *origin)
{
    return strcmp(origin, "default") == 0 || strncmp(origin, "builtin:", strlen("builtin:")) == 0;
}

/* Weights and a tokenizer may be one file instead of a folder. */
static int has_file(const char *folder, const char *name, bool *ret_has)
{
    char *path = tt_format("%s/%s", folder, name);
    bool is_folder = false;
    int rc = tt_path_is_folder(folder, &is_folder);

    *ret_has = false;
    if (rc == 0 && is_folder)
        rc = tt_path_exists(path, ret_has);
    tt_free(path);
    return rc;
}

/* Whether a path is a folder of safetensors files with Hugging Face's config.json. Other code reports a path that
 * cannot be used. */
static int is_hf_folder(const char *path, bool *ret_is)
{
    enum tt_path_kind kind = TT_PATH_PLAIN;
    bool has_config = false, has_model = false;
    char *folder = NULL;
    int rc = 0;

    *ret_is = false;
    TT_TRY(has_file(path, "config.json", &has_config));
    TT_TRY(has_file(path, "model.json", &has_model)); /* titan's */
    *ret_is = has_config && !has_model && tt_path_find(path, &kind, &folder) == 0 && kind == TT_PATH_PLAIN;
out:
    tt_free(folder);
    return rc;
}

int tt_job_adopt_folder(struct tt_config *cfg)
{
    const char *assets = cfg->model.hf_assets_path, *path = cfg->checkpoint.initial_load_path;
    const char *origin = path ? "checkpoint.initial_load_path" : "model.hf_assets_path";
    bool is_hf = false, has_config = true, has_tokenizer = false;
    int rc = 0;

    if (!path && cfg->checkpoint.initial_load_in_hf)
        path = assets;
    if (!path)
        return 0;
    TT_TRY(is_hf_folder(path, &is_hf));
    if (!is_hf)
        goto out;
    TT_TRY(has_file(path, "tokenizer.json", &has_tokenizer));
    if (assets)
        TT_TRY(has_file(assets, "config.json", &has_config));
    if (is_default(tt_config_origin(cfg, "checkpoint.initial_load_in_hf")))
        TT_TRY(tt_config_adopt(cfg, "checkpoint.initial_load_in_hf", "true", origin));
    if (has_config && is_default(tt_config_origin(cfg, "model.flavor")))
        TT_TRY(tt_config_adopt(cfg, "model.flavor", "hf", origin));
    if (!assets && (has_tokenizer || strcmp(cfg->model.flavor, "hf") == 0))
        TT_TRY(tt_config_adopt(cfg, "model.hf_assets_path", path, origin));
out:
    return rc;
}

int tt_job_adopt_family(struct tt_config *cfg)
{
    const char *folder = cfg->model.hf_assets_path, *name = NULL;
    char *origin;
    int rc;

    if (strcmp(cfg->model.flavor, "hf") != 0 || !folder || !is_default(tt_config_origin(cfg, "model.name")))
        return 0;
    if ((rc = tt_model_hf_name(folder, &name)) < 0)
        return rc;
    origin = tt_format("%s/config.json", folder);
    rc = tt_config_adopt(cfg, "model.name", name, origin);
    tt_free(origin);
    return rc;
}

/* The tokenizer of a folder; NULL: there is none, or it cannot be read, which the code that needs it reports. */
static struct tt_tokenizer *tokenizer_in(const char *folder)
{
    char *path = tt_format("%s/tokenizer.json", folder);
    struct tt_tokenizer *tokenizer = NULL;
    bool exists = false;

    if (tt_path_exists(path, &exists) < 0 || !exists || tt_tokenizer_load(folder, &tokenizer) < 0)
        tokenizer = NULL;
    tt_free(path);
    return tokenizer;
}

int tt_job_adopt_vocabulary(struct tt_config *cfg)
{
    struct tt_model_dims over = tt_job_model_overrides(cfg);
    const char *folder = cfg->model.hf_assets_path;
    struct tt_tokenizer *tokenizer = NULL;
    struct tt_model *model = NULL;
    char size[32];
    int rc = 0;

    if (!folder || strcmp(cfg->model.flavor, "hf") == 0 || cfg->model.vocab_size != TT_NULL_INT ||
        tt_model_new(cfg->model.name, cfg->model.flavor, &over, NULL, &model) < 0)
        return 0;
    tokenizer = tokenizer_in(folder);
    if (tokenizer && tt_tokenizer_vocab_size(tokenizer) > model->dims.vocab_size) {
        (void)snprintf(size, sizeof size, "%lld", (long long)tt_tokenizer_vocab_size(tokenizer));
        rc = tt_config_adopt(cfg, "model.vocab_size", size, tt_tokenizer_where(tokenizer));
    }
    tt_tokenizer_free(tokenizer);
    tt_model_free(model);
    return rc;
}

static int make_model(const struct tt_config *cfg, struct tt_model **ret_model)
{
    struct tt_model_dims over = tt_job_model_overrides(cfg);
    struct tt_model *model = NULL;
    int rc = 0;

    TT_TRY(tt_model_new(cfg->model.name, cfg->model.flavor, &over, cfg->model.hf_assets_path, &model));
    TT_TRY(tt_init_rules_apply(model, cfg->model.init_std, cfg->model.init_rules));
    TT_TRY(tt_param_groups_apply(model, cfg->optimizer.no_decay, cfg->optimizer.lr_factors));
    if (cfg->optimizer.name == TT_OPTIM_MUON)
        tt_param_groups_use_muon(model);
    *ret_model = model;
    model = NULL;
out:
    tt_model_free(model);
    return rc;
}

/* With the dims that the flavor gave, run.yaml and the manifest have all of them. */
int tt_job_resolve_model(struct tt_config *cfg, const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;
    const struct {
        const char *key;
        int64_t value;
    } ints[] = {
        {"model.dim", d->dim},
        {"model.n_layers", d->n_layers},
        {"model.n_heads", d->n_heads},
        {"model.n_kv_heads", d->n_kv_heads},
        {"model.head_dim", d->head_dim},
        {"model.ffn_dim", d->ffn_dim},
        {"model.vocab_size", d->vocab_size},
        {"model.tie_embeddings", d->tied == 1},
    };
    int rc = 0;

    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        TT_TRY(tt_config_set_flavor_int(cfg, ints[i].key, ints[i].value));
    TT_TRY(tt_config_set_flavor_real(cfg, "model.norm_eps", (double)d->norm_eps));
    if (model->row->learned_positions)
        goto out; /* the RoPE keys stay null */
    TT_TRY(tt_config_set_flavor_real(cfg, "model.rope_theta", d->rope.theta));
    TT_TRY(tt_config_set_flavor_real(cfg, "model.rope_scaling.factor", d->rope.factor > 0.0 ? d->rope.factor : 1.0));
    if (d->rope.factor > 0.0 && d->rope.beta_fast == 0.0) { /* YaRN has other numbers, which are not keys */
        TT_TRY(tt_config_set_flavor_real(cfg, "model.rope_scaling.low_freq_factor", d->rope.low_freq_factor));
        TT_TRY(tt_config_set_flavor_real(cfg, "model.rope_scaling.high_freq_factor", d->rope.high_freq_factor));
    }
    if (d->rope.factor > 0.0) {
        TT_TRY(tt_config_set_flavor_int(cfg, "model.rope_scaling.original_max", (int64_t)d->rope.original_max));
    }
out:
    return rc;
}

/* --- the engine --- */

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

int64_t tt_job_memory_limit(const struct tt_config *cfg, int local_size)
{
    if (cfg->parallelism.memory_limit != TT_NULL_INT)
        return cfg->parallelism.memory_limit;
    return (int64_t)(0.9 * tt_metrics_machine_bytes() / local_size);
}

/* auto: those who choose bfloat16 save memory too, and light operations take hardly any time. */
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
    if (recompute.every < 1) /* "op" */
        recompute.mode = TT_RECOMPUTE_OP;
    return recompute;
}

static enum tt_dtype dtype_of(int choice)
{
    return choice == TT_DTYPE_BFLOAT16 ? TT_BF16 : TT_F32;
}

static enum tt_init init_of(const struct tt_config *cfg)
{
    static const enum tt_init ways[] = {
        [TT_INIT_META] = TT_INIT_SHARDS, [TT_INIT_FULL] = TT_INIT_WHOLE, [TT_INIT_LAYERWISE] = TT_INIT_UNITS};

    return ways[cfg->training.init];
}

int tt_job_machine(const struct tt_config *cfg, struct tt_machine *ret_machine)
{
    const char *path = cfg->parallelism.machine_file;
    int rc = 0;

    *ret_machine = tt_machine_builtin();
    if (path && (rc = tt_machine_load(path, ret_machine)) < 0)
        return tt_fail_key(rc, TT_KEY_MACHINE_FILE, "%s", tt_error_message());
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
        .init = init_of(cfg),
        .muon_steps = cfg->optimizer.name == TT_OPTIM_MUON ? (int)cfg->optimizer.muon_ns_steps : 0,
        .shard_dtype = dtype_of((int)cfg->training.dtype),
        .param_dtype = dtype_of((int)cfg->training.mixed_precision_param),
        .reduce_dtype = dtype_of((int)cfg->training.mixed_precision_reduce),
        .z_loss = cfg->training.z_loss,
        .router_losses = {.sequence = (float)cfg->training.sequence_balance_loss,
                          .microbatch = (float)cfg->training.microbatch_balance_loss,
                          .z = (float)cfg->training.router_z_loss},
        .averages = !isnan(cfg->ema.decay),
        .documents = cfg->training.document_mask,
        .places = job->places,
        .pipeline = job->pipeline,
        .local_batch = job->microbatch_size,
        .seq_len = cfg->training.seq_len,
        .microbatches = (int)job->microbatches,
        .scheduler = cfg->parallelism.fsdp_engine == TT_ENGINE_PLANNED ? TT_SCHEDULER_PLANNED : TT_SCHEDULER_EAGER,
        .bucket_bytes = cfg->parallelism.fsdp_bucket_bytes,
        .memory_limit = memory_limit,
        .choose_reshard_by_limit = strcmp(reshard, "auto") == 0};
    int rc = 0;

    if (cfg->validation.enable) {
        o.validation_batch = cfg->validation.local_batch_size;
        o.validation_seq_len = cfg->validation.seq_len;
    }
    TT_TRY(tt_job_machine(cfg, &o.machine));
    *ret_options = o;
out:
    return rc;
}

/* --- checkpoints --- */

const char *tt_job_policy_name(const struct tt_config *cfg)
{
    return tt_config_choice_word(tt_config_row_find("checkpoint.save_policy")->choices,
                                 (int)cfg->checkpoint.save_policy);
}

const char *tt_job_filter_name(const struct tt_config *cfg)
{
    return tt_config_choice_word(tt_config_row_find("checkpoint.filter")->choices, (int)cfg->checkpoint.filter);
}

int tt_job_policy(const struct tt_config *cfg, const struct tt_ckpt_policy **ret_policy)
{
    return tt_ckpt_policy_find(tt_job_policy_name(cfg), tt_job_filter_name(cfg), ret_policy);
}

enum tt_ckpt_reading tt_job_reading(const struct tt_config *cfg)
{
    return cfg->checkpoint.load_policy == TT_LOAD_ALL ? TT_READ_ALL : TT_READ_ONCE;
}

enum tt_dtype tt_job_export_dtype(const struct tt_config *cfg)
{
    static const enum tt_dtype types[] = {
        [TT_EXPORT_FLOAT32] = TT_F32, [TT_EXPORT_FLOAT16] = TT_F16, [TT_EXPORT_BFLOAT16] = TT_BF16};

    return types[cfg->checkpoint.export_dtype];
}

/* Most bytes that a rank needs to stage its part of a checkpoint, which the model and the mesh decide. */
static int staging_bytes(const struct tt_config *cfg, const struct tt_job *job, int64_t *ret_bytes)
{
    const struct tt_ckpt_policy *policy = NULL;
    struct tt_job_tensors tensors = {0};
    int rc = 0;

    *ret_bytes = 0;
    if (!cfg->checkpoint.enable || cfg->checkpoint.load_only || cfg->checkpoint.async_mode != TT_ASYNC_ASYNC)
        return 0;
    TT_TRY(tt_job_policy(cfg, &policy));
    tt_job_tensors_init(&job->engine, &tensors);
    for (int place = 0; place < tt_mesh_size(&job->mesh, TT_GROUP_PP); place++) {
        int rank = tt_mesh_member(&job->mesh, 0, TT_GROUP_PP, place);
        int64_t bytes = tt_ckpt_staging_bytes(&tensors.state, &job->mesh, policy, rank);

        *ret_bytes = bytes > *ret_bytes ? bytes : *ret_bytes;
    }
out:
    tt_job_tensors_release(&tensors);
    return rc;
}

/* --- the job --- */

/* A rank's batch becomes the microbatches of a run through the pipeline. */
static int add_pipeline(const struct tt_config *cfg, struct tt_job *job)
{
    struct tt_stage_split split = {0};
    int run = 0, rc = 0;

    TT_TRY(tt_job_pipeline_microbatches(cfg, &run));
    TT_TRY(tt_job_pipeline_split(cfg, (int)job->model->dims.n_layers, &split));
    TT_TRY(tt_job_pipeline_new(cfg, split.n_stages, run, &job->pipeline));
    if (cfg->training.gradient_sync == TT_SYNC_LAST_MICROBATCH && !tt_pipeline_ascends(job->pipeline))
        TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY_GRADIENT_SYNC,
                           "last_microbatch, but %s computes backward in another order than that of the microbatches\n"
                           "help: use every_run, every_microbatch or auto",
                           tt_pipeline_row_name(job->pipeline)));
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

int tt_job_init(struct tt_config *cfg, int n_ranks, int threads, int64_t memory_limit, struct tt_job *ret_job)
{
    struct tt_job job = {0};
    int rc = 0;

    TT_TRY(tt_mesh_configure(cfg, n_ranks, &job.mesh));
    TT_TRY(tt_mesh_microbatches(&job.mesh, cfg->training.local_batch_size, cfg->training.global_batch_size,
                                &job.microbatches));
    job.microbatch_size = cfg->training.local_batch_size;
    job.global_batch = job.microbatches * job.microbatch_size * tt_mesh_dp(&job.mesh);
    TT_TRY(tt_job_adopt_folder(cfg));
    TT_TRY(tt_job_adopt_family(cfg));
    TT_TRY(tt_job_adopt_vocabulary(cfg));
    TT_TRY(make_model(cfg, &job.model));
    TT_TRY(tt_model_check_seq_len(job.model, cfg->training.seq_len));
    if (cfg->validation.enable)
        TT_TRY(tt_model_check_seq_len(job.model, cfg->validation.seq_len));
    TT_TRY(tt_job_check_divisions(cfg, job.model));
    job.mesh.cp_gathers = tt_job_gathers(cfg, job.model);
    TT_TRY(tt_job_resolve_model(cfg, job.model));
    if (job.mesh.size[TT_MESH_PP] > 1)
        TT_TRY(add_pipeline(cfg, &job));
    TT_TRY(engine_options(cfg, &job, threads, memory_limit, &job.engine));
    TT_TRY(staging_bytes(cfg, &job, &job.staging_bytes));
    job.engine.memory_limit -= job.staging_bytes;
    *ret_job = job;
    job = (struct tt_job){0};
out:
    tt_job_release(&job);
    return rc;
}

int tt_job_engine(const struct tt_job *job, struct tt_comm *comm, int rank, struct tt_engine **ret_engine)
{
    return tt_engine_new(&job->engine, comm, rank, ret_engine);
}

int tt_job_engine_alone(struct tt_config *cfg, struct tt_job *job, int rank, struct tt_engine **ret_engine)
{
    int rc = 0;

    TT_TRY(tt_job_choose_sync(cfg->training.gradient_sync, cfg->parallelism.reduction_order == TT_ORDER_FAST, job,
                              &job->sync_why));
    TT_TRY(tt_job_engine(job, NULL, rank, ret_engine));
    cfg->training.gradient_sync = tt_job_sync_of(job->engine.reduce);
out:
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
    int n = tt_mesh_dp(&job->mesh), ranks = job->mesh.n_ranks / n;
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
        const char *name, *path;
    } policies[] = {
        {"wrap", "parallelism.fsdp_wrap_policy"},    {"reshard", "parallelism.fsdp_reshard_after_forward"},
        {"engine", "parallelism.fsdp_engine"},       {"prefetch", "parallelism.fsdp_prefetch"},
        {"gradient sync", "training.gradient_sync"},
    };
    static const char *const recomputes[] = {[TT_RECOMPUTE_NONE] = "none",
                                             [TT_RECOMPUTE_FULL] = "full",
                                             [TT_RECOMPUTE_SELECTIVE] = "selective",
                                             [TT_RECOMPUTE_OP] = "op"};

    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        tt_text_add(out, "%s%s ", i ? ", " : "", policies[i].name);
        tt_config_value_text(cfg, tt_config_row_find(policies[i].path), out);
    }
    tt_text_add(out, ", recompute %s, parameters ", recomputes[recompute_of(cfg).mode]);
    tt_config_value_text(cfg, tt_config_row_find("training.mixed_precision_param"), out);
}
