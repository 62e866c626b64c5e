/* SPDX-License-Identifier: MIT */
#ifndef TT_MATH_TREE_H
#define TT_MATH_TREE_H

#include <stdbool.h>
#include <stdint.h>

/**
 * The order in which gradients are added: a balanced binary tree over the leaves' indices, neighbours first. Two blocks
 * of equal size are added as soon as both exist, as a carry runs through a binary counter. At the end, the smaller
 * block is added to the larger. For 7 leaves that is ((0+1)+(2+3))+((4+5)+6).
 *
 * The tree over the sums of groups of 2^k leaves equals the tree over all leaves. So a sum over the ranks of a shard
 * group, then over accumulation steps, then over replicas is the same for every split of the global batch.
 */

/**
 * Iterates over the n - 1 additions of a tree in place: leaf `from` is added to leaf `into`. The sum ends in leaf 0.
 */
struct tt_tree_walk {
    int64_t n;
    int64_t stride; /* distance of the two leaves of the current level */
    int64_t into;
};

static inline struct tt_tree_walk tt_tree_walk_make(int64_t n)
{
    return (struct tt_tree_walk){.n = n, .stride = 1, .into = 0};
}

/** The next addition; false when none is left. */
bool tt_tree_walk_next(struct tt_tree_walk *walk, int64_t *ret_into, int64_t *ret_from);

/**
 * The same tree as a stack, for leaves that come one after the other (accumulation over microbatches). Push leaf
 * `index` (from 0); this function returns how often to add the top of the stack to the entry below it. After the last
 * leaf, continue until one entry is left. The sums are the same as those of the walk.
 */
int tt_tree_carries(int64_t index);

/** The largest number of entries that the stack holds for n leaves, including the leaf just pushed. */
int tt_tree_stack_depth(int64_t n);

/**
 * The same tree for leaves that come in any order. A sum at (level, index) in the tree covers the 2^level leaves from
 * index * 2^level on. So the order of the leaves determines when sums are added, but not which ones.
 *
 * nodes has tt_tree_nodes(n) places, all TT_TREE_NONE before the first leaf. The caller names sums by numbers.
 */
enum { TT_TREE_NONE = -1, TT_TREE_LEVELS = 32 };

int64_t tt_tree_nodes(int64_t n);

/**
 * Puts leaf `index` of n into the tree. Returns the number of additions that are now due: add the leaf to the first of
 * ret_neighbours, this sum to the second, and so on. The last of ret_neighbours then holds the result; the others are
 * no longer needed. If n is not a power of two, a sum without a neighbour takes the place of its parent.
 */
int tt_tree_put(int *nodes, int64_t n, int64_t index, int sum, int ret_neighbours[TT_TREE_LEVELS]);

/** The sum of all leaves; TT_TREE_NONE before the last leaf has been put. */
static inline int tt_tree_root(const int *nodes)
{
    return nodes[1];
}

/** into[i] = a[i] + b[i]; into may be a or b. */
void tt_tree_add(float *into, const float *a, const float *b, int64_t count);
void tt_tree_add_f64(double *into, const double *a, const double *b, int64_t count);

#endif
