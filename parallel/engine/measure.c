/* SPDX-License-Identifier: MIT
 *
 * The timing of collectives. Two rounds that do not count come first: they fault the pages in, and connections are
 * made. Between rounds an array larger than the caches is written, since a step of a model does not leave parameters in
 * the caches either.
 */
#include "parallel/engine/measure.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/os/file.h"
#include "parallel/engine/measure_round.h"

enum { WARM_ROUNDS = 2, ALIGNMENT = 64, CACHE_BYTES = 64 << 20 };

static const char *const names[TT_MEASURED_KINDS] = {"copy", "all-gather", "reduce-scatter", "all-reduce"};

const char *tt_measured_name(enum tt_measured kind)
{
    return names[kind];
}

int64_t tt_measured_bytes(enum tt_measured kind, int n_ranks, int64_t bytes)
{
    return bytes / n_ranks * (n_ranks - 1) * (kind == TT_MEASURE_ALL_REDUCE ? 2 : 1);
}

static int new_collective(struct tt_measure_round *b, enum tt_measured kind)
{
    struct tt_segment whole = {b->data, b->bytes};
    int me = b->group.index;

    switch (kind) {
    case TT_MEASURE_ALL_GATHER:
        return tt_all_gather_new(b->comm, &b->group, TT_TAG_COLLECTIVE, b->lists[me], b->lists, &b->collective);
    case TT_MEASURE_REDUCE_SCATTER:
        return tt_reduce_scatter_new(b->comm, &b->group, TT_TAG_COLLECTIVE, b->lists, b->lists[me], b->other,
                                     &b->collective);
    case TT_MEASURE_ALL_REDUCE:
        return tt_all_reduce_new(b->comm, &b->group, TT_TAG_COLLECTIVE, (struct tt_segment_list){&whole, 1}, b->other,
                                 &b->collective);
    default:
        return 0;
    }
}

int tt_measure_round_init(struct tt_measure_round *b, struct tt_comm *comm, enum tt_measured kind, int64_t bytes)
{
    int n = comm->size, rc = 0;
    size_t block = (size_t)(bytes / n / ALIGNMENT * ALIGNMENT);

    b->comm = comm;
    b->bytes = block * (size_t)n;
    b->other_bytes = b->bytes > (size_t)tt_all_reduce_scratch(n, (int64_t)b->bytes)
                         ? b->bytes
                         : (size_t)tt_all_reduce_scratch(n, (int64_t)b->bytes);
    b->group = (struct tt_group){n, comm->rank, tt_calloc((size_t)n, sizeof(int))};
    b->blocks = tt_calloc((size_t)n, sizeof *b->blocks);
    b->lists = tt_calloc((size_t)n, sizeof *b->lists);
    b->data = tt_map(b->bytes + ALIGNMENT);
    b->other = tt_map(b->other_bytes + ALIGNMENT);
    b->cache = tt_map(CACHE_BYTES);
    rc = b->data && b->other && b->cache
             ? 0
             : tt_fail(TT_EFIT, "the system refused %zu bytes to measure collectives", b->bytes);
    if ((rc = tt_comm_agree(comm, rc)) < 0)
        return rc;
    memset(b->data, 0, b->bytes);
    memset(b->other, 0, b->other_bytes);
    for (int i = 0; i < n; i++) {
        b->group.ranks[i] = i;
        b->blocks[i] = (struct tt_segment){b->data + (size_t)i * block, block};
        b->lists[i] = (struct tt_segment_list){&b->blocks[i], 1};
    }
    return new_collective(b, kind);
}

void tt_measure_round_release(struct tt_measure_round *b)
{
    tt_collective_free(b->collective);
    tt_unmap(b->data, b->bytes + ALIGNMENT);
    tt_unmap(b->other, b->other_bytes + ALIGNMENT);
    tt_unmap(b->cache, CACHE_BYTES);
    tt_free(b->blocks);
    tt_free(b->lists);
    tt_group_release(&b->group);
}

int tt_measure_round_start(struct tt_measure_round *b)
{
    for (size_t i = 0; i < CACHE_BYTES; i += ALIGNMENT) /* memset would write past the caches */
        b->cache[i]++;
    return tt_comm_barrier(b->comm);
}

static int run_round(struct tt_measure_round *b, double *ret_sec)
{
    double start;
    int rc = 0;

    TT_TRY(tt_measure_round_start(b));
    start = tt_clock_sec();
    if (b->collective) {
        TT_TRY(tt_collective_begin(b->collective));
        TT_TRY(tt_collective_wait(b->collective));
    } else {
        memcpy(b->other, b->data, b->bytes - b->bytes / (size_t)b->group.n);
    }
    *ret_sec = tt_clock_sec() - start;
    rc = tt_comm_max_f64(b->comm, ret_sec, 1);
out:
    return rc;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int tt_measure(struct tt_comm *comm, enum tt_measured kind, int64_t bytes, int rounds, double *ret_sec)
{
    double *sec = tt_calloc((size_t)rounds, sizeof *sec), ignored;
    struct tt_measure_round b = {0};
    int rc = 0;

    TT_TRY(tt_measure_round_init(&b, comm, kind, bytes));
    for (int i = 0; i < WARM_ROUNDS; i++)
        TT_TRY(run_round(&b, &ignored));
    for (int i = 0; i < rounds; i++)
        TT_TRY(run_round(&b, &sec[i]));
    qsort(sec, (size_t)rounds, sizeof *sec, by_size);
    *ret_sec = sec[rounds / 2];
out:
    tt_measure_round_release(&b);
    tt_free(sec);
    return rc;
}
