/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_TABLE_H
#define TT_DATA_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"

/**
 * Tables in Parquet's and Arrow's formats, read row by row: either the text of one column, or some columns as an object
 * of JSON, as they would be on a line of JSON lines. Memory holds a page and a dictionary of each column that is read
 * (Parquet), or the compressed buffers of these columns in a batch (Arrow), and a row.
 */
struct tt_row {
    int64_t number;   /* from 1 */
    const char *text; /* NULL: the text is null. Not checked to be UTF-8 */
    size_t size;
    size_t used; /* bytes of the file before the row's place, for reports of progress */
};

struct tt_table {
    const char *name; /* of the file, for messages */
    const uint8_t *bytes;
    size_t size;
    const char *column;  /* whose text is a row; NULL: objects */
    const char *columns; /* the columns of objects: "a|b|c"; those that are missing are left out */
    int (*fn)(void *arg, const struct tt_row *row); /* an error ends the reading */
    void *arg;
};

/** Calls table->fn for every row in order. TT_EDATA names the file, and the byte or the column. */
int tt_parquet_each(const struct tt_table *table) TT_MUST_CHECK;
int tt_arrow_each(const struct tt_table *table) TT_MUST_CHECK;

/* ---- for parquet.c and arrow.c ---- */

/** Limits of a page or a buffer that is unpacked, of a row as an object, and of the number of columns. */
enum { TT_TABLE_UNPACK_MOST = 1 << 30, TT_TABLE_ROW_MOST = 128 << 20, TT_TABLE_COLUMNS_MOST = 1 << 16 };

/** TT_EDATA for damage; `at`, a place in the bytes, becomes the message's byte. */
int tt_table_fail(const struct tt_table *table, const uint8_t *at, const char *fmt, ...) TT_PRINTF(3, 4);

/** Whether a column of this name is read. */
bool tt_table_wants(const struct tt_table *table, const char *name);

/** A column of the file, for messages about the columns. */
struct tt_table_column {
    const char *name;
    bool is_text;
    const char *type; /* such as "a list" */
};

/** Checks that the wanted columns exist; the message names the n columns of the file. */
int tt_table_check(const struct tt_table *table, const struct tt_table_column *column, int n) TT_MUST_CHECK;

/** TT_EDATA for a type or a feature that titan does not read. */
int tt_table_refuse(const struct tt_table *table, const char *column, const char *what);

/** Adds a string or a number of JSON. */
void tt_table_add_string(struct tt_text *row, const char *text, size_t size);
void tt_table_add_integer(struct tt_text *row, int64_t value);
void tt_table_add_real(struct tt_text *row, double value);

/** Makes room for `size` bytes in a buffer that is kept; TT_EDATA if there are more than TT_TABLE_UNPACK_MOST. */
struct tt_table_buffer {
    uint8_t *bytes;
    size_t cap;
};
int tt_table_reserve(const struct tt_table *table, const uint8_t *at, struct tt_table_buffer *buffer,
                     uint64_t size) TT_MUST_CHECK;

#endif
