/* SPDX-License-Identifier: MIT
 *
 * The speed of collectives by size, compared with plain copies of the same bytes by all ranks at once. Run by mpirun. A
 * benchmark, never a test:
 *
 *   tools/run-ranks 2 build/tests/bench/bench_collectives [ROUNDS]
 *
 * GB/s are bytes that each rank receives per second; "of copy" is that as a share of the speed of copying.
 */
#include <stdio.h>
#include <stdlib.h>

#include "parallel/comm/mpi.h"
#include "parallel/engine/measure.h"

static int measure_size(struct tt_comm *comm, int64_t bytes, int rounds)
{
    double copy = 0.0;
    int rc = 0;

    for (int kind = 0; kind < TT_MEASURED_KINDS; kind++) {
        double sec, rate;

        TT_TRY(tt_measure(comm, (enum tt_measured)kind, bytes, rounds, &sec));
        rate = (double)tt_measured_bytes((enum tt_measured)kind, comm->size, bytes) / sec * 1e-9;
        if (kind == TT_MEASURE_COPY)
            copy = rate;
        if (comm->rank == 0)
            (void)printf("%9lld KiB  %-15s %9.1f us %7.2f GB/s  %5.2f of copy\n", (long long)bytes / 1024,
                         tt_measured_name((enum tt_measured)kind), sec * 1e6, rate, rate / copy);
    }
out:
    return rc;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 15;
    struct tt_comm *comm = NULL;
    int rc = 0;

    TT_TRY(tt_comm_mpi_new(300.0, &comm));
    for (int64_t bytes = 64 << 10; bytes <= 64 << 20; bytes *= 4)
        TT_TRY(measure_size(comm, bytes, rounds));
    tt_comm_free(comm);
    return 0;
out:
    (void)fprintf(stderr, "error: %s\n", tt_error_message());
    if (comm)
        tt_comm_abort(comm, tt_error_exit_code(rc), tt_error_message());
    return 1;
}
