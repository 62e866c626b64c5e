/* SPDX-License-Identifier: MIT */
#ifndef TT_CONFIG_IMPORT_H
#define TT_CONFIG_IMPORT_H

#include <stddef.h>

#include "core/base/error.h"
#include "core/base/text.h"

/**
 * Writes a torchtitan configuration as YAML for titan. The text is TOML (all versions up to v0.2.2), or the JSON that
 * torchtitan saves (later versions too). Every key is accounted for:
 *
 * - a key that titan has, perhaps by another name (foreign.def), is written with its value;
 * - a key that titan does not have and that changes nothing becomes a comment that says why;
 * - a value that titan refuses, or the name of a dataset or optimizer that it does not have, is written as it is, after
 *   a comment with the reason, so that nothing runs before somebody has decided what to do about it.
 *
 * Where torchtitan's default differs from titan's and the file does not set the key, a comment says so. `args` are
 * overrides, which win over the file. TT_EUSAGE: the text is neither TOML nor JSON, or has keys and values that
 * torchtitan does not have either; one message names them all with their places.
 */
int tt_config_import(const char *name, const char *text, size_t size, int n_args, const char *const *args,
                     struct tt_text *out) TT_MUST_CHECK;

#endif
