/* SPDX-License-Identifier: MIT */
#ifndef TT_KERNELS_KERNELCHECK_H
#define TT_KERNELS_KERNELCHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/math/rng.h"
#include "tests/kernels/references.h"

/**
 * kernelcheck compares every variant of every kernel with its double-precision reference, on awkward shapes and values,
 * with guards around every array. Arrays come from check_array and live until check_reset.
 */
enum fill { FILL_NORMAL, FILL_TINY, FILL_LARGE, FILL_ZERO, FILL_NAN, N_FILLS };

struct check {
    const char *kernel;
    const struct tt_kernels *table; /* the variant under test */
    struct tt_rng rng;
    uint64_t drawn; /* numbers taken from rng */
    int64_t compared, failures;
    double worst;     /* largest error as a share of its tolerance */
    double worst_ulp; /* among elements of normal size, where nothing cancels */
    uint64_t bits;    /* a hash of all compared results */
};

/** n floats between guards, filled with NaN, so that a kernel that leaves out elements is found. */
float *check_array(struct check *check, int64_t n);

/** As above, with random contents: about N(0, 1), denormal, about 1e12, zero, or N(0, 1) with one NaN. */
float *check_filled(struct check *check, int64_t n, enum fill fill);

/** n labels in [0, limit); every fifth is TT_LABEL_IGNORED when ignored. */
int32_t *check_labels(struct check *check, int64_t n, int64_t limit, bool ignored);

/** A copy of an array of check_array. */
float *check_copy(struct check *check, const float *x, int64_t n);

/**
 * Counts a failure for every element that is further from `want` than tolerance[i], or than `ulps` units of want's last
 * place if tolerance is NULL. An element must be non-finite exactly where want is. `shape` goes into the message.
 */
void check_compare(struct check *check, const char *what, const char *shape, const float *got, const float *want,
                   int64_t n, const double *tolerance, double ulps);

/** The same for the rows of g's c in `got`, `want` and `near`, the tolerances (NULL: the bits must agree). */
void check_compare_rows(struct check *check, const char *what, const char *shape, const struct tt_matmul *g,
                        const float *got, const float *want, const double *near);

/** Checks the guards of all arrays and frees them. */
void check_reset(struct check *check, const char *shape);

/** Scratch that check_reset frees. */
double *check_doubles(struct check *check, int64_t n);

/** A random integer in [0, n). */
int64_t check_draw(struct check *check, int64_t n);

/**
 * Whether a case leaves out trial i. Emulated tiles of AMX take every third trial unless sweeps are whole. Under a
 * sanitizer, which makes trials ten times as long, all variants do.
 */
bool check_skips(const struct check *check, int i);

/** A call of rope without x: rows [first, first + rows), which have n elements, and the table of angles. */
struct check_rope {
    struct tt_rope_shape shape;
    enum fill fill; /* of x */
    int64_t first, rows, n;
    float *table;
    char text[64];
};
enum { N_CHECK_ROPES = 2 * 7 * 4 * N_FILLS, ROPE_ROWS = 30 };

/**
 * The k-th of N_CHECK_ROPES calls: awkward head widths, both kinds of pairs, both directions, every fill, consecutive
 * and other positions.
 */
struct check_rope check_rope_make(struct check *check, int k);

/* Of the dropout that is checked: an odd first number, so that the first element has the upper half of a word. */
static const struct tt_dropout check_dropout = {.seed = 5, .stream = 6, .drop = 1288490188, .scale = 1.4285715F};

/**
 * Kernels on elements, in float and bfloat16: OF(kernel, number of inputs, number of outputs, arguments of a call with
 * arrays in[] and out[] of n elements). check_bf16.c checks the kernels on bfloat16, and kernel_bench.c times both.
 */
#define CHECK_ELEMENTWISE(OF)                                       \
    OF(add, 2, 1, (out[0], in[0], in[1], n))                        \
    OF(dropout, 2, 1, (out[0], in[0], in[1], &check_dropout, 7, n)) \
    OF(geglu_fwd, 2, 1, (out[0], in[0], in[1], n))                  \
    OF(geglu_bwd, 3, 2, (out[0], out[1], in[0], in[1], in[2], n))   \
    OF(gelu_fwd, 1, 1, (out[0], in[0], n))                          \
    OF(gelu_bwd, 2, 1, (out[0], in[0], in[1], n))                   \
    OF(gelu_erf_fwd, 1, 1, (out[0], in[0], n))                      \
    OF(gelu_erf_bwd, 2, 1, (out[0], in[0], in[1], n))               \
    OF(scale, 1, 1, (out[0], in[0], 1.7F, n))                       \
    OF(swiglu_fwd, 2, 1, (out[0], in[0], in[1], n))                 \
    OF(swiglu_bwd, 3, 2, (out[0], out[1], in[0], in[1], in[2], n))

/** A case of each kernel. */
struct check_case {
    const char *kernel;
    void (*check)(struct check *check);
};

extern const struct check_case elementwise_cases[], gpt_cases[], row_cases[], attention_cases[], decode_cases[],
    math_cases[], shard_cases[], bf16_cases[], bgemm_cases[], sgemm_cases[], expert_cases[], gpt_oss_cases[];
extern const int n_elementwise_cases, n_gpt_cases, n_row_cases, n_attention_cases, n_decode_cases, n_math_cases,
    n_shard_cases, n_bf16_cases, n_bgemm_cases, n_sgemm_cases, n_expert_cases, n_gpt_oss_cases;

/** One unit in the last place of a float of size x. */
double check_ulp(double x);

#endif
