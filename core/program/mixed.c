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

#include "core/base/tree.h"
#include "core/kernels/kernels.h"

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

    tt_team_run(team, (n + TILE - 1) / TILE, fn, &c);
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

    tt_team_run(team, (n + FOLD_TILE - 1) / FOLD_TILE, fold_tile, &fold);
}

/* --- around the collectives --- */

void tt_mixed_unshard_begin(const struct tt_program *p, const struct tt_instr *instr, void *const *address,
                            const struct tt_state *state, struct tt_team *team)
{
    const struct tt_layout *layout = p->layout;
    int n, operand = 0;
    const int *units = tt_instr_units(p->buckets, instr, &n);

    if (p->param_dtype != TT_BF16)
        return;
    for (int u = 0; u < n; u++) {
        const struct tt_unit *unit = &layout->units[units[u]];

        for (int k = 0; k < unit->n_params; k++, operand++) {
            int64_t chunk = unit->params[k].chunk;
            char *own = tt_mixed_half(address[operand], chunk * layout->shard_degree) +
                        layout->shard_index * chunk * (int64_t)sizeof(uint16_t);

            tt_mixed_round(team, state->param[units[u]] + unit->params[k].offset, chunk, (uint16_t *)(void *)own);
        }
    }
}

/* Each parameter of the instruction's units, whole, in place. */
static void each_whole(const struct tt_program *p, const struct tt_instr *instr, void *const *address,
                       struct tt_team *team, void (*fn)(struct tt_team *team, float *whole, int64_t n))
{
    int n, operand = 0;
    const int *units = tt_instr_units(p->buckets, instr, &n);

    for (int u = 0; u < n; u++) {
        const struct tt_unit *unit = &p->layout->units[units[u]];

        for (int k = 0; k < unit->n_params; k++, operand++)
            fn(team, address[operand], unit->params[k].chunk * p->layout->shard_degree);
    }
}

void tt_mixed_unshard_end(const struct tt_program *p, const struct tt_instr *instr, void *const *address,
                          struct tt_team *team)
{
    if (p->param_dtype == TT_BF16)
        each_whole(p, instr, address, team, tt_mixed_widen);
}

int64_t tt_mixed_keep(const struct tt_program *p, const void *whole, int64_t bytes, void *kept, struct tt_team *team)
{
    int64_t n = bytes / (int64_t)sizeof(float);

    if (p->param_dtype == TT_BF16) {
        tt_mixed_round(team, whole, n, kept);
        return n * (int64_t)sizeof(uint16_t);
    }
    memcpy(kept, whole, (size_t)bytes);
    return bytes;
}

void tt_mixed_reduce_begin(const struct tt_program *p, const struct tt_instr *instr, void *const *address,
                           struct tt_team *team)
{
    int n;
    const int *units = tt_instr_units(p->buckets, instr, &n);

    if (p->reduce_dtype != TT_BF16)
        return;
    if (p->layout->shard_degree > 1) {
        each_whole(p, instr, address, team, tt_mixed_narrow);
        return;
    }
    for (int u = 0; u < n; u++)
        convert(team, round_here_tile, NULL, address[u], p->layout->units[units[u]].shard_elements);
}

void tt_mixed_reduce_end(const struct tt_program *p, const struct tt_instr *instr, void *const *address,
                         struct tt_team *team)
{
    int n, staging = instr->n_operands - 1;
    const int *units = tt_instr_units(p->buckets, instr, &n);
    int64_t stride = tt_instr_shard_bytes(p, instr) / (int64_t)sizeof(uint16_t), before = 0;

    if (p->reduce_dtype != TT_BF16)
        return;
    for (int u = 0; u < n; u++) {
        int64_t elements = p->layout->units[units[u]].shard_elements;

        tt_mixed_fold(team, (const uint16_t *)address[staging] + before, p->layout->shard_degree, stride, elements,
                      address[staging - n + u]);
        before += elements;
    }
}
