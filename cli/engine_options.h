/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_ENGINE_OPTIONS_H
#define TT_CLI_ENGINE_OPTIONS_H

#include "core/config/config.h"
#include "parallel/engine.h"

/**
 * Fills the options that concern the choice of engine: scheduler, machine table (parallelism.machine_file or built in),
 * buckets, and the limit by which the planned engine chooses.
 *   memory_limit  bytes that a rank may use
 * Errors: as tt_machine_load, beginning with the key.
 */
int tt_engine_options_of(const struct tt_config *cfg, int64_t memory_limit,
                         struct tt_engine_options *options) TT_MUST_CHECK;

#endif
