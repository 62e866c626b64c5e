/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_PRETOKENIZER_H
#define TT_CORE_TOKENIZER_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/tokenizer/charset.h"
#include "core/tokenizer/regex.h"
#include "core/tokenizer/strmap.h"

/** Marked passages of a text: bytes [begin, end), in order. Zero-initialise; release when done. */
struct tt_passage {
    size_t begin, end;
};

struct tt_passages {
    struct tt_passage *item;
    size_t n, cap;
};

/** Adds a passage that begins where the last one ends, or later. Leaves out an empty one. */
void tt_passages_add(struct tt_passages *passages, size_t begin, size_t end);
void tt_passages_release(struct tt_passages *passages);

/** Whether [begin, end) of the text contains a marked byte; for an empty range, whether the next byte is marked. */
bool tt_passages_touch(const struct tt_passages *passages, size_t begin, size_t end);

/**
 * The normalizer of a tokenizer.json: Unicode's normal forms (NFC for Qwen), Prepend and Replace of plain strings
 * (Llama 2), alone or in a Sequence, or none. Differently composed text gives different tokens, so an unsupported
 * normalizer is refused by name.
 */
enum { TT_NORMALIZER_STEPS = 4 };

struct tt_normal_form;

struct tt_normalizer_step {
    const struct tt_normal_form *form; /* NULL: replaces `from` by `to` */
    char *from;                        /* NULL: `to` is put before the text */
    char *to;
};

struct tt_normalizer {
    struct tt_normalizer_step step[TT_NORMALIZER_STEPS];
    int n_steps;
    struct tt_kinds assigned; /* with a normal form: whether Unicode 9.0 has a character */
};

/**
 * Reads the JSON value of "normalizer" (null and absent: none); `where` is for messages. Release even after an error.
 */
int tt_normalizer_init(struct tt_normalizer *n, const json_t *json, const char *where) TT_MUST_CHECK;
void tt_normalizer_release(struct tt_normalizer *n);

/**
 * Normalises text (valid UTF-8). If nothing changes, ret_text is `text` itself; plain text takes this path without a
 * table lookup. Otherwise ret_text points into scratch, which is cleared and used.
 */
int tt_normalizer_apply(const struct tt_normalizer *n, struct tt_text *scratch, const char *text, size_t size,
                        const char **ret_text, size_t *ret_size) TT_MUST_CHECK;

/**
 * The pre_tokenizer of a tokenizer.json: cuts text into words. It is a list of steps, each of which cuts the pieces of
 * the previous one. One step may be Metaspace; the last one may be ByteLevel instead. Without steps the text is one
 * word.
 */
enum { TT_PRETOKENIZER_STEPS = 16 };

/** Where Metaspace adds its mark: before every piece, before the piece that begins the text, or never. */
enum tt_prepend { TT_PREPEND_ALWAYS, TT_PREPEND_FIRST, TT_PREPEND_NEVER };

/** Metaspace, a pre-tokenizer and a decoder: it writes a mark (U+2581) for each space. */
struct tt_metaspace {
    char mark[5]; /* one character */
    enum tt_prepend prepend;
    bool splits; /* words begin at marks */
};

/** Reads a Metaspace; what: "pre_tokenizer" or "decoder". */
int tt_metaspace_init(struct tt_metaspace *m, const json_t *json, const char *what, const char *where) TT_MUST_CHECK;

/**
 * Where Split cuts the text: before and after each match, only after it, only before it, or at the ends of runs of
 * matches; or the matches are removed. (OLMo 2's Split removes text that does not match, but everything matches.)
 */
enum tt_split_at {
    TT_SPLIT_ISOLATED,
    TT_SPLIT_WITH_PREVIOUS,
    TT_SPLIT_WITH_NEXT,
    TT_SPLIT_CONTIGUOUS,
    TT_SPLIT_REMOVED
};

struct tt_pretokenizer {
    struct tt_regex *step[TT_PRETOKENIZER_STEPS];
    enum tt_split_at behavior[TT_PRETOKENIZER_STEPS];
    bool inverts[TT_PRETOKENIZER_STEPS]; /* the text between matches counts as matches, and matches count as text */
    int n_steps;
    bool prefix_space; /* for ByteLevel: adds a space before every piece that reaches it */
    int prefix_step;   /* the number of steps before ByteLevel; -1: there is no ByteLevel */
    struct tt_metaspace metaspace;
    int metaspace_step; /* the number of steps before Metaspace; -1: there is no Metaspace */
};

/**
 * Reads the JSON value of "pre_tokenizer" (null and absent: none); `where` (a file) is for messages. Release even after
 * an error.
 */
int tt_pretokenizer_init(struct tt_pretokenizer *p, const json_t *json, const char *where) TT_MUST_CHECK;
void tt_pretokenizer_release(struct tt_pretokenizer *p);

/** Receives one word of size > 0 bytes. Returns 0 or an error, which ends the splitting. */
typedef int (*tt_word_fn)(void *arg, const char *word, size_t size);

/**
 * Calls fn for the words of text (valid UTF-8) in order; is_first: a document begins here. scratch is cleared and used.
 */
int tt_pretokenizer_split(const struct tt_pretokenizer *p, struct tt_matcher *matcher, struct tt_text *scratch,
                          const char *text, size_t size, bool is_first, tt_word_fn fn, void *arg) TT_MUST_CHECK;

/** The added_tokens of a tokenizer.json: strings that are found before the text is cut into words. */
struct tt_added_token {
    char *content;
    size_t size;
    int32_t id;
    bool is_special, is_single_word, strips_left, strips_right;
    bool is_normalized; /* found in a second pass, in the normalised text between the tokens of the first pass */
};

struct tt_added {
    struct tt_normalizer normalizer; /* the tokenizer's */
    struct tt_added_token *token;
    int n, cap;
    struct tt_strmap index[2]; /* content -> index in token, of each pass */
    size_t *length[2];         /* distinct lengths of the contents of each pass, longest first */
    int n_lengths[2], cap_lengths[2];
    bool begins[2][256]; /* first bytes of the contents of a pass */
    struct tt_regex *word_begin, *word_end, *space_begin, *space_end;
};

/**
 * Reads "added_tokens" (an array or absent) and "normalizer", which is applied between the passes. Zero-initialise
 * first; release even after an error.
 */
int tt_added_init(struct tt_added *added, const json_t *json, const json_t *normalizer,
                  const char *where) TT_MUST_CHECK;
void tt_added_release(struct tt_added *added);

/**
 * Receives a piece of text. id: of an added token, or -1 for text between tokens; is_first: the whole text begins with
 * this piece; passages: the marked bytes of the piece. Returns 0 or an error, which ends the splitting.
 */
typedef int (*tt_added_fn)(void *arg, int32_t id, const char *text, size_t size, bool is_first,
                           const struct tt_passages *passages);

/**
 * Calls fn for the pieces of text in order; text between tokens is normalised. find_special false: special tokens are
 * text. passages: the marked bytes of the text; their places follow the normaliser's changes.
 */
int tt_added_split(const struct tt_added *added, struct tt_matcher *matcher, bool find_special, const char *text,
                   size_t size, const struct tt_passages *passages, tt_added_fn fn, void *arg) TT_MUST_CHECK;

/** The longest added token that text begins with; NULL: none. */
const struct tt_added_token *tt_added_at(const struct tt_added *added, const char *text, size_t size);

#endif
