/* SPDX-License-Identifier: MIT */
#ifndef TT_MATH_STATS_H
#define TT_MATH_STATS_H

/** The median of n > 0 values: the mean of the middle two when n is even. Sorts the values. */
double tt_median(double *values, int n);

#endif
