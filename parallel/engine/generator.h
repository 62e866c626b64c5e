/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_GENERATOR_H
#define TT_PARALLEL_ENGINE_GENERATOR_H

#include "core/models/model.h"
#include "core/program/executor.h"
#include "parallel/engine/engine.h"

/**
 * Generation: the whole parameters of a model in one process, the keys and values of one or several sequences, and
 * programs that share them. One takes up to prompt_rows tokens of a sequence at a time, one a single token, and one the
 * next token of each sequence.
 *
 *     tt_generator_new        plans and predicts memory; allocates nothing large
 *     tt_generator_allocate
 *     fill the parameters of tt_generator_state, as tt_generator_layout describes them
 *     tt_generator_select     chooses the sequence of the functions below; at first it is 0
 *     tt_generator_feed       takes tokens and returns the logits of the next one, until the context is full
 *     tt_generator_step       takes a token of each of several sequences
 *     tt_generator_free
 *
 * The logits are a function of the model, of the sequence's tokens and of the pieces in which they were fed. They
 * depend neither on the number of threads nor on other sequences.
 */
struct tt_generator_options {
    const struct tt_model *model; /* must outlive the generator */
    struct tt_device *device;     /* must outlive the generator too; NULL: the host */
    enum tt_dtype dtype;          /* type of parameters, cache and activations: TT_F32 or TT_BF16 */
    int64_t context;              /* most tokens of a sequence, prompt included */
    int64_t sequences;            /* 0: one */
    int64_t prompt_rows;          /* most tokens of one run, at least 1; values above `context` mean `context` */
    int threads;
};

/* The memory in bytes, known before anything is allocated. */
struct tt_generator_memory {
    int64_t weights, cache, constants;
    int64_t step;  /* high-water mark of all transient memory */
    int64_t total; /* the sum: the size of the arena */
};

struct tt_generator;

int tt_generator_new(const struct tt_generator_options *options, struct tt_generator **ret_generator) TT_MUST_CHECK;
void tt_generator_free(struct tt_generator *generator);

struct tt_generator_memory tt_generator_memory(const struct tt_generator *generator);

/** Allocates the arena. TT_EFIT if the system refuses the memory. */
int tt_generator_allocate(struct tt_generator *generator) TT_MUST_CHECK;

/** The device uses the state only during tt_generator_feed. */
struct tt_state *tt_generator_state(struct tt_generator *generator);
const struct tt_layout *tt_generator_layout(const struct tt_generator *generator);

/** Chooses a sequence, from 0 on. */
void tt_generator_select(struct tt_generator *generator, int64_t sequence);

/** The number of tokens of the sequence that have been fed; the number of tokens that still fit. */
int64_t tt_generator_position(const struct tt_generator *generator);
int64_t tt_generator_room(const struct tt_generator *generator);

/** Forgets all tokens except the first `position`, so that others can follow. */
void tt_generator_rewind(struct tt_generator *generator, int64_t position);

/**
 * Feeds n >= 1 further tokens. ids are in [0, V). Allocates nothing.
 *   ret_logits   (V) for the next token; valid until the next call
 * TT_ENONFINITE if a logit is not finite, TT_EUSAGE if there is no room for the tokens.
 */
int tt_generator_feed(struct tt_generator *generator, const int32_t *tokens, int64_t n,
                      const float **ret_logits) TT_MUST_CHECK;

/**
 * Feeds one token to each sequence that `feeds` names: tokens[s] to sequence s. Allocates nothing. All sequences are
 * computed, whether they are fed or not; with a single sequence it is fed alone.
 *   ret_logits   (sequences, V), of which those are meaningful that were fed; valid until the next call
 * Errors: as tt_generator_feed.
 */
int tt_generator_step(struct tt_generator *generator, const int32_t *tokens, const bool *feeds,
                      const float **ret_logits) TT_MUST_CHECK;

/**
 * Sends the whole weights of a training engine to rank 0 and puts them into its generator, which must be of the same
 * model (collective; no other transfer may be under way). The first rank that holds a part of a parameter sends it, in
 * blocks, so no rank needs more than a few extra megabytes. Weights in float32 are rounded if the generator computes in
 * bfloat16, as in a step.
 *   options    of the engine
 *   generator  allocated; of rank 0 only, NULL on the others
 */
int tt_collect_weights(const struct tt_engine_options *options, struct tt_engine *engine, struct tt_comm *comm,
                       struct tt_generator *generator) TT_MUST_CHECK;

#endif
