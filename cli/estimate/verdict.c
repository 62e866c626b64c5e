/* SPDX-License-Identifier: MIT
 *
 * The screen of an answer: first the verdict, then its basis.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/estimate/cluster.h"
#include "cli/run/screen.h"

static const double gib = 1024.0 * 1024.0 * 1024.0;

enum { INDENT = 14, TEXT = 48 };

/* --- numbers --- */

/* "1,586" */
static const char *whole(char buf[TEXT], double x)
{
    return x < 9e18 ? tt_text_count(buf, TEXT, (int64_t)llround(x)) : "many";
}

/* "5.24B", "1T" */
static const char *tokens_text(char buf[TEXT], double x)
{
    enum { FEW = 99999 };
    static const char *const unit[] = {"", "K", "M", "B", "T", "P"};
    size_t u = 0;

    if (x <= FEW)
        return whole(buf, x);
    while (x >= 999.5 && u + 1 < sizeof unit / sizeof *unit) {
        x /= 1000;
        u++;
    }
    (void)snprintf(buf, TEXT, "%.3g%s", x, unit[u]);
    return buf;
}

/* "1.1 days", "17 hours", "36 minutes" */
static const char *time_text(char buf[TEXT], double days)
{
    double x = days >= 1 ? days : days * 24 >= 1 ? days * 24 : days * 1440;
    const char *unit = days >= 1 ? "day" : days * 24 >= 1 ? "hour" : "minute";

    (void)snprintf(buf, TEXT, x < 99.5 ? "%.2g %s%s" : "%.0f %s%s", x, unit, x >= 0.95 && x < 1.05 ? "" : "s");
    if (x >= 9.95 && x < 99.5)
        (void)snprintf(buf, TEXT, "%.1f %ss", x, unit);
    return buf;
}

static const char *bytes_text(char buf[TEXT], double bytes)
{
    double x = bytes / gib;

    (void)snprintf(buf, TEXT, x >= 99.95 ? "%.0f" : "%.1f", x);
    return buf;
}

static const char *device(const struct tt_cluster_answer *a)
{
    return tt_cluster_is_cpu(&a->in->machine) ? "socket" : "GPU";
}

/* --- the verdict --- */

/* "843 tokens/s a GPU, 5.24B tokens in 1.1 days, 1,586 GPU-hours, $3,965" */
static void add_rates(const struct tt_cluster_answer *a, const struct tt_cluster_layout *l, struct tt_text *out)
{
    const struct tt_cluster_course c = tt_cluster_course(l, a->view.course.tokens);
    char rate[TEXT], tokens[TEXT], days[TEXT], hours[TEXT], cost[TEXT];
    const char *unit = device(a);

    tt_text_add(out, "%s tokens/s a %s, %s tokens in %s, %s %s-hours", whole(rate, l->tokens_per_sec), unit,
                tokens_text(tokens, c.tokens), time_text(days, c.days), whole(hours, c.device_hours), unit);
    if (a->in->typed.price > 0)
        tt_text_add(out, ", $%s", whole(cost, c.device_hours * a->in->typed.price));
}

void tt_cluster_answer_verdict(const struct tt_cluster_answer *a, struct tt_text *out)
{
    const struct tt_cluster_memory *m = &a->view.layout.memory;
    double devices = tt_cluster_devices(&a->view.layout.job), wanted = a->in->typed.days;
    char need[TEXT], usable[TEXT];

    if (a->is_found)
        tt_text_add(out, "%.0f x %s %s; ", devices, a->in->machine.name, devices == 1 ? "is enough" : "are enough");
    tt_text_add(out, "%s%s: %s of %s GiB; ", tt_cluster_fit_words[a->view.fit],
                a->view.fit == TT_FIT_NO && a->is_pick ? " in any layout" : "", bytes_text(need, m->total),
                bytes_text(usable, m->usable));
    if (a->view.fit != TT_FIT_NO)
        add_rates(a, &a->view.layout, out);
    else if (a->n_remedies > 0) {
        tt_text_add(out, "%s it fits: ", a->remedy[0].text);
        add_rates(a, &a->remedy[0].layout, out);
    } else
        tt_text_add(out, "no layout fits, even with up to 64 times more devices");
    if (wanted > 0 && a->view.fit != TT_FIT_NO && a->view.course.days > wanted)
        tt_text_add(out, "; more than %g days: --gpus %s finds the number", wanted, a->in->machine.name);
}

/* --- lines --- */

static void begin(struct tt_text *line, const char *title)
{
    tt_text_add(line, "%-*s", INDENT, title);
}

static void end(struct tt_text *line)
{
    tt_cluster_print_wrapped(line, INDENT);
}

static void print_job(const struct tt_cluster_answer *a)
{
    const struct tt_cluster_job *job = &a->view.layout.job;
    const struct tt_cluster_number *v = job->machine->number;
    double devices = tt_cluster_devices(job), node = v[TT_M_DEVICES].value;
    struct tt_text line = {0};
    char count[24];

    begin(&line, "job");
    tt_text_add(&line, "%s, %s parameters, on %.0f x %s", a->view.model,
                tt_cluster_params_text(count, sizeof count, &job->shape), devices, job->machine->name);
    if (devices > node)
        tt_text_add(&line, ", %.0f nodes with %.0f Gb/s each", ceil(devices / node), v[TT_M_NODE_NET].value * 8 / 1e9);
    tt_text_add(&line, ", %s", job->stack->name);
    end(&line);
}

void tt_cluster_answer_layout(const struct tt_cluster_answer *a, struct tt_text *out)
{
    static const char *const again[] = {
        [TT_AGAIN_NONE] = "recompute nothing",         [TT_AGAIN_OP] = "recompute cheap operations",
        [TT_AGAIN_LAYERS] = "recompute some layers",   [TT_AGAIN_ATTENTION] = "recompute attention",
        [TT_AGAIN_MODULES] = "recompute some modules", [TT_AGAIN_FULL] = "recompute everything"};
    const struct tt_cluster_job *job = &a->view.layout.job;
    char text[100], tokens[TEXT], tried[TEXT];

    tt_text_add(out, "%s; %s tokens a step, %.0f microbatch%s of %.0f x %.0f, %s%s%s",
                tt_cluster_layout_brief(text, sizeof text, job), tokens_text(tokens, tt_cluster_tokens(job)),
                job->n_micro, job->n_micro == 1 ? "" : "es", job->micro_batch, job->seq_len, again[job->again],
                job->keep_gathered ? ", parameters stay gathered" : "", job->float8 ? ", float8" : "");
    if (a->is_pick)
        tt_text_add(out, "; %s of %s (--search)", a->view.fit == TT_FIT_NO ? "the smallest" : "the search's pick",
                    whole(tried, (double)a->n_tried));
}

static void print_layout(const struct tt_cluster_answer *a)
{
    struct tt_text line = {0};

    begin(&line, "layout");
    tt_cluster_answer_layout(a, &line);
    end(&line);
}

static void print_memory(const struct tt_cluster_answer *a)
{
    const struct tt_cluster_memory *m = &a->view.layout.memory;
    struct tt_text line = {0};
    char text[TEXT];
    double other = 0;

    begin(&line, "memory");
    for (int i = 0; i < TT_CLUSTER_MEMORY_PARTS; i++) {
        const struct tt_cluster_memory_part *part = &tt_cluster_memory_parts[i];
        double bytes = tt_cluster_memory_part_bytes(m, part);

        if (part->is_other)
            other += bytes;
        else if (bytes >= 0.05 * gib)
            tt_text_add(&line, "%s %s, ", part->name, bytes_text(text, bytes));
    }
    tt_text_add(&line, "other %s GiB a %s", bytes_text(text, other), device(a));
    if (m->host > 0)
        tt_text_add(&line, ", and %s of the host's memory", bytes_text(text, m->host));
    tt_text_add(&line, "%s", a->view.fit == TT_FIT_TIGHT ? "; less than 2 GiB or 4 % spare" : "");
    if (a->view.layout.job.pp > 1)
        tt_text_add(&line, "; stage %d needs most", m->stage);
    end(&line);
}

/* Adds the parts of a step, the longest first. */
static void add_parts(const struct tt_cluster_time *t, struct tt_text *line)
{
    double last = INFINITY;

    for (int k = 0; k < TT_CLUSTER_PARTS; k++) {
        double most = 0;
        int at = 0;

        for (int i = 0; i < TT_CLUSTER_PARTS; i++) {
            double sec = tt_cluster_part_sec(t, &tt_cluster_parts[i]);

            if (sec < last && sec > most) {
                most = sec;
                at = i;
            }
        }
        if (most < 0.01 * t->total)
            return;
        tt_text_add(line, "%s%s %.0f %%", k ? ", " : "", tt_cluster_parts[at].title, 100 * most / t->total);
        last = most;
    }
}

/* Prints how far the measured MFU is from the predicted one. */
static void print_yours(const struct tt_cluster_answer *a, double mfu)
{
    const double yours = a->in->typed.mfu / 100, slower = mfu / yours;
    const struct tt_cluster_view *v = &a->view;
    struct tt_text line = {0};

    begin(&line, "yours");
    tt_text_add(&line, "MFU %.3g %% ", 100 * yours);
    if (slower > 1 + v->above)
        tt_text_add(&line,
                    "means %.1f x slower than predicted (80 %%: %.0f to %.0f %%); check that the layout is this one, "
                    "then compile, data, recomputation and the network",
                    slower, 100 * mfu / (1 + v->above), 100 * mfu / (1 - v->below));
    else if (slower < 1 - v->below)
        tt_text_add(&line, "means %.1f x faster than predicted; check the peak and the flops that it counts",
                    1 / slower);
    else
        tt_text_add(&line, "is within the 80 %% interval of the prediction, %.0f to %.0f %%",
                    100 * mfu / (1 + v->above), 100 * mfu / (1 - v->below));
    end(&line);
}

static void print_step(const struct tt_cluster_answer *a)
{
    const struct tt_cluster_time *t = &a->view.layout.time;
    const struct tt_cluster_job *job = &a->view.layout.job;
    double flops = tt_cluster_flops(&a->view.layout);
    double peak = tt_cluster_peak_flops(job), float8 = job->machine->number[TT_M_PEAK_F8].value;
    struct tt_text line = {0};
    char sec[3][TEXT];

    begin(&line, "step");
    tt_text_add(&line, "%s s (80 %%: %s to %s), MFU %.1f %% of %s's %.4g TFLOP/s",
                tt_cluster_sec_text(sec[0], TEXT, t->total),
                tt_cluster_sec_text(sec[1], TEXT, t->total * (1 - a->view.below)),
                tt_cluster_sec_text(sec[2], TEXT, t->total * (1 + a->view.above)), 100 * flops / peak,
                tt_cluster_type_text(job), peak / 1e12);
    if (job->float8 && float8 > 0)
        tt_text_add(&line, ", %.1f %% of float8's %.4g", 100 * flops / float8, float8 / 1e12);
    end(&line);
    if (a->in->typed.mfu > 0)
        print_yours(a, flops / peak);
    begin(&line, "limited by");
    add_parts(t, &line);
    end(&line);
}

/* Prints the changes that gain something and fit. */
static void print_better(const struct tt_cluster_answer *a)
{
    enum { MOST = 3 };
    struct tt_text line = {0};
    int n = 0;

    for (int i = 0; i < a->view.n_changes && n < MOST && a->view.fit != TT_FIT_NO; i++) {
        const struct tt_cluster_change *c = &a->view.change[i];
        double more = (c->layout.memory.total - a->view.layout.memory.total) / gib;

        if (tt_cluster_fits(&c->layout.memory) == TT_FIT_NO || c->gain < 0.01)
            continue;
        if (n == 0)
            begin(&line, "better");
        tt_text_add(&line, "%s%s +%.0f %%", n ? ", " : "", c->text, 100 * c->gain);
        if (fabs(more) >= 0.5)
            tt_text_add(&line, " (%+.0f GiB)", more);
        n++;
    }
    for (int i = 0; i < a->n_remedies; i++) {
        char need[TEXT];

        if (n++ == 0)
            begin(&line, "it fits");
        tt_text_add(&line, "%s%s (%s GiB%s)", i ? ", " : "", a->remedy[i].text,
                    bytes_text(need, a->remedy[i].layout.memory.total),
                    tt_cluster_fits(&a->remedy[i].layout.memory) == TT_FIT_TIGHT ? ", tight" : "");
    }
    if (n > 0)
        end(&line);
}

static void print_run(const struct tt_cluster_answer *a)
{
    const struct tt_cluster_course *c = &a->view.course;
    struct tt_text line = {0};
    char steps[TEXT], minutes[TEXT];

    if (a->view.fit == TT_FIT_NO)
        return;
    begin(&line, "run");
    tt_text_add(&line, "%s steps, a failure every %s, ", whole(steps, c->steps),
                time_text(minutes, c->failure_hours / 24));
    if (c->interval_steps < c->steps)
        tt_text_add(&line, "a checkpoint every %s, ", time_text(minutes, c->interval_sec / 86400));
    tt_text_add(&line, "goodput %.1f %%", 100 * c->goodput);
    end(&line);
}

/* Whether all of the nearest runs used the same machine, whose name then need not be repeated. */
static bool is_one_machine(const struct tt_cluster_view *v)
{
    for (int i = 1; i < v->n_near; i++)
        if (strcmp(v->near[i]->job.machine->name, v->near[0]->job.machine->name) != 0)
            return false;
    return v->n_near > 0;
}

/* Prints the needs of generation, on the fewest devices of a node that can hold the model. */
static void print_inference(const struct tt_cluster_answer *a)
{
    const double node = a->in->machine.number[TT_M_DEVICES].value;
    struct tt_cluster_job job = a->view.layout.job;
    struct tt_cluster_inference need;
    struct tt_text line = {0};
    char total[TEXT], weights[TEXT], cache[TEXT];

    job.micro_batch = job.pp = job.ep = 1;
    for (int tp = 1;; tp *= 2) {
        job.tp = tp;
        tt_cluster_inference(&job, &need);
        if (need.total <= a->view.layout.memory.usable || 2 * tp > node || fmod(job.shape.kv_heads, 2.0 * tp) != 0)
            break;
    }
    begin(&line, "inference");
    tt_text_add(&line, "%s%s GiB", need.total > a->view.layout.memory.usable ? "does not fit in a node: " : "",
                bytes_text(total, need.total));
    if (job.tp > 1)
        tt_text_add(&line, " on each of %.0f %ss", job.tp, device(a));
    else
        tt_text_add(&line, " on one %s", device(a));
    tt_text_add(&line, ": weights %s, cache of %.0f tokens %s", bytes_text(weights, need.weights), job.seq_len,
                bytes_text(cache, need.cache));
    end(&line);
}

static void print_evidence(const struct tt_cluster_answer *a)
{
    const struct tt_cluster_view *v = &a->view;
    bool one = is_one_machine(v);
    struct tt_text line = {0};

    begin(&line, "evidence");
    if (!v->measured_family)
        tt_text_add(&line, "no run of this stack on %s was measured%s", v->layout.job.machine->name,
                    v->n_near ? "; " : "");
    if (v->n_near > 0)
        tt_text_add(&line, "errors for %s runs", v->measured_family ? "the nearest" : "similar");
    if (one && !v->measured_family)
        tt_text_add(&line, " on %s", v->near[0]->job.machine->name);
    for (int i = 0; i < v->n_near; i++)
        tt_text_add(&line, "%s%s%s%s%s %+.0f %%", i ? ", " : ": ", v->near[i]->id, one ? "" : " (",
                    one ? "" : v->near[i]->job.machine->name, one ? "" : ")", 100 * v->near_error[i]);
    if (v->interval.rows > 0)
        tt_text_add(&line, "; interval from %d runs of %d source%s", v->interval.rows, v->interval.tables,
                    v->interval.tables == 1 ? "" : "s");
    end(&line);
}

void tt_cluster_answer_print(const struct tt_cluster_answer *a)
{
    struct tt_text line = {0};

    tt_cluster_answer_verdict(a, &line);
    tt_cluster_print_wrapped(&line, 2);
    print_job(a);
    print_layout(a);
    print_memory(a);
    print_step(a);
    print_better(a);
    print_run(a);
    print_evidence(a);
    print_inference(a);
}
