/* SPDX-License-Identifier: MIT
 *
 * Samples by index: each epoch has a permutation of the documents and the position of each in the epoch's stream, which
 * a binary search uses. The permutations of two epochs are kept, since a batch may span two epochs. Conversations are
 * packed into samples first, and the permutation is that of the samples.
 */
#include "core/data/sampler.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/base/mem.h"
#include "core/math/rng.h"

struct epoch {
    int64_t number; /* -1: none yet */
    int64_t *order; /* documents or packs */
    int64_t *begin; /* of each document of the order in the stream, n_ordered + 1; NULL: packs */
    uint64_t used;  /* when it was last used */
};

struct tt_sampler {
    const struct tt_dataset *dataset;
    struct tt_sampler_options options;
    struct tt_documents documents;
    int64_t n_samples;
    int64_t n_ordered;     /* documents or packs; 0: they are those of the file, in its order */
    struct tt_packs packs; /* n 0: samples are parts of a stream */
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
        rc = tt_fail_key(TT_EDATA, TT_KEY_VALIDATION_SPLIT,
                         "%lld of %lld documents of dataset '%s' are held out, with %s tokens; one sample of seq_len "
                         "%lld needs %s",
                         (long long)s->documents.n, (long long)d->ref.info.n_documents, d->ref.name, have,
                         (long long)seq_len, need);
        return n_tokens > 2 ? tt_error_add_hint(rc, "a larger %s, or a smaller %s (at most %lld)",
                                                tt_key_name(TT_KEY_VALIDATION_SPLIT),
                                                tt_key_name(TT_KEY_VALIDATION_SEQ_LEN), (long long)n_tokens - 1)
                            : tt_error_add_hint(rc, "a larger %s", tt_key_name(TT_KEY_VALIDATION_SPLIT));
    }
    rc = tt_fail(TT_EDATA, "dataset '%s' has %s tokens%s, one sample of seq_len %lld needs %s", d->ref.name, have,
                 s->options.holdout ? " that are not held out" : "", (long long)seq_len, need);
    return n_tokens > 2
               ? tt_error_add_hint(rc, "a smaller seq_len (at most %lld), or more data", (long long)n_tokens - 1)
               : tt_error_add_hint(rc, "use more data");
}

/* Decides what the samples of an epoch are. */
static int divide(struct tt_sampler *s)
{
    const struct tt_documents *documents = &s->documents;
    int64_t length = s->options.seq_len;
    int rc = 0;

    TT_TRY(tt_documents_init(&s->documents, s->dataset, s->options.holdout, s->options.held_out));
    if (s->dataset->ref.info.mask_at) {
        TT_TRY(tt_packs_init(&s->packs, s->dataset, documents, length, s->options.longs));
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

/* Makes room for the orders of two epochs. */
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
        return tt_fail_key(TT_EUSAGE, TT_KEY_DOCUMENT_MASK,
                           "dataset '%s' does not say where its documents begin, which %s needs\n"
                           "help: titan's own packed files do; titan data pack makes them from text",
                           dataset->ref.name, tt_key_name(TT_KEY_DOCUMENT_MASK));
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
    tt_packs_release(&sampler->packs);
    tt_documents_release(&sampler->documents);
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

/* Documents or packs in the order of an epoch. */
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

/* The last of n documents, which begin at begin[0..n-1], that begins at or before position. */
static int64_t find_place(const int64_t *begin, int64_t n, int64_t position)
{
    int64_t low = 0, high = n;

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        if (begin[middle] <= position) {
            low = middle;
        } else {
            high = middle;
        }
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

/* Positions of tokens [begin, begin + n) of an epoch's stream. A document that begins earlier counts from there. */
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
                   tt_text_count(wanted, sizeof wanted, sample), tt_key_name(TT_KEY_REPEAT), tt_key_name(TT_KEY_STEPS));
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
        return tt_packs_get(&sampler->packs, sampler->n_ordered ? find_epoch(sampler, epoch)->order[sample] : sample,
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
