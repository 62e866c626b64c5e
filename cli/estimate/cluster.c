/* SPDX-License-Identifier: MIT
 *
 * `titan estimate --machine`: a job on clusters of several sizes, or its best layouts; with the stack titan, the memory
 * is that of its plan.
 */
#include "cli/estimate/cluster.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/estimate/estimate.h"
#include "cli/estimate/inputs.h"
#include "cli/estimate/screen.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "estimate/backtest/backtest.h"
#include "estimate/formats/formats.h"
#include "trainer/job/job.h"
#include "trainer/job/predict.h"

/* Answers to "will it fit, how fast, what does it cost": the layout that a job uses, the number of devices that it
 * needs, and changes that would make it fit. */

/* The tokens of the whole run of a job. */
static double run_tokens(const struct tt_cluster_inputs *in, const struct tt_cluster_job *job)
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
                   "estimate: no layout with %.0f sequences per step fits %d devices: %s\nhelp: choose another "
                   "--batch%s or another number",
                   tt_cluster_tokens(job) / job->seq_len, devices, why,
                   fixes ? ", other degrees (--tp, --pp, --cp, --ep, --micro-batch)" : "");
}

/* Answers for a number of devices. TT_EUSAGE: the layout cannot run on them. */
static int answer_for(const struct tt_cluster_question *q, int devices, struct tt_cluster_answer *ret_answer)
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
    tt_cluster_view_fill(&a->view, &job, q->usable, run_tokens(q->in, &job), q->test);
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
        days = tt_cluster_course(&found.layout[0], run_tokens(q->in, &found.layout[0].job)).days;
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

/* Finds the least number of devices on which the job fits and, if the question has days, ends in time; answers for it,
 * or for the largest number that was tried. */
static int find_answer(const struct tt_cluster_question *q, struct tt_cluster_answer *ret_answer)
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
    rc = answer_for(q, devices, a);
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

/* --- the memory of titan's own plan, if titan can train the job itself --- */

/* Sorts the bytes of the arena into the kinds of the formulas. */
static void by_part(const struct tt_job_prediction *p, double staging, struct tt_cluster_memory *m)
{
    const int64_t *k = p->memory.by_kind;

    m->state = (double)(k[TT_MEMORY_PARAM] + k[TT_MEMORY_OPTIMIZER] + k[TT_MEMORY_GRAD]);
    m->buffers =
        (double)(k[TT_MEMORY_UNSHARDED] + k[TT_MEMORY_KEPT] + k[TT_MEMORY_PARAM_GRAD] + k[TT_MEMORY_STAGING]) + staging;
    m->activations = (double)p->memory.total + staging - m->state - m->buffers;
    m->allocated = m->state + m->buffers + m->activations;
    m->total = m->allocated + m->communicators + m->context;
}

static int predict(struct tt_config *cfg, const struct tt_cluster_job *cluster_job, struct tt_job *job,
                   struct tt_cluster_memory *ret_memory)
{
    const struct tt_cluster_number *v = cluster_job->machine->number;
    struct tt_job_prediction p = {0};
    struct tt_engine *engine = NULL;
    double devices = tt_cluster_devices(cluster_job);
    int rc = 0;

    TT_TRY(tt_job_init(cfg, (int)devices, (int)v[TT_M_UNITS].value, (int64_t)v[TT_M_MEMORY].value, job));
    TT_TRY(tt_job_engine_alone(cfg, job, 0, &engine));
    TT_TRY(tt_job_predict(job, &job->engine.machine, engine, 0, &p));
    *ret_memory = (struct tt_cluster_memory){.communicators = cluster_job->stack->number[TT_S_COMM_BASE].value,
                                             .context = v[TT_M_RESERVED].value,
                                             .usable = ret_memory->usable};
    by_part(&p, (double)job->staging_bytes, ret_memory);
    ret_memory->stage = cluster_job->pp > 1 ? (int)(p.rank / (devices / cluster_job->pp)) : 0;
    tt_job_prediction_release(&p);
out:
    tt_engine_free(engine);
    return rc;
}

/* Replaces the memory of a view by that of titan's plan, for the rank that needs most. TT_EUSAGE: titan cannot train
 * the configuration on this number of ranks. */
static int plan(const struct tt_cluster_inputs *in, struct tt_cluster_view *view)
{
    struct tt_cluster_memory *memory = &view->layout.memory;
    double before = memory->total;
    struct tt_text unbuilt = {0};
    struct tt_cli_variant variant = {.unbuilt = &unbuilt};
    struct tt_config *cfg = NULL; /* planning writes into it */
    struct tt_job job = {0};
    int rc = 0;

    TT_TRY(tt_cli_load_variant("estimate", &in->with, &variant, &cfg));
    if (unbuilt.text && strstr(unbuilt.text, "parallelism."))
        TT_TRY(tt_fail(TT_EUSAGE,
                       "estimate: titan does not train with %.*s yet\nhelp: set it to 1, or choose another --stack",
                       (int)strcspn(unbuilt.text, "\n"), unbuilt.text));
    TT_TRY(tt_config_locate(cfg, predict(cfg, &view->layout.job, &job, memory)));
    view->planned = true;
    view->fit = tt_cluster_fits(memory);
    for (int i = 0; i < view->n_changes; i++)
        view->change[i].layout.memory.total += memory->total - before;
out:
    tt_job_release(&job);
    tt_config_free(cfg);
    tt_text_release(&unbuilt);
    return rc;
}

/* --- the command --- */

enum { SHOWN = 10 };

struct command {
    const struct tt_args *args;
    struct tt_cluster_inputs in;
    struct tt_cluster_calibration calibration; /* steps is 0 without a calibration */
    double usable;
    struct tt_backtest_evidence evidence;
    json_t *list; /* the results, with --json */
    bool any;     /* whether something fits */
    struct tt_cluster_picture picture;
    bool alone;        /* there is only one number of ranks */
    const char **idle; /* settings of the command line that change nothing, as "--section.key" */
    int n_idle, cap_idle;
};

/* Prints the settings that the prediction leaves out. Each line begins with `head`: "", or the mark of a comment. */
static void print_notes(const struct tt_cluster_notes *notes, const char *head)
{
    for (int i = 0; i < notes->n; i++) {
        const struct tt_cluster_note *note = &notes->item[i];

        tt_print("%s%-13s %s%s%s: %s\n", head, i ? "" : "not counted", note->key, *note->value ? " " : "", note->value,
                 note->why);
    }
}

/* --- settings without effect --- */

/* What a prediction says about a job. */
struct outcome {
    double sec, bytes, host, days;
};

static int predict_outcome(const struct tt_args *args, int ranks, struct outcome *ret)
{
    struct tt_cluster_inputs in = {0};
    struct tt_cluster_layout layout;
    int rc = 0;

    TT_TRY(tt_cluster_typed_read(args, &in.typed));
    TT_TRY(tt_cluster_inputs_hardware(&in, args));
    TT_TRY(tt_cluster_inputs_job(&in, args));
    if (in.typed.any && !in.is_laid_out) {
        TT_TRY(tt_cluster_batch_of(&in, ranks, &layout.job));
        tt_cluster_own_recomputation(&in, &layout.job);
    } else
        TT_TRY(tt_cluster_job_of(&in, ranks, &layout.job));
    tt_cluster_step(&layout.job, &layout.time);
    tt_cluster_peak(&layout.job, &layout.memory);
    *ret = (struct outcome){.sec = layout.time.total,
                            .bytes = layout.memory.total,
                            .host = layout.memory.host,
                            .days = tt_cluster_course(&layout, run_tokens(&in, &layout.job)).days};
out:
    tt_cluster_inputs_release(&in);
    return rc;
}

/* The number of words of the setting that begins at word[i]: "--key=value", or "--key" and perhaps "value". */
static int setting_words(int n, const char *const *word, int i)
{
    bool has_value = strchr(word[i], '=') != NULL;

    return !has_value && i + 1 < n && !tt_text_begins(word[i + 1], "--") && !strchr(word[i + 1], '=') ? 2 : 1;
}

/* Lists those settings among `word` that change nothing: without one of them, the prediction is the same. `args` has
 * the same list, which this shortens for a moment. */
static void find_idle(struct command *c, struct tt_args *args, const char ***list, int *n, int from, int ranks,
                      const struct outcome *whole)
{
    const char **word = *list;
    int n_words = *n;

    for (int i = from, step; i < n_words; i += step) {
        const char **rest = tt_calloc((size_t)n_words + 1, sizeof *rest);
        size_t length = strcspn(word[i], "=");
        struct outcome without;
        bool noted = false;

        step = setting_words(n_words, word, i);
        for (int k = 0, at = 0; k < n_words; k++)
            if (k < i || k >= i + step)
                rest[at++] = word[k];
        *list = rest;
        *n = n_words - step;
        for (int k = 0; k < c->in.notes.n; k++)
            noted = noted || strncmp(c->in.notes.item[k].key, word[i] + strspn(word[i], "-"),
                                     length - strspn(word[i], "-")) == 0;
        if (!noted && predict_outcome(args, ranks, &without) == 0 && without.sec == whole->sec &&
            without.bytes == whole->bytes && without.host == whole->host && without.days == whole->days)
            TT_PUSH(c->idle, c->n_idle, c->cap_idle) = word[i];
        tt_free((void *)rest);
    }
    *list = word;
    *n = n_words;
}

/* Finds the settings of the command line that change nothing. titan's own plan may count them, so not for its jobs. */
static void find_all_idle(struct command *c, int ranks)
{
    struct tt_args args = *c->args;
    struct outcome whole;

    ranks = ranks > 0 ? ranks : (int)c->in.machine.number[TT_M_DEVICES].value;
    if ((strcmp(c->in.stack.name, "titan") == 0 && !c->in.foreign.has_shape) ||
        predict_outcome(&args, ranks, &whole) < 0)
        return;
    find_idle(c, &args, &args.override, &args.n_overrides, 0, ranks, &whole);
    find_idle(c, &args, &args.word, &args.n_words, c->in.typed.n_words, ranks, &whole);
}

static void print_idle(const struct command *c)
{
    struct tt_text line = {0};

    for (int i = 0; i < c->n_idle; i++)
        tt_text_add(&line, "%s%.*s", i ? ", " : "no effect     ", (int)strcspn(c->idle[i], "="), c->idle[i]);
    if (c->n_idle > 0) {
        tt_text_add(&line, ": the prediction is the same without %s", c->n_idle > 1 ? "them" : "it");
        tt_cluster_print_wrapped(&line, 14);
    }
}

/* Prints the layout as a configuration, instead of everything else. */
static int emit(struct command *c, const struct tt_cluster_layout *layout)
{
    struct tt_text text = {0};
    int rc = tt_cluster_emit(tt_args_last(c->args, "emit"), c->in.cfg, c->in.foreign.has_shape ? c->in.model : NULL,
                             layout, &text);

    if (rc == 0) {
        print_notes(&c->in.notes, "# ");
        tt_print("%s", text.text);
    }
    tt_text_release(&text);
    return rc;
}

/* Adds a job or the best of a search to the picture: a point and, if it stands alone, the lanes of its pipeline. */
static int draw(struct command *c, const struct tt_cluster_layout *layout)
{
    tt_cluster_picture_point(&c->picture, layout);
    return c->alone && tt_args_has(c->args, "svg") ? tt_cluster_picture_lanes(&c->picture, layout) : 0;
}

static int one(struct command *c, int ranks)
{
    struct tt_cluster_view view = {.model = c->in.model};
    struct tt_cluster_job job;
    char text[32];
    int rc = tt_cluster_job_of(&c->in, ranks, &job);

    if (rc < 0)
        return rc;
    tt_cluster_view_fill(&view, &job, c->usable, run_tokens(&c->in, &job), &c->evidence.test);
    if (strcmp(job.stack->name, "titan") == 0 && !c->in.foreign.has_shape) /* titan can plan the job itself */
        TT_TRY(plan(&c->in, &view));
    TT_TRY(draw(c, &view.layout));
    (void)snprintf(text, sizeof text, "%d ranks", ranks);
    tt_cluster_picture_bar(&c->picture, c->alone ? "as configured" : text, &view.layout);
    for (int i = 0; i < view.n_changes && c->alone; i++)
        tt_cluster_picture_bar(&c->picture, view.change[i].text, &view.change[i].layout);
    c->any = c->any || view.fit != TT_FIT_NO;
    if (tt_args_has(c->args, "emit"))
        rc = emit(c, &view.layout);
    else if (c->list)
        (void)json_array_append_new(c->list, tt_cluster_json(&view));
    else
        tt_cluster_print(&view);
out:
    return rc;
}

static struct tt_cluster_question question_of(const struct command *c)
{
    return (struct tt_cluster_question){.args = c->args, .in = &c->in, .test = &c->evidence.test, .usable = c->usable};
}

/* Adds the members that only answers have to the JSON of a view. */
static json_t *answer_json(const struct tt_cluster_answer *a)
{
    json_t *o = tt_cluster_json(&a->view), *remedies = json_array();
    struct tt_text verdict = {0};

    tt_cluster_answer_verdict(a, &verdict);
    for (int i = 0; i < a->n_remedies; i++)
        (void)json_array_append_new(remedies, json_pack("{s:s, s:f, s:f, s:f}", "remedy", a->remedy[i].text, "devices",
                                                        tt_cluster_devices(&a->remedy[i].layout.job), "memory_bytes",
                                                        a->remedy[i].layout.memory.total, "tokens_per_s_per_device",
                                                        a->remedy[i].layout.tokens_per_sec));
    (void)json_object_update_new(
        o,
        json_pack("{s:o, s:b, s:o, s:o}", "verdict", tt_json_string(verdict.text), "layout_searched", a->is_pick,
                  "remedies", remedies, "dollars",
                  a->in->typed.price > 0 ? json_real(a->view.course.device_hours * a->in->typed.price) : json_null()));
    tt_text_release(&verdict);
    return o;
}

/* Answers a question as a person types it, for a number of devices or, if that is 0, for the number that the job
 * needs. */
static int answer(struct command *c, int devices)
{
    const struct tt_cluster_question question = question_of(c);
    const char *page = tt_args_last(c->args, "html");
    struct tt_cluster_answer a;
    char text[120];
    int rc = 0;

    TT_TRY(devices > 0 ? answer_for(&question, devices, &a) : find_answer(&question, &a));
    TT_TRY(draw(c, &a.view.layout));
    tt_cluster_picture_bar(&c->picture, tt_cluster_layout_brief(text, sizeof text, &a.view.layout.job), &a.view.layout);
    for (int i = 0; i < a.view.n_changes && c->alone; i++)
        tt_cluster_picture_bar(&c->picture, a.view.change[i].text, &a.view.change[i].layout);
    c->any = c->any || a.view.fit != TT_FIT_NO;
    if (page)
        TT_TRY(tt_cluster_page_save(&question, &a, page));
    if (tt_args_has(c->args, "emit"))
        rc = emit(c, &a.view.layout);
    else if (c->list)
        (void)json_array_append_new(c->list, answer_json(&a));
    else
        tt_cluster_answer_print(&a);
out:
    return rc;
}

static int search(struct command *c, int ranks)
{
    const struct tt_cluster_question question = question_of(c);
    struct tt_cluster_view view = {.model = c->in.model};
    struct tt_cluster_answer least;
    struct tt_cluster_found found;
    struct tt_cluster_job job;
    char text[200];
    int rc = 0;

    if (ranks == 0) {
        rc = find_answer(&question, &least);
        if (rc < 0)
            return rc;
        ranks = (int)tt_cluster_devices(&least.view.layout.job);
    }
    rc = tt_cluster_batch_of(&c->in, ranks, &job);
    if (rc < 0)
        return rc;
    tt_cluster_own_recomputation(&c->in, &job);
    tt_cluster_answer_search(&question, &job, ranks, SHOWN, &found);
    if (found.n > 0)
        tt_cluster_view_fill(&view, &found.layout[0].job, c->usable, run_tokens(&c->in, &job), &c->evidence.test);
    if (found.n > 0)
        TT_TRY(draw(c, &found.layout[0]));
    for (int i = 0; i < (c->alone ? found.n : found.n > 0); i++)
        tt_cluster_picture_bar(&c->picture, tt_cluster_layout_text(text, sizeof text, &found.layout[i].job),
                               &found.layout[i]);
    c->any = c->any || found.n > 0;
    if (tt_args_has(c->args, "emit") && found.n > 0)
        rc = emit(c, &found.layout[0]);
    else if (c->list)
        (void)json_array_append_new(c->list, tt_cluster_found_json(&found, ranks));
    else
        tt_cluster_print_found(&found, &job, ranks, &view, c->in.typed.any);
out:
    tt_free(found.layout);
    return rc;
}

/* Prints how far the run is from the prediction. Since the prediction follows comparable runs, this is also the
 * distance from those runs. */
static void print_distance(const struct tt_cluster_calibration *c, const struct tt_cluster_view *view)
{
    const double gib = 1024.0 * 1024 * 1024, slower = 1 / (1 + c->error), more = c->bytes - c->predicted_bytes;
    double least = INFINITY, most = -INFINITY;
    struct tt_text line = {0};

    for (int i = 0; i < view->n_near; i++) {
        least = fmin(least, -view->near_error[i] / (1 + view->near_error[i]));
        most = fmax(most, -view->near_error[i] / (1 + view->near_error[i]));
    }
    tt_text_add(&line, "comparable    ");
    if (slower > 1 + view->above)
        tt_text_add(&line, "the run is %.1f x slower than predicted", slower);
    else if (slower < 1 - view->below)
        tt_text_add(&line, "the run is %.1f x faster than predicted", 1 / slower);
    else
        tt_text_add(&line, "the run is as fast as predicted, within the 80 %% interval");
    if (view->n_near > 0)
        tt_text_add(&line, ", where the %d nearest measured runs took %+.0f to %+.0f %% more time", view->n_near,
                    100 * least, 100 * most);
    if (slower > 1 + view->above || slower < 1 - view->below) {
        tt_text_add(&line, "; check %s", slower > 1 ? "compile, data and recomputation" : "batch, model and dtype");
        if (c->bytes > 0 && fabs(more) > 2 * gib)
            tt_text_add(&line, ": memory differs by %.0f GiB, so the run may %s", fabs(more) / gib,
                        more < 0 ? "recompute more than the configuration says" : "recompute less, or not be compiled");
    }
    tt_cluster_print_wrapped(&line, 14);
}

static void print_calibration(const struct tt_cluster_calibration *c, const struct tt_cluster_view *view)
{
    const double gib = 1024.0 * 1024 * 1024;

    tt_print("calibrated    %d steps, %.0f tokens/s a device: the error was %+.1f %% and is %.1f %%; products reach "
             "%.3f of the machine's rate, not %.3f",
             c->steps, c->tokens_per_sec, 100 * c->error, 100 * fabs(c->error_after), c->share, c->old_share);
    if (c->bytes > 0)
        tt_print("; memory of the log %.1f GiB, predicted %.1f GiB (%+.1f %%)", c->bytes / gib,
                 c->predicted_bytes / gib, 100 * (c->predicted_bytes / c->bytes - 1));
    tt_print("\n");
    print_distance(c, view);
    tt_print("\n");
}

/* Fits the stack to the log of the configured job on `ranks` ranks. */
static int calibrate(struct command *c, int ranks)
{
    const char *log = tt_args_last(c->args, "calibrate");
    struct tt_cluster_view view = {.model = c->in.model};
    struct tt_cluster_job job;
    char *text = NULL;
    size_t size;
    int rc = 0;

    if (!log)
        return 0;
    TT_TRY(tt_file_read(log, &text, &size));
    TT_TRY(tt_cluster_job_of(&c->in, ranks, &job));
    TT_TRY(tt_cluster_calibrate(text, log, &job, &c->in.stack, &c->calibration));
    tt_cluster_view_fill(&view, &job, c->usable, 1, &c->evidence.test);
    if (!c->list && !tt_args_has(c->args, "emit"))
        print_calibration(&c->calibration, &view);
out:
    tt_free(text);
    return rc;
}

static json_t *calibration_json(const struct tt_cluster_calibration *c)
{
    if (c->steps == 0)
        return json_null();
    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:o, s:f}", "steps", c->steps, "tokens_per_s_per_device",
                     c->tokens_per_sec, "error_before", c->error, "error_after", c->error_after, "gemm_share_before",
                     c->old_share, "gemm_share", c->share, "memory_bytes",
                     c->bytes > 0 ? json_real(c->bytes) : json_null(), "predicted_memory_bytes", c->predicted_bytes);
}

static int save_json(const char *path, json_t *json)
{
    int rc = path ? tt_json_save(path, json) : 0;

    json_decref(json);
    return rc;
}

/* Writes the machine and the stack, if the user asked for them. */
static int save(const struct command *c)
{
    int rc = save_json(tt_args_last(c->args, "save"), tt_cluster_machine_json(&c->in.machine));

    return rc < 0 ? rc : save_json(tt_args_last(c->args, "save_stack"), tt_cluster_stack_json(&c->in.stack));
}

/* Takes the numbers of devices from --gpus or --nodes, if it gives any. */
static int take_ranks(struct command *c, const int **ranks, int *n)
{
    struct tt_cluster_typed *t = &c->in.typed;
    double devices = t->nodes * c->in.machine.number[TT_M_DEVICES].value;
    static const int find_it = 0, single = 1;

    if (devices > TT_MOST_RANKS)
        return tt_fail(TT_EUSAGE, "estimate: --nodes: %.0f devices are too many", devices);
    if (t->nodes > 0)
        TT_PUSH(t->ranks, t->n_ranks, t->cap) = (int)devices;
    if (t->n_ranks > 0) {
        *ranks = t->ranks;
        *n = t->n_ranks;
    } else if (*n == 0) {
        *ranks = t->any ? &find_it : &single;
        *n = 1;
    }
    if (t->days > 0 && t->tokens == 0)
        return tt_fail(TT_EUSAGE, "estimate: --days needs the tokens of the run\nhelp: for instance --tokens 1T");
    return 0;
}

static bool is_to_be_found(const struct command *c, const int *ranks)
{
    return ranks[0] == 0 && (c->in.is_laid_out || tt_args_has(c->args, "calibrate"));
}

int tt_print_cluster(const struct tt_args *args, const int *ranks, int n, int64_t memory)
{
    struct command c = {.args = args, .usable = (double)memory};
    json_t *notes, *idle;
    char *title = NULL;
    bool saves = tt_args_has(args, "save") || tt_args_has(args, "save_stack"), searches = tt_args_has(args, "search");
    int rc = 0;

    TT_TRY(tt_cluster_typed_read(args, &c.in.typed));
    TT_TRY(tt_cluster_inputs_hardware(&c.in, args));
    if (saves && !tt_args_has(args, "calibrate")) {
        rc = save(&c);
        goto out;
    }
    TT_TRY(take_ranks(&c, &ranks, &n));
    if ((tt_args_has(args, "emit") || tt_args_has(args, "html")) && (n != 1 || tt_args_has(args, "json")))
        TT_TRY(tt_fail(TT_EUSAGE,
                       "estimate: --%s prints one configuration\nhelp: give one number of --ranks, and no --json",
                       tt_args_has(args, "emit") ? "emit" : "html"));
    TT_TRY(tt_cluster_inputs_job(&c.in, args));
    if (is_to_be_found(&c, ranks))
        TT_TRY(
            tt_fail(TT_EUSAGE, "estimate: a given layout needs a number of GPUs\nhelp: for instance --gpus 64xh100"));
    find_all_idle(&c, ranks[0]);
    TT_TRY(tt_backtest_evidence_load(&c.evidence));
    c.list = tt_args_has(args, "json") ? json_array() : NULL;
    TT_TRY(calibrate(&c, ranks[0]));
    if (saves)
        TT_TRY(save(&c));
    c.alone = n == 1;
    for (int i = 0; i < n; i++) {
        TT_TRY(searches                                      ? search(&c, ranks[i])
               : c.in.typed.any || tt_args_has(args, "html") ? answer(&c, ranks[i])
                                                             : one(&c, ranks[i]));
        if (!c.list && i + 1 < n)
            tt_print("\n");
    }
    if (tt_args_has(args, "svg")) {
        title = tt_format("%s on %s, stack %s", c.in.model, c.in.machine.name, c.in.stack.name);
        TT_TRY(tt_cluster_picture_save(&c.picture, title, tt_args_last(args, "svg")));
    }
    if (c.list) {
        notes = json_array();
        for (int i = 0; i < c.in.notes.n; i++) {
            const struct tt_cluster_note *note = &c.in.notes.item[i];

            (void)json_array_append_new(notes, json_pack("{s:o, s:o, s:s}", "key", tt_json_string(note->key), "value",
                                                         tt_json_string(note->value), "assumes", note->why));
        }
        idle = json_array();
        for (int i = 0; i < c.n_idle; i++)
            (void)json_array_append_new(idle, json_stringn(c.idle[i], strcspn(c.idle[i], "=")));
        rc = tt_cli_print_json(json_pack(
            "{s:s, s:i, s:o, s:o, s:o, s:O}", "type", searches ? "cluster_search" : "cluster_estimate", "schema", 1,
            "calibration", calibration_json(&c.calibration), "not_counted", notes, "no_effect", idle, "jobs", c.list));
    } else if (!tt_args_has(args, "emit")) {
        print_notes(&c.in.notes, "");
        print_idle(&c);
    }
    if (rc == 0 && !c.any)
        rc = tt_error_exit_code(TT_EFIT);
out:
    tt_free(title);
    json_decref(c.list);
    tt_backtest_evidence_release(&c.evidence);
    tt_cluster_inputs_release(&c.in);
    tt_cluster_picture_release(&c.picture);
    tt_free((void *)c.idle);
    return rc;
}
