/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_HF_FOLDER_H
#define TT_CHECKPOINT_HF_FOLDER_H

#include "checkpoint/load/source.h"
#include "checkpoint/tools/output.h"
#include "core/base/error.h"
#include "core/models/model.h"

/** The small files around weights: what makes a folder one that transformers loads, and a checkpoint one that titan does. */

/** The folder of the small files of an open source: step-N/assets, or the folder of the safetensors. The caller frees. */
char *tt_source_assets(const struct tt_source *source);

/** Whether it is a folder of Hugging Face's: it has a config.json, and no model.json of titan's. */
int tt_source_is_hf(const struct tt_source *source, bool *ret_is_hf) TT_MUST_CHECK;

/** Builds the model of an open titan checkpoint from its model.json; TT_EDATA says that it has none. */
int tt_source_model(const struct tt_source *source, struct tt_model **ret_model) TT_MUST_CHECK;

/**
 * Writes config.json, generation_config.json and the tokenizer's files into an output.
 *   source  the titan checkpoint: its assets, and the sequence length that it was trained with
 *   dtype   of the weights, for config.json
 * What the assets keep of an imported folder's config.json and titan does not know (initializer_range, several
 * eos_token_id, …) goes back into the new ones. Token ids are the tokenizer's, or absent when there is none.
 */
int tt_hf_folder_finish(const struct tt_output *output, const struct tt_source *source, const struct tt_model *model,
                        enum tt_dtype dtype) TT_MUST_CHECK;

/** A small file of a Hugging Face folder, under the name that it has in assets/. */
struct tt_hf_file {
    char *name, *text;
    size_t size;
};

/**
 * The files around a tokenizer (tokenizer.json, chat template, special tokens, merges, …) of a folder, which a checkpoint keeps
 * for the export; with_config: config.json and generation_config.json too, as hf_config.json and so on. The caller frees.
 */
int tt_hf_files_read(const char *folder, bool with_config, struct tt_hf_file **ret_files, int *ret_n) TT_MUST_CHECK;
void tt_hf_files_free(struct tt_hf_file *files, int n);

/** The reverse: model.json, the tokenizer's files, and a Hugging Face folder's own config.json, into output's assets/. */
int tt_hf_folder_keep(const struct tt_output *output, const struct tt_source *source,
                      const struct tt_model *model) TT_MUST_CHECK;

#endif
