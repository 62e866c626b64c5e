/* SPDX-License-Identifier: MIT */
#ifndef TT_KERNELS_MATMUL_H
#define TT_KERNELS_MATMUL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/math/packing.h"
#include "core/math/real.h"
#include "core/os/team.h"

/**
 * A matrix product of floats or of bfloat16, with sums in float32: c (m, n) = [acc +] A B in row-major order. A is
 * a (m, k), or with trans_a the transpose of a stored a (k, m). B is b (k, n), or with trans_b the transpose of a
 * stored b (n, k). lda, ldb and ldc are row strides in elements. acc has c's type and strides and may be c itself. A
 * bfloat16 c is rounded once, to nearest even, after acc is added.
 * Dimensions and strides are below 2^31.
 */
struct tt_matmul {
    bool bf16;   /* a and b are tt_bf16, otherwise float */
    bool c_bf16; /* c and acc are tt_bf16, otherwise float; only with bf16 */
    bool trans_a, trans_b;
    bool of_many; /* one of many products that the team runs at once: larger tiles, which pack less; without grains */
    int64_t m, n, k;
    const void *a, *b;
    /*
     * How b is stored, in rows of b_width elements; NONE: as plain elements. With any other packing, the product reads
     * the part of b that begins at row b_row and column b_column, and ignores ldb. Parts of b become elements in the
     * scratch, which kernels find in `unpacked`.
     */
    enum tt_packing_choice b_packing;
    int64_t b_width, b_row, b_column;
    void *unpacked;
    const void *acc; /* NULL: nothing is added */
    void *c;
    int64_t lda, ldb, ldc;
    /*
     * If m, n or k is a part of a dimension that ranks share: the size of its grains; 0 if it is not cut. Each grain of
     * m and n is a separate product with its own tiles, unless the kernel gives the same bits either way. The products
     * over grains of k are added as a tree, and then acc is added.
     */
    int64_t m_grain, n_grain, k_grain;
    /*
     * Further products with the same m and n, whose sum with this product is the result. In each grain of k, they are
     * added to this product before the grains are added. Each of them has its own k, k_grain, a, b and strides, but the
     * same number of grains of k. NULL: none. Needs k_grain.
     */
    const struct tt_matmul *more;
    int n_more;
    int threads; /* threads that compute it; 0: a few. If bits do not depend on tiles, each thread gets one tile */
    /*
     * The b of the product that this thread will probably run next, with the same n, k and ldb; its first part is
     * prefetched from memory. NULL: unknown.
     */
    const void *next_b;
    tt_real *partial; /* tt_matmul_partial_floats */
    tt_real *scratch; /* tt_matmul_scratch_floats for each worker */
};

/**
 * One product on the team. The larger of a grain's m and n is cut into a power of two of tiles, which depends only on
 * the grain's shape; k is never cut. So the bits depend on the kernel (kernels.h), but not on the number of threads, on
 * the thread that ran a tile, or on the number of grains that this rank has.
 */
void tt_matmul(struct tt_team *team, const struct tt_matmul *product);

/** The number of tiles of a product, over all its grains; reads sizes only. */
int64_t tt_matmul_tiles(const struct tt_matmul *product);

/** Runs one tile on the calling thread, so that an op can run the tiles of several products in one run of a team. */
void tt_matmul_tile(const struct tt_matmul *product, int64_t tile, int worker);

/** Floats of `partial` that a product needs, with or without an acc; reads sizes and types only. */
int64_t tt_matmul_partial_floats(const struct tt_matmul *product, bool has_acc);

/** Floats of `scratch` for one worker, whole cache lines. Reads sizes and types only. */
int64_t tt_matmul_scratch_floats(const struct tt_matmul *product);

/* --- for kernels --- */

/** A rectangle of c. */
struct tt_rectangle {
    int64_t row, rows, column, columns;
};

/** The product for a rectangle of c over [begin, begin + k) of the summed dimension. Grains are not changed. */
struct tt_matmul tt_matmul_part(const struct tt_matmul *product, const struct tt_rectangle *at, int64_t begin,
                                int64_t k);

/* The columns that tt_matmul_b unpacks together: whole panels of every kernel, and whole blocks of every packing. */
enum { TT_UNPACKED_COLUMNS = 192 };

/**
 * B from `column` on, over [begin, begin + k), as plain elements, with a stride of ret_stride elements as b has ldb. A
 * kernel asks for one panel of columns after the other: at every multiple of TT_UNPACKED_COLUMNS, the next columns of a
 * packed b are unpacked, and stay until the next multiple.
 */
const void *tt_matmul_b(const struct tt_matmul *product, int64_t column, int64_t begin, int64_t k, int64_t *ret_stride);

/** Lines of a stored matrix; sizes in bytes. */
struct tt_b_memory {
    const void *first;
    int64_t stride, lines, bytes;
};

/**
 * The memory of `columns` columns of B over [begin, begin + k), to be fetched before tt_matmul_b reads it; of a packed
 * b, about this memory. No columns or no k: no lines.
 */
struct tt_b_memory tt_matmul_b_memory(const struct tt_matmul *product, int64_t column, int64_t columns, int64_t begin,
                                      int64_t k);

/**
 * c = [acc +] sum, in c's type. sum (m, n) has rows of `stride` floats and is overwritten. If c is float and acc is
 * NULL, sum must be c.
 */
void tt_matmul_store(const struct tt_matmul *product, tt_real *sum, int64_t stride);

/**
 * y = w x for w (rows, width): the product for a single token, in floats or bfloat16; sums are in float. Or for several
 * tokens, each with the bits that it has alone: x (vectors, width), y (vectors, rows).
 */
struct tt_gemv {
    bool bf16, y_bf16;              /* w and x are bfloat16, and y may be; else y is float */
    enum tt_packing_choice packing; /* if not NONE, how w is stored; it is not rounded to bfloat16 */
    const void *w, *x;
    void *y;
    int64_t rows, width;
    int64_t vectors; /* 0: one */
};

/**
 * Reading w from memory limits the speed, so the team divides the rows. Every row is summed in a fixed order, so the
 * bits depend neither on threads nor on the other rows.
 */
void tt_gemv(struct tt_team *team, const struct tt_gemv *gemv);

/** The number of tiles of a product; reads sizes only. */
int64_t tt_gemv_tiles(const struct tt_gemv *gemv);

/** Runs one tile on the calling thread, so that an op can run the tiles of several products in one run of a team. */
void tt_gemv_tile(const struct tt_gemv *gemv, int64_t tile);

/** Whether the kernel variant in use leaves products to the library. */
bool tt_blas_is_needed(void);

/** Loads the library at the first call. TT_EUSAGE if it is missing, TT_EFIT if the address space has no room for it. */
int tt_blas_load(void) TT_MUST_CHECK;

/**
 * Call this before the first product, while other ranks do not yet depend on this one; does nothing if the library is
 * not needed. Loads the library, and checks that the address space has room for the buffers of products on that many
 * threads at once: OpenBLAS maps 128 MiB for each thread when it first computes, and retries for ever if a limit
 * (`ulimit -v`, strict overcommit) refuses. Errors: as tt_blas_load; TT_EFIT if the buffers do not fit.
 */
int tt_blas_check_room(int threads) TT_MUST_CHECK;

/**
 * Name and version of the BLAS library, with the kernels that it chose for this processor; "none" if it cannot be
 * loaded.
 */
const char *tt_blas_library(void);

/** The name of the processor kernels that the library chose; "none" as above. The bits depend on it. */
const char *tt_blas_kernel(void);

#endif
