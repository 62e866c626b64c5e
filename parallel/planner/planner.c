/* SPDX-License-Identifier: MIT
 *
 * The planner: sets the targets of programs, and chooses which units stay gathered if the reshard policy is auto.
 */
#include "parallel/planner/planner.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/program/instr/instr.h"
#include "parallel/planner/as_given.h"

enum { KEEP_TRIALS = 16 }; /* how many numbers of kept units auto tries */

/* --- what to keep gathered (reshard policy auto) --- */

struct worth {
    int unit;
    double exposed_per_byte; /* seconds that its gathers in backward hold up compute, if all is resharded */
};

/* Of equal units, those that are used late in forward come first, since they hold their memory for a shorter time. */
static int compare_worth(const void *a, const void *b)
{
    const struct worth *x = a, *y = b;

    if (x->exposed_per_byte != y->exposed_per_byte)
        return x->exposed_per_byte > y->exposed_per_byte ? -1 : 1;
    return y->unit - x->unit;
}

/* How much the gathers of every unit hold up compute in a program that reshards all units. The units most worth keeping
 * come first. */
static struct worth *rank_units(const struct tt_plan_search *s, const struct tt_program *program)
{
    int n_units = s->in->usage->layout->n_units;
    struct worth *worth = tt_calloc((size_t)n_units + 1, sizeof *worth);
    struct tt_timeline t;

    tt_cost_simulate(s->in->machine, program, &t);
    for (int u = 0; u < n_units; u++)
        worth[u].unit = u;
    for (int i = 0; i < program->n_instrs; i++) {
        bool gathers = tt_instr_row(&program->instrs[i])->begins && program->instrs[i].collective.op == TT_ALL_GATHER;
        int n;
        const int *units = tt_instr_units(program->buckets, &program->instrs[i], &n);

        for (int k = 0; k < n && gathers; k++)
            worth[units[k]].exposed_per_byte += t.exposed[i] / (double)(program->instrs[i].collective.shard_bytes + 1);
    }
    qsort(worth, (size_t)n_units, sizeof *worth, compare_worth);
    tt_timeline_release(&t);
    return worth;
}

/* Sets reshard for all units but the n that are most worth keeping. */
static void keep(const struct tt_plan_search *s, const struct worth *worth, int n, bool *reshard)
{
    for (int i = 0; i < s->in->usage->layout->n_units; i++)
        reshard[worth[i].unit] = i >= n;
}

/* The number of units to keep that is predicted to be fastest within the target; the smallest of equals. */
static int best_number_to_keep(const struct tt_plan_search *s, struct tt_plan_target target, const struct worth *worth)
{
    int n_units = s->in->usage->layout->n_units, best = 0;
    int stride = (n_units + KEEP_TRIALS - 1) / KEEP_TRIALS;
    bool *reshard = tt_calloc((size_t)n_units + 1, sizeof *reshard);
    double best_sec = 0.0;

    target.reshard = reshard;
    for (int n = 0; n <= n_units; n += stride) {
        double sec;
        bool fits;

        keep(s, worth, n, reshard);
        fits = tt_plan_search_predict(s, target, &sec);
        if (n == 0 || (fits && sec < 0.999 * best_sec)) {
            best = n;
            best_sec = sec;
        }
    }
    tt_free(reshard);
    return best;
}

/* A program, the units that it reshards, and whether some search for it found only the candidate of least memory. */
struct choice {
    struct tt_plan_found found;
    bool *reshard; /* [unit] */
    bool tight;
};

static void release_choice(struct choice *choice)
{
    tt_program_free(choice->found.program);
    tt_free(choice->reshard);
    *choice = (struct choice){0};
}

static int search_choice(const struct tt_plan_search *s, struct tt_plan_target target, int rounds,
                         struct choice *choice)
{
    struct tt_plan_found found;
    int rc = 0;

    target.reshard = choice->reshard;
    TT_TRY(tt_plan_search_run(s, target, rounds, &found));
    tt_program_free(choice->found.program);
    choice->found = found;
    choice->tight = choice->tight || !choice->found.by_search;
out:
    return rc;
}

/* Lowering may need a little more memory than predicted. Then one unit less is kept, until the program fits. */
static int keep_what_fits(const struct tt_plan_search *s, struct tt_plan_target target, int rounds,
                          struct choice *ret_choice)
{
    size_t n_units = (size_t)s->in->usage->layout->n_units;
    struct choice choice = {.reshard = tt_calloc(n_units + 1, sizeof *choice.reshard)};
    struct worth *worth = NULL;
    int rc = 0, n;

    memset(choice.reshard, true, n_units * sizeof *choice.reshard);
    TT_TRY(search_choice(s, target, rounds, &choice));
    if (choice.found.keeps) { /* there is memory to keep more */
        worth = rank_units(s, choice.found.program);
        for (n = best_number_to_keep(s, target, worth); n >= 0; n--) {
            keep(s, worth, n, choice.reshard);
            TT_TRY(search_choice(s, target, rounds, &choice));
            if (choice.found.keeps)
                break;
        }
    }
    *ret_choice = choice;
    choice = (struct choice){0};
out:
    release_choice(&choice);
    tt_free(worth);
    return rc;
}

/* The memory that everything else always leaves for exchange. */
static int64_t always_left(const struct tt_plan_search *s)
{
    int64_t most = 0;

    for (int pos = 0; pos < s->in->usage->n_positions; pos++)
        if (s->facts.other_bytes[pos] > most)
            most = s->facts.other_bytes[pos];
    return s->in->step_limit > most ? s->in->step_limit - most : 0;
}

/* Takes the next choice if it is better than the best so far, and releases the other one. */
static void take_better(int64_t step_limit, struct choice *best, struct choice *next)
{
    struct choice other = *next;

    if (!best->found.program || tt_plan_is_better(step_limit, &next->found, &best->found)) {
        other = *best;
        *best = *next;
    }
    release_choice(&other);
    *next = (struct choice){0};
}

static int choose_as_given(const struct tt_plan_search *s, const bool *reshard, struct choice *ret_choice)
{
    size_t n_units = (size_t)s->in->usage->layout->n_units;
    struct choice choice = {0};
    int rc = 0;

    TT_TRY(tt_plan_as_given(s, reshard, s->in->step_limit, &choice.found));
    choice.reshard = tt_calloc(n_units + 1, sizeof *choice.reshard);
    memcpy(choice.reshard, reshard, n_units * sizeof *choice.reshard);
    *ret_choice = choice;
out:
    return rc;
}

/*
 * Exchange may fill all memory that is free at a moment. That leaves holes of all sizes, which the memory plan cannot
 * always fill. If it could not, plans are also made that give exchange a fixed part of memory. The best plan is taken.
 * It is never slower than that of the given policy, if that fits. If nothing fits, the plan of least memory is taken.
 */
static int choose_what_to_keep(const struct tt_plan_search *s, struct choice *ret_choice)
{
    const double fixed_parts[] = {1.0, 0.85};
    int64_t limit = s->in->step_limit;
    struct tt_plan_target target = {.step_bytes = limit, .exchanged_bytes = INT64_MAX};
    struct choice best = {0}, next;
    bool tight, out_of_reach, *all = tt_calloc((size_t)s->in->usage->layout->n_units + 1, sizeof *all);
    int rc = 0;

    memset(all, true, (size_t)s->in->usage->layout->n_units * sizeof *all);
    out_of_reach = tt_plan_search_least(s, all).step_bytes > limit;
    TT_TRY(keep_what_fits(s, target, out_of_reach ? 0 : TT_PLAN_ROUNDS, &next));
    tight = next.tight;
    take_better(limit, &best, &next);
    for (size_t i = 0; i < sizeof fixed_parts / sizeof *fixed_parts && tight && !out_of_reach; i++) {
        target.exchanged_bytes = (int64_t)(fixed_parts[i] * (double)always_left(s));
        TT_TRY(keep_what_fits(s, target, TT_PLAN_ROUNDS, &next));
        take_better(limit, &best, &next);
    }
    TT_TRY(choose_as_given(s, s->in->reshard, &next));
    take_better(limit, &best, &next);
    if (best.found.program->step_bytes > limit) {
        TT_TRY(choose_as_given(s, all, &next));
        take_better(limit, &best, &next);
    }
    *ret_choice = best;
    best = (struct choice){0};
out:
    release_choice(&best);
    tt_free(all);
    return rc;
}

/* --- the choice --- */

int tt_planner_run(const struct tt_planner *in, struct tt_planned *ret_planned)
{
    struct tt_plan_search search;
    struct choice choice = {0};
    int rc = 0;

    tt_plan_search_begin(in, &search);
    TT_TRY(in->choose_reshard ? choose_what_to_keep(&search, &choice) : choose_as_given(&search, in->reshard, &choice));
    *ret_planned = (struct tt_planned){choice.found.program, choice.reshard};
out:
    tt_plan_search_end(&search);
    return rc;
}

void tt_planned_release(struct tt_planned *planned)
{
    tt_program_free(planned->program);
    tt_free(planned->reshard);
    *planned = (struct tt_planned){0};
}
