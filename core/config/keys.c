/* SPDX-License-Identifier: MIT
 *
 * The configuration's names of what the layers below can only name plainly, and the place of an error that is about
 * one.
 */
#include <string.h>

#include "core/base/key.h"
#include "core/base/mem.h"
#include "core/config/config.h"
#include "core/config/internal.h"
#include "core/os/path.h"

static const char *const paths[TT_KEYS] = {
    [TT_KEY_NONE] = "",
    [TT_KEY_MODEL] = "model.name",
    [TT_KEY_FLAVOR] = "model.flavor",
    [TT_KEY_MODEL_FOLDER] = "model.hf_assets_path",
    [TT_KEY_DIM] = "model.dim",
    [TT_KEY_N_LAYERS] = "model.n_layers",
    [TT_KEY_N_HEADS] = "model.n_heads",
    [TT_KEY_MAX_POSITIONS] = "model.max_position_embeddings",
    [TT_KEY_N_KV_HEADS] = "model.n_kv_heads",
    [TT_KEY_HEAD_DIM] = "model.head_dim",
    [TT_KEY_FFN_DIM] = "model.ffn_dim",
    [TT_KEY_VOCAB_SIZE] = "model.vocab_size",
    [TT_KEY_EXTEND_VOCABULARY] = "checkpoint.initial_load_extend_vocabulary",
    [TT_KEY_NORM_EPS] = "model.norm_eps",
    [TT_KEY_TIE_EMBEDDINGS] = "model.tie_embeddings",
    [TT_KEY_ROPE_THETA] = "model.rope_theta",
    [TT_KEY_ROPE_SCALING] = "model.rope_scaling",
    [TT_KEY_ROPE_FACTOR] = "model.rope_scaling.factor",
    [TT_KEY_ROPE_LOW] = "model.rope_scaling.low_freq_factor",
    [TT_KEY_ROPE_HIGH] = "model.rope_scaling.high_freq_factor",
    [TT_KEY_ROPE_ORIGINAL_MAX] = "model.rope_scaling.original_max",
    [TT_KEY_INIT] = "training.init",
    [TT_KEY_INIT_RULES] = "model.init_rules",
    [TT_KEY_LORA_RANK] = "lora.rank",
    [TT_KEY_LORA_MODULES] = "lora.target_modules",
    [TT_KEY_BALANCE_COEFF] = "training.load_balance_coeff",
    [TT_KEY_BALANCE_LOSS] = "training.microbatch_balance_loss",
    [TT_KEY_BALANCED_EXPERTS] = "debug.moe_force_load_balance",
    [TT_KEY_OPTIMIZER] = "optimizer.name",
    [TT_KEY_NO_DECAY] = "optimizer.no_decay",
    [TT_KEY_LR_FACTORS] = "optimizer.lr_factors",
    [TT_KEY_GRADIENT_SYNC] = "training.gradient_sync",
    [TT_KEY_DATASET] = "training.dataset",
    [TT_KEY_DATASET_PATH] = "training.dataset_path",
    [TT_KEY_VALIDATION_DATASET] = "validation.dataset",
    [TT_KEY_VALIDATION_DATASET_PATH] = "validation.dataset_path",
    [TT_KEY_SAMPLE_PROMPT] = "metrics.sample_prompt",
    [TT_KEY_VALIDATION_SPLIT] = "validation.split",
    [TT_KEY_TEXT_FIELD] = "training.text_field",
    [TT_KEY_DOCUMENT_MASK] = "training.document_mask",
    [TT_KEY_CHAT_TEMPLATE] = "training.chat_template",
    [TT_KEY_LONG_CONVERSATIONS] = "dataloader.long_conversations",
    [TT_KEY_REPEAT] = "dataloader.repeat",
    [TT_KEY_SEQ_LEN] = "training.seq_len",
    [TT_KEY_VALIDATION_SEQ_LEN] = "validation.seq_len",
    [TT_KEY_STEPS] = "training.steps",
    [TT_KEY_LOCAL_BATCH] = "training.local_batch_size",
    [TT_KEY_GLOBAL_BATCH] = "training.global_batch_size",
    [TT_KEY_PP_DEGREE] = "parallelism.pipeline_parallel_degree",
    [TT_KEY_PP_SCHEDULE] = "parallelism.pipeline_parallel_schedule",
    [TT_KEY_PP_SCHEDULE_CSV] = "parallelism.pipeline_parallel_schedule_csv",
    [TT_KEY_PP_MICROBATCH_SIZE] = "parallelism.pipeline_parallel_microbatch_size",
    [TT_KEY_PP_LAYERS_PER_STAGE] = "parallelism.pipeline_parallel_layers_per_stage",
    [TT_KEY_PP_FIRST_LESS] = "parallelism.pipeline_parallel_first_stage_less_layers",
    [TT_KEY_PP_LAST_LESS] = "parallelism.pipeline_parallel_last_stage_less_layers",
    [TT_KEY_PP_MODULES] = "parallelism.module_fqns_per_model_part",
    [TT_KEY_DP_REPLICATE_DEGREE] = "parallelism.data_parallel_replicate_degree",
    [TT_KEY_DP_SHARD_DEGREE] = "parallelism.data_parallel_shard_degree",
    [TT_KEY_CP_DEGREE] = "parallelism.context_parallel_degree",
    [TT_KEY_TP_DEGREE] = "parallelism.tensor_parallel_degree",
    [TT_KEY_EXACT_TP_DEGREE] = "parallelism.exact_tensor_parallel_degree",
    [TT_KEY_EXACT_CP_DEGREE] = "parallelism.exact_context_parallel_degree",
    [TT_KEY_EP_DEGREE] = "parallelism.expert_parallel_degree",
    [TT_KEY_WRAP_POLICY] = "parallelism.fsdp_wrap_policy",
    [TT_KEY_RESHARD] = "parallelism.fsdp_reshard_after_forward",
    [TT_KEY_THREADS] = "parallelism.threads_per_rank",
    [TT_KEY_MACHINE_FILE] = "parallelism.machine_file",
    [TT_KEY_INIT_TIMEOUT] = "comm.init_timeout_seconds",
    [TT_KEY_TRAIN_TIMEOUT] = "comm.train_timeout_seconds",
    [TT_KEY_CACHE_DIR] = "dataloader.cache_dir",
    [TT_KEY_RUN_FOLDER] = "job.dump_folder",
    [TT_KEY_SAVE_POLICY] = "checkpoint.save_policy",
    [TT_KEY_SAVE_FILTER] = "checkpoint.filter",
    [TT_KEY_ASYNC_MODE] = "checkpoint.async_mode",
    [TT_KEY_KEEP_LATEST] = "checkpoint.keep_latest_k",
    [TT_KEY_EXCLUDE_FROM_LOADING] = "checkpoint.exclude_from_loading",
    [TT_KEY_LOAD_IN_HF] = "checkpoint.initial_load_in_hf",
    [TT_KEY_LEAVE_OUT] = "checkpoint.initial_load_leave_out",
};

void tt_config_name_keys(void)
{
    tt_key_use_names(paths);
}

const char *tt_config_key_path(enum tt_key key)
{
    return paths[key];
}

static bool is_builtin(const struct tt_config_origin *o)
{
    return tt_text_begins(o->origin, "builtin:");
}

bool tt_config_is_users(const struct tt_config *cfg, const struct tt_config_row *row)
{
    return tt_config_is_set(cfg, row->path) && !is_builtin(tt_config_origin_of(cfg, row));
}

/* The value, and what it follows from. */
static void add_source(const struct tt_config *cfg, const struct tt_config_row *row, struct tt_text *out)
{
    enum { LONG = 40 };
    const struct tt_config_origin *o = tt_config_origin_of(cfg, row);
    struct tt_text value = {0};
    bool is_null;

    tt_config_value_text(cfg, row, &value);
    is_null = value.size && strcmp(value.text, "null") == 0;
    if (is_null && !o->is_derived)
        tt_text_add(out, "not set");
    else if (value.size && value.size <= LONG)
        tt_text_add(out, "%s ", value.text);
    if (o->is_derived)
        tt_text_add(out, "from %s", strcmp(o->origin, "flavor") == 0 ? "model.flavor" : o->origin);
    else if (is_builtin(o))
        tt_text_add(out, "in the built-in %s", strcmp(o->origin, "builtin:quick") == 0 ? "quick run" : "configuration");
    else if (!is_null)
        tt_text_add(out, "by default");
    tt_text_release(&value);
}

void tt_config_place(const struct tt_config *cfg, const struct tt_config_row *row, struct tt_text *out)
{
    const char *where = tt_config_origin_of(cfg, row)->where;

    if (tt_config_is_users(cfg, row)) {
        tt_text_add(out, strstr(where, row->path) ? "%s" : "%s: %s", where, row->path);
        return;
    }
    tt_text_add(out, "%s (", row->path);
    add_source(cfg, row, out);
    tt_text_add(out, ")");
}

char *tt_config_beside(const struct tt_config *cfg, const char *path)
{
    const struct tt_config_row *row = tt_config_row_find(path);
    const char *where = tt_config_origin_of(cfg, row)->where, *slash = strrchr(where, '/'), *value;
    struct tt_path_info info = {0};
    char *beside, *help = NULL;

    value = row->kind == TT_KIND_TEXT ? *(char *const *)tt_config_member(cfg, row) : NULL;
    if (!value || !*value || *value == '/' || !slash || tt_text_begins(where, "flag ") ||
        tt_path_look(value, &info) < 0 || info.kind != TT_FILE_NONE || info.is_link)
        return NULL;
    beside = tt_format("%.*s/%s", (int)(slash - where), where, value);
    if (tt_path_look(beside, &info) == 0 && info.kind != TT_FILE_NONE)
        help = tt_format("paths are relative to the folder in which titan starts, not to the configuration: write '%s'",
                         beside);
    tt_free(beside);
    return help;
}

int tt_config_locate(const struct tt_config *cfg, int rc)
{
    const char *path = paths[tt_error_key()];
    struct tt_text place = {0};
    char *beside;

    if (rc >= 0 || !cfg || !path[0])
        return rc;
    tt_config_place(cfg, tt_config_row_find(path), &place);
    beside = rc == TT_EDATA ? tt_config_beside(cfg, path) : NULL; /* what is not there is not read */
    if (beside)
        tt_error_drop_hint();
    (void)tt_fail(rc, "%s: %s", place.text, tt_error_message());
    if (beside)
        (void)tt_error_add_hint(rc, "%s", beside);
    tt_text_release(&place);
    tt_free(beside);
    return rc;
}
