/* SPDX-License-Identifier: MIT
 *
 * The job with which the tests of cluster predictions start, and which they change.
 */
#ifndef TT_TESTS_CLUSTER_HELP_H
#define TT_TESTS_CLUSTER_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "estimate/backtest/backtest.h"

/* An 8B model on 16 nodes of 8 devices. Rates are those of h100-sxm. */
static struct tt_cluster_job job_8b(void)
{
    struct tt_cluster_job job = {.replicate = 1,
                                 .shard = 128,
                                 .tp = 1,
                                 .pp = 1,
                                 .cp = 1,
                                 .ep = 1,
                                 .virtual_stages = 1,
                                 .micro_batch = 2,
                                 .n_micro = 1,
                                 .seq_len = 8192,
                                 .again = TT_AGAIN_OP,
                                 .kernel = -1};

    assert_int_equal(tt_cluster_machine_find("h100-sxm", &job.machine), 0);
    assert_int_equal(tt_cluster_stack_find("torchtitan-compile", &job.stack), 0);
    assert_true(tt_cluster_shape_find("llama3.1-8B", &job.shape));
    return job;
}

#endif
