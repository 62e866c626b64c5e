/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_FACTS_H
#define TT_CLI_FACTS_H

#include "core/base/text.h"
#include "core/comm/comm.h"
#include "core/config/args.h"
#include "core/config/config.h"

/** Something that every rank says of itself. */
struct tt_fact {
    const char *name;
    const char *text;
};

/**
 * Compares facts, which every rank lists in the same order. Appends to ret_difference, alike on every rank, what differs:
 * "training.seq_len is 24 on rank 0 (node1), 32 on ranks 1-3 (node1, node2)", with "; " between two facts; nothing when
 * all ranks say the same. Hashes travel, and the texts only where they differ. Collective.
 * Errors: TT_EUSAGE when ranks list other facts: they run different builds of titan.
 */
int tt_facts_compare(struct tt_comm *comm, const struct tt_fact *facts, int n,
                     struct tt_text *ret_difference) TT_MUST_CHECK;

/**
 * All ranks must mean the same run: compares the resolved configuration, without what is a rank's or a host's own
 * (threads, memory, cache and cost table), and the options of the command line. Before anything else that depends on
 * them communicates. Collective. Errors: TT_EUSAGE naming keys, values, ranks and hosts.
 */
int tt_facts_agree_on_config(struct tt_comm *comm, const struct tt_config *cfg,
                             const struct tt_args *args) TT_MUST_CHECK;

#endif
