/* SPDX-License-Identifier: MIT */
#ifndef TT_CONFIG_TOML_H
#define TT_CONFIG_TOML_H

#include "core/config/yaml.h"

/**
 * A TOML document as the tree that a YAML document gives, so that the same code reads it: tables are maps, numbers, booleans
 * and dates are plain scalars, strings are quoted ones. For `titan config import`: torchtitan's files up to v0.2.2 are TOML.
 *
 * Read is TOML 1.0 without arrays of tables ([[x]]), which no configuration of torchtitan has. The limits are those of YAML.
 * False: *ret_line, *ret_column and why say what is wrong. In both cases the caller releases doc.
 */
bool tt_toml_parse(const char *text, size_t size, struct tt_yaml_doc *doc, int *ret_line, int *ret_column,
                   struct tt_text *why);

/** Whether text looks like TOML and not like YAML: its first line that says something is a table or key = value. */
bool tt_toml_is_likely(const char *text, size_t size);

#endif
