/* SPDX-License-Identifier: MIT
 *
 * Samples by index. For each epoch there is a permutation of the documents and the position of each document in the
 * epoch's stream; a binary search of these positions finds a sample. Two epochs are kept, since a batch may span both.
 * Conversations are first packed into samples, and the permutation is one of samples.
 */
#include "core/data/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/math/rng.h"

/* ---- which documents are held out of training ---- */

enum { WINDOW = 4 * TT_HOLDOUT_BLOCK, PROGRESS_TOKENS = 1 << 24 };

/* Tokens read at once, since most documents are short. */
struct window {
    const struct tt_dataset *dataset;
    int64_t begin, n;
    int32_t *ids; /* WINDOW */
};

/* Gets tokens [begin, begin + n), n <= TT_HOLDOUT_BLOCK; the result is valid until the next call. */
static int look_at(struct window *w, int64_t begin, int64_t n, const int32_t **ret_ids)
{
    int64_t left = w->dataset->ref.info.n_tokens - begin;
    int rc = 0;

    if (begin < w->begin || begin + n > w->begin + w->n) {
        w->n = 0;
        TT_TRY(tt_dataset_copy(w->dataset, begin, left < WINDOW ? left : WINDOW, w->ids));
        w->begin = begin;
        w->n = left < WINDOW ? left : WINDOW;
    }
    *ret_ids = w->ids + (begin - w->begin);
out:
    return rc;
}

/* A document without tokens is not held out. */
static int hash_document(struct window *w, int64_t begin, int64_t end, uint64_t *ret_hash)
{
    uint64_t hash = begin < end ? 0 : UINT64_MAX;
    int rc = 0;

    for (int64_t at = begin; at < end; at += TT_HOLDOUT_BLOCK) {
        int64_t n = end - at < TT_HOLDOUT_BLOCK ? end - at : TT_HOLDOUT_BLOCK;
        const int32_t *ids = NULL;

        TT_TRY(look_at(w, at, n, &ids));
        hash = tt_hash64(ids, (size_t)n * sizeof *ids, hash);
    }
    *ret_hash = hash;
out:
    return rc;
}

/* The hash as a number from 0 to below 1. A double holds 53 bits. */
static double fraction_of(uint64_t hash)
{
    return (double)(hash >> 11) * 0x1p-53;
}

static int fail_undivided(const struct tt_dataset *d)
{
    const char *key = TT_KEY_NAME(validation.split);

    if (!d->offsets)
        return tt_fail_key(TT_EUSAGE, TT_KEY(validation.split),
                           "dataset '%s' does not say where its documents begin, and %s holds out whole documents\n"
                           "help: titan's own packed files do; titan data pack makes them from text. Or validate on "
                           "other data, with %s instead",
                           d->ref.name, key, TT_KEY_NAME(validation.dataset));
    return tt_fail_key(TT_EUSAGE, TT_KEY(validation.split),
                       "dataset '%s' is a single document, and %s holds out whole documents\n"
                       "help: divide the text into documents: a folder with a file for each, or JSON lines with one in "
                       "each line (dataset jsonl). Or validate on other data, with %s instead",
                       d->ref.name, key, TT_KEY_NAME(validation.dataset));
}

/* least: the smallest hash of any document, as a fraction. */
static int fail_side(const struct tt_dataset *d, const struct tt_holdout *s, double least)
{
    const char *key = TT_KEY_NAME(validation.split);
    double percent = 100.0 * least;

    if (s->held)
        return tt_fail_key(TT_EUSAGE, TT_KEY(validation.split),
                           "%s %.6g%% holds out all %lld documents of dataset '%s', and none is left to train on\n"
                           "help: set a smaller %s, or use more documents",
                           key, 100.0 * s->part, (long long)s->n_documents, d->ref.name, key);
    if (percent >= 49.0)
        return tt_fail_key(TT_EUSAGE, TT_KEY(validation.split),
                           "%s %.6g%% holds out none of the %lld documents of dataset '%s'\n"
                           "help: use more documents, or validate on other data, with %s instead",
                           key, 100.0 * s->part, (long long)s->n_documents, d->ref.name,
                           TT_KEY_NAME(validation.dataset));
    return tt_fail_key(TT_EUSAGE, TT_KEY(validation.split),
                       "%s %.6g%% holds out none of the %lld documents of dataset '%s', which has few documents\n"
                       "help: with %s=%.3g%% or more, one is held out",
                       key, 100.0 * s->part, (long long)s->n_documents, d->ref.name, key,
                       percent * 1.01); /* so that rounding to three digits cannot give a smaller value */
}

/* Counts the tokens of a document that are to be learned. */
static int count_learned(const struct tt_dataset *d, int64_t begin, int64_t end, uint8_t *counts, int64_t *learned)
{
    int rc = 0;

    if (!d->ref.info.mask_at)
        *learned += end - begin;
    for (int64_t at = begin; d->ref.info.mask_at && at < end; at += TT_HOLDOUT_BLOCK) {
        int64_t n = end - at < TT_HOLDOUT_BLOCK ? end - at : TT_HOLDOUT_BLOCK;

        TT_TRY(tt_dataset_counts(d, at, n, counts));
        for (int64_t i = 0; i < n; i++)
            *learned += counts[i];
    }
out:
    return rc;
}

int tt_holdout_init(struct tt_holdout *holdout, const struct tt_dataset *dataset, double part)
{
    struct window w = {.dataset = dataset, .ids = tt_calloc(WINDOW, sizeof *w.ids)};
    uint8_t *counts = tt_calloc(TT_HOLDOUT_BLOCK, 1);
    int64_t n_tokens = dataset->ref.info.n_tokens, shown = 0;
    double least = 1.0;
    int rc = 0;

    *holdout = (struct tt_holdout){.part = part, .n_documents = dataset->ref.info.n_documents};
    if (!dataset->offsets || holdout->n_documents < 2)
        TT_TRY(fail_undivided(dataset));
    holdout->is_held = tt_calloc((size_t)tt_holdout_bytes(holdout->n_documents), 1);
    for (int64_t i = 0; i < holdout->n_documents; i++) {
        int64_t begin = dataset->offsets[i], end = dataset->offsets[i + 1];
        uint64_t hash = 0;

        TT_TRY(hash_document(&w, begin, end, &hash));
        least = fraction_of(hash) < least ? fraction_of(hash) : least;
        if (begin - shown >= PROGRESS_TOKENS) {
            tt_progress("choosing the documents that are held out", (double)begin, (double)n_tokens);
            shown = begin;
        }
        if (fraction_of(hash) >= part)
            continue;
        holdout->is_held[i / 8] |= (uint8_t)(1 << i % 8);
        holdout->held++;
        holdout->held_tokens += end - begin;
        TT_TRY(count_learned(dataset, begin, end, counts, &holdout->held_learned));
    }
    if (shown)
        tt_progress("choosing the documents that are held out", (double)n_tokens, (double)n_tokens);
    if (holdout->held == 0 || holdout->held == holdout->n_documents)
        rc = fail_side(dataset, holdout, least);
out:
    tt_free(w.ids);
    tt_free(counts);
    return rc;
}

void tt_holdout_release(struct tt_holdout *holdout)
{
    tt_free(holdout->is_held);
    *holdout = (struct tt_holdout){.is_held = NULL};
}

/*
 * Lists the documents for training or, with held_out, the others. holdout NULL: all documents. The caller frees the
 * index, even after an error.
 */
static int documents_init(struct tt_documents *documents, const struct tt_dataset *dataset,
                          const struct tt_holdout *holdout, bool held_out)
{
    const struct tt_token_info *info = &dataset->ref.info;
    int64_t n = 0;

    *documents = (struct tt_documents){.n = info->n_documents, .tokens = info->n_tokens, .learned = info->n_learned};
    if (!holdout)
        return 0;
    documents->n = held_out ? holdout->held : documents->n - holdout->held;
    documents->tokens = held_out ? holdout->held_tokens : documents->tokens - holdout->held_tokens;
    documents->learned = held_out ? holdout->held_learned : documents->learned - holdout->held_learned;
    documents->index = tt_calloc_for((size_t)documents->n, sizeof *documents->index, dataset->ref.name);
    if (!documents->index)
        return TT_ENOMEM;
    for (int64_t i = 0; i < holdout->n_documents; i++)
        if ((holdout->is_held[i / 8] >> i % 8 & 1) == held_out)
            documents->index[n++] = i;
    return 0;
}

/* ---- conversations packed into samples ---- */

enum { NOT_LEARNED = -100, PADDING = -101 }; /* as in core/kernels/kernels.h */

static int64_t length_of(const struct tt_dataset *d, int64_t document)
{
    return d->offsets[document + 1] - d->offsets[document];
}

static int fail_long(const struct tt_packs *p, int64_t document)
{
    return tt_fail_key(TT_EDATA, TT_KEY(dataloader.long_conversations),
                       "conversation %lld of dataset '%s' has %lld tokens, more than %s %lld\n"
                       "help: set a larger %s, or %s=truncate or drop",
                       (long long)document + 1, p->dataset->ref.name, (long long)length_of(p->dataset, document),
                       TT_KEY_NAME(training.seq_len), (long long)p->seq_len, TT_KEY_NAME(training.seq_len),
                       TT_KEY_NAME(dataloader.long_conversations));
}

/* Decides whether to use a conversation. A long one is used if, after truncation, some token other than the first is
 * learned. */
static int choose(struct tt_packs *p, int64_t document, enum tt_long_choice longs, bool *ret_used)
{
    int64_t n = length_of(p->dataset, document);
    int rc = 0;

    *ret_used = n > 0;
    if (n <= p->seq_len)
        return 0;
    p->n_long++;
    *ret_used = false;
    if (longs == TT_LONG_ERROR)
        return fail_long(p, document);
    if (longs == TT_LONG_DROP)
        return 0;
    TT_TRY(tt_dataset_counts(p->dataset, p->dataset->offsets[document], p->seq_len, p->counts));
    *ret_used = p->seq_len > 1 && memchr(p->counts + 1, 1, (size_t)p->seq_len - 1);
    p->n_truncated += *ret_used;
out:
    return rc;
}

/*
 * Packs `documents` of the dataset, which must outlive the packs. The caller frees the arrays, even after an error.
 * TT_EDATA for a long conversation with TT_LONG_ERROR, and if no conversation is left.
 */
static int packs_init(struct tt_packs *packs, const struct tt_dataset *dataset, const struct tt_documents *documents,
                      int64_t seq_len, enum tt_long_choice longs)
{
    int64_t n = documents->n, used = seq_len; /* tokens in the last sample */
    int rc = 0;

    *packs = (struct tt_packs){.dataset = dataset, .seq_len = seq_len, .n_given = n};
    packs->document = tt_calloc_for((size_t)n, sizeof *packs->document, dataset->ref.name);
    packs->first = tt_calloc_for((size_t)n + 1, sizeof *packs->first, dataset->ref.name);
    packs->counts = tt_calloc_for((size_t)seq_len, sizeof *packs->counts, dataset->ref.name);
    if (!packs->document || !packs->first || !packs->counts)
        return TT_ENOMEM;
    for (int64_t i = 0; i < n; i++) {
        int64_t d = documents->index ? documents->index[i] : i;
        int64_t length = length_of(dataset, d) < seq_len ? length_of(dataset, d) : seq_len;
        bool is_used = false;

        TT_TRY(choose(packs, d, longs, &is_used));
        if (!is_used)
            continue;
        if (used + length > seq_len) {
            packs->first[packs->n++] = packs->n_documents;
            used = 0;
        }
        used += length;
        packs->document[packs->n_documents++] = d;
    }
    packs->first[packs->n] = packs->n_documents;
    if (!packs->n)
        rc = tt_fail(TT_EDATA,
                     "dataset '%s' has no conversation with an answer within %s %lld; all %lld are longer\n"
                     "help: set a larger %s",
                     dataset->ref.name, TT_KEY_NAME(training.seq_len), (long long)seq_len, (long long)packs->n_long,
                     TT_KEY_NAME(training.seq_len));
out:
    return rc;
}

/* Fills n places of a sample with the beginning of a conversation. */
static int put_conversation(struct tt_packs *p, int64_t document, int64_t n, int32_t *inputs, int32_t *labels)
{
    int64_t begin = p->dataset->offsets[document];
    int rc = 0;

    TT_TRY(tt_dataset_copy(p->dataset, begin, n, inputs));
    TT_TRY(tt_dataset_counts(p->dataset, begin, n, p->counts));
    for (int64_t i = 0; i + 1 < n; i++)
        labels[i] = p->counts[i + 1] ? inputs[i + 1] : NOT_LEARNED;
    labels[n - 1] = NOT_LEARNED;
out:
    return rc;
}

/*
 * Fills one sample: inputs, labels (the next token if it is to be learned, else -100; -101 in padding) and, unless it
 * is NULL, positions within conversations. Padding is token 0, a document of its own. Allocates nothing. Fails as
 * tt_dataset_copy does.
 */
static int packs_get(struct tt_packs *packs, int64_t sample, int32_t *inputs, int32_t *labels, int32_t *positions)
{
    int64_t at = 0, T = packs->seq_len;
    int rc = 0;

    for (int64_t i = packs->first[sample]; i < packs->first[sample + 1]; i++) {
        int64_t d = packs->document[i], n = length_of(packs->dataset, d) < T ? length_of(packs->dataset, d) : T;

        TT_TRY(put_conversation(packs, d, n, inputs + at, labels + at));
        for (int64_t k = 0; k < n && positions; k++)
            positions[at + k] = (int32_t)k;
        at += n;
    }
    for (int64_t begin = at; at < T; at++) {
        inputs[at] = 0;
        labels[at] = PADDING;
        if (positions)
            positions[at] = (int32_t)(at - begin);
    }
out:
    return rc;
}

/* ---- the order of a weighted mixture ---- */

/*
 * Dataset k, with share w of a period W, is due when its exact share of the first t samples, t w / W, exceeds the
 * number of samples taken from it so far. It is late when the excess is a whole sample. The next sample comes from the
 * due dataset that would be late first. With the right bounds no sample is ever late (R. Tijdeman, The chairman
 * assignment problem, 1980): deviations stay within 1 - 1 / (2n - 2).
 */

/* Computes shares with exactly the ratios of the weights, which are decimal numbers. False: their sum is too large. */
static bool find_exact_shares(const double *weight, int n, double scale, int64_t *share)
{
    static const double nearly = 1e-9; /* weights such as 0.1 are rounded when they are read */
    double sum = 0.0;
    int64_t divisor = 0, total = 0;

    for (int k = 0; k < n; k++) {
        double scaled = weight[k] * scale, whole = nearbyint(scaled);

        sum += whole;
        if (whole < 1.0 || sum > 1e15 || fabs(scaled - whole) > nearly * whole)
            return false;
        share[k] = (int64_t)whole;
        for (int64_t a = share[k]; a;) { /* Euclid's algorithm */
            int64_t rest = divisor % a;

            divisor = a;
            a = rest;
        }
    }
    for (int k = 0; k < n; k++)
        total += share[k] /= divisor;
    return total <= TT_MIXTURE_PERIOD;
}

/* Computes shares of TT_MIXTURE_PERIOD samples, with at least one for each dataset. */
static void round_shares(const double *weight, int n, int64_t *share)
{
    double sum = 0.0, most;
    int64_t left = TT_MIXTURE_PERIOD;

    for (int k = 0; k < n; k++)
        sum += weight[k];
    for (int k = 0; k < n; k++) {
        share[k] = (int64_t)floor(weight[k] / sum * TT_MIXTURE_PERIOD);
        share[k] = share[k] ? share[k] : 1;
        left -= share[k];
    }
    for (int chosen = 0; left != 0; left -= left > 0 ? 1 : -1) { /* at most n times */
        most = -INFINITY;
        for (int k = 0; k < n; k++) {
            double lack = weight[k] / sum * TT_MIXTURE_PERIOD - (double)share[k];

            lack = left > 0 ? lack : -lack;
            if (lack > most && (left > 0 || share[k] > 1)) {
                most = lack;
                chosen = k;
            }
        }
        share[chosen] += left > 0 ? 1 : -1;
    }
}

static void find_shares(const double *weight, int n, int64_t *share)
{
    double scale = 1.0;

    for (int decimals = 0; decimals < 10; decimals++) {
        if (find_exact_shares(weight, n, scale, share))
            return;
        scale *= 10.0;
    }
    round_shares(weight, n, share);
}

/* The dataset of the sample with index t - 1, after used[k] samples of each dataset k. */
static int choose_dataset(const struct tt_mixture *m, const int64_t *used, int64_t t)
{
    int64_t unit = m->n > 1 ? 2 * m->n - 2 : 1;
    int best = -1;

    for (int k = 0; k < m->n; k++) {
        if (unit * (m->share[k] * t - m->period * used[k]) < m->period)
            continue;
        if (best < 0 || (unit * (used[k] + 1) - 1) * m->share[best] < (unit * (used[best] + 1) - 1) * m->share[k])
            best = k;
    }
    return best;
}

int tt_mixture_init(struct tt_mixture *ret_mixture, const double *weight, int n)
{
    struct tt_mixture m = {.n = n};
    int64_t used[TT_MIXTURE_MOST] = {0};

    if (n < 1 || n > TT_MIXTURE_MOST)
        return tt_fail(TT_EUSAGE, "a mixture has %d datasets, wanted 1 to %d", n, TT_MIXTURE_MOST);
    find_shares(weight, n, m.share);
    for (int k = 0; k < n; k++)
        m.begin[k + 1] = m.begin[k] + m.share[k];
    m.period = m.begin[n];
    m.part = tt_calloc((size_t)m.period, sizeof *m.part);
    m.number = tt_calloc((size_t)m.period, sizeof *m.number);
    m.place = tt_calloc((size_t)m.period, sizeof *m.place);
    for (int64_t i = 0; i < m.period; i++) {
        int k = choose_dataset(&m, used, i + 1);

        m.part[i] = (uint8_t)k;
        m.number[i] = (int32_t)used[k];
        m.place[m.begin[k] + used[k]++] = (int32_t)i;
    }
    *ret_mixture = m;
    return 0;
}

void tt_mixture_release(struct tt_mixture *m)
{
    tt_free(m->part);
    tt_free(m->number);
    tt_free(m->place);
    *m = (struct tt_mixture){.n = 0};
}

struct tt_mixture_sample tt_mixture_get(const struct tt_mixture *m, int64_t sample)
{
    int64_t at = sample % m->period;
    int k = m->part[at];

    return (struct tt_mixture_sample){k, sample / m->period * m->share[k] + m->number[at]};
}

int64_t tt_mixture_find(const struct tt_mixture *m, int part, int64_t number)
{
    int64_t share = m->share[part], at;

    if (__builtin_mul_overflow(number / share, m->period, &at) ||
        __builtin_add_overflow(at, m->place[m->begin[part] + number % share], &at))
        return INT64_MAX;
    return at;
}

/* ---- samples by index ---- */

struct epoch {
    int64_t number; /* -1: none yet */
    int64_t *order; /* documents or packs */
    int64_t *begin; /* [n_ordered + 1] start of each document of the order in the stream; NULL: packs */
    uint64_t used;  /* when it was last used */
};

struct tt_sampler {
    const struct tt_dataset *dataset;
    struct tt_sampler_options options;
    struct tt_documents documents;
    int64_t n_samples;
    int64_t n_ordered;     /* documents or packs; 0: the whole file, in its order */
    struct tt_packs packs; /* n is 0 if samples are parts of a stream */
    struct epoch epoch[2];
    uint64_t clock;
};

static int fail_short(const struct tt_sampler *s, int64_t seq_len)
{
    const struct tt_dataset *d = s->dataset;
    int64_t n_tokens = s->documents.tokens;
    char have[32], need[32];
    int rc;

    tt_text_count(have, sizeof have, n_tokens);
    tt_text_count(need, sizeof need, seq_len + 1);
    if (s->options.holdout && s->options.held_out) {
        rc = tt_fail_key(TT_EDATA, TT_KEY(validation.split),
                         "%lld of %lld documents of dataset '%s' are held out, with %s tokens; one sample of seq_len "
                         "%lld needs %s",
                         (long long)s->documents.n, (long long)d->ref.info.n_documents, d->ref.name, have,
                         (long long)seq_len, need);
        return n_tokens > 2 ? tt_error_add_hint(rc, "set a larger %s, or a smaller %s (at most %lld)",
                                                TT_KEY_NAME(validation.split), TT_KEY_NAME(validation.seq_len),
                                                (long long)n_tokens - 1)
                            : tt_error_add_hint(rc, "set a larger %s", TT_KEY_NAME(validation.split));
    }
    rc = tt_fail(TT_EDATA, "dataset '%s' has %s tokens%s, but one sample of seq_len %lld needs %s", d->ref.name, have,
                 s->options.holdout ? " that are not held out" : "", (long long)seq_len, need);
    return n_tokens > 2 ? tt_error_add_hint(rc, "set a smaller seq_len (at most %lld), or use more data",
                                            (long long)n_tokens - 1)
                        : tt_error_add_hint(rc, "use more data");
}

/* Decides how the samples of an epoch are made. */
static int divide(struct tt_sampler *s)
{
    const struct tt_documents *documents = &s->documents;
    int64_t length = s->options.seq_len;
    int rc = 0;

    TT_TRY(documents_init(&s->documents, s->dataset, s->options.holdout, s->options.held_out));
    if (s->dataset->ref.info.mask_at) {
        TT_TRY(packs_init(&s->packs, s->dataset, documents, length, s->options.longs));
        s->n_samples = s->packs.n;
        s->n_ordered = s->options.shuffle && s->packs.n > 1 ? s->packs.n : 0;
        return 0;
    }
    if (documents->tokens < length + 1)
        return fail_short(s, length);
    s->n_samples = (documents->tokens - 1) / length;
    if (documents->index || (s->options.shuffle && s->dataset->offsets && documents->n > 1))
        s->n_ordered = documents->n;
out:
    return rc;
}

/* Allocates the orders of two epochs. */
static int make_epochs(struct tt_sampler *s)
{
    const char *name = s->dataset->ref.name;
    size_t n = (size_t)s->n_ordered;

    for (int i = 0; i < 2 && n; i++) {
        struct epoch *e = &s->epoch[i];

        e->number = -1;
        e->order = tt_calloc_for(n, sizeof *e->order, name);
        if (!s->packs.n)
            e->begin = tt_calloc_for(n + 1, sizeof *e->begin, name);
        if (!e->order || (!s->packs.n && !e->begin))
            return TT_ENOMEM;
    }
    return 0;
}

int tt_sampler_new(const struct tt_dataset *dataset, const struct tt_sampler_options *options,
                   struct tt_sampler **ret_sampler)
{
    struct tt_sampler *s = NULL;
    int rc = 0;

    if (options->seq_len < 1)
        return tt_fail(TT_EUSAGE, "seq_len is %lld, wanted at least 1", (long long)options->seq_len);
    if (options->documents && !dataset->offsets) {
        return tt_fail_key(TT_EUSAGE, TT_KEY(training.document_mask),
                           "dataset '%s' does not say where its documents begin, which %s needs\n"
                           "help: titan's own packed files do; titan data pack makes them from text",
                           dataset->ref.name, TT_KEY_NAME(training.document_mask));
    }
    s = tt_calloc(1, sizeof *s);
    s->dataset = dataset;
    s->options = *options;
    TT_TRY(divide(s));
    s->options.holdout = NULL;
    TT_TRY(make_epochs(s));
    *ret_sampler = s;
    s = NULL;
out:
    tt_sampler_free(s);
    return rc;
}

void tt_sampler_free(struct tt_sampler *sampler)
{
    if (!sampler)
        return;
    for (int i = 0; i < 2; i++) {
        tt_free(sampler->epoch[i].order);
        tt_free(sampler->epoch[i].begin);
    }
    tt_free(sampler->packs.document);
    tt_free(sampler->packs.first);
    tt_free(sampler->packs.counts);
    tt_free(sampler->documents.index);
    tt_free(sampler);
}

int64_t tt_sampler_epoch_samples(const struct tt_sampler *sampler)
{
    return sampler->n_samples;
}

const struct tt_documents *tt_sampler_documents(const struct tt_sampler *sampler)
{
    return &sampler->documents;
}

const struct tt_packs *tt_sampler_packs(const struct tt_sampler *sampler)
{
    return sampler->packs.n ? &sampler->packs : NULL;
}

/* Makes the order of documents or packs in an epoch. */
static void make_order(const struct tt_sampler *s, int64_t number, int64_t *order)
{
    char stream[48];
    struct tt_rng rng;

    (void)snprintf(stream, sizeof stream, "dataloader epoch %" PRId64, number);
    rng = tt_rng_make(s->options.seed, stream);
    if (s->options.shuffle)
        tt_rng_permutation(&rng, s->n_ordered, order);
    for (int64_t i = 0; i < s->n_ordered && !s->options.shuffle; i++)
        order[i] = i;
    for (int64_t i = 0; i < s->n_ordered && s->documents.index && !s->packs.n; i++)
        order[i] = s->documents.index[order[i]];
}

static const struct epoch *find_epoch(struct tt_sampler *s, int64_t number)
{
    struct epoch *e = s->epoch[0].number == number           ? &s->epoch[0]
                      : s->epoch[1].number == number         ? &s->epoch[1]
                      : s->epoch[0].used <= s->epoch[1].used ? &s->epoch[0]
                                                             : &s->epoch[1];
    const int64_t *offsets = s->dataset->offsets;
    int64_t at = 0;

    e->used = ++s->clock;
    if (e->number == number)
        return e;
    make_order(s, number, e->order);
    for (int64_t i = 0; i < s->n_ordered && e->begin; i++) {
        e->begin[i] = at;
        at += offsets[e->order[i] + 1] - offsets[e->order[i]];
        e->begin[i + 1] = at;
    }
    e->number = number;
    return e;
}

const int64_t *tt_sampler_order(struct tt_sampler *sampler, int64_t epoch)
{
    return sampler->n_ordered ? find_epoch(sampler, epoch)->order : NULL;
}

/* Among n documents, which begin at begin[0..n-1], the last one that begins at or before position. */
static int64_t find_place(const int64_t *begin, int64_t n, int64_t position)
{
    int64_t low = 0, high = n;

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        if (begin[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Tokens [begin, begin + n) of an epoch's stream. */
static int copy_stream(struct tt_sampler *s, int64_t number, int64_t begin, int64_t n, int32_t *ids)
{
    const struct epoch *e;
    int64_t place;
    int rc = 0;

    if (!s->n_ordered)
        return tt_dataset_copy(s->dataset, begin, n, ids);
    e = find_epoch(s, number);
    for (place = find_place(e->begin, s->n_ordered, begin); n > 0; place++) {
        int64_t left = e->begin[place + 1] - begin, take = left < n ? left : n;

        TT_TRY(tt_dataset_copy(s->dataset, s->dataset->offsets[e->order[place]] + begin - e->begin[place], take, ids));
        ids += take;
        begin += take;
        n -= take;
    }
out:
    return rc;
}

/* The positions of tokens [begin, begin + n) of an epoch's stream. For a document that begins before `begin`, positions
 * count from `begin`. */
static void find_positions(struct tt_sampler *s, int64_t number, int64_t begin, int64_t n, int32_t *positions)
{
    const int64_t *begins = s->n_ordered ? find_epoch(s, number)->begin : s->dataset->offsets;
    int64_t place = find_place(begins, s->documents.n, begin), start = begin;

    for (int64_t at = begin; at < begin + n; at++) {
        while (begins[place + 1] <= at)
            start = begins[++place];
        positions[at - begin] = (int32_t)(at - start);
    }
}

static int fail_ended(const struct tt_sampler *s, int64_t sample)
{
    char have[32], wanted[32];

    return tt_fail(TT_EDATA,
                   "dataset '%s' has ended: it has %s samples of seq_len %lld, sample %s was wanted\n"
                   "help: set %s=true, fewer %s, or use more data",
                   s->dataset->ref.name, tt_text_count(have, sizeof have, s->n_samples), (long long)s->options.seq_len,
                   tt_text_count(wanted, sizeof wanted, sample), TT_KEY_NAME(dataloader.repeat),
                   TT_KEY_NAME(training.steps));
}

int tt_sampler_get(struct tt_sampler *sampler, int64_t sample, int32_t *inputs, int32_t *labels, int32_t *positions)
{
    int64_t n = sampler->n_samples, length = sampler->options.seq_len;
    int64_t epoch = sample / n, begin = sample % n * length;
    int rc = 0;

    if (sample < 0)
        return tt_fail(TT_EINTERNAL, "sample %lld", (long long)sample);
    if (epoch > 0 && !sampler->options.repeat)
        return fail_ended(sampler, sample);
    if (sampler->packs.n) {
        sample %= n;
        return packs_get(&sampler->packs, sampler->n_ordered ? find_epoch(sampler, epoch)->order[sample] : sample,
                         inputs, labels, positions);
    }
    TT_TRY(copy_stream(sampler, epoch, begin, length, inputs));
    for (int64_t i = 0; i + 1 < length; i++)
        labels[i] = inputs[i + 1];
    TT_TRY(copy_stream(sampler, epoch, begin + length, 1, labels + length - 1));
    if (positions)
        find_positions(sampler, epoch, begin, length, positions);
out:
    return rc;
}
