/* SPDX-License-Identifier: MIT */
#ifndef TT_CLUSTER_HARDWARE_MACHINE_H
#define TT_CLUSTER_HARDWARE_MACHINE_H

#include "core/base/error.h"
#include "core/base/json.h"

/**
 * Tables of numbers for predictions about clusters: a machine is hardware, a stack is the software that trains on it.
 * Each number has an origin in words: a datasheet, a measurement, or what it was fitted to. The built-in tables are in
 * machines.def, stacks.def and stacks_megatron.def.
 */
struct tt_cluster_number {
    double value;
    const char *origin;
};

enum tt_machine_key {
#define X(id, key, doc) TT_M_##id,
#include "cluster/hardware/machine_keys.def"
#undef X
    TT_MACHINE_KEYS
};

enum tt_stack_key {
#define X(id, key, doc) TT_S_##id,
#include "cluster/hardware/stack_keys.def"
#undef X
    TT_STACK_KEYS
};

/* The share of a level's rate that a ring reaches, by the bytes of the whole tensor: a measured curve, latency
 * included, of so many devices. */
enum { TT_RAMP_POINTS = 32 };
struct tt_cluster_ramp {
    int n; /* 0: none; then the share of large messages and latencies count */
    double devices;
    struct {
        double bytes, share;
    } point[TT_RAMP_POINTS]; /* by ascending bytes */
};

/* One kind of device, in nodes on a network of two levels. */
struct tt_cluster_machine {
    const char *name, *title;
    struct tt_cluster_number number[TT_MACHINE_KEYS];
    struct tt_cluster_ramp ramp[2]; /* of the links inside a node, of the network */
    double exchange_share[2];       /* of their rates, that all-to-all exchanges reach; 0: as much as rings */
};

/* What a training program saves, launches, overlaps and keeps. */
struct tt_cluster_stack {
    const char *name, *title;
    struct tt_cluster_number number[TT_STACK_KEYS];
};

extern const struct tt_cluster_machine tt_cluster_machines[];
extern const int tt_cluster_n_machines;
extern const struct tt_cluster_stack tt_cluster_stacks[];
extern const int tt_cluster_n_stacks;

/** The built-in table of that name, ignoring case; TT_EUSAGE listing the names. */
int tt_cluster_machine_find(const char *name, const struct tt_cluster_machine **ret_machine) TT_MUST_CHECK;
int tt_cluster_stack_find(const char *name, const struct tt_cluster_stack **ret_stack) TT_MUST_CHECK;

#endif
