/* SPDX-License-Identifier: MIT
 *
 * How long the ranks of a pipeline wait, how much they hold, and their lanes. tests/unit/test_cluster.c compares the
 * formulas with the simulator.
 */
#include <math.h>

#include "core/base/mem.h"
#include "estimate/model/internal.h"
#include "estimate/model/job.h"

/* From this many microbatches per rank on, each further one adds the time of a rank's work. */
enum { ROUNDS = 4 };

/* --- layers of a stage, by torchtitan's rule, which titan follows --- */

/* The number of layers in the first units, among which the embeddings come first. */
static double layers_until(const struct tt_cluster_job *job, double units)
{
    return fmin(fmax(units - job->first_less, 0), job->shape.layers);
}

/* The layers of a stage, divided by the mean; 1 if the split is not known. */
static double stage_share(const struct tt_cluster_job *job, int stage)
{
    double stages = job->pp * job->virtual_stages, units = job->shape.layers + job->first_less + job->last_less;
    double each, more, begin, end;

    if (!job->split_known)
        return 1;
    if (job->stage_layers)
        return job->stage_layers[stage] / (job->shape.layers / stages);
    each = floor(units / stages);
    more = units - each * stages; /* the first stages have one unit more */
    begin = stage * each + fmin(stage, more);
    end = begin + each + (stage < more ? 1 : 0);
    return (layers_until(job, end) - layers_until(job, begin)) / (job->shape.layers / stages);
}

double tt_cluster_rank_layers(const struct tt_cluster_job *job, int rank)
{
    int p = (int)job->pp, v = (int)job->virtual_stages;
    double share = 0;

    if (!job->split_known) /* Megatron counts the ends as layers if the ranks cannot have equally many otherwise */
        return tt_cluster_stage_layers(job) -
               (p > 1 && (rank == 0 || rank == p - 1) && tt_cluster_stack_is_megatron(job->stack) &&
                fmod(job->shape.layers, p * v) != 0 && fmod(job->shape.layers + 2, p * v) == 0);
    for (int i = 0; i < v; i++)
        share += stage_share(job, tt_cluster_is_v(job) && i % 2 ? (i + 1) * p - 1 - rank : i * p + rank);
    return share * job->shape.layers / (job->pp * job->virtual_stages);
}

enum tt_pipeline_schedule tt_cluster_schedule(const struct tt_cluster_job *job)
{
    bool several = job->virtual_stages > 1;

    switch (job->order) {
    case TT_ORDER_ALL_FORWARD:
        return several ? TT_PP_LOOPED_BFS : TT_PP_GPIPE;
    case TT_ORDER_INTERLEAVED_ZERO_BUBBLE:
        return TT_PP_INTERLEAVED_ZERO_BUBBLE;
    case TT_ORDER_ZBV_ZERO_BUBBLE:
        return TT_PP_ZBV_ZERO_BUBBLE;
    case TT_ORDER_DUAL_PIPE_V:
        return TT_PP_DUAL_PIPE_V;
    case TT_ORDER_1F1B:
        break;
    }
    return several ? TT_PP_INTERLEAVED_1F1B : TT_PP_1F1B;
}

const char *tt_cluster_schedule_name(const struct tt_cluster_job *job)
{
    return tt_pipeline_row(tt_cluster_schedule(job))->name;
}

bool tt_cluster_layers_per_stage(const struct tt_cluster_job *job, double *ret_each, double *ret_ends)
{
    double stages = job->pp * job->virtual_stages, layers = job->shape.layers;
    bool megatron = tt_cluster_stack_is_megatron(job->stack);

    if (megatron && fmod(layers, stages) == 0) {
        *ret_each = layers / stages;
        *ret_ends = 0;
        return true;
    }
    for (int next = 3; next >= (megatron ? 2 : 0); next--) {
        double ends = next < 3 ? next : job->split_known ? job->first_less + job->last_less : 2;
        double each = ceil((layers + ends) / stages);

        if (megatron ? each * stages == layers + ends : ceil((layers + ends) / each) == stages) {
            *ret_each = each;
            *ret_ends = ends;
            return true;
        }
    }
    return false;
}

/* --- the simulation --- */

static struct tt_stage_times stage_times(const struct tt_cluster_passes *pass, double stages)
{
    return (struct tt_stage_times){.forward = pass->forward / stages,
                                   .input = pass->input / stages,
                                   .weight = pass->weight / stages,
                                   .full = (pass->input + pass->weight) / stages};
}

/* Simulates the job's schedule with `microbatches` microbatches; the last stage takes `last` longer. If `last` is NULL,
 * all stages have equal work. */
static int simulate(const struct tt_cluster_job *job, const struct tt_cluster_passes *pass,
                    const struct tt_cluster_passes *last, int microbatches, struct tt_pipeline **ret_pipeline,
                    struct tt_pipeline_run *ret_run)
{
    int n_stages = (int)(job->pp * job->virtual_stages), rc = 0;
    struct tt_stage_times *stage = tt_calloc((size_t)n_stages, sizeof *stage), more = {0};
    struct tt_pipeline_times times = {.stages = stage};
    struct tt_pipeline *pipeline = NULL;

    for (int i = 0; i < n_stages; i++)
        stage[i] = stage_times(pass, job->virtual_stages / (last ? stage_share(job, i) : 1));
    if (last)
        more = stage_times(last, 1);
    stage[n_stages - 1].forward += more.forward;
    stage[n_stages - 1].input += more.input;
    stage[n_stages - 1].weight += more.weight;
    stage[n_stages - 1].full += more.full;
    TT_TRY(tt_pipeline_new(tt_cluster_schedule(job), NULL, (int)job->pp, n_stages, microbatches, &pipeline));
    TT_TRY(tt_pipeline_simulate(pipeline, &times, ret_run));
    *ret_pipeline = pipeline;
    pipeline = NULL;
out:
    tt_pipeline_free(pipeline);
    tt_free(stage);
    return rc;
}

double tt_cluster_bubble(const struct tt_cluster_job *job, const struct tt_cluster_passes *pass)
{
    double after = job->pp - 1, simulated;
    struct tt_pipeline *pipeline;
    struct tt_pipeline_run run;

    if (job->pp <= 1)
        return 0;
    if (tt_cluster_is_v(job)) {
        if (simulate(job, pass, NULL, (int)fmin(job->n_micro, ROUNDS * job->pp), &pipeline, &run) < 0)
            return INFINITY; /* the schedule does not work with these numbers; tt_cluster_fault reports that */
        simulated = run.bubble[0];
        tt_pipeline_run_release(&run);
        tt_pipeline_free(pipeline);
        return simulated;
    }
    if (job->order == TT_ORDER_INTERLEAVED_ZERO_BUBBLE)
        return after * (pass->forward + fmax(0, pass->input - pass->weight)) / job->virtual_stages;
    return after * (pass->forward + pass->input + pass->weight) / job->virtual_stages;
}

/* --- the activations of a rank --- */

struct tt_cluster_held tt_cluster_held(const struct tt_cluster_job *job, int rank)
{
    double p = job->pp, v = job->virtual_stages, all = job->n_micro * v, after = p - 1 - rank;
    struct tt_cluster_held h = {0};

    switch (tt_cluster_schedule(job)) { /* in units of one microbatch in one stage */
    case TT_PP_INTERLEAVED_ZERO_BUBBLE:
        h = (struct tt_cluster_held){.most = v * p, .pending = rank + 1, .beside = v * p - rank - 1};
        break;
    case TT_PP_ZBV_ZERO_BUBBLE:
        h = (struct tt_cluster_held){.most = 2 * p, .pending = 2 * rank + 1, .beside = after};
        break;
    case TT_PP_DUAL_PIPE_V:
        h = (struct tt_cluster_held){.most = 2 * p + 1, .pending = rank + 1, .beside = after};
        break;
    case TT_PP_GPIPE:
    case TT_PP_LOOPED_BFS:
        h.most = all;
        break;
    case TT_PP_INTERLEAVED_1F1B:
        h.most = (v - 1) * p + 2 * after + 1;
        break;
    default:
        h.most = after + 1;
        break;
    }
    h.now = tt_cluster_splits(job) ? 1 / v : 0;
    h.most = fmin(h.most, all) / v;
    h.pending = fmin(h.pending, all) / v;
    h.beside = fmin(h.beside / v, job->n_micro - h.pending);
    return h;
}

/* --- lanes --- */

/* The number of microbatches that make at most `most_turns` turns; for schedules with rounds, whole rounds. */
static int shown(const struct tt_cluster_job *job, int most_turns)
{
    double each = job->pp * job->virtual_stages * (tt_cluster_splits(job) ? 3 : 2), n = floor(most_turns / each);

    if (n >= job->n_micro)
        return (int)job->n_micro;
    return (int)fmin(job->n_micro, fmax(2 * job->pp, floor(n / job->pp) * job->pp));
}

int tt_cluster_lanes_make(const struct tt_cluster_job *job, int most_turns, struct tt_cluster_lanes *ret_lanes)
{
    struct tt_cluster_lanes l = {.microbatches = shown(job, most_turns)};
    struct tt_cluster_passes last;
    int rc = 0;

    tt_cluster_stage_passes(job, &l.pass, &last);
    TT_TRY(simulate(job, &l.pass, &last, l.microbatches, &l.pipeline, &l.run));
    *ret_lanes = l;
out:
    return rc;
}

void tt_cluster_lanes_release(struct tt_cluster_lanes *lanes)
{
    tt_pipeline_run_release(&lanes->run);
    tt_pipeline_free(lanes->pipeline);
    *lanes = (struct tt_cluster_lanes){0};
}
