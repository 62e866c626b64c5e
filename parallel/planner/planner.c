/* SPDX-License-Identifier: MIT
 *
 * The planner: which promises a plan has to keep, and what to keep gathered when the reshard policy is auto.
 */
#include "parallel/planner/planner.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "parallel/planner/plan_search.h"

enum {
    FIRST_ROUNDS = 2, /* for a promise that another one stands behind */
    KEEP_TRIALS = 16, /* numbers of kept units that auto tries */
};

/* --- with the units' policies as given --- */

/* What may be exchanged, as a part of what the eager engine exchanges at its peak: the best promise first. */
static const struct {
    double part;
    bool off_peak;
} promises[] = {{0.85, true}, {0.85, false}, {1.0, true}, {1.0, false}};

enum { N_PROMISES = sizeof promises / sizeof *promises };

/* A plan that saves memory by being slower than eager is not what was asked for. */
static int plan_as_given(struct tt_plan_search *s)
{
    double eager_bytes = (double)tt_program_exchanged_bytes(s->in->eager);
    double eager_sec = tt_plan_search_sec(s, s->in->eager);
    struct tt_plan_outcome least = tt_plan_search_least(s);
    int rc = 0;

    for (int i = 0; i < N_PROMISES; i++) {
        s->exchanged_bytes = (int64_t)(promises[i].part * eager_bytes);
        s->off_peak = promises[i].off_peak;
        if (i + 1 < N_PROMISES && least.exchanged_bytes > s->exchanged_bytes)
            continue;
        TT_TRY(tt_plan_search_run(s, i + 1 < N_PROMISES ? FIRST_ROUNDS : TT_PLAN_ROUNDS));
        if (s->out_of_reach || (s->best_kept && tt_plan_search_sec(s, s->best) <= 1.01 * eager_sec))
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
static struct worth *rank_units(const struct tt_plan_search *s)
{
    const struct tt_program *program = s->best;
    int n_units = s->in->usage->layout->n_units;
    struct worth *worth = tt_calloc((size_t)n_units + 1, sizeof *worth);
    struct tt_timeline t;

    tt_cost_simulate(s->in->machine, program, &t);
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

static void keep(const struct tt_plan_search *s, const struct worth *worth, int n)
{
    for (int i = 0; i < s->in->usage->layout->n_units; i++)
        s->in->reshard[worth[i].unit] = i >= n;
}

/* Of the numbers of units to keep, the one that is predicted to be fastest within the limit; the least of equals. */
static int best_number_to_keep(struct tt_plan_search *s, const struct worth *worth)
{
    int n_units = s->in->usage->layout->n_units, best = 0;
    int stride = (n_units + KEEP_TRIALS - 1) / KEEP_TRIALS;
    double best_sec = 0.0;

    for (int n = 0; n <= n_units; n += stride) {
        double sec;
        bool fits;

        keep(s, worth, n);
        fits = tt_plan_search_predict(s, &sec);
        if (n == 0 || (fits && sec < 0.999 * best_sec)) {
            best = n;
            best_sec = sec;
        }
    }
    return best;
}

/* Lowering may find that the prediction of memory was a little too good: then one unit less, until it fits. */
static int keep_what_fits(struct tt_plan_search *s)
{
    struct worth *worth = NULL;
    int rc = 0, n;

    for (int u = 0; u < s->in->usage->layout->n_units; u++)
        s->in->reshard[u] = true;
    (void)tt_plan_search_least(s);
    TT_TRY(tt_plan_search_run(s, TT_PLAN_ROUNDS));
    if (!s->best_kept) /* there is no room for more */
        goto out;
    worth = rank_units(s);
    for (n = best_number_to_keep(s, worth); n > 0; n--) {
        keep(s, worth, n);
        TT_TRY(tt_plan_search_run(s, TT_PLAN_ROUNDS));
        if (s->best_kept)
            break;
    }
    if (n == 0) {
        keep(s, worth, 0);
        TT_TRY(tt_plan_search_run(s, TT_PLAN_ROUNDS));
    }
out:
    tt_free(worth);
    return rc;
}

/* What may be exchanged at every moment, because everything else leaves it at every moment. */
static int64_t always_left(const struct tt_plan_search *s)
{
    int64_t most = 0;

    for (int pos = 0; pos < s->in->usage->n_positions; pos++)
        if (s->facts.other_bytes[pos] > most)
            most = s->facts.other_bytes[pos];
    return s->step_bytes > most ? s->step_bytes - most : 0;
}

static bool is_faster(const struct tt_plan_search *s, const struct tt_program *a, const struct tt_program *b)
{
    bool a_fits = a->step_bytes <= s->step_bytes, b_fits = b->step_bytes <= s->step_bytes;

    if (a_fits && b_fits)
        return tt_plan_search_sec(s, a) < tt_plan_search_sec(s, b);
    return a_fits || (!b_fits && a->step_bytes < b->step_bytes);
}

/* In place of the best plan of an earlier search if it is faster; one that fits before one that does not. */
static void keep_faster(struct tt_plan_search *s, struct tt_program **best, bool *best_reshard)
{
    if (*best && !is_faster(s, s->best, *best))
        return;
    tt_program_free(*best);
    *best = s->best;
    s->best = NULL;
    memcpy(best_reshard, s->in->reshard, (size_t)s->in->usage->layout->n_units * sizeof *best_reshard);
}

/* As if the policy were not auto, which in->reshard says then. */
static int plan_default(struct tt_plan_search *s, const bool *reshard)
{
    const int64_t limit = s->step_bytes;
    int rc;

    memcpy(s->in->reshard, reshard, (size_t)s->in->usage->layout->n_units * sizeof *reshard);
    if (s->in->eager->step_bytes < limit)
        s->step_bytes = s->in->eager->step_bytes;
    rc = plan_as_given(s);
    s->step_bytes = limit;
    return rc;
}

/*
 * Exchange may fill whatever is free at a moment. That leaves holes of all sizes, of which the memory plan cannot make use
 * as well; where it could not, plans are also made that give exchange a fixed part of memory. The fastest is taken, which
 * is never slower than the default policy where that fits.
 */
static int choose_what_to_keep(struct tt_plan_search *s)
{
    size_t n_units = (size_t)s->in->usage->layout->n_units;
    const double parts[] = {1.0, 0.85};
    bool *given = tt_calloc(n_units + 1, sizeof *given), *chosen = tt_calloc(n_units + 1, sizeof *chosen);
    struct tt_program *best = NULL;
    int rc = 0;

    memcpy(given, s->in->reshard, n_units * sizeof *given);
    TT_TRY(keep_what_fits(s));
    keep_faster(s, &best, chosen);
    for (size_t i = 0; i < sizeof parts / sizeof *parts && s->gave_way && !s->out_of_reach; i++) {
        s->exchanged_bytes = (int64_t)(parts[i] * (double)always_left(s));
        TT_TRY(keep_what_fits(s));
        keep_faster(s, &best, chosen);
    }
    TT_TRY(plan_default(s, given));
    keep_faster(s, &best, chosen);
    memcpy(s->in->reshard, chosen, n_units * sizeof *chosen);
    tt_program_free(s->best);
    s->best = best;
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
    struct tt_plan_search search;
    int rc = 0;

    tt_plan_search_begin(in, &search);
    TT_TRY(in->choose_reshard ? choose_what_to_keep(&search) : plan_as_given(&search));
    *ret_program = search.best;
    search.best = NULL;
out:
    tt_plan_search_end(&search);
    return rc;
}
