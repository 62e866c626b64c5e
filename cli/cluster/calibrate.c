/* SPDX-License-Identifier: MIT
 *
 * Calibration: the log of a run of torchtitan says how fast products are on one's own devices.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/cluster.h"
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

/* The numbers after a word, as "tps: 7,380" or "memory: 47.82GiB". */
static struct values numbers_after(const char *text, const char *head)
{
    struct values v = {0};

    for (const char *at = text; (at = strstr(at, head));) {
        char digits[32];
        size_t n = 0;

        at += strlen(head);
        for (at += strspn(at, " "); (*at == ',' || *at == '.' || (*at >= '0' && *at <= '9')) && n + 1 < sizeof digits;
             at++)
            if (*at != ',')
                digits[n++] = *at;
        digits[n] = 0;
        if (strtod(digits, NULL) > 0)
            TT_PUSH(v.item, v.n, v.cap) = strtod(digits, NULL);
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
    struct tt_cluster_calibration c = {.steps = tps.n, .old_share = stack->number[TT_S_GEMM].value};
    struct tt_cluster_job with = *job;
    struct tt_cluster_time time;
    double sec;
    int rc = 0;

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
    *ret = c;
    return rc;
}

void tt_cluster_print_calibration(const struct tt_cluster_calibration *c)
{
    (void)printf("calibrated    %d steps, %.0f tokens/s a device: the error was %+.1f %%, products reach %.3f of the "
                 "machine's rate, not %.3f",
                 c->steps, c->tokens_per_sec, 100 * c->error, c->share, c->old_share);
    if (c->bytes > 0)
        (void)printf("; memory of the log %.1f GiB", c->bytes / (1024.0 * 1024 * 1024));
    (void)printf("\n\n");
}
