/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_SHARD_H
#define TT_PARALLEL_LAYOUT_SHARD_H

#include <stdint.h>

/**
 * How a parameter is cut over the n ranks of a shard group: along its rows (dimension 0), as torch.chunk does:
 * ceil(rows / n) rows each, the last ranks short or empty. On the wire and in the buffers of collectives every rank has
 * the full chunk (padded); files and digests have the valid rows only.
 */

/** Rows of every rank's padded chunk: ceil(rows / n). */
int64_t tt_shard_chunk_rows(int64_t rows, int n);

/** First row of rank i's shard, in [0, rows]. */
int64_t tt_shard_row_begin(int64_t rows, int n, int i);

/** Valid rows of rank i's shard, in [0, chunk rows]. */
int64_t tt_shard_rows(int64_t rows, int n, int i);

/** Elements of a padded shard; row_elements is the product of the dimensions behind the first (1 for a vector). */
int64_t tt_shard_padded_elements(int64_t rows, int64_t row_elements, int n);

#endif
