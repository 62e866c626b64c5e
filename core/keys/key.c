/* SPDX-License-Identifier: MIT
 *
 * The names of keys.
 */
#include "core/keys/key.h"

static const char *const names[TT_KEYS] = {
    "",
#define TT_EACH(section, key) #section "." #key,
#include "core/keys/schema.def"
};

const char *tt_key_name(enum tt_key key)
{
    return names[key];
}
