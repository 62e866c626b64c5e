/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_OS_LIMITS_H
#define TT_CORE_OS_LIMITS_H

/**
 * What the control groups (versions 1 and 2) of this process allow it. A limit of a group applies to all groups below
 * it. So the groups are visited from this process's own up to the root of the mount, and the smallest limit counts. A
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

#endif
