/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_COMM_PULSE_H
#define TT_CORE_COMM_PULSE_H

#include <stdbool.h>
#include <stdint.h>

struct tt_comm;

/**
 * Signs of life: whether the ranks of a job are alive and whether the job makes progress. For comm.c and wait.c only.
 *
 * The ranks form a binomial tree. Two neighbours pass one small message back and forth, about once a second, whenever
 * either of them polls. It says how much the sender's side of the tree has done (the sum of tt_comm.progress), and
 * which rank there waits, works or is silent. So a rank has at most log2(ranks) neighbours, at most one message per
 * neighbour is under way, and after some seconds every rank knows about all others. A rank that does not answer is
 * silent: it is dead, stopped, or busy with work that does not poll.
 *
 * Times are tt_comm_clock's. A failure here counts as no answer and leaves no error message.
 */
struct tt_pulse;

/** comm has more than one rank. Freed with comm (tt_pulse_free), after the transport has ended all transfers. */
struct tt_pulse *tt_pulse_new(const struct tt_comm *comm);
void tt_pulse_free(struct tt_pulse *pulse);

/** Exchanges the messages that are due; cheap when none is. Allocates nothing. */
void tt_pulse_beat(struct tt_comm *comm, double now);

/** The progress of the whole job, as far as this rank knows; it never decreases. */
int64_t tt_pulse_progress(const struct tt_comm *comm);

/** The lowest rank known to be silent, and the lowest that works outside of the communicator; -1: none. */
int tt_pulse_silent(const struct tt_comm *comm, double now);
int tt_pulse_working(const struct tt_comm *comm);

/**
 * Whether this waiting rank reports for all waiting ranks: it does if no lower rank waits as well. If a silent rank
 * lies on the way to the lower ranks, this rank reports only if that rank is the only lower one.
 */
bool tt_pulse_speaks(const struct tt_comm *comm, double now);

#endif
