/* SPDX-License-Identifier: MIT
 *
 * Names of what a user may set.
 */
#include "core/base/key.h"

#include <stddef.h>

static const char *const plain[TT_KEYS] = {
    [TT_KEY_NONE] = "",
#define TT_KEY(name, plain) [TT_KEY_##name] = plain,
#include "core/base/key.def"
#undef TT_KEY
};

static const char *const *used = plain;

const char *tt_key_name(enum tt_key key)
{
    return used[key];
}

void tt_key_use_names(const char *const *names)
{
    used = names ? names : plain;
}
