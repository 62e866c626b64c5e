/* SPDX-License-Identifier: MIT
 *
 * `titan doctor`: what is wrong with this machine, or with all hosts of a job, and what to do.
 */
#include "cli/doctor/doctor.h"

#include "cli/cli.h"
#include "trainer/job/job.h"

const struct tt_option tt_doctor_options[] = {
    TT_OPTION_CONFIG,
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: [mpirun -n N] titan doctor [--json] [--config FILE]... [--section.key=value]...\n\n"
    "Checks what makes runs fail or slow: MPI, cores and binding, BLAS, memory, limits, the disk of\n"
    "job.dump_folder. Each line is ok, a warning or an error. Under mpirun it checks every host. It\n"
    "leaves no files.\n\n";

static int count_hosts(const struct tt_comm *comm)
{
    int n = 0;

    for (int r = 0; r < comm->size; r++)
        n += tt_comm_host_leader(comm, r) == r;
    return n;
}

static int examine(struct tt_comm *comm, void *arg)
{
    const struct tt_args *args = arg;
    struct tt_doctor doctor = {.comm = comm, .root = "", .n_hosts = count_hosts(comm)};
    struct tt_config *cfg = NULL;
    int rc = tt_cli_load_config("doctor", args, &cfg), code;

    TT_TRY(tt_comm_agree(comm, rc));
    doctor.cfg = cfg;
    tt_comm_node(comm, &doctor.local_rank, &doctor.local_size);
    doctor.threads = tt_job_threads(cfg, doctor.local_size);
    rc = tt_doctor_report(&doctor, tt_args_has(args, "json"));
    if (comm->rank == 0 && rc >= 0 && (code = tt_cli_finish()) != 0)
        rc = code;
out:
    tt_config_free(cfg);
    return rc;
}

int tt_command_doctor(int argc, char **argv)
{
    return tt_cli_run_job(argc, argv, usage, tt_doctor_options, examine);
}
