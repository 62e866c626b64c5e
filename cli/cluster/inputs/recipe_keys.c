/* SPDX-License-Identifier: MIT
 *
 * Which keys of torchtitan are counted: those that are read, those that do not matter, and those that are named in a
 * note because a prediction leaves them out.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/cluster/inputs/recipe.h"
#include "core/base/text.h"

/* Keys that recipe.c reads, or on which neither time nor memory depends. */
static const char *const known[] = {"config",
                                    "module",
                                    "float8.enable_float8_linear",
                                    "loss.num_chunks",
                                    "model.converters",
                                    "model.flavor",
                                    "model.name",
                                    "model_spec.flavor",
                                    "model_spec.name",
                                    "experimental.context_parallel_degree",
                                    "experimental.enable_async_tensor_parallel",
                                    "experimental.pipeline_parallel_degree",
                                    "experimental.pipeline_parallel_microbatches",
                                    "experimental.pipeline_parallel_schedule",
                                    "experimental.pipeline_parallel_split_points",
                                    "experimental.pipeline_parallel_split_mode",
                                    "training.enable_float8_linear",
                                    "training.fp8_linear",
                                    "activation_checkpoint.debug",
                                    "activation_checkpoint.determinism_check",
                                    "activation_checkpoint.early_stop",
                                    "activation_checkpoint.force_recompute_mm_shapes_by_fqns",
                                    "activation_checkpoint.memory_budget",
                                    "activation_checkpoint.mode",
                                    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
                                    "activation_checkpoint.preserve_rng_state",
                                    "activation_checkpoint.selective_ac_option",
                                    "activation_checkpoint.visualize_memory_budget_pareto",
                                    "compile.backend",
                                    "compile.components",
                                    "compile.enable",
                                    "compile.enable_async_tensor_parallel",
                                    "parallelism.context_parallel_degree",
                                    "parallelism.context_parallel_load_balancer",
                                    "parallelism.context_parallel_ptrr_mask_key",
                                    "parallelism.context_parallel_rotate_method",
                                    "parallelism.data_parallel_replicate_degree",
                                    "parallelism.data_parallel_shard_degree",
                                    "parallelism.disable_loss_parallel",
                                    "parallelism.enable_async_tensor_parallel",
                                    "parallelism.enable_compiled_autograd",
                                    "parallelism.enable_fsdp_symm_mem",
                                    "parallelism.enable_sequence_parallel",
                                    "parallelism.expert_parallel_a2a_impl",
                                    "parallelism.expert_parallel_comm_backend",
                                    "parallelism.expert_parallel_degree",
                                    "parallelism.expert_tensor_parallel_degree",
                                    "parallelism.fsdp_reshard_after_forward",
                                    "parallelism.module_fqns_per_model_part",
                                    "parallelism.num_pp_microbatches",
                                    "parallelism.pipeline_parallel_degree",
                                    "parallelism.pipeline_parallel_expert_parallel_overlap",
                                    "parallelism.pipeline_parallel_first_stage_less_layers",
                                    "parallelism.pipeline_parallel_last_stage_less_layers",
                                    "parallelism.pipeline_parallel_layers_per_stage",
                                    "parallelism.pipeline_parallel_microbatch_size",
                                    "parallelism.pipeline_parallel_microbatches",
                                    "parallelism.pipeline_parallel_schedule",
                                    "parallelism.pipeline_parallel_schedule_csv",
                                    "parallelism.pipeline_parallel_split_points",
                                    "parallelism.spmd_backend",
                                    "parallelism.tensor_parallel_degree",
                                    "training.batch_size",
                                    "training.compile",
                                    "training.data_parallel_degree",
                                    "training.data_parallel_replicate_degree",
                                    "training.data_parallel_shard_degree",
                                    "training.data_parallel_type",
                                    "training.dataset",
                                    "training.dataset_path",
                                    "training.debug_moe_force_load_balance",
                                    "training.deterministic",
                                    "training.disable_cuda_graphs",
                                    "training.dtype",
                                    "training.enable_cpu_offload",
                                    "training.enable_fp8_linear",
                                    "training.fsdp_reshard_after_forward",
                                    "training.gc_debug",
                                    "training.gc_freq",
                                    "training.global_batch_size",
                                    "training.local_batch_size",
                                    "training.max_context_length",
                                    "training.max_norm",
                                    "training.mixed_precision_param",
                                    "training.mixed_precision_reduce",
                                    "training.num_tokens_per_microbatch_per_dp_rank",
                                    "training.num_tokens_per_train_step",
                                    "training.seed",
                                    "training.seq_len",
                                    "training.steps",
                                    "training.tensor_parallel_degree",
                                    "training.warmup_steps"};

/* Sections, and beginnings of keys, on which neither time nor memory of a step depends: the latter unless the rest has
 * a costly word. */
static const char *const harmless[] = {"checkpoint.",
                                       "comm.",
                                       "data",
                                       "debug.",
                                       "dump_folder",
                                       "estimate.",
                                       "experimental.custom_",
                                       "fault_tolerance.",
                                       "float8.",
                                       "hf_assets_path",
                                       "job.",
                                       "loss.",
                                       "lr_scheduler.",
                                       "memory_estimation.",

                                       "metrics.",
                                       "model.hf_assets_path",
                                       "model.norm_type",
                                       "model.print_after_conversion",
                                       "model.tokenizer_path",
                                       "model_spec.",
                                       "mx.",
                                       "optimizer.beta",
                                       "optimizer.eps",
                                       "optimizer.lr",
                                       "optimizer.weight_decay",
                                       "profiler",
                                       "profiling.",
                                       "quantize.",
                                       "tokenizer",
                                       "training.checkpoint_",
                                       "training.dataloader",
                                       "training.warmup_pct",
                                       "validation.",
                                       "validator"};

/* A key with one of these words, or of one of these sections, might change the cost. */
static const char *const costly[] = {"activation_checkpoint.",
                                     "compile.",
                                     "experimental.",
                                     "parallelism.",
                                     "training.",
                                     "adapter",
                                     "bf16",
                                     "bfloat16",
                                     "cpu_offload",
                                     "dtype",
                                     "expert",
                                     "float4",
                                     "fp4",
                                     "fp8",
                                     "fsdp",
                                     "graph",
                                     "lora",
                                     "mixed_precision",
                                     "moe",
                                     "mtp",
                                     "nvfp4",
                                     "offload",
                                     "parallel",
                                     "peft",
                                     "precision",
                                     "qat",
                                     "quant",
                                     "recompute",
                                     "shard",
                                     "sparse",
                                     "zero"};

/* Keys that change the cost, and are not counted unless they have one of these values. */
static const struct {
    const char *key, *values, *why;
} left_out[] = {
    {"parallelism.expert_parallel_comm_backend", "standard", "the exchange of tokens is all-to-all"},
    {"parallelism.expert_parallel_a2a_impl", "default", "the exchange of tokens is all-to-all"},
    {"parallelism.enable_compiled_autograd", "false", "it is off"},
    {"parallelism.enable_fsdp_symm_mem", "false", "it is off"},
    {"parallelism.pipeline_parallel_schedule_csv", "", "the order is that of the schedule"},
    {"parallelism.context_parallel_rotate_method", "allgather", "keys and values are gathered"},
    {"parallelism.context_parallel_load_balancer", "headtail", "all ranks have equal work"},
    {"experimental.enable_compiled_autograd", "false", "it is off"},
    {"training.dtype", "float32", "parameters, gradients and moments are float32"},
    {"training.mixed_precision_reduce", "float32", "gradients travel in float32"},
    {"training.data_parallel_type", "fsdp", "ranks of data parallelism shard parameters"},
    {"training.debug_moe_force_load_balance", "false", "experts get unequal numbers of tokens"},
    {"debug.moe_force_load_balance", "false", "experts get unequal numbers of tokens"},
    {"optimizer.name", "AdamW Adam", "the optimizer is AdamW"},
    {"optimizer.early_step_in_backward", "false", "the optimizer runs after backward"},
    {"optimizer.implementation", "fused", "the optimizer is fused"},
    {"optimizer.fused", "true", "the optimizer is fused"},
    {"fault_tolerance.enable", "false", "there is one group of replicas"},
    {"activation_checkpoint.early_stop", "true", "the last product of a layer is not computed again"},
    {"compile.backend", "inductor", "the compiler is inductor"},
    {"debug.deterministic", "false", "kernels are the fast ones"},
    {"training.deterministic", "false", "kernels are the fast ones"},
    {"ema.decay", "0", "there are no averages of the weights"},
    {"ema.enable", "false", "there are no averages of the weights"},
    {"experimental.pipeline_parallel_schedule_csv", "", "the order is that of the schedule"},
    {"experimental.torch_spmd", "false", "it is off"},
    {"float8.enable_fsdp_float8_all_gather", "true", "parameters are gathered in float8"},
    {"quantize.dense.float8.enable_fsdp_float8_all_gather", "true", "parameters are gathered in float8"},
    {"quantize.linear.float8.enable_fsdp_float8_all_gather", "true", "parameters are gathered in float8"},
    {"float8.moe_fqns_prototype", "", "products of experts are in bfloat16"},
    {"mx.moe_fqns_prototype", "", "products of experts are in bfloat16"},
    {"quantize.grouped_mm.float8.fqns", "", "products of experts are in bfloat16"},
    {"quantize.grouped_mm.mx.fqns", "", "products of experts are in bfloat16"},
    {"quantize.moe.float8.fqns", "", "products of experts are in bfloat16"},
    {"quantize.moe.mx.fqns", "", "products of experts are in bfloat16"},
    {"model.attn_mask_type", "causal", "attention is causal over the whole sequence"},
    {"model.use_flex_attn", "false", "attention is the stack's kernel"},
    {"validation.enable", "false", "validation takes no time"},
    {"validation.enabled", "false", "validation takes no time"},
    {"activation_checkpoint.mode", "none selective full", "it is priced as selective, op"},
};

/* Whether a key is an option of low precision, which counts only if some of it is on. */
static bool is_of_float8(const char *key)
{
    return strncmp(key, "float8.", 7) == 0 || strncmp(key, "mx.", 3) == 0 || strncmp(key, "quantize.", 9) == 0;
}

/* Whether a list of words has the value, in any case. */
static bool is_one_of(const char *words, const char *value)
{
    size_t n = strlen(value);

    for (const char *at = words; *at;) {
        size_t length = strcspn(at, " ");

        if (length == n && strncasecmp(at, value, n) == 0)
            return true;
        at += length;
        at += *at == ' ';
    }
    return n == 0;
}

static bool is_known(const char *key)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], key) == 0)
            return true;
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (strcmp(left_out[i].key, key) == 0)
            return true;
    return false;
}

static bool is_costly(const char *key)
{
    for (size_t i = 0; i < sizeof costly / sizeof *costly; i++)
        if (strstr(key, costly[i]))
            return true;
    return false;
}

enum tt_recipe_class tt_cluster_recipe_class(const char *key)
{
    if (is_known(key))
        return TT_RECIPE_KNOWN;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strncmp(key, harmless[i], strlen(harmless[i])) == 0 &&
            (harmless[i][strlen(harmless[i]) - 1] == '.' || !is_costly(key + strlen(harmless[i]))))
            return TT_RECIPE_FREE;
    return is_costly(key) ? TT_RECIPE_COSTLY : TT_RECIPE_UNKNOWN;
}

/* Whether a value says that something is not there. */
static bool is_off(const char *value)
{
    return !*value || strcasecmp(value, "false") == 0 || strcasecmp(value, "null") == 0 ||
           strcasecmp(value, "none") == 0 || strcmp(value, "{}") == 0 || strcmp(value, "0") == 0;
}

/* Names all keys that are not known: as an error those that might change the cost, the others in notes. */
static int check_unknown(const struct tt_pairs *pairs, struct tt_cluster_notes *notes)
{
    struct tt_text all = {0};
    const char *where = "";
    int rc;

    for (int i = 0; i < pairs->n; i++) {
        const struct tt_pair *pair = &pairs->item[i];
        enum tt_recipe_class class = tt_cluster_recipe_class(pair->key);
        bool is_section = strcmp(pair->value, "{}") == 0;
        const char *near;

        if (class == TT_RECIPE_KNOWN || class == TT_RECIPE_FREE || is_section)
            continue;
        if (class == TT_RECIPE_UNKNOWN) {
            if (!is_off(pair->value))
                tt_cluster_note(notes, pair->key, pair->value, "it is not known here, and taken not to matter");
            continue;
        }
        near = tt_text_nearest(pair->key, known, (int)(sizeof known / sizeof *known));
        tt_text_add(&all, "%s'%s'", all.size ? ", " : "", pair->key);
        if (near)
            tt_text_add(&all, " (did you mean %s?)", near);
        where = pair->where;
    }
    if (!all.size)
        return 0;
    tt_text_make_printable(&all);
    rc = tt_fail(TT_EUSAGE,
                 "estimate: %s: keys that are not known here, and that might change the cost: %s\nhelp: take them out, "
                 "or give --ignore-flag KEY for each one that the prediction shall leave out",
                 where, all.text);
    tt_text_release(&all);
    return rc;
}

/* With ranks that share experts, these may be cut otherwise than the other matrices. */
static void check_experts(const struct tt_pairs *pairs, struct tt_cluster_notes *notes)
{
    const char *overlap = tt_pairs_get(pairs, "parallelism.pipeline_parallel_expert_parallel_overlap");
    const char *stages = tt_pairs_get(pairs, "parallelism.pipeline_parallel_degree");
    const char *cut = tt_pairs_get(pairs, "parallelism.expert_tensor_parallel_degree");
    const char *shared = tt_pairs_get(pairs, "parallelism.expert_parallel_degree");
    const char *tp = tt_pairs_get(pairs, "parallelism.tensor_parallel_degree");

    if (cut && shared && strcmp(shared, "1") != 0 && strcmp(cut, tp ? tp : "1") != 0)
        tt_cluster_note(notes, "parallelism.expert_tensor_parallel_degree", cut,
                        "experts are cut by tensor parallelism as other matrices are");
    if (overlap && strcasecmp(overlap, "true") == 0 && shared && strcmp(shared, "1") != 0 && stages &&
        strcmp(stages, "1") != 0)
        tt_cluster_note(notes, "parallelism.pipeline_parallel_expert_parallel_overlap", overlap,
                        "the pipeline does not hide the exchange of tokens");
}

int tt_cluster_recipe_check(const struct tt_pairs *pairs, bool float8, struct tt_cluster_notes *notes)
{
    const char *offload = tt_pairs_get(pairs, "training.enable_cpu_offload");
    const char *param = tt_pairs_get(pairs, "training.mixed_precision_param");
    int rc = check_unknown(pairs, notes);

    if (rc < 0)
        return rc;
    if (offload && strcasecmp(offload, "true") == 0)
        return tt_fail(TT_EUSAGE, "estimate: training.enable_cpu_offload is not modelled\nhelp: set it to false");
    if (param && strcmp(param, "bfloat16") != 0)
        return tt_fail(TT_EUSAGE,
                       "estimate: training.mixed_precision_param %s is not modelled\nhelp: set it to bfloat16", param);
    check_experts(pairs, notes);
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++) {
        const char *value = tt_pairs_get(pairs, left_out[i].key);

        if (value && !is_one_of(left_out[i].values, value) && (float8 || !is_of_float8(left_out[i].key)))
            tt_cluster_note(notes, left_out[i].key, value, left_out[i].why);
    }
    return 0;
}
