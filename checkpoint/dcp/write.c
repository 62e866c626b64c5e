/* SPDX-License-Identifier: MIT
 *
 * A folder of PyTorch's: one archive after the other, each a piece of a tensor or an object.
 */
#include "checkpoint/dcp/write.h"

#include <string.h>

#include "checkpoint/dcp/item_write.h"
#include "checkpoint/dcp/metadata_write.h"
#include "checkpoint/dcp/scan.h"
#include "checkpoint/dcp/zip_write.h"
#include "checkpoint/format/cast.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/mem.h"

enum { BLOCK_BYTES = 32 << 20 };

struct tt_dcp_writer tt_dcp_writer_new(const char *folder)
{
    return (struct tt_dcp_writer){.folder = folder, .to.fd = -1};
}

void tt_dcp_writer_release(struct tt_dcp_writer *writer)
{
    if (writer->to.fd >= 0)
        tt_durable_cancel(&writer->to);
    tt_dcp_metadata_release(&writer->metadata);
}

static int end_file(struct tt_dcp_writer *w)
{
    int rc = 0;

    if (w->to.fd < 0)
        return 0;
    TT_TRY(tt_durable_end(&w->to));
    w->bytes += w->at;
    w->metadata.file[w->metadata.n_files - 1].bytes = w->at;
    w->to.fd = -1;
out:
    return rc;
}

int tt_dcp_writer_file(struct tt_dcp_writer *writer)
{
    struct tt_dcp_metadata *m = &writer->metadata;
    char *name = tt_format("__0_%d.distcp", m->n_files), *path = tt_format("%s/%s", writer->folder, name);
    int rc = end_file(writer);

    TT_PUSH(m->file, m->n_files, m->cap_files) = (struct tt_dcp_file){.name = name};
    TT_TRY(rc);
    TT_TRY(tt_durable_begin(path, 0, -1, &writer->to));
    writer->at = 0;
out:
    tt_free(path);
    return rc;
}

static int put(struct tt_dcp_writer *w, const void *bytes, size_t size)
{
    int rc = tt_durable_write(&w->to, bytes, size, w->at);

    w->at += (int64_t)size;
    return rc;
}

static struct tt_dcp_entry *add_entry(struct tt_dcp_writer *w, const char *key, const char *root)
{
    struct tt_dcp_metadata *m = &w->metadata;

    TT_PUSH(m->entry, m->n, m->cap) = (struct tt_dcp_entry){.key = tt_strdup(key), .leaf = root ? strlen(root) + 1 : 0};
    return &m->entry[m->n - 1];
}

static void add_piece(struct tt_dcp_writer *w, const struct tt_box *box, int64_t begin)
{
    struct tt_dcp_entry *entry = &w->metadata.entry[w->metadata.n - 1];

    TT_PUSH(entry->piece, entry->n, entry->cap) =
        (struct tt_dcp_piece){*box, w->metadata.n_files - 1, begin, w->at - begin};
}

/* Streams the elements of rows [row, row + rows). */
static int put_rows(struct tt_dcp_writer *w, struct tt_weights_file *f, int number, int64_t row, int64_t rows,
                    uint32_t *ret_crc)
{
    const struct tt_weight *weight = &f->weights->weight[number];
    struct tt_box one = tt_box_rows(weight->ndim, weight->shape, 0, 1);
    enum tt_dtype dtype = f->dtype[number];
    int64_t row_bytes = tt_box_volume(&one) * (int64_t)tt_dtype_size(dtype);
    int64_t step = row_bytes < BLOCK_BYTES ? BLOCK_BYTES / row_bytes : 1;
    char *block = tt_calloc_for((size_t)(step < rows ? step : rows), (size_t)row_bytes, weight->name);
    int rc = block ? 0 : TT_ENOMEM;

    for (int64_t at = 0; at < rows && rc == 0; at += step) {
        int64_t n = rows - at < step ? rows - at : step, bytes = n * row_bytes;

        TT_TRY(tt_weights_read(f->weights, weight, row + at, n, dtype, block));
        *ret_crc = tt_crc32(*ret_crc, block, (size_t)bytes);
        TT_TRY(put(w, block, (size_t)bytes));
        f->done += bytes;
        tt_progress(f->what, (double)f->done, (double)f->total);
    }
out:
    tt_free(block);
    return rc;
}

static int add_rows(struct tt_dcp_writer *w, struct tt_weights_file *f, int number, int64_t row, int64_t rows)
{
    const struct tt_weight *weight = &f->weights->weight[number];
    struct tt_box box = tt_box_rows(weight->ndim, weight->shape, row, rows);
    struct tt_archive archive = {0};
    int64_t begin = w->at;
    uint32_t crc = 0;
    int rc = 0;

    TT_TRY(tt_dcp_item_tensor(weight->name, f->dtype[number], box.ndim, box.shape, &archive));
    TT_TRY(put(w, archive.head.text, archive.head.size));
    TT_TRY(put_rows(w, f, number, row, rows, &crc));
    tt_archive_end(&archive, crc);
    TT_TRY(put(w, archive.tail.text, archive.tail.size));
    add_piece(w, &box, begin);
out:
    tt_archive_release(&archive);
    return rc;
}

int tt_dcp_writer_weight(struct tt_dcp_writer *writer, struct tt_weights_file *file, int number, const char *key,
                         const char *root)
{
    const struct tt_weight *weight = &file->weights->weight[number];
    struct tt_box one = tt_box_rows(weight->ndim, weight->shape, 0, 1);
    struct tt_dcp_entry *entry;
    int64_t row_bytes = tt_box_volume(&one) * (int64_t)tt_dtype_size(file->dtype[number]);
    int64_t rows = weight->ndim ? weight->shape[0] : 1;
    int64_t step = row_bytes > 0 && row_bytes < TT_ARCHIVE_DATA_MOST ? TT_ARCHIVE_DATA_MOST / row_bytes : 1;
    int rc = 0;

    if (!tt_dcp_dtype_name(file->dtype[number]))
        return tt_cast_fail(weight->name, "written for PyTorch", file->dtype[number]);
    entry = add_entry(writer, key, root);
    entry->is_tensor = true;
    entry->dtype = file->dtype[number];
    entry->ndim = weight->ndim;
    memcpy(entry->shape, weight->shape, sizeof weight->shape);
    for (int64_t row = 0; row < rows && row_bytes > 0;
         row += step) /* PyTorch never asks for a piece without elements */
        TT_TRY(add_rows(writer, file, number, row, rows - row < step ? rows - row : step));
out:
    return rc;
}

/* An archive that fits in memory, as the only piece of the last entry. */
static int add_small(struct tt_dcp_writer *w, struct tt_archive *archive, const void *data, size_t size)
{
    int64_t begin = w->at;
    int rc = 0;

    tt_archive_end(archive, tt_crc32(0, data, size));
    TT_TRY(put(w, archive->head.text, archive->head.size));
    if (size)
        TT_TRY(put(w, data, size));
    TT_TRY(put(w, archive->tail.text, archive->tail.size));
    add_piece(w, &(struct tt_box){0}, begin);
out:
    return rc;
}

int tt_dcp_writer_object(struct tt_dcp_writer *writer, const char *key, const char *root, struct tt_pickler *pickler)
{
    struct tt_archive archive = {0};
    int rc;

    (void)add_entry(writer, key, root);
    tt_dcp_item_object(pickler, &archive);
    rc = add_small(writer, &archive, "", 0);
    tt_archive_release(&archive);
    return rc;
}

int tt_dcp_writer_scalar(struct tt_dcp_writer *writer, const char *key, const char *root, float number)
{
    struct tt_dcp_entry *entry = add_entry(writer, key, root);
    struct tt_archive archive = {0};
    int rc = 0;

    entry->is_tensor = true;
    entry->dtype = TT_F32;
    TT_TRY(tt_dcp_item_tensor(key, TT_F32, 0, NULL, &archive));
    TT_TRY(add_small(writer, &archive, &number, sizeof number));
out:
    tt_archive_release(&archive);
    return rc;
}

/* The number of an entry, or TT_NONE. */
static int find_entry(const struct tt_dcp_metadata *m, const char *key)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->entry[i].key, key) == 0)
            return i;
    return TT_NONE;
}

void tt_dcp_writer_alias(struct tt_dcp_writer *writer, const char *key, const char *of)
{
    int known = find_entry(&writer->metadata, of);
    const struct tt_dcp_entry *first;
    struct tt_dcp_entry *entry;

    if (known == TT_NONE || find_entry(&writer->metadata, key) != TT_NONE)
        return;
    entry = add_entry(writer, key, NULL);
    first = &writer->metadata.entry[known];
    entry->is_tensor = true;
    entry->dtype = first->dtype;
    entry->ndim = first->ndim;
    memcpy(entry->shape, first->shape, sizeof first->shape);
    for (int i = 0; i < first->n; i++)
        TT_PUSH(entry->piece, entry->n, entry->cap) = first->piece[i];
}

int tt_dcp_writer_finish(struct tt_dcp_writer *writer)
{
    char *path = tt_format("%s/" TT_DCP_METADATA, writer->folder);
    struct tt_text text = {0};
    int rc = 0;

    TT_TRY(end_file(writer));
    tt_dcp_metadata_text(&writer->metadata, &text);
    TT_TRY(tt_durable_put(path, text.text, text.size));
    writer->bytes += (int64_t)text.size;
out:
    tt_text_release(&text);
    tt_free(path);
    return rc;
}
