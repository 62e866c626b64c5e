/* SPDX-License-Identifier: MIT
 *
 * Calibration: the log of a run of torchtitan says how fast products are on one's own devices.
 */
#include "cli/cluster/measured/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run/screen.h"
#include "cluster/backtest/backtest.h"
#include "core/base/mem.h"

/* Steps that a log must have after its first quarter, in which things warm up. */
enum { LEAST_STEPS = 5 };

struct values {
    double *item;
    int n, cap;
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The number in "tps: 7,380" or "memory: 47.82GiB" after the word; colours may be between. 0: there is none. */
static double number_at(const char *at)
{
    char digits[32];
    size_t n = 0;

    for (;;) {
        at += strspn(at, " ");
        if (*at != '\033')
            break;
        at += strcspn(at, "m\n");
        at += *at == 'm';
    }
    for (; (*at == ',' || *at == '.' || (*at >= '0' && *at <= '9')) && n + 1 < sizeof digits; at++)
        if (*at != ',')
            digits[n++] = *at;
    digits[n] = 0;
    return strtod(digits, NULL);
}

/* The numbers after a word in the lines of training steps, not of validation. */
static struct values numbers_after(const char *text, const char *head)
{
    struct values v = {0};

    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");
        const char *at = memmem(line, length, head, strlen(head));
        double value = at && !memmem(line, length, "validate", 8) ? number_at(at + strlen(head)) : 0;

        if (value > 0)
            TT_PUSH(v.item, v.n, v.cap) = value;
        line += length + (line[length] != 0);
    }
    return v;
}

/* The median without the first quarter; sorts. 0: there are too few. */
static double settled(struct values *v)
{
    int skip = v->n / 4, n = v->n - skip;

    if (n < LEAST_STEPS)
        return 0;
    qsort(v->item + skip, (size_t)n, sizeof *v->item, ascending);
    return v->item[skip + n / 2];
}

int tt_cluster_calibrate(const char *log, const char *where, const struct tt_cluster_job *job,
                         struct tt_cluster_stack *stack, struct tt_cluster_calibration *ret)
{
    struct values tps = numbers_after(log, "tps:"), memory = numbers_after(log, "memory:");
    struct tt_cluster_memory peak;
    struct tt_cluster_calibration c = {.steps = tps.n, .old_share = stack->number[TT_S_GEMM].value};
    struct tt_cluster_job with = *job;
    struct tt_cluster_time time;
    double sec;
    int rc = 0;

    if (tps.n == 0) /* before 2025 they were words */
        tps = numbers_after(log, "wps:");
    c.steps = tps.n;
    c.tokens_per_sec = settled(&tps);
    c.bytes = memory.n > 0 ? memory.item[memory.n - 1] * 1024 * 1024 * 1024 : 0;
    tt_free(tps.item);
    tt_free(memory.item);
    if (!(c.tokens_per_sec > 0))
        return tt_fail(TT_EDATA,
                       "%s has no log of torchtitan's metrics: wanted at least %d steps with 'tps:' after the first "
                       "quarter of them, found %d in all",
                       where, LEAST_STEPS, c.steps);
    sec = tt_cluster_tokens(job) / c.tokens_per_sec / tt_cluster_devices(job);
    tt_cluster_step(job, &time);
    c.error = time.total / sec - 1;
    if (time.host > 0.3 * time.total)
        return tt_fail(TT_EDATA,
                       "%s cannot be used: the host takes %.0f %% of the predicted step, so it says little about "
                       "products\nhelp: use a run with larger microbatches",
                       where, 100 * time.host / time.total);
    c.share = tt_cluster_fit(job, sec);
    stack->number[TT_S_GEMM] = (struct tt_cluster_number){c.share, "fitted: the log of a run"};
    with.stack = stack;
    tt_cluster_step(&with, &time);
    if (fabs(time.total / sec - 1) > 0.01)
        rc = tt_fail(TT_EDATA,
                     "%s is of another job: %.0f tokens/s a device, the prediction is %+.0f %% away and no rate of "
                     "products explains it\nhelp: the configuration and the first number of --ranks have to be those "
                     "of the log",
                     where, c.tokens_per_sec, 100 * c.error);
    c.error_after = time.total / sec - 1;
    tt_cluster_peak(job, &peak);
    c.predicted_bytes = peak.allocated;
    *ret = c;
    return rc;
}

void tt_cluster_print_calibration(const struct tt_cluster_calibration *c)
{
    const double gib = 1024.0 * 1024 * 1024;

    tt_print("calibrated    %d steps, %.0f tokens/s a device: the error was %+.1f %% and is %.1f %%, products reach "
             "%.3f of the machine's rate, not %.3f",
             c->steps, c->tokens_per_sec, 100 * c->error, 100 * fabs(c->error_after), c->share, c->old_share);
    if (c->bytes > 0)
        tt_print("; memory of the log %.1f GiB, predicted %.1f GiB (%+.1f %%)", c->bytes / gib,
                 c->predicted_bytes / gib, 100 * (c->predicted_bytes / c->bytes - 1));
    tt_print("\n\n");
}
