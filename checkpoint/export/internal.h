/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_EXPORT_INTERNAL_H
#define TT_CHECKPOINT_EXPORT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/export/export.h"
#include "checkpoint/read/source.h"
#include "checkpoint/read/weights.h"
#include "core/base/error.h"
#include "core/models/model.h"

/** A copy under way. copy.c opens the sources and has a table of the sinks that the weights go to. */
struct tt_copying {
    const struct tt_copy *copy;
    enum tt_weights_format format;
    int n;                      /* sources: one, or several for a mean */
    struct tt_source **source;  /* [n] */
    struct tt_model **model;    /* [n]; NULL where the sink needs none and the source does not say it */
    struct tt_weights *of;      /* [n], the weights of each, as the sink names and lays them out */
    double *share;              /* [n], in the mean */
    struct tt_weights mean;     /* of several sources */
    struct tt_weights *weights; /* to copy: of[0] or mean */
    enum tt_dtype *dtype;       /* of each weight in the destination */
    int *of_file;               /* of each weight: the number of its file */
    int n_files;
    struct tt_output output; /* the folder; unused by GGUF, which is one file */
    const char *what;        /* for tt_progress: "exporting" */
    int64_t done, total;     /* bytes, for tt_progress */
    int64_t bytes;           /* of the files that are written */
};

/** Counts bytes of a sink that are written, and shows the progress. */
void tt_copying_advance(struct tt_copying *c, int64_t bytes);

/* The sinks write the weights, with the indices and manifests that describe them. */

/** safetensors.c: model.safetensors, or several files with an index. */
int tt_copying_to_safetensors(struct tt_copying *c) TT_MUST_CHECK;

/** safetensors.c: a step with its assets and manifest. */
int tt_copying_to_step(struct tt_copying *c) TT_MUST_CHECK;

/**
 * dcp.c: a folder of PyTorch's, with torchtitan's keys. With the state it has all that torchtitan asks for when it
 * resumes, except the position of its data loader:
 *
 *     NAME                                parameters; a tied one under both names
 *     optimizer.state.NAME.*              exp_avg, exp_avg_sq, step
 *     optimizer.param_groups.NAME.*       lr, betas, eps, weight_decay, ..., if the checkpoint says them
 *     lr_scheduler.*                      last_epoch, and with the optimizer's options the rates
 *     train_state.*                       step, ntokens_seen
 */
int tt_copying_to_dcp(struct tt_copying *c) TT_MUST_CHECK;

/**
 * gguf.c: a GGUF file with the sizes, the tokenizer and the chat template of the source's assets, and with its
 * checksums ("titan.crc32c"). TT_EDATA names a part that llama.cpp does not run (tt_gguf_put_model,
 * tt_gguf_put_tokenizer).
 */
int tt_copying_to_gguf(struct tt_copying *c) TT_MUST_CHECK;

/**
 * Checks that a GGUF file may be made: its name ends in .gguf, and nothing is there, or with force a file that titan
 * wrote. TT_EUSAGE.
 */
int tt_gguf_check_output(const char *path, bool force) TT_MUST_CHECK;

#endif
