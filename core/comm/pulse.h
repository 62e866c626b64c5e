/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_COMM_PULSE_H
#define TT_CORE_COMM_PULSE_H

#include <stdbool.h>
#include <stdint.h>

struct tt_comm;

/**
 * Whether the ranks of a job live and whether the job gets on; for comm.c only.
 *
 * The ranks form a binomial tree. Two neighbours in it pass one small message to and fro, about once a second, whenever
 * either of them polls. It says how much the sender's side of the tree has got done (tt_comm.progress, summed up), and
 * which rank there waits, works or is silent. So a rank has log2(ranks) neighbours, at most one message per neighbour is
 * under way, and after some seconds every rank knows about all of them. A rank that does not answer is silent: it is
 * dead, stopped, or busy with something that does not poll.
 *
 * Times are tt_comm_clock's. What fails here counts as no answer and leaves no error message.
 */
enum { TT_PULSE_TAG = 2 };

struct tt_pulse;

/** comm has more than one rank. Freed with comm (tt_pulse_free), after the transport has ended all transfers. */
struct tt_pulse *tt_pulse_new(const struct tt_comm *comm);
void tt_pulse_free(struct tt_pulse *pulse);

/** Passes on what is due; cheap when nothing is. Allocates nothing. */
void tt_pulse_beat(struct tt_comm *comm, double now);

/** What the whole job has got done, as far as this rank knows; it never decreases. */
int64_t tt_pulse_progress(const struct tt_comm *comm);

/** The lowest rank that is known to be silent; the lowest that works outside of the communicator; -1: none. */
int tt_pulse_silent(const struct tt_comm *comm, double now);
int tt_pulse_working(const struct tt_comm *comm);

/**
 * Whether this rank, which waits, is the one that speaks for all ranks that wait: no lower rank waits as well. Where the
 * way to the lower ranks leads through a silent one, it is only if there are no others.
 */
bool tt_pulse_speaks(const struct tt_comm *comm, double now);

#endif
