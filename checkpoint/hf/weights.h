/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_HF_WEIGHTS_H
#define TT_CHECKPOINT_HF_WEIGHTS_H

#include <stdint.h>

#include "checkpoint/hf/map.h"
#include "checkpoint/load/source.h"
#include "core/base/error.h"
#include "core/models/model.h"

/**
 * The model tensors of an open checkpoint as somebody wants them: as they are stored, in Hugging Face's names and layout
 * (export), or in titan's from Hugging Face's (import), by checkpoint/hf/map.h. Nothing here holds more than a few MiB, or
 * one head's rows of a tensor.
 */
enum tt_weights_kind { TT_WEIGHTS_STORED, TT_WEIGHTS_TO_HF, TT_WEIGHTS_FROM_HF };

struct tt_weight {
    const char *name;    /* the manifest's or the model's */
    enum tt_dtype dtype; /* as stored */
    int ndim;
    int64_t shape[TT_BOX_DIMS];
    int number; /* of the tensor of the manifest, the parameter, or the tensor of tt_hf_tensors */
};

struct tt_weights {
    enum tt_weights_kind kind;
    struct tt_source *source;     /* borrowed, as is the model */
    const struct tt_model *model; /* NULL as stored */
    int n, cap;
    struct tt_weight *weight;
    const struct tt_manifest_tensor **stored; /* per parameter: where its bytes are */
    struct tt_hf_tensor *hf;                  /* of an export */
    int64_t *seen;                            /* per tensor of the manifest: rows that were read */
    uint64_t *digest;                         /* and their digest */
};

/** As stored: every tensor of a group, sorted by name. */
void tt_weights_stored(struct tt_source *source, enum tt_ckpt_group group, struct tt_weights *ret_weights);

/** The digest of the whole of a weight, if the manifest has one and it is stored as it is; else false. */
bool tt_weights_digest(const struct tt_weights *weights, const struct tt_weight *weight, uint64_t *ret_digest);

/** In Hugging Face's names: the source has titan's. TT_EDATA names a parameter that is missing or has another shape. */
int tt_weights_to_hf(struct tt_source *source, const struct tt_model *model,
                     struct tt_weights *ret_weights) TT_MUST_CHECK;

/**
 * In titan's names, in the model's order: the source has Hugging Face's. TT_EDATA as above. With check_extra, which one rank
 * is enough for, tensors that the model does not have are noted (tt_note; masks that follow from the sizes are not), and the
 * lm_head.weight of a tied model must be a copy of the embedding (TT_EDATA).
 */
int tt_weights_from_hf(struct tt_source *source, const struct tt_model *model, bool check_extra,
                       struct tt_weights *ret_weights) TT_MUST_CHECK;

void tt_weights_release(struct tt_weights *weights);

/**
 * Reads rows [row_begin, row_begin + rows), packed, converted to dtype (tt_cast_known). Exporting a transposed tensor
 * reads the whole of ours at every call: ask for many rows.
 */
int tt_weights_read(struct tt_weights *weights, const struct tt_weight *weight, int64_t row_begin, int64_t rows,
                    enum tt_dtype dtype, void *data) TT_MUST_CHECK;

/**
 * When all weights were read whole, with rising rows: compares what was read with the digests of the manifest, if it has
 * some. TT_EDATA names the file, tensor and rows that are damaged.
 */
int tt_weights_check(struct tt_weights *weights) TT_MUST_CHECK;

#endif
