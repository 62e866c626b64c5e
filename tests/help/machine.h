/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_HELP_MACHINE_H
#define TT_TESTS_HELP_MACHINE_H

#include "parallel/planner/cost.h"

/* A struct tt_machine with the numbers that every machine file contains, for initializers. */
#define TT_MACHINE(label, sgemm, bgemm, memory, call, message, link)                                     \
    {                                                                                                    \
        .name = label, .sgemm_flops = (sgemm), .bgemm_flops = (bgemm), .memory_bytes_per_sec = (memory), \
        .call_sec = (call), .message_sec = (message), .link_bytes_per_sec = (link),                      \
    }

#endif
