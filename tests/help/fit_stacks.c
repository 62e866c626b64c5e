/* SPDX-License-Identifier: MIT
 *
 * fit_stacks [CSV]: fits the stacks to the rows of a table of measured runs, or of the built-in ones, and compares the
 * result with the built-in numbers, which this program computed. A line for each stack with rows; exit status 1 if a
 * number differs. Each stack has at most four fitted numbers. A stack may take its share of products from another one
 * ("as NAME: reason"), which must then have that number.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/os/file.h"
#include "estimate/backtest/backtest.h"

/* If there are fewer rows, only the share of products is fitted. */
enum { ROWS_FOR_ALL = 6, COARSE = 40, FINE = 6 };

/* The shares that are tried. Inside a step, traffic reaches at least a third of its rate alone. */
static const double attention[] = {0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3}, link[] = {0.35, 0.5, 0.7, 1.0};
static const double low = 0.5, high = 1.3;

/* An error above this counts as this, so that one bad row does not count more. */
static const double most_error = 0.3;

struct fit {
    const struct tt_cluster_run **run;
    int n;
    bool experts_only;             /* all rows are of models with experts: only the share of their products is fitted */
    struct tt_cluster_stack stack; /* predicted with the numbers that are tried */
};

/* The rows: dense ones whose time is scored, or all; for a stack whose rows are all sweeps, every third layout. */
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

/* predicted / measured */
static double ratio(const struct fit *f, int row)
{
    struct tt_cluster_job job = f->run[row]->job;
    struct tt_cluster_time time;

    job.stack = &f->stack;
    tt_cluster_step(&job, &time);
    return time.total / f->run[row]->sec;
}

static double sum_of_errors(const struct fit *f)
{
    double sum = 0;

    for (int i = 0; i < f->n; i++)
        sum += fmin(fabs(log(ratio(f, i))), most_error);
    return sum;
}

/* The mean error of the rows, plus a penalty for numbers far from the hardware's. */
static double cost(struct fit *f, double gemm, double attention_share, double link_share)
{
    f->stack.number[TT_S_GEMM].value = gemm;
    f->stack.number[TT_S_ATTENTION].value = attention_share;
    f->stack.number[TT_S_LINK].value = link_share;
    return sum_of_errors(f) / f->n + 0.006 * fabs(log(attention_share)) + 0.003 * fabs(log(link_share)) +
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

/* Stores the fitted numbers in the stack. */
static void fit_dense(struct fit *f)
{
    bool all = f->n >= ROWS_FOR_ALL;
    int n_attention = all ? (int)(sizeof attention / sizeof *attention) : 1;
    int n_link = all ? (int)(sizeof link / sizeof *link) : 1;
    double least = INFINITY, best[3] = {0};

    for (int a = 0; a < n_attention; a++)
        for (int l = 0; l < n_link; l++) {
            double share = all ? attention[a] : 1, rate = all ? link[l] : 1, c;
            double gemm = best_gemm(f, share, rate, &c);

            if (c < least) {
                least = c;
                best[0] = round(1000 * gemm) / 1000;
                best[1] = share;
                best[2] = rate;
            }
        }
    (void)cost(f, best[0], best[1], best[2]);
}

static void fit_experts(struct fit *f)
{
    struct tt_cluster_number *number = &f->stack.number[TT_S_EXPERT_GEMM];
    double best = 1, least = INFINITY;

    for (int percent = 40; percent <= 120; percent++) {
        double c;

        number->value = percent / 100.0;
        c = sum_of_errors(f) + 0.004 * fabs(log(number->value)) * f->n;
        if (c < least) {
            least = c;
            best = number->value;
        }
    }
    number->value = best;
}

/* For a stack in which the device waits for the host; the share of products is that of another stack. */
static void fit_wait(struct fit *f)
{
    struct tt_cluster_number *number = &f->stack.number[TT_S_HOST_WAIT];
    double best = 0, least = INFINITY;

    for (int steps = 1; steps <= 300; steps++) {
        double c;

        number->value = steps / 1e4;
        c = sum_of_errors(f);
        if (c < least) {
            least = c;
            best = number->value;
        }
    }
    number->value = best;
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
        error[i] = fabs(ratio(f, i) - 1);
    qsort(error, (size_t)f->n, sizeof *error, ascending);
    m = f->n % 2 ? error[f->n / 2] : (error[f->n / 2 - 1] + error[f->n / 2]) / 2;
    tt_free(error);
    return m;
}

/* "gemm_share 0.811 = 0.811": the built-in and the fitted number. Returns whether they differ. */
static bool compare(const struct fit *f, const struct tt_cluster_stack *stack, enum tt_stack_key key, const char *name)
{
    double own = stack->number[key].value, fitted = f->stack.number[key].value;
    bool differs = fabs(own - fitted) >= 1e-9;

    printf(", %s %g %s %g", name, own, differs ? "!" : "=", fitted);
    return differs;
}

/* The stack whose share of products another one takes, because both run the same kernels; NULL: it is fitted. */
static const struct tt_cluster_stack *same_products(const struct tt_cluster_stack *stack)
{
    const char *origin = stack->number[TT_S_GEMM].origin;
    const struct tt_cluster_stack *other;

    for (int i = 0; strncmp(origin, "as ", 3) == 0 && (other = tt_cluster_stack_at(i)); i++)
        if (strncmp(origin + 3, other->name, strlen(other->name)) == 0 && origin[3 + strlen(other->name)] == ':')
            return other;
    return NULL;
}

static int fit(const struct tt_backtest *t, const struct tt_cluster_stack *stack)
{
    struct fit f = {.run = tt_calloc((size_t)t->n + 1, sizeof *f.run), .stack = *stack};
    const struct tt_cluster_stack *other;
    int n_differ = 0;

    choose(t, stack, &f);
    if (f.n > 0 && !(stack->number[TT_S_HOST_WAIT].value > 0) && (other = same_products(stack))) {
        f.stack.number[TT_S_GEMM] = other->number[TT_S_GEMM];
        printf("%s: %d rows", stack->name, f.n);
        n_differ += compare(&f, stack, TT_S_GEMM, "gemm_share");
        printf(" of %s, median error %.1f %%\n", other->name, 100 * median_error(&f));
    } else if (f.n > 0) {
        bool waits = stack->number[TT_S_HOST_WAIT].value > 0;

        if (f.experts_only)
            fit_experts(&f);
        else if (waits)
            fit_wait(&f);
        else
            fit_dense(&f);
        printf("%s: %d rows", stack->name, f.n);
        if (waits)
            n_differ += compare(&f, stack, TT_S_HOST_WAIT, "host_wait_sec");
        else if (f.experts_only)
            n_differ += compare(&f, stack, TT_S_EXPERT_GEMM, "expert_gemm_share");
        else
            n_differ += compare(&f, stack, TT_S_GEMM, "gemm_share");
        if (!f.experts_only && f.n >= ROWS_FOR_ALL) {
            n_differ += compare(&f, stack, TT_S_ATTENTION, "attention_share");
            n_differ += compare(&f, stack, TT_S_LINK, "link_share");
        }
        printf(", median error %.1f %%, %s to %s\n", 100 * median_error(&f), f.run[0]->id, f.run[f.n - 1]->id);
    }
    tt_free((void *)f.run);
    return n_differ;
}

static int fail(void)
{
    (void)fprintf(stderr, "fit_stacks: %s\n", tt_error_message());
    return 2;
}

int main(int argc, char **argv)
{
    const char *where[2] = {"the built-in runs", "the built-in layouts"};
    const struct tt_cluster_stack *stack;
    struct tt_csv table[2] = {{0}, {0}};
    struct tt_backtest test;
    char *text = NULL;
    size_t size = 0;
    int n_differ = 0;

    if (argc > 1) {
        where[0] = argv[1];
        if (tt_file_read(argv[1], &text, &size) < 0 || tt_csv_parse(text, size, argv[1], &table[0]) < 0)
            return fail();
    } else if (tt_csv_parse(tt_backtest_runs, tt_backtest_runs_size, where[0], &table[0]) < 0 ||
               tt_csv_parse(tt_backtest_layouts, tt_backtest_layouts_size, where[1], &table[1]) < 0)
        return fail();
    if (tt_backtest_score(table, where, argc > 1 ? 1 : 2, &test) < 0)
        return fail();
    for (int i = 0; (stack = tt_cluster_stack_at(i)); i++)
        n_differ += fit(&test, stack);
    printf("built-in and fitted numbers: %s\n", n_differ ? "they differ where ! is" : "all the same");
    tt_backtest_release(&test);
    tt_csv_release(&table[0]);
    tt_csv_release(&table[1]);
    tt_free(text);
    return n_differ > 0;
}
