/* SPDX-License-Identifier: MIT
 *
 * The end of a save on rank 0: writes manifest.json from what the ranks have collected.
 */
#include "checkpoint/format/manifest.h"

#include <inttypes.h>
#include <string.h>

#include "checkpoint/format/assets.h"
#include "checkpoint/save/fault.h"
#include "checkpoint/save/saving.h"
#include "core/base/mem.h"
#include "core/os/file.h"

static const struct tt_ckpt_chunk *tensor_number(const struct tt_ckpt_saving *s, int number)
{
    return number < s->stored.n_model ? &s->stored.model[number] : &s->stored.optim[number - s->stored.n_model];
}

int tt_saving_check_finite(const struct tt_ckpt_saving *s)
{
    for (int i = 0; i < s->stored.n_model + s->stored.n_optim; i++)
        if (s->shared.nonfinite[i])
            return tt_fail(TT_ENONFINITE,
                           "tensor '%s' has %" PRId64
                           " values that are not finite: nothing was saved, older checkpoints are unchanged",
                           tensor_number(s, i)->name, s->shared.nonfinite[i]);
    return 0;
}

/* Adds one file and the places of its chunks. The file's layout is computed from the plan, not sent. */
static int describe_file(const struct tt_ckpt_saving *s, enum tt_ckpt_group group, int writer,
                         struct tt_manifest *manifest)
{
    int64_t slot = tt_saving_slot(s, group, writer), wrote = s->shared.file_bytes[slot];
    int first = group == TT_CKPT_OPTIM ? s->stored.n_model : 0, rc = 0;
    char *path = tt_ckpt_shard_path(group, writer);
    struct tt_shard_file layout = {0};
    struct tt_manifest_file *file;

    TT_TRY(tt_saving_file(s, group, writer, &layout));
    if (layout.n == 0)
        goto out;
    if (tt_shard_file_bytes(&layout) != wrote) {
        rc = tt_fail(TT_EINTERNAL, "rank %d wrote %" PRId64 " bytes, its plan says %" PRId64, writer, wrote,
                     tt_shard_file_bytes(&layout));
        goto out;
    }
    file = tt_manifest_add_file(manifest, path, wrote);
    file->crc = (uint32_t)s->shared.file_crc[slot];
    for (int i = 0; i < layout.n; i++) {
        const struct tt_st_tensor *entry = &layout.entry[i];
        struct tt_manifest_tensor *t = &manifest->tensor[first + s->plan.piece[entry->index].tensor];

        TT_PUSH(t->chunk, t->n_chunks, t->cap_chunks) = (struct tt_manifest_chunk){
            .file = manifest->n_files - 1,
            .box = entry->box,
            .begin = layout.data_start + entry->begin,
            .end = layout.data_start + entry->end,
            .crc = tt_saving_crc(&s->shared, entry->index),
        };
    }
out:
    tt_shard_file_release(&layout);
    tt_free(path);
    return rc;
}

static json_t *manifest_meta(const struct tt_ckpt_saving *s)
{
    json_t *meta = json_copy(s->meta);

    (void)json_object_update_new(meta, json_pack("{s:i, s:s, s:s*, s:o*, s:s, s:f}", "world", s->store->comm->size,
                                                 "policy", s->policy->name, "filter", s->policy->filter, "assets",
                                                 s->n_assets ? tt_assets_json(s->asset, s->n_assets) : NULL, "run_id",
                                                 s->store->run_id, "time", tt_clock_wall_sec()));
    return meta;
}

static int describe(const struct tt_ckpt_saving *s, struct tt_manifest *manifest)
{
    int n = s->stored.n_model + s->stored.n_optim, rc = 0;

    manifest->meta = manifest_meta(s);
    for (int i = 0; i < n; i++) {
        const struct tt_ckpt_chunk *c = tensor_number(s, i);
        enum tt_ckpt_group group = i < s->stored.n_model ? TT_CKPT_MODEL : TT_CKPT_OPTIM;

        tt_manifest_add_tensor(manifest, group, c->name, c->dtype, c->ndim, c->shape)->digest =
            (uint64_t)s->shared.digest[i];
    }
    for (int group = 0; group < TT_CKPT_GROUPS; group++)
        for (int writer = 0; writer < s->store->comm->size; writer++)
            TT_TRY(describe_file(s, (enum tt_ckpt_group)group, writer, manifest));
    rc = tt_manifest_check_cover(manifest);
out:
    return rc;
}

int tt_saving_finish(void *arg)
{
    const struct tt_ckpt_saving *s = arg;
    struct tt_manifest manifest = {0};
    char *text = NULL, *path = tt_format("%s/manifest.json", s->folder);
    int rc = 0;

    TT_TRY(tt_commit_sync_tree(s->folder));
    TT_TRY(describe(s, &manifest));
    tt_manifest_sort(&manifest);
    TT_TRY(tt_fault("manifest", s->rank));
    text = tt_manifest_text(&manifest);
    TT_TRY(tt_durable_put(path, text, strlen(text)));
    TT_TRY(tt_folder_sync(s->folder));
    tt_known_note(&s->store->known, s->step, path, &manifest);
out:
    tt_manifest_release(&manifest);
    tt_free(text);
    tt_free(path);
    return rc;
}
