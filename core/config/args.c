/* SPDX-License-Identifier: MIT
 *
 * Command lines. An override is one token (--a.b=c, a.b=c, --a.b and --no-a.b of a boolean) or two (--a.b c); which of
 * the two depends on the key, so this file consults the schema.
 */
#include "core/config/args.h"

#include <string.h>
#include <strings.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "core/config/internal.h"

/* Length of the key at the start of text: a letter or '_', then letters, digits, '_', '-' and '.'. */
static size_t key_length(const char *text)
{
    size_t n = 0;

    if (!isalpha((unsigned char)text[0]) && text[0] != '_')
        return 0;
    while (isalnum((unsigned char)text[n]) || (text[n] && strchr("_.-", text[n])))
        n++;
    return n;
}

static bool is_assignment(const char *token)
{
    size_t n = key_length(token);

    return n && token[n] == '=';
}

static char *underscored(const char *text, size_t n)
{
    char *copy = tt_strndup(text, n);

    for (char *c = copy; *c; c++)
        *c = *c == '-' ? '_' : *c;
    return copy;
}

/* Whether --path without a value means true. */
static bool is_bool_key(const char *path)
{
    const struct tt_config_row *row = tt_config_row_find(path);
    const struct tt_config_inactive *inactive = row ? NULL : tt_config_inactive_find(path);

    if (row)
        return row->kind == TT_KIND_BOOL || row->kind == TT_KIND_MAYBE;
    return inactive && inactive->neutral && tt_text_is_listed(inactive->neutral, "false|true");
}

/* "no_a.b" or "a.no_b" of a boolean a.b becomes "a.b", in place. */
static bool strip_no(char *path)
{
    char *leaf = strrchr(path, '.');
    char *no = strncmp(path, "no_", 3) == 0 ? path : leaf && strncmp(leaf + 1, "no_", 3) == 0 ? leaf + 1 : NULL;
    char *copy;
    bool ok;

    if (!no)
        return false;
    copy = tt_strdup(path);
    memmove(copy + (no - path), no + 3, strlen(no + 3) + 1);
    ok = is_bool_key(copy);
    if (ok)
        memcpy(path, copy, strlen(copy) + 1);
    tt_free(copy);
    return ok;
}

/* Takes the override at args[*i] and advances *i past it. False: it is not an override. The caller frees path
 * (tt_free). */
static bool take_override(int n, const char *const *args, int *i, struct tt_override *ret_override)
{
    const char *token = args[*i], *next = *i + 1 < n ? args[*i + 1] : NULL, *name = token;
    struct tt_override override = {0};
    size_t length;

    if (strncmp(token, "--", 2) == 0) {
        name = token + 2;
    } else if (!is_assignment(token)) {
        return false;
    }
    length = strcspn(name, "=");
    if (length == 0)
        return false;
    override.path = underscored(name, length);
    if (name[length] == '=') {
        override.value = name + length + 1;
    } else if (strip_no(override.path)) {
        override.value = "false";
    } else if (is_bool_key(override.path)) {
        override.value = next && tt_text_is_listed(next, "true|false|yes|no|on|off|1|0|y|n|null") ? next : "true";
        *i += override.value == next;
    } else if (next && strncmp(next, "--", 2) != 0 && (tt_config_row_find(override.path) || !is_assignment(next))) {
        override.value = next;
        *i += 1;
    }
    *i += 1;
    *ret_override = override;
    return true;
}

void tt_override_each(int n, const char *const *args, struct tt_config_report *report,
                      void (*take)(void *arg, const struct tt_override *override, const char *where), void *arg)
{
    for (int i = 0; i < n;) {
        struct tt_override override = {0};
        char *where;

        if (!take_override(n, args, &i, &override)) {
            tt_config_report_add(report, "command line", "'%s' is not an override such as --training.steps=100",
                                 args[i++]);
            continue;
        }
        where = tt_format("flag --%s", override.path);
        take(arg, &override, where);
        tt_free(where);
        tt_free(override.path);
    }
}

static const struct tt_option *find_option(const struct tt_option *options, const char *name)
{
    for (const struct tt_option *o = options; o->name; o++) {
        if (strcmp(o->name, name) == 0 || (o->alias && tt_text_is_listed(name, o->alias)))
            return o;
    }
    return NULL;
}

/* An option that begins with the given text, or that contains all its words: "temp" for temperature, "max-tokens" for
 * max_new_tokens. */
static const char *longer_name(const struct tt_option *options, const char *name)
{
    for (const struct tt_option *o = options; o->name; o++) {
        const char *at = o->name;
        char *copy = tt_strdup(name), *rest = NULL;
        bool holds_all = strlen(name) >= 3;

        for (char *word = strtok_r(copy, "_", &rest); word && holds_all; word = strtok_r(NULL, "_", &rest)) {
            at = strstr(at, word);
            holds_all = at != NULL;
            at = at ? at + strlen(word) : NULL;
        }
        tt_free(copy);
        if (holds_all)
            return o->name;
    }
    return NULL;
}

static void add_question(struct tt_text *help, const char *name)
{
    tt_text_add(help, "did you mean '--%s'?", name);
    for (char *c = strstr(help->text, "--"); *c && *c != '?'; c++)
        *c = *c == '_' ? '-' : *c;
}

/* The option that the user probably meant by one letter: the only one that begins with it, or the one with which all
 * candidates begin. */
static const char *name_of_letter(const struct tt_option *options, char letter)
{
    const char *shortest = NULL;

    for (const struct tt_option *o = options; o->name; o++)
        if (o->name[0] == letter && (!shortest || strlen(o->name) < strlen(shortest)))
            shortest = o->name;
    for (const struct tt_option *o = options; shortest && o->name; o++)
        if (o->name[0] == letter && strncmp(o->name, shortest, strlen(shortest)) != 0)
            return NULL;
    return shortest;
}

/* Reports a word such as -n: other programs have one-letter options, titan has none. */
static void report_letters(const struct tt_option *options, const char *token, struct tt_config_report *report)
{
    bool is_ranks = strcmp(token, "-n") == 0 || strcmp(token, "-np") == 0;
    const char *near = token[2] ? NULL : name_of_letter(options, token[1]);
    struct tt_text help = {0};

    if (is_ranks && find_option(options, "config"))
        tt_text_add(&help,
                    "the launcher sets the number of ranks: titan launch -n 2 -- train ..., or mpirun -n 2 titan "
                    "train ...");
    else if (is_ranks && find_option(options, "max_new_tokens"))
        tt_text_add(&help, "--max-new-tokens is the number of tokens, --num-samples the number of texts");
    else if (near)
        add_question(&help, near);
    else
        tt_text_add(&help, "options begin with two dashes; --help lists them");
    tt_config_report_add(report, "command line", "unknown option '%s'\nhelp: %s", token, help.text);
    tt_text_release(&help);
}

static void report_unknown(const struct tt_option *options, const char *token, const char *name,
                           struct tt_config_report *report)
{
    const char *names[64], *near;
    struct tt_text help = {0};
    int n = 0;

    for (const struct tt_option *o = options; o->name && n < 64; o++)
        names[n++] = o->name;
    near = tt_text_nearest(name, names, n);
    if (!near)
        near = longer_name(options, name);
    if (near) {
        tt_text_add(&help, "\nhelp: ");
        add_question(&help, near);
    } else if (find_option(options, "config") && tt_config_is_section(name))
        tt_text_add(&help, "\nhelp: it is a section of the configuration; set its keys: --%s.KEY=VALUE", name);
    else if (find_option(options, "config"))
        tt_config_suggest(name, &help);
    if (!help.size || strstr(help.text, "lists all sections")) {
        help.size = 0;
        tt_text_add(&help, "\nhelp: --help lists the options");
    }
    tt_config_report_add(report, "command line", "unknown option '%.*s'%s", (int)strcspn(token, "="), token, help.text);
    tt_text_release(&help);
}

/* Stores the command's option at argv[*i] and advances *i. */
static void take_option(int argc, const char *const *argv, int *i, const struct tt_option *option, struct tt_args *args,
                        struct tt_config_report *report)
{
    const char *equals = strchr(argv[*i], '='), *value = equals ? equals + 1 : NULL;

    if (!option->value && equals) {
        tt_config_report_add(report, "command line", "--%s takes no value", option->name);
    } else if (option->value && !equals) {
        if (*i + 1 < argc && strncmp(argv[*i + 1], "--", 2) != 0) {
            value = argv[++*i];
        } else {
            tt_config_report_add(report, "command line", "--%s needs a value: --%s %s", option->name, option->name,
                                 option->value);
        }
    }
    ++*i;
    TT_PUSH(args->option, args->n_options, args->cap_options) = (struct tt_option_use){option, value};
}

/* Keeps the tokens of an override. */
static void keep_override(int argc, const char *const *argv, int *i, struct tt_args *args)
{
    struct tt_override override = {0};
    int from = *i;

    if (!take_override(argc, argv, i, &override))
        ++*i;
    for (; from < *i; from++)
        TT_PUSH(args->override, args->n_overrides, args->cap_overrides) = argv[from];
    tt_free(override.path);
}

static void take_dashed(int argc, const char *const *argv, int *i, const struct tt_option *options,
                        struct tt_args *args, struct tt_config_report *report)
{
    const char *token = argv[*i];
    bool is_help = strcmp(token, "-h") == 0;
    char *name = is_help ? tt_strdup("help") : underscored(token + 2, strcspn(token + 2, "="));
    const struct tt_option *option = find_option(options, name);

    if (option) {
        take_option(argc, argv, i, option, args, report);
    } else if (!is_help && strchr(name, '.')) {
        keep_override(argc, argv, i, args);
    } else {
        report_unknown(options, token, name, report);
        ++*i;
    }
    tt_free(name);
}

int tt_args_parse(int argc, char **argv, const struct tt_option *options, struct tt_args **ret_args)
{
    const char *const *tokens = (const char *const *)argv;
    struct tt_args *args = tt_calloc(1, sizeof *args);
    struct tt_config_report report = {.subject = "command line"};
    bool is_rest = false;

    for (int i = 0; i < argc;) {
        const char *token = tokens[i];

        if (!is_rest && strcmp(token, "--") == 0) {
            is_rest = true;
            i++;
        } else if (!is_rest && (strncmp(token, "--", 2) == 0 || strcmp(token, "-h") == 0)) {
            take_dashed(argc, tokens, &i, options, args, &report);
        } else if (!is_rest && token[0] == '-' && isalpha((unsigned char)token[1])) {
            report_letters(options, token, &report);
            i++;
        } else if (!is_rest && is_assignment(token)) {
            keep_override(argc, tokens, &i, args);
        } else {
            TT_PUSH(args->word, args->n_words, args->cap_words) = token;
            i++;
        }
    }
    if (report.n && !find_option(options, "config")) {
        tt_args_free(args);
        return tt_config_report_finish(&report);
    }
    args->n_errors = report.n;
    args->errors = report.n ? tt_strdup(report.text.text) : NULL;
    *ret_args = args;
    return tt_config_report_finish(&report);
}

void tt_args_free(struct tt_args *args)
{
    if (!args)
        return;
    tt_free(args->option);
    tt_free((void *)args->override);
    tt_free((void *)args->word);
    tt_free(args->errors);
    tt_free(args);
}

bool tt_args_has(const struct tt_args *args, const char *name)
{
    for (int i = 0; i < args->n_options; i++)
        if (strcmp(args->option[i].option->name, name) == 0)
            return true;
    return false;
}

const char *tt_args_value(const struct tt_args *args, const char *name, int n)
{
    for (int i = 0; i < args->n_options; i++)
        if (strcmp(args->option[i].option->name, name) == 0 && n-- == 0)
            return args->option[i].value;
    return NULL;
}

const char *tt_args_last(const struct tt_args *args, const char *name)
{
    for (int i = args->n_options - 1; i >= 0; i--)
        if (strcmp(args->option[i].option->name, name) == 0)
            return args->option[i].value;
    return NULL;
}

void tt_args_help_row(struct tt_text *out, int indent, const char *left, const char *doc)
{
    size_t start;

    if (*left && strlen(left) + 3 > (size_t)indent) { /* it gets a separate line */
        tt_text_add(out, "  %s\n", left);
        left = "";
    }
    start = out->size;
    tt_config_wrap(out, indent, "", doc);
    if (*left)
        memcpy(out->text + start + 2, left, strlen(left)); /* the column at which doc begins */
}

void tt_args_help(const struct tt_option *options, struct tt_text *out)
{
    enum { LEFT = 27 };

    for (const struct tt_option *o = options; o->name; o++) {
        char *left = tt_format("--%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");

        for (char *c = left; *c && *c != ' '; c++)
            *c = *c == '_' ? '-' : *c;
        tt_args_help_row(out, LEFT, left, o->doc);
        tt_free(left);
    }
}
