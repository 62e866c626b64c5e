/* SPDX-License-Identifier: MIT
 *
 * The table of element types.
 */
#include "core/graph/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    int bits;
} table[TT_DTYPES] = {
#define X(dtype, text, width) [dtype] = {text, width},
    TT_DTYPE_MAP(X)
#undef X
};

const char *tt_dtype_name(enum tt_dtype dtype)
{
    return table[dtype].name;
}

int tt_dtype_bits(enum tt_dtype dtype)
{
    return table[dtype].bits;
}

size_t tt_dtype_size(enum tt_dtype dtype)
{
    return (size_t)table[dtype].bits / 8;
}

bool tt_dtype_from_name(const char *name, enum tt_dtype *ret_dtype)
{
    for (int i = 0; i < TT_DTYPES; i++) {
        if (strcmp(table[i].name, name) == 0) {
            *ret_dtype = (enum tt_dtype)i;
            return true;
        }
    }
    return false;
}
