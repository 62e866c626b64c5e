/* SPDX-License-Identifier: MIT
 *
 * The table of step ops, and the step ops that count experts, add gradients and convert them.
 */
#include "core/ops/step/step.h"

#include <string.h>

#include "core/kernels/kernels.h"
#include "core/math/round.h"
#include "core/math/tree.h"

static const struct tt_step_row *const rows[] = {
#define TT_STEP_OP(id, row) &TT_OF_TYPE(tt_step_op_##row),
#include "core/ops/step/step.def"
#undef TT_STEP_OP
};

const struct tt_step_row *tt_step_row(enum tt_step_op_id op)
{
    return rows[op];
}

#ifndef TT_WIDE
const struct tt_step_row *tt_step_row_of(const struct tt_step_call *call)
{
    return call->dtype == TT_F64 ? tt_step_row_f64(call->op) : rows[call->op];
}
#endif

void tt_step_cost(const struct tt_step_call *call, struct tt_cost *ret_cost)
{
    const struct tt_step_row *row = tt_step_row(call->op);

    ret_cost->bytes =
        (row->numbers * (double)tt_dtype_size(call->dtype) + row->floats * (double)sizeof(tt_real)) * (double)call->n;
}

/*
 * COUNT: adds the number of slots that each expert got to the expert's counter.
 *   in   n int32, experts, negative where there is no token      out   int64 counters, one for each expert
 */

/* One pass over few integers, so one thread does it. */
static void count_run(const struct tt_step_call *call)
{
    const int32_t *experts = call->in;
    int64_t *counters = call->out[0];

    for (int64_t i = 0; i < call->n; i++)
        if (experts[i] >= 0)
            counters[experts[i]]++;
}

const struct tt_step_row TT_OF_TYPE(tt_step_op_count) = {
    .name = "count", .run = count_run, .cost = tt_step_cost, .floats = 1.0};

/*
 * FOLD: adds a sum of gradients to the sums that follow it in the tree over microbatches.
 *   sums   `parts` arrays of n floats: a sum, then its neighbours in the tree from the smallest to the largest; the
 *          last one is also written
 *
 * ADD: out[0] = [out[1] +] in
 *   in, out[1]   n floats; out[1] may be absent or be out[0]
 */

enum { TILE = 4096 };

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    struct tt_range part = tt_tile_range(call->n, TILE, tile);
    const tt_real *sum = (const tt_real *)call->sums[0] + part.begin;
    tt_real between[TILE];

    (void)worker;
    for (int64_t s = 1; s < call->parts; s++) {
        tt_real *level = (tt_real *)call->sums[s] + part.begin, *into = s == call->parts - 1 ? level : between;

        tt_kernels()->add(into, level, sum, part.n);
        sum = into;
    }
}

static void fold_run(const struct tt_step_call *call)
{
    tt_team_run(call->team, tt_div_up(call->n, TILE), run_tile, (void *)call);
}

static void fold_cost(const struct tt_step_call *call, struct tt_cost *ret_cost)
{
    ret_cost->bytes = ((double)call->parts + 1.0) * (double)sizeof(tt_real) * (double)call->n; /* sources and the sum */
}

static void add_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    struct tt_range part = tt_tile_range(call->n, TILE, tile);
    const tt_real *in = (const tt_real *)call->in + part.begin;
    tt_real *out = (tt_real *)call->out[0] + part.begin;

    (void)worker;
    if (call->out[1])
        tt_kernels()->add(out, (const tt_real *)call->out[1] + part.begin, in, part.n);
    else
        memcpy(out, in, (size_t)part.n * sizeof *out);
}

static void add(const struct tt_step_call *call)
{
    tt_team_run(call->team, tt_div_up(call->n, TILE), add_tile, (void *)call);
}

const struct tt_step_row TT_OF_TYPE(tt_step_op_add) = {.name = "add", .run = add};
const struct tt_step_row TT_OF_TYPE(tt_step_op_fold) = {.name = "fold", .run = fold_run, .cost = fold_cost};

/*
 * The conversions of mixed precision; see step.h.
 *   ROUND        in: n floats, out[0]: n bfloat16 elsewhere
 *   ROUND_HERE   out[0]: n floats, which stay floats and become what bfloat16 holds
 *   NARROW out[0]: n floats, which become n bfloat16 in the upper half of their buffer
 *   FOLD_HALVES  in: `parts` arrays of n bfloat16, `stride` elements apart, out[0]: n floats, the tree over them
 *
 * The conversion in place works in steps of doubling size: no step writes where unread elements are, so the tiles of a
 * step can run in any order.
 *
 *   floats    |  first half of what is left  |  rest  |          bytes 4 begin ...
 *   bfloat16             in the upper half:  |..first..|.rest.|  bytes 2 n + 2 begin ...
 */

enum { TAIL = 1024 };

/* --- tiles --- */

struct conversion {
    const void *from;
    void *to;
    int64_t n;
};

static void narrow_tile(void *arg, int64_t tile, int worker)
{
    const struct conversion *c = arg;
    struct tt_range part = tt_tile_range(c->n, TILE, tile);

    (void)worker;
    tt_kernels()->bf16_round((uint16_t *)c->to + part.begin, (const tt_real *)c->from + part.begin, part.n);
}

static void round_here_tile(void *arg, int64_t tile, int worker)
{
    const struct conversion *c = arg;
    struct tt_range part = tt_tile_range(c->n, TILE, tile);
    tt_real *data = (tt_real *)c->to + part.begin;
    uint16_t rounded[TILE];

    (void)worker;
    tt_kernels()->bf16_round(rounded, data, part.n);
    tt_kernels()->bf16_widen(data, rounded, part.n);
}

static void convert(struct tt_team *team, tt_tile_fn fn, const void *from, void *to, int64_t n)
{
    struct conversion c = {from, to, n};

    tt_team_run(team, tt_div_up(n, TILE), fn, &c);
}

/* --- in place --- */

/* Where the bfloat16 from `begin` on lie. A step covers the elements [begin, begin + (n - begin) / 2). */
static char *half_at(tt_real *whole, int64_t n, int64_t begin)
{
    return tt_mixed_half(whole, n) + begin * (int64_t)sizeof(uint16_t);
}

static void narrow(const struct tt_step_call *call)
{
    tt_real *whole = call->out[0];
    int64_t n = call->n, begins[64], begin = 0;
    uint16_t tail[TAIL];
    int steps = 0;

    for (; n - begin > TAIL; begin += (n - begin) / 2)
        begins[steps++] = begin;
    tt_kernels()->bf16_round(tail, whole + begin, n - begin);
    memcpy(half_at(whole, n, begin), tail, (size_t)(n - begin) * sizeof *tail);
    while (steps-- > 0)
        convert(call->team, narrow_tile, whole + begins[steps], half_at(whole, n, begins[steps]),
                (n - begins[steps]) / 2);
}

static void round_here(const struct tt_step_call *call)
{
    convert(call->team, round_here_tile, NULL, call->out[0], call->n);
}

static void round_elsewhere(const struct tt_step_call *call)
{
    convert(call->team, narrow_tile, call->in, call->out[0], call->n);
}

/* --- sums --- */

enum { FOLD_TILE = 512, FOLD_DEPTH = 32 };

/* The tree as a stack of partial sums: the number of rows grows only with the logarithm of the number of leaves. */
static void fold_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    struct tt_range part = tt_tile_range(call->n, FOLD_TILE, tile);
    tt_real stack[FOLD_DEPTH][FOLD_TILE];
    int depth = 0;

    (void)worker;
    for (int64_t leaf = 0; leaf < call->parts; leaf++) {
        int carries = leaf + 1 < call->parts ? tt_tree_carries(leaf) : depth;

        tt_kernels()->bf16_widen(stack[depth++], (const uint16_t *)call->in + leaf * call->stride + part.begin, part.n);
        for (; carries > 0; carries--, depth--)
            tt_kernels()->add(stack[depth - 2], stack[depth - 2], stack[depth - 1], part.n);
    }
    memcpy((tt_real *)call->out[0] + part.begin, stack[0], (size_t)part.n * sizeof(tt_real));
}

static void fold_halves(const struct tt_step_call *call)
{
    tt_team_run(call->team, tt_div_up(call->n, FOLD_TILE), fold_tile, (void *)call);
}

const struct tt_step_row TT_OF_TYPE(tt_step_op_round) = {
    .name = "round", .run = round_elsewhere, .cost = tt_step_cost, .floats = 1.5 /* one of them is a bfloat16 */};
const struct tt_step_row TT_OF_TYPE(tt_step_op_round_here) = {.name = "round here", .run = round_here};
const struct tt_step_row TT_OF_TYPE(tt_step_op_narrow) = {.name = "narrow", .run = narrow};
const struct tt_step_row TT_OF_TYPE(tt_step_op_fold_halves) = {.name = "fold halves", .run = fold_halves};
