/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_STAGES_H
#define TT_PARALLEL_COMM_STAGES_H

#include "parallel/comm/collectives.h"

/**
 * How a collective is put together; for collectives.c only. It is a list of stages. A stage posts its messages, waits
 * for all of them, then does its local work (copies and additions) in order; then comes the next stage. Running them
 * (tt_collective_begin, test, wait) is the same for all.
 *
 * Everything is added to the last stage, in the order of the calls. Addresses are kept, lists are not.
 */

/** A collective without stages, in which each member receives `incoming` bytes. The caller's (tt_collective_free). */
struct tt_collective *tt_stages_new(struct tt_comm *comm, const struct tt_group *group, int tag, int64_t incoming);

void tt_stages_add(struct tt_collective *collective);

/** Local work: into = a + b as floats over whole lists, where b is one array; b NULL: into = a. */
void tt_stages_add_work(struct tt_collective *collective, struct tt_segment_list into, struct tt_segment_list a,
                        const char *b);

/** What goes to (send) or comes from one member in the last stage. */
struct tt_wire {
    struct tt_collective *collective;
    bool send;
    int member;
    bool read; /* by the receiver, from the sender's memory: one message for all */
    bool open; /* false at first; the last message takes more pieces */
};

/** bytes are those of the whole wire; both sides decide by them whether they are read (tt_comm.read_bytes) or sent. */
struct tt_wire tt_wire_make(struct tt_collective *collective, bool send, int member, int64_t bytes);

/**
 * Adds data to be sent or received. What is sent is cut into messages at the segments of `cut`, which are the same on
 * both sides: a large piece travels alone, since MPI moves contiguous memory several times faster than a datatype of
 * blocks, in several messages where that spares handshakes (tt_comm.eager_bytes); small ones in a row share a message.
 * What is read needs no cut.
 */
void tt_wire_add(struct tt_wire *wire, struct tt_segment_list data, struct tt_segment_list cut);

/**
 * Adds floats to be received and added: into = a + them, cut at the segments of a. They pass through `received`, which
 * has room for as many; later calls for a wire go on where the room of the earlier one ends.
 */
void tt_wire_add_sum(struct tt_wire *wire, struct tt_segment_list into, struct tt_segment_list a, char *received);

/** Hands over memory from tt_calloc that the collective reads or writes; freed with it. Once per collective. */
void tt_stages_own(struct tt_collective *collective, void *memory);

/** A place in a segment list. */
struct tt_cursor {
    struct tt_segment_list list;
    int item;
    size_t offset;
};

/** The bytes in a row at the cursor, which moves to the next segment at the end of one; 0 at the end of the list. */
size_t tt_cursor_room(struct tt_cursor *cursor);
char *tt_cursor_data(const struct tt_cursor *cursor);

int64_t tt_segment_list_bytes(struct tt_segment_list list);

#endif
