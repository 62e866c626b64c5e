/* SPDX-License-Identifier: MIT
 *
 * The planner: candidates, promises, and what to keep gathered when the reshard policy is auto.
 */
#include "parallel/planner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "parallel/simple_fsdp.h"

enum {
    MOST_CANDIDATES = 64,
    ROUNDS = 5,
    FIRST_ROUNDS = 2,    /* for a promise that another one stands behind */
    LOWERED_A_ROUND = 2, /* lowering is what costs */
    KEEP_TRIALS = 16,    /* numbers of kept units that auto tries */
};

/* Of the most memory: where less is needed, more of it may be exchanged than at the peak without making another peak. */
static const double OFF_PEAK = 0.97;

struct candidate {
    struct tt_plan_choice choice;
    struct tt_plan_outcome outcome;
    int index;
};

struct planner {
    const struct tt_planner *in;
    struct tt_simple_fsdp fsdp;
    struct tt_usage usage;
    int64_t *other_bytes;
    int64_t step_bytes;      /* the promise */
    bool out_of_reach;       /* not even the frugal schedule would hold it */
    int64_t exchanged_bytes; /* the promise of what of it is exchanged */
    bool off_peak;           /* more may be, where less memory is needed than at the peak */
    struct tt_program *best; /* of the lowered ones */
    bool best_kept;          /* it holds both */
    bool gave_way;           /* a search found nothing that does but, at most, the frugal schedule */
};

/* --- memory of a program, by instruction --- */

/* Live bytes at each instruction of buffers that are, or are not, for the sake of exchange; state is neither. */
static int64_t *live_bytes(const struct tt_program *p, bool exchanged)
{
    int64_t *live = tt_calloc((size_t)p->n_instrs + 1, sizeof *live);

    for (int i = 0; i < p->n_buffers; i++) {
        const struct tt_buffer *b = &p->buffers[i];
        int64_t bytes = (b->bytes + 63) / 64 * 64;

        if (b->root != i || b->kind == TT_MEMORY_PARAM || b->kind == TT_MEMORY_CONST ||
            tt_simple_fsdp_exchanged(b->kind) != exchanged)
            continue;
        live[b->first] += bytes;
        live[b->last + 1] -= bytes;
    }
    for (int i = 1; i <= p->n_instrs; i++)
        live[i] += live[i - 1];
    return live;
}

int64_t tt_planner_exchanged_bytes(const struct tt_program *program)
{
    int64_t *live = live_bytes(program, true), bytes = live[program->peak_instr];

    tt_free(live);
    return bytes;
}

/* Lets go of everything as soon as possible and fetches it as late as possible. */
static const struct tt_plan_choice frugal = {.near = TT_NEAR_NONE};

static void measure_eager(struct planner *p)
{
    const struct tt_program *eager = p->in->eager;
    int64_t *live = live_bytes(eager, false);
    int n_nodes = eager->graph->n_nodes;

    p->other_bytes = tt_calloc((size_t)eager->microbatches * (size_t)n_nodes, sizeof *p->other_bytes);
    for (int i = 0; i < eager->n_instrs; i++)
        if (eager->instrs[i].kind == TT_RUN)
            p->other_bytes[eager->instrs[i].microbatch * n_nodes + eager->instrs[i].node] = live[i];
    p->step_bytes = p->in->choose_reshard ? p->in->step_limit : eager->step_bytes;
    if (p->in->step_limit < p->step_bytes)
        p->step_bytes = p->in->step_limit;
    tt_free(live);
}

/* --- candidates --- */

/*
 * The sizes of buckets to try: single units, and some up to a multiple of what saturates the link, never more than a fifth
 * of all.
 */
static int bucket_sizes(const struct planner *p, int64_t sizes[4])
{
    int64_t most = 16 * tt_cost_saturating_bytes(p->in->machine, p->usage.layout->shard_degree), all = 0;
    int n = 0;

    if (p->in->bucket_bytes) {
        sizes[0] = p->in->bucket_bytes;
        return 1;
    }
    for (int u = 0; u < p->usage.layout->n_units; u++)
        all += p->usage.unit_bytes[u];
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

static int make_candidates(const struct planner *p, double tightness, struct candidate *list)
{
    int64_t sizes[4];
    int n_sizes = bucket_sizes(p, sizes), n = 0;

    for (int s = 0; s < n_sizes; s++)
        for (int variant = 0; variant < 12; variant++) {
            struct tt_schedule schedule = {0};
            struct candidate *c = &list[n];

            c->choice = (struct tt_plan_choice){
                .bucket_bytes = sizes[s],
                .within_compute = variant % 2 == 0,
                .patient = variant / 2 % 2 == 1,
                .near = (enum tt_near)(variant / 4),
                .step_bytes = part_of(p->step_bytes, tightness),
                .exchanged_bytes = p->exchanged_bytes,
                .slack_bytes = p->off_peak ? part_of(p->step_bytes, OFF_PEAK * tightness) : 0,
            };
            tt_simple_fsdp_schedule(&p->fsdp, &c->choice, &schedule, &c->outcome);
            tt_schedule_release(&schedule);
            c->index = n++;
        }
    sort_candidates(list, n);
    return n;
}

/* --- lowering and judging --- */

static double simulated_sec(const struct planner *p, const struct tt_program *program)
{
    struct tt_timeline t;
    double sec;

    tt_cost_simulate(p->in->machine, program, &t);
    sec = t.step_sec;
    tt_timeline_release(&t);
    return sec;
}

static bool keeps_promises(const struct planner *p, const struct tt_program *program)
{
    return program->step_bytes <= p->step_bytes && tt_planner_exchanged_bytes(program) <= p->exchanged_bytes;
}

/* Of two programs of which neither keeps both promises: memory first, then what is exchanged. */
static bool is_better(const struct planner *p, const struct tt_program *a, const struct tt_program *b)
{
    bool a_fits = a->step_bytes <= p->step_bytes, b_fits = b->step_bytes <= p->step_bytes;

    if (a_fits != b_fits)
        return a_fits;
    return a_fits ? tt_planner_exchanged_bytes(a) < tt_planner_exchanged_bytes(b) : a->step_bytes < b->step_bytes;
}

static int judge(struct planner *p, const struct tt_plan_choice *choice)
{
    struct tt_schedule schedule = {0};
    struct tt_plan_outcome outcome;
    struct tt_program *program = NULL;
    struct tt_lowering lowering = *p->in->lowering;
    int rc = 0;

    lowering.free_early = true;
    tt_simple_fsdp_schedule(&p->fsdp, choice, &schedule, &outcome);
    TT_TRY(tt_program_new(&lowering, &schedule, &program));
    p->best_kept = keeps_promises(p, program);
    if (!p->best || p->best_kept || is_better(p, program, p->best)) {
        tt_program_free(p->best);
        p->best = program;
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

static int search(struct planner *p, int rounds)
{
    /* Live bytes are known exactly, what the memory plan makes of them is not. */
    static const double tightness[ROUNDS] = {1.0, 0.97, 0.94, 0.91, 0.85};
    struct candidate list[MOST_CANDIDATES], judged[ROUNDS * LOWERED_A_ROUND];
    int rc = 0, n_judged = 0;

    p->best_kept = false;
    tt_program_free(p->best);
    p->best = NULL;
    for (int round = 0; round < rounds && !p->best_kept && !p->out_of_reach; round++) {
        int n = make_candidates(p, tightness[round], list);

        for (int i = 0, turn = 0; i < n && turn < LOWERED_A_ROUND && !p->best_kept; i++) {
            if (i && is_same(&list[i], &list[i - 1]))
                continue;
            turn++;
            if (is_among(&list[i], judged, n_judged)) /* a tighter limit that changed nothing */
                continue;
            judged[n_judged++] = list[i];
            TT_TRY(judge(p, &list[i].choice));
        }
    }
    if (!p->best_kept) {
        p->gave_way = true;
        TT_TRY(judge(p, &frugal));
    }
out:
    return rc;
}

/* --- with the units' policies as given --- */

/* What may be exchanged, as a part of what the eager engine exchanges at its peak: the best promise first. */
static const struct {
    double part;
    bool off_peak;
} promises[] = {{0.85, true}, {0.85, false}, {1.0, true}, {1.0, false}};

enum { N_PROMISES = sizeof promises / sizeof *promises };

/* The frugal schedule; what it needs tells whether the limit is out of reach. */
static struct tt_plan_outcome need_least(struct planner *p)
{
    struct tt_schedule schedule = {0};
    struct tt_plan_outcome least;

    tt_simple_fsdp_schedule(&p->fsdp, &frugal, &schedule, &least);
    tt_schedule_release(&schedule);
    p->out_of_reach = least.step_bytes > p->step_bytes;
    return least;
}

/* A plan that saves memory by being slower than eager is not what was asked for. */
static int plan_as_given(struct planner *p)
{
    double eager_bytes = (double)tt_planner_exchanged_bytes(p->in->eager);
    double eager_sec = simulated_sec(p, p->in->eager);
    struct tt_plan_outcome least = need_least(p);
    int rc = 0;

    for (int i = 0; i < N_PROMISES; i++) {
        p->exchanged_bytes = (int64_t)(promises[i].part * eager_bytes);
        p->off_peak = promises[i].off_peak;
        if (i + 1 < N_PROMISES && least.exchanged_bytes > p->exchanged_bytes)
            continue;
        TT_TRY(search(p, i + 1 < N_PROMISES ? FIRST_ROUNDS : ROUNDS));
        if (p->out_of_reach || (p->best_kept && simulated_sec(p, p->best) <= 1.01 * eager_sec))
            break;
    }
out:
    return rc;
}

/* --- what to keep gathered (reshard policy auto) --- */

struct worth {
    int unit;
    double exposed_per_byte; /* of its gathers in backward, when everything is resharded */
};

/* Equal ones: units used late in forward hold their memory for a shorter time. */
static int compare_worth(const void *a, const void *b)
{
    const struct worth *x = a, *y = b;

    if (x->exposed_per_byte != y->exposed_per_byte)
        return x->exposed_per_byte > y->exposed_per_byte ? -1 : 1;
    return y->unit - x->unit;
}

/* How much every unit's gathers hold up compute in the program found so far; most worth keeping first. */
static struct worth *rank_units(const struct planner *p)
{
    const struct tt_program *program = p->best;
    int n_units = p->usage.layout->n_units;
    struct worth *worth = tt_calloc((size_t)n_units + 1, sizeof *worth);
    struct tt_timeline t;

    tt_cost_simulate(p->in->machine, program, &t);
    for (int u = 0; u < n_units; u++)
        worth[u].unit = u;
    for (int i = 0; i < program->n_instrs; i++) {
        int n;
        const int *units = tt_instr_units(program->buckets, &program->instrs[i], &n);

        for (int k = 0; k < n && program->instrs[i].kind == TT_UNSHARD; k++)
            worth[units[k]].exposed_per_byte +=
                t.exposed[i] / (double)(tt_instr_shard_bytes(program, &program->instrs[i]) + 1);
    }
    qsort(worth, (size_t)n_units, sizeof *worth, compare_worth);
    tt_timeline_release(&t);
    return worth;
}

static void keep(const struct planner *p, const struct worth *worth, int n)
{
    for (int i = 0; i < p->usage.layout->n_units; i++)
        p->in->reshard[worth[i].unit] = i >= n;
}

/* Of the numbers of units to keep, the one that is predicted to be fastest within the limit; the least of equals. */
static int best_number_to_keep(struct planner *p, const struct worth *worth)
{
    struct candidate list[MOST_CANDIDATES];
    int n_units = p->usage.layout->n_units, best = 0;
    int stride = (n_units + KEEP_TRIALS - 1) / KEEP_TRIALS;
    double best_sec = 0.0;

    for (int n = 0; n <= n_units; n += stride) {
        keep(p, worth, n);
        (void)make_candidates(p, 1.0, list);
        if (n && !list[0].outcome.fits)
            continue;
        if (n == 0 || list[0].outcome.step_sec < 0.999 * best_sec) {
            best = n;
            best_sec = list[0].outcome.step_sec;
        }
    }
    return best;
}

/* Lowering may find that the prediction of memory was a little too good: then one unit less, until it fits. */
static int keep_what_fits(struct planner *p)
{
    struct worth *worth = NULL;
    int rc = 0, n;

    for (int u = 0; u < p->usage.layout->n_units; u++)
        p->in->reshard[u] = true;
    (void)need_least(p);
    TT_TRY(search(p, ROUNDS));
    if (!p->best_kept) /* there is no room for more */
        goto out;
    worth = rank_units(p);
    for (n = best_number_to_keep(p, worth); n > 0; n--) {
        keep(p, worth, n);
        TT_TRY(search(p, ROUNDS));
        if (p->best_kept)
            break;
    }
    if (n == 0) {
        keep(p, worth, 0);
        TT_TRY(search(p, ROUNDS));
    }
out:
    tt_free(worth);
    return rc;
}

/* What may be exchanged at every moment, because everything else leaves it at every moment. */
static int64_t always_left(const struct planner *p)
{
    int64_t most = 0;

    for (int i = 0; i < p->usage.microbatches * p->usage.n_nodes; i++)
        if (p->other_bytes[i] > most)
            most = p->other_bytes[i];
    return p->step_bytes > most ? p->step_bytes - most : 0;
}

static bool is_faster(const struct planner *p, const struct tt_program *a, const struct tt_program *b)
{
    bool a_fits = a->step_bytes <= p->step_bytes, b_fits = b->step_bytes <= p->step_bytes;

    if (a_fits && b_fits)
        return simulated_sec(p, a) < simulated_sec(p, b);
    return a_fits || (!b_fits && a->step_bytes < b->step_bytes);
}

/* In place of the best plan of an earlier search if it is faster; one that fits before one that does not. */
static void keep_faster(struct planner *p, struct tt_program **best, bool *best_reshard)
{
    if (*best && !is_faster(p, p->best, *best))
        return;
    tt_program_free(*best);
    *best = p->best;
    p->best = NULL;
    memcpy(best_reshard, p->in->reshard, (size_t)p->usage.layout->n_units * sizeof *best_reshard);
}

/* As if the policy were not auto, which in->reshard says then. */
static int plan_default(struct planner *p, const bool *reshard)
{
    const int64_t limit = p->step_bytes;
    int rc;

    memcpy(p->in->reshard, reshard, (size_t)p->usage.layout->n_units * sizeof *reshard);
    if (p->in->eager->step_bytes < limit)
        p->step_bytes = p->in->eager->step_bytes;
    rc = plan_as_given(p);
    p->step_bytes = limit;
    return rc;
}

/*
 * Exchange may fill whatever is free at a moment. That leaves holes of all sizes, of which the memory plan cannot make use
 * as well; where it could not, plans are also made that give exchange a fixed part of memory. The fastest is taken, which
 * is never slower than the default policy where that fits.
 */
static int choose_what_to_keep(struct planner *p)
{
    size_t n_units = (size_t)p->usage.layout->n_units;
    const double parts[] = {1.0, 0.85};
    bool *given = tt_calloc(n_units + 1, sizeof *given), *chosen = tt_calloc(n_units + 1, sizeof *chosen);
    struct tt_program *best = NULL;
    int rc = 0;

    memcpy(given, p->in->reshard, n_units * sizeof *given);
    TT_TRY(keep_what_fits(p));
    keep_faster(p, &best, chosen);
    for (size_t i = 0; i < sizeof parts / sizeof *parts && p->gave_way && !p->out_of_reach; i++) {
        p->exchanged_bytes = part_of(always_left(p), parts[i]);
        TT_TRY(keep_what_fits(p));
        keep_faster(p, &best, chosen);
    }
    TT_TRY(plan_default(p, given));
    keep_faster(p, &best, chosen);
    memcpy(p->in->reshard, chosen, n_units * sizeof *chosen);
    tt_program_free(p->best);
    p->best = best;
    best = NULL;
out:
    tt_program_free(best);
    tt_free(given);
    tt_free(chosen);
    return rc;
}

/* --- all of it --- */

int tt_planner_run(const struct tt_planner *in, struct tt_program **ret_program)
{
    struct planner p = {.in = in};
    int rc = 0;

    TT_TRY(tt_usage_make(in->lowering->graph, in->lowering->layout, in->lowering->microbatches, in->lowering->threads,
                         in->machine, &p.usage));
    measure_eager(&p);
    p.fsdp = (struct tt_simple_fsdp){.lowering = in->lowering,
                                     .usage = &p.usage,
                                     .machine = in->machine,
                                     .other_bytes = p.other_bytes,
                                     .reshard = in->reshard,
                                     .prefetch = in->prefetch};
    p.exchanged_bytes = INT64_MAX;
    TT_TRY(in->choose_reshard ? choose_what_to_keep(&p) : plan_as_given(&p));
    *ret_program = p.best;
    p.best = NULL;
out:
    tt_program_free(p.best);
    tt_free(p.other_bytes);
    tt_usage_release(&p.usage);
    return rc;
}
