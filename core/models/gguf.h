/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_GGUF_H
#define TT_MODELS_GGUF_H

#include "core/base/error.h"
#include "core/gguf/gguf.h"
#include "core/models/model.h"

/**
 * The sizes of a model as values of a GGUF file, by the architectures of llama.cpp, and back. A file of titan's also
 * has its model.json ("titan.model"), which says all that llama.cpp's values do not.
 */

/**
 * Adds the values, from general.architecture on. TT_EDATA says which part of the model llama.cpp does not compute.
 *   context   the longest sequence that the file should promise; 0: the model's
 */
int tt_gguf_put_model(const struct tt_model *model, int64_t context, struct tt_gguf_values *values) TT_MUST_CHECK;

/** Whether the file has a tensor of RoPE's factors, rope_freqs.weight, of head_dim / 2 floats; and factor i. */
bool tt_gguf_has_rope_factors(const struct tt_model *model);
float tt_gguf_rope_factor(const struct tt_model *model, int64_t i);

/** Whether a file of such a model may have that tensor, which then becomes scaling of RoPE. */
bool tt_gguf_reads_rope_factors(const struct tt_model *model);

/** The model.name of a file; TT_EDATA lists the known architectures. Static. */
int tt_gguf_model_name(const struct tt_gguf *file, const char **ret_name) TT_MUST_CHECK;

/** The sizes of a file's model; TT_EDATA names what is missing, or what titan does not compute. */
int tt_gguf_read_dims(const struct tt_gguf *file, struct tt_model_dims *ret_dims) TT_MUST_CHECK;

#endif
