/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RANKS_H
#define TT_CLI_RANKS_H

#include "core/comm/comm.h"
#include "core/config/args.h"

/**
 * The work of a command on each rank: returns 0, a negative code with its message, or an exit code already explained.
 */
typedef int (*tt_cli_ranks_fn)(struct tt_comm *comm, void *arg);

/**
 * Runs fn with a communicator of all ranks: MPI's under a launcher, else of one rank. Rank 0 shows notes and reports
 * the error, once. Returns the process's exit code, the same on every rank.
 *   args of the command line, for comm.init_timeout_seconds; may be NULL
 *   rc   the result of reading the command line: if it failed on any rank, fn does not run
 */
int tt_cli_run_ranks(int rc, const struct tt_args *args, tt_cli_ranks_fn fn, void *arg);

#endif
