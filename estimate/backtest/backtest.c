/* SPDX-License-Identifier: MIT
 *
 * Predictions against measured runs: scores of tables, and the fit to a log.
 */
#include "estimate/backtest/backtest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/math/stats.h"

/* --- scores --- */

/* The median; sorts `value`. NaN if n is 0. */
static double median(double *value, int n)
{
    return n > 0 ? tt_median(value, n) : NAN;
}

/* Sorts `error`. */
static struct tt_score score(double *error, int n)
{
    struct tt_score s = {.n = n, .median = NAN, .p90 = NAN, .worst = NAN};

    for (int i = 0; i < n; i++)
        error[i] = fabs(error[i]);
    s.median = median(error, n);
    if (n > 0) {
        s.p90 = error[(int)ceil(0.9 * n) - 1];
        s.worst = error[n - 1];
    }
    return s;
}

/* --- calibration --- */

static double step_sec(const struct tt_cluster_job *job, double gemm_share)
{
    struct tt_cluster_stack stack = *job->stack;
    struct tt_cluster_job copy = *job;
    struct tt_cluster_time time;

    stack.number[TT_S_GEMM].value = gemm_share;
    copy.stack = &stack;
    tt_cluster_step(&copy, &time);
    return time.total;
}

double tt_cluster_fit(const struct tt_cluster_job *job, double sec)
{
    double low = 0.2, high = 2.5;

    for (int i = 0; i < 40; i++) {
        double middle = (low + high) / 2;

        if (step_sec(job, middle) > sec)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

static bool same_family(const struct tt_cluster_run *a, const struct tt_cluster_run *b)
{
    return a->job.stack == b->job.stack && a->job.machine == b->job.machine;
}

static bool counts(const struct tt_cluster_run *run)
{
    return !run->excluded && run->plain;
}

static double error_with(const struct tt_cluster_run *run, double gemm_share)
{
    return isnan(gemm_share) ? NAN : step_sec(&run->job, gemm_share) / run->sec - 1;
}

/* The median of the GEMM shares that fit other families on the machine; each family counts once. */
static double foreign_share(const struct tt_backtest *t, int row, double *buf, double *medians)
{
    int n_families = 0;

    for (int i = 0; i < t->n; i++) {
        bool seen = false;
        int n = 0;

        if (!counts(&t->run[i]) || t->run[i].job.machine != t->run[row].job.machine ||
            same_family(&t->run[i], &t->run[row]))
            continue;
        for (int k = 0; k < i && !seen; k++)
            seen = counts(&t->run[k]) && same_family(&t->run[k], &t->run[i]);
        for (int k = i; k < t->n && !seen; k++)
            if (counts(&t->run[k]) && same_family(&t->run[k], &t->run[i]))
                buf[n++] = t->row[k].fitted;
        if (!seen)
            medians[n_families++] = median(buf, n);
    }
    return median(medians, n_families);
}

/* Whether one run is smaller than another: it has fewer devices or, with equally many, less work in a step. */
static bool is_smaller(const struct tt_cluster_run *a, const struct tt_cluster_run *b)
{
    double devices = tt_cluster_devices(&a->job) - tt_cluster_devices(&b->job);
    double work = tt_cluster_tokens(&a->job) * tt_cluster_token_flops(&a->job.shape, a->job.seq_len) -
                  tt_cluster_tokens(&b->job) * tt_cluster_token_flops(&b->job.shape, b->job.seq_len);

    return devices != 0 ? devices < 0 : work != 0 ? work < 0 : a < b;
}

/* Whether the step mostly waits for the host, and so shows little about GEMMs. */
static bool says_little(const struct tt_cluster_time *time)
{
    return time->host > 0.3 * time->total;
}

/* Makes the three predictions of a row other than `shipped`. */
static void calibrate(struct tt_backtest *t, int row, double *buf, double *medians)
{
    const struct tt_cluster_run *run = &t->run[row];
    int n = 0, smallest = -1;

    for (int i = 0; i < t->n; i++) {
        if (!counts(&t->run[i]) || !same_family(&t->run[i], run) || says_little(&t->row[i].time))
            continue;
        if (smallest < 0 || is_smaller(&t->run[i], &t->run[smallest]))
            smallest = i;
        if (i != row)
            buf[n++] = t->row[i].fitted;
    }
    t->row[row].left_out = error_with(run, median(buf, n));
    t->row[row].one_row = smallest < 0 || smallest == row ? NAN : error_with(run, t->row[smallest].fitted);
    t->row[row].foreign = error_with(run, foreign_share(t, row, buf, medians));
    if (smallest >= 0)
        t->row[row].times_smallest = tt_cluster_devices(&run->job) / tt_cluster_devices(&t->run[smallest].job);
}

/* The median error of predictions from the smallest run of a stack, for each e-fold of devices. */
static double growth(const struct tt_backtest *t, double *buf)
{
    const double least = 4; /* this many times as many devices: fewer say nothing about growth */
    int n = 0;

    for (int i = 0; i < t->n; i++)
        if (t->row[i].times_smallest >= least && !isnan(t->row[i].one_row))
            buf[n++] = fabs(log1p(t->row[i].one_row)) / log(t->row[i].times_smallest);
    return n > 0 ? median(buf, n) : 0;
}

/* --- tables as evidence --- */

/* Whether two runs are of one table: their names begin with the same word. */
static bool same_table(const char *a, const char *b)
{
    size_t n = strcspn(a, "-");

    return n == strcspn(b, "-") && strncmp(a, b, n) == 0;
}

/* How far a run is from a job: 0, the same stack and machine; 1, one of the two; 2, neither; -1, they cannot be
 * compared: only one of them has experts, or the job is in float8, whose recipes differ more, and the run is not. */
static int distance(const struct tt_cluster_run *run, const struct tt_cluster_job *job)
{
    if (run->excluded || run->layout_of_sweep || (run->job.shape.experts > 0) != (job->shape.experts > 0) ||
        (job->float8 && !run->job.float8))
        return -1;
    return (run->job.stack != job->stack && strcmp(run->job.stack->name, job->stack->name) != 0) +
           (run->job.machine != job->machine && strcmp(run->job.machine->name, job->machine->name) != 0);
}

/* The error of a row with the median of the shares that fit other runs: the nearest ones of other tables, or with
 * is_near all runs of its stack and machine. NAN: there are none. */
static double error_from(const struct tt_backtest *t, int row, bool is_near, double *buf)
{
    const struct tt_cluster_run *run = &t->run[row];

    for (int far = 0; far <= (is_near ? 0 : 2); far++) {
        int n = 0;

        for (int i = 0; i < t->n; i++)
            if (i != row && distance(&t->run[i], &run->job) == far && (is_near || !same_table(t->run[i].id, run->id)) &&
                !says_little(&t->row[i].time))
                buf[n++] = t->row[i].fitted;
        if (n > 0)
            return error_with(run, median(buf, n));
    }
    return NAN;
}

/* Errors for a quantile, with their weights. */
struct pool {
    struct {
        double size, weight;
    } * error;
    int n, tables;
};

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b; /* the first member */

    return (*x > *y) - (*x < *y);
}

/* Adds the errors of the runs up to a distance to a pool. Together they weigh `weight`, and each table the same. */
static void add_errors(const struct tt_backtest *t, const struct tt_cluster_job *job, const char *without, int far,
                       bool is_near, double weight, struct pool *pool)
{
    int first = pool->n, tables = 0;

    for (int i = 0; i < t->n; i++) {
        int d = distance(&t->run[i], job), same = 0;
        double error = is_near ? t->row[i].inside : t->row[i].outside;
        bool is_first = true;

        if (d < 0 || d > far || isnan(error) || (without && same_table(t->run[i].id, without)))
            continue;
        for (int k = 0; k < t->n; k++) {
            int other = distance(&t->run[k], job);

            if (other < 0 || other > far || isnan(is_near ? t->row[k].inside : t->row[k].outside) ||
                !same_table(t->run[k].id, t->run[i].id))
                continue;
            is_first = is_first && k >= i;
            same++;
        }
        tables += is_first;
        pool->error[pool->n].size = fabs(log1p(error));
        pool->error[pool->n++].weight = weight / same;
    }
    for (int i = first; i < pool->n; i++)
        pool->error[i].weight /= tables;
    pool->tables = tables;
}

/* The 80 % quantile; sorts the errors. 0: there are none. */
static double quantile(struct pool *pool)
{
    const double share = 0.8;
    double sum = 0, at = 0;

    if (pool->n > 0)
        qsort(pool->error, (size_t)pool->n, sizeof *pool->error, by_size);
    for (int i = 0; i < pool->n; i++)
        sum += pool->error[i].weight;
    for (int i = 0; i < pool->n; i++)
        if ((at += pool->error[i].weight) >= share * sum)
            return pool->error[i].size;
    return 0;
}

/* By how many e-folds the number of devices is outside of the range of the runs of this stack, or else of all runs. */
static double beyond(const struct tt_backtest *t, const struct tt_cluster_job *job)
{
    double devices = tt_cluster_devices(job), low = INFINITY, high = 0;

    for (int far = 0; far <= 2 && high <= 0; far++)
        for (int i = 0; i < t->n; i++)
            if (distance(&t->run[i], job) == far) {
                low = fmin(low, tt_cluster_devices(&t->run[i].job));
                high = fmax(high, tt_cluster_devices(&t->run[i].job));
            }
    return high <= 0 ? 0 : fmax(0, fmax(log(devices / high), log(low / devices)));
}

/* Widens intervals: all constants were chosen with the runs of the tables in view, so that errors of new runs are
 * larger. Without it, the intervals contained three of five of 37 runs, of seven publications, that nobody had seen. */
static const double unseen = 1.25;

/* Either a run is like the known ones of its stack and machine, or its setup is in no table, and then its error is that
 * of a table from elsewhere. The more tables of known runs there are, the likelier the first case is; many runs in one
 * table say little, since the same people set up all of them. */
void tt_cluster_interval(const struct tt_backtest *evidence, const struct tt_cluster_job *job, const char *without,
                         struct tt_cluster_interval *ret)
{
    enum { TABLES = 3, ELSEWHERE = 2 }; /* runs from elsewhere count as two tables */
    struct pool pool = {.error = tt_calloc(2 * (size_t)evidence->n + 1, sizeof *pool.error)};
    double near, width;
    int n_near, tables;

    *ret = (struct tt_cluster_interval){0};
    add_errors(evidence, job, without, 0, true, 1, &pool);
    near = quantile(&pool);
    n_near = pool.n;
    tables = pool.tables;
    for (int i = 0; i < n_near; i++)
        pool.error[i].weight *= tables;
    for (int far = 1; far <= 2; far++) {
        pool.n = n_near;
        add_errors(evidence, job, without, far, false, ELSEWHERE, &pool);
        if (pool.tables >= TABLES)
            break;
    }
    ret->rows = n_near > 0 ? n_near : pool.n;
    ret->tables = n_near > 0 ? tables : pool.tables;
    width = unseen * fmax(quantile(&pool), near);
    width = hypot(width, evidence->growth * beyond(evidence, job));
    tt_free(pool.error);
    ret->low = exp(-width);
    ret->high = exp(width);
}

int tt_backtest_evidence_load(struct tt_backtest_evidence *ret_evidence)
{
    static const char *const where[] = {"the built-in table of runs", "the built-in table of runs with experts"};
    int rc = 0;

    TT_TRY(tt_csv_parse(tt_backtest_runs, tt_backtest_runs_size, where[0], &ret_evidence->table[0]));
    TT_TRY(tt_csv_parse(tt_backtest_experts, tt_backtest_experts_size, where[1], &ret_evidence->table[1]));
    TT_TRY(tt_backtest_score(ret_evidence->table, where, 2, &ret_evidence->test));
out:
    return rc;
}

void tt_backtest_evidence_release(struct tt_backtest_evidence *evidence)
{
    tt_backtest_release(&evidence->test);
    for (int i = 0; i < 2; i++)
        tt_csv_release(&evidence->table[i]);
}

/* --- rows --- */

static const char *memory_exclusion(const struct tt_cluster_run *run)
{
    if (*run->memory_excluded)
        return run->memory_excluded;
    if (run->excluded && run->sec > 0)
        return run->excluded;
    if (run->job.seq_len <= 0)
        return run->excluded ? run->excluded : "the sequence length is not stated";
    return run->ac_stated ? NULL : "what is recomputed is not stated";
}

static void predict(const struct tt_cluster_run *run, struct tt_backtest_row *row)
{
    *row = (struct tt_backtest_row){.error = NAN,
                                    .left_out = NAN,
                                    .one_row = NAN,
                                    .foreign = NAN,
                                    .inside = NAN,
                                    .outside = NAN,
                                    .memory_error = NAN,
                                    .fitted = NAN,
                                    .memory_excluded = memory_exclusion(run)};
    if (!(run->job.seq_len > 0) || !(run->job.micro_batch > 0))
        return;
    tt_cluster_step(&run->job, &row->time);
    tt_cluster_peak(&run->job, &row->memory);
    if (!run->excluded) {
        row->error = row->time.total / run->sec - 1;
        row->fitted = tt_cluster_fit(&run->job, run->sec);
    }
    if (run->bytes > 0 && !row->memory_excluded)
        row->memory_error = row->memory.allocated / run->bytes - 1;
}

/* --- sweeps --- */

/* (pairs in the right order - pairs in the wrong one) / pairs */
static double kendall(const struct tt_backtest *t, const int *index, int n)
{
    long sum = 0, pairs = 0;

    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) {
            double d = (t->run[index[i]].sec - t->run[index[k]].sec) *
                       (t->row[index[i]].time.total - t->row[index[k]].time.total);

            sum += (d > 0) - (d < 0);
            pairs++;
        }
    return pairs ? (double)sum / (double)pairs : NAN;
}

static void score_sweep(struct tt_backtest *t, int first, int end, double *buf)
{
    struct tt_backtest_sweep *s = &TT_PUSH(t->sweep, t->n_sweeps, t->cap_sweeps);
    int *index = tt_calloc((size_t)(end - first), sizeof *index), n = 0, pick = -1, fitting = -1;
    double best = INFINITY;

    *s = (struct tt_backtest_sweep){.id = t->run[first].id, .source = t->run[first].source};
    for (int i = first; i < end; i++) {
        const struct tt_cluster_run *run = &t->run[i];

        s->n_oom += run->oom;
        s->n_failed += run->failed;
        if (!run->failed && tt_cluster_fits(&t->row[i].memory) == TT_FIT_YES &&
            (fitting < 0 || t->row[i].time.total < t->row[fitting].time.total))
            fitting = i;
        if (run->excluded)
            continue;
        index[n] = i;
        buf[n++] = t->row[i].error;
        best = fmin(best, run->sec);
        if (pick < 0 || t->row[i].time.total < t->row[pick].time.total)
            pick = i;
    }
    s->n = n;
    s->time = score(buf, n);
    s->kendall_tau = kendall(t, index, n);
    s->pick_over_best = pick < 0 ? NAN : t->run[pick].sec / best;
    s->pick_that_fits = fitting < 0 || t->run[fitting].excluded ? NAN : t->run[fitting].sec / best;
    tt_free(index);
}

/* --- all --- */

static struct tt_score collect(const struct tt_backtest *t, size_t offset, bool plain, double *buf)
{
    int n = 0;

    for (int i = 0; i < t->n; i++) {
        double error = *(const double *)((const char *)&t->row[i] + offset);

        if (!isnan(error) && t->run[i].layout_of_sweep == t->sweeps_only && t->run[i].plain == plain)
            buf[n++] = error;
    }
    return score(buf, n);
}

static void score_all(struct tt_backtest *t, double *buf, double *medians)
{
    int n = 0;

    for (int i = 0; i < t->n; i++)
        if (!t->run[i].layout_of_sweep && counts(&t->run[i]))
            calibrate(t, i, buf, medians);
    for (int i = 0; i < t->n; i++)
        if (!t->run[i].layout_of_sweep && !t->run[i].excluded) {
            bool has_experts = t->run[i].job.shape.experts > 0; /* the share of products says little about them */

            t->row[i].inside = has_experts ? t->row[i].error : error_from(t, i, true, buf);
            t->row[i].outside = has_experts ? t->row[i].error : error_from(t, i, false, buf);
        }
    for (int i = 0; i < t->n; i++) {
        const struct tt_cluster_run *run = &t->run[i];
        const struct tt_cluster_memory *m = &t->row[i].memory;
        bool fits = tt_cluster_fits(m) != TT_FIT_NO;

        if (run->failed || !(m->total > 0))
            continue;
        if (run->layout_of_sweep || run->oom) {
            t->fits[fits][!run->oom]++;
            t->false_fits_far += run->oom && m->total * 1.05 <= m->usable;
        } else {
            t->ran++;
            t->ran_refused += !fits;
            t->ran_unstated += !fits && !run->ac_stated;
        }
    }
    t->plain = collect(t, offsetof(struct tt_backtest_row, error), true, buf);
    t->special = collect(t, offsetof(struct tt_backtest_row, error), false, buf);
    t->left_out = collect(t, offsetof(struct tt_backtest_row, left_out), true, buf);
    t->one_row = collect(t, offsetof(struct tt_backtest_row, one_row), true, buf);
    t->foreign = collect(t, offsetof(struct tt_backtest_row, foreign), true, buf);
    t->growth = growth(t, buf);
    t->held = NAN;
    for (int i = 0; i < t->n; i++)
        if (!isnan(t->row[i].memory_error))
            buf[n++] = t->row[i].memory_error;
    t->memory = score(buf, n);
}

int tt_backtest_score(const struct tt_csv *tables, const char *const *where, int n, struct tt_backtest *t)
{
    double *buf = NULL, *medians = NULL;
    int rc = 0, total = 0;

    *t = (struct tt_backtest){.sweeps_only = true};
    for (int i = 0; i < n; i++)
        total += tables[i].n_rows;
    t->run = tt_calloc((size_t)total + 1, sizeof *t->run);
    t->row = tt_calloc((size_t)total + 1, sizeof *t->row);
    buf = tt_calloc((size_t)total + 1, sizeof *buf);
    medians = tt_calloc((size_t)total + 1, sizeof *medians);
    for (int i = 0; i < n; i++) {
        struct tt_cluster_run *runs = NULL;

        TT_TRY(tt_cluster_runs(&tables[i], where[i], &runs));
        memcpy(t->run + t->n, runs, (size_t)tables[i].n_rows * sizeof *runs);
        tt_free(runs);
        t->n += tables[i].n_rows;
    }
    for (int i = 0; i < t->n; i++) {
        t->sweeps_only = t->sweeps_only && t->run[i].layout_of_sweep;
        predict(&t->run[i], &t->row[i]);
    }
    score_all(t, buf, medians);
    for (int first = 0, end; first < t->n; first = end) {
        for (end = first + 1; end < t->n && strcmp(t->run[end].id, t->run[first].id) == 0; end++)
            ;
        if (t->run[first].layout_of_sweep)
            score_sweep(t, first, end, buf);
    }
out:
    tt_free(buf);
    tt_free(medians);
    if (rc < 0)
        tt_backtest_release(t);
    return rc;
}

void tt_backtest_release(struct tt_backtest *t)
{
    tt_free(t->run);
    tt_free(t->row);
    tt_free(t->sweep);
    *t = (struct tt_backtest){0};
}

/* --- calibration: the log of a run of torchtitan --- */

/* The smallest number of steps that must follow the first quarter of a log, during which the job warms up. */
enum { LEAST_STEPS = 5 };

struct values {
    double *item;
    int n, cap;
};

/* The number after the word in "tps: 7,380" or "memory: 47.82GiB"; colour codes may be between them. 0: there is
 * none. */
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

/* The numbers after a word in the lines of training steps (not of validation). */
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

/* The median of the values after the first quarter; sorts them. 0: there are too few. */
static double settled(struct values *v)
{
    int skip = v->n / 4, n = v->n - skip;

    if (n < LEAST_STEPS)
        return 0;
    (void)tt_median(v->item + skip, n);
    return v->item[skip + n / 2]; /* the larger of two middle values */
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

    if (tps.n == 0) /* before 2025 logs contained words instead */
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
    if (says_little(&time))
        return tt_fail(TT_EDATA,
                       "%s cannot be used: the host takes %.0f %% of the predicted step, so the log says little about "
                       "products\nhelp: use a run with larger microbatches",
                       where, 100 * time.host / time.total);
    c.share = tt_cluster_fit(job, sec);
    stack->number[TT_S_GEMM] = (struct tt_cluster_number){c.share, "fitted: the log of a run"};
    with.stack = stack;
    tt_cluster_step(&with, &time);
    if (fabs(time.total / sec - 1) > 0.01)
        rc = tt_fail(TT_EDATA,
                     "%s is of another job: %.0f tokens/s a device, the prediction is off by %+.0f %% and no rate of "
                     "products explains it\nhelp: the configuration and the first number of --ranks have to be those "
                     "of the log",
                     where, c.tokens_per_sec, 100 * c.error);
    c.error_after = time.total / sec - 1;
    tt_cluster_peak(job, &peak);
    c.predicted_bytes = peak.allocated;
    *ret = c;
    return rc;
}
