/* SPDX-License-Identifier: MIT
 *
 * Tries targets from the hardest to the easiest, and takes the first plan that keeps its target without being slower
 * than the eager engine. If there is none, the best plan is compared with the eager engine's own schedule.
 */
#include "parallel/planner/as_given.h"

#include "parallel/fsdp/fsdp.h"

enum { FIRST_ROUNDS = 2 }; /* for a target that is followed by an easier one */

/* Limits of the memory for exchange, as a share of what the eager engine has for exchange at its peak. */
static const struct {
    double part;
    bool off_peak;
} parts[] = {{0.85, true}, {0.85, false}, {1.0, true}, {1.0, false}};

enum { N_PARTS = sizeof parts / sizeof *parts };

static void replace(struct tt_plan_found *found, struct tt_plan_found *by)
{
    tt_program_free(found->program);
    *found = *by;
    by->program = NULL;
}

/* Equal predictions may differ in their last bits, since programs add the same seconds in another order. */
static bool is_faster(double sec, double than)
{
    return sec < than * (1.0 - 1e-9);
}

bool tt_plan_is_better(int64_t step_limit, const struct tt_plan_found *a, const struct tt_plan_found *b)
{
    int64_t a_bytes = a->program->step_bytes, b_bytes = b->program->step_bytes;

    if ((a_bytes <= step_limit && b_bytes <= step_limit) || a_bytes == b_bytes)
        return is_faster(a->step_sec, b->step_sec);
    return a_bytes < b_bytes;
}

static void keep_better(int64_t step_limit, struct tt_plan_found *best, struct tt_plan_found *next)
{
    if (!best->program || tt_plan_is_better(step_limit, next, best)) {
        replace(best, next);
    } else {
        tt_program_free(next->program);
        next->program = NULL;
    }
}

/* --- the eager engine's schedule --- */

static int lower_eager(const struct tt_plan_search *s, const struct tt_schedule *schedule, bool free_early,
                       struct tt_plan_found *ret_found)
{
    struct tt_lowering lowering = *s->in->lowering;
    int rc = 0;

    *ret_found = (struct tt_plan_found){0};
    lowering.free_early = free_early;
    TT_TRY(tt_program_new(&lowering, schedule, &ret_found->program));
    ret_found->step_sec = tt_plan_search_sec(s, ret_found->program);
out:
    return rc;
}

/* *ret_eager is the program that the eager engine runs. *ret_early is the same schedule with memory freed after its
 * last read, as plans do. */
static int make_eager(const struct tt_plan_search *s, const bool *reshard, struct tt_plan_found *ret_eager,
                      struct tt_plan_found *ret_early)
{
    const struct tt_fsdp fsdp = {.usage = s->in->usage, .reshard = reshard, .prefetch = s->in->prefetch};
    struct tt_schedule schedule = {0};
    int rc = 0;

    tt_fsdp_schedule(&fsdp, &schedule);
    TT_TRY(lower_eager(s, &schedule, false, ret_eager));
    TT_TRY(lower_eager(s, &schedule, true, ret_early));
out:
    tt_schedule_release(&schedule);
    return rc;
}

/* --- one limit --- */

/* Finds the first plan that keeps its target without being slower than eager; otherwise the best of all plans found. */
static int try_targets(const struct tt_plan_search *s, struct tt_plan_target target, const struct tt_plan_found *eager,
                       struct tt_plan_found *best)
{
    double eager_bytes = (double)tt_program_exchanged_bytes(eager->program);
    struct tt_plan_need least = tt_plan_search_least(s, target.reshard);
    bool out_of_reach = least.step_bytes > target.step_bytes;
    struct tt_plan_found next;
    int rc = 0;

    for (int i = out_of_reach ? N_PARTS - 1 : 0; i < N_PARTS; i++) {
        int rounds = out_of_reach ? 0 : i + 1 < N_PARTS ? FIRST_ROUNDS : TT_PLAN_ROUNDS;

        target.exchanged_bytes = (int64_t)(parts[i].part * eager_bytes);
        target.off_peak = parts[i].off_peak;
        if (i + 1 < N_PARTS && least.exchanged_bytes > target.exchanged_bytes)
            continue;
        TT_TRY(tt_plan_search_run(s, target, rounds, &next));
        if (next.keeps && !is_faster(eager->step_sec, next.step_sec)) {
            replace(best, &next);
            break;
        }
        keep_better(target.step_bytes, best, &next);
    }
out:
    return rc;
}

/* --- no plan is within the limit --- */

/*
 * Makes *best smaller: first with plans made without a limit; then, if some plan might be within the limit, with limits
 * somewhat below the memory of *best. The memory that lowering gives a plan is not known before, so several are tried.
 */
static int squeeze(const struct tt_plan_search *s, struct tt_plan_target target, const struct tt_plan_found *eager,
                   struct tt_plan_found *best)
{
    static const double steps[] = {1.0, 0.9975, 0.995, 0.99};
    bool within_reach = tt_plan_search_least(s, target.reshard).step_bytes <= target.step_bytes;
    struct tt_plan_found next = {0};
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
    tt_program_free(next.program);
    return rc;
}

/* --- the plan --- */

int tt_plan_as_given(const struct tt_plan_search *s, const bool *reshard, int64_t step_limit,
                     struct tt_plan_found *ret_found)
{
    struct tt_plan_found eager = {0}, early = {0}, best = {0};
    struct tt_plan_target target = {.reshard = reshard, .step_bytes = step_limit};
    int rc = 0;

    TT_TRY(make_eager(s, reshard, &eager, &early));
    if (eager.program->step_bytes < target.step_bytes)
        target.step_bytes = eager.program->step_bytes;
    TT_TRY(try_targets(s, target, &eager, &best));
    if (best.program->step_bytes > step_limit)
        TT_TRY(squeeze(s, target, &eager, &best));
    keep_better(target.step_bytes, &best, &early);
    keep_better(target.step_bytes, &best, &eager);
    *ret_found = best;
    best.program = NULL;
out:
    tt_program_free(best.program);
    tt_program_free(early.program);
    tt_program_free(eager.program);
    return rc;
}
