/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_HARDWARE_STACK_FILE_H
#define TT_CLUSTER_HARDWARE_STACK_FILE_H

#include "cluster/hardware/machine.h"

/* A stack from a file, with the tree that its texts are in. Zero-initialise; tt_cluster_stack_release. */
struct tt_cluster_stack_file {
    struct tt_cluster_stack stack;
    json_t *json;
};

/**
 * Reads a stack file: a JSON object with "type": "stack", "schema": 2, "name", and in "numbers" the numbers of
 * stack_keys.def. With "base", the name of a built-in stack, what is missing is that stack's. "origin" may have a text
 * for each key. Errors: TT_EDATA naming the file and a number that is missing, unknown or negative; TT_EIO.
 */
int tt_cluster_stack_load(const char *path, struct tt_cluster_stack_file *ret_file) TT_MUST_CHECK;
void tt_cluster_stack_release(struct tt_cluster_stack_file *file);

/** The stack in the form that tt_cluster_stack_load reads, with all origins. The caller's (json_decref). */
json_t *tt_cluster_stack_json(const struct tt_cluster_stack *stack);

#endif
