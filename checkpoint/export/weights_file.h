/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_EXPORT_WEIGHTS_FILE_H
#define TT_CHECKPOINT_EXPORT_WEIGHTS_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/read/weights.h"
#include "core/base/error.h"
#include "core/base/json.h"

/**
 * A safetensors file of whole weights, which is streamed: one block of rows is in memory at a time. Checksums are
 * computed on the way and stored in the file's header (titan.crc), so that an exported file can be verified too.
 */
struct tt_weights_file {
    struct tt_weights *weights; /* borrowed */
    enum tt_dtype *dtype;       /* of each weight in the file */
    int *of_file;               /* of each weight: the index of its file; weights without a file are left out */
    const char *what;           /* for tt_progress: "exporting" */
    int64_t done, total;        /* bytes of all files */
};

struct tt_weights_written {
    int n; /* tensors, in the order of the file */
    struct tt_st_tensor *tensor;
    uint64_t *digest;
    int64_t data_start, bytes;
    uint32_t crc; /* of the whole file */
};

/** The dtype of a weight in the file: `wanted` if has_wanted is set and it can be converted, else its own. */
enum tt_dtype tt_weight_dtype(const struct tt_weight *weight, bool has_wanted, enum tt_dtype wanted);

/** Bytes of a weight in that dtype. */
int64_t tt_weight_bytes(const struct tt_weight *weight, enum tt_dtype dtype);

/**
 * Writes the weights of file `number` to path, durably. extra and sharded are as for tt_safetensors_layout. Release
 * ret_written (may be NULL) with tt_weights_written_release.
 */
int tt_weights_write(struct tt_weights_file *file, int number, const char *path, const json_t *extra, bool sharded,
                     struct tt_weights_written *ret_written) TT_MUST_CHECK;
void tt_weights_written_release(struct tt_weights_written *written);

#endif
