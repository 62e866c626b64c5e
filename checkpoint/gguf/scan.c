/* SPDX-License-Identifier: MIT
 *
 * Presents the tensors of a GGUF file as the tensors of a checkpoint.
 */
#include "checkpoint/gguf/scan.h"

#include <string.h>

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
    struct tt_manifest manifest = {0};
    struct tt_gguf file = {0};
    int rc = 0;

    TT_TRY(tt_gguf_open(path, &file));
    TT_TRY(tt_gguf_checksums(&file, &crc));
    (void)tt_manifest_add_file(&manifest, slash ? slash + 1 : path, file.file_bytes);
    for (int i = 0; i < file.n_tensors; i++)
        add_tensor(&file.tensor[i], crc, i, &manifest);
    TT_TRY(tt_manifest_check_totals(&manifest, path));
    tt_manifest_sort(&manifest);
    *ret_manifest = manifest;
    manifest = (struct tt_manifest){0};
out:
    tt_manifest_release(&manifest);
    tt_gguf_release(&file);
    return rc;
}
