/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_STAGES_H
#define TT_PARALLEL_COMM_STAGES_H

#include "parallel/comm/collectives.h"

/**
 * How a collective is built; for collectives.c only. A collective is a list of stages. A stage posts its messages,
 * waits for all of them, and then does its local work (copies and additions) in order. Then the next stage begins. The
 * functions that run a collective (tt_collective_begin, test, wait) are the same for all.
 *
 * Everything is added to the last stage, in the order of the calls. Addresses are kept, lists are not.
 */

/** Makes a collective without stages. Free it with tt_collective_free. */
struct tt_collective *tt_stages_new(struct tt_comm *comm, const struct tt_group *group, int tag);

/** Removes all stages, so that others can be added. Later ones of the same sizes allocate nothing. */
void tt_stages_clear(struct tt_collective *collective);

/** Counts the bytes that the collective sends there, instead of in comm->payload_bytes. */
void tt_stages_count(struct tt_collective *collective, int64_t *sent_bytes);

void tt_stages_add(struct tt_collective *collective);

/** Adds local work: into = a + b as floats over whole lists, where b is one array; b NULL: into = a. */
void tt_stages_add_work(struct tt_collective *collective, struct tt_segment_list into, struct tt_segment_list a,
                        const char *b);

/** The data that the last stage sends to one member or receives from it. */
struct tt_wire {
    struct tt_collective *collective;
    bool send;
    int member;
    bool read;                          /* the receiver reads it from the sender's memory: one message for all */
    bool open;                          /* the last message can take more pieces; false at first */
    int64_t large_bytes, message_bytes; /* larger pieces are sent alone, in messages of at most message_bytes */
};

/**
 * Makes one end of a wire. The other end must make it from the same numbers, since from them alone both decide whether
 * the data is read (tt_comm.read_bytes) or sent, and where it is cut.
 *   bytes    of the whole wire
 *   senders  members that send as much to one member at once
 */
struct tt_wire tt_wire_make(struct tt_collective *collective, bool send, int member, int64_t bytes, int senders);

/**
 * Adds data to be sent or received. Sent data is cut into messages at the segments of `cut`, which are the same on both
 * sides. A large piece is a message of its own, since MPI moves contiguous memory several times faster than a datatype
 * of blocks, or several messages where that avoids handshakes (tt_comm.eager_bytes). Consecutive small pieces share a
 * message. Data that is read needs no cut.
 */
void tt_wire_add(struct tt_wire *wire, struct tt_segment_list data, struct tt_segment_list cut);

/**
 * Adds floats to be received and added: into = a + received, cut at the segments of a. They pass through
 * `received`, a buffer of the same size. A later call for the same wire passes the memory that follows the buffer
 * of the earlier call.
 */
void tt_wire_add_sum(struct tt_wire *wire, struct tt_segment_list into, struct tt_segment_list a, char *received);

/** Gives the collective memory from tt_calloc that it uses; it is freed with the collective. Once per collective. */
void tt_stages_own(struct tt_collective *collective, void *memory);

/** A position in a segment list. */
struct tt_cursor {
    struct tt_segment_list list;
    int item;
    size_t offset;
};

/**
 * The contiguous bytes at the cursor, which moves on to the next segment at the end of one; 0 at the end of the list.
 */
size_t tt_cursor_room(struct tt_cursor *cursor);
char *tt_cursor_data(const struct tt_cursor *cursor);

int64_t tt_segment_list_bytes(struct tt_segment_list list);

#endif
