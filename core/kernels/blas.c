/* SPDX-License-Identifier: MIT
 *
 * Matrix products through OpenBLAS: the portable kernels. Only this file includes cblas.h.
 *
 * The library is loaded when something needs it, not with the program. Otherwise every command would start one thread
 * for each core and a buffer for each of them; under a limit on address space or processes, those threads retry for
 * ever, and the program cannot end without them.
 *
 * OpenBLAS runs every call on one thread. Its own threads would divide the work by the number of cores, and its bits
 * depend on the rows per call. So titan cuts a product itself, by its shape only (matmul.c), and the team runs the
 * tiles.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>
#include <sys/mman.h>

#include <cblas.h>
#include <dlfcn.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"

enum {
    BUFFER_BYTES = 128 << 20 /* for OpenBLAS on x86_64 and arm64; its untouched parts use no memory */
};

static struct {
    __typeof__(&cblas_sgemm) sgemm;
    __typeof__(&openblas_set_num_threads) set_num_threads;
    __typeof__(&openblas_get_config) get_config;
    __typeof__(&openblas_get_corename) get_corename;
    int code; /* why it is not loaded; 0: it is loaded */
    char problem[512];
} library;

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fail_load(int code, const char *problem)
{
    library.code = code;
    (void)snprintf(library.problem, sizeof library.problem, "%s", problem);
}

/* Loads it by the name that the dynamic linker knows, else from its place when titan was built. */
static void *open_library(void)
{
    void *handle = dlopen(TT_BLAS_NAME, RTLD_NOW | RTLD_LOCAL);
    const char *problem;

    if (handle)
        return handle;
    problem = dlerror();
    fail_load(problem && strstr(problem, strerror(ENOMEM)) ? TT_EFIT : TT_EUSAGE, problem ? problem : "unknown reason");
    return dlopen(TT_BLAS_FOLDER "/" TT_BLAS_NAME, RTLD_NOW | RTLD_LOCAL);
}

/* OpenBLAS reads its number of threads when it is loaded; of several variables, this one takes precedence. */
static void *open_with_one_thread(void)
{
    static const char variable[] = "OPENBLAS_NUM_THREADS";
    const char *set = getenv(variable); // NOLINT(concurrency-mt-unsafe): the main thread, before it has work for others
    char *before = set ? tt_strdup(set) : NULL;
    void *handle;

    (void)setenv(variable, "1", 1); // NOLINT(concurrency-mt-unsafe)
    handle = open_library();
    if (before)
        (void)setenv(variable, before, 1); // NOLINT(concurrency-mt-unsafe)
    else
        (void)unsetenv(variable); // NOLINT(concurrency-mt-unsafe)
    tt_free(before);
    return handle;
}

static bool find(void *handle, const char *name, void *ret_function)
{
    void *found = dlsym(handle, name);

    memcpy(ret_function, &found, sizeof found);
    return found != NULL;
}

static void load(void)
{
    void *handle = open_with_one_thread();

    if (!handle)
        return;
    library.code = 0;
    if (find(handle, "cblas_sgemm", &library.sgemm) &&
        find(handle, "openblas_set_num_threads", &library.set_num_threads) &&
        find(handle, "openblas_get_config", &library.get_config) &&
        find(handle, "openblas_get_corename", &library.get_corename))
        library.set_num_threads(1);
    else
        fail_load(TT_EUSAGE, "it lacks functions that titan calls");
}

int tt_blas_load(void)
{
    (void)pthread_once(&once, load);
    if (library.code == TT_EFIT)
        return tt_fail(TT_EFIT,
                       "OpenBLAS, which multiplies matrices, cannot be loaded: %s\n"
                       "help: raise the limit on virtual memory (ulimit -v; a job's limit on address space)",
                       library.problem);
    if (library.code < 0)
        return tt_fail(TT_EUSAGE,
                       "OpenBLAS, which multiplies matrices, cannot be loaded: %s\n"
                       "help: install it (Debian: libopenblas0-pthread), or name its folder in LD_LIBRARY_PATH",
                       library.problem);
    return 0;
}

bool tt_blas_is_needed(void)
{
    return tt_sgemm_is_blas() || tt_bgemm_is_blas();
}

void tt_sgemm_loops(const struct tt_matmul *product)
{
    const struct tt_matmul *p = product;
    const float *acc = p->acc;
    float *c = p->c;

    (void)pthread_once(&once, load);
    if (library.code < 0) { /* tt_blas_check_room has not been called */
        (void)fprintf(stderr, "titan: error: OpenBLAS cannot be loaded: %s\n", library.problem);
        abort();
    }
    if (acc && acc != c) {
        for (int64_t i = 0; i < p->m; i++)
            memcpy(c + i * p->ldc, acc + i * p->ldc, (size_t)p->n * sizeof *c);
    }
    library.sgemm(CblasRowMajor, p->trans_a ? CblasTrans : CblasNoTrans, p->trans_b ? CblasTrans : CblasNoTrans,
                  (blasint)p->m, (blasint)p->n, (blasint)p->k, 1.0F, p->a, (blasint)p->lda, p->b, (blasint)p->ldb,
                  acc ? 1.0F : 0.0F, c, (blasint)p->ldc);
}

int tt_blas_check_room(int threads)
{
    size_t bytes = (size_t)threads * BUFFER_BYTES;
    char text[32];
    void *room;
    int rc = 0;

    if (!tt_blas_is_needed())
        return 0;
    TT_TRY(tt_blas_load());
    room = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room != MAP_FAILED) {
        (void)munmap(room, bytes);
        return 0;
    }
    rc =
        tt_fail(TT_EFIT,
                "no room for the buffers of matrix products: OpenBLAS maps 128 MiB of address space for each of %d "
                "thread%s of this rank, and the system refuses %s\nhelp: raise the limit on virtual memory (ulimit -v; "
                "a job's limit on address space), or use fewer %s",
                threads, threads == 1 ? "" : "s", tt_text_bytes(text, sizeof text, (double)bytes),
                TT_KEY_NAME(parallelism.threads_per_rank));
out:
    return rc;
}

const char *tt_blas_library(void)
{
    (void)pthread_once(&once, load);
    return library.code < 0 ? "none" : library.get_config();
}

const char *tt_blas_kernel(void)
{
    (void)pthread_once(&once, load);
    return library.code < 0 ? "none" : library.get_corename();
}

/* --- the portable kernel of floats is OpenBLAS; processors with AVX2 or AVX-512 have titan's (vector/gemm.c) --- */

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Whole cache lines for rows; the last line allows for the alignment. */
int64_t tt_sgemm_scratch(const struct tt_matmul *gemm)
{
    int64_t rows = (min64(gemm->m, TT_SGEMM_ROWS) + 15) / 16 * 16;

    return (rows + TT_SGEMM_PANEL) * min64(gemm->k, TT_SGEMM_DEPTH) + 16;
}

bool tt_sgemm_is_blas(void)
{
    return tt_kernels()->sgemm == tt_sgemm_loops;
}

/*
 * --- products of bfloat16: blocks of A and B are widened to float32 for OpenBLAS ---
 *
 * The other variants have titan's own: vector/gemm.c, for the instructions of AVX512-BF16 vector/bgemm.c, and for AMX
 * vector/amx.c.
 */

/* The portable kernel's blocks have half the depth, so that floats fit in the memory of pairs of bfloat16. */
enum { WIDE_DEPTH = TT_BGEMM_DEPTH / 2 };

/* Whole vectors of columns, whole cache lines of rows, and no less than the 32 elements of k of AMX's tiles; the last
 * line is for the alignment. */
int64_t tt_bgemm_scratch(const struct tt_matmul *gemm)
{
    int64_t rows = (min64(gemm->m, TT_BGEMM_ROWS) + 15) / 16 * 16;
    int64_t columns = (min64(gemm->n, TT_BGEMM_COLUMNS) + TT_BGEMM_PANEL - 1) / TT_BGEMM_PANEL * TT_BGEMM_PANEL;
    int64_t depth = gemm->k < 16 ? 16 : min64(gemm->k, WIDE_DEPTH);

    return (rows + columns) * depth + (gemm->c_bf16 ? rows * columns : 0) + 16;
}

/* A block of a stored matrix in float32. */
static const float *widen(float *to, const tt_bf16 *from, int64_t stride, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        tt_kernels()->bf16_widen(to + i * columns, from + i * stride, columns);
    return to;
}

/* A block of c, over all of k. */
static void multiply_block(const struct tt_matmul *block)
{
    const struct tt_rectangle all = {0, block->m, 0, block->n};
    int64_t m = block->m, n = block->n;
    float *a = block->scratch, *b = a + m * min64(block->k, WIDE_DEPTH), *sum = b + n * min64(block->k, WIDE_DEPTH);
    struct tt_matmul wide = {.trans_a = block->trans_a, .trans_b = block->trans_b, .m = m, .n = n, .c = sum, .ldc = n};

    if (!block->c_bf16) {
        wide.c = block->c;
        wide.acc = block->acc;
        wide.ldc = block->ldc;
    }
    for (int64_t p = 0; p < block->k; p += WIDE_DEPTH) {
        int64_t k = min64(block->k - p, WIDE_DEPTH);
        struct tt_matmul part = tt_matmul_part(block, &all, p, k);

        wide.k = k;
        wide.a = part.trans_a ? widen(a, part.a, part.lda, k, m) : widen(a, part.a, part.lda, m, k);
        wide.lda = part.trans_a ? m : k;
        wide.b = part.trans_b ? widen(b, part.b, part.ldb, n, k) : widen(b, part.b, part.ldb, k, n);
        wide.ldb = part.trans_b ? k : n;
        tt_sgemm_loops(&wide);
        wide.acc = wide.c;
    }
    if (block->c_bf16)
        tt_matmul_store(block, sum, n);
}

bool tt_bgemm_is_blas(void)
{
    return tt_kernels()->bgemm == tt_bgemm_loops;
}

void tt_bgemm_loops(const struct tt_matmul *gemm)
{
    struct tt_rectangle at = {0};

    for (at.column = 0; at.column < gemm->n; at.column += TT_BGEMM_COLUMNS) {
        at.columns = min64(gemm->n - at.column, TT_BGEMM_COLUMNS);
        for (at.row = 0; at.row < gemm->m; at.row += TT_BGEMM_ROWS) {
            struct tt_matmul block;

            at.rows = min64(gemm->m - at.row, TT_BGEMM_ROWS);
            block = tt_matmul_part(gemm, &at, 0, gemm->k);
            multiply_block(&block);
        }
    }
}
