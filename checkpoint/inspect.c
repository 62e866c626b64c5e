/* SPDX-License-Identifier: MIT
 *
 * Describing checkpoints without reading their data.
 */
#include "checkpoint/inspect.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/manifest.h"
#include "checkpoint/steps.h"
#include "core/base/file.h"
#include "core/base/mem.h"

/* A key of the manifest, or null. */
static json_t *meta_value(const struct tt_manifest *manifest, const char *key)
{
    json_t *value = json_object_get(manifest->meta, key);

    return value ? json_incref(value) : json_null();
}

static int64_t file_bytes(const struct tt_manifest *manifest)
{
    int64_t bytes = 0;

    for (int i = 0; i < manifest->n_files; i++)
        bytes += manifest->file[i].bytes;
    return bytes;
}

static void set_summary(json_t *json, const struct tt_manifest *manifest)
{
    static const struct {
        const char *key, *meta;
    } row[] = {
        {"tokens", "ntokens_seen"}, {"time", "time"}, {"world", "world"}, {"mesh", "mesh"}, {"policy", "policy"}};

    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        (void)json_object_set_new(json, row[i].key, meta_value(manifest, row[i].meta));
}

static json_t *list_step(const char *folder, int64_t step)
{
    char *path = tt_step_path(folder, step);
    struct tt_manifest manifest = {0};
    json_t *json = json_object();
    bool good = tt_step_check(path, &manifest) == 0;
    char *problem = good ? NULL : tt_strdup(tt_error_message());

    if (!good) /* what can still be said of it */
        (void)!tt_manifest_load(path, &manifest);
    (void)json_object_set_new(json, "step", json_integer(step));
    set_summary(json, &manifest);
    (void)json_object_set_new(json, "files", manifest.meta ? json_integer(manifest.n_files) : json_null());
    (void)json_object_set_new(json, "bytes", manifest.meta ? json_integer(file_bytes(&manifest)) : json_null());
    (void)json_object_set_new(json, "good", json_boolean(good));
    (void)json_object_set_new(json, "problem", problem ? json_string(problem) : json_null());
    tt_manifest_release(&manifest);
    tt_free(problem);
    tt_free(path);
    return json;
}

static bool is_leftover(const char *name)
{
    return strncmp(name, ".tmp-step-", 10) == 0 || strncmp(name, ".trash-step-", 12) == 0 ||
           strncmp(name, ".old-step-", 10) == 0;
}

int tt_ckpt_list(const char *path, json_t **ret_json)
{
    enum tt_path_kind kind;
    int64_t *steps = NULL;
    char *folder = NULL, **names = NULL, *slash;
    json_t *json = NULL, *list = json_array(), *leftovers = json_array();
    int n = 0, n_names = 0, rc = 0;

    TT_TRY(tt_path_find(path, &kind, &folder));
    if (kind == TT_PATH_PLAIN) {
        rc = tt_fail(TT_EDATA, "'%s' holds safetensors files, not steps\nhelp: titan ckpt inspect describes it", path);
        goto out;
    }
    if (kind == TT_PATH_STEP && (slash = strrchr(folder, '/'))) {
        TT_PUSH(steps, n, n_names) = tt_step_number(slash + 1);
        *slash = 0;
        n_names = 0;
    } else if (kind == TT_PATH_STEP) {
        rc = tt_fail(TT_EUSAGE, "'%s' is one step\nhelp: titan ckpt inspect describes it", path);
        goto out;
    } else {
        TT_TRY(tt_step_list(folder, &steps, &n));
    }
    for (int i = 0; i < n; i++)
        (void)json_array_append_new(list, list_step(folder, steps[i]));
    TT_TRY(tt_folder_list(folder, &names, &n_names));
    for (int i = 0; i < n_names; i++)
        if (is_leftover(names[i]))
            (void)json_array_append_new(leftovers, json_string(names[i]));
    json = json_pack("{s:s,s:O,s:O}", "folder", folder, "steps", list, "leftovers", leftovers);
    *ret_json = json;
out:
    json_decref(list);
    json_decref(leftovers);
    tt_names_free(names, n_names);
    tt_free(steps);
    tt_free(folder);
    return rc;
}

static json_t *tensors_json(const struct tt_manifest *manifest)
{
    json_t *list = json_array();

    for (int i = 0; i < manifest->n_tensors; i++) {
        const struct tt_manifest_tensor *t = &manifest->tensor[i];
        json_t *shape = json_array();
        char digest[32];

        for (int d = 0; d < t->ndim; d++)
            (void)json_array_append_new(shape, json_integer(t->shape[d]));
        (void)snprintf(digest, sizeof digest, "sum64:%016" PRIx64, t->digest);
        (void)json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:o,s:i,s:o}", "name", t->name, "group",
                                                    manifest->meta ? tt_ckpt_group_name(t->group) : "model", "dtype",
                                                    tt_dtype_name(t->dtype), "shape", shape, "chunks", t->n_chunks,
                                                    "digest", t->has_digest ? json_string(digest) : json_null()));
    }
    return list;
}

static json_t *group_json(const struct tt_manifest *manifest, enum tt_ckpt_group group)
{
    int64_t bytes = 0;
    int n = tt_manifest_group_size(manifest, group, &bytes);

    return json_pack("{s:i,s:I}", "tensors", n, "bytes", (json_int_t)bytes);
}

static json_t *assets_json(const char *path)
{
    char *folder = tt_format("%s/assets", path), **names = NULL;
    json_t *list = json_array();
    int n = 0;

    if (tt_path_is_folder(folder) && tt_folder_list(folder, &names, &n) == 0)
        for (int i = 0; i < n; i++)
            (void)json_array_append_new(list, json_string(names[i]));
    tt_names_free(names, n);
    tt_free(folder);
    return list;
}

static int64_t parameters(const struct tt_manifest *manifest)
{
    int64_t n = 0;

    for (int i = 0; i < manifest->n_tensors; i++) {
        struct tt_box whole = tt_box_whole(manifest->tensor[i].ndim, manifest->tensor[i].shape);

        if (manifest->tensor[i].group == TT_GROUP_MODEL)
            n += tt_box_volume(&whole);
    }
    return n;
}

int tt_ckpt_inspect(const char *given, json_t **ret_json)
{
    struct tt_manifest manifest = {0};
    enum tt_path_kind kind;
    char *path = NULL;
    json_t *json, *files;
    int rc = 0;

    TT_TRY(tt_path_resolve(given, true, &kind, &path));
    TT_TRY(kind == TT_PATH_STEP ? tt_manifest_load(path, &manifest) : tt_manifest_scan(path, &manifest));
    json = json_pack("{s:s,s:s,s:o}", "path", path, "kind", kind == TT_PATH_STEP ? "step" : "safetensors", "step",
                     meta_value(&manifest, "step"));
    set_summary(json, &manifest);
    (void)json_object_set_new(json, "sample_cursor", meta_value(&manifest, "sample_cursor"));
    (void)json_object_set_new(json, "run_id", meta_value(&manifest, "run_id"));
    (void)json_object_set_new(json, "bytes", json_integer(file_bytes(&manifest)));
    (void)json_object_set_new(json, "parameters", json_integer(parameters(&manifest)));
    (void)json_object_set_new(json, "model", group_json(&manifest, TT_GROUP_MODEL));
    (void)json_object_set_new(json, "optimizer", group_json(&manifest, TT_GROUP_OPTIM));
    files = json_array();
    for (int i = 0; i < manifest.n_files; i++)
        (void)json_array_append_new(
            files, json_pack("{s:s,s:I}", "path", manifest.file[i].path, "bytes", (json_int_t)manifest.file[i].bytes));
    (void)json_object_set_new(json, "files", files);
    (void)json_object_set_new(json, "tensors", tensors_json(&manifest));
    (void)json_object_set_new(json, "assets", assets_json(path));
    (void)json_object_set_new(json, "meta", manifest.meta ? json_incref(manifest.meta) : json_null());
    *ret_json = json;
out:
    tt_manifest_release(&manifest);
    tt_free(path);
    return rc;
}
