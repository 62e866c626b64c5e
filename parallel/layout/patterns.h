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
    enum tt_key key; /* key of the policy; errors carry it */
    struct tt_words words;
    struct tt_regex **regex; /* one per word */
    bool *used;              /* [word] whether it has matched */
    struct tt_matcher *matcher;
};

/** Compiles the expressions. words must outlive the patterns, which the caller frees with tt_patterns_release.
 * TT_EUSAGE names a bad expression. */
int tt_patterns_init(enum tt_key key, struct tt_words words, struct tt_patterns *ret_patterns) TT_MUST_CHECK;
void tt_patterns_release(struct tt_patterns *patterns);

/** *ret_index is the first expression, from `first` on, that matches in name, or TT_NONE. */
int tt_patterns_find(struct tt_patterns *patterns, int first, const char *name, int *ret_index) TT_MUST_CHECK;

/** Whether any expression matches in name. Tries all of them, to find the expressions that select nothing. */
int tt_patterns_match_all(struct tt_patterns *patterns, const char *name, bool *ret_any) TT_MUST_CHECK;

/**
 * TT_EUSAGE if an expression has matched nothing; `what` is the message's word for the things searched, and `example`
 * shows what their names look like.
 */
int tt_patterns_check_used(const struct tt_patterns *patterns, const char *what, const char *example) TT_MUST_CHECK;

/**
 * ret_index [n_params] is for each parameter the first expression that matches its name, or TT_NONE. TT_EUSAGE names an
 * expression that is bad, or one that is the first match of no parameter; `what` is the message's word for an
 * expression.
 */
int tt_patterns_of_params(enum tt_key key, struct tt_words words, const struct tt_model *model, const char *what,
                          int *ret_index) TT_MUST_CHECK;

/**
 * The same for rules "regex=value". read(arg, i, rule, value) reads the value of rule i; value is NULL if no '='
 * follows the rule's expression, which is an error.
 */
int tt_patterns_of_rules(enum tt_key key, struct tt_words rules, const struct tt_model *model, const char *what,
                         int (*read)(void *arg, int i, const char *rule, const char *value), void *arg,
                         int *ret_index) TT_MUST_CHECK;

/**
 * Sets the parameter groups of the optimizer, by the names of parameters.
 *
 *   no_decay     regular expressions: a parameter that one of them matches has no weight decay
 *   lr_factors   "regex=factor": the first one that matches a parameter sets the factor of its learning rate
 *
 * TT_EUSAGE, about optimizer.no_decay or optimizer.lr_factors, for a bad expression or factor, an expression of
 * no_decay that matches no parameter, or a factor that applies to no parameter.
 */
int tt_param_groups_apply(struct tt_model *model, struct tt_words no_decay, struct tt_words lr_factors) TT_MUST_CHECK;

/**
 * Sets which optimizer trains each parameter. An optimizer for matrices trains the matrices of the transformer blocks
 * and their adapters, except frozen ones, and AdamW trains the rest.
 */
void tt_param_groups_set_optim(struct tt_model *model, enum tt_optim_choice optim);

#endif
