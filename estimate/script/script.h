/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_SCRIPT_SCRIPT_H
#define TT_ESTIMATE_SCRIPT_SCRIPT_H

#include <stdbool.h>

#include "core/base/error.h"

/**
 * Shell scripts that start a training, read without being run: no program is started, and no other file is read. What
 * a script computes by itself is computed: variables, lists, tests, branches, loops, functions, arithmetic. What it
 * gets from elsewhere (the environment, arguments, the output of programs, other files) is unknown, and stays so in all
 * that depends on it. Of a branch whose condition is unknown all ways are followed, and a variable that differs
 * afterwards has several values.
 */
enum tt_script_why {
    TT_WHY_UNSET,    /* nothing in the script sets the variable */
    TT_WHY_ARGUMENT, /* an argument of the script */
    TT_WHY_PROGRAM,  /* the output of a program, or how it ended */
    TT_WHY_FORM,     /* an expansion that is not understood */
    TT_WHY_TEST,     /* a test of a file, or one that is not understood */
    TT_WHY_CHOICE,   /* several values, by an unknown condition */
};

/* Words; the script owns them. A word may have marks of what is unknown: see tt_script_mark. */
struct tt_script_words {
    const char **word;
    int n, cap;
};

struct tt_script_unknown {
    enum tt_script_why why;
    const char *name; /* the variable that decides it if it is given; NULL: none does */
    int line;
    int of;                        /* a choice: the unknown thing that chooses */
    struct tt_script_words *value; /* a choice: what it may be */
    int n_values;
    struct tt_script_words compared; /* what the script compares it with */
};

struct tt_script_command {
    struct tt_script_words words;
    int line;
    int under;        /* the unknown thing on which it depends whether this is run; -1: it is */
    const char *loop; /* the variable of a loop that runs it more than once; NULL: there is none */
};

struct tt_script_variable {
    const char *name;
    struct tt_script_words value;
    bool is_set, is_given;
};

/* Zero-initialise; tt_script_release. */
struct tt_script {
    struct tt_script_unknown *unknown;
    int n_unknown, cap_unknown;
    const struct tt_script_command *command; /* in the order in which they would run, without builtins of the shell */
    int n_commands;
    const struct tt_script_variable *variable; /* as they are at the end */
    int n_variables;
    const char *source;             /* a file that the script reads, and that is not read here; NULL: none */
    struct tt_script_words assumed; /* variables that nothing sets and that were taken as not set */
    void **owned;
    int n_owned, cap_owned;
};

/**
 * Reads a script.
 *   given  "NAME=VALUE": variables that keep this value whatever the script sets, or arguments by number, "3=7B"
 *   args   all of the script's arguments, separated by blanks; NULL: it has none, and "$3" is unknown
 * TT_EUSAGE: a variable is no NAME=VALUE. TT_EDATA naming the line: the text is no script, or does not end.
 */
int tt_script_read(struct tt_script *script, const char *path, const char *text, const char *const *given, int n_given,
                   const char *args) TT_MUST_CHECK;
void tt_script_release(struct tt_script *script);

/** The first unknown thing whose mark is in a word, or -1. Marks are "\1NUMBER\2". */
int tt_script_mark(const char *word);

/** Whether a word is a mark and nothing else. */
bool tt_script_is_mark(const char *word);

#endif
