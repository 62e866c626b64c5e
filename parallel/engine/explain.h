/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_EXPLAIN_H
#define TT_PARALLEL_ENGINE_EXPLAIN_H

#include "core/comm/comm.h"
#include "core/program/executor.h"

/**
 * After a step of the executor has failed with TT_ENONFINITE: names the first bad value of all ranks in this thread's
 * error message (collective). Returns TT_ENONFINITE, or TT_ECOMM.
 */
int tt_explain(struct tt_comm *comm, struct tt_executor *executor, struct tt_step *step) TT_MUST_CHECK;

#endif
