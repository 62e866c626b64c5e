/* SPDX-License-Identifier: MIT
 *
 * Answers to "will it fit, how fast, what does it cost": the layout that a job uses, the number of devices that it
 * needs, and changes that would make it fit.
 */
#include "cli/estimate/answer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "core/base/mem.h"

double tt_cluster_run_tokens(const struct tt_cluster_inputs *in, const struct tt_cluster_job *job)
{
    return in->typed.tokens > 0 ? in->typed.tokens : (double)in->cfg->training.steps * tt_cluster_tokens(job);
}

void tt_cluster_answer_search(const struct tt_cluster_question *q, const struct tt_cluster_job *job, double devices,
                              int most, struct tt_cluster_found *ret_found)
{
    tt_cluster_search(job, devices, q->usable, most, &q->in->typed.fixed, ret_found);
}

/* --- ways out --- */

/* The words for the first difference between two layouts. */
static void difference(const struct tt_cluster_job *from, const struct tt_cluster_job *to, const char *otherwise,
                       char *buf, size_t size)
{
    if (to->tp != from->tp)
        (void)snprintf(buf, size, "with TP %.0f", to->tp);
    else if (to->pp != from->pp)
        (void)snprintf(buf, size, "with PP %.0f", to->pp);
    else if (to->micro_batch != from->micro_batch)
        (void)snprintf(buf, size, "with microbatches of %.0f", to->micro_batch);
    else
        (void)snprintf(buf, size, "with the change '%s'", otherwise);
}

static struct tt_cluster_remedy *add(struct tt_cluster_answer *a, const struct tt_cluster_layout *layout)
{
    struct tt_cluster_remedy *r = &a->remedy[a->n_remedies];

    if (a->n_remedies == TT_CLUSTER_REMEDIES)
        return NULL;
    a->n_remedies++;
    r->layout = *layout;
    r->text[0] = 0;
    return r;
}

/* Adds the best layout of a job, if one fits. `text` is followed by the layout unless it is NULL. */
static bool add_best(const struct tt_cluster_question *q, const struct tt_cluster_job *job, double devices,
                     const char *text, struct tt_cluster_answer *a)
{
    struct tt_cluster_found found;
    struct tt_cluster_remedy *r;
    char layout[100];
    bool fits;

    tt_cluster_answer_search(q, job, devices, 1, &found);
    fits = found.n > 0;
    r = fits ? add(a, &found.layout[0]) : NULL;
    if (r)
        (void)snprintf(r->text, sizeof r->text, "%s%s", text ? text : "with ",
                       text ? "" : tt_cluster_layout_brief(layout, sizeof layout, &found.layout[0].job));
    tt_free(found.layout);
    return fits;
}

/* Doubles the number of devices, at most six times, until the job fits, and adds that number to the remedies. */
static void add_more_devices(const struct tt_cluster_question *q, int devices, struct tt_cluster_answer *a)
{
    for (int n = 2 * devices; n <= 64 * devices && n <= TT_MOST_RANKS; n *= 2) {
        struct tt_cluster_job job;
        char text[80];

        (void)snprintf(text, sizeof text, "on %d x %s", n, q->in->machine.name);
        if (tt_cluster_batch_of(q->in, n, &job) == 0 && add_best(q, &job, n, text, a))
            return;
    }
}

/* Adds the longest shorter sequences that make the job fit on the same devices, if the user gave no length. */
static void add_shorter(const struct tt_cluster_question *q, const struct tt_cluster_job *from, int devices,
                        struct tt_cluster_answer *a)
{
    enum { SHORTEST = 1024 };
    struct tt_cluster_job job = *from;
    char text[40];

    for (int length = (int)from->seq_len / 2; length >= SHORTEST && q->in->typed.seq == 0; length /= 2) {
        job.seq_len = length;
        (void)snprintf(text, sizeof text, "with --seq %d", length);
        if (add_best(q, &job, devices, text, a))
            return;
    }
}

/* Adds changes that would make the job fit on the same devices: other forms of training. */
static void add_forms(const struct tt_cluster_question *q, const struct tt_cluster_job *from, int devices,
                      struct tt_cluster_answer *a)
{
    struct tt_cluster_job job = *from;

    if (from->lora_rank == 0) {
        job.optimizer = TT_OPT_ADAMW_8BIT;
        if (from->optimizer != job.optimizer)
            (void)add_best(q, &job, devices, "with --optimizer adamw8bit", a);
        job = *from;
        job.offload = TT_OFFLOAD_OPTIMIZER;
        if (from->offload == TT_OFFLOAD_NONE)
            (void)add_best(q, &job, devices, "with --offload optimizer", a);
        job = *from;
        job.lora_rank = 16;
        if (add_best(q, &job, devices, "with --lora 16", a))
            return;
    }
    job.lora_rank = from->lora_rank > 0 ? from->lora_rank : 16;
    job.base_bits = 4;
    if (from->base_bits != 4)
        (void)add_best(q, &job, devices, "with --qlora", a);
}

static void find_remedies(const struct tt_cluster_question *q, int devices, struct tt_cluster_answer *a)
{
    const struct tt_cluster_view *view = &a->view;
    const struct tt_cluster_job *job = &view->layout.job;

    for (int i = 0; i < view->n_changes && !a->is_pick; i++) {
        const struct tt_cluster_change *c = &view->change[i];
        struct tt_cluster_remedy *r;

        if (tt_cluster_fits(&c->layout.memory) == TT_FIT_NO)
            continue;
        r = add(a, &c->layout);
        if (r)
            difference(job, &c->layout.job, c->text, r->text, sizeof r->text);
        break;
    }
    if (a->n_remedies == 0 && !a->is_pick)
        (void)add_best(q, job, devices, NULL, a);
    if (a->n_remedies == 0) {
        add_more_devices(q, devices, a);
        add_shorter(q, job, devices, a);
        add_forms(q, job, devices, a);
    }
}

/* --- the layout --- */

/* No layout can run, whether or not it fits. */
static int fail_none(const struct tt_cluster_question *q, const struct tt_cluster_job *job, int devices,
                     const struct tt_cluster_found *found)
{
    bool fixes = tt_cluster_typed_limits(q->args);
    const char *why = found->fault[0].n > 0 ? found->fault[0].why
                      : fixes               ? "the fixed degrees do not divide the devices, or the batch"
                                            : "the devices do not divide the batch";

    return tt_fail(TT_EUSAGE,
                   "estimate: no layout of %.0f sequences a step can run on %d devices: %s\nhelp: choose another "
                   "--batch%s or another number",
                   tt_cluster_tokens(job) / job->seq_len, devices, why,
                   fixes ? ", other degrees (--tp, --pp, --cp, --ep, --micro-batch)" : "");
}

int tt_cluster_answer_for(const struct tt_cluster_question *q, int devices, struct tt_cluster_answer *ret_answer)
{
    struct tt_cluster_answer *a = ret_answer;
    struct tt_cluster_found found = {0};
    struct tt_cluster_job job;
    int rc = 0;

    *a = (struct tt_cluster_answer){.in = q->in, .view = {.model = q->in->model}};
    if (q->in->is_laid_out)
        TT_TRY(tt_cluster_job_of(q->in, devices, &job));
    else {
        TT_TRY(tt_cluster_batch_of(q->in, devices, &job));
        tt_cluster_own_recomputation(q->in, &job);
        tt_cluster_answer_search(q, &job, devices, 1, &found);
        a->n_tried = found.n_tried;
        a->is_pick = found.n_tried > 0;
        if (found.n > 0)
            job = found.layout[0].job;
        else if (found.n_tried > 0)
            job = found.least.job;
        else
            TT_TRY(fail_none(q, &job, devices, &found));
    }
    tt_cluster_view_fill(&a->view, &job, q->usable, tt_cluster_run_tokens(q->in, &job), q->test);
    if (a->view.fit == TT_FIT_NO)
        find_remedies(q, devices, a);
out:
    tt_free(found.layout);
    return rc;
}

/* --- the number of devices --- */

/* The numbers of devices that are tried first: powers of two within a node, then 1, 1.5, 2, 3, 4, ... nodes. */
static int numbers(const struct tt_cluster_machine *machine, int most, int *ret_number)
{
    int node = (int)machine->number[TT_M_DEVICES].value, n = 0;

    for (int k = 1; k < node; k *= 2)
        ret_number[n++] = k;
    for (int k = 1; node * k <= 131072 && n + 1 < most; k *= 2) {
        ret_number[n++] = node * k;
        if (k > 1)
            ret_number[n++] = node * k / 2 * 3;
    }
    return n;
}

/* Whether a number of devices meets the question's requirements. */
static bool is_enough(const struct tt_cluster_answer *a, double days)
{
    return a->view.fit != TT_FIT_NO && (days == 0 || a->view.course.days <= days);
}

/* The days that the job takes on a number of devices, without the effort of a whole answer; INFINITY: it does not
 * fit. */
static double days_on(const struct tt_cluster_question *q, int devices)
{
    struct tt_cluster_found found = {0};
    struct tt_cluster_job job;
    double days = INFINITY;

    if (tt_cluster_batch_of(q->in, devices, &job) < 0)
        return INFINITY;
    tt_cluster_own_recomputation(q->in, &job);
    tt_cluster_answer_search(q, &job, devices, 1, &found);
    if (found.n > 0)
        days = tt_cluster_course(&found.layout[0], tt_cluster_run_tokens(q->in, &found.layout[0].job)).days;
    tt_free(found.layout);
    return days;
}

static bool does(const struct tt_cluster_question *q, double days)
{
    return isfinite(days) && (q->in->typed.days == 0 || days <= q->in->typed.days);
}

/* The least number of whole nodes between `few` devices, which are too few, and `enough`. Fewer devices do not work
 * better each, so those that would have to are left out. */
static int fewest(const struct tt_cluster_question *q, int few, int enough)
{
    enum { TRIES = 64 };
    const int node = (int)q->in->machine.number[TT_M_DEVICES].value;
    const double wanted = q->in->typed.days, days = days_on(q, enough);
    const double gain = 1.05; /* smaller groups lose less to traffic and noise */
    int first = few / node * node + node, step;

    if (few < node || !does(q, days))
        return enough;
    while (wanted > 0 && first < enough && first < enough * days / wanted / gain)
        first += node;
    step = node * (int)fmax(1, ceil((enough - first) / (double)node / TRIES));
    for (int n = first; n < enough; n += step)
        if (does(q, days_on(q, n)))
            return n;
    return enough;
}

int tt_cluster_answer_find(const struct tt_cluster_question *q, struct tt_cluster_answer *ret_answer)
{
    struct tt_cluster_answer *a = ret_answer;
    int number[64], n = numbers(&q->in->machine, 64, number), low = 0, high = n - 1, devices, rc;

    while (low < high) { /* more devices fit more and take less time */
        int middle = (low + high) / 2;

        if (does(q, days_on(q, number[middle])))
            high = middle;
        else
            low = middle + 1;
    }
    devices = low > 0 ? fewest(q, number[low - 1], number[low]) : number[0];
    rc = tt_cluster_answer_for(q, devices, a);
    a->is_found = rc == 0 && is_enough(a, q->in->typed.days);
    return rc;
}

int tt_cluster_answer_scale(const struct tt_cluster_question *q, int devices,
                            struct tt_cluster_layout ret_layout[TT_CLUSTER_SCALES])
{
    int n = 0, first = devices;

    while (first % 2 == 0 && first > devices / 8)
        first /= 2;
    for (int k = first; n < TT_CLUSTER_SCALES && k <= 16 * devices && k <= TT_MOST_RANKS; k *= 2) {
        struct tt_cluster_found found = {0};
        struct tt_cluster_job job;

        if (tt_cluster_batch_of(q->in, k, &job) < 0)
            continue;
        tt_cluster_own_recomputation(q->in, &job);
        tt_cluster_answer_search(q, &job, k, 1, &found);
        if (found.n > 0)
            ret_layout[n++] = found.layout[0];
        tt_free(found.layout);
    }
    return n;
}
