/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_SAMPLING_H
#define TT_MODELS_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

/**
 * Chooses the next token from logits as transformers does: divides by the temperature, keeps the top_k largest, keeps
 * of these the fewest most likely ones whose probabilities add up to top_p, and draws one of them.
 *
 * The draw is a function of the logits and of one uniform number. Equal logits rank by token id, so the choice does not
 * depend on anything else.
 */
struct tt_sampling {
    double temperature; /* 0: the largest logit; the other settings are ignored */
    int64_t top_k;      /* 0: all */
    double top_p;       /* in (0, 1]; 1: all */
};

/* Has memory for the candidates, so that picking allocates nothing. */
struct tt_picker;
struct tt_picker *tt_picker_new(const struct tt_sampling *sampling, int64_t vocab);
void tt_picker_free(struct tt_picker *picker);

/**
 * Allows only tokens for which is_allowed returns true; there must be at least one. NULL: allows all, as at first. A
 * vocabulary may have rows that are not tokens.
 */
void tt_picker_allow(struct tt_picker *picker, bool (*is_allowed)(const void *arg, int32_t token), const void *arg);

/** Picks a token from finite logits (V); uniform in [0, 1). */
int32_t tt_picker_pick(struct tt_picker *picker, const float *logits, double uniform);

#endif
