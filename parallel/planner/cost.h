/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_COST_H
#define TT_PARALLEL_PLANNER_COST_H

#include "core/base/json.h"
#include "core/program/program.h"

/**
 * The cost model: what a node, a collective and a whole program take on a machine that is described by a few numbers.
 * The planned engine, `titan plan` and `titan estimate` read it. Nothing here measures anything: the numbers are built
 * in or come from a machine file, so every rank and every run computes the same.
 */

/* A cost table; zero is not a valid value of any number. */
struct tt_machine {
    char name[64];               /* for people */
    double sgemm_flops;          /* flop/s of one thread in large float32 products */
    double memory_bytes_per_sec; /* read and written by one rank that streams through memory */
    double call_sec;             /* to start and finish one collective, whatever its size */
    double message_sec;          /* latency of one message */
    double link_bytes_per_sec;   /* one rank sends and, at the same time, receives at this rate */
};

/** A plain server core, ranks of one host or a 25 Gb/s network. */
struct tt_machine tt_machine_builtin(void);

/**
 * Reads a machine file: a JSON object with "type": "machine", "schema": 1, "name" and the numbers of the struct by
 * their names. Other members are ignored. Errors: TT_EDATA naming the file, the key and what was wanted; TT_EIO.
 */
int tt_machine_load(const char *path, struct tt_machine *ret_machine) TT_MUST_CHECK;

/** What tt_machine_load reads; a new reference. */
json_t *tt_machine_to_json(const struct tt_machine *machine);

/** Of the numbers, not the name: equal hashes plan equal programs. */
uint64_t tt_machine_hash(const struct tt_machine *machine);

/** Seconds of one run of a node: at the rate of arithmetic or of memory, whichever takes longer. */
double tt_cost_node_sec(const struct tt_machine *machine, const struct tt_graph *graph, int node, int threads);

/**
 * Seconds of one collective over n ranks, alone on the link; bytes: tt_collective_desc.bytes. 0 for one rank. With a =
 * message_sec, b = 1 / link rate, g = 3 / memory rate (an addition reads two and writes one):
 *   all-gather      call + (n-1) a + (n-1) bytes b
 *   reduce-scatter  call + log2(n) a + (n-1) bytes (b + g); (n-1) a when n is not a power of two
 *   all-reduce      a reduce-scatter, then an all-gather, of ceil(bytes / n), in one call
 */
double tt_cost_collective_sec(const struct tt_machine *machine, enum tt_collective_op op, int n, int64_t bytes);

/**
 * Whole (unsharded) bytes of an all-gather over n ranks of which 0.9 of the time is transfer and 0.1 is latency: larger
 * buckets gain little.
 */
int64_t tt_cost_saturating_bytes(const struct tt_machine *machine, int n);

/** Seconds of the collective that an instruction begins, alone on the link; 0 for all other instructions. */
double tt_cost_transfer_sec(const struct tt_machine *machine, const struct tt_program *program, int instr);

/* A simulated step. Arrays have one item per instruction of the program, times are since the step began. */
struct tt_timeline {
    int n;
    struct tt_span *compute;  /* when the computing thread is in the instruction; of a wait: while it waits */
    struct tt_span *transfer; /* of an instruction that begins a collective: when its bytes move; else {0, 0} */
    double *exposed;          /* of the same: seconds that its wait waited */
    double step_sec;          /* the whole step */
    double compute_sec;       /* the step without any waiting */
    double transfer_sec;      /* sum of all collectives */
    double exposed_sec;       /* of that, what nothing hid: step - compute */
};

/**
 * Simulates a step: one lane computes, instruction by instruction; one lane transfers, collectives in the order in
 * which they are begun, one after another, while nodes run; a wait holds up the computing lane until its collective is
 * done. The timeline is the caller's (tt_timeline_release).
 */
void tt_cost_simulate(const struct tt_machine *machine, const struct tt_program *program,
                      struct tt_timeline *ret_timeline);
void tt_timeline_release(struct tt_timeline *timeline);

#endif
