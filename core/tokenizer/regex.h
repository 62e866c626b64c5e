/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_REGEX_H
#define TT_CORE_TOKENIZER_REGEX_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"

/**
 * The regular expressions of tokenizer files, by PCRE2, which only this module includes. Such files are written for
 * Oniguruma with Ruby's syntax; an expression that PCRE2 would match differently is refused. Threads may share a
 * compiled expression; each needs its own matcher.
 */
struct tt_regex;
struct tt_matcher;

/** Compiles an expression; where (a file; NULL: none) is for messages. */
int tt_regex_new(const char *pattern, size_t size, const char *where, struct tt_regex **ret_regex) TT_MUST_CHECK;

/** An expression that matches exactly these bytes. */
int tt_regex_new_literal(const char *text, size_t size, const char *where, struct tt_regex **ret_regex) TT_MUST_CHECK;

void tt_regex_free(struct tt_regex *regex);

int tt_matcher_new(struct tt_matcher **ret_matcher) TT_MUST_CHECK;
void tt_matcher_free(struct tt_matcher *matcher);

/** Begins a text of `size` bytes, which determines the number of steps that all its matches together may take. */
void tt_matcher_begin(struct tt_matcher *matcher, size_t size);

/** All matches of an expression in a text, one after the other. Members are private to regex.c. */
struct tt_matches {
    struct tt_matcher *matcher;
    const struct tt_regex *regex;
    const char *text, *subject; /* the subject has one byte for each character, or is the text */
    size_t size, subject_size;
    size_t from;          /* in the subject: where the next search begins */
    size_t seen, seen_at; /* a position in the subject, and the same in the text */
};

/**
 * Begins the matches in size bytes of valid UTF-8; the expression sees nothing outside them. Matches may be nested: the
 * last one to begin ends first.
 */
void tt_matches_begin(struct tt_matches *matches, struct tt_matcher *matcher, const struct tt_regex *regex,
                      const char *text, size_t size);

/**
 * The next match, which begins where the last one ended, or one character later if the last one was empty.
 *   ret_begin/end  the match
 *   ret_found      false: no match
 * TT_EDATA if matching exceeds a limit: memory, or the steps of all matches since tt_matcher_begin.
 */
int tt_matches_next(struct tt_matches *matches, bool *ret_found, size_t *ret_begin, size_t *ret_end) TT_MUST_CHECK;
void tt_matches_end(struct tt_matches *matches);

/** The first match in a text. */
int tt_matcher_find(struct tt_matcher *matcher, const struct tt_regex *regex, const char *text, size_t size,
                    bool *ret_found, size_t *ret_begin, size_t *ret_end) TT_MUST_CHECK;

#endif
