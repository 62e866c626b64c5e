/* SPDX-License-Identifier: MIT
 *
 * One screen about a job on a cluster, the layouts of a search, and both as JSON.
 */
#include "cli/estimate/screen.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "estimate/model/job.h"

/* --- measured runs near a job --- */

/* The distance of a measured run from the job: factors between their devices and their parameters, and whether only one
 * has experts. */
static double distance(const struct tt_cluster_run *run, const struct tt_cluster_job *job)
{
    bool experts = job->shape.experts > 0;

    return fabs(log(tt_cluster_devices(&run->job) / tt_cluster_devices(job))) +
           fabs(log(tt_cluster_params(&run->job.shape) / tt_cluster_params(&job->shape))) +
           0.5 * fabs(log(run->job.seq_len / job->seq_len)) + (run->job.float8 != job->float8) +
           4 * ((run->job.shape.experts > 0) != experts) +
           0.5 * (strcmp(run->job.machine->name, job->machine->name) != 0);
}

/* Whether two stacks or machines are of the same kind: torchtitan-eager and torchtitan-compile, h100-sxm and
 * h100-nvl. */
static bool same_kind(const char *a, const char *b)
{
    size_t length = strcspn(a, "-");

    return strcspn(b, "-") == length && strncmp(a, b, length) == 0;
}

static bool is_measured(const struct tt_cluster_run *run, const struct tt_cluster_job *job)
{
    return strcmp(run->job.machine->name, job->machine->name) == 0 &&
           strcmp(run->job.stack->name, job->stack->name) == 0;
}

/* Keeps the nearest runs of this stack on this machine; if there are none, runs of stacks and machines of the same
 * kinds. */
static void find_near(struct tt_cluster_view *view, const struct tt_backtest *test, bool others)
{
    const struct tt_cluster_job *job = &view->layout.job;
    int most = (int)(sizeof view->near / sizeof *view->near);

    for (int i = 0; i < test->n; i++) {
        const struct tt_cluster_run *run = &test->run[i];
        double d = distance(run, job);
        int at = view->n_near;

        if (run->excluded || !(others ? same_kind(run->job.stack->name, job->stack->name) &&
                                            same_kind(run->job.machine->name, job->machine->name)
                                      : is_measured(run, job)))
            continue;
        while (at > 0 && d < distance(view->near[at - 1], job))
            at--;
        if (at == most)
            continue;
        view->n_near += view->n_near < most;
        for (int k = view->n_near - 1; k > at; k--) {
            view->near[k] = view->near[k - 1];
            view->near_error[k] = view->near_error[k - 1];
        }
        view->near[at] = run;
        view->near_error[at] = test->row[i].error;
    }
}

void tt_cluster_view_fill(struct tt_cluster_view *view, const struct tt_cluster_job *job, double usable, double tokens,
                          const struct tt_backtest *test)
{
    view->layout = tt_cluster_predict(job, usable);
    view->fit = tt_cluster_fits(&view->layout.memory);
    view->n_changes = tt_cluster_changes(&view->layout, usable, view->change);
    view->course = tt_cluster_course(&view->layout, tokens);
    for (int i = 0; i < test->n; i++) {
        const struct tt_cluster_run *run = &test->run[i];
        double ratio = tt_cluster_devices(&run->job) / tt_cluster_devices(job);

        if (run->excluded || !is_measured(run, job))
            continue;
        view->measured_family = true;
        view->measured_size = view->measured_size || (ratio >= 0.25 && ratio <= 4);
    }
    find_near(view, test, !view->measured_family);
    tt_cluster_interval(test, job, NULL, &view->interval);
    view->below = 1 - view->interval.low;
    view->above = view->interval.high - 1;
}

/* --- text --- */

double tt_cluster_flops(const struct tt_cluster_layout *layout)
{
    const struct tt_cluster_job *job = &layout->job;
    double products = tt_cluster_token_flops(&job->shape, 0), all = tt_cluster_token_flops(&job->shape, job->seq_len);

    return (all - (job->lora_rank > 0 ? products / 3 : 0)) * layout->tokens_per_sec;
}

static const double gib = 1024.0 * 1024.0 * 1024.0;

/* A number with two digits if it is small, with one decimal, or without decimals if it is large. */
static const char *brief(char *buf, size_t size, double value)
{
    double much = fabs(value);

    (void)snprintf(buf, size, much == 0 || much >= 1000 ? "%.0f" : much < 0.95 ? "%.2g" : "%.1f", value);
    return buf;
}

void tt_cluster_print_wrapped(struct tt_text *text, int indent)
{
    const int terminal = tt_screen_columns(STDOUT_FILENO);
    const size_t columns = terminal && terminal < 116 ? (size_t)terminal : 116;
    const char *at = text->text;
    size_t before = 0;

    while (before + strlen(at) > columns) {
        size_t cut = 0, space = 0;

        for (size_t i = 1; at[i] && before + i <= columns; i++) {
            if (at[i] != ' ' || (i <= (size_t)indent && !before))
                continue;
            if (strchr(",;", at[i - 1]) || (at[i + 1] == ' ' && at[i - 1] != ' '))
                cut = i;
            space = at[i - 1] != ' ' && at[i + 1] != '%' ? i : space;
        }
        cut = 3 * cut > space ? cut : space; /* a line is not left almost empty */
        if (cut == 0)
            break;
        tt_print("%.*s\n%*s", (int)cut, at, indent, "");
        at += cut + strspn(at + cut, " ");
        before = (size_t)indent;
    }
    tt_print("%s\n", at);
    tt_text_release(text);
}

const char *tt_cluster_sec_text(char *buf, size_t size, double sec)
{
    if (sec >= 999.5)
        return tt_text_count(buf, size, (int64_t)llround(sec));
    (void)snprintf(buf, size, "%.3g", sec);
    return buf;
}

const char *tt_cluster_type_text(const struct tt_cluster_job *job)
{
    bool has_bfloat16 = !strstr(job->machine->title, "no bfloat16");

    return job->float32 ? "float32" : has_bfloat16 ? "bfloat16" : "float16";
}

const char *tt_cluster_params_text(char *buf, size_t size, const struct tt_cluster_shape *shape)
{
    double n = tt_cluster_params(shape);

    (void)snprintf(buf, size, "%.3g%c", n / (n < 1e12 ? 1e9 : 1e12), n < 1e12 ? 'B' : 'T');
    return buf;
}

static void print_head(const struct tt_cluster_view *view)
{
    const struct tt_cluster_job *job = &view->layout.job;
    double devices = tt_cluster_devices(job), node = job->machine->number[TT_M_DEVICES].value;
    struct tt_text line = {0};
    char text[240], count[24], params[48] = "";

    if (!strstr(view->model, " parameters")) /* if the name does not give their number */
        (void)snprintf(params, sizeof params, ", %s parameters,",
                       tt_cluster_params_text(count, sizeof count, &job->shape));
    tt_print_broken(14, "%s%s on %.0f x %s (%.0f node%s of %.0f, %.0f Gb/s a node), stack %s\n", view->model, params,
                    devices, job->machine->name, ceil(devices / node), devices > node ? "s" : "", fmin(node, devices),
                    job->machine->number[TT_M_NODE_NET].value * 8 / 1e9, job->stack->name);
    tt_text_add(&line, "layout        %s; %.0f tokens a step in sequences of %.0f",
                tt_cluster_layout_text(text, sizeof text, job), tt_cluster_tokens(job), job->seq_len);
    tt_cluster_print_wrapped(&line, 14);
}

/* Prints the first stages of a pipeline, and the last one, which holds the output. */
static void print_stages(const struct tt_cluster_view *view)
{
    const struct tt_cluster_job *job = &view->layout.job;
    int last = (int)job->pp - 1;

    if (last < 1 || view->planned)
        return;
    tt_print("  by stage:");
    for (int i = 0; i <= last; i++) {
        struct tt_cluster_memory m;

        tt_cluster_stage_peak(job, i, &m);
        if (i < 2 || i == last)
            tt_print("%s stage %d %.1f", i ? "," : "", i, m.total / gib);
        else if (i == 2)
            tt_print(", ...");
    }
    tt_print(" GiB\n");
}

static void print_memory(const struct tt_cluster_view *view)
{
    const struct tt_cluster_memory *m = &view->layout.memory;
    struct tt_text line = {0};
    char text[32];

    tt_print("%-13s %.1f of %.1f GiB, %.1f GiB %s", tt_cluster_fit_words[view->fit], m->total / gib, m->usable / gib,
             fabs(m->usable - m->total) / gib, m->usable < m->total ? "too much" : "spare");
    if (view->layout.job.pp > 1)
        tt_print("; stage %d needs most", m->stage);
    if (view->planned)
        tt_print("; as planned by titan");
    tt_print("\n");
    for (int i = 0; i < TT_CLUSTER_MEMORY_PARTS; i++)
        tt_text_add(&line, "  %s %s", tt_cluster_memory_parts[i].name,
                    brief(text, sizeof text, tt_cluster_memory_part_bytes(m, &tt_cluster_memory_parts[i]) / gib));
    tt_cluster_print_wrapped(&line, 2);
    print_stages(view);
}

static const char *tera(char *buf, size_t size, double flops)
{
    (void)snprintf(buf, size, flops < 1e13 ? "%.2g" : "%.0f", flops / 1e12);
    return buf;
}

static void print_time(const struct tt_cluster_view *view)
{
    const struct tt_cluster_time *t = &view->layout.time;
    const struct tt_cluster_job *job = &view->layout.job;
    double flops = tt_cluster_flops(&view->layout);
    double peak = tt_cluster_peak_flops(job);
    struct tt_text line = {0};
    char rate[32], most[32];
    int digits = t->total < 0.1 ? 5 : 3;

    tt_text_add(&line,
                "step          %.*f s (80 %%: %.*f to %.*f)  %.0f tokens/s/device  %s TFLOP/s, MFU %.1f %% of %s "
                "TFLOP/s",
                digits, t->total, digits, t->total * (1 - view->below), digits, t->total * (1 + view->above),
                view->layout.tokens_per_sec, tera(rate, sizeof rate, flops), 100 * flops / peak,
                tera(most, sizeof most, peak));
    tt_cluster_print_wrapped(&line, 14);
    for (int i = 0; i < TT_CLUSTER_PARTS; i++) {
        double sec = tt_cluster_part_sec(t, &tt_cluster_parts[i]);

        if (sec >= 0.0005 * t->total)
            tt_text_add(&line, "  %s %.*f", tt_cluster_parts[i].title, digits, sec);
    }
    tt_cluster_print_wrapped(&line, 2);
    tt_print_broken(
        4,
        "  MFU counts 6 flops a parameter of a product and 12 x layers x width x sequence, not halved for the mask\n");
}

static void print_change(const char *head, const struct tt_cluster_view *view, const struct tt_cluster_change *c)
{
    const struct tt_cluster_memory *m = &c->layout.memory;

    double more = (m->total - view->layout.memory.total) / gib;
    char memory[32] = "the same memory";

    if (fabs(more) >= 0.05)
        (void)snprintf(memory, sizeof memory, "%+.1f GiB", more);
    tt_print_broken(14, "%-13s %s: %+.1f %% tokens/s, %s (%s)\n", head, c->text, 100 * c->gain, memory,
                    tt_cluster_fit_words[tt_cluster_fits(m)]);
}

static void print_changes(const struct tt_cluster_view *view)
{
    const struct tt_cluster_part *limit = tt_cluster_dominant(&view->layout.time);
    const char *head = "also";
    const struct tt_cluster_change *best = NULL;

    for (int i = 0; i < view->n_changes && !best; i++)
        if (tt_cluster_fits(&view->change[i].layout.memory) != TT_FIT_NO &&
            (view->fit == TT_FIT_NO || view->change[i].gain > 0))
            best = &view->change[i];
    tt_print("limited by    %s%s\n", limit->name, limit->is_traffic ? " (traffic that nothing hides)" : "");
    if (best)
        print_change("best change", view, best);
    else
        tt_print_broken(14, "best change   %s\n",
                        view->fit == TT_FIT_NO ? "no single change makes it fit: try --search, or more devices"
                                               : "no single change that fits is faster");
    for (int i = 0, n = 0; i < view->n_changes && n < 5; i++) {
        if (&view->change[i] == best)
            continue;
        print_change(head, view, &view->change[i]);
        head = "";
        n++;
    }
}

static void print_course(const struct tt_cluster_view *view)
{
    const struct tt_cluster_course *c = &view->course;
    bool hours = c->days < 1;
    struct tt_text line = {0};
    char one[32], two[32];

    tt_print_broken(14, "run           %.4g tokens, %.0f steps: %s %s, %s device-hours at a goodput of %.1f %%\n",
                    c->tokens, c->steps, brief(one, sizeof one, hours ? 24 * c->days : c->days),
                    hours ? "hours" : "days", brief(two, sizeof two, c->device_hours), 100 * c->goodput);
    tt_print("  a failure every %s h, %s expected\n", brief(one, sizeof one, c->failure_hours),
             brief(two, sizeof two, c->failures));
    if (c->interval_steps < c->steps)
        tt_text_add(&line, "  a checkpoint every %.0f steps (%s min)", c->interval_steps,
                    brief(one, sizeof one, c->interval_sec / 60));
    else
        tt_text_add(&line, "  one checkpoint, at the end,");
    tt_text_add(&line, " of %s GB, blocked %.1f s %s at %.3g GB/s", brief(two, sizeof two, c->checkpoint_bytes / 1e9),
                c->blocked_sec, view->layout.job.save_waits ? "until written" : "if written in the background",
                view->layout.job.machine->number[TT_M_STORAGE].value / 1e9);
    tt_cluster_print_wrapped(&line, 2);
}

static void print_evidence(const struct tt_cluster_view *view)
{
    const struct tt_cluster_job *job = &view->layout.job;

    if (!view->measured_family)
        tt_print_broken(14, "evidence      no run of %s on %s was measured\n", job->stack->name, job->machine->name);
    for (int i = 0; i < view->n_near; i++) {
        const struct tt_cluster_run *run = view->near[i];
        double devices = tt_cluster_devices(&run->job), error = 100 * view->near_error[i];

        if (view->measured_family)
            tt_print_broken(14, "%-13s %s: %.0f devices, measured %.3f s, predicted %+.1f %%\n", i ? "" : "evidence",
                            run->id, devices, run->sec, error);
        else
            tt_print_broken(14, "%-13s %s (%s, %s): %.0f devices, %.3f s, predicted %+.1f %%\n", "", run->id,
                            run->job.stack->name, run->job.machine->name, devices, run->sec, error);
    }
    if (view->measured_family && !view->measured_size)
        tt_print_broken(4, "  none of them ran on a similar number of devices (a quarter to 4 times as many)\n");
}

void tt_cluster_print(const struct tt_cluster_view *view)
{
    print_head(view);
    print_memory(view);
    print_time(view);
    print_changes(view);
    print_course(view);
    print_evidence(view);
    tt_print_broken(
        14, "not modelled  stalls of data, power limits beyond the machine's, other jobs on the network%s\n",
        view->layout.job.shape.experts > 0 ? ",\n              waiting for the host in layers of experts" : "");
}

/* Prints why layouts do not fit: the most frequent reasons, and how much memory the smallest one lacks. */
static void print_fallen(const struct tt_cluster_found *f)
{
    enum { MOST = 2 };
    const size_t n = sizeof f->fault / sizeof *f->fault;
    struct tt_text line = {0};
    char text[100], count[32];
    bool told[16] = {false};

    tt_text_add(&line, "fell out      %s need too much memory",
                tt_text_count(count, sizeof count, f->n_tried - f->n_fit - f->n_tight));
    if (f->n_tried > 0)
        tt_text_add(&line, " (least: %.1f of %.1f GiB, %s)", f->least_bytes / gib, f->least.memory.usable / gib,
                    tt_cluster_layout_brief(text, sizeof text, &f->least.job));
    for (int k = 0; k < MOST; k++) {
        size_t most = n;

        for (size_t i = 0; i < n; i++)
            if (!told[i] && f->fault[i].n > 0 && (most == n || f->fault[i].n > f->fault[most].n))
                most = i;
        if (most == n)
            break;
        told[most] = true;
        tt_text_add(&line, "; in %s %s", tt_text_count(count, sizeof count, f->fault[most].n), f->fault[most].why);
    }
    tt_cluster_print_wrapped(&line, 14);
}

/* The table of layouts in few columns, for a terminal. */
static void print_brief(const struct tt_cluster_found *f, const struct tt_cluster_view *first)
{
    static const struct tt_column columns[] = {
        {"", 3, true, 0, 0, 0},       {"tokens/s each", 13, true, 1, 2, 0},
        {"MFU", 6, true, 1, 0, 0},    {"days", 5, true, 1, 0, 0},
        {"memory", 7, true, 1, 0, 0}, {"layout; microbatches, recomputed", 0, false, 2, 0, 30}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    char text[100];

    for (int i = 0; i < f->n; i++) {
        const struct tt_cluster_layout *l = &f->layout[i];
        double flops = tt_cluster_flops(l);

        tt_columns_cell(&table, "%d.", i + 1);
        tt_columns_cell(&table, "%.0f", l->tokens_per_sec);
        tt_columns_cell(&table, "%.1f %%", 100 * flops / tt_cluster_peak_flops(&l->job));
        tt_columns_cell(&table, "%.3g", tt_cluster_course(l, first->course.tokens).days);
        tt_columns_cell(&table, "%.0f GiB", l->memory.total / gib);
        tt_columns_cell(&table, "%s; %.0fx%.0f, %s%s", tt_cluster_layout_brief(text, sizeof text, &l->job),
                        l->job.n_micro, l->job.micro_batch, tt_cluster_again_words[l->job.again],
                        l->job.keep_gathered ? ", kept" : "");
    }
    if (f->n > 0)
        tt_columns_print(&table);
}

static void print_long(const struct tt_cluster_found *f, const struct tt_cluster_view *first)
{
    static const struct tt_column columns[] = {
        {"", 4, true, 0, 0, 0},        {"step", 9, true, 1, 0, 0}, {"tokens/s/dev", 12, true, 1, 3, 0},
        {"MFU", 6, true, 1, 2, 0},     {"days", 7, true, 1, 1, 0}, {"memory", 8, true, 1, 0, 0},
        {"layout", 0, false, 2, 0, 30}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    char text[200];

    for (int i = 0; i < f->n; i++) {
        const struct tt_cluster_layout *l = &f->layout[i];
        double flops = tt_cluster_flops(l);

        tt_columns_cell(&table, "%d.", i + 1);
        tt_columns_cell(&table, "%.3f s", l->time.total);
        tt_columns_cell(&table, "%.0f", l->tokens_per_sec);
        tt_columns_cell(&table, "%.1f %%", 100 * flops / tt_cluster_peak_flops(&l->job));
        tt_columns_cell(&table, "%.3g", tt_cluster_course(l, first->course.tokens).days);
        tt_columns_cell(&table, "%.0f GiB", l->memory.total / gib);
        tt_columns_cell(&table, "%s", tt_cluster_layout_text(text, sizeof text, &l->job));
    }
    if (f->n > 0)
        tt_columns_print(&table);
}

void tt_cluster_print_found(const struct tt_cluster_found *f, const struct tt_cluster_job *job, double devices,
                            const struct tt_cluster_view *first, bool is_brief)
{
    tt_print_broken(2,
                    "%.0f x %s, stack %s, %.0f tokens a step: %ld layouts can run, %ld fit with the margin, %ld "
                    "are tight\n",
                    devices, job->machine->name, job->stack->name, tt_cluster_tokens(job), f->n_tried, f->n_fit,
                    f->n_tight);
    if (f->n > 0 && f->n_fit == 0)
        tt_print("nothing fits with the margin of max(2 GiB, 4 %%); these layouts are tight\n");
    if (f->n == 0 && f->n_tried > 0)
        tt_print("nothing fits: the smallest need is %.1f GiB\n", f->least_bytes / gib);
    if (f->n > 1 && f->n_ties > 1)
        tt_print("the first %d are a tie (within %.0f %%), the simplest first\n", f->n_ties, 100 * TT_CLUSTER_TIE);
    (is_brief ? print_brief : print_long)(f, first);
    if (f->n > 0)
        tt_print_broken(14, "days          for %.4g tokens, 80 %%: -%.0f to +%.0f %%; MFU of %s's %.4g TFLOP/s\n",
                        first->course.tokens, 100 * first->below, 100 * first->above,
                        tt_cluster_type_text(&first->layout.job), tt_cluster_peak_flops(&first->layout.job) / 1e12);
    print_fallen(f);
}

/* --- JSON --- */

static json_t *layout_json(const struct tt_cluster_layout *l)
{
    const struct tt_cluster_job *j = &l->job;
    json_t *layers = j->stage_layers ? json_array() : json_null(), *o;
    struct tt_text modules = {0};

    for (int i = 0; j->stage_layers && i < (int)(j->pp * j->virtual_stages); i++)
        (void)json_array_append_new(layers, json_real(j->stage_layers[i]));
    o = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:f, s:o, s:f, s:f, s:s, s:b, s:b}", "dp_replicate", j->replicate,
        "dp_shard", j->shard, "tp", j->tp, "pp", j->pp, "cp", j->cp, "ep", j->ep, "expert_tp", tt_cluster_expert_tp(j),
        "schedule", j->pp > 1 ? json_string(tt_cluster_schedule_name(j)) : json_null(), "stages_per_rank",
        j->virtual_stages, "stage_layers", layers, "micro_batch", j->micro_batch, "microbatches", j->n_micro,
        "recompute", tt_cluster_again_words[j->again], "keep_gathered", j->keep_gathered, "float8", j->float8);
    if (j->again == TT_AGAIN_MODULES) {
        tt_cluster_module_names(j->again_modules, &modules);
        (void)json_object_set_new(o, "recompute_modules", json_string(modules.text));
    }
    tt_text_release(&modules);
    return o;
}

static json_t *prediction_json(const struct tt_cluster_layout *l)
{
    const struct tt_cluster_memory *m = &l->memory;
    json_t *memory = json_object();

    for (int i = 0; i < TT_CLUSTER_MEMORY_PARTS; i++)
        (void)json_object_set_new(memory, tt_cluster_memory_parts[i].name,
                                  json_real(tt_cluster_memory_part_bytes(m, &tt_cluster_memory_parts[i])));
    (void)json_object_update_new(
        memory, json_pack("{s:f, s:f, s:i}", "total", m->total, "usable", m->usable, "stage", m->stage));
    return json_pack("{s:o, s:s, s:o, s:f, s:f}", "layout", layout_json(l), "fit",
                     tt_cluster_fit_words[tt_cluster_fits(m)], "memory_bytes", memory, "step_s", l->time.total,
                     "tokens_per_s_per_device", l->tokens_per_sec);
}

static json_t *changes_json(const struct tt_cluster_view *view)
{
    json_t *list = json_array();

    for (int i = 0; i < view->n_changes; i++) {
        json_t *o = prediction_json(&view->change[i].layout);

        (void)json_object_update_new(
            o, json_pack("{s:s, s:f}", "change", view->change[i].text, "gain", view->change[i].gain));
        (void)json_array_append_new(list, o);
    }
    return list;
}

static json_t *evidence_json(const struct tt_cluster_view *view)
{
    json_t *list = json_array();

    for (int i = 0; i < view->n_near; i++)
        (void)json_array_append_new(
            list, json_pack("{s:o, s:s, s:s, s:f, s:f, s:o}", "id", tt_json_string(view->near[i]->id), "stack",
                            view->near[i]->job.stack->name, "machine", view->near[i]->job.machine->name, "devices",
                            tt_cluster_devices(&view->near[i]->job), "measured_s", view->near[i]->sec, "error",
                            tt_json_number(view->near_error[i])));
    return list;
}

json_t *tt_cluster_parts_json(const struct tt_cluster_time *t)
{
    json_t *parts = json_object();

    for (int i = 0; i < TT_CLUSTER_PARTS; i++)
        (void)json_object_set_new(parts, tt_cluster_parts[i].name,
                                  json_real(tt_cluster_part_sec(t, &tt_cluster_parts[i])));
    return parts;
}

/* The bytes of a rank in each stage; null if titan planned the job. */
static json_t *stages_json(const struct tt_cluster_view *view)
{
    json_t *list = view->planned ? json_null() : json_array();

    for (int i = 0; !view->planned && i < (int)view->layout.job.pp; i++) {
        struct tt_cluster_memory m;

        tt_cluster_stage_peak(&view->layout.job, i, &m);
        (void)json_array_append_new(list, json_real(m.total));
    }
    return list;
}

json_t *tt_cluster_json(const struct tt_cluster_view *view)
{
    const struct tt_cluster_layout *l = &view->layout;
    double flops = tt_cluster_flops(l);
    const struct tt_cluster_course *c = &view->course;
    json_t *o = prediction_json(l), *run;

    run = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "tokens", c->tokens, "steps", c->steps,
                    "days", c->days, "device_hours", c->device_hours, "goodput", c->goodput, "failures", c->failures,
                    "hours_between_failures", c->failure_hours, "checkpoint_bytes", c->checkpoint_bytes,
                    "checkpoint_write_s", c->write_sec, "checkpoint_blocked_s", c->blocked_sec,
                    "checkpoint_interval_steps", c->interval_steps);
    (void)json_object_update_new(
        o, json_pack("{s:o, s:f, s:s, s:s, s:f, s:[ff], s:o, s:s, s:f, s:f}", "model", tt_json_string(view->model),
                     "parameters", tt_cluster_params(&l->job.shape), "machine", l->job.machine->name, "stack",
                     l->job.stack->name, "devices", tt_cluster_devices(&l->job), "step_80_percent_s",
                     l->time.total * (1 - view->below), l->time.total * (1 + view->above), "parts_s",
                     tt_cluster_parts_json(&l->time), "limited_by", tt_cluster_dominant(&l->time)->name,
                     "model_flops_per_s_per_device", flops, "mfu", flops / tt_cluster_peak_flops(&l->job)));
    (void)json_object_update_new(o, json_pack("{s:b, s:o, s:o, s:o, s:o}", "memory_planned", view->planned,
                                              "stage_bytes", stages_json(view), "changes", changes_json(view), "run",
                                              run, "evidence", evidence_json(view)));
    return o;
}

json_t *tt_cluster_found_json(const struct tt_cluster_found *found, double devices)
{
    json_t *list = json_array(), *fell_out = json_array();

    for (int i = 0; i < found->n; i++)
        (void)json_array_append_new(list, prediction_json(&found->layout[i]));
    (void)json_array_append_new(fell_out, json_pack("{s:s, s:I}", "why", "too much memory", "layouts",
                                                    (json_int_t)(found->n_tried - found->n_fit - found->n_tight)));
    for (size_t i = 0; i < sizeof found->fault / sizeof *found->fault && found->fault[i].n > 0; i++)
        (void)json_array_append_new(
            fell_out, json_pack("{s:s, s:I}", "why", found->fault[i].why, "layouts", (json_int_t)found->fault[i].n));
    return json_pack("{s:f, s:I, s:I, s:I, s:i, s:f, s:o, s:o}", "devices", devices, "tried",
                     (json_int_t)found->n_tried, "fit", (json_int_t)found->n_fit, "tight", (json_int_t)found->n_tight,
                     "ties", found->n_ties, "least_bytes", found->least_bytes, "fell_out", fell_out, "layouts", list);
}
