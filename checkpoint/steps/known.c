/* SPDX-License-Identifier: MIT
 *
 * Remembers manifests, so that they need not be read again.
 */
#include "checkpoint/steps/known.h"

#include <stdbool.h>

#include "checkpoint/steps/steps.h"
#include "core/base/mem.h"

static bool is_same(const struct tt_path_info *a, const struct tt_path_info *b)
{
    return a->kind == b->kind && a->is_link == b->is_link && a->bytes == b->bytes && a->device == b->device &&
           a->inode == b->inode && a->modified_sec == b->modified_sec;
}

static struct tt_known_step *find(const struct tt_known_steps *known, int64_t step)
{
    for (int i = 0; i < known->n; i++)
        if (known->list[i].step == step)
            return &known->list[i];
    return NULL;
}

static void add(struct tt_known_steps *known, int64_t step, const struct tt_path_info *info,
                struct tt_manifest *manifest)
{
    struct tt_known_step *entry = find(known, step);

    if (!entry) {
        TT_PUSH(known->list, known->n, known->cap) = (struct tt_known_step){.step = step};
        entry = &known->list[known->n - 1];
    }
    tt_manifest_release(&entry->files);
    entry->manifest = *info;
    entry->files =
        (struct tt_manifest){.n_files = manifest->n_files, .cap_files = manifest->cap_files, .file = manifest->file};
    manifest->file = NULL;
    manifest->n_files = manifest->cap_files = 0;
}

int tt_known_check(struct tt_known_steps *known, const char *folder, int64_t step)
{
    char *step_path = tt_step_path(folder, step), *path = tt_format("%s/manifest.json", step_path);
    const struct tt_known_step *entry = find(known, step);
    struct tt_manifest manifest = {0};
    struct tt_path_info info;
    int rc = 0;

    TT_TRY(tt_path_look(path, &info));
    if (entry && is_same(&entry->manifest, &info)) {
        rc = tt_step_check_sizes(step_path, &entry->files);
        goto out;
    }
    known->n_read++;
    TT_TRY(tt_step_check(step_path, &manifest));
    add(known, step, &info, &manifest);
out:
    tt_manifest_release(&manifest);
    tt_free(step_path);
    tt_free(path);
    return rc;
}

void tt_known_note(struct tt_known_steps *known, int64_t step, const char *path, struct tt_manifest *manifest)
{
    struct tt_path_info info;

    if (tt_path_look(path, &info) == 0)
        add(known, step, &info, manifest);
}

void tt_known_keep(struct tt_known_steps *known, const int64_t *steps, int n)
{
    int kept = 0;

    for (int i = 0; i < known->n; i++) {
        bool there = false;

        for (int k = 0; k < n && !there; k++)
            there = steps[k] == known->list[i].step;
        if (there)
            known->list[kept++] = known->list[i];
        else
            tt_manifest_release(&known->list[i].files);
    }
    known->n = kept;
}

void tt_known_release(struct tt_known_steps *known)
{
    tt_known_keep(known, NULL, 0);
    tt_free(known->list);
    *known = (struct tt_known_steps){0};
}
