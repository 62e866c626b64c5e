/* SPDX-License-Identifier: MIT
 *
 * The order of a weighted mixture. Sample t (from 1) of dataset k with share w of a period W is wanted when its part of
 * the first t samples, t w / W, is ahead of the samples that it has; it becomes late when it is a whole sample ahead.
 * Of the datasets that are far enough ahead, the one that would become late first is next. With the right bounds
 * nothing is ever late (R. Tijdeman, The chairman assignment problem, 1980): deviations stay within 1 - 1 / (2n - 2).
 */
#include "core/data/mixture.h"

#include <math.h>
#include <stdbool.h>

#include "core/base/mem.h"

/* Shares that have exactly the ratios of the weights, which are decimal numbers. False: their sum is too large. */
static bool find_exact_shares(const double *weight, int n, double scale, int64_t *share)
{
    static const double nearly = 1e-9; /* weights such as 0.1 are rounded when they are read */
    double sum = 0.0;
    int64_t divisor = 0, total = 0;

    for (int k = 0; k < n; k++) {
        double scaled = weight[k] * scale, whole = nearbyint(scaled);

        sum += whole;
        if (whole < 1.0 || sum > 1e15 || fabs(scaled - whole) > nearly * whole)
            return false;
        share[k] = (int64_t)whole;
        for (int64_t a = share[k]; a;) { /* Euclid's algorithm */
            int64_t rest = divisor % a;

            divisor = a;
            a = rest;
        }
    }
    for (int k = 0; k < n; k++)
        total += share[k] /= divisor;
    return total <= TT_MIXTURE_PERIOD;
}

/* Shares of TT_MIXTURE_PERIOD samples, at least one for each dataset. */
static void round_shares(const double *weight, int n, int64_t *share)
{
    double sum = 0.0, most;
    int64_t left = TT_MIXTURE_PERIOD;

    for (int k = 0; k < n; k++)
        sum += weight[k];
    for (int k = 0; k < n; k++) {
        share[k] = (int64_t)floor(weight[k] / sum * TT_MIXTURE_PERIOD);
        share[k] = share[k] ? share[k] : 1;
        left -= share[k];
    }
    for (int chosen = 0; left != 0; left -= left > 0 ? 1 : -1) { /* at most n times */
        most = -INFINITY;
        for (int k = 0; k < n; k++) {
            double lack = weight[k] / sum * TT_MIXTURE_PERIOD - (double)share[k];

            lack = left > 0 ? lack : -lack;
            if (lack > most && (left > 0 || share[k] > 1)) {
                most = lack;
                chosen = k;
            }
        }
        share[chosen] += left > 0 ? 1 : -1;
    }
}

static void find_shares(const double *weight, int n, int64_t *share)
{
    double scale = 1.0;

    for (int decimals = 0; decimals < 10; decimals++) {
        if (find_exact_shares(weight, n, scale, share))
            return;
        scale *= 10.0;
    }
    round_shares(weight, n, share);
}

/* The dataset of the sample with index t - 1, when used[k] samples of each dataset precede it. */
static int choose(const struct tt_mixture *m, const int64_t *used, int64_t t)
{
    int64_t unit = m->n > 1 ? 2 * m->n - 2 : 1;
    int best = -1;

    for (int k = 0; k < m->n; k++) {
        if (unit * (m->share[k] * t - m->period * used[k]) < m->period)
            continue;
        if (best < 0 || (unit * (used[k] + 1) - 1) * m->share[best] < (unit * (used[best] + 1) - 1) * m->share[k])
            best = k;
    }
    return best;
}

int tt_mixture_init(struct tt_mixture *ret_mixture, const double *weight, int n)
{
    struct tt_mixture m = {.n = n};
    int64_t used[TT_MIXTURE_MOST] = {0};

    if (n < 1 || n > TT_MIXTURE_MOST)
        return tt_fail(TT_EUSAGE, "a mixture has %d datasets, wanted 1 to %d", n, TT_MIXTURE_MOST);
    find_shares(weight, n, m.share);
    for (int k = 0; k < n; k++)
        m.begin[k + 1] = m.begin[k] + m.share[k];
    m.period = m.begin[n];
    m.part = tt_calloc((size_t)m.period, sizeof *m.part);
    m.number = tt_calloc((size_t)m.period, sizeof *m.number);
    m.place = tt_calloc((size_t)m.period, sizeof *m.place);
    for (int64_t i = 0; i < m.period; i++) {
        int k = choose(&m, used, i + 1);

        m.part[i] = (uint8_t)k;
        m.number[i] = (int32_t)used[k];
        m.place[m.begin[k] + used[k]++] = (int32_t)i;
    }
    *ret_mixture = m;
    return 0;
}

void tt_mixture_release(struct tt_mixture *m)
{
    tt_free(m->part);
    tt_free(m->number);
    tt_free(m->place);
    *m = (struct tt_mixture){.n = 0};
}

struct tt_mixture_sample tt_mixture_get(const struct tt_mixture *m, int64_t sample)
{
    int64_t at = sample % m->period;
    int k = m->part[at];

    return (struct tt_mixture_sample){k, sample / m->period * m->share[k] + m->number[at]};
}

int64_t tt_mixture_find(const struct tt_mixture *m, int part, int64_t number)
{
    int64_t share = m->share[part], at;

    if (__builtin_mul_overflow(number / share, m->period, &at) ||
        __builtin_add_overflow(at, m->place[m->begin[part] + number % share], &at))
        return INT64_MAX;
    return at;
}
