/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_KEY_H
#define TT_BASE_KEY_H

/**
 * What a user may set, as messages name it. The layers below core/config do not know its keys: they write
 * tt_key_name(TT_KEY_DIM), which is "model.dim" where the program has said so (tt_config_name_keys), and "dim"
 * where nobody has.
 */
enum tt_key {
    TT_KEY_NONE,
#define TT_KEY(name, plain) TT_KEY_##name,
#include "core/base/key.def"
#undef TT_KEY
    TT_KEYS
};

/** Never NULL; "" for TT_KEY_NONE. */
const char *tt_key_name(enum tt_key key);

/** Names the keys from now on; names[TT_KEYS] must stay. NULL: plain names again. Call before threads start. */
void tt_key_use_names(const char *const *names);

#endif
