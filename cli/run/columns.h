/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_COLUMNS_H
#define TT_CLI_RUN_COLUMNS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/text.h"

/**
 * A table on standard output that fits the terminal.
 *
 * In a pipe or a file, and on a terminal that is wide enough, the columns have the widths that are declared. On a
 * narrower terminal
 *   1. each column becomes as narrow as its title and its longest cell,
 *   2. columns that may fold continue on further lines,
 *   3. columns are left out: the one with the highest `drop` first, those with the same number together.
 * A last line then says which columns are missing and how to see them.
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

/** Adds the next cell of the row; after that of the last column a new row begins. */
void tt_columns_cell(struct tt_columns *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/**
 * Ends the row with a text in place of its remaining columns, which may have several lines and is broken where the
 * terminal ends. gap: spaces before it. An empty text only ends the row.
 */
void tt_columns_rest(struct tt_columns *table, int gap, const char *text);

/** Adds an empty line. */
void tt_columns_space(struct tt_columns *table);

/** Prints the table and releases it; the columns stay. */
void tt_columns_print(struct tt_columns *table);

/** Releases a table that is not printed. */
void tt_columns_release(struct tt_columns *table);

#endif
