/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_INIT_RULES_H
#define TT_PARALLEL_LAYOUT_INIT_RULES_H

#include "core/config/config.h"
#include "core/models/model.h"

/**
 * First values as a person wants them, in place of the family's own rules. A rule is "regex=what": the regular
 * expression is searched for in the names of the parameters, what is
 *
 *     normal(STD) or normal(STD,CUT)   mean 0; values beyond CUT from 0 (absolute) are not drawn
 *     uniform(LOW,HIGH)   constant(VALUE)   zeros   ones
 *
 * The first rule that matches a parameter counts. Values still depend only on the seed, the parameter's name and the
 * index of the element, so they are the same bits on any mesh.
 */

/**
 * Changes the parameters' rules. init_std (NaN: not given) replaces the 0.02 of the family's rules, divided by the same
 * share of the depth as there; the rules of `words` come after it. TT_EUSAGE, about TT_KEY_INIT_RULES, for a rule that
 * is none, or that no parameter is left for.
 */
int tt_init_rules_apply(struct tt_model *model, double init_std, struct tt_words words) TT_MUST_CHECK;

#endif
