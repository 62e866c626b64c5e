/* SPDX-License-Identifier: MIT */
#ifndef TT_COMM_TAGS_H
#define TT_COMM_TAGS_H

/**
 * Every tag of messages between ranks, once. Two exchanges that may be under way at the same time between the same
 * ranks have different tags. A new purpose is a line here.
 */
enum { TT_TAG_EXCHANGES = 4096 }; /* tags from TT_TAG_EXCHANGE on */

enum tt_tag {
    TT_TAG_CONTROL = 1, /* small agreements (comm.h) */
    TT_TAG_PULSE,       /* who is alive (pulse.h) */
    TT_TAG_COMPARE,     /* whose memory can be read (parallel/comm/peer_memory.c) */
    TT_TAG_SAVE,       /* parts of tensors on their way to who writes them (checkpoint/save) or generates (collect.h) */
    TT_TAG_LOAD,       /* parts of tensors on their way from who read them (checkpoint/load) */
    TT_TAG_COLLECTIVE, /* the first tag of collectives; lowering numbers them (tt_collective_desc.tag) */
    TT_TAG_COLLECTIVE_LAST = 12284,
    TT_TAG_EXPERTS,          /* rows of experts that ranks share; see instr/experts.c */
    TT_TAG_EXCHANGE,         /* the first tag of exchanges inside a layer; see instr/exchange.c */
    TT_TAG_BOUNDARY = 16382, /* the first of those of values between the stages of a pipeline; see instr/boundary.c */
    TT_TAG_TIED = 32766,     /* the sum of a tied weight's gradient from the first stage; the next tag: from the last */
    TT_TAG_LAST = 32767      /* what every MPI has */
};

#endif
