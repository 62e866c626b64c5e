/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_READ_SOURCE_H
#define TT_CHECKPOINT_READ_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/comm/comm.h"
#include "core/math/packing.h"

/**
 * A checkpoint that one rank has opened for reading: a step with its manifest; plain safetensors files (a consolidated
 * checkpoint, a model/ folder alone, a Hugging Face folder), whose tensors are then all in group model; a GGUF file; or
 * a PyTorch folder, described as a manifest (checkpoint/dcp/scan.h).
 *
 * Files are opened when they are needed, and are then checked against the manifest.
 */
struct tt_source {
    char *path;
    char *assets;     /* the folder of the small files, if the user names one; NULL: the checkpoint's */
    bool is_adapter;  /* a folder of PEFT, whose tensors are adapters only */
    const char *base; /* where the user says that the frozen weights of adapters are; borrowed; NULL: where they were */
    /* embedding and output of a Hugging Face folder may have fewer rows than the model's vocabulary */
    bool extend_vocabulary;
    /* regular expressions; matching tensors may stay unused; borrowed, may be NULL */
    const struct tt_words *leave_out;
    bool is_folder;         /* path is a folder; otherwise a file */
    enum tt_path_kind kind; /* never TT_PATH_FOLDER */
    struct tt_step_place place;
    struct tt_manifest manifest;
    struct tt_safetensors *open; /* one per file; path is NULL: not open; without tensors for PyTorch files */
    int n_open;
    struct tt_manifest_chunk turned; /* the chunk that was last put into row order: its file and first byte */
    char *turned_bytes;              /* and its elements in row order; NULL: there is none */
};

/**
 * Describes the checkpoint at path without checking coverage, so that all faults can be found. ret_kind gets the kind
 * of the first fault.
 */
int tt_source_describe(const char *path, enum tt_path_kind kind, struct tt_manifest *ret_manifest,
                       const char **ret_kind) TT_MUST_CHECK;

/** Whether the source is a GGUF file (checkpoint/format/gguf.h). */
static inline bool tt_source_is_gguf(const struct tt_source *source)
{
    return source->kind == TT_PATH_PLAIN && tt_gguf_is_path(source->path);
}

/**
 * Refuses (TT_EDATA) a PyTorch folder if titan cannot read some intact tensor of the model or, with `optimizer`, of the
 * optimizer. The message names one, the reason, and what to do.
 */
int tt_source_check_forms(const struct tt_source *source, bool optimizer) TT_MUST_CHECK;

/** Sets the same error for one entry of "unread" (checkpoint/dcp/scan.h). */
int tt_source_fail_form(const struct tt_source *source, const json_t *unread);

/** The checksum of the chunks of a checkpoint: CRC32C, or CRC-32 in PyTorch's checkpoints. */
uint32_t tt_source_checksum(const struct tt_source *source, uint32_t crc, const void *bytes, size_t size);

/** Opens a path that tt_path_resolve has returned. Coverage and file sizes are checked. */
int tt_source_open(const char *path, enum tt_path_kind kind, struct tt_source **ret_source) TT_MUST_CHECK;

/** Opens the good checkpoint to which a path leads (tt_path_resolve). Reads the manifest only once, to see that the
 * checkpoint is good. */
int tt_source_find(const char *path, struct tt_source **ret_source) TT_MUST_CHECK;

/** Returns rc, or TT_EREMOVED if rc is an error and the source was removed meanwhile (tt_step_explain). source may be
 * NULL. */
static inline int tt_source_explain(int rc, const struct tt_source *source)
{
    return source ? tt_step_explain(rc, source->path, &source->place) : rc;
}

void tt_source_free(struct tt_source *source);

/**
 * Opens file i (again, if it is open) and checks that the manifest describes it: size, header, step, rank, tensors.
 * ret_kind (may be NULL) gets the kind of fault: "missing", "truncated", "trailing", "header", "stale", "swapped". The
 * result belongs to the source.
 */
int tt_source_check_file(struct tt_source *source, int file, const char **ret_kind) TT_MUST_CHECK;

/** Reads a box of a tensor, converted to dtype (tt_cast_known), packed, into data. Does not check checksums. */
int tt_source_read(struct tt_source *source, const struct tt_manifest_tensor *tensor, const struct tt_box *box,
                   enum tt_dtype dtype, void *data) TT_MUST_CHECK;

/** The same for the whole rows [row_begin, row_begin + rows). */
int tt_source_read_rows(struct tt_source *source, const struct tt_manifest_tensor *tensor, int64_t row_begin,
                        int64_t rows, enum tt_dtype dtype, void *data) TT_MUST_CHECK;

/**
 * Reads a part of a matrix and packs it. If packing needs the whole matrix, it is read as floats.
 *   part  rows and columns, not empty; columns as tt_packing_cut wants them
 *   data  the rows of the part, each packed by itself
 */
int tt_source_read_packed(struct tt_source *source, const struct tt_manifest_tensor *tensor,
                          enum tt_packing_choice packing, const struct tt_box *part, void *data) TT_MUST_CHECK;

/** Whether two tensors of the same shape have the same values. Both types must be readable as F32. Reads both
 * tensors. */
int tt_source_equal(struct tt_source *source, const struct tt_manifest_tensor *a, const struct tt_manifest_tensor *b,
                    bool *ret_equal) TT_MUST_CHECK;

/**
 * Reads those elements of the box `want` that a chunk contains into `data`, which is packed as `want`, in the tensor's
 * dtype.
 */
int tt_source_read_chunk(struct tt_source *source, const struct tt_manifest_chunk *chunk, const struct tt_box *want,
                         size_t item, void *data) TT_MUST_CHECK;

/** Reads a whole chunk and compares its checksum, if it has one. TT_EDATA names file, tensor and rows. */
int tt_source_verify_chunk(struct tt_source *source, const struct tt_manifest_tensor *tensor,
                           const struct tt_manifest_chunk *chunk) TT_MUST_CHECK;

/** Sets the error for a chunk with a wrong checksum. */
int tt_source_fail_crc(const struct tt_source *source, const struct tt_manifest_tensor *tensor,
                       const struct tt_manifest_chunk *chunk, uint32_t found);

/**
 * The folder of the small files of an open source: the one that the user named, or step-N/assets, or the folder of the
 * weights. The caller frees.
 */
char *tt_source_assets(const struct tt_source *source);

/** Whether the source is a Hugging Face folder: it has a config.json and no model.json. */
int tt_source_is_hf(const struct tt_source *source, bool *ret_is_hf) TT_MUST_CHECK;

#endif
