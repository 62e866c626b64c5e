/* SPDX-License-Identifier: MIT
 *
 * What is known about a job on a cluster: its predictions, what one change would do, and which measured runs are like
 * it.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cluster/screen/screen.h"
#include "cluster/model/pipeline.h"

/* How far a measured run is from the job: factors of devices and parameters, and whether both have experts. */
static double distance(const struct tt_cluster_run *run, const struct tt_cluster_job *job)
{
    bool experts = job->shape.experts > 0;

    return fabs(log(tt_cluster_devices(&run->job) / tt_cluster_devices(job))) +
           fabs(log(tt_cluster_params(&run->job.shape) / tt_cluster_params(&job->shape))) +
           0.5 * fabs(log(run->job.seq_len / job->seq_len)) + (run->job.float8 != job->float8) +
           4 * ((run->job.shape.experts > 0) != experts) +
           0.5 * (strcmp(run->job.machine->name, job->machine->name) != 0);
}

/* Whether two stacks or machines are of one kind: torchtitan-eager and torchtitan-compile, h100-sxm and h100-nvl. */
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

/* Keeps the nearest runs: those of the stack on the machine, or of stacks and machines of their kinds. */
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

/* Whether the tables have runs of the stack on the machine, and of about as many devices. */
static void find_measured(struct tt_cluster_view *view, const struct tt_backtest *test)
{
    const struct tt_cluster_job *job = &view->layout.job;

    for (int i = 0; i < test->n; i++) {
        const struct tt_cluster_run *run = &test->run[i];
        double ratio = tt_cluster_devices(&run->job) / tt_cluster_devices(job);

        if (run->excluded || !is_measured(run, job))
            continue;
        view->measured_family = true;
        view->measured_size = view->measured_size || (ratio >= 0.25 && ratio <= 4);
    }
}

void tt_cluster_view_fill(struct tt_cluster_view *view, const struct tt_cluster_job *job, double usable, double tokens,
                          const struct tt_backtest *test)
{
    view->layout = tt_cluster_predict(job, usable);
    view->fit = tt_cluster_fits(&view->layout.memory);
    view->n_changes = tt_cluster_changes(&view->layout, usable, view->change);
    view->course = tt_cluster_course(&view->layout, tokens);
    find_measured(view, test);
    find_near(view, test, !view->measured_family);
    view->below = view->measured_family ? tt_backtest_interval : tt_backtest_wide_interval;
    if (view->measured_family && !view->measured_size)
        view->below *= 1.5;
    view->above = view->below;
    if (job->shape.experts > 0) {
        view->below = fmax(view->below, tt_backtest_experts_below);
        view->above = tt_backtest_experts_above;
    }
}

void tt_cluster_view_plan(struct tt_cluster_view *view, const struct tt_cluster_memory *memory)
{
    double more = memory->total - view->layout.memory.total, usable = view->layout.memory.usable;

    view->planned = true;
    view->layout.memory = *memory;
    view->layout.memory.usable = usable;
    view->fit = tt_cluster_fits(&view->layout.memory);
    for (int i = 0; i < view->n_changes; i++)
        view->change[i].layout.memory.total += more;
}

/* ", stages of 7 to 9 layers" */
static size_t stages_text(char *buf, size_t size, const struct tt_cluster_job *job)
{
    double least = INFINITY, most = 0;

    for (int i = 0; i < (int)(job->pp * job->virtual_stages); i++) {
        least = fmin(least, job->stage_layers[i]);
        most = fmax(most, job->stage_layers[i]);
    }
    return (size_t)snprintf(buf, size, ", stages of %.0f to %.0f layers", least, most);
}

char *tt_cluster_layout_text(char *buf, size_t size, const struct tt_cluster_job *job)
{
    static const char *const again[] = {[TT_AGAIN_NONE] = "nothing",
                                        [TT_AGAIN_OP] = "cheap operations",
                                        [TT_AGAIN_LAYERS] = "some layers",
                                        [TT_AGAIN_ATTENTION] = "attention",
                                        [TT_AGAIN_FULL] = "everything"};
    struct tt_text modules = {0};
    const struct {
        const char *name;
        double degree;
    } part[] = {{"copies", job->replicate},
                {"shards", job->shard},
                {"TP", job->tp},
                {"PP", job->pp},
                {"CP", job->cp},
                {"EP", job->ep}};
    size_t at = 0;

    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (part[i].degree > 1 && at < size)
            at += (size_t)snprintf(buf + at, size - at, "%s%s %.0f", at ? " x " : "", part[i].name, part[i].degree);
    if (at < size)
        at += (size_t)snprintf(buf + at, size - at, "%s%.0f microbatch%s of %.0f", at ? ", " : "", job->n_micro,
                               job->n_micro == 1 ? "" : "es", job->micro_batch);
    if (job->shape.experts > 0 && tt_cluster_expert_tp(job) != job->tp && at < size)
        at += (size_t)snprintf(buf + at, size - at, ", experts not cut by TP");
    if (job->pp > 1 && at < size)
        at += (size_t)snprintf(buf + at, size - at, ", %s", tt_cluster_schedule_name(job));
    if (job->virtual_stages > 1 && at < size)
        at += (size_t)snprintf(buf + at, size - at, " with %.0f stages a rank", job->virtual_stages);
    if (job->stage_layers && at < size)
        at += stages_text(buf + at, size - at, job);
    if (job->again == TT_AGAIN_MODULES)
        tt_cluster_module_names(job->again_modules, &modules);
    if (at < size)
        (void)snprintf(buf + at, size - at, ", recompute %s%s%s", modules.text ? modules.text : again[job->again],
                       job->keep_gathered ? ", parameters stay gathered" : "", job->float8 ? ", float8" : "");
    tt_text_release(&modules);
    return buf;
}
