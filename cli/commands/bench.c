/* SPDX-License-Identifier: MIT
 *
 * titan bench: command line, communicator, output.
 */
#include "cli/measure/bench.h"

#include <float.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/os/file.h"

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"only", NULL, "PART,...", "parts to measure: sgemm, memory, step, ops, collectives, storage (default: all)"},
    {"seconds", NULL, "S", "about how long to measure, in seconds (default: 20)"},
    {"save", NULL, "FILE", "write the machine file that plan, estimate, tune and the planned scheduler read"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: [mpirun -n N] titan bench [--only PART,...] [--save machine.json] [--config FILE]... "
    "[--section.key=value]...\n\n"
    "Measures this machine: matrix products, memory, one step of the configured model\n"
    "with its time by parts, the ops of small models, the storage of dump_folder and, under mpirun,\n"
    "the collectives. Without --config: the model of the built-in quick run. Leaves no files but\n"
    "that of --save.\n\n";

static const char sections[] = "a list of sgemm, memory, step, ops, collectives, storage";

static int read_only(const char *text, bool wanted[TT_BENCH_SECTIONS])
{
    static const char *const names[TT_BENCH_SECTIONS] = {"sgemm", "memory", "step", "ops", "collectives", "storage"};
    const char *at = text;

    for (int s = 0; s < TT_BENCH_SECTIONS; s++)
        wanted[s] = !text;
    if (text && !*text)
        return tt_fail(TT_EUSAGE, "bench: --only names nothing\nhelp: %s", sections);
    while (at && *at) {
        size_t size = strcspn(at, ",");
        int found = TT_NONE;

        for (int s = 0; s < TT_BENCH_SECTIONS; s++)
            if (strlen(names[s]) == size && strncmp(names[s], at, size) == 0)
                found = s;
        if (found == TT_NONE)
            return tt_fail(TT_EUSAGE, "bench: --only '%.*s' cannot be measured\nhelp: %s", (int)size, at, sections);
        wanted[found] = true;
        at += size + (at[size] == ',');
    }
    return 0;
}

static int bench(struct tt_comm *comm, void *args)
{
    struct tt_bench b = {.args = args, .seconds = 20.0};
    const char *save = tt_args_last(args, "save");
    int rc = read_only(tt_args_last(args, "only"), b.wanted), saved = 0;

    if (rc == 0)
        rc = tt_cli_real("bench", args, "seconds", DBL_TRUE_MIN, 86400.0,
                         "a number of seconds, above 0 and at most a day", &b.seconds);
    b.fewest = b.seconds < 1.0 ? 1 : 3;
    if (rc == 0 && save && !(b.wanted[TT_BENCH_SGEMM] && b.wanted[TT_BENCH_MEMORY]))
        rc = tt_fail(TT_EUSAGE, "bench: --save needs sgemm and memory\nhelp: name them in --only too");
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_bench_run(&b, comm));
    if (comm->rank != 0)
        goto out;
    if (save) {
        json_t *machine = tt_bench_machine_json(&b);

        saved = tt_json_save(save, machine);
        if (saved == 0 && b.others)
            tt_warn("bench: %s; '%s' says that its rates are too low: measure again when the machine is idle", b.others,
                    save);
        json_decref(machine);
    }
    if (tt_args_has(args, "json")) { /* print the results even if they cannot be saved */
        rc = tt_cli_print_json(tt_bench_json(&b));
    } else {
        tt_bench_print(&b);
        if (save && saved == 0)
            tt_print("\n%s: use it with --parallelism.machine_file=%s\n", save, save);
        rc = tt_cli_finish();
    }
    rc = saved < 0 ? saved : rc;
out:
    rc = tt_config_locate(b.cfg, rc);
    tt_bench_release(&b);
    return rc;
}

const struct tt_command tt_command_bench = {
    .name = "bench",
    .arguments = "[--only PART,...] [--save FILE] [overrides]",
    .summary = "measure this machine and one step of a model",
    .usage = usage,
    .options = options,
    .run_ranks = bench,
};
