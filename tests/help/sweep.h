/* SPDX-License-Identifier: MIT */
#ifndef TT_HELP_SWEEP_H
#define TT_HELP_SWEEP_H

/**
 * A sanitizer takes ten times as long, and the faults that it finds rarely depend on a particular value. So under a
 * sanitizer a sweep takes one of SWEEP_STRIDE values, and begins at another value each time.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SWEEP_STRIDE 3
#else
#define SWEEP_STRIDE 1
#endif

#endif
