/* SPDX-License-Identifier: MIT */
#ifndef TT_HELP_SWEEP_H
#define TT_HELP_SWEEP_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SWEEP_SANITIZED = 1 };
#else
enum { SWEEP_SANITIZED = 0 };
#endif

/**
 * A sweep takes one of sweep_stride() values, and begins at a different value each time. With TITAN_SWEEPS=whole in the
 * environment, which `quickstart test --long` sets, it takes every value; but fewer under a sanitizer, which takes ten
 * times as long and finds faults that rarely depend on a particular value. Strides are primes, since parities choose
 * engines.
 */
static inline int sweep_stride(void)
{
    const char *sweeps = getenv("TITAN_SWEEPS");

    return SWEEP_SANITIZED ? 11 : sweeps && strcmp(sweeps, "whole") == 0 ? 1 : 7;
}

/** Whether tests of more than kernels leave a variant out: portable C is slow, and kernelcheck compares its bits. */
static inline bool sweep_leaves_out(const char *variant)
{
    return sweep_stride() > 1 && strcmp(variant, "generic") == 0;
}

#endif
