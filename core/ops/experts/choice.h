/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_EXPERTS_CHOICE_H
#define TT_OPS_EXPERTS_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/graph/graph.h"

/** The choice of a token's experts, for ROUTER (router.c has the rules). */
enum { TT_MOST_GROUPS = 64 };

/* What decides it: the token's scores, each plus the bias of its expert. */
struct tt_choice {
    const float *scores, *bias; /* (X); no bias: NULL */
};

/**
 * The ids of padding are stored as their complements, which are negative: its rows go to experts like any others, since
 * shapes are static, but nothing is counted of them. Whether an id is so, and its expert.
 */
static inline bool tt_id_is_padding(int32_t id)
{
    return id < 0;
}

static inline int32_t tt_id_expert(int32_t id)
{
    return id < 0 ? ~id : id;
}

/** Writes the ids of k experts, ascending. They are valid even if scores are not numbers: the loss shows these. */
void tt_choose(int32_t *ids, const struct tt_choice *choice, const struct tt_router *router, int k, int64_t experts);

/** The same without scores: slot i of all slots gets expert i mod X. row: the token's among those of all ranks. */
void tt_choose_in_turn(int32_t *ids, int64_t row, int k, int64_t experts);

#endif
