/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_SELF_H
#define TT_PARALLEL_COMM_SELF_H

#include "core/comm/comm.h"

/** The communicator of a process that runs alone: one rank, no MPI. The caller frees it (tt_comm_free). */
struct tt_comm *tt_comm_self_new(void);

#endif
