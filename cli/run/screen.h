/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_SCREEN_H
#define TT_CLI_RUN_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "core/base/text.h"

/**
 * The terminal on which this process's output is shown, if any. Whatever is printed here is shown as core/base/utf8.h
 * says: names and values from files do not steer the terminal.
 */

/**
 * Columns of the terminal that standard output or standard error (fd) reaches; 0: it goes to a file or a pipe, where
 * lines may have any length. Under mpirun, mpirun's own output counts: the rank's output goes through it.
 * TITAN_COLUMNS takes precedence: tt_screen_pass_on sets it for ranks whose output goes through pipes.
 */
int tt_screen_columns(int fd);

/**
 * Replaces the columns and lines by the terminal's (fd); the variables COLUMNS and LINES take precedence.
 * A size that is unknown or below 20 columns or 5 lines leaves its argument unchanged.
 */
void tt_screen_size(int fd, int *columns, int *lines);

/** Tells processes that are started from now on, in the environment, what tt_screen_columns finds here. */
void tt_screen_pass_on(void);

/**
 * Prints text, and adds it to console.log. Lines longer than columns (0: no limit) are broken at a space and continue
 * after `indent` spaces.
 */
void tt_screen_put(FILE *file, const char *text, int columns, int indent);

/** The same for the screen only, and for console.log only. */
void tt_screen_show(FILE *file, const char *text, int columns, int indent);
void tt_screen_log(const char *text);

/**
 * Finds out whether standard error shows lines that are rewritten in place: a terminal that can do that, and not what
 * mpirun marks or copies line by line. Before the first tt_screen_live, which does nothing otherwise.
 */
bool tt_screen_live_begin(void);

/**
 * Shows text, cut where the terminal ends, as a line that the next one replaces and that disappears before anything
 * else is printed (see the end of this file). It is not in console.log. A process in the background of its terminal
 * shows none. For one thread only.
 */
void tt_screen_live(const char *text);

/** Prints on standard output. */
void tt_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** The same, broken where the terminal ends; lines continue after `indent` spaces. */
void tt_print_broken(int indent, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Prints a message on standard error, broken where the terminal ends. */
void tt_screen_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- streams --- */

/**
 * Makes stdout and stderr lose nothing. The C library drops its buffer when a write is interrupted by a
 * signal, or when a terminal or pipe that does not block is full, as it may be if another program has set that. For the
 * start of the program, before anything is printed.
 */
void tt_streams_begin(void);

/** Erases that line, if it is there. A signal handler may call it. */
void tt_streams_erase_live(void);

/* --- tables --- */

/**
 * A table on standard output that fits the terminal.
 *
 * In a pipe or a file, and on a terminal that is wide enough, the columns have the widths that are declared. On a
 * narrower terminal
 *   1. each column becomes as narrow as its title and its longest cell,
 *   2. columns that may fold continue on further lines,
 *   3. columns are left out: the one with the highest `drop` first, those with the same number together.
 * A last line then says which columns are missing and how to see them.
 *
 * To add a table:
 *   1. Its columns, each with its width in a pipe and the order in which it is left out.
 *   2. The order in the manual page of the command.
 *   3. A case at TITAN_COLUMNS=60. Long lines beside tables are printed with tt_print_broken. The output in a pipe
 *      stays the same.
 */
struct tt_column {
    const char *title;
    int width;  /* least width where there is space, as printf's; 0: that of its longest cell */
    bool right; /* aligned to the right */
    int gap;    /* spaces before it */
    int drop;   /* 0: never left out */
    int fold;   /* the width to which it may be narrowed, with its cells broken at spaces; 0: it does not fold */
};

/* Zero-initialise it, but for the columns, and release it when done. */
struct tt_columns {
    const struct tt_column *column;
    int n;
    int limit;      /* where the text of tt_columns_rest is broken in a pipe; 0: nowhere */
    bool no_titles; /* of the columns in the first line */

    struct tt_columns_cell *cell; /* in the order in which they were added */
    int n_cells, cap;
    struct tt_text text; /* of all cells, each with its end */
    int rows, next;      /* next: the column of the next cell in the last row */
};

/** Adds the next cell of the row; after the last column a new row begins. */
void tt_columns_cell(struct tt_columns *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/**
 * Ends the row with a text in place of its remaining columns, which may have several lines and is broken where the
 * terminal ends. gap: spaces before it. An empty text only ends the row, which alone is an empty line.
 */
void tt_columns_rest(struct tt_columns *table, int gap, const char *text);

/** Prints the table and releases it; the columns stay. */
void tt_columns_print(struct tt_columns *table);

/** Releases a table that is not printed. */
void tt_columns_release(struct tt_columns *table);

#endif
