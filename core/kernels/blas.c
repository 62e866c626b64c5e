/* SPDX-License-Identifier: MIT
 *
 * Matrix products through OpenBLAS, the only file that knows cblas.h.
 *
 * OpenBLAS runs every call on one thread. Its own threads would divide the work by the number of cores, and its bits
 * depend on the rows per call. So titan cuts a product itself, by its shape only, and the team runs the tiles. Tiles
 * are as large as the balance between 2, 4 or 8 threads allows, because every tile packs its operands again.
 */
#include "core/kernels/blas.h"

#include <string.h>

#include <pthread.h>
#include <sys/mman.h>

#include <cblas.h>

#include "core/base/text.h"
#include "core/math/round.h"
#include "core/math/tree.h"

enum {
    BUFFER_BYTES = 128 << 20,  /* of OpenBLAS for x86_64 and arm64; its untouched parts use no memory */
    TILE_MIN = 384,            /* of the dimension that is cut */
    HALF_MIN = 256,            /* a dimension of this size is cut in two even if the halves are below TILE_MIN */
    SERIAL_FLOPS = 2 * 1000000 /* a smaller product is cheaper than waking the team */
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

/* The number of tiles of one grain. */
static int64_t tiles_of(int64_t m, int64_t n, int64_t k)
{
    int64_t size = m > n ? m : n, tiles = 1;

    if (2.0 * (double)m * (double)n * (double)k < (double)SERIAL_FLOPS)
        return 1;
    while (size / (2 * tiles) >= TILE_MIN)
        tiles *= 2;
    return tiles == 1 && size >= HALF_MIN ? 2 : tiles;
}

/* A dimension in grains; the last one may be shorter. */
struct grains {
    int64_t n, size, last;
};

static struct grains grains_of(int64_t extent, int64_t size)
{
    struct grains grains = {1, extent, extent};

    if (!size || size >= extent)
        return grains;
    grains.n = tt_div_up(extent, size);
    grains.size = size;
    grains.last = extent - (grains.n - 1) * size;
    return grains;
}

/* A rectangle of c. */
struct rectangle {
    int64_t row, rows, column, columns;
};

/* The number of tiles of grain (i, j), and its place in c. */
static int64_t tiles_of_grain(const struct tt_gemm *gemm, int64_t i, int64_t j, struct rectangle *ret_at)
{
    struct grains m = grains_of(gemm->m, gemm->m_grain), n = grains_of(gemm->n, gemm->n_grain);
    struct grains k = grains_of(gemm->k, gemm->k_grain);

    *ret_at =
        (struct rectangle){i * m.size, i == m.n - 1 ? m.last : m.size, j * n.size, j == n.n - 1 ? n.last : n.size};
    return tiles_of(ret_at->rows, ret_at->columns, k.size);
}

int64_t tt_gemm_tiles(const struct tt_gemm *gemm)
{
    struct grains m = grains_of(gemm->m, gemm->m_grain), n = grains_of(gemm->n, gemm->n_grain);
    struct rectangle at;
    int64_t tiles = 0;

    for (int64_t i = 0; i < m.n; i++)
        for (int64_t j = 0; j < n.n; j++)
            tiles += tiles_of_grain(gemm, i, j, &at);
    return tiles;
}

int64_t tt_gemm_partial_floats(const struct tt_gemm *gemm, bool has_acc)
{
    int depth = tt_tree_stack_depth(grains_of(gemm->k, gemm->k_grain).n);

    return gemm->k_grain ? (has_acc ? depth : depth - 1) * gemm->m * gemm->ldc : 0;
}

/* Computes a rectangle of c over [begin, begin + k) of the summed dimension, into c, which has gemm's strides. */
static void multiply(const struct tt_gemm *gemm, const struct rectangle *at, int64_t begin, int64_t k, const float *acc,
                     float *c)
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

static void add_rectangle(const struct tt_gemm *gemm, const struct rectangle *at, float *to, const float *a,
                          const float *b)
{
    for (int64_t i = 0; i < at->rows; i++)
        tt_tree_add(to + i * gemm->ldc, a + i * gemm->ldc, b + i * gemm->ldc, at->columns);
}

/* Entry `depth` of the stack of sums. The lowest is c itself, unless c may be acc. */
static float *entry(const struct tt_gemm *gemm, int64_t first, int depth)
{
    int in_partial = gemm->acc ? depth : depth - 1;

    return (in_partial < 0 ? gemm->c : gemm->partial + in_partial * gemm->m * gemm->ldc) + first;
}

/* The products over the grains of k, as a tree. */
static void multiply_grains(const struct tt_gemm *gemm, const struct rectangle *at)
{
    struct grains k = grains_of(gemm->k, gemm->k_grain);
    int64_t first = at->row * gemm->ldc + at->column;
    int depth = 0;

    for (int64_t i = 0; i < k.n; i++) {
        int carries = i + 1 < k.n ? tt_tree_carries(i) : depth;

        multiply(gemm, at, i * k.size, i + 1 < k.n ? k.size : k.last, NULL, entry(gemm, first, depth++));
        for (; carries > 0; carries--, depth--)
            add_rectangle(gemm, at, entry(gemm, first, depth - 2), entry(gemm, first, depth - 2),
                          entry(gemm, first, depth - 1));
    }
    if (gemm->acc)
        add_rectangle(gemm, at, gemm->c + first, gemm->acc + first, entry(gemm, first, 0));
}

/* Cuts the grain along its longer side. */
static void run_tile_of(const struct tt_gemm *gemm, const struct rectangle *grain, int64_t tile, int64_t tiles)
{
    struct rectangle at = *grain;
    bool rows = grain->rows >= grain->columns;
    int64_t size = rows ? grain->rows : grain->columns;
    int64_t begin = size * tile / tiles, end = size * (tile + 1) / tiles;
    int64_t first;

    if (rows) {
        at.row += begin;
        at.rows = end - begin;
    } else {
        at.column += begin;
        at.columns = end - begin;
    }
    first = at.row * gemm->ldc + at.column;
    if (gemm->k_grain)
        multiply_grains(gemm, &at);
    else
        multiply(gemm, &at, 0, gemm->k, gemm->acc ? gemm->acc + first : NULL, gemm->c + first);
}

void tt_gemm_tile(const struct tt_gemm *gemm, int64_t tile)
{
    struct grains m = grains_of(gemm->m, gemm->m_grain), n = grains_of(gemm->n, gemm->n_grain);
    struct rectangle at;

    for (int64_t i = 0; i < m.n; i++) {
        for (int64_t j = 0; j < n.n; j++) {
            int64_t tiles = tiles_of_grain(gemm, i, j, &at);

            if (tile < tiles) {
                run_tile_of(gemm, &at, tile, tiles);
                return;
            }
            tile -= tiles;
        }
    }
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
