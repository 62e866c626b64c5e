/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_THREADS_H
#define TT_PARALLEL_COMM_THREADS_H

#include "core/comm/comm.h"

/**
 * Ranks as threads of one process, for tests: what is written over struct tt_comm runs unchanged, under the thread
 * sanitizer too.
 *
 * Starts size threads that call fn with their own communicator, and waits for all of them. Returns the code of the
 * first rank that failed (in time), with its message set in the caller, else 0. fn must not free the communicator.
 *
 * Stricter than MPI, to catch mistakes: a send completes only when it was received, the bytes of both sides must be
 * equal (TT_EINTERNAL), and a transfer whose peer has returned from fn, or called abort, fails with TT_ECOMM at once.
 * Every rank can read every other one's memory; collectives do when fn sets comm->read_bytes, which is 0.
 * abort ends the calling thread; the run's code is then the error class of its exit code.
 */
int tt_comm_threads_run(int size, int (*fn)(struct tt_comm *comm, void *arg), void *arg) TT_MUST_CHECK;

#endif
