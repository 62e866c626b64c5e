/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_PATTERNS_H
#define TT_PARALLEL_LAYOUT_PATTERNS_H

#include "core/config/config.h"

/**
 * The regular expressions of a policy, as the configuration lists them. They are searched for anywhere in a name, as
 * Python's re.search does; ^ and $ anchor them.
 */
struct tt_patterns {
    enum tt_key key; /* what the expressions are for; errors are about it */
    struct tt_words words;
    struct tt_regex **regex; /* one per word */
    struct tt_matcher *matcher;
};

/** Compiles; words must outlive the patterns (tt_patterns_release). TT_EUSAGE names a bad expression. */
int tt_patterns_init(enum tt_key key, struct tt_words words, struct tt_patterns *ret_patterns) TT_MUST_CHECK;
void tt_patterns_release(struct tt_patterns *patterns);

/** The first expression from `first` on that is found in name, or TT_NONE. */
int tt_patterns_find(struct tt_patterns *patterns, int first, const char *name, int *ret_index) TT_MUST_CHECK;

/** TT_EUSAGE: expression i matches none of the things that it selects among; an example says how their names look. */
int tt_patterns_fail_unused(const struct tt_patterns *patterns, int i, const char *what, const char *example);

#endif
