/* SPDX-License-Identifier: MIT
 *
 * Commands that run under mpirun: the communicator, from its beginning to the exit code.
 */
#include "cli/ranks.h"

#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "parallel/comm/mpi.h"
#include "parallel/comm/self.h"
#include "trainer/run/console.h"

/* Seconds of waiting after which a person is told, again and again. */
enum { REPORT_SEC = 30, START_TIMEOUT_SEC = 300 };

/* Any rank may be the one that speaks, so not through the log, which only rank 0 shows. */
static void say(const char *text)
{
    tt_screen_say("titan: %s\n", text);
}

static void abort_job(struct tt_comm *comm, int code)
{
    char *message = tt_format("titan: error: %s", tt_error_message());

    tt_console_add(message);
    tt_console_add("\n");
    tt_comm_abort(comm, code, message);
    tt_free(message);
}

/*
 * How long MPI may take to start. The configuration is read again when there are ranks, who then agree on its errors;
 * here one that cannot be read only means the default. NULL: the default.
 */
static double start_timeout(const struct tt_args *args)
{
    struct tt_config *cfg = NULL;
    double timeout_sec = START_TIMEOUT_SEC;

    if (args && tt_cli_load_config("", args, &cfg) == 0)
        timeout_sec = (double)cfg->comm.init_timeout_seconds;
    tt_config_free(cfg);
    return timeout_sec;
}

/* Whether the ranks ended as a signal asked, which is no error. */
static bool was_stopped(int rc)
{
    return rc == TT_ESTOPPED || rc == TT_EINTERRUPTED;
}

/* For tests: whether messages are left. A step that was given up leaves none either. */
static int check_messages(struct tt_comm *comm, int rc)
{
    const char *wanted = getenv("TITAN_CHECK_MESSAGES"); // NOLINT(concurrency-mt-unsafe): nobody sets it
    int checked = wanted && (rc == 0 || was_stopped(rc)) ? tt_comm_check_messages(comm) : 0;

    return checked < 0 ? checked : rc;
}

int tt_cli_run_ranks(int rc, const struct tt_args *args, tt_cli_ranks_fn fn, void *arg)
{
    struct tt_comm *comm = NULL;
    int code;

    if (rc == 0)
        rc = tt_kernels_check();
    if (tt_comm_mpi_launched()) {
        /* after an error nothing is read, so that its message remains */
        double timeout_sec = start_timeout(rc == 0 ? args : NULL);
        int before = rc;

        if ((rc = tt_comm_mpi_new(timeout_sec, &comm)) < 0)
            return tt_cli_fail(rc);
        rc = tt_comm_agree(comm, before);
    } else {
        comm = tt_comm_self_new();
    }
    comm->say = say;
    comm->report_sec = REPORT_SEC;
    if (comm->rank == 0)
        tt_cli_install_log();
    if (rc == 0)
        rc = fn(comm, arg);
    rc = check_messages(comm, rc);
    code = rc > 0 ? rc : tt_error_exit_code(rc);
    if (rc == TT_ECOMM) /* a rank is gone or silent: agreeing is over */
        abort_job(comm, code);
    if (comm->rank == 0 && was_stopped(rc))
        say(tt_error_message());
    else if (rc < 0 && comm->rank == 0)
        (void)tt_cli_fail(rc);
    tt_comm_free(comm);
    return code;
}
