/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_READ_WEIGHTS_H
#define TT_CHECKPOINT_READ_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/read/bitsandbytes.h"
#include "checkpoint/read/map.h"
#include "checkpoint/read/source.h"
#include "core/base/error.h"
#include "core/models/model.h"

/**
 * A weight as a folder stores it: one tensor or, in some published folders, a tensor of small elements and a tensor of
 * scales. Two such tensors are read as bfloat16: each product of an element and its scale is computed in float32 and
 * rounded once.
 *
 *   FP8     NAME (F8_E4M3) and NAME_scale_inv: a scale for each block of rows and columns, or one for the whole matrix
 *   MXFP4   NAME_blocks (U8) and NAME_scales (U8): 32 elements of 4 bits, the first in the low bits of the first byte,
 *           and the exponent of their power of two. Only for experts, whose matrices are [out, in] in this form alone
 *   others  see bitsandbytes.h, also for their types
 */
struct tt_hf_stored {
    const struct tt_manifest_tensor *values; /* NULL: in tt_weights.base */
    const struct tt_manifest_tensor *scales; /* NULL: stored without separate scales */
    struct tt_bnb *bnb;                      /* not NULL: bitsandbytes' values, which the weights own */
    enum tt_dtype dtype;                     /* type of the elements that are read */
    int ndim;
    int64_t shape[TT_BOX_DIMS];
    /* MXFP4: the matrices of experts have titan's layout, which bfloat16 files do not */
    bool is_turned;
    /* the block of elements that share a scale; the width of a row is the product of all dimensions except the first */
    int64_t block_rows, block_width;
};

/**
 * The model tensors of an open checkpoint in one of several forms: as stored; with the names and layout of Hugging Face
 * or GGUF (export); or, from these, with titan's (import). checkpoint/read/map.h converts them. Needs at most a few MiB
 * of memory, or one head's rows of a tensor. The mean of several checkpoints is read as if it were one checkpoint.
 */
enum tt_weights_kind {
    TT_WEIGHTS_STORED,
    TT_WEIGHTS_TO_HF,
    TT_WEIGHTS_FROM_HF,
    TT_WEIGHTS_TO_GGUF,
    TT_WEIGHTS_FROM_GGUF,
    TT_WEIGHTS_MEAN,
};

struct tt_weight {
    const char *name;    /* in the manifest or the model */
    enum tt_dtype dtype; /* as stored; BF16 for FP8 and MXFP4, see tt_hf_stored */
    bool keeps_dtype;    /* always written in that dtype, whatever dtype the user asks for */
    int ndim;
    int64_t shape[TT_BOX_DIMS];
    int number; /* index of the manifest's tensor, of the parameter, or of the tensor in tt_hf_tensors or gguf */
};

struct tt_weights {
    enum tt_weights_kind kind;
    struct tt_source *source;     /* borrowed, as is the model */
    const struct tt_model *model; /* NULL for TT_WEIGHTS_STORED */
    int n, cap;
    struct tt_weight *weight;
    /* The tensor of each parameter. In an import, each expert may have its own tensor: parameter p's tensors begin
     * at stored[first[p]]. */
    struct tt_hf_stored *stored;
    int64_t *first;
    int64_t block[2];          /* in an import: rows and columns of FP8 blocks */
    struct tt_hf_tensor *hf;   /* in an export */
    struct tt_gguf_part *gguf; /* in an export or import of GGUF; in an import, stored[i] is the tensor gguf[i] */
    int n_gguf;
    struct tt_base *base;  /* in an export: the frozen weights that the source leaves out; NULL: it has all */
    bool *checked;         /* for each tensor of the manifest: whether its checksums were compared */
    int64_t *seen;         /* for each tensor of the manifest: the number of rows read */
    uint64_t *digest;      /* and the digest of these rows */
    struct tt_weights *of; /* for a mean: the weights of each checkpoint; borrowed */
    int word;              /* while doubles are rearranged: which half of each is read as a float; 0: neither */
    const double *share;   /* for a mean: the share of each */
    int n_of;
};

/* These functions fill w. The caller releases it (tt_weights_release), even after an error. */

/** As stored: every tensor of a group, sorted by name. */
void tt_weights_stored(struct tt_source *source, enum tt_ckpt_group group, struct tt_weights *w);

/**
 * From a titan checkpoint, under Hugging Face's names: the whole model, with adapters merged into their weights, or the
 * adapters alone, under PEFT's names. Frozen weights that the checkpoint leaves out are read from where they are
 * (tt_base_open). TT_EDATA names a parameter that is missing or whose shape differs, or says that
 * there are no adapters.
 */
int tt_weights_to_hf(struct tt_source *source, const struct tt_model *model, bool adapters,
                     struct tt_weights *w) TT_MUST_CHECK;

/** The whole model under the names and in the layout of a GGUF file. TT_EDATA as above. */
int tt_weights_to_gguf(struct tt_source *source, const struct tt_model *model, struct tt_weights *w) TT_MUST_CHECK;

/** What to do about tensors of a Hugging Face folder that do not belong to the model. */
enum tt_extra {
    TT_EXTRA_IGNORED, /* does not look for them; for all ranks except one */
    TT_EXTRA_REFUSED, /* TT_EDATA names one such tensor, and says what to do */
    TT_EXTRA_NOTED,   /* a note names one */
};

/**
 * The model under titan's names and in its order, without adapters, from a Hugging Face folder, a GGUF file or a
 * PyTorch folder; if source->is_adapter, the adapters alone, from a folder of PEFT. TT_EDATA names a tensor that is
 * missing, whose shape differs or, except in a Hugging Face folder, that is not the model's.
 *
 * Some tensors of a Hugging Face folder are never refused: constants that follow from the sizes, a tied head that is a
 * copy of the embedding (TT_EDATA if it differs), and, with a note, parts beside the language model (vision towers,
 * layers that predict further tokens, other heads) and tensors that an expression of source->leave_out selects.
 * TT_EUSAGE names an expression that selects no tensor. If a GGUF file lacks the biases of experts, these are left out.
 */
int tt_weights_import(struct tt_source *source, const struct tt_model *model, enum tt_extra extra,
                      struct tt_weights *w) TT_MUST_CHECK;

/**
 * The mean of the weights of several checkpoints, sum(share * weight) / sum(share), added in double. `of` and `share`,
 * [n] each, are borrowed. The first checkpoint decides the dtypes. TT_EDATA names a weight that one of them lacks, or
 * whose shapes differ.
 */
int tt_weights_mean(struct tt_weights *of, const double *share, int n, struct tt_weights *w) TT_MUST_CHECK;

void tt_weights_release(struct tt_weights *weights);

/**
 * Reads rows [row_begin, row_begin + rows), packed, converted to dtype (tt_cast_known). Exporting a transposed tensor
 * reads the whole parameter at every call, so ask for many rows at once.
 */
int tt_weights_read(struct tt_weights *weights, const struct tt_weight *weight, int64_t row_begin, int64_t rows,
                    enum tt_dtype dtype, void *data) TT_MUST_CHECK;

/**
 * tt_source_read_packed for a matrix of an import: rows that the file stores in the same blocks stay as they are.
 */
int tt_weights_read_packed(struct tt_weights *weights, const struct tt_weight *weight, enum tt_packing_choice packing,
                           const struct tt_box *part, void *data) TT_MUST_CHECK;

/** Compares the pieces of a tensor with their checksums before its first rows are read; later calls do nothing. */
int tt_weights_check_pieces(struct tt_weights *weights, const struct tt_manifest_tensor *tensor) TT_MUST_CHECK;

/** Whether the files store a weight of an import in these blocks, so that it stays as it is. */
bool tt_weights_keep_packing(const struct tt_weights *weights, const struct tt_weight *weight,
                             enum tt_packing_choice packing);

/**
 * Reads rows [row, row + rows) in blocks, ascending, and hands each block to `use`: n rows from `first` on, packed.
 * Blocks are larger where each of them must read a whole parameter.
 */
typedef int (*tt_use_rows)(void *arg, const void *rows, int64_t first, int64_t n);
int tt_weights_stream(struct tt_weights *weights, const struct tt_weight *weight, int64_t row, int64_t rows,
                      enum tt_dtype dtype, tt_use_rows use, void *arg) TT_MUST_CHECK;

/**
 * Compares the rows that were read with the manifest's digests, if it has any. Call it after all weights were read
 * completely, in ascending order of rows. TT_EDATA names the file, tensor and rows that are damaged.
 */
int tt_weights_check(struct tt_weights *weights) TT_MUST_CHECK;

/**
 * The frozen weights that a checkpoint of adapters leaves out (checkpoint/format/base.h), read where the run found them
 * or where the user says that they are now. Each is packed as in the run, compared with its digest, and unpacked: the
 * elements are those with which the adapters were trained.
 */
struct tt_base;

/**
 * Opens the frozen weights of an open checkpoint; its model is borrowed. *ret_base is NULL if the checkpoint contains
 * its weights. Errors: TT_EDATA if the files are not there or belong to another model, or if the run began with random
 * weights.
 */
int tt_base_open(const struct tt_source *source, const struct tt_model *model, struct tt_base **ret_base) TT_MUST_CHECK;

/** The type of the elements of parameters that the run did not pack. */
enum tt_dtype tt_base_dtype(const struct tt_base *base);

/**
 * Rows [row, row + n) of a frozen parameter. Keeps the last parameter in memory, so ask for the rows of one parameter
 * before those of the next. TT_EDATA if the parameter differs from the run's.
 */
int tt_base_read(struct tt_base *base, int param, int64_t row, int64_t n, float *data) TT_MUST_CHECK;

void tt_base_free(struct tt_base *base);

/**
 * The user's answers for a checkpoint that does not name its model, such as PyTorch's. All may be NULL.
 */
struct tt_told {
    const char *model, *flavor; /* in the registry; both or neither */
    const char *assets;         /* a folder with config.json or model.json, and a tokenizer */
};

/**
 * Builds the model of an open titan checkpoint from its model.json, or otherwise from `told`; the embedding's rows are
 * the size of the vocabulary. The source takes told->assets as its folder of small files. TT_EDATA: the model is not
 * known. TT_EUSAGE: the user names a model although the checkpoint already does.
 */
int tt_source_model(struct tt_source *source, const struct tt_told *told, struct tt_model **ret_model) TT_MUST_CHECK;

#endif
