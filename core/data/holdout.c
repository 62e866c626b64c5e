/* SPDX-License-Identifier: MIT
 *
 * Dividing the documents of a dataset into those that are trained on and those that are held out.
 */
#include "core/data/holdout.h"

#include <string.h>

#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/mem.h"

enum { WINDOW = 4 * TT_HOLDOUT_BLOCK, PROGRESS_TOKENS = 1 << 24 };

/* Tokens that were read at once, since most documents are short. */
struct window {
    const struct tt_dataset *dataset;
    int64_t begin, n;
    int32_t *ids; /* WINDOW */
};

/* Tokens [begin, begin + n), n <= TT_HOLDOUT_BLOCK; valid until the next call. */
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
    const char *key = tt_key_name(TT_KEY_VALIDATION_SPLIT);

    if (!d->offsets)
        return tt_fail_key(TT_EUSAGE, TT_KEY_VALIDATION_SPLIT,
                           "dataset '%s' does not say where its documents begin, and %s holds out whole documents\n"
                           "help: titan's own packed files do; titan data pack makes them from text. Or validate on "
                           "other data, with %s instead",
                           d->ref.name, key, tt_key_name(TT_KEY_VALIDATION_DATASET));
    return tt_fail_key(TT_EUSAGE, TT_KEY_VALIDATION_SPLIT,
                       "dataset '%s' is a single document, and %s holds out whole documents\n"
                       "help: divide the text into documents: a folder with a file for each, or JSON lines with one in "
                       "each line (dataset jsonl). Or validate on other data, with %s instead",
                       d->ref.name, key, tt_key_name(TT_KEY_VALIDATION_DATASET));
}

/* least: the smallest hash of a document, as a fraction. */
static int fail_side(const struct tt_dataset *d, const struct tt_holdout *s, double least)
{
    const char *key = tt_key_name(TT_KEY_VALIDATION_SPLIT);
    double percent = 100.0 * least;

    if (s->held)
        return tt_fail_key(TT_EUSAGE, TT_KEY_VALIDATION_SPLIT,
                           "%s %.6g%% holds out all %lld documents of dataset '%s', and none is left to train on\n"
                           "help: a smaller %s, or more documents",
                           key, 100.0 * s->part, (long long)s->n_documents, d->ref.name, key);
    if (percent >= 49.0)
        return tt_fail_key(TT_EUSAGE, TT_KEY_VALIDATION_SPLIT,
                           "%s %.6g%% holds out none of the %lld documents of dataset '%s'\nhelp: more documents, or "
                           "validate on other data, with %s instead",
                           key, 100.0 * s->part, (long long)s->n_documents, d->ref.name,
                           tt_key_name(TT_KEY_VALIDATION_DATASET));
    return tt_fail_key(TT_EUSAGE, TT_KEY_VALIDATION_SPLIT,
                       "%s %.6g%% holds out none of the %lld documents of dataset '%s', which are few\nhelp: from "
                       "%s=%.3g%% on one is held out",
                       key, 100.0 * s->part, (long long)s->n_documents, d->ref.name, key,
                       percent * 1.01); /* rounding to three digits must not end below it */
}

/* Adds the tokens of a document that are to be learned. */
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

int64_t tt_holdout_bytes(int64_t n_documents)
{
    return (n_documents + 7) / 8;
}

int tt_holdout_init(struct tt_holdout *holdout, const struct tt_dataset *dataset, double part)
{
    struct window w = {.dataset = dataset, .ids = tt_calloc(WINDOW, sizeof *w.ids)};
    uint8_t *counts = tt_calloc(TT_HOLDOUT_BLOCK, 1);
    int64_t n_tokens = dataset->ref.info.n_tokens, shown = 0;
    double least = 1.0;
    int rc = 0;

    *holdout = (struct tt_holdout){.part = part, .n_documents = dataset->ref.info.n_documents};
    if (!dataset->offsets || holdout->n_documents < 2) {
        rc = fail_undivided(dataset);
        goto out;
    }
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

int tt_documents_init(struct tt_documents *documents, const struct tt_dataset *dataset,
                      const struct tt_holdout *holdout, bool held_out)
{
    const struct tt_token_info *info = &dataset->ref.info;
    struct tt_documents all = {.n = info->n_documents, .tokens = info->n_tokens, .learned = info->n_learned};
    int64_t n = 0;

    *documents = all;
    if (!holdout)
        return 0;
    *documents =
        (struct tt_documents){.n = holdout->held, .tokens = holdout->held_tokens, .learned = holdout->held_learned};
    if (!held_out)
        *documents = (struct tt_documents){.n = all.n - holdout->held,
                                           .tokens = all.tokens - holdout->held_tokens,
                                           .learned = all.learned - holdout->held_learned};
    documents->index = tt_calloc_for((size_t)documents->n, sizeof *documents->index, dataset->ref.name);
    if (!documents->index)
        return TT_ENOMEM;
    for (int64_t i = 0; i < holdout->n_documents; i++)
        if ((holdout->is_held[i / 8] >> i % 8 & 1) == held_out)
            documents->index[n++] = i;
    return 0;
}

void tt_documents_release(struct tt_documents *documents)
{
    tt_free(documents->index);
    *documents = (struct tt_documents){.n = 0};
}
