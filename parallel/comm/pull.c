/* SPDX-License-Identifier: MIT
 *
 * Reads in pieces. A batch of pieces is cut at the ends of the sender's segments, of the sinks and of the piece size,
 * and then run by the team. The sender's list is read a few items at a time, so it needs no allocation.
 */
#include "parallel/comm/pull.h"

#include <stdatomic.h>
#include <string.h>

#include "core/os/team.h"

/* A piece fits into the second-level cache, so that it is still there when it is added. */
enum { PIECE_BYTES = 256 << 10, MOST_PIECES = 64, MOST_SEGMENTS = 32 };

#define PATIENCE_SEC 3.0

struct piece {
    uint64_t from;
    char *into, *through; /* through NULL: a copy */
    const char *a;
    int64_t bytes;
};

struct batch {
    struct tt_comm *comm;
    int peer, n;
    atomic_int error;       /* an errno */
    _Atomic(uint64_t) done; /* one bit per piece */
    struct piece pieces[MOST_PIECES];
};

/* A piece is added once, after all of it was read. If the read fails, nothing is added. */
static void run_piece(void *arg, int64_t tile, int worker)
{
    struct batch *batch = arg;
    const struct piece *p = &batch->pieces[tile];
    uint64_t bit = (uint64_t)1 << tile;
    int error;

    (void)worker;
    if (atomic_load_explicit(&batch->done, memory_order_relaxed) & bit)
        return;
    error =
        batch->comm->ops->read(batch->comm, batch->peer, p->from, p->through ? p->through : p->into, (size_t)p->bytes);
    if (error) {
        atomic_store_explicit(&batch->error, error, memory_order_relaxed);
        return;
    }
    if (p->through)
        tt_comm_add(batch->comm, p->into, p->a, p->through, p->bytes);
    (void)atomic_fetch_or_explicit(&batch->done, bit, memory_order_relaxed);
}

/* Cuts up to `budget` bytes, from the pull's position on, into pieces, and advances the position. `segments`: the
 * sender's next n segments. */
static void cut_pieces(struct batch *batch, struct tt_pull *pull, const struct tt_sink *sinks,
                       const struct tt_segment *segments, int64_t n, int64_t budget)
{
    int64_t first = pull->segment, cut = 0;

    while (batch->n < MOST_PIECES && cut < budget && pull->left > 0 && pull->segment < first + n) {
        const struct tt_segment *segment = &segments[pull->segment - first];
        const struct tt_sink *sink = &sinks[pull->sink];
        int64_t sent = (int64_t)segment->bytes - pull->segment_done, wanted = sink->bytes - pull->sink_done;
        int64_t bytes = sent < wanted ? sent : wanted;

        bytes = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        if (bytes > 0) {
            batch->pieces[batch->n++] = (struct piece){
                .from = (uint64_t)(uintptr_t)segment->data + (uint64_t)pull->segment_done,
                .into = sink->into + pull->sink_done,
                .through = sink->a ? pull->through + cut : NULL,
                .a = sink->a ? sink->a + pull->sink_done : NULL,
                .bytes = bytes,
            };
            cut += bytes;
            pull->left -= bytes;
            pull->segment_done += bytes;
            pull->sink_done += bytes;
        }
        if (pull->segment_done == (int64_t)segment->bytes) {
            pull->segment++;
            pull->segment_done = 0;
        }
        if (pull->sink_done == sink->bytes) {
            pull->sink++;
            pull->sink_done = 0;
        }
    }
}

/*
 * A rank whose memory is gone is about to end. The launcher usually notices soon and ends the job with its own message,
 * so this rank waits a while before it reports the error.
 */
static int lost(struct tt_comm *comm, struct tt_pull *pull, int error)
{
    double now = tt_comm_clock(comm);
    double patience = comm->timeout_sec > 0.0 && comm->timeout_sec < PATIENCE_SEC ? comm->timeout_sec : PATIENCE_SEC;

    if (!pull->is_lost)
        pull->lost_sec = now;
    pull->is_lost = true;
    if (now - pull->lost_sec < patience)
        return 0;
    return tt_fail(TT_ECOMM,
                   "rank %d cannot read the memory of rank %d on %s in '%s' (%s): that rank is dead\n"
                   "help: look at its log",
                   comm->rank, pull->peer, tt_comm_host(comm, pull->peer),
                   comm->waiting_for ? comm->waiting_for : "start", strerror(error));
}

int tt_pull_begin(const struct tt_comm *comm, struct tt_pull *pull, int tag)
{
    if (pull->offer.bytes != pull->bytes)
        return tt_fail(TT_EINTERNAL, "rank %d: offer from rank %d, tag %d: %lld bytes sent, %lld expected", comm->rank,
                       pull->peer, tag, (long long)pull->offer.bytes, (long long)pull->bytes);
    pull->left = pull->bytes;
    pull->is_lost = false;
    pull->budget = 0;
    pull->done = 0;
    pull->sink = 0;
    pull->sink_done = pull->segment = pull->segment_done = 0;
    return 0;
}

/*
 * After a failure, the batch is cut again in the same way, from the same position and with the same budget, and only
 * the pieces that are not done run again: a sum may be in place, so no piece may be added twice.
 */
int tt_pull_some(struct tt_comm *comm, struct tt_pull *pull, const struct tt_sink *sinks)
{
    struct batch batch = {.comm = comm, .peer = pull->peer, .done = pull->done};
    struct tt_pull before = *pull;
    struct tt_segment segments[MOST_SEGMENTS];
    struct tt_team *team = comm->team && !tt_team_busy(comm->team) ? comm->team : NULL;
    int64_t n = pull->offer.n_segments - pull->segment;
    int64_t budget = pull->budget ? pull->budget : (int64_t)PIECE_BYTES * (team ? tt_team_threads(team) : 1);
    int error;

    n = n < MOST_SEGMENTS ? n : MOST_SEGMENTS;
    error = comm->ops->read(comm, pull->peer, pull->offer.segments + (uint64_t)pull->segment * sizeof *segments,
                            segments, (size_t)n * sizeof *segments);
    if (error)
        return lost(comm, pull, error);
    cut_pieces(&batch, pull, sinks, segments, n, budget);
    if (team)
        tt_team_run(team, batch.n, run_piece, &batch);
    else
        for (int i = 0; i < batch.n; i++)
            run_piece(&batch, i, 0);
    pull->is_lost = false;
    pull->budget = 0;
    pull->done = 0;
    error = atomic_load_explicit(&batch.error, memory_order_relaxed);
    if (!error || atomic_load_explicit(&batch.done, memory_order_relaxed) != before.done)
        comm->progress++;
    if (!error)
        return 0;
    *pull = before;
    pull->budget = budget;
    pull->done = atomic_load_explicit(&batch.done, memory_order_relaxed);
    if (pull->done != before.done)
        pull->is_lost = false; /* at least one piece could be read */

    return lost(comm, pull, error);
}
