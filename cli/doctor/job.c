/* SPDX-License-Identifier: MIT
 *
 * Checks of what ranks do together: MPI, reading each other's memory, clocks.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "core/os/peers.h"
#include "parallel/comm/mpi.h"

static const char *variable(const char *name)
{
    return getenv(name); // NOLINT(concurrency-mt-unsafe): nobody sets it
}

/* Whether a program is in a folder of PATH. */
static bool is_installed(const char *program)
{
    char *path = tt_strdup(variable("PATH") ? variable("PATH") : ""), *rest = NULL;
    bool found = false;

    for (char *folder = strtok_r(path, ":", &rest); folder && !found; folder = strtok_r(NULL, ":", &rest)) {
        char *file = tt_format("%s/%s", folder, program);

        found = access(file, X_OK) == 0;
        tt_free(file);
    }
    tt_free(path);
    return found;
}

int tt_check_mpi(const struct tt_doctor *d, struct tt_finding *f)
{
    int ranks = d->comm->size;

    tt_finding_add(f, "%s", tt_comm_mpi_library());
    if (tt_comm_mpi_launched()) {
        tt_finding_add(f, "%d rank%s on %d host%s", ranks, ranks == 1 ? "" : "s", d->n_hosts,
                       d->n_hosts == 1 ? "" : "s");
        return 0;
    }
    tt_finding_add(f, "one process; `titan launch -n N -- doctor` checks ranks too");
    if (!is_installed("mpirun") && !is_installed("srun")) {
        tt_finding_add(f, "neither mpirun nor srun is in PATH");
        tt_finding_warn(f, "more than one rank needs a launcher: install Open MPI's programs (Debian: openmpi-bin), or "
                           "load the module that has them");
    }
    return 0;
}

int tt_check_transports(const struct tt_doctor *d, struct tt_finding *f)
{
    const char *pml = variable("OMPI_MCA_pml"), *btl = variable("OMPI_MCA_btl");

    if (pml)
        tt_finding_add(f, "pml %s", pml);
    if (btl)
        tt_finding_add(f, "btl %s", btl);
    if (!f->found.size)
        tt_finding_add(f, tt_comm_mpi_launched() ? "chosen by Open MPI" : "chosen when ranks start");
    if (btl && btl[0] != '^' && !strstr(btl, "vader") && !strstr(btl, "sm") && d->local_size > 1)
        tt_finding_warn(f, "ranks of one host need shared memory to be fast: add vader (Open MPI 4) or sm (5) to the "
                           "btl");
    return 0;
}

int tt_check_shared_reads(const struct tt_doctor *d, struct tt_finding *f)
{
    const char *wanted = variable("TITAN_PEER_MEMORY");
    struct tt_text why = {0};
    int n = 0;

    for (int r = 0; d->comm->reachable && r < d->comm->size; r++)
        n += r != d->comm->rank && d->comm->reachable[r];
    if (wanted && strcmp(wanted, "off") == 0) {
        tt_finding_add(f, "off");
        tt_finding_warn(f, "ranks of one host exchange messages, which is slower: unset TITAN_PEER_MEMORY");
    } else if (d->local_size > 1 && n == d->local_size - 1) {
        tt_finding_add(f, "each rank can read the memory of the others on its host");
    } else if (!tt_peers_are_readable(d->root, &why)) {
        tt_finding_add(f, "refused by the kernel");
        tt_finding_warn(f, "ranks of one host exchange messages, which is slower: %s", why.text);
    } else if (d->local_size > 1) {
        tt_finding_add(f, "this rank can read %d of the %d others on its host", n, d->local_size - 1);
        tt_finding_warn(f, "ranks of one host exchange messages, which is slower: start them in one container, as one "
                           "user");
    } else {
        tt_finding_add(f, "allowed");
    }
    tt_text_release(&why);
    return 0;
}

/* The host whose clock is furthest from that of rank 0, in seconds, with less error than `least`. Collective. */
static int measure_clocks(struct tt_comm *comm, double *walls, int *ret_rank, double *ret_skew, double *ret_error)
{
    enum { TRIALS = 5 };
    int rc = 0;

    *ret_error = HUGE_VAL;
    for (int trial = 0; trial < TRIALS; trial++) {
        double before, error, wall;

        TT_TRY(tt_comm_barrier(comm));
        before = tt_clock_wall_sec();
        TT_TRY(tt_comm_barrier(comm)); /* every rank is between the two at some time */
        wall = tt_clock_wall_sec();
        TT_TRY(tt_comm_gather_all(comm, &wall, sizeof wall, walls));
        error = tt_clock_wall_sec() - before;
        if (error >= *ret_error)
            continue;
        *ret_error = error;
        *ret_skew = 0.0;
        for (int r = 0; r < comm->size; r++) {
            if (fabs(walls[r] - walls[0]) >= fabs(*ret_skew)) {
                *ret_skew = walls[r] - walls[0];
                *ret_rank = r;
            }
        }
    }
out:
    return rc;
}

int tt_check_clock(const struct tt_doctor *d, struct tt_finding *f)
{
    static const double much = 1.0;
    double *walls = tt_calloc((size_t)d->comm->size, sizeof *walls), skew = 0.0, error = 0.0;
    int rank = 0, rc = 0;

    if (d->n_hosts == 1) {
        tt_finding_add(f, "one host");
        goto out;
    }
    TT_TRY(measure_clocks(d->comm, walls, &rank, &skew, &error));
    tt_finding_add(f, "hosts differ by at most %.3f s (measured to %.3f s)", fabs(skew), error);
    if (fabs(skew) - error > much) {
        tt_finding_add(f, "most on %s", tt_comm_host(d->comm, rank));
        tt_finding_warn(f, "times of records and files do not agree between hosts: synchronize the clocks (chrony, "
                           "ntpd)");
    }
out:
    tt_free(walls);
    return rc;
}
