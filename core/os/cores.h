/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_OS_CORES_H
#define TT_CORE_OS_CORES_H

/**
 * The processors of this host, as hwloc finds them: those that are online and that the control group allows. A core
 * runs one hardware thread or several. titan gives a core one thread of its own, since matrix products gain nothing
 * from a second one.
 */
struct tt_cores {
    int cores;
    int hardware_threads;
    int packages;
    int bound_cores;            /* that this process may run on: its launcher, taskset, ... bound it to them */
    int bound_hardware_threads; /* all of them if it is not bound */
    char model[64];             /* "AMD EPYC 9654"; "unknown processor" */
};

/** Found out at the first call, in about a hundredth of a second, and the same from then on. Any thread may call it. */
const struct tt_cores *tt_cores(void);

#endif
