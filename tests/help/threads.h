/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_THREADS_H
#define TT_TESTS_THREADS_H

#include "core/comm/comm.h"

/** For tests: ranks that are threads of one process. Code that uses struct tt_comm runs unchanged, also under the
 * thread sanitizer.
 *
 * Starts size threads that call fn with their own communicator, and waits for all of them. Returns the code of the rank
 * that failed first, and sets its message in the caller; else 0. fn must not free the communicator.
 *
 * This is stricter than MPI, to catch mistakes: a send completes only when it is received, both sides must have the
 * same number of bytes (TT_EINTERNAL), and a transfer whose peer has returned from fn or called abort fails at once
 * with TT_ECOMM. Every rank can read the memory of all others; collectives do so if fn sets comm->read_bytes, which is
 * 0 by default. abort ends the calling thread; the run's code is then the error class of its exit code.
 */
int tt_comm_threads_run(int size, int (*fn)(struct tt_comm *comm, void *arg), void *arg) TT_MUST_CHECK;

#endif
