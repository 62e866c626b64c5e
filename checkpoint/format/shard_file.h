/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_SHARD_FILE_H
#define TT_CHECKPOINT_FORMAT_SHARD_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/safetensors.h"
#include "checkpoint/save/plan.h"
#include "core/base/error.h"
#include "core/base/text.h"

/**
 * One shard file of a save, as a function of the save plan only: which bytes it has, and which rank holds each of them.
 *
 * The data (everything after the header) is cut into blocks of TT_SHARD_BLOCK bytes, which are written as a whole,
 * and these into segments. A segment is a part of one tensor that one rank holds. Blocks begin at multiples of 4096
 * bytes of the file.
 */
enum { TT_SHARD_BLOCK = 4 << 20, TT_SHARD_ALIGN = 4096 };

struct tt_shard_segment {
    int entry;      /* the tensor: index in the file's entries */
    int holder;     /* rank */
    int64_t offset; /* of the first byte in the entry */
    int64_t size;
    /* computed while it is written */
    uint32_t crc;
    uint64_t digest;
    int64_t nonfinite; /* elements that are NaN or infinite */
};

struct tt_shard_file {
    enum tt_ckpt_group group;
    int writer;                 /* rank */
    int64_t step;               /* goes into the header */
    int n;                      /* tensors; 0: there is no such file */
    struct tt_st_tensor *entry; /* in the order of their bytes; index: the piece of the plan */
    int64_t data_start, data_bytes;
    int n_segments, cap_segments;
    struct tt_shard_segment *segment; /* in the order of their bytes */
    int n_blocks;
    int *block; /* segments of block b: block[b] .. block[b + 1] - 1 */
    bool local; /* the writer holds all of it */
};

/**
 * Lays out the file. state: the tensors as stored; piece: the indices in plan of the file's n pieces. Release with
 * tt_shard_file_release.
 */
int tt_shard_file_init(const struct tt_ckpt_state *state, const struct tt_mesh *mesh, const struct tt_ckpt_plan *plan,
                       const int *piece, int n, int64_t step, struct tt_shard_file *ret_file) TT_MUST_CHECK;

/** The same without segments and blocks: entries and bytes. */
int tt_shard_file_measure(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                          const struct tt_ckpt_plan *plan, const int *piece, int n, int64_t step,
                          struct tt_shard_file *ret_file) TT_MUST_CHECK;
void tt_shard_file_release(struct tt_shard_file *file);

/** The first bytes of the file, with the checksums that its entries have (their number does not change its size). */
int tt_shard_file_header(struct tt_shard_file *file, struct tt_text *header) TT_MUST_CHECK;

/** Bytes of the file; of block b. */
int64_t tt_shard_file_bytes(const struct tt_shard_file *file);
int64_t tt_shard_block_bytes(const struct tt_shard_file *file, int b);

/** Joins the segments' checksums to the entries' and returns the checksum of all data. */
uint32_t tt_shard_file_join(struct tt_shard_file *file);

#endif
