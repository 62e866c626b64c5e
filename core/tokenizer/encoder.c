/* SPDX-License-Identifier: MIT
 *
 * From text to token ids: finds added tokens and words, then does byte pair encoding of each word, with a cache,
 * since words repeat.
 */
#include <stdbool.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/tokenizer/internal.h"
#include "core/tokenizer/tokenizer.h"

/*
 * --- byte pair encoding ---
 *
 * A linked list of symbols, and a heap of candidate merges. A candidate is stale when another symbol has absorbed its
 * left symbol, or its pair has changed. Stale candidates are dropped when they reach the top of the heap.
 */

struct symbol {
    int32_t id; /* -1: absorbed by its left neighbour */
    int32_t before, after;
};

struct candidate {
    int32_t rank, at, left, right, id;
};

/* Scratch of one thread. Zero-initialise. */
struct bpe_scratch {
    struct symbol *symbol;
    struct candidate *heap;
    size_t symbol_cap, heap_cap;
};

static struct tt_bpe_merge *find(const struct tt_bpe *bpe, uint64_t pair)
{
    for (size_t i = tt_mix64(pair) & (bpe->cap - 1);; i = (i + 1) & (bpe->cap - 1)) {
        if (bpe->merge[i].rank < 0 || bpe->merge[i].pair == pair)
            return &bpe->merge[i];
    }
}

static void grow(struct tt_bpe *bpe)
{
    struct tt_bpe_merge *old = bpe->merge;
    size_t old_cap = bpe->cap;

    bpe->cap = old_cap ? 2 * old_cap : 256;
    bpe->merge = tt_calloc(bpe->cap, sizeof *bpe->merge);
    for (size_t i = 0; i < bpe->cap; i++)
        bpe->merge[i].rank = -1;
    for (size_t i = 0; i < old_cap; i++) {
        if (old[i].rank >= 0)
            *find(bpe, old[i].pair) = old[i];
    }
    tt_free(old);
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void tt_bpe_add(struct tt_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    struct tt_bpe_merge *m;

    if (2 * (bpe->n + 1) > bpe->cap)
        grow(bpe);
    m = find(bpe, pair_key(left, right));
    if (m->rank < 0)
        bpe->n++;
    *m = (struct tt_bpe_merge){.pair = pair_key(left, right), .rank = rank, .id = id};
}

static void scratch_release(struct bpe_scratch *scratch)
{
    tt_free(scratch->symbol);
    tt_free(scratch->heap);
    *scratch = (struct bpe_scratch){0};
}

static bool is_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct candidate *heap, size_t *n, struct candidate c)
{
    size_t i = (*n)++;

    while (i > 0 && is_before(&c, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = c;
}

static struct candidate heap_pop(struct candidate *heap, size_t *n)
{
    struct candidate top = heap[0], last = heap[--*n];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < *n) {
        if (child + 1 < *n && is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!is_before(&heap[child], &last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* Puts the pair that begins at symbol `at` on the heap, if it has a merge. */
static void consider(const struct tt_bpe *bpe, struct bpe_scratch *s, size_t *n_heap, int32_t at)
{
    const struct symbol *left = &s->symbol[at];
    const struct tt_bpe_merge *m;

    if (at < 0 || left->after < 0)
        return;
    m = find(bpe, pair_key(left->id, s->symbol[left->after].id));
    if (m->rank >= 0)
        heap_push(s->heap, n_heap, (struct candidate){m->rank, at, left->id, s->symbol[left->after].id, m->id});
}

static void reserve(struct bpe_scratch *s, size_t n)
{
    if (n > s->symbol_cap) {
        s->symbol_cap = 2 * n;
        s->symbol = tt_realloc(s->symbol, s->symbol_cap, sizeof *s->symbol);
    }
    if (3 * n > s->heap_cap) { /* n - 1 initial pairs, and two more for each of at most n - 1 merges */
        s->heap_cap = 6 * n;
        s->heap = tt_realloc(s->heap, s->heap_cap, sizeof *s->heap);
    }
}

/*
 * Merges n ids of one word in place; returns the number of remaining ids. The adjacent pair with the lowest merge rank
 * (leftmost first) is replaced by its merged token until no pair has a merge. Takes n log n steps for any length.
 */
static size_t merge_word(const struct tt_bpe *bpe, struct bpe_scratch *scratch, int32_t *ids, size_t n)
{
    struct symbol *symbol;
    size_t n_heap = 0, kept = 0;

    if (n < 2 || !bpe->n)
        return n;
    reserve(scratch, n);
    symbol = scratch->symbol;
    for (size_t i = 0; i < n; i++)
        symbol[i] = (struct symbol){ids[i], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    for (size_t i = 0; i + 1 < n; i++)
        consider(bpe, scratch, &n_heap, (int32_t)i);
    while (n_heap) {
        struct candidate c = heap_pop(scratch->heap, &n_heap);
        struct symbol *left = &symbol[c.at], *right;

        if (left->id != c.left || left->after < 0 || symbol[left->after].id != c.right)
            continue;
        right = &symbol[left->after];
        left->id = c.id;
        left->after = right->after;
        right->id = -1;
        if (left->after >= 0)
            symbol[left->after].before = c.at;
        if (left->before >= 0)
            consider(bpe, scratch, &n_heap, left->before);
        consider(bpe, scratch, &n_heap, c.at);
    }
    for (int32_t i = 0; i >= 0; i = symbol[i].after)
        ids[kept++] = symbol[i].id;
    return kept;
}

/* --- the encoder --- */

enum {
    CACHED_WORDS = 1 << 17,
    CACHED_BYTES = 1 << 22,
    LONGEST_CACHED = 64, /* longer words rarely repeat */
};

struct tt_encoder {
    const struct tt_tokenizer *tokenizer;
    struct tt_matcher *matcher;
    struct bpe_scratch bpe;
    struct tt_text scratch;
    struct tt_strmap cache; /* word -> offset in cached << 16 | number of ids */
    struct tt_ids cached;
    struct tt_ids *out; /* of the call in progress */
    bool find_special;
    /* for a call that wants marks: where they go, and the piece in progress */
    struct tt_ids *marks; /* NULL: none are wanted */
    const struct tt_passages *passages;
    const char *piece;
    size_t piece_size, done; /* done: the bytes of the piece that have tokens */
};

static void reserve_ids(struct tt_ids *ids, size_t more)
{
    if (ids->n + more <= ids->cap)
        return;
    ids->cap = 2 * (ids->n + more);
    ids->id = tt_realloc(ids->id, ids->cap, sizeof *ids->id);
}

void tt_ids_add(struct tt_ids *ids, int32_t id)
{
    reserve_ids(ids, 1);
    ids->id[ids->n++] = id;
}

void tt_ids_release(struct tt_ids *ids)
{
    tt_free(ids->id);
    *ids = (struct tt_ids){0};
}

int tt_encoder_new(const struct tt_tokenizer *tokenizer, struct tt_encoder **ret_encoder)
{
    struct tt_encoder *e = tt_calloc(1, sizeof *e);
    int rc = tt_matcher_new(&e->matcher);

    if (rc < 0) {
        tt_free(e);
        return rc;
    }
    e->tokenizer = tokenizer;
    e->find_special = true;
    *ret_encoder = e;
    return 0;
}

void tt_encoder_free(struct tt_encoder *encoder)
{
    if (!encoder)
        return;
    tt_matcher_free(encoder->matcher);
    scratch_release(&encoder->bpe);
    tt_text_release(&encoder->scratch);
    tt_strmap_release(&encoder->cache);
    tt_ids_release(&encoder->cached);
    tt_free(encoder);
}

void tt_encoder_find_special(struct tt_encoder *encoder, bool find_special)
{
    encoder->find_special = find_special;
}

/* Writes the word's bytes as ids; a byte that is not a token becomes the unknown token, or nothing. */
static size_t put_bytes(const struct tt_tokenizer *t, const char *word, size_t size, int32_t *ids)
{
    bool was_unknown = false;
    size_t n = 0;

    for (size_t i = 0; i < size; i++) {
        int32_t id = t->byte_id[(uint8_t)word[i]];

        if (id >= 0) {
            ids[n++] = id;
        } else if (t->unknown >= 0 && !(was_unknown && t->fuse_unknown)) {
            ids[n++] = t->unknown;
        }
        was_unknown = id < 0;
    }
    return n;
}

/*
 * Writes the word's characters as ids, at most one for each byte. A character that is not a token becomes the tokens of
 * its bytes if all of these are tokens, and otherwise the unknown token. As in the `tokenizers` library, the unknown
 * token is written before the next character that is a token.
 */
static size_t put_chars(const struct tt_tokenizer *t, const char *word, size_t size, int32_t *ids)
{
    size_t n = 0, length;
    bool is_unknown = false; /* an unknown token is still to be written */

    for (size_t i = 0; i < size; i += length) {
        uint32_t code;
        bool has_bytes = true;
        int64_t id;

        length = (size_t)tt_utf8_decode(word + i, size - i, &code);
        id = tt_strmap_get(&t->chars, word + i, length, -1);
        if (id >= 0) {
            if (is_unknown)
                ids[n++] = t->unknown;
            is_unknown = false;
            ids[n++] = (int32_t)id;
            continue;
        }
        for (size_t k = 0; k < length; k++)
            has_bytes = has_bytes && t->byte_id[(uint8_t)word[i + k]] >= 0;
        for (size_t k = 0; has_bytes && k < length; k++)
            ids[n++] = t->byte_id[(uint8_t)word[i + k]];
        if (has_bytes || t->unknown < 0)
            continue;
        if (is_unknown && !t->fuse_unknown)
            ids[n++] = t->unknown;
        is_unknown = true;
    }
    if (is_unknown)
        ids[n++] = t->unknown;
    return n;
}

static void remember(struct tt_encoder *e, const char *word, size_t size, const int32_t *ids, size_t n)
{
    if (e->cache.n >= CACHED_WORDS || e->cached.n + n > CACHED_BYTES) {
        tt_strmap_clear(&e->cache);
        e->cached.n = 0;
    }
    tt_strmap_set(&e->cache, word, size, (int64_t)(e->cached.n << 16 | n));
    reserve_ids(&e->cached, n);
    if (n)
        memcpy(e->cached.id + e->cached.n, ids, n * sizeof *ids);
    e->cached.n += n;
}

/* The number of bytes at p that a token represents, by its own text or by the bytes that merges joined; 0: none. */
static size_t match_token(const struct tt_tokenizer *t, int32_t id, const char *p, size_t size)
{
    const struct tt_token_bytes *token = &t->token[id];
    const char *text = t->bytes.text + token->at;
    size_t used = 0;

    if (token->size && token->size <= size && memcmp(text, p, token->size) == 0)
        return token->size;
    for (size_t i = 0, n; i < token->size; i += n, used++) {
        int32_t byte = used < size ? t->byte_id[(uint8_t)p[used]] : -1;

        n = byte < 0 ? 0 : t->token[byte].size;
        if (!n || n > token->size - i || memcmp(text + i, t->bytes.text + t->token[byte].at, n) != 0)
            n = used < size && text[i] == p[used];
        if (n == 0)
            return 0;
    }
    return used;
}

/* The number of bytes of a word that the first of its n tokens represents. Bytes without a token belong to the next
 * token. */
static size_t bytes_of_token(const struct tt_tokenizer *t, const int32_t *ids, size_t n, const char *word, size_t size)
{
    size_t used = 0, match = n == 1 ? size : 0;

    while (used < size && match == 0) {
        uint32_t code;
        size_t length = t->is_byte_level ? 1 : (size_t)tt_utf8_decode(word + used, size - used, &code);

        match = match_token(t, ids[0], word + used, size - used);
        if (match || (used && ids[0] == t->unknown &&
                      (ids[1] == t->unknown || match_token(t, ids[1], word + used, size - used))))
            break;
        used += length ? length : 1; /* 0: a merge of bytes ended within a character */
    }
    return used + match;
}

/* Advances in the piece by the text that `size` bytes of a word represent. Marks of Metaspace represent spaces; text
 * that was added before the piece represents nothing. */
static void advance(struct tt_encoder *e, const char *word, size_t size)
{
    const char *mark = e->tokenizer->pretokenizer.metaspace.mark;
    size_t mark_size = strlen(mark);

    for (size_t i = 0; i < size;) {
        bool is_mark = mark_size && mark_size <= size - i && memcmp(word + i, mark, mark_size) == 0;

        if (e->done < e->piece_size && word[i] == e->piece[e->done]) {
            e->done++;
            i++;
        } else {
            e->done += is_mark && e->done < e->piece_size && e->piece[e->done] == ' ';
            i += is_mark ? mark_size : 1;
        }
    }
}

static void mark_word(struct tt_encoder *e, const char *word, size_t size, const int32_t *ids, size_t n)
{
    /* a Split may have removed text before the word */
    if ((uintptr_t)word - (uintptr_t)e->piece < e->piece_size)
        e->done = (size_t)(word - e->piece);
    for (size_t i = 0; i < n; i++) {
        size_t before = e->done, bytes = bytes_of_token(e->tokenizer, ids + i, n - i, word, size);

        advance(e, word, bytes);
        tt_ids_add(e->marks, tt_passages_touch(e->passages, before, e->done));
        word += bytes;
        size -= bytes;
    }
    if (!n)
        advance(e, word, size);
}

static size_t encode_new_word(struct tt_encoder *e, const char *word, size_t size, int32_t *ids)
{
    const struct tt_tokenizer *t = e->tokenizer;
    int64_t known = t->ignore_merges ? tt_strmap_get(&t->words, word, size, -1) : -1;
    size_t n;

    if (known >= 0) {
        ids[0] = (int32_t)known;
        return 1;
    }
    n = t->is_byte_level ? put_bytes(t, word, size, ids) : put_chars(t, word, size, ids);
    return merge_word(&t->bpe, &e->bpe, ids, n);
}

static int encode_word(void *arg, const char *word, size_t size)
{
    struct tt_encoder *e = arg;
    struct tt_ids *out = e->out;
    int64_t known = -1;
    size_t n;

    if (size > INT32_MAX / 4)
        return tt_fail(TT_EDATA, "a word of %zu bytes is too long to tokenize", size);
    reserve_ids(out, size);
    if (size <= LONGEST_CACHED)
        known = tt_strmap_get(&e->cache, word, size, -1);
    if (known >= 0) {
        n = (size_t)(known & 0xffff);
        memcpy(out->id + out->n, e->cached.id + (known >> 16), n * sizeof *out->id);
    } else {
        n = encode_new_word(e, word, size, out->id + out->n);
        if (size <= LONGEST_CACHED)
            remember(e, word, size, out->id + out->n, n);
    }
    if (e->marks)
        mark_word(e, word, size, out->id + out->n, n);
    out->n += n;
    return 0;
}

static int encode_piece(void *arg, int32_t id, const char *text, size_t size, bool is_first,
                        const struct tt_passages *passages)
{
    struct tt_encoder *e = arg;

    if (id >= 0) {
        tt_ids_add(e->out, id);
        if (e->marks)
            tt_ids_add(e->marks, tt_passages_touch(passages, 0, size));
        return 0;
    }
    e->passages = passages;
    e->piece = text;
    e->piece_size = size;
    e->done = 0;
    return tt_pretokenizer_split(&e->tokenizer->pretokenizer, e->matcher, &e->scratch, text, size, is_first,
                                 encode_word, e);
}

int tt_encoder_encode_marked(struct tt_encoder *encoder, const char *text, size_t size,
                             const struct tt_passages *passages, struct tt_ids *ids, struct tt_ids *marks)
{
    size_t before = ids->n, marks_before = marks ? marks->n : 0;
    int64_t bad = tt_utf8_invalid(text, size);
    int rc;

    if (bad >= 0) {
        return tt_fail(TT_EDATA, "invalid UTF-8 at byte %lld of the text (0x%02x)", (long long)bad,
                       (unsigned char)text[bad]);
    }
    encoder->out = ids;
    encoder->marks = marks;
    tt_matcher_begin(encoder->matcher, size);
    rc = tt_added_split(&encoder->tokenizer->added, encoder->matcher, encoder->find_special, text, size, passages,
                        encode_piece, encoder);
    encoder->out = encoder->marks = NULL;
    if (rc < 0) {
        ids->n = before;
        if (marks)
            marks->n = marks_before;
    }
    return rc;
}

int tt_encoder_encode(struct tt_encoder *encoder, const char *text, size_t size, struct tt_ids *ids)
{
    return tt_encoder_encode_marked(encoder, text, size, NULL, ids, NULL);
}

int tt_encoder_encode_document(struct tt_encoder *encoder, const char *text, size_t size, struct tt_ids *ids)
{
    const struct tt_tokenizer *t = encoder->tokenizer;
    size_t before = ids->n;
    int rc;

    tt_tokenizer_begin(t, ids);
    rc = tt_encoder_encode(encoder, text, size, ids);
    if (rc < 0) {
        ids->n = before;
        return rc;
    }
    if (t->info.eos >= 0)
        tt_ids_add(ids, t->info.eos);
    return 0;
}
