/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_HF_TEXTS_H
#define TT_CHECKPOINT_HF_TEXTS_H

#include <stddef.h>

#include "checkpoint/load/source.h"
#include "core/base/error.h"
#include "core/base/json.h"

/**
 * The small files of an export that say how texts and conversations become tokens, and which tokens end an answer. They
 * are made of the checkpoint's assets when it is exported, and what training did is in them:
 *   - tokenizer.json puts BOS before a text if training did
 *   - after training on conversations there is the chat template that wrote them, and the token that ends a turn is
 *     among those that end an answer
 *   - model_max_length is not below the length of the sequences in training
 * All else is as in the assets, which have what the base model's folder had.
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

/** A JSON file of Hugging Face's as titan writes them; the caller frees with tt_free. */
char *tt_hf_json_text(const json_t *json);

/** The length of the sequences that a checkpoint was trained with; 0: it does not say. */
int64_t tt_hf_trained_length(const struct tt_source *source);

/** The object of a JSON file; NULL if there is none, or, with a note, if it is no JSON. The caller decrefs. */
int tt_hf_object(const char *folder, const char *name, json_t **ret_json) TT_MUST_CHECK;

#endif
