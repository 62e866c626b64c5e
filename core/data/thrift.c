/* SPDX-License-Identifier: MIT
 *
 * Reads Thrift's compact protocol, in which Parquet writes its metadata.
 */
#include "core/data/thrift.h"

enum { DEEPEST = 32 };

static int fail_end(const struct tt_thrift *t)
{
    return tt_table_fail(t->table, t->at, "the metadata ends early");
}

static int read_varint(struct tt_thrift *t, uint64_t *ret)
{
    uint64_t x = 0;

    for (int shift = 0; shift < 64; shift += 7) {
        if (t->at == t->end)
            return fail_end(t);
        x |= (uint64_t)(*t->at & 0x7f) << shift;
        if (*t->at++ < 0x80) {
            *ret = x;
            return 0;
        }
    }
    return tt_table_fail(t->table, t->at, "a number of the metadata is too long");
}

static int read_integer(struct tt_thrift *t, int64_t *ret)
{
    uint64_t x = 0;
    int rc = read_varint(t, &x);

    *ret = (int64_t)(x >> 1) ^ -(int64_t)(x & 1);
    return rc;
}

int tt_thrift_next(struct tt_thrift *t, struct tt_thrift_field *f)
{
    unsigned byte;
    int rc = 0;

    if (t->at == t->end)
        return fail_end(t);
    byte = *t->at++;
    f->type = byte & 15;
    if (f->type == TT_THRIFT_STOP)
        return 0;
    if (byte >> 4)
        f->id += byte >> 4;
    else
        rc = read_integer(t, &f->id);
    if (rc == 0 && (f->id < 0 || f->id > INT16_MAX))
        rc = tt_table_fail(t->table, t->at, "a field of the metadata has the number %lld", (long long)f->id);
    return rc;
}

int tt_thrift_list(struct tt_thrift *t, int *ret_type, uint64_t *ret_n)
{
    int rc = 0;

    if (t->at == t->end)
        return fail_end(t);
    *ret_type = *t->at & 15;
    *ret_n = *t->at++ >> 4;
    if (*ret_n == 15)
        TT_TRY(read_varint(t, ret_n));
    if (*ret_n > (size_t)(t->end - t->at)) /* an item takes a byte or more */
        rc = fail_end(t);
out:
    return rc;
}

int tt_thrift_binary(struct tt_thrift *t, const char **ret_text, size_t *ret_size)
{
    uint64_t n = 0;
    int rc = read_varint(t, &n);

    if (rc == 0 && n > (size_t)(t->end - t->at))
        rc = fail_end(t);
    if (rc < 0)
        return rc;
    *ret_text = (const char *)t->at;
    *ret_size = (size_t)n;
    t->at += n;
    return 0;
}

static int skip(struct tt_thrift *t, int type, int depth)
{
    struct tt_thrift_field f = {0};
    const char *text;
    size_t size;
    uint64_t n = 0;
    int64_t number;
    int rc = 0, item = 0, value = 0;

    if (depth > DEEPEST)
        return tt_table_fail(t->table, t->at, "the metadata is nested too deeply");
    switch (type) {
    case TT_THRIFT_TRUE:
    case TT_THRIFT_FALSE:
        return 0;
    case TT_THRIFT_BYTE:
        size = 1;
        break;
    case TT_THRIFT_I16:
    case TT_THRIFT_I32:
    case TT_THRIFT_I64:
        return read_integer(t, &number);
    case TT_THRIFT_DOUBLE:
        size = 8;
        break;
    case TT_THRIFT_BINARY:
        return tt_thrift_binary(t, &text, &size);
    case TT_THRIFT_LIST:
    case TT_THRIFT_SET:
        TT_TRY(tt_thrift_list(t, &item, &n));
        item = item == TT_THRIFT_TRUE || item == TT_THRIFT_FALSE ? TT_THRIFT_BYTE
                                                                 : item; /* a boolean takes a byte in a list */
        for (uint64_t i = 0; i < n; i++)
            TT_TRY(skip(t, item, depth + 1));
        return 0;
    case TT_THRIFT_MAP:
        TT_TRY(read_varint(t, &n));
        if (!n)
            return 0;
        if (n > (size_t)(t->end - t->at))
            return fail_end(t);
        item = *t->at >> 4;
        value = *t->at++ & 15;
        for (uint64_t i = 0; i < n; i++) {
            TT_TRY(skip(t, item <= TT_THRIFT_FALSE ? TT_THRIFT_BYTE : item, depth + 1));
            TT_TRY(skip(t, value <= TT_THRIFT_FALSE ? TT_THRIFT_BYTE : value, depth + 1));
        }
        return 0;
    case TT_THRIFT_STRUCT:
        for (;;) {
            TT_TRY(tt_thrift_next(t, &f));
            if (f.type == TT_THRIFT_STOP)
                return 0;
            TT_TRY(skip(t, f.type, depth + 1));
        }
    default:
        return tt_table_fail(t->table, t->at, "a field of the metadata has the unknown type %d", type);
    }
    if ((size_t)(t->end - t->at) < size)
        return fail_end(t);
    t->at += size;
out:
    return rc;
}

int tt_thrift_skip(struct tt_thrift *thrift, int type)
{
    return skip(thrift, type, 0);
}

int tt_thrift_want(const struct tt_thrift *t, int type, int wanted)
{
    return type == wanted
               ? 0
               : tt_table_fail(t->table, t->at, "a field of the metadata has the type %d, wanted %d", type, wanted);
}

int tt_thrift_number(struct tt_thrift *t, int type, int64_t low, int64_t high, int64_t *ret)
{
    int rc = 0;

    if (type != TT_THRIFT_I16 && type != TT_THRIFT_I32 && type != TT_THRIFT_I64)
        return tt_thrift_want(t, type, TT_THRIFT_I64);
    TT_TRY(read_integer(t, ret));
    if (*ret < low || *ret > high)
        rc = tt_table_fail(t->table, t->at, "a number of the metadata is %lld, wanted %lld to %lld", (long long)*ret,
                           (long long)low, (long long)high);
out:
    return rc;
}
