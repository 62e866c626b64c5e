/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_STATE_H
#define TT_PROGRAM_STATE_H

#include "core/graph/dtype.h"
#include "core/math/exact.h"
#include "core/ops/experts/router.h"
#include "core/program/program.h"

/** The arrays that are kept between steps; state.def explains how to add one. */
enum tt_state_array {
#define TT_STATE(id, name, elements, type, kind) TT_STATE_##id,
#include "core/program/state.def"
#undef TT_STATE
    TT_STATE_ARRAYS
};

/* Sums of a step, which the stream computes and the host reads. The loads of the experts follow, as int64_t: one for
 * each block of the model and each expert, 0 in blocks without experts. */
enum {
    TT_SUM_LOSS,
    TT_SUM_Z_LOSS,
    TT_SUM_SQUARES,
    TT_SUM_ROUTER, /* the auxiliary losses of routers, in the order of router.h */
    TT_SUMS = TT_SUM_ROUTER + TT_ROUTER_LOSSES
};

/** The number of experts in all blocks. */
static inline int tt_layout_loads(const struct tt_layout *layout)
{
    return layout->blocks * layout->experts;
}

/** The number of 64-bit words of all sums. */
static inline int tt_sums_words(const struct tt_layout *layout)
{
    return TT_SUMS * TT_EXACT_WORDS + tt_layout_loads(layout);
}

static inline size_t tt_sums_bytes(const struct tt_layout *layout)
{
    return (size_t)tt_sums_words(layout) * sizeof(int64_t);
}

/** The number of words that the ranks add: without experts, only the words up to the squares. */
static inline int tt_sums_shared_words(const struct tt_layout *layout)
{
    return layout->experts ? tt_sums_words(layout) : TT_SUM_ROUTER * TT_EXACT_WORDS;
}

/** The first of the loads. */
static inline int64_t *tt_sums_loads(struct tt_exact *sums)
{
    return (int64_t *)(void *)(sums + TT_SUMS);
}

/* The state of one rank: flat shards in the form that the layout defines. */
struct tt_state {
    enum tt_dtype dtype;            /* type of parameters and moments: TT_F32 (0) or TT_BF16 */
    void **array[TT_STATE_ARRAYS];  /* [unit]; NULL: the run has no such array */
    const struct tt_layout *layout; /* of the arrays */
    char *cache;                    /* cache_bytes of the program, for generation */
    struct tt_exact *sums;          /* [TT_SUMS], and the loads; tt_sums_bytes */
    int n_units;
};

/** The name of an array's tensors; NULL for the parameters themselves. */
const char *tt_state_name(enum tt_state_array array);

/** The kind of an array's memory. */
enum tt_memory_kind tt_state_kind(enum tt_state_array array);

/** The type of an array's elements, in a state of type dtype. */
enum tt_dtype tt_state_dtype(enum tt_state_array array, enum tt_dtype dtype);

/** The type of a unit's part of the array. */
enum tt_dtype tt_state_unit_dtype(enum tt_state_array array, const struct tt_unit *unit, enum tt_dtype dtype);

/** The address of a parameter's part in an array that contains it. */
static inline void *tt_state_at(const struct tt_state *state, enum tt_state_array array, int unit,
                                const struct tt_unit_param *place)
{
    const struct tt_unit *of = &state->layout->units[unit];
    int64_t at = array == TT_STATE_BLOCKS || array == TT_STATE_BLOCKS_2 ? place->first_block
                 : array == TT_STATE_CODES || array == TT_STATE_CODES_2 ? place->offset - of->codes_begin
                                                                        : place->offset;

    return (char *)state->array[array][unit] +
           at * (int64_t)tt_dtype_size(tt_state_unit_dtype(array, of, state->dtype));
}

/** The bytes that an array takes in an arena. */
int64_t tt_state_bytes(enum tt_state_array array, const struct tt_layout *layout, enum tt_dtype dtype);

/** Adds an array that begins at `at` to the state. Returns the address after it. state->dtype must be set. */
char *tt_state_add(struct tt_state *state, enum tt_state_array array, const struct tt_layout *layout, char *at);

/** Copies the weights to their averages, for a run that had no averages so far. No effect if the state has no
 * averages. */
void tt_state_start_averages(const struct tt_state *state, const struct tt_layout *layout);

/** Exchanges the trained weights and their averages, which the state must have. The state must be TT_F32. */
void tt_state_exchange_averages(const struct tt_state *state, const struct tt_layout *layout);

/** Frees the lists of addresses, but not the arrays. */
void tt_state_release(struct tt_state *state);

#endif
