/* SPDX-License-Identifier: MIT
 *
 * Stages of a pipeline, by torchtitan's rule or by names of modules. All weights are in layers, even those of the
 * embeddings and the output.
 */
#include "parallel/pipeline/split.h"

#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"

/* --- a rule and its faults --- */

enum fault {
    NO_FAULT,
    UNEVEN,       /* the ranks cannot share the stages equally */
    TOO_MANY,     /* several stages on a rank, but the schedule allows one */
    TOO_FEW,      /* one stage on a rank, but the schedule needs several */
    NO_UNITS,     /* more stages than units */
    FIRST_HEAVY,  /* the embeddings count as more units than a stage holds */
    OUTPUT_HEAVY, /* the output counts as more units than a stage holds */
};

static int64_t units_of(const struct tt_pipeline_rule *rule)
{
    return (int64_t)rule->n_layers + rule->first_less + rule->last_less;
}

static int64_t stages_of(const struct tt_pipeline_rule *rule)
{
    if (rule->layers_per_stage == 0)
        return (int64_t)rule->ranks * (rule->multi ? 2 : 1);
    return (units_of(rule) + rule->layers_per_stage - 1) / rule->layers_per_stage;
}

static enum fault fault_of(const struct tt_pipeline_rule *rule)
{
    int64_t n_stages = stages_of(rule), units = units_of(rule);

    if (n_stages % rule->ranks != 0)
        return UNEVEN;
    if (!rule->multi && n_stages != rule->ranks)
        return TOO_MANY;
    if (rule->multi && n_stages < 2 * (int64_t)rule->ranks)
        return TOO_FEW;
    if (n_stages == 1)
        return NO_FAULT;
    if (n_stages > units)
        return NO_UNITS;
    if (rule->first_less > units / n_stages)
        return FIRST_HEAVY;
    return rule->last_less > units / n_stages ? OUTPUT_HEAVY : NO_FAULT;
}

/* --- messages --- */

/* The values of a member of the rule, from `least` to `most`, that cause no fault: "1 to 4, 8". False if there are
 * none. */
static bool add_what_works(struct tt_text *text, struct tt_pipeline_rule *rule, int *member, int least, int most)
{
    int begin = -1, found = *member;
    bool any = false;

    for (int value = least; value <= most + 1; value++) {
        *member = value;
        if (value <= most && fault_of(rule) == NO_FAULT) {
            begin = begin < 0 ? value : begin;
            continue;
        }
        if (begin < 0)
            continue;
        tt_text_add(text, any ? ", %d" : "%d", begin);
        if (begin < value - 1)
            tt_text_add(text, " to %d", value - 1);
        any = true;
        begin = -1;
    }
    *member = found;
    return any;
}

/* "the 4 stages" */
static void add_stages(struct tt_text *text, const struct tt_pipeline_rule *rule)
{
    if (rule->layers_per_stage)
        tt_text_add(text, "%s %d makes %lld stages of %d layer%s (embeddings and output count as %d and %d more)",
                    TT_KEY_NAME(parallelism.pipeline_parallel_layers_per_stage), rule->layers_per_stage,
                    (long long)stages_of(rule), rule->n_layers, rule->n_layers == 1 ? "" : "s", rule->first_less,
                    rule->last_less);
    else
        tt_text_add(text, "%s %d needs %lld stages", TT_KEY_NAME(parallelism.pipeline_parallel_degree), rule->ranks,
                    (long long)stages_of(rule));
}

/* The key that changes the number of stages, and its possible values. Then names other keys that would remove the
 * fault: the weights of embeddings and output, or the schedule. */
static void add_hint(struct tt_text *text, struct tt_pipeline_rule *rule)
{
    struct tt_pipeline_rule usual = *rule, single = *rule;
    bool any;

    usual.first_less = usual.last_less = 1;
    single.multi = false;
    if (rule->layers_per_stage) {
        tt_text_add(text, "\nhelp: with %s %d, %s can be ", TT_KEY_NAME(parallelism.pipeline_parallel_degree),
                    rule->ranks, TT_KEY_NAME(parallelism.pipeline_parallel_layers_per_stage));
        any = add_what_works(text, rule, &rule->layers_per_stage, 1, (int)units_of(rule));
    } else {
        tt_text_add(text, "\nhelp: with %d layer%s, %s can be ", rule->n_layers, rule->n_layers == 1 ? "" : "s",
                    TT_KEY_NAME(parallelism.pipeline_parallel_degree));
        any = add_what_works(text, rule, &rule->ranks, 1, (int)units_of(rule));
    }
    if (!any)
        tt_text_add(text, "no value");
    if (fault_of(&usual) == NO_FAULT)
        tt_text_add(text, "; or set %s and %s to 1", TT_KEY_NAME(parallelism.pipeline_parallel_first_stage_less_layers),
                    TT_KEY_NAME(parallelism.pipeline_parallel_last_stage_less_layers));
    if (rule->multi && fault_of(&single) == NO_FAULT)
        tt_text_add(text, "; or use a schedule with one stage on each rank, such as 1F1B");
}

/* The possible values of `key`, a weight of embeddings or output; if there is none, other keys to change. */
static void add_weights(struct tt_text *text, struct tt_pipeline_rule *rule, enum tt_key key, int *member)
{
    struct tt_text works = {0};
    int least_units = (int)(units_of(rule) / stages_of(rule));

    tt_text_add(text, "%s %d is more than the %d that a stage holds", tt_key_name(key), *member, least_units);
    if (add_what_works(&works, rule, member, 0, *member))
        tt_text_add(text, "\nhelp: it can be %s", works.text);
    else
        add_hint(text, rule);
    tt_text_release(&works);
}

static int fail(const struct tt_pipeline_rule *found, enum fault fault)
{
    struct tt_pipeline_rule rule = *found;
    enum tt_key key = fault == FIRST_HEAVY    ? TT_KEY(parallelism.pipeline_parallel_first_stage_less_layers)
                      : fault == OUTPUT_HEAVY ? TT_KEY(parallelism.pipeline_parallel_last_stage_less_layers)
                      : rule.layers_per_stage ? TT_KEY(parallelism.pipeline_parallel_layers_per_stage)
                                              : TT_KEY(parallelism.pipeline_parallel_degree);
    struct tt_text text = {0};
    int rc;

    if (fault == FIRST_HEAVY || fault == OUTPUT_HEAVY) {
        add_weights(&text, &rule, key, fault == FIRST_HEAVY ? &rule.first_less : &rule.last_less);
    } else {
        add_stages(&text, &rule);
        if (fault == UNEVEN)
            tt_text_add(&text, ", which cannot be shared equally by %d ranks", rule.ranks);
        else if (fault == NO_UNITS)
            tt_text_add(&text, ", and %d layer%s, with %d and %d more for embeddings and output, %s too few",
                        rule.n_layers, rule.n_layers == 1 ? "" : "s", rule.first_less, rule.last_less,
                        rule.n_layers == 1 ? "is" : "are");
        else
            tt_text_add(&text, ", and with this schedule each of %d ranks has %s", rule.ranks,
                        fault == TOO_MANY ? "one" : "at least 2");
        add_hint(&text, &rule);
    }
    rc = tt_fail_key(TT_EUSAGE, key, "%s", text.text);
    tt_text_release(&text);
    return rc;
}

/* --- the split --- */

int tt_pipeline_split(const struct tt_pipeline_rule *rule, struct tt_stage_split *ret_split)
{
    enum fault fault = fault_of(rule);
    int64_t n_stages, each, more, end = 0;
    int layer = 0;

    if (fault != NO_FAULT)
        return fail(rule, fault);
    n_stages = stages_of(rule);
    each = units_of(rule) / n_stages;
    more = units_of(rule) % n_stages;
    *ret_split =
        (struct tt_stage_split){(int)n_stages, rule->n_layers + 3, tt_calloc((size_t)rule->n_layers + 3, sizeof(int))};
    for (int stage = 0; stage < n_stages; stage++) {
        end += each + (stage < more);
        while (layer < rule->n_layers && layer + rule->first_less < end)
            ret_split->module_stage[1 + layer++] = stage;
    }
    for (int head = rule->n_layers + 1; head < ret_split->n_modules; head++)
        ret_split->module_stage[head] = (int)n_stages - 1;
    return 0;
}

struct tt_stage_range tt_stage_split_layers(const struct tt_stage_split *split, int stage)
{
    struct tt_stage_range range = {0, 0};

    for (int module = 1; module <= split->n_modules - 3; module++) {
        range.first_layer += split->module_stage[module] < stage;
        range.n_layers += split->module_stage[module] == stage;
    }
    return range;
}

void tt_stage_split_release(struct tt_stage_split *split)
{
    tt_free(split->module_stage);
    *split = (struct tt_stage_split){0};
}

/* --- modules listed by name --- */

enum { NAME_BYTES = 80 }; /* no module has a longer name; messages truncate longer names */

/* The lists, and the split so far. */
struct listing {
    const struct tt_words *stages;
    int n_layers;
    struct tt_stage_split *split; /* -1: not seen yet */
    int next;                     /* the module that must come next */
};

static const char *name_of(int module, int n_layers, char name[NAME_BYTES])
{
    if (module >= 1 && module <= n_layers)
        (void)snprintf(name, NAME_BYTES, "layers.%d", module - 1);
    else
        (void)snprintf(name, NAME_BYTES, "%s",
                       module == 0             ? "tok_embeddings"
                       : module > n_layers + 1 ? "output"
                                               : "norm");
    return name;
}

/* Splits the next word off a text of words separated by blanks; false when none is left. */
static bool take_word(const char **text, char word[NAME_BYTES])
{
    size_t n = strcspn(*text += strspn(*text, " "), " ");

    (void)snprintf(word, NAME_BYTES, "%.*s", (int)n, *text);
    *text += n;
    return n > 0;
}

static int fail_out_of_order(const struct listing *l, const char *word, int part)
{
    char wanted[NAME_BYTES], other[NAME_BYTES];
    bool listed = false;

    (void)name_of(l->next, l->n_layers, wanted);
    for (int stage = 0; stage < l->stages->n; stage++)
        for (const char *text = l->stages->word[stage]; take_word(&text, other);)
            listed = listed || strcmp(other, wanted) == 0;
    if (!listed)
        return tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.module_fqns_per_model_part),
                           "no stage has module '%s'\nhelp: list it before '%s', in stage %d or before it", wanted,
                           word, part);
    return tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.module_fqns_per_model_part),
                       "stage %d has module '%s' before '%s'\nhelp: list the modules in the order of the model", part,
                       word, wanted);
}

static int take(struct listing *l, int part, const char *word)
{
    char name[NAME_BYTES];
    int module = 0;

    while (module < l->split->n_modules && strcmp(word, name_of(module, l->n_layers, name)) != 0)
        module++;
    if (module == l->split->n_modules)
        return tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.module_fqns_per_model_part),
                           "stage %d has '%s', which is not a module of a model with %d layers\n"
                           "help: the modules are tok_embeddings, layers.0 to layers.%d, norm and output",
                           part, word, l->n_layers, l->n_layers - 1);
    if (l->split->module_stage[module] >= 0)
        return tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.module_fqns_per_model_part),
                           "module '%s' is listed twice, for stages %d and %d\nhelp: list every module once", word,
                           l->split->module_stage[module], part);
    if (module != l->next)
        return fail_out_of_order(l, word, part);
    l->split->module_stage[l->next++] = part;
    return 0;
}

static int check_number(int n_parts, int ranks, bool multi)
{
    if (multi ? n_parts % ranks == 0 && n_parts >= 2 * ranks : n_parts == ranks)
        return 0;
    if (multi)
        return tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.module_fqns_per_model_part),
                           "%d stages are listed for %d ranks; with this schedule, each rank has at least 2\n"
                           "help: list %d stages, %d or another multiple of %d",
                           n_parts, ranks, 2 * ranks, 3 * ranks, ranks);
    return tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.module_fqns_per_model_part),
                       "%d stages are listed for %d ranks; with this schedule, each rank has one\n"
                       "help: list %d stages, or use a schedule with several stages on a rank (%s)",
                       n_parts, ranks, ranks, TT_KEY_NAME(parallelism.pipeline_parallel_schedule));
}

int tt_pipeline_split_named(const struct tt_words *stages, int n_layers, int ranks, bool multi,
                            struct tt_stage_split *ret_split)
{
    struct tt_stage_split split = {stages->n, n_layers + 3, NULL};
    struct listing l = {stages, n_layers, &split, 0};
    char name[NAME_BYTES];
    int rc = 0;

    split.module_stage = tt_calloc((size_t)split.n_modules, sizeof *split.module_stage);
    for (int module = 0; module < split.n_modules; module++)
        split.module_stage[module] = -1;
    TT_TRY(check_number(stages->n, ranks, multi));
    for (int stage = 0; stage < stages->n; stage++) {
        const char *text = stages->word[stage];

        if (!take_word(&text, name))
            TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.module_fqns_per_model_part),
                               "stage %d has no module\nhelp: give it one, or leave it out", stage));
        do
            TT_TRY(take(&l, stage, name));
        while (take_word(&text, name));
    }
    if (l.next < split.n_modules)
        TT_TRY(tt_fail_key(TT_EUSAGE, TT_KEY(parallelism.module_fqns_per_model_part),
                           "no stage has module '%s'\nhelp: add it to the last stage",
                           name_of(l.next, n_layers, name)));
    *ret_split = split;
    return 0;
out:
    tt_stage_split_release(&split);
    return rc;
}
