/* SPDX-License-Identifier: MIT
 *
 * Orders of compute for tests.
 */
#include "tests/par/orders.h"

#include "core/base/mem.h"
#include "core/math/rng.h"

static void go(struct tt_order *order, int mb, int n_stages, enum tt_pass pass)
{
    for (int i = 0; i < n_stages; i++)
        tt_order_add(order, mb, pass == TT_PASS_FORWARD ? i : n_stages - 1 - i, pass);
}

static void go_all(struct tt_order *order, int microbatches, int n_stages, enum tt_pass pass)
{
    for (int mb = 0; mb < microbatches; mb++)
        go(order, mb, n_stages, pass);
}

static void stage_by_stage(struct tt_order *order, int microbatches, int n_stages)
{
    for (int s = 0; s < 2 * n_stages; s++)
        for (int mb = 0; mb < microbatches; mb++)
            tt_order_add(order, mb, s < n_stages ? s : 2 * n_stages - 1 - s,
                         s < n_stages ? TT_PASS_FORWARD : TT_PASS_BACKWARD);
}

static void one_f_one_b(struct tt_order *order, int microbatches, int n_stages)
{
    for (int i = 0; i < microbatches + n_stages; i++) {
        if (i < microbatches)
            go(order, i, n_stages, TT_PASS_FORWARD);
        if (i >= n_stages)
            go(order, i - n_stages, n_stages, TT_PASS_BACKWARD);
    }
}

/* --- any --- */

struct draw {
    struct tt_order *order;
    int microbatches, n_stages;
    bool ascending;
    bool *done;  /* (microbatch * n_stages + stage) * 3 + pass */
    bool *apart; /* microbatch * n_stages + stage: its weight part is a turn */
};

static bool *done(const struct draw *d, int mb, int stage, int pass)
{
    return &d->done[(mb * d->n_stages + stage) * 3 + pass];
}

static bool may_come(const struct draw *d, int mb, int stage, int pass)
{
    bool forward = pass == TT_PASS_FORWARD;
    int from = forward ? stage - 1 : stage + 1;

    if (*done(d, mb, stage, pass) || (pass == TT_PASS_WEIGHTS && !d->apart[mb * d->n_stages + stage]))
        return false;
    if (!forward && !*done(d, mb, stage, pass - 1))
        return false;
    if (d->ascending && mb > 0 && !*done(d, mb - 1, stage, pass))
        return false;
    return pass == TT_PASS_WEIGHTS || from < 0 || from == d->n_stages || *done(d, mb, from, pass);
}

/* Adds one of the turns that may come next; a number chooses it. Returns false if there is none. */
static bool draw_turn(const struct draw *d, uint64_t number)
{
    int n = d->microbatches * d->n_stages * 3, found = 0, chosen;

    for (int i = 0; i < n; i++)
        found += may_come(d, i / 3 / d->n_stages, i / 3 % d->n_stages, i % 3);
    if (found == 0)
        return false;
    chosen = (int)(number % (uint64_t)found);
    for (int i = 0; i < n; i++)
        if (may_come(d, i / 3 / d->n_stages, i / 3 % d->n_stages, i % 3) && chosen-- == 0) {
            tt_order_add(d->order, i / 3 / d->n_stages, i / 3 % d->n_stages, (enum tt_pass)(i % 3));
            d->done[i] = true;
            return true;
        }
    return false;
}

static void any(struct tt_order *order, int microbatches, int n_stages, uint64_t seed, bool ascending)
{
    struct draw d = {.order = order, .microbatches = microbatches, .n_stages = n_stages, .ascending = ascending};
    struct tt_rng rng = tt_rng_make(seed, "order");
    uint64_t at = 0;

    d.done = tt_calloc((size_t)(microbatches * n_stages) * 3, sizeof *d.done);
    d.apart = tt_calloc((size_t)(microbatches * n_stages), sizeof *d.apart);
    for (int i = 0; i < microbatches * n_stages; i++)
        d.apart[i] = ascending && i >= n_stages ? d.apart[i % n_stages] : tt_rng_uniform(&rng, at++) < 0.5;
    while (draw_turn(&d, (uint64_t)(1e6 * tt_rng_uniform(&rng, at))))
        at++;
    tt_free(d.done);
    tt_free(d.apart);
}

struct tt_order orders_make(enum orders_kind kind, int microbatches, int n_stages, uint64_t seed, bool ascending)
{
    struct tt_order order = {0};

    switch (kind) {
    case ORDERS_STAGE_BY_STAGE:
        stage_by_stage(&order, microbatches, n_stages);
        break;
    case ORDERS_ONE_F_ONE_B:
        one_f_one_b(&order, microbatches, n_stages);
        break;
    case ORDERS_FORWARD_FIRST:
    case ORDERS_WEIGHTS_LAST:
        go_all(&order, microbatches, n_stages, TT_PASS_FORWARD);
        go_all(&order, microbatches, n_stages, TT_PASS_BACKWARD);
        if (kind == ORDERS_WEIGHTS_LAST)
            go_all(&order, microbatches, n_stages, TT_PASS_WEIGHTS);
        break;
    case ORDERS_RANDOM:
        any(&order, microbatches, n_stages, seed, ascending);
        break;
    default:
        order = tt_order_accumulate(microbatches, n_stages, true);
    }
    return order;
}
