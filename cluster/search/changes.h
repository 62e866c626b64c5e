/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_CHANGES_H
#define TT_CLUSTER_CHANGES_H

#include "cluster/search/search.h"

/* One change of a layout, and what it does. */
struct tt_cluster_change {
    const char *text;
    struct tt_cluster_layout layout;
    double gain; /* of tokens/s, as a share: 0.1 is 10 % more */
};

enum { TT_CLUSTER_CHANGES = 12 };

/**
 * The changes of one thing that can run on the same devices and compute a step of as many sequences, those that fit
 * first, then by their gain. Returns how many there are.
 */
int tt_cluster_changes(const struct tt_cluster_layout *layout, double usable,
                       struct tt_cluster_change ret_change[TT_CLUSTER_CHANGES]);

#endif
