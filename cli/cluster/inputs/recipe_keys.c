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
static const char *const known[] = {"activation_checkpoint.debug",
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
    {"activation_checkpoint.mode", "none selective full", "it is priced as selective, op"},
};

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
    return strncmp(key, "training.dataloader", 19) == 0;
}

static int check_unknown(const struct tt_pairs *pairs)
{
    static const char *const sections[] = {"training.", "parallelism.", "activation_checkpoint.", "compile."};

    for (int i = 0; i < pairs->n; i++)
        for (size_t k = 0; k < sizeof sections / sizeof *sections; k++)
            if (strncmp(pairs->item[i].key, sections[k], strlen(sections[k])) == 0 && !is_known(pairs->item[i].key)) {
                const char *near = tt_text_nearest(pairs->item[i].key, known, (int)(sizeof known / sizeof *known));

                return tt_fail(TT_EUSAGE,
                               "estimate: %s: '%s' is no key of torchtitan's that is known here, and it might "
                               "change the cost\nhelp: %s%s",
                               pairs->item[i].where, pairs->item[i].key, near ? "did you mean " : "remove it",
                               near ? near : "");
            }
    return 0;
}

/* With ranks that share experts, these may be cut otherwise than the other matrices. */
static void check_experts(const struct tt_pairs *pairs, struct tt_cluster_notes *notes)
{
    const char *cut = tt_pairs_get(pairs, "parallelism.expert_tensor_parallel_degree");
    const char *shared = tt_pairs_get(pairs, "parallelism.expert_parallel_degree");
    const char *tp = tt_pairs_get(pairs, "parallelism.tensor_parallel_degree");

    if (cut && shared && strcmp(shared, "1") != 0 && strcmp(cut, tp ? tp : "1") != 0)
        tt_cluster_note(notes, "parallelism.expert_tensor_parallel_degree", cut,
                        "experts are cut by tensor parallelism as other matrices are");
}

int tt_cluster_recipe_check(const struct tt_pairs *pairs, struct tt_cluster_notes *notes)
{
    const char *offload = tt_pairs_get(pairs, "training.enable_cpu_offload");
    const char *param = tt_pairs_get(pairs, "training.mixed_precision_param");
    int rc = check_unknown(pairs);

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

        if (value && !is_one_of(left_out[i].values, value))
            tt_cluster_note(notes, left_out[i].key, value, left_out[i].why);
    }
    return 0;
}
