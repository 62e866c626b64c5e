/* SPDX-License-Identifier: MIT
 *
 * From the keys of a configuration to its datasets.
 */
#include "cli/train/data/datasets.h"

#include "cli/run/folder.h"
#include "core/base/mem.h"

/* Adds what to do about a missing file. The command adds which key names it, and where that was set. */
static int add_hint(int rc)
{
    switch (tt_error_key()) {
    case TT_KEY_DATASET_PATH:
        return tt_error_add_hint(rc, "titan downloads nothing; name the file or folder that holds the data");
    case TT_KEY_MODEL_FOLDER:
        return tt_error_add_hint(rc, "name the folder that holds tokenizer.json, or leave the key out for the built-in "
                                     "tokenizer");
    default:
        return rc;
    }
}

static int open_one(const struct tt_setup *s, const struct tt_train_data_options *o, struct tt_train_data *ret_data)
{
    int rc = tt_train_data_open(s->comm, o, ret_data);

    return rc < 0 ? add_hint(rc) : 0;
}

int tt_datasets_open_training(const struct tt_setup *s, struct tt_train_data *ret_data)
{
    const struct tt_config *cfg = s->cfg;
    char *cache = tt_run_folder_cache(cfg);
    const struct tt_train_data_options o = {.dataset = cfg->training.dataset,
                                            .path = cfg->training.dataset_path,
                                            .text_field = cfg->training.text_field,
                                            .tokenizer_folder = cfg->model.hf_assets_path,
                                            .cache_folder = cache,
                                            .vocab_size = s->job.model->dims.vocab_size,
                                            .seq_len = cfg->training.seq_len,
                                            .shuffle = cfg->dataloader.shuffle,
                                            .repeat = cfg->dataloader.repeat,
                                            .documents = cfg->training.document_mask,
                                            .seed = (uint64_t)cfg->dataloader.seed};
    int rc = open_one(s, &o, ret_data);

    tt_free(cache);
    return rc;
}

int tt_datasets_open_validation(const struct tt_setup *s, struct tt_train_data *ret_data)
{
    const struct tt_config *cfg = s->cfg;
    char *cache = tt_run_folder_cache(cfg);
    const struct tt_train_data_options o = {.dataset = cfg->validation.dataset,
                                            .path = cfg->validation.dataset_path,
                                            .text_field = cfg->training.text_field,
                                            .tokenizer_folder = cfg->model.hf_assets_path,
                                            .cache_folder = cache,
                                            .vocab_size = s->job.model->dims.vocab_size,
                                            .seq_len = cfg->validation.seq_len,
                                            .documents = cfg->training.document_mask,
                                            .seed = (uint64_t)cfg->dataloader.seed};
    int rc = open_one(s, &o, ret_data);

    if (rc < 0 && tt_error_key() == TT_KEY_DATASET_PATH)
        rc = tt_fail_key(rc, TT_KEY_VALIDATION_DATASET_PATH, "%s", tt_error_message());
    tt_free(cache);
    return rc;
}
