/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_ESTIMATE_ESTIMATE_H
#define TT_CLI_ESTIMATE_ESTIMATE_H

#include "core/config/args.h"

/**
 * `titan estimate --machine`: one training job on a cluster, predicted.
 *
 * tt_print_cluster prints the job of the configuration on each of the n numbers of ranks, or with --search the best
 * layouts of them; as text or JSON. Returns 0, the exit code of TT_EFIT if nothing
 * that was asked about fits, or a negative error.
 *   memory  bytes that a device may use; 0: what the machine has
 */
int tt_print_cluster(const struct tt_args *args, const int *ranks, int n, int64_t memory) TT_MUST_CHECK;

/** `titan estimate --backtest [CSV]`: prints the errors of predictions for measured runs, as text or JSON. */
int tt_print_backtest(const struct tt_args *args) TT_MUST_CHECK;

#endif
