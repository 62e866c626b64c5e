/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_EXPORT_HF_H
#define TT_CHECKPOINT_EXPORT_HF_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"

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

#endif
