/* SPDX-License-Identifier: MIT
 *
 * All layouts of a step on so many devices: what cannot run or does not fit is dropped first, the rest is timed.
 */
#include "cluster/search/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"

static bool divides(double part, double whole)
{
    return fmod(whole, part) == 0;
}

const char *tt_cluster_fault(const struct tt_cluster_job *job)
{
    const struct tt_cluster_shape *s = &job->shape;

    if (!divides(job->tp, s->heads))
        return "tensor parallelism does not divide the heads";
    if (!divides(job->tp, s->kv_heads))
        return "tensor parallelism does not divide the key/value heads";
    if (!divides(job->tp, s->ffn) || !divides(job->tp, s->vocab))
        return "tensor parallelism does not divide the feed-forward layer or the vocabulary";
    if (job->cp > 1 && !divides(2 * job->cp, job->seq_len))
        return "the sequence is no multiple of twice the context parallelism";
    if (job->tp > 1 && job->sequence_parallel && !divides(job->tp * job->cp, job->seq_len))
        return "tensor parallelism does not divide the sequence";
    if (job->pp * job->virtual_stages > s->layers)
        return "there are more stages than layers";
    if (job->n_micro < job->pp)
        return "there are fewer microbatches than stages of the pipeline";
    if (job->virtual_stages > 1 && !divides(job->pp, job->n_micro))
        return "the interleaved pipeline does not divide the microbatches";
    if (job->ep > 1 && (!(s->experts > 0) || !divides(job->ep, s->experts)))
        return "expert parallelism does not divide the experts";
    return NULL;
}

struct tt_cluster_layout tt_cluster_predict(const struct tt_cluster_job *job, double usable)
{
    struct tt_cluster_layout l = {.job = *job};

    tt_cluster_peak(job, &l.memory);
    if (usable > 0)
        l.memory.usable = usable;
    tt_cluster_step(job, &l.time);
    l.tokens_per_sec = tt_cluster_tokens(job) / l.time.total / tt_cluster_devices(job);
    return l;
}

/* --- order --- */

/* How many things a person has to understand about a layout. */
static int complexity(const struct tt_cluster_job *job)
{
    return 4 * ((job->tp > 1) + (job->pp > 1) + (job->cp > 1) + (job->ep > 1)) + 2 * (job->replicate > 1) +
           2 * (job->virtual_stages > 1) + (int)job->again + job->keep_gathered + (job->n_micro > 1);
}

static int by_time(const void *a, const void *b)
{
    const struct tt_cluster_layout *x = a, *y = b;

    if (x->time.total != y->time.total)
        return x->time.total < y->time.total ? -1 : 1;
    return complexity(&x->job) - complexity(&y->job);
}

static int by_simplicity(const void *a, const void *b)
{
    const struct tt_cluster_layout *x = a, *y = b;
    int d = complexity(&x->job) - complexity(&y->job);

    return d ? d : by_time(a, b);
}

/* --- enumeration --- */

struct search {
    const struct tt_cluster_job *job;
    double devices, usable, sequences;
    int most;
    struct tt_cluster_found *found;
};

/* Keeps the list short: sorts and cuts it when it has grown. */
static void cut(struct tt_cluster_found *f, int most)
{
    qsort(f->layout, (size_t)f->n, sizeof *f->layout, by_time);
    f->n = f->n < most ? f->n : most;
}

static void try_layout(struct search *s, const struct tt_cluster_job *job)
{
    struct tt_cluster_found *f = s->found;
    struct tt_cluster_layout l = {.job = *job};

    if (tt_cluster_fault(job))
        return;
    f->n_tried++;
    tt_cluster_peak(job, &l.memory);
    if (s->usable > 0)
        l.memory.usable = s->usable;
    f->least_bytes = f->n_tried == 1 ? l.memory.total : fmin(f->least_bytes, l.memory.total);
    if (tt_cluster_fits(&l.memory) != TT_FIT_YES)
        return;
    f->n_fit++;
    TT_PUSH(f->layout, f->n, f->cap) = tt_cluster_predict(job, s->usable);
    if (f->n > 64 * s->most)
        cut(f, 16 * s->most);
}

/* Recomputation, and whether gathered parameters stay. */
static void try_policies(struct search *s, struct tt_cluster_job job)
{
    static const enum tt_cluster_again all[] = {TT_AGAIN_NONE, TT_AGAIN_OP, TT_AGAIN_ATTENTION, TT_AGAIN_FULL};
    bool megatron = job.stack->number[TT_S_STATE_WHOLE].value > 0;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i] == (megatron ? TT_AGAIN_OP : TT_AGAIN_ATTENTION))
            continue;
        job.again = all[i];
        job.keep_gathered = false;
        try_layout(s, &job);
        if (job.pp > 1 || tt_cluster_shards(&job) <= 1)
            continue;
        job.keep_gathered = true;
        try_layout(s, &job);
    }
}

static void try_batches(struct search *s, struct tt_cluster_job job)
{
    double local = s->sequences / (job.replicate * job.shard);

    if (local < 1 || floor(local) != local)
        return;
    for (int mb = 1; mb <= local && mb <= 64; mb *= 2) {
        if (!divides(mb, local))
            continue;
        job.micro_batch = mb;
        job.n_micro = local / mb;
        job.virtual_stages = 1;
        try_policies(s, job);
        for (int v = 2; job.pp > 1 && v <= 8; v *= 2) {
            job.virtual_stages = v;
            try_policies(s, job);
        }
    }
}

/* The ranks of data parallelism as shards and copies of them: all shards, or a power of two of them. */
static void try_shards(struct search *s, struct tt_cluster_job job, double ranks)
{
    bool megatron = job.stack->number[TT_S_STATE_WHOLE].value > 0;

    for (int shard = 1; shard < ranks; shard *= 2) {
        if (!divides(shard, ranks) || (megatron && shard > 1) || (!megatron && shard > 1 && shard < 8))
            continue;
        job.shard = shard;
        job.replicate = ranks / shard;
        try_batches(s, job);
    }
    if (megatron && ranks > 1)
        return;
    job.shard = ranks;
    job.replicate = 1;
    try_batches(s, job);
}

static void try_degrees(struct search *s)
{
    double node = s->job->machine->number[TT_M_DEVICES].value;
    struct tt_cluster_job job = *s->job;
    double most_ep = job.shape.experts > 0 ? job.shape.experts : 1;

    for (int tp = 1; tp <= node && tp <= s->devices && tp <= 32; tp *= 2)
        for (int pp = 1; pp <= 64 && tp * pp <= s->devices; pp *= 2)
            for (int cp = 1; cp <= 32 && (cp == 1 || job.seq_len / cp >= 4096); cp *= 2)
                for (int ep = 1; ep <= most_ep; ep *= 2) {
                    double ranks = s->devices / ((double)tp * pp * cp);

                    if (ranks < 1 || floor(ranks) != ranks || !divides(ep, ranks * cp))
                        continue;
                    job.tp = tp;
                    job.pp = pp;
                    job.cp = cp;
                    job.ep = ep;
                    job.sequence_parallel = job.tp > 1;
                    try_shards(s, job, ranks);
                }
}

void tt_cluster_search(const struct tt_cluster_job *job, double devices, double usable, int most,
                       struct tt_cluster_found *ret_found)
{
    struct tt_cluster_found *f = ret_found;
    struct search s = {.job = job,
                       .devices = devices,
                       .usable = usable,
                       .sequences = tt_cluster_tokens(job) / job->seq_len,
                       .most = most,
                       .found = f};

    *f = (struct tt_cluster_found){0};
    try_degrees(&s);
    cut(f, 16 * most);
    while (f->n_ties < f->n && f->layout[f->n_ties].time.total <= (1 + TT_CLUSTER_TIE) * f->layout[0].time.total)
        f->n_ties++;
    qsort(f->layout, (size_t)f->n_ties, sizeof *f->layout, by_simplicity);
    f->n = f->n < most ? f->n : most;
    f->n_ties = f->n_ties < f->n ? f->n_ties : f->n;
}

void tt_cluster_found_release(struct tt_cluster_found *found)
{
    tt_free(found->layout);
    *found = (struct tt_cluster_found){0};
}
