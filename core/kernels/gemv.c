/* SPDX-License-Identifier: MIT
 *
 * A matrix times a vector on the team.
 */
#include "core/kernels/gemv.h"

#include "core/kernels/kernels.h"
#include "core/kernels/vector_math.h"
#include "core/ops/rule.h"

enum { TILE_FLOATS = 32768 }; /* of w: reading them takes much longer than handing out a tile */

void tt_gemv_ref(float *y, const float *w, const float *x, int64_t rows, int64_t width)
{
    for (int64_t r = 0; r < rows; r++, w += width) {
        double sum = 0.0;

        for (int64_t i = 0; i < width; i++)
            sum += (double)w[i] * (double)x[i];
        y[r] = (float)sum;
    }
}

void tt_gemv_generic(float *y, const float *w, const float *x, int64_t rows, int64_t width)
{
    for (int64_t r = 0; r < rows; r++, w += width) {
        float lane[TT_LANES] = {0.0F};
        int64_t i = 0;

        for (; i + TT_LANES <= width; i += TT_LANES) {
            for (int l = 0; l < TT_LANES; l++)
                lane[l] += w[i + l] * x[i + l];
        }
        for (int l = 0; i + l < width; l++)
            lane[l] += w[i + l] * x[i + l];
        y[r] = tt_lanes_sum(lane);
    }
}

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
