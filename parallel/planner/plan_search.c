/* SPDX-License-Identifier: MIT
 *
 * The search for one plan: candidates are ranked by their predictions, and the best are lowered and judged.
 */
#include "parallel/planner/plan_search.h"

#include <math.h>
#include <stdlib.h>

#include "core/base/mem.h"

enum {
    MOST_CANDIDATES = 64,
    LOWERED_A_ROUND = 2, /* since lowering takes most of the time */
};

/* Share of the memory limit. At positions that need less than this, exchange may take more than its limit without
 * making another peak. */
static const double OFF_PEAK = 0.97;

struct ranked {
    struct tt_candidate candidate;
    struct tt_plan plan; /* without its schedule */
    int index;
};

/* --- candidates --- */

/*
 * The sizes of buckets to try: single units, and sizes up to a multiple of that which saturates the link, but at most a
 * fifth of all parameters.
 */
static int bucket_sizes(const struct tt_plan_search *s, int64_t sizes[4])
{
    int64_t most = 16 * tt_cost_saturating_bytes(s->in->machine, s->in->usage->layout->groups[TT_GROUP_FSDP].n),
            all = 0;
    int n = 0;

    if (s->in->bucket_bytes) {
        sizes[0] = s->in->bucket_bytes;
        return 1;
    }
    for (int u = 0; u < s->in->usage->layout->n_units; u++)
        all += s->facts.unit_bytes[u];
    if (most > all / 5)
        most = all / 5;
    sizes[n++] = 0;
    for (int64_t part = 16; part >= 1; part /= 4)
        if (most / part > sizes[n - 1])
            sizes[n++] = most / part;
    return n;
}

static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->plan.fits != y->plan.fits)
        return x->plan.fits ? -1 : 1;
    if (x->plan.step_sec != y->plan.step_sec)
        return x->plan.step_sec < y->plan.step_sec ? -1 : 1;
    return x->plan.calls != y->plan.calls ? x->plan.calls - y->plan.calls : x->index - y->index;
}

/*
 * The cost table is not exact, so among candidates that are nearly as fast as the best, the one with the fewest
 * collectives wins. "Nearly" is measured by the time of communication too, which is all that can be gained: a hundredth
 * of a long step may be all of its communication.
 */
static void rank(struct ranked *list, int n)
{
    double best, as_good;

    qsort(list, (size_t)n, sizeof *list, compare_ranked);
    best = list[0].plan.step_sec;
    as_good = best + fmin(0.001 * best, 0.01 * list[0].plan.comm_sec);
    for (int i = 0; i < n && list[i].plan.fits && list[i].plan.step_sec <= as_good; i++)
        list[i].plan.step_sec = best;
    qsort(list, (size_t)n, sizeof *list, compare_ranked);
}

/* Many candidates give the same plan. */
static bool is_same(const struct ranked *a, const struct ranked *b)
{
    return a->plan.step_sec == b->plan.step_sec && a->plan.calls == b->plan.calls &&
           a->plan.step_bytes == b->plan.step_bytes && a->plan.exchanged_bytes == b->plan.exchanged_bytes;
}

static int64_t part_of(int64_t limit, double part)
{
    return limit == INT64_MAX ? limit : (int64_t)(part * (double)limit);
}

static struct tt_candidate least_memory(const bool *reshard)
{
    return (struct tt_candidate){.reshard = reshard, .stay = TT_STAY_BY_POLICY};
}

static int make_candidates(const struct tt_plan_search *s, struct tt_plan_target target, double tightness,
                           struct ranked *list)
{
    int64_t sizes[4];
    int n_sizes = bucket_sizes(s, sizes), n = 0;

    for (int size = 0; size < n_sizes; size++)
        for (int variant = 0; variant < 12; variant++) {
            struct ranked *r = &list[n];

            r->candidate = (struct tt_candidate){
                .reshard = target.reshard,
                .bucket_bytes = sizes[size],
                .within_compute = variant % 2 == 0,
                .expects_waits = variant / 2 % 2 == 1,
                .stay = (enum tt_stay)(variant / 4),
                .limits = {.step_bytes = part_of(target.step_bytes, tightness),
                           .exchanged_bytes = target.exchanged_bytes,
                           .slack_bytes = target.off_peak ? part_of(target.step_bytes, OFF_PEAK * tightness) : 0},
            };
            r->plan = tt_simple_fsdp_plan(&s->fsdp, r->candidate);
            tt_plan_release(&r->plan);
            r->index = n++;
        }
    rank(list, n);
    return n;
}

bool tt_plan_search_predict(const struct tt_plan_search *s, struct tt_plan_target target, double *ret_step_sec)
{
    struct ranked list[MOST_CANDIDATES];

    (void)make_candidates(s, target, 1.0, list);
    *ret_step_sec = list[0].plan.step_sec;
    return list[0].plan.fits;
}

struct tt_plan_need tt_plan_search_least(const struct tt_plan_search *s, const bool *reshard)
{
    struct tt_plan plan = tt_simple_fsdp_plan(&s->fsdp, least_memory(reshard));
    struct tt_plan_need need = {plan.step_bytes, plan.exchanged_bytes};

    tt_plan_release(&plan);
    return need;
}

/* --- lowering and judging --- */

double tt_plan_search_sec(const struct tt_plan_search *s, const struct tt_program *program)
{
    struct tt_timeline t;
    double sec;

    tt_cost_simulate(s->in->machine, program, &t);
    sec = t.step_sec;
    tt_timeline_release(&t);
    return sec;
}

static bool keeps(struct tt_plan_target target, const struct tt_program *program)
{
    return program->step_bytes <= target.step_bytes && tt_program_exchanged_bytes(program) <= target.exchanged_bytes;
}

/* Compares two programs that do not keep the target: first by memory, then by memory for exchange. */
static bool comes_closer(struct tt_plan_target target, const struct tt_program *a, const struct tt_program *b)
{
    bool a_fits = a->step_bytes <= target.step_bytes, b_fits = b->step_bytes <= target.step_bytes;

    if (a_fits != b_fits)
        return a_fits;
    return a_fits ? tt_program_exchanged_bytes(a) < tt_program_exchanged_bytes(b) : a->step_bytes < b->step_bytes;
}

/* Lowers a candidate. It replaces what was found if it is better. */
static int judge(const struct tt_plan_search *s, struct tt_plan_target target, struct tt_candidate candidate,
                 struct tt_plan_found *found)
{
    struct tt_plan plan = tt_simple_fsdp_plan(&s->fsdp, candidate);
    struct tt_lowering lowering = *s->in->lowering;
    struct tt_program *program = NULL;
    int rc = 0;

    lowering.free_early = true;
    TT_TRY(tt_program_new(&lowering, &plan.schedule, &program));
    found->keeps = keeps(target, program);
    if (!found->program || found->keeps || comes_closer(target, program, found->program)) {
        tt_program_free(found->program);
        found->program = program;
        program = NULL;
    }
out:
    tt_plan_release(&plan);
    tt_program_free(program);
    return rc;
}

static bool is_among(const struct ranked *r, const struct ranked *list, int n)
{
    for (int i = 0; i < n; i++)
        if (is_same(r, &list[i]))
            return true;
    return false;
}

int tt_plan_search_run(const struct tt_plan_search *s, struct tt_plan_target target, int rounds,
                       struct tt_plan_found *ret_found)
{
    /* Live bytes are known exactly, but not how tightly the memory plan can pack them. */
    static const double tightness[TT_PLAN_ROUNDS] = {1.0, 0.97, 0.94, 0.91, 0.85};
    struct ranked list[MOST_CANDIDATES], judged[TT_PLAN_ROUNDS * LOWERED_A_ROUND];
    struct tt_plan_found found = {0};
    int rc = 0, n_judged = 0;

    for (int round = 0; round < rounds && !found.keeps; round++) {
        int n = make_candidates(s, target, tightness[round], list);

        for (int i = 0, turn = 0; i < n && turn < LOWERED_A_ROUND && !found.keeps; i++) {
            if (i && is_same(&list[i], &list[i - 1]))
                continue;
            turn++;
            if (is_among(&list[i], judged, n_judged)) /* the tighter limit changed nothing */
                continue;
            judged[n_judged++] = list[i];
            TT_TRY(judge(s, target, list[i].candidate, &found));
        }
    }
    found.by_search = found.keeps;
    if (!found.keeps)
        TT_TRY(judge(s, target, least_memory(target.reshard), &found));
    found.step_sec = tt_plan_search_sec(s, found.program);
    *ret_found = found;
    found.program = NULL;
out:
    tt_program_free(found.program);
    return rc;
}

/* --- begin and end --- */

void tt_plan_search_begin(const struct tt_planner *in, struct tt_plan_search *ret_search)
{
    *ret_search = (struct tt_plan_search){.in = in};
    tt_step_facts_make(in->usage, in->lowering, in->machine, in->eager, &ret_search->facts);
    ret_search->fsdp = (struct tt_simple_fsdp){
        .lowering = in->lowering, .facts = &ret_search->facts, .machine = in->machine, .prefetch = in->prefetch};
}

void tt_plan_search_end(struct tt_plan_search *s)
{
    tt_step_facts_release(&s->facts);
}
