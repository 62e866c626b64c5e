/* SPDX-License-Identifier: MIT
 *
 * `titan plan`: the program that a rank of a job of any size would run, without starting a rank.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/plan/view.h"
#include "core/base/mem.h"
#include "core/config/args.h"
#include "trainer/job/job.h"

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"ranks", NULL, "N", "ranks of the job (default: 1)"},
    {"rank", NULL, "R", "the rank whose program is shown (default: 0)"},
    {"instructions", NULL, NULL, "list every instruction"},
    {"checkpoint", NULL, NULL, "list the files that a checkpoint writes, for every save policy"},
    {"svg", NULL, "FILE", "write a picture: memory over instructions, compute against communication over time"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan plan [--config FILE]... --ranks N [--rank R] [--section.key=value]...\n\n"
    "Shows the training step of one rank of a job: units, collectives, memory, predicted time. Starts\n"
    "no ranks. Without --config: the built-in quick run.\n\n";

static int plan(const struct tt_args *args)
{
    struct tt_plan_view view = {.instructions = tt_args_has(args, "instructions"),
                                .checkpoint = tt_args_has(args, "checkpoint")};
    struct tt_config *cfg = NULL;
    int64_t ranks = 1, rank = 0;
    int threads, rc = 0;

    tt_cli_install_log(); /* shows notes about keys that have no effect */
    TT_TRY(tt_cli_load_config("plan", args, &cfg));
    view.cfg = cfg;
    TT_TRY(tt_cli_count("plan", args, "ranks", 1, TT_MOST_RANKS, &ranks));
    TT_TRY(tt_cli_count("plan", args, "rank", 0, TT_MOST_RANKS, &rank));
    if (rank >= ranks) {
        rc = tt_fail(TT_EUSAGE,
                     "plan: --rank %" PRId64 " of %" PRId64 " ranks\nhelp: ranks are counted from 0: --rank %" PRId64
                     " is the last of them",
                     rank, ranks, ranks - 1);
        goto out;
    }
    view.rank = (int)rank;
    threads = tt_job_threads(cfg, (int)ranks);
    TT_TRY(tt_job_init(cfg, (int)ranks, threads, tt_job_memory_limit(cfg, tt_job_ranks_on_host((int)ranks, threads)),
                       &view.job));
    tt_cli_note_idle(cfg, view.job.model);
    TT_TRY(tt_job_engine_alone(cfg, &view.job, view.rank, &view.engine));
    tt_summary_init(view.engine, &view.summary);
    view.machine = view.job.engine.machine;
    tt_cost_simulate(&view.machine, tt_engine_program(view.engine), &view.time);
    TT_TRY(tt_job_predict(&view.job, &view.machine, view.engine, view.rank, &view.all));
    if (view.checkpoint || tt_args_has(args, "json"))
        TT_TRY(tt_plan_checkpoint_make(&view));
    if (tt_args_last(args, "svg"))
        TT_TRY(tt_plan_svg(&view, tt_args_last(args, "svg")));
    if (tt_args_has(args, "json"))
        rc = tt_cli_print_json(tt_plan_json(&view));
    else
        tt_plan_print(&view);
out:
    rc = tt_config_locate(cfg, rc);
    tt_plan_checkpoint_release(&view);
    tt_job_prediction_release(&view.all);
    tt_timeline_release(&view.time);
    tt_summary_release(&view.summary);
    tt_engine_free(view.engine);
    tt_job_release(&view.job);
    tt_config_free(cfg);
    return rc;
}

const struct tt_command tt_command_plan = {
    .name = "plan",
    .arguments = "[--config FILE]... --ranks N [--rank R]",
    .summary = "the step of one rank: units, collectives, memory, time",
    .usage = usage,
    .options = options,
    .run = plan,
};
