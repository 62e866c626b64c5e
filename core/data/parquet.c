/* SPDX-License-Identifier: MIT
 *
 * Reads Parquet: the footer in Thrift's compact protocol, then the row groups one after the other, and in each row
 * group a page of every wanted column at a time. Values are nested as in Dremel: with each value a page stores the
 * number of the innermost list that goes on (its repetition level) and how many of the optional members above it are
 * present (its definition level).
 */
#include <string.h>

#include "core/base/mem.h"
#include "core/data/pages.h"
#include "core/data/table.h"
#include "core/data/thrift.h"

enum { DEEPEST = 32 };

/* ---- the schema ---- */

enum repetition { REQUIRED, OPTIONAL, REPEATED };
enum { LIST = 3, CONVERTED_DECIMAL = 5, UINT_8 = 11, UINT_64 = 14, INT_8 = 15, INT_LAST = 18, BSON = 20 };
enum { LOGICAL_LIST = 3, LOGICAL_DECIMAL = 5, LOGICAL_INTEGER = 10, LOGICAL_UNKNOWN = 11, LOGICAL_JSON = 12 };

/* A column, or a group of columns; a tree in the order of the file. */
struct node {
    char *name;
    int64_t type; /* enum tt_parquet_type */
    int64_t repetition;
    int64_t converted, logical; /* what the values mean, in the old and the new numbers; -1, 0: nothing special */
    int64_t n_children;
    int end;            /* the node after the last one below this one */
    int rep, def;       /* the levels of a value that is present */
    int leaf, leaf_end; /* the leaves below it, numbered through the file */
    bool is_list;       /* a group that stands for a list: its only child is repeated */
    bool is_bare;       /* the repeated child of a list, whose only child is the item */
};

struct parquet {
    const struct tt_table *table;
    struct node *node;
    int n_nodes, node_cap, n_leaves;
    struct tt_pages *leaf; /* the leaves that are read, in the order of the file */
    int *number;           /* their numbers among all leaves */
    int n_read;
    int *wanted; /* the nodes at the top that are read */
    int n_wanted;
    int64_t rows; /* rows that have been read */
    struct tt_text row;
};

static void parquet_release(struct parquet *p)
{
    for (int i = 0; i < p->n_nodes; i++)
        tt_free(p->node[i].name);
    for (int i = 0; i < p->n_read && p->leaf; i++)
        tt_pages_release(&p->leaf[i]);
    tt_free(p->node);
    tt_free(p->leaf);
    tt_free(p->number);
    tt_free(p->wanted);
    tt_text_release(&p->row);
}

/* The member of LogicalType that is set. */
static int read_logical(struct tt_thrift *t, int64_t *ret_logical)
{
    struct tt_thrift_field f = {0};
    int rc = 0;

    for (;;) {
        TT_TRY(tt_thrift_next(t, &f));
        if (f.type == TT_THRIFT_STOP)
            return 0;
        *ret_logical = f.id;
        TT_TRY(tt_thrift_skip(t, f.type));
    }
out:
    return rc;
}

static int read_node(struct tt_thrift *t, struct node *n)
{
    struct tt_thrift_field f = {0};
    const char *name = NULL;
    size_t size = 0;
    int rc = 0;

    n->type = TT_PARQUET_GROUP;
    n->converted = -1;
    for (;;) {
        TT_TRY(tt_thrift_next(t, &f));
        if (f.type == TT_THRIFT_STOP)
            break;
        if (f.id == 1) {
            TT_TRY(tt_thrift_number(t, f.type, TT_PARQUET_BOOLEAN, TT_PARQUET_FIXED, &n->type));
        } else if (f.id == 3) {
            TT_TRY(tt_thrift_number(t, f.type, REQUIRED, REPEATED, &n->repetition));
        } else if (f.id == 4) {
            TT_TRY(tt_thrift_want(t, f.type, TT_THRIFT_BINARY));
            TT_TRY(tt_thrift_binary(t, &name, &size));
        } else if (f.id == 5) {
            TT_TRY(tt_thrift_number(t, f.type, 0, TT_TABLE_COLUMNS_MOST, &n->n_children));
        } else if (f.id == 6) {
            TT_TRY(tt_thrift_number(t, f.type, 0, INT32_MAX, &n->converted));
        } else if (f.id == 10) {
            TT_TRY(tt_thrift_want(t, f.type, TT_THRIFT_STRUCT));
            TT_TRY(read_logical(t, &n->logical));
        } else {
            TT_TRY(tt_thrift_skip(t, f.type));
        }
    }
    n->name = tt_strndup(name ? name : "", size);
out:
    return rc;
}

/* Sets the levels and the ends of the nodes below node i, which is `depth` groups down. */
static int connect(struct parquet *p, const uint8_t *at, int i, int depth)
{
    struct node *n = &p->node[i];
    int next = i + 1, rc = 0;

    n->leaf = p->n_leaves;
    if (depth > DEEPEST)
        return tt_table_fail(p->table, at, "columns are nested more than %d deep", DEEPEST);
    if ((n->type == TT_PARQUET_GROUP) != (n->n_children > 0) && i)
        return tt_table_fail(p->table, at, "column '%s' has %lld members", n->name, (long long)n->n_children);
    for (int64_t k = 0; k < n->n_children; k++) {
        struct node *child;

        if (next >= p->n_nodes)
            return tt_table_fail(p->table, at, "the schema ends early");
        child = &p->node[next];
        child->def = n->def + (child->repetition != REQUIRED);
        child->rep = n->rep + (child->repetition == REPEATED);
        TT_TRY(connect(p, at, next, depth + 1));
        next = child->end;
    }
    p->n_leaves += n->type != TT_PARQUET_GROUP;
    n->leaf_end = p->n_leaves;
    n->end = next;
    if (n->n_children == 1 && (n->converted == LIST || n->logical == LOGICAL_LIST) && n->repetition != REPEATED &&
        p->node[i + 1].repetition == REPEATED) {
        struct node *child = &p->node[i + 1];
        char *tuple = tt_format("%s_tuple", n->name);

        n->is_list = true; /* the rules for lists of old writers, by the names that they gave */
        child->is_bare = child->n_children == 1 && strcmp(child->name, "array") != 0 && strcmp(child->name, tuple) != 0;
        tt_free(tuple);
    }
out:
    return rc;
}

static const char *type_name(const struct node *n)
{
    static const char *const names[] = {"a boolean", "an integer", "an integer",        "a time of 96 bits",
                                        "a number",  "a number",   "a decimal or BSON", "bytes of fixed length"};

    return n->repetition == REPEATED || n->is_list ? "a list"
           : n->type == TT_PARQUET_GROUP           ? "a group of columns"
                                                   : names[n->type];
}

/* Whether the leaf's values are numbers or text as they are stored, not dates, decimals or the like. */
static bool is_plain(const struct node *n)
{
    switch (n->type) {
    case TT_PARQUET_BYTE_ARRAY:
        return n->converted != CONVERTED_DECIMAL && n->converted != BSON && n->logical != LOGICAL_DECIMAL &&
               n->logical <= LOGICAL_JSON;
    case TT_PARQUET_INT32:
    case TT_PARQUET_INT64:
        return (n->converted < 0 || (n->converted >= UINT_8 && n->converted <= INT_LAST)) &&
               (n->logical == 0 || n->logical == LOGICAL_INTEGER || n->logical == LOGICAL_UNKNOWN);
    default:
        return n->type != TT_PARQUET_INT96 && n->type != TT_PARQUET_FIXED;
    }
}

/* Chooses the nodes and leaves that are read. */
static int choose(struct parquet *p)
{
    const struct node *root = p->node;
    struct tt_table_column *column = tt_calloc((size_t)root->n_children + 1, sizeof *column);
    int n = 0, rc = 0;

    p->wanted = tt_calloc((size_t)root->n_children + 1, sizeof *p->wanted);
    for (int i = 1; i < p->n_nodes; i = p->node[i].end) {
        const struct node *node = &p->node[i];
        bool is_text = node->type == TT_PARQUET_BYTE_ARRAY && node->repetition != REPEATED && is_plain(node);

        column[n++] = (struct tt_table_column){node->name, is_text, type_name(node)};
        if (tt_table_wants(p->table, node->name)) {
            p->wanted[p->n_wanted++] = i;
            p->n_read += node->leaf_end - node->leaf;
        }
    }
    TT_TRY(tt_table_check(p->table, column, n));
    p->leaf = tt_calloc((size_t)p->n_read, sizeof *p->leaf);
    p->number = tt_calloc((size_t)p->n_read, sizeof *p->number);
    n = 0;
    for (int w = 0; w < p->n_wanted; w++)
        for (int i = p->wanted[w]; i < p->node[p->wanted[w]].end; i++) {
            struct node *node = &p->node[i];
            int first = node->leaf, last = node->leaf_end;

            if (node->type != TT_PARQUET_GROUP && !is_plain(node))
                TT_TRY(tt_table_refuse(p->table, node->name, "dates, times, decimals and other such types"));
            if (node->type != TT_PARQUET_GROUP) {
                p->number[n] = first;
                p->leaf[n] = (struct tt_pages){.table = p->table,
                                               .name = node->name,
                                               .type = node->type,
                                               .rep_most = node->rep,
                                               .def_most = node->def};
            }
            node->leaf = n; /* from now on, numbers among those that are read */
            node->leaf_end = n + last - first;
            n += node->type != TT_PARQUET_GROUP;
        }
out:
    tt_free(column);
    return rc;
}

static int read_schema(struct parquet *p, struct tt_thrift *t)
{
    const uint8_t *at = t->at;
    uint64_t n = 0;
    int type = 0, rc = 0;

    if (p->n_nodes)
        return tt_table_fail(p->table, at, "there are two schemas");
    TT_TRY(tt_thrift_list(t, &type, &n));
    TT_TRY(tt_thrift_want(t, type, TT_THRIFT_STRUCT));
    if (n < 1 || n > TT_TABLE_COLUMNS_MOST)
        return tt_table_fail(p->table, at, "the schema has %llu columns", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) {
        struct node node = {0};

        rc = read_node(t, &node);
        TT_PUSH(p->node, p->n_nodes, p->node_cap) = node;
        if (rc < 0)
            goto out;
    }
    p->node[0].repetition = REQUIRED;
    TT_TRY(connect(p, at, 0, 0));
    if (p->node[0].end != p->n_nodes)
        return tt_table_fail(p->table, at, "the schema has columns that belong to no group");
    rc = choose(p);
out:
    return rc;
}

/* ---- rows ---- */

static int fail_nesting(const struct tt_pages *l)
{
    return tt_pages_fail(l, "its levels differ from those of the other columns in its group");
}

/* Passes a value of every leaf below the node, none of which may be present. */
static int pass_null(const struct parquet *p, const struct node *n)
{
    int rc = 0;

    for (int i = n->leaf; i < n->leaf_end; i++) {
        TT_TRY(tt_pages_load(&p->leaf[i]));
        if (p->leaf[i].def >= (uint32_t)n->def)
            return fail_nesting(&p->leaf[i]);
        tt_pages_pass(&p->leaf[i]);
    }
out:
    return rc;
}

static int add_value(struct parquet *p, const struct node *n);

static int add_leaf(struct parquet *p, const struct node *n)
{
    struct tt_pages *l = &p->leaf[n->leaf];
    struct tt_pages_value v = {0};
    uint64_t bits;
    double real;
    float single;
    int rc = 0;

    if (l->def != (uint32_t)l->def_most)
        return fail_nesting(l);
    TT_TRY(tt_pages_take(l, &v));
    bits = tt_text_little(v.bytes, v.size < 8 ? v.size : 8);
    if (n->type == TT_PARQUET_BYTE_ARRAY) {
        tt_table_add_string(&p->row, (const char *)v.bytes, v.size);
    } else if (n->type == TT_PARQUET_BOOLEAN) {
        tt_text_add(&p->row, "%s", bits ? "true" : "false");
    } else if (n->type == TT_PARQUET_FLOAT) {
        memcpy(&single, &bits, sizeof single);
        tt_table_add_real(&p->row, (double)single);
    } else if (n->type == TT_PARQUET_DOUBLE) {
        memcpy(&real, &bits, sizeof real);
        tt_table_add_real(&p->row, real);
    } else {
        bool is_unsigned = n->converted >= UINT_8 && n->converted <= UINT_64;

        tt_table_add_integer(&p->row, n->type == TT_PARQUET_INT64 ? (int64_t)bits
                                      : is_unsigned               ? (int64_t)(uint32_t)bits
                                                                  : (int64_t)(int32_t)bits);
    }
    if (p->row.size > TT_TABLE_ROW_MOST)
        rc = tt_fail(TT_EDATA, "%s: row %lld is longer than %d MiB", p->table->name, (long long)p->rows + 1,
                     TT_TABLE_ROW_MOST >> 20);
out:
    return rc;
}

/* Adds a node whose own presence is known. */
static int add_present(struct parquet *p, const struct node *n)
{
    const struct node *end = p->node + n->end;
    int rc = 0;

    if (n->is_list)
        return add_value(p, n + 1);
    if (n->type != TT_PARQUET_GROUP)
        return add_leaf(p, n);
    if (n->is_bare)
        return add_value(p, n + 1);
    tt_text_add(&p->row, "{");
    for (const struct node *child = n + 1; child < end; child = p->node + child->end) {
        tt_text_add(&p->row, "%s", child == n + 1 ? "" : ",");
        tt_table_add_string(&p->row, child->name, strlen(child->name));
        tt_text_add(&p->row, ":");
        TT_TRY(add_value(p, child));
    }
    tt_text_add(&p->row, "}");
out:
    return rc;
}

static int add_list(struct parquet *p, const struct node *n)
{
    struct tt_pages *first = &p->leaf[n->leaf];
    int rc = 0;

    tt_text_add(&p->row, "[");
    for (;;) {
        TT_TRY(add_present(p, n));
        if (tt_pages_are_used(first))
            break;
        TT_TRY(tt_pages_load(first));
        if (first->rep != (uint32_t)n->rep)
            break;
        for (int i = n->leaf; i < n->leaf_end; i++) {
            TT_TRY(tt_pages_load(&p->leaf[i]));
            if (p->leaf[i].rep != first->rep || p->leaf[i].def < (uint32_t)n->def)
                return fail_nesting(&p->leaf[i]);
        }
        tt_text_add(&p->row, ",");
        if (p->row.size > TT_TABLE_ROW_MOST)
            return tt_fail(TT_EDATA, "%s: row %lld is longer than %d MiB", p->table->name, (long long)p->rows + 1,
                           TT_TABLE_ROW_MOST >> 20);
    }
    tt_text_add(&p->row, "]");
out:
    return rc;
}

/* Adds the next value of a node to the row. */
static int add_value(struct parquet *p, const struct node *n)
{
    struct tt_pages *first = &p->leaf[n->leaf];
    int rc = 0;

    TT_TRY(tt_pages_load(first));
    if (n->repetition != REQUIRED && first->def < (uint32_t)n->def) {
        tt_text_add(&p->row, n->repetition == REPEATED ? "[]" : "null");
        return pass_null(p, n);
    }
    rc = n->repetition == REPEATED ? add_list(p, n) : add_present(p, n);
out:
    return rc;
}

static int read_object(struct parquet *p, struct tt_row *row)
{
    int rc = 0;

    p->row.size = 0;
    tt_text_add(&p->row, "{");
    for (int w = 0; w < p->n_wanted; w++) {
        const struct node *n = &p->node[p->wanted[w]];

        for (int i = n->leaf; i < n->leaf_end; i++) {
            TT_TRY(tt_pages_load(&p->leaf[i]));
            if (p->leaf[i].rep)
                return tt_pages_fail(&p->leaf[i], "a list goes on at the beginning of a row");
        }
        tt_text_add(&p->row, "%s", w ? "," : "");
        tt_table_add_string(&p->row, n->name, strlen(n->name));
        tt_text_add(&p->row, ":");
        TT_TRY(add_value(p, n));
    }
    tt_text_add(&p->row, "}");
    row->text = p->row.text;
    row->size = p->row.size;
out:
    return rc;
}

static int read_text(struct parquet *p, struct tt_row *row)
{
    struct tt_pages *l = p->leaf;
    struct tt_pages_value v = {0};
    int rc = 0;

    TT_TRY(tt_pages_load(l));
    if (l->def < (uint32_t)l->def_most) {
        tt_pages_pass(l);
        return 0;
    }
    TT_TRY(tt_pages_take(l, &v));
    row->text = v.size ? (const char *)v.bytes : "";
    row->size = v.size;
out:
    return rc;
}

/* ---- row groups ---- */

struct chunk {
    int64_t codec, n_values, size, data_at, dictionary_at;
    bool is_elsewhere, is_encrypted;
};

static int read_chunk_data(struct tt_thrift *t, struct chunk *c)
{
    struct tt_thrift_field f = {0};
    int rc = 0;

    for (;;) {
        int64_t *to = NULL;

        TT_TRY(tt_thrift_next(t, &f));
        if (f.type == TT_THRIFT_STOP)
            return 0;
        to = f.id == 4    ? &c->codec
             : f.id == 5  ? &c->n_values
             : f.id == 7  ? &c->size
             : f.id == 9  ? &c->data_at
             : f.id == 11 ? &c->dictionary_at
                          : NULL;
        TT_TRY(to ? tt_thrift_number(t, f.type, 0, INT64_MAX, to) : tt_thrift_skip(t, f.type));
    }
out:
    return rc;
}

/* Reads the metadata of the next column, and begins to read it if it is one of the leaves (l is not NULL). */
static int read_chunk(const struct parquet *p, struct tt_thrift *t, struct tt_pages *l)
{
    struct chunk c = {.codec = -1, .n_values = -1, .size = -1, .data_at = -1, .dictionary_at = -1};
    const uint8_t *at = t->at;
    struct tt_thrift_field f = {0};
    int64_t begin;
    int rc = 0;

    for (;;) {
        TT_TRY(tt_thrift_next(t, &f));
        if (f.type == TT_THRIFT_STOP)
            break;
        if (f.id == 3) {
            TT_TRY(tt_thrift_want(t, f.type, TT_THRIFT_STRUCT));
            TT_TRY(read_chunk_data(t, &c));
        } else {
            c.is_elsewhere = c.is_elsewhere || f.id == 1;
            c.is_encrypted = c.is_encrypted || f.id == 8;
            TT_TRY(tt_thrift_skip(t, f.type));
        }
    }
    if (!l)
        return 0;
    if (c.is_encrypted)
        return tt_table_refuse(p->table, l->name, "encrypted columns");
    if (c.is_elsewhere)
        return tt_table_refuse(p->table, l->name, "columns in other files");
    begin = c.dictionary_at > 0 && c.dictionary_at < c.data_at ? c.dictionary_at : c.data_at;
    if (c.codec < 0 || c.n_values < 0 || c.size < 0 || begin < 4 || begin > (int64_t)p->table->size ||
        c.size > (int64_t)p->table->size - begin)
        return tt_table_fail(p->table, at, "column '%s' does not lie in the file", l->name);
    tt_pages_begin(l, c.codec, c.n_values, p->table->bytes + begin, (size_t)c.size);
out:
    return rc;
}

static int read_chunks(const struct parquet *p, struct tt_thrift *t)
{
    const uint8_t *at = t->at;
    uint64_t n = 0;
    int type = 0, next = 0, rc = 0;

    TT_TRY(tt_thrift_list(t, &type, &n));
    TT_TRY(tt_thrift_want(t, type, TT_THRIFT_STRUCT));
    if (n != (uint64_t)p->n_leaves)
        return tt_table_fail(p->table, at, "a row group has %llu columns, the schema %d", (unsigned long long)n,
                             p->n_leaves);
    for (uint64_t i = 0; i < n; i++) {
        bool wanted = next < p->n_read && p->number[next] == (int)i;

        TT_TRY(read_chunk(p, t, wanted ? &p->leaf[next] : NULL));
        next += wanted;
    }
out:
    return rc;
}

static int read_rows(struct parquet *p, int64_t n)
{
    const struct tt_table *table = p->table;
    int rc = 0;

    for (int64_t i = 0; i < n; i++) {
        struct tt_row row = {.number = p->rows + 1, .used = (size_t)(p->leaf->at - table->bytes)};

        TT_TRY(table->column ? read_text(p, &row) : read_object(p, &row));
        TT_TRY(table->fn(table->arg, &row));
        p->rows++;
    }
    for (int i = 0; i < p->n_read; i++)
        if (!tt_pages_are_used(&p->leaf[i]))
            return tt_table_fail(table, p->leaf[i].page_at, "column '%s' has more values than its row group has rows",
                                 p->leaf[i].name);
out:
    return rc;
}

static int read_group(struct parquet *p, struct tt_thrift *t)
{
    const uint8_t *at = t->at;
    struct tt_thrift_field f = {0};
    int64_t rows = -1;
    bool has_chunks = false;
    int rc = 0;

    for (;;) {
        TT_TRY(tt_thrift_next(t, &f));
        if (f.type == TT_THRIFT_STOP)
            break;
        if (f.id == 1) {
            TT_TRY(tt_thrift_want(t, f.type, TT_THRIFT_LIST));
            TT_TRY(read_chunks(p, t));
            has_chunks = true;
        } else if (f.id == 3) {
            TT_TRY(tt_thrift_number(t, f.type, 0, INT64_MAX, &rows));
        } else {
            TT_TRY(tt_thrift_skip(t, f.type));
        }
    }
    if (!has_chunks || rows < 0)
        return tt_table_fail(p->table, at, "a row group has no columns or no number of rows");
    rc = read_rows(p, rows);
out:
    return rc;
}

static int read_footer(struct parquet *p, struct tt_thrift *t)
{
    const uint8_t *at = t->at;
    struct tt_thrift_field f = {0};
    int64_t rows = -1;
    uint64_t n = 0;
    int type = 0, rc = 0;

    for (;;) {
        TT_TRY(tt_thrift_next(t, &f));
        if (f.type == TT_THRIFT_STOP)
            break;
        if (f.id == 2) {
            TT_TRY(tt_thrift_want(t, f.type, TT_THRIFT_LIST));
            TT_TRY(read_schema(p, t));
        } else if (f.id == 3) {
            TT_TRY(tt_thrift_number(t, f.type, 0, INT64_MAX, &rows));
        } else if (f.id == 4) {
            TT_TRY(tt_thrift_want(t, f.type, TT_THRIFT_LIST));
            if (!p->n_nodes)
                return tt_table_fail(p->table, t->at, "the schema is missing");
            TT_TRY(tt_thrift_list(t, &type, &n));
            TT_TRY(tt_thrift_want(t, n ? type : TT_THRIFT_STRUCT, TT_THRIFT_STRUCT));
            for (uint64_t i = 0; i < n; i++)
                TT_TRY(read_group(p, t));
        } else {
            TT_TRY(tt_thrift_skip(t, f.type));
        }
    }
    if (!p->n_nodes || rows < 0 || rows != p->rows)
        rc = tt_table_fail(p->table, at, "the metadata names %lld rows, the row groups have %lld", (long long)rows,
                           (long long)p->rows);
out:
    return rc;
}

int tt_parquet_each(const struct tt_table *table)
{
    enum { MAGIC = 4, TAIL = 8 };
    const uint8_t *bytes = table->bytes;
    struct parquet p = {.table = table};
    struct tt_thrift t = {.table = table};
    size_t footer;
    int rc;

    if (table->size < MAGIC + TAIL || memcmp(bytes, "PAR1", MAGIC) != 0 ||
        memcmp(bytes + table->size - MAGIC, "PAR1", MAGIC) != 0)
        return tt_table_fail(table, bytes + table->size, "a file of Parquet does not end here");
    footer = tt_text_little(bytes + table->size - TAIL, 4);
    if (footer > table->size - MAGIC - TAIL)
        return tt_table_fail(table, bytes + table->size - TAIL, "the metadata is longer than the file");
    t.end = bytes + table->size - TAIL;
    t.at = t.end - footer;
    rc = read_footer(&p, &t);
    parquet_release(&p);
    return rc;
}
