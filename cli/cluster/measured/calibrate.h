/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_MEASURED_CALIBRATE_H
#define TT_CLI_CLUSTER_MEASURED_CALIBRATE_H

#include "cluster/model/job.h"
#include "core/base/error.h"

/* What the log of a run says about a prediction. */
struct tt_cluster_calibration {
    int steps;
    double tokens_per_sec;  /* of a device: the median, without the first quarter of the steps */
    double bytes;           /* of the last step; 0: the log has none */
    double predicted_bytes; /* of the framework's allocator, as those */
    double error;           /* of the prediction before, and with the fitted share */
    double error_after;
    double old_share, share;
};

/**
 * Fits the share of products of a stack to the log of a run of torchtitan; where names the log. TT_EDATA: it has too
 * few steps, the host takes too large a part, or it is the log of another job.
 */
int tt_cluster_calibrate(const char *log, const char *where, const struct tt_cluster_job *job,
                         struct tt_cluster_stack *stack, struct tt_cluster_calibration *ret) TT_MUST_CHECK;
void tt_cluster_print_calibration(const struct tt_cluster_calibration *calibration);

#endif
