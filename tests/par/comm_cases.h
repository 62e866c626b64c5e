/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_PAR_COMM_CASES_H
#define TT_TESTS_PAR_COMM_CASES_H

#include "core/comm/comm.h"

/**
 * Cases for every communicator, threads and MPI: collectives give the expected bits and count the expected bytes. Every
 * rank of comm calls a case. A failed expectation is TT_EINTERNAL with file and line.
 */
struct comm_case {
    const char *name;
    int (*run)(struct tt_comm *comm);
};

extern const struct comm_case comm_cases[];
extern const int comm_n_cases;

/** Runs a case, after which every message must have been received. */
int comm_case_run(const struct comm_case *c, struct tt_comm *comm);

#define COMM_EXPECT(condition)                                                                                 \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            rc = tt_fail(TT_EINTERNAL, "%s:%d: rank %d of %d: %s", __FILE__, __LINE__, comm->rank, comm->size, \
                         #condition);                                                                          \
            goto out;                                                                                          \
        }                                                                                                      \
    } while (0)

#endif
