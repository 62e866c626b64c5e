/* SPDX-License-Identifier: MIT
 *
 * Mixed precision; see mixed.h. Conversions in place go in steps that double (narrow) or halve (widen): the elements of
 * one step are written where no element that is still to be read lies, so its tiles can run in any order.
 *
 *   floats    |  first half of what is left  |  rest  |          bytes 4 begin ...
 *   bfloat16             in the upper half:  |..first..|.rest.|  bytes 2 n + 2 begin ...
 */
#include "core/program/mixed.h"

#include <string.h>

#include "core/kernels/kernels.h"
#include "core/math/round.h"
#include "core/math/tree.h"

enum { TILE = 4096, TAIL = 1024 };

/* --- tiles --- */

struct conversion {
    const void *from;
    void *to;
    int64_t n;
};

static int64_t tile_size(const struct conversion *c, int64_t tile)
{
    return c->n - tile * TILE < TILE ? c->n - tile * TILE : TILE;
}

static void narrow_tile(void *arg, int64_t tile, int worker)
{
    const struct conversion *c = arg;
    const float *from = (const float *)c->from + tile * TILE;
    uint16_t *to = (uint16_t *)c->to + tile * TILE;

    (void)worker;
    tt_kernels()->bf16_round(to, from, tile_size(c, tile));
}

static void widen_tile(void *arg, int64_t tile, int worker)
{
    const struct conversion *c = arg;
    const uint16_t *from = (const uint16_t *)c->from + tile * TILE;
    float *to = (float *)c->to + tile * TILE;

    (void)worker;
    tt_kernels()->bf16_widen(to, from, tile_size(c, tile));
}

static void round_here_tile(void *arg, int64_t tile, int worker)
{
    const struct conversion *c = arg;
    float *data = (float *)c->to + tile * TILE;
    uint16_t rounded[TILE];

    (void)worker;
    tt_kernels()->bf16_round(rounded, data, tile_size(c, tile));
    tt_kernels()->bf16_widen(data, rounded, tile_size(c, tile));
}

static void convert(struct tt_team *team, tt_tile_fn fn, const void *from, void *to, int64_t n)
{
    struct conversion c = {from, to, n};

    tt_team_run(team, tt_div_up(n, TILE), fn, &c);
}

/* --- in place --- */

/* Where the bfloat16 from `begin` on lie. A step is the elements [begin, begin + (n - begin) / 2). */
static char *half_at(float *whole, int64_t n, int64_t begin)
{
    return tt_mixed_half(whole, n) + begin * (int64_t)sizeof(uint16_t);
}

void tt_mixed_widen(struct tt_team *team, float *whole, int64_t n)
{
    int64_t begin = 0;
    uint16_t tail[TAIL];

    for (int64_t step; n - begin > TAIL; begin += step) {
        step = (n - begin) / 2;
        convert(team, widen_tile, half_at(whole, n, begin), whole + begin, step);
    }
    memcpy(tail, half_at(whole, n, begin), (size_t)(n - begin) * sizeof *tail);
    tt_kernels()->bf16_widen(whole + begin, tail, n - begin);
}

void tt_mixed_narrow(struct tt_team *team, float *whole, int64_t n)
{
    int64_t begins[64], begin = 0;
    uint16_t tail[TAIL];
    int steps = 0;

    for (; n - begin > TAIL; begin += (n - begin) / 2)
        begins[steps++] = begin;
    tt_kernels()->bf16_round(tail, whole + begin, n - begin);
    memcpy(half_at(whole, n, begin), tail, (size_t)(n - begin) * sizeof *tail);
    while (steps-- > 0)
        convert(team, narrow_tile, whole + begins[steps], half_at(whole, n, begins[steps]), (n - begins[steps]) / 2);
}

void tt_mixed_round_here(struct tt_team *team, float *data, int64_t n)
{
    convert(team, round_here_tile, NULL, data, n);
}

void tt_mixed_round(struct tt_team *team, const float *from, int64_t n, uint16_t *to)
{
    convert(team, narrow_tile, from, to, n);
}

/* --- sums --- */

enum { FOLD_TILE = 512, FOLD_DEPTH = 32 };

struct fold {
    const uint16_t *leaves;
    int64_t n_leaves, stride, n;
    float *sum;
};

/* The tree as a stack of partial sums, so that any number of leaves needs few rows. */
static void fold_tile(void *arg, int64_t tile, int worker)
{
    const struct fold *fold = arg;
    int64_t begin = tile * FOLD_TILE, n = fold->n - begin < FOLD_TILE ? fold->n - begin : FOLD_TILE;
    float stack[FOLD_DEPTH][FOLD_TILE];
    int depth = 0;

    (void)worker;
    for (int64_t leaf = 0; leaf < fold->n_leaves; leaf++) {
        const uint16_t *from = fold->leaves + leaf * fold->stride + begin;

        tt_kernels()->bf16_widen(stack[depth], from, n);
        depth++;
        for (int carries = tt_tree_carries(leaf); carries > 0; carries--, depth--)
            tt_kernels()->add(stack[depth - 2], stack[depth - 2], stack[depth - 1], n);
    }
    for (; depth > 1; depth--)
        tt_kernels()->add(stack[depth - 2], stack[depth - 2], stack[depth - 1], n);
    memcpy(fold->sum + begin, stack[0], (size_t)n * sizeof *fold->sum);
}

void tt_mixed_fold(struct tt_team *team, const uint16_t *leaves, int64_t n_leaves, int64_t stride, int64_t n,
                   float *sum)
{
    struct fold fold = {leaves, n_leaves, stride, n, sum};

    tt_team_run(team, tt_div_up(n, FOLD_TILE), fold_tile, &fold);
}
