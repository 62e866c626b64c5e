/* SPDX-License-Identifier: MIT
 *
 * Commands that run under mpirun: the communicator, from its beginning to the exit code.
 */
#include "cli/ranks.h"

#include "cli/cli.h"
#include "core/ops/kernels.h"
#include "parallel/comm_mpi.h"
#include "parallel/comm_self.h"

int tt_cli_run_ranks(int rc, tt_cli_ranks_fn fn, void *arg)
{
    struct tt_comm *comm = NULL;
    int code;

    if (rc == 0)
        rc = tt_kernels_check();
    if (tt_comm_mpi_launched()) {
        int before = rc;

        if ((rc = tt_comm_mpi_new(&comm)) < 0)
            return tt_cli_fail(rc);
        rc = tt_comm_agree(comm, before);
    } else {
        comm = tt_comm_self_new();
    }
    if (comm->rank == 0)
        tt_cli_install_log();
    if (rc == 0)
        rc = fn(comm, arg);
    code = rc > 0 ? rc : tt_error_exit_code(rc);
    if (rc == TT_ECOMM) /* a rank is gone or silent: agreeing is over */
        comm->ops->abort(comm, code, tt_error_message());
    if (rc < 0 && comm->rank == 0)
        (void)tt_cli_fail(rc);
    tt_comm_free(comm);
    return code;
}
