/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_ROWS_H
#define TT_MODELS_ROWS_H

/** The rows of the registry, each defined in the model's own file, and the sizes they start from. */
#include "core/models/model.h"

extern const struct tt_model_row tt_model_gpt2;
extern const struct tt_model_row tt_model_llama3;
extern const struct tt_model_row tt_model_qwen3;

/** The members of `with` that are not 0 (tied: not -1) replace those of dims. */
void tt_model_dims_override(struct tt_model_dims *dims, const struct tt_model_dims *with);

/** Fills in the sizes that follow from others (kv heads, head_dim) and tells fn all that is wrong; TT_EUSAGE if anything is. */
int tt_model_dims_check(const struct tt_model_row *row, struct tt_model_dims *dims, tt_model_fault_fn fn,
                        void *arg) TT_MUST_CHECK;

/** A tt_model_fault_fn that sets the error message from the first fault; arg is a bool *, false before. */
void tt_model_first_fault(void *arg, const char *keys, const char *message);

/** The same; the message is the first fault's. Fills in the sizes that follow from others (kv heads, head_dim) and checks all; TT_EUSAGE names the key. */
int tt_model_dims_settle(const struct tt_model_row *row, struct tt_model_dims *dims) TT_MUST_CHECK;

#endif
