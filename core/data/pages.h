/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_PAGES_H
#define TT_DATA_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/data/table.h"

/** The types in which Parquet stores values; GROUP stands for a column that consists of columns. */
enum tt_parquet_type {
    TT_PARQUET_GROUP = -1,
    TT_PARQUET_BOOLEAN,
    TT_PARQUET_INT32,
    TT_PARQUET_INT64,
    TT_PARQUET_INT96,
    TT_PARQUET_FLOAT,
    TT_PARQUET_DOUBLE,
    TT_PARQUET_BYTE_ARRAY,
    TT_PARQUET_FIXED
};

/* A run-length or bit-packed sequence of numbers. */
struct tt_pages_runs {
    const uint8_t *at, *end;
    int width;
    uint32_t value; /* of the run */
    uint64_t left;  /* in the run */
    bool is_packed;
    uint64_t bit; /* of the next packed number, after `at` */
};

/* Differences in blocks of packed numbers (DELTA_BINARY_PACKED). */
struct tt_pages_deltas {
    const uint8_t *at, *end;
    uint64_t block, n_parts, part_size; /* values of a block, its parts, values of a part */
    uint64_t left;
    uint64_t value, least;  /* the last value; the least difference of the block */
    const uint8_t *widths;  /* of the block's parts */
    uint64_t part, in_part; /* the present part, and how many values of it are left */
    uint64_t bit;
    bool is_first;
};

struct tt_pages_value {
    const uint8_t *bytes;
    size_t size;
};

/**
 * The values of a column that does not consist of columns, read from a row group page by page. The caller zero-
 * initialises it, sets the first members, begins every row group, and releases it.
 */
struct tt_pages {
    const struct tt_table *table;
    const char *name;       /* of the column */
    int64_t type;           /* enum tt_parquet_type */
    int rep_most, def_most; /* the levels of a value that is present */
    /* the chunk */
    int64_t codec;                      /* by Parquet's number */
    int64_t n_values;                   /* of the chunk, with nulls, that are left */
    const uint8_t *at, *end;            /* the rest of the chunk */
    const uint8_t *page_at;             /* the present page, for messages */
    struct tt_table_buffer page, words; /* unpacked: the present page, the dictionary */
    uint32_t *word;                     /* where the values of the dictionary begin; the end of the last */
    size_t word_cap, n_words;
    /* the page */
    int64_t in_page; /* values, with nulls, that are left */
    int64_t encoding;
    struct tt_pages_runs reps, defs, index;
    struct tt_pages_deltas lengths, prefixes;
    struct tt_pages_value rest; /* of the page's values */
    unsigned bit;               /* of plain booleans */
    struct tt_text joined;      /* a value that is made of a prefix and a suffix */
    uint64_t number_value;
    /* the next value */
    bool is_loaded;
    uint32_t rep, def;
};

/**
 * Begins a column chunk.
 *   codec      its compression, by Parquet's number
 *   n_values   of the chunk, with nulls
 *   begin      its first page; size: of all pages, which lie in the file
 */
void tt_pages_begin(struct tt_pages *pages, int64_t codec, int64_t n_values, const uint8_t *begin, size_t size);
void tt_pages_release(struct tt_pages *pages);

/** Whether no value is left in the chunk. */
bool tt_pages_are_used(const struct tt_pages *pages);

/** Reads the levels of the next value: pages->rep and pages->def. Calling it again changes nothing. */
int tt_pages_load(struct tt_pages *pages) TT_MUST_CHECK;

/** Goes beyond the next value, whose levels must be loaded. */
void tt_pages_pass(struct tt_pages *pages);

/**
 * Takes the next value, which must be present (pages->def is def_most). It is valid until the next call for these
 * pages. Numbers are little-endian and have 4 or 8 bytes.
 */
int tt_pages_take(struct tt_pages *pages, struct tt_pages_value *ret_value) TT_MUST_CHECK;

/** TT_EDATA with the place of the present page. */
int tt_pages_fail(const struct tt_pages *pages, const char *what);

#endif
