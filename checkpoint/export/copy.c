/* SPDX-License-Identifier: MIT
 *
 * Copies weights: opens the sources, checks the destination, and gives the weights and the small files to a sink, which
 * is a row of a table. Whole tensors are streamed, one block of rows at a time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/dcp/metadata.h"
#include "checkpoint/dcp/scan.h"
#include "checkpoint/durable/durable.h"
#include "checkpoint/export/export.h"
#include "checkpoint/export/internal.h"
#include "checkpoint/format/cast.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/gguf.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/read/source.h"
#include "checkpoint/read/weights.h"
#include "checkpoint/save/plan.h"
#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/models/lora.h"
#include "core/models/model_json.h"
#include "core/os/file.h"

/* Streams weights into safetensors files: a plain folder, or a step of one file with its assets and manifest. The
 * header of a file contains the checksums of the data (titan.crc), so that exported files can be verified too. The size
 * of the header does not depend on them, so the data is written first and the header last. */

/* --- one file --- */

struct written {
    int n; /* tensors, in the order of the file */
    struct tt_st_tensor *tensor;
    uint64_t *digest;
    int64_t data_start, bytes;
    uint32_t crc; /* of the whole file */
};

static void written_release(struct written *written)
{
    tt_free(written->tensor);
    tt_free(written->digest);
    *written = (struct written){0};
}

/* A tensor that is being written. */
struct writing {
    struct tt_copying *c;
    struct tt_durable *to;
    struct tt_st_tensor *tensor;
    uint64_t *digest;
    int64_t at; /* the position of its next rows */
    int64_t width;
};

static int put_rows(void *arg, const void *rows, int64_t first, int64_t n)
{
    struct writing *w = arg;
    int64_t bytes = n * w->width * (int64_t)tt_dtype_size(w->tensor->dtype);
    int rc = 0;

    w->tensor->crc = tt_crc32c(w->tensor->crc, rows, (size_t)bytes);
    *w->digest += tt_digest_part(w->tensor->dtype, rows, first * w->width, n * w->width);
    TT_TRY(tt_durable_write(w->to, rows, (size_t)bytes, w->at));
    w->at += bytes;
    tt_copying_advance(w->c, bytes);
out:
    return rc;
}

static struct tt_st_tensor *entries_of(const struct tt_copying *c, int number, int *ret_n)
{
    struct tt_st_tensor *entry = NULL;
    int n = 0, cap = 0;

    for (int i = 0; i < c->weights->n; i++) {
        const struct tt_weight *w = &c->weights->weight[i];

        if (c->of_file[i] == number)
            TT_PUSH(entry, n, cap) = (struct tt_st_tensor){.name = (char *)(uintptr_t)w->name,
                                                           .dtype = c->dtype[i],
                                                           .box = tt_box_whole(w->ndim, w->shape),
                                                           .has_crc = true,
                                                           .index = i};
    }
    *ret_n = n;
    return entry;
}

/* Writes file `number` to path, durably. extra: the metadata of a shard; NULL: the file is not a shard. */
static int write_file(struct tt_copying *c, int number, const char *path, const json_t *extra,
                      struct written *ret_written)
{
    struct written file = {0};
    struct tt_durable to = {.fd = -1};
    struct tt_text header = {0}, again = {0};
    int rc = 0;

    file.tensor = entries_of(c, number, &file.n);
    file.digest = tt_calloc((size_t)file.n + 1, sizeof *file.digest);
    TT_TRY(tt_safetensors_layout(file.tensor, file.n, extra, extra != NULL, &header, &file.bytes));
    file.data_start = (int64_t)header.size;
    TT_TRY(tt_durable_begin(path, file.bytes, -1, &to));
    for (int i = 0; i < file.n; i++) {
        const struct tt_weight *weight = &c->weights->weight[file.tensor[i].index];
        struct writing w = {.c = c,
                            .to = &to,
                            .tensor = &file.tensor[i],
                            .digest = &file.digest[i],
                            .at = file.data_start + file.tensor[i].begin,
                            .width = tt_box_row_elements(&file.tensor[i].box)};

        TT_TRY(tt_weights_stream(c->weights, weight, 0, weight->ndim ? weight->shape[0] : 1, file.tensor[i].dtype,
                                 put_rows, &w));
    }
    TT_TRY(tt_safetensors_layout(file.tensor, file.n, extra, extra != NULL, &again, &file.bytes));
    TT_TRY(tt_durable_write(&to, again.text, again.size, 0));
    TT_TRY(tt_durable_end(&to));
    file.crc = tt_crc32c(0, again.text, again.size);
    for (int i = 0; i < file.n; i++)
        file.crc =
            tt_crc32c_combine(file.crc, file.tensor[i].crc, (uint64_t)(file.tensor[i].end - file.tensor[i].begin));
    c->bytes += file.bytes;
    *ret_written = file;
    file = (struct written){0};
out:
    tt_durable_cancel(&to);
    tt_text_release(&header);
    tt_text_release(&again);
    written_release(&file);
    return rc;
}

/* --- a plain folder --- */

static char *file_name(const struct tt_copying *c, int file)
{
    if (c->format == TT_FORMAT_PEFT)
        return tt_strdup("adapter_model.safetensors"); /* the only name that PEFT reads */
    return c->n_files == 1 ? tt_strdup("model.safetensors")
                           : tt_format("model-%05d-of-%05d.safetensors", file + 1, c->n_files);
}

/* Writes model.safetensors.index.json, which names the file of each tensor, if there are several files. */
static int write_index(const struct tt_copying *c)
{
    json_t *map = json_object(), *index;
    char *text;
    int rc;

    for (int i = 0; i < c->weights->n; i++) {
        char *name = file_name(c, c->of_file[i]);

        (void)json_object_set_new(map, c->weights->weight[i].name, json_string(name));
        tt_free(name);
    }
    index = json_pack("{s:{s:I},s:o}", "metadata", "total_size", (json_int_t)c->total, "weight_map", map);
    text = json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS);
    rc = tt_durable_put(c->output.folder, "model.safetensors.index.json", text, strlen(text));
    free(text);
    json_decref(index);
    return rc;
}

/* Writes model.safetensors, or several files with an index. */
static int copy_to_safetensors(struct tt_copying *c)
{
    int rc = 0;

    for (int i = 0; i < c->n_files && rc == 0; i++) {
        char *name = file_name(c, i), *path = tt_format("%s/%s", c->output.folder, name);
        struct written written = {0};

        rc = write_file(c, i, path, NULL, &written);
        written_release(&written);
        tt_free(name);
        tt_free(path);
    }
    if (rc == 0 && c->n_files > 1)
        rc = write_index(c);
    return rc;
}

/* --- a step --- */

static json_t *describe(const struct tt_copying *c)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:f, s:i, s:{s:i, s:i, s:i, s:i, s:i}, s:o, s:s, s:{}}",
                     "step", 0, "tokens", 0, "ntokens_seen", 0, "sample_cursor", 0, "world", 1, "policy", "all",
                     "run_id", "convert", "time", tt_clock_wall_sec(), "optimizer_step", 0, "mesh", "pp", 1,
                     "dp_replicate", 1, "dp_shard", 1, "cp", 1, "tp", 1, "model",
                     json_sprintf("%s/%s", c->model[0]->row->name, c->model[0]->flavor), "converted_from",
                     c->source[0]->path, "config");
}

static int write_manifest(const struct tt_copying *c, const char *shard, const struct written *w)
{
    struct tt_manifest manifest = {.meta = describe(c)};
    struct tt_manifest_file *file = tt_manifest_add_file(&manifest, shard, w->bytes);
    json_t *assets = NULL;
    char *text = NULL;
    int rc = 0;

    TT_TRY(tt_assets_scan(c->output.folder, &assets));
    (void)json_object_set(manifest.meta, "assets", assets);
    file->has_crc = true;
    file->crc = w->crc;
    for (int i = 0; i < w->n; i++) {
        const struct tt_st_tensor *s = &w->tensor[i];
        struct tt_manifest_tensor *t =
            tt_manifest_add_tensor(&manifest, TT_CKPT_MODEL, s->name, s->dtype, s->box.ndim, s->box.shape);

        t->digest = w->digest[i];
        t->has_digest = true;
        TT_PUSH(t->chunk, t->n_chunks, t->cap_chunks) =
            (struct tt_manifest_chunk){0, s->box, w->data_start + s->begin, w->data_start + s->end, s->crc, true, 0};
    }
    tt_manifest_sort(&manifest);
    text = tt_manifest_text(&manifest);
    rc = tt_durable_put(c->output.folder, "manifest.json", text, strlen(text));
out:
    json_decref(assets);
    tt_free(text);
    tt_manifest_release(&manifest);
    return rc;
}

/* Writes a step with its assets and manifest. */
static int copy_to_step(struct tt_copying *c)
{
    char *shard = tt_ckpt_shard_path(TT_CKPT_MODEL, 0), *path = tt_format("%s/%s", c->output.folder, shard);
    char *model = tt_format("%s/model", c->output.folder), *assets = tt_format("%s/assets", c->output.folder);
    json_t *extra = json_pack("{s:s, s:s, s:s}", "titan.version", "1", "titan.step", "0", "titan.rank", "0");
    struct written written = {0};
    int rc = 0;

    TT_TRY(tt_folder_make(model));
    TT_TRY(tt_folder_make(assets));
    TT_TRY(write_file(c, 0, path, extra, &written));
    TT_TRY(tt_hf_folder_keep(c, "assets/"));
    TT_TRY(write_manifest(c, shard, &written));
out:
    written_release(&written);
    json_decref(extra);
    tt_free(shard);
    tt_free(path);
    tt_free(model);
    tt_free(assets);
    return rc;
}

static const int64_t shard_bytes_default = 5000000000;

/* --- the place --- */

/* Whether an object in JSON has a member of that name. A manifest may be large, so it is not parsed into a tree. */
static int find_member(struct tt_json_reader *reader, const char *name, bool *ret_found)
{
    struct tt_json_span key;
    bool more;
    int rc = 0;

    if (tt_json_peek(reader) != '{')
        return 0;
    TT_TRY(tt_json_open(reader));
    while ((rc = tt_json_next(reader, &more)) == 0 && more) {
        TT_TRY(tt_json_key(reader, &key));
        *ret_found = *ret_found || (key.size == strlen(name) && memcmp(key.text, name, key.size) == 0);
        TT_TRY(tt_json_skip(reader));
    }
    TT_TRY(rc);
    rc = tt_json_finish(reader);
out:
    return rc;
}

/* Whether the step came from a conversion, according to its manifest. A step from training is never replaced. */
static int is_converted(const char *path, bool *ret_own)
{
    char *manifest = tt_format("%s/manifest.json", path), *text = NULL;
    struct tt_json_reader reader = {0};
    bool exists = false, found = false;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_path_exists(manifest, &exists));
    if (!exists)
        goto out;
    TT_TRY(tt_file_read(manifest, &text, &size));
    tt_json_reader_init(&reader, text, size, manifest);
    TT_TRY(find_member(&reader, "converted_from", &found));
    *ret_own = found;
out:
    tt_json_reader_release(&reader);
    tt_free(text);
    tt_free(manifest);
    return rc;
}

/* Whether an export writes this file beside the weights; any other file there comes from the user. */
static bool is_companion(const char *name)
{
    return tt_text_ends(name, ".json") || tt_text_ends(name, ".jinja") || strcmp(name, "merges.txt") == 0 ||
           strcmp(name, "tokenizer.model") == 0;
}

/* Whether titan wrote the weights: if so, their files have checksums of the tensors in their metadata. */
static int is_weights(const char *path, char *const *names, int n, bool *ret_own)
{
    bool any = false, fine = true;
    int rc = 0;

    for (int i = 0; i < n && fine && rc == 0; i++) {
        bool weights = tt_text_ends(names[i], ".safetensors");
        char *child = tt_format("%s/%s", path, names[i]);
        struct tt_safetensors file = {.fd = -1};
        struct tt_path_info info = {0};

        rc = tt_path_look(child, &info);
        fine = info.kind != TT_FILE_FOLDER && (weights || is_companion(names[i]));
        if (rc == 0 && fine && weights) {
            rc = tt_safetensors_open(child, &file);
            fine = rc == 0 && tt_safetensors_metadata(&file, "titan.crc");
        }
        tt_safetensors_release(&file);
        tt_free(child);
        any = any || weights;
    }
    *ret_own = any && fine;
    return rc;
}

/* Whether titan wrote the folder for PyTorch, according to its metadata. */
static int is_torch(const char *path, char *const *names, int n, bool *ret_own)
{
    char *metadata = tt_format("%s/" TT_DCP_METADATA, path), *bytes = NULL;
    struct tt_dcp_metadata found = {0};
    bool exists = false, fine = true;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_path_exists(metadata, &exists));
    for (int i = 0; i < n && exists && fine; i++)
        fine = strcmp(names[i], TT_DCP_METADATA) == 0 || is_companion(names[i]) || tt_text_ends(names[i], ".distcp");
    if (!exists || !fine)
        goto out;
    TT_TRY(tt_file_read(metadata, &bytes, &size));
    TT_TRY(tt_dcp_metadata_parse(metadata, bytes, size, &found));
    *ret_own = found.by_titan;
out:
    tt_dcp_metadata_release(&found);
    tt_free(bytes);
    tt_free(metadata);
    return rc;
}

/*
 * Checks that the output folder may be made: it does not exist, is empty or, with force, is an earlier output that may
 * be replaced (a flat folder of titan's safetensors with the files that belong to them, a converted step, or a folder
 * that titan wrote for PyTorch). Anything else, including a downloaded folder, is TT_EUSAGE.
 */
static int check_output(const char *path, bool force)
{
    struct tt_path_info info;
    char **names = NULL;
    bool own = false;
    int n = 0, rc = 0;

    TT_TRY(tt_path_look(path, &info));
    if (info.kind == TT_FILE_NONE)
        return 0;
    if (info.kind != TT_FILE_FOLDER)
        return tt_fail(TT_EUSAGE, "'%s' exists and is not a folder", path);
    TT_TRY(tt_folder_list(path, &names, &n));
    /* Nothing shows whether titan wrote damaged files. */
    if ((rc = is_weights(path, names, n, &own)) == TT_EDATA || (rc == 0 && !own))
        rc = is_converted(path, &own);
    if (rc == TT_EDATA || (rc == 0 && !own))
        rc = is_torch(path, names, n, &own);
    TT_TRY(rc == TT_EDATA ? 0 : rc);
    if (n && !force)
        rc = tt_fail(TT_EUSAGE, "'%s' exists and is not empty\nhelp: %s", path,
                     own ? "--force replaces it" : "choose another folder");
    else if (n && !own)
        rc = tt_fail(TT_EUSAGE, "'%s' is not the output of an earlier run: --force will not replace it", path);
out:
    tt_names_free(names, n);
    return rc;
}

/* --- the sources --- */

/* Opens the weights under titan's names, which are torchtitan's. If the model is not known, it stays NULL. */
static int open_dcp(struct tt_copying *c, int k)
{
    struct tt_source *source = c->source[k];
    char *assets = tt_source_assets(source), *path = tt_format("%s/model.json", assets);
    bool is_hf = false, has_model = false;
    int rc = 0;

    TT_TRY(tt_source_is_hf(source, &is_hf));
    TT_TRY(is_hf ? 0 : tt_path_exists(path, &has_model));
    if (is_hf)
        TT_TRY(tt_model_from_hf(assets, &c->model[k]));
    else if (has_model)
        TT_TRY(tt_model_json_load(path, &c->model[k]));
    if (is_hf)
        rc = tt_weights_import(source, c->model[k], TT_EXTRA_REFUSED, &c->of[k]);
    else if (has_model && c->model[k]->dims.lora.rank) /* torchtitan would ignore the adapters */
        rc = tt_fail(TT_EDATA,
                     "'%s' has low-rank adapters, which torchtitan does not read\n"
                     "help: titan ckpt consolidate --format hf merges them into the weights; convert its result",
                     source->path);
    else
        tt_weights_stored(source, TT_CKPT_MODEL, &c->of[k]);
out:
    tt_free(path);
    tt_free(assets);
    return rc;
}

/* Opens the weights of a Hugging Face folder, a GGUF file or a PyTorch folder, under titan's names. */
static int open_foreign(struct tt_copying *c, int k)
{
    const struct tt_told *told = &c->copy->told;
    struct tt_source *source = c->source[k];
    char *assets = tt_source_assets(source);
    int rc = 0;

    if (source->kind == TT_PATH_DCP)
        rc = tt_source_model(source, told, &c->model[k]);
    else if (told->model || told->assets)
        rc = tt_fail(TT_EUSAGE, "'%s' already names its model\nhelp: leave out --%s", source->path,
                     told->assets ? "assets" : "model");
    else
        rc = tt_model_from_hf(assets, &c->model[k]);
    if (rc == 0)
        rc = tt_weights_import(source, c->model[k], TT_EXTRA_REFUSED, &c->of[k]);
    tt_free(assets);
    return rc;
}

static int open_stored(struct tt_copying *c, int k)
{
    tt_weights_stored(c->source[k], TT_CKPT_MODEL, &c->of[k]);
    return 0;
}

static int open_mapped(struct tt_copying *c, int k)
{
    int rc = tt_source_model(c->source[k], &c->copy->told, &c->model[k]);

    if (rc < 0)
        return rc;
    return c->format == TT_FORMAT_GGUF
               ? tt_weights_to_gguf(c->source[k], c->model[k], &c->of[k])
               : tt_weights_to_hf(c->source[k], c->model[k], c->format == TT_FORMAT_PEFT, &c->of[k]);
}

/* --- the small files --- */

/* Accepts all names, for the assets of a step. Other folders may hold arbitrary files, so only known names are copied
 * from them. */
static bool any_name(const char *name)
{
    (void)name;
    return true;
}

static const char *const run_keys[] = {"base", "config", "data", "step", "ntokens_seen", "run_id"};

/* The text of the file, which the caller frees; NULL: the manifest's meta does not know the run. */
static char *run_file_text(const json_t *meta)
{
    json_t *kept = json_object();
    char *text = NULL;

    for (size_t i = 0; i < sizeof run_keys / sizeof *run_keys; i++)
        if (json_object_get(meta, run_keys[i]))
            (void)json_object_set(kept, run_keys[i], json_object_get(meta, run_keys[i]));
    if (json_object_size(json_object_get(kept, "config")) > 0) /* empty for a conversion */
        text = tt_json_text(kept);
    json_decref(kept);
    return text;
}

/*
 * Writes the assets or, in a folder for PyTorch, a description of the model if the source has no assets. Beside
 * consolidated weights, also writes what is known about their run.
 */
static int put_assets(struct tt_copying *c)
{
    char *assets = tt_source_assets(c->source[0]);
    char *run = c->format == TT_FORMAT_TITAN ? run_file_text(c->source[0]->manifest.meta) : NULL;
    int rc = 0;

    if (c->source[0]->kind == TT_PATH_STEP)
        rc = tt_output_copy(&c->output, assets, any_name);
    else if (c->format == TT_FORMAT_DCP && c->model[0])
        rc = tt_hf_folder_keep(c, "");
    if (rc == 0 && run)
        rc = tt_durable_put(c->output.folder, TT_RUN_FILE, run, strlen(run));
    tt_free(assets);
    tt_free(run);
    return rc;
}

/* --- the sinks --- */

static const struct sink {
    int (*open)(struct tt_copying *c, int k); /* opens the weights of source k, and its model */
    int (*write)(struct tt_copying *c);       /* writes them into the folder, or into the single file */
    int (*put_texts)(struct tt_copying *c);   /* writes the small files of the folder; NULL: `write` does this too */
    bool is_told;                             /* whether the user may name the source's model */
    bool one_file;                            /* whether the output is a single file of any size */
} sinks[TT_FORMATS] = {
    [TT_FORMAT_TITAN] = {open_stored, copy_to_safetensors, put_assets, false, false},
    [TT_FORMAT_HF] = {open_mapped, copy_to_safetensors, tt_hf_folder_finish, true, false},
    [TT_FORMAT_PEFT] = {open_mapped, copy_to_safetensors, tt_hf_adapter_config, true, true},
    [TT_FORMAT_DCP] = {open_dcp, tt_copying_to_dcp, put_assets, false, false},
    [TT_FORMAT_GGUF] = {open_mapped, tt_copying_to_gguf, NULL, true, true},
    [TT_FORMAT_STEP] = {open_foreign, copy_to_step, NULL, true, true},
};

void tt_copying_advance(struct tt_copying *c, int64_t bytes)
{
    c->done += bytes;
    tt_progress(c->what, (double)c->done, (double)c->total);
}

/* Whether the options choose a weight. */
static bool is_chosen(const struct tt_copying *c, const struct tt_weight *w)
{
    const struct tt_model *of = c->copy->of;
    const char *name =
        c->format == TT_FORMAT_HF ? c->model[0]->params[c->weights->hf[w->number].param[0]].name : w->name;

    for (int p = 0; p < of->n_params; p++)
        if (strcmp(of->params[p].name, name) == 0)
            return c->copy->only[p];
    return true;
}

static void keep_chosen(struct tt_copying *c)
{
    int kept = 0;

    for (int i = 0; i < c->weights->n; i++)
        if (is_chosen(c, &c->weights->weight[i]))
            c->weights->weight[kept++] = c->weights->weight[i];
    c->weights->n = kept;
}

/* Assigns the tensors, in order, to files of at most the given size; a larger tensor has a file of its own. */
static void assign_files(struct tt_copying *c)
{
    int64_t most = c->copy->max_shard_bytes > 0 ? c->copy->max_shard_bytes : shard_bytes_default, used = 0;

    if (c->copy->only)
        keep_chosen(c);
    if (c->copy->suffix)
        c->names = tt_calloc((size_t)c->weights->n + 1, sizeof *c->names);
    for (int i = 0; c->names && i < c->weights->n; i++)
        c->weights->weight[i].name = c->names[i] = tt_format("%s%s", c->weights->weight[i].name, c->copy->suffix);
    c->dtype = tt_calloc((size_t)c->weights->n, sizeof *c->dtype);
    c->of_file = tt_calloc((size_t)c->weights->n, sizeof *c->of_file);
    c->what = c->n > 1                      ? "averaging"
              : c->format == TT_FORMAT_STEP ? "converting"
              : c->model[0]                 ? "exporting"
                                            : "consolidating";
    for (int i = 0; i < c->weights->n; i++) {
        const struct tt_weight *w = &c->weights->weight[i];
        struct tt_box whole = tt_box_whole(w->ndim, w->shape);
        bool casts = c->copy->has_dtype && !w->keeps_dtype && tt_cast_known(c->copy->dtype, w->dtype);
        int64_t bytes;

        c->dtype[i] = casts ? c->copy->dtype : w->dtype;
        bytes = tt_box_volume(&whole) * tt_dtype_bits(c->dtype[i]) / 8;
        if (c->n_files == 0 || (!sinks[c->format].one_file && used > 0 && used + bytes > most)) {
            c->n_files++;
            used = 0;
        }
        c->of_file[i] = c->n_files - 1;
        used += bytes;
        c->total += bytes;
    }
}

static int write_folder(struct tt_copying *c)
{
    int64_t state_bytes = 0;
    int rc = 0;

    if (c->format == TT_FORMAT_DCP && c->copy->with_state)
        (void)tt_manifest_group_size(&c->source[0]->manifest, TT_CKPT_OPTIM, &state_bytes);
    c->total += state_bytes;
    TT_TRY(tt_output_begin(c->copy->destination, c->total, &c->output));
    TT_TRY(sinks[c->format].write(c));
    TT_TRY(tt_weights_check(c->weights));
    if (sinks[c->format].put_texts)
        TT_TRY(sinks[c->format].put_texts(c));
    TT_TRY(tt_output_publish(&c->output));
out:
    return rc;
}

/* Prints a note about tensors of a PyTorch folder that belong neither to the model nor to its optimizer. */
static void note_beside(const struct tt_source *source)
{
    const json_t *keys = json_object_get(json_object_get(source->manifest.meta, "torch"), "beside");

    if (source->kind == TT_PATH_DCP && json_array_size(keys) > 0)
        tt_note("%zu tensors of '%s' are neither the model's nor its optimizer's, and are left out, for instance '%s'",
                json_array_size(keys), source->path, json_string_value(json_array_get(keys, 0)));
}

static int open_weights(struct tt_copying *c, int k)
{
    const struct tt_told *told = &c->copy->told;
    struct tt_source *source = c->source[k];
    int rc = 0;

    /* its tensors may be packed in blocks, which no other format can store */
    if (tt_source_is_gguf(source) && c->format != TT_FORMAT_STEP)
        return tt_fail(TT_EUSAGE,
                       "'%s' is already a GGUF file\nhelp: titan ckpt convert makes a titan checkpoint of it",
                       source->path);
    TT_TRY(tt_assets_check(source->path, &source->manifest)); /* since they are copied too */
    note_beside(source);
    TT_TRY(tt_source_check_forms(source, c->copy->with_state));
    if (c->copy->averages)
        TT_TRY(tt_manifest_use_averages(&source->manifest, source->path));
    if (!sinks[c->format].is_told && (told->model || told->assets))
        TT_TRY(tt_fail(TT_EUSAGE,
                       "--%s is only for exports that need a model, and this format needs none\n"
                       "help: add --format hf, or use titan ckpt convert",
                       told->assets ? "assets" : "model"));
    if (c->copy->base && c->format != TT_FORMAT_HF && c->format != TT_FORMAT_GGUF)
        TT_TRY(tt_fail(TT_EUSAGE,
                       "this format has no weights of --base\nhelp: add --format hf or gguf, which merge the "
                       "adapters into them, or leave out --base"));
    source->base = c->copy->base;
    TT_TRY(sinks[c->format].open(c, k));
    if (c->of[k].n == 0)
        rc = tt_fail(TT_EDATA, "'%s' has no model tensors", source->path);
out:
    return rc;
}

/* Whether a tensor has the name of a matrix of an adapter, titan's or PEFT's. */
static bool is_adapter_name(const char *name)
{
    static const char *const ends[] = {".lora_a.weight", ".lora_b.weight", ".lora_A.weight",
                                       ".lora_B.weight", ".lora_m.weight", ".lora_magnitude_vector"};
    size_t size = strlen(name);

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t n = strlen(ends[i]);

        if (size > n && strcmp(name + size - n, ends[i]) == 0)
            return true;
    }
    return false;
}

/* The mean is that of the merged weights, as --format hf and gguf write them. */
static int check_adapters(const struct tt_copying *c)
{
    for (int k = 0; k < c->n && c->format != TT_FORMAT_HF && c->format != TT_FORMAT_GGUF; k++) {
        const struct tt_weights *of = &c->of[k];

        for (int i = 0; i < of->n; i++)
            if (is_adapter_name(of->weight[i].name))
                return tt_fail(TT_EDATA,
                               "'%s' has low-rank adapters, for instance '%s': averaging the two matrices of an "
                               "adapter would not average their product\n"
                               "help: add --format hf, which merges the adapters into the weights first",
                               c->source[k]->path, of->weight[i].name);
    }
    return 0;
}

static int open_all(struct tt_copying *c)
{
    int rc = 0;

    for (int k = 0; k < c->n; k++) {
        if (!c->source[k])
            TT_TRY(tt_source_find(k ? c->copy->more[k - 1] : c->copy->source, &c->source[k]));
        c->source[k]->leave_out = &c->copy->leave_out;
        TT_TRY(tt_output_check_apart(c->copy->destination, c->source[k]->path));
        TT_TRY(open_weights(c, k));
        c->share[k] = c->copy->share ? c->copy->share[k] : 1.0;
    }
    c->weights = &c->of[0];
    if (c->n > 1) {
        TT_TRY(check_adapters(c));
        TT_TRY(tt_weights_mean(c->of, c->share, c->n, &c->mean));
        c->weights = &c->mean;
    }
out:
    return rc;
}

/* Sets the format of a conversion. It depends on the source, so this opens the source. */
static int choose_format(struct tt_copying *c)
{
    bool is_hf = false;
    int rc = 0;

    TT_TRY(tt_source_find(c->copy->source, &c->source[0]));
    TT_TRY(tt_source_is_hf(c->source[0], &is_hf));
    if (c->copy->leave_out.n && !is_hf)
        rc =
            tt_fail(TT_EUSAGE, "--leave-out is only for Hugging Face folders, and '%s' is not one", c->source[0]->path);
    else if (c->format != TT_FORMAT_DCP)
        c->format = is_hf || tt_source_is_gguf(c->source[0]) || c->source[0]->kind == TT_PATH_DCP ? TT_FORMAT_STEP
                                                                                                  : TT_FORMAT_HF;
out:
    return rc;
}

static void release(struct tt_copying *c)
{
    tt_output_abandon(&c->output); /* has no effect after the output was published */
    for (int i = 0; c->names && i < c->weights->n; i++)
        tt_free(c->names[i]);
    tt_free(c->names);
    tt_weights_release(&c->mean);
    for (int k = 0; k < c->n; k++) {
        tt_weights_release(&c->of[k]);
        tt_model_free(c->model[k]);
        tt_source_free(c->source[k]);
    }
    tt_free(c->of);
    tt_free(c->model);
    tt_free(c->source);
    tt_free(c->share);
    tt_free(c->dtype);
    tt_free(c->of_file);
}

/* Whether titan wrote the file; false for a damaged one. If another program changed a file that titan wrote, the
 * checksums do not match. */
static int is_own(const char *path, bool *ret_own)
{
    const struct tt_gguf_value *crc = NULL;
    struct tt_gguf file = {0};
    int rc = tt_gguf_open(path, &file);

    if (rc == 0)
        rc = tt_gguf_checksums(&file, &crc);
    *ret_own = rc == 0 && crc && tt_gguf_find(&file, "titan.model");
    tt_gguf_release(&file);
    return rc == TT_EDATA ? 0 : rc;
}

/* Checks that a GGUF file may be made: its name must end in .gguf, and it must not exist or, with `force`, be a file
 * that titan wrote. Errors: TT_EUSAGE. */
static int check_gguf_output(const char *path, bool force)
{
    struct tt_path_info info;
    bool own = false;
    int rc = 0;

    TT_TRY(tt_path_look(path, &info));
    if (info.kind == TT_FILE_FOLDER || !tt_gguf_is_path(path)) {
        bool folder = info.kind == TT_FILE_FOLDER;

        rc = tt_fail(TT_EUSAGE, "--format gguf writes one file, and '%s' %s\nhelp: name the file, such as %s%s", path,
                     folder ? "is a folder" : "does not end in .gguf", path,
                     !folder                   ? ".gguf"
                     : tt_text_ends(path, "/") ? "model.gguf"
                                               : "/model.gguf");
        goto out;
    }
    if (info.kind == TT_FILE_NONE)
        goto out;
    if (info.kind == TT_FILE_REGULAR)
        TT_TRY(is_own(path, &own));
    if (!force)
        rc = tt_fail(TT_EUSAGE, "'%s' exists\nhelp: %s", path, own ? "--force replaces it" : "choose another name");
    else if (!own)
        rc = tt_fail(TT_EUSAGE, "'%s' is not a GGUF file of titan's: --force will not replace it", path);
out:
    return rc;
}

static int copy(const struct tt_copy *copy, struct tt_copied *ret_copied)
{
    size_t n = 1 + (size_t)copy->n_more;
    struct tt_copying c = {.copy = copy,
                           .format = copy->format,
                           .output.lock_fd = -1,
                           .n = (int)n,
                           .source = tt_calloc(n, sizeof(struct tt_source *)),
                           .of = tt_calloc(n, sizeof(struct tt_weights)),
                           .share = tt_calloc(n, sizeof(double)),
                           .model = tt_calloc(n, sizeof(struct tt_model *))};
    bool gguf = copy->format == TT_FORMAT_GGUF;
    int rc = 0;

    if (copy->convert)
        TT_TRY(choose_format(&c));
    TT_TRY(gguf ? check_gguf_output(copy->destination, copy->force) : check_output(copy->destination, copy->force));
    TT_TRY(open_all(&c));
    assign_files(&c);
    TT_TRY(gguf ? tt_copying_to_gguf(&c) : write_folder(&c));
    *ret_copied = (struct tt_copied){.bytes = c.bytes, .files = c.n_files, .tensors = c.weights->n};
    (void)snprintf(ret_copied->source, sizeof ret_copied->source, "%s", c.source[0]->path);
out:
    for (int k = 0; k < c.n; k++)
        rc = tt_source_explain(rc, c.source[k]);
    release(&c);
    return rc;
}

int tt_ckpt_copy(const struct tt_copy *options, struct tt_copied *ret_copied)
{
    struct tt_copy complete = *options;
    int tries = 0, rc;
    bool again;

    if (complete.convert && complete.format == TT_FORMAT_DCP)
        complete.with_state = true;
    do {
        rc = copy(&complete, ret_copied);
        again = tt_step_try_again(rc, complete.source, &tries);
        for (int k = 0; k < complete.n_more && again; k++)
            again = tt_step_try_again(rc, complete.more[k], &tries);
    } while (again);
    return rc;
}
