/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_SCREEN_H
#define TT_CLI_RUN_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "core/base/text.h"

/**
 * The terminal that shows this process's output, if any. Everything printed here is made printable by core/base/utf8.h,
 * so names and values from files cannot control the terminal.
 */

/**
 * The number of columns of the terminal that standard output or standard error (fd) goes to; 0: it goes to a file or a
 * pipe, where lines may have any length. Under mpirun, the result is for mpirun's own output, through which the rank's
 * output passes. The variable TITAN_COLUMNS takes precedence; supervise.c sets it for ranks whose output passes
 * through pipes.
 */
int tt_screen_columns(int fd);

/**
 * Prints text, and adds it to console.log. Lines longer than columns (0: no limit) are broken at a space and continue
 * after `indent` spaces.
 */
void tt_screen_put(FILE *file, const char *text, int columns, int indent);

/** The same for the screen only, and for console.log only. */
void tt_screen_show(FILE *file, const char *text, int columns, int indent);
void tt_screen_log(const char *text);

/**
 * Whether standard error can show lines that are rewritten in place: it is a terminal that can do that, and mpirun does
 * not mark or copy its lines. Call it before the first tt_screen_live, which otherwise does nothing.
 */
bool tt_screen_live_begin(void);

/**
 * Shows text, cut at the width of the terminal, as a live line: the next one replaces it, and it disappears before
 * anything else is printed (see the end of this file). console.log does not get it. A process in the background of its
 * terminal shows no such line. For one thread only.
 */
void tt_screen_live(const char *text);

/** Prints on standard output. */
void tt_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** The same, broken at the width of the terminal; lines continue after `indent` spaces. */
void tt_print_broken(int indent, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Prints a message on standard error, broken at the width of the terminal. */
void tt_screen_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- streams --- */

/**
 * Ensures that stdout and stderr lose no output. The C library drops its buffer when a signal interrupts a write, or
 * when another program has made the terminal or pipe non-blocking and it is full. Call it at the start of the program,
 * before anything is printed.
 */
void tt_streams_begin(void);

/** Erases the live line, if it is shown. A signal handler may call this. */
void tt_streams_erase_live(void);

/* --- tables --- */

/**
 * A table on standard output that fits the terminal.
 *
 * In a pipe or a file, and on a terminal that is wide enough, the columns have their declared widths. On a narrower
 * terminal
 *   1. each column becomes as narrow as its title and its longest cell,
 *   2. columns that may fold continue on further lines,
 *   3. columns are left out, those with the highest `drop` first; columns with equal numbers go together. A last line
 *      then names the missing columns, and says how to see them.
 *
 * To add a table:
 *   1. Declare its columns, each with its width in a pipe and its `drop`.
 *   2. Describe that order in the manual page of the command.
 *   3. Test it with TITAN_COLUMNS=60. Print long lines beside tables with tt_print_broken. The output in a pipe must
 *      not change.
 */
struct tt_column {
    const char *title;
    int width;  /* width if there is space, with printf's sign; 0: the width of its longest cell */
    bool right; /* right-aligned */
    int gap;    /* spaces before the column */
    int drop;   /* 0: never left out */
    int fold;   /* the width to which it may be narrowed, by breaking its cells at spaces; 0: it does not fold */
};

/* Zero-initialise everything except the columns; release it when done. */
struct tt_columns {
    const struct tt_column *column;
    int n;
    int limit;      /* the column at which tt_columns_rest breaks its text in a pipe; 0: nowhere */
    bool no_titles; /* do not print the titles of the columns */

    struct tt_columns_cell *cell; /* in the order in which they were added */
    int n_cells, cap;
    struct tt_text text; /* of all cells; each ends with 0 */
    int rows, next;      /* next: the column of the next cell in the last row */
};

/** Adds the next cell of the row; after the last column a new row begins. */
void tt_columns_cell(struct tt_columns *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/**
 * Ends the row with a text in place of its remaining columns. The text may have several lines, and is broken at the
 * width of the terminal. gap: spaces before it. An empty text only ends the row; a row without cells is an empty line.
 */
void tt_columns_rest(struct tt_columns *table, int gap, const char *text);

/** Prints the table and releases it; the columns stay. */
void tt_columns_print(struct tt_columns *table);

/** Releases a table that is not printed. */
void tt_columns_release(struct tt_columns *table);

#endif
