/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_MEASURED_BACKTEST_H
#define TT_CLI_CLUSTER_MEASURED_BACKTEST_H

#include "core/config/args.h"

/** `titan estimate --backtest [CSV]`: prints the errors of predictions for measured runs, as text or JSON. */
int tt_print_backtest(const struct tt_args *args) TT_MUST_CHECK;

#endif
