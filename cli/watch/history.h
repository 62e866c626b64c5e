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
 * Later records win: after a run went back to step N and trained again, earlier records of later steps are
 * dropped. A torn last line is ignored. Unknown records and fields do no harm; a field that is a number is a column.
 */

/* Where a record is in the file. */
struct tt_line_place {
    int64_t at, bytes;
};

/** Numbers by step, in ascending order of steps. A number that is missing or null in a record is NaN. */
struct tt_table {
    int64_t n, cap;
    int64_t *step;
    int n_columns;
    char **name;                 /* of each column, in the order in which they appeared */
    double **column;             /* NULL each, if only places are kept */
    struct tt_line_place *place; /* of each row, if only these are kept; else NULL */
};

struct tt_history {
    char *path;                          /* of metrics.jsonl */
    char *folder;                        /* of the run */
    struct tt_table steps, validations;  /* records of type "step" and "validate" */
    json_t *run, *end;                   /* the newest start, and the end that followed it; NULL: none */
    int64_t first_row;                   /* the first row of steps that the newest start has trained */
    int64_t starts, failed_saves, notes; /* numbers of records: starts; of the newest start: the others */
    char *last_failed_save, *last_note;  /* the text of the last one; NULL: none */
    double last_sec;                     /* when the last record was written, since 1970; 0: unknown */

    bool only_places;          /* of rows; their numbers are read again when they are wanted (tt_history_row) */
    struct tt_line_place line; /* that is being taken */

    int64_t tail_bytes; /* steps and validations further from the end of the file are skipped; 0: none are */
    int64_t offset;     /* of what was not read yet */
    uint64_t inode;
    int64_t lines, bad_lines, first_bad;
    int64_t superseded_after; /* steps after it are dropped when the next one comes; -1: nothing is known */
};

/**
 * Finds the run that `given` means: its folder, its metrics.jsonl, or a folder with one run below it. TT_EDATA: there
 * is none, or there are several. Nothing is read yet.
 */
int tt_history_open(const char *given, struct tt_history *ret_history) TT_MUST_CHECK;

/**
 * Reads what was appended since the last call, or all of it if the file was replaced. TT_EDATA: no line is a record.
 */
int tt_history_read(struct tt_history *history) TT_MUST_CHECK;

/**
 * Reads a whole run: open, read, and a warning about lines that are not records.
 *   only_places  as in struct tt_history: a run of any length then takes little memory
 */
int tt_history_load(const char *given, bool only_places, struct tt_history *ret_history) TT_MUST_CHECK;

/** Reads a row again, if only its place is kept: ret_values has a number for each column. fd: of the file. */
int tt_history_row(const struct tt_history *history, int fd, const struct tt_table *table, int64_t row,
                   double *ret_values) TT_MUST_CHECK;
void tt_history_release(struct tt_history *history);

/** A column by its name; NULL: no record has it. */
const double *tt_table_column(const struct tt_table *table, const char *name);

/** The name of the validation set that a column is the loss of ("loss/NAME"); NULL: of none. */
const char *tt_table_set_name(const char *column);

/** The first row with at least this step; n: none has. */
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
 * Adds the runs up to three levels below a folder, without runs below another run and without links to runs that are
 * listed anyway. A path that is not a folder has no runs. Warns of folders that cannot be read.
 */
int tt_runs_add_below(const char *folder, struct tt_runs *runs) TT_MUST_CHECK;

/**
 * Adds what a user means by each of n paths: the path itself if it holds a run, otherwise the runs below it. A path
 * without any run is added as it is, and its reader reports the error. Without a path, adds the runs of ./outputs.
 */
int tt_runs_find(int n, const char *const *given, struct tt_runs *runs) TT_MUST_CHECK;

void tt_runs_release(struct tt_runs *runs);

#endif
