/* SPDX-License-Identifier: MIT
 *
 * Reads safetensors files strictly, and lays them out deterministically. Files may come from anywhere, so every number
 * of a header is checked before it is used, products are checked for overflow, and the data must fill the file exactly.
 */
#include "checkpoint/format/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "core/base/mem.h"
#include "core/math/round.h"
#include "core/os/file.h"

enum { HEADER_MOST = 100000000, NAME_MOST = 1024, DATA_ALIGNMENT = 4096, LENGTH_BYTES = 8 };

static const char lfs_pointer[] = "version https://git-lfs.github.com/";

/* Size of the JSON text, from the first bytes of the file. */
static int header_size(const char *path, const uint8_t *bytes, size_t have, int64_t file_bytes, size_t *ret_size)
{
    uint64_t size;

    if (have >= sizeof lfs_pointer - 1 && memcmp(bytes, lfs_pointer, sizeof lfs_pointer - 1) == 0)
        return tt_fail(TT_EDATA,
                       "'%s' is a Git LFS pointer, not the weights themselves\n"
                       "help: fetch the real file with 'git lfs pull'",
                       path);
    if (file_bytes < LENGTH_BYTES || have < LENGTH_BYTES)
        return tt_fail(TT_EDATA, "'%s' is truncated: it has %" PRId64 " bytes, but a safetensors file has at least 8",
                       path, file_bytes);
    size = tt_text_little(bytes, LENGTH_BYTES);
    if (size > HEADER_MOST)
        return tt_fail(TT_EDATA,
                       "'%s' is not a safetensors file: its header would have %" PRIu64
                       " bytes, but the format allows at most %d",
                       path, size, HEADER_MOST);
    if (size > (uint64_t)file_bytes - LENGTH_BYTES)
        return tt_fail(TT_EDATA,
                       "'%s' is truncated within its header: it has %" PRId64 " bytes, but the header needs %" PRIu64,
                       path, file_bytes, size + LENGTH_BYTES);
    *ret_size = (size_t)size;
    return 0;
}

static int fail_tensor(const struct tt_safetensors *file, const char *name, const char *what)
{
    return tt_fail(TT_EDATA, "'%s': damaged header: tensor '%s': %s", file->path, name, what);
}

static const char save_again[] = "load the file with safetensors and save that tensor in another form";

static int parse_tensor(struct tt_safetensors *file, const char *name, const json_t *entry, struct tt_st_tensor *tensor)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    int64_t range[2] = {0}, volume, bits;
    int n = 0;

    if (strlen(name) > NAME_MOST)
        return tt_fail(TT_EDATA, "'%s': damaged header: a tensor name has %zu bytes, but at most %d are allowed",
                       file->path, strlen(name), NAME_MOST);
    if (!json_is_object(entry))
        return fail_tensor(file, name, "its entry is not an object");
    if (!dtype)
        return fail_tensor(file, name, "no dtype");
    if (!tt_dtype_from_name(dtype, &tensor->dtype) || tensor->dtype == TT_C128)
        return tt_fail(TT_EIO, "'%s': titan does not read the type '%s' of tensor '%s'\nhelp: %s", file->path, dtype,
                       name, save_again);
    if (json_array_size(json_object_get(entry, "shape")) > TT_BOX_DIMS)
        return tt_fail(TT_EIO, "'%s': tensor '%s' has more than 8 dimensions, which titan does not read\nhelp: %s",
                       file->path, name, save_again);
    if (!tt_json_sizes(json_object_get(entry, "shape"), tensor->box.shape, TT_BOX_DIMS, &tensor->box.ndim))
        return fail_tensor(file, name, "shape is not a list of at most 8 sizes");
    if (!tt_json_sizes(json_object_get(entry, "data_offsets"), range, 2, &n) || n != 2 || range[0] > range[1])
        return fail_tensor(file, name, "data_offsets is not [begin, end]");
    if (!tt_box_checked_volume(tensor->box.shape, tensor->box.ndim, &volume) ||
        __builtin_mul_overflow(volume, tt_dtype_bits(tensor->dtype), &bits) || bits % 8)
        return fail_tensor(file, name, "its size does not fit in 64 bits or is not whole bytes");
    if (range[1] - range[0] != bits / 8)
        return tt_fail(TT_EDATA,
                       "'%s': damaged header: tensor '%s': data_offsets span %" PRId64
                       " bytes, its shape and dtype need %" PRId64,
                       file->path, name, range[1] - range[0], bits / 8);
    tensor->begin = range[0];
    tensor->end = range[1];
    tensor->name = tt_strdup(name);
    return 0;
}

static int compare_begins(const void *pa, const void *pb)
{
    const struct tt_st_tensor *a = pa, *b = pb;

    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->end != b->end ? (a->end < b->end ? -1 : 1) : strcmp(a->name, b->name);
}

static int check_data(const struct tt_safetensors *file)
{
    int64_t data_bytes = file->file_bytes - file->data_start, at = 0;

    for (int i = 0; i < file->n; i++) {
        const struct tt_st_tensor *t = &file->tensor[i];

        if (t->begin != at)
            return tt_fail(
                TT_EDATA, "'%s': damaged header: tensor '%s' begins at byte %" PRId64 ", %" PRId64 " expected: %s",
                file->path, t->name, t->begin, at, t->begin > at ? "a hole in the data" : "it overlaps another tensor");
        at = t->end;
    }
    if (at > data_bytes)
        return tt_fail(TT_EDATA,
                       "'%s' is truncated: it has %" PRId64 " bytes, but its header needs %" PRId64 " (%" PRId64
                       " missing)",
                       file->path, file->file_bytes, file->data_start + at, at - data_bytes);
    if (at < data_bytes)
        return tt_fail(TT_EDATA,
                       "'%s' has %" PRId64 " bytes too many: it has %" PRId64 ", but its header needs %" PRId64,
                       file->path, data_bytes - at, file->file_bytes, file->data_start + at);
    return 0;
}

/* DCP_SHARDING_INFO: {"name": {"saved_offsets": [0, 0]}, …}, one entry for every tensor of the file. */
static int parse_offsets(struct tt_safetensors *file, const char *text)
{
    json_t *info = NULL;
    int rc = 0;

    TT_TRY(tt_json_parse(text, strlen(text), file->path, &info));
    file->sharded = true;
    for (int i = 0; i < file->n; i++) {
        struct tt_st_tensor *t = &file->tensor[i];
        const json_t *entry = json_object_get(info, t->name);
        int n = 0;

        if (!tt_json_sizes(json_object_get(entry, "saved_offsets"), t->box.offset, TT_BOX_DIMS, &n) || n != t->box.ndim)
            TT_TRY(fail_tensor(file, t->name, entry ? "saved_offsets do not match its shape" : "no DCP_SHARDING_INFO"));
        for (int d = 0; d < n; d++)
            if (t->box.offset[d] > INT64_MAX - t->box.shape[d])
                TT_TRY(fail_tensor(file, t->name, "saved_offsets are too large"));
    }
out:
    json_decref(info);
    return rc;
}

static int parse_checksums(struct tt_safetensors *file, const char *text)
{
    json_t *crcs = NULL;
    int rc = 0;

    TT_TRY(tt_json_parse(text, strlen(text), file->path, &crcs));
    for (int i = 0; i < file->n; i++) {
        const char *hex = json_string_value(json_object_get(crcs, file->tensor[i].name));

        if (!hex || strlen(hex) != 8 || strspn(hex, "0123456789abcdef") != 8)
            TT_TRY(fail_tensor(file, file->tensor[i].name, "no checksum in titan.crc"));
        file->tensor[i].crc = (uint32_t)strtoul(hex, NULL, 16);
        file->tensor[i].has_crc = true;
    }
out:
    json_decref(crcs);
    return rc;
}

static int parse_metadata(struct tt_safetensors *file, json_t *metadata)
{
    const char *key, *text;
    json_t *value;
    int rc = 0;

    if (!json_is_object(metadata))
        return tt_fail(TT_EDATA, "'%s': damaged header: __metadata__ is not an object", file->path);
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
            return tt_fail(TT_EDATA, "'%s': damaged header: metadata '%s' is not a string", file->path, key);
    }
    file->metadata = json_incref(metadata);
    if ((text = tt_safetensors_metadata(file, "DCP_SHARDING_INFO")))
        TT_TRY(parse_offsets(file, text));
    if ((text = tt_safetensors_metadata(file, "titan.crc")))
        TT_TRY(parse_checksums(file, text));
out:
    return rc;
}

static int parse_header(struct tt_safetensors *file, const char *text, size_t size)
{
    json_t *header = NULL, *entry;
    const char *name;
    int rc = 0;

    if ((rc = tt_json_parse(text, size, file->path, &header)) < 0)
        return tt_wrap(rc, "damaged safetensors header");
    if (text[0] != '{' || !json_is_object(header)) {
        rc = tt_fail(TT_EDATA, "'%s': damaged header: it does not begin with '{'", file->path);
        goto out;
    }
    file->tensor = tt_calloc_for(json_object_size(header), sizeof *file->tensor, file->path);
    TT_TRY(file->tensor ? 0 : TT_ENOMEM);
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        TT_TRY(parse_tensor(file, name, entry, &file->tensor[file->n]));
        file->n++;
    }
    if (file->n)
        qsort(file->tensor, (size_t)file->n, sizeof *file->tensor, compare_begins);
    TT_TRY(check_data(file));
    if ((entry = json_object_get(header, "__metadata__")))
        TT_TRY(parse_metadata(file, entry));
out:
    json_decref(header);
    return rc;
}

int tt_safetensors_parse(const char *path, const void *bytes, size_t size, int64_t file_bytes,
                         struct tt_safetensors *ret_file)
{
    struct tt_safetensors file = {.path = tt_strdup(path), .fd = -1, .file_bytes = file_bytes};
    size_t header = 0;
    int rc = 0;

    TT_TRY(header_size(path, bytes, size, file_bytes, &header));
    if (header > size - LENGTH_BYTES)
        TT_TRY(tt_fail(TT_EINTERNAL, "'%s': only %zu bytes of the header were read", path, size));
    file.data_start = LENGTH_BYTES + (int64_t)header;
    TT_TRY(parse_header(&file, (const char *)bytes + LENGTH_BYTES, header));
    *ret_file = file;
out:
    if (rc < 0)
        tt_safetensors_release(&file);
    return rc;
}

int tt_safetensors_open(const char *path, struct tt_safetensors *ret_file)
{
    uint8_t first[64] = {0}, *bytes = NULL;
    int64_t file_bytes = 0;
    size_t size = 0, have;
    int fd = -1, rc = 0;

    TT_TRY(tt_file_open(path, &fd, &file_bytes));
    have = file_bytes < (int64_t)sizeof first ? (size_t)file_bytes : sizeof first;
    TT_TRY(tt_file_pread(fd, path, first, have, 0));
    TT_TRY(header_size(path, first, have, file_bytes, &size));
    bytes = tt_calloc_for(size + LENGTH_BYTES, 1, path);
    TT_TRY(bytes ? 0 : TT_ENOMEM);
    TT_TRY(tt_file_pread(fd, path, bytes, size + LENGTH_BYTES, 0));
    TT_TRY(tt_safetensors_parse(path, bytes, size + LENGTH_BYTES, file_bytes, ret_file));
    ret_file->fd = fd;
    fd = -1;
out:
    tt_free(bytes);
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

void tt_safetensors_release(struct tt_safetensors *file)
{
    for (int i = 0; i < file->n; i++)
        tt_free(file->tensor[i].name);
    tt_free(file->tensor);
    tt_free(file->path);
    json_decref(file->metadata);
    if (file->fd >= 0)
        (void)close(file->fd);
    *file = (struct tt_safetensors){.fd = -1};
}

const struct tt_st_tensor *tt_safetensors_find(const struct tt_safetensors *file, const char *name)
{
    for (int i = 0; i < file->n; i++)
        if (strcmp(file->tensor[i].name, name) == 0)
            return &file->tensor[i];
    return NULL;
}

static int compare_for_layout(const void *pa, const void *pb)
{
    const struct tt_st_tensor *a = pa, *b = pb;
    int bits_a = tt_dtype_bits(a->dtype), bits_b = tt_dtype_bits(b->dtype);

    return bits_a != bits_b ? bits_b - bits_a : strcmp(a->name, b->name);
}

/* Members that are JSON objects themselves are stored as strings, with spaces as Python's json.dumps writes them. */
static json_t *quoted(const json_t *json)
{
    char *text = json_dumps(json, 0);
    json_t *string = json_string(text);

    free(text);
    return string;
}

static json_t *metadata_json(const struct tt_st_tensor *tensor, int n, const json_t *extra, bool sharded)
{
    json_t *metadata = json_object(), *offsets = json_object(), *crcs = json_object(), *value;
    bool has_crc = n > 0;
    const char *key;

    for (int i = 0; i < n; i++) {
        (void)json_object_set_new(
            offsets, tensor[i].name,
            json_pack("{s:o}", "saved_offsets", tt_json_from_sizes(tensor[i].box.offset, tensor[i].box.ndim)));
        (void)json_object_set_new(crcs, tensor[i].name, json_sprintf("%08x", tensor[i].crc));
        has_crc = has_crc && tensor[i].has_crc;
    }
    if (sharded) {
        (void)json_object_set_new(metadata, "DCP_SHARDING_INFO", quoted(offsets));
        (void)json_object_set_new(metadata, "DCP_VERSION", json_string("1.0"));
    }
    (void)json_object_set_new(metadata, "format", json_string("pt"));
    json_object_foreach((json_t *)(uintptr_t)extra, key, value)(void) json_object_set(metadata, key, value);
    if (has_crc)
        (void)json_object_set_new(metadata, "titan.crc", quoted(crcs));
    json_decref(offsets);
    json_decref(crcs);
    return metadata;
}

int tt_safetensors_layout(struct tt_st_tensor *tensor, int n, const json_t *extra, bool sharded, struct tt_text *header,
                          int64_t *ret_file_bytes)
{
    json_t *json = json_object();
    int64_t at = 0, volume;
    char *text = NULL;
    size_t size, padded;
    int rc = 0;

    if (n)
        qsort(tensor, (size_t)n, sizeof *tensor, compare_for_layout);
    (void)json_object_set_new(json, "__metadata__", metadata_json(tensor, n, extra, sharded));
    for (int i = 0; i < n; i++) {
        struct tt_st_tensor *t = &tensor[i];
        int64_t range[2];

        if (!tt_box_checked_volume(t->box.shape, t->box.ndim, &volume) || json_object_get(json, t->name))
            TT_TRY(tt_fail(TT_EINTERNAL, "tensor '%s': impossible size, or two chunks in one file", t->name));
        if (t->dtype == TT_C128)
            TT_TRY(tt_fail(TT_EDATA,
                           "tensor '%s' is complex128, which safetensors files cannot store\n"
                           "help: leave it out, or keep PyTorch's form (--format dcp)",
                           t->name));
        t->begin = range[0] = at;
        t->end = range[1] = at += volume * tt_dtype_bits(t->dtype) / 8;
        (void)json_object_set_new(json, t->name,
                                  json_pack("{s:s,s:o,s:o}", "dtype", tt_dtype_name(t->dtype), "shape",
                                            tt_json_from_sizes(t->box.shape, t->box.ndim), "data_offsets",
                                            tt_json_from_sizes(range, 2)));
    }
    text = json_dumps(json, JSON_COMPACT);
    size = text ? strlen(text) : 0;
    padded = tt_round_up(size + LENGTH_BYTES, DATA_ALIGNMENT);
    if (!text || padded - LENGTH_BYTES > HEADER_MOST)
        TT_TRY(tt_fail(TT_EINTERNAL, "cannot write a safetensors header of %zu bytes for %d tensors", size, n));
    tt_text_add_little(header, padded - LENGTH_BYTES, LENGTH_BYTES);
    tt_text_add(header, "%-*s", (int)(padded - LENGTH_BYTES), text);
    *ret_file_bytes = (int64_t)padded + at;
out:
    free(text);
    json_decref(json);
    return rc;
}

int tt_box_read(int fd, const char *path, int64_t begin, const struct tt_box *stored, const struct tt_box *want,
                size_t item, void *bytes)
{
    struct tt_box common;
    int64_t run, run_in_want, n;
    int rc = 0;

    if (!tt_box_intersect(stored, want, &common))
        return 0;
    run = tt_box_run(&common, stored);
    run_in_want = tt_box_run(&common, want);
    run = run_in_want < run ? run_in_want : run; /* both are products of trailing sizes, so one divides the other */
    n = tt_box_volume(&common);
    for (int64_t at = 0; at < n; at += run) {
        char *to = (char *)bytes + (size_t)tt_box_position(&common, at, want) * item;

        TT_TRY(tt_file_pread(fd, path, to, (size_t)run * item,
                             begin + tt_box_position(&common, at, stored) * (int64_t)item));
    }
out:
    return rc;
}
