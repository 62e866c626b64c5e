/* SPDX-License-Identifier: MIT
 *
 * One screen about a job on a cluster, and the layouts that a search found.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "cli/cluster/screen/picture.h"
#include "cli/run/columns.h"
#include "cli/run/screen.h"

static const double gib = 1024.0 * 1024.0 * 1024.0;

static const char *const fit_words[] = {[TT_FIT_YES] = "fits", [TT_FIT_TIGHT] = "tight", [TT_FIT_NO] = "does not fit"};

/* A number for people: two digits of a small one, one after the point, none of a large one. */
static const char *brief(char *buf, size_t size, double value)
{
    double much = fabs(value);

    (void)snprintf(buf, size, much == 0 || much >= 1000 ? "%.0f" : much < 0.95 ? "%.2g" : "%.1f", value);
    return buf;
}

/* Prints text in lines of at most 116 columns, or the terminal's, which break behind commas and before double spaces;
 * later ones are indented. */
static void print_wrapped(const struct tt_text *text, int indent)
{
    const int terminal = tt_screen_columns(STDOUT_FILENO);
    const size_t columns = terminal && terminal < 116 ? (size_t)terminal : 116;
    const char *at = text->text;
    size_t before = 0;

    while (before + strlen(at) > columns) {
        size_t cut = 0;

        for (size_t i = 1; at[i] && before + i <= columns; i++)
            if (at[i] == ' ' && (strchr(",;", at[i - 1]) || (at[i + 1] == ' ' && at[i - 1] != ' ')))
                cut = i > (size_t)indent || before ? i : cut;
        if (cut == 0)
            break;
        tt_print("%.*s\n%*s", (int)cut, at, indent, "");
        at += cut + strspn(at + cut, " ");
        before = (size_t)indent;
    }
    tt_print("%s\n", at);
}

static void print_head(const struct tt_cluster_view *view)
{
    const struct tt_cluster_job *job = &view->layout.job;
    double devices = tt_cluster_devices(job), node = job->machine->number[TT_M_DEVICES].value;
    struct tt_text line = {0};
    char text[240], params[48] = "";

    if (!strstr(view->model, " parameters")) /* the name has them */
        (void)snprintf(params, sizeof params, ", %.3gB parameters,", tt_cluster_params(&job->shape) / 1e9);
    tt_print_broken(14, "%s%s on %.0f x %s (%.0f node%s of %.0f, %.0f Gb/s a node), stack %s\n", view->model, params,
                    devices, job->machine->name, ceil(devices / node), devices > node ? "s" : "", fmin(node, devices),
                    job->machine->number[TT_M_NODE_NET].value * 8 / 1e9, job->stack->name);
    tt_text_add(&line, "layout        %s; %.0f tokens a step in sequences of %.0f",
                tt_cluster_layout_text(text, sizeof text, job), tt_cluster_tokens(job), job->seq_len);
    print_wrapped(&line, 14);
    tt_text_release(&line);
}

/* The classes of ranks of a pipeline: the first stage, those between, and the last, which has the output. */
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
    const struct {
        const char *name;
        double bytes;
    } part[] = {{"state", m->state},
                {"gathered", m->buffers},
                {"activations", m->activations},
                {"logits", m->logits},
                {"communicators", m->communicators},
                {"context", m->context},
                {"allocator", m->allocator}};
    struct tt_text line = {0};
    char text[32];

    tt_print("%-13s %.1f of %.1f GiB, %.1f GiB %s", fit_words[view->fit], m->total / gib, m->usable / gib,
             fabs(m->usable - m->total) / gib, m->usable < m->total ? "too much" : "spare");
    if (view->layout.job.pp > 1)
        tt_print("; stage %d needs most", m->stage);
    if (view->planned)
        tt_print("; as planned by titan");
    tt_print("\n");
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        tt_text_add(&line, "  %s %s", part[i].name, brief(text, sizeof text, part[i].bytes / gib));
    print_wrapped(&line, 2);
    tt_text_release(&line);
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
    double flops = tt_cluster_token_flops(&job->shape, job->seq_len) * view->layout.tokens_per_sec;
    struct tt_cluster_part part[TT_CLUSTER_PARTS];
    double peak = tt_cluster_peak_flops(job);
    struct tt_text line = {0};
    char rate[32], most[32];
    int digits = t->total < 0.1 ? 5 : 3;

    tt_cluster_parts(t, part);
    tt_text_add(
        &line, "step          %.*f s (80 %%: %.*f to %.*f)  %.0f tokens/s/device  %s TFLOP/s, MFU %.1f %% of %s ",
        digits, t->total, digits, t->total * (1 - view->below), digits, t->total * (1 + view->above),
        view->layout.tokens_per_sec, tera(rate, sizeof rate, flops), 100 * flops / peak, tera(most, sizeof most, peak));
    tt_text_add(&line, "TFLOP/s");
    print_wrapped(&line, 14);
    tt_text_release(&line);
    for (int i = 0; i < TT_CLUSTER_PARTS; i++)
        if (part[i].sec >= 0.0005 * t->total)
            tt_text_add(&line, "  %s %.*f", part[i].name, digits, part[i].sec);
    print_wrapped(&line, 2);
    tt_text_release(&line);
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
                    fit_words[tt_cluster_fits(m)]);
}

static bool is_traffic(const char *part)
{
    static const char *const names[] = {"tensor", "context", "expert", "data", "pipeline"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(part, names[i]) == 0)
            return true;
    return false;
}

static void print_changes(const struct tt_cluster_view *view)
{
    const char *head = "also", *limit = tt_cluster_dominant(&view->layout.time);
    const struct tt_cluster_change *best = NULL;

    for (int i = 0; i < view->n_changes && !best; i++)
        if (tt_cluster_fits(&view->change[i].layout.memory) != TT_FIT_NO &&
            (view->fit == TT_FIT_NO || view->change[i].gain > 0))
            best = &view->change[i];
    tt_print("limited by    %s%s\n", limit, is_traffic(limit) ? " (traffic that nothing hides)" : "");
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

/* How often to save, in a run that is long enough to save more than once. */
static void print_checkpoints(const struct tt_cluster_view *view)
{
    const struct tt_cluster_course *c = &view->course;
    struct tt_text line = {0};
    char interval[32], bytes[32];

    if (c->interval_steps < c->steps)
        tt_text_add(&line, "  a checkpoint every %.0f steps (%s min)", c->interval_steps,
                    brief(interval, sizeof interval, c->interval_sec / 60));
    else
        tt_text_add(&line, "  one checkpoint, at the end,");
    tt_text_add(&line, " of %s GB, blocked %.1f s if written in the background at %.3g GB/s",
                brief(bytes, sizeof bytes, c->checkpoint_bytes / 1e9), c->blocked_sec,
                view->layout.job.machine->number[TT_M_STORAGE].value / 1e9);
    print_wrapped(&line, 2);
    tt_text_release(&line);
}

static void print_course(const struct tt_cluster_view *view)
{
    const struct tt_cluster_course *c = &view->course;
    bool hours = c->days < 1;
    char time[32], work[32], failures[32], every[32];

    tt_print_broken(14, "run           %.4g tokens, %.0f steps: %s %s, %s device-hours at a goodput of %.1f %%\n",
                    c->tokens, c->steps, brief(time, sizeof time, hours ? 24 * c->days : c->days),
                    hours ? "hours" : "days", brief(work, sizeof work, c->device_hours), 100 * c->goodput);
    tt_print("  a failure every %s h, %s expected\n", brief(every, sizeof every, c->failure_hours),
             brief(failures, sizeof failures, c->failures));
    print_checkpoints(view);
}

static void print_evidence(const struct tt_cluster_view *view)
{
    const struct tt_cluster_job *job = &view->layout.job;

    if (!view->measured_family)
        tt_print_broken(14, "evidence      no run of %s on %s was measured: the interval is wide\n", job->stack->name,
                        job->machine->name);
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
        tt_print_broken(4, "  none of them has at most 4 times more or fewer devices: the interval is wider\n");
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

void tt_cluster_print_found(const struct tt_cluster_found *f, const struct tt_cluster_job *job, double devices)
{
    static const struct tt_column columns[] = {{"", 4, true, 0, 0, 0},
                                               {"step", 9, true, 1, 0, 0},
                                               {"tokens/s/dev", 12, true, 1, 1, 0},
                                               {"memory", 8, true, 1, 0, 0},
                                               {"layout", 0, false, 2, 0, 40}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    char text[200];

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
    for (int i = 0; i < f->n; i++) {
        const struct tt_cluster_layout *l = &f->layout[i];

        tt_columns_cell(&table, "%d.", i + 1);
        tt_columns_cell(&table, "%.3f s", l->time.total);
        tt_columns_cell(&table, "%.0f", l->tokens_per_sec);
        tt_columns_cell(&table, "%.0f GiB", l->memory.total / gib);
        tt_columns_cell(&table, "%s", tt_cluster_layout_text(text, sizeof text, &l->job));
    }
    if (f->n > 0)
        tt_columns_print(&table);
}
