/* SPDX-License-Identifier: MIT
 *
 * Describes checkpoints, from their manifests and headers, and on request from every value.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "checkpoint/format/cast.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/read/map.h"
#include "checkpoint/read/source.h"
#include "checkpoint/read/weights.h"
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

static int64_t n_elements(const struct tt_manifest *manifest, bool model_only)
{
    int64_t n = 0;

    for (int i = 0; i < manifest->n_tensors; i++) {
        struct tt_box whole = elements_of(&manifest->tensor[i]);

        if (!model_only || manifest->tensor[i].group == TT_CKPT_MODEL)
            n += tt_box_volume(&whole);
    }
    return n;
}

/* Reads every tensor. */
static int add_stats(const char *path, enum tt_path_kind kind, struct tt_ckpt_inspection *inspection)
{
    struct tt_source *source = NULL;
    double done = 0.0, total = (double)n_elements(&inspection->manifest, false);
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
                  "parameters", (json_int_t)n_elements(manifest, true), "model", group_json(manifest, TT_CKPT_MODEL),
                  "optimizer", group_json(manifest, TT_CKPT_OPTIM), "files", files_json(manifest), "tensors"));
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

struct side {
    struct tt_source *source;
    struct tt_model *model; /* set when Hugging Face names are mapped to titan's */
    struct tt_weights weights;
    int *order; /* indices of the weights, sorted by name */
};

struct diff {
    struct side side[2];
    double atol;
    json_t *json; /* the result */
    int tensors, by_digest;
    double done, total; /* elements, for progress */
};

static void add(struct diff *d, const char *list, json_t *value)
{
    (void)json_array_append_new(json_object_get(d->json, list), value);
}

static void close_side(struct side *side)
{
    tt_weights_release(&side->weights);
    tt_free(side->order);
    tt_model_free(side->model);
    tt_source_free(side->source);
}

/* --- one tensor --- */

struct found {
    double max_abs;
    int64_t count, first; /* first: the index in the packed tensor; -1: none */
};

/* Equal numbers with different bits (0 and -0, or two NaNs) count as different only if every bit counts. */
static void compare_block(struct found *found, double atol, enum tt_dtype type_a, const void *a, enum tt_dtype type_b,
                          const void *b, int64_t at, int64_t n)
{
    size_t item = tt_dtype_size(type_a);
    bool numbers = tt_cast_has_value(type_a) && tt_cast_has_value(type_b);

    if (type_a == type_b && memcmp(a, b, (size_t)n * item) == 0)
        return;
    for (int64_t i = 0; i < n; i++) {
        double x = numbers ? tt_cast_value(type_a, a, i) : 0.0, y = numbers ? tt_cast_value(type_b, b, i) : 0.0;
        double delta = numbers ? fabs(x - y) : (double)NAN;
        bool differ = !(fabs(x - y) <= fmax(atol, 0.0)) && !(isnan(x) && isnan(y)) && x != y;
        bool bits = (atol < 0.0 || !numbers) && type_a == type_b &&
                    memcmp((const char *)a + (size_t)i * item, (const char *)b + (size_t)i * item, item) != 0;

        if (!bits && !differ)
            continue;
        if (found->count++ == 0)
            found->first = at + i;
        if (delta > found->max_abs || isnan(delta))
            found->max_abs = delta;
    }
}

static int compare_values(struct diff *d, const struct tt_weight *a, const struct tt_weight *b, struct found *found)
{
    int64_t width = tt_row_width(a->ndim, a->shape), rows = a->ndim ? a->shape[0] : 1;
    int64_t step = width > 0 && width < BLOCK_ELEMENTS ? BLOCK_ELEMENTS / width : 1;
    void *x = tt_calloc_for((size_t)((step < rows ? step : rows) * width), tt_dtype_size(a->dtype), a->name);
    void *y = tt_calloc_for((size_t)((step < rows ? step : rows) * width), tt_dtype_size(b->dtype), b->name);
    int rc = x && y ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    for (int64_t row = 0; row < rows && width > 0; row += step) {
        int64_t n = rows - row < step ? rows - row : step;

        TT_TRY(tt_weights_read(&d->side[0].weights, a, row, n, a->dtype, x));
        TT_TRY(tt_weights_read(&d->side[1].weights, b, row, n, b->dtype, y));
        compare_block(found, d->atol, a->dtype, x, b->dtype, y, row * width, n * width);
        d->done += (double)(n * width);
        tt_progress("comparing", d->done, d->total);
    }
out:
    tt_free(x);
    tt_free(y);
    return rc;
}

static json_t *index_json(const struct tt_weight *weight, int64_t at)
{
    json_t *list = json_array();

    for (int dim = weight->ndim - 1; dim >= 0 && at >= 0; dim--) {
        (void)json_array_insert_new(list, 0, json_integer(at % weight->shape[dim]));
        at /= weight->shape[dim];
    }
    return list;
}

static void add_different(struct diff *d, enum tt_ckpt_group group, const struct tt_weight *a, const char *why,
                          const struct found *found)
{
    struct tt_box whole = tt_box_whole(a->ndim, a->shape);
    bool values = found->first >= 0;

    add(d, "different",
        json_pack("{s:s, s:s, s:s, s:o, s:o, s:I, s:o}", "group", tt_ckpt_group_name(group), "name", a->name, "why",
                  why, "max_abs", values ? tt_json_number(found->max_abs) : json_null(), "count",
                  values ? json_integer(found->count) : json_null(), "elements", (json_int_t)tt_box_volume(&whole),
                  "first", values ? index_json(a, found->first) : json_null()));
}

/* The digest of a whole weight, if the manifest has one and the weight is used as stored; else false. */
static bool digest_of(const struct tt_weights *weights, const struct tt_weight *weight, uint64_t *ret_digest)
{
    const struct tt_manifest_tensor *t = &weights->source->manifest.tensor[weight->number];

    if (weights->kind != TT_WEIGHTS_STORED || !t->has_digest)
        return false;
    *ret_digest = t->digest;
    return true;
}

static int compare_tensor(struct diff *d, enum tt_ckpt_group group, const struct tt_weight *a,
                          const struct tt_weight *b)
{
    struct tt_box box_a = tt_box_whole(a->ndim, a->shape), box_b = tt_box_whole(b->ndim, b->shape);
    struct found found = {.first = -1};
    uint64_t digest_a = 0, digest_b = 0;
    int rc = 0;

    d->tensors++;
    if (!tt_box_equal(&box_a, &box_b)) {
        add_different(d, group, a, "shape", &found);
        return 0;
    }
    if (a->dtype == b->dtype && digest_of(&d->side[0].weights, a, &digest_a) &&
        digest_of(&d->side[1].weights, b, &digest_b) && digest_a == digest_b) {
        d->by_digest++;
        return 0;
    }
    if (a->dtype != b->dtype && (!tt_cast_has_value(a->dtype) || !tt_cast_has_value(b->dtype)))
        return tt_fail(TT_EDATA, "tensor '%s': values of type %s and %s cannot be compared", a->name,
                       tt_dtype_name(a->dtype), tt_dtype_name(b->dtype));
    TT_TRY(compare_values(d, a, b, &found));
    if (found.count || (a->dtype != b->dtype && d->atol < 0.0))
        add_different(d, group, a, found.count ? "values" : "dtype", &found);
out:
    return rc;
}

/* --- all of them --- */

static int *sorted(const struct tt_weights *w)
{
    int *order = tt_calloc((size_t)w->n + 1, sizeof *order);

    /* insertion sort: the names are nearly sorted, or few: one for each parameter of a model */
    for (int i = 0; i < w->n; i++) {
        int k = i;

        for (; k > 0 && strcmp(w->weight[order[k - 1]].name, w->weight[i].name) > 0; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
    return order;
}

/* Merges the two lists of names. */
static int compare_weights(struct diff *d, enum tt_ckpt_group group)
{
    const struct tt_weights *a = &d->side[0].weights, *b = &d->side[1].weights;
    int i = 0, k = 0, rc = 0;

    while (i < a->n || k < b->n) {
        const struct tt_weight *x = i < a->n ? &a->weight[d->side[0].order[i]] : NULL;
        const struct tt_weight *y = k < b->n ? &b->weight[d->side[1].order[k]] : NULL;
        int order = !x ? 1 : !y ? -1 : strcmp(x->name, y->name);

        if (order < 0)
            add(d, "only_a", json_sprintf("%s/%s", tt_ckpt_group_name(group), x->name));
        else if (order > 0)
            add(d, "only_b", json_sprintf("%s/%s", tt_ckpt_group_name(group), y->name));
        else
            TT_TRY(compare_tensor(d, group, x, y));
        i += order <= 0;
        k += order >= 0;
    }
out:
    return rc;
}

static void add_note(struct diff *d, const char *key, json_t *a, json_t *b)
{
    if (!json_equal(a, b))
        add(d, "notes", json_pack("{s:s, s:O?, s:O?}", "key", key, "a", a, "b", b));
}

static void note_meta(struct diff *d)
{
    static const char *const keys[] = {"step", "ntokens_seen", "world", "mesh", "policy"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *a = json_object_get(d->side[0].source->manifest.meta, keys[i]);
        json_t *b = json_object_get(d->side[1].source->manifest.meta, keys[i]);

        if (a && b)
            add_note(d, keys[i], a, b);
    }
}

/* Lists the configuration keys that explain different values, or that give equal values another meaning. */
static void compare_configs(struct diff *d)
{
    json_t *config[2], *section, *value;
    const char *name, *key;

    for (int s = 0; s < 2; s++)
        config[s] = json_object_get(d->side[s].source->manifest.meta, "config");
    json_object_foreach(config[0], name, section)
    {
        /* keys that do not change the results of a run */
        if (tt_text_is_one_of(name, "job|metrics|profiling|checkpoint|comm"))
            continue;
        json_object_foreach(section, key, value)
        {
            json_t *other = json_object_get(json_object_get(config[1], name), key);

            if (other && !json_equal(value, other))
                add(d, "config", json_pack("{s:s++, s:O, s:O}", "key", name, ".", key, "a", value, "b", other));
        }
    }
}

static int compare_group(struct diff *d, enum tt_ckpt_group group)
{
    int n[2], rc = 0;

    for (int s = 0; s < 2; s++)
        n[s] = tt_manifest_group_size(&d->side[s].source->manifest, group, NULL);
    if (group != TT_CKPT_MODEL && (n[0] == 0 || n[1] == 0)) {
        json_t *a = json_integer(n[0]), *b = json_integer(n[1]);

        add_note(d, tt_ckpt_group_name(group), a, b);
        json_decref(a);
        json_decref(b);
        return 0;
    }
    for (int s = 0; s < 2; s++) {
        struct side *side = &d->side[s];

        tt_weights_release(&side->weights);
        tt_free(side->order);
        side->order = NULL;
        if (group == TT_CKPT_MODEL && side->model)
            TT_TRY(tt_weights_import(side->source, side->model, TT_EXTRA_NOTED, &side->weights));
        else
            tt_weights_stored(side->source, group, &side->weights);
        side->order = sorted(&side->weights);
    }
    TT_TRY(compare_weights(d, group));
out:
    return rc;
}

/* Two Hugging Face folders are compared under their own names. To compare one with a checkpoint, it is read under
 * titan's names. A GGUF file is always read under titan's names, with its blocks unpacked. */
static int choose_names(struct diff *d)
{
    bool is_hf[2] = {false}, is_gguf[2] = {false};
    int rc = 0;

    for (int s = 0; s < 2; s++) {
        is_gguf[s] = tt_source_is_gguf(d->side[s].source);
        TT_TRY(tt_source_is_hf(d->side[s].source, &is_hf[s]));
    }
    for (int s = 0; s < 2 && rc == 0; s++) {
        char *folder = tt_source_assets(d->side[s].source);

        if (is_gguf[s] || (is_hf[s] && !is_hf[1 - s]))
            rc = tt_model_from_hf(folder, &d->side[s].model);
        tt_free(folder);
    }
out:
    return rc;
}

static int diff(const char *a, const char *b, double atol, json_t **ret_json)
{
    static const char *const lists[] = {"different", "only_a", "only_b"};
    struct diff d = {.atol = atol,
                     .json = json_pack("{s:n, s:n, s:n, s:n, s:n, s:[], s:[], s:[], s:[], s:[]}", "a", "b", "equal",
                                       "tensors", "by_digest", "different", "only_a", "only_b", "notes", "config")};
    bool equal = true;
    int rc = 0;

    TT_TRY(tt_source_find(a, &d.side[0].source));
    TT_TRY(tt_source_find(b, &d.side[1].source));
    for (int s = 0; s < 2; s++)
        TT_TRY(tt_source_check_forms(d.side[s].source, true));
    TT_TRY(choose_names(&d));
    note_meta(&d);
    compare_configs(&d);
    d.total = (double)n_elements(&d.side[0].source->manifest, false);
    for (int group = 0; group < TT_CKPT_GROUPS; group++)
        TT_TRY(compare_group(&d, (enum tt_ckpt_group)group));
    tt_progress("comparing", d.total, d.total);
    for (int i = 0; i < 3; i++)
        equal = equal && json_array_size(json_object_get(d.json, lists[i])) == 0;
    (void)json_object_update_new(d.json,
                                 json_pack("{s:o, s:o, s:b, s:i, s:i}", "a", tt_json_string(d.side[0].source->path),
                                           "b", tt_json_string(d.side[1].source->path), "equal", equal, "tensors",
                                           d.tensors, "by_digest", d.by_digest));
    *ret_json = json_incref(d.json);
out:
    for (int s = 0; s < 2; s++)
        rc = tt_source_explain(rc, d.side[s].source);
    close_side(&d.side[0]);
    close_side(&d.side[1]);
    json_decref(d.json);
    return rc;
}

int tt_ckpt_diff(const char *a, const char *b, double atol, json_t **ret_json)
{
    int tries = 0, rc;

    do
        rc = diff(a, b, atol, ret_json);
    while (tt_step_try_again(rc, a, &tries) && tt_step_try_again(rc, b, &tries));
    return rc;
}
