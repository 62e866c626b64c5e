/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_COMM_COMM_H
#define TT_CORE_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * A communicator: the ranks of a job and how they exchange messages. Everything above it (collectives, FSDP,
 * checkpoints) is written once over these few functions; the implementations are self (one rank), threads (ranks are
 * threads of one process, for tests) and MPI, all in parallel/.
 *
 * A message is a list of segments, so that a shard lands in the parameters where it belongs without a staging copy.
 * Messages between two ranks with one tag arrive in the order they were sent.
 *
 * Only the thread that created a communicator calls it (MPI_THREAD_FUNNELED).
 */
struct tt_segment {
    void *data;
    size_t bytes;
};

/** A transfer under way; opaque storage of the implementation. Zero = nothing under way. */
struct tt_request {
    uintptr_t state[2];
};

struct tt_comm;
struct tt_team;

struct tt_comm_ops {
    const char *name; /* "self", "threads", "mpi" */
    /* Starts a transfer; the segments' memory must stay untouched (send) or unread (receive) until it completes. The
     * segment list itself is copied or no longer needed on return. peer is a rank of comm. */
    int (*send_begin)(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                      struct tt_request *ret_request);
    int (*recv_begin)(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                      struct tt_request *ret_request);
    /* Moves all transfers; never blocks. NULL where they need no help. */
    int (*advance)(struct tt_comm *comm);
    /* Says whether a transfer completed, as of the last advance; its request is then zero. A zero request is done. What
     * completes, a part of a long transfer too, counts in comm->progress, except under TT_PULSE_TAG (pulse.h). */
    int (*test)(struct tt_comm *comm, struct tt_request *request, bool *ret_done);
    /* Copies bytes from an address in the memory of a `reachable` rank. Any thread may call it, several at once. Returns
     * 0 or an errno, and sets no message. NULL: nobody is reachable. */
    int (*read)(struct tt_comm *comm, int peer, uint64_t address, void *into, size_t bytes);
    /* Ends the whole job now, after printing message once; used when ranks can no longer agree, so after any TT_ECOMM,
     * where free could wait for a rank that is gone. Does not return. */
    void (*abort)(struct tt_comm *comm, int exit_code, const char *message);
    void (*free)(struct tt_comm *comm);
};

/**
 * Something with several steps that moves on when it is polled: a collective under way. While it is linked into its
 * communicator, every wait and every tt_comm_progress advances it, so that no rank holds up another one's collective.
 */
struct tt_activity {
    /* Moves on as far as it can without blocking; unlinks itself when it is complete or has failed. */
    int (*advance)(struct tt_activity *activity);
    struct tt_activity *next;
    struct tt_activity **link; /* what points here; NULL: not linked */
    double begin_sec, end_sec; /* when it was linked and unlinked last (tt_clock_sec) */
};

struct tt_comm {
    const struct tt_comm_ops *ops;
    int rank;
    int size;
    double timeout_sec;            /* without progress of the job for so long, a wait is TT_ECOMM; 0: it never is */
    const char *waiting_for;       /* what this rank is doing, for that message; may be NULL */
    const char *const *hosts;      /* [size] the name of each rank's host; NULL: all are on this one */
    double report_sec;             /* a wait is reported each time it has lasted so long again; 0: never */
    void (*say)(const char *text); /* reports a long wait, on one of the ranks that wait; NULL: nobody is told */
    int64_t progress;      /* of this rank: counts messages and parts of messages that arrived or left, and own work */
    int64_t payload_bytes; /* sent by this rank in collectives of parameters and gradients; reset by the trainer */
    int64_t control_bytes; /* sent by this rank for agreement, norms, losses */
    double wait_sec;       /* time spent in waits that had not completed at once: exposed communication */
    const bool *reachable; /* [size] ranks whose memory ops->read can read and that can read ours; NULL: none */
    int64_t read_bytes;    /* collectives read transfers of this size on from a reachable rank; 0: none */
    int64_t eager_bytes;   /* messages up to here are sent without asking the receiver first; 0: as if all were */
    struct tt_team *team;  /* helps with large copies when it has nothing else to do; NULL: this thread alone */
    struct tt_activity *active; /* in the order they began */
    struct tt_pulse *pulse;     /* signs of life of all ranks (pulse.h); freed with comm */
    double clock_sec, seen_sec; /* see tt_comm_clock */
    bool waits_long, works;     /* this rank has waited for half of report_sec; it is in tt_comm_work */
    bool looks;                 /* a transport that spares itself looks while nothing is under way must look now */
    char *failure;              /* the message of the first TT_ECOMM: every wait after it fails at once */
};

/** Links an activity behind those under way; takes it out again (allowed when it is not linked). */
void tt_comm_link(struct tt_comm *comm, struct tt_activity *activity);
void tt_comm_unlink(struct tt_activity *activity);

/**
 * Advances every activity under way, without blocking; called between instructions and tiles. It tells the other ranks
 * that this one is at work, so who calls it in a loop must get something done between the calls.
 */
int tt_comm_progress(struct tt_comm *comm) TT_MUST_CHECK;

/**
 * Seconds that this rank has looked at the communicator. Where two looks are far apart, because the process was stopped or
 * was busy, only half a second counts. Every timeout is in these seconds, so that a job which is suspended as a whole
 * goes on afterwards.
 */
double tt_comm_clock(struct tt_comm *comm);

/** Waits for a request with the timeout above; peer is for the message. */
int tt_comm_wait(struct tt_comm *comm, struct tt_request *request, int peer) TT_MUST_CHECK;

/** Says whether what is waited for is complete, and if not, a rank that it still needs. */
typedef int (*tt_comm_poll_fn)(void *arg, bool *ret_done, int *ret_peer);

/**
 * Waits, advancing the activities, until poll is done. It is TT_ECOMM, naming the missing rank, its host and
 * `waiting_for`, when the job has made no progress for timeout_sec (and a quarter more, between 0.5 s and 10 s, so that all
 * ranks find the same rank missing): no rank completed a message or a part of a long one, and none was at work. After a
 * TT_ECOMM ranks can no longer agree, so every later wait is TT_ECOMM at once, with the same message.
 */
int tt_comm_wait_until(struct tt_comm *comm, tt_comm_poll_fn poll, void *arg) TT_MUST_CHECK;

/**
 * Does work(arg) that takes long without communicating, as reading and writing files does: in another thread, while this
 * one tells the other ranks that it lives, so that they wait however long it takes. work must not use comm. Returns
 * what work returned, with its message. A rank alone does the work in this thread.
 */
int tt_comm_work(struct tt_comm *comm, int (*work)(void *arg), void *arg) TT_MUST_CHECK;

/** The name of a rank's host, for messages. */
const char *tt_comm_host(const struct tt_comm *comm, int rank);

void tt_comm_free(struct tt_comm *comm);

/**
 * Ends the job after printing message, see tt_comm_ops. After a TT_ECOMM, which several ranks see at about the same time,
 * the lowest rank that lives prints and ends the job; the others only do so if that has not ended them within some
 * seconds.
 */
void tt_comm_abort(struct tt_comm *comm, int exit_code, const char *message);

/* Small collectives over all ranks of comm (collective: every rank calls, same arguments but the data). They count as
 * control traffic. Integers, so that the result does not depend on the order of the sums. */

int tt_comm_sum_i64(struct tt_comm *comm, int64_t *values, int n) TT_MUST_CHECK;
int tt_comm_max_f64(struct tt_comm *comm, double *values, int n) TT_MUST_CHECK;
int tt_comm_barrier(struct tt_comm *comm) TT_MUST_CHECK;

/** Bytes of root go to every rank. */
int tt_comm_broadcast(struct tt_comm *comm, void *bytes, size_t size, int root) TT_MUST_CHECK;

/** Every rank's size bytes, in rank order, into all (comm->size * size bytes) on every rank. */
int tt_comm_gather_all(struct tt_comm *comm, const void *bytes, size_t size, void *all) TT_MUST_CHECK;

/**
 * Agreement on errors, before ranks communicate about what they made: every rank passes its own code (0 or negative);
 * every rank gets the code of the lowest failing rank, and that rank's message as its own. 0 when all passed 0.
 * TT_ECOMM comes back at once: a rank that could not reach the others cannot agree with them either.
 * Allocates nothing.
 */
int tt_comm_agree(struct tt_comm *comm, int code) TT_MUST_CHECK;

/** This rank's place among the ranks on its host, and their number, by host name. Collective; allocates, so not in steps. */
int tt_comm_node(struct tt_comm *comm, int *ret_local_rank, int *ret_local_size) TT_MUST_CHECK;

#endif
