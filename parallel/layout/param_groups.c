/* SPDX-License-Identifier: MIT
 *
 * Groups of parameters; see param_groups.h.
 */
#include "parallel/layout/param_groups.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "parallel/layout/patterns.h"

/* Tries all expressions, not only until one matches, so that an expression which selects nothing is noticed. */
static int apply_no_decay(struct tt_model *model, struct tt_words words)
{
    bool *used = tt_calloc((size_t)words.n + 1, sizeof *used);
    struct tt_patterns patterns = {0};
    int rc = 0;

    TT_TRY(tt_patterns_init(TT_KEY_NO_DECAY, words, &patterns));
    for (int p = 0; p < model->n_params; p++) {
        for (int i = TT_NONE;;) {
            TT_TRY(tt_patterns_find(&patterns, i + 1, model->params[p].name, &i));
            if (i == TT_NONE)
                break;
            used[i] = model->params[p].no_decay = true;
        }
    }
    for (int i = 0; i < words.n; i++)
        if (!used[i])
            TT_TRY(tt_patterns_fail_unused(&patterns, i, "parameter", "layers.0.attention.wq.weight"));
out:
    tt_patterns_release(&patterns);
    tt_free(used);
    return rc;
}

/* The expression may have a '=' in it, so the last '=' separates it from the factor. */
static int read_factor(const char *text, double *ret_factor, char **ret_regex)
{
    const char *equals = strrchr(text, '=');
    char *end = NULL;
    double factor = equals ? strtod(equals + 1, &end) : 0.0;

    if (!equals || equals == text || end == equals + 1 || *end || !isfinite(factor) || factor < 0.0)
        return tt_fail_key(TT_EUSAGE, TT_KEY_LR_FACTORS,
                           "'%s' is not an expression with a factor, such as tok_embeddings=0.1\nhelp: write "
                           "regex=factor with a factor of at least 0",
                           text);
    *ret_factor = factor;
    *ret_regex = tt_strndup(text, (size_t)(equals - text));
    return 0;
}

static int apply_factors(struct tt_model *model, struct tt_words words)
{
    struct tt_words regexes = {.is_list = true, .word = tt_calloc((size_t)words.n, sizeof(char *))};
    double *factor = tt_calloc((size_t)words.n, sizeof *factor);
    int *index = tt_calloc((size_t)model->n_params, sizeof *index);
    int rc = 0;

    for (int i = 0; i < words.n; i++) {
        TT_TRY(read_factor(words.word[i], &factor[i], &regexes.word[i]));
        regexes.n++;
    }
    TT_TRY(tt_patterns_of_params(TT_KEY_LR_FACTORS, regexes, model, "factor", index));
    for (int p = 0; p < model->n_params; p++)
        if (index[p] != TT_NONE)
            model->params[p].lr_factor = factor[index[p]];
out:
    for (int i = 0; i < regexes.n; i++)
        tt_free(regexes.word[i]);
    tt_free((void *)regexes.word);
    tt_free(factor);
    tt_free(index);
    return rc;
}

int tt_param_groups_apply(struct tt_model *model, struct tt_words no_decay, struct tt_words lr_factors)
{
    int rc = no_decay.n ? apply_no_decay(model, no_decay) : 0;

    return rc == 0 && lr_factors.n ? apply_factors(model, lr_factors) : rc;
}

void tt_param_groups_use_muon(struct tt_model *model)
{
    for (int p = 0; p < model->n_params; p++)
        model->params[p].muon = model->params[p].block >= 0 && model->params[p].ndim == 2 &&
                                !model->params[p].of_experts && !model->params[p].frozen;
}
