/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_HF_FOLDER_H
#define TT_CHECKPOINT_HF_FOLDER_H

#include "checkpoint/load/source.h"
#include "checkpoint/tools/output.h"
#include "core/base/error.h"
#include "core/models/model.h"

/** The small files in a folder of weights that transformers needs to load it, and titan to load a checkpoint. */

/**
 * What a user says of a checkpoint that does not say which model it is, as PyTorch's do not. All may be NULL.
 */
struct tt_told {
    const char *model, *flavor; /* of the registry; both or none */
    const char *assets;         /* a folder with config.json or model.json, and a tokenizer */
};

/**
 * The folder of the small files of an open source: the one that the user names, step-N/assets, or the folder of the
 * weights. The caller frees.
 */
char *tt_source_assets(const struct tt_source *source);

/** Whether the source is a Hugging Face folder: it has a config.json and no model.json. */
int tt_source_is_hf(const struct tt_source *source, bool *ret_is_hf) TT_MUST_CHECK;

/**
 * Builds the model of an open titan checkpoint from its model.json, or else as told; the vocabulary is then that of the
 * embedding. told->assets becomes the source's. TT_EDATA says that the model is not known, TT_EUSAGE that the
 * checkpoint says it itself.
 */
int tt_source_model(struct tt_source *source, const struct tt_told *told, struct tt_model **ret_model) TT_MUST_CHECK;

/**
 * Writes config.json, generation_config.json and the tokenizer's files into an output.
 *   source  the titan checkpoint: its assets, and the sequence length that it was trained with
 *   dtype   of the weights, for config.json
 * Keys of an imported folder's config.json that titan does not know (initializer_range, several eos_token_id, …) are
 * kept in the assets and written to the new files. Token ids are the tokenizer's, or absent when there is none.
 */
int tt_hf_folder_finish(const struct tt_output *output, const struct tt_source *source, const struct tt_model *model,
                        enum tt_dtype dtype) TT_MUST_CHECK;

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
 * The reverse: writes model.json, the tokenizer's files and a Hugging Face folder's config.json to an output's folder
 * `to`, which is "assets/" or "".
 */
int tt_hf_folder_keep(const struct tt_output *output, const struct tt_source *source, const struct tt_model *model,
                      const char *to) TT_MUST_CHECK;

#endif
