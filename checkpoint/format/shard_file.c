/* SPDX-License-Identifier: MIT
 *
 * The layout of a shard file: entries, segments, blocks. Every rank can compute it for every writer, so nobody sends it.
 */
#include "checkpoint/format/shard_file.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/mem.h"

static const struct tt_ckpt_chunk *tensor_of(const struct tt_ckpt_state *state, const struct tt_ckpt_piece *piece)
{
    int n = 0;

    return &tt_ckpt_state_group(state, piece->group, &n)[piece->tensor];
}

int tt_shard_file_header(struct tt_shard_file *file, struct tt_text *header)
{
    char step[32], rank[16];
    int64_t bytes = 0;
    json_t *extra;
    int rc;

    (void)snprintf(step, sizeof step, "%" PRId64, file->step);
    (void)snprintf(rank, sizeof rank, "%d", file->writer);
    extra = json_pack("{s:s,s:s,s:s}", "titan.version", "1", "titan.step", step, "titan.rank", rank);
    rc = tt_safetensors_layout(file->entry, file->n, extra, true, header, &bytes);
    json_decref(extra);
    if (rc == 0) {
        file->data_start = (int64_t)header->size;
        file->data_bytes = bytes - file->data_start;
    }
    return rc;
}

/* The segments of one entry: cut where a block ends and where another rank's rows begin. */
static void cut_entry(struct tt_shard_file *file, int entry, const struct tt_ckpt_chunk *tensor,
                      const struct tt_ckpt_layout *layout, const struct tt_ckpt_piece *piece)
{
    int64_t row_bytes = tt_ckpt_row_bytes(tensor), rows = tt_ckpt_row_number(tensor);
    int64_t begin = file->entry[entry].begin, end = file->entry[entry].end;
    int64_t each = (rows + layout->dp_shard - 1) / layout->dp_shard;

    for (int64_t at = begin; at < end;) {
        int64_t row = piece->row_begin + (at - begin) / row_bytes;
        int64_t block_end = (at / TT_SHARD_BLOCK + 1) * TT_SHARD_BLOCK;
        int64_t rows_end = begin + ((row / each + 1) * each - piece->row_begin) * row_bytes, stop = end;
        int holder = tt_ckpt_holder(tensor, layout, piece->writer, row);

        stop = block_end < stop ? block_end : stop;
        stop = rows_end < stop ? rows_end : stop;
        TT_PUSH(file->segment, file->n_segments, file->cap_segments) =
            (struct tt_shard_segment){.entry = entry, .holder = holder, .offset = at - begin, .size = stop - at};
        file->local = file->local && holder == piece->writer;
        at = stop;
    }
}

static void cut_blocks(struct tt_shard_file *file)
{
    int64_t at = 0;
    int b = 0;

    file->n_blocks = (int)((file->data_bytes + TT_SHARD_BLOCK - 1) / TT_SHARD_BLOCK);
    file->block = tt_calloc((size_t)file->n_blocks + 1, sizeof *file->block);
    for (int i = 0; i < file->n_segments; i++) {
        if (at / TT_SHARD_BLOCK > b)
            file->block[++b] = i;
        at += file->segment[i].size;
    }
    file->block[file->n_blocks] = file->n_segments;
}

int tt_shard_file_measure(const struct tt_ckpt_state *state, const struct tt_ckpt_plan *plan, const int *piece, int n,
                          int64_t step, struct tt_shard_file *ret_file)
{
    struct tt_shard_file file = {.step = step, .n = n, .local = true};
    struct tt_text header = {0};
    int rc = 0;

    file.entry = tt_calloc((size_t)n, sizeof *file.entry);
    for (int i = 0; i < n; i++) {
        const struct tt_ckpt_piece *p = &plan->piece[piece[i]];
        const struct tt_ckpt_chunk *c = tensor_of(state, p);

        file.group = p->group;
        file.writer = p->writer;
        file.entry[i] = (struct tt_st_tensor){
            .name = (char *)(uintptr_t)c->name,
            .dtype = c->dtype,
            .box = tt_box_rows(c->ndim, c->shape, p->row_begin, p->row_count),
            .has_crc = true,
            .index = piece[i],
        };
    }
    if (n)
        TT_TRY(tt_shard_file_header(&file, &header));
    *ret_file = file;
    file = (struct tt_shard_file){0};
out:
    tt_text_release(&header);
    tt_shard_file_release(&file);
    return rc;
}

int tt_shard_file_init(const struct tt_ckpt_state *state, const struct tt_ckpt_layout *layout,
                       const struct tt_ckpt_plan *plan, const int *piece, int n, int64_t step,
                       struct tt_shard_file *ret_file)
{
    struct tt_shard_file file = {0};
    int rc = 0;

    TT_TRY(tt_shard_file_measure(state, plan, piece, n, step, &file));
    for (int i = 0; i < n; i++) {
        const struct tt_ckpt_piece *p = &plan->piece[file.entry[i].index];

        cut_entry(&file, i, tensor_of(state, p), layout, p);
    }
    cut_blocks(&file);
    *ret_file = file;
out:
    return rc;
}

void tt_shard_file_release(struct tt_shard_file *file)
{
    tt_free(file->entry);
    tt_free(file->segment);
    tt_free(file->block);
    *file = (struct tt_shard_file){0};
}

int64_t tt_shard_file_bytes(const struct tt_shard_file *file)
{
    return file->data_start + file->data_bytes;
}

int64_t tt_shard_block_bytes(const struct tt_shard_file *file, int b)
{
    int64_t begin = (int64_t)b * TT_SHARD_BLOCK;

    return file->data_bytes - begin < TT_SHARD_BLOCK ? file->data_bytes - begin : TT_SHARD_BLOCK;
}

uint32_t tt_shard_file_join(struct tt_shard_file *file)
{
    uint32_t all = 0;

    for (int i = 0; i < file->n; i++)
        file->entry[i].crc = 0;
    for (int i = 0; i < file->n_segments; i++) {
        const struct tt_shard_segment *s = &file->segment[i];
        struct tt_st_tensor *entry = &file->entry[s->entry];

        entry->crc = tt_crc32c_combine(entry->crc, s->crc, (uint64_t)s->size);
        all = tt_crc32c_combine(all, s->crc, (uint64_t)s->size);
    }
    return all;
}
