/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_ESTIMATE_ESTIMATE_H
#define TT_CLI_ESTIMATE_ESTIMATE_H

#include "core/config/args.h"

/**
 * `titan estimate MODEL --gpus`, or --machine: one training job on a cluster, predicted.
 *
 * tt_print_cluster prints the predictions for the configured job, once for each of n numbers of ranks. With n = 0 the
 * numbers come from --gpus, or titan finds the number that the job needs. With --search it prints the best layouts
 * instead. Prints text or JSON. Returns 0, the exit code of TT_EFIT if nothing fits, or a negative error.
 *   memory  bytes that a device may use; 0: the memory of the machine's device
 */
int tt_print_cluster(const struct tt_args *args, const int *ranks, int n, int64_t memory) TT_MUST_CHECK;

/** `titan estimate --backtest [CSV]`: prints the errors of predictions for measured runs, as text or JSON. */
int tt_print_backtest(const struct tt_args *args) TT_MUST_CHECK;

#endif
