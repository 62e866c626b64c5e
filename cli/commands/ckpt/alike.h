/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_COMMANDS_CKPT_ALIKE_H
#define TT_CLI_COMMANDS_CKPT_ALIKE_H

#include "checkpoint/format/manifest.h"

/* Tensors on one line of a table, in the place of the first. */
struct tt_alike {
    int first; /* of the manifest's tensors */
    int n;
    char *name; /* "layers.0-5.attention.wq.weight" */
};

/**
 * Groups tensors that differ only in the numbers of their names, such as a weight of several layers or experts. They
 * share group, type, shape and number of chunks, and every combination of the numbers exists. Others stay alone.
 * In the order of the manifest. The caller releases *ret_alike.
 */
void tt_alike_find(const struct tt_manifest *manifest, struct tt_alike **ret_alike, int *ret_n);
void tt_alike_release(struct tt_alike *alike, int n);

#endif
