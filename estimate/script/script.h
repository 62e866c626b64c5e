/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_SCRIPT_SCRIPT_H
#define TT_ESTIMATE_SCRIPT_SCRIPT_H

#include <stdbool.h>
#include <string.h>

#include "core/base/error.h"

/**
 * Reads shell scripts that start a training, without running them: it starts no program and reads no other file.
 * Variables, lists, tests, branches, loops, functions and arithmetic are evaluated. Everything from outside the script
 * (the environment, arguments, the output of programs, other files) is unknown, and so is everything that depends on
 * it. If the condition of a branch is unknown, the reader follows all ways, and a variable that differs afterwards has
 * several values.
 */
enum tt_script_why {
    TT_WHY_UNSET,    /* nothing in the script sets the variable */
    TT_WHY_ARGUMENT, /* an argument of the script */
    TT_WHY_PROGRAM,  /* the output of a program, or its exit status */
    TT_WHY_FORM,     /* an expansion that titan does not understand */
    TT_WHY_TEST,     /* a test of a file, or a test that titan does not understand */
    TT_WHY_CHOICE,   /* several values, depending on an unknown condition */
};

/* Words; the script owns them. A word may contain marks of unknown things: see tt_script_mark. */
struct tt_script_words {
    const char **word;
    int n, cap;
};

struct tt_script_unknown {
    enum tt_script_why why;
    const char *name; /* the variable that would determine it if the user gave its value; NULL: there is none */
    int line;
    int of;                        /* for a choice: the unknown thing that chooses */
    struct tt_script_words *value; /* for a choice: the possible values */
    int n_values;
    struct tt_script_words compared; /* the words with which the script compares it */
};

struct tt_script_command {
    struct tt_script_words words;
    int line;
    int under;        /* the unknown value that decides whether the command runs; -1: it certainly runs */
    const char *loop; /* the variable of a loop that runs it more than once; NULL: none does */
};

struct tt_script_variable {
    const char *name;
    struct tt_script_words value;
    bool is_set, is_given;
};

/* Zero-initialise it; release it with tt_script_release. */
struct tt_script {
    struct tt_script_unknown *unknown;
    int n_unknown, cap_unknown;
    const struct tt_script_command *command; /* in the order in which they would run; without builtins of the shell */
    int n_commands;
    const struct tt_script_variable *variable; /* with their values at the end of the script */
    int n_variables;
    const char *source;             /* a file that the script would read, which titan does not read; NULL: none */
    struct tt_script_words assumed; /* variables that nothing sets, and that titan treats as not set */
    void **owned;
    int n_owned, cap_owned;
};

/**
 * Reads a script.
 *   given  "NAME=VALUE": variables that keep this value, whatever the script sets; or arguments by number, "3=7B"
 *   args   all of the script's arguments, separated by blanks; NULL: they are not given, and "$3" is unknown
 * TT_EUSAGE: a given variable is not of the form NAME=VALUE. TT_EDATA names the line: the text is not a script, or is
 * incomplete.
 */
int tt_script_read(struct tt_script *script, const char *path, const char *text, const char *const *given, int n_given,
                   const char *args) TT_MUST_CHECK;
void tt_script_release(struct tt_script *script);

/** The first unknown value whose mark is in a word, or -1. Marks are "\1NUMBER\2". */
int tt_script_mark(const char *word);

/** Whether a word is a mark and nothing else. */
static inline bool tt_script_is_mark(const char *word)
{
    return *word == '\1' && strchr(word, '\2')[1] == 0;
}

#endif
