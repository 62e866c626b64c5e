/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_GGUF_KEYS_H
#define TT_MODELS_GGUF_KEYS_H

#include <stdbool.h>

#include "core/base/error.h"
#include "core/gguf/gguf.h"

/**
 * Looks at the values of an architecture that are not sizes, so that none is left out in silence. TT_EDATA names one
 * that changes what the model computes and that titan does not have. Keys that are not known are named in a note.
 *   is_size   whether the end of a key is a size, which is read elsewhere
 */
int tt_gguf_check_keys(const struct tt_gguf *file, const char *arch, bool (*is_size)(const void *arg, const char *rest),
                       const void *arg) TT_MUST_CHECK;

#endif
