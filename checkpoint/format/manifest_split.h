/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_MANIFEST_SPLIT_H
#define TT_CHECKPOINT_FORMAT_MANIFEST_SPLIT_H

#include <stddef.h>

#include "core/base/error.h"
#include "core/base/json.h"

/**
 * Reads manifest.json in parts. The manifest of a large job has a hundred megabytes, which would need more than a
 * gigabyte as one JSON value. So its files and tensors are handed over one by one, and only the rest becomes one value.
 */

/** Receives an element of "files", or {name: element} of "tensors". The value is released afterwards. */
typedef int (*tt_manifest_part_fn)(void *arg, const json_t *part);

/**
 *   text     as tt_manifest_text writes it, or any other JSON of the same value
 *   where    names it in messages
 *   check    checks the rest before anything else is read; its error is the result
 *   on_file, on_tensor   called for every member; the files come first, wherever they are in the text
 *   ret_rest the other members of the object, with null for "files" and "tensors" if they are there.
 *     Caller: json_decref.
 * Errors: TT_EDATA when text is not JSON, or the members are not a list and an object; those of the functions.
 */
int tt_manifest_split(const char *text, size_t size, const char *where,
                      int (*check)(const json_t *rest, const char *where), tt_manifest_part_fn on_file,
                      tt_manifest_part_fn on_tensor, void *arg, json_t **ret_rest) TT_MUST_CHECK;

#endif
