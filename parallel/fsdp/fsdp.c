/* SPDX-License-Identifier: MIT
 *
 * The eager scheduler. Every unit has a use (parallel/fsdp/usage.h) in the forward and in the backward of each
 * microbatch, in each stage that contains some of its parameters. The prefetch looks ahead in the sequence of uses, in
 * the order of their first nodes. Uses of different units may overlap, for instance if a unit has parameters from both
 * ends of the model.
 *
 * As in FSDP2, backward gathers every trained unit, even if it reads none of the unit's parameters; so a single formula
 * gives the traffic. A separate weight part gathers only the units that it reads. If nothing travels, a gather at most
 * rounds this rank's parameters to bfloat16; it then stands just before the unit is read, or is left out if no node
 * reads the unit.
 */
#include "parallel/fsdp/fsdp.h"

#include <string.h>

#include "core/base/mem.h"

/* --- the end of a step, the same in all schedules --- */

static void finish_muon(struct tt_schedule *schedule, int unit)
{
    if (unit == TT_NONE)
        return;
    tt_schedule_collective(schedule, TT_WAIT, TT_GATHER_UPDATES, 0, unit, TT_NONE);
    tt_schedule_add(schedule, TT_MUON, 0, unit);
}

void tt_fsdp_update(const struct tt_layout *layout, struct tt_schedule *schedule)
{
    int previous = TT_NONE;

    tt_schedule_add(schedule, TT_CLIP, 0, TT_NONE);
    for (int u = 0; u < layout->n_units; u++)
        if (layout->units[u].buffers)
            tt_schedule_add(schedule, TT_BALANCE, 0, u);
    for (int u = tt_layout_trained(layout, 0); u < layout->n_units; u = tt_layout_trained(layout, u + 1)) {
        tt_schedule_add(schedule, TT_OPTIMIZER, 0, u);
        if (layout->units[u].first_matrix == layout->units[u].n_trained)
            continue;
        tt_schedule_collective(schedule, TT_BEGIN, TT_GATHER_UPDATES, 0, u, TT_NONE);
        finish_muon(schedule, previous);
        previous = u;
    }
    finish_muon(schedule, previous);
}

/* --- the begin and the end of a use --- */

struct walk {
    const struct tt_fsdp *fsdp;
    const struct tt_usage *u;
    struct tt_schedule *schedule;
    int next;        /* first use that has not begun */
    bool *gathering; /* [unit] its unshard has begun, and it has not been resharded since */
    bool *ready;     /* [unit] its unshard is complete */
    int *ends_at;    /* [position] first use that ends after it, or TT_NONE; an ordered list */
    int *next_end;   /* [use] the next one that ends after the same position */
    bool *stays;     /* [use] the unit is used again in the same run through the pipeline */
    int reducing;    /* use whose reduce-scatter is under way, TT_NONE if none */
};

static bool travels(const struct walk *w, int unit)
{
    return tt_unit_shard(w->u->layout, unit).n > 1;
}

/* Whether a use needs its unit gathered. True also for a unit that stayed gathered, since this use frees it. */
static bool gathers(const struct walk *w, const struct tt_use *use)
{
    if (use->first_read != TT_NONE)
        return true;
    return tt_use_pass(w->u, use) != TT_PASS_WEIGHTS && (travels(w, use->unit) || w->gathering[use->unit]);
}

static void unshard(struct walk *w, int unit)
{
    if (w->gathering[unit])
        return;
    tt_schedule_collective(w->schedule, TT_BEGIN, TT_UNSHARD, 0, unit, TT_NONE);
    w->gathering[unit] = true;
    w->ready[unit] = false;
}

/* kind: TT_RESHARD or TT_KEEP */
static void reshard(struct walk *w, enum tt_instr_kind kind, int unit)
{
    tt_schedule_add(w->schedule, kind, 0, unit);
    w->gathering[unit] = false;
}

/*
 * The forward and the backward use of the head count as one. FSDP2 prefetches the last block while the head runs
 * backward, but here one node runs the head forward and backward.
 */
static void prefetch(struct walk *w, int at)
{
    for (int next = at + 1, ahead = 0; next < w->u->n_uses && ahead < w->fsdp->prefetch; next++) {
        const struct tt_use *use = &w->u->uses[next];

        if (!gathers(w, use) ||
            (use->unit == use[-1].unit && tt_use_microbatch(w->u, use) == tt_use_microbatch(w->u, &use[-1])))
            continue;
        if (travels(w, use->unit))
            unshard(w, use->unit);
        ahead++;
    }
}

static void begin_use(struct walk *w, int at)
{
    int unit = w->u->uses[at].unit;

    if (!gathers(w, &w->u->uses[at]))
        return;
    unshard(w, unit);
    if (!w->ready[unit]) {
        tt_schedule_collective(w->schedule, TT_WAIT, TT_UNSHARD, 0, unit, TT_NONE);
        w->ready[unit] = true;
    }
    prefetch(w, at);
}

static void wait_for_reduce(struct walk *w)
{
    const struct tt_use *use;

    if (w->reducing == TT_NONE)
        return;
    use = &w->u->uses[w->reducing];
    tt_schedule_collective(w->schedule, TT_WAIT, TT_REDUCE, tt_use_microbatch(w->u, use), use->unit, TT_NONE);
    w->reducing = TT_NONE;
}

static void end_use(struct walk *w, int at)
{
    const struct tt_use *use = &w->u->uses[at];
    const struct tt_unit *unit = &w->u->layout->units[use->unit];
    bool frees = w->fsdp->reshard ? w->fsdp->reshard[use->unit] : unit->reshard_after_forward;
    bool trains = w->u->order->trains;

    if (use->completes)
        wait_for_reduce(w); /* only one reduce-scatter is in flight, which bounds their memory */
    /* frees the unit unless it stays gathered after this use */
    if (trains && !frees && w->u->run_microbatches) {
        if (!w->stays[at] && w->gathering[use->unit])
            reshard(w, TT_RESHARD, use->unit);
    } else if (tt_use_pass(w->u, use) == TT_PASS_FORWARD) {
        if (!trains || frees)
            reshard(w, trains && unit->keep_degree ? TT_KEEP : TT_RESHARD, use->unit);
    } else if (gathers(w, use)) {
        reshard(w, TT_RESHARD, use->unit);
    }
    if (use->adds)
        tt_schedule_add(w->schedule, TT_ADD, tt_use_microbatch(w->u, use), use->unit);
    if (use->completes) {
        tt_schedule_collective(w->schedule, TT_BEGIN, TT_REDUCE, tt_use_microbatch(w->u, use), use->unit, TT_NONE);
        w->reducing = at;
    }
}

/* --- the walk --- */

/* Finds the uses that are not the last use of their unit in the run. Uses end in the order of their last positions. */
static void find_stays(const struct walk *w)
{
    const struct tt_usage *u = w->u;
    int *last = tt_calloc((size_t)u->layout->n_units, sizeof *last);
    int run = -1;

    for (int at = u->n_uses - 1; u->run_microbatches && at >= 0; at--) {
        const struct tt_use *use = &u->uses[at];

        if (tt_use_microbatch(u, use) / u->run_microbatches != run)
            memset(last, 0, (size_t)u->layout->n_units * sizeof *last);
        run = tt_use_microbatch(u, use) / u->run_microbatches;
        w->stays[at] = last[use->unit]++ > 0;
    }
    tt_free(last);
}

static bool begins_at(const struct walk *w, int pos, bool after)
{
    return w->next < w->u->n_uses && w->u->uses[w->next].first == pos && w->u->uses[w->next].after == after;
}

static void walk(struct walk *w)
{
    int crossing = 0;

    find_stays(w);
    for (int at = w->u->n_uses - 1; at >= 0; at--) { /* uses without nodes are in no list */
        int *end = &w->ends_at[w->u->uses[at].last];

        if (w->u->uses[at].after)
            continue;
        w->next_end[at] = *end;
        *end = at;
    }
    for (int pos = 0; pos < w->u->n_positions; pos++) {
        const struct tt_position *at = &w->u->positions[pos];

        crossing = tt_crossings_add(&w->u->crossings, crossing, at->turn, w->schedule);
        for (; begins_at(w, pos, false); w->next++)
            begin_use(w, w->next);
        tt_schedule_run(w->schedule, w->u->stages, at->microbatch, at->stage, at->node);
        for (int use = w->ends_at[pos]; use != TT_NONE; use = w->next_end[use])
            end_use(w, use);
        for (; begins_at(w, pos, true); w->next++) {
            begin_use(w, w->next);
            end_use(w, w->next);
        }
    }
    (void)tt_crossings_add(&w->u->crossings, crossing, w->u->order->n, w->schedule);
    wait_for_reduce(w);
}

/* All-reduces over the replicas, each of which overlaps the norm of the previous unit; then the update. */
static void schedule_update(const struct tt_layout *layout, struct tt_schedule *schedule)
{
    int u = tt_layout_trained(layout, 0);

    if (u < layout->n_units)
        tt_schedule_collective(schedule, TT_BEGIN, TT_ALL_REDUCE, 0, u, TT_NONE);
    for (int next; u < layout->n_units; u = next) {
        next = tt_layout_trained(layout, u + 1);
        if (next < layout->n_units)
            tt_schedule_collective(schedule, TT_BEGIN, TT_ALL_REDUCE, 0, next, TT_NONE);
        tt_schedule_collective(schedule, TT_WAIT, TT_ALL_REDUCE, 0, u, TT_NONE);
        tt_schedule_add(schedule, TT_NORM, 0, u);
    }
    tt_fsdp_update(layout, schedule);
}

void tt_fsdp_schedule(const struct tt_fsdp *fsdp, struct tt_schedule *schedule)
{
    const struct tt_usage *u = fsdp->usage;
    size_t n_units = (size_t)u->layout->n_units;
    struct walk w = {.fsdp = fsdp, .u = u, .schedule = schedule, .reducing = TT_NONE};

    w.gathering = tt_calloc(n_units, sizeof *w.gathering);
    w.ready = tt_calloc(n_units, sizeof *w.ready);
    w.ends_at = tt_ids_new((size_t)u->n_positions);
    w.next_end = tt_calloc((size_t)u->n_uses + 1, sizeof *w.next_end);
    w.stays = tt_calloc((size_t)u->n_uses + 1, sizeof *w.stays);
    walk(&w);
    if (u->order->trains)
        schedule_update(u->layout, schedule);
    else
        tt_schedule_add(schedule, TT_CLIP, 0, TT_NONE);
    tt_free(w.gathering);
    tt_free(w.ready);
    tt_free(w.ends_at);
    tt_free(w.next_end);
    tt_free(w.stays);
}
