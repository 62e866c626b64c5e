/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_HELP_TREE_H
#define TT_TESTS_HELP_TREE_H

#include "core/math/tree.h"

/** Sums n arrays of count floats in the order of the tree. leaves[0] gets the sum; the others are overwritten. */
static inline void fold_tree(float *const *leaves, int64_t n, int64_t count)
{
    struct tt_tree_walk walk = tt_tree_walk_make(n);
    int64_t into, from;

    while (tt_tree_walk_next(&walk, &into, &from))
        tt_tree_add(leaves[into], leaves[into], leaves[from], count);
}

#endif
