/* SPDX-License-Identifier: MIT
 *
 * The time of a step: the pipeline of microbatches, the traffic of data parallelism beside it, and the update.
 */
#include <math.h>

#include "cluster/model/collective.h"
#include "cluster/model/layer.h"

static double stack_number(const struct tt_cluster_job *job, enum tt_stack_key key)
{
    return job->stack->number[key].value;
}

/* --- the pipeline --- */

/* The mean work of a layer: of those with experts and those without. */
static void mean_layer(const struct tt_cluster_job *job, struct tt_cluster_work *ret_work)
{
    const struct tt_cluster_shape *s = &job->shape;
    struct tt_cluster_work dense, moe;
    double share = s->experts > 0 ? 1 - s->dense_layers / s->layers : 0;

    *ret_work = (struct tt_cluster_work){0};
    if (share < 1) {
        tt_cluster_layer(job, false, &dense);
        tt_cluster_add(ret_work, 1 - share, &dense);
    }
    if (share > 0) {
        tt_cluster_layer(job, true, &moe);
        tt_cluster_add(ret_work, share, &moe);
    }
}

/* Messages of a rank between stages in a step. */
static double message_sec(const struct tt_cluster_job *job)
{
    double divided = job->tp; /* the boundary is scattered over the group, and gathered inside the node */
    double bytes = 2 * job->micro_batch * job->seq_len / job->cp * job->shape.dim / divided;

    if (job->pp <= 1)
        return 0;
    return 2 * job->virtual_stages * job->n_micro * stack_number(job, TT_S_PP_EXPOSED) *
           tt_cluster_message_sec(job, job->tp * job->cp * job->shard * job->replicate, bytes);
}

/* --- data parallelism --- */

/* Seconds of compute and traffic that run side by side, given how well they do. */
static double beside(const struct tt_cluster_job *job, double compute, double traffic)
{
    return fmax(traffic - compute, 0) + stack_number(job, TT_S_DP_EXPOSED) * fmin(compute, traffic);
}

/* Parameters of a rank, alike sharded and copied, and what moves for them in a step. */
struct part {
    double params, shards, copies, stride;
};

static void add_part(const struct tt_cluster_job *job, const struct part *p, double *gather, double *scatter,
                     double *reduce)
{
    double wire = tt_cluster_gradient_bytes(job), link = stack_number(job, TT_S_LINK);
    double buckets = job->shape.layers / job->pp * stack_number(job, TT_S_BUCKETS);
    struct tt_cluster_group g = tt_cluster_group(job, p->shards, p->stride);
    struct tt_cluster_group r = tt_cluster_group(job, p->copies, p->stride * p->shards);

    if (p->shards > 1) {
        *gather += tt_cluster_gather_sec(job, g,
                                         (job->float8    ? 1
                                          : job->float32 ? 4
                                                         : 2) *
                                             p->params / buckets) *
                   buckets / link;
        *scatter += tt_cluster_gather_sec(job, g, wire * p->params / buckets) * buckets / link;
    }
    if (p->copies > 1)
        *reduce += tt_cluster_reduce_sec(job, r, wire * p->params / p->shards) / link;
}

/* The parameters of a rank: those that all ranks of ep have, and its own experts. */
static void parts_of(const struct tt_cluster_job *job, struct part ret_part[2])
{
    double experts = tt_cluster_expert_params(&job->shape), inner = job->tp * job->pp;
    double cut = tt_cluster_expert_tp(job);

    ret_part[0] = (struct part){(tt_cluster_params(&job->shape) - experts) / inner, tt_cluster_shards(job),
                                tt_cluster_copies(job), job->tp};
    ret_part[1] = (struct part){experts / (cut * job->pp) / job->ep, tt_cluster_expert_shards(job),
                                tt_cluster_expert_copies(job), cut * job->ep};
}

/* Exposed seconds of the sums of gradients. They can hide behind one microbatch, the last one's backward and the next
 * step's first forward, and in the pipeline's bubble. */
static double reduce_exposed(const struct tt_cluster_job *job, double busy, double bubble, double reduce)
{
    double share = stack_number(job, TT_S_GRAD_EXPOSED), window = busy / job->n_micro + bubble;

    return share * fmin(reduce, window) + fmax(0, reduce - window);
}

/* Exposed seconds of sharding and averaging in a step whose compute takes `busy` seconds. */
static double data_sec(const struct tt_cluster_job *job, double busy, double bubble)
{
    double gather = 0, scatter = 0, reduce = 0, runs = job->pp > 1 ? 1 : job->n_micro, sec = 0;
    struct part part[2];

    parts_of(job, part);
    for (int i = 0; i < 2; i++)
        if (part[i].params > 0)
            add_part(job, &part[i], &gather, &scatter, &reduce);
    if (gather > 0) {
        sec += beside(job, busy / 3, runs * gather);
        sec += beside(job, 2 * busy / 3, runs * (scatter + (job->keep_gathered || job->pp > 1 ? 0 : gather)));
    }
    return sec + reduce_exposed(job, busy, bubble, reduce);
}

static double optimizer_sec(const struct tt_cluster_job *job)
{
    struct part part[2];
    double own = 0;

    parts_of(job, part);
    for (int i = 0; i < 2; i++)
        own += part[i].params / (part[i].shards > 1 ? part[i].shards
                                 : stack_number(job, TT_S_STATE_WHOLE) > 0 && stack_number(job, TT_S_STATE_SHARD) > 0
                                     ? part[i].copies
                                     : 1);
    return stack_number(job, TT_S_OPTIMIZER_BYTES) * own /
           (job->machine->number[TT_M_MEMORY_RATE].value * job->machine->number[TT_M_MEMORY_SHARE].value);
}

/* Every step waits for the slowest node: the largest of so many normal deviates, and perhaps a node that is slow. */
static double noise_share(const struct tt_cluster_job *job)
{
    const struct tt_cluster_number *v = job->machine->number;
    double nodes = ceil(tt_cluster_devices(job) / v[TT_M_DEVICES].value);

    if (nodes <= 1)
        return 0;
    return v[TT_M_STEP_SIGMA].value * sqrt(2 * log(nodes)) +
           (1 - pow(1 - v[TT_M_SLOW_HOST].value, nodes)) * (v[TT_M_SLOW_FACTOR].value - 1);
}

/* Seconds of a microbatch on the busiest rank; mean: of its layers alone, on average. If the split is not known, the
 * rank with the output has fewer layers where they do not divide, and where they do all ranks have as many, or stacks
 * move some away from it. */
static double busiest_stage(const struct tt_cluster_job *job, double mean, double head)
{
    double layers = job->shape.layers / job->pp, most = tt_cluster_stage_layers(job), busiest = 0;
    double each = most / job->virtual_stages, last = most - 1;

    if (job->shape.mtp_layers > 0) /* they count as layers, so their rank has what is left */
        last = fmax(0, most - (each * job->pp * job->virtual_stages - job->shape.layers));

    for (int i = 0; job->split_known && i < (int)job->pp; i++)
        busiest =
            fmax(busiest, mean * tt_cluster_rank_layers(job, i) / layers + (tt_cluster_has_output(job, i) ? head : 0));
    if (job->split_known)
        return busiest;
    if (most <= layers)
        return mean + stack_number(job, TT_S_OUTPUT_SHARE) * head;
    return fmax(mean * most / layers, mean * last / layers + head);
}

/* The three passes of work that takes `sec` seconds. */
static struct tt_cluster_passes passes_of(const struct tt_cluster_work *work, double sec)
{
    double scale = sec / tt_cluster_device_sec(work);
    struct tt_cluster_passes p = {.forward = scale * work->forward, .weight = scale * work->weight};

    p.input = sec - p.forward - p.weight;
    return p;
}

void tt_cluster_stage_passes(const struct tt_cluster_job *job, struct tt_cluster_passes *ret_pass,
                             struct tt_cluster_passes *ret_output)
{
    struct tt_cluster_work layer, head, stages = {0};
    double mean, most;

    mean_layer(job, &layer);
    tt_cluster_output(job, &head);
    tt_cluster_add(&stages, job->shape.layers / job->pp, &layer);
    mean = tt_cluster_work_sec(&stages);
    *ret_pass = passes_of(&stages, mean);
    most =
        job->split_known ? mean + tt_cluster_device_sec(&head) : busiest_stage(job, mean, tt_cluster_device_sec(&head));
    *ret_output = passes_of(&head, fmax(0, most - mean));
}

/* Seconds in which ranks wait: at the ends of the pipeline, and for the rank with the most work. */
static double waiting_sec(const struct tt_cluster_job *job, const struct tt_cluster_work *stages, double head)
{
    double mean = tt_cluster_work_sec(stages), most = busiest_stage(job, mean, head), ends;
    struct tt_cluster_passes pass = passes_of(stages, mean);

    ends = tt_cluster_bubble(job, &pass) + (mean + head - most) / job->virtual_stages;
    return fmax(0, ends + job->n_micro * (most - mean));
}

void tt_cluster_step(const struct tt_cluster_job *job, struct tt_cluster_time *ret_time)
{
    struct tt_cluster_time *t = ret_time;
    struct tt_cluster_work layer, head, whole = {0};
    double most, m = job->n_micro;

    mean_layer(job, &layer);
    tt_cluster_output(job, &head);
    tt_cluster_add(&whole, job->shape.layers / job->pp, &layer);
    if (job->pp <= 1)
        tt_cluster_add(&whole, 1, &head);
    most = tt_cluster_work_sec(&whole);
    if (job->pp > 1)
        most = busiest_stage(job, most, tt_cluster_device_sec(&head));
    *t = (struct tt_cluster_time){
        .gemm = m * whole.gemm,
        .attention = m * whole.attention,
        .memory = m * whole.memory,
        .tensor = m * whole.tensor,
        .context = m * whole.context,
        .expert = m * whole.expert,
        .host = m * (tt_cluster_work_sec(&whole) - tt_cluster_device_sec(&whole)),
        .optimizer = optimizer_sec(job),
        .pipeline = message_sec(job),
        .bubble = job->pp > 1 ? waiting_sec(job, &whole, tt_cluster_device_sec(&head)) : 0,
    };
    t->data = data_sec(job, m * most, t->bubble);
    t->noise = noise_share(job) * (m * most + t->bubble);
    t->total = t->gemm + t->attention + t->memory + t->tensor + t->context + t->expert + t->host + t->optimizer +
               t->pipeline + t->bubble + t->data + t->noise;
}
