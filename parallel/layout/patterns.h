/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_PATTERNS_H
#define TT_PARALLEL_LAYOUT_PATTERNS_H

#include "core/config/config.h"
#include "core/models/model.h"

/**
 * The regular expressions of a policy, in the order of the configuration. They may match anywhere in a name, as with
 * Python's re.search; ^ and $ anchor them.
 */
struct tt_patterns {
    enum tt_key key; /* of the policy; errors carry it */
    struct tt_words words;
    struct tt_regex **regex; /* one per word */
    struct tt_matcher *matcher;
};

/** Compiles the expressions. words must outlive the patterns, which are the caller's (tt_patterns_release). TT_EUSAGE
 * names a bad expression. */
int tt_patterns_init(enum tt_key key, struct tt_words words, struct tt_patterns *ret_patterns) TT_MUST_CHECK;
void tt_patterns_release(struct tt_patterns *patterns);

/** *ret_index is the first expression, from `first` on, that matches in name, or TT_NONE. */
int tt_patterns_find(struct tt_patterns *patterns, int first, const char *name, int *ret_index) TT_MUST_CHECK;

/**
 * ret_index [n_params] is for each parameter the first expression that matches its name, or TT_NONE. TT_EUSAGE names an
 * expression that is bad, or one that no parameter is left for; `what` is the word for an expression in that message.
 */
int tt_patterns_of_params(enum tt_key key, struct tt_words words, const struct tt_model *model, const char *what,
                          int *ret_index) TT_MUST_CHECK;

/** Always TT_EUSAGE: expression i matches no `what`; `example` shows what their names look like. */
int tt_patterns_fail_unused(const struct tt_patterns *patterns, int i, const char *what, const char *example);

#endif
