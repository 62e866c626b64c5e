/* SPDX-License-Identifier: MIT
 *
 * titan's own keys as a job on a cluster: the trained parameters, and the types.
 */
#include <string.h>

#include "core/models/lora.h"
#include "estimate/formats/formats.h"

/* Takes the adapters of lora.*. */
static void take_adapters(const struct tt_config *cfg, struct tt_cluster_job *job)
{
    static const enum tt_cluster_target targets[] = {TT_TARGET_Q,    TT_TARGET_K,  TT_TARGET_V,   TT_TARGET_O,
                                                     TT_TARGET_GATE, TT_TARGET_UP, TT_TARGET_DOWN};
    static const double bits[TT_PACKINGS] = {[TT_PACKING_BF16] = 16,
                                             [TT_PACKING_INT8] = 8,
                                             [TT_PACKING_NF4] = 4,
                                             [TT_PACKING_Q4_0] = 4.5,
                                             [TT_PACKING_Q8_0] = 8.5};

    job->lora_rank = (double)cfg->lora.rank;
    job->base_bits = bits[cfg->lora.base_dtype];
    job->lora_targets = 0;
    for (int i = 0; i < cfg->lora.target_modules.n; i++) {
        unsigned modules = tt_lora_module(cfg->lora.target_modules.word[i]);

        if (!modules) {
            tt_note(
                "predictions for GPU clusters count adapters of all layers, instead of those that '%s' in %s selects",
                cfg->lora.target_modules.word[i], TT_KEY_NAME(lora.target_modules));
            job->lora_targets = 0;
            break;
        }
        for (int k = 0; k < tt_lora_n_modules; k++)
            job->lora_targets |= modules & 1U << k ? (unsigned)targets[k] : 0;
    }
}

/* The optimizer whose memory and time are predicted. A switch, so that the compiler asks for new optimizers. */
static enum tt_cluster_optimizer predicted(enum tt_optim_choice optim)
{
    switch (optim) {
    case TT_OPTIM_ADAMW:
    case TT_OPTIM_ADAM:
        break;
    case TT_OPTIM_ADAMW_8BIT:
        return TT_OPT_ADAMW_8BIT;
    case TT_OPTIM_MUON:
        return TT_OPT_MUON;
    case TT_OPTIM_LION:
        return TT_OPT_LION;
    }
    return TT_OPT_ADAMW;
}

void tt_cluster_own_keys(const struct tt_config *cfg, struct tt_cluster_job *job)
{
    bool is_titan = strcmp(job->stack->name, "titan") == 0;

    if (is_titan || tt_config_is_set(cfg, TT_KEY(training.mixed_precision_param)))
        job->float32 = cfg->training.mixed_precision_param == TT_DTYPE_FLOAT32;
    if (tt_config_is_set(cfg, TT_KEY(training.mixed_precision_reduce)))
        job->gradient_bytes = cfg->training.mixed_precision_reduce == TT_DTYPE_FLOAT32 ? 4 : 2;
    if (cfg->training.dtype == TT_DTYPE_BFLOAT16)
        job->weight_bytes = job->state_gradient_bytes = job->moment_bytes = 2;
    if (tt_config_is_set(cfg, TT_KEY(optimizer.name)))
        job->optimizer = predicted(cfg->optimizer.name);
    if (cfg->debug.moe_force_load_balance)
        job->balanced = job->adjacent = true;
    if (!cfg->parallelism.context_parallel_load_balancer)
        job->contiguous = true;
    if (cfg->lora.rank > 0)
        take_adapters(cfg, job);
    if (cfg->checkpoint.enable && !cfg->checkpoint.load_only) {
        job->save_steps = (double)cfg->checkpoint.interval;
        job->save_waits = cfg->checkpoint.async_mode == TT_ASYNC_DISABLED;
    }
}
