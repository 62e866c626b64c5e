/* SPDX-License-Identifier: MIT
 *
 * Describes a GGUF file as the manifest of a checkpoint, and converts its blocks of 32 elements with one scale. As in
 * ggml, the scale is computed in float and stored as float16, but the elements are divided by the float.
 */
#include "checkpoint/format/gguf.h"

#include <math.h>
#include <string.h>

#include "checkpoint/format/cast.h"
#include "core/base/mem.h"

static void add_tensor(const struct tt_gguf_tensor *t, const struct tt_gguf_value *crc, int64_t number,
                       struct tt_manifest *manifest)
{
    bool packed = t->type->elements > 1;
    struct tt_manifest_chunk chunk = {.begin = t->begin, .end = t->end, .has_crc = crc != NULL};
    struct tt_manifest_tensor *added;
    int64_t shape[TT_GGUF_DIMS];

    memcpy(shape, t->shape, sizeof shape);
    if (packed)
        shape[t->ndim - 1] = shape[t->ndim - 1] / t->type->elements * t->type->bytes;
    added = tt_manifest_add_tensor(manifest, TT_CKPT_MODEL, t->name, t->type->dtype, t->ndim, shape);
    added->packing = packed ? t->type : NULL;
    chunk.box = tt_box_whole(t->ndim, shape);
    chunk.crc = crc ? (uint32_t)tt_gguf_i32_at(crc, number) : 0;
    TT_PUSH(added->chunk, added->n_chunks, added->cap_chunks) = chunk;
}

int tt_gguf_checksums(const struct tt_gguf *file, const struct tt_gguf_value **ret_crc)
{
    int n = file->n_tensors, rc = 0;

    TT_TRY(tt_gguf_array(file, TT_GGUF_CHECKSUMS, TT_GGUF_I32, ret_crc));
    if (*ret_crc &&
        ((*ret_crc)->n != n + 1 || (uint32_t)tt_gguf_i32_at(*ret_crc, n) != tt_gguf_crc_of_tensors(file->tensor, n)))
        *ret_crc = NULL;
out:
    return rc;
}

int tt_gguf_scan(const char *path, struct tt_manifest *ret_manifest)
{
    const char *slash = strrchr(path, '/');
    const struct tt_gguf_value *crc = NULL;
    struct tt_gguf file = {0};
    int rc = 0;

    *ret_manifest = (struct tt_manifest){0};
    TT_TRY(tt_gguf_open(path, &file));
    TT_TRY(tt_gguf_checksums(&file, &crc));
    (void)tt_manifest_add_file(ret_manifest, slash ? slash + 1 : path, file.file_bytes);
    for (int i = 0; i < file.n_tensors; i++)
        add_tensor(&file.tensor[i], crc, i, ret_manifest);
    TT_TRY(tt_manifest_check_totals(ret_manifest, path));
    tt_manifest_sort(ret_manifest);
out:
    if (rc < 0)
        tt_manifest_release(ret_manifest);
    tt_gguf_release(&file);
    return rc;
}

/* --- blocks --- */

enum { BLOCK = 32, SCALE_BYTES = 2 };

/* The format has no infinite values, but such bytes must do no harm. */
static uint8_t to_byte(float x)
{
    return fabsf(x) < 127.5F ? (uint8_t)(int8_t)roundf(x) : 0;
}

static void pack_q8_0(const float *x, uint8_t *to)
{
    float most = 0.0F, scale, inverse;

    for (int i = 0; i < BLOCK; i++)
        most = fmaxf(most, fabsf(x[i]));
    scale = most / 127.0F;
    inverse = scale != 0.0F ? 1.0F / scale : 0.0F;
    tt_cast(TT_F16, to, TT_F32, &scale, 1);
    for (int i = 0; i < BLOCK; i++)
        to[SCALE_BYTES + i] = to_byte(x[i] * inverse);
}

/* A value from 0 to 15, where 8 means zero. */
static uint8_t nibble(float x)
{
    return x > -8.5F ? (uint8_t)(x < 6.5F ? x + 8.5F : 15.0F) : 0;
}

/* The element of the largest magnitude becomes -8, so its sign is that of -scale. */
static void pack_q4_0(const float *x, uint8_t *to)
{
    float largest = 0.0F, scale, inverse;

    for (int i = 0; i < BLOCK; i++)
        if (fabsf(x[i]) > fabsf(largest))
            largest = x[i];
    scale = largest / -8.0F;
    inverse = scale != 0.0F ? 1.0F / scale : 0.0F;
    tt_cast(TT_F16, to, TT_F32, &scale, 1);
    for (int i = 0; i < BLOCK / 2; i++)
        to[SCALE_BYTES + i] = (uint8_t)(nibble(x[i] * inverse) | nibble(x[i + BLOCK / 2] * inverse) << 4);
}

void tt_gguf_pack(const struct tt_gguf_type_row *type, const float *data, int64_t n, void *bytes)
{
    uint8_t *to = bytes;

    if (type->elements == 1) {
        tt_cast(type->dtype, bytes, TT_F32, data, n);
        return;
    }
    for (int64_t i = 0; i < n; i += BLOCK, to += type->bytes) {
        if (type->type == TT_GGML_Q8_0)
            pack_q8_0(data + i, to);
        else
            pack_q4_0(data + i, to);
    }
}

void tt_gguf_unpack(const struct tt_gguf_type_row *type, const void *bytes, int64_t n, float *data)
{
    const uint8_t *from = bytes;

    if (type->elements == 1) {
        tt_cast(TT_F32, data, type->dtype, bytes, n);
        return;
    }
    for (int64_t i = 0; i < n; i += BLOCK, from += type->bytes) {
        float scale;

        tt_cast(TT_F32, &scale, TT_F16, from, 1);
        for (int k = 0; k < BLOCK; k++) {
            uint8_t byte = from[SCALE_BYTES + (type->type == TT_GGML_Q8_0 ? k : k % (BLOCK / 2))];
            int q = type->type == TT_GGML_Q8_0 ? (int)(int8_t)byte : (k < BLOCK / 2 ? byte & 15 : byte >> 4) - 8;

            data[i + k] = scale * (float)q;
        }
    }
}
