/* SPDX-License-Identifier: MIT
 *
 * Collectives on two levels: links in a node, and network cards between nodes. A ring over several nodes runs at the
 * sum of the cards of its members in one node, but no faster than the links.
 */
#include <math.h>

#include "estimate/model/internal.h"

/* Below this many bytes per step NCCL uses protocols with low latency, which take fewer microseconds. */
static const double small_bytes = 64e3, small_step = 0.25;

/* The rate of collectives within a step, as a share of their rate alone: vTrain measured about 30 % less, others 20 to
 * 25 %. */
static const double inside = 0.8;

static double num(const struct tt_cluster_job *job, enum tt_machine_key key)
{
    return job->machine->number[key].value;
}

static double net_rate(const struct tt_cluster_job *job)
{
    return job->node_net > 0 ? job->node_net : num(job, TT_M_NODE_NET);
}

struct tt_cluster_group tt_cluster_group(const struct tt_cluster_job *job, double n, double stride)
{
    double devices = num(job, TT_M_DEVICES), near = floor(devices / stride);

    if (near < 1)
        near = 1;
    return (struct tt_cluster_group){.n = n, .near = near < n ? near : n, .stride = stride};
}

/* The measured curve of the links that the group uses; NULL: there is none. */
static const struct tt_cluster_ramp *ramp_of(const struct tt_cluster_job *job, struct tt_cluster_group g)
{
    const struct tt_cluster_ramp *ramp = &job->machine->ramp[g.n > g.near];

    return ramp->n > 0 ? ramp : NULL;
}

/* Interpolates by the logarithm of the bytes; below the first point the time stays the same. */
static double share_at(const struct tt_cluster_ramp *r, double bytes)
{
    int i = 0;
    double at;

    if (bytes <= r->point[0].bytes)
        return r->point[0].share * bytes / r->point[0].bytes;
    while (i + 1 < r->n && r->point[i + 1].bytes < bytes)
        i++;
    if (i + 1 == r->n)
        return r->point[i].share;
    at = log(bytes / r->point[i].bytes) / log(r->point[i + 1].bytes / r->point[i].bytes);
    return r->point[i].share + at * (r->point[i + 1].share - r->point[i].share);
}

/* The bytes/s that a ring over the group passes through each member. */
static double bus_rate(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes)
{
    const struct tt_cluster_ramp *ramp = ramp_of(job, g);
    double share = inside, devices = num(job, TT_M_DEVICES);
    double up = num(job, TT_M_UP_RATE) * num(job, TT_M_UP_SHARE), net;

    if (g.n <= g.near && ramp)
        up = num(job, TT_M_UP_RATE) * share_at(ramp, bytes);
    if (num(job, TT_M_UP_MESH) > 0)
        up *= (g.near > 1 ? g.near - 1 : 1) / (devices - 1);
    if (g.n <= g.near)
        return up * share;
    net = net_rate(job) * (ramp ? share_at(ramp, bytes) : num(job, TT_M_NET_SHARE)) * fmin(1.0, g.near / devices);
    if (g.near <= 1) /* no two neighbours in the ring are in the same node */
        return net * share;
    return fmin(up, net) * share;
}

/* Seconds of the steps of a ring. With one member per node, NCCL may also use PAT, which takes the steps of a tree. */
static double steps_sec(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes)
{
    double nodes = ceil(g.n / g.near), scale = bytes / g.n < small_bytes ? small_step : 1.0;
    double steps = (nodes - 1) * num(job, TT_M_NET_STEP) + (g.n - nodes) * num(job, TT_M_UP_STEP);
    double pat = ceil(log2(nodes > 1 ? nodes : 1)) * num(job, TT_M_NET_STEP);

    return scale * (g.near <= 1 ? fmin(steps, pat) : steps);
}

/* A measured curve includes the latency of the devices that were measured, so this adds only the latency of further
 * members. */
static double latency(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes)
{
    const struct tt_cluster_ramp *ramp = ramp_of(job, g);
    struct tt_cluster_group measured;

    if (!ramp)
        return num(job, TT_M_CALL) + steps_sec(job, g, bytes);
    measured = tt_cluster_group(job, ramp->devices, 1);
    return fmax(0, steps_sec(job, g, bytes) - steps_sec(job, measured, bytes));
}

double tt_cluster_gather_sec(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes)
{
    if (g.n <= 1 || bytes <= 0)
        return 0;
    return latency(job, g, bytes) + bytes * (g.n - 1) / g.n / bus_rate(job, g, bytes);
}

double tt_cluster_reduce_sec(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes)
{
    double ring, share = inside, fast = num(job, TT_M_SWITCH_RATE);
    double nodes = ceil(g.n / g.near), tree;

    if (g.n <= 1 || bytes <= 0)
        return 0;
    ring = 2 * latency(job, g, bytes) - (ramp_of(job, g) ? 0 : num(job, TT_M_CALL)) +
           2 * bytes * (g.n - 1) / g.n / bus_rate(job, g, bytes);
    if (g.n <= g.near && g.n > 4 && fast > 0)
        return fmin(ring, num(job, TT_M_CALL) + 25e-6 + 2 * bytes * (g.n - 1) / g.n / (fast * share));
    if (nodes > 2 && !ramp_of(job, g)) {
        tree = num(job, TT_M_CALL) +
               2 * (ceil(log2(nodes)) * num(job, TT_M_NET_STEP) + (g.near - 1) * num(job, TT_M_UP_STEP)) +
               2 * bytes * (g.n - 1) / g.n / (0.9 * bus_rate(job, g, bytes));
        return fmin(ring, tree);
    }
    return ring;
}

/* The expected number of places, out of n, that k copies of a token reach at random. */
static double places_met(double n, double k)
{
    return n * (1 - pow(1 - 1 / n, k));
}

/* The number of nodes, out of n, that may hold a token's experts, if the token may use only some groups of experts. */
static double nodes_allowed(const struct tt_cluster_shape *s, double n)
{
    double each = s->groups / n, missed = 1;

    if (!(s->groups > s->groups_met) || !(s->groups_met > 0))
        return n;
    if (each < 1)
        return fmax(1, n * s->groups_met / s->groups);
    for (int i = 0; i < (int)each; i++)
        missed *= fmax(0, (s->groups - s->groups_met - i) / (s->groups - i));
    return n * (1 - missed);
}

double tt_cluster_exchange_sec(const struct tt_cluster_job *job, struct tt_cluster_group g, double bytes, double copies)
{
    double share = inside, devices = num(job, TT_M_DEVICES), nodes = ceil(g.n / g.near);
    const double *own = job->machine->exchange_share;
    double up = num(job, TT_M_UP_RATE) * (own[0] > 0 ? own[0] : num(job, TT_M_UP_SHARE)) * share;
    double net = net_rate(job) / devices * (own[1] > 0 ? own[1] : num(job, TT_M_NET_SHARE)) * share;
    double near, far;

    if (g.n <= 1 || bytes <= 0)
        return 0;
    near = bytes * places_met(g.near, copies * g.near / g.n) * (g.near - 1) / g.near;
    far = bytes * places_met(nodes_allowed(&job->shape, nodes), copies) * (nodes - 1) / nodes;
    if (job->adjacent) { /* a token goes to one node, and there to as many ranks as hold its experts */
        near = bytes * fmax(1, copies * g.n / job->shape.experts) * (g.near - 1) / g.near;
        far = bytes * (nodes - 1) / nodes;
    }
    return latency(job, g, bytes) + fmax(near / up, far / net);
}

/* The slowest hop paces a pipeline: if its ranks are on several nodes, one between nodes, whose network the neighbours
 * that send at the same time share. */
double tt_cluster_message_sec(const struct tt_cluster_job *job, double stride, double bytes)
{
    double share = inside, devices = num(job, TT_M_DEVICES);

    if (stride * job->pp <= devices)
        return num(job, TT_M_CALL) + bytes / (num(job, TT_M_UP_RATE) * num(job, TT_M_UP_SHARE) * share);
    return num(job, TT_M_CALL) + num(job, TT_M_NET_STEP) +
           bytes / (net_rate(job) / fmin(stride, devices) * num(job, TT_M_NET_SHARE) * share);
}
