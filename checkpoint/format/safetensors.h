/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_SAFETENSORS_H
#define TT_CHECKPOINT_FORMAT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/graph/dtype.h"
#include "core/math/box.h"

/**
 * safetensors files: a strict reader, and a writer whose headers depend only on the content.
 *
 * A file is: u64 little-endian N | N bytes of JSON, padded with spaces | tensors, packed, contiguous to the end.
 * In a sharded folder a file holds boxes of tensors; the metadata entry DCP_SHARDING_INFO says where each box begins
 * (the convention of PyTorch's HuggingFaceStorageWriter and Reader).
 */
struct tt_st_tensor {
    char *name;
    enum tt_dtype dtype;
    struct tt_box box;  /* offset is zero in files that are not sharded */
    int64_t begin, end; /* bytes from the start of the data */
    uint32_t crc;       /* CRC32C of the bytes, when has_crc (titan's files have it in titan.crc) */
    bool has_crc;
    int index; /* for the caller's use, such as an index into its tensors; not in the file */
};

/** An open file, its header read and checked. */
struct tt_safetensors {
    char *path;
    int fd;
    int64_t file_bytes;
    int64_t data_start;
    int n;
    struct tt_st_tensor *tensor; /* in the order of their bytes */
    json_t *metadata;            /* strings by name; NULL if the file has none */
    bool sharded;                /* whether there is a DCP_SHARDING_INFO */
};

/**
 * Opens a file and checks its whole header: bounds, types, sizes, unique names, and contiguous data that fills the file
 * exactly. TT_EDATA names the expected and the actual value; a Git LFS pointer is reported as such.
 */
int tt_safetensors_open(const char *path, struct tt_safetensors *ret_file) TT_MUST_CHECK;
void tt_safetensors_release(struct tt_safetensors *file);

/**
 * The same on bytes in memory, which are the whole file or at least its header; path is for messages, fd becomes -1.
 */
int tt_safetensors_parse(const char *path, const void *bytes, size_t size, int64_t file_bytes,
                         struct tt_safetensors *ret_file) TT_MUST_CHECK;

/** The tensor of that name or NULL. */
const struct tt_st_tensor *tt_safetensors_find(const struct tt_safetensors *file, const char *name);

/** A metadata string or NULL. */
static inline const char *tt_safetensors_metadata(const struct tt_safetensors *file, const char *key)
{
    return json_string_value(json_object_get(file->metadata, key));
}

/**
 * Lays a file out: sorts tensors (wider types first, then by name), sets begin and end, and writes the first bytes of
 * the file, up to where data begins (a multiple of 4096), into header. The result depends only on the arguments.
 *
 *   tensor   names borrowed; box and dtype given; crc put into titan.crc when has_crc
 *   extra    strings by name for the metadata, after format; may be NULL
 *   sharded  add DCP_SHARDING_INFO and DCP_VERSION
 */
int tt_safetensors_layout(struct tt_st_tensor *tensor, int n, const json_t *extra, bool sharded, struct tt_text *header,
                          int64_t *ret_file_bytes) TT_MUST_CHECK;

/**
 * Reads the intersection of the boxes `want` and `stored` into `bytes`, packed as `want`. In the file, `stored` is
 * packed row-major, beginning at byte `begin`. Elements of `want` outside `stored` are not touched. item: bytes per
 * element. path is for messages.
 */
int tt_box_read(int fd, const char *path, int64_t begin, const struct tt_box *stored, const struct tt_box *want,
                size_t item, void *bytes) TT_MUST_CHECK;

#endif
