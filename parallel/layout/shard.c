/* SPDX-License-Identifier: MIT
 *
 * Sharding arithmetic: which rows of a parameter a rank holds.
 */
#include "parallel/layout/shard.h"

int64_t tt_shard_chunk_rows(int64_t rows, int n)
{
    return (rows + n - 1) / n;
}

int64_t tt_shard_row_begin(int64_t rows, int n, int i)
{
    int64_t begin = i * tt_shard_chunk_rows(rows, n);

    return begin < rows ? begin : rows;
}

int64_t tt_shard_rows(int64_t rows, int n, int i)
{
    return tt_shard_row_begin(rows, n, i + 1) - tt_shard_row_begin(rows, n, i);
}

int64_t tt_shard_padded_elements(int64_t rows, int64_t row_elements, int n)
{
    return tt_shard_chunk_rows(rows, n) * row_elements;
}
