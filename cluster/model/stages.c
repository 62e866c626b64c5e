/* SPDX-License-Identifier: MIT
 *
 * Layers by stage of a pipeline, by torchtitan's rule, which is titan's too.
 */
#include <math.h>

#include "cluster/model/pipeline.h"

static double between(double value, double low, double high)
{
    return fmin(fmax(value, low), high);
}

/* Layers of the first units: the embeddings count as the first ones. */
static double layers_until(const struct tt_cluster_job *job, double units)
{
    return between(units - job->first_less, 0, job->shape.layers);
}

double tt_cluster_split_units(const struct tt_cluster_job *job)
{
    return job->shape.layers + job->first_less + job->last_less;
}

double tt_cluster_stage_share(const struct tt_cluster_job *job, int stage)
{
    double stages = job->pp * job->virtual_stages, units = tt_cluster_split_units(job), each, more, begin, end;

    if (!job->split_known)
        return 1;
    if (job->stage_layers)
        return job->stage_layers[stage] / (job->shape.layers / stages);
    each = floor(units / stages);
    more = units - each * stages; /* the first stages have one more */
    begin = stage * each + fmin(stage, more);
    end = begin + each + (stage < more ? 1 : 0);
    return (layers_until(job, end) - layers_until(job, begin)) / (job->shape.layers / stages);
}

double tt_cluster_rank_layers(const struct tt_cluster_job *job, int rank)
{
    int p = (int)job->pp, v = (int)job->virtual_stages;
    double share = 0;

    if (!job->split_known)
        return tt_cluster_stage_layers(job);
    for (int i = 0; i < v; i++)
        share += tt_cluster_stage_share(job, tt_cluster_is_v(job) && i % 2 ? (i + 1) * p - 1 - rank : i * p + rank);
    return share * job->shape.layers / (job->pp * job->virtual_stages);
}

bool tt_cluster_has_output(const struct tt_cluster_job *job, int rank)
{
    return rank == (tt_cluster_is_v(job) ? 0 : (int)job->pp - 1);
}
