/* SPDX-License-Identifier: MIT
 *
 * Chooses a token. A heap yields the candidates from the largest logit down, and no more than are needed: with top_k
 * or top_p these are a few of a hundred thousand.
 */
#include "core/models/sampling.h"

#include <math.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/math/elementary.h"

struct tt_picker {
    struct tt_sampling sampling;
    int64_t vocab;
    int32_t *token; /* tokens that may be picked, in ascending order */
    int64_t n;
    int32_t *heap;  /* heap of these tokens; the largest first */
    double *weight; /* weights of the tokens taken so far, in the order in which they were taken */
    int32_t *taken;
};

struct tt_picker *tt_picker_new(const struct tt_sampling *sampling, int64_t vocab)
{
    struct tt_picker *p = tt_calloc(1, sizeof *p);

    p->sampling = *sampling;
    p->vocab = vocab;
    p->token = tt_calloc((size_t)vocab, sizeof *p->token);
    p->heap = tt_calloc((size_t)vocab, sizeof *p->heap);
    p->weight = tt_calloc((size_t)vocab, sizeof *p->weight);
    p->taken = tt_calloc((size_t)vocab, sizeof *p->taken);
    tt_picker_allow(p, NULL, NULL);
    return p;
}

void tt_picker_allow(struct tt_picker *p, bool (*is_allowed)(const void *arg, int32_t token), const void *arg)
{
    p->n = 0;
    for (int64_t v = 0; v < p->vocab; v++)
        if (!is_allowed || is_allowed(arg, (int32_t)v))
            p->token[p->n++] = (int32_t)v;
}

void tt_picker_free(struct tt_picker *p)
{
    if (!p)
        return;
    tt_free(p->token);
    tt_free(p->heap);
    tt_free(p->weight);
    tt_free(p->taken);
    tt_free(p);
}

static int32_t largest(const struct tt_picker *p, const float *logits)
{
    int32_t best = p->token[0];

    for (int64_t i = 1; i < p->n; i++)
        best = logits[p->token[i]] > logits[best] ? p->token[i] : best;
    return best;
}

/* --- the heap --- */

static bool ranks_before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sink(int32_t *heap, int64_t n, int64_t at, const float *logits)
{
    for (;;) {
        int64_t child = 2 * at + 1;
        int32_t moved = heap[at];

        if (child >= n)
            return;
        if (child + 1 < n && ranks_before(logits, heap[child + 1], heap[child]))
            child++;
        if (!ranks_before(logits, heap[child], moved))
            return;
        heap[at] = heap[child];
        heap[child] = moved;
        at = child;
    }
}

static void heap_fill(struct tt_picker *p, const float *logits)
{
    memcpy(p->heap, p->token, (size_t)p->n * sizeof *p->heap);
    for (int64_t at = p->n / 2 - 1; at >= 0; at--)
        sink(p->heap, p->n, at, logits);
}

/* --- candidates --- */

/* The weight of a token, relative to a weight of 1 for the largest logit. */
static double weight_of(const struct tt_picker *p, const float *logits, int32_t token, float top)
{
    return tt_exp(((double)logits[token] - (double)top) / p->sampling.temperature);
}

/* Takes the largest tokens until there are n, or until together they weigh `enough`. Returns their number. */
static int64_t take_largest(struct tt_picker *p, const float *logits, int64_t n, double enough)
{
    int64_t taken = 0, left = p->n;
    double sum = 0.0;

    heap_fill(p, logits);
    while (taken < n && (taken == 0 || sum < enough)) {
        p->taken[taken] = p->heap[0];
        p->weight[taken] = weight_of(p, logits, p->heap[0], logits[p->taken[0]]);
        sum += p->weight[taken++];
        p->heap[0] = p->heap[--left];
        sink(p->heap, left, 0, logits);
    }
    return taken;
}

static int64_t take_all(struct tt_picker *p, const float *logits)
{
    float top = logits[largest(p, logits)];

    for (int64_t i = 0; i < p->n; i++) {
        p->taken[i] = p->token[i];
        p->weight[i] = weight_of(p, logits, p->token[i], top);
    }
    return p->n;
}

static double sum_of(const double *weight, int64_t n)
{
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++)
        sum += weight[i];
    return sum;
}

/* The smallest number of taken tokens, at least one, that together weigh `enough`; at most n. */
static int64_t first_that_weigh(const double *weight, int64_t n, double enough)
{
    double sum = weight[0];
    int64_t kept = 1;

    while (kept < n && sum < enough)
        sum += weight[kept++];
    return kept;
}

/* Fills taken and weight with the tokens that may be drawn; returns their number. */
static int64_t candidates(struct tt_picker *p, const float *logits)
{
    const struct tt_sampling *s = &p->sampling;
    bool all = s->top_k <= 0 || s->top_k >= p->n;
    int64_t n;

    if (all && s->top_p >= 1.0)
        return take_all(p, logits);
    if (all)
        return take_largest(p, logits, p->n, s->top_p * sum_of(p->weight, take_all(p, logits)));
    n = take_largest(p, logits, s->top_k, INFINITY);
    return s->top_p >= 1.0 ? n : first_that_weigh(p->weight, n, s->top_p * sum_of(p->weight, n));
}

int32_t tt_picker_pick(struct tt_picker *p, const float *logits, double uniform)
{
    int64_t n;
    double at;

    if (p->sampling.temperature == 0.0)
        return largest(p, logits);
    n = candidates(p, logits);
    at = uniform * sum_of(p->weight, n);
    for (int64_t i = 0; i < n; i++) {
        at -= p->weight[i];
        if (at < 0.0)
            return p->taken[i];
    }
    return p->taken[n - 1]; /* rounding can lead here, with a uniform number close to 1 */
}
