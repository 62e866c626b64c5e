/* SPDX-License-Identifier: MIT
 *
 * Trains a byte-level BPE: counts words, learns merges, and writes Hugging Face's tokenizer.json and
 * tokenizer_config.json.
 *
 * Words are sequences of tokens with a count. A table holds the count of every pair of neighbours. A heap holds the
 * pairs, with the words in which they may occur. Merging a pair changes only these words, and only the counts around
 * the merged places. If the count of a pair has changed since the pair entered the heap, it goes back with its new
 * count when it reaches the top.
 */
#include "core/tokenizer/train.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/os/file.h"
#include "core/tokenizer/decoder.h"

/* --- counting words --- */

#define LLAMA3_PATTERN                                                                                           \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*" \
    "[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* GPT-2's expression is part of ByteLevel. */
static json_t *describe(const char *pattern)
{
    bool is_gpt2 = strcmp(pattern, "gpt2") == 0;
    json_t *bytes = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                              "use_regex", is_gpt2);

    if (is_gpt2)
        return bytes;
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type", "Split",
                     "pattern", "Regex", strcmp(pattern, "llama3") == 0 ? LLAMA3_PATTERN : pattern, "behavior",
                     "Isolated", "invert", 0, bytes);
}

int tt_word_counts_init(struct tt_word_counts *words, const char *pattern, size_t most)
{
    int rc = 0;

    words->most = most;
    words->json = describe(pattern);
    if (!words->json)
        return tt_fail(TT_EUSAGE, "--pattern is not valid UTF-8");
    TT_TRY(tt_pretokenizer_init(&words->pretokenizer, words->json, "--pattern"));
    TT_TRY(tt_matcher_new(&words->matcher));
out:
    return rc;
}

void tt_word_counts_release(struct tt_word_counts *words)
{
    tt_pretokenizer_release(&words->pretokenizer);
    tt_matcher_free(words->matcher);
    tt_text_release(&words->scratch);
    tt_strmap_release(&words->count);
    json_decref(words->json);
}

/* Drops the rarest words until at most half of the room is used. The choice does not depend on the order of the map. */
static void drop_rare(struct tt_word_counts *words)
{
    for (int64_t least = 2; words->count.n > words->most / 2; least *= 2) {
        struct tt_strmap kept = {0};

        for (size_t i = 0; i < words->count.cap; i++) {
            const struct tt_strmap_entry *e = &words->count.entry[i];

            if (e->hash && e->value >= least)
                tt_strmap_set(&kept, words->count.pool + e->key, e->size, e->value);
            else if (e->hash)
                words->n_dropped += e->value;
        }
        tt_strmap_release(&words->count);
        words->count = kept;
    }
}

static int count_word(void *arg, const char *word, size_t size)
{
    struct tt_word_counts *words = arg;

    words->n_words++;
    tt_strmap_set(&words->count, word, size, tt_strmap_get(&words->count, word, size, 0) + 1);
    if (words->count.n >= words->most)
        drop_rare(words);
    return 0;
}

int tt_word_counts_add(struct tt_word_counts *words, const char *text, size_t size)
{
    tt_matcher_begin(words->matcher, size);
    return tt_pretokenizer_split(&words->pretokenizer, words->matcher, &words->scratch, text, size, true, count_word,
                                 words);
}

/* --- learning merges --- */

/* A growing list of words. */
struct list {
    int32_t *word;
    int n, cap;
};

struct pair {
    uint64_t key; /* left << 32 | right, plus 1; 0: free */
    int64_t count;
    int fresh; /* the list of words in which this merge made the pair, plus 1; 0: none */
};

struct candidate {
    uint64_t key;
    int64_t count;
    struct list words;
};

struct training {
    struct tt_bpe_trained *trained;
    struct tt_strmap id; /* id of every token */
    /* the words */
    int n_words;
    int64_t *count;
    int32_t *length, *symbol;
    size_t *begin;
    /* the pairs: open addressing */
    struct pair *pair;
    size_t n_pairs, cap_pairs;
    /* pairs that the current merge makes */
    struct candidate *fresh;
    int n_fresh, cap_fresh;
    /* a binary heap; the first pair is the next to be merged */
    struct candidate *heap;
    int n_heap, cap_heap;
};

/* --- tokens --- */

static int32_t add_token(struct training *t, const char *text, size_t size)
{
    int32_t id = (int32_t)tt_strmap_get(&t->id, text, size, -1);

    if (id >= 0)
        return id;
    id = t->trained->n_tokens;
    tt_strmap_set(&t->id, text, size, id);
    TT_PUSH(t->trained->token, t->trained->n_tokens, t->trained->cap_tokens) = tt_strndup(text, size);
    return id;
}

/* The ids of the bytes follow the order of their characters. */
static void add_alphabet(struct training *t, int32_t *id_of_byte)
{
    for (uint32_t code = 0; code < 512; code++) {
        int byte = tt_bytelevel_byte(code);
        char text[4];

        if (byte >= 0)
            id_of_byte[byte] = add_token(t, text, (size_t)tt_utf8_encode(code, text));
    }
}

static void add_words(struct training *t, const struct tt_strmap *counts, const int32_t *id_of_byte)
{
    size_t at = 0;

    t->count = tt_calloc(counts->n + 1, sizeof *t->count);
    t->length = tt_calloc(counts->n + 1, sizeof *t->length);
    t->begin = tt_calloc(counts->n + 1, sizeof *t->begin);
    t->symbol = tt_calloc(counts->pool_size + 1, sizeof *t->symbol);
    for (size_t i = 0; i < counts->cap; i++) {
        const struct tt_strmap_entry *e = &counts->entry[i];

        if (!e->hash)
            continue;
        t->trained->text_bytes += (int64_t)e->size * e->value;
        t->count[t->n_words] = e->value;
        t->length[t->n_words] = (int32_t)e->size;
        t->begin[t->n_words++] = at;
        for (size_t b = 0; b < e->size; b++)
            t->symbol[at++] = id_of_byte[(uint8_t)counts->pool[e->key + b]];
    }
}

/* --- pairs --- */

static uint64_t key_of(int32_t left, int32_t right)
{
    return ((uint64_t)left << 32 | (uint32_t)right) + 1;
}

static struct pair *find_pair(const struct training *t, uint64_t key)
{
    size_t mask = t->cap_pairs - 1, i = tt_mix64(key) & mask;

    while (t->pair[i].key && t->pair[i].key != key)
        i = (i + 1) & mask;
    return &t->pair[i];
}

static void grow_pairs(struct training *t)
{
    struct pair *old = t->pair;
    size_t cap = t->cap_pairs;

    t->cap_pairs = cap ? 2 * cap : 1 << 16;
    t->pair = tt_calloc(t->cap_pairs, sizeof *t->pair);
    for (size_t i = 0; i < cap; i++)
        if (old[i].key)
            *find_pair(t, old[i].key) = old[i];
    tt_free(old);
}

/* Adds the count of word w to the count of a pair, or subtracts it; a new pair remembers the word. */
static void change(struct training *t, int32_t left, int32_t right, int sign, int32_t w)
{
    uint64_t key = key_of(left, right);
    struct pair *pair;
    struct list *words;

    if (2 * (t->n_pairs + 1) > t->cap_pairs)
        grow_pairs(t);
    pair = find_pair(t, key);
    if (!pair->key) {
        pair->key = key;
        t->n_pairs++;
    }
    pair->count += sign * t->count[w];
    if (sign < 0)
        return;
    if (!pair->fresh) {
        TT_PUSH(t->fresh, t->n_fresh, t->cap_fresh) = (struct candidate){.key = key};
        pair->fresh = t->n_fresh;
    }
    words = &t->fresh[pair->fresh - 1].words;
    if (!words->n || words->word[words->n - 1] != w)
        TT_PUSH(words->word, words->n, words->cap) = w;
}

/* --- the heap --- */

static bool is_before(const struct candidate *a, const struct candidate *b)
{
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static void push(struct training *t, struct candidate candidate)
{
    int at = t->n_heap;

    TT_PUSH(t->heap, t->n_heap, t->cap_heap) = candidate;
    for (; at && is_before(&candidate, &t->heap[(at - 1) / 2]); at = (at - 1) / 2)
        t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = candidate;
}

static struct candidate pop(struct training *t)
{
    struct candidate first = t->heap[0], last = t->heap[--t->n_heap];
    int at = 0;

    for (int below = 1; below < t->n_heap; below = 2 * at + 1) {
        below += below + 1 < t->n_heap && is_before(&t->heap[below + 1], &t->heap[below]);
        if (!is_before(&t->heap[below], &last))
            break;
        t->heap[at] = t->heap[below];
        at = below;
    }
    t->heap[at] = last;
    return first;
}

/* Puts the pairs that the last merge made into the heap. */
static void push_fresh(struct training *t)
{
    for (int i = 0; i < t->n_fresh; i++) {
        struct pair *pair = find_pair(t, t->fresh[i].key);

        pair->fresh = 0;
        t->fresh[i].count = pair->count;
        if (pair->count > 0)
            push(t, t->fresh[i]);
        else
            tt_free(t->fresh[i].words.word);
    }
    t->n_fresh = 0;
}

/* --- merging --- */

static void merge_word(struct training *t, const struct tt_merge *merge, int32_t w)
{
    int32_t *s = t->symbol + t->begin[w], n = t->length[w], out = 0;

    for (int32_t i = 0; i < n;) {
        if (s[i] != merge->left || i + 1 == n || s[i + 1] != merge->right) {
            s[out++] = s[i++];
            continue;
        }
        if (out) {
            change(t, s[out - 1], merge->left, -1, w);
            change(t, s[out - 1], merge->result, 1, w);
        }
        if (i + 2 < n) {
            change(t, merge->right, s[i + 2], -1, w);
            change(t, merge->result, s[i + 2], 1, w);
        }
        s[out++] = merge->result;
        i += 2;
    }
    t->length[w] = out;
}

static void merge_pair(struct training *t, const struct candidate *best)
{
    struct tt_bpe_trained *trained = t->trained;
    struct tt_merge merge = {.left = (int32_t)((best->key - 1) >> 32),
                             .right = (int32_t)((best->key - 1) & 0xffffffff)};
    struct tt_text text = {0};

    tt_text_add(&text, "%s%s", trained->token[merge.left], trained->token[merge.right]);
    merge.result = add_token(t, text.text, text.size); /* the text may already be a token, of other parts */
    TT_PUSH(trained->merge, trained->n_merges, trained->cap_merges) = merge;
    for (int i = 0; i < best->words.n; i++)
        merge_word(t, &merge, best->words.word[i]);
    tt_text_release(&text);
}

static void learn(struct training *t, int64_t vocab_size)
{
    for (int32_t w = 0; w < t->n_words; w++)
        for (int32_t i = 0; i + 1 < t->length[w]; i++)
            change(t, t->symbol[t->begin[w] + (size_t)i], t->symbol[t->begin[w] + (size_t)i + 1], 1, w);
    push_fresh(t);
    while (t->n_heap && t->trained->n_tokens < vocab_size) {
        struct candidate best = pop(t);
        int64_t count = find_pair(t, best.key)->count;

        if (count != best.count && count > 0) {
            best.count = count;
            push(t, best);
            continue;
        }
        if (count > 0) {
            merge_pair(t, &best);
            push_fresh(t);
            tt_progress("learning merges", t->trained->n_tokens, (double)vocab_size);
        }
        tt_free(best.words.word);
    }
}

/* A pair that was merged twice keeps its later place, as in `tokenizers`. */
static void drop_repeated(struct training *t)
{
    struct tt_bpe_trained *trained = t->trained;
    int n = trained->n_merges;

    for (int i = 0; i < n; i++)
        find_pair(t, key_of(trained->merge[i].left, trained->merge[i].right))->fresh = i;
    trained->n_merges = 0;
    for (int i = 0; i < n; i++)
        if (find_pair(t, key_of(trained->merge[i].left, trained->merge[i].right))->fresh == i)
            trained->merge[trained->n_merges++] = trained->merge[i];
}

static void training_release(struct training *t)
{
    for (int i = 0; i < t->n_heap; i++)
        tt_free(t->heap[i].words.word);
    tt_strmap_release(&t->id);
    tt_free(t->count);
    tt_free(t->length);
    tt_free(t->symbol);
    tt_free(t->begin);
    tt_free(t->pair);
    tt_free(t->fresh);
    tt_free(t->heap);
}

int tt_bpe_train(const struct tt_word_counts *words, int64_t vocab_size, int n_special, const char *const *special,
                 struct tt_bpe_trained *ret_trained)
{
    struct training t = {.trained = ret_trained};
    int32_t id_of_byte[256];

    if (vocab_size < 256 + n_special)
        return tt_fail(TT_EUSAGE, "a vocabulary of %lld tokens has no room for 256 bytes and %d special tokens",
                       (long long)vocab_size, n_special);
    if (words->count.n > INT32_MAX)
        return tt_fail(TT_EDATA, "the text has too many different words");
    for (int i = 0; i < n_special; i++)
        (void)add_token(&t, special[i], strlen(special[i]));
    ret_trained->n_special = ret_trained->n_tokens;
    add_alphabet(&t, id_of_byte);
    add_words(&t, &words->count, id_of_byte);
    learn(&t, vocab_size);
    drop_repeated(&t);
    for (int32_t w = 0; w < t.n_words; w++)
        ret_trained->text_tokens += t.length[w] * t.count[w];
    training_release(&t);
    return 0;
}

void tt_bpe_trained_release(struct tt_bpe_trained *trained)
{
    for (int i = 0; i < trained->n_tokens; i++)
        tt_free(trained->token[i]);
    tt_free(trained->token);
    tt_free(trained->merge);
    *trained = (struct tt_bpe_trained){0};
}

/* --- writing --- */

static json_t *describe_special(const struct tt_bpe_trained *trained)
{
    json_t *list = json_array();

    for (int i = 0; i < trained->n_special; i++)
        (void)json_array_append_new(list, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", i, "content",
                                                    trained->token[i], "single_word", 0, "lstrip", 0, "rstrip", 0,
                                                    "normalized", 0, "special", 1));
    return list;
}

/* Merges as strings: all versions of `tokenizers` read them, and no token contains a space. */
static json_t *describe_model(const struct tt_bpe_trained *trained)
{
    json_t *vocab = json_object(), *merges = json_array();

    for (int i = 0; i < trained->n_tokens; i++)
        (void)json_object_set_new(vocab, trained->token[i], json_integer(i));
    for (int i = 0; i < trained->n_merges; i++)
        (void)json_array_append_new(merges, json_sprintf("%s %s", trained->token[trained->merge[i].left],
                                                         trained->token[trained->merge[i].right]));
    return json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
                     "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                     "ignore_merges", 0, "vocab", vocab, "merges", merges);
}

/* transformers writes this model_max_length if there is no limit. */
static json_t *describe_config(const char *bos, const char *eos)
{
    json_t *json = json_pack("{s:s, s:b, s:I}", "tokenizer_class", "PreTrainedTokenizerFast",
                             "clean_up_tokenization_spaces", 0, "model_max_length", (json_int_t)INT_MAX);

    if (bos)
        (void)json_object_set_new(json, "bos_token", json_string(bos));
    if (eos)
        (void)json_object_set_new(json, "eos_token", json_string(eos));
    return json;
}

/* Takes ownership of both values. */
static int save(const char *folder, json_t *json, json_t *config)
{
    char *text[2] = {NULL, NULL},
         *path[2] = {tt_format("%s/tokenizer.json", folder), tt_format("%s/tokenizer_config.json", folder)};
    int rc = 0;

    TT_TRY(tt_json_dump(json, path[0], &text[0]));
    TT_TRY(tt_json_dump(config, path[1], &text[1]));
    TT_TRY(tt_file_replace_pair((struct tt_new_file){path[0], text[0], strlen(text[0])},
                                (struct tt_new_file){path[1], text[1], strlen(text[1])}));
out:
    for (int i = 0; i < 2; i++) {
        free(text[i]);
        tt_free(path[i]);
    }
    json_decref(json);
    json_decref(config);
    return rc;
}

int tt_bpe_write(const struct tt_bpe_trained *trained, const struct tt_word_counts *words, const char *bos,
                 const char *eos, const char *folder)
{
    json_t *json =
        json_pack("{s:s, s:n, s:n, s:o, s:n, s:O, s:n, s:{s:s, s:b, s:b, s:b}, s:o}", "version", "1.0", "truncation",
                  "padding", "added_tokens", describe_special(trained), "normalizer", "pre_tokenizer", words->json,
                  "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1,
                  "use_regex", 1, "model", describe_model(trained));
    int rc = tt_folder_make(folder);

    if (rc == 0)
        return save(folder, json, describe_config(bos, eos));
    json_decref(json);
    return rc;
}
