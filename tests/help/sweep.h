/* SPDX-License-Identifier: MIT */
#ifndef TT_HELP_SWEEP_H
#define TT_HELP_SWEEP_H

#include <stdlib.h>
#include <string.h>

/**
 * A sweep takes one of sweep_stride() values, and begins at another value each time. With TITAN_SWEEPS=whole in the
 * environment, which `quickstart test --long` sets, it takes every value; but not under a sanitizer, which takes ten
 * times as long and finds faults that rarely depend on a particular value.
 */
static inline int sweep_stride(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 5;
#else
    const char *sweeps = getenv("TITAN_SWEEPS");

    return sweeps && strcmp(sweeps, "whole") == 0 ? 1 : 5;
#endif
}

#endif
