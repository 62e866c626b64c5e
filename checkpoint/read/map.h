/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_READ_MAP_H
#define TT_CHECKPOINT_READ_MAP_H

#include <stdint.h>

#include "core/base/error.h"
#include "core/models/gguf.h"

/**
 * Maps titan's parameters to the tensors of a Hugging Face folder and back, as the model's parameters define (hf_name,
 * hf_transform, hf_heads, hf_part). A Hugging Face tensor is one parameter, or several side by side (gpt2's c_attn: q,
 * k and v), or the matrix of one of its experts. Rows are copied one block at a time, as float.
 */
enum { TT_HF_PARTS_MOST = 3 };

struct tt_hf_tensor {
    const char *name; /* of the model */
    int ndim;
    int64_t shape[TT_MAX_DIMS];
    int n_params; /* parameters of the model, in the order of their parts */
    int param[TT_HF_PARTS_MOST];
    int64_t expert; /* for an expert's matrix: the number of the expert, which is a row of the parameter; otherwise 0 */
};

/** Elements of a row of a tensor: the product of all dimensions except the first. */
int64_t tt_row_width(int ndim, const int64_t *shape);

/** The number of Hugging Face tensors that hold a parameter: one, or one per expert. */
static inline int64_t tt_hf_tensors_of(const struct tt_param *param)
{
    return param->hf_transform == TT_HF_EXPERTS ? param->shape[0] : 1;
}

/**
 * The Hugging Face tensor that holds a parameter. For experts the name contains * in place of the expert's number.
 * n_params and param describe that parameter alone.
 */
struct tt_hf_tensor tt_hf_tensor_of(const struct tt_model *model, int param);

/**
 * Where the output `row` of a parameter is among the outputs of the Hugging Face module that has the parameter's
 * tensor: the tensor's row or, if the tensor is transposed, its column. Not for experts.
 */
int64_t tt_hf_output(const struct tt_param *param, int64_t row);

/** The name of an expert's tensor; the caller frees. */
char *tt_hf_expert_name(const char *name, int64_t expert);

/** Whether `name` is the name of the parameter or of one of its experts. */
bool tt_hf_is_name(const struct tt_param *param, const char *name);

/** All tensors of an exported model, or of its adapters, in the order of the parameters. The caller frees the list with
 * tt_free, which also frees the names of expert tensors. */
struct tt_hf_tensor *tt_hf_tensors(const struct tt_model *model, bool adapters, int *ret_n);

/**
 * Reads rows [row, row + n) of the stored counterpart of `param` into data, packed. When tt_hf_import reads experts,
 * rows are numbered through all their matrices.
 */
typedef int (*tt_hf_read_fn)(void *arg, int param, int64_t row, int64_t n, float *data);

/** Makes rows [row, row + n) of a parameter; `read` reads the Hugging Face tensor that holds it. */
int tt_hf_import(const struct tt_model *model, int param, tt_hf_read_fn read, void *arg, int64_t row, int64_t n,
                 float *data) TT_MUST_CHECK;

/**
 * Makes rows [row, row + n) of a Hugging Face tensor; `read` reads titan's parameters. For a transposed tensor, every
 * call reads all rows of the parameter, and for an expert its whole matrix, so n should be large.
 */
int tt_hf_export(const struct tt_model *model, const struct tt_hf_tensor *tensor, tt_hf_read_fn read, void *arg,
                 int64_t row, int64_t n, float *data) TT_MUST_CHECK;

/**
 * Maps titan's parameters to the tensors of a GGUF file, and back. A tensor holds one parameter, or several side by
 * side (gpt2's q, k and v), or a part of one.
 */

enum { TT_GGUF_NAME_BYTES = 64 };

struct tt_gguf_part {
    char name[TT_GGUF_NAME_BYTES];
    enum tt_gguf_layout layout;
    int ndim;
    int64_t shape[TT_MAX_DIMS];
    int n_params; /* 0 for RoPE factors */
    int param[TT_HF_PARTS_MOST];
    bool is_copy;    /* a copy of the embedding, where llama.cpp requires an output tensor */
    bool stays_wide; /* F32 in every file, as llama.cpp requires: vectors, biases, routers, positions */
};

/**
 * All tensors of a model's file, in the order of the parameters; the caller frees with tt_free. TT_EDATA if the format
 * has no tensor for a parameter. Adapters are left out.
 */
int tt_gguf_parts(const struct tt_model *model, struct tt_gguf_part **ret_parts, int *ret_n) TT_MUST_CHECK;

/** Makes rows [row, row + n) of a tensor of the file; `read` reads titan's parameters. */
int tt_gguf_export(const struct tt_model *model, const struct tt_gguf_part *part, tt_hf_read_fn read, void *arg,
                   int64_t row, int64_t n, float *data) TT_MUST_CHECK;

/** Makes rows [row, row + n) of a parameter; `read` reads the tensors of the file by their numbers in the list. */
int tt_gguf_import(const struct tt_model *model, const struct tt_gguf_part *parts, int n_parts, int param,
                   tt_hf_read_fn read, void *arg, int64_t row, int64_t n, float *data) TT_MUST_CHECK;

#endif
