/* SPDX-License-Identifier: MIT
 *
 * Consolidation: tensors stream, a block of rows at a time, from the shards into files laid out beforehand; the folder
 * is built beside its destination and published by one rename.
 */
#include "checkpoint/consolidate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "checkpoint/cast.h"
#include "checkpoint/commit.h"
#include "checkpoint/digest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/source.h"
#include "checkpoint/steps.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/mem.h"

enum { BLOCK_BYTES = 4 << 20 };
static const int64_t shard_bytes_default = 5000000000;

struct output {
    const struct tt_consolidate *options;
    struct tt_source *source;
    char *parent, *name, *temporary, *aside, *folder;
    int n_files;
    int *file_of; /* per tensor of the manifest; -1: not of the model */
    int64_t total, done;
    int64_t file_bytes;
};

static enum tt_dtype output_dtype(const struct output *out, const struct tt_manifest_tensor *t)
{
    return out->options->has_dtype && tt_cast_known(out->options->dtype, t->dtype) ? out->options->dtype : t->dtype;
}

static int64_t output_bytes(const struct output *out, const struct tt_manifest_tensor *t)
{
    struct tt_box whole = tt_box_whole(t->ndim, t->shape);

    return tt_box_volume(&whole) * tt_dtype_bits(output_dtype(out, t)) / 8;
}

/* Deals the tensors out, in the order of their names, into files of at most the given size (or one tensor). */
static void assign_files(struct output *out)
{
    int64_t most = out->options->max_shard_bytes > 0 ? out->options->max_shard_bytes : shard_bytes_default, used = 0;
    const struct tt_manifest *m = &out->source->manifest;

    out->file_of = tt_calloc((size_t)m->n_tensors, sizeof *out->file_of);
    for (int i = 0; i < m->n_tensors; i++) {
        int64_t bytes = output_bytes(out, &m->tensor[i]);

        out->file_of[i] = -1;
        if (m->tensor[i].group != TT_GROUP_MODEL)
            continue;
        if (out->n_files == 0 || (used > 0 && used + bytes > most)) {
            out->n_files++;
            used = 0;
        }
        out->file_of[i] = out->n_files - 1;
        used += bytes;
        out->total += bytes;
    }
}

static char *file_name(const struct output *out, int file)
{
    return out->n_files == 1 ? tt_strdup("model.safetensors")
                             : tt_format("model-%05d-of-%05d.safetensors", file + 1, out->n_files);
}

/* The digest did not match: the checksums say where the damage is. */
static int fail_digest(struct tt_source *source, const struct tt_manifest_tensor *t)
{
    int rc = 0;

    for (int i = 0; i < t->n_chunks; i++)
        TT_TRY(tt_source_verify_chunk(source, t, &t->chunk[i]));
    rc = tt_fail(TT_EDATA, "'%s': tensor '%s' does not have the digest of the manifest", source->path, t->name);
out:
    return rc;
}

static int write_tensor(struct output *out, const struct tt_manifest_tensor *t, struct tt_durable *file, int64_t at)
{
    struct tt_box one = tt_box_rows(t->ndim, t->shape, 0, 1);
    int64_t width = tt_box_volume(&one), rows = t->ndim ? t->shape[0] : 1;
    int64_t item = (int64_t)tt_dtype_size(t->dtype), row_bytes = width * item;
    int64_t step = row_bytes > 0 && row_bytes < BLOCK_BYTES ? BLOCK_BYTES / row_bytes : 1;
    enum tt_dtype dtype = output_dtype(out, t);
    char *block = tt_calloc((size_t)(step < rows ? step : rows), (size_t)row_bytes), *cast = NULL;
    uint64_t digest = 0;
    int rc = 0;

    if (dtype != t->dtype)
        cast = tt_calloc((size_t)(step < rows ? step : rows), (size_t)width * tt_dtype_size(dtype));
    for (int64_t row = 0; row < rows && width > 0; row += step) {
        int64_t n = (rows - row < step ? rows - row : step) * width, bytes = n * (int64_t)tt_dtype_size(dtype);

        TT_TRY(tt_source_read(out->source, t, row, n / width, t->dtype, block));
        digest += tt_digest_part(t->dtype, block, row * width, n);
        if (cast)
            tt_cast(dtype, cast, t->dtype, block, n);
        TT_TRY(tt_durable_write(file, cast ? cast : block, (size_t)bytes, at));
        at += bytes;
        out->done += bytes;
        tt_progress("consolidating", (double)out->done, (double)out->total);
    }
    if (t->has_digest && digest != t->digest)
        rc = fail_digest(out->source, t);
out:
    tt_free(block);
    tt_free(cast);
    return rc;
}

static struct tt_st_tensor *file_entries(const struct output *out, int file, int *ret_n)
{
    const struct tt_manifest *m = &out->source->manifest;
    struct tt_st_tensor *entry = NULL;
    int n = 0, cap = 0;

    for (int i = 0; i < m->n_tensors; i++) {
        const struct tt_manifest_tensor *t = &m->tensor[i];

        if (out->file_of[i] == file)
            TT_PUSH(entry, n, cap) = (struct tt_st_tensor){
                .name = t->name, .dtype = output_dtype(out, t), .box = tt_box_whole(t->ndim, t->shape), .index = i};
    }
    *ret_n = n;
    return entry;
}

static int write_file(struct output *out, int number)
{
    char *name = file_name(out, number), *path = tt_format("%s/%s", out->folder, name);
    struct tt_durable file = {.fd = -1};
    struct tt_text header = {0};
    struct tt_st_tensor *entry;
    int64_t bytes = 0;
    int n = 0, rc = 0;

    entry = file_entries(out, number, &n);
    TT_TRY(tt_safetensors_layout(entry, n, NULL, false, &header, &bytes));
    TT_TRY(tt_durable_begin(path, bytes, -1, &file));
    TT_TRY(tt_durable_write(&file, header.text, header.size, 0));
    for (int i = 0; i < n; i++)
        TT_TRY(write_tensor(out, &out->source->manifest.tensor[entry[i].index], &file,
                            (int64_t)header.size + entry[i].begin));
    TT_TRY(tt_durable_end(&file));
    out->file_bytes += bytes;
out:
    if (file.fd >= 0)
        tt_durable_cancel(&file);
    tt_text_release(&header);
    tt_free(entry);
    tt_free(name);
    tt_free(path);
    return rc;
}

/* model.safetensors.index.json, which says where each tensor is when there are several files. */
static int write_index(const struct output *out)
{
    const struct tt_manifest *m = &out->source->manifest;
    json_t *map = json_object(), *index;
    char *path = tt_format("%s/model.safetensors.index.json", out->folder), *text;
    int rc;

    for (int i = 0; i < m->n_tensors; i++) {
        char *name = out->file_of[i] < 0 ? NULL : file_name(out, out->file_of[i]);

        if (name)
            (void)json_object_set_new(map, m->tensor[i].name, json_string(name));
        tt_free(name);
    }
    index = json_pack("{s:{s:I},s:o}", "metadata", "total_size", (json_int_t)out->total, "weight_map", map);
    text = json_dumps(index, JSON_INDENT(2));
    rc = tt_durable_put(path, text, strlen(text));
    free(text);
    json_decref(index);
    tt_free(path);
    return rc;
}

static int copy_file(const char *from, const char *to)
{
    char *text = NULL;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_file_read(from, &text, &size));
    TT_TRY(tt_durable_put(to, text, size));
out:
    tt_free(text);
    return rc;
}

static int copy_assets(const struct output *out)
{
    char *assets = tt_format("%s/assets", out->source->path), **names = NULL, *from, *to;
    int n = 0, rc = 0;

    if (out->source->kind == TT_PATH_STEP && tt_path_is_folder(assets))
        TT_TRY(tt_folder_list(assets, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        from = tt_format("%s/%s", assets, names[i]);
        to = tt_format("%s/%s", out->folder, names[i]);
        rc = copy_file(from, to);
        tt_free(from);
        tt_free(to);
    }
out:
    tt_names_free(names, n);
    tt_free(assets);
    return rc;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

/* --force replaces an earlier output, never a folder of something else. */
static int check_destination(const struct output *out)
{
    const char *path = out->options->destination;
    char **names = NULL;
    bool ours = false;
    int n = 0, rc = 0;

    if (!tt_path_exists(path))
        return 0;
    if (!tt_path_is_folder(path))
        return tt_fail(TT_EUSAGE, "'%s' exists and is not a folder", path);
    TT_TRY(tt_folder_list(path, &names, &n));
    if (n && !out->options->force) {
        rc = tt_fail(TT_EUSAGE, "'%s' exists and is not empty\nhelp: --force replaces it", path);
        goto out;
    }
    for (int i = 0; i < n; i++) {
        char *child = tt_format("%s/%s", path, names[i]);
        bool folder = tt_path_is_folder(child);

        tt_free(child);
        ours = ours || ends_with(names[i], ".safetensors");
        if (folder || (i == n - 1 && !ours)) {
            rc = tt_fail(TT_EUSAGE, "'%s' is not the output of an earlier run: --force will not replace it", path);
            goto out;
        }
    }
out:
    tt_names_free(names, n);
    return rc;
}

static void name_output(struct output *out)
{
    char *path = tt_strdup(out->options->destination), *slash;

    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    slash = strrchr(path, '/');
    out->name = tt_strdup(slash ? slash + 1 : path);
    out->parent = slash == path ? tt_strdup("/") : slash ? tt_strndup(path, (size_t)(slash - path)) : tt_strdup(".");
    out->temporary = tt_format(".tmp-%s-%d", out->name, (int)getpid());
    out->aside = tt_format(".old-%s-%d", out->name, (int)getpid());
    out->folder = tt_format("%s/%s", out->parent, out->temporary);
    tt_free(path);
}

static int write_all(struct output *out)
{
    int rc = 0;

    TT_TRY(tt_folder_make(out->parent));
    TT_TRY(tt_commit_check_space(out->parent, out->total + out->total / 100 + ((int64_t)1 << 20)));
    TT_TRY(tt_folder_remove(out->folder));
    TT_TRY(tt_folder_make(out->folder));
    for (int i = 0; i < out->n_files; i++)
        TT_TRY(write_file(out, i));
    if (out->n_files > 1)
        TT_TRY(write_index(out));
    TT_TRY(copy_assets(out));
    TT_TRY(tt_folder_sync(out->folder));
    TT_TRY(tt_commit_publish(out->parent, out->temporary, out->name, out->aside, true, -1));
out:
    return rc;
}

int tt_ckpt_consolidate(const struct tt_consolidate *options, struct tt_consolidated *ret_result)
{
    struct output out = {.options = options};
    enum tt_path_kind kind;
    char *path = NULL, *message;
    int rc = 0;

    TT_TRY(check_destination(&out));
    TT_TRY(tt_path_resolve(options->source, true, &kind, &path));
    TT_TRY(tt_source_open(path, kind, &out.source));
    assign_files(&out);
    if (out.n_files == 0) {
        rc = tt_fail(TT_EDATA, "'%s' holds no model tensors", path);
        goto out;
    }
    name_output(&out);
    if ((rc = write_all(&out)) < 0) {
        message = tt_strdup(tt_error_message());
        (void)!tt_folder_remove(out.folder);
        (void)tt_fail(rc, "%s", message);
        tt_free(message);
        goto out;
    }
    (void)snprintf(ret_result->source, sizeof ret_result->source, "%s", path);
    ret_result->bytes = out.file_bytes;
    ret_result->files = out.n_files;
    ret_result->tensors = tt_manifest_group_size(&out.source->manifest, TT_GROUP_MODEL, NULL);
out:
    tt_source_free(out.source);
    tt_free(out.file_of);
    tt_free(out.parent);
    tt_free(out.name);
    tt_free(out.temporary);
    tt_free(out.aside);
    tt_free(out.folder);
    tt_free(path);
    return rc;
}
