/* SPDX-License-Identifier: MIT
 *
 * The commands of a script: lists, branches, loops and functions.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "estimate/script/internal.h"

const char *tt_shell_keep(struct tt_shell *sh, char *text)
{
    TT_PUSH(sh->script->owned, sh->script->n_owned, sh->script->cap_owned) = text;
    return text;
}

/* A block of `cap` items that is kept until the script is released; it begins with the n items of `from`. Copies of a
 * state share blocks, so a list that grows moves to a new one. */
static void *enter_block(struct tt_shell *sh, const void *from, int n, int cap, size_t size)
{
    void *block = tt_calloc((size_t)cap, size);

    if (n > 0)
        memcpy(block, from, (size_t)n * size);
    TT_PUSH(sh->script->owned, sh->script->n_owned, sh->script->cap_owned) = block;
    return block;
}

void tt_shell_add(struct tt_shell *sh, struct tt_script_words *words, const char *word)
{
    if (words->n == words->cap) {
        words->cap = words->cap ? 2 * words->cap : 8;
        words->word = enter_block(sh, (const void *)words->word, words->n, words->cap, sizeof *words->word);
    }
    words->word[words->n++] = word;
}

/* --- variables --- */

static struct tt_script_variable *find(struct tt_shell_state *state, const char *name)
{
    for (int i = 0; i < state->n; i++)
        if (strcmp(state->variable[i].name, name) == 0)
            return &state->variable[i];
    return NULL;
}

struct tt_script_variable *tt_shell_find(struct tt_shell *sh, const char *name)
{
    struct tt_script_variable *v = find(&sh->state, name);

    return v && v->is_set ? v : NULL;
}

/* The variable of that name, which is made if it does not exist. */
static struct tt_script_variable *variable(struct tt_shell *sh, const char *name)
{
    struct tt_shell_state *s = &sh->state;
    struct tt_script_variable *v = find(s, name);

    if (v)
        return v;
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->variable = enter_block(sh, s->variable, s->n, s->cap, sizeof *s->variable);
    }
    v = &s->variable[s->n++];
    *v = (struct tt_script_variable){.name = tt_shell_keep(sh, tt_strdup(name))};
    return v;
}

/* Sets a variable, or adds to it, unless the user gave its value. An unknown value without a name gets this name. */
static void set_variable(struct tt_shell *sh, const char *name, const struct tt_script_words *value, bool is_added)
{
    struct tt_script_variable *v = variable(sh, name);
    struct tt_script_words sum = {0};

    if (v->is_given)
        return;
    for (int i = 0; is_added && v->is_set && i < v->value.n; i++)
        tt_shell_add(sh, &sum, v->value.word[i]);
    for (int i = 0; i < value->n; i++) {
        int mark = tt_script_mark(value->word[i]);

        tt_shell_add(sh, &sum, value->word[i]);
        if (mark >= 0 && !sh->script->unknown[mark].name)
            sh->script->unknown[mark].name = v->name;
    }
    v->value = sum;
    v->is_set = true;
}

void tt_shell_set_word(struct tt_shell *sh, const char *name, const char *word)
{
    struct tt_script_words one = {0};

    tt_shell_add(sh, &one, word);
    set_variable(sh, name, &one, false);
}

static void unset_variable(struct tt_shell *sh, const char *name)
{
    struct tt_script_variable *v = find(&sh->state, name);

    if (v && !v->is_given)
        v->is_set = false;
}

/* --- unknown things --- */

const char *tt_shell_unknown(struct tt_shell *sh, enum tt_script_why why, const char *name)
{
    struct tt_script *s = sh->script;

    for (int i = 0; name && why == TT_WHY_UNSET && i < s->n_unknown; i++)
        if (s->unknown[i].why == why && strcmp(s->unknown[i].name, name) == 0)
            return tt_shell_keep(sh, tt_format("\1%d\2", i));
    TT_PUSH(s->unknown, s->n_unknown, s->cap_unknown) = (struct tt_script_unknown){
        .why = why, .name = name ? tt_shell_keep(sh, tt_strdup(name)) : NULL, .line = sh->line, .of = -1};
    return tt_shell_keep(sh, tt_format("\1%d\2", s->n_unknown - 1));
}

int tt_script_mark(const char *word)
{
    const char *at = strchr(word, '\1');

    return at ? (int)strtol(at + 1, NULL, 10) : -1;
}

/* --- ways through a script --- */

static struct tt_shell_state copy_shell(struct tt_shell *sh, const struct tt_shell_state *state)
{
    struct tt_shell_state copy = *state;

    copy.cap = state->n + 1;
    copy.variable = enter_block(sh, state->variable, state->n, copy.cap, sizeof *copy.variable);
    for (int i = 0; i < copy.n; i++)
        copy.variable[i].value.cap = copy.variable[i].value.n; /* so that the list moves when it grows */
    copy.args.cap = copy.args.n;
    copy.cap_commands = state->n_commands + 1;
    copy.command = enter_block(sh, state->command, state->n_commands, copy.cap_commands, sizeof *copy.command);
    return copy;
}

/* Gets the value of a variable in each state; returns whether they differ. */
static bool values_of(const struct tt_shell_state *states, int n, const char *name, struct tt_script_words *value)
{
    bool differ = false;

    for (int i = 0; i < n; i++) {
        struct tt_shell_state state = states[i];
        const struct tt_script_variable *v = find(&state, name);

        value[i] = v && v->is_set ? v->value : (struct tt_script_words){0};
        differ = differ || value[i].n != value[0].n;
        for (int k = 0; !differ && k < value[i].n; k++)
            differ = strcmp(value[i].word[k], value[0].word[k]) != 0;
    }
    return differ;
}

static void merge_variable(struct tt_shell *sh, const struct tt_shell_state *states, int n, const char *name,
                           int unknown)
{
    struct tt_script_words *value = enter_block(sh, NULL, 0, n, sizeof *value), one = {0};
    int number = sh->script->n_unknown;

    if (!values_of(states, n, name, value)) {
        if (value[0].n)
            set_variable(sh, name, &value[0], false);
        return;
    }
    tt_shell_add(sh, &one, tt_shell_unknown(sh, TT_WHY_CHOICE, name));
    sh->script->unknown[number].of = unknown;
    sh->script->unknown[number].value = value;
    sh->script->unknown[number].n_values = n;
    set_variable(sh, name, &one, false);
}

/* Merges commands that only some of the ways contain. */
static void merge_commands(struct tt_shell *sh, int n_before, const struct tt_shell_state *states, int n, int unknown)
{
    struct tt_shell_state *s = &sh->state;
    int all = n_before;

    for (int i = 0; i < n; i++)
        all += states[i].n_commands - n_before;
    s->n_commands = n_before;
    s->cap_commands = all + 1;
    s->command = enter_block(sh, states[0].command, n_before, s->cap_commands, sizeof *s->command);
    for (int i = 0; i < n; i++)
        for (int k = n_before; k < states[i].n_commands; k++) {
            s->command[s->n_commands] = states[i].command[k];
            if (s->command[s->n_commands].under < 0)
                s->command[s->n_commands].under = unknown;
            s->n_commands++;
        }
}

/* Joins several states, one of which is the real one: variables in which they differ depend on the unknown thing. */
static void merge_shells(struct tt_shell *sh, const struct tt_shell_state *before, const struct tt_shell_state *states,
                         int n, int unknown)
{
    struct tt_shell_state *kept = enter_block(sh, NULL, 0, n + 1, sizeof *kept);
    int n_kept = 0;

    for (int i = 0; i < n; i++) /* a way that ends the script trains nothing */
        if (states[i].stop != TT_STOP_ALL)
            kept[n_kept++] = states[i];
    sh->state = copy_shell(sh, n_kept ? &kept[0] : before);
    if (n_kept == 0) {
        sh->state.stop = TT_STOP_ALL;
        return;
    }
    sh->state.stop = TT_STOP_NONE;
    for (int i = 0; i < n_kept; i++) /* a loop that may end at this point is not followed further */
        if (kept[i].stop == TT_STOP_LOOP)
            sh->state.stop = TT_STOP_LOOP;
    for (int i = 0; i < n_kept; i++)
        for (int k = 0; k < kept[i].n; k++)
            if (!kept[i].variable[k].is_given && (i == 0 || !find(&kept[0], kept[i].variable[k].name)))
                merge_variable(sh, kept, n_kept, kept[i].variable[k].name, unknown);
    merge_commands(sh, before->n_commands, kept, n_kept, unknown);
}

void tt_script_release(struct tt_script *script)
{
    for (int i = 0; i < script->n_owned; i++)
        tt_free(script->owned[i]);
    tt_free(script->owned);
    tt_free(script->unknown);
    *script = (struct tt_script){0};
}

enum { MOST_TURNS = 1000, MOST_COMMANDS = 200000, DEEPEST = 50 };

/* --- simple commands: builtins that set something, and programs, which are only recorded --- */

/* Returns -1, an unknown status that depends on a new unknown thing. */
static int ask(struct tt_shell *sh, enum tt_script_why why)
{
    sh->unknown = tt_script_mark(tt_shell_unknown(sh, why, NULL));
    return -1;
}

static bool is_assignment(const char *raw)
{
    size_t n = strspn(raw, TT_SHELL_LETTERS);

    if (n == 0 || (*raw >= '0' && *raw <= '9'))
        return false;
    if (raw[n] == '[' && strchr(raw + n, ']'))
        n = (size_t)(strchr(raw + n, ']') - raw) + 1;
    return raw[n] == '=' || (raw[n] == '+' && raw[n + 1] == '=');
}

static void assign(struct tt_shell *sh, const char *raw)
{
    size_t n = strspn(raw, TT_SHELL_LETTERS);
    char *name = tt_strndup(raw, n);
    const char *value = strchr(raw + n, '=') + 1;
    bool is_added = value[-2] == '+', is_list = *value == '(';
    struct tt_script_words words = {0};
    const struct tt_script_variable *v;

    if (raw[n] == '[')
        tt_shell_set_word(sh, name, tt_shell_unknown(sh, TT_WHY_FORM, NULL));
    else if (is_list) {
        tt_shell_expand_list(sh, value, &words);
        set_variable(sh, name, &words, is_added);
    } else {
        const char *text = tt_shell_expand_one(sh, value);

        v = is_added ? tt_shell_find(sh, name) : NULL;
        if (v && v->value.n)
            text = tt_shell_keep(sh, tt_format("%s%s", v->value.word[0], text));
        tt_shell_set_word(sh, name, text);
    }
    tt_free(name);
}

static int stop(struct tt_shell *sh, enum tt_shell_stop how)
{
    sh->state.stop = how;
    return 1;
}

static void record(struct tt_shell *sh, const struct tt_script_words *words)
{
    struct tt_shell_state *s = &sh->state;

    if (s->n_commands == s->cap_commands) {
        s->cap_commands = s->cap_commands ? 2 * s->cap_commands : 32;
        s->command = enter_block(sh, s->command, s->n_commands, s->cap_commands, sizeof *s->command);
    }
    s->command[s->n_commands++] =
        (struct tt_script_command){.words = *words, .line = sh->line, .under = -1, .loop = sh->loop};
}

/* Follows commands of the shell that set something. Returns 1, 0 or -1 as a status; -2: it is another command. */
static int built_in(struct tt_shell *sh, const char *const *raw, int n, const struct tt_script_words *words)
{
    const char *name = words->n ? words->word[0] : "";

    if (tt_text_is_listed(name, "export|declare|local|readonly|typeset")) {
        for (int k = 1; k < n; k++)
            if (is_assignment(raw[k]))
                assign(sh, raw[k]);
        return 1;
    }
    if (tt_text_is_listed(name, "echo|printf|mkdir|cd|rm|ls|sleep|wait|trap|ulimit|true|:|umask|alias|shopt|touch|date|"
                                "hostname|module"))
        return 1;
    if (strcmp(name, "[") == 0 || strcmp(name, "test") == 0)
        return tt_shell_test(sh, raw + 1, n - 1 - (*name == '['), false);
    if (strcmp(name, "false") == 0)
        return 0;
    if (strcmp(name, "exit") == 0)
        return stop(sh, TT_STOP_ALL);
    if (strcmp(name, "return") == 0)
        return stop(sh, sh->depth > 0 ? TT_STOP_FUNCTION : TT_STOP_ALL);
    if (strcmp(name, "break") == 0 || strcmp(name, "continue") == 0)
        return stop(sh, *name == 'b' ? TT_STOP_LOOP : TT_STOP_TURN);
    if (strcmp(name, "shift") == 0) {
        struct tt_script_words *args = &sh->state.args;
        long by = words->n > 1 ? strtol(words->word[1], NULL, 10) : 1;

        by = by < 0 ? 0 : by > args->n ? args->n : by;
        args->word += by;
        args->n -= (int)by;
        args->cap = args->n; /* no spare room, so that the list moves when it grows */
        return 1;
    }
    if (strcmp(name, "unset") == 0) {
        for (int i = 1; i < words->n; i++)
            unset_variable(sh, words->word[i]);
        return 1;
    }
    if (tt_text_is_listed(name, "read|mapfile|readarray")) {
        for (int i = 1; i < words->n; i++)
            if (strspn(words->word[i], TT_SHELL_LETTERS) == strlen(words->word[i]))
                tt_shell_set_word(sh, words->word[i], tt_shell_unknown(sh, TT_WHY_PROGRAM, NULL));
        return ask(sh, TT_WHY_PROGRAM);
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
        return ask(sh, TT_WHY_PROGRAM);
    }
    if (strcmp(name, "eval") == 0 && words->n > 1 && is_assignment(words->word[1])) {
        char *set = tt_strndup(words->word[1], strspn(words->word[1], TT_SHELL_LETTERS));

        tt_shell_set_word(sh, set, tt_shell_unknown(sh, TT_WHY_FORM, NULL));
        tt_free(set);
        return 1;
    }
    return -2;
}

/* Follows a command, whose words include their quotes. Returns its status: 1 success, 0 failure, -1 unknown. Adds its
 * words without quotes; *ret_function is the function to call, or -1. */
static int simple_command(struct tt_shell *sh, const struct tt_script_words *raw, struct tt_script_words *words,
                          int *ret_function)
{
    bool asks = false;
    int first = 0, status;

    *ret_function = -1;
    while (first < raw->n && is_assignment(raw->word[first]))
        first++;
    if (first == raw->n) { /* there are only assignments */
        for (int i = 0; i < raw->n; i++) {
            asks = asks || strchr(raw->word[i], '`') || strstr(raw->word[i], "$(");
            assign(sh, raw->word[i]);
        }
        return asks ? ask(sh, TT_WHY_PROGRAM) : 1;
    }
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
    return ask(sh, TT_WHY_PROGRAM);
}

/* Sets a variable that the user gives: "NAME=VALUE". Errors: TT_EUSAGE. */
static int give(struct tt_shell *sh, const char *text)
{
    size_t n = strspn(text, TT_SHELL_LETTERS);
    char *name;

    if (n == 0 || text[n] != '=')
        return tt_fail(TT_EUSAGE,
                       "estimate: --set '%s' is not NAME=VALUE\n"
                       "help: for instance --set MODEL_SIZE=7B, or --set 3=7B for the third argument of the script",
                       text);
    name = tt_strndup(text, n);
    tt_shell_set_word(sh, name, tt_shell_keep(sh, tt_strdup(text + n + 1)));
    for (int i = 0; i < sh->state.n; i++)
        if (strcmp(sh->state.variable[i].name, name) == 0)
            sh->state.variable[i].is_given = true;
    tt_free(name);
    return 0;
}

/* --- lists, branches, loops and functions --- */

struct run {
    struct tt_shell *sh;
    int at, skip, deep, rc;
};

static int list(struct run *r);
static int command(struct run *r);

/* --- tokens --- */

static const struct tt_shell_token *token(const struct run *r)
{
    return &r->sh->token[r->at];
}

static bool is_operator(const struct run *r, const char *text)
{
    return token(r)->kind == TT_SHELL_OPERATOR && strcmp(token(r)->text, text) == 0;
}

static bool is_word(const struct run *r, const char *text)
{
    return token(r)->kind == TT_SHELL_WORD && strcmp(token(r)->text, text) == 0;
}

/* Whether commands take effect or are only parsed. */
static bool is_live(const struct run *r)
{
    return r->skip == 0 && r->rc == 0 && r->sh->state.stop == TT_STOP_NONE;
}

static void fail(struct run *r, const char *wanted)
{
    const char *text = token(r)->kind == TT_SHELL_END      ? "the end"
                       : strcmp(token(r)->text, "\n") == 0 ? "the end of the line"
                                                           : token(r)->text;

    if (r->rc == 0)
        r->rc = tt_fail(TT_EDATA,
                        "%s:%d: wanted %s, found %.60s\nhelp: --megatron takes a shell script, or flags of "
                        "Megatron-LM alone",
                        r->sh->path, token(r)->line, wanted, text);
    r->at = r->sh->n_tokens - 1;
}

static void expect(struct run *r, const char *word)
{
    if (is_word(r, word))
        r->at++;
    else
        fail(r, word);
}

static void skip_lines(struct run *r)
{
    while (is_operator(r, "\n") || is_operator(r, ";"))
        r->at++;
}

/* Reads a list, a pipeline or a command without following it. */
static void pass(struct run *r, int (*part)(struct run *))
{
    r->skip++;
    (void)part(r);
    r->skip--;
}

/* --- ways --- */

/* The ways through a script that an unknown condition leaves open. */
struct ways {
    struct tt_shell_state before, *way;
    int n, cap, unknown;
    bool open, closed; /* open: there is an unknown condition; closed: one of the ways is certainly taken */
};

/* Follows or skips a list; `is`: whether the script goes this way (1, 0, or -1: unknown). */
static void follow(struct run *r, struct ways *w, int is)
{
    if (w->closed || is == 0) {
        pass(r, list);
        return;
    }
    if (is < 0 && !w->open) {
        w->open = true;
        w->unknown = r->sh->unknown;
        w->before = copy_shell(r->sh, &r->sh->state);
    }
    if (w->open)
        r->sh->state = copy_shell(r->sh, &w->before);
    (void)list(r);
    w->closed = is > 0;
    if (w->open) {
        TT_PUSH(w->way, w->n, w->cap) = r->sh->state;
        r->sh->state = copy_shell(r->sh, &w->before);
    }
}

static void join(struct run *r, struct ways *w)
{
    if (w->open && r->rc == 0) {
        if (!w->closed)
            TT_PUSH(w->way, w->n, w->cap) = w->before;
        merge_shells(r->sh, &w->before, w->way, w->n, w->unknown);
    }
    tt_free(w->way);
}

/* --- compound commands --- */

static int conditional(struct run *r)
{
    bool live = is_live(r), more = true;
    struct ways w = {.closed = !live};

    while (more && r->rc == 0) {
        int is;

        r->at++; /* skips if or elif */
        if (w.closed) {
            pass(r, list);
            is = 0;
        } else
            is = list(r);
        expect(r, "then");
        follow(r, &w, is);
        more = is_word(r, "elif");
    }
    if (is_word(r, "else")) {
        r->at++;
        follow(r, &w, 1);
    }
    expect(r, "fi");
    join(r, &w);
    return w.open ? ask(r->sh, TT_WHY_TEST) : 1;
}

/* After an iteration of a loop: whether there may be another one. */
static bool goes_on(struct run *r)
{
    enum tt_shell_stop stop = r->sh->state.stop;

    if (stop == TT_STOP_LOOP || stop == TT_STOP_TURN)
        r->sh->state.stop = TT_STOP_NONE;
    return r->rc == 0 && (stop == TT_STOP_NONE || stop == TT_STOP_TURN);
}

static void endless(struct run *r, int line)
{
    if (r->rc == 0)
        r->rc = tt_fail(TT_EUSAGE,
                        "estimate: %s:%d: the loop does not end within %d turns\nhelp: take it out of the "
                        "script, or give the flags after --",
                        r->sh->path, line, MOST_TURNS);
}

/* Reads an iteration of a loop; `is`: whether it runs (1, 0, or -1: perhaps). */
static void turn(struct run *r, int is)
{
    struct ways w = {.open = false};

    expect(r, "do");
    if (is < 0)
        follow(r, &w, is);
    else if (is)
        (void)list(r);
    else
        pass(r, list);
    expect(r, "done");
    join(r, &w);
}

static int loop_while(struct run *r)
{
    int line = token(r)->line, begin = r->at + 1, is = 1, turns = 0;
    bool until = is_word(r, "until"), live = is_live(r);

    do {
        r->at = begin;
        if (live)
            is = list(r);
        else
            pass(r, list);
        is = is < 0 || !until ? is : !is;
        turn(r, live ? is : 0);
        if (turns++ > MOST_TURNS)
            endless(r, line);
    } while (live && goes_on(r) && is == 1);
    return 1;
}

/* "for ((i = 0; i < 8; i++))" */
static int loop_counted(struct run *r)
{
    char *text = tt_strdup(token(r)->text), *test = strchr(text, ';'), *step = test ? strchr(test + 1, ';') : NULL;
    int line = token(r)->line, begin = r->at + 1, turns = 0;
    bool live = is_live(r), more = live;
    long long value = 0;

    if (!step) {
        fail(r, "for ((...; ...; ...))");
        tt_free(text);
        return 1;
    }
    *test++ = *step++ = 0;
    if (live)
        (void)tt_shell_arithmetic(r->sh, text, &value);
    do {
        int is = !live ? 0 : !tt_shell_arithmetic(r->sh, test, &value) ? -1 : value != 0;

        r->at = begin;
        skip_lines(r);
        turn(r, is);
        more = live && goes_on(r) && is > 0;
        if (more)
            (void)tt_shell_arithmetic(r->sh, step, &value);
        if (turns++ > MOST_TURNS)
            endless(r, line);
    } while (more && r->rc == 0);
    tt_free(text);
    return 1;
}

static int loop_for(struct run *r)
{
    struct tt_script_words words = {0};
    const char *name, *outer = r->sh->loop;
    bool live = is_live(r);
    int begin, turns = 0;
    struct tt_script_variable *v;

    r->at++;
    if (token(r)->kind == TT_SHELL_ARITHMETIC)
        return loop_counted(r);
    name = token(r)->text;
    r->at++;
    if (is_word(r, "in")) {
        for (r->at++; token(r)->kind == TT_SHELL_WORD; r->at++)
            if (live)
                tt_shell_expand(r->sh, token(r)->text, &words);
    } else
        words = r->sh->state.args;
    skip_lines(r);
    begin = r->at;
    v = tt_shell_find(r->sh, name);
    if (v && v->is_given && words.n > 1)
        words.n = 1;
    r->sh->loop = words.n > 1 ? name : outer;
    do {
        bool takes = live && words.n > 0;
        int mark = takes ? tt_script_mark(words.word[turns]) : -1;

        r->at = begin;
        if (takes)
            tt_shell_set_word(r->sh, name, words.word[turns]);
        if (mark >= 0)
            r->sh->unknown = mark;
        turn(r, mark >= 0 ? -1 : takes);
    } while (++turns < words.n && turns < MOST_TURNS && live && goes_on(r));
    if (live)
        (void)goes_on(r);
    r->sh->loop = outer;
    return 1;
}

static int choose(struct run *r)
{
    bool live = is_live(r);
    struct ways w = {.closed = !live};
    const char *word;

    r->at++;
    word = live ? tt_shell_expand_one(r->sh, token(r)->text) : "";
    r->at++;
    skip_lines(r);
    expect(r, "in");
    for (skip_lines(r); !is_word(r, "esac") && r->rc == 0; skip_lines(r)) {
        int is = 0;

        if (is_operator(r, "("))
            r->at++;
        for (; token(r)->kind == TT_SHELL_WORD || is_operator(r, "|"); r->at++)
            if (token(r)->kind == TT_SHELL_WORD && !w.closed && is != 1) {
                int one = tt_shell_match(r->sh, word, token(r)->text);

                is = one == 0 ? is : one;
            }
        if (!is_operator(r, ")")) {
            fail(r, ")");
            break;
        }
        r->at++;
        follow(r, &w, is);
        if (is_operator(r, ";;")) {
            r->at++;
            if (is_operator(r, "&"))
                r->at++;
        }
    }
    expect(r, "esac");
    join(r, &w);
    return 1;
}

static int group(struct run *r, bool is_shell)
{
    struct tt_shell_state before;
    bool live = is_live(r);

    r->at++;
    before = live && is_shell ? copy_shell(r->sh, &r->sh->state) : r->sh->state;
    (void)list(r);
    if (is_shell ? is_operator(r, ")") : is_word(r, "}"))
        r->at++;
    else
        fail(r, is_shell ? ")" : "}");
    if (live && is_shell && r->rc == 0) { /* a subshell has its own variables */
        before.command = r->sh->state.command;
        before.n_commands = r->sh->state.n_commands;
        before.cap_commands = r->sh->state.cap_commands;
        r->sh->state = before;
    }
    return ask(r->sh, TT_WHY_PROGRAM);
}

static int double_test(struct run *r)
{
    struct tt_script_words words = {0};

    for (r->at++; !is_word(r, "]]"); r->at++) {
        if (token(r)->kind == TT_SHELL_END) {
            fail(r, "]]");
            return 1;
        }
        if (!is_operator(r, "\n"))
            tt_shell_add(r->sh, &words, token(r)->text);
    }
    r->at++;
    return is_live(r) ? tt_shell_test(r->sh, words.word, words.n, true) : 1;
}

/* --- simple commands --- */

static int call(struct run *r, int body, const struct tt_script_words *words)
{
    struct tt_shell *sh = r->sh;
    struct tt_script_words args = sh->state.args;
    int back = r->at;

    if (sh->depth >= 20)
        return ask(r->sh, TT_WHY_FORM);
    sh->state.args = (struct tt_script_words){0};
    for (int i = 1; i < words->n; i++)
        tt_shell_add(sh, &sh->state.args, words->word[i]);
    sh->depth++;
    r->at = body;
    (void)command(r);
    sh->depth--;
    r->at = r->rc < 0 ? r->at : back;
    sh->state.args = args;
    if (sh->state.stop == TT_STOP_FUNCTION)
        sh->state.stop = TT_STOP_NONE;
    return ask(r->sh, TT_WHY_PROGRAM);
}

static int simple(struct run *r)
{
    struct tt_script_words raw = {0}, words = {0};
    int function, status;

    for (;; r->at++) {
        if (token(r)->kind == TT_SHELL_REDIRECT) {
            r->at++;
            if (token(r)->kind != TT_SHELL_WORD)
                r->at--;
        } else if (token(r)->kind == TT_SHELL_WORD)
            tt_shell_add(r->sh, &raw, token(r)->text);
        else
            break;
    }
    if (is_operator(r, "(") || token(r)->kind == TT_SHELL_ARITHMETIC) {
        fail(r, "a word (a parenthesis in a word needs quotes)");
        return 1;
    }
    if (!is_live(r))
        return 1;
    if (--r->sh->left < 0) {
        r->rc = tt_fail(TT_EUSAGE, "estimate: %s runs more than %d commands", r->sh->path, MOST_COMMANDS);
        return 1;
    }
    status = simple_command(r->sh, &raw, &words, &function);
    return function < 0 ? status : call(r, r->sh->function[function].at, &words);
}

/* "NAME() {...}", "function NAME {...}" */
static int define(struct run *r, bool has_word)
{
    struct tt_shell *sh = r->sh;
    int at = 0;

    r->at += has_word;
    while (at < sh->n_functions && strcmp(sh->function[at].name, token(r)->text) != 0)
        at++;
    if (at == (int)(sizeof sh->function / sizeof *sh->function)) {
        fail(r, "fewer functions");
        return 1;
    }
    sh->function[at].name = token(r)->text;
    r->at++;
    if (is_operator(r, "("))
        r->at += 2;
    skip_lines(r);
    sh->function[at].at = r->at;
    sh->n_functions += at == sh->n_functions;
    pass(r, command);
    return 1;
}

static int command(struct run *r)
{
    int status = 1;
    const struct tt_shell_token *next = token(r)->kind == TT_SHELL_END ? token(r) : token(r) + 1;
    long long value;

    r->sh->line = token(r)->line;
    if (++r->deep > DEEPEST)
        fail(r, "fewer nested commands");
    if (token(r)->kind == TT_SHELL_ARITHMETIC) {
        if (is_live(r))
            status = tt_shell_arithmetic(r->sh, token(r)->text, &value) ? value != 0 : -1;
        r->at++;
    } else if (is_word(r, "if"))
        status = conditional(r);
    else if (is_word(r, "while") || is_word(r, "until"))
        status = loop_while(r);
    else if (is_word(r, "for") || is_word(r, "select"))
        status = loop_for(r);
    else if (is_word(r, "case"))
        status = choose(r);
    else if (is_word(r, "{"))
        status = group(r, false);
    else if (is_operator(r, "("))
        status = group(r, true);
    else if (is_word(r, "[["))
        status = double_test(r);
    else if (is_word(r, "function"))
        status = define(r, true);
    else if (token(r)->kind == TT_SHELL_WORD && next->kind == TT_SHELL_OPERATOR && strcmp(next->text, "(") == 0 &&
             strcmp(next[1].text, ")") == 0)
        status = define(r, false);
    else if (token(r)->kind == TT_SHELL_WORD || token(r)->kind == TT_SHELL_REDIRECT)
        status = simple(r);
    else
        fail(r, "a command");
    while (token(r)->kind == TT_SHELL_REDIRECT)
        r->at += next->kind == TT_SHELL_END ? 1 : 2;
    r->deep--;
    return status;
}

static int pipeline(struct run *r)
{
    bool inverted = false;
    int status;

    while (is_word(r, "!") || is_word(r, "time")) {
        inverted = inverted != is_word(r, "!");
        r->at++;
    }
    status = command(r);
    while (is_operator(r, "|")) {
        r->at++;
        if (is_operator(r, "&"))
            r->at++;
        skip_lines(r);
        (void)command(r);
        status = ask(r->sh, TT_WHY_PROGRAM);
    }
    return status < 0 || !inverted ? status : !status;
}

static int and_or(struct run *r)
{
    int status = pipeline(r);

    while (is_operator(r, "&&") || is_operator(r, "||")) {
        bool wanted = is_operator(r, "&&"), live = is_live(r);
        struct tt_shell_state states[2], before;
        int unknown = r->sh->unknown;

        r->at++;
        skip_lines(r);
        if (!live || (status >= 0 && (status == 1) != wanted)) {
            pass(r, pipeline);
            continue;
        }
        if (status >= 0) {
            status = pipeline(r);
            continue;
        }
        before = states[1] = copy_shell(r->sh, &r->sh->state);
        status = pipeline(r);
        states[0] = r->sh->state;
        merge_shells(r->sh, &before, states, 2, unknown);
        r->sh->unknown = unknown;
        status = -1;
    }
    return status;
}

static int list(struct run *r)
{
    static const char *const ends[] = {"then", "elif", "else", "fi", "do", "done", "esac", "}"};
    int status = 1;

    while (r->rc == 0) {
        bool is_end;

        while (is_operator(r, "\n") || is_operator(r, ";") || is_operator(r, "&"))
            r->at++;
        is_end = token(r)->kind == TT_SHELL_END || is_operator(r, ")") || is_operator(r, ";;");
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
            is_end = is_end || is_word(r, ends[i]);
        if (is_end)
            break;
        status = and_or(r);
    }
    return status;
}

/* --- scripts --- */

int tt_script_read(struct tt_script *script, const char *path, const char *text, const char *const *given, int n_given,
                   const char *args)
{
    struct tt_shell sh = {.script = script, .path = path, .has_args = args != NULL, .left = MOST_COMMANDS};
    struct run r = {.sh = &sh};
    char *list_of_args = NULL;
    int rc = 0;

    TT_TRY(tt_shell_lex(&sh, text));
    for (int i = 0; i < n_given; i++)
        TT_TRY(give(&sh, given[i]));
    if (args) {
        list_of_args = tt_format("(%s)", args);
        tt_shell_expand_list(&sh, list_of_args, &sh.state.args);
    }
    (void)list(&r);
    if (r.rc == 0 && token(&r)->kind != TT_SHELL_END)
        fail(&r, "a command");
    rc = r.rc;
    script->command = sh.state.command;
    script->n_commands = sh.state.n_commands;
    script->variable = sh.state.variable;
    script->n_variables = sh.state.n;
out:
    tt_free(list_of_args);
    tt_free(sh.token);
    return rc;
}
