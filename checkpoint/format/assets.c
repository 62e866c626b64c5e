/* SPDX-License-Identifier: MIT
 *
 * Sizes and checksums of a checkpoint's small files.
 */
#include "checkpoint/format/assets.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/os/file.h"

static const char prefix[] = "assets/";

static json_t *entry_json(const char *name, const void *bytes, size_t size)
{
    char *path = tt_format("%s%s", prefix, name), crc[16];
    json_t *json;

    (void)snprintf(crc, sizeof crc, "%08x", tt_crc32c(0, bytes, size));
    json = json_pack("{s:s, s:I, s:s}", "path", path, "bytes", (json_int_t)size, "crc32c", crc);
    tt_free(path);
    return json;
}

json_t *tt_assets_json(const struct tt_ckpt_asset *asset, int n)
{
    json_t *list = json_array();

    for (int i = 0; i < n; i++)
        (void)json_array_append_new(list, entry_json(asset[i].name, asset[i].bytes, asset[i].size));
    return list;
}

int tt_assets_scan(const char *folder, json_t **ret_json)
{
    char *assets = tt_format("%s/assets", folder), **names = NULL;
    json_t *list = json_array();
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list(assets, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *path = tt_format("%s/%s", assets, names[i]), *text = NULL;
        size_t size = 0;

        rc = tt_file_read(path, &text, &size);
        if (rc == 0)
            (void)json_array_append_new(list, entry_json(names[i], text, size));
        tt_free(text);
        tt_free(path);
    }
    TT_TRY(rc);
    *ret_json = list;
    list = NULL;
out:
    json_decref(list);
    tt_names_free(names, n);
    tt_free(assets);
    return rc;
}

const json_t *tt_assets_of(const struct tt_manifest *manifest)
{
    return json_object_get(manifest->meta, "assets");
}

/* Compares the file's bytes with the entry. */
static int compare(const char *path, const char *text, size_t size, const json_t *entry, const char **ret_kind)
{
    const char *wanted = json_string_value(json_object_get(entry, "crc32c"));
    int64_t bytes = (int64_t)json_integer_value(json_object_get(entry, "bytes"));
    char crc[16];

    *ret_kind = (int64_t)size < bytes ? "truncated" : "trailing";
    if ((int64_t)size != bytes)
        return tt_fail(TT_EDATA, "'%s' has %zu bytes, %" PRId64 " expected", path, size, bytes);
    *ret_kind = "crc";
    (void)snprintf(crc, sizeof crc, "%08x", tt_crc32c(0, text, size));
    if (!wanted || strcmp(crc, wanted) != 0)
        return tt_fail(TT_EDATA, "'%s' is damaged: it has checksum %s, %s expected", path, crc,
                       wanted ? wanted : "none");
    return 0;
}

int tt_asset_check(const char *step_path, const json_t *entry, const char **ret_kind)
{
    const char *relative = json_string_value(json_object_get(entry, "path")), *unused;
    const char **kind = ret_kind ? ret_kind : &unused;
    size_t n = sizeof prefix - 1, size = 0;
    char *path = NULL, *text = NULL;
    struct tt_path_info info = {0};
    int64_t bytes = (int64_t)json_integer_value(json_object_get(entry, "bytes"));
    int rc = 0;

    *kind = "manifest";
    if (!relative || strncmp(relative, prefix, n) != 0 || strchr(relative + n, '/'))
        return tt_fail(TT_EDATA, "'%s': an asset '%s' is not one of a checkpoint", step_path,
                       relative ? relative : "?");
    path = tt_format("%s/%s", step_path, relative);
    *kind = "missing";
    TT_TRY(tt_path_look(path, &info));
    if (info.kind != TT_FILE_REGULAR) {
        rc = info.kind == TT_FILE_NONE ? tt_fail(TT_EDATA, "missing file '%s'", path)
                                       : tt_fail(TT_EDATA, "'%s' is not a regular file", path);
        goto out;
    }
    *kind = info.bytes < bytes ? "truncated" : "trailing";
    if (info.bytes != bytes) {
        rc = tt_fail(TT_EDATA, "'%s' has %" PRId64 " bytes, %" PRId64 " expected", path, info.bytes, bytes);
        goto out;
    }
    TT_TRY(tt_file_read(path, &text, &size));
    rc = compare(path, text, size, entry, kind);
out:
    tt_free(text);
    tt_free(path);
    return rc;
}

int tt_assets_check(const char *step_path, const struct tt_manifest *manifest)
{
    const json_t *list = tt_assets_of(manifest);
    int rc = 0;

    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++)
        rc = tt_asset_check(step_path, json_array_get(list, i), NULL);
    return rc;
}
