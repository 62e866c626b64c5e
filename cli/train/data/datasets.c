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

/* The entries of a key; caller: tt_free. */
static struct tt_dataset_entry *entries_of(const struct tt_config *cfg, const struct tt_datasets *datasets)
{
    struct tt_dataset_entry *entry = tt_calloc((size_t)datasets->n, sizeof *entry);

    for (int i = 0; i < datasets->n; i++)
        entry[i] = tt_config_dataset(cfg, datasets, i);
    return entry;
}

/* Errors about the path of an entry are about the list. */
static int blame(int rc, const struct tt_datasets *datasets, enum tt_key list, enum tt_key path)
{
    if (rc == 0 || tt_error_key() != TT_KEY_DATASET_PATH)
        return rc;
    return tt_fail_key(rc, datasets->is_list ? list : path, "%s", tt_error_message());
}

int tt_datasets_open_training(const struct tt_setup *s, struct tt_train_data *ret_data)
{
    const struct tt_config *cfg = s->cfg;
    struct tt_dataset_entry *entry = entries_of(cfg, &cfg->training.dataset);
    char *cache = tt_run_folder_cache(cfg);
    const struct tt_train_data_options o = {.entry = entry,
                                            .n = cfg->training.dataset.n,
                                            .chat_template = cfg->training.chat_template,
                                            .tokenizer_folder = cfg->model.hf_assets_path,
                                            .cache_folder = cache,
                                            .vocab_size = s->job.model->dims.vocab_size,
                                            .seq_len = cfg->training.seq_len,
                                            .shuffle = cfg->dataloader.shuffle,
                                            .repeat = cfg->dataloader.repeat,
                                            .documents = cfg->training.document_mask,
                                            .longs = (enum tt_long_conversations)cfg->dataloader.long_conversations,
                                            .seed = (uint64_t)cfg->dataloader.seed,
                                            .split = cfg->validation.split};
    int rc = open_one(s, &o, ret_data);

    rc = blame(rc, &cfg->training.dataset, TT_KEY_DATASET, TT_KEY_DATASET_PATH);
    tt_free(cache);
    tt_free(entry);
    return rc;
}

int tt_datasets_open_validation(const struct tt_setup *s, int set, struct tt_train_data *ret_data)
{
    const struct tt_config *cfg = s->cfg;
    const struct tt_dataset_entry entry = tt_config_dataset(cfg, &cfg->validation.dataset, set);
    char *cache = tt_run_folder_cache(cfg);
    const struct tt_train_data_options o = {.entry = &entry,
                                            .n = 1,
                                            .chat_template = cfg->training.chat_template,
                                            .tokenizer_folder = cfg->model.hf_assets_path,
                                            .cache_folder = cache,
                                            .vocab_size = s->job.model->dims.vocab_size,
                                            .seq_len = cfg->validation.seq_len,
                                            .documents = cfg->training.document_mask,
                                            .longs = (enum tt_long_conversations)cfg->dataloader.long_conversations,
                                            .seed = (uint64_t)cfg->dataloader.seed,
                                            .split = cfg->validation.split,
                                            .held_out = cfg->validation.split > 0.0};
    int rc = open_one(s, &o, ret_data);

    if (rc < 0 && cfg->validation.dataset.is_list)
        rc = tt_wrap(rc, "entry '%s'", entry.name);
    rc = blame(rc, &cfg->validation.dataset, TT_KEY_VALIDATION_DATASET, TT_KEY_VALIDATION_DATASET_PATH);
    tt_free(cache);
    return rc;
}

const char *tt_datasets_longs(const struct tt_config *cfg, const struct tt_train_data *data)
{
    const struct tt_config_row *row = tt_config_row_find("dataloader.long_conversations");
    bool has_long = false;

    for (int i = 0; i < data->n; i++) {
        const struct tt_packs *packs = tt_sampler_packs(data->part[i].sampler);

        has_long = has_long || (packs && packs->n_long);
    }
    return has_long ? tt_config_choice_word(row->choices, (int)cfg->dataloader.long_conversations) : NULL;
}
