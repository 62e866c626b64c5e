/* SPDX-License-Identifier: MIT
 *
 * One pass over the positions of an order finds which nodes read which parameters and write which gradients. Then the
 * results are sorted.
 */
#include "parallel/fsdp/usage.h"

#include <stdlib.h>

#include "core/base/mem.h"
#include "core/math/tree.h"

/* The state of the pass. */
struct scan {
    struct tt_usage *u;
    int block; /* microbatches whose gradients are added before they are reduced */
    int n_param_reads, cap_param_reads;
    int n_begun, cap_begun;
    int *use_of; /* [unit] its newest use */
    /* [2 * (microbatch * n_params + param) + part] a node has written the gradient; if carried, microbatch 0 stands for
     * all */
    bool *begun;
    int *last_write; /* [microbatch * n_units + unit] last position that writes a gradient, TT_NONE if none */
    int *last_use;   /* [same index] the use of that position */
    bool *read;      /* [unit] whether a position reads it */
};

/* --- the pass --- */

static struct tt_use *touch(struct scan *s, int unit, int pos)
{
    struct tt_usage *u = s->u;
    int turn = u->positions[pos].turn;

    if (s->use_of[unit] == TT_NONE || u->uses[s->use_of[unit]].turn != turn) {
        s->use_of[unit] = u->n_uses;
        TT_PUSH(u->uses, u->n_uses, u->cap_uses) = (struct tt_use){.unit = unit,
                                                                   .turn = turn,
                                                                   .first = pos,
                                                                   .first_read = TT_NONE,
                                                                   .last_read = TT_NONE,
                                                                   .param_reads = s->n_param_reads};
        for (int k = 0; k < u->layout->units[unit].n_params; k++)
            TT_PUSH(u->param_last_read, s->n_param_reads, s->cap_param_reads) = TT_NONE;
    }
    u->uses[s->use_of[unit]].last = pos;
    return &u->uses[s->use_of[unit]];
}

static void note_reads(struct scan *s, int pos)
{
    const struct tt_usage *u = s->u;
    const struct tt_graph *graph = tt_usage_graph(u, pos);
    const struct tt_node *node = &graph->nodes[u->positions[pos].node];

    for (int i = 0; i < node->n_in; i++) {
        const struct tt_value *in = node->in[i] == TT_NONE ? NULL : &graph->values[node->in[i]];
        struct tt_use *use;

        if (!in || in->kind != TT_VALUE_PARAM || u->layout->units[u->layout->unit_of[in->param]].buffers)
            continue; /* buffers are never gathered */
        use = touch(s, u->layout->unit_of[in->param], pos);
        if (use->first_read == TT_NONE)
            use->first_read = pos;
        use->last_read = pos;
        u->param_last_read[use->param_reads + u->layout->slot_of[in->param]] = pos;
        s->read[use->unit] = true;
    }
}

static void note_gradients(struct scan *s, int pos)
{
    struct tt_usage *u = s->u;
    const struct tt_graph *graph = tt_usage_graph(u, pos);
    const struct tt_node *node = &graph->nodes[u->positions[pos].node];
    int mb = u->positions[pos].microbatch;

    for (int k = 0; k < node->n_out; k++) {
        const struct tt_value *out = &graph->values[node->out[k]];
        int unit, slot;
        bool *begun;

        if (out->kind != TT_VALUE_PARAM_GRAD)
            continue;
        unit = u->layout->unit_of[out->param];
        slot = mb * u->layout->n_units + unit;
        begun = &s->begun[2 * ((graph->carries ? 0 : mb) * u->layout->n_params + out->param) + out->part];
        if (!*begun)
            TT_PUSH(u->begun_grads, s->n_begun, s->cap_begun) = node->out[k];
        *begun = true;
        if (node->backward)
            (void)touch(s, unit, pos);
        s->last_write[slot] = pos;
        s->last_use[slot] = s->use_of[unit];
    }
}

/* --- complete gradients --- */

/* reduces: the microbatch completes its block. */
static void note_complete(struct scan *s, int mb, int unit, bool reduces)
{
    struct tt_usage *u = s->u;
    int pos = s->last_write[mb * u->layout->n_units + unit], use = s->last_use[mb * u->layout->n_units + unit];
    bool adds = s->block > 1;

    if (tt_use_pass(u, &u->uses[use]) == TT_PASS_FORWARD) {
        const struct tt_turn *turns = u->order->turns, *forward = &turns[u->uses[use].turn];
        int backward = u->uses[use].turn;

        while (turns[backward].microbatch != forward->microbatch || turns[backward].stage != forward->stage ||
               turns[backward].pass != TT_PASS_BACKWARD)
            backward++;
        use = u->n_uses;
        TT_PUSH(u->uses, u->n_uses, u->cap_uses) = (struct tt_use){.unit = unit,
                                                                   .turn = backward,
                                                                   .first = pos,
                                                                   .last = pos,
                                                                   .first_read = TT_NONE,
                                                                   .last_read = TT_NONE,
                                                                   .after = true};
    }
    u->uses[use].adds = adds;
    u->uses[use].completes = reduces;
    if (adds || reduces)
        TT_PUSH(u->complete, u->n_complete, u->cap_complete) = (struct tt_complete){pos, unit, adds, 0, reduces};
}

/* Microbatches may come in any order; the last one to come completes the block. Carried gradients are complete with the
 * last microbatch of the step. */
static void note_block(struct scan *s, int first, int unit)
{
    const struct tt_usage *u = s->u;
    int n_units = u->layout->n_units, last = first;

    for (int mb = first; mb < first + s->block; mb++)
        if (s->last_write[mb * n_units + unit] > s->last_write[last * n_units + unit])
            last = mb;
    for (int mb = first; mb < first + s->block; mb++) {
        bool carries = tt_usage_graph(u, s->last_write[mb * n_units + unit])->carries;

        note_complete(s, mb, unit, carries ? mb == u->order->microbatches - 1 : mb == last);
    }
}

static int compare_complete(const void *a, const void *b)
{
    const struct tt_complete *x = a, *y = b;

    return x->pos != y->pos ? x->pos - y->pos : x->unit - y->unit;
}

static int compare_uses(const void *a, const void *b)
{
    const struct tt_use *x = a, *y = b;

    return x->first != y->first ? x->first - y->first : x->after != y->after ? x->after - y->after : x->unit - y->unit;
}

/* Repeats the additions of lowering, in the order of completion, to count the sums that each addition frees. */
static void count_frees(const struct scan *s)
{
    struct tt_usage *u = s->u;
    int n_blocks = u->order->microbatches / s->block, nodes = (int)tt_tree_nodes(s->block);
    int *sums = tt_ids_new((size_t)u->layout->n_units * (size_t)n_blocks * (size_t)nodes), neighbours[TT_TREE_LEVELS];

    for (int c = 0; c < u->n_complete; c++) {
        struct tt_complete *complete = &u->complete[c];
        int mb = u->positions[complete->pos].microbatch;
        int *tree = &sums[((size_t)complete->unit * (size_t)n_blocks + (size_t)(mb / s->block)) * (size_t)nodes];

        if (complete->adds)
            complete->frees = tt_tree_put(tree, s->block, mb % s->block, mb, neighbours);
    }
    tt_free(sums);
}

static bool trained(const struct scan *s, int unit)
{
    return s->u->order->trains && s->u->layout->units[unit].n_trained > 0;
}

static int scan_positions(struct scan *s)
{
    struct tt_usage *u = s->u;

    for (int pos = 0; pos < u->n_positions; pos++) {
        u->begins_grad[pos] = s->n_begun;
        note_reads(s, pos);
        note_gradients(s, pos);
    }
    u->begins_grad[u->n_positions] = s->n_begun;
    for (int unit = 0; unit < u->layout->n_units; unit++)
        if (!u->layout->units[unit].buffers && (!s->read[unit] || (trained(s, unit) && s->last_write[unit] == TT_NONE)))
            return tt_fail(TT_EINTERNAL, "nothing in the graph uses unit %s", u->layout->units[unit].name);
    for (int mb = 0; mb < u->order->microbatches; mb += s->block)
        for (int unit = 0; unit < u->layout->n_units; unit++)
            if (trained(s, unit))
                note_block(s, mb, unit);
    if (u->n_uses)
        qsort(u->uses, (size_t)u->n_uses, sizeof *u->uses, compare_uses);
    if (u->n_complete)
        qsort(u->complete, (size_t)u->n_complete, sizeof *u->complete, compare_complete);
    for (int pos = 0, c = 0; pos <= u->n_positions; pos++) {
        while (c < u->n_complete && u->complete[c].pos < pos)
            c++;
        u->complete_from[pos] = c;
    }
    count_frees(s);
    return 0;
}

int tt_usage_make(const struct tt_order *order, const struct tt_stage *stages, int n_stages,
                  const struct tt_layout *layout, int block, struct tt_usage *ret_usage)
{
    struct tt_usage u = {.order = order, .stages = stages, .layout = layout};
    struct scan s = {.u = &u, .block = block};
    size_t n_units = (size_t)layout->n_units, microbatches = (size_t)order->microbatches;
    int rc = 0;

    TT_TRY(tt_order_positions(order, stages, n_stages, &u.positions, &u.n_positions));
    u.complete_from = tt_calloc((size_t)u.n_positions + 1, sizeof *u.complete_from);
    u.begins_grad = tt_calloc((size_t)u.n_positions + 1, sizeof *u.begins_grad);
    s.use_of = tt_ids_new(n_units);
    s.begun = tt_calloc(2 * microbatches * (size_t)layout->n_params + 1, sizeof *s.begun);
    s.last_write = tt_ids_new(microbatches * n_units);
    s.last_use = tt_ids_new(microbatches * n_units);
    s.read = tt_calloc(n_units + 1, sizeof *s.read);
    TT_TRY(scan_positions(&s));
    *ret_usage = u;
    u = (struct tt_usage){0};
out:
    tt_free(s.use_of);
    tt_free(s.begun);
    tt_free(s.last_write);
    tt_free(s.last_use);
    tt_free(s.read);
    tt_usage_release(&u);
    return rc;
}

void tt_usage_release(struct tt_usage *u)
{
    tt_free(u->positions);
    tt_free(u->uses);
    tt_free(u->param_last_read);
    tt_free(u->complete);
    tt_free(u->complete_from);
    tt_free(u->begins_grad);
    tt_free(u->begun_grads);
    tt_crossings_release(&u->crossings);
    *u = (struct tt_usage){0};
}
