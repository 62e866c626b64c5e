/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_LAYOUT_INIT_H
#define TT_PARALLEL_LAYOUT_INIT_H

#include "core/config/config.h"
#include "core/keys/choices.h"
#include "core/models/model.h"
#include "core/os/team.h"
#include "core/program/layout.h"

/**
 * Initial values of the parameters. Every element is a function of the seed, the parameter's name and its index, so all
 * methods give the same bits. They differ in the memory that a rank needs in addition to its shards. meta: none, or 4
 * bytes per element of the largest packed matrix. full: 4 bytes per parameter of the whole model, from which this rank
 * copies its parts. layerwise: 4 bytes per parameter of the largest unit.
 */
enum { TT_INIT_MODES = TT_INIT_LAYERWISE + 1 };

/** Bytes of the buffer that is needed in addition to the shards. */
int64_t tt_init_buffer_bytes(const struct tt_layout *layout, const struct tt_model *model, enum tt_init_choice how);

/**
 * Fills this rank's part of every parameter; param[unit] is the flat shard of a unit, whose dtype is TT_F32 or TT_BF16
 * (the same values, rounded to the nearest); the shard of a packed unit holds packed rows. The threads of `team` share
 * the work (NULL: the calling thread does it). Not collective. TT_EINTERNAL, before anything is written, names a
 * parameter without a rule. TT_EFIT if the system refuses the buffer.
 */
int tt_init_params(struct tt_team *team, const struct tt_layout *layout, const struct tt_model *model,
                   enum tt_init_choice how, uint64_t seed, enum tt_dtype dtype, void *const *param) TT_MUST_CHECK;

/** The same for trained parameters and buffers only, for a run that loads all other weights. All of them have rules. */
void tt_init_trained(struct tt_team *team, const struct tt_layout *layout, const struct tt_model *model, uint64_t seed,
                     enum tt_dtype dtype, void *const *param);

/**
 * Initial values that replace the family's. A rule is "regex=what". The regular expression is searched for in
 * the names of the parameters, and "what" is one of
 *
 *     normal(STD) or normal(STD,CUT)   mean 0; values beyond CUT from 0 (absolute) are not drawn
 *     uniform(LOW,HIGH)   constant(VALUE)   zeros   ones
 *
 * The first rule that matches a parameter applies. Values still depend only on the seed, the parameter's name and the
 * index of the element, so the bits are the same on any mesh.
 */

/**
 * Changes the rules of the parameters. init_std (NaN: not given) replaces the 0.02 in the family's rules, which divide
 * it by the same factor for depth. The rules of `words` are applied after it. TT_EUSAGE, about model.init_rules, for a
 * text that is not a rule, or for a rule that sets no parameter (no parameter matches it, or earlier rules match all
 * that do).
 */
int tt_init_rules_apply(struct tt_model *model, double init_std, struct tt_words words) TT_MUST_CHECK;

#endif
