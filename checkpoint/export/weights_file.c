/* SPDX-License-Identifier: MIT
 *
 * Streams weights into a safetensors file. The header has the checksums of the data. Its size does not depend on them,
 * so the data is written first and the header last.
 */
#include "checkpoint/export/weights_file.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/format/cast.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/safetensors.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/mem.h"

/* The blocks of an export are large because each reads the whole of a transposed tensor (checkpoint/read/map.h). */
enum { BLOCK_BYTES = 4 << 20, EXPORT_BLOCK_BYTES = 32 << 20 };

enum tt_dtype tt_weight_dtype(const struct tt_weight *weight, bool has_wanted, enum tt_dtype wanted)
{
    return has_wanted && !weight->keeps_dtype && tt_cast_known(wanted, weight->dtype) ? wanted : weight->dtype;
}

int64_t tt_weight_bytes(const struct tt_weight *weight, enum tt_dtype dtype)
{
    struct tt_box whole = tt_box_whole(weight->ndim, weight->shape);

    return tt_box_volume(&whole) * tt_dtype_bits(dtype) / 8;
}

static int write_weight(struct tt_weights_file *f, struct tt_durable *to, int number, int64_t at, uint32_t *ret_crc,
                        uint64_t *ret_digest)
{
    const struct tt_weight *weight = &f->weights->weight[number];
    struct tt_box one = tt_box_rows(weight->ndim, weight->shape, 0, 1);
    enum tt_dtype dtype = f->dtype[number];
    int64_t width = tt_box_volume(&one), rows = weight->ndim ? weight->shape[0] : 1;
    int64_t row_bytes = width * (int64_t)tt_dtype_size(dtype);
    const struct tt_weights *first = f->weights->kind == TT_WEIGHTS_MEAN ? f->weights->of : f->weights;
    int64_t most = first->kind == TT_WEIGHTS_STORED ? BLOCK_BYTES : EXPORT_BLOCK_BYTES;
    int64_t step = row_bytes > 0 && row_bytes < most ? most / row_bytes : 1;
    char *block = tt_calloc_for((size_t)(step < rows ? step : rows), (size_t)row_bytes, weight->name);
    int rc = block ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    for (int64_t row = 0; row < rows && width > 0; row += step) {
        int64_t n = rows - row < step ? rows - row : step, bytes = n * row_bytes;

        TT_TRY(tt_weights_read(f->weights, weight, row, n, dtype, block));
        *ret_crc = tt_crc32c(*ret_crc, block, (size_t)bytes);
        *ret_digest += tt_digest_part(dtype, block, row * width, n * width);
        TT_TRY(tt_durable_write(to, block, (size_t)bytes, at));
        at += bytes;
        f->done += bytes;
        tt_progress(f->what, (double)f->done, (double)f->total);
    }
out:
    tt_free(block);
    return rc;
}

static struct tt_st_tensor *entries_of(const struct tt_weights_file *f, int number, int *ret_n)
{
    struct tt_st_tensor *entry = NULL;
    int n = 0, cap = 0;

    for (int i = 0; i < f->weights->n; i++) {
        const struct tt_weight *w = &f->weights->weight[i];

        if (f->of_file[i] == number)
            TT_PUSH(entry, n, cap) = (struct tt_st_tensor){.name = (char *)(uintptr_t)w->name,
                                                           .dtype = f->dtype[i],
                                                           .box = tt_box_whole(w->ndim, w->shape),
                                                           .has_crc = true,
                                                           .index = i};
    }
    *ret_n = n;
    return entry;
}

void tt_weights_written_release(struct tt_weights_written *written)
{
    tt_free(written->tensor);
    tt_free(written->digest);
    *written = (struct tt_weights_written){0};
}

int tt_weights_write(struct tt_weights_file *file, int number, const char *path, const json_t *extra, bool sharded,
                     struct tt_weights_written *ret_written)
{
    struct tt_weights_written done = {0};
    struct tt_durable to = {.fd = -1};
    struct tt_text header = {0}, again = {0};
    int rc = 0;

    done.tensor = entries_of(file, number, &done.n);
    done.digest = tt_calloc((size_t)done.n + 1, sizeof *done.digest);
    TT_TRY(tt_safetensors_layout(done.tensor, done.n, extra, sharded, &header, &done.bytes));
    done.data_start = (int64_t)header.size;
    TT_TRY(tt_durable_begin(path, done.bytes, -1, &to));
    for (int i = 0; i < done.n; i++)
        TT_TRY(write_weight(file, &to, done.tensor[i].index, done.data_start + done.tensor[i].begin,
                            &done.tensor[i].crc, &done.digest[i]));
    TT_TRY(tt_safetensors_layout(done.tensor, done.n, extra, sharded, &again, &done.bytes));
    TT_TRY(tt_durable_write(&to, again.text, again.size, 0));
    TT_TRY(tt_durable_end(&to));
    done.crc = tt_crc32c(0, again.text, again.size);
    for (int i = 0; i < done.n; i++)
        done.crc =
            tt_crc32c_combine(done.crc, done.tensor[i].crc, (uint64_t)(done.tensor[i].end - done.tensor[i].begin));
    if (ret_written) {
        *ret_written = done;
        done = (struct tt_weights_written){0};
    }
out:
    if (to.fd >= 0)
        tt_durable_cancel(&to);
    tt_text_release(&header);
    tt_text_release(&again);
    tt_weights_written_release(&done);
    return rc;
}
