/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_ESTIMATE_NAMES_H
#define TT_CLI_ESTIMATE_NAMES_H

#include <stdbool.h>

#include "core/base/error.h"

/* Names that a user may write in many ways, such as "h100-sxm" and "llama3.1-70b". */
struct tt_names {
    const char *what;                       /* for messages: "the machine" */
    const char *const *name, *const *title; /* [n]; titles are searched too; NULL: none */
    int n;
    /* whether two names mean the same thing, so that the first may stand for both; NULL: never */
    bool (*same)(const char *a, const char *b);
    const char *more; /* words that may stand beside a name, such as "instruct|chat"; numbers always may */
    const char *help; /* the end of the message about an unknown name: "or the path of a machine file" */
};

/**
 * The index of the name that matches a word: the same letters and numbers in another spelling ("Llama 3.1 70B"), a part
 * of them ("h100", "70b"), or more of them ("meta-llama/Llama-3.1-70B-Instruct"). TT_EUSAGE, with up to three similar
 * names: no name matches, or several different ones do.
 */
int tt_names_find(const struct tt_names *names, const char *word, int *ret_index) TT_MUST_CHECK;

/**
 * Whether a word consists of all letters and numbers of a name except the letters at its beginning: "4090" for
 * "rtx-4090".
 */
bool tt_names_is_number_of(const char *word, const char *name);

#endif
