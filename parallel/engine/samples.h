/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_SAMPLES_H
#define TT_PARALLEL_ENGINE_SAMPLES_H

#include "core/graph/pieces.h"
#include "core/program/executor.h"
#include "parallel/layout/mesh.h"

/**
 * The samples of a program's microbatches, to be written by a caller. If sequences are in pieces
 * (core/graph/pieces.h), they are whole here, the same on all ranks of TT_GROUP_CP, and before a run each rank takes
 * its pieces of every sequence. Else they are the inputs of the program themselves.
 */
struct tt_samples {
    const struct tt_executor *executor;
    int64_t batch, seq_len;
    int microbatches;
    struct tt_pieces pieces;              /* this rank's */
    int32_t *tokens, *labels, *positions; /* [microbatches], each (batch, seq_len); NULL if not needed */
};

/** Bytes of the whole samples, a multiple of 64; 0 if they are the inputs of the program themselves. */
int64_t tt_samples_bytes(const struct tt_mesh *mesh, int64_t batch, int64_t seq_len, int microbatches, bool documents);

/** The samples of a rank in `memory`, tt_samples_bytes() of the same arguments. The executor must outlive them. */
struct tt_samples tt_samples_make(const struct tt_mesh *mesh, int rank, int64_t batch, int64_t seq_len,
                                  int microbatches, bool documents, const struct tt_executor *executor, void *memory);

/** The arrays of microbatch a, (batch, seq_len). Wait until the device has done all earlier work. Positions are NULL
 * without documents. */
int32_t *tt_samples_tokens(const struct tt_samples *samples, int a);
int32_t *tt_samples_labels(const struct tt_samples *samples, int a);
int32_t *tt_samples_positions(const struct tt_samples *samples, int a);

/** How many labels of microbatch a count in this rank's part. */
int64_t tt_samples_valid(const struct tt_samples *samples, int a);

/** Writes this rank's part of all microbatches to the inputs of the program. */
void tt_samples_divide(const struct tt_samples *samples);

#endif
