/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_SCRIPT_INTERNAL_H
#define TT_ESTIMATE_SCRIPT_INTERNAL_H

#include <stddef.h>

#include "estimate/script/script.h"

/* A piece of a script. The text of a word includes its quotes. */
struct tt_shell_token {
    enum { TT_SHELL_WORD, TT_SHELL_OPERATOR, TT_SHELL_REDIRECT, TT_SHELL_ARITHMETIC, TT_SHELL_END } kind;
    const char *text;
    int line;
};

enum tt_shell_stop { TT_STOP_NONE, TT_STOP_TURN, TT_STOP_LOOP, TT_STOP_FUNCTION, TT_STOP_ALL };

/* Everything that may differ between two ways through a script. */
struct tt_shell_state {
    struct tt_script_variable *variable;
    int n, cap;
    struct tt_script_words args;
    struct tt_script_command *command;
    int n_commands, cap_commands;
    enum tt_shell_stop stop;
};

struct tt_shell {
    struct tt_script *script;
    const char *path;
    struct tt_shell_token *token;
    int n_tokens, cap_tokens;
    struct tt_shell_state state;
    bool has_args;
    int line;    /* of the command that is being read */
    int unknown; /* the unknown thing on which the last unknown condition depends */
    struct {
        const char *name;
        int at; /* token of the body */
    } function[64];
    int n_functions, depth;
    long left;        /* commands that may still be run */
    const char *loop; /* the variable of the loop that is being read */
};

/* The characters of names. */
#define TT_SHELL_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789"

/** Keeps a string until the script is released. */
const char *tt_shell_keep(struct tt_shell *sh, char *text);

void tt_shell_add(struct tt_shell *sh, struct tt_script_words *words, const char *word);

/** The variable of that name; NULL: it was never set. */
struct tt_script_variable *tt_shell_find(struct tt_shell *sh, const char *name);

/** Sets a variable, or adds to it, unless the user gave its value. An unknown value without a name gets this name. */
void tt_shell_set_word(struct tt_shell *sh, const char *name, const char *word);

/** Makes a mark of a new unknown thing; name may be NULL. */
const char *tt_shell_unknown(struct tt_shell *sh, enum tt_script_why why, const char *name);

/* --- expand.c --- */

/** Cuts a text into tokens, the last of which is TT_SHELL_END. TT_EDATA. */
int tt_shell_lex(struct tt_shell *sh, const char *text) TT_MUST_CHECK;

/** Expands a raw word and adds the resulting words. */
void tt_shell_expand(struct tt_shell *sh, const char *raw, struct tt_script_words *words);

/** The same, but the result is one text, not split at blanks. */
const char *tt_shell_expand_one(struct tt_shell *sh, const char *raw);

/** Whether a value is empty: 1, 0, or -1: unknown. A variable that nothing sets counts as empty. */
int tt_shell_is_empty(struct tt_shell *sh, const struct tt_script_words *value);

/** Adds the words of a list in parentheses: "(a b)". */
void tt_shell_expand_list(struct tt_shell *sh, const char *raw, struct tt_script_words *words);

/* --- test.c --- */

/** Computes arithmetic. Returns true with the value; or false, and then sh->unknown is the unknown thing on which it
 * depends. */
bool tt_shell_arithmetic(struct tt_shell *sh, const char *text, long long *ret_value);

/** Evaluates a test: 1 true, 0 false, -1 unknown, and then sh->unknown is the unknown thing on which it depends. The
 * words include their quotes. */
int tt_shell_test(struct tt_shell *sh, const char *const *raw, int n, bool is_double);

/** Whether a word matches a pattern of `case`; results as above. */
int tt_shell_match(struct tt_shell *sh, const char *word, const char *pattern);

#endif
