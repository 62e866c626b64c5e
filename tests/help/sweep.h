/* SPDX-License-Identifier: MIT */
#ifndef TT_HELP_SWEEP_H
#define TT_HELP_SWEEP_H

/**
 * A sanitizer looks for mistakes that do not depend on every number, at ten times the cost. Under one, a sweep over
 * many values takes one in SWEEP_STRIDE, and begins at another value each time.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SWEEP_STRIDE 3
#else
#define SWEEP_STRIDE 1
#endif

#endif
