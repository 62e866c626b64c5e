/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_SELECT_H
#define TT_MODELS_SELECT_H

#include <stdbool.h>

#include "core/base/error.h"

/**
 * Patterns that select modules by their names, as PEFT reads target_modules: a name or its end after a dot
 * ("self_attn.q_proj"), or a regular expression that matches a whole name. Names have no ".weight" at their end.
 */

/**
 * Sets selected[i] where the pattern selects name[i], and *ret_any if it selects any; leaves the others unchanged.
 *   name      [n], NULL: no such module
 *   selected  [n]
 * TT_EUSAGE if the expression is wrong.
 */
int tt_names_select(const char *pattern, const char *const *name, int n, bool *selected, bool *ret_any) TT_MUST_CHECK;

/**
 * Advice for a pattern that selects none of the names: the nearest one, cut to the length of the pattern, and examples
 * of names. `more`: n_more further words that a pattern could be. A sentence for "help:"; the caller frees it.
 */
char *tt_names_advise(const char *pattern, const char *const *name, int n, const char *const *more, int n_more);

#endif
