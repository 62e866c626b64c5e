/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_EXPORT_EXPORT_H
#define TT_CHECKPOINT_EXPORT_EXPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/read/weights.h"
#include "core/base/error.h"
#include "core/config/config.h"
#include "core/gguf/gguf.h"
#include "core/graph/dtype.h"

/**
 * Copies the weights of a checkpoint, or the mean of several, into another format, with the small files that belong to
 * them.
 */
enum tt_weights_format {
    TT_FORMAT_TITAN, /* safetensors with titan's names, and the assets */
    TT_FORMAT_HF,    /* safetensors with Hugging Face's names and layout, adapters merged; config.json,
                        generation_config.json, tokenizer */
    TT_FORMAT_PEFT,  /* the adapters alone: adapter_model.safetensors and adapter_config.json */
    TT_FORMAT_DCP,   /* a folder of PyTorch's torch.distributed.checkpoint, with torchtitan's keys; the assets */
    TT_FORMAT_GGUF, /* one file for llama.cpp, with sizes and tokenizer in it, adapters merged; destination: the file */
    TT_FORMAT_STEP, /* a step of titan's: model/, assets/ and a manifest with checksums, step 0, no optimizer state */
    TT_FORMATS,
};

struct tt_copy {
    const char *source; /* a step, a run folder or checkpoint folder (its newest good step), or safetensors files */
    /* [n - 1] further sources: the output is the mean of all, sum(share * weight) / sum(share) */
    const char *const *more;
    int n_more;
    const double *share; /* [n] shares of `source` and `more` in the mean; NULL: equal shares */
    struct tt_told told; /* the model of the source (or of all sources), if the source does not name it */
    const char *base; /* where the frozen weights of adapters are (checkpoint/read/weights.h); NULL: where they were */
    const char *destination; /* a folder or file that appears whole or not at all */
    enum tt_weights_format format;
    /* Unless `format` is TT_FORMAT_DCP, the source decides the format: a Hugging Face folder, a GGUF file or a PyTorch
     * folder becomes a step, and a titan checkpoint becomes a Hugging Face folder. With TT_FORMAT_DCP, with_state is
     * set. */
    bool convert;
    bool averages;   /* copy the averages of the weights (ema.decay) instead of the weights */
    bool with_state; /* TT_FORMAT_DCP: export the optimizer's state and the step too, if the source has them */
    const struct tt_gguf_type_row *type; /* TT_FORMAT_GGUF: type of the matrices; NULL: as they are stored */
    int64_t max_shard_bytes;             /* largest file, for TITAN, HF and DCP; 0: 5 GB, as Hugging Face does */
    bool has_dtype;
    enum tt_dtype dtype;       /* TT_F32, TT_BF16 or TT_F16, for floating-point tensors */
    struct tt_words leave_out; /* regular expressions; matching tensors of a Hugging Face folder may stay unused */
    /* TT_FORMAT_HF, TT_FORMAT_TITAN: [parameter of `of`] which parameters to copy; NULL: all */
    const bool *only;
    const struct tt_model *of;
    const char *suffix; /* what to append to the names of the tensors; NULL: nothing */
    bool force;         /* replace an existing destination, if it contains only an earlier output */
};

struct tt_copied {
    char source[4096]; /* the step that was read */
    int64_t bytes;
    int files, tensors;
};

/**
 * Local. Memory is bounded (less than 128 MiB, or one row of a tensor if that is more; twice that for a mean). The
 * tensors are compared, while they are read, with the manifest's digests or, if there are none, with the checksums of
 * the pieces. Errors: TT_EUSAGE when the destination exists; TT_EDATA when the source is damaged, when the format needs
 * a model and the source names none, when its architecture is unknown (the message lists the known ones), when there
 * are no adapters (PEFT), or when the sources differ in names or shapes of tensors.
 */
int tt_ckpt_copy(const struct tt_copy *options, struct tt_copied *ret_copied) TT_MUST_CHECK;

#endif
