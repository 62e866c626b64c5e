/* SPDX-License-Identifier: MIT
 *
 * From the keys of a configuration to its datasets.
 */
#include "cli/train/datasets.h"

#include <string.h>

#include "cli/run/folder.h"
#include "core/base/mem.h"

/*
 * A data file or tokenizer that is not there: the message names the file, this adds the key, where it was set, and what to
 * do. Other faults of data lie in the data.
 */
static int say_key(const struct tt_config *cfg, int rc, const char *key, const char *path, const char *remedy)
{
    const char *where = tt_config_where(cfg, key);
    char *message;

    if (rc >= 0 || !path || !strstr(tt_error_message(), path) || strstr(tt_error_message(), key) ||
        !strstr(tt_error_message(), "no such file"))
        return rc;
    message = tt_strdup(tt_error_message());
    rc = tt_fail(rc, "%s%s%s: %s%s%s", strstr(where, key) ? "" : where, strstr(where, key) ? "" : ": ",
                 strstr(where, key) ? where : key, message,
                 strstr(message, "\nhelp: ") ? "" : "\nhelp: ", strstr(message, "\nhelp: ") ? "" : remedy);
    tt_free(message);
    return rc;
}

static int open_one(const struct tt_setup *s, const struct tt_train_data_options *o, const char *key,
                    struct tt_train_data *ret_data)
{
    int rc = tt_train_data_open(s->comm, o, ret_data);

    rc = say_key(s->cfg, rc, key, o->path, "titan downloads nothing; name the file or folder that holds the data");
    return say_key(s->cfg, rc, "model.hf_assets_path", o->tokenizer_folder,
                   "name the folder that holds tokenizer.json, or leave the key out for the built-in tokenizer");
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
                                            .seed = (uint64_t)cfg->dataloader.seed};
    int rc = open_one(s, &o, "training.dataset_path", ret_data);

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
                                            .seed = (uint64_t)cfg->dataloader.seed};
    int rc = open_one(s, &o, "validation.dataset_path", ret_data);

    tt_free(cache);
    return rc;
}
