/* SPDX-License-Identifier: MIT
 *
 * Regular expressions of policies. They are compiled once and searched for in names. An error names an expression
 * that selects nothing.
 */
#include "parallel/layout/patterns.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/graph/graph.h"
#include "core/optim/optim.h"
#include "core/tokenizer/regex.h"

int tt_patterns_init(enum tt_key key, struct tt_words words, struct tt_patterns *ret_patterns)
{
    struct tt_patterns p = {.key = key, .words = words};
    int rc = 0;

    p.regex = tt_calloc((size_t)words.n, sizeof(struct tt_regex *));
    p.used = tt_calloc((size_t)words.n + 1, sizeof *p.used);
    TT_TRY(tt_matcher_new(&p.matcher));
    for (int i = 0; i < words.n; i++)
        TT_TRY(tt_regex_new(words.word[i], strlen(words.word[i]), NULL, &p.regex[i]));
    *ret_patterns = p;
    return 0;
out:
    tt_patterns_release(&p);
    /* the user wrote the expression, so a bad one is a usage error */
    return rc == TT_EDATA ? tt_fail_key(TT_EUSAGE, key, "%s", tt_error_message()) : rc;
}

void tt_patterns_release(struct tt_patterns *p)
{
    for (int i = 0; p->regex && i < p->words.n; i++)
        tt_regex_free(p->regex[i]);
    tt_free(p->regex);
    tt_free(p->used);
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
        p->used[i] |= found;
    }
out:
    return rc;
}

int tt_patterns_match_all(struct tt_patterns *p, const char *name, bool *ret_any)
{
    int rc = 0;

    *ret_any = false;
    for (int i = TT_NONE;;) {
        TT_TRY(tt_patterns_find(p, i + 1, name, &i));
        if (i == TT_NONE)
            break;
        *ret_any = true;
    }
out:
    return rc;
}

int tt_patterns_of_params(enum tt_key key, struct tt_words words, const struct tt_model *model, const char *what,
                          int *ret_index)
{
    struct tt_patterns patterns = {0};
    char wanted[80];
    int rc = 0;

    (void)snprintf(wanted, sizeof wanted, "parameter that an earlier %s has not taken", what);
    TT_TRY(tt_patterns_init(key, words, &patterns));
    for (int p = 0; p < model->n_params; p++)
        TT_TRY(tt_patterns_find(&patterns, 0, model->params[p].name, &ret_index[p]));
    rc = tt_patterns_check_used(&patterns, wanted, "layers.0.attention.wq.weight");
out:
    tt_patterns_release(&patterns);
    return rc;
}

int tt_patterns_check_used(const struct tt_patterns *p, const char *what, const char *example)
{
    for (int i = 0; i < p->words.n; i++)
        if (!p->used[i])
            return tt_fail_key(TT_EUSAGE, p->key, "'%s' matches no %s\nhelp: names look like %s", p->words.word[i],
                               what, example);
    return 0;
}

/* The expression of a rule may contain '=', so the last '=' separates it from its value. */
int tt_patterns_of_rules(enum tt_key key, struct tt_words rules, const struct tt_model *model, const char *what,
                         int (*read)(void *arg, int i, const char *rule, const char *value), void *arg, int *ret_index)
{
    struct tt_words regexes = {.is_list = true, .word = tt_calloc((size_t)rules.n + 1, sizeof(char *))};
    int rc = 0;

    for (int i = 0; i < rules.n; i++) {
        const char *rule = rules.word[i], *equals = strrchr(rule, '=');

        TT_TRY(read(arg, i, rule, equals && equals != rule ? equals + 1 : NULL));
        regexes.word[regexes.n++] = tt_strndup(rule, (size_t)(equals - rule));
    }
    rc = tt_patterns_of_params(key, regexes, model, what, ret_index);
out:
    for (int i = 0; i < regexes.n; i++)
        tt_free(regexes.word[i]);
    tt_free((void *)regexes.word);
    return rc;
}

/* --- parameter groups of the optimizer --- */

static int apply_no_decay(struct tt_model *model, struct tt_words words)
{
    struct tt_patterns patterns = {0};
    bool any;
    int rc = 0;

    TT_TRY(tt_patterns_init(TT_KEY(optimizer.no_decay), words, &patterns));
    for (int p = 0; p < model->n_params; p++) {
        TT_TRY(tt_patterns_match_all(&patterns, model->params[p].name, &any));
        model->params[p].no_decay |= any;
    }
    rc = tt_patterns_check_used(&patterns, "parameter", "layers.0.attention.wq.weight");
out:
    tt_patterns_release(&patterns);
    return rc;
}

static int read_factor(void *arg, int i, const char *rule, const char *value)
{
    char *end = NULL;
    double factor = value ? strtod(value, &end) : 0.0;

    if (!value || end == value || *end || !isfinite(factor) || factor < 0.0)
        return tt_fail_key(TT_EUSAGE, TT_KEY(optimizer.lr_factors),
                           "'%s' is not regex=factor, such as tok_embeddings=0.1\n"
                           "help: write regex=factor with a factor of at least 0",
                           rule);
    ((double *)arg)[i] = factor;
    return 0;
}

static int apply_factors(struct tt_model *model, struct tt_words words)
{
    double *factor = tt_calloc((size_t)words.n, sizeof *factor);
    int *index = tt_calloc((size_t)model->n_params, sizeof *index);
    int rc = tt_patterns_of_rules(TT_KEY(optimizer.lr_factors), words, model, "factor", read_factor, factor, index);

    for (int p = 0; p < model->n_params && rc == 0; p++)
        if (index[p] != TT_NONE)
            model->params[p].lr_factor = factor[index[p]];
    tt_free(factor);
    tt_free(index);
    return rc;
}

int tt_param_groups_apply(struct tt_model *model, struct tt_words no_decay, struct tt_words lr_factors)
{
    int rc = no_decay.n ? apply_no_decay(model, no_decay) : 0;

    return rc == 0 && lr_factors.n ? apply_factors(model, lr_factors) : rc;
}

void tt_param_groups_set_optim(struct tt_model *model, enum tt_optim_choice optim)
{
    const struct tt_optim_row *row = tt_optim_row(optim);

    for (int p = 0; p < model->n_params; p++) {
        struct tt_param *param = &model->params[p];
        bool matrix = param->block >= 0 && param->ndim == 2 && !param->of_experts && !param->vectors && !param->frozen;
        struct tt_box whole = tt_box_whole(param->ndim, param->shape);
        bool in_blocks =
            param->block != TT_BLOCK_EMBEDDINGS && !param->tied && tt_box_volume(&whole) >= TT_OPTIM_BLOCKS_FROM;

        param->optim = (row->of_matrices && !matrix) || (row->codes[0] && !in_blocks) ? TT_OPTIM_ADAMW : optim;
    }
}
