/* SPDX-License-Identifier: MIT
 *
 * Whole samples, and the part of each that one rank computes.
 */
#include "parallel/engine/samples.h"

#include <string.h>

#include "core/program/program.h"

int64_t tt_samples_bytes(const struct tt_mesh *mesh, int64_t batch, int64_t seq_len, int microbatches, bool documents)
{
    int arrays = documents ? 3 : 2;

    if (mesh->cp_grains <= 1)
        return 0;
    return tt_arena_bytes((int64_t)sizeof(int32_t) * arrays * microbatches * batch * seq_len);
}

struct tt_samples tt_samples_make(const struct tt_mesh *mesh, int rank, int64_t batch, int64_t seq_len,
                                  int microbatches, bool documents, const struct tt_executor *executor, void *memory)
{
    struct tt_place cp = tt_mesh_place(mesh, rank, TT_GROUP_CP);
    struct tt_samples s = {.executor = executor,
                           .batch = batch,
                           .seq_len = seq_len,
                           .microbatches = microbatches,
                           .pieces = {mesh->cp_grains, mesh->cp_mirrored, 0, mesh->cp_grains / cp.n, 1}};
    int64_t n = microbatches * batch * seq_len;

    s.pieces.first = cp.index * s.pieces.own;
    if (s.pieces.grains > 1) {
        s.tokens = memory;
        s.labels = s.tokens + n;
        s.positions = documents ? s.labels + n : NULL;
    }
    return s;
}

int32_t *tt_samples_tokens(const struct tt_samples *s, int a)
{
    return s->tokens ? s->tokens + a * s->batch * s->seq_len : tt_executor_tokens(s->executor, a);
}

int32_t *tt_samples_labels(const struct tt_samples *s, int a)
{
    return s->labels ? s->labels + a * s->batch * s->seq_len : tt_executor_labels(s->executor, a);
}

int32_t *tt_samples_positions(const struct tt_samples *s, int a)
{
    if (s->pieces.grains <= 1)
        return tt_executor_positions(s->executor, a);
    return s->positions ? s->positions + a * s->batch * s->seq_len : NULL;
}

/* The first token of the rank's i-th piece of every sequence. */
static int64_t begin_of(const struct tt_samples *s, int64_t i)
{
    return tt_piece_at(&s->pieces, tt_pieces_first(&s->pieces) + i) * (s->seq_len / tt_pieces_count(&s->pieces));
}

int64_t tt_samples_valid(const struct tt_samples *s, int a)
{
    int64_t length = s->seq_len / tt_pieces_count(&s->pieces), valid = 0;
    const int32_t *labels = tt_samples_labels(s, a);

    for (int64_t i = 0; i < tt_pieces_own(&s->pieces); i++)
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t t = begin_of(s, i); t < begin_of(s, i) + length; t++)
                valid += labels[b * s->seq_len + t] >= 0;
    return valid;
}

/* Copies this rank's part of (batch, seq_len); for NULL that of the places in a sequence. */
static void take(const struct tt_samples *s, const int32_t *whole, int32_t *part)
{
    int64_t length = s->seq_len / tt_pieces_count(&s->pieces);

    for (int64_t i = 0; i < tt_pieces_own(&s->pieces); i++)
        for (int64_t b = 0; b < s->batch; b++, part += length) {
            if (whole)
                memcpy(part, whole + b * s->seq_len + begin_of(s, i), (size_t)length * sizeof *part);
            for (int64_t t = 0; !whole && t < length; t++)
                part[t] = (int32_t)(begin_of(s, i) + t);
        }
}

void tt_samples_divide(const struct tt_samples *s)
{
    for (int a = 0; s->pieces.grains > 1 && a < s->microbatches; a++) {
        take(s, tt_samples_tokens(s, a), tt_executor_tokens(s->executor, a));
        take(s, tt_samples_labels(s, a), tt_executor_labels(s->executor, a));
        take(s, tt_samples_positions(s, a), tt_executor_positions(s->executor, a));
    }
}
