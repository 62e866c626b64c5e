/* SPDX-License-Identifier: MIT
 *
 * The save plan: policies are rows of a table, each a pure function; the layout of each shard file (entries, segments,
 * blocks); and the amount that a save will write. Every rank can compute all of this for every writer, so ranks
 * exchange none of it.
 *
 * To add a save policy:
 *   1. A row in the policy table: a pure function of tensors and mesh that gives the writer of each row. Rows that
 *      the writer lacks are sent to it.
 *   2. Its word in TT_SAVE_CHOICES, or for a filter in TT_FILTER_CHOICES (core/keys/choices.h), in the key's help in
 *      schema.def, and in titan-train(1).
 *   3. tests/unit/test_save.c saves with every row; `expect_files` there gives the number of files of a policy whose
 *      ranks do not all write.
 *   4. A line in tests/cli/test_plan.sh, and a word in test_saving.sh. `titan plan --checkpoint` follows from the row.
 */
#include "checkpoint/save/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/graph/graph.h"
#include "core/math/round.h"
#include "parallel/layout/placement.h"

/* Parts of at least this size are split among the ranks that hold copies; a smaller part goes to the rank with the
 * least to write. */
static const int64_t split_bytes = (int64_t)1 << 20;

/* The number of rows of a box; a scalar counts as one row. */
static int64_t rows_of(const struct tt_box *box)
{
    return box->ndim ? box->shape[0] : 1;
}

struct tt_box tt_ckpt_piece_box(const struct tt_ckpt_piece *piece, const struct tt_ckpt_chunk *tensor,
                                const struct tt_mesh *mesh)
{
    struct tt_box box = piece->part == TT_NONE
                            ? tt_box_whole(tensor->ndim, tensor->shape)
                            : tt_placement_box(mesh, &tensor->placement, tensor->ndim, tensor->shape, piece->part);

    if (tensor->ndim) {
        box.offset[0] = piece->row_begin;
        box.shape[0] = piece->row_count;
    }
    return box;
}

static void add_piece(struct tt_ckpt_plan *plan, const struct tt_ckpt_piece *piece)
{
    if (piece->row_count > 0)
        TT_PUSH(plan->piece, plan->n, plan->cap) = *piece;
}

struct small {
    struct tt_ckpt_piece piece;
    int64_t bytes;
    int order;
};

static int compare_small(const void *pa, const void *pb)
{
    const struct small *a = pa, *b = pb;

    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->order - b->order;
}

/* Among the ranks that hold a part, the rank with the least to write. */
static int least_loaded(const struct tt_mesh *mesh, const struct tt_placement *placement, int part, const int64_t *load)
{
    int best = tt_placement_rank(mesh, placement, part, 0);

    for (int copy = 1; copy < tt_placement_copies(mesh, placement); copy++) {
        int rank = tt_placement_rank(mesh, placement, part, copy);

        if (load[rank] < load[best])
            best = rank;
    }
    return best;
}

/* The number of tensors of both groups. */
static int n_tensors(const struct tt_ckpt_state *state)
{
    return state->n_model + state->n_optim;
}

/* Piece of tensor i; the caller adds rows and writer. */
static struct tt_ckpt_piece begin_piece(const struct tt_ckpt_state *state, int i)
{
    return (struct tt_ckpt_piece){.group = i < state->n_model ? TT_CKPT_MODEL : TT_CKPT_OPTIM, .tensor = i};
}

/* Part number `part` of a tensor, as one piece and as a box; false if it does not exist or is empty. */
static bool find_part(const struct tt_ckpt_chunk *tensor, const struct tt_mesh *mesh, int part,
                      struct tt_ckpt_piece *piece, struct tt_box *box)
{
    if (part >= tt_placement_parts(mesh, &tensor->placement))
        return false;
    *box = tt_placement_box(mesh, &tensor->placement, tensor->ndim, tensor->shape, part);
    piece->part = part;
    piece->row_begin = box->ndim ? box->offset[0] : 0;
    piece->row_count = rows_of(box);
    return piece->row_count > 0;
}

/* The ranks of every copy write. Large parts are cut by rows into one piece per copy; small parts are assigned in order
 * of size, largest first, each to the rank with the least so far. */
static void assign_all(const struct tt_ckpt_state *state, const struct tt_mesh *mesh, int part, int64_t *load,
                       struct tt_ckpt_plan *plan)
{
    struct small *small = NULL;
    int n_small = 0, cap = 0;

    for (int i = 0; i < n_tensors(state); i++) {
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_tensor(state, i);
        struct tt_ckpt_piece piece = begin_piece(state, i);
        int copies = tt_placement_copies(mesh, &tensor->placement);
        int64_t begin, bytes;
        struct tt_box box;

        if (!find_part(tensor, mesh, part, &piece, &box))
            continue;
        begin = piece.row_begin;
        bytes = tt_ckpt_box_bytes(tensor, &box);
        if (copies == 1 || bytes < split_bytes) {
            struct small item = {piece, bytes, n_small};

            TT_PUSH(small, n_small, cap) = item;
            continue;
        }
        for (int copy = 0; copy < copies; copy++) {
            tt_chunk(rows_of(&box), copies, copy, &piece.row_begin, &piece.row_count);
            piece.row_begin += begin;
            piece.writer = tt_placement_rank(mesh, &tensor->placement, part, copy);
            load[piece.writer] += piece.row_count * (bytes / rows_of(&box));
            add_piece(plan, &piece);
        }
    }
    if (n_small)
        qsort(small, (size_t)n_small, sizeof *small, compare_small);
    for (int i = 0; i < n_small; i++) {
        struct tt_ckpt_piece *piece = &small[i].piece;

        piece->writer = least_loaded(mesh, &tt_ckpt_state_tensor(state, piece->tensor)->placement, part, load);
        load[piece->writer] += small[i].bytes;
        add_piece(plan, piece);
    }
    tt_free(small);
}

/* The rank that holds the first copy of a part writes it. */
static void assign_first_copy(const struct tt_ckpt_state *state, const struct tt_mesh *mesh, int part, int64_t *load,
                              struct tt_ckpt_plan *plan)
{
    (void)load;
    for (int i = 0; i < n_tensors(state); i++) {
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_tensor(state, i);
        struct tt_ckpt_piece piece = begin_piece(state, i);
        struct tt_box box;

        if (!find_part(tensor, mesh, part, &piece, &box))
            continue;
        piece.writer = tt_placement_rank(mesh, &tensor->placement, part, 0);
        add_piece(plan, &piece);
    }
}

/* Rank 0 writes whole tensors; the parts of other ranks are sent to it. */
static void assign_rank0(const struct tt_ckpt_state *state, const struct tt_mesh *mesh, int part, int64_t *load,
                         struct tt_ckpt_plan *plan)
{
    (void)mesh;
    (void)load;
    for (int i = 0; i < n_tensors(state) && part == 0; i++) {
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_tensor(state, i);
        struct tt_box whole = tt_box_whole(tensor->ndim, tensor->shape);
        struct tt_ckpt_piece piece = begin_piece(state, i);

        piece.part = TT_NONE;
        piece.row_count = rows_of(&whole);
        add_piece(plan, &piece);
    }
}

static const struct tt_ckpt_policy policies[] = {
    {"all", NULL, assign_all},
    {"filtered", "replica0", assign_first_copy},
    {"filtered", "rank0", assign_rank0},
};

int tt_ckpt_policy_find(const char *name, const char *filter, const struct tt_ckpt_policy **ret_policy)
{
    enum { N = sizeof policies / sizeof policies[0] };
    struct tt_text names = {0};
    int rc;

    for (int i = 0; i < N; i++) {
        const struct tt_ckpt_policy *row = &policies[i];

        if (strcmp(row->name, name) == 0 && (!row->filter || (filter && strcmp(row->filter, filter) == 0))) {
            *ret_policy = row;
            tt_text_release(&names);
            return 0;
        }
        tt_text_add(&names, "%s%s%s%s", i ? ", " : "", row->name, row->filter ? " with filter " : "",
                    row->filter ? row->filter : "");
    }
    rc = tt_fail(TT_EUSAGE, "no save policy '%s' with filter '%s'\nhelp: %s and %s are one of: %s", name,
                 filter ? filter : "", TT_KEY_NAME(checkpoint.save_policy), TT_KEY_NAME(checkpoint.filter), names.text);
    tt_text_release(&names);
    return rc;
}

const struct tt_ckpt_policy *tt_ckpt_policy_row(int i)
{
    return i < (int)(sizeof policies / sizeof policies[0]) ? &policies[i] : NULL;
}

bool tt_ckpt_piece_is_local(const struct tt_ckpt_piece *piece, const struct tt_ckpt_chunk *tensor,
                            const struct tt_mesh *mesh)
{
    int part = tt_placement_part(mesh, &tensor->placement, piece->writer);
    struct tt_box box, held;

    if (!tt_placement_has(mesh, &tensor->placement, piece->writer))
        return false;
    if (piece->part != TT_NONE)
        return piece->part == part;
    box = tt_ckpt_piece_box(piece, tensor, mesh);
    held = tt_placement_box(mesh, &tensor->placement, tensor->ndim, tensor->shape, part);
    return tt_box_volume(&held) == tt_box_volume(&box);
}

static int compare_pieces(const void *pa, const void *pb)
{
    const struct tt_ckpt_piece *a = pa, *b = pb;

    if (a->tensor != b->tensor)
        return a->tensor - b->tensor;
    if (a->part != b->part)
        return a->part - b->part;
    return a->row_begin < b->row_begin ? -1 : a->row_begin > b->row_begin;
}

static void make_parts(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                       const struct tt_ckpt_policy *policy, int first, int stride, struct tt_ckpt_plan *ret_plan)
{
    int64_t *load = tt_calloc((size_t)mesh->n_ranks, sizeof *load);
    struct tt_ckpt_plan plan = {0};
    int end = 1;

    for (int i = 0; i < n_tensors(state); i++) {
        int parts = tt_placement_parts(mesh, &tt_ckpt_state_tensor(state, i)->placement);

        end = parts > end ? parts : end;
    }
    for (int part = first; part < end; part += stride)
        policy->assign(state, mesh, part, load, &plan);
    if (plan.n)
        qsort(plan.piece, (size_t)plan.n, sizeof *plan.piece, compare_pieces);
    for (int i = 0; i < plan.n; i++) {
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_tensor(state, plan.piece[i].tensor);
        struct tt_box box = tt_ckpt_piece_box(&plan.piece[i], tensor, mesh);

        plan.bytes += tt_ckpt_box_bytes(tensor, &box);
    }
    tt_free(load);
    *ret_plan = plan;
}

void tt_ckpt_plan_make(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                       const struct tt_ckpt_policy *policy, struct tt_ckpt_plan *ret_plan)
{
    make_parts(state, mesh, policy, 0, 1, ret_plan);
}

/* The last cut of every placement is over these ranks. With expert parallelism, the parts of experts are in a different
 * order. */
void tt_ckpt_plan_shard(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                        const struct tt_ckpt_policy *policy, int rank, struct tt_ckpt_plan *ret_plan)
{
    struct tt_place shard = tt_mesh_place(mesh, rank, TT_GROUP_FSDP);
    bool in_order = mesh->size[TT_MESH_EP] == 1;
    struct tt_ckpt_plan plan = {0};

    make_parts(state, mesh, policy, in_order ? shard.index : 0, in_order ? shard.n : 1, &plan);
    ret_plan->n = 0;
    for (int i = 0; i < plan.n; i++)
        if (in_order || tt_mesh_place(mesh, plan.piece[i].writer, TT_GROUP_FSDP).index == shard.index)
            plan.piece[ret_plan->n++] = plan.piece[i];
    plan.n = ret_plan->n;
    *ret_plan = plan;
}

void tt_ckpt_plan_release(struct tt_ckpt_plan *plan)
{
    tt_free(plan->piece);
    *plan = (struct tt_ckpt_plan){0};
}

/* A counting sort, since a large job has millions of pieces and thousands of files. */
void tt_ckpt_plan_files(const struct tt_ckpt_plan *plan, int n_ranks, int **ret_begin, int **ret_piece)
{
    size_t n_files = (size_t)TT_CKPT_GROUPS * (size_t)n_ranks;
    int *begin = tt_calloc(n_files + 1, sizeof *begin), *next = tt_calloc(n_files + 1, sizeof *next);
    int *piece = tt_calloc((size_t)plan->n + 1, sizeof *piece);

    for (int i = 0; i < plan->n; i++)
        begin[(size_t)plan->piece[i].group * (size_t)n_ranks + (size_t)plan->piece[i].writer + 1]++;
    for (size_t f = 0; f < n_files; f++)
        next[f + 1] = begin[f + 1] += begin[f];
    for (int i = 0; i < plan->n; i++)
        piece[next[(size_t)plan->piece[i].group * (size_t)n_ranks + (size_t)plan->piece[i].writer]++] = i;
    tt_free(next);
    *ret_begin = begin;
    *ret_piece = piece;
}

uint64_t tt_ckpt_plan_hash(const struct tt_ckpt_state *state, const struct tt_ckpt_plan *plan)
{
    uint64_t hash = 0;

    for (int i = 0; i < n_tensors(state); i++) {
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_tensor(state, i);

        hash = tt_hash64(tensor->name, strlen(tensor->name) + 1, hash);
        hash = tt_hash64(tensor->shape, (size_t)tensor->ndim * sizeof tensor->shape[0], hash);
        hash = tt_mix64(hash ^ (uint64_t)tensor->dtype);
    }
    for (int i = 0; i < plan->n; i++) {
        const struct tt_ckpt_piece *piece = &plan->piece[i];
        int64_t words[] = {piece->tensor, piece->part, piece->row_begin, piece->row_count, piece->writer};

        hash = tt_hash64(words, sizeof words, hash);
    }
    return hash;
}

char *tt_ckpt_shard_path(enum tt_ckpt_group group, int rank)
{
    const char *name = tt_ckpt_group_name(group);

    return tt_format("%s/shard-%05d-%s-00001-of-00001.safetensors", name, rank + 1, name);
}

/* --- the layout of a shard file --- */

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

/* The rank that holds element `at` of a whole tensor, and how many consecutive elements from there on it holds. */
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

/* Cuts an entry into segments, at the ends of blocks and where another rank's elements begin. */
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

static int measure(const struct tt_ckpt_state *state, const struct tt_mesh *mesh, const struct tt_ckpt_plan *plan,
                   const int *piece, int n, int64_t step, struct tt_shard_file *ret_file)
{
    struct tt_shard_file file = {.step = step, .n = n, .local = true};
    struct tt_text header = {0};
    int rc = 0;

    file.entry = tt_calloc((size_t)n, sizeof *file.entry);
    for (int i = 0; i < n; i++) {
        const struct tt_ckpt_piece *p = &plan->piece[piece[i]];
        const struct tt_ckpt_chunk *c = tt_ckpt_state_tensor(state, p->tensor);

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

    TT_TRY(measure(state, mesh, plan, piece, n, step, &file));
    for (int i = 0; i < n; i++) {
        const struct tt_ckpt_piece *p = &plan->piece[file.entry[i].index];

        cut_entry(&file, i, tt_ckpt_state_tensor(state, p->tensor), mesh, p);
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

/* --- a save without its data --- */

int tt_ckpt_preview_make(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                         const struct tt_ckpt_policy *policy, int64_t step, struct tt_ckpt_preview *ret_preview)
{
    int n_ranks = mesh->n_ranks, *begin = NULL, *piece = NULL, rc = 0;
    struct tt_ckpt_preview preview = {0};
    struct tt_ckpt_plan plan = {0};

    preview.file = tt_calloc((size_t)TT_CKPT_GROUPS * (size_t)n_ranks, sizeof *preview.file);
    tt_ckpt_plan_make(state, mesh, policy, &plan);
    tt_ckpt_plan_files(&plan, n_ranks, &begin, &piece);
    for (int rank = 0; rank < n_ranks; rank++) {
        int64_t bytes = 0;

        for (int group = 0; group < TT_CKPT_GROUPS; group++) {
            int slot = group * n_ranks + rank, n = begin[slot + 1] - begin[slot];
            struct tt_shard_file file = {0};

            if (n == 0)
                continue;
            TT_TRY(measure(state, mesh, &plan, piece + begin[slot], n, step, &file));
            bytes += tt_shard_file_bytes(&file);
            preview.file[preview.n++] =
                (struct tt_ckpt_preview_file){(enum tt_ckpt_group)group, rank, n, tt_shard_file_bytes(&file)};
            tt_shard_file_release(&file);
        }
        preview.writers += bytes > 0;
        preview.bytes += bytes;
        preview.most_bytes = bytes > preview.most_bytes ? bytes : preview.most_bytes;
    }
    *ret_preview = preview;
    preview = (struct tt_ckpt_preview){0};
out:
    tt_ckpt_preview_release(&preview);
    tt_ckpt_plan_release(&plan);
    tt_free(begin);
    tt_free(piece);
    return rc;
}

void tt_ckpt_preview_release(struct tt_ckpt_preview *preview)
{
    tt_free(preview->file);
    *preview = (struct tt_ckpt_preview){0};
}

double tt_ckpt_demand_bytes(const struct tt_ckpt_demand *d, int64_t keep)
{
    bool removes = keep > 0 && (d->held > keep || d->saves > keep - d->held);
    int64_t together = d->saves; /* at most this many new steps exist before an older one is removed */
    double before, saved, exported;

    if (d->saves <= 0)
        return 0.0;
    if (removes) {
        int64_t room = d->held >= keep ? 1 : keep - d->held + 1;

        together = together < room ? together : room;
    }
    before = (double)(together - 1) * d->one;
    saved = before + (together < d->saves ? d->one : d->last);
    exported = before + d->last + d->exports - (removes ? d->one : 0.0);
    return fmax(saved, exported);
}
