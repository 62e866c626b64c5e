/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_JOB_FACTS_H
#define TT_TRAINER_JOB_FACTS_H

#include "core/base/text.h"
#include "core/comm/comm.h"
#include "core/config/args.h"
#include "core/config/config.h"

/** A value that every rank states about itself, with its name. */
struct tt_fact {
    const char *name;
    const char *text;
};

/**
 * Compares facts, which every rank lists in the same order. Appends the differences to ret_difference, with the same
 * text on every rank: "training.seq_len is 24 on rank 0 (node1), 32 on ranks 1-3 (node1, node2)", and "; " between two
 * facts. Appends nothing if all ranks agree. Sends only hashes, unless they differ. Collective. Errors: TT_EUSAGE when
 * ranks list different facts, because they run different builds of titan.
 */
int tt_facts_compare(struct tt_comm *comm, const struct tt_fact *facts, int n,
                     struct tt_text *ret_difference) TT_MUST_CHECK;

/**
 * Appends the ranks whose value equals that of rank `first`: "rank 0 (node1)", "ranks 1-3, 5 (node1, node2)".
 *   hashes  [comm->size] the value's hash on each rank
 */
void tt_facts_add_ranks(const struct tt_comm *comm, const uint64_t *hashes, int first, struct tt_text *out);

/**
 * Checks that all ranks were started for the same run: compares the resolved configuration, except for values that
 * belong to a rank or a host (threads, memory, cache and cost table), and the options of the command line. Call it
 * before any communication that depends on this. Collective. Errors: TT_EUSAGE names keys, values, ranks and hosts.
 */
int tt_facts_agree_on_config(struct tt_comm *comm, const struct tt_config *cfg,
                             const struct tt_args *args) TT_MUST_CHECK;

#endif
