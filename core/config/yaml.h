/* SPDX-License-Identifier: MIT */
#ifndef TT_CONFIG_YAML_H
#define TT_CONFIG_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/text.h"

/**
 * A YAML document as a tree with positions. Scalars keep their text, and the key decides their type. So 1e-4 is a
 * number if the key takes a number, and `no` is a word if the key takes a word.
 */
enum tt_yaml_kind { TT_YAML_SCALAR, TT_YAML_LIST, TT_YAML_MAP };

struct tt_yaml {
    enum tt_yaml_kind kind;
    bool is_quoted;
    int line, column; /* from 1 */
    char *text;       /* of a scalar */
    int n, cap;
    bool is_closed;
    struct tt_yaml **key;  /* of a map: n keys, one per item */
    struct tt_yaml **item; /* borrowed: aliases may share a node */
};

struct tt_yaml_doc {
    int n, cap;
    struct tt_yaml **node; /* all nodes, owned */
    struct tt_yaml *root;  /* NULL for an empty document */
};

enum {
    TT_YAML_MAX_BYTES = 1 << 20,
    TT_YAML_MAX_DEPTH = 16,
    TT_YAML_MAX_NODES = 20000,
    TT_YAML_MAX_ALIASES = 256,
};

/**
 * Parses text. If it returns false, *ret_line, *ret_column and `why` describe the fault, and doc contains everything
 * before it. The caller releases doc in both cases. Limits on size, depth, nodes and aliases keep hostile input
 * harmless.
 */
bool tt_yaml_parse(const char *text, size_t size, struct tt_yaml_doc *doc, int *ret_line, int *ret_column,
                   struct tt_text *why);
void tt_yaml_release(struct tt_yaml_doc *doc);

/** Adds a new, empty node to doc. */
struct tt_yaml *tt_yaml_add(struct tt_yaml_doc *doc, enum tt_yaml_kind kind, int line, int column);

/** The value of a key; NULL: there is none, or map is NULL or not a map. */
struct tt_yaml *tt_yaml_get(const struct tt_yaml *map, const char *key);

/** Whether the scalar means null: a plain null, ~, or an empty scalar. */
bool tt_yaml_is_null(const struct tt_yaml *node);

/** Appends UTF-8 text as a YAML scalar, in double quotes unless it is a plain word that reads back as itself. */
void tt_yaml_write_text(struct tt_text *out, const char *text);

/**
 * Parses a TOML document into the same kind of tree as a YAML document, so that the same code reads both: tables become
 * maps; numbers, booleans and dates become plain scalars; strings become quoted scalars. For `titan config import`,
 * since torchtitan's files up to v0.2.2 are TOML.
 *
 * Supports TOML 1.0 without arrays of tables ([[x]]), which no torchtitan configuration contains. The limits, the
 * result and the duty to release doc are as in tt_yaml_parse.
 */
bool tt_toml_parse(const char *text, size_t size, struct tt_yaml_doc *doc, int *ret_line, int *ret_column,
                   struct tt_text *why);

/**
 * Whether text looks like TOML and not like YAML: the first line that is neither empty nor a comment is a table or key
 * = value.
 */
bool tt_toml_is_likely(const char *text, size_t size);

#endif
