/* SPDX-License-Identifier: MIT */
#ifndef TT_CONFIG_IMPORT_H
#define TT_CONFIG_IMPORT_H

#include <stddef.h>

#include "core/base/error.h"
#include "core/base/text.h"

/**
 * A configuration of torchtitan's as YAML for titan: TOML (all versions up to v0.2.2), or the JSON that it saves (later
 * versions too). Every key is accounted for:
 *
 * - a key that titan has, perhaps by another name (renamed.def), is written with its value;
 * - a key that titan does not have and that changes nothing is a comment that says why;
 * - a value that titan refuses, or the name of a dataset or optimizer that it does not have, is written as it is, after
 *   a comment with the reason. So nothing runs before somebody has decided what is to be done about it.
 *
 * Where torchtitan's default differs from titan's and the file does not set the key, a comment says so. `args` are
 * overrides, which win over the file. TT_EUSAGE: the text is neither, or has keys and values that torchtitan does not
 * have either; all of them are in one message with their places.
 */
int tt_config_import(const char *name, const char *text, size_t size, int n_args, const char *const *args,
                     struct tt_text *out) TT_MUST_CHECK;

#endif
