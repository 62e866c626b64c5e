/* SPDX-License-Identifier: MIT
 *
 * Signs of life along a binomial tree: rank r's parent is r without its lowest set bit.
 */
#include "core/comm/pulse.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/comm/comm.h"

/* Seconds between two messages to a neighbour; shorter where the timeout is short. */
static const double longest_period_sec = 1.0, shortest_period_sec = 0.02;

/* Periods without an answer after which a neighbour counts as silent, and polls per period. */
enum { SILENT_PERIODS = 5, LOOKS = 8 };

/* What a rank tells a neighbour about itself and all ranks on its side of the tree. A rank of -1: none. */
struct beat {
    int64_t progress;
    int32_t waiting, working, silent; /* the lowest such rank */
    int32_t unused;
};

struct neighbour {
    int rank;
    bool my_turn;    /* to send; else the neighbour's answer is awaited */
    bool is_awaited; /* the receive is posted */
    bool is_gone;    /* a transfer failed */
    double sent, heard;
    struct beat in, out; /* the last received and the last sent */
    struct beat arriving;
    struct tt_request send, receive;
};

struct tt_pulse {
    double next_look;
    int n;
    bool has_parent; /* neighbour[0]; all lower ranks are on its side */
    struct neighbour neighbour[];
};

static int count_neighbours(int rank, int size)
{
    int n = rank > 0;

    for (int bit = 1; bit < size && !(rank & bit); bit <<= 1)
        n += rank + bit < size;
    return n;
}

struct tt_pulse *tt_pulse_new(const struct tt_comm *comm)
{
    int rank = comm->rank, n = count_neighbours(rank, comm->size), i = 0;
    struct tt_pulse *p = tt_calloc(1, sizeof *p + (size_t)n * sizeof p->neighbour[0]);

    p->n = n;
    p->has_parent = rank > 0;
    if (rank > 0)
        p->neighbour[i++].rank = rank & (rank - 1);
    for (int bit = 1; bit < comm->size && !(rank & bit); bit <<= 1)
        if (rank + bit < comm->size)
            p->neighbour[i++].rank = rank + bit;
    for (i = 0; i < n; i++) {
        struct neighbour *b = &p->neighbour[i];

        b->my_turn = rank < b->rank;
        b->sent = -longest_period_sec;
        b->heard = comm->clock_sec;
        b->in.waiting = b->in.working = b->in.silent = -1;
    }
    return p;
}

void tt_pulse_free(struct tt_pulse *pulse)
{
    tt_free(pulse);
}

static double period_of(const struct tt_comm *comm)
{
    double period = comm->timeout_sec > 0.0 ? comm->timeout_sec / 20.0 : longest_period_sec;

    return period > longest_period_sec    ? longest_period_sec
           : period < shortest_period_sec ? shortest_period_sec
                                          : period;
}

static bool is_silent(const struct tt_comm *comm, const struct neighbour *b, double now)
{
    return b->is_gone || now - b->heard > SILENT_PERIODS * period_of(comm);
}

static int lower(int a, int b)
{
    return a < 0 ? b : b < 0 || a < b ? a : b;
}

/* Sums up this rank and every side but that of `except`. */
static struct beat sum_up(const struct tt_comm *comm, const struct neighbour *except, double now)
{
    const struct tt_pulse *p = comm->pulse;
    struct beat sum = {.progress = comm->progress,
                       .waiting = comm->waits_long ? comm->rank : -1,
                       .working = comm->works ? comm->rank : -1,
                       .silent = -1};

    for (int i = 0; i < p->n; i++) {
        const struct neighbour *b = &p->neighbour[i];

        if (b == except)
            continue;
        sum.progress += b->in.progress; /* a silent neighbour's progress still counts */
        if (is_silent(comm, b, now)) {
            sum.silent = lower(sum.silent, b->rank);
            continue;
        }
        sum.waiting = lower(sum.waiting, b->in.waiting);
        sum.working = lower(sum.working, b->in.working);
        sum.silent = lower(sum.silent, b->in.silent);
    }
    return sum;
}

static int await(struct tt_comm *comm, struct neighbour *b)
{
    struct tt_segment in = {&b->arriving, sizeof b->arriving};

    b->is_awaited = true;
    return comm->ops->recv_begin(comm, &in, 1, b->rank, TT_TAG_PULSE, &b->receive);
}

/* Advances the exchange with a neighbour as far as it can without blocking. */
static int exchange(struct tt_comm *comm, struct neighbour *b, double now)
{
    struct tt_segment out = {&b->out, sizeof b->out};
    bool done = false;
    int rc = 0;

    if (!b->my_turn) {
        if (!b->is_awaited)
            TT_TRY(await(comm, b));
        TT_TRY(comm->ops->test(comm, &b->receive, &done));
        if (!done)
            goto out;
        b->in = b->arriving;
        b->heard = now;
        b->is_awaited = false;
        b->my_turn = true;
    }
    if (now - b->sent < period_of(comm))
        goto out;
    TT_TRY(comm->ops->test(comm, &b->send, &done)); /* of the previous message */
    if (!done)
        goto out;
    b->out = sum_up(comm, b, now);
    b->sent = now;
    b->my_turn = false;
    TT_TRY(comm->ops->send_begin(comm, &out, 1, b->rank, TT_TAG_PULSE, &b->send));
    rc = await(comm, b);
out:
    return rc;
}

/* The caller may be about to report another error, so its message is kept. */
static int exchange_quietly(struct tt_comm *comm, struct neighbour *b, double now)
{
    static _Thread_local char kept[TT_ERROR_MESSAGE_BYTES];
    int rc;

    memcpy(kept, tt_error_message(), strlen(tt_error_message()) + 1);
    rc = exchange(comm, b, now);
    if (rc < 0)
        (void)tt_fail(rc, "%s", kept);
    return rc;
}

void tt_pulse_beat(struct tt_comm *comm, double now)
{
    struct tt_pulse *p = comm->pulse;

    if (!p || now < p->next_look)
        return;
    p->next_look = now + period_of(comm) / LOOKS;
    comm->looks = true;
    if (comm->ops->advance && comm->ops->advance(comm) < 0) {
        comm->looks = false;
        return; /* the next call that advances the transport gets the error again */
    }
    comm->looks = false;
    for (int i = 0; i < p->n; i++) {
        struct neighbour *b = &p->neighbour[i];

        if (!b->is_gone && exchange_quietly(comm, b, now) < 0)
            b->is_gone = true;
    }
}

int64_t tt_pulse_progress(const struct tt_comm *comm)
{
    int64_t sum = comm->progress;

    for (int i = 0; comm->pulse && i < comm->pulse->n; i++)
        sum += comm->pulse->neighbour[i].in.progress;
    return sum;
}

int tt_pulse_silent(const struct tt_comm *comm, double now)
{
    return comm->pulse ? sum_up(comm, NULL, now).silent : -1;
}

int tt_pulse_working(const struct tt_comm *comm)
{
    return comm->pulse ? sum_up(comm, NULL, comm->clock_sec).working : -1;
}

bool tt_pulse_speaks(const struct tt_comm *comm, double now)
{
    const struct tt_pulse *p = comm->pulse;
    const struct neighbour *parent;

    if (!p || !p->has_parent)
        return true;
    parent = &p->neighbour[0];
    if (is_silent(comm, parent, now))
        return comm->rank == 1; /* the parent is rank 0, and there is no other lower rank */
    return parent->in.waiting < 0 || parent->in.waiting > comm->rank;
}
