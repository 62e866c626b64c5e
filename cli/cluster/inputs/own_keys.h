/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_INPUTS_OWN_KEYS_H
#define TT_CLI_CLUSTER_INPUTS_OWN_KEYS_H

#include "cli/cluster/inputs/notes.h"
#include "core/config/args.h"
#include "core/config/config.h"

/* What predictions about clusters make of a key of titan's; see own_keys.def. */
enum tt_own_key_class { TT_OWN_UNKNOWN, TT_OWN_PRICED, TT_OWN_FREE, TT_OWN_LEFT, TT_OWN_REFUSED };

/** The row of a key, and how many rows there are. */
enum tt_own_key_class tt_cluster_own_key(const char *path);
int tt_cluster_own_key_path(int row, const char **ret_path);

/**
 * Names what a configuration sets and a prediction leaves out, and what --ignore-flag leaves out of it.
 *   is_titan    the stack is titan's
 *   is_planned  the memory is that of a plan of titan's
 * TT_EUSAGE: with a key that is set, a prediction would be of another job.
 */
int tt_cluster_own_keys_check(const struct tt_config *cfg, const struct tt_args *args, bool is_titan, bool is_planned,
                              struct tt_cluster_notes *notes) TT_MUST_CHECK;

#endif
