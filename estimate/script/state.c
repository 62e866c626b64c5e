/* SPDX-License-Identifier: MIT
 *
 * The variables of a script, and the unknown values among them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "estimate/script/internal.h"

const char *tt_shell_keep(struct tt_shell *sh, char *text)
{
    TT_PUSH(sh->script->owned, sh->script->n_owned, sh->script->cap_owned) = text;
    return text;
}

void *tt_shell_block(struct tt_shell *sh, const void *from, int n, int cap, size_t size)
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
        words->word = tt_shell_block(sh, (const void *)words->word, words->n, words->cap, sizeof *words->word);
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
        s->variable = tt_shell_block(sh, s->variable, s->n, s->cap, sizeof *s->variable);
    }
    v = &s->variable[s->n++];
    *v = (struct tt_script_variable){.name = tt_shell_keep(sh, tt_strdup(name))};
    return v;
}

void tt_shell_set(struct tt_shell *sh, const char *name, const struct tt_script_words *value, bool is_added)
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
    tt_shell_set(sh, name, &one, false);
}

void tt_shell_unset(struct tt_shell *sh, const char *name)
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

bool tt_script_is_mark(const char *word)
{
    return *word == '\1' && strchr(word, '\2')[1] == 0;
}

/* --- ways through a script --- */

struct tt_shell_state tt_shell_copy(struct tt_shell *sh, const struct tt_shell_state *state)
{
    struct tt_shell_state copy = *state;

    copy.cap = state->n + 1;
    copy.variable = tt_shell_block(sh, state->variable, state->n, copy.cap, sizeof *copy.variable);
    for (int i = 0; i < copy.n; i++)
        copy.variable[i].value.cap = copy.variable[i].value.n; /* so that the list moves when it grows */
    copy.args.cap = copy.args.n;
    copy.cap_commands = state->n_commands + 1;
    copy.command = tt_shell_block(sh, state->command, state->n_commands, copy.cap_commands, sizeof *copy.command);
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
    struct tt_script_words *value = tt_shell_block(sh, NULL, 0, n, sizeof *value), one = {0};
    int number = sh->script->n_unknown;

    if (!values_of(states, n, name, value)) {
        if (value[0].n)
            tt_shell_set(sh, name, &value[0], false);
        return;
    }
    tt_shell_add(sh, &one, tt_shell_unknown(sh, TT_WHY_CHOICE, name));
    sh->script->unknown[number].of = unknown;
    sh->script->unknown[number].value = value;
    sh->script->unknown[number].n_values = n;
    tt_shell_set(sh, name, &one, false);
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
    s->command = tt_shell_block(sh, states[0].command, n_before, s->cap_commands, sizeof *s->command);
    for (int i = 0; i < n; i++)
        for (int k = n_before; k < states[i].n_commands; k++) {
            s->command[s->n_commands] = states[i].command[k];
            if (s->command[s->n_commands].under < 0)
                s->command[s->n_commands].under = unknown;
            s->n_commands++;
        }
}

void tt_shell_merge(struct tt_shell *sh, const struct tt_shell_state *before, const struct tt_shell_state *states,
                    int n, int unknown)
{
    struct tt_shell_state *kept = tt_shell_block(sh, NULL, 0, n + 1, sizeof *kept);
    int n_kept = 0;

    for (int i = 0; i < n; i++) /* a way that ends the script trains nothing */
        if (states[i].stop != TT_STOP_ALL)
            kept[n_kept++] = states[i];
    sh->state = tt_shell_copy(sh, n_kept ? &kept[0] : before);
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
