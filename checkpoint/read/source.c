/* SPDX-License-Identifier: MIT
 *
 * Reads checkpoints. Files are opened when needed, checked against the manifest, and read by rows of tensors,
 * independently of which rank wrote which rows.
 */
#include "checkpoint/read/source.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/dcp/scan.h"
#include "checkpoint/format/cast.h"
#include "checkpoint/format/gguf.h"
#include "checkpoint/format/safetensors.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/os/file.h"

enum { OPEN_MOST = 64, BLOCK_BYTES = 4 << 20 };

int tt_source_describe(const char *path, enum tt_path_kind kind, struct tt_manifest *ret_manifest,
                       const char **ret_kind)
{
    if (kind == TT_PATH_DCP)
        return tt_dcp_scan(path, ret_manifest, ret_kind);
    if (ret_kind)
        *ret_kind = kind == TT_PATH_STEP ? "manifest" : "header";
    if (kind == TT_PATH_PLAIN && tt_gguf_is_path(path))
        return tt_gguf_scan(path, ret_manifest);
    return kind == TT_PATH_STEP ? tt_step_manifest(path, ret_manifest) : tt_manifest_scan(path, ret_manifest);
}

uint32_t tt_source_checksum(const struct tt_source *source, uint32_t crc, const void *bytes, size_t size)
{
    return source->kind == TT_PATH_DCP ? tt_crc32(crc, bytes, size) : tt_crc32c(crc, bytes, size);
}

int tt_source_fail_form(const struct tt_source *source, const json_t *unread)
{
    const char *why = json_string_value(json_object_get(unread, "why")), *help = strstr(why, "; ");
    int n = help ? (int)(help - why) : (int)strlen(why);

    return tt_fail(TT_EDATA, "'%s': titan does not read '%s', which %.*s%s%s", source->path,
                   json_string_value(json_object_get(unread, "key")), n, why, help ? "\nhelp: " : "",
                   help ? help + 2 : "");
}

int tt_source_check_forms(const struct tt_source *source, bool optimizer)
{
    const json_t *list = json_object_get(json_object_get(source->manifest.meta, "torch"), "unread");

    for (size_t i = 0; source->kind == TT_PATH_DCP && i < json_array_size(list); i++) {
        const char *group = json_string_value(json_object_get(json_array_get(list, i), "group"));

        if (strcmp(group, tt_ckpt_group_name(TT_CKPT_MODEL)) == 0 ||
            (optimizer && strcmp(group, tt_ckpt_group_name(TT_CKPT_OPTIM)) == 0))
            return tt_source_fail_form(source, json_array_get(list, i));
    }
    return 0;
}

/* Takes over the manifest if it has been read already; otherwise its meta is NULL. For consolidated weights, the meta
 * is what titan.json says about their run. */
static int open_described(const char *path, enum tt_path_kind kind, struct tt_manifest *manifest,
                          struct tt_source **ret_source)
{
    struct tt_source *source = tt_calloc(1, sizeof *source);
    int rc = 0;

    source->path = tt_strdup(path);
    source->kind = kind;
    TT_TRY(tt_step_place(path, &source->place));
    TT_TRY(tt_path_is_folder(path, &source->is_folder));
    if (manifest->meta) {
        source->manifest = *manifest;
        *manifest = (struct tt_manifest){0};
    } else if (kind == TT_PATH_STEP) {
        TT_TRY(tt_step_check(path, &source->manifest));
    } else {
        TT_TRY(tt_source_describe(path, kind, &source->manifest, NULL));
        TT_TRY(tt_manifest_check_cover(&source->manifest));
        if (source->is_folder && kind == TT_PATH_PLAIN)
            TT_TRY(tt_run_file_read(path, &source->manifest.meta));
        if (tt_source_is_gguf(source) && tt_gguf_check_values(path) < 0)
            tt_note("%s", tt_error_message()); /* the user may have changed them on purpose */
    }
    source->open = tt_calloc_for((size_t)source->manifest.n_files, sizeof *source->open, path);
    TT_TRY(source->open ? 0 : TT_ENOMEM);
    *ret_source = source;
    source = NULL;
out:
    rc = tt_source_explain(rc, source);
    tt_source_free(source);
    return rc;
}

int tt_source_open(const char *path, enum tt_path_kind kind, struct tt_source **ret_source)
{
    return open_described(path, kind, &(struct tt_manifest){0}, ret_source);
}

int tt_source_find(const char *path, struct tt_source **ret_source)
{
    int tries = 0, rc;

    do {
        struct tt_manifest manifest = {0};
        enum tt_path_kind kind;
        char *found = NULL;

        rc = tt_path_resolve(path, true, &kind, &found, &manifest);
        if (rc == 0)
            rc = open_described(found, kind, &manifest, ret_source);
        tt_manifest_release(&manifest);
        tt_free(found);
    } while (tt_step_try_again(rc, path, &tries));
    return rc;
}

static void close_files(struct tt_source *source)
{
    for (int i = 0; source->open && i < source->manifest.n_files; i++)
        if (source->open[i].path)
            tt_safetensors_release(&source->open[i]);
    source->n_open = 0;
}

void tt_source_free(struct tt_source *source)
{
    if (!source)
        return;
    close_files(source);
    tt_manifest_release(&source->manifest);
    tt_free(source->open);
    tt_free(source->turned_bytes);
    tt_free(source->assets);
    tt_free(source->path);
    tt_free(source);
}

/* The path of a file of the source; the caller frees. */
static char *file_path(const struct tt_source *source, int file)
{
    return source->is_folder ? tt_format("%s/%s", source->path, source->manifest.file[file].path)
                             : tt_strdup(source->path);
}

/* Compares the step and rank in a file's header with the place of the file. */
static int check_origin(const struct tt_source *source, const struct tt_safetensors *file, const char *relative,
                        const char **ret_kind)
{
    const char *step = tt_safetensors_metadata(file, "titan.step"), *rank = tt_safetensors_metadata(file, "titan.rank");
    int64_t wanted = (int64_t)json_integer_value(json_object_get(source->manifest.meta, "step"));
    const char *number = strstr(relative, "/shard-");

    if (step && strtoll(step, NULL, 10) != wanted) {
        *ret_kind = "stale";
        return tt_fail(TT_EDATA, "'%s' is stale: it is from step %s, the checkpoint is step %" PRId64, file->path, step,
                       wanted);
    }
    if (rank && number && strtoll(rank, NULL, 10) + 1 != strtoll(number + 7, NULL, 10)) {
        *ret_kind = "swapped";
        return tt_fail(TT_EDATA,
                       "'%s' is in the wrong place: it is the file of rank %s (files were swapped or renamed)",
                       file->path, rank);
    }
    return 0;
}

/* If an average has replaced its weight, the manifest lists it under the weight's name, but the file does not. */
static const struct tt_st_tensor *find_stored(const struct tt_safetensors *file, const struct tt_manifest_tensor *t)
{
    char *name = t->is_average ? tt_format("state.%s.ema", t->name) : tt_strdup(t->name);
    const struct tt_st_tensor *found = tt_safetensors_find(file, name);

    tt_free(name);
    return found;
}

/* Compares the header with the manifest, tensor by tensor. */
static int check_tensors(const struct tt_source *source, const struct tt_safetensors *file, int number,
                         const char **ret_kind)
{
    const struct tt_manifest *m = &source->manifest;
    int expected = 0;

    *ret_kind = "swapped";
    for (int i = 0; i < m->n_tensors; i++) {
        for (int k = 0; k < m->tensor[i].n_chunks; k++) {
            const struct tt_manifest_chunk *chunk = &m->tensor[i].chunk[k];
            const struct tt_st_tensor *t;

            if (chunk->file != number)
                continue;
            expected++;
            t = find_stored(file, &m->tensor[i]);
            if (!t)
                return tt_fail(TT_EDATA, "'%s' is not the file of the manifest: it has no tensor '%s'", file->path,
                               m->tensor[i].name);
            if (t->dtype != m->tensor[i].dtype || !tt_box_equal(&t->box, &chunk->box) ||
                file->data_start + t->begin != chunk->begin)
                return tt_fail(TT_EDATA, "'%s' is not the file of the manifest: its tensor '%s' is another part",
                               file->path, t->name);
        }
    }
    if (expected != file->n && !m->has_averages)
        return tt_fail(TT_EDATA, "'%s' is not the file of the manifest: it has %d tensors, %d expected", file->path,
                       file->n, expected);
    return 0;
}

/* A PyTorch file has no header: the metadata describes it. The header of a GGUF file has been read already. */
static int open_file(const struct tt_source *source, const char *path, struct tt_safetensors *ret_file)
{
    int rc = 0;

    if (source->kind != TT_PATH_DCP && !tt_source_is_gguf(source))
        return tt_safetensors_open(path, ret_file);
    TT_TRY(tt_file_open(path, &ret_file->fd, &ret_file->file_bytes));
    ret_file->path = tt_strdup(path);
out:
    return rc;
}

int tt_source_check_file(struct tt_source *source, int file, const char **ret_kind)
{
    struct tt_safetensors *open = &source->open[file];
    const char *unused = NULL, **kind = ret_kind ? ret_kind : &unused;
    char *path = file_path(source, file);
    int rc = 0;

    if (open->path) {
        tt_safetensors_release(open);
        source->n_open--;
    }
    if (source->n_open >= OPEN_MOST)
        close_files(source);
    /* The origin is checked before the size, so that an intact file in the wrong place is reported as such. The size
     * comes first only if the file itself is broken. */
    *kind = "header";
    if ((rc = open_file(source, path, open)) < 0) {
        if (rc == TT_EDATA && tt_manifest_check_size(path, source->manifest.file[file].bytes, kind) == 0) {
            *kind = "header";
            rc = open_file(source, path, open); /* sets its message again, which the size check has replaced */
        }
        goto out;
    }
    source->n_open++;
    if (source->kind == TT_PATH_STEP)
        TT_TRY(check_origin(source, open, source->manifest.file[file].path, kind));
    TT_TRY(tt_manifest_check_size(path, source->manifest.file[file].bytes, kind));
    if (source->kind == TT_PATH_STEP)
        TT_TRY(check_tensors(source, open, file, kind));
out:
    if (rc < 0 && open->path) {
        tt_safetensors_release(open);
        source->n_open--;
    }
    tt_free(path);
    return rc;
}

/* Puts the elements of a chunk into row order; in the file, the order of its dimensions is chunk->order. */
static void turn(const struct tt_manifest_chunk *chunk, size_t item, const char *from, char *to)
{
    int64_t step[TT_BOX_DIMS], at[TT_BOX_DIMS] = {0}, n = tt_box_volume(&chunk->box), place = 0, width = 1;
    int ndim = chunk->box.ndim;

    for (int d = ndim - 1; d >= 0; d--) {
        step[d] = width;
        width *= chunk->box.shape[d];
    }
    for (int64_t i = 0; i < n; i++, from += item) {
        memcpy(to + (size_t)place * item, from, item);
        for (int k = ndim - 1; k >= 0; k--) {
            int d = (int)(chunk->order >> (4 * k) & 15);

            place += step[d];
            if (++at[d] < chunk->box.shape[d])
                break;
            place -= at[d] * step[d];
            at[d] = 0;
        }
    }
}

/* Reads a whole chunk whose elements are not in row order, and keeps it for the next rows. */
static int read_turned(struct tt_source *source, const struct tt_safetensors *file,
                       const struct tt_manifest_chunk *chunk, const struct tt_box *want, size_t item, void *data)
{
    struct tt_box common;
    char *bytes = NULL;
    int rc = 0;

    if (!tt_box_intersect(&chunk->box, want, &common))
        return 0;
    if (!source->turned_bytes || source->turned.file != chunk->file || source->turned.begin != chunk->begin) {
        tt_free(source->turned_bytes);
        source->turned_bytes = NULL;
        bytes = tt_calloc_for((size_t)(chunk->end - chunk->begin), 2, file->path);
        TT_TRY(bytes ? 0 : TT_ENOMEM);
        TT_TRY(tt_file_pread(file->fd, file->path, bytes + (chunk->end - chunk->begin),
                             (size_t)(chunk->end - chunk->begin), chunk->begin));
        turn(chunk, item, bytes + (chunk->end - chunk->begin), bytes);
        source->turned_bytes = bytes;
        source->turned = *chunk;
        bytes = NULL;
    }
    for (int64_t i = 0, run, n = tt_box_volume(&common); i < n; i += run) {
        run = tt_box_run(&common, &chunk->box);
        run = tt_box_run(&common, want) < run ? tt_box_run(&common, want) : run;
        memcpy((char *)data + (size_t)tt_box_position(&common, i, want) * item,
               source->turned_bytes + (size_t)tt_box_position(&common, i, &chunk->box) * item, (size_t)run * item);
    }
out:
    tt_free(bytes);
    return rc;
}

int tt_source_read_chunk(struct tt_source *source, const struct tt_manifest_chunk *chunk, const struct tt_box *want,
                         size_t item, void *data)
{
    const struct tt_safetensors *file = &source->open[chunk->file];
    int rc = 0;

    TT_TRY(file->path ? 0 : tt_source_check_file(source, chunk->file, NULL));
    if (chunk->order)
        rc = read_turned(source, file, chunk, want, item, data);
    else
        rc = tt_box_read(file->fd, file->path, chunk->begin, &chunk->box, want, item, data);
out:
    return rc;
}

static int read_box(struct tt_source *source, const struct tt_manifest_tensor *tensor, const struct tt_box *box,
                    void *data)
{
    int rc = 0;

    for (int i = 0; i < tensor->n_chunks; i++)
        if (tt_box_intersect(&tensor->chunk[i].box, box, NULL))
            TT_TRY(tt_source_read_chunk(source, &tensor->chunk[i], box, tt_dtype_size(tensor->dtype), data));
out:
    return rc;
}

int tt_source_read(struct tt_source *source, const struct tt_manifest_tensor *tensor, const struct tt_box *box,
                   enum tt_dtype dtype, void *data)
{
    int64_t width = tt_box_row_elements(box), row_bytes = width * (int64_t)tt_dtype_size(tensor->dtype);
    int64_t step = row_bytes > 0 && row_bytes < BLOCK_BYTES ? BLOCK_BYTES / row_bytes : 1;
    int64_t rows = box->ndim ? box->shape[0] : 1;
    struct tt_box some = *box;
    void *block = NULL;
    int rc = 0;

    if (!tt_cast_known(dtype, tensor->dtype))
        return tt_cast_fail(tensor->name, tt_dtype_size(tensor->dtype) ? "read as floating-point numbers" : "read",
                            tensor->dtype);
    if (dtype == tensor->dtype)
        return read_box(source, tensor, box, data);
    block = tt_calloc_for((size_t)(step < rows ? step : rows), (size_t)row_bytes, tensor->name);
    if (!block)
        return TT_ENOMEM;
    for (int64_t at = 0; at < rows; at += step) {
        int64_t n = rows - at < step ? rows - at : step;

        some.offset[0] = box->offset[0] + at;
        some.shape[0] = n;
        TT_TRY(read_box(source, tensor, &some, block));
        tt_cast(dtype, (char *)data + at * width * (int64_t)tt_dtype_size(dtype), tensor->dtype, block, n * width);
    }
out:
    tt_free(block);
    return rc;
}

int tt_source_read_rows(struct tt_source *source, const struct tt_manifest_tensor *tensor, int64_t row_begin,
                        int64_t rows, enum tt_dtype dtype, void *data)
{
    struct tt_box box = tt_box_rows(tensor->ndim, tensor->shape, row_begin, rows);

    return tt_source_read(source, tensor, &box, dtype, data);
}

int tt_source_equal(struct tt_source *source, const struct tt_manifest_tensor *a, const struct tt_manifest_tensor *b,
                    bool *ret_equal)
{
    struct tt_box whole = tt_box_whole(a->ndim, a->shape);
    int64_t width = tt_box_row_elements(&whole), rows = a->ndim ? a->shape[0] : 1;
    int64_t step = BLOCK_BYTES / (int64_t)sizeof(float) / (width + 1) + 1;
    float *x = tt_calloc((size_t)(step * width), sizeof *x), *y = tt_calloc((size_t)(step * width), sizeof *y);
    int rc = 0;

    *ret_equal = true;
    for (int64_t row = 0; row < rows && *ret_equal; row += step) {
        int64_t n = rows - row < step ? rows - row : step;

        TT_TRY(tt_source_read_rows(source, a, row, n, TT_F32, x));
        TT_TRY(tt_source_read_rows(source, b, row, n, TT_F32, y));
        *ret_equal = memcmp(x, y, (size_t)(n * width) * sizeof *x) == 0;
    }
out:
    tt_free(x);
    tt_free(y);
    return rc;
}

int tt_source_fail_crc(const struct tt_source *source, const struct tt_manifest_tensor *tensor,
                       const struct tt_manifest_chunk *chunk, uint32_t found)
{
    char *path = file_path(source, chunk->file), text[256];
    int rc = tt_fail(TT_EDATA, "'%s' is damaged: tensor '%s' %s has checksum %08x, %08x expected", path, tensor->name,
                     tt_box_text(text, sizeof text, &chunk->box), found, chunk->crc);

    tt_free(path);
    return rc;
}

int tt_source_verify_chunk(struct tt_source *source, const struct tt_manifest_tensor *tensor,
                           const struct tt_manifest_chunk *chunk)
{
    const struct tt_safetensors *file = &source->open[chunk->file];
    char *block = NULL;
    uint32_t crc = 0;
    int rc = 0;

    if (!chunk->has_crc)
        return 0;
    TT_TRY(file->path ? 0 : tt_source_check_file(source, chunk->file, NULL));
    block = tt_calloc(1, BLOCK_BYTES);
    for (int64_t at = chunk->begin; at < chunk->end; at += BLOCK_BYTES) {
        int64_t n = chunk->end - at < BLOCK_BYTES ? chunk->end - at : BLOCK_BYTES;

        TT_TRY(tt_file_pread(file->fd, file->path, block, (size_t)n, at));
        crc = tt_source_checksum(source, crc, block, (size_t)n);
    }
    if (crc != chunk->crc)
        rc = tt_source_fail_crc(source, tensor, chunk, crc);
out:
    tt_free(block);
    return rc;
}

/* --- the folder of the small files --- */

char *tt_source_assets(const struct tt_source *source)
{
    const char *slash = strrchr(source->path, '/');

    if (source->assets)
        return tt_strdup(source->assets);
    if (source->kind == TT_PATH_STEP)
        return tt_format("%s/assets", source->path);
    if (source->is_folder || tt_source_is_gguf(source))
        return tt_strdup(source->path);
    return slash ? tt_strndup(source->path, (size_t)(slash - source->path)) : tt_strdup(".");
}

int tt_source_is_hf(const struct tt_source *source, bool *ret_is_hf)
{
    char *assets = tt_source_assets(source);
    bool has_config = false, has_ours = false;
    int rc = 0;

    if (source->kind == TT_PATH_PLAIN && !tt_source_is_gguf(source)) { /* if the path is not a folder */
        TT_TRY(tt_path_has(assets, "config.json", &has_config));
        TT_TRY(tt_path_has(assets, "model.json", &has_ours));
    }
out:
    *ret_is_hf = has_config && !has_ours;
    tt_free(assets);
    return rc;
}
