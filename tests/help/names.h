/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_NAMES_H
#define TT_TESTS_NAMES_H

#include "parallel/engine/engine.h"

/**
 * Lowering, checked by running programs on names instead of numbers: memory holds, for every range of bytes, the name
 * of what was last written there, and whoever reads must find the name that the graph says. Writing a range forgets all
 * that it overlaps, so a buffer whose memory is given away too early, a collective whose memory is touched while it is
 * under way, or a sum in the wrong order shows as a wrong name, whatever lowering thinks of lifetimes. cmocka asserts
 * inside.
 */

/* A tiny llama3 and its program, of the last shard rank. */
struct plan {
    int shards, replicas, microbatches, prefetch;
    enum tt_reshard reshard;
    bool tied;
};

struct planned {
    struct tt_model *model;
    struct tt_engine *engine;
    const struct tt_program *program;
};

struct planned planned_make(const struct plan *plan);
void planned_release(struct planned *made);

/** Runs a program; wanted_sum is the name of every unit's finished gradient, "((0+1)+2) over replicas". */
void names_run(const struct tt_program *program, const char *wanted_sum);

#endif
