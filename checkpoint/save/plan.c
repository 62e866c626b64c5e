/* SPDX-License-Identifier: MIT
 *
 * The save plan: policies are rows of a table, each a pure function.
 */
#include "checkpoint/save/plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"

/* Chunks of at least this size are divided among the replicas; a smaller one goes to the replica with the least to
 * write. */
static const int64_t split_bytes = (int64_t)1 << 20;

const char *tt_ckpt_group_name(enum tt_ckpt_group group)
{
    static const char *const names[TT_CKPT_GROUPS] = {[TT_CKPT_MODEL] = "model", [TT_CKPT_OPTIM] = "optim"};

    return names[group];
}

struct tt_ckpt_chunk *tt_ckpt_state_group(const struct tt_ckpt_state *state, enum tt_ckpt_group group, int *ret_n)
{
    *ret_n = group == TT_CKPT_MODEL ? state->n_model : state->n_optim;
    return group == TT_CKPT_MODEL ? state->model : state->optim;
}

void tt_ckpt_rows(int64_t rows, int n_shards, int shard, int64_t *ret_begin, int64_t *ret_count)
{
    int64_t each = (rows + n_shards - 1) / n_shards;
    int64_t begin = each * shard < rows ? each * shard : rows;

    *ret_begin = begin;
    *ret_count = each < rows - begin ? each : rows - begin;
}

int64_t tt_ckpt_row_number(const struct tt_ckpt_chunk *tensor)
{
    return tensor->ndim ? tensor->shape[0] : 1;
}

int64_t tt_ckpt_row_bytes(const struct tt_ckpt_chunk *tensor)
{
    int64_t bytes = (int64_t)tt_dtype_size(tensor->dtype);

    for (int d = 1; d < tensor->ndim; d++)
        bytes *= tensor->shape[d];
    return bytes;
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

static int least_loaded(const int64_t *load, int n)
{
    int best = 0;

    for (int i = 1; i < n; i++)
        if (load[i] < load[best])
            best = i;
    return best;
}

/* Every replica writes. Large chunks are cut by rows into one part per replica; small ones are dealt out, largest
 * first, each to the replica that has the least so far. */
static void assign_all(const struct tt_ckpt_state *state, const struct tt_ckpt_layout *layout, int shard,
                       struct tt_ckpt_plan *plan)
{
    int64_t *load = tt_calloc((size_t)layout->dp_replicate, sizeof *load);
    struct small *small = NULL;
    int n_small = 0, cap = 0;

    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        int n = 0;
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_group(state, (enum tt_ckpt_group)group, &n);

        for (int i = 0; i < n; i++) {
            struct tt_ckpt_piece piece = {(enum tt_ckpt_group)group, i, 0, 0, shard};
            int64_t begin, count, row_bytes = tt_ckpt_row_bytes(&tensor[i]);

            tt_ckpt_rows(tt_ckpt_row_number(&tensor[i]), layout->dp_shard, shard, &begin, &count);
            piece.row_begin = begin;
            piece.row_count = count;
            if (layout->dp_replicate == 1 || count * row_bytes < split_bytes) {
                struct small item = {piece, count * row_bytes, n_small};

                TT_PUSH(small, n_small, cap) = item;
                continue;
            }
            for (int replica = 0; replica < layout->dp_replicate; replica++) {
                tt_ckpt_rows(count, layout->dp_replicate, replica, &piece.row_begin, &piece.row_count);
                piece.row_begin += begin;
                piece.writer = replica * layout->dp_shard + shard;
                load[replica] += piece.row_count * row_bytes;
                add_piece(plan, &piece);
            }
        }
    }
    if (n_small)
        qsort(small, (size_t)n_small, sizeof *small, compare_small);
    for (int i = 0; i < n_small; i++) {
        int replica = least_loaded(load, layout->dp_replicate);

        load[replica] += small[i].bytes;
        small[i].piece.writer = replica * layout->dp_shard + shard;
        add_piece(plan, &small[i].piece);
    }
    tt_free(small);
    tt_free(load);
}

/* The first replica of each shard writes what it holds. */
static void assign_first_replica(const struct tt_ckpt_state *state, const struct tt_ckpt_layout *layout, int shard,
                                 struct tt_ckpt_plan *plan)
{
    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        int n = 0;
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_group(state, (enum tt_ckpt_group)group, &n);

        for (int i = 0; i < n; i++) {
            struct tt_ckpt_piece piece = {(enum tt_ckpt_group)group, i, 0, 0, shard};

            tt_ckpt_rows(tt_ckpt_row_number(&tensor[i]), layout->dp_shard, shard, &piece.row_begin, &piece.row_count);
            add_piece(plan, &piece);
        }
    }
}

/* Rank 0 writes whole tensors; the rows of other shards are sent to it. */
static void assign_rank0(const struct tt_ckpt_state *state, const struct tt_ckpt_layout *layout, int shard,
                         struct tt_ckpt_plan *plan)
{
    (void)layout;
    for (int group = 0; group < TT_CKPT_GROUPS && shard == 0; group++) {
        int n = 0;
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_group(state, (enum tt_ckpt_group)group, &n);

        for (int i = 0; i < n; i++) {
            struct tt_ckpt_piece piece = {(enum tt_ckpt_group)group, i, 0, tt_ckpt_row_number(&tensor[i]), 0};

            add_piece(plan, &piece);
        }
    }
}

static const struct tt_ckpt_policy policies[] = {
    {"all", NULL, assign_all},
    {"filtered", "replica0", assign_first_replica},
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
    rc = tt_fail(
        TT_EUSAGE,
        "no save policy '%s' with filter '%s'\nhelp: checkpoint.save_policy and checkpoint.filter are one of: %s", name,
        filter ? filter : "", names.text);
    tt_text_release(&names);
    return rc;
}

const struct tt_ckpt_policy *tt_ckpt_policy_row(int i)
{
    return i < (int)(sizeof policies / sizeof policies[0]) ? &policies[i] : NULL;
}

int tt_ckpt_holder(const struct tt_ckpt_chunk *tensor, const struct tt_ckpt_layout *layout, int writer, int64_t row)
{
    int64_t each = (tt_ckpt_row_number(tensor) + layout->dp_shard - 1) / layout->dp_shard;

    return writer - writer % layout->dp_shard + (int)(row / each);
}

bool tt_ckpt_piece_is_local(const struct tt_ckpt_piece *piece, const struct tt_ckpt_chunk *tensor,
                            const struct tt_ckpt_layout *layout)
{
    return tt_ckpt_holder(tensor, layout, piece->writer, piece->row_begin) == piece->writer &&
           tt_ckpt_holder(tensor, layout, piece->writer, piece->row_begin + piece->row_count - 1) == piece->writer;
}

static int compare_pieces(const void *pa, const void *pb)
{
    const struct tt_ckpt_piece *a = pa, *b = pb;

    if (a->group != b->group)
        return (int)a->group - (int)b->group;
    if (a->tensor != b->tensor)
        return a->tensor - b->tensor;
    return a->row_begin < b->row_begin ? -1 : a->row_begin > b->row_begin;
}

void tt_ckpt_plan_make(const struct tt_ckpt_state *state, const struct tt_ckpt_layout *layout,
                       const struct tt_ckpt_policy *policy, struct tt_ckpt_plan *ret_plan)
{
    struct tt_ckpt_plan plan = {0};

    for (int shard = 0; shard < layout->dp_shard; shard++)
        policy->assign(state, layout, shard, &plan);
    if (plan.n)
        qsort(plan.piece, (size_t)plan.n, sizeof *plan.piece, compare_pieces);
    for (int i = 0; i < plan.n; i++) {
        int n = 0;
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_group(state, plan.piece[i].group, &n);

        plan.bytes += plan.piece[i].row_count * tt_ckpt_row_bytes(&tensor[plan.piece[i].tensor]);
    }
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

    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        int n = 0;
        const struct tt_ckpt_chunk *tensor = tt_ckpt_state_group(state, (enum tt_ckpt_group)group, &n);

        for (int i = 0; i < n; i++) {
            hash = tt_hash64(tensor[i].name, strlen(tensor[i].name) + 1, hash);
            hash = tt_hash64(tensor[i].shape, (size_t)tensor[i].ndim * sizeof tensor[i].shape[0], hash);
            hash = tt_mix64(hash ^ (uint64_t)tensor[i].dtype);
        }
    }
    for (int i = 0; i < plan->n; i++) {
        const struct tt_ckpt_piece *piece = &plan->piece[i];
        int64_t words[] = {(int64_t)piece->group, piece->tensor, piece->row_begin, piece->row_count, piece->writer};

        hash = tt_hash64(words, sizeof words, hash);
    }
    return hash;
}

char *tt_ckpt_shard_path(enum tt_ckpt_group group, int rank)
{
    const char *name = tt_ckpt_group_name(group);

    return tt_format("%s/shard-%05d-%s-00001-of-00001.safetensors", name, rank + 1, name);
}
