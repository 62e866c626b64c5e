/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_BACKTEST_CSV_H
#define TT_CLUSTER_BACKTEST_CSV_H

#include <stddef.h>

#include "core/base/error.h"

/* A table of comma-separated values whose first row names the columns. Zero-initialise; tt_csv_release. */
struct tt_csv {
    char *text;   /* all fields, each ended by 0 */
    char **field; /* n_rows x n_columns, after the names */
    char **name;
    int n_rows, n_columns;
};

/**
 * Reads a table as RFC 4180 has it; `where` names it in messages. Rows with another number of fields than the first:
 * TT_EDATA naming the line.
 */
int tt_csv_parse(const char *text, size_t size, const char *where, struct tt_csv *ret_csv) TT_MUST_CHECK;
void tt_csv_release(struct tt_csv *csv);

/** The column of that name, or -1. */
int tt_csv_column(const struct tt_csv *csv, const char *name);

/** A field, "" where the table lacks the column. */
const char *tt_csv_get(const struct tt_csv *csv, int row, const char *column);

/** A field as a number; `otherwise` if it is empty or no number. */
double tt_csv_number(const struct tt_csv *csv, int row, const char *column, double otherwise);

#endif
