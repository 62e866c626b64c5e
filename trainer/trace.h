/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_TRACE_H
#define TT_TRAINER_TRACE_H

#include <stdint.h>

#include "core/program/split.h"
#include "parallel/engine/engine.h"

/**
 * Chrome traces: what one rank did in one step, for chrome://tracing, ui.perfetto.dev and `titan trace summary`.
 * titan-trace(1) describes the file.
 */

/* The step just done. Times are of tt_clock_sec. */
struct tt_trace_step {
    int64_t step;
    int rank, world, threads;
    struct tt_span load; /* loading the batch, until all ranks have theirs */
    double end;          /* of the step */
    double lead; /* the longest load of all ranks: traces begin this long before the end of the load, so that the
                            ranks' traces lie right above each other although their clocks differ */
};

/** Writes FOLDER/iteration_N/rankR_trace.json. Not collective: every rank writes its own. Errors: TT_EIO. */
int tt_trace_write(const struct tt_engine *engine, const struct tt_trace_step *step, const char *folder) TT_MUST_CHECK;

#endif
