/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_COMM_COMM_H
#define TT_CORE_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * A communicator: the ranks of a job and how they exchange messages. All code above it (collectives, FSDP, checkpoints)
 * uses only these few functions. The implementations are self (one rank, in comm.c), MPI (parallel/comm/mpi.c) and
 * threads of one process (tests/help/threads.c).
 *
 * A message is a list of segments, so that a shard arrives at its place in the parameters without a staging copy.
 * Messages between two ranks with one tag arrive in the order they were sent.
 *
 * Only the thread that created a communicator calls it (MPI_THREAD_FUNNELED).
 */
struct tt_segment {
    void *data;
    size_t bytes;
};

/** A transfer under way: opaque storage of the implementation. All zero: nothing is under way. */
struct tt_request {
    uintptr_t state[2];
};

struct tt_comm;
struct tt_team;

struct tt_comm_ops {
    const char *name; /* "self", "threads", "mpi" */
    /* Starts a transfer. Until it completes, memory that is sent must not be written, and memory that receives must not
     * be read. The list of segments may be released on return. peer is a rank of comm. */
    int (*send_begin)(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                      struct tt_request *ret_request);
    int (*recv_begin)(struct tt_comm *comm, const struct tt_segment *segments, int n, int peer, int tag,
                      struct tt_request *ret_request);
    /* Advances all transfers; never blocks. NULL if transfers advance by themselves. */
    int (*advance)(struct tt_comm *comm);
    /* Whether a transfer was complete at the last `advance`; if so, sets its request to zero. A zero request counts as
     * complete. Every completed transfer, and every part of a long one, counts in comm->progress, except under
     * TT_TAG_PULSE. */
    int (*test)(struct tt_comm *comm, struct tt_request *request, bool *ret_done);
    /* Copies bytes from an address in the memory of a `reachable` rank. Several threads may call it at once. Returns 0
     * or an errno, and sets no message. NULL: no rank is reachable. */
    int (*read)(struct tt_comm *comm, int peer, uint64_t address, void *into, size_t bytes);
    /* Prints message once and ends the whole job; does not return. For jobs whose ranks can no longer agree, as after
     * any TT_ECOMM, where `free` might wait for a dead rank forever. */
    void (*abort)(struct tt_comm *comm, int exit_code, const char *message);
    void (*free)(struct tt_comm *comm);
};

/**
 * Work in several steps, such as a collective under way. While it is linked into its communicator, every wait and every
 * tt_comm_progress advances it, so that no rank holds up a collective of others.
 */
struct tt_activity {
    /* Advances as far as it can without blocking. Unlinks itself when it is complete or has failed. */
    int (*advance)(struct tt_activity *activity);
    struct tt_activity *next;
    struct tt_activity **link; /* the pointer to this activity; NULL: not linked */
    double begin_sec, end_sec; /* when it was last linked and unlinked (tt_clock_sec) */
};

struct tt_comm {
    const struct tt_comm_ops *ops;
    int rank;
    int size;
    double timeout_sec;            /* a wait fails (TT_ECOMM) after this time without progress of the job; 0: never */
    const char *waiting_for;       /* this rank's present work, for the message of a failed wait; may be NULL */
    const int *host_leader;        /* [size] the lowest rank on each rank's host, as the transport knows it; NULL: 0 */
    const char *const *hosts;      /* [size] the name of each rank's host, for messages; NULL: all are on this host */
    double report_sec;             /* seconds between reports of a long wait; 0: no reports */
    void (*say)(const char *text); /* reports a long wait, on one of the waiting ranks; may be NULL */
    int64_t progress;              /* this rank's messages and parts of messages, sent and received, and its own work */
    int64_t payload_bytes; /* sent by this rank in collectives of parameters and gradients; reset by the trainer */
    int64_t routed_bytes;  /* sent by this rank as rows of expert-parallel experts; depends on the data */
    int64_t control_bytes; /* sent by this rank for agreement, norms, losses */
    double wait_sec;       /* time in waits that did not complete at once: exposed communication */
    /* [size] ranks whose memory ops->read can read, and that can read this rank's; NULL: none */
    const bool *reachable;
    int64_t read_bytes;         /* reachable ranks read transfers of at least this size; 0: none */
    int64_t eager_bytes;        /* messages up to this size are sent without asking the receiver; 0: no limit */
    struct tt_team *team;       /* helps with large copies when it is idle; NULL: this thread copies alone */
    struct tt_activity *active; /* in the order in which they began */
    struct tt_pulse *pulse;     /* signs of life of all ranks; belongs to comm.c, and is freed with comm (tt_free) */
    double clock_sec, seen_sec; /* see tt_comm_clock */
    bool waits_long, works;     /* this rank has waited for half of report_sec; it is in tt_comm_work */
    bool looks;                 /* poll the transport even if no transfer is under way */
    bool adds_doubles;          /* collectives add numbers in float64, not float32 */
    /* Messages on the wire except signs of life, counted by the transport: sends begun, receives begun, receives
     * completed. See tt_comm_check_messages. */
    int64_t sent_messages, begun_receives, received_messages;
    char *failure;   /* the message of the first TT_ECOMM, with which every later wait fails at once */
    double turn_sec; /* after a failure: when this rank may report it (tt_comm_clock) */
};

/** Links an activity after those under way, and unlinks it (allowed when it is not linked). */
void tt_comm_link(struct tt_comm *comm, struct tt_activity *activity);
void tt_comm_unlink(struct tt_activity *activity);

/**
 * Advances every activity under way, without blocking; called between instructions and tiles. It shows the other ranks
 * that this one is alive, so a loop that calls it must make progress between the calls.
 */
int tt_comm_progress(struct tt_comm *comm) TT_MUST_CHECK;

/**
 * Seconds during which this rank has polled the communicator. If the process was stopped or busy between two polls,
 * only half a second of that time counts. All timeouts are in these seconds, so that a job that is suspended as a whole
 * continues afterwards.
 */
double tt_comm_clock(struct tt_comm *comm);

/** Waits for a request, with the timeout of tt_comm_wait_until; peer is for the message. */
int tt_comm_wait(struct tt_comm *comm, struct tt_request *request, int peer) TT_MUST_CHECK;

/** Tells whether a wait is over and, if not, a rank that it still needs. */
typedef int (*tt_comm_poll_fn)(void *arg, bool *ret_done, int *ret_peer);

/**
 * Waits until poll is done, and advances the activities meanwhile. Fails with TT_ECOMM when the job has made no
 * progress for timeout_sec: no rank completed a message or a part of a long one, and no rank was in tt_comm_work. The
 * message names the missing rank, its host and `waiting_for`. The actual timeout is a quarter longer (by 0.5 s to 10
 * s), so that all ranks find the same rank missing. After a TT_ECOMM the ranks can no longer agree, so every later wait
 * fails at once with the same message, and no transfer advances any more: the caller may release the memory that
 * transfers use. Over MPI the failure is returned only when the lower living ranks have had time to end the job
 * (tt_comm_abort).
 */
int tt_comm_wait_until(struct tt_comm *comm, tt_comm_poll_fn poll, void *arg) TT_MUST_CHECK;

/**
 * Passes on the result of an operation on comm. After the first TT_ECOMM it keeps the message, gives the lower ranks
 * time to report the failure, and answers the other ranks meanwhile. This advances the transfers under way, which write
 * to memory of the callers, so it must happen before the callers release that memory.
 */
int tt_comm_give_way(struct tt_comm *comm, int code);

/**
 * Calls work(arg), which may take long and does not communicate, such as reading and writing files. It runs in another
 * thread, while this thread tells the other ranks that it is alive, so that they wait as long as the work takes. work
 * must not use comm. Returns what work returned, with its message. A single rank does the work in this thread.
 */
int tt_comm_work(struct tt_comm *comm, int (*work)(void *arg), void *arg) TT_MUST_CHECK;

/**
 * The lowest rank on a rank's host. Two ranks share a host if this function gives the same rank for both. Only the
 * transport knows that: two hosts may have the same name, and containers on one host have different names.
 */
int tt_comm_host_leader(const struct tt_comm *comm, int rank);
bool tt_comm_same_host(const struct tt_comm *comm, int a, int b);

/** This rank's index among the ranks on its host, and their number. */
void tt_comm_node(const struct tt_comm *comm, int *ret_local_rank, int *ret_local_size);

/** The name of a rank's host, for messages. */
static inline const char *tt_comm_host(const struct tt_comm *comm, int rank)
{
    return comm->hosts ? comm->hosts[rank] : "this host";
}

/** into = a + b in the type that collectives add; `bytes` is that of whole numbers, and into may be a or b. */
void tt_comm_add(const struct tt_comm *comm, void *into, const void *a, const void *b, int64_t bytes);

void tt_comm_free(struct tt_comm *comm);

/**
 * Prints message and ends the job, see tt_comm_ops. Several ranks see a TT_ECOMM at about the same time. Then the
 * lowest living rank prints and ends the job, and the others do so only if they are still running after some seconds.
 */
void tt_comm_abort(struct tt_comm *comm, int exit_code, const char *message);

/* Small collectives over all ranks of comm: every rank calls them, with the same arguments except for the data. They
 * count as control traffic. Sums are sums of integers, so that the result does not depend on the order. */

int tt_comm_sum_i64(struct tt_comm *comm, int64_t *values, int n) TT_MUST_CHECK;

/** The same for many values, with one message up and down the tree. room: scratch for n more values. */
int tt_comm_sum_at_once_i64(struct tt_comm *comm, int64_t *values, int64_t *room, int n) TT_MUST_CHECK;
int tt_comm_max_f64(struct tt_comm *comm, double *values, int n) TT_MUST_CHECK;
int tt_comm_barrier(struct tt_comm *comm) TT_MUST_CHECK;

/**
 * Checks that every message that a rank has sent was received, and that no receive is open: such messages remain if the
 * two ends disagree about a transfer. Nothing may be under way. Errors: TT_EINTERNAL, on all ranks.
 */
int tt_comm_check_messages(struct tt_comm *comm) TT_MUST_CHECK;

/** Sends root's bytes to every rank. */
int tt_comm_broadcast(struct tt_comm *comm, void *bytes, size_t size, int root) TT_MUST_CHECK;

/** Gathers every rank's `size` bytes, in rank order, into `all` (comm->size * size bytes) on every rank. */
int tt_comm_gather_all(struct tt_comm *comm, const void *bytes, size_t size, void *all) TT_MUST_CHECK;

/**
 * Agreement on errors, for use before ranks communicate about their results. Every rank passes its own code (0 or
 * negative) and gets the code and the message of the lowest failing rank; 0 when all passed 0. A rank that passes
 * TT_ECOMM gets it back at once, since it cannot reach the others. Allocates no memory.
 */
int tt_comm_agree(struct tt_comm *comm, int code) TT_MUST_CHECK;

/** The communicator of a process that runs alone: one rank, no MPI. The caller frees it (tt_comm_free). */
struct tt_comm *tt_comm_self_new(void);

/** Every tag of messages. Two exchanges that may be under way at once between the same ranks have different tags. */
enum { TT_TAG_EXCHANGES = 4096 }; /* tags from TT_TAG_EXCHANGE on */

enum tt_tag {
    TT_TAG_CONTROL = 1, /* small collectives */
    TT_TAG_PULSE,       /* signs of life */
    TT_TAG_COMPARE,     /* finds ranks whose memory can be read (parallel/comm/peer_memory.c) */
    TT_TAG_SAVE, /* parts of tensors on their way to a rank that writes them (checkpoint/save) or generates (engine) */
    TT_TAG_LOAD, /* parts of tensors on their way from the rank that read them (checkpoint/load) */
    TT_TAG_COLLECTIVE, /* the first tag of collectives; lowering numbers them (tt_collective_desc.tag) */
    TT_TAG_COLLECTIVE_LAST = 12284,
    TT_TAG_EXPERTS,          /* rows of expert-parallel experts; see core/program/instr/nodes.c */
    TT_TAG_EXCHANGE,         /* the first tag of exchanges inside a layer; see core/program/instr/collective.c */
    TT_TAG_BOUNDARY = 16382, /* the first tag of values between the stages of a pipeline; see the same file */
    TT_TAG_TIED = 32766,     /* the sum of a tied weight's gradient from the first stage; next tag: from the last */
    TT_TAG_LAST = 32767      /* the largest tag that every MPI accepts */
};

#endif
