/* SPDX-License-Identifier: MIT
 *
 * Matrix products through OpenBLAS, the only file that knows cblas.h.
 *
 * OpenBLAS runs every call on one thread. Its own threads would divide the work by the number of cores, and its bits
 * depend on the rows per call. So titan cuts a product itself, by its shape only (product_tiles.h), and the team runs
 * the tiles.
 */
#include "core/kernels/blas.h"

#include <string.h>

#include <pthread.h>
#include <sys/mman.h>

#include <cblas.h>

#include "core/base/text.h"
#include "core/kernels/product_tiles.h"
#include "core/math/tree.h"

enum {
    BUFFER_BYTES = 128 << 20 /* of OpenBLAS for x86_64 and arm64; its untouched parts use no memory */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void limit_threads(void)
{
    openblas_set_num_threads(1);
}

void tt_gemm_serial(const struct tt_gemm *gemm)
{
    (void)pthread_once(&once, limit_threads);
    if (gemm->acc && gemm->acc != gemm->c) {
        for (int64_t i = 0; i < gemm->m; i++)
            memcpy(gemm->c + i * gemm->ldc, gemm->acc + i * gemm->ldc, (size_t)gemm->n * sizeof *gemm->c);
    }
    cblas_sgemm(CblasRowMajor, gemm->trans_a ? CblasTrans : CblasNoTrans, gemm->trans_b ? CblasTrans : CblasNoTrans,
                (blasint)gemm->m, (blasint)gemm->n, (blasint)gemm->k, 1.0F, gemm->a, (blasint)gemm->lda, gemm->b,
                (blasint)gemm->ldb, gemm->acc ? 1.0F : 0.0F, gemm->c, (blasint)gemm->ldc);
}

int tt_blas_check_room(int threads)
{
    size_t bytes = (size_t)threads * BUFFER_BYTES;
    void *room = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char text[32];

    if (room != MAP_FAILED) {
        (void)munmap(room, bytes);
        return 0;
    }
    return tt_fail(
        TT_EFIT,
        "no room for the buffers of matrix products: OpenBLAS maps 128 MiB of address space for each of %d "
        "thread%s of this rank, and the system refuses %s\nhelp: raise the limit on virtual memory (ulimit -v; "
        "a job's limit on address space), or use fewer %s",
        threads, threads == 1 ? "" : "s", tt_text_bytes(text, sizeof text, (double)bytes), tt_key_name(TT_KEY_THREADS));
}

static struct tt_product_size size_of(const struct tt_gemm *gemm)
{
    return (struct tt_product_size){gemm->m, gemm->n, gemm->k, gemm->m_grain, gemm->n_grain, gemm->k_grain};
}

int64_t tt_gemm_tiles(const struct tt_gemm *gemm)
{
    struct tt_product_size size = size_of(gemm);

    return tt_product_tiles(&size);
}

int64_t tt_gemm_partial_floats(const struct tt_gemm *gemm, bool has_acc)
{
    struct tt_product_size size = size_of(gemm);

    return tt_product_partial_arrays(&size, !has_acc) * gemm->m * gemm->ldc;
}

/* Computes a rectangle of c over [begin, begin + k) of the summed dimension, into c, which has gemm's strides. */
static void multiply(const struct tt_gemm *gemm, const struct tt_rectangle *at, int64_t begin, int64_t k,
                     const float *acc, float *c)
{
    struct tt_gemm part = *gemm;

    part.m = at->rows;
    part.n = at->columns;
    part.k = k;
    part.a += gemm->trans_a ? at->row + begin * gemm->lda : at->row * gemm->lda + begin;
    part.b += gemm->trans_b ? at->column * gemm->ldb + begin : at->column + begin * gemm->ldb;
    part.acc = acc;
    part.c = c;
    tt_gemm_serial(&part);
}

static void multiply_grain(const void *product, const struct tt_rectangle *at, int64_t begin, int64_t k, float *to)
{
    multiply(product, at, begin, k, NULL, to);
}

/* The products over the grains of k, as a tree. The lowest sum is c itself, unless c may be acc. */
static void multiply_grains(const struct tt_gemm *gemm, const struct tt_product_size *size,
                            const struct tt_rectangle *at)
{
    struct tt_product_sums sums = {gemm->acc ? NULL : gemm->c, gemm->partial, gemm->ldc};
    int64_t first = at->row * gemm->ldc + at->column;
    const float *sum = tt_product_add_grains(size, at, &sums, multiply_grain, gemm);

    for (int64_t i = 0; gemm->acc && i < at->rows * gemm->ldc; i += gemm->ldc)
        tt_tree_add(gemm->c + first + i, gemm->acc + first + i, sum + i, at->columns);
}

void tt_gemm_tile(const struct tt_gemm *gemm, int64_t tile)
{
    struct tt_product_size size = size_of(gemm);
    struct tt_rectangle at = tt_product_tile(&size, tile);
    int64_t first = at.row * gemm->ldc + at.column;

    if (gemm->k_grain)
        multiply_grains(gemm, &size, &at);
    else
        multiply(gemm, &at, 0, gemm->k, gemm->acc ? gemm->acc + first : NULL, gemm->c + first);
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    (void)worker;
    tt_gemm_tile(arg, tile);
}

void tt_gemm(struct tt_team *team, const struct tt_gemm *gemm)
{
    tt_team_run(team, tt_gemm_tiles(gemm), run_tile, (void *)gemm);
}

const char *tt_blas_library(void)
{
    return openblas_get_config();
}

const char *tt_blas_kernel(void)
{
    return openblas_get_corename();
}
