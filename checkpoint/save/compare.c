/* SPDX-License-Identifier: MIT
 *
 * Compares replicas while a checkpoint is saved. The rows that a rank writes are summed for the manifest anyway; only
 * the rest is read once more, before training continues.
 */
#include "checkpoint/save/replicas.h"
#include "checkpoint/save/saving.h"
#include "core/base/mem.h"
#include "parallel/layout/placement.h"

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

/* What of a tensor this rank holds and writes as it is: rows of its part, or all of it. */
static struct tt_summed summed(const struct tt_ckpt_saving *s, const struct tt_ckpt_piece *piece, int tensor)
{
    const struct tt_ckpt_chunk *c = live(s, tensor);
    struct tt_box box = tt_ckpt_piece_box(piece, c, &s->store->mesh), common;
    int64_t begin;

    if (c->dtype != stored(s, tensor)->dtype || tt_box_volume(&c->part) == 0 ||
        !tt_placement_has(&s->store->mesh, &c->placement, s->rank) || !tt_box_intersect(&box, &c->part, &common))
        return (struct tt_summed){0};
    begin = tt_box_position(&common, 0, &c->part);
    return (struct tt_summed){begin, begin + tt_box_volume(&common)};
}

void tt_saving_sum_rest(struct tt_ckpt_saving *s)
{
    size_t n = (size_t)(s->live.n_model + s->live.n_optim);
    struct tt_summed *without;

    if (!tt_replicas_exist(&s->store->mesh, &s->live))
        return;
    without = tt_calloc(n + 1, sizeof *without);
    s->own_digest = tt_calloc(n + 1, sizeof *s->own_digest);
    for (int i = 0; i < s->plan.n; i++)
        if (s->plan.piece[i].writer == s->rank)
            without[tensor_of(s, i)] = summed(s, &s->plan.piece[i], tensor_of(s, i));
    tt_replicas_sum(&s->store->mesh, &s->live, without, s->team, s->own_digest);
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
    return tt_replicas_compare(s->store->comm, &s->store->mesh, &s->live, s->own_digest);
}
