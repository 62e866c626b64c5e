/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_REFEREE_PAIR_H
#define TT_CLI_REFEREE_PAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/referee/dump.h"
#include "core/base/error.h"

/**
 * A tensor of the truth and the tensor of the same name that is judged, with the numbers that compare them. Below, A is
 * the truth and B is judged.
 */

/* The job of a parameter, as far as faults of parallel training depend on it. */
enum tt_role {
    TT_ROLE_OTHER,
    TT_ROLE_EMBEDDING,
    TT_ROLE_HEAD, /* the output matrix */
    TT_ROLE_NORM,
    TT_ROLE_BIAS,
    TT_ROLE_QUERY,
    TT_ROLE_KEY,
    TT_ROLE_VALUE,
    TT_ROLE_QKV,    /* the three in one */
    TT_ROLE_OUTPUT, /* of attention */
    TT_ROLE_ROUTER,
    TT_ROLE_EXPERT, /* a matrix of an expert, or of all experts */
    TT_ROLE_MLP,
    TT_ROLE_DOWN, /* the last matrix of an MLP */
};

enum { TT_RANK_ATTENTION = 6 /* tt_pair.rank of the output of attention */ };

/** "query", for texts; static. */
const char *tt_role_name(enum tt_role role);

enum tt_judgement {
    TT_SAME,      /* all bits */
    TT_ROUNDING,  /* differs by no more than rounding explains */
    TT_DIFFERENT, /* differs by more */
    TT_NOT_FINITE,
    TT_SHAPE, /* the shapes differ; nothing was computed */
};

struct tt_pair {
    const struct tt_dump_tensor *a, *b;
    enum tt_role role;
    int layer; /* -1: in no layer */
    int rank;  /* place within the layer, in forward order */
    int order; /* place in forward order; equal for tensors of one place */
    int64_t rows, columns;
    /* norms of A, B and B - A; sum of A * B */
    double norm_a, norm_b, norm_diff, dot;
    /* sums over each row, and over each column of a matrix (NULL for vectors): A * A, B * B, A * B, (B - A)^2 */
    double *row[4], *column[4];
    int64_t zeros_a, zeros_b, not_finite; /* elements of A and B that are 0; of either that are not finite */
    /* the largest error that rounding explains, relative to `scale`, which is the norm of A, or more for a tensor that
     * is tiny beside its neighbours */
    double tolerance, scale;
    enum tt_judgement judgement;
    double divisor; /* by which B was divided; see tt_pair_divide */
};
enum { TT_SUM_AA, TT_SUM_BB, TT_SUM_AB, TT_SUM_DIFF };

/** Fills everything except tolerance, scale and the judgement. Reads both tensors. *pair needs tt_pair_release. */
int tt_pair_measure(const struct tt_dump_tensor *a, const struct tt_dump_tensor *b, struct tt_pair *pair) TT_MUST_CHECK;
void tt_pair_release(struct tt_pair *pair);

/** Relative error: norm of B - A over the norm of A; cosine of the angle; ratio of the norms. NaN: not defined. */
double tt_pair_error(const struct tt_pair *pair);
double tt_pair_cosine(const struct tt_pair *pair);
double tt_pair_ratio(const struct tt_pair *pair);

/** The factor f that makes f * A nearest to B, and the norm of B - f * A relative to that of f * A. */
double tt_pair_factor(const struct tt_pair *pair, double *ret_rest);

/** Divides B by a factor, in all numbers and in what tt_pair_read reads. */
void tt_pair_divide(struct tt_pair *pair, double factor);

/** Reads both tensors whole. TT_ENOMEM if they do not fit. The caller frees both (tt_free). */
int tt_pair_read(const struct tt_pair *pair, double **ret_a, double **ret_b) TT_MUST_CHECK;

/** Relative distance of n numbers. */
double tt_distance(const double *a, const double *b, int64_t n);

#endif
