/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_RECORDS_METRICS_H
#define TT_CLI_RUN_RECORDS_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/save/save.h"
#include "cli/run/records/loads.h"
#include "core/base/json.h"
#include "core/ops/experts/router_losses.h"
#include "trainer/run/records.h"
#include "trainer/run/tensorboard.h"

/**
 * What a run reports: torchtitan's console line, one JSON object per line in metrics.jsonl, appended and flushed, and
 * TensorBoard's scalars under torchtitan's tags. Rank 0 only. Averages are over the steps since the last report.
 */
struct tt_metrics {
    struct tt_records *records;   /* metrics.jsonl; NULL: none */
    struct tt_tensorboard *board; /* NULL: none */
    bool json_stdout;             /* `train --json`: records instead of lines */
    bool color;
    int columns;                   /* of the terminal; 0: lines of any length */
    bool output_lost;              /* standard output or error could not be written; noted once, in metrics.jsonl */
    double flops_per_token;        /* torchtitan's formula */
    double flops_per_token_causal; /* the same without masked positions of the attention, which are not computed */
    double peak_flops;             /* of one rank; 0: unknown */
    double memory_total_bytes;
};

/* One reported step; times in seconds and averaged over the steps since the last report. */
struct tt_step_report {
    int64_t step, total_steps;
    double loss, max_loss, grad_norm, lr;
    double z_loss;                          /* NaN: there is none */
    struct tt_loads loads;                  /* of this step */
    double router_losses[TT_ROUTER_LOSSES]; /* NaN: there is none */
    int64_t ntokens_seen;
    int64_t tokens_per_rank; /* of one step */
    double step_time, data_time, comm_time, comm_exposed;
    int64_t comm_bytes;  /* payload this rank sent in one step */
    double memory_bytes; /* largest resident size so far */
};

/* A named validation set. */
struct tt_metrics_set {
    const char *name;
    double loss;
    int64_t tokens;
};

/* A validation: of all sets together, and of each one that has a name. */
struct tt_metrics_validation {
    int64_t step;
    double loss; /* mean over the tokens of all sets */
    int64_t tokens;
    double seconds;
    int ranks; /* that share the work */
    int n;
    const struct tt_metrics_set *set;
};

/* A text that was sampled from the model. */
struct tt_metrics_sample {
    int64_t step;
    const char *prompt; /* NULL: the beginning of a document */
    const char *text;   /* of tokens without a tokenizer their numbers */
    int64_t tokens;
    const char *finish; /* tt_finish_name */
    double seconds;     /* of generating it, and of collecting the weights */
};

void tt_metrics_step(struct tt_metrics *metrics, const struct tt_step_report *report);
void tt_metrics_validate(struct tt_metrics *metrics, const struct tt_metrics_validation *validation);
void tt_metrics_sample(struct tt_metrics *metrics, const struct tt_metrics_sample *sample);

/** A checkpoint that is published, or one that failed. */
void tt_metrics_checkpoint(struct tt_metrics *metrics, const struct tt_ckpt_saved *saved, bool async);
void tt_metrics_checkpoint_failed(struct tt_metrics *metrics, int64_t step, const char *why);

/** Writes one record (takes the reference) to the file and, with --json, to stdout; adds "time". */
void tt_metrics_record(struct tt_metrics *metrics, json_t *record);

/** Resident bytes of this process at their highest. */
double tt_metrics_resident_bytes(void);

#endif
