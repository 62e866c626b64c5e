/* SPDX-License-Identifier: MIT
 *
 * The layout of a shard file: entries, segments, blocks. Every rank can compute it for every writer, so it is never
 * sent.
 */
#include "checkpoint/format/shard_file.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/graph/graph.h"
#include "core/math/round.h"
#include "parallel/layout/placement.h"

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

/* The rank that holds element `at` of a whole tensor, and how many elements from there on are in a row on that rank. */
static int find_holder(const struct tt_ckpt_chunk *tensor, const struct tt_mesh *mesh, int writer,
                       const struct tt_box *whole, int64_t at, int64_t *ret_run)
{
    struct tt_box element = {.ndim = whole->ndim}, held;
    int64_t run, left = at;
    int part;

    for (int d = whole->ndim - 1; d >= 0; d--) {
        element.offset[d] = left % whole->shape[d];
        element.shape[d] = 1;
        left /= whole->shape[d];
    }
    part = tt_placement_find(mesh, &tensor->placement, tensor->ndim, tensor->shape, element.offset);
    held = tt_placement_box(mesh, &tensor->placement, tensor->ndim, tensor->shape, part);
    run = tt_box_run(&held, whole);
    *ret_run = run - tt_box_position(&element, 0, &held) % run;
    return tt_placement_holder(mesh, &tensor->placement, writer, part);
}

/* Cuts an entry into segments: where a block ends, and where the elements of another rank begin. */
static void cut_entry(struct tt_shard_file *file, int entry, const struct tt_ckpt_chunk *tensor,
                      const struct tt_mesh *mesh, const struct tt_ckpt_piece *piece)
{
    int64_t item = (int64_t)tt_dtype_size(tensor->dtype);
    int64_t begin = file->entry[entry].begin, end = file->entry[entry].end;

    for (int64_t at = begin; at < end;) {
        int64_t block_end = (at / TT_SHARD_BLOCK + 1) * TT_SHARD_BLOCK, stop = end, run = 0;
        int holder;

        if (piece->part == TT_NONE) {
            holder = find_holder(tensor, mesh, piece->writer, &file->entry[entry].box, (at - begin) / item, &run);
            stop = at + run * item;
        } else {
            holder = tt_placement_holder(mesh, &tensor->placement, piece->writer, piece->part);
        }
        stop = block_end < stop ? block_end : stop;
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

    file->n_blocks = (int)tt_div_up(file->data_bytes, TT_SHARD_BLOCK);
    file->block = tt_calloc((size_t)file->n_blocks + 1, sizeof *file->block);
    for (int i = 0; i < file->n_segments; i++) {
        if (at / TT_SHARD_BLOCK > b)
            file->block[++b] = i;
        at += file->segment[i].size;
    }
    file->block[file->n_blocks] = file->n_segments;
}

int tt_shard_file_measure(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                          const struct tt_ckpt_plan *plan, const int *piece, int n, int64_t step,
                          struct tt_shard_file *ret_file)
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
            .box = tt_ckpt_piece_box(p, c, mesh),
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

int tt_shard_file_init(const struct tt_ckpt_state *state, const struct tt_mesh *mesh, const struct tt_ckpt_plan *plan,
                       const int *piece, int n, int64_t step, struct tt_shard_file *ret_file)
{
    struct tt_shard_file file = {0};
    int rc = 0;

    TT_TRY(tt_shard_file_measure(state, mesh, plan, piece, n, step, &file));
    for (int i = 0; i < n; i++) {
        const struct tt_ckpt_piece *p = &plan->piece[file.entry[i].index];

        cut_entry(&file, i, tensor_of(state, p), mesh, p);
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
