/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_MEASURE_BENCH_H
#define TT_CLI_MEASURE_BENCH_H

#include "core/comm/comm.h"
#include "core/config/args.h"
#include "core/program/instr/instr.h"
#include "parallel/engine/measure.h"
#include "parallel/planner/cost.h"

/**
 * The measurements of `titan bench`. All ranks measure at once, because they share memory and caches during training
 * too; the slowest rank's result counts.
 */
enum tt_bench_section {
    TT_BENCH_SGEMM,
    TT_BENCH_MEMORY,
    TT_BENCH_STEP,
    TT_BENCH_OPS,
    TT_BENCH_COLLECTIVES,
    TT_BENCH_STORAGE,
    TT_BENCH_SECTIONS
};

struct tt_bench_sgemm {
    int64_t m, n, k;
    int threads;
    double flops_per_sec, bf16_flops_per_sec; /* the best of the repetitions, in float32 and in bfloat16 */
};

struct tt_bench_memory {
    int threads;
    double copy, add; /* bytes read and written per second, medians: of memcpy, and of y = a + b */
};

struct tt_bench_step {
    int64_t microbatches, microbatch_size;
    double *secs; /* [steps] of each timed step, on its slowest rank */
    int n, cap;
    double step_sec, exposed_sec;     /* medians of the steps */
    double tokens_per_sec;            /* all ranks together */
    double flops_per_sec_rank;        /* torchtitan's model flops of one rank per second, at step_sec */
    double causal_flops_per_sec_rank; /* the same, without the masked part of attention */
    struct tt_split split;            /* of rank 0 */
    int64_t peak_bytes;               /* the size of rank 0's arena */
    int64_t parameters;
    char model[96], policies[160];
};

struct tt_bench_collective {
    enum tt_measured kind;
    int64_t bytes; /* of the whole array */
    double sec;
};

struct tt_bench {
    const struct tt_args *args; /* the command line, with files and overrides */
    bool wanted[TT_BENCH_SECTIONS];
    double seconds;                 /* approximate duration of everything */
    int fewest;                     /* repetitions of each measurement */
    int ranks, local_size, threads; /* ranks of the job, of this host; threads of a rank */
    struct tt_bench_sgemm *sgemm;
    int n_sgemm, cap_sgemm;
    /* the peak of one rank with all its threads, for the best shape; measured again between the steps */
    double sgemm_flops;
    double bgemm_flops;               /* the same in bfloat16 */
    struct tt_bench_memory memory[2]; /* on one thread, and on all threads of a rank */
    struct tt_bench_step step;
    struct tt_bench_collective *collectives;
    int n_collectives, cap_collectives;
    double message_sec;                      /* of one small message; 0 with a single rank */
    double transfer_share, transfer_stretch; /* while a thread computes; see struct tt_machine */
    struct tt_op_prices ops;
    char *storage_folder;
    double storage_bytes_per_sec; /* written and synced */
    char *others; /* who else used this machine (tt_load_text), since that makes all rates too low; NULL: nobody */
    struct tt_machine machine;
    struct tt_config *cfg;
};

/** Makes the requested measurements (collective). */
int tt_bench_run(struct tt_bench *bench, struct tt_comm *comm) TT_MUST_CHECK;
void tt_bench_release(struct tt_bench *bench);

/** Prints tables on stdout. */
void tt_bench_print(const struct tt_bench *bench);

/** The results as JSON, with the keys that titan-bench(1) lists; json_decref. */
json_t *tt_bench_json(const struct tt_bench *bench);

/**
 * The machine file for plan, estimate, tune and the planned scheduler (parallel/planner/cost.h), with the
 * collectives; json_decref.
 */
json_t *tt_bench_machine_json(const struct tt_bench *bench);

#endif
