/* SPDX-License-Identifier: MIT
 *
 * A matrix times a vector on the team.
 */
#include "core/kernels/gemv.h"

#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum {
    TILE_ELEMENTS = 32768, /* of w: reading them takes much longer than handing out a tile */
    AT_ONCE = 64           /* rows whose sums are rounded together */
};

/* Rows of bfloat16 whose products are bfloat16 too. */
static void rounded_rows(const struct tt_gemv *g, struct tt_range part)
{
    float sums[AT_ONCE];

    for (int64_t r = 0; r < part.n; r += AT_ONCE) {
        int64_t n = part.n - r < AT_ONCE ? part.n - r : AT_ONCE, row = part.begin + r;

        tt_kernels()->gemv_bf16(sums, (const tt_bf16 *)g->w + row * g->width, g->x, n, g->width);
        tt_kernels()->bf16_round((tt_bf16 *)g->y + row, sums, n);
    }
}

static int64_t tile_rows(const struct tt_gemv *g)
{
    return TILE_ELEMENTS / g->width + 1;
}

int64_t tt_gemv_tiles(const struct tt_gemv *gemv)
{
    return tt_tiles(gemv->rows, tile_rows(gemv));
}

void tt_gemv_tile(const struct tt_gemv *gemv, int64_t tile)
{
    const struct tt_gemv *g = gemv;
    struct tt_range part = tt_tile_range(g->rows, tile_rows(g), tile);
    int64_t at = part.begin * g->width;

    if (g->y_bf16)
        rounded_rows(g, part);
    else if (g->bf16)
        tt_kernels()->gemv_bf16((float *)g->y + part.begin, (const tt_bf16 *)g->w + at, g->x, part.n, g->width);
    else
        tt_kernels()->gemv((float *)g->y + part.begin, (const float *)g->w + at, g->x, part.n, g->width);
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    (void)worker;
    tt_gemv_tile(arg, tile);
}

void tt_gemv(struct tt_team *team, const struct tt_gemv *gemv)
{
    tt_team_run(team, tt_gemv_tiles(gemv), run_tile, (void *)gemv);
}
