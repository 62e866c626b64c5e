/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_HF_MAP_H
#define TT_CHECKPOINT_HF_MAP_H

#include <stdint.h>

#include "core/base/error.h"
#include "core/models/model.h"

/**
 * Maps titan's parameters to the tensors of a Hugging Face folder and back, as the model's parameters say (hf_name,
 * hf_transform, hf_heads, hf_part). A Hugging Face tensor is one parameter, or several side by side (gpt2's c_attn: q,
 * k and v), or the matrix of one of its experts. Rows are copied one block at a time, as float.
 */
enum { TT_HF_PARTS_MOST = 3 };

struct tt_hf_tensor {
    const char *name; /* the model's */
    int ndim;
    int64_t shape[TT_MAX_DIMS];
    int n_params; /* parameters of the model, in the order of their parts */
    int param[TT_HF_PARTS_MOST];
    int64_t expert; /* whose matrix it is: a row of the parameter; 0 of others */
};

/** The number of Hugging Face tensors that have a parameter: one, or one for each expert. */
int64_t tt_hf_tensors_of(const struct tt_param *param);

/**
 * The Hugging Face tensor that has a parameter, of experts without a number: the name has a * for it. n_params and
 * param describe that parameter alone.
 */
struct tt_hf_tensor tt_hf_tensor_of(const struct tt_model *model, int param);

/** The name of an expert's tensor; the caller frees. */
char *tt_hf_expert_name(const char *name, int64_t expert);

/** Whether `name` is the parameter's, or that of one of its experts. */
bool tt_hf_is_name(const struct tt_param *param, const char *name);

/** All tensors of an exported model, or those of its adapters, in the order of the parameters. The caller frees with
 * tt_free, and with that the names of experts' tensors. */
struct tt_hf_tensor *tt_hf_tensors(const struct tt_model *model, bool adapters, int *ret_n);

/**
 * Reads rows [row, row + n) of the stored counterpart of `param` into data, packed. For tt_hf_import of experts, these
 * are rows of all their matrices, one after the other.
 */
typedef int (*tt_hf_read_fn)(void *arg, int param, int64_t row, int64_t n, float *data);

/** Rows [row, row + n) of a parameter; `read` reads the Hugging Face tensor that has it. */
int tt_hf_import(const struct tt_model *model, int param, tt_hf_read_fn read, void *arg, int64_t row, int64_t n,
                 float *data) TT_MUST_CHECK;

/**
 * Rows [row, row + n) of a Hugging Face tensor; `read` reads titan's parameters. For a transposed tensor every call
 * reads all rows of the parameter, and for an expert's its whole matrix, so n should be large.
 */
int tt_hf_export(const struct tt_model *model, const struct tt_hf_tensor *tensor, tt_hf_read_fn read, void *arg,
                 int64_t row, int64_t n, float *data) TT_MUST_CHECK;

#endif
