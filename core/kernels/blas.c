/* SPDX-License-Identifier: MIT
 *
 * Matrix products through OpenBLAS, the only file that knows cblas.h.
 *
 * OpenBLAS runs every call on one thread. Its own threads would divide the work by the number of cores, and its bits
 * depend on the rows per call. So titan cuts a product itself, by its shape only (matmul.c), and the team runs the
 * tiles.
 */
#include "core/kernels/blas.h"

#include <string.h>

#include <pthread.h>
#include <sys/mman.h>

#include <cblas.h>

#include "core/base/text.h"
#include "core/kernels/matmul.h"

enum {
    BUFFER_BYTES = 128 << 20 /* of OpenBLAS for x86_64 and arm64; its untouched parts use no memory */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void limit_threads(void)
{
    openblas_set_num_threads(1);
}

void tt_sgemm(const struct tt_matmul *product)
{
    const struct tt_matmul *p = product;
    const float *acc = p->acc;
    float *c = p->c;

    (void)pthread_once(&once, limit_threads);
    if (acc && acc != c) {
        for (int64_t i = 0; i < p->m; i++)
            memcpy(c + i * p->ldc, acc + i * p->ldc, (size_t)p->n * sizeof *c);
    }
    cblas_sgemm(CblasRowMajor, p->trans_a ? CblasTrans : CblasNoTrans, p->trans_b ? CblasTrans : CblasNoTrans,
                (blasint)p->m, (blasint)p->n, (blasint)p->k, 1.0F, p->a, (blasint)p->lda, p->b, (blasint)p->ldb,
                acc ? 1.0F : 0.0F, c, (blasint)p->ldc);
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

const char *tt_blas_library(void)
{
    return openblas_get_config();
}

const char *tt_blas_kernel(void)
{
    return openblas_get_corename();
}
