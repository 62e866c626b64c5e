/* SPDX-License-Identifier: MIT
 *
 * The op table, in the order of ops.def.
 */
#include "core/ops/op.h"

static const struct tt_op_row *const rows[] = {
#define TT_OP(id, row) &tt_op_##row,
#include "core/graph/ops.def"
#undef TT_OP
};

const struct tt_op_row *tt_op_row(enum tt_op_id op)
{
    return rows[op];
}
