/* SPDX-License-Identifier: MIT
 *
 * What one change of a layout would do.
 */
#include "cluster/search/changes.h"

#include <math.h>
#include <stdlib.h>

#include "cluster/model/pipeline.h"

struct list {
    const struct tt_cluster_layout *from;
    double usable;
    struct tt_cluster_change *change;
    int n;
};

static void add(struct list *list, const char *text, struct tt_cluster_job job)
{
    struct tt_cluster_change *c;

    if (job.pp != list->from->job.pp || job.virtual_stages != list->from->job.virtual_stages)
        job.stage_layers = NULL;
    if (list->n == TT_CLUSTER_CHANGES || tt_cluster_fault(&job) || job.shard < 1 || job.micro_batch < 1 ||
        job.n_micro < 1 || floor(job.shard) != job.shard || floor(job.n_micro) != job.n_micro ||
        floor(job.micro_batch) != job.micro_batch)
        return;
    c = &list->change[list->n++];
    c->text = text;
    c->layout = tt_cluster_predict(&job, list->usable);
    c->gain = c->layout.tokens_per_sec / list->from->tokens_per_sec - 1;
}

/* The layout with tensor parallelism, or stages, times `factor`, taken from the ranks of data parallelism. */
static struct tt_cluster_job regroup(struct tt_cluster_job job, double *degree, const struct tt_cluster_job *of,
                                     double factor)
{
    double *own = (double *)((char *)&job + ((const char *)degree - (const char *)of));

    *own *= factor;
    if (job.shard > 1)
        job.shard /= factor;
    else
        job.replicate /= factor;
    job.n_micro *= factor;
    if (job.n_micro < 1) {
        job.micro_batch *= job.n_micro;
        job.n_micro = 1;
    }
    job.sequence_parallel = job.tp > 1;
    return floor(job.replicate) == job.replicate ? job : (struct tt_cluster_job){.tp = 0.5};
}

static void recomputation(struct list *list, struct tt_cluster_job job)
{
    bool megatron = job.stack->number[TT_S_STATE_WHOLE].value > 0;
    const enum tt_cluster_again now = job.again, some = megatron ? TT_AGAIN_ATTENTION : TT_AGAIN_OP;

    job.again = TT_AGAIN_NONE;
    if (now != job.again)
        add(list, "recompute nothing", job);
    job.again = some;
    if (now != some)
        add(list, megatron ? "recompute only attention" : "recompute only cheap operations", job);
    job.again = TT_AGAIN_FULL;
    if (now != job.again)
        add(list, "recompute everything", job);
}

static void batches(struct list *list, struct tt_cluster_job job)
{
    struct tt_cluster_job other = job;

    if (job.n_micro >= 2) {
        other.micro_batch *= 2;
        other.n_micro /= 2;
        add(list, "microbatches twice as large", other);
    }
    other = job;
    other.micro_batch /= 2;
    other.n_micro *= 2;
    add(list, "microbatches half as large", other);
}

static void sharding(struct list *list, struct tt_cluster_job job)
{
    double node = job.machine->number[TT_M_DEVICES].value / job.tp;
    struct tt_cluster_job other = job;

    if (tt_cluster_shards(&job) <= 1)
        return;
    if (node >= 2 && job.shard > node && fmod(job.shard, node) == 0) {
        other.shard = node;
        other.replicate = job.replicate * job.shard / node;
        add(list, "shard within a node, copies between nodes (HSDP)", other);
    } else if (job.replicate > 1) {
        other.shard = job.shard * job.replicate;
        other.replicate = 1;
        add(list, "shard over all ranks of data parallelism", other);
    }
    other = job;
    other.keep_gathered = !job.keep_gathered;
    if (job.pp <= 1)
        add(list, job.keep_gathered ? "free parameters after forward" : "keep parameters from forward to backward",
            other);
}

static int by_gain(const void *a, const void *b)
{
    const struct tt_cluster_change *x = a, *y = b;
    bool x_fits = tt_cluster_fits(&x->layout.memory) != TT_FIT_NO,
         y_fits = tt_cluster_fits(&y->layout.memory) != TT_FIT_NO;

    if (x_fits != y_fits)
        return x_fits ? -1 : 1;
    return x->gain == y->gain ? 0 : x->gain > y->gain ? -1 : 1;
}

int tt_cluster_changes(const struct tt_cluster_layout *layout, double usable,
                       struct tt_cluster_change ret_change[TT_CLUSTER_CHANGES])
{
    struct list list = {.from = layout, .usable = usable, .change = ret_change};
    struct tt_cluster_job job = layout->job, other = job;

    recomputation(&list, job);
    batches(&list, job);
    sharding(&list, job);
    if (job.tp * 2 <= job.machine->number[TT_M_DEVICES].value)
        add(&list, "twice the tensor parallelism", regroup(job, &job.tp, &job, 2));
    if (job.tp > 1)
        add(&list, "half the tensor parallelism", regroup(job, &job.tp, &job, 0.5));
    add(&list, "twice the pipeline stages", regroup(job, &job.pp, &job, 2));
    if (job.pp > 1 && job.virtual_stages <= 1) {
        other.virtual_stages = 2;
        add(&list, "two stages on each rank (interleaved)", other);
    }
    other = job;
    other.order = TT_ORDER_ZBV_ZERO_BUBBLE;
    other.virtual_stages = 2;
    if (job.pp > 1 && !tt_cluster_splits(&job) && job.stack->number[TT_S_PP_SPLITS].value > 0)
        add(&list, "gradients of weights in the gaps (ZBVZeroBubble)", other);
    other = job;
    other.float8 = true;
    if (!job.float8 && job.machine->number[TT_M_PEAK_F8].value > 0)
        add(&list, "float8 products", other);
    qsort(ret_change, (size_t)list.n, sizeof *ret_change, by_gain);
    return list.n;
}
