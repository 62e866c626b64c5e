/* SPDX-License-Identifier: MIT */
#ifndef TT_OS_MACHINE_H
#define TT_OS_MACHINE_H

#include <stdbool.h>

#include "core/base/text.h"

/**
 * The processors of this host that are online and that the control group allows, as hwloc finds them. A core has one or
 * more hardware threads. titan runs one thread per core, since matrix products gain nothing from a second one.
 */
struct tt_cores {
    int cores;
    int hardware_threads;
    int packages;
    int bound_cores;            /* cores to which a launcher, taskset, ... bound this process */
    int bound_hardware_threads; /* all of them if it is not bound */
    char model[64];             /* "AMD EPYC 9654"; "unknown processor" */
};

/**
 * Determined at the first call, in about a hundredth of a second, and the same from then on. Any thread may call it.
 */
const struct tt_cores *tt_cores(void);

/**
 * Instruction sets that titan has kernels for: those that this processor has and whose registers the operating system
 * saves on a context switch.
 */
enum tt_cpu_feature {
    TT_CPU_AVX2 = 1 << 0,        /* with FMA */
    TT_CPU_AVX512 = 1 << 1,      /* F, BW, VL and DQ, and TT_CPU_AVX2 */
    TT_CPU_AVX512_BF16 = 1 << 2, /* with TT_CPU_AVX512 */
    TT_CPU_AMX = 1 << 3,         /* TILE and BF16, with TT_CPU_AVX512, and permitted by the system */
    TT_CPU_NEON = 1 << 4,        /* every 64-bit Arm processor */
};

bool tt_cpu_has(enum tt_cpu_feature feature);

/** A processor as CPUID describes it; on other architectures all is empty. */
struct tt_cpu {
    char vendor[13];   /* "AuthenticAMD", "GenuineIntel" */
    int family, model; /* with the extended bits */
    unsigned features; /* of enum tt_cpu_feature */
};

struct tt_cpu tt_cpu_read(void);

/**
 * How busy the machine is with the work of all its users, as the kernel counts it. Measurements are too low on a busy
 * machine, so reports of them mention it.
 */
struct tt_load {
    double average;       /* threads that ran or waited for a processor: a mean over the last minute */
    int running;          /* the same at this moment */
    int cpus;             /* processors that are online; 0: unknown */
    double stolen, total; /* since the start: processor time taken by other virtual machines, and all of it */
};

/** Reads loadavg and stat in a folder; NULL: the one that TITAN_PROC names, or /proc. All zero if there are none. */
struct tt_load tt_load_read(const char *folder);

/**
 * Appends "load 13 on 2 CPUs: others use this machine" if so; nothing otherwise.
 *   before  an earlier reading, to determine how much time was stolen since then
 *   own threads of this job on this machine, which these numbers include
 */
void tt_load_text(const struct tt_load *before, const struct tt_load *now, int own, struct tt_text *out);

/**
 * What the control groups (versions 1 and 2) of this process allow it. A limit of a group applies to all groups below
 * it. So titan visits all groups from this process's own up to the root of the mount, and takes the smallest limit. A
 * file that does not exist sets no limit; a file that cannot be read gives a warning.
 *
 *   root  put in front of /proc and of every mount point: "" outside of tests
 */
struct tt_limits {
    double memory_bytes; /* infinite: no limit */
    double cpus;         /* processors' worth of time for all processes of the group; infinite: no limit */
    int cpuset;          /* processors of the group; 0: unknown */
};

struct tt_limits tt_limits_read(const char *root);

/**
 * Whether the kernel lets processes of this user read each other's memory (process_vm_readv), as ranks of one host do.
 *   root     put in front of /proc: "" outside of tests
 *   ret_why gets what to change if the kernel does not; may be NULL
 */
bool tt_peers_are_readable(const char *root, struct tt_text *ret_why);

#endif
