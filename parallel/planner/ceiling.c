/* SPDX-License-Identifier: MIT
 *
 * The tree is an array: the children of node i are 2i and 2i + 1, and the last n nodes are the leaves.
 */
#include "parallel/planner/ceiling.h"

#include <string.h>

#include "core/base/mem.h"

struct tt_ceiling {
    int n;
    int64_t *node; /* [2n], from 1 */
};

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

struct tt_ceiling *tt_ceiling_new(const int64_t *values, int n)
{
    struct tt_ceiling *c = tt_calloc(1, sizeof *c);

    c->n = n;
    c->node = tt_calloc(2 * (size_t)n, sizeof *c->node);
    memcpy(c->node + n, values, (size_t)n * sizeof *values);
    for (int i = n - 1; i > 0; i--)
        c->node[i] = larger(c->node[2 * (size_t)i], c->node[2 * (size_t)i + 1]);
    return c;
}

void tt_ceiling_free(struct tt_ceiling *c)
{
    if (!c)
        return;
    tt_free(c->node);
    tt_free(c);
}

int64_t tt_ceiling_most(const struct tt_ceiling *c, int from, int until)
{
    int a = from + c->n, b = until + c->n;
    int64_t most = c->node[a];

    for (; a < b; a /= 2, b /= 2) {
        if (a % 2)
            most = larger(most, c->node[a++]);
        if (b % 2)
            most = larger(most, c->node[--b]);
    }
    return most;
}
