/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_LAUNCHED_H
#define TT_PARALLEL_COMM_LAUNCHED_H

/** What the environment says of the launcher that started this process, before MPI is initialised. */

/** The number of ranks that the launcher started, or 0 if unknown; *ret_variable is the variable that says so. */
int tt_launched_ranks(const char **ret_variable);

/** The rank that the launcher gave this process; 0 if unknown. */
int tt_launched_rank(void);

#endif
