/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_SAVE_ASSETS_H
#define TT_CLI_TRAIN_SAVE_ASSETS_H

#include "checkpoint/hf/folder.h"
#include "checkpoint/save/save.h"
#include "core/tokenizer/tokenizer.h"
#include "trainer/job/setup.h"

/** Small files that go into every checkpoint. Those of rank 0 are written. */
struct tt_train_assets {
    struct tt_ckpt_asset *asset;
    int n, cap;
    char *model_config;      /* the bytes of model.json; the tokenizer owns those of its files */
    struct tt_hf_file *file; /* those of model.hf_assets_path, for an export; rank 0 only */
    int n_files;
};

/** The tokenizer may be NULL, and outlives the assets. Not collective. May be released after an error too. */
int tt_train_assets_init(const struct tt_setup *setup, const struct tt_tokenizer *tokenizer,
                         struct tt_train_assets *ret_assets) TT_MUST_CHECK;
void tt_train_assets_release(struct tt_train_assets *assets);

#endif
