/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_HARDWARE_MACHINE_FILE_H
#define TT_CLUSTER_HARDWARE_MACHINE_FILE_H

#include "cluster/hardware/machine.h"

/* A machine from a file, with the tree that its texts are in. Zero-initialise; tt_cluster_machine_release. */
struct tt_cluster_machine_file {
    struct tt_cluster_machine machine;
    json_t *json;
};

/**
 * Reads a machine file of schema 2: a JSON object with "type": "machine", "schema": 2, "name", and the numbers of
 * machine_keys.def at their paths ("levels.0.share" is in the first object of the list "levels"). With "base", the name
 * of a built-in machine, what is missing is that machine's. "origin" may have a text for each path. Errors: TT_EDATA
 * naming the file and the path of a number that is missing, unknown or negative; TT_EIO.
 */
int tt_cluster_machine_load(const char *path, struct tt_cluster_machine_file *ret_file) TT_MUST_CHECK;
void tt_cluster_machine_release(struct tt_cluster_machine_file *file);

/** TT_EDATA naming a member of a file that is neither one of `names` nor one of `others`. */
int tt_cluster_check_names(const char *file, json_t *json, const char *const *names, size_t n,
                           const char *const *others, size_t n_others) TT_MUST_CHECK;

/** The machine in the form that tt_cluster_machine_load reads, with all origins. The caller's (json_decref). */
json_t *tt_cluster_machine_json(const struct tt_cluster_machine *machine);

/**
 * Takes the rate of links from the output of nccl-tests or rccl-tests: the bus bandwidth of the largest message, and
 * those of all sizes as a ramp. Of devices of one node it is that of the links inside (of an all-reduce, where the
 * machine reduces in a switch, the rate of the switch, without a ramp), of more devices that of the network. TT_EDATA
 * if the text has no such lines; `where` names it.
 *   origin  kept; what the numbers are said to be from
 */
int tt_cluster_machine_take_nccl(struct tt_cluster_machine *machine, const char *text, const char *where,
                                 const char *origin) TT_MUST_CHECK;

#endif
