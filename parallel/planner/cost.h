/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PLANNER_COST_H
#define TT_PARALLEL_PLANNER_COST_H

#include "core/base/json.h"
#include "core/graph/dtype.h"
#include "core/ops/op.h"
#include "core/program/program.h"
#include "parallel/pipeline/schedule.h"

/**
 * The cost of ops on a measured machine. A roofline of peaks is too optimistic: GEMMs reach a share of the peak that
 * depends on the length of their sums, attention reaches another share, and small ops find their data in the caches. So
 * `titan bench` times the ops of small models, and fits three prices for each op in each type:
 *
 *     seconds of one thread = flop_sec x flops + byte_sec x bytes + sum_sec x flops / (length of the sums)
 *
 * The last term is a GEMM's work for each sum, such as storing it. Prices are never negative, so more work never takes
 * less time.
 */
struct tt_op_price {
    char op[24];         /* tt_instr_op_name */
    enum tt_dtype dtype; /* TT_F32 or TT_BF16: the type of the step, which need not be the op's */
    double flop_sec, byte_sec, sum_sec;
};

enum { TT_MOST_OP_PRICES = 96 };

/* n is 0 on machines whose ops were not measured. */
struct tt_op_prices {
    int n;
    struct tt_op_price of[TT_MOST_OP_PRICES];
};

/* One instruction of a measured step. */
struct tt_op_sample {
    const char *op;
    enum tt_dtype dtype;
    struct tt_cost work;
    double sec; /* seconds of one thread; for a team, its time multiplied by its number of threads */
};

/**
 * Fits the prices of the ops in the samples, by relative error, with each sample weighted by its time. Ops without work
 * or time get no price, and neither do ops beyond TT_MOST_OP_PRICES.
 */
void tt_op_prices_fit(const struct tt_op_sample *samples, int n, struct tt_op_prices *ret_prices);

/** Seconds of one thread; -1: the op was not measured in this type. */
double tt_op_prices_sec(const struct tt_op_prices *prices, const char *op, enum tt_dtype dtype,
                        const struct tt_cost *work);

/** "float32" or "bfloat16", as in configurations. */
static inline const char *tt_op_price_dtype(enum tt_dtype dtype)
{
    return dtype == TT_BF16 ? "bfloat16" : "float32";
}

/**
 * The cost model: the time of a node, a collective and a whole program on a machine that a few numbers describe. The
 * planned scheduler, `titan plan` and `titan estimate` use it. Nothing is measured here: the numbers are built in or
 * come from a machine file, so every rank and every run computes the same.
 */

/* A cost table. All numbers are above 0, except where 0 is explained. */
struct tt_machine {
    char name[64];               /* shown to people; nothing depends on it */
    double sgemm_flops;          /* flop/s of one thread in large float32 GEMMs */
    double bgemm_flops;          /* the same in bfloat16; sgemm_flops if a file does not contain it */
    double memory_bytes_per_sec; /* bytes that one rank reads and writes when it streams through memory */
    double call_sec;             /* seconds to start and finish one collective, whatever its size */
    double message_sec;          /* latency of one message */
    double link_bytes_per_sec;   /* rate at which one rank sends and, at the same time, receives */
    /*
     * Transfers advance when the computing thread polls, so transfer and compute slow each other down: the transfer
     * takes `share` of the thread's time, and lasts `stretch` times as long as it would if the thread only waited.
     * Machines without measurements have the defaults 0 and 1, which mean no effect. A stretch of 0 counts as 1.
     */
    double transfer_share, transfer_stretch;
    struct tt_op_prices ops; /* ops without a price take as long as their flops or their bytes, at the rates above */
};

/**
 * The built-in table: an ordinary server core, whose bfloat16 instructions double the rate of GEMMs, and ranks on one
 * host or on a 25 Gb/s network.
 */
struct tt_machine tt_machine_builtin(void);

/**
 * Reads a machine file: a JSON object with "type": "machine", "schema": 1 or 2, "name" and the numbers of the struct by
 * their names. The numbers of transfers that meet computing, and "ops", may be missing. Other members are ignored;
 * schema 2 has more of them, for `titan estimate --machine`. Errors: TT_EDATA, which names the file, the key and the
 * wanted value; TT_EIO.
 */
int tt_machine_load(const char *path, struct tt_machine *ret_machine) TT_MUST_CHECK;

/**
 * Sets the measured peaks of one thread in flop/s: `flops` in the type of the step, TT_F32 or TT_BF16. A step in
 * bfloat16 has work in float32 too; its peak is float_flops. If that is 0, sgemm_flops keeps its ratio to bgemm_flops.
 * A step in float32 does not change bgemm_flops, which it does not use.
 */
void tt_machine_take_peaks(struct tt_machine *machine, enum tt_dtype dtype, double flops, double float_flops);

/** The table in the form that tt_machine_load reads. Free it with json_decref. */
json_t *tt_machine_to_json(const struct tt_machine *machine);

/** A hash of the numbers, without the name. Tables with equal hashes give equal plans. */
uint64_t tt_machine_hash(const struct tt_machine *machine);

/**
 * Seconds of one run of a node: from the price of its op or, without one, from the rate of arithmetic or of memory,
 * whichever takes longer. For a node that exchanges values: the seconds of its collective, since the node that reads
 * the result usually follows at once.
 */
double tt_cost_node_sec(const struct tt_machine *machine, const struct tt_graph *graph, int node, int threads);

/**
 * The worst case: all tokens choose the experts of one rank. Other nodes take the same time as above.
 */
double tt_cost_node_most_sec(const struct tt_machine *machine, const struct tt_graph *graph, int node, int threads);

/**
 * Seconds of one collective over n ranks that is alone on the link; 0 for one rank. bytes is tt_collective_desc.bytes.
 * With a = message_sec, b = 1 / link rate, g = 3 / memory rate (an addition reads two and writes one):
 *   all-gather      call + (n-1) a + (n-1) bytes b, and so an all-to-all
 *   reduce-scatter  call + log2(n) a + (n-1) bytes (b + g); (n-1) a if n is not a power of two
 *   all-reduce      a reduce-scatter, then an all-gather, of ceil(bytes / n), in one call
 */
double tt_cost_collective_sec(const struct tt_machine *machine, enum tt_collective_op op, int n, int64_t bytes);

/**
 * The whole (unsharded) bytes of an all-gather over n ranks that spends 0.9 of its time on transfer and 0.1 on latency.
 * Larger buckets gain little.
 */
int64_t tt_cost_saturating_bytes(const struct tt_machine *machine, int n);

/** Seconds of the collective that an instruction begins, if it is alone on the link; 0 if the instruction begins
 * none. */
double tt_cost_transfer_sec(const struct tt_machine *machine, const struct tt_program *program, int instr);

/* A simulated step. Arrays have one item per instruction of the program. Times are in seconds from the beginning of
 * the step. */
struct tt_timeline {
    int n;
    struct tt_span *compute;  /* while the computing thread runs the instruction, or waits in it */
    struct tt_span *transfer; /* for an instruction that begins a collective: while its bytes move; else {0, 0} */
    double *exposed;          /* for such an instruction: seconds that the wait for the collective took */
    double step_sec;          /* the whole step */
    double compute_sec;       /* the step without any waiting */
    double transfer_sec;      /* sum of all collectives */
    double exposed_sec;       /* the part of transfer_sec that compute did not hide: step_sec - compute_sec */
};

/**
 * Simulates a step on two lanes. One computes, instruction by instruction. The other transfers the collectives in the
 * order in which they begin, one after another, while nodes run. While both lanes work, both are slower
 * (transfer_share, transfer_stretch). A wait stops the computing lane until its collective is complete. The caller
 * frees the timeline with tt_timeline_release.
 */
void tt_cost_simulate(const struct tt_machine *machine, const struct tt_program *program,
                      struct tt_timeline *ret_timeline);
void tt_timeline_release(struct tt_timeline *timeline);

/**
 * The seconds of one microbatch in every stage of a model, for tt_pipeline_simulate. They do not include the gathers
 * and reductions of a stage. The forward of the last stage includes the gradients of the output, which the loss op
 * computes.
 *   stages     all stages of the model, differentiated, from one microbatch's graph
 *   threads    of each rank
 *   ret_times  [n_stages]; the result of tt_cost_pipeline points to it
 * `send` of the result is for the boundary with the most bytes.
 */
struct tt_pipeline_times tt_cost_pipeline(const struct tt_machine *machine, const struct tt_stage *stages, int n_stages,
                                          int threads, struct tt_stage_times *ret_times);

#endif
