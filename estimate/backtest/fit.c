/* SPDX-License-Identifier: MIT
 *
 * The fit of the stacks: which rows, which numbers, and how. The numbers that are shipped came from here, and a test
 * compares them.
 */
#include <math.h>
#include <stdlib.h>

#include "core/base/mem.h"
#include "estimate/backtest/backtest.h"

/* With fewer rows only the share of products is fitted. */
enum { ROWS_FOR_ALL = 6, COARSE = 40, FINE = 6 };

/* Shares that are tried. Traffic inside a step is at least a third of what collectives reach alone. */
static const double attention[] = {0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3}, link[] = {0.35, 0.5, 0.7, 1.0};
static const double low = 0.5, high = 1.3;

/* One bad row counts no more than an error of so much. */
static const double most_error = 0.3;

struct fit {
    const struct tt_cluster_run **run;
    int n;
    bool experts_only;
    struct tt_cluster_stack stack;
};

/* The rows: dense ones that are scored for time, or all; of a stack with sweeps only, every third layout. */
static void choose(const struct tt_backtest *t, const struct tt_cluster_stack *stack, struct fit *f)
{
    int n_layouts = 0;

    for (int pass = 0; pass < 3 && f->n == 0; pass++)
        for (int i = 0; i < t->n; i++) {
            const struct tt_cluster_run *run = &t->run[i];

            if (run->excluded || run->job.stack != stack || run->layout_of_sweep != (pass == 2))
                continue;
            if (pass == 0 && (run->job.shape.experts > 0 || run->four_bits))
                continue;
            if (pass == 2 && n_layouts++ % 3 != 0)
                continue;
            f->run[f->n++] = run;
        }
    f->experts_only = f->n >= ROWS_FOR_ALL;
    for (int i = 0; i < f->n; i++)
        f->experts_only = f->experts_only && f->run[i]->job.shape.experts > 0;
}

static double error_of(const struct fit *f, int row)
{
    struct tt_cluster_job job = f->run[row]->job;
    struct tt_cluster_time time;

    job.stack = &f->stack;
    tt_cluster_step(&job, &time);
    return time.total / f->run[row]->sec;
}

/* The mean error of the rows; what is far from the hardware's own numbers has to pay for it. */
static double cost(struct fit *f, double gemm, double attention_share, double link_share)
{
    double sum = 0;

    f->stack.number[TT_S_GEMM].value = gemm;
    f->stack.number[TT_S_ATTENTION].value = attention_share;
    f->stack.number[TT_S_LINK].value = link_share;
    for (int i = 0; i < f->n; i++)
        sum += fmin(fabs(log(error_of(f, i))), most_error);
    return sum / f->n + 0.006 * fabs(log(attention_share)) + 0.003 * fabs(log(link_share)) +
           0.004 * fabs(log(gemm / 0.85));
}

static double best_gemm(struct fit *f, double attention_share, double link_share, double *ret_cost)
{
    double best = low, found;

    *ret_cost = INFINITY;
    for (int i = 0; i < COARSE; i++) {
        double gemm = low * pow(high / low, (double)i / (COARSE - 1)), c = cost(f, gemm, attention_share, link_share);

        if (c < *ret_cost) {
            *ret_cost = c;
            best = gemm;
        }
    }
    found = best;
    for (int i = -FINE; i <= FINE; i++) {
        double gemm = best * (1 + 0.002 * i), c = cost(f, gemm, attention_share, link_share);

        if (c < *ret_cost) {
            *ret_cost = c;
            found = gemm;
        }
    }
    return found;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_error(const struct fit *f)
{
    double *error = tt_calloc((size_t)f->n, sizeof *error), m;

    for (int i = 0; i < f->n; i++)
        error[i] = fabs(error_of(f, i) - 1);
    qsort(error, (size_t)f->n, sizeof *error, ascending);
    m = f->n % 2 ? error[f->n / 2] : (error[f->n / 2 - 1] + error[f->n / 2]) / 2;
    tt_free(error);
    return m;
}

/* The share of the products of experts with which the mean error is least; the other numbers are the stack's. */
static double best_expert_gemm(struct fit *f)
{
    double best = 1, least = INFINITY;

    for (int percent = 40; percent <= 120; percent++) {
        double share = percent / 100.0, sum = 0.004 * fabs(log(share)) * f->n;

        f->stack.number[TT_S_EXPERT_GEMM].value = share;
        for (int i = 0; i < f->n; i++)
            sum += fmin(fabs(log(error_of(f, i))), most_error);
        if (sum < least) {
            least = sum;
            best = share;
        }
    }
    f->stack.number[TT_S_EXPERT_GEMM].value = best;
    return best;
}

static void end_fit(struct fit *f, struct tt_cluster_fitted *ret)
{
    if (f->n > 0) {
        ret->first = f->run[0]->id;
        ret->last = f->run[f->n - 1]->id;
        ret->median = median_error(f);
    }
    tt_free((void *)f->run);
}

void tt_backtest_fit(const struct tt_backtest *t, const struct tt_cluster_stack *stack, struct tt_cluster_fitted *ret)
{
    struct fit f = {.run = tt_calloc((size_t)t->n + 1, sizeof *f.run), .stack = *stack};
    int n_attention = sizeof attention / sizeof *attention, n_link = sizeof link / sizeof *link;
    double least = INFINITY;

    *ret = (struct tt_cluster_fitted){.stack = stack,
                                      .gemm = stack->number[TT_S_GEMM].value,
                                      .attention = 1,
                                      .link = 1,
                                      .expert_gemm = stack->number[TT_S_EXPERT_GEMM].value};
    choose(t, stack, &f);
    ret->rows = f.n;
    ret->experts_only = f.experts_only;
    ret->all_keys = f.n >= ROWS_FOR_ALL && !f.experts_only;
    if (f.experts_only) {
        ret->expert_gemm = best_expert_gemm(&f);
        end_fit(&f, ret);
        return;
    }
    for (int a = 0; f.n > 0 && a < (ret->all_keys ? n_attention : 1); a++)
        for (int l = 0; l < (ret->all_keys ? n_link : 1); l++) {
            double share = ret->all_keys ? attention[a] : 1, rate = ret->all_keys ? link[l] : 1, c;
            double gemm = best_gemm(&f, share, rate, &c);

            if (c < least) {
                least = c;
                ret->gemm = round(1000 * gemm) / 1000;
                ret->attention = share;
                ret->link = rate;
            }
        }
    if (f.n > 0)
        (void)cost(&f, ret->gemm, ret->attention, ret->link);
    end_fit(&f, ret);
}
