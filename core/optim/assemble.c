/* SPDX-License-Identifier: MIT
 *
 * ASSEMBLE: a matrix from the parts that ranks have of it.
 *   in      the parts, packed, one after another
 *   rows    (n_rows) of each: where it begins in `in`, its size, and the index of its first element in the matrix,
 *           whose columns are the stride
 *   out[0]  the matrix, floats
 */
#include <string.h>

#include "core/math/round.h"
#include "core/ops/step/step.h"

enum { ROWS = 64 }; /* of a part, per tile */

static int64_t n_tiles(const struct tt_rows *part)
{
    return tt_div_up(part->rows, ROWS);
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    const struct tt_rows *part = call->rows;
    int64_t row, end;

    (void)worker;
    for (; tile >= n_tiles(part); part++)
        tile -= n_tiles(part);
    row = tile * ROWS;
    end = row + ROWS < part->rows ? row + ROWS : part->rows;
    for (; row < end; row++)
        memcpy((float *)call->out[0] + part->index + row * part->stride,
               (const float *)call->in + part->begin + row * part->width, (size_t)part->width * sizeof(float));
}

static void run(const struct tt_step_call *call)
{
    int64_t tiles = 0;

    for (int i = 0; i < call->n_rows; i++)
        tiles += n_tiles(&call->rows[i]);
    tt_team_run(call->team, tiles, run_tile, (void *)call);
}

const struct tt_step_row tt_step_op_assemble = {.name = "assemble", .run = run};
