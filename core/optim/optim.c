/* SPDX-License-Identifier: MIT
 *
 * The table of optimizers, and the code that their step ops share.
 */
#include "core/optim/optim.h"

#include <string.h>

#include "core/math/rng.h"
#include "core/math/round.h"

/* --- the table --- */

static const struct tt_optim_row *const optimizers[] = {
#define ENTRY(unused, constant, row, word, doc) [constant] = &TT_OF_TYPE(tt_optim_##row),
    TT_OPTIMIZERS(ENTRY, )
#undef ENTRY
};

const struct tt_optim_row *tt_optim_row(enum tt_optim_choice optim)
{
    return optimizers[optim];
}

static bool is_named(const char *moment, const char *name)
{
    return moment && strcmp(moment, name) == 0;
}

bool tt_optim_has_moment(const char *name)
{
    const char *end = strrchr(name, '.');

    for (int i = 0; end && i < TT_OPTIMS; i++)
        for (int k = 0; k < TT_OPTIM_MOMENTS; k++)
            if (is_named(optimizers[i]->moments[k], end + 1) || is_named(optimizers[i]->codes[k], end + 1) ||
                is_named(optimizers[i]->largest[k], end + 1))
                return true;
    return false;
}

/* --- updates --- */

enum { CHUNK = 1 << 14 }; /* elements per tile */

static int64_t n_chunks(const struct tt_rows *rows)
{
    return tt_div_up(rows->rows * rows->width, CHUNK);
}

static void update_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    const struct tt_rows *rows = call->rows;
    struct tt_range part;

    (void)worker;
    for (; tile >= n_chunks(rows); rows++)
        tile -= n_chunks(rows);
    part = tt_tile_range(rows->rows * rows->width, CHUNK, tile);
    tt_step_row(call->op)->update(call, (struct tt_update_part){rows, part.begin, rows->begin + part.begin, 0, part.n});
}

void tt_update_run(const struct tt_step_call *call)
{
    int64_t tiles = 0;

    for (int i = 0; i < call->n_rows; i++)
        tiles += n_chunks(&call->rows[i]);
    tt_team_run(call->team, tiles, update_tile, (void *)call);
}

bool tt_update_next(struct tt_update_part *left, struct tt_update_part *ret_run)
{
    const struct tt_rows *rows = left->rows;
    bool whole = rows->width == rows->stride;
    int64_t row = whole ? 0 : left->first / rows->width, in_row = left->first - row * rows->width;

    if (left->n == 0)
        return false;
    *ret_run = *left;
    ret_run->index = rows->index + row * rows->stride + in_row;
    if (!whole && rows->width - in_row < left->n)
        ret_run->n = rows->width - in_row;
    left->first += ret_run->n;
    left->begin += ret_run->n;
    left->n -= ret_run->n;
    return true;
}

uint64_t tt_update_random(const struct tt_step_call *call, const struct tt_update_part *run, int64_t i)
{
    const struct tt_rng rng = {call->scalars->step_seed, run->rows->stream};

    return tt_rng_bits(&rng, (uint64_t)(run->index + i));
}
