/* SPDX-License-Identifier: MIT
 *
 * The line between the reports of steps. It is written between two instructions of the step, by the thread that runs
 * it, so that it cannot come in between other output.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/run/screen.h"
#include "cli/train/report/reporter.h"
#include "core/base/text.h"
#include "core/os/file.h"

/* Seconds between two such lines. */
static double every_sec(void)
{
    const char *text = getenv("TITAN_LIVE_SEC"); // NOLINT(concurrency-mt-unsafe): nobody sets it
    char *end = NULL;
    double sec = text ? strtod(text, &end) : 0.0;

    return text && end != text && sec >= 0.0 ? sec : 0.25;
}

/* "step: 13/60  loss:  6.11477  270 ms a step  eta: 12 s", and of a long step "  12 s into this one", which comes last
 * since a narrow terminal cuts the line. */
static void show(const struct tt_reporter *r, double sec)
{
    const struct tt_live *live = &r->live;
    int width = snprintf(NULL, 0, "%" PRId64, live->last_step);
    double in_step = sec - live->begun_sec, left = (double)(live->last_step - live->step) * live->step_sec - in_step;
    char loss[32] = "", now[32] = "", one[32], eta[32], text[200];

    if (r->results.step)
        (void)snprintf(loss, sizeof loss, "loss: %8.5f  ", r->results.loss);
    if (in_step >= 1.0)
        (void)tt_text_duration(now, sizeof now, floor(in_step));
    (void)snprintf(text, sizeof text, "step: %*" PRId64 "/%" PRId64 "  %s%s a step  eta: %s%s%s%s",
                   width < 2 ? 2 : width, live->step, live->last_step, loss,
                   tt_text_duration(one, sizeof one, live->step_sec),
                   tt_text_duration(eta, sizeof eta, left >= 1.0 ? floor(left) : fmax(left, 0.0)), now[0] ? "  " : "",
                   now, now[0] ? " into this one" : "");
    tt_screen_live(text);
}

static void tick(void *reporter, double sec)
{
    struct tt_reporter *r = reporter;

    if (sec - r->live.shown_sec < r->live.every_sec)
        return;
    r->live.shown_sec = sec;
    show(r, sec);
}

struct tt_tick tt_reporter_live(struct tt_reporter *r, int64_t step, int64_t last_step)
{
    r->live.step = step;
    r->live.last_step = last_step;
    r->live.begun_sec = tt_clock_sec();
    r->live.every_sec = r->live.every_sec > 0.0 ? r->live.every_sec : every_sec();
    return (struct tt_tick){r->live.on ? tick : NULL, r};
}
