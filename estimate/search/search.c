/* SPDX-License-Identifier: MIT
 *
 * Layouts: the faults of one, the best ones for a step, the effects of single changes, and a whole run.
 */
#include "estimate/search/search.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
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
        return "the sequence is not a multiple of twice the context parallelism";
    if (job->tp > 1 && job->sequence_parallel && !divides(job->tp * job->cp, job->seq_len))
        return "tensor parallelism does not divide the sequence";
    if (job->split_known && !job->stage_layers && job->pp > 1 &&
        fmax(job->first_less, job->last_less) >
            floor((s->layers + job->first_less + job->last_less) / (job->pp * job->virtual_stages)))
        return "the embeddings or the output count as more layers than a stage has";
    if (!job->stage_layers && job->pp * job->virtual_stages > s->layers)
        return "there are more stages than layers";
    if (job->n_micro < job->pp)
        return "there are fewer microbatches than stages of the pipeline";
    if (job->virtual_stages > 1 && !tt_cluster_is_v(job) && !divides(job->pp, job->n_micro))
        return "the interleaved pipeline does not divide the microbatches";
    if (tt_cluster_is_v(job) && job->virtual_stages != 2)
        return "the schedule has two stages on each rank";
    if (job->order == TT_ORDER_DUAL_PIPE_V && job->pp > 1 && job->n_micro < 2 * job->pp)
        return "DualPipeV needs twice as many microbatches as ranks of the pipeline";
    if (job->ep > 1 && (!(s->experts > 0) || !divides(job->ep, s->experts)))
        return "expert parallelism does not divide the experts";
    if (job->ep > 1 && !divides(job->ep, job->replicate * job->shard * job->cp * job->tp))
        return "expert parallelism does not divide the ranks of a stage of the pipeline";
    return NULL;
}

/* The tokens/s of a device. */
static double rate(const struct tt_cluster_layout *l)
{
    return tt_cluster_tokens(&l->job) / l->time.total / tt_cluster_devices(&l->job);
}

struct tt_cluster_layout tt_cluster_predict(const struct tt_cluster_job *job, double usable)
{
    struct tt_cluster_layout l = {.job = *job};

    tt_cluster_peak(job, &l.memory);
    if (usable > 0)
        l.memory.usable = usable;
    tt_cluster_step(job, &l.time);
    l.tokens_per_sec = rate(&l);
    return l;
}

/* --- a layout in words --- */

char *tt_cluster_layout_brief(char *buf, size_t size, const struct tt_cluster_job *job)
{
    static const char *const orders[] = {[TT_ORDER_1F1B] = "1F1B",
                                         [TT_ORDER_ALL_FORWARD] = "GPipe",
                                         [TT_ORDER_INTERLEAVED_ZERO_BUBBLE] = "ZB",
                                         [TT_ORDER_ZBV_ZERO_BUBBLE] = "ZBV",
                                         [TT_ORDER_DUAL_PIPE_V] = "DualPipeV"};
    struct tt_text t = {0};

    if (job->shard > 1 && job->replicate > 1)
        tt_text_add(&t, "%.0f copies of %.0f x FSDP", job->replicate, job->shard);
    else if (job->shard > 1)
        tt_text_add(&t, "%.0f x FSDP", job->shard);
    else if (job->replicate > 1)
        tt_text_add(&t, "%.0f x DP", job->replicate);
    if (job->tp > 1)
        tt_text_add(&t, "%sTP %.0f", t.size ? ", " : "", job->tp);
    if (job->pp > 1)
        tt_text_add(&t, "%sPP %.0f %s", t.size ? ", " : "", job->pp,
                    job->order == TT_ORDER_1F1B && job->virtual_stages > 1 ? "interleaved" : orders[job->order]);
    if (job->pp > 1 && job->virtual_stages > 1 && !tt_cluster_is_v(job))
        tt_text_add(&t, " x %.0f", job->virtual_stages);
    if (job->cp > 1)
        tt_text_add(&t, "%sCP %.0f", t.size ? ", " : "", job->cp);
    if (job->ep > 1)
        tt_text_add(&t, "%sEP %.0f", t.size ? ", " : "", job->ep);
    (void)snprintf(buf, size, "%s", t.size ? t.text : "one device");
    tt_text_release(&t);
    return buf;
}

char *tt_cluster_layout_text(char *buf, size_t size, const struct tt_cluster_job *job)
{
    static const char *const again[] = {[TT_AGAIN_NONE] = "nothing",
                                        [TT_AGAIN_OP] = "cheap operations",
                                        [TT_AGAIN_LAYERS] = "some layers",
                                        [TT_AGAIN_ATTENTION] = "attention",
                                        [TT_AGAIN_FULL] = "everything"};
    const struct {
        const char *name;
        double degree;
    } part[] = {{"copies", job->replicate},
                {"shards", job->shard},
                {"TP", job->tp},
                {"PP", job->pp},
                {"CP", job->cp},
                {"EP", job->ep}};
    double least = INFINITY, most = 0;
    struct tt_text t = {0};

    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (part[i].degree > 1)
            tt_text_add(&t, "%s%s %.0f", t.size ? " x " : "", part[i].name, part[i].degree);
    tt_text_add(&t, "%s%.0f microbatch%s of %.0f", t.size ? ", " : "", job->n_micro, job->n_micro == 1 ? "" : "es",
                job->micro_batch);
    if (job->shape.experts > 0 && tt_cluster_expert_tp(job) != job->tp)
        tt_text_add(&t, ", experts not cut by TP");
    if (job->pp > 1)
        tt_text_add(&t, ", %s", tt_cluster_schedule_name(job));
    if (job->virtual_stages > 1)
        tt_text_add(&t, " with %.0f stages a rank", job->virtual_stages);
    for (int i = 0; job->stage_layers && i < (int)(job->pp * job->virtual_stages); i++) {
        least = fmin(least, job->stage_layers[i]);
        most = fmax(most, job->stage_layers[i]);
    }
    if (job->stage_layers)
        tt_text_add(&t, ", stages of %.0f to %.0f layers", least, most);
    tt_text_add(&t, ", recompute ");
    if (job->again == TT_AGAIN_MODULES)
        tt_cluster_module_names(job->again_modules, &t);
    else
        tt_text_add(&t, "%s", again[job->again]);
    tt_text_add(&t, "%s%s", job->keep_gathered ? ", parameters stay gathered" : "", job->float8 ? ", float8" : "");
    (void)snprintf(buf, size, "%s", t.text);
    tt_text_release(&t);
    return buf;
}

/* --- the order of layouts --- */

/* The number of features of a layout that a user has to understand. */
static int complexity(const struct tt_cluster_job *job)
{
    return 4 * ((job->tp > 1) + (job->pp > 1) + (job->cp > 1) + (job->ep > 1)) + 2 * (job->replicate > 1) +
           2 * (job->virtual_stages > 1) + 2 * (job->order != TT_ORDER_1F1B) + (int)job->again + job->keep_gathered +
           (job->n_micro > 1);
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

/* The most layouts that are kept because they tie with the fastest; the fastest of them are kept. */
enum { MOST_TIES = 160 };

struct search {
    const struct tt_cluster_job *job;
    double devices, usable, sequences;
    int most;
    struct tt_cluster_fixed fixed;
    double *best; /* [most] the shortest times so far, ascending */
    struct tt_cluster_found *found;
};

/* A layout that takes longer than this is neither among the best nor tied with the first. */
static double limit(const struct search *s)
{
    return fmax(s->best[s->most - 1], (1 + TT_CLUSTER_TIE) * s->best[0]);
}

static void forget(struct search *s)
{
    s->found->n = 0;
    for (int i = 0; i < s->most; i++)
        s->best[i] = INFINITY;
}

/* Sorts the list and shortens it to its limit. */
static void cut(struct tt_cluster_found *f, int most)
{
    if (f->n > 1) /* without layouts, there is no list */
        qsort(f->layout, (size_t)f->n, sizeof *f->layout, by_time);
    f->n = f->n < most ? f->n : most;
}

static void keep(struct search *s, const struct tt_cluster_layout *l)
{
    struct tt_cluster_found *f = s->found;
    int at = s->most - 1;

    if (l->time.total < s->best[at]) {
        for (; at > 0 && s->best[at - 1] > l->time.total; at--)
            s->best[at] = s->best[at - 1];
        s->best[at] = l->time.total;
    }
    TT_PUSH(f->layout, f->n, f->cap) = *l;
    if (f->n >= 8 * MOST_TIES)
        cut(f, MOST_TIES);
}

/* Whether a layout takes longer than the kept ones even if its ranks hardly wait; then it need not be simulated. */
static bool is_too_slow(const struct search *s, const struct tt_cluster_job *job)
{
    struct tt_cluster_job other = *job;
    struct tt_cluster_time t;

    if (!tt_cluster_is_v(job))
        return false;
    other.order = TT_ORDER_INTERLEAVED_ZERO_BUBBLE;
    tt_cluster_step(&other, &t);
    return t.total - 1.2 * t.bubble > limit(s); /* 1.2 for the noise of the bubble */
}

static void count_fault(struct tt_cluster_found *f, const char *why)
{
    size_t i = 0, n = sizeof f->fault / sizeof *f->fault;

    while (i + 1 < n && f->fault[i].n > 0 && f->fault[i].why != why)
        i++;
    f->fault[i].why = why;
    f->fault[i].n++;
}

static void try_layout(struct search *s, const struct tt_cluster_job *job)
{
    struct tt_cluster_found *f = s->found;
    struct tt_cluster_layout l = {.job = *job};
    const char *fault = tt_cluster_fault(job);
    enum tt_cluster_fit fit;

    if (fault) {
        count_fault(f, fault);
        return;
    }
    f->n_tried++;
    tt_cluster_peak(job, &l.memory);
    if (s->usable > 0)
        l.memory.usable = s->usable;
    if (f->n_tried == 1 || l.memory.total < f->least_bytes)
        f->least = l;
    f->least_bytes = f->least.memory.total;
    fit = tt_cluster_fits(&l.memory);
    if (fit == TT_FIT_NO)
        return;
    f->n_tight += fit == TT_FIT_TIGHT;
    f->n_fit += fit == TT_FIT_YES;
    if (fit == TT_FIT_TIGHT && f->n_fit > 0)
        return;
    if (fit == TT_FIT_YES && f->n_fit == 1)
        forget(s); /* tight layouts count only if no layout fits */
    if (is_too_slow(s, job))
        return;
    tt_cluster_step(job, &l.time);
    if (l.time.total > limit(s))
        return;
    l.tokens_per_sec = rate(&l);
    keep(s, &l);
}

/* Tries the kinds of recomputation, and whether gathered parameters stay. */
static void try_policies(struct search *s, struct tt_cluster_job job)
{
    static const enum tt_cluster_again all[] = {TT_AGAIN_NONE, TT_AGAIN_OP, TT_AGAIN_ATTENTION, TT_AGAIN_FULL};
    bool megatron = tt_cluster_stack_is_megatron(job.stack);

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i] == (megatron ? TT_AGAIN_OP : TT_AGAIN_ATTENTION))
            continue;
        if (s->fixed.again && all[i] != s->job->again)
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

/* Whether a configuration can express the stages, perhaps with other weights for the embeddings and the output. By
 * itself, torchtitan makes one or two stages per rank for any model. With one per rank, Megatron's last stage may have
 * fewer layers. */
static bool can_be_said(struct tt_cluster_job *job)
{
    double each, ends, layers = job->shape.layers;

    if (job->pp <= 1 || (job->split_known && job->virtual_stages <= 2))
        return true;
    if (tt_cluster_layers_per_stage(job, &each, &ends)) {
        if (job->split_known && ends != job->first_less + job->last_less) {
            job->first_less = ends == 2 ? 1 : 0;
            job->last_less = ends - job->first_less;
        }
        return true;
    }
    if (!tt_cluster_stack_is_megatron(job->stack))
        return job->virtual_stages <= 2;
    return job->virtual_stages <= 1 && layers - (job->pp - 1) * ceil(layers / job->pp) >= 1;
}

static void try_schedules(struct search *s, struct tt_cluster_job job)
{
    static const struct {
        enum tt_cluster_order order;
        double stages; /* stages per rank */
    } all[] = {{TT_ORDER_1F1B, 1},
               {TT_ORDER_1F1B, 2},
               {TT_ORDER_1F1B, 4},
               {TT_ORDER_1F1B, 8},
               {TT_ORDER_INTERLEAVED_ZERO_BUBBLE, 2},
               {TT_ORDER_INTERLEAVED_ZERO_BUBBLE, 4},
               {TT_ORDER_ZBV_ZERO_BUBBLE, 2},
               {TT_ORDER_DUAL_PIPE_V, 2}};
    size_t n = job.pp > 1 ? sizeof all / sizeof *all : 1;

    for (size_t i = 0; i < n; i++) {
        job.order = all[i].order;
        job.virtual_stages = all[i].stages;
        job.first_less = s->job->first_less;
        job.last_less = s->job->last_less;
        if (!can_be_said(&job))
            continue;
        if (!tt_cluster_splits(&job) || job.stack->number[TT_S_PP_SPLITS].value > 0)
            try_policies(s, job);
    }
}

/* The values of a degree: the fixed one, or powers of two. */
static int from(double fixed)
{
    return fixed > 0 ? (int)fixed : 1;
}

static int next(int value, double fixed)
{
    return fixed > 0 ? INT_MAX : 2 * value;
}

static void try_batches(struct search *s, struct tt_cluster_job job)
{
    double local = s->sequences / (job.replicate * job.shard);

    if (local < 1 || floor(local) != local)
        return;
    for (int mb = from(s->fixed.micro_batch); mb <= local && mb <= fmax(64, s->fixed.micro_batch);
         mb = next(mb, s->fixed.micro_batch)) {
        if (!divides(mb, local))
            continue;
        job.micro_batch = mb;
        job.n_micro = local / mb;
        try_schedules(s, job);
    }
}

/* Tries to use data-parallel ranks for shards and copies: all for shards, or a power of two. */
static void try_shards(struct search *s, struct tt_cluster_job job, double ranks)
{
    bool megatron = tt_cluster_stack_is_megatron(job.stack);

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
    const struct tt_cluster_fixed *f = &s->fixed;
    struct tt_cluster_job job = *s->job;
    double most_tp = fmax(fmin(fmin(s->job->machine->number[TT_M_DEVICES].value, s->devices), 32), f->tp);
    double most_ep = fmax(job.shape.experts > 0 ? job.shape.experts : 1, f->ep);

    for (int tp = from(f->tp); tp <= most_tp; tp = next(tp, f->tp))
        for (int pp = from(f->pp); pp <= fmax(64, f->pp) && (double)tp * pp <= s->devices; pp = next(pp, f->pp))
            for (int cp = from(f->cp); cp == 1 || cp == f->cp || (cp <= 32 && job.seq_len / cp >= 4096);
                 cp = next(cp, f->cp))
                for (int ep = from(f->ep); ep <= most_ep; ep = next(ep, f->ep)) {
                    double ranks = s->devices / ((double)tp * pp * cp);

                    if (ranks < 1 || floor(ranks) != ranks || !divides(ep, ranks * cp))
                        continue;
                    /* titan shares experts among tensor-parallel ranks, but does not divide their matrices. torchtitan
                     * can do either, so this form of a layout works for both. */
                    if (job.shape.experts > 0 && !tt_cluster_stack_is_megatron(job.stack) && !divides(tp, ep))
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
                       const struct tt_cluster_fixed *fixed, struct tt_cluster_found *ret_found)
{
    struct tt_cluster_found *f = ret_found;
    struct search s = {.job = job,
                       .devices = devices,
                       .usable = usable,
                       .sequences = tt_cluster_tokens(job) / job->seq_len,
                       .most = most,
                       .fixed = fixed ? *fixed : (struct tt_cluster_fixed){0},
                       .best = tt_calloc((size_t)most, sizeof *s.best),
                       .found = f};

    *f = (struct tt_cluster_found){0};
    forget(&s);
    try_degrees(&s);
    tt_free(s.best);
    cut(f, MOST_TIES);
    while (f->n_ties < f->n && f->layout[f->n_ties].time.total <= (1 + TT_CLUSTER_TIE) * f->layout[0].time.total)
        f->n_ties++;
    if (f->n_ties > 1)
        qsort(f->layout, (size_t)f->n_ties, sizeof *f->layout, by_simplicity);
    f->n = f->n < most ? f->n : most;
    f->n_ties = f->n_ties < f->n ? f->n_ties : f->n;
}

/* --- single changes of a layout --- */

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

/* The layout in which a degree (tensor parallelism or stages) is multiplied by `factor`, at the cost of data-parallel
 * ranks. */
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
    bool megatron = tt_cluster_stack_is_megatron(job.stack);
    const struct {
        enum tt_cluster_again again;
        const char *text;
    } all[] = {{TT_AGAIN_NONE, "recompute nothing"},
               {megatron ? TT_AGAIN_ATTENTION : TT_AGAIN_OP,
                megatron ? "recompute only attention" : "recompute only cheap operations"},
               {TT_AGAIN_FULL, "recompute everything"}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        job.again = all[i].again;
        if (job.again != list->from->job.again)
            add(list, all[i].text, job);
    }
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

/* --- a whole run: failures, checkpoints, and how long it takes --- */

/* The shortest time for which an asynchronous checkpoint blocks: ranks agree, and allocate host memory. */
static const double least_blocked_sec = 1;

/* The interval with the smallest loss (Daly 2006), for checkpoints that block for `delta` and failures every `mean`. */
static double daly(double delta, double mean)
{
    double x = sqrt(delta / (2 * mean));

    if (delta > 2 * mean)
        return mean;
    return sqrt(2 * delta * mean) * (1 + x / 3 + x * x / 9) - delta;
}

struct tt_cluster_course tt_cluster_course(const struct tt_cluster_layout *layout, double tokens)
{
    const struct tt_cluster_job *job = &layout->job;
    const struct tt_cluster_number *v = job->machine->number;
    double devices = tt_cluster_devices(job), params = tt_cluster_params(&job->shape), mean, lost, behind;
    struct tt_cluster_course c = {.tokens = tokens, .steps = ceil(tokens / tt_cluster_tokens(job))};

    c.failure_hours = v[TT_M_FAILURE_HOURS].value / devices;
    mean = c.failure_hours * 3600;
    c.checkpoint_bytes = 12 * params;
    c.write_sec = c.checkpoint_bytes / v[TT_M_STORAGE].value;
    c.blocked_sec =
        job->save_waits ? c.write_sec : least_blocked_sec + c.checkpoint_bytes / devices / v[TT_M_HOST_RATE].value;
    c.interval_sec = fmax(daly(c.blocked_sec, mean), c.write_sec);
    c.interval_steps = job->save_steps > 0 ? job->save_steps : fmax(1, round(c.interval_sec / layout->time.total));
    c.interval_sec = c.interval_steps * layout->time.total;
    /* the next checkpoint waits for the one before */
    behind = job->save_waits ? 0 : fmax(0, c.write_sec - c.blocked_sec - c.interval_sec);
    lost =
        (c.blocked_sec + behind) / c.interval_sec + (c.interval_sec / 2 + c.write_sec + v[TT_M_RESTART].value) / mean;
    c.goodput = 1 / (1 + lost);
    c.days = c.steps * layout->time.total / c.goodput / 86400;
    c.device_hours = c.days * 24 * devices;
    c.failures = c.days * 24 / c.failure_hours;
    return c;
}
