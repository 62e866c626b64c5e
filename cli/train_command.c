/* SPDX-License-Identifier: MIT
 *
 * titan train: command line, communicator, trainer, exit code.
 */
#include <stdio.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/signals.h"
#include "cli/trainer.h"
#include "core/base/mem.h"
#include "core/config/args.h"
#include "core/ops/kernels.h"
#include "parallel/comm_mpi.h"
#include "parallel/comm_self.h"

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"json", NULL, NULL, "print the records of metrics.jsonl instead of console lines"},
    {"overwrite", NULL, NULL, "replace the run that dump_folder holds"},
    TT_OPTION_HELP,
    {0},
};

static int print_help(void)
{
    struct tt_text text = {0};

    tt_text_add(&text, "usage: titan train [--config FILE]... [--section.key=value]...\n\n"
                       "Trains. Without --config: the built-in quick run. Under mpirun every process is one rank.\n\n");
    tt_args_help(options, &text);
    tt_text_add(&text, "\nConfiguration keys, as flags (titan-config(5) has more):\n");
    tt_config_help(&text);
    (void)fputs(text.text, stdout);
    tt_text_release(&text);
    return tt_cli_finish();
}

/* Everything between having a communicator and giving it up; the same code on every rank. */
static int train(struct tt_comm *comm, const struct tt_args *args, int argc, char **argv)
{
    struct tt_trainer_options trainer_options = {
        .json = tt_args_has(args, "json"), .overwrite = tt_args_has(args, "overwrite"), .argc = argc, .argv = argv};
    struct tt_trainer *trainer = NULL;
    struct tt_config *cfg = NULL;
    int rc;

    rc = tt_cli_load_config("train", args, &cfg);
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_trainer_plan(cfg, comm, &trainer_options, &trainer));
    TT_TRY(tt_trainer_open(trainer));
    rc = tt_trainer_run(trainer);
out:
    tt_trainer_close(trainer, tt_error_exit_code(rc));
    tt_config_free(cfg);
    return rc;
}

int tt_command_train(int argc, char **argv)
{
    struct tt_args *args = NULL;
    struct tt_comm *comm = NULL;
    int rc = tt_args_parse(argc, argv, options, &args), code;

    if (rc == 0 && tt_args_has(args, "help")) {
        code = print_help();
        tt_args_free(args);
        return code;
    }
    tt_signals_install();
    if (rc == 0)
        rc = tt_kernels_check();
    if (tt_comm_mpi_launched()) {
        int args_rc = rc;

        if ((rc = tt_comm_mpi_new(&comm)) < 0)
            return tt_cli_fail(rc);
        rc = tt_comm_agree(comm, args_rc);
    } else {
        comm = tt_comm_self_new();
    }
    if (comm->rank == 0)
        tt_cli_install_log();
    if (rc == 0)
        rc = train(comm, args, argc, argv);
    code = tt_error_exit_code(rc);
    if (rc == TT_ECOMM) /* a rank is gone or silent: agreeing is over */
        comm->ops->abort(comm, code, tt_error_message());
    if (rc < 0 && comm->rank == 0)
        (void)tt_cli_fail(rc);
    tt_comm_free(comm);
    tt_args_free(args);
    return code;
}
