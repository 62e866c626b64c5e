/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_MPI_H
#define TT_PARALLEL_COMM_MPI_H

#include "core/comm/comm.h"

/**
 * Whether a launcher (mpirun, srun) started this process as a rank, as its environment shows. A run without a launcher
 * must not initialise MPI: that would be slower, and impossible on machines where MPI works only in batch jobs.
 */
bool tt_comm_mpi_launched(void);

/**
 * Initialises MPI (FUNNELED: only the calling thread communicates) and makes a communicator of all ranks of the job.
 * Call it once per process. If MPI does not start within timeout_sec (Open MPI waits for ever when it gets no memory),
 * the process prints a message and exits as after a communication error. The caller frees ret_comm with tt_comm_free,
 * which finalises MPI and waits for the other ranks; after a TT_ECOMM, call abort instead. The communicator's timeout
 * is timeout_sec until the caller sets another.
 *
 * Collective. Errors: TT_ECOMM when MPI cannot start, or when the launcher belongs to a different MPI library than the
 * one linked into this program (every process would then believe that it is the only rank).
 */
int tt_comm_mpi_new(double timeout_sec, struct tt_comm **ret_comm) TT_MUST_CHECK;

/** Name and version of the MPI library. */
const char *tt_comm_mpi_library(void);

#endif
