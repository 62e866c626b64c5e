/* SPDX-License-Identifier: MIT
 *
 * Describes a GGUF file as the manifest of a checkpoint, and converts its elements.
 */
#include "checkpoint/format/gguf.h"

#include <string.h>

#include "checkpoint/format/cast.h"
#include "core/base/hash.h"
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

int tt_gguf_check_values(const char *path)
{
    enum { HEADER_BYTES = 24, LENGTH_BYTES = 8, KIND_BYTES = 4 };
    const struct tt_gguf_value *crc = NULL, *value;
    const uint8_t *begin;
    struct tt_gguf file = {0};
    uint32_t found, wanted;
    int rc = 0;

    TT_TRY(tt_gguf_open(path, &file));
    TT_TRY(tt_gguf_checksums(&file, &crc));
    value = tt_gguf_find(&file, TT_GGUF_VALUES_CHECKSUM);
    if (!crc || !value || value->kind != TT_GGUF_U32)
        goto out;
    begin = file.bytes + HEADER_BYTES;
    found = tt_crc32c(0, begin, (size_t)(value->data - KIND_BYTES - strlen(value->key) - LENGTH_BYTES - begin));
    wanted = (uint32_t)tt_gguf_i32_at(value, 0);
    if (found != wanted)
        rc = tt_fail(TT_EDATA,
                     "'%s': the values (sizes, tokenizer, chat template) have checksum %08x, %08x expected: another "
                     "program changed them, or the file is damaged\n"
                     "help: write the file again with titan ckpt consolidate, or keep it if the change was meant",
                     path, found, wanted);
out:
    tt_gguf_release(&file);
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

enum tt_packing_choice tt_gguf_packing(const struct tt_gguf_type_row *type)
{
    if (type->elements == 1)
        return TT_PACKING_NONE;
    return type->type == TT_GGML_Q8_0 ? TT_PACKING_Q8_0 : TT_PACKING_Q4_0;
}

void tt_gguf_pack(const struct tt_gguf_type_row *type, const float *data, int64_t n, void *bytes)
{
    if (type->elements == 1)
        tt_cast(type->dtype, bytes, TT_F32, data, n);
    else
        tt_pack(tt_gguf_packing(type), data, 1, n, 0, 1, bytes);
}

void tt_gguf_unpack(const struct tt_gguf_type_row *type, const void *bytes, int64_t n, float *data)
{
    if (type->elements == 1)
        tt_cast(TT_F32, data, type->dtype, bytes, n);
    else
        tt_unpack(tt_gguf_packing(type), bytes, n, 0, n, data);
}
