/* SPDX-License-Identifier: MIT
 *
 * What the recipes of Megatron Bridge's benchmarks say, and its tables of their runs do not.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cluster/backtest/runs.h"

static const struct recipe {
    const char *model, *machine;
    bool float8;
    double from, before; /* containers */
    unsigned modules;
    bool graph, overlap;
} recipes[] = {
#define R(model, machine, float8, from, before, modules, graph, overlap) \
    {(model), (machine), (float8), (from), (before), (modules), (graph), (overlap)},
#include "cluster/backtest/recipes.def"
#undef R
};

/* The release that a source names: "container 26.04.01" is 26.0401. The tables of the newest are on one page. */
static double container(const char *source)
{
    const char *at = strcasestr(source, "container ");
    char *end;
    double release, patch = 0;

    if (!at)
        return strcasestr(source, "performance-summary.md") ? 26.08 : 0;
    release = strtod(at + strlen("container "), &end);
    if (*end == '.')
        patch = strtod(end + 1, NULL);
    return release + patch / 10000;
}

int tt_cluster_as_in_recipes(const struct tt_csv *csv, int row, struct tt_cluster_run *run)
{
    struct tt_cluster_job *job = &run->job;
    const char *source = tt_csv_get(csv, row, "source"), *name = tt_csv_get(csv, row, "model");
    double devices = job->machine->number[TT_M_DEVICES].value, release = container(source) + 1e-6;
    bool graph = release >= 26.06 && job->float8 && devices > 8;

    if (!(job->shape.experts > 0) || !(strcasestr(source, "Megatron Bridge") || strcasestr(source, "Megatron-Bridge")))
        return 0;
    job->balanced = true;
    job->expert_overlap = job->pp > 1 && job->ep * job->tp > devices;
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        const struct recipe *r = &recipes[i];

        if (strcasecmp(r->model, name) != 0 || strncmp(job->machine->name, r->machine, strlen(r->machine)) != 0 ||
            r->float8 != job->float8 || release < r->from || release >= r->before)
            continue;
        job->expert_overlap = r->overlap;
        graph = r->graph;
        if (!run->ac_stated && r->modules) {
            job->again = TT_AGAIN_MODULES;
            job->again_modules = r->modules;
        }
    }
    if (graph && !*tt_csv_get(csv, row, "stack"))
        return tt_cluster_stack_find("megatron-bridge-2026", &job->stack);
    return 0;
}
