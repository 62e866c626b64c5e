/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_MPI_H
#define TT_PARALLEL_COMM_MPI_H

#include "core/comm/comm.h"

/**
 * True when a launcher (mpirun, srun) started this process as a rank, by its environment. A plain run must not
 * initialise MPI: it is slower to start, and impossible on machines where MPI is set up for batch jobs only.
 */
bool tt_comm_mpi_launched(void);

/**
 * Initialises MPI (FUNNELED: only the calling thread communicates) and makes a communicator of all ranks of the job.
 * Once per process. Where MPI does not start within timeout_sec (Open MPI waits for ever when it gets
 * no memory), the process says so and exits as after a communication error. ret_comm is the caller's; tt_comm_free finalises MPI, which waits for the other ranks: after a
 * TT_ECOMM call abort instead. Its timeout is timeout_sec until the caller sets another.
 *
 * Collective. Errors: TT_ECOMM when MPI cannot start, or when the launcher belongs to another MPI library than the one
 * this program is linked with (every process would then believe to be alone).
 */
int tt_comm_mpi_new(double timeout_sec, struct tt_comm **ret_comm) TT_MUST_CHECK;

/** Name and version of the MPI library. */
const char *tt_comm_mpi_library(void);

#endif
