/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_WATCH_HISTORY_H
#define TT_CLI_WATCH_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/json.h"

/**
 * The contents of metrics.jsonl, for the commands that look at runs. The file is read as a stream, and only
 * numbers are kept, so it may be large.
 *
 * Later records win: if a run went back to step N and trained on, the older records of later steps are dropped. An
 * incomplete last line is ignored. Unknown records and fields do no harm; every numeric field is a column.
 */

/* The place of a record in the file. */
struct tt_line_place {
    int64_t at, bytes;
};

/** Numbers by step, in ascending order of steps. A number that is missing or null in a record is NaN. */
struct tt_table {
    int64_t n, cap;
    int64_t *step;
    int n_columns;
    char **name;                 /* names of the columns, in the order in which they appeared */
    double **column;             /* [column][row]; each is NULL if only places are kept */
    struct tt_line_place *place; /* one per row, if only places are kept; else NULL */
};

struct tt_history {
    char *path;                         /* of metrics.jsonl */
    char *folder;                       /* of the run */
    struct tt_table steps, validations; /* records of type "step" and "validate" */
    json_t *run, *end;                  /* the newest start, and the end that followed it; NULL: there is none */
    json_t *moved;     /* since then, the newest decision about the last step (lr_scheduler.finish_by) */
    int64_t first_row; /* the first row of steps that the newest start has trained */
    /* numbers of records; failed_saves and notes count only since the newest start */
    int64_t starts, failed_saves, notes;
    char *last_failed_save, *last_note; /* the text of the last such record; NULL: there is none */
    double last_sec;                    /* when the last record was written, since 1970; 0: unknown */

    /* keep only the places of rows; their numbers are read again when they are needed (tt_history_row) */
    bool only_places;
    struct tt_line_place line; /* the line that is being taken */

    int64_t tail_bytes; /* steps and validations further from the end of the file are skipped; 0: none */
    int64_t offset;     /* where the unread part begins */
    uint64_t inode;
    int64_t lines, bad_lines, first_bad;
    int64_t superseded_after; /* steps after this one are dropped when the next step comes; -1: none */
};

/**
 * Finds the run to which `given` leads: `given` is its folder, its metrics.jsonl, or a folder with a single run below
 * it. TT_EDATA: there is no run, or there are several. Reads no records yet.
 */
int tt_history_open(const char *given, struct tt_history *ret_history) TT_MUST_CHECK;

/**
 * Reads the records that were appended since the last call, or all records if the file was replaced. TT_EDATA: no line
 * is a record.
 */
int tt_history_read(struct tt_history *history) TT_MUST_CHECK;

/**
 * Reads a whole run: open, read, and a warning about lines that are not records.
 *   only_places  as in struct tt_history: a run of any length then takes little memory
 */
int tt_history_load(const char *given, bool only_places, struct tt_history *ret_history) TT_MUST_CHECK;

/**
 * Reads the numbers of a row of which only the place was kept: ret_values gets a number for each column. fd: the file.
 */
int tt_history_row(const struct tt_history *history, int fd, const struct tt_table *table, int64_t row,
                   double *ret_values) TT_MUST_CHECK;
void tt_history_release(struct tt_history *history);

/** A column by its name; NULL: no record has that field. */
const double *tt_table_column(const struct tt_table *table, const char *name);

/** The validation set whose loss a column contains ("loss/NAME"); NULL: the column is not such a loss. */
const char *tt_table_set_name(const char *column);

/** The first row whose step is at least this one; n: there is none. */
int64_t tt_table_find(const struct tt_table *table, int64_t step);

/* --- runs below a folder --- */

/**
 * The runs of a folder of runs: their folders, sorted by path. A folder holds a run if it contains metrics.jsonl or
 * run.yaml. Zero-initialise, and release when done.
 */
struct tt_runs {
    char **folder;
    int n, cap;
};

/**
 * Adds the runs up to three levels below a folder, except runs inside another run, and links to runs that are listed
 * anyway. A path that is not a folder has no runs. Warns of folders that cannot be read.
 */
int tt_runs_add_below(const char *folder, struct tt_runs *runs) TT_MUST_CHECK;

/**
 * Adds the runs for each of n paths that the user gave: the path itself if it holds a run, otherwise the runs below it.
 * If there is no run, adds the path as it is, and its reader reports the error. Without paths, adds the runs of
 * ./outputs.
 */
int tt_runs_find(int n, const char *const *given, struct tt_runs *runs) TT_MUST_CHECK;

void tt_runs_release(struct tt_runs *runs);

#endif
