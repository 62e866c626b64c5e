/* SPDX-License-Identifier: MIT
 *
 * The table of step ops, in the order of step.def.
 */
#include "core/ops/step/step.h"

static const struct tt_step_row *const rows[] = {
#define TT_STEP_OP(id, row) &tt_step_op_##row,
#include "core/ops/step/step.def"
#undef TT_STEP_OP
};

const struct tt_step_row *tt_step_row(enum tt_step_op_id op)
{
    return rows[op];
}
