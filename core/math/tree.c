/* SPDX-License-Identifier: MIT
 *
 * The fixed order of gradient sums. All code that adds gradients of different microbatches uses this order.
 */
#include "core/math/tree.h"

bool tt_tree_walk_next(struct tt_tree_walk *walk, int64_t *ret_into, int64_t *ret_from)
{
    /* Level by level; a block without a right neighbour waits for a later level. */
    while (walk->into + walk->stride >= walk->n) {
        walk->stride *= 2;
        walk->into = 0;
        if (walk->stride >= walk->n)
            return false;
    }
    *ret_into = walk->into;
    *ret_from = walk->into + walk->stride;
    walk->into += 2 * walk->stride;
    return true;
}

int tt_tree_carries(int64_t index)
{
    int carries = 0;

    while ((index >> carries) & 1)
        carries++;
    return carries;
}

int tt_tree_stack_depth(int64_t n)
{
    int most = 0;
    int depth = 0;

    for (int64_t i = 0; i < n; i++) {
        depth++;
        most = depth > most ? depth : most;
        depth -= tt_tree_carries(i);
    }
    return most;
}

static int64_t most_leaves(int64_t n)
{
    int64_t most = 1;

    while (most < n)
        most *= 2;
    return most;
}

/* Node 1 is the whole sum, the children of k are 2k and 2k + 1, and the last half of the nodes are the leaves. */
int64_t tt_tree_nodes(int64_t n)
{
    return 2 * most_leaves(n);
}

int tt_tree_put(int *nodes, int64_t n, int64_t index, int sum, int ret_neighbours[TT_TREE_LEVELS])
{
    int64_t most = most_leaves(n), node = most + index;
    int found = 0;

    for (int level = 0; node > 1; node /= 2, level++) {
        int64_t neighbour = node ^ 1;

        if ((neighbour << level) - most >= n)
            continue;
        if (nodes[neighbour] == TT_TREE_NONE)
            break;
        ret_neighbours[found++] = nodes[neighbour];
    }
    nodes[node] = found ? ret_neighbours[found - 1] : sum;
    return found;
}

void tt_tree_add(float *into, const float *a, const float *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        into[i] = a[i] + b[i];
}

void tt_tree_add_f64(double *into, const double *a, const double *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        into[i] = a[i] + b[i];
}
