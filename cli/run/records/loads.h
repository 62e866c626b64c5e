/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_RECORDS_LOADS_H
#define TT_CLI_RUN_RECORDS_LOADS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/json.h"
#include "trainer/run/tensorboard.h"

/**
 * How evenly the experts of a step were loaded. The imbalance of a layer is the load of its busiest expert, divided by
 * the mean over its experts: from 1, if all have the same, to the number of experts.
 */
struct tt_loads {
    const int64_t
        *slots; /* [blocks][experts]: slots of each expert, 0 in blocks without experts; NULL: none are known */
    int blocks, experts;
    bool all; /* records list every load */
};

/** The imbalance of a block that has experts. */
double tt_loads_imbalance(const struct tt_loads *loads, int block);

/** The block with the greatest imbalance, of several the first; -1: no block has experts. */
int tt_loads_worst(const struct tt_loads *loads);

/** Adds the members of a step's record: imbalance, imbalance_layer, imbalances, and expert_loads with `all`. Nothing if
 * no block has experts. */
void tt_loads_record(const struct tt_loads *loads, json_t *record);

/** Adds the tags of a step. board may be NULL. */
void tt_loads_board(const struct tt_loads *loads, struct tt_tensorboard *board, int64_t step);

#endif
