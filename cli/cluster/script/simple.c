/* SPDX-License-Identifier: MIT
 *
 * Simple commands of a script: those of the shell that set something, and programs, which are listed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/script/shell.h"
#include "core/base/mem.h"

int tt_shell_ask(struct tt_shell *sh, enum tt_script_why why)
{
    sh->unknown = tt_script_mark(tt_shell_unknown(sh, why, NULL));
    return -1;
}

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";

static bool is_assignment(const char *raw)
{
    size_t n = strspn(raw, letters);

    if (n == 0 || (*raw >= '0' && *raw <= '9'))
        return false;
    if (raw[n] == '[' && strchr(raw + n, ']'))
        n = (size_t)(strchr(raw + n, ']') - raw) + 1;
    return raw[n] == '=' || (raw[n] == '+' && raw[n + 1] == '=');
}

static void assign(struct tt_shell *sh, const char *raw)
{
    size_t n = strspn(raw, letters);
    char *name = tt_strndup(raw, n);
    const char *value = strchr(raw + n, '=') + 1;
    bool is_added = value[-2] == '+', is_list = *value == '(';
    struct tt_script_words words = {0};
    const struct tt_script_variable *v;

    if (raw[n] == '[')
        tt_shell_set_word(sh, name, tt_shell_unknown(sh, TT_WHY_FORM, NULL));
    else if (is_list) {
        tt_shell_expand_list(sh, value, &words);
        tt_shell_set(sh, name, &words, is_added);
    } else {
        const char *text = tt_shell_expand_one(sh, value);

        v = is_added ? tt_shell_find(sh, name) : NULL;
        if (v && v->value.n)
            text = tt_shell_keep(sh, tt_format("%s%s", v->value.word[0], text));
        tt_shell_set_word(sh, name, text);
    }
    tt_free(name);
}

static int declare(struct tt_shell *sh, const char *const *raw, int n)
{
    for (int i = 1; i < n; i++)
        if (is_assignment(raw[i]))
            assign(sh, raw[i]);
    return 1;
}

static int stop(struct tt_shell *sh, enum tt_shell_stop how)
{
    sh->state.stop = how;
    return 1;
}

static void shift(struct tt_shell *sh, const char *by)
{
    struct tt_script_words *args = &sh->state.args;
    long n = by ? strtol(by, NULL, 10) : 1;

    n = n < 0 ? 0 : n > args->n ? args->n : n;
    args->word += n;
    args->n -= (int)n;
    args->cap = args->n; /* it moves when it grows */
}

static void record(struct tt_shell *sh, const struct tt_script_words *words)
{
    struct tt_shell_state *s = &sh->state;

    if (s->n_commands == s->cap_commands) {
        int cap = s->cap_commands ? 2 * s->cap_commands : 32;
        struct tt_script_command *larger = tt_shell_block(sh, (size_t)cap, sizeof *larger);

        if (s->n_commands)
            memcpy(larger, s->command, (size_t)s->n_commands * sizeof *larger);
        s->command = larger;
        s->cap_commands = cap;
    }
    s->command[s->n_commands++] =
        (struct tt_script_command){.words = *words, .line = sh->line, .under = -1, .loop = sh->loop};
}

/* Commands of the shell that set something. 1, 0, -1 as a status; -2: it is another command. */
static int built_in(struct tt_shell *sh, const char *const *raw, int n, const struct tt_script_words *words)
{
    static const char *const quiet[] = {"echo",  "printf", "mkdir",  "cd",       "rm",    "ls",    "sleep",
                                        "wait",  "trap",   "ulimit", "true",     ":",     "umask", "alias",
                                        "shopt", "touch",  "date",   "hostname", "module"};
    static const char *const sets[] = {"export", "declare", "local", "readonly", "typeset"};
    const char *name = words->n ? words->word[0] : "";

    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (strcmp(name, sets[i]) == 0)
            return declare(sh, raw, n);
    for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++)
        if (strcmp(name, quiet[i]) == 0)
            return 1;
    if (strcmp(name, "[") == 0)
        return tt_shell_test(sh, raw + 1, n - 2, false);
    if (strcmp(name, "test") == 0)
        return tt_shell_test(sh, raw + 1, n - 1, false);
    if (strcmp(name, "false") == 0)
        return 0;
    if (strcmp(name, "exit") == 0)
        return stop(sh, TT_STOP_ALL);
    if (strcmp(name, "return") == 0)
        return stop(sh, sh->depth > 0 ? TT_STOP_FUNCTION : TT_STOP_ALL);
    if (strcmp(name, "break") == 0 || strcmp(name, "continue") == 0)
        return stop(sh, *name == 'b' ? TT_STOP_LOOP : TT_STOP_TURN);
    if (strcmp(name, "shift") == 0) {
        shift(sh, words->n > 1 ? words->word[1] : NULL);
        return 1;
    }
    if (strcmp(name, "unset") == 0) {
        for (int i = 1; i < words->n; i++)
            tt_shell_unset(sh, words->word[i]);
        return 1;
    }
    if (strcmp(name, "read") == 0 || strcmp(name, "mapfile") == 0 || strcmp(name, "readarray") == 0) {
        for (int i = 1; i < words->n; i++)
            if (strspn(words->word[i], letters) == strlen(words->word[i]))
                tt_shell_set_word(sh, words->word[i], tt_shell_unknown(sh, TT_WHY_PROGRAM, NULL));
        return tt_shell_ask(sh, TT_WHY_PROGRAM);
    }
    if (strcmp(name, "let") == 0) {
        long long value;

        for (int i = 1; i < n; i++)
            (void)tt_shell_arithmetic(sh, raw[i], &value);
        return 1;
    }
    if (strcmp(name, "set") == 0) {
        if (words->n > 1 && strcmp(words->word[1], "--") == 0) {
            sh->state.args = (struct tt_script_words){0};
            for (int i = 2; i < words->n; i++)
                tt_shell_add(sh, &sh->state.args, words->word[i]);
            sh->has_args = true;
        }
        return 1;
    }
    if (strcmp(name, "source") == 0 || strcmp(name, ".") == 0) {
        sh->script->source = words->n > 1 ? words->word[1] : "?";
        return tt_shell_ask(sh, TT_WHY_PROGRAM);
    }
    if (strcmp(name, "eval") == 0 && words->n > 1 && is_assignment(words->word[1])) {
        char *set = tt_strndup(words->word[1], strspn(words->word[1], letters));

        tt_shell_set_word(sh, set, tt_shell_unknown(sh, TT_WHY_FORM, NULL));
        tt_free(set);
        return 1;
    }
    return -2;
}

/* Words that are assignments and nothing else. */
static int assign_all(struct tt_shell *sh, const struct tt_script_words *raw)
{
    bool asks = false;

    for (int i = 0; i < raw->n; i++) {
        asks = asks || strchr(raw->word[i], '`') || strstr(raw->word[i], "$(");
        assign(sh, raw->word[i]);
    }
    return asks ? tt_shell_ask(sh, TT_WHY_PROGRAM) : 1;
}

int tt_shell_simple(struct tt_shell *sh, const struct tt_script_words *raw, struct tt_script_words *words,
                    int *ret_function)
{
    int first = 0, status;

    *ret_function = -1;
    while (first < raw->n && is_assignment(raw->word[first]))
        first++;
    if (first == raw->n)
        return assign_all(sh, raw);
    for (int i = first; i < raw->n; i++)
        tt_shell_expand(sh, raw->word[i], words);
    if (words->n == 0)
        return 1;
    for (int i = 0; i < sh->n_functions; i++)
        if (strcmp(sh->function[i].name, words->word[0]) == 0) {
            *ret_function = i;
            return 1;
        }
    status = built_in(sh, raw->word + first, raw->n - first, words);
    if (status != -2)
        return status;
    record(sh, words);
    return tt_shell_ask(sh, TT_WHY_PROGRAM);
}

int tt_shell_give(struct tt_shell *sh, const char *text)
{
    size_t n = strspn(text, letters);
    char *name;

    if (n == 0 || text[n] != '=')
        return tt_fail(TT_EUSAGE,
                       "estimate: --set '%s' is no NAME=VALUE\nhelp: for instance --set MODEL_SIZE=7B, or "
                       "--set 3=7B for the third argument of the script",
                       text);
    name = tt_strndup(text, n);
    tt_shell_set_word(sh, name, tt_shell_keep(sh, tt_strdup(text + n + 1)));
    for (int i = 0; i < sh->state.n; i++)
        if (strcmp(sh->state.variable[i].name, name) == 0)
            sh->state.variable[i].is_given = true;
    tt_free(name);
    return 0;
}
