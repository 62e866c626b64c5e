/* SPDX-License-Identifier: MIT
 *
 * Reads Arrow: streams and files of its IPC format, message by message. A file contains a stream, after its name and
 * before an index that is not needed. A message consists of a flatbuffer, which describes it, and a body: the buffers
 * of all columns, one column after the other, and below a column its children.
 */
#include <string.h>

#include "core/base/mem.h"
#include "core/data/reader.h"
#include "core/data/table.h"

/* ---- flatbuffers ---- */

/* Bytes of the metadata that must contain everything to which their offsets lead. */
struct flat {
    const struct tt_table *file;
    const uint8_t *begin, *end;
};

/* A table in a flatbuffer: where it is, and the offsets of its fields. at is NULL if there is no table. */
struct flat_table {
    const struct flat *flat;
    const uint8_t *at, *fields;
    size_t n_fields;
};

static int fail_flat(const struct flat *f, const uint8_t *at)
{
    return tt_table_fail(f->file, at, "the metadata leads out of itself");
}

/* The position that an offset at `at` leads to; n bytes must follow it. */
static int follow(const struct flat *f, const uint8_t *at, size_t n, const uint8_t **ret)
{
    size_t offset = (size_t)(f->end - at) < 4 ? 0 : tt_text_little(at, 4);

    if (!offset || offset > (size_t)(f->end - at) || (size_t)(f->end - at) - offset < n)
        return fail_flat(f, at);
    *ret = at + offset;
    return 0;
}

static int open_table(const struct flat *f, const uint8_t *at, struct flat_table *ret)
{
    int64_t back;
    const uint8_t *fields;
    size_t size;

    if (f->end - at < 4)
        return fail_flat(f, at);
    back = (int32_t)(uint32_t)tt_text_little(at, 4);
    if (back > at - f->begin || at - f->begin - back > f->end - f->begin - 4)
        return fail_flat(f, at);
    fields = at - back;
    size = tt_text_little(fields, 2);
    if (size < 4 || size > (size_t)(f->end - fields))
        return fail_flat(f, at);
    *ret = (struct flat_table){f, at, fields, (size - 4) / 2};
    return 0;
}

/* Where field `id` is, which has n bytes; NULL: it is not there, and has its default. */
static int find(const struct flat_table *t, size_t id, size_t n, const uint8_t **ret)
{
    size_t offset = id < t->n_fields ? tt_text_little(t->fields + 4 + 2 * id, 2) : 0;

    *ret = NULL;
    if (!offset)
        return 0;
    if (offset > (size_t)(t->flat->end - t->at) || (size_t)(t->flat->end - t->at) - offset < n)
        return fail_flat(t->flat, t->at);
    *ret = t->at + offset;
    return 0;
}

static int get_number(const struct flat_table *t, size_t id, size_t n, int64_t *ret)
{
    const uint8_t *at = NULL;
    uint64_t bits;
    int rc = find(t, id, n, &at);

    if (rc < 0 || !at)
        return rc; /* *ret keeps the default */
    bits = tt_text_little(at, n);
    *ret = n == 8 ? (int64_t)bits : (int64_t)(bits << (64 - 8 * n)) >> (64 - 8 * n);
    return 0;
}

/* A member that is a table; at is NULL if it is missing. */
static int get_table(const struct flat_table *t, size_t id, struct flat_table *ret)
{
    const uint8_t *at = NULL;
    int rc = 0;

    *ret = (struct flat_table){.flat = t->flat};
    TT_TRY(find(t, id, 4, &at));
    if (!at)
        return 0;
    TT_TRY(follow(t->flat, at, 4, &at));
    rc = open_table(t->flat, at, ret);
out:
    return rc;
}

/* A vector of n items of `item` bytes, or a string; at is NULL if it is missing. */
static int get_vector(const struct flat_table *t, size_t id, size_t item, const uint8_t **ret_at, size_t *ret_n)
{
    const uint8_t *at = NULL;
    int rc = 0;

    *ret_at = NULL;
    *ret_n = 0;
    TT_TRY(find(t, id, 4, &at));
    if (!at)
        return 0;
    TT_TRY(follow(t->flat, at, 4, &at));
    *ret_n = tt_text_little(at, 4);
    *ret_at = at + 4;
    if (*ret_n > (size_t)(t->flat->end - *ret_at) / item)
        rc = fail_flat(t->flat, at);
out:
    return rc;
}

/* ---- the schema ---- */

/* The numbers of the types in the file. */
enum type {
    T_NONE,
    T_NULL,
    T_INT,
    T_FLOAT,
    T_BINARY,
    T_UTF8,
    T_BOOL,
    T_DECIMAL,
    T_DATE,
    T_TIME,
    T_TIMESTAMP,
    T_INTERVAL,
    T_LIST,
    T_STRUCT,
    T_UNION,
    T_FIXED_BINARY,
    T_FIXED_LIST,
    T_MAP,
    T_DURATION,
    T_LARGE_BINARY,
    T_LARGE_UTF8,
    T_LARGE_LIST,
    T_RUNS,
    T_BINARY_VIEW,
    T_UTF8_VIEW,
    T_LIST_VIEW,
    T_LARGE_LIST_VIEW,
    N_TYPES
};

/*
 * How each type is stored: its name, its number of buffers, and whether titan reads it. -1: it has as many buffers as
 * its batch says; -2: a union, whose buffers depend on its mode.
 */
static const struct {
    const char *name;
    int n_buffers;
    bool is_read, is_text;
} types[N_TYPES] = {
    [T_NONE] = {"nothing", 0, false, false},
    [T_NULL] = {"nulls", 0, true, false},
    [T_INT] = {"integers", 2, true, false},
    [T_FLOAT] = {"numbers", 2, true, false},
    [T_BINARY] = {"bytes", 3, true, true},
    [T_UTF8] = {"text", 3, true, true},
    [T_BOOL] = {"booleans", 2, true, false},
    [T_DECIMAL] = {"decimals", 2, false, false},
    [T_DATE] = {"dates", 2, false, false},
    [T_TIME] = {"times", 2, false, false},
    [T_TIMESTAMP] = {"timestamps", 2, false, false},
    [T_INTERVAL] = {"intervals", 2, false, false},
    [T_LIST] = {"lists", 2, true, false},
    [T_STRUCT] = {"groups of columns", 1, true, false},
    [T_UNION] = {"unions", -2, false, false},
    [T_FIXED_BINARY] = {"bytes of fixed length", 2, false, false},
    [T_FIXED_LIST] = {"lists of fixed length", 1, true, false},
    [T_MAP] = {"maps", 2, true, false},
    [T_DURATION] = {"durations", 2, false, false},
    [T_LARGE_BINARY] = {"bytes", 3, true, true},
    [T_LARGE_UTF8] = {"text", 3, true, true},
    [T_LARGE_LIST] = {"lists", 2, true, false},
    [T_RUNS] = {"runs", 0, false, false},
    [T_BINARY_VIEW] = {"bytes", -1, true, true},
    [T_UTF8_VIEW] = {"text", -1, true, true},
    [T_LIST_VIEW] = {"views of lists", 3, false, false},
    [T_LARGE_LIST_VIEW] = {"views of lists", 3, false, false},
};

struct span {
    const uint8_t *bytes;
    size_t size;
};

/* The values of a field in a batch. */
struct array {
    int64_t length, nulls;
    struct span valid, offsets, data; /* offsets: or views */
    struct span *more;                /* the buffers to which views lead */
    size_t n_more, more_cap;
    struct tt_table_buffer *unpacked; /* memory of buffers that were packed */
    int n_unpacked, unpacked_cap;
    int n_used; /* of the memory, in this batch */
};

/* A column or a member of it; a tree in the order of the file. */
struct node {
    char *name;
    enum type type;
    int64_t bits; /* of an integer or a number */
    bool is_signed;
    int64_t list_size; /* of lists of fixed length */
    int union_buffers;
    int end;         /* the node after the last one below this one */
    bool is_wanted;  /* it, or a column above it, is read */
    bool is_top;     /* a wanted column */
    bool is_indexed; /* stored as indices into a dictionary */
    int64_t dictionary, index_bits;
    bool index_signed;
    bool has_words;
    struct array array, words; /* of this batch; of the dictionary */
};

struct arrow {
    const struct tt_table *table;
    struct node *node;
    int n_nodes, node_cap;
    bool has_schema, is_old; /* is_old: unions have a buffer of nulls */
    int64_t rows;
    struct tt_text row;
};

static void array_release(struct array *a)
{
    for (int i = 0; i < a->n_unpacked; i++)
        tt_free(a->unpacked[i].bytes);
    tt_free(a->unpacked);
    tt_free(a->more);
}

static void arrow_release(struct arrow *a)
{
    for (int i = 0; i < a->n_nodes; i++) {
        tt_free(a->node[i].name);
        array_release(&a->node[i].array);
        array_release(&a->node[i].words);
    }
    tt_free(a->node);
    tt_text_release(&a->row);
}

/* Reads what the flatbuffer says about a type. */
static int read_type(const struct arrow *a, const struct flat_table *field, struct node *n)
{
    struct flat_table type, dictionary, index;
    int64_t number = 0, mode = 0, precision = 0, is_signed = 0;
    int rc = 0;

    TT_TRY(get_number(field, 2, 1, &number));
    if (number <= T_NONE || number >= N_TYPES)
        return tt_table_fail(a->table, field->at, "column '%s' has the unknown type %lld", n->name, (long long)number);
    n->type = (enum type)number;
    TT_TRY(get_table(field, 3, &type));
    if (!type.at)
        return tt_table_fail(a->table, field->at, "column '%s' has no type", n->name);
    if (n->type == T_INT) {
        TT_TRY(get_number(&type, 0, 4, &n->bits));
        TT_TRY(get_number(&type, 1, 1, &is_signed));
        n->is_signed = is_signed != 0;
    } else if (n->type == T_FLOAT) {
        TT_TRY(get_number(&type, 0, 2, &precision));
        n->bits = precision == 1 ? 32 : precision == 2 ? 64 : 16;
    } else if (n->type == T_FIXED_LIST) {
        TT_TRY(get_number(&type, 0, 4, &n->list_size));
    } else if (n->type == T_UNION) {
        TT_TRY(get_number(&type, 0, 2, &mode));
        n->union_buffers = mode == 1 ? 2 : 1;
    }
    if (n->type == T_INT && n->bits != 8 && n->bits != 16 && n->bits != 32 && n->bits != 64)
        return tt_table_fail(a->table, field->at, "column '%s' has integers of %lld bits", n->name, (long long)n->bits);
    if (n->list_size < 0)
        return tt_table_fail(a->table, field->at, "column '%s' has lists of length %lld", n->name,
                             (long long)n->list_size);
    TT_TRY(get_table(field, 4, &dictionary));
    if (!dictionary.at)
        return 0;
    n->is_indexed = true;
    n->index_bits = 32;
    n->index_signed = true;
    TT_TRY(get_number(&dictionary, 0, 8, &n->dictionary));
    TT_TRY(get_table(&dictionary, 1, &index));
    if (index.at) {
        n->index_bits = 0;
        TT_TRY(get_number(&index, 0, 4, &n->index_bits));
        TT_TRY(get_number(&index, 1, 1, &is_signed));
        n->index_signed = is_signed != 0;
    }
    if (n->index_bits != 8 && n->index_bits != 16 && n->index_bits != 32 && n->index_bits != 64)
        rc = tt_table_fail(a->table, field->at, "column '%s' has indices of %lld bits", n->name,
                           (long long)n->index_bits);
out:
    return rc;
}

/* Adds the field and its children. top: whether the column that contains it is read, -1: it is a column itself. */
static int add_field(struct arrow *a, const struct flat_table *field, int top, int depth)
{
    enum { DEEPEST = 32, NAME_MOST = 1024 };
    const uint8_t *name = NULL, *child = NULL;
    size_t n_name = 0, n_children = 0;
    int i = a->n_nodes, rc = 0;
    struct node *n;

    if (depth > DEEPEST || i == TT_TABLE_COLUMNS_MOST)
        return tt_table_fail(a->table, field->at, "there are too many columns, or they are nested too deeply");
    TT_PUSH(a->node, a->n_nodes, a->node_cap) = (struct node){0};
    n = &a->node[i];
    TT_TRY(get_vector(field, 0, 1, &name, &n_name));
    if (n_name > NAME_MOST)
        return tt_table_fail(a->table, field->at, "a column's name has %zu bytes", n_name);
    n->name = tt_strndup(name ? (const char *)name : "", n_name);
    n->is_top = top < 0 && tt_table_wants(a->table, n->name);
    n->is_wanted = n->is_top || top > 0;
    TT_TRY(read_type(a, field, n));
    TT_TRY(get_vector(field, 5, 4, &child, &n_children));
    if ((n->type == T_LIST || n->type == T_LARGE_LIST || n->type == T_FIXED_LIST || n->type == T_MAP) &&
        n_children != 1)
        return tt_table_fail(a->table, field->at, "list '%s' has %zu members", n->name, n_children);
    for (size_t k = 0; k < n_children; k++) {
        struct flat_table table;
        const uint8_t *at = NULL;

        TT_TRY(follow(field->flat, child + 4 * k, 4, &at));
        TT_TRY(open_table(field->flat, at, &table));
        TT_TRY(add_field(a, &table, a->node[i].is_wanted, depth + 1));
    }
    a->node[i].end = a->n_nodes;
out:
    return rc;
}

static int read_schema(struct arrow *a, const struct flat_table *schema)
{
    struct tt_table_column *column = NULL;
    const uint8_t *field = NULL;
    int64_t is_big = 0;
    size_t n_fields = 0;
    int n = 0, rc = 0;

    if (a->has_schema)
        return tt_table_fail(a->table, schema->at, "there are two schemas");
    a->has_schema = true;
    TT_TRY(get_number(schema, 0, 2, &is_big));
    if (is_big)
        return tt_fail(TT_EDATA, "%s: titan does not read Arrow with the bytes of numbers in reverse (big-endian)",
                       a->table->name);
    TT_TRY(get_vector(schema, 1, 4, &field, &n_fields));
    for (size_t k = 0; k < n_fields; k++) {
        struct flat_table table;
        const uint8_t *at = NULL;

        TT_TRY(follow(schema->flat, field + 4 * k, 4, &at));
        TT_TRY(open_table(schema->flat, at, &table));
        TT_TRY(add_field(a, &table, -1, 0));
    }
    column = tt_calloc(n_fields + 1, sizeof *column);
    for (int i = 0; i < a->n_nodes; i = a->node[i].end)
        column[n++] =
            (struct tt_table_column){a->node[i].name, types[a->node[i].type].is_text, types[a->node[i].type].name};
    TT_TRY(tt_table_check(a->table, column, n));
    for (int i = 0; i < a->n_nodes; i++) {
        const struct node *node = &a->node[i];

        if (!node->is_wanted)
            continue;
        if (!types[node->type].is_read || (node->type == T_FLOAT && node->bits == 16))
            TT_TRY(tt_table_refuse(a->table, node->name,
                                   node->type == T_FLOAT ? "numbers of 16 bits" : types[node->type].name));
        if (node->is_indexed && !types[node->type].is_text)
            TT_TRY(tt_table_refuse(a->table, node->name, "dictionaries of anything but text"));
    }
out:
    tt_free(column);
    return rc;
}

/* ---- batches ---- */

/* A batch whose nodes and buffers are taken in order. */
struct batch {
    const struct arrow *arrow;
    const uint8_t *at; /* for messages */
    struct span body;
    int64_t length;
    const uint8_t *node, *buffer, *count; /* the next ones: two numbers of 8 bytes each, and one */
    size_t n_nodes, n_buffers, n_counts;
    int codec; /* enum tt_codec, -1: not packed */
};

static int open_batch(const struct arrow *a, const struct flat_table *t, struct span body, struct batch *b)
{
    struct flat_table compression;
    int64_t codec = 0;
    int rc = 0;

    *b = (struct batch){.arrow = a, .at = t->at, .body = body, .codec = -1};
    TT_TRY(get_number(t, 0, 8, &b->length));
    TT_TRY(get_vector(t, 1, 16, &b->node, &b->n_nodes));
    TT_TRY(get_vector(t, 2, 16, &b->buffer, &b->n_buffers));
    TT_TRY(get_vector(t, 4, 8, &b->count, &b->n_counts));
    TT_TRY(get_table(t, 3, &compression));
    if (compression.at) {
        TT_TRY(get_number(&compression, 0, 1, &codec));
        if (codec != 0 && codec != 1)
            return tt_table_fail(a->table, t->at, "the compression has the unknown number %lld", (long long)codec);
        b->codec = codec ? TT_CODEC_ZSTD : TT_CODEC_LZ4_FRAME;
    }
    if (b->length < 0)
        rc = tt_table_fail(a->table, t->at, "a batch has %lld rows", (long long)b->length);
out:
    return rc;
}

/* Takes the next buffer, and unpacks it if it is wanted. */
static int take_buffer(struct batch *b, struct array *to, struct span *ret)
{
    const struct tt_table *table = b->arrow->table;
    struct tt_table_buffer *memory;
    const char *why;
    uint64_t offset, size;
    int64_t unpacked;
    int rc = 0;

    if (!b->n_buffers)
        return tt_table_fail(table, b->at, "a batch has too few buffers");
    offset = tt_text_little(b->buffer, 8);
    size = tt_text_little(b->buffer + 8, 8);
    b->buffer += 16;
    b->n_buffers--;
    if (!to)
        return 0;
    if (offset > b->body.size || size > b->body.size - offset)
        return tt_table_fail(table, b->at, "a buffer lies outside of the body of its batch");
    *ret = (struct span){b->body.bytes + offset, (size_t)size};
    if (b->codec < 0 || !size)
        return 0;
    if (size < 8)
        return tt_table_fail(table, ret->bytes, "a packed buffer has %llu bytes", (unsigned long long)size);
    unpacked = (int64_t)tt_text_little(ret->bytes, 8);
    *ret = (struct span){ret->bytes + 8, ret->size - 8};
    if (unpacked == -1)
        return 0;
    if (to->n_used == to->n_unpacked)
        TT_PUSH(to->unpacked, to->n_unpacked, to->unpacked_cap) = (struct tt_table_buffer){0};
    memory = &to->unpacked[to->n_used++];
    if (b->codec == TT_CODEC_LZ4_FRAME && unpacked / 260 > (int64_t)size)
        return tt_table_fail(table, ret->bytes, "a buffer cannot unpack to so many bytes");
    TT_TRY(tt_table_reserve(table, ret->bytes, memory, (uint64_t)unpacked));
    why = tt_codec_unpack((enum tt_codec)b->codec, ret->bytes, ret->size, memory->bytes, (size_t)unpacked);
    if (why)
        return tt_table_fail(table, ret->bytes, "a packed buffer: %s", why);
    *ret = (struct span){memory->bytes, (size_t)unpacked};
out:
    return rc;
}

static bool has_wide_offsets(const struct node *n)
{
    return n->type == T_LARGE_UTF8 || n->type == T_LARGE_BINARY || n->type == T_LARGE_LIST;
}

static bool is_view(const struct node *n)
{
    return n->type == T_UTF8_VIEW || n->type == T_BINARY_VIEW;
}

/* Checks that the buffers are as long as the array; reading a value checks where its offsets lead. */
static int check_array(const struct batch *b, const struct node *n, const struct array *a, bool is_index)
{
    uint64_t length = (uint64_t)a->length, bits = 0;
    size_t offset = is_view(n) ? 16 : has_wide_offsets(n) ? 8 : 4;

    if (is_index)
        bits = (uint64_t)n->index_bits;
    else if (n->type == T_INT || n->type == T_FLOAT)
        bits = (uint64_t)n->bits;
    else if (n->type == T_BOOL)
        bits = 1;
    if (length > (uint64_t)1 << 48)
        return tt_table_fail(b->arrow->table, b->at, "column '%s' has %lld values in a batch", n->name,
                             (long long)a->length);
    if (a->nulls && n->type != T_NULL && a->valid.size < (length + 7) / 8)
        return tt_table_fail(b->arrow->table, b->at, "the buffer of the nulls of column '%s' is too short", n->name);
    if (a->data.size < (length * bits + 7) / 8)
        return tt_table_fail(b->arrow->table, b->at, "the buffer of column '%s' is too short", n->name);
    if (!is_index && length &&
        (types[n->type].n_buffers == 3 || n->type == T_LIST || n->type == T_LARGE_LIST || n->type == T_MAP ||
         is_view(n)) &&
        a->offsets.size < (length + !is_view(n)) * offset)
        return tt_table_fail(b->arrow->table, b->at, "the buffer of the offsets of column '%s' is too short", n->name);
    return 0;
}

/* Takes the buffers of an array after that of the nulls. */
static int take_buffers(struct batch *b, const struct node *n, struct array *to, bool is_index)
{
    int n_buffers = types[n->type].n_buffers, rc = 0;
    struct span unused, *offsets = to ? &to->offsets : &unused, *data = to ? &to->data : &unused;

    if (is_index)
        return take_buffer(b, to, data);
    if (n_buffers == 3 || is_view(n)) {
        uint64_t more = 0;

        TT_TRY(take_buffer(b, to, offsets));
        if (!is_view(n))
            return take_buffer(b, to, data);
        if (!b->n_counts)
            return tt_table_fail(b->arrow->table, b->at, "a batch has too few counts of buffers");
        more = tt_text_little(b->count, 8);
        b->count += 8;
        b->n_counts--;
        if (more > b->n_buffers)
            return tt_table_fail(b->arrow->table, b->at, "a batch has too few buffers");
        for (uint64_t i = 0; i < more; i++) {
            TT_TRY(take_buffer(b, to, &unused));
            if (to)
                TT_PUSH(to->more, to->n_more, to->more_cap) = unused;
        }
    } else if (n_buffers == 2) {
        rc = take_buffer(b, to, n->type == T_LIST || n->type == T_LARGE_LIST || n->type == T_MAP ? offsets : data);
    }
out:
    return rc;
}

/* Takes the array of node i; those of its children follow. In a dictionary (is_word), to is the dictionary's array. */
static int take_array(struct batch *b, struct node *n, struct array *to, bool is_word)
{
    bool is_index = n->is_indexed && !is_word;
    struct span unused = {0};
    int rc = 0;

    if (!b->n_nodes)
        return tt_table_fail(b->arrow->table, b->at, "a batch has too few columns");
    if (to) {
        to->length = (int64_t)tt_text_little(b->node, 8);
        to->nulls = (int64_t)tt_text_little(b->node + 8, 8);
        to->valid = to->offsets = to->data = unused;
        to->n_used = 0;
        to->n_more = 0;
    }
    b->node += 16;
    b->n_nodes--;
    if (n->type == T_UNION && !is_index) {
        for (int i = 0; i < n->union_buffers + b->arrow->is_old; i++)
            TT_TRY(take_buffer(b, NULL, &unused));
    } else if ((n->type != T_NULL && n->type != T_RUNS) || is_index) {
        TT_TRY(take_buffer(b, to, to ? &to->valid : &unused));
        TT_TRY(take_buffers(b, n, to, is_index));
    }
    if (to)
        rc = check_array(b, n, to, is_index);
out:
    return rc;
}

/* ---- values ---- */

static bool is_null(const struct node *n, const struct array *a, uint64_t i)
{
    return n->type == T_NULL || (a->nulls && !(a->valid.bytes[i / 8] >> i % 8 & 1));
}

/* The integer of `bits` at place i. */
static int64_t integer(const struct span *data, uint64_t i, int64_t bits, bool is_signed)
{
    size_t n = (size_t)bits / 8;
    uint64_t x = tt_text_little(data->bytes + i * n, n);

    return is_signed && n < 8 ? (int64_t)(x << (64 - bits)) >> (64 - bits) : (int64_t)x;
}

static int fail_value(const struct arrow *a, const struct node *n, const char *what)
{
    return tt_fail(TT_EDATA,
                   "%s: row %lld: column '%s': %s\nhelp: the file is damaged or incomplete; download or write it again",
                   a->table->name, (long long)a->rows + 1, n->name, what);
}

/* The range of the list or the text at place i, in `most` items. */
static int range(const struct arrow *a, const struct node *n, const struct array *array, uint64_t i, uint64_t most,
                 uint64_t *ret_begin, uint64_t *ret_end)
{
    int64_t bits = has_wide_offsets(n) ? 64 : 32;
    int64_t begin = integer(&array->offsets, i, bits, true), end = integer(&array->offsets, i + 1, bits, true);

    if (begin < 0 || end < begin || (uint64_t)end > most)
        return fail_value(a, n, "its offsets are out of order");
    *ret_begin = (uint64_t)begin;
    *ret_end = (uint64_t)end;
    return 0;
}

/* The text of place i of an array, which is not null. */
static int get_plain_text(const struct arrow *a, const struct node *n, const struct array *array, uint64_t i,
                          struct span *ret)
{
    enum { VIEW = 16, SHORT = 12 };
    const uint8_t *view = array->offsets.bytes + VIEW * i;
    uint64_t begin = 0, end = 0, buffer;
    int rc = 0;

    if (!is_view(n)) {
        TT_TRY(range(a, n, array, i, array->data.size, &begin, &end));
        *ret = (struct span){array->data.bytes + begin, (size_t)(end - begin)};
        return 0;
    }
    ret->size = tt_text_little(view, 4);
    ret->bytes = view + 4;
    if (ret->size <= SHORT)
        return 0;
    buffer = tt_text_little(view + 8, 4);
    begin = tt_text_little(view + 12, 4);
    if (buffer >= array->n_more || begin > array->more[buffer].size || ret->size > array->more[buffer].size - begin)
        return fail_value(a, n, "a view leads out of its buffer");
    ret->bytes = array->more[buffer].bytes + begin;
out:
    return rc;
}

/* The text at place i; its bytes are NULL if it is null. */
static int get_text(const struct arrow *a, const struct node *n, uint64_t i, struct span *ret)
{
    const struct array *array = &n->array;
    int rc = 0;

    *ret = (struct span){0};
    if (is_null(n, array, i))
        return 0;
    if (n->is_indexed) {
        int64_t word = integer(&array->data, i, n->index_bits, n->index_signed);

        if (!n->has_words || word < 0 || word >= n->words.length)
            return fail_value(a, n, "a value is not in the dictionary");
        array = &n->words;
        i = (uint64_t)word;
        if (is_null(n, array, i))
            return 0;
    }
    TT_TRY(get_plain_text(a, n, array, i, ret));
    ret->bytes = ret->size ? ret->bytes : (const uint8_t *)"";
out:
    return rc;
}

static int add_value(struct arrow *a, const struct node *n, uint64_t i);

/* Adds the items from begin to end of the child of a list. */
static int add_items(struct arrow *a, const struct node *list, uint64_t begin, uint64_t end)
{
    int rc = 0;

    tt_text_add(&a->row, "[");
    for (uint64_t i = begin; i < end; i++) {
        tt_text_add(&a->row, "%s", i > begin ? "," : "");
        TT_TRY(add_value(a, list + 1, i));
    }
    tt_text_add(&a->row, "]");
out:
    return rc;
}

static int add_struct(struct arrow *a, const struct node *n, uint64_t i)
{
    const struct node *end = a->node + n->end;
    int rc = 0;

    tt_text_add(&a->row, "{");
    for (const struct node *child = n + 1; child < end; child = a->node + child->end) {
        tt_text_add(&a->row, "%s", child == n + 1 ? "" : ",");
        tt_table_add_string(&a->row, child->name, strlen(child->name));
        tt_text_add(&a->row, ":");
        if (i >= (uint64_t)child->array.length)
            return fail_value(a, child, "it is shorter than the column above it");
        TT_TRY(add_value(a, child, i));
    }
    tt_text_add(&a->row, "}");
out:
    return rc;
}

static void add_number(struct arrow *a, const struct node *n, uint64_t i)
{
    int64_t bits = integer(&n->array.data, i, n->bits, n->is_signed && n->type == T_INT);
    double real;
    float single;

    if (n->type == T_INT) {
        tt_table_add_integer(&a->row, bits);
    } else if (n->bits == 32) {
        memcpy(&single, &bits, sizeof single);
        tt_table_add_real(&a->row, (double)single);
    } else {
        memcpy(&real, &bits, sizeof real);
        tt_table_add_real(&a->row, real);
    }
}

/* Adds the value at place i, which lies within the array. */
static int add_value(struct arrow *a, const struct node *n, uint64_t i)
{
    uint64_t begin = 0, end = 0;
    struct span text;
    int rc = 0;

    if (a->row.size > TT_TABLE_ROW_MOST)
        return tt_fail(TT_EDATA, "%s: row %lld is longer than %d MiB", a->table->name, (long long)a->rows + 1,
                       TT_TABLE_ROW_MOST >> 20);
    if (types[n->type].is_text) {
        TT_TRY(get_text(a, n, i, &text));
        if (text.bytes)
            tt_table_add_string(&a->row, (const char *)text.bytes, text.size);
        else
            tt_text_add(&a->row, "null");
        return 0;
    }
    if (is_null(n, &n->array, i)) {
        tt_text_add(&a->row, "null");
        return 0;
    }
    switch (n->type) {
    case T_BOOL:
        tt_text_add(&a->row, "%s", n->array.data.bytes[i / 8] >> i % 8 & 1 ? "true" : "false");
        return 0;
    case T_INT:
    case T_FLOAT:
        add_number(a, n, i);
        return 0;
    case T_STRUCT:
        return add_struct(a, n, i);
    case T_FIXED_LIST:
        if (n->list_size && i >= (uint64_t)(n[1].array.length / n->list_size))
            return fail_value(a, n, "its items end early");
        begin = i * (uint64_t)n->list_size;
        end = begin + (uint64_t)n->list_size;
        break;
    default:
        TT_TRY(range(a, n, &n->array, i, (uint64_t)n[1].array.length, &begin, &end));
        break;
    }
    rc = add_items(a, n, begin, end);
out:
    return rc;
}

static int read_object(struct arrow *a, uint64_t i, struct tt_row *row)
{
    const char *before = "";
    int rc = 0;

    a->row.size = 0;
    tt_text_add(&a->row, "{");
    for (int k = 0; k < a->n_nodes; k = a->node[k].end) {
        const struct node *n = &a->node[k];

        if (!n->is_top)
            continue;
        tt_text_add(&a->row, "%s", before);
        before = ",";
        tt_table_add_string(&a->row, n->name, strlen(n->name));
        tt_text_add(&a->row, ":");
        TT_TRY(add_value(a, n, i));
    }
    tt_text_add(&a->row, "}");
    row->text = a->row.text;
    row->size = a->row.size;
out:
    return rc;
}

static int read_text(const struct arrow *a, uint64_t i, struct tt_row *row)
{
    const struct node *n = a->node;
    struct span text = {0};
    int rc = 0;

    while (!n->is_top)
        n++;
    TT_TRY(get_text(a, n, i, &text));
    row->text = (const char *)text.bytes;
    row->size = text.size;
out:
    return rc;
}

static int read_batch(struct arrow *a, const struct flat_table *t, struct span body)
{
    const struct tt_table *table = a->table;
    struct batch b;
    int rc = 0;

    TT_TRY(open_batch(a, t, body, &b));
    for (int i = 0; i < a->n_nodes; i++) {
        struct node *n = &a->node[i];

        TT_TRY(take_array(&b, n, n->is_wanted ? &n->array : NULL, false));
        if (n->is_top && n->array.length != b.length)
            return tt_table_fail(table, b.at, "column '%s' has %lld values, its batch %lld rows", n->name,
                                 (long long)n->array.length, (long long)b.length);
        if (n->is_indexed)
            i = n->end - 1; /* its children are in the dictionary */
    }
    for (uint64_t i = 0; i < (uint64_t)b.length; i++) {
        struct tt_row row = {.number = a->rows + 1, .used = (size_t)(body.bytes - table->bytes)};

        TT_TRY(table->column ? read_text(a, i, &row) : read_object(a, i, &row));
        TT_TRY(table->fn(table->arg, &row));
        a->rows++;
    }
out:
    return rc;
}

static int read_dictionary(struct arrow *a, const struct flat_table *t, struct span body)
{
    struct flat_table data;
    int64_t id = 0, is_delta = 0;
    struct batch b;
    int rc = 0;

    TT_TRY(get_number(t, 0, 8, &id));
    TT_TRY(get_number(t, 2, 1, &is_delta));
    TT_TRY(get_table(t, 1, &data));
    if (!data.at)
        return tt_table_fail(a->table, t->at, "a dictionary has no values");
    for (int i = 0; i < a->n_nodes; i++) {
        struct node *n = &a->node[i];

        if (!n->is_indexed || !n->is_wanted || n->dictionary != id)
            continue;
        if (is_delta)
            return tt_table_refuse(a->table, n->name, "dictionaries in several parts");
        TT_TRY(open_batch(a, &data, body, &b));
        TT_TRY(take_array(&b, n, &n->words, true));
        n->has_words = true;
    }
out:
    return rc;
}

/* ---- messages ---- */

enum { SCHEMA = 1, DICTIONARY = 2, RECORDS = 3 };

/* Reads the message whose metadata is n bytes at `at`; ret_end is the place after its body. */
static int read_message(struct arrow *a, const uint8_t *at, size_t n, const uint8_t **ret_end)
{
    const uint8_t *end = a->table->bytes + a->table->size, *root = NULL;
    struct flat flat = {a->table, at, at + n};
    struct flat_table message, header;
    int64_t version = 0, kind = 0, body_size = 0;
    struct span body;
    int rc = 0;

    TT_TRY(follow(&flat, at, 4, &root));
    TT_TRY(open_table(&flat, root, &message));
    TT_TRY(get_number(&message, 0, 2, &version));
    TT_TRY(get_number(&message, 1, 1, &kind));
    TT_TRY(get_table(&message, 2, &header));
    TT_TRY(get_number(&message, 3, 8, &body_size));
    if (body_size < 0 || body_size > end - flat.end)
        return tt_table_fail(a->table, end, "the file ends before its last batch does");
    body = (struct span){flat.end, (size_t)body_size};
    *ret_end = flat.end + body_size;
    if (!header.at || (kind != SCHEMA && !a->has_schema))
        return tt_table_fail(a->table, at, "a message has no content, or comes before the schema");
    a->is_old = version < 4; /* before Arrow 1.0 */
    if (kind == SCHEMA)
        rc = read_schema(a, &header);
    else if (kind == RECORDS)
        rc = read_batch(a, &header, body);
    else if (kind == DICTIONARY)
        rc = read_dictionary(a, &header, body);
    else
        rc = tt_table_fail(a->table, at, "a message has the unknown kind %lld", (long long)kind);
out:
    return rc;
}

int tt_arrow_each(const struct tt_table *table)
{
    struct arrow a = {.table = table};
    const uint8_t *at = table->bytes, *end = at + table->size;
    bool is_file = table->size >= 8 && memcmp(at, "ARROW1", 6) == 0;
    int rc = 0;

    if (is_file && (table->size < 16 || memcmp(end - 6, "ARROW1", 6) != 0))
        return tt_table_fail(table, end, "a file of Arrow does not end here");
    at += is_file ? 8 : 0;
    for (;;) { /* a stream may end with its file */
        size_t n;

        if (at == end && !is_file && a.has_schema)
            break;
        if (end - at < 8)
            TT_TRY(tt_table_fail(table, end, "the file ends before its end mark"));
        if (tt_text_little(at, 4) != 0xffffffff)
            TT_TRY(tt_table_fail(table, at, "a message does not begin here"));
        n = tt_text_little(at + 4, 4);
        if (!n)
            break;
        if (n > (size_t)(end - at) - 8)
            TT_TRY(tt_table_fail(table, end, "the file ends before its last batch does"));
        TT_TRY(read_message(&a, at + 8, n, &at));
    }
    if (!a.has_schema)
        rc = tt_table_fail(table, at, "there is no schema");
out:
    arrow_release(&a);
    return rc;
}
