/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_COLLECT_H
#define TT_PARALLEL_ENGINE_COLLECT_H

#include "parallel/engine/engine.h"
#include "parallel/engine/generator.h"

/**
 * Sends the whole weights of a training engine to rank 0 and puts them into its generator, which has the same model
 * (collective; no other transfer may be under way). Each part of a parameter is sent by the first rank that has it, in
 * blocks, so no rank needs more than a few megabytes for it. Weights in float32 are rounded if the generator computes
 * in bfloat16, as a step rounds them.
 *   options    of the engine
 *   generator  allocated; of rank 0 only, NULL on the others
 */
int tt_collect_weights(const struct tt_engine_options *options, struct tt_engine *engine, struct tt_comm *comm,
                       struct tt_generator *generator) TT_MUST_CHECK;

#endif
