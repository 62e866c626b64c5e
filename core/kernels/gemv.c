/* SPDX-License-Identifier: MIT
 *
 * A matrix times a vector on the team.
 */
#include "core/kernels/gemv.h"

#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { TILE_FLOATS = 32768 }; /* of w: reading them takes much longer than handing out a tile */

struct product {
    const float *w, *x;
    float *y;
    int64_t rows, width, tile_rows;
};

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct product *p = arg;
    struct tt_range part = tt_tile_range(p->rows, p->tile_rows, tile);

    (void)worker;
    tt_kernels()->gemv(p->y + part.begin, p->w + part.begin * p->width, p->x, part.n, p->width);
}

void tt_gemv(struct tt_team *team, const float *w, int64_t rows, int64_t width, const float *x, float *y)
{
    struct product p = {w, x, y, rows, width, TILE_FLOATS / width + 1};

    tt_team_run(team, tt_tiles(rows, p.tile_rows), run_tile, &p);
}
