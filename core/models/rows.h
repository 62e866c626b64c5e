/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_ROWS_H
#define TT_MODELS_ROWS_H

/** The rows of the registry, each defined in the model's own file, and checks of sizes. */
#include "core/models/model.h"

extern const struct tt_model_row tt_model_deepseek_v3;
extern const struct tt_model_row tt_model_gpt2;
extern const struct tt_model_row tt_model_gpt_oss;
extern const struct tt_model_row tt_model_llama3;
extern const struct tt_model_row tt_model_mixtral;
extern const struct tt_model_row tt_model_qwen3;

/** The members of `with` that are not 0 (tied: not -1) replace those of dims. */
void tt_model_dims_override(struct tt_model_dims *dims, const struct tt_model_dims *with);

/**
 * Fills in the sizes that follow from others (kv heads, head_dim) and reports all faults to fn; TT_EUSAGE
 * if there are any.
 */
int tt_model_dims_check(const struct tt_model_row *row, struct tt_model_dims *dims, tt_model_fault_fn fn,
                        void *arg) TT_MUST_CHECK;

/** A tt_model_fault_fn that sets the error message from the first fault; arg is a bool *, false before. */
void tt_model_first_fault(void *arg, const enum tt_key *keys, const char *message);

/** The same, but sets the message of the first fault, which names the key: TT_EUSAGE. */
int tt_model_dims_settle(const struct tt_model_row *row, struct tt_model_dims *dims) TT_MUST_CHECK;

#endif
