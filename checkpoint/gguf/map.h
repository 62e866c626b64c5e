/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_GGUF_MAP_H
#define TT_CHECKPOINT_GGUF_MAP_H

#include <stdint.h>

#include "checkpoint/hf/map.h"
#include "core/base/error.h"
#include "core/models/model.h"

/**
 * Maps titan's parameters to the tensors of a GGUF file, and back. A tensor has one parameter, or several side by side
 * (gpt2's q, k and v), or a part of one.
 */
enum tt_gguf_layout {
    TT_GGUF_SAME,    /* parameters one after the other along dimension 0 */
    TT_GGUF_PAIRS,   /* rows within each head: theirs 2i+c, ours c*(E/2)+i (mixtral's q and k) */
    TT_GGUF_EVEN,    /* rows 0, 2, ... of each expert (gpt-oss has gates and factors in turn) */
    TT_GGUF_ODD,     /* rows 1, 3, ... */
    TT_GGUF_KEYS,    /* of wkv_b, the rows of each head that make keys, transposed */
    TT_GGUF_VALUES,  /* and those that make values */
    TT_GGUF_FACTORS, /* no parameter: the factors of RoPE */
};

enum { TT_GGUF_NAME_BYTES = 64 };

struct tt_gguf_part {
    char name[TT_GGUF_NAME_BYTES];
    enum tt_gguf_layout layout;
    int ndim;
    int64_t shape[TT_MAX_DIMS];
    int n_params; /* 0 of factors */
    int param[TT_HF_PARTS_MOST];
    bool is_copy;    /* the embedding once more, for an output that llama.cpp must have */
    bool stays_wide; /* it is F32 in every file, as llama.cpp wants it: vectors, biases, routers, positions */
};

/**
 * All tensors of a model's file, in the order of the parameters; the caller frees with tt_free. TT_EDATA if a parameter
 * has no place in it. Adapters are none.
 */
int tt_gguf_parts(const struct tt_model *model, struct tt_gguf_part **ret_parts, int *ret_n) TT_MUST_CHECK;

/** Rows [row, row + n) of a tensor of the file; `read` reads titan's parameters. */
int tt_gguf_export(const struct tt_model *model, const struct tt_gguf_part *part, tt_hf_read_fn read, void *arg,
                   int64_t row, int64_t n, float *data) TT_MUST_CHECK;

/** Rows [row, row + n) of a parameter; `read` reads the tensors of the file by their numbers in the list. */
int tt_gguf_import(const struct tt_model *model, const struct tt_gguf_part *parts, int n_parts, int param,
                   tt_hf_read_fn read, void *arg, int64_t row, int64_t n, float *data) TT_MUST_CHECK;

#endif
