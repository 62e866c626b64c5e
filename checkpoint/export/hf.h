/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_EXPORT_HF_H
#define TT_CHECKPOINT_EXPORT_HF_H

#include <stddef.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/read/source.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/models/model.h"

/** The small files beside weights, without which transformers and titan cannot load them. */

struct tt_copying;

/**
 * Writes config.json, generation_config.json and the tokenizer's files of an export: the first source's assets, and the
 * sequence length that it was trained with. Keys of an imported folder's config.json that titan does not know
 * (initializer_range, several eos_token_id, …) are kept in the assets and written to the new files. Token ids are the
 * tokenizer's, or absent when there is none.
 */
int tt_hf_folder_finish(struct tt_copying *c) TT_MUST_CHECK;

/** max_position_embeddings of the config.json that an export of the source would have; 0: it has none. */
int tt_hf_positions(const struct tt_source *source, const struct tt_model *model, int64_t *ret_positions) TT_MUST_CHECK;

/** A small file of a Hugging Face folder, under the name that it has in assets/. */
struct tt_hf_file {
    char *name, *text;
    size_t size;
};

/**
 * The tokenizer files of a folder, or of a GGUF file (tokenizer.json, chat template, special tokens, merges, …), which
 * a checkpoint keeps for the export. with_config: also config.json and generation_config.json, under the names
 * hf_config.json and hf_generation_config.json. The caller frees.
 */
int tt_hf_files_read(const char *folder, bool with_config, struct tt_hf_file **ret_files, int *ret_n) TT_MUST_CHECK;
void tt_hf_files_free(struct tt_hf_file *files, int n);

/**
 * The reverse: writes model.json, the tokenizer's files and a Hugging Face folder's config.json to the output's folder
 * `to`, which is "assets/" or "".
 */
int tt_hf_folder_keep(const struct tt_copying *c, const char *to) TT_MUST_CHECK;

/**
 * The small files of an export that say how texts and conversations become tokens, and which tokens end an answer. They
 * are made of the checkpoint's assets when it is exported, and follow the training:
 *   - tokenizer.json puts BOS before a text if training did
 *   - after training on conversations there is the chat template that wrote them, and the token that ends a turn is
 *     among those that end an answer
 *   - model_max_length is not below the length of the sequences in training
 * Everything else is as in the assets, that is as in the folder of the base model.
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
    char *template;   /* the chat template that counts, wherever it is; NULL: none */
    int32_t bos, eos; /* of the tokenizer of training; -1: none */
    int32_t end;      /* of a turn, after training on conversations; else -1 */
    json_t *stops;    /* eos_token_id of generation_config.json, if training on conversations changed it; else NULL */
};

/**
 * The texts of an export of an open source. Files of Hugging Face's that are no JSON are used as they are, with a note.
 * The caller zero-initialises ret_texts and releases it.
 */
int tt_hf_texts_make(const struct tt_source *source, struct tt_hf_texts *ret_texts) TT_MUST_CHECK;
void tt_hf_texts_release(struct tt_hf_texts *texts);

/**
 * Writes adapter_config.json, with which PEFT loads the adapters of a model. Its base model is the folder or checkpoint
 * that the run of the source began from, if that is known.
 */
int tt_hf_adapter_config(struct tt_copying *c) TT_MUST_CHECK;

#endif
