/* SPDX-License-Identifier: MIT
 *
 * Packing of conversations into samples.
 */
#include "core/data/packs.h"

#include <string.h>

#include "core/base/mem.h"

enum { NOT_LEARNED = -100, PADDING = -101 }; /* as in core/kernels/kernels.h */

static int64_t length_of(const struct tt_dataset *d, int64_t document)
{
    return d->offsets[document + 1] - d->offsets[document];
}

static int fail_long(const struct tt_packs *p, int64_t document)
{
    return tt_fail_key(TT_EDATA, TT_KEY_LONG_CONVERSATIONS,
                       "conversation %lld of dataset '%s' has %lld tokens, more than %s %lld\n"
                       "help: a larger %s, or %s=truncate or drop",
                       (long long)document + 1, p->dataset->ref.name, (long long)length_of(p->dataset, document),
                       tt_key_name(TT_KEY_SEQ_LEN), (long long)p->seq_len, tt_key_name(TT_KEY_SEQ_LEN),
                       tt_key_name(TT_KEY_LONG_CONVERSATIONS));
}

/* Whether one of the first seq_len tokens, other than the very first, is to be learned. */
static int find_answer(struct tt_packs *p, int64_t document, bool *ret_found)
{
    int rc = tt_dataset_counts(p->dataset, p->dataset->offsets[document], p->seq_len, p->counts);

    *ret_found = rc == 0 && p->seq_len > 1 && memchr(p->counts + 1, 1, (size_t)p->seq_len - 1);
    return rc;
}

/* Decides whether a conversation is used. */
static int choose(struct tt_packs *p, int64_t document, enum tt_long_conversations longs, bool *ret_used)
{
    int64_t n = length_of(p->dataset, document);
    int rc = 0;

    *ret_used = n > 0;
    if (n <= p->seq_len)
        return 0;
    p->n_long++;
    if (longs == TT_LONG_REFUSED)
        return fail_long(p, document);
    *ret_used = false;
    if (longs == TT_LONG_TRUNCATED)
        rc = find_answer(p, document, ret_used);
    p->n_truncated += *ret_used;
    return rc;
}

static int fail_empty(const struct tt_packs *p)
{
    return tt_fail(TT_EDATA,
                   "dataset '%s' has no conversation with an answer within %s %lld; all %lld are longer\n"
                   "help: a larger %s",
                   p->dataset->ref.name, tt_key_name(TT_KEY_SEQ_LEN), (long long)p->seq_len, (long long)p->n_long,
                   tt_key_name(TT_KEY_SEQ_LEN));
}

int tt_packs_init(struct tt_packs *packs, const struct tt_dataset *dataset, const struct tt_documents *documents,
                  int64_t seq_len, enum tt_long_conversations longs)
{
    int64_t n = documents->n, used = seq_len; /* tokens of the last sample */
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
        rc = fail_empty(packs);
out:
    return rc;
}

void tt_packs_release(struct tt_packs *packs)
{
    tt_free(packs->document);
    tt_free(packs->first);
    tt_free(packs->counts);
    *packs = (struct tt_packs){0};
}

/* Fills n places with the beginning of a conversation. */
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

int tt_packs_get(struct tt_packs *packs, int64_t sample, int32_t *inputs, int32_t *labels, int32_t *positions)
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
