/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_INIT_RULES_H
#define TT_PARALLEL_LAYOUT_INIT_RULES_H

#include "core/config/config.h"
#include "core/models/model.h"

/**
 * Initial values that replace those of the family. A rule is "regex=what". The regular expression is searched for in
 * the names of the parameters, and "what" is one of
 *
 *     normal(STD) or normal(STD,CUT)   mean 0; values beyond CUT from 0 (absolute) are not drawn
 *     uniform(LOW,HIGH)   constant(VALUE)   zeros   ones
 *
 * The first rule that matches a parameter applies. Values still depend only on the seed, the parameter's name and the
 * index of the element, so the bits are the same on any mesh.
 */

/**
 * Changes the rules of the parameters. init_std (NaN: not given) replaces the 0.02 of the family's rules and is divided
 * by the same factor for depth. The rules of `words` are applied after it. TT_EUSAGE, about TT_KEY_INIT_RULES, for a
 * text that is not a rule, or a rule that no parameter is left for.
 */
int tt_init_rules_apply(struct tt_model *model, double init_std, struct tt_words words) TT_MUST_CHECK;

#endif
