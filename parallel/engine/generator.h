/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_GENERATOR_H
#define TT_PARALLEL_ENGINE_GENERATOR_H

#include "core/models/model.h"
#include "core/program/executor.h"

/**
 * Generation: a model's parameters, whole, in one process, a key/value cache, and two programs over both: one takes up
 * to prompt_rows tokens at a time, the other a single one.
 *
 *     tt_generator_new        plans and predicts memory; allocates nothing large
 *     tt_generator_allocate
 *     fill tt_generator_state's parameters, which lie as tt_generator_layout says
 *     tt_generator_feed       tokens in, logits of the next one out, as often as the context has room
 *     tt_generator_free
 *
 * The logits are a function of the model, of the tokens and of how they were fed; the number of threads does not show.
 */
struct tt_generator_options {
    const struct tt_model *model; /* must outlive the generator */
    struct tt_device *device;     /* the same; NULL: the host */
    int64_t context;              /* tokens at most, prompt included */
    int64_t prompt_rows;          /* tokens of one run at most, at least 1; more than context is context */
    int threads;
};

/* Bytes, known before anything is allocated. */
struct tt_generator_memory {
    int64_t weights, cache, constants;
    int64_t step;  /* high-water mark of everything transient */
    int64_t total; /* the arena: the sum */
};

struct tt_generator;

int tt_generator_new(const struct tt_generator_options *options, struct tt_generator **ret_generator) TT_MUST_CHECK;
void tt_generator_free(struct tt_generator *generator);

struct tt_generator_memory tt_generator_memory(const struct tt_generator *generator);

/** TT_EFIT when the system has not got the memory. */
int tt_generator_allocate(struct tt_generator *generator) TT_MUST_CHECK;

/** The device works on it during tt_generator_feed only. */
struct tt_state *tt_generator_state(struct tt_generator *generator);
const struct tt_layout *tt_generator_layout(const struct tt_generator *generator);

/** The programs, for the tests: of several tokens (NULL when prompt_rows is 1), of one. */
const struct tt_program *tt_generator_prompt_program(const struct tt_generator *generator);
const struct tt_program *tt_generator_token_program(const struct tt_generator *generator);

/** Tokens that have been fed, and how many more there is room for. */
int64_t tt_generator_position(const struct tt_generator *generator);
int64_t tt_generator_room(const struct tt_generator *generator);

/** Forgets all tokens but the first `position`, to go on from there in another way. */
void tt_generator_rewind(struct tt_generator *generator, int64_t position);

/**
 * Puts n >= 1 tokens behind those fed before; ids are in [0, V) and there is room for them. Allocates nothing.
 *   ret_logits   (V) of the token that comes next; valid until the next call
 * TT_ENONFINITE when a logit is not finite, TT_EUSAGE when there is no room.
 */
int tt_generator_feed(struct tt_generator *generator, const int32_t *tokens, int64_t n,
                      const float **ret_logits) TT_MUST_CHECK;

#endif
