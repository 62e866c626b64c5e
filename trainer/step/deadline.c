/* SPDX-License-Identifier: MIT
 *
 * Decides on the last step of a run with lr_scheduler.finish_by.
 */
#include "trainer/step/deadline.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/os/file.h"

enum {
    MEASURED = 4,   /* steps before the first decision */
    CHECKS = 8,     /* titan looks again after this part of the steps that are left */
    LATE_PART = 50, /* how much of the steps that are left may be too many, and too few, before the end moves */
    EARLY_PART = 20,
};

/* The steps for which there is time. */
static double steps_in_time(const struct tt_deadline_facts *f)
{
    double left = f->finish_sec - f->trained_sec - f->tail_sec;

    return left > 0.0 ? floor(left / f->step_sec) : 0.0;
}

int64_t tt_deadline_decide(const struct tt_deadline_facts *f)
{
    int64_t left = f->last - f->step, room = f->most - f->step, found;
    double steps = steps_in_time(f);

    found = f->step + (steps < (double)room ? (int64_t)steps : room);
    found = found > 1 ? found : 1;
    if (f->last <= f->most && found >= f->last - left / LATE_PART && found <= f->last + left / EARLY_PART + 1)
        return f->last;
    return found;
}

int64_t tt_deadline_steps(const struct tt_config *cfg, const struct tt_train_progress *at, double step_sec,
                          int64_t left)
{
    const struct tt_deadline_facts facts = {
        .trained_sec = at->trained_sec, .finish_sec = (double)cfg->lr_scheduler.finish_by, .step_sec = step_sec};

    if (cfg->lr_scheduler.finish_by == TT_NULL_INT || step_sec <= 0.0 || steps_in_time(&facts) >= (double)left)
        return left;
    return (int64_t)steps_in_time(&facts);
}

/* --- the measurement --- */

/* For tests: replaces the measured time of a step. "0:1,20:2.5" is 1 s, and 2.5 s after 20 steps. Negative: the clock
 * counts. */
static double pretended_sec(int64_t step)
{
    const char *text = getenv("TITAN_STEP_SEC"); // NOLINT(concurrency-mt-unsafe): titan never calls setenv
    double sec = -1.0;

    while (text && *text) {
        char *end = NULL;
        int64_t from = strtoll(text, &end, 10);
        double value = *end == ':' ? strtod(end + 1, &end) : -1.0;

        sec = step > from ? value : sec;
        text = *end == ',' ? end + 1 : "";
    }
    return sec;
}

void tt_deadline_begin(const struct tt_train_progress *at, double begun_sec, struct tt_deadline_clock *ret_clock)
{
    *ret_clock = (struct tt_deadline_clock){
        .begun_sec = begun_sec, .before_sec = at->trained_sec, .pretends = pretended_sec(at->step + 1) >= 0.0};
}

void tt_deadline_count(struct tt_deadline_clock *clock, int64_t step, double sec, int64_t left)
{
    bool is_first = clock->step_sec == 0.0;
    int64_t mean_over = left / CHECKS < 4 ? 4 : left / CHECKS < 64 ? left / CHECKS : 64;

    if (clock->pretends) {
        sec = pretended_sec(step);
        clock->before_sec += sec;
    }
    clock->steps += !is_first;
    mean_over = clock->steps < mean_over ? clock->steps : mean_over;
    if (mean_over <= 1) /* the first step also touches memory for the first time */
        clock->step_sec = sec;
    else
        clock->step_sec += (sec - clock->step_sec) / (double)mean_over;
}

void tt_deadline_pause(struct tt_deadline_clock *clock, double sec)
{
    clock->pause_sec += clock->pretends ? 0.0 : sec;
    clock->longest_pause_sec = clock->pretends ? 0.0 : fmax(clock->longest_pause_sec, sec);
}

double tt_deadline_trained_sec(const struct tt_deadline_clock *clock)
{
    return clock->before_sec + (clock->pretends ? 0.0 : tt_clock_sec() - clock->begun_sec);
}

int64_t tt_deadline_propose(struct tt_deadline_clock *clock, const struct tt_config *cfg,
                            const struct tt_train_progress *at, int64_t most)
{
    /* the longest pause is counted once, after the last step: often it is the validation after the first */
    double pauses = clock->steps ? (clock->pause_sec - clock->longest_pause_sec) / (double)clock->steps : 0.0;
    struct tt_deadline_facts f = {.step = at->step,
                                  .trained_sec = tt_deadline_trained_sec(clock),
                                  .finish_sec = (double)cfg->lr_scheduler.finish_by,
                                  .step_sec = clock->step_sec + pauses,
                                  .tail_sec = clock->longest_pause_sec,
                                  .last = tt_lr_last_step(&at->ends, at->step),
                                  .most = most};
    bool is_over = f.trained_sec + f.tail_sec + f.step_sec > f.finish_sec;
    bool is_asked = clock->asked == at->step;
    int64_t last;

    clock->asked = at->step;
    if (is_asked || cfg->lr_scheduler.finish_by == TT_NULL_INT || at->ends.n == TT_LR_ENDS || f.step >= f.last ||
        f.step >= most || (!is_over && (clock->steps < MEASURED || f.step < clock->next)))
        return 0;
    last = tt_deadline_decide(&f);
    clock->next = f.step + (last - f.step > CHECKS ? (last - f.step) / CHECKS : 1);
    if (last == most && steps_in_time(&f) > 1.05 * (double)(most - f.step) && !clock->noted_most) {
        tt_note("lr_scheduler.finish_by leaves time for about %.0f more steps, but the run ends with step %" PRId64
                " (training.steps, or the end of the data)",
                steps_in_time(&f), most);
        clock->noted_most = true;
    }
    return last == f.last ? 0 : last;
}
