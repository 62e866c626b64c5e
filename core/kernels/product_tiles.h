/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_PRODUCT_TILES_H
#define TT_CORE_KERNELS_PRODUCT_TILES_H

#include <stdbool.h>
#include <stdint.h>

/**
 * How a matrix product c (m, n) = sum over k is cut, in every element type: each grain of m and n is cut into tiles
 * along its longer side, and the products over grains of k are added as a tree. It depends on the sizes of the grains
 * only. Grains of 0 mean that the dimension is not cut (struct tt_gemm in blas.h).
 */
struct tt_product_size {
    int64_t m, n, k;
    int64_t m_grain, n_grain, k_grain;
};

/** A rectangle of c. */
struct tt_rectangle {
    int64_t row, rows, column, columns;
};

/** The number of tiles over all grains. */
int64_t tt_product_tiles(const struct tt_product_size *size);

/** The place of a tile in c. */
struct tt_rectangle tt_product_tile(const struct tt_product_size *size, int64_t tile);

/** Computes a rectangle of c over [begin, begin + k) of the summed dimension into `to`, which has c's row stride. */
typedef void (*tt_product_fn)(const void *product, const struct tt_rectangle *at, int64_t begin, int64_t k, float *to);

/** Where the sums over grains of k are kept: arrays of m rows of `stride` floats. */
struct tt_product_sums {
    float *lowest;  /* takes the result; may be c. NULL: the first array of partial */
    float *partial; /* the other arrays */
    int64_t stride;
};

/** The arrays that partial needs; own_lowest: sums.lowest is not NULL. */
int64_t tt_product_partial_arrays(const struct tt_product_size *size, bool own_lowest);

/** Computes and adds the products over the grains of k; returns the rectangle's first element of the result. */
float *tt_product_add_grains(const struct tt_product_size *size, const struct tt_rectangle *at,
                             const struct tt_product_sums *sums, tt_product_fn fn, const void *product);

#endif
