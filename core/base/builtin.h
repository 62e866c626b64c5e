/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_BUILTIN_H
#define TT_BASE_BUILTIN_H

#include <stddef.h>

/** A file of assets/ that is part of the program; its bytes stay valid while the program runs. */
struct tt_builtin {
    const char *name;
    const char *bytes;
    size_t size;
};

enum tt_builtin_id {
    TT_BUILTIN_KJV_TRAIN,
    TT_BUILTIN_KJV_VALIDATION,
    TT_BUILTIN_TOKENIZER,
    TT_BUILTIN_TOKENIZER_CONFIG,
};

struct tt_builtin tt_builtin_get(enum tt_builtin_id id);

#endif
