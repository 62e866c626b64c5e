/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_COMM_COLLECTIVES_H
#define TT_PARALLEL_COMM_COLLECTIVES_H

#include "core/comm/comm.h"
#include "core/program/program.h"
#include "parallel/layout/mesh.h"

/**
 * Collectives over a group of ranks, built on point-to-point messages. They do not block, and they add in a fixed
 * order.
 *
 * A collective is an object. Create it once, with the memory that it reads and writes; it can then begin many times:
 *
 *     tt_reduce_scatter_new(comm, &group, tag, blocks, out, scratch, &rs);     every rank of the group
 *     tt_collective_begin(rs);     ... tt_comm_progress(comm) ...     tt_collective_wait(rs);
 *     tt_collective_free(rs);
 *
 * Only `new` allocates. From begin to the end of wait the memory belongs to the collective. While it is under way, it
 * advances whenever anything on this communicator is tested or waited for, and in tt_comm_progress.
 *
 * All ranks of a group begin their collectives in the same order and use the same tag for the same collective. Two
 * collectives that are under way at once in a group must have different tags (from TT_TAG_COLLECTIVE to TT_TAG_LAST).
 *
 * Messages that carry the data of member m (its shard in an all-gather, its block in a reduce-scatter) are cut at the
 * segments of `receive[m]` or `blocks[m]`. So these segments must have the same sizes on every member; their addresses
 * may differ. Large contiguous segments (parameters) are fastest.
 *
 * Payload bytes are added to comm->payload_bytes when they are sent; the formulas below give them exactly.
 */
struct tt_collective;

/** A segment list with its length. Only the functions that make a collective read the list. */
struct tt_segment_list {
    const struct tt_segment *items;
    int n;
};

/** n lists of one segment each: consecutive blocks of `bytes` bytes, beginning at `data`. Free it with tt_free. */
struct tt_segment_list *tt_segment_blocks(void *data, int n, int64_t bytes);

/**
 * All-gather: every member's shard arrives on every member.
 *   send     this member's (padded) shard: shard_bytes in all, the same on every member, in any segments
 *   receive [group->n] where each member's shard goes, shard_bytes each; this member's entry may be the memory of
 *            send
 * Errors: TT_EINTERNAL when sizes disagree.
 */
int tt_all_gather_new(struct tt_comm *comm, const struct tt_group *group, int tag, struct tt_segment_list send,
                      const struct tt_segment_list *receive, struct tt_collective **ret_collective) TT_MUST_CHECK;

/**
 * Reduce-scatter of float32: member b gets the sum over all members of their block b, added in the order of
 * core/math/tree.h over the member index (so the bits do not depend on the split of the sum).
 *   blocks   [group->n] this member's values for each member, shard_bytes each; the collective destroys their content,
 *            padding included (whose sums are computed and ignored)
 *   out where the sum goes, shard_bytes, in any segments; may be the memory of this member's block,
 *            segment by segment
 *   scratch  tt_collective_staging() bytes, 4-byte aligned
 */
int tt_reduce_scatter_new(struct tt_comm *comm, const struct tt_group *group, int tag,
                          const struct tt_segment_list *blocks, struct tt_segment_list out, void *scratch,
                          struct tt_collective **ret_collective) TT_MUST_CHECK;

/**
 * All-to-all: member b gets every member's block b, of any type.
 *   blocks   [group->n] this member's values for each member, block_bytes each; cut at their segments
 *   receive  group->n * block_bytes: the block from member m is at m * block_bytes, this member's own included
 */
int tt_all_to_all_new(struct tt_comm *comm, const struct tt_group *group, int tag, const struct tt_segment_list *blocks,
                      int64_t block_bytes, void *receive, struct tt_collective **ret_collective) TT_MUST_CHECK;

/**
 * All-reduce (sum of float32) in place: a reduce-scatter over group->n equal slices, then an all-gather, so that all
 * members have the same bits.
 *   values   any number of floats, in segments of the same sizes on every member
 *   scratch  tt_collective_staging() bytes, 4-byte aligned
 */
int tt_all_reduce_new(struct tt_comm *comm, const struct tt_group *group, int tag, struct tt_segment_list values,
                      void *scratch, struct tt_collective **ret_collective) TT_MUST_CHECK;

/**
 * A transfer between this member and another one of the group, which sends or receives `values`. Both members list
 * segments of the same sizes. A send is complete when its memory may be written again.
 */
int tt_transfer_new(struct tt_comm *comm, const struct tt_group *group, int member, int tag, bool send,
                    struct tt_segment_list values, struct tt_collective **ret_collective) TT_MUST_CHECK;

/**
 * An exchange of data whose sizes are known only when it begins: every member sends every other member a list of
 * segments, and receives one of the same sizes. The bytes count in comm->routed_bytes. tt_swap_begin begins it with
 * these lists, [group->n], which may be released at once; tt_collective_wait waits for it. A member's lists for itself
 * are not read.
 */
int tt_swap_new(struct tt_comm *comm, const struct tt_group *group, int tag,
                struct tt_collective **ret_collective) TT_MUST_CHECK;
int tt_swap_begin(struct tt_collective *collective, const struct tt_group *group, const struct tt_segment_list *give,
                  const struct tt_segment_list *take) TT_MUST_CHECK;

/**
 * Payload bytes that every member sends in the collective of an instruction: (n - 1) x bytes, or for an all-reduce 2 (n
 * - 1) slices of ceil(floats / n) floats; for a transfer, all bytes at the sender and 0 at the receiver. No other
 * formula exists: comm->payload_bytes counts exactly this.
 */
int64_t tt_instr_payload(const struct tt_instr *instr);

/** Payload bytes of a whole run of the program, by the same formula. */
int64_t tt_program_payload(const struct tt_program *program);

/** Bytes of scratch for a reduce-scatter or an all-reduce (tt_lowering.staging); 0 for other collectives. In bfloat16,
 * the scratch receives the blocks of all members. */
int64_t tt_collective_staging(const struct tt_collective_desc *desc);

/** Begins the collective; TT_EINTERNAL when it is still under way. */
int tt_collective_begin(struct tt_collective *collective) TT_MUST_CHECK;

/** Advances without blocking; ret_done is true when nothing is under way. */
int tt_collective_test(struct tt_collective *collective, bool *ret_done) TT_MUST_CHECK;

/** Waits as tt_comm_wait does, with a timeout; the error then names the missing rank. */
int tt_collective_wait(struct tt_collective *collective) TT_MUST_CHECK;

/**
 * When the collective was last begun and completed (tt_clock_sec); {0, 0} if there was nothing to do. Do not call it
 * while the collective is under way.
 */
struct tt_span tt_collective_span(const struct tt_collective *collective);

/** NULL is allowed. The collective must not be under way, unless the job is about to end. */
void tt_collective_free(struct tt_collective *collective);

#endif
