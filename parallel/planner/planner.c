/* SPDX-License-Identifier: MIT
 *
 * The planner: sets the targets of programs, and chooses which units stay gathered if the reshard policy is auto.
 */
#include "parallel/planner/planner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/program/instr/instr.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/planner/simple_fsdp.h"

enum { ROUNDS = 5 }; /* each round has a tighter limit than the one before */

struct search {
    const struct tt_planner *in;
    struct tt_step_facts facts;
    struct tt_simple_fsdp fsdp;
};

/* Limits that a program must keep, in bytes. */
struct target {
    const bool *reshard;     /* [unit] whether to free it between forward and backward; not owned */
    int64_t step_bytes;      /* most transient memory */
    int64_t exchanged_bytes; /* most memory for exchange, at the peak */
    bool off_peak;           /* where the step needs less memory than at its peak, exchange may take more */
};

/* The result of a search; release it with release_found. */
struct found {
    struct tt_program *program; /* the first program that keeps the target, else the closest one */
    bool *reshard;              /* [unit] as in its target */
    double step_sec;            /* predicted */
    bool keeps;                 /* whether it keeps the target */
    bool tight; /* no ranked candidate keeps the target, and the one with the least memory was lowered too */
};

static void release_found(struct found *found)
{
    tt_program_free(found->program);
    tt_free(found->reshard);
    *found = (struct found){0};
}

static bool *copy_reshard(const struct search *s, const bool *reshard)
{
    size_t n_units = (size_t)s->in->usage->layout->n_units;
    bool *copy = tt_calloc(n_units + 1, sizeof *copy);

    memcpy(copy, reshard, n_units * sizeof *copy);
    return copy;
}

/* The largest number of bytes that a step uses at any time: of all memory, and of memory for exchange. */
struct plan_need {
    int64_t step_bytes, exchanged_bytes;
};

/*
 * --- the search for one program ---
 *
 * Candidates are planned and ranked by predicted time, and the best are lowered until one keeps its target. The
 * sections below set targets and may search several times.
 */

enum {
    MOST_CANDIDATES = 64,
    LOWERED_A_ROUND = 2, /* limits the number of lowered candidates, since lowering takes most of the time */
};

/* Share of the memory limit. At positions that need less than this, exchange may exceed its own limit without a new
 * peak. */
static const double OFF_PEAK = 0.97;

struct ranked {
    struct tt_candidate candidate;
    struct tt_plan plan; /* without its schedule */
    int index;
};

/*
 * The bucket sizes to try: single units, and sizes up to a multiple of the saturating size, but no more than a fifth of
 * all parameters.
 */
static int bucket_sizes(const struct search *s, int64_t sizes[4])
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
 * collectives wins. "Nearly" is also measured against the time of communication, the only time that a plan can save,
 * which may be less than a hundredth of a long step.
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

/* Whether two candidates give the same plan; many pairs do. */
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

static int make_candidates(const struct search *s, struct target target, double tightness, struct ranked *list)
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

/* The memory of the candidate that needs the least: it frees early and gathers late. */
static struct plan_need least_need(const struct search *s, const bool *reshard)
{
    struct tt_plan plan = tt_simple_fsdp_plan(&s->fsdp, least_memory(reshard));
    struct plan_need need = {plan.step_bytes, plan.exchanged_bytes};

    tt_plan_release(&plan);
    return need;
}

/* Predicted seconds of a program. */
static double predicted_sec(const struct search *s, const struct tt_program *program)
{
    struct tt_timeline t;
    double sec;

    tt_cost_simulate(s->in->machine, program, &t);
    sec = t.step_sec;
    tt_timeline_release(&t);
    return sec;
}

/* Compares two programs that do not keep the target: first by all memory, then by the memory for exchange. */
static bool comes_closer(struct target target, const struct tt_program *a, const struct tt_program *b)
{
    bool a_fits = a->step_bytes <= target.step_bytes, b_fits = b->step_bytes <= target.step_bytes;

    if (a_fits != b_fits)
        return a_fits;
    return a_fits ? tt_program_exchanged_bytes(a) < tt_program_exchanged_bytes(b) : a->step_bytes < b->step_bytes;
}

/* Lowers a candidate. If it is better than the best so far, it replaces that. */
static int judge(const struct search *s, struct target target, struct tt_candidate candidate, struct found *found)
{
    struct tt_plan plan = tt_simple_fsdp_plan(&s->fsdp, candidate);
    struct tt_lowering lowering = *s->in->lowering;
    struct tt_program *program = NULL;
    int rc = 0;

    lowering.free_early = true;
    TT_TRY(tt_program_new(&lowering, &plan.schedule, &program));
    found->keeps =
        program->step_bytes <= target.step_bytes && tt_program_exchanged_bytes(program) <= target.exchanged_bytes;
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

/* Runs up to `rounds` rounds of candidates (at most ROUNDS). If none keeps the target, tries the candidate with the
 * least memory. */
static int search_program(const struct search *s, struct target target, int rounds, struct found *ret_found)
{
    /* live bytes are known exactly, but the memory plan may not pack them tightly */
    static const double tightness[ROUNDS] = {1.0, 0.97, 0.94, 0.91, 0.85};
    struct ranked list[MOST_CANDIDATES], judged[ROUNDS * LOWERED_A_ROUND];
    struct found found = {.reshard = copy_reshard(s, target.reshard)};
    int rc = 0, n_judged = 0;

    for (int round = 0; round < rounds && !found.keeps; round++) {
        int n = make_candidates(s, target, tightness[round], list);

        for (int i = 0, turn = 0; i < n && turn < LOWERED_A_ROUND && !found.keeps; i++) {
            int k = 0;

            if (i && is_same(&list[i], &list[i - 1]))
                continue;
            turn++;
            while (k < n_judged && !is_same(&list[i], &judged[k]))
                k++;
            if (k < n_judged) /* the tighter limit changed nothing */
                continue;
            judged[n_judged++] = list[i];
            TT_TRY(judge(s, target, list[i].candidate, &found));
        }
    }
    found.tight = !found.keeps;
    if (!found.keeps)
        TT_TRY(judge(s, target, least_memory(target.reshard), &found));
    found.step_sec = predicted_sec(s, found.program);
    *ret_found = found;
    found = (struct found){0};
out:
    release_found(&found);
    return rc;
}

/*
 * --- with a given reshard policy ---
 *
 * Tries targets from the hardest to the easiest, and takes the first plan that keeps its target without being slower
 * than the eager scheduler. If there is none, the best plan is compared with the eager scheduler's own schedule.
 */

enum { FIRST_ROUNDS = 2 }; /* for a target that an easier one follows */

/* Limits on the memory for exchange, relative to the eager scheduler's memory for exchange at its peak. */
static const struct {
    double part;
    bool off_peak;
} parts[] = {{0.85, true}, {0.85, false}, {1.0, true}, {1.0, false}};

enum { N_PARTS = sizeof parts / sizeof *parts };

static void replace(struct found *found, struct found *by)
{
    release_found(found);
    *found = *by;
    *by = (struct found){0};
}

/* Equal predictions may differ in their last bits, since programs add the same seconds in different orders. */
static bool is_faster(double sec, double than)
{
    return sec < than * (1.0 - 1e-9);
}

/*
 * Keeps the better of two programs for a limit, and releases the other one. A program that fits is better than one that
 * does not. If both fit, the faster one is better; if neither fits, the smaller one.
 */
static void keep_better(int64_t step_limit, struct found *best, struct found *next)
{
    int64_t bytes = next->program->step_bytes, best_bytes = best->program ? best->program->step_bytes : INT64_MAX;
    bool comparable = (bytes <= step_limit && best_bytes <= step_limit) || bytes == best_bytes;

    if (!best->program || (comparable ? is_faster(next->step_sec, best->step_sec) : bytes < best_bytes))
        replace(best, next);
    else
        release_found(next);
}

/* ret_found[0] is the eager scheduler's program; ret_found[1] is the same schedule with memory freed after its last
 * read, as plans do. */
static int make_eager(const struct search *s, const bool *reshard, struct found ret_found[2])
{
    const struct tt_fsdp fsdp = {.usage = s->in->usage, .reshard = reshard, .prefetch = s->in->prefetch};
    struct tt_lowering lowering = *s->in->lowering;
    struct tt_schedule schedule = {0};
    int rc = 0;

    tt_fsdp_schedule(&fsdp, &schedule);
    for (int early = 0; early < 2; early++) {
        lowering.free_early = early;
        ret_found[early].reshard = copy_reshard(s, reshard);
        TT_TRY(tt_program_new(&lowering, &schedule, &ret_found[early].program));
        ret_found[early].step_sec = predicted_sec(s, ret_found[early].program);
    }
out:
    tt_schedule_release(&schedule);
    return rc;
}

/* Finds the first plan that keeps its target and is not slower than eager; if there is none, the best of all plans. */
static int try_targets(const struct search *s, struct target target, const struct found *eager, struct found *best)
{
    double eager_bytes = (double)tt_program_exchanged_bytes(eager->program);
    struct plan_need least = least_need(s, target.reshard);
    bool out_of_reach = least.step_bytes > target.step_bytes;
    struct found next;
    int rc = 0;

    for (int i = out_of_reach ? N_PARTS - 1 : 0; i < N_PARTS; i++) {
        int rounds = out_of_reach ? 0 : i + 1 < N_PARTS ? FIRST_ROUNDS : ROUNDS;

        target.exchanged_bytes = (int64_t)(parts[i].part * eager_bytes);
        target.off_peak = parts[i].off_peak;
        if (i + 1 < N_PARTS && least.exchanged_bytes > target.exchanged_bytes)
            continue;
        TT_TRY(search_program(s, target, rounds, &next));
        if (next.keeps && !is_faster(eager->step_sec, next.step_sec)) {
            replace(best, &next);
            break;
        }
        keep_better(target.step_bytes, best, &next);
    }
out:
    return rc;
}

/*
 * --- no plan is within the limit ---
 *
 * Looks for plans smaller than *best: first plans made without a limit; then, if some plan might be within the limit,
 * plans for limits somewhat below the memory of *best. Only lowering shows the memory of a plan, so this tries several
 * limits.
 */
static int squeeze(const struct search *s, struct target target, const struct found *eager, struct found *best)
{
    static const double steps[] = {1.0, 0.9975, 0.995, 0.99};
    bool within_reach = least_need(s, target.reshard).step_bytes <= target.step_bytes;
    struct found next = {0};
    int rc = 0;

    target.step_bytes = eager->program->step_bytes;
    TT_TRY(try_targets(s, target, eager, &next));
    keep_better(0, best, &next);
    for (size_t i = 0; within_reach && i < sizeof steps / sizeof *steps; i++) {
        target.step_bytes = (int64_t)(steps[i] * (double)best->program->step_bytes) - 1;
        TT_TRY(try_targets(s, target, eager, &next));
        keep_better(0, best, &next);
    }
out:
    release_found(&next);
    return rc;
}

/*
 * --- the plan ---
 *
 * Plans a program for a given reshard policy. Compared with the eager scheduler's program for that policy, the result
 *   never takes more memory, and is within step_limit if any plan is;
 *   is never predicted to be slower, if eager's is within step_limit too;
 *   takes at most 0.85 of eager's memory for exchange at the peak, if some plan does so without being slower.
 * If no plan is within step_limit, the result is the smallest plan found; it takes no more memory than the plan without
 * a limit.
 *
 *   reshard  [unit] free it between forward and backward
 */
static int plan_as_given(const struct search *s, const bool *reshard, int64_t step_limit, struct found *ret_found)
{
    struct found eager[2] = {{0}}, best = {0};
    struct target target = {.reshard = reshard, .step_bytes = step_limit};
    int rc = 0;

    TT_TRY(make_eager(s, reshard, eager));
    if (eager[0].program->step_bytes < target.step_bytes)
        target.step_bytes = eager[0].program->step_bytes;
    TT_TRY(try_targets(s, target, &eager[0], &best));
    if (best.program->step_bytes > step_limit)
        TT_TRY(squeeze(s, target, &eager[0], &best));
    keep_better(target.step_bytes, &best, &eager[1]);
    keep_better(target.step_bytes, &best, &eager[0]);
    *ret_found = best;
    best = (struct found){0};
out:
    release_found(&best);
    release_found(&eager[1]);
    release_found(&eager[0]);
    return rc;
}

enum { KEEP_TRIALS = 16 }; /* how many numbers of kept units auto tries at most */

/* --- the units to keep gathered (reshard policy auto) --- */

struct worth {
    int unit;
    double exposed_per_byte; /* seconds by which its gathers in backward delay compute, if all units are resharded */
};

/* Among units of equal value, the one that comes later in forward is first, since it holds its memory for a shorter
 * time. */
static int compare_worth(const void *a, const void *b)
{
    const struct worth *x = a, *y = b;

    if (x->exposed_per_byte != y->exposed_per_byte)
        return x->exposed_per_byte > y->exposed_per_byte ? -1 : 1;
    return y->unit - x->unit;
}

/* Ranks the units by how long their gathers delay compute, in a program that reshards all units. */
static struct worth *rank_units(const struct search *s, const struct tt_program *program)
{
    int n_units = s->in->usage->layout->n_units;
    struct worth *worth = tt_calloc((size_t)n_units + 1, sizeof *worth);
    struct tt_timeline t;

    tt_cost_simulate(s->in->machine, program, &t);
    for (int u = 0; u < n_units; u++)
        worth[u].unit = u;
    for (int i = 0; i < program->n_instrs; i++) {
        bool gathers = tt_instr_row(&program->instrs[i])->begins && program->instrs[i].collective.op == TT_ALL_GATHER;
        const struct tt_bucket of = tt_instr_units(program->buckets, &program->instrs[i]);

        for (int k = 0; k < of.n && gathers; k++)
            worth[of.units[k]].exposed_per_byte +=
                t.exposed[i] / (double)(program->instrs[i].collective.shard_bytes + 1);
    }
    qsort(worth, (size_t)n_units, sizeof *worth, compare_worth);
    tt_timeline_release(&t);
    return worth;
}

/* Sets reshard for all units except the n that save most time when kept. */
static void keep(const struct search *s, const struct worth *worth, int n, bool *reshard)
{
    for (int i = 0; i < s->in->usage->layout->n_units; i++)
        reshard[worth[i].unit] = i >= n;
}

/* The number of units to keep that is predicted to be fastest within the target; the smallest of equally fast
 * numbers. */
static int best_number_to_keep(const struct search *s, struct target target, const struct worth *worth)
{
    int n_units = s->in->usage->layout->n_units, best = 0;
    int stride = (n_units + KEEP_TRIALS - 1) / KEEP_TRIALS;
    bool *reshard = tt_calloc((size_t)n_units + 1, sizeof *reshard);
    double best_sec = 0.0;

    target.reshard = reshard;
    for (int n = 0; n <= n_units; n += stride) {
        struct ranked list[MOST_CANDIDATES];

        keep(s, worth, n, reshard);
        (void)make_candidates(s, target, 1.0, list);
        if (n == 0 || (list[0].plan.fits && list[0].plan.step_sec < 0.999 * best_sec)) {
            best = n;
            best_sec = list[0].plan.step_sec;
        }
    }
    tt_free(reshard);
    return best;
}

/* Lowering may need a little more memory than predicted. So this keeps one unit fewer until the program fits.
 *   all        [unit] true
 *   ret_found  tight: of any search */
static int keep_what_fits(const struct search *s, struct target target, const bool *all, int rounds,
                          struct found *ret_found)
{
    struct found found = {0}, next;
    struct worth *worth = NULL;
    bool *reshard = copy_reshard(s, all);
    int rc = 0;

    target.reshard = reshard;
    TT_TRY(search_program(s, target, rounds, &found));
    if (found.keeps) { /* there is enough memory to keep more units */
        worth = rank_units(s, found.program);
        for (int n = best_number_to_keep(s, target, worth); n >= 0; n--) {
            keep(s, worth, n, reshard);
            TT_TRY(search_program(s, target, rounds, &next));
            next.tight |= found.tight;
            replace(&found, &next);
            if (found.keeps)
                break;
        }
    }
    *ret_found = found;
    found = (struct found){0};
out:
    release_found(&found);
    tt_free(worth);
    tt_free(reshard);
    return rc;
}

/*
 * Exchange may fill all memory that is free at a given moment. This leaves holes of all sizes, which the memory plan
 * cannot always fill; in that case, plans with a fixed amount of memory for exchange are tried too. The best plan wins;
 * it is never slower than the plan for the given policy, if that one fits. If nothing fits, the plan with the least
 * memory wins.
 */
static int choose_what_to_keep(const struct search *s, struct found *ret_found)
{
    const double fixed_parts[] = {1.0, 0.85};
    int64_t limit = s->in->step_limit, others = 0, left; /* all memory that is free at a position is for exchange */
    struct target target = {.step_bytes = limit, .exchanged_bytes = INT64_MAX};
    struct found best = {0}, next;
    bool tight, out_of_reach, *all = tt_calloc((size_t)s->in->usage->layout->n_units + 1, sizeof *all);
    int rc = 0;

    for (int pos = 0; pos < s->in->usage->n_positions; pos++)
        if (s->facts.other_bytes[pos] > others)
            others = s->facts.other_bytes[pos];
    left = limit > others ? limit - others : 0;
    memset(all, true, (size_t)s->in->usage->layout->n_units * sizeof *all);
    out_of_reach = least_need(s, all).step_bytes > limit;
    TT_TRY(keep_what_fits(s, target, all, out_of_reach ? 0 : ROUNDS, &next));
    tight = next.tight;
    keep_better(limit, &best, &next);
    for (size_t i = 0; i < sizeof fixed_parts / sizeof *fixed_parts && tight && !out_of_reach; i++) {
        target.exchanged_bytes = (int64_t)(fixed_parts[i] * (double)left);
        TT_TRY(keep_what_fits(s, target, all, ROUNDS, &next));
        keep_better(limit, &best, &next);
    }
    TT_TRY(plan_as_given(s, s->in->reshard, limit, &next));
    keep_better(limit, &best, &next);
    if (best.program->step_bytes > limit) {
        TT_TRY(plan_as_given(s, all, limit, &next));
        keep_better(limit, &best, &next);
    }
    *ret_found = best;
    best = (struct found){0};
out:
    release_found(&best);
    tt_free(all);
    return rc;
}

int tt_planner_run(const struct tt_planner *in, struct tt_program **ret_program)
{
    struct search search = {.in = in};
    struct found found = {0};
    int rc = 0;

    tt_step_facts_make(in->usage, in->lowering, in->machine, in->eager, &search.facts);
    search.fsdp = (struct tt_simple_fsdp){
        .lowering = in->lowering, .facts = &search.facts, .machine = in->machine, .prefetch = in->prefetch};
    TT_TRY(in->choose_reshard ? choose_what_to_keep(&search, &found)
                              : plan_as_given(&search, in->reshard, in->step_limit, &found));
    memcpy(in->reshard, found.reshard, (size_t)in->usage->layout->n_units * sizeof *in->reshard);
    *ret_program = found.program;
    found.program = NULL;
out:
    release_found(&found);
    tt_step_facts_release(&search.facts);
    return rc;
}
