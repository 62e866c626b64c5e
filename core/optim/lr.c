/* SPDX-License-Identifier: MIT
 *
 * The learning rate: linear warm-up, a stable phase, decay. The phases span one step more than the run has, so that the
 * rate of the last step is not 0. Steps beyond the last keep its rate.
 */
#include "core/optim/lr.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/math/elementary.h"

/* --- the last step, as it is decided during the run --- */

int64_t tt_lr_last_step(const struct tt_lr_ends *ends, int64_t step)
{
    int64_t last = INT64_MAX;

    for (int i = 0; i < ends->n && (i == 0 || ends->end[i].step <= step); i++)
        last = ends->end[i].last;
    return last;
}

void tt_lr_ends_text(const struct tt_lr_ends *ends, struct tt_text *out)
{
    for (int i = 0; i < ends->n; i++)
        tt_text_add(out, "%s%" PRId64 ":%" PRId64, i ? "," : "", ends->end[i].step, ends->end[i].last);
}

/* A whole number of at most 18 digits; NULL: there is none. */
static const char *read_number(const char *text, int64_t *ret_number)
{
    size_t digits = strspn(text, "0123456789");

    *ret_number = digits && digits <= 18 ? strtoll(text, NULL, 10) : -1;
    return *ret_number < 0 ? NULL : text + digits;
}

bool tt_lr_ends_read(const char *text, struct tt_lr_ends *ret_ends)
{
    struct tt_lr_ends ends = {.n = 0};
    struct tt_lr_end e;

    for (;;) {
        int64_t before = ends.n ? ends.end[ends.n - 1].step : -1;

        if (!(text = read_number(text, &e.step)) || *text++ != ':' || !(text = read_number(text, &e.last)))
            return false;
        if (ends.n == TT_LR_ENDS || e.last < e.step || e.last < 1 || (ends.n ? e.step <= before : e.step != 0))
            return false;
        ends.end[ends.n++] = e;
        if (!*text)
            break;
        if (*text++ != ',')
            return false;
    }
    *ret_ends = ends;
    return true;
}

/* --- the rate --- */

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The factor of the rate at the fraction `progress` in (0, 1] of the decay. */
static double decayed(enum tt_decay_choice decay, double progress)
{
    static const double pi = 3.14159265358979323846;

    switch (decay) {
    case TT_DECAY_SQRT:
        return 1.0 - sqrt(progress);
    case TT_DECAY_COSINE:
        return 0.5 * (1.0 + tt_cos(pi * progress));
    case TT_DECAY_LINEAR:
        break;
    }
    return 1.0 - progress;
}

/* The number of steps that decay, of `total`. Rounds half to even, as Python does. */
static int64_t decay_steps(const struct tt_lr_schedule *schedule, int64_t warmup, int64_t total)
{
    int64_t most = total > warmup ? total - warmup : 0;

    return isnan(schedule->decay_ratio) ? most : min64((int64_t)nearbyint((double)total * schedule->decay_ratio), most);
}

/* The decay between two decisions about the end: it is at `done` after step `from`, and would be at 1 one step after
 * `last`. */
struct decay {
    int64_t from, last;
    double done;
};

static double progress(const struct decay *d, int64_t step)
{
    return step <= d->from ? d->done
                           : d->done + (1.0 - d->done) * ((double)(step - d->from) / (double)(d->last + 1 - d->from));
}

/* The decay in which a step lies. A decision during the decay bends it; an earlier one moves its beginning. */
static struct decay decay_of(const struct tt_lr_schedule *schedule, int64_t warmup, int64_t total, int64_t step)
{
    struct decay d = {.from = total + 1 - decay_steps(schedule, warmup, total), .last = total};

    for (int i = 1; schedule->ends && i < schedule->ends->n; i++) {
        int64_t at = schedule->ends->end[i].step + schedule->ends_shift;

        if (at >= step)
            break;
        d.done = progress(&d, at);
        d.last = schedule->ends->end[i].last + schedule->ends_shift;
        if (d.done == 0.0)
            d.from = d.last + 1 - decay_steps(schedule, warmup, d.last);
        if (d.done > 0.0 || d.from < at)
            d.from = at;
    }
    return d;
}

double tt_lr_at(const struct tt_lr_schedule *schedule, int64_t step)
{
    bool has_ends = schedule->ends && schedule->ends->n;
    int64_t total = has_ends ? schedule->ends->end[0].last + schedule->ends_shift : schedule->total_steps;
    int64_t warmup = min64(schedule->warmup_steps, total);
    struct decay d = decay_of(schedule, warmup, total, step);
    int64_t s = min64(step, d.last);

    if (s <= warmup)
        return schedule->base * (double)s / (double)warmup;
    if (s <= d.from)
        return schedule->base;
    return schedule->base *
           (schedule->min_factor + (1.0 - schedule->min_factor) * decayed(schedule->decay, progress(&d, s)));
}
