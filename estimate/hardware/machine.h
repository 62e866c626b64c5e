/* SPDX-License-Identifier: MIT */
#ifndef TT_ESTIMATE_HARDWARE_MACHINE_H
#define TT_ESTIMATE_HARDWARE_MACHINE_H

#include "core/base/error.h"
#include "core/base/json.h"

/**
 * Tables of numbers for predictions about clusters: a machine is hardware, a stack is the software that trains on it.
 * Each number has an origin: a datasheet, a measurement, or the runs to which it was fitted. The built-in tables are
 * machines.def and stacks.def.
 */
struct tt_cluster_number {
    double value;
    const char *origin;
};

enum tt_machine_key {
#define X(id, key, doc) TT_M_##id,
#include "estimate/hardware/machine_keys.def"
#undef X
    TT_MACHINE_KEYS
};

enum tt_stack_key {
#define X(id, key, doc) TT_S_##id,
#include "estimate/hardware/stack_keys.def"
#undef X
    TT_STACK_KEYS
};

/* A measured curve: the share of a level's rate that a ring of some devices reaches, by the bytes of the whole tensor.
 * It includes latency. */
enum { TT_RAMP_POINTS = 32 };
struct tt_cluster_ramp {
    int n; /* 0: no curve; the share for large messages and the latencies are used instead */
    double devices;
    struct {
        double bytes, share;
    } point[TT_RAMP_POINTS]; /* in ascending order of bytes */
};

/* One kind of device, in nodes on a network of two levels. The texts of a machine from a file belong to `file`, which
 * the owner of the machine releases (json_decref). */
struct tt_cluster_machine {
    const char *name, *title;
    struct tt_cluster_number number[TT_MACHINE_KEYS];
    struct tt_cluster_ramp ramp[2]; /* curves of the links in a node, and of the network */
    double exchange_share[2];       /* the share of a level's rate that all-to-all reaches; 0: the same as rings */
    json_t *file;                   /* NULL: the machine is built in */
};

/* A training program, in numbers: what it saves, launches, overlaps and keeps in memory. */
struct tt_cluster_stack {
    const char *name, *title;
    struct tt_cluster_number number[TT_STACK_KEYS];
    json_t *file; /* NULL: the stack is built in */
};

/** Whether the stack is of Megatron's kind, in which data-parallel ranks hold copies of the parameters. */
bool tt_cluster_stack_is_megatron(const struct tt_cluster_stack *stack);

/** Built-in table number i, from 0; NULL after the last. */
const struct tt_cluster_machine *tt_cluster_machine_at(int index);
const struct tt_cluster_stack *tt_cluster_stack_at(int index);

/** The built-in table of that name, ignoring case; TT_EUSAGE listing the names. */
int tt_cluster_machine_find(const char *name, const struct tt_cluster_machine **ret_machine) TT_MUST_CHECK;
int tt_cluster_stack_find(const char *name, const struct tt_cluster_stack **ret_stack) TT_MUST_CHECK;

/**
 * Reads a machine file of schema 2: a JSON object with "type": "machine", "schema": 2, "name", and the numbers of
 * machine_keys.def at their paths ("levels.0.share" is in the first object of the list "levels"). With "base", the name
 * of a built-in machine, missing numbers are taken from that machine. "origin" may contain a text for each path.
 * TT_EDATA names the file and the path of a number that is missing, unknown or negative; TT_EIO.
 */
int tt_cluster_machine_load(const char *path, struct tt_cluster_machine *ret_machine) TT_MUST_CHECK;

/** The machine in the form that tt_cluster_machine_load reads, with all origins. Free it with json_decref. */
json_t *tt_cluster_machine_json(const struct tt_cluster_machine *machine);

/**
 * Takes rates of links from the output of nccl-tests or rccl-tests: the bus bandwidth of the largest message, and the
 * bus bandwidths of all sizes as a ramp. A test on one node measures the links in the node (an all-reduce without a
 * ramp: the switch, if that does the reduction), a larger test measures the network. TT_EDATA if the text has no such
 * lines; `where` names it.
 *   origin  origin of the numbers, which must outlive the machine
 */
int tt_cluster_machine_take_nccl(struct tt_cluster_machine *machine, const char *text, const char *where,
                                 const char *origin) TT_MUST_CHECK;

/**
 * Reads a stack file: a JSON object with "type": "stack", "schema": 2, "name", and in "numbers" the numbers of
 * stack_keys.def. With "base", the name of a built-in stack, missing numbers are taken from that stack. "origin" may
 * contain a text for each key. TT_EDATA names the file and a number that is missing, unknown or negative; TT_EIO.
 */
int tt_cluster_stack_load(const char *path, struct tt_cluster_stack *ret_stack) TT_MUST_CHECK;

/** The stack in the form that tt_cluster_stack_load reads, with all origins. Free it with json_decref. */
json_t *tt_cluster_stack_json(const struct tt_cluster_stack *stack);

#endif
