/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_JOB_SUMMARY_H
#define TT_TRAINER_JOB_SUMMARY_H

#include "core/base/json.h"
#include "core/base/text.h"
#include "parallel/engine/engine.h"

/**
 * A summary of a program: its collectives with their counts and bytes, and the memory in use at each instruction.
 * It is computed only from the instructions that run.
 */

/* A collective that the program issues `count` times a step: the same operation on the same units. */
struct tt_summary_collective {
    enum tt_purpose purpose;
    const int *units; /* belongs to the program */
    int n_units;
    int first; /* index of the first instruction that issues it */
    int count;
    int64_t shard_bytes;   /* one rank's shards of the units */
    int64_t payload_bytes; /* bytes that one rank sends each time */
};

/* Sums over all collectives with the same purpose. */
struct tt_summary_total {
    int64_t count;
    int64_t shard_bytes; /* summed over all issues */
    int64_t payload_bytes;
};

struct tt_summary {
    const struct tt_program *program;
    struct tt_summary_collective *collectives; /* in the order of their first issue */
    int n_collectives, cap_collectives;
    struct tt_summary_total totals[TT_PURPOSES];
    struct tt_engine_memory memory;
    /* [n_instrs][TT_MEMORY_KINDS] live bytes at every instruction, state and constants included */
    int64_t (*live)[TT_MEMORY_KINDS];
};

/** The live bytes of all kinds at one instruction. */
int64_t tt_summary_live_bytes(const struct tt_summary *summary, int instr);

/**
 * The number of collectives of an operation that the program issues, and the number of exchanges within layers, which
 * the first one does not include.
 */
int64_t tt_summary_count(const struct tt_summary *summary, enum tt_collective_op op);
int64_t tt_summary_exchanges(const struct tt_summary *summary);

/** The number of parameters of a whole unit. */
int64_t tt_summary_unit_elements(const struct tt_model *model, const struct tt_unit *unit);

/**
 * Bytes of the arena by kind at its peak, and the unused bytes between them, "padding". They add up to memory.total.
 */
json_t *tt_summary_by_kind(const struct tt_engine_memory *memory);

/** Unused bytes of the arena at the peak: the total minus all kinds. */
int64_t tt_summary_padding(const struct tt_engine_memory *memory);

#endif
