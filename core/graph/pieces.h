/* SPDX-License-Identifier: MIT */
#ifndef TT_GRAPH_PIECES_H
#define TT_GRAPH_PIECES_H

#include "core/graph/graph.h"

/**
 * Sequences in pieces (struct tt_pieces). Rows of tokens are in the order [place][sequence][position in the piece];
 * place i holds the i-th piece in the order of the grains. The grains of a rank are consecutive, so its rows are too.
 */

/** The number of pieces of a sequence: 1 if it is whole. */
static inline int64_t tt_pieces_count(const struct tt_pieces *pieces)
{
    if (pieces->grains <= 1)
        return 1;
    return pieces->mirrored ? 2 * (int64_t)pieces->grains : pieces->grains;
}

/** The number of pieces in a grain. */
static inline int64_t tt_pieces_of_grain(const struct tt_pieces *pieces)
{
    return pieces->grains > 1 && pieces->mirrored ? 2 : 1;
}

/** The number of pieces in the grains of the local queries. */
static inline int64_t tt_pieces_own(const struct tt_pieces *pieces)
{
    return pieces->grains > 1 ? pieces->own * tt_pieces_of_grain(pieces) : 1;
}

/** The place of the first of these pieces. */
static inline int64_t tt_pieces_first(const struct tt_pieces *pieces)
{
    return pieces->grains > 1 ? pieces->first * tt_pieces_of_grain(pieces) : 0;
}

/** The piece of the sequence at a place; a grain is one piece, or a piece and its mirror image. */
static inline int64_t tt_piece_at(const struct tt_pieces *pieces, int64_t place)
{
    if (tt_pieces_of_grain(pieces) == 1)
        return place;
    return place % 2 ? 2 * (int64_t)pieces->grains - 1 - place / 2 : place / 2;
}

/** The place of a piece. */
static inline int64_t tt_piece_place(const struct tt_pieces *pieces, int64_t piece)
{
    if (tt_pieces_of_grain(pieces) == 1)
        return piece;
    return piece < pieces->grains ? 2 * piece : 2 * (2 * (int64_t)pieces->grains - 1 - piece) + 1;
}

/**
 * The split of expert tokens (struct tt_token_parts). The rows of a rank are block `block` of `blocks`, and all blocks
 * together are `grains` grains.
 */

static inline int tt_parts_grains(const struct tt_token_parts *parts)
{
    return parts->grains > 1 ? parts->grains : 1;
}

static inline int tt_parts_blocks(const struct tt_token_parts *parts)
{
    return parts->blocks > 1 ? parts->blocks : 1;
}

/** The number of tokens in a grain, if this rank holds `rows` of the tokens. */
static inline int64_t tt_parts_grain_rows(const struct tt_token_parts *parts, int64_t rows)
{
    return rows * tt_parts_blocks(parts) / tt_parts_grains(parts);
}

/** Whether grains consist of whole numbers of tokens. */
static inline bool tt_parts_fit(const struct tt_token_parts *parts, int64_t rows)
{
    return rows * tt_parts_blocks(parts) % tt_parts_grains(parts) == 0 && parts->block < tt_parts_blocks(parts);
}

/** The grain of the token in a local row. */
static inline int64_t tt_parts_grain_of(const struct tt_token_parts *parts, int64_t rows, int64_t row)
{
    return (parts->block * rows + row) / tt_parts_grain_rows(parts, rows);
}

#endif
