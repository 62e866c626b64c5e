/* SPDX-License-Identifier: MIT
 *
 * Matrix products through OpenBLAS, the only file that knows cblas.h.
 *
 * OpenBLAS runs every call on one thread: its own threads would choose their split by the number of cores, and its bits
 * change with the rows per call. titan cuts a product itself, by its shape only, and the team runs the tiles. Tiles are
 * as large as the balance between 2, 4 or 8 threads allows, because every tile packs its operands again.
 */
#include "core/kernels/blas.h"

#include <string.h>

#include <pthread.h>
#include <sys/mman.h>

#include <cblas.h>

#include "core/base/text.h"

enum {
    BUFFER_BYTES = 128 << 20,  /* of OpenBLAS for x86_64 and arm64; untouched parts of it cost nothing */
    TILE_MIN = 384,            /* of the dimension that is cut */
    HALF_MIN = 256,            /* a dimension of this size is cut in two although the halves are below TILE_MIN */
    SERIAL_FLOPS = 2 * 1000000 /* a product below this is cheaper than waking the team */
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
        "a job's limit on address space), or use fewer parallelism.threads_per_rank",
        threads, threads == 1 ? "" : "s", tt_text_bytes(text, sizeof text, (double)bytes));
}

int64_t tt_gemm_tiles(int64_t m, int64_t n, int64_t k)
{
    int64_t size = m > n ? m : n, tiles = 1;

    if (2.0 * (double)m * (double)n * (double)k < (double)SERIAL_FLOPS)
        return 1;
    while (size / (2 * tiles) >= TILE_MIN)
        tiles *= 2;
    return tiles == 1 && size >= HALF_MIN ? 2 : tiles;
}

void tt_gemm_tile(const struct tt_gemm *gemm, int64_t tile, int64_t tiles)
{
    struct tt_gemm part = *gemm;
    bool rows = part.m >= part.n;
    int64_t size = rows ? part.m : part.n;
    int64_t begin = size * tile / tiles, end = size * (tile + 1) / tiles;

    if (rows) {
        part.a += part.trans_a ? begin : begin * part.lda;
        part.m = end - begin;
    } else {
        part.b += part.trans_b ? begin * part.ldb : begin;
        part.n = end - begin;
    }
    part.c += rows ? begin * part.ldc : begin;
    if (part.acc)
        part.acc += rows ? begin * part.ldc : begin;
    tt_gemm_serial(&part);
}

struct tiles {
    const struct tt_gemm *gemm;
    int64_t n;
};

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tiles *tiles = arg;

    (void)worker;
    tt_gemm_tile(tiles->gemm, tile, tiles->n);
}

void tt_gemm(struct tt_team *team, const struct tt_gemm *gemm)
{
    struct tiles tiles = {gemm, tt_gemm_tiles(gemm->m, gemm->n, gemm->k)};

    tt_team_run(team, tiles.n, run_tile, &tiles);
}

const char *tt_blas_library(void)
{
    return openblas_get_config();
}

const char *tt_blas_kernel(void)
{
    return openblas_get_corename();
}
