/* SPDX-License-Identifier: MIT
 *
 * The small files of a checkpoint: the model's sizes, the tokenizer, and files of the folder from Hugging Face.
 */
#include "cli/train/save/assets.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/models/model_json.h"
#include "core/os/file.h"

static void add_asset(struct tt_train_assets *a, const char *name, const void *bytes, size_t size)
{
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->asset[i].name, name) == 0)
            return;
    TT_PUSH(a->asset, a->n, a->cap) = (struct tt_ckpt_asset){name, bytes, size};
}

int tt_train_assets_init(const struct tt_setup *s, const struct tt_tokenizer *tokenizer,
                         struct tt_train_assets *ret_assets)
{
    const char *folder = s->cfg->model.hf_assets_path;
    struct tt_train_assets *a = ret_assets;
    bool is_folder = false;
    int rc = 0;

    *a = (struct tt_train_assets){.n = 0};
    a->model_config = tt_model_json_text(s->job.model);
    add_asset(a, "model.json", a->model_config, strlen(a->model_config));
    if (tokenizer) {
        struct tt_tokenizer_files files = tt_tokenizer_files(tokenizer);

        add_asset(a, "tokenizer.json", files.json, files.json_size);
        if (files.config)
            add_asset(a, "tokenizer_config.json", files.config, files.config_size);
    }
    if (!folder || s->comm->rank > 0)
        goto out;
    TT_TRY(tt_path_is_folder(folder, &is_folder));
    if (is_folder) /* config.json describes the model only if the model was made from it */
        TT_TRY(tt_hf_files_read(folder, strcmp(s->cfg->model.flavor, "hf") == 0, &a->file, &a->n_files));
    for (int i = 0; i < a->n_files; i++)
        add_asset(a, a->file[i].name, a->file[i].text, a->file[i].size);
out:
    return rc;
}

void tt_train_assets_release(struct tt_train_assets *a)
{
    tt_hf_files_free(a->file, a->n_files);
    tt_free(a->asset);
    tt_free(a->model_config);
    *a = (struct tt_train_assets){.n = 0};
}
