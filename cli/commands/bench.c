/* SPDX-License-Identifier: MIT
 *
 * titan bench: command line, communicator, output.
 */
#include "cli/measure/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/os/file.h"

const struct tt_option tt_bench_options[] = {
    TT_OPTION_CONFIG,
    {"only", NULL, "PART,...", "parts to measure: sgemm, memory, step, ops, collectives, storage (default: all)"},
    {"seconds", NULL, "S", "about how long to measure, in seconds (default: 20)"},
    {"save", NULL, "FILE", "write the machine file that plan, estimate, tune and the planned engine read"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: [mpirun -n N] titan bench [--only PART,...] [--save machine.json] [--config FILE]... "
    "[--section.key=value]...\n\n"
    "Measures this machine: matrix products, memory, one step of the configured model\n"
    "with its time by parts, the ops of small models, under mpirun the collectives, and the storage\n"
    "of dump_folder. "
    "Without --config: the model of the built-in quick run. Leaves no files but --save's.\n\n";

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

static int read_seconds(const struct tt_args *args, double *seconds)
{
    const char *text = tt_args_last(args, "seconds");
    char *end = NULL;

    *seconds = 20.0;
    if (!text)
        return 0;
    *seconds = strtod(text, &end);
    if (end == text || *end || !(*seconds > 0.0) || *seconds > 86400.0)
        return tt_fail(TT_EUSAGE, "bench: --seconds '%s' is not a number of seconds, above 0 and at most a day", text);
    return 0;
}

static int read_command(const struct tt_args *args, struct tt_bench *bench)
{
    int rc = 0;

    TT_TRY(read_only(tt_args_last(args, "only"), bench->wanted));
    TT_TRY(read_seconds(args, &bench->seconds));
    bench->fewest = bench->seconds < 1.0 ? 1 : 3;
    if (tt_args_has(args, "save") && !(bench->wanted[TT_BENCH_SGEMM] && bench->wanted[TT_BENCH_MEMORY]))
        rc = tt_fail(TT_EUSAGE, "bench: --save needs sgemm and memory\nhelp: name them in --only too");
    if (rc == 0)
        rc = tt_kernels_check();
out:
    return rc;
}

/* Prints the results even if they cannot be saved. */
static int report(const struct tt_bench *bench)
{
    const char *save = tt_args_last(bench->args, "save");
    json_t *machine;
    int rc = 0, code;

    if (save) {
        machine = tt_bench_machine_json(bench);
        rc = tt_json_save(save, machine);
        json_decref(machine);
    }
    if (tt_args_has(bench->args, "json")) {
        code = tt_cli_print_json(tt_bench_json(bench));
    } else {
        tt_bench_print(bench);
        if (save && rc == 0)
            tt_print("\n%s: use it with --parallelism.machine_file=%s\n", save, save);
        code = tt_cli_finish();
    }
    return rc < 0 ? rc : code;
}

static int bench(struct tt_comm *comm, void *args)
{
    struct tt_bench b = {.args = args};
    int rc = read_command(args, &b);

    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_bench_run(&b, comm));
    if (comm->rank == 0)
        rc = report(&b);
out:
    rc = tt_config_locate(b.cfg, rc);
    tt_bench_release(&b);
    return rc;
}

int tt_command_bench(int argc, char **argv)
{
    return tt_cli_run_job(argc, argv, usage, tt_bench_options, bench);
}
