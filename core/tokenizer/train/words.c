/* SPDX-License-Identifier: MIT
 *
 * Counts words for the training of a tokenizer; see words.h.
 */
#include "core/tokenizer/train/words.h"

#include <string.h>

#include "core/base/mem.h"

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

/* Drops the rarest words until at most half of the room is used. Which ones does not depend on the order of the map. */
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
