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
#include "core/base/json.h"
#include "core/models/model.h"

/** A copy under way. copy.c opens the sources, and its table lists the sinks that write the weights. */
struct tt_copying {
    const struct tt_copy *copy;
    enum tt_weights_format format;
    int n;                      /* sources: one, or several for a mean */
    struct tt_source **source;  /* [n] */
    struct tt_model **model;    /* [n] the model of each; NULL where the sink needs none and the source names none */
    struct tt_weights *of;      /* [n] the weights of each, under the sink's names and in its layout */
    double *share;              /* [n] the share of each in the mean */
    struct tt_weights mean;     /* the mean of several sources */
    struct tt_weights *weights; /* the weights to copy: of[0] or mean */
    enum tt_dtype *dtype;       /* dtype of each weight in the destination */
    int *of_file;               /* file number of each weight */
    char **names;               /* [weights->n] their names with the suffix; NULL: there is none */
    int n_files;
    struct tt_output output; /* the folder; unused by GGUF, which is one file */
    const char *what;        /* for tt_progress: "exporting" */
    int64_t done, total;     /* bytes, for tt_progress */
    int64_t bytes;           /* bytes of the files that are written */
};

/** Counts the bytes that a sink has written, and shows the progress. */
void tt_copying_advance(struct tt_copying *c, int64_t bytes);

/* The sinks write the weights, and the indexes or manifests that describe them. */

/**
 * dcp.c: a PyTorch folder with torchtitan's keys. With the state, it contains everything that torchtitan needs to
 * resume except the position of the data loader:
 *
 *     NAME                                parameters; a tied one under both names
 *     optimizer.state.NAME.*              exp_avg, exp_avg_sq, step
 *     optimizer.param_groups.NAME.*       lr, betas, eps, weight_decay, ..., if the checkpoint records them
 *     lr_scheduler.*                      last_epoch, and with the optimizer's options the rates
 *     train_state.*                       step, ntokens_seen
 */
int tt_copying_to_dcp(struct tt_copying *c) TT_MUST_CHECK;

/**
 * gguf.c: a GGUF file with the sizes, the tokenizer and the chat template of the source's assets, and with its
 * checksums ("titan.crc32c"). TT_EDATA names a feature that llama.cpp does not support (tt_gguf_put_model,
 * tt_gguf_put_tokenizer).
 */
int tt_copying_to_gguf(struct tt_copying *c) TT_MUST_CHECK;

/* hf.c: the small files beside the weights, without which transformers and titan cannot load them. */

/**
 * Writes config.json, generation_config.json and the tokenizer's files of an export, from the assets of the first
 * source and the sequence length of its training. Keys of an imported folder's config.json that titan does not know
 * (initializer_range, several eos_token_id, …) are kept in the assets and written to the new files. Token ids come from
 * the tokenizer; without a tokenizer, they are absent.
 */
int tt_hf_folder_finish(struct tt_copying *c) TT_MUST_CHECK;

/** max_position_embeddings of config.json in an export of the source; 0: there is none. */
int tt_hf_positions(const struct tt_source *source, const struct tt_model *model, int64_t *ret_positions) TT_MUST_CHECK;

/**
 * The reverse, for an import that makes a step or a PyTorch folder: writes model.json, the tokenizer's files and a
 * Hugging Face folder's config.json to the output's folder `to`, which is "assets/" or "".
 */
int tt_hf_folder_keep(const struct tt_copying *c, const char *to) TT_MUST_CHECK;

/**
 * The small files of an export that say how texts and conversations become tokens, and which tokens end an answer. An
 * export makes them from the checkpoint's assets and adapts them to the training:
 *   - tokenizer.json puts BOS before a text if training did
 *   - after training on conversations, they include the chat template that wrote these, and the token that ends a
 *     turn ends an answer
 *   - model_max_length is not below the length of the sequences in training
 * Everything else is unchanged from the assets, and so from the folder of the base model.
 */
enum tt_hf_text {
    TT_HF_TOKENIZER,        /* tokenizer.json */
    TT_HF_TOKENIZER_CONFIG, /* tokenizer_config.json */
    TT_HF_SPECIAL_TOKENS,   /* special_tokens_map.json */
    TT_HF_CHAT_TEMPLATE,    /* chat_template.jinja; a template may also be in tokenizer_config.json */
    TT_HF_GENERATION,       /* generation_config.json */
    TT_HF_N_TEXTS
};

extern const char *const tt_hf_text_names[TT_HF_N_TEXTS];

struct tt_hf_texts {
    char *text[TT_HF_N_TEXTS]; /* NULL: there is no such file */
    size_t size[TT_HF_N_TEXTS];
    char *template;   /* the chat template that is used, wherever it is stored; NULL: none */
    int32_t bos, eos; /* tokens of the tokenizer in training; -1: none */
    int32_t end;      /* the token that ends a turn, after training on conversations; otherwise -1 */
    json_t *stops;    /* eos_token_id of generation_config.json, if training on conversations changed it; else NULL */
};

/**
 * The texts of an export of an open source. Hugging Face files that are not JSON are used as they are, with a note. The
 * caller zero-initialises ret_texts and releases it.
 */
int tt_hf_texts_make(const struct tt_source *source, struct tt_hf_texts *ret_texts) TT_MUST_CHECK;
void tt_hf_texts_release(struct tt_hf_texts *texts);

/**
 * Writes adapter_config.json, with which PEFT loads the adapters of a model. Its base model is the folder or checkpoint
 * that the run of the source began from, if that is known.
 */
int tt_hf_adapter_config(struct tt_copying *c) TT_MUST_CHECK;

#endif
