/* SPDX-License-Identifier: MIT
 *
 * Sends and receives at the boundaries of stages.
 */
#include "parallel/pipeline/crossings.h"

#include <stdlib.h>

#include "core/base/mem.h"
#include "core/program/instr/instr.h"

/* A turn begins with a receive and ends with a send. */
static enum tt_purpose received(const struct tt_turn *turn)
{
    return turn->pass == TT_PASS_FORWARD ? TT_RECEIVE_VALUES : TT_RECEIVE_GRADS;
}

static enum tt_purpose sent(const struct tt_turn *turn)
{
    return turn->pass == TT_PASS_FORWARD ? TT_SEND_VALUES : TT_SEND_GRADS;
}

static int is_send(enum tt_purpose purpose)
{
    return tt_purpose_row(purpose)->op == TT_SEND;
}

static bool transfers(const struct tt_stage *stages, const struct tt_turn *turn, enum tt_purpose purpose)
{
    return turn->pass != TT_PASS_WEIGHTS && tt_stage_transfers(&stages[turn->stage], purpose);
}

/* --- where to wait for a send --- */

struct lookup {
    const struct tt_peers *peers;
    int *turn; /* ((microbatch * n_stages) + stage) * 3 + pass -> turn of the rank that has the stage, TT_NONE: none */
};

static int *turn_of(const struct lookup *l, int microbatch, int stage, enum tt_pass pass)
{
    return &l->turn[(((int64_t)microbatch * l->peers->n_stages) + stage) * 3 + (int)pass];
}

/* The stage from which a turn receives, or to which it sends. */
static int other_stage(const struct tt_turn *turn, bool sends)
{
    return turn->stage + ((turn->pass == TT_PASS_FORWARD) == sends ? 1 : -1);
}

/* The receive of turn t begins at the beginning of this turn. */
static int received_from(const struct tt_peers *peers, const struct tt_turn *turns, int t)
{
    bool starts_run =
        t == 0 || turns[t - 1].microbatch / peers->run_microbatches != turns[t].microbatch / peers->run_microbatches;

    return starts_run ? t : t - 1;
}

/* The turn that waits for the send of turn `sender` before it begins. */
static int awaited_at(const struct lookup *l, const struct tt_order *order, const struct tt_stage *stages, int sender)
{
    const struct tt_turn *own = l->peers->orders[l->peers->rank].turns;
    int to = other_stage(&own[sender], true), rank = l->peers->rank_of_stage[to];
    int used = *turn_of(l, own[sender].microbatch, to, own[sender].pass);
    int begun = received_from(l->peers, l->peers->orders[rank].turns, used);

    for (int t = sender + 1; t < order->n; t++) {
        int from = other_stage(&own[t], false);

        if (transfers(stages, &order->turns[t], received(&order->turns[t])) && l->peers->rank_of_stage[from] == rank &&
            *turn_of(l, own[t].microbatch, from, own[t].pass) >= begun)
            return t;
    }
    return order->n;
}

/* --- the list --- */

static void add(struct tt_crossings *list, const struct tt_turn *of, int turn, bool after, bool waits,
                enum tt_purpose purpose)
{
    TT_PUSH(list->items, list->n, list->cap) =
        (struct tt_crossing){turn, after, waits, purpose, of->microbatch, of->stage};
}

/* At the beginning of a turn, all receives begin before the first wait, so that no two ranks wait for each other. Waits
 * for receives come before waits for sends. */
static int compare(const void *a, const void *b)
{
    const struct tt_crossing *x = a, *y = b;

    if (x->turn != y->turn)
        return x->turn - y->turn;
    if (x->after != y->after)
        return x->after - y->after;
    if (x->waits != y->waits)
        return x->waits - y->waits;
    if (is_send(x->purpose) != is_send(y->purpose))
        return is_send(x->purpose) - is_send(y->purpose);
    return x->purpose != y->purpose         ? (int)x->purpose - (int)y->purpose
           : x->microbatch != y->microbatch ? x->microbatch - y->microbatch
                                            : x->stage - y->stage;
}

struct tt_crossings tt_crossings_make(const struct tt_order *order, const struct tt_stage *stages,
                                      const struct tt_peers *peers)
{
    struct lookup lookup = {peers, tt_ids_new((size_t)order->microbatches * (size_t)peers->n_stages * 3)};
    struct tt_crossings list = {0};

    for (int rank = 0; rank < peers->ranks; rank++)
        for (int t = 0; t < peers->orders[rank].n; t++) {
            const struct tt_turn *turn = &peers->orders[rank].turns[t];

            *turn_of(&lookup, turn->microbatch, turn->stage, turn->pass) = t;
        }
    for (int t = 0; t < order->n; t++) {
        const struct tt_turn *turn = &order->turns[t];

        if (transfers(stages, turn, received(turn))) {
            add(&list, turn, received_from(peers, order->turns, t), false, false, received(turn));
            add(&list, turn, t, false, true, received(turn));
        }
        if (transfers(stages, turn, sent(turn))) {
            add(&list, turn, t, true, false, sent(turn));
            add(&list, turn, awaited_at(&lookup, order, stages, t), false, true, sent(turn));
        }
    }
    if (list.n)
        qsort(list.items, (size_t)list.n, sizeof *list.items, compare);
    tt_free(lookup.turn);
    return list;
}

void tt_crossings_release(struct tt_crossings *crossings)
{
    tt_free(crossings->items);
    *crossings = (struct tt_crossings){0};
}

int tt_crossings_add(const struct tt_crossings *crossings, int next, int turn, struct tt_schedule *schedule)
{
    for (; next < crossings->n; next++) {
        const struct tt_crossing *c = &crossings->items[next];

        if (c->turn > turn || (c->turn == turn && c->after))
            break;
        tt_schedule_transfer(schedule, c->waits ? TT_WAIT : TT_BEGIN, c->purpose, c->microbatch, c->stage);
    }
    return next;
}
