/* SPDX-License-Identifier: MIT */
#ifndef TT_CONFIG_PARSE_TOML_H
#define TT_CONFIG_PARSE_TOML_H

#include "core/config/parse/yaml.h"

/**
 * Parses a TOML document into the tree that a YAML document gives, so that the same code reads both: tables become
 * maps; numbers, booleans and dates become plain scalars; strings become quoted scalars. For `titan config import`,
 * since torchtitan's files up to v0.2.2 are TOML.
 *
 * Supports TOML 1.0 without arrays of tables ([[x]]), which no torchtitan configuration has. The limits are those of
 * YAML. False: *ret_line, *ret_column and why say what is wrong. In both cases the caller releases doc.
 */
bool tt_toml_parse(const char *text, size_t size, struct tt_yaml_doc *doc, int *ret_line, int *ret_column,
                   struct tt_text *why);

/**
 * Whether text looks like TOML and not like YAML: its first line that is not empty or a comment is a table or key =
 * value.
 */
bool tt_toml_is_likely(const char *text, size_t size);

#endif
