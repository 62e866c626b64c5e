/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_THRIFT_H
#define TT_DATA_THRIFT_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/data/table.h"

/**
 * Reads the metadata of a Parquet file, which is a struct of Thrift's compact protocol, field by field:
 *
 *     struct tt_thrift_field f = {0};
 *     for (;;) {
 *         TT_TRY(tt_thrift_next(thrift, &f));
 *         if (f.type == TT_THRIFT_STOP)
 *             break;
 *         read the value of field f.id, or skip it
 *     }
 *
 * Every function returns TT_EDATA, with the file and the byte, if the bytes are damaged.
 */
struct tt_thrift {
    const struct tt_table *table; /* the file, for messages */
    const uint8_t *at, *end;
};

enum tt_thrift_type {
    TT_THRIFT_STOP,
    TT_THRIFT_TRUE,
    TT_THRIFT_FALSE,
    TT_THRIFT_BYTE,
    TT_THRIFT_I16,
    TT_THRIFT_I32,
    TT_THRIFT_I64,
    TT_THRIFT_DOUBLE,
    TT_THRIFT_BINARY,
    TT_THRIFT_LIST,
    TT_THRIFT_SET,
    TT_THRIFT_MAP,
    TT_THRIFT_STRUCT
};

/** A field of a struct; zero-initialise it before the first one. A boolean's type is its value. */
struct tt_thrift_field {
    int type; /* enum tt_thrift_type */
    int64_t id;
};

/** Goes to the next field of a struct, or beyond its end: the type is TT_THRIFT_STOP. */
int tt_thrift_next(struct tt_thrift *thrift, struct tt_thrift_field *field) TT_MUST_CHECK;

/** Fails if the type is not the wanted one. */
int tt_thrift_want(const struct tt_thrift *thrift, int type, int wanted) TT_MUST_CHECK;

/** Reads an integer of any size, which must be from low to high. */
int tt_thrift_number(struct tt_thrift *thrift, int type, int64_t low, int64_t high, int64_t *ret) TT_MUST_CHECK;

/** Reads the type and the number of items of a list, which follow; an item takes at least one byte. */
int tt_thrift_list(struct tt_thrift *thrift, int *ret_type, uint64_t *ret_n) TT_MUST_CHECK;

/** Reads bytes, which stay in the file. */
int tt_thrift_binary(struct tt_thrift *thrift, const char **ret_text, size_t *ret_size) TT_MUST_CHECK;

int tt_thrift_skip(struct tt_thrift *thrift, int type) TT_MUST_CHECK;

#endif
