/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_WATCH_RUNS_H
#define TT_CLI_WATCH_RUNS_H

#include "core/base/error.h"

/**
 * The runs of a folder of runs: their folders, in order of their paths. A folder has a run if metrics.jsonl or run.yaml
 * is in it. Zero-initialise, and release when done.
 */
struct tt_runs {
    char **folder;
    int n, cap;
};

/**
 * Adds the runs that are up to three levels below a folder, but not those below another run, nor a link to one of the
 * others. What is not a folder has none. Warns of folders that cannot be read.
 */
int tt_runs_add_below(const char *folder, struct tt_runs *runs) TT_MUST_CHECK;

/**
 * Adds what a user means by a path: the path itself if it has a run, or if no runs are below it (whoever reads it then
 * says what is wrong), else the runs below it.
 */
int tt_runs_add(const char *given, struct tt_runs *runs) TT_MUST_CHECK;

void tt_runs_release(struct tt_runs *runs);

#endif
