/* SPDX-License-Identifier: MIT
 *
 * The search for one plan: candidates by their prediction, the best of them lowered and judged.
 */
#include "parallel/planner/plan_search.h"

#include <math.h>
#include <stdlib.h>

#include "core/base/mem.h"

enum {
    MOST_CANDIDATES = 64,
    LOWERED_A_ROUND = 2, /* lowering is what costs */
};

/* Of the most memory: where less is needed, more of it may be exchanged than at the peak without making another peak. */
static const double OFF_PEAK = 0.97;

struct candidate {
    struct tt_plan_choice choice;
    struct tt_plan_outcome outcome;
    int index;
};

/* Lets go of everything as soon as possible and fetches it as late as possible. */
static const struct tt_plan_choice frugal = {.near = TT_STAY_BY_POLICY};

/* --- candidates --- */

/*
 * The sizes of buckets to try: single units, and some up to a multiple of what saturates the link, never more than a fifth
 * of all.
 */
static int bucket_sizes(const struct tt_plan_search *s, int64_t sizes[4])
{
    int64_t most = 16 * tt_cost_saturating_bytes(s->in->machine, s->in->usage->layout->shard_degree), all = 0;
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

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->outcome.fits != y->outcome.fits)
        return x->outcome.fits ? -1 : 1;
    if (x->outcome.step_sec != y->outcome.step_sec)
        return x->outcome.step_sec < y->outcome.step_sec ? -1 : 1;
    return x->outcome.calls != y->outcome.calls ? x->outcome.calls - y->outcome.calls : x->index - y->index;
}

/*
 * The table is not exact: among those that are nearly the best, the fewest collectives win. Nearly: as seen from what can
 * be gained, which is communication. A hundredth of a long step may be all of it, and ten times as much on another link.
 */
static void sort_candidates(struct candidate *list, int n)
{
    double best, near;

    qsort(list, (size_t)n, sizeof *list, compare_candidates);
    best = list[0].outcome.step_sec;
    near = best + fmin(0.001 * best, 0.01 * list[0].outcome.comm_sec);
    for (int i = 0; i < n && list[i].outcome.fits && list[i].outcome.step_sec <= near; i++)
        list[i].outcome.step_sec = best;
    qsort(list, (size_t)n, sizeof *list, compare_candidates);
}

/* Most choices make no difference for most models. */
static bool is_same(const struct candidate *a, const struct candidate *b)
{
    return a->outcome.step_sec == b->outcome.step_sec && a->outcome.calls == b->outcome.calls &&
           a->outcome.step_bytes == b->outcome.step_bytes && a->outcome.exchanged_bytes == b->outcome.exchanged_bytes;
}

static int64_t part_of(int64_t limit, double part)
{
    return limit == INT64_MAX ? limit : (int64_t)(part * (double)limit);
}

static int make_candidates(const struct tt_plan_search *s, double tightness, struct candidate *list)
{
    int64_t sizes[4];
    int n_sizes = bucket_sizes(s, sizes), n = 0;

    for (int size = 0; size < n_sizes; size++)
        for (int variant = 0; variant < 12; variant++) {
            struct tt_schedule schedule = {0};
            struct candidate *c = &list[n];

            c->choice = (struct tt_plan_choice){
                .bucket_bytes = sizes[size],
                .within_compute = variant % 2 == 0,
                .patient = variant / 2 % 2 == 1,
                .near = (enum tt_stay)(variant / 4),
                .step_bytes = part_of(s->step_bytes, tightness),
                .exchanged_bytes = s->exchanged_bytes,
                .slack_bytes = s->off_peak ? part_of(s->step_bytes, OFF_PEAK * tightness) : 0,
            };
            tt_simple_fsdp_schedule(&s->fsdp, &c->choice, &schedule, &c->outcome);
            tt_schedule_release(&schedule);
            c->index = n++;
        }
    sort_candidates(list, n);
    return n;
}

bool tt_plan_search_predict(const struct tt_plan_search *s, double *ret_step_sec)
{
    struct candidate list[MOST_CANDIDATES];

    (void)make_candidates(s, 1.0, list);
    *ret_step_sec = list[0].outcome.step_sec;
    return list[0].outcome.fits;
}

struct tt_plan_outcome tt_plan_search_least(struct tt_plan_search *s)
{
    struct tt_schedule schedule = {0};
    struct tt_plan_outcome least;

    tt_simple_fsdp_schedule(&s->fsdp, &frugal, &schedule, &least);
    tt_schedule_release(&schedule);
    s->out_of_reach = least.step_bytes > s->step_bytes;
    return least;
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

static bool keeps_promises(const struct tt_plan_search *s, const struct tt_program *program)
{
    return program->step_bytes <= s->step_bytes && tt_program_exchanged_bytes(program) <= s->exchanged_bytes;
}

/* Of two programs of which neither keeps both promises: memory first, then what is exchanged. */
static bool is_better(const struct tt_plan_search *s, const struct tt_program *a, const struct tt_program *b)
{
    bool a_fits = a->step_bytes <= s->step_bytes, b_fits = b->step_bytes <= s->step_bytes;

    if (a_fits != b_fits)
        return a_fits;
    return a_fits ? tt_program_exchanged_bytes(a) < tt_program_exchanged_bytes(b) : a->step_bytes < b->step_bytes;
}

static int judge(struct tt_plan_search *s, const struct tt_plan_choice *choice)
{
    struct tt_schedule schedule = {0};
    struct tt_plan_outcome outcome;
    struct tt_program *program = NULL;
    struct tt_lowering lowering = *s->in->lowering;
    int rc = 0;

    lowering.free_early = true;
    tt_simple_fsdp_schedule(&s->fsdp, choice, &schedule, &outcome);
    TT_TRY(tt_program_new(&lowering, &schedule, &program));
    s->best_kept = keeps_promises(s, program);
    if (!s->best || s->best_kept || is_better(s, program, s->best)) {
        tt_program_free(s->best);
        s->best = program;
        program = NULL;
    }
out:
    tt_schedule_release(&schedule);
    tt_program_free(program);
    return rc;
}

static bool is_among(const struct candidate *c, const struct candidate *list, int n)
{
    for (int i = 0; i < n; i++)
        if (is_same(c, &list[i]))
            return true;
    return false;
}

int tt_plan_search_run(struct tt_plan_search *s, int rounds)
{
    /* Live bytes are known exactly, what the memory plan makes of them is not. */
    static const double tightness[TT_PLAN_ROUNDS] = {1.0, 0.97, 0.94, 0.91, 0.85};
    struct candidate list[MOST_CANDIDATES], judged[TT_PLAN_ROUNDS * LOWERED_A_ROUND];
    int rc = 0, n_judged = 0;

    s->best_kept = false;
    tt_program_free(s->best);
    s->best = NULL;
    for (int round = 0; round < rounds && !s->best_kept && !s->out_of_reach; round++) {
        int n = make_candidates(s, tightness[round], list);

        for (int i = 0, turn = 0; i < n && turn < LOWERED_A_ROUND && !s->best_kept; i++) {
            if (i && is_same(&list[i], &list[i - 1]))
                continue;
            turn++;
            if (is_among(&list[i], judged, n_judged)) /* a tighter limit that changed nothing */
                continue;
            judged[n_judged++] = list[i];
            TT_TRY(judge(s, &list[i].choice));
        }
    }
    if (!s->best_kept) {
        s->gave_way = true;
        TT_TRY(judge(s, &frugal));
    }
out:
    return rc;
}

/* --- its life --- */

void tt_plan_search_begin(const struct tt_planner *in, struct tt_plan_search *ret_search)
{
    int64_t step_bytes = in->choose_reshard ? in->step_limit : in->eager->step_bytes;

    *ret_search = (struct tt_plan_search){.in = in,
                                          .step_bytes = in->step_limit < step_bytes ? in->step_limit : step_bytes,
                                          .exchanged_bytes = INT64_MAX};
    tt_step_facts_make(in->usage, in->machine, in->eager, &ret_search->facts);
    ret_search->fsdp = (struct tt_simple_fsdp){.lowering = in->lowering,
                                               .facts = &ret_search->facts,
                                               .machine = in->machine,
                                               .reshard = in->reshard,
                                               .prefetch = in->prefetch};
}

void tt_plan_search_end(struct tt_plan_search *s)
{
    tt_program_free(s->best);
    tt_step_facts_release(&s->facts);
}
