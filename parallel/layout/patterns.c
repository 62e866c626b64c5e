/* SPDX-License-Identifier: MIT
 *
 * Regular expressions of policies. They are compiled once and searched for in names. An error names an expression that
 * selects nothing.
 */
#include "parallel/layout/patterns.h"

#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/graph/graph.h"
#include "core/tokenizer/regex.h"

int tt_patterns_init(enum tt_key key, struct tt_words words, struct tt_patterns *ret_patterns)
{
    struct tt_patterns p = {.key = key, .words = words};
    int rc = 0;

    p.regex = tt_calloc((size_t)words.n, sizeof(struct tt_regex *));
    TT_TRY(tt_matcher_new(&p.matcher));
    for (int i = 0; i < words.n; i++)
        TT_TRY(tt_regex_new(words.word[i], strlen(words.word[i]), NULL, &p.regex[i]));
    *ret_patterns = p;
    return 0;
out:
    tt_patterns_release(&p);
    /* The user gave the expression, so the fault is one of usage, not of data. */
    return rc == TT_EDATA ? tt_fail_key(TT_EUSAGE, key, "%s", tt_error_message()) : rc;
}

void tt_patterns_release(struct tt_patterns *p)
{
    for (int i = 0; p->regex && i < p->words.n; i++)
        tt_regex_free(p->regex[i]);
    tt_free(p->regex);
    tt_matcher_free(p->matcher);
    *p = (struct tt_patterns){0};
}

int tt_patterns_find(struct tt_patterns *p, int first, const char *name, int *ret_index)
{
    size_t begin, end;
    bool found = false;
    int rc = 0;

    *ret_index = TT_NONE;
    for (int i = first; i < p->words.n && !found; i++) {
        TT_TRY(tt_matcher_find(p->matcher, p->regex[i], name, strlen(name), &found, &begin, &end));
        if (found)
            *ret_index = i;
    }
out:
    return rc;
}

int tt_patterns_of_params(enum tt_key key, struct tt_words words, const struct tt_model *model, const char *what,
                          int *ret_index)
{
    bool *used = tt_calloc((size_t)words.n + 1, sizeof *used);
    struct tt_patterns patterns = {0};
    char wanted[80];
    int rc = 0;

    TT_TRY(tt_patterns_init(key, words, &patterns));
    for (int p = 0; p < model->n_params; p++) {
        TT_TRY(tt_patterns_find(&patterns, 0, model->params[p].name, &ret_index[p]));
        if (ret_index[p] != TT_NONE)
            used[ret_index[p]] = true;
    }
    (void)snprintf(wanted, sizeof wanted, "parameter that an earlier %s has not taken", what);
    for (int i = 0; i < words.n; i++)
        if (!used[i])
            TT_TRY(tt_patterns_fail_unused(&patterns, i, wanted, "layers.0.attention.wq.weight"));
out:
    tt_patterns_release(&patterns);
    tt_free(used);
    return rc;
}

int tt_patterns_fail_unused(const struct tt_patterns *p, int i, const char *what, const char *example)
{
    return tt_fail_key(TT_EUSAGE, p->key, "'%s' matches no %s\nhelp: names look like %s", p->words.word[i], what,
                       example);
}
