/* SPDX-License-Identifier: MIT
 *
 * Builds a manifest in memory, finds tensors in it and checks its coverage; describes a folder without a manifest by
 * the headers of its files. manifest_json.c reads and writes the text.
 */
#include "checkpoint/format/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/safetensors.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/keys/key.h"
#include "core/os/file.h"

void tt_manifest_release(struct tt_manifest *manifest)
{
    for (int i = 0; i < manifest->n_files; i++)
        tt_free(manifest->file[i].path);
    for (int i = 0; i < manifest->n_tensors; i++) {
        tt_free(manifest->tensor[i].name);
        tt_free(manifest->tensor[i].chunk);
    }
    tt_free(manifest->file);
    tt_free(manifest->tensor);
    json_decref(manifest->meta);
    *manifest = (struct tt_manifest){0};
}

struct tt_manifest_file *tt_manifest_add_file(struct tt_manifest *manifest, const char *path, int64_t bytes)
{
    TT_PUSH(manifest->file, manifest->n_files, manifest->cap_files) =
        (struct tt_manifest_file){.path = tt_strdup(path), .bytes = bytes};
    return &manifest->file[manifest->n_files - 1];
}

struct tt_manifest_tensor *tt_manifest_add_tensor(struct tt_manifest *manifest, enum tt_ckpt_group group,
                                                  const char *name, enum tt_dtype dtype, int ndim, const int64_t *shape)
{
    struct tt_manifest_tensor tensor = {.name = tt_strdup(name), .group = group, .dtype = dtype, .ndim = ndim};

    for (int d = 0; d < ndim; d++)
        tensor.shape[d] = shape[d];
    TT_PUSH(manifest->tensor, manifest->n_tensors, manifest->cap_tensors) = tensor;
    return &manifest->tensor[manifest->n_tensors - 1];
}

static int compare_tensors(const void *pa, const void *pb)
{
    const struct tt_manifest_tensor *a = pa, *b = pb;

    return a->group != b->group ? (int)a->group - (int)b->group : strcmp(a->name, b->name);
}

void tt_manifest_sort(struct tt_manifest *manifest)
{
    if (manifest->n_tensors)
        qsort(manifest->tensor, (size_t)manifest->n_tensors, sizeof *manifest->tensor, compare_tensors);
}

struct tt_manifest_tensor *tt_manifest_find(const struct tt_manifest *manifest, enum tt_ckpt_group group,
                                            const char *name)
{
    struct tt_manifest_tensor key = {.name = (char *)(uintptr_t)name, .group = group};

    if (!manifest->n_tensors)
        return NULL;
    return bsearch(&key, manifest->tensor, (size_t)manifest->n_tensors, sizeof key, compare_tensors);
}

void tt_manifest_remove(struct tt_manifest *manifest, struct tt_manifest_tensor *tensor)
{
    size_t after = (size_t)(manifest->tensor + manifest->n_tensors - tensor - 1);

    tt_free(tensor->name);
    tt_free(tensor->chunk);
    memmove(tensor, tensor + 1, after * sizeof *tensor);
    manifest->n_tensors--;
}

/* The first average that has not yet taken the place of its weight. */
static struct tt_manifest_tensor *next_average(const struct tt_manifest *manifest)
{
    for (int i = 0; i < manifest->n_tensors; i++)
        if (manifest->tensor[i].group == TT_CKPT_OPTIM && tt_ckpt_is_average(manifest->tensor[i].name))
            return &manifest->tensor[i];
    return NULL;
}

int tt_manifest_use_averages(struct tt_manifest *manifest, const char *where)
{
    static const char first[] = "state.", last[] = ".ema";
    struct tt_manifest_tensor *average = next_average(manifest), *weight;

    if (!average)
        return tt_fail(TT_EDATA,
                       "'%s' has no averages of the weights\n"
                       "help: only runs that keep averages save them (%s); a step with only the weights has none",
                       where, TT_KEY_NAME(ema.decay));
    for (; average; average = next_average(manifest)) {
        size_t size = strlen(average->name) - (sizeof first - 1) - (sizeof last - 1);

        memmove(average->name, average->name + sizeof first - 1, size);
        average->name[size] = 0;
        average->group = TT_CKPT_MODEL;
        average->is_average = true;
        for (weight = manifest->tensor; weight < manifest->tensor + manifest->n_tensors; weight++)
            if (weight != average && weight->group == TT_CKPT_MODEL && strcmp(weight->name, average->name) == 0)
                break;
        if (weight < manifest->tensor + manifest->n_tensors)
            tt_manifest_remove(manifest, weight);
    }
    manifest->has_averages = true;
    tt_manifest_sort(manifest);
    return 0;
}

int tt_manifest_group_size(const struct tt_manifest *manifest, enum tt_ckpt_group group, int64_t *ret_bytes)
{
    int64_t bytes = 0;
    int n = 0;

    for (int i = 0; i < manifest->n_tensors; i++) {
        const struct tt_manifest_tensor *t = &manifest->tensor[i];
        struct tt_box whole = tt_box_whole(t->ndim, t->shape);

        if (t->group != group)
            continue;
        bytes += tt_box_volume(&whole) * tt_dtype_bits(t->dtype) / 8;
        n++;
    }
    if (ret_bytes)
        *ret_bytes = bytes;
    return n;
}

/* The file that holds a chunk with that box; for messages. */
static const char *file_of(const struct tt_manifest *manifest, const struct tt_manifest_tensor *tensor,
                           const struct tt_box *box, bool last)
{
    const char *path = "?";

    for (int i = 0; i < tensor->n_chunks; i++) {
        if (!tt_box_equal(&tensor->chunk[i].box, box))
            continue;
        path = manifest->file[tensor->chunk[i].file].path;
        if (!last)
            break;
    }
    return path;
}

int tt_manifest_check_tensor(const struct tt_manifest *manifest, const struct tt_manifest_tensor *tensor,
                             const char **ret_kind)
{
    struct tt_box *box = tt_calloc_for((size_t)tensor->n_chunks, sizeof *box, tensor->name), a, b;
    char text_a[256], text_b[256];
    const char *kind = NULL;
    int rc = 0;

    if (!box)
        return TT_ENOMEM;
    for (int i = 0; i < tensor->n_chunks; i++)
        box[i] = tensor->chunk[i].box;
    switch (tt_box_cover(tensor->ndim, tensor->shape, box, tensor->n_chunks, &a, &b)) {
    case TT_COVER_EXACT:
        break;
    case TT_COVER_OUTSIDE:
        kind = "manifest";
        rc = tt_fail(TT_EDATA, "tensor '%s': chunk %s in '%s' lies outside of %s", tensor->name,
                     tt_box_text(text_a, sizeof text_a, &a), file_of(manifest, tensor, &a, false),
                     tt_box_text(text_b, sizeof text_b, &b));
        break;
    case TT_COVER_OVERLAP:
        kind = "overlap";
        rc = tt_fail(TT_EDATA, "tensor '%s': chunks overlap: %s in '%s' and %s in '%s'", tensor->name,
                     tt_box_text(text_a, sizeof text_a, &a), file_of(manifest, tensor, &a, false),
                     tt_box_text(text_b, sizeof text_b, &b), file_of(manifest, tensor, &b, true));
        break;
    case TT_COVER_MISSING:
        kind = "uncovered";
        rc = tt_fail(TT_EDATA, "tensor '%s': no file holds %s of %s", tensor->name,
                     tt_box_text(text_a, sizeof text_a, &a), tt_box_text(text_b, sizeof text_b, &b));
        break;
    }
    tt_free(box);
    if (ret_kind && kind)
        *ret_kind = kind;
    return rc;
}

int tt_manifest_check_cover(const struct tt_manifest *manifest)
{
    int rc = 0;

    for (int i = 0; i < manifest->n_tensors; i++)
        TT_TRY(tt_manifest_check_tensor(manifest, &manifest->tensor[i], NULL));
out:
    return rc;
}

struct found {
    struct tt_safetensors file;
    const struct tt_st_tensor *tensor;
    int number;
};

static int compare_found(const void *pa, const void *pb)
{
    const struct found *a = pa, *b = pb;
    int by_name = strcmp(a->tensor->name, b->tensor->name);

    return by_name ? by_name : a->number - b->number;
}

/* Joins the boxes of the same name into one tensor, whose shape is the extent of the boxes, as in PyTorch's reader. */
static int join_chunks(struct tt_manifest *manifest, const struct found *found, int n)
{
    struct tt_manifest_tensor *t = NULL;

    for (int i = 0; i < n; i++) {
        const struct tt_st_tensor *s = found[i].tensor;
        int64_t data_start = found[i].file.data_start;

        if (!t || strcmp(t->name, s->name) != 0)
            t = tt_manifest_add_tensor(manifest, TT_CKPT_MODEL, s->name, s->dtype, s->box.ndim, s->box.shape);
        if (t->dtype != s->dtype || t->ndim != s->box.ndim)
            return tt_fail(TT_EDATA, "tensor '%s' has another dtype or number of dimensions in '%s' than in '%s'",
                           s->name, found[i].file.path, manifest->file[t->chunk[0].file].path);
        for (int d = 0; d < t->ndim; d++)
            if (s->box.offset[d] + s->box.shape[d] > t->shape[d])
                t->shape[d] = s->box.offset[d] + s->box.shape[d];
        if (tt_box_volume(&s->box) > 0 || t->ndim == 0)
            TT_PUSH(t->chunk, t->n_chunks, t->cap_chunks) = (struct tt_manifest_chunk){
                found[i].number, s->box, data_start + s->begin, data_start + s->end, s->crc, s->has_crc, 0};
    }
    for (int i = 0; i < manifest->n_tensors; i++) {
        int64_t volume;

        t = &manifest->tensor[i];
        if (!tt_box_checked_volume(t->shape, t->ndim, &volume) || volume > INT64_MAX / 64)
            return tt_fail(TT_EDATA, "tensor '%s': its chunks extend beyond the largest possible tensor", t->name);
    }
    return 0;
}

static int scan_names(const char *folder, char *const *names, int n_names, struct tt_manifest *manifest)
{
    struct tt_safetensors *file = tt_calloc_for((size_t)n_names, sizeof *file, folder);
    struct found *found = NULL;
    int n_found = 0, cap = 0, n = 0, rc = 0;

    if (!file)
        return TT_ENOMEM;
    for (int i = 0; i < n_names; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);

        rc = tt_safetensors_open(path, &file[n]);
        tt_free(path);
        if (rc < 0)
            goto out;
        (void)tt_manifest_add_file(manifest, names[i], file[n].file_bytes);
        for (int t = 0; t < file[n].n; t++)
            TT_PUSH(found, n_found, cap) = (struct found){file[n], &file[n].tensor[t], n};
        n++;
    }
    if (n_found)
        qsort(found, (size_t)n_found, sizeof *found, compare_found);
    TT_TRY(join_chunks(manifest, found, n_found));
out:
    for (int i = 0; i < n; i++)
        tt_safetensors_release(&file[i]);
    tt_free(file);
    tt_free(found);
    return rc;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lists the files that an index names, without repetition. The caller frees the names, even after an error. */
static int index_names(const char *path, char ***ret_names, int *ret_n)
{
    json_t *index = NULL, *map, *file;
    const char *tensor;
    int n = 0, cap = 0, rc = 0;

    TT_TRY(tt_json_load(path, &index));
    map = json_object_get(index, "weight_map");
    json_object_foreach(map, tensor, file)
    {
        const char *name = json_string_value(file);

        if (!name || !tt_text_ends(name, ".safetensors") || strchr(name, '/'))
            TT_TRY(tt_fail(TT_EDATA, "'%s': tensor '%s' is not mapped to a safetensors file", path, tensor));
        TT_PUSH(*ret_names, n, cap) = tt_strdup(name);
        *ret_n = n;
    }
    if (n)
        qsort(*ret_names, (size_t)n, sizeof **ret_names, compare_texts);
    *ret_n = 0;
    for (int i = 0; i < n; i++) {
        if (*ret_n && strcmp((*ret_names)[*ret_n - 1], (*ret_names)[i]) == 0)
            tt_free((*ret_names)[i]);
        else
            (*ret_names)[(*ret_n)++] = (*ret_names)[i];
    }
out:
    json_decref(index);
    return rc;
}

/* Every tensor of an index must be in the files that were read; for a missing one, transformers would use random
 * values. Only the head may be missing, since a tied model uses its embedding; for an untied model, the reader of the
 * weights fails. */
static int check_index(const char *folder, const struct tt_manifest *manifest)
{
    char *path = tt_format("%s/model.safetensors.index.json", folder);
    json_t *index = NULL, *file;
    const char *tensor;
    int rc = 0;

    TT_TRY(tt_json_load(path, &index));
    json_object_foreach(json_object_get(index, "weight_map"), tensor, file)
    {
        if (tt_manifest_find(manifest, TT_CKPT_MODEL, tensor))
            continue;
        if (strcmp(tensor, "lm_head.weight") == 0)
            tt_note("'%s' names '%s', which no file contains; that is correct if the output is tied to the "
                    "embedding",
                    path, tensor);
        else
            TT_TRY(tt_fail(TT_EDATA,
                           "'%s': tensor '%s' should be in '%s', but no file of the index contains it\n"
                           "help: is one of the files from another download?",
                           path, tensor, json_string_value(file)));
    }
out:
    json_decref(index);
    tt_free(path);
    return rc;
}

/* The weight files of a folder, as Hugging Face loads them: model.safetensors, else the files of the index. A folder
 * without either is sharded, and all its files count. */
static int weight_names(const char *folder, char ***ret_names, int *ret_n, bool *ret_by_index)
{
    char *index = tt_format("%s/model.safetensors.index.json", folder), **names = NULL;
    bool has_single = false;
    int n = 0, cap = 0, rc = 0;

    TT_TRY(tt_path_has(folder, "model.safetensors", &has_single));
    TT_TRY(tt_path_exists(index, ret_by_index));
    *ret_by_index = *ret_by_index && !has_single;
    if (has_single)
        TT_PUSH(*ret_names, *ret_n, cap) = tt_strdup("model.safetensors");
    else if (*ret_by_index)
        TT_TRY(index_names(index, ret_names, ret_n));
    else
        TT_TRY(tt_folder_list(folder, &names, &n));
    for (int i = 0; i < n; i++)
        if (tt_text_ends(names[i], ".safetensors"))
            TT_PUSH(*ret_names, *ret_n, cap) = tt_strdup(names[i]);
    if (*ret_n == 0)
        rc = tt_fail(TT_EDATA, "'%s' holds no .safetensors files", folder);
out:
    tt_names_free(names, n);
    tt_free(index);
    return rc;
}

int tt_manifest_scan(const char *path, struct tt_manifest *ret_manifest)
{
    char **names = NULL, *folder = tt_strdup(path), *slash;
    bool is_folder = false, by_index = false;
    int n = 0, rc = 0;

    *ret_manifest = (struct tt_manifest){0};
    TT_TRY(tt_path_is_folder(path, &is_folder));
    if (is_folder) {
        TT_TRY(weight_names(path, &names, &n, &by_index));
    } else {
        names = tt_calloc(1, sizeof *names);
        if ((slash = strrchr(folder, '/')))
            *slash = 0;
        names[n++] = tt_strdup(slash ? slash + 1 : path);
        if (!slash)
            (void)snprintf(folder, strlen(folder) + 1, ".");
    }
    TT_TRY(scan_names(folder, names, n, ret_manifest));
    TT_TRY(tt_manifest_check_totals(ret_manifest, path));
    tt_manifest_sort(ret_manifest);
    if (by_index)
        TT_TRY(check_index(folder, ret_manifest));
out:
    if (rc < 0)
        tt_manifest_release(ret_manifest);
    tt_names_free(names, n);
    tt_free(folder);
    return rc;
}

int tt_manifest_check_names(const struct tt_manifest *manifest, const char *where)
{
    for (int i = 1; i < manifest->n_tensors; i++)
        if (compare_tensors(&manifest->tensor[i - 1], &manifest->tensor[i]) == 0)
            return tt_fail(TT_EDATA, "'%s': tensor '%s' is described twice", where, manifest->tensor[i].name);
    return 0;
}

int tt_manifest_check_totals(const struct tt_manifest *manifest, const char *where)
{
    int64_t bytes = 0, volume = 0, more = 0;

    for (int i = 0; i < manifest->n_tensors; i++) {
        const struct tt_manifest_tensor *t = &manifest->tensor[i];

        if (!tt_box_checked_volume(t->shape, t->ndim, &volume) || volume > TT_MANIFEST_BYTES_MOST ||
            __builtin_mul_overflow(volume, (int64_t)tt_dtype_bits(t->dtype), &more) ||
            __builtin_add_overflow(bytes, more / 8, &bytes) || bytes > TT_MANIFEST_BYTES_MOST)
            return tt_fail(TT_EDATA,
                           "'%s': the sizes of its tensors, up to '%s', add up to more than any checkpoint has", where,
                           t->name);
    }
    return 0;
}

/* --- assets --- */

static const char assets_prefix[] = "assets/";

static json_t *entry_json(const char *name, const void *bytes, size_t size)
{
    char *path = tt_format("%s%s", assets_prefix, name), crc[16];
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

int tt_manifest_check_size(const char *path, int64_t bytes, const char **ret_kind)
{
    struct tt_path_info info;
    int rc = tt_path_look(path, &info);

    if (rc < 0)
        return rc;
    if (info.kind == TT_FILE_REGULAR || info.kind == TT_FILE_NONE)
        *ret_kind = info.kind == TT_FILE_NONE ? "missing" : info.bytes < bytes ? "truncated" : "trailing";
    if (info.kind == TT_FILE_NONE)
        return tt_fail(TT_EDATA, "missing file '%s'", path);
    if (info.kind != TT_FILE_REGULAR)
        return tt_fail(TT_EDATA, "'%s' is not a regular file", path);
    if (info.bytes < bytes)
        return tt_fail(TT_EDATA, "'%s' is truncated: it has %" PRId64 " bytes, %" PRId64 " expected", path, info.bytes,
                       bytes);
    if (info.bytes > bytes)
        return tt_fail(TT_EDATA, "'%s' has %" PRId64 " bytes too many: it has %" PRId64 ", %" PRId64 " expected", path,
                       info.bytes - bytes, info.bytes, bytes);
    return 0;
}

int tt_asset_check(const char *step_path, const json_t *entry, const char **ret_kind)
{
    const char *relative = json_string_value(json_object_get(entry, "path"));
    const char *wanted = json_string_value(json_object_get(entry, "crc32c")), *unused;
    const char **kind = ret_kind ? ret_kind : &unused;
    size_t n = sizeof assets_prefix - 1, size = 0;
    char *path = NULL, *text = NULL, crc[16];
    int rc = 0;

    *kind = "manifest";
    if (strncmp(relative, assets_prefix, n) != 0 || strchr(relative + n, '/'))
        return tt_fail(TT_EDATA, "'%s': a checkpoint cannot contain the asset '%s'", step_path, relative);
    path = tt_format("%s/%s", step_path, relative);
    *kind = "missing";
    TT_TRY(tt_manifest_check_size(path, (int64_t)json_integer_value(json_object_get(entry, "bytes")), kind));
    TT_TRY(tt_file_read(path, &text, &size));
    *kind = "crc";
    (void)snprintf(crc, sizeof crc, "%08x", tt_crc32c(0, text, size));
    if (strcmp(crc, wanted) != 0)
        rc = tt_fail(TT_EDATA, "'%s' is damaged: it has checksum %s, %s expected", path, crc, wanted);
out:
    tt_free(text);
    tt_free(path);
    return rc;
}

int tt_assets_check(const char *step_path, const struct tt_manifest *manifest)
{
    const json_t *list = json_object_get(manifest->meta, "assets");
    int rc = 0;

    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++)
        rc = tt_asset_check(step_path, json_array_get(list, i), NULL);
    return rc;
}
