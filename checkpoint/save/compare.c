/* SPDX-License-Identifier: MIT
 *
 * Compares replicas while a checkpoint is saved. The rows that a rank writes are summed for the manifest anyway; only
 * the rest is read once more, before training continues.
 */
#include "checkpoint/save/replicas.h"
#include "checkpoint/save/saving.h"
#include "core/base/mem.h"

static int tensor_of(const struct tt_ckpt_saving *s, int piece)
{
    return (s->plan.piece[piece].group == TT_CKPT_OPTIM ? s->stored.n_model : 0) + s->plan.piece[piece].tensor;
}

static const struct tt_ckpt_chunk *live(const struct tt_ckpt_saving *s, int tensor)
{
    return tensor < s->live.n_model ? &s->live.model[tensor] : &s->live.optim[tensor - s->live.n_model];
}

static const struct tt_ckpt_chunk *stored(const struct tt_ckpt_saving *s, int tensor)
{
    return tensor < s->stored.n_model ? &s->stored.model[tensor] : &s->stored.optim[tensor - s->stored.n_model];
}

/* The rows of a tensor that this rank holds and writes as they are. */
static struct tt_summed_rows summed_rows(const struct tt_ckpt_saving *s, const struct tt_ckpt_piece *piece, int tensor)
{
    const struct tt_ckpt_chunk *c = live(s, tensor);
    int64_t begin = piece->row_begin > c->row_begin ? piece->row_begin : c->row_begin;
    int64_t end = piece->row_begin + piece->row_count, held = c->row_begin + c->row_count;

    end = end < held ? end : held;
    if (c->dtype != stored(s, tensor)->dtype || end <= begin)
        return (struct tt_summed_rows){0};
    return (struct tt_summed_rows){begin, end - begin};
}

void tt_saving_sum_rest(struct tt_ckpt_saving *s)
{
    size_t n = (size_t)(s->live.n_model + s->live.n_optim);
    struct tt_summed_rows *without;

    if (s->store->layout.dp_replicate == 1)
        return;
    without = tt_calloc(n + 1, sizeof *without);
    s->own_digest = tt_calloc(n + 1, sizeof *s->own_digest);
    for (int i = 0; i < s->plan.n; i++)
        if (s->plan.piece[i].writer == s->rank)
            without[tensor_of(s, i)] = summed_rows(s, &s->plan.piece[i], tensor_of(s, i));
    tt_replicas_sum(&s->live, without, s->team, s->own_digest);
    tt_free(without);
}

int tt_saving_check_replicas(struct tt_ckpt_saving *s)
{
    if (!s->own_digest)
        return 0;
    for (int group = 0; group < TT_CKPT_GROUPS; group++) {
        const struct tt_shard_file *file = &s->file[group];

        for (int i = 0; i < file->n_segments; i++) {
            int tensor = tensor_of(s, file->entry[file->segment[i].entry].index);

            if (file->segment[i].holder == s->rank && live(s, tensor)->dtype == stored(s, tensor)->dtype)
                s->own_digest[tensor] += file->segment[i].digest;
        }
    }
    return tt_replicas_compare(s->store->comm, &s->store->layout, &s->live, s->own_digest);
}
