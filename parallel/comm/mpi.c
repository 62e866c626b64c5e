/* SPDX-License-Identifier: MIT
 *
 * The communicator over MPI; the only file that includes mpi.h.
 *
 * A titan request is an index into a table of slots, which is allocated once and grows only if more transfers are under
 * way than ever before. A single MPI call tests all requests, since each call polls every socket. Segments become one
 * MPI datatype of byte blocks at absolute addresses, which also avoids the limit of 2^31-1 on MPI's counts. An error of
 * MPI becomes TT_ECOMM with MPI's own text.
 *
 * MPI reports nothing about a message until all of it has arrived, so long transfers are sent in parts.
 */
#include "parallel/comm/mpi.h"

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/time.h>
#include <unistd.h>

#include <mpi.h>

#include "core/base/mem.h"
#include "core/math/round.h"
#include "core/os/file.h"
#include "parallel/comm/peer_memory.h"

/*
 * Long transfers in parts. MPI shows no progress of a message until it is complete; with a few parts under way at a
 * time, even a slow link completes one from time to time, and the waiting ranks see progress (tt_comm.progress). Both
 * sides know the number of bytes, so they cut at the same points. Messages between two ranks under one tag keep their
 * order: a transfer that begins after a long one waits until all parts of the long one are posted.
 *
 * Parts have no handshake of their own, because its answer would queue behind the data that goes the other way.
 * Instead, the receiver says once that it is ready, and the sender posts no part before that, which bounds the data
 * that a late receiver must buffer. The ready message carries the number of bytes that the receiver expects, so a
 * mismatch fails at once.
 *
 * Transfers are allocated once and reused.
 */
enum {
    PART_BYTES = 1 << 20, /* a transfer up to this size is one message, which needs no handshake */
    PARTS_AT_ONCE = 16,
};

struct parted {
    int peer, tag;
    bool send;
    int64_t wanted; /* the number of bytes that the receiver expects, from its ready message */
    struct tt_segment *segments;
    int n, cap;
    int segment; /* the next part begins in this segment ... */
    size_t done; /* ... at this byte */
    size_t bytes;
    int n_parts, n_posted;
    int n_under_way; /* parts and the ready message */
    bool ready;      /* whether parts may be posted */
    int rc;          /* the code of the first part that failed */
    char *message;
    struct parted *next; /* next in the list of transfers with parts to post (oldest first), or of unused ones */
};

struct parts {
    struct parted *first, *unused;
    struct tt_segment *scratch;
    int cap;
};

/*
 * --- the launcher ---
 *
 * Launchers (Open MPI's mpirun, PMIx, PMI, Slurm) give each process its rank and the number of ranks in environment
 * variables, which can be read before MPI is initialised.
 */

/* The number of ranks that the launcher started, or 0 if unknown; *ret_variable is the variable that contains it. */
static int launched_ranks(const char **ret_variable)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};

    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *text = getenv(variables[i]);
        long n = text ? strtol(text, NULL, 10) : 0;

        /* Slurm sets its variable in interactive shells too, as a step of one task. */
        if (n > 1 || (n == 1 && i + 1 < sizeof variables / sizeof *variables)) {
            *ret_variable = variables[i];
            return n < INT_MAX ? (int)n : INT_MAX;
        }
    }
    return 0;
}

/*
 * --- a watch over the start ---
 *
 * Ends the process if MPI_Init never returns: the call cannot be cancelled, and there is no communicator yet that could
 * end the job. The watch counts ticks of SIGALRM and the interval timer. Ticks that fall due while the process is
 * stopped arrive as a single one, so the stopped time does not count.
 */

enum { TICK_USEC = 250000, TICKS_A_SEC = 4, MESSAGE_BYTES = 1024, MOST_RANKS_APART = 5, SEC_APART = 10 };

static struct {
    volatile sig_atomic_t ticks_left;
    char message[MESSAGE_BYTES];
    struct sigaction before;
} watch;

static void tick(int signal_number)
{
    (void)signal_number;
    if (--watch.ticks_left > 0)
        return;
    (void)tt_file_put(STDERR_FILENO, watch.message, strlen(watch.message));
    _exit(tt_error_exit_code(TT_ECOMM));
}

/*
 * After timeout_sec, writes a message to standard error and exits as after a communication error. Higher ranks wait a
 * little longer, so that one rank reports for all.
 */
static void start_watch_begin(double timeout_sec)
{
    const struct itimerval ticking = {{0, TICK_USEC}, {0, TICK_USEC}};
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    static const char *const variables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    char host[256] = "";
    double ticks;
    int rank = 0; /* the rank that the launcher gave this process; 0 if unknown */

    for (size_t i = sizeof variables / sizeof *variables; i-- > 0;) /* the first variable that is set wins */
        if (getenv(variables[i]))
            rank = (int)strtol(getenv(variables[i]), NULL, 10);
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(watch.message, sizeof watch.message,
                   "titan: error: rank %d on %s: MPI has not started within %.0f s (%s)\n"
                   "help: look at the logs of the other ranks and hosts; Open MPI also waits for ever if memory is "
                   "limited (ulimit -v, a control group)\n",
                   rank, host, timeout_sec, TT_KEY_NAME(comm.init_timeout_seconds));
    ticks = (timeout_sec + (rank < MOST_RANKS_APART ? rank : MOST_RANKS_APART) * SEC_APART) * TICKS_A_SEC + 1.0;
    watch.ticks_left = ticks < 1e9 ? (sig_atomic_t)ticks : 1000000000;
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGALRM, &action, &watch.before);
    (void)setitimer(ITIMER_REAL, &ticking, NULL);
}

static void start_watch_end(void)
{
    const struct itimerval never = {{0, 0}, {0, 0}};

    (void)setitimer(ITIMER_REAL, &never, NULL);
    (void)sigaction(SIGALRM, &watch.before, NULL);
}

/* --- messages --- */

/* READ_BYTES: below this size, the two messages that a read needs cost more than a copy through MPI's own buffers. */
enum { FIRST_SLOTS = 256, FIRST_BLOCKS = 256, READ_BYTES = 64 << 10, EAGER_BYTES = PART_BYTES };

/* The longest block of a datatype, since block lengths are int. */
static const size_t MOST_BLOCK_BYTES = (size_t)1 << 30;

struct slot {
    size_t bytes;
    int peer, tag;
    bool send;
    bool is_ready; /* the ready message of `whole` */
    bool complete; /* set by advance, with status */
    MPI_Status status;
    struct parted *whole; /* the transfer to which this part belongs; NULL: none */
    int next_unused;      /* index + 1; 0 ends the list */
};

struct mpi_comm {
    struct tt_comm base;
    MPI_Comm comm;
    MPI_Comm ready; /* a communicator of the same ranks for ready messages, which reuse the tags of their transfers */
    struct slot *slots;
    MPI_Request *requests; /* [n_slots]; MPI_REQUEST_NULL: nothing under way */
    int *completed;        /* [n_slots] results of MPI_Testsome, with statuses */
    MPI_Status *statuses;
    int n_slots;
    int n_used;      /* later slots have never been used */
    int n_under_way; /* number of requests that are not null */
    int n_pulses;    /* how many of them are signs of life, which are nearly always pending */
    int unused;      /* index + 1 of the first unused slot */
    int *lengths;    /* scratch for building a datatype */
    MPI_Aint *addresses;
    int cap_blocks;
    struct parts parts;
    int *host_leader;              /* base.host_leader */
    struct tt_peer_memory *memory; /* memory of the ranks on this host */
};

static int fail_mpi(int error, const char *what)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;

    (void)MPI_Error_string(error, text, &length);
    return tt_fail(TT_ECOMM, "MPI: %s: %s", what, text);
}

static void slots_grow(struct mpi_comm *me, int n)
{
    me->slots = tt_realloc(me->slots, (size_t)n, sizeof *me->slots);
    me->requests = tt_realloc(me->requests, (size_t)n, sizeof *me->requests);
    me->completed = tt_realloc(me->completed, (size_t)n, sizeof *me->completed);
    me->statuses = tt_realloc(me->statuses, (size_t)n, sizeof *me->statuses);
    for (int i = n - 1; i >= me->n_slots; i--) {
        me->slots[i] = (struct slot){.next_unused = me->unused};
        me->requests[i] = MPI_REQUEST_NULL;
        me->unused = i + 1;
    }
    me->n_slots = n;
}

static void blocks_grow(struct mpi_comm *me, int n)
{
    me->lengths = tt_realloc(me->lengths, (size_t)n, sizeof *me->lengths);
    me->addresses = tt_realloc(me->addresses, (size_t)n, sizeof *me->addresses);
    me->cap_blocks = n;
}

/* The segments as one datatype at MPI_BOTTOM. */
static int make_type(struct mpi_comm *me, const struct tt_segment *segments, int n, MPI_Datatype *ret_type)
{
    MPI_Datatype type;
    int blocks = 0, error;

    for (int i = 0; i < n; i++) {
        char *data = segments[i].data;

        for (size_t left = segments[i].bytes, bytes; left > 0; left -= bytes, data += bytes, blocks++) {
            bytes = left < MOST_BLOCK_BYTES ? left : MOST_BLOCK_BYTES;
            if (blocks == me->cap_blocks)
                blocks_grow(me, 2 * me->cap_blocks);
            me->lengths[blocks] = (int)bytes;
            if ((error = MPI_Get_address(data, &me->addresses[blocks])) != MPI_SUCCESS)
                return fail_mpi(error, "MPI_Get_address");
        }
    }
    error = MPI_Type_create_hindexed(blocks, me->lengths, me->addresses, MPI_BYTE, &type);
    if (error != MPI_SUCCESS)
        return fail_mpi(error, "MPI_Type_create_hindexed");
    if ((error = MPI_Type_commit(&type)) != MPI_SUCCESS)
        return fail_mpi(error, "MPI_Type_commit");
    *ret_type = type;
    return 0;
}

static int start(struct mpi_comm *me, const struct slot *slot, void *data, int count, MPI_Datatype type)
{
    MPI_Request *request = &me->requests[slot - me->slots];
    MPI_Comm comm = slot->is_ready ? me->ready : me->comm;
    int error = slot->send ? MPI_Isend(data, count, type, slot->peer, slot->tag, comm, request)
                           : MPI_Irecv(data, count, type, slot->peer, slot->tag, comm, request);

    return error == MPI_SUCCESS ? 0 : fail_mpi(error, slot->send ? "MPI_Isend" : "MPI_Irecv");
}

/* One message; ret_index is its slot's index + 1. */
static int begin_message(struct mpi_comm *me, const struct tt_segment *segments, int n, struct slot wanted,
                         int *ret_index)
{
    MPI_Datatype type = MPI_BYTE;
    struct slot *slot;
    int rc = 0, index;

    for (int i = 0; i < n; i++)
        wanted.bytes += segments[i].bytes;
    if (!me->unused)
        slots_grow(me, 2 * me->n_slots);
    index = me->unused;
    slot = &me->slots[index - 1];
    wanted.next_unused = slot->next_unused;
    *slot = wanted;
    if (n == 1 && wanted.bytes <= INT_MAX) {
        TT_TRY(start(me, slot, segments[0].data, (int)wanted.bytes, MPI_BYTE));
    } else {
        TT_TRY(make_type(me, segments, n, &type));
        rc = start(me, slot, MPI_BOTTOM, 1, type);
        (void)MPI_Type_free(&type); /* MPI keeps the type until the transfer completes */
        if (rc < 0)
            goto out;
    }
    me->unused = slot->next_unused;
    me->n_used = index > me->n_used ? index : me->n_used;
    me->n_under_way++;
    if (slot->tag == TT_TAG_PULSE) {
        me->n_pulses++;
    } else {
        me->base.sent_messages += slot->send;
        me->base.begun_receives += !slot->send;
    }
    *ret_index = index;
out:
    return rc;
}

/* --- transfers in parts --- */

/* The first transfer before `end` with the same peer, tag and direction whose parts are not all posted. */
static const struct parted *ahead(const struct mpi_comm *me, const struct parted *end, int peer, int tag, bool send)
{
    const struct parted *t = me->parts.first;

    while (t != end && !(t->peer == peer && t->tag == tag && t->send == send))
        t = t->next;
    return t == end ? NULL : t;
}

/* Puts the segments of the next part into parts->scratch; returns their number. */
static int cut(struct parts *parts, struct parted *t)
{
    size_t left = PART_BYTES;
    int n = 0;

    while (t->segment < t->n && left > 0) {
        const struct tt_segment *s = &t->segments[t->segment];
        size_t bytes = s->bytes - t->done < left ? s->bytes - t->done : left;

        if (bytes > 0)
            TT_PUSH(parts->scratch, n, parts->cap) = (struct tt_segment){(char *)s->data + t->done, bytes};
        left -= bytes;
        t->done += bytes;
        if (t->done == s->bytes) {
            t->segment++;
            t->done = 0;
        }
    }
    return n;
}

/* Posts the parts that may be posted now. */
static int parts_feed(struct mpi_comm *me)
{
    struct parted **link = &me->parts.first;
    int rc = 0, index;

    while (*link) {
        struct parted *t = *link;
        const struct slot part = {.peer = t->peer, .tag = t->tag, .send = t->send, .whole = t};
        bool ready = t->ready && !ahead(me, t, t->peer, t->tag, t->send);

        while (ready && t->n_posted < t->n_parts && t->n_under_way < PARTS_AT_ONCE) {
            int n = cut(&me->parts, t);

            TT_TRY(begin_message(me, me->parts.scratch, n, part, &index));
            t->n_posted++;
            t->n_under_way++;
        }
        if (t->n_posted == t->n_parts)
            *link = t->next;
        else
            link = &t->next;
    }
out:
    return rc;
}

/* Begins a transfer; ret_parted is valid until parts_test says that it is done. */
static int parts_begin(struct mpi_comm *me, const struct tt_segment *segments, int n, struct slot wanted,
                       struct parted **ret_parted)
{
    struct parted *t = me->parts.unused, **link = &me->parts.first;
    int rc = 0, index;

    if (t)
        me->parts.unused = t->next;
    else
        t = tt_calloc(1, sizeof *t);
    *t = (struct parted){
        .peer = wanted.peer, .tag = wanted.tag, .send = wanted.send, .segments = t->segments, .n = n, .cap = t->cap};
    if (n > t->cap) {
        t->segments = tt_realloc(t->segments, (size_t)n, sizeof *t->segments);
        t->cap = n;
    }
    for (int i = 0; i < n; i++) {
        t->segments[i] = segments[i];
        t->bytes += segments[i].bytes;
    }
    t->n_parts = t->bytes > PART_BYTES ? (int)tt_div_up((int64_t)t->bytes, PART_BYTES) : 1;
    t->ready = !t->send || t->n_parts == 1;
    t->wanted = t->send ? 0 : (int64_t)t->bytes;
    while (*link)
        link = &(*link)->next;
    *link = *ret_parted = t;
    if (t->n_parts > 1) {
        struct tt_segment ready = {&t->wanted, sizeof t->wanted};

        wanted.send = !t->send;
        wanted.is_ready = true;
        wanted.whole = t;
        TT_TRY(begin_message(me, &ready, 1, wanted, &index));
        t->n_under_way++;
    }
    rc = parts_feed(me);
out:
    return rc;
}

/* Called when a part or the ready message is complete; rc is its code, with the error message. */
static void parts_end(struct parted *t, int rc)
{
    t->n_under_way--;
    if (rc >= 0 || t->rc < 0)
        return;
    t->rc = rc;
    t->message = tt_strdup(tt_error_message());
}

static void parts_ready(struct parted *t, int rc)
{
    if (rc >= 0 && t->send && t->wanted != (int64_t)t->bytes)
        rc = tt_fail(TT_EINTERNAL, "message to rank %d, tag %d: %zu bytes sent, %lld expected", t->peer, t->tag,
                     t->bytes, (long long)t->wanted);
    t->ready = rc >= 0;
    parts_end(t, rc);
}

/* Tests whether the whole transfer is done; returns the error of a failed part. Other parts of a failed transfer may
 * still be under way, so it is never reused; the job is about to end. */
static int parts_test(struct parts *parts, struct parted *t, bool *ret_done)
{
    *ret_done = t->rc < 0 || (t->n_posted == t->n_parts && t->n_under_way == 0);
    if (t->rc < 0)
        return tt_fail(t->rc, "%s", t->message);
    if (*ret_done) {
        t->next = parts->unused;
        parts->unused = t;
    }
    return 0;
}

static int begin(struct mpi_comm *me, const struct tt_segment *segments, int n, struct slot wanted,
                 struct tt_request *ret_request)
{
    struct parted *whole = NULL;
    size_t bytes = 0;
    int rc = 0, index = 0;

    for (int i = 0; i < n; i++)
        bytes += segments[i].bytes;
    /* a message must not overtake the parts of an earlier one */
    if (bytes > PART_BYTES || ahead(me, NULL, wanted.peer, wanted.tag, wanted.send))
        rc = parts_begin(me, segments, n, wanted, &whole);
    else
        rc = begin_message(me, segments, n, wanted, &index);
    ret_request->state[0] = (uintptr_t)index;
    ret_request->state[1] = (uintptr_t)whole;
    return rc;
}

static int send_begin(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                      struct tt_request *ret_request)
{
    return begin((struct mpi_comm *)comm, segments, n, (struct slot){.peer = peer, .tag = tag, .send = true},
                 ret_request);
}

static int recv_begin(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                      struct tt_request *ret_request)
{
    return begin((struct mpi_comm *)comm, segments, n, (struct slot){.peer = peer, .tag = tag, .send = false},
                 ret_request);
}

/* The result of a complete message. MPI itself reports a message that is longer than its buffer; this function finds
 * one that is shorter. */
static int check_message(const struct mpi_comm *me, const struct slot *slot)
{
    MPI_Count received = 0;
    int error;

    if (slot->status.MPI_ERROR != MPI_SUCCESS)
        return tt_wrap(fail_mpi(slot->status.MPI_ERROR, slot->send ? "sending" : "receiving"),
                       "rank %d, rank %d, tag %d, %zu bytes", me->base.rank, slot->peer, slot->tag, slot->bytes);
    if (slot->send)
        return 0;
    if ((error = MPI_Get_elements_x(&slot->status, MPI_BYTE, &received)) != MPI_SUCCESS)
        return fail_mpi(error, "MPI_Get_elements_x");
    if (received != (MPI_Count)slot->bytes)
        return tt_fail(TT_EINTERNAL, "rank %d: message from rank %d, tag %d: %lld bytes sent, %zu expected",
                       me->base.rank, slot->peer, slot->tag, (long long)received, slot->bytes);
    return 0;
}

static void free_slot(struct mpi_comm *me, int index)
{
    me->slots[index - 1].next_unused = me->unused;
    me->unused = index;
}

static int advance(struct tt_comm *comm)
{
    struct mpi_comm *me = (struct mpi_comm *)comm;
    int n = 0, error;

    if (me->n_under_way == me->n_pulses && !comm->looks)
        return 0;
    error = MPI_Testsome(me->n_used, me->requests, &n, me->completed, me->statuses);
    if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS)
        return fail_mpi(error, "MPI_Testsome");
    for (int i = 0; i < n; i++) { /* n is MPI_UNDEFINED (negative) if nothing was under way */
        struct slot *slot = &me->slots[me->completed[i]];

        slot->complete = true;
        slot->status = me->statuses[i];
        if (error == MPI_SUCCESS)
            slot->status.MPI_ERROR = MPI_SUCCESS; /* MPI_Testsome then does not set it */
        me->n_under_way--;
        if (slot->tag == TT_TAG_PULSE) {
            me->n_pulses--;
        } else {
            comm->progress++;
            comm->received_messages += !slot->send;
        }
        if (slot->whole) {
            (slot->is_ready ? parts_ready : parts_end)(slot->whole, check_message(me, slot));
            free_slot(me, me->completed[i] + 1);
        }
    }
    return parts_feed(me);
}

static int test(struct tt_comm *comm, struct tt_request *request, bool *ret_done)
{
    struct mpi_comm *me = (struct mpi_comm *)comm;
    int index = (int)request->state[0];
    struct parted *whole;
    int rc = 0;

    memcpy(&whole, &request->state[1], sizeof whole);
    if (whole) {
        rc = parts_test(&me->parts, whole, ret_done);
        request->state[1] = *ret_done ? 0 : request->state[1];
        return rc;
    }
    *ret_done = index == 0 || me->slots[index - 1].complete;
    if (index == 0 || !*ret_done)
        return 0;
    rc = check_message(me, &me->slots[index - 1]);
    free_slot(me, index);
    request->state[0] = 0;
    return rc;
}

static int read_peer(struct tt_comm *comm, int peer, uint64_t address, void *into, size_t bytes)
{
    return tt_peer_memory_read(((struct mpi_comm *)comm)->memory, peer, address, into, bytes);
}

static void stop(struct tt_comm *comm, int exit_code, const char *message)
{
    struct mpi_comm *me = (struct mpi_comm *)comm;

    (void)fprintf(stderr, "%s\n", message);
    (void)fflush(NULL);
    (void)MPI_Abort(me->comm, exit_code);
    abort(); /* MPI_Abort does not return from a working library */
}

static void free_tables(struct mpi_comm *me)
{
    tt_free(me->host_leader);
    tt_free(me->slots);
    tt_free(me->requests);
    tt_free(me->completed);
    tt_free(me->statuses);
    tt_free(me->lengths);
    tt_free(me->addresses);
}

static void release(struct tt_comm *comm)
{
    struct mpi_comm *me = (struct mpi_comm *)comm;

    for (int i = 0; i < me->n_used; i++) { /* at the end of a job only signs of life are under way */
        if (me->requests[i] == MPI_REQUEST_NULL)
            continue;
        if (!me->slots[i].send)
            (void)MPI_Cancel(&me->requests[i]);
        (void)MPI_Request_free(&me->requests[i]);
    }
    (void)MPI_Comm_free(&me->ready);
    (void)MPI_Comm_free(&me->comm);
    (void)MPI_Finalize();
    for (struct parted *t = me->parts.unused, *next; t; t = next) {
        next = t->next;
        tt_free(t->segments);
        tt_free(t);
    }
    tt_free(me->parts.scratch);
    tt_peer_memory_free(me->memory);
    free_tables(me);
    tt_free(me);
}

static const struct tt_comm_ops mpi_ops = {
    .name = "mpi",
    .send_begin = send_begin,
    .recv_begin = recv_begin,
    .advance = advance,
    .test = test,
    .read = read_peer,
    .abort = stop,
    .free = release,
};

bool tt_comm_mpi_launched(void)
{
    const char *variable;

    return launched_ranks(&variable) > 0 || getenv("PMIX_RANK");
}

/* Fills in the communicator after MPI was initialised. */
static int connect_ranks(struct mpi_comm *me)
{
    const char *variable = NULL;
    int wanted = launched_ranks(&variable);
    int rc = 0, error;

    if ((error = MPI_Comm_dup(MPI_COMM_WORLD, &me->comm)) != MPI_SUCCESS ||
        (error = MPI_Comm_dup(MPI_COMM_WORLD, &me->ready)) != MPI_SUCCESS)
        return fail_mpi(error, "MPI_Comm_dup");
    (void)MPI_Comm_set_errhandler(me->comm, MPI_ERRORS_RETURN);
    (void)MPI_Comm_set_errhandler(me->ready, MPI_ERRORS_RETURN);
    (void)MPI_Comm_rank(me->comm, &me->base.rank);
    (void)MPI_Comm_size(me->comm, &me->base.size);
    if (wanted > 0 && wanted != me->base.size) {
        rc = tt_fail(TT_ECOMM,
                     "the launcher started %d ranks (%s) but MPI sees %d: the launcher belongs to another MPI library\n"
                     "help: start titan with the mpirun of the Open MPI that it was built with (under Slurm: srun "
                     "--mpi=pmix, or mpirun inside the allocation)",
                     wanted, variable, me->base.size);
        (void)MPI_Comm_free(&me->ready);
        (void)MPI_Comm_free(&me->comm);
    }
    return rc;
}

/* Ranks share a host if MPI says that they can share memory. The split keeps their order. */
static int find_hosts(struct mpi_comm *me)
{
    int leader = me->base.rank, error;
    MPI_Comm local;

    me->host_leader = tt_calloc((size_t)me->base.size, sizeof *me->host_leader);
    error = MPI_Comm_split_type(me->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
    if (error != MPI_SUCCESS)
        return fail_mpi(error, "MPI_Comm_split_type");
    error = MPI_Bcast(&leader, 1, MPI_INT, 0, local);
    (void)MPI_Comm_free(&local);
    if (error == MPI_SUCCESS)
        error = MPI_Allgather(&leader, 1, MPI_INT, me->host_leader, 1, MPI_INT, me->comm);
    me->base.host_leader = me->host_leader;
    return error == MPI_SUCCESS ? 0 : fail_mpi(error, "finding the ranks of each host");
}

/*
 * Over TCP, Open MPI sends a long message only after an answer from the receiver, and this answer queues behind the
 * data that goes the other way. A link that is busy both ways, as in a backward pass, then runs at half its rate. The
 * receives of a collective are posted when it begins, so most messages can go at once. A value that the user set stays.
 * The extra bytes beyond EAGER_BYTES are for Open MPI's header.
 */
static void prefer_eager_messages(void)
{
    char limit[16];

    (void)snprintf(limit, sizeof limit, "%d", EAGER_BYTES + 512);
    (void)setenv("OMPI_MCA_btl_tcp_eager_limit", limit, 0);
}

int tt_comm_mpi_new(double timeout_sec, struct tt_comm **ret_comm)
{
    struct mpi_comm *me = NULL;
    int rc = 0, error, initialized = 0, level = 0;
    bool is_initialized = false;

    (void)MPI_Initialized(&initialized);
    if (initialized)
        return tt_fail(TT_EINTERNAL, "MPI is initialised twice");
    prefer_eager_messages();
    start_watch_begin(timeout_sec); /* until the ranks are connected, calls of MPI may never return */
    if ((error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level)) != MPI_SUCCESS) {
        rc = fail_mpi(error, "MPI_Init_thread");
        goto out;
    }
    is_initialized = true;
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    me = tt_calloc(1, sizeof *me);
    me->base.ops = &mpi_ops;
    me->base.timeout_sec = timeout_sec;
    if (level < MPI_THREAD_FUNNELED) {
        rc = tt_fail(TT_ECOMM, "this MPI library does not support processes with several threads\n"
                               "help: use an MPI library with MPI_THREAD_FUNNELED or better");
        goto out;
    }
    TT_TRY(connect_ranks(me));
    TT_TRY(find_hosts(me));
    start_watch_end(); /* from now on the communicator's timeout applies */
    slots_grow(me, FIRST_SLOTS);
    blocks_grow(me, FIRST_BLOCKS);
    TT_TRY(tt_peer_memory_new(&me->base, &me->memory));
    me->base.reachable = me->memory->reachable;
    me->base.hosts = me->memory->hosts;
    me->base.read_bytes = READ_BYTES;
    me->base.eager_bytes = EAGER_BYTES;
    me->base.control_bytes = 0;
    *ret_comm = &me->base;
    me = NULL;
out:
    if (rc < 0)
        start_watch_end();
    if (rc < 0 && is_initialized)
        (void)MPI_Finalize();
    if (me)
        free_tables(me);
    tt_free(me);
    return rc;
}

const char *tt_comm_mpi_library(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;

    (void)MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = 0;
    return text;
}
