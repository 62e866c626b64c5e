/* SPDX-License-Identifier: MIT
 *
 * Rules for initial values; see init_rules.h.
 */
#include "parallel/layout/init_rules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/graph/graph.h"
#include "parallel/layout/patterns.h"

/* A rule and its numbers. Numbers that it does not take are 0. */
struct rule {
    enum tt_param_init init;
    double arg[2];
};

static const struct {
    const char *name;
    enum tt_param_init init;
    int fewest, most; /* arguments */
} kinds[] = {
    {"normal", TT_PARAM_NORMAL, 1, 2}, {"uniform", TT_PARAM_UNIFORM, 2, 2}, {"constant", TT_PARAM_CONSTANT, 1, 1},
    {"zeros", TT_PARAM_ZEROS, 0, 0},   {"ones", TT_PARAM_ONES, 0, 0},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* Reads "(1,2)" or nothing. Returns the number of arguments, or -1. */
static int read_arguments(const char *text, double *arg)
{
    int n = 0;

    if (!*text)
        return 0;
    if (*text++ != '(')
        return -1;
    while (n < 2) {
        char *end = NULL;

        arg[n] = strtod(text, &end);
        if (end == text || !isfinite(arg[n]))
            return -1;
        n++;
        text = end + strspn(end, " ");
        if (*text != ',')
            break;
        text++;
    }
    return strcmp(text, ")") == 0 ? n : -1;
}

static bool is_possible(const struct rule *rule)
{
    if (rule->init == TT_PARAM_NORMAL)
        return rule->arg[0] > 0.0 && rule->arg[1] >= 0.0;
    return rule->init != TT_PARAM_UNIFORM || rule->arg[0] < rule->arg[1];
}

static int fail_rule(const char *text)
{
    return tt_fail_key(TT_EUSAGE, TT_KEY_INIT_RULES,
                       "'%s' is not a rule such as attention.wo=normal(0.01)\nhelp: write regex=what with what one of "
                       "normal(STD), normal(STD,CUT) with STD above 0, uniform(LOW,HIGH) with LOW below HIGH, "
                       "constant(VALUE), zeros, ones",
                       text);
}

/* The expression may have a '=' in it, so the last '=' separates it from the rule. */
static int read_rule(const char *text, struct rule *ret_rule, char **ret_regex)
{
    const char *equals = strrchr(text, '='), *what = equals ? equals + 1 : "";
    size_t n = strcspn(what, "(");

    if (!equals || equals == text)
        return fail_rule(text);
    for (int k = 0; k < N_KINDS; k++) {
        struct rule rule = {.init = kinds[k].init};
        int args;

        if (strlen(kinds[k].name) != n || strncmp(kinds[k].name, what, n) != 0)
            continue;
        args = read_arguments(what + n, rule.arg);
        if (args < kinds[k].fewest || args > kinds[k].most || !is_possible(&rule))
            break;
        *ret_rule = rule;
        *ret_regex = tt_strndup(text, (size_t)(equals - text));
        return 0;
    }
    return fail_rule(text);
}

static void set_rule(struct tt_param *param, const struct rule *rule)
{
    param->init = rule->init;
    param->depth = param->std = param->cut = param->low = param->high = 0.0;
    if (rule->init == TT_PARAM_NORMAL) {
        param->std = rule->arg[0];
        param->cut = rule->arg[1];
    } else {
        param->low = rule->arg[0];
        param->high = rule->arg[1];
    }
}

static int apply(struct tt_model *model, struct tt_words regexes, const struct rule *rules)
{
    int *index = tt_calloc((size_t)model->n_params, sizeof *index);
    int rc = tt_patterns_of_params(TT_KEY_INIT_RULES, regexes, model, "rule", index);

    for (int p = 0; p < model->n_params && rc == 0; p++)
        if (index[p] != TT_NONE)
            set_rule(&model->params[p], &rules[index[p]]);
    tt_free(index);
    return rc;
}

int tt_init_rules_apply(struct tt_model *model, double init_std, struct tt_words words)
{
    struct tt_words regexes = {.is_list = true, .word = tt_calloc((size_t)words.n + 1, sizeof(char *))};
    struct rule *rules = tt_calloc((size_t)words.n + 1, sizeof *rules);
    int rc = 0;

    for (int p = 0; p < model->n_params && !isnan(init_std); p++)
        if (model->params[p].depth > 0.0)
            model->params[p].std = init_std / model->params[p].depth;
    for (int i = 0; i < words.n; i++) {
        TT_TRY(read_rule(words.word[i], &rules[i], &regexes.word[i]));
        regexes.n++;
    }
    if (regexes.n)
        rc = apply(model, regexes, rules);
out:
    for (int i = 0; i < regexes.n; i++)
        tt_free(regexes.word[i]);
    tt_free((void *)regexes.word);
    tt_free(rules);
    return rc;
}
