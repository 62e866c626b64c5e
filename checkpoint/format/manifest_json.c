/* SPDX-License-Identifier: MIT
 *
 * manifest.json: its text, written so that people can read it and diff it (one line per file and tensor), and its
 * strict reader. The text ends with its own checksum, which detects a flipped bit anywhere in it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/manifest_split.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

static const char self_key[] = ",\n\"self_crc32c\": \"";
enum { FORMAT_VERSION = 1, HEX_DIGITS = 8, TAIL_BYTES = sizeof self_key - 1 + HEX_DIGITS + 4 /* "\n}\n */ };

static json_t *hex_json(uint32_t crc)
{
    return json_sprintf("%08x", crc);
}

static json_t *tensor_json(const struct tt_manifest_tensor *tensor)
{
    json_t *chunks = json_array();

    for (int i = 0; i < tensor->n_chunks; i++) {
        const struct tt_manifest_chunk *c = &tensor->chunk[i];

        (void)json_array_append_new(chunks, json_pack("{s:i,s:o,s:o,s:I,s:I,s:o}", "file", c->file, "offset",
                                                      tt_json_from_sizes(c->box.offset, c->box.ndim), "shape",
                                                      tt_json_from_sizes(c->box.shape, c->box.ndim), "begin",
                                                      (json_int_t)c->begin, "end", (json_int_t)c->end, "crc32c",
                                                      hex_json(c->crc)));
    }
    return json_pack("{s:s, s:o, s:o, s:o}", "dtype", tt_dtype_name(tensor->dtype), "shape",
                     tt_json_from_sizes(tensor->shape, tensor->ndim), "digest",
                     json_sprintf("sum64:%016" PRIx64, tensor->digest), "chunks", chunks);
}

/* Adds "key": compact value; takes ownership of the value. */
static void add_member(struct tt_text *text, const char *key, json_t *value)
{
    json_t *name = json_string(key);
    char *key_text = tt_json_text(name), *value_text = tt_json_text(value);

    tt_text_add(text, "%s: %s", key_text, value_text);
    tt_free(key_text);
    tt_free(value_text);
    json_decref(name);
    json_decref(value);
}

char *tt_manifest_text(const struct tt_manifest *manifest)
{
    struct tt_text text = {0};
    const char *key;
    json_t *value;

    tt_text_add(&text, "{\n\"titan_ckpt\": %d", FORMAT_VERSION);
    json_object_foreach(manifest->meta, key, value)
    {
        tt_text_add(&text, ",\n");
        add_member(&text, key, json_incref(value));
    }
    tt_text_add(&text, ",\n\"files\": [");
    for (int i = 0; i < manifest->n_files; i++) {
        const struct tt_manifest_file *f = &manifest->file[i];
        json_t *json =
            json_pack("{s:s,s:I,s:o}", "path", f->path, "bytes", (json_int_t)f->bytes, "crc32c", hex_json(f->crc));
        char *line = tt_json_text(json);

        tt_text_add(&text, "%s\n %s", i ? "," : "", line);
        tt_free(line);
        json_decref(json);
    }
    tt_text_add(&text, "],\n\"tensors\": {");
    for (int i = 0; i < manifest->n_tensors; i++) {
        const struct tt_manifest_tensor *t = &manifest->tensor[i];
        char *name = tt_format("%s/%s", tt_ckpt_group_name(t->group), t->name);

        tt_text_add(&text, "%s\n ", i ? "," : "");
        add_member(&text, name, tensor_json(t));
        tt_free(name);
    }
    tt_text_add(&text, "}");
    tt_text_add(&text, "%s%08x\"\n}\n", self_key, tt_crc32c(0, text.text, text.size));
    return text.text;
}

static int check_self(const char *text, size_t size, const char *where)
{
    char tail[TAIL_BYTES + 1];

    if (size > TAIL_BYTES)
        (void)snprintf(tail, sizeof tail, "%s%08x\"\n}\n", self_key, tt_crc32c(0, text, size - TAIL_BYTES));
    if (size <= TAIL_BYTES || memcmp(text + size - TAIL_BYTES, tail, TAIL_BYTES) != 0)
        return tt_fail(TT_EDATA, "'%s' is damaged: its own checksum does not match", where);
    return 0;
}

static bool is_hex(const char *text, size_t digits)
{
    return strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

bool tt_manifest_read_hex(const json_t *object, const char *key, uint32_t *ret_crc)
{
    const char *hex = json_string_value(json_object_get(object, key));

    if (!hex || !is_hex(hex, HEX_DIGITS))
        return false;
    *ret_crc = (uint32_t)strtoul(hex, NULL, 16);
    return true;
}

/* The digest of a tensor. A missing digest is unknown, which verify reports; a text that is not a digest is damage. */
static bool read_digest(const json_t *entry, struct tt_manifest_tensor *tensor)
{
    const json_t *value = json_object_get(entry, "digest");
    const char *digest = json_string_value(value);

    if (!value || json_is_null(value))
        return true;
    if (!digest || strncmp(digest, "sum64:", 6) != 0 || !is_hex(digest + 6, 16))
        return false;
    tensor->digest = strtoull(digest + 6, NULL, 16);
    tensor->has_digest = true;
    return true;
}

/* A path must stay in the checkpoint: "group/name.safetensors". */
static bool is_shard_path(const char *path)
{
    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        const char *name = tt_ckpt_group_name((enum tt_ckpt_group)group);
        size_t n = strlen(name);

        if (strncmp(path, name, n) == 0 && path[n] == '/' && path[n + 1] && path[n + 1] != '.' &&
            !strchr(path + n + 1, '/'))
            return true;
    }
    return false;
}

/* The state of reading, for the functions that receive the parts. */
struct reading {
    struct tt_manifest *manifest;
    const char *where;
};

static int parse_file(void *arg, const json_t *entry)
{
    const struct reading *r = arg;
    struct tt_manifest_file *file;
    const char *path;
    int64_t bytes;
    int rc = 0;

    TT_TRY(tt_json_get_string(entry, "path", r->where, &path));
    TT_TRY(tt_json_get_int(entry, "bytes", r->where, &bytes));
    if (!is_shard_path(path)) {
        rc = tt_fail(TT_EDATA, "'%s': file path '%s' is not one of a checkpoint", r->where, path);
        goto out;
    }
    file = tt_manifest_add_file(r->manifest, path, bytes);
    file->has_crc = tt_manifest_read_hex(entry, "crc32c", &file->crc);
    if (!file->has_crc || bytes < 0)
        rc = tt_fail(TT_EDATA, "'%s': file '%s' has no valid size or checksum", r->where, path);
out:
    return rc;
}

/* Later code computes the end of a box without checks for overflow. */
static bool ends_fit(const struct tt_box *box, int n)
{
    for (int d = 0; d < n; d++)
        if (box->offset[d] > INT64_MAX - box->shape[d])
            return false;
    return true;
}

static int parse_chunk(const struct tt_manifest *manifest, const struct tt_manifest_tensor *tensor, const json_t *entry,
                       const char *where, struct tt_manifest_chunk *ret_chunk)
{
    struct tt_manifest_chunk chunk = {0};
    int64_t file = 0, volume, bits;
    int n_offset = 0, n_shape = 0, rc = 0;

    TT_TRY(tt_json_get_int(entry, "file", where, &file));
    TT_TRY(tt_json_get_int(entry, "begin", where, &chunk.begin));
    TT_TRY(tt_json_get_int(entry, "end", where, &chunk.end));
    chunk.has_crc = tt_manifest_read_hex(entry, "crc32c", &chunk.crc);
    if (!tt_json_sizes(json_object_get(entry, "offset"), chunk.box.offset, TT_BOX_DIMS, &n_offset) ||
        !tt_json_sizes(json_object_get(entry, "shape"), chunk.box.shape, TT_BOX_DIMS, &n_shape) ||
        n_offset != tensor->ndim || n_shape != tensor->ndim || !chunk.has_crc || file < 0 ||
        file >= manifest->n_files || chunk.begin < 0 || chunk.end < chunk.begin ||
        chunk.end > manifest->file[file].bytes || !tt_box_checked_volume(chunk.box.shape, n_shape, &volume) ||
        __builtin_mul_overflow(volume, tt_dtype_bits(tensor->dtype), &bits) || bits / 8 != chunk.end - chunk.begin ||
        !ends_fit(&chunk.box, n_shape))
        return tt_fail(TT_EDATA, "'%s': tensor '%s': a chunk's numbers do not fit together", where, tensor->name);
    chunk.file = (int)file;
    chunk.box.ndim = n_shape;
    *ret_chunk = chunk;
out:
    return rc;
}

static int parse_tensor(struct tt_manifest *manifest, const char *key, const json_t *entry, const char *where)
{
    const char *slash = strchr(key, '/'), *dtype_name;
    struct tt_manifest_tensor *tensor;
    const json_t *chunks = json_object_get(entry, "chunks");
    int64_t shape[TT_BOX_DIMS], volume;
    enum tt_dtype dtype;
    int group = 0, ndim = 0, rc = 0;

    while (group < TT_CKPT_GROUPS && slash &&
           (strlen(tt_ckpt_group_name((enum tt_ckpt_group)group)) != (size_t)(slash - key) ||
            strncmp(key, tt_ckpt_group_name((enum tt_ckpt_group)group), (size_t)(slash - key)) != 0))
        group++;
    dtype_name = json_string_value(json_object_get(entry, "dtype"));
    if (!slash || group == TT_CKPT_GROUPS || !dtype_name || !tt_dtype_from_name(dtype_name, &dtype) ||
        !tt_dtype_size(dtype) || !tt_json_sizes(json_object_get(entry, "shape"), shape, TT_BOX_DIMS, &ndim) ||
        !tt_box_checked_volume(shape, ndim, &volume) || volume > INT64_MAX / 64 || !json_is_array(chunks))
        return tt_fail(TT_EDATA, "'%s': tensor '%s' is not described as it should be", where, key);
    tensor = tt_manifest_add_tensor(manifest, (enum tt_ckpt_group)group, slash + 1, dtype, ndim, shape);
    if (!read_digest(entry, tensor))
        return tt_fail(TT_EDATA, "'%s': the digest of tensor '%s' is not 'sum64:' and 16 digits", where, key);
    for (size_t i = 0; i < json_array_size(chunks); i++) {
        struct tt_manifest_chunk chunk;

        TT_TRY(parse_chunk(manifest, tensor, json_array_get(chunks, i), where, &chunk));
        TT_PUSH(tensor->chunk, tensor->n_chunks, tensor->cap_chunks) = chunk;
    }
out:
    return rc;
}

/* {name: tensor} */
static int parse_named_tensor(void *arg, const json_t *named)
{
    const struct reading *r = arg;
    const char *key;
    json_t *entry;
    int rc = 0;

    json_object_foreach((json_t *)(uintptr_t)named, key, entry) TT_TRY(parse_tensor(r->manifest, key, entry, r->where));
out:
    return rc;
}

static int check_version(const json_t *meta, const char *where)
{
    int64_t version = 0, step = 0;
    int rc = 0;

    TT_TRY(tt_json_get_int(meta, "titan_ckpt", where, &version));
    if (version != FORMAT_VERSION)
        return tt_fail(TT_EDATA, "'%s' has format version %" PRId64 ", this titan reads version %d", where, version,
                       FORMAT_VERSION);
    rc = tt_json_get_int(meta, "step", where, &step);
out:
    return rc;
}

/* Finds equal names once they are sorted, since the parts are not one JSON value that would refuse equal keys. */
static int check_names(const struct tt_manifest *manifest, const char *where)
{
    for (int i = 1; i < manifest->n_tensors; i++) {
        const struct tt_manifest_tensor *a = &manifest->tensor[i - 1], *b = &manifest->tensor[i];

        if (a->group == b->group && strcmp(a->name, b->name) == 0)
            return tt_fail(TT_EDATA, "'%s': tensor '%s' is described twice", where, b->name);
    }
    return 0;
}

int tt_manifest_parse(const char *text, size_t size, const char *where, struct tt_manifest *ret_manifest)
{
    static const char *const ours[] = {"files", "tensors", "titan_ckpt", "self_crc32c"};
    struct tt_manifest manifest = {0};
    struct reading reading = {&manifest, where};
    int rc = 0;

    TT_TRY(check_self(text, size, where));
    TT_TRY(
        tt_manifest_split(text, size, where, check_version, parse_file, parse_named_tensor, &reading, &manifest.meta));
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        (void)json_object_del(manifest.meta, ours[i]);
    tt_manifest_sort(&manifest);
    TT_TRY(check_names(&manifest, where));
    TT_TRY(tt_manifest_check_values(&manifest, where));
    *ret_manifest = manifest;
out:
    if (rc < 0)
        tt_manifest_release(&manifest);
    return rc;
}

int tt_manifest_load(const char *folder, struct tt_manifest *ret_manifest)
{
    char *path = tt_format("%s/manifest.json", folder), *text = NULL;
    size_t size = 0;
    bool exists = false;
    int rc = 0;

    TT_TRY(tt_path_exists(path, &exists));
    if (!exists) {
        rc = tt_fail(TT_EDATA, "'%s' has no manifest.json: it is not a complete checkpoint", folder);
        goto out;
    }
    TT_TRY(tt_file_read(path, &text, &size));
    TT_TRY(tt_manifest_parse(text, size, path, ret_manifest));
out:
    tt_free(text);
    tt_free(path);
    return rc;
}
