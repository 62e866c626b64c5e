/* SPDX-License-Identifier: MIT
 *
 * Streams weights into safetensors files: a plain folder, or a step of one file with its assets and manifest. The
 * header of a file contains the checksums of the data (titan.crc), so that exported files can be verified too. The size
 * of the header does not depend on them, so the data is written first and the header last.
 */
#include "checkpoint/format/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/export/internal.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/save/plan.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/os/file.h"

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

int tt_copying_to_safetensors(struct tt_copying *c)
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

int tt_copying_to_step(struct tt_copying *c)
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
