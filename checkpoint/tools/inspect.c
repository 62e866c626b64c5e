/* SPDX-License-Identifier: MIT
 *
 * Describes checkpoints, from their manifests and headers, and on request from every value.
 */
#include <inttypes.h>
#include <math.h>

#include "checkpoint/format/cast.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/read/map.h"
#include "checkpoint/read/source.h"
#include "checkpoint/steps/steps.h"
#include "checkpoint/tools/tools.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/os/file.h"

enum { BLOCK_ELEMENTS = 1 << 20 };

struct sums {
    double min, max, sum, squares;
    int64_t finite, nonfinite;
};

/* Adds the sums of a block to the totals, so that billions of terms lose no significant digits. */
static void add_block(struct sums *s, enum tt_dtype dtype, const void *data, int64_t n)
{
    double sum = 0.0, squares = 0.0;

    for (int64_t i = 0; i < n; i++) {
        double value = tt_cast_value(dtype, data, i);

        if (!isfinite(value)) {
            s->nonfinite++;
            continue;
        }
        s->min = s->finite == 0 || value < s->min ? value : s->min;
        s->max = s->finite == 0 || value > s->max ? value : s->max;
        s->finite++;
        sum += value;
        squares += value * value;
    }
    s->sum += sum;
    s->squares += squares;
}

static int stats_of(struct tt_source *source, const struct tt_manifest_tensor *tensor, double *done, double total,
                    json_t **ret_json)
{
    int64_t width = tt_row_width(tensor->ndim, tensor->shape), rows = tensor->ndim ? tensor->shape[0] : 1;
    int64_t step = width > 0 && width < BLOCK_ELEMENTS ? BLOCK_ELEMENTS / width : 1;
    struct sums s = {0};
    void *block = NULL;
    double n;
    int rc = 0;

    if (!tt_cast_has_value(tensor->dtype)) {
        *ret_json = json_null();
        return 0;
    }
    block = tt_calloc_for((size_t)((step < rows ? step : rows) * width), tt_dtype_size(tensor->dtype), tensor->name);
    TT_TRY(block ? 0 : TT_ENOMEM);
    for (int64_t row = 0; row < rows && width > 0; row += step) {
        int64_t have = rows - row < step ? rows - row : step;

        TT_TRY(tt_source_read_rows(source, tensor, row, have, tensor->dtype, block));
        add_block(&s, tensor->dtype, block, have * width);
        *done += (double)(have * width);
        tt_progress("reading", *done, total);
    }
    n = s.finite ? (double)s.finite : (double)NAN;
    *ret_json = json_pack("{s:o, s:o, s:o, s:o, s:I}", "min", tt_json_number(s.finite ? s.min : n), "max",
                          tt_json_number(s.finite ? s.max : n), "mean", tt_json_number(s.sum / n), "rms",
                          tt_json_number(sqrt(s.squares / n)), "nonfinite", (json_int_t)s.nonfinite);
out:
    tt_free(block);
    return rc;
}

/* A key of the manifest, or null. */
static json_t *meta_value(const struct tt_manifest *manifest, const char *key)
{
    json_t *value = json_object_get(manifest->meta, key);

    return value ? json_incref(value) : json_null();
}

int64_t tt_ckpt_file_bytes(const struct tt_manifest *manifest)
{
    int64_t bytes = 0;

    for (int i = 0; i < manifest->n_files; i++)
        bytes += manifest->file[i].bytes;
    return bytes;
}

void tt_ckpt_set_summary(json_t *json, const struct tt_manifest *manifest)
{
    static const struct {
        const char *key, *meta;
    } row[] = {
        {"tokens", "ntokens_seen"}, {"time", "time"}, {"world", "world"}, {"mesh", "mesh"}, {"policy", "policy"}};

    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        (void)json_object_set_new(json, row[i].key, meta_value(manifest, row[i].meta));
}

/* The box of a tensor in elements; for a tensor packed in blocks, the manifest counts bytes. */
static struct tt_box elements_of(const struct tt_manifest_tensor *t)
{
    struct tt_box box = tt_box_whole(t->ndim, t->shape);

    if (t->packing)
        box.shape[t->ndim - 1] = box.shape[t->ndim - 1] / t->packing->bytes * t->packing->elements;
    return box;
}

json_t *tt_ckpt_inspect_tensor(const struct tt_ckpt_inspection *inspection, int number)
{
    const struct tt_manifest *manifest = &inspection->manifest;
    const struct tt_manifest_tensor *t = &manifest->tensor[number];
    struct tt_box box = elements_of(t);

    return json_pack("{s:s,s:s,s:s,s:o,s:i,s:o?,s:O*}", "name", t->name, "group",
                     manifest->meta ? tt_ckpt_group_name(t->group) : "model", "dtype",
                     t->packing ? t->packing->name : tt_dtype_name(t->dtype), "shape",
                     tt_json_from_sizes(box.shape, t->ndim), "chunks", t->n_chunks, "digest",
                     t->has_digest ? json_sprintf("sum64:%016" PRIx64, t->digest) : NULL, "stats",
                     inspection->stats ? inspection->stats[number] : NULL);
}

void tt_ckpt_inspection_release(struct tt_ckpt_inspection *inspection)
{
    for (int i = 0; inspection->stats && i < inspection->manifest.n_tensors; i++)
        json_decref(inspection->stats[i]);
    tt_free(inspection->stats);
    json_decref(inspection->json);
    tt_manifest_release(&inspection->manifest);
    *inspection = (struct tt_ckpt_inspection){0};
}

/* Reads every tensor. */
static int add_stats(const char *path, enum tt_path_kind kind, struct tt_ckpt_inspection *inspection)
{
    struct tt_source *source = NULL;
    double done = 0.0, total = (double)tt_ckpt_elements(&inspection->manifest, false);
    int rc = 0;

    TT_TRY(tt_source_open(path, kind, &source));
    if (source->manifest.n_tensors != inspection->manifest.n_tensors)
        TT_TRY(tt_fail(TT_EDATA, "'%s' was changed while it was read", path));
    inspection->stats = tt_calloc_for((size_t)source->manifest.n_tensors + 1, sizeof *inspection->stats, path);
    TT_TRY(inspection->stats ? 0 : TT_ENOMEM);
    for (int i = 0; i < source->manifest.n_tensors; i++)
        if (!source->manifest.tensor[i].packing) /* the bytes of blocks have no meaning by themselves */
            TT_TRY(stats_of(source, &source->manifest.tensor[i], &done, total, &inspection->stats[i]));
    tt_progress("reading", total, total);
out:
    tt_source_free(source);
    return rc;
}

static json_t *group_json(const struct tt_manifest *manifest, enum tt_ckpt_group group)
{
    int64_t bytes = 0;
    int n = tt_manifest_group_size(manifest, group, &bytes);

    return json_pack("{s:i,s:I}", "tensors", n, "bytes", (json_int_t)bytes);
}

static int add_assets(const char *path, enum tt_path_kind kind, json_t *json)
{
    char *folder = tt_format("%s/assets", path), **names = NULL;
    json_t *list = json_array();
    int n = 0, rc = 0;

    if (kind == TT_PATH_STEP)
        TT_TRY(tt_folder_list_found(folder, &names, &n));
    for (int i = 0; i < n; i++)
        (void)json_array_append_new(list, tt_json_string(names[i]));
    (void)json_object_set(json, "assets", list);
out:
    json_decref(list);
    tt_names_free(names, n);
    tt_free(folder);
    return rc;
}

int64_t tt_ckpt_elements(const struct tt_manifest *manifest, bool model_only)
{
    int64_t n = 0;

    for (int i = 0; i < manifest->n_tensors; i++) {
        struct tt_box whole = elements_of(&manifest->tensor[i]);

        if (!model_only || manifest->tensor[i].group == TT_CKPT_MODEL)
            n += tt_box_volume(&whole);
    }
    return n;
}

static json_t *files_json(const struct tt_manifest *manifest)
{
    json_t *files = json_array();

    for (int i = 0; i < manifest->n_files; i++)
        (void)json_array_append_new(files, json_pack("{s:s,s:I}", "path", manifest->file[i].path, "bytes",
                                                     (json_int_t)manifest->file[i].bytes));
    return files;
}

/* Adds the Hugging Face folder that the last save of a run may have made: {"files", "bytes"}, or null. */
static int add_export(const char *path, enum tt_path_kind kind, json_t *json)
{
    char *folder = tt_format("%s/hf", path);
    struct tt_manifest manifest = {0};
    bool exported = false;
    int rc = 0;

    (void)json_object_set_new(json, "hf", json_null());
    if (kind == TT_PATH_STEP)
        TT_TRY(tt_path_is_folder(folder, &exported));
    rc = exported ? tt_manifest_scan(folder, &manifest) : 0;
    if (exported && rc == 0)
        (void)json_object_set_new(json, "hf",
                                  json_pack("{s:o, s:I, s:i}", "files", files_json(&manifest), "bytes",
                                            (json_int_t)tt_ckpt_file_bytes(&manifest), "tensors", manifest.n_tensors));
    rc = rc == TT_EDATA ? 0 : rc; /* verify reports a damaged export */
out:
    tt_manifest_release(&manifest);
    tt_free(folder);
    return rc;
}

static int inspect(const char *given, bool stats, struct tt_ckpt_inspection *ret_inspection)
{
    struct tt_ckpt_inspection made = {0};
    struct tt_manifest *manifest = &made.manifest;
    struct tt_step_place place = {0};
    enum tt_path_kind kind;
    char *path = NULL;
    int rc = 0;

    TT_TRY(tt_path_resolve(given, true, &kind, &path, NULL));
    TT_TRY(tt_step_place(path, &place));
    TT_TRY(tt_source_describe(path, kind, manifest, NULL));
    made.json = json_pack("{s:o,s:s,s:o}", "path", tt_json_string(path), "kind",
                          kind == TT_PATH_STEP    ? "step"
                          : kind == TT_PATH_DCP   ? "dcp"
                          : tt_gguf_is_path(path) ? "gguf"
                                                  : "safetensors",
                          "step", meta_value(manifest, "step"));
    tt_ckpt_set_summary(made.json, manifest);
    (void)json_object_update_new(
        made.json,
        json_pack("{s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:n}", "sample_cursor", meta_value(manifest, "sample_cursor"),
                  "run_id", meta_value(manifest, "run_id"), "bytes", (json_int_t)tt_ckpt_file_bytes(manifest),
                  "parameters", (json_int_t)tt_ckpt_elements(manifest, true), "model",
                  group_json(manifest, TT_CKPT_MODEL), "optimizer", group_json(manifest, TT_CKPT_OPTIM), "files",
                  files_json(manifest), "tensors"));
    TT_TRY(add_assets(path, kind, made.json));
    TT_TRY(add_export(path, kind, made.json));
    (void)json_object_set_new(made.json, "meta", manifest->meta ? json_incref(manifest->meta) : json_null());
    if (stats)
        TT_TRY(add_stats(path, kind, &made));
    *ret_inspection = made;
    made = (struct tt_ckpt_inspection){0};
out:
    if (path)
        rc = tt_step_explain(rc, path, &place);
    tt_ckpt_inspection_release(&made);
    tt_free(path);
    return rc;
}

int tt_ckpt_inspect(const char *given, bool stats, struct tt_ckpt_inspection *ret_inspection)
{
    int tries = 0, rc;

    do
        rc = inspect(given, stats, ret_inspection);
    while (tt_step_try_again(rc, given, &tries));
    return rc;
}
