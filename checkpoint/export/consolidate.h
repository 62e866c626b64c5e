/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_EXPORT_CONSOLIDATE_H
#define TT_CHECKPOINT_EXPORT_CONSOLIDATE_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/read/weights.h"
#include "core/base/error.h"
#include "core/config/config.h"
#include "core/gguf/gguf.h"
#include "core/graph/dtype.h"

/**
 * Writes the model of a checkpoint as a plain folder: model.safetensors, or model-0000K-of-0000N.safetensors with
 * model.safetensors.index.json, and the small files that belong to it; as a folder of PyTorch's; or as a GGUF file.
 */
enum tt_weights_format {
    TT_FORMAT_TITAN, /* titan's names, and the assets */
    TT_FORMAT_HF,    /* Hugging Face's names and layout, adapters merged; config.json, generation_config.json,
                        tokenizer */
    TT_FORMAT_DCP,   /* a folder of PyTorch's torch.distributed.checkpoint, with torchtitan's keys; the assets */
    TT_FORMAT_GGUF, /* one file for llama.cpp, with sizes and tokenizer in it, adapters merged; destination: the file */
    TT_FORMAT_PEFT, /* the adapters alone: adapter_model.safetensors and adapter_config.json */
};

struct tt_consolidate {
    const char *source;      /* a step, a run or checkpoint folder (newest good step), or safetensors files */
    const char *const *more; /* further sources: the mean of all is written; see tt_ckpt_average */
    int n_more;
    const double *share;     /* of source and the others in the mean; NULL: the same for all */
    struct tt_told told;     /* which model source is, if it does not say so itself; of several sources: all */
    const char *destination; /* a folder or file that appears whole or not at all */
    enum tt_weights_format format;
    bool averages;   /* of the weights (ema.decay) instead of these */
    bool with_state; /* TT_FORMAT_DCP: also the optimizer's state and the step, if the source has them */
    const struct tt_gguf_type_row *type; /* TT_FORMAT_GGUF: of the matrices; NULL: as they are stored */
    int64_t max_shard_bytes;             /* 0: 5 GB, as Hugging Face does */
    bool has_dtype;
    enum tt_dtype dtype;       /* TT_F32, TT_BF16 or TT_F16, for floating-point tensors */
    struct tt_words leave_out; /* regular expressions of tensors of a Hugging Face folder that may stay unused */
    bool force;                /* replace an existing destination, if it only has an earlier output */
};

struct tt_consolidated {
    char source[4096]; /* the step that was read */
    int64_t bytes;
    int files, tensors;
};

/**
 * Local. Memory is bounded (less than 128 MiB, or one row of a tensor if that is more). What is read is compared with
 * the manifest's digests on the way or, where there are none, with the checksums of the pieces. Errors: TT_EUSAGE when
 * the destination exists; TT_EDATA when the source is damaged or, for Hugging Face, does not say which model it is, or,
 * for PEFT, has no adapters.
 */
int tt_ckpt_consolidate(const struct tt_consolidate *options, struct tt_consolidated *ret_result) TT_MUST_CHECK;

/**
 * The same with the mean of the weights of source and `more`: sum(share * weight) / sum(share), added in double. Their
 * tensors must have the same names and shapes; TT_EDATA names one that differs. What is not a weight comes from
 * `source`. Takes twice the memory of an export.
 */
int tt_ckpt_average(const struct tt_consolidate *options, struct tt_consolidated *ret_result) TT_MUST_CHECK;

/**
 * Checks that `path` may be made: it does not exist, or is empty, or with force is an earlier output, which is replaced
 * (a flat folder of safetensors that titan wrote with the files that belong to them, a converted step, or a folder that
 * titan wrote for PyTorch). Anything else, including a downloaded folder, is TT_EUSAGE.
 */
int tt_output_check(const char *path, bool force) TT_MUST_CHECK;

#endif
