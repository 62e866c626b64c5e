/* SPDX-License-Identifier: MIT
 *
 * Makes the collectives of exchanges inside of a layer. Both sides are blocks of whole rows of one matrix, so the part
 * of every member is one segment.
 */
#include "parallel/engine/transfer/exchange.h"

#include "core/base/mem.h"
#include "parallel/comm/collectives.h"

/* Cuts a buffer into a block for each member. */
static void cut(void *whole, size_t bytes, int n, struct tt_segment *segments, struct tt_segment_list *lists)
{
    for (int m = 0; m < n; m++) {
        segments[m] = (struct tt_segment){(char *)whole + (size_t)m * bytes, bytes};
        lists[m] = (struct tt_segment_list){&segments[m], 1};
    }
}

int tt_exchange_new(struct tt_comm *comm, const struct tt_group *group, int tag, const struct tt_program *program,
                    const struct tt_executor *executor, int i, struct tt_collective **ret_collective)
{
    const struct tt_instr *instr = &program->instrs[i];
    int64_t bytes = instr->collective.bytes;
    void *in = tt_executor_operand(executor, i, 0), *out = tt_executor_operand(executor, i, instr->n_operands - 2);
    void *staging = tt_executor_operand(executor, i, instr->n_operands - 1);
    struct tt_segment *segments = tt_calloc((size_t)group->n, sizeof *segments), whole = {in, (size_t)bytes};
    struct tt_segment_list *lists = tt_calloc((size_t)group->n, sizeof *lists), all = {&whole, 1};
    int rc = 0;

    cut(instr->collective.op == TT_ALL_GATHER ? out : in, (size_t)bytes, group->n, segments, lists);
    switch (instr->collective.op) {
    case TT_ALL_GATHER:
        rc = tt_all_gather_new(comm, group, tag, all, lists, ret_collective);
        break;
    case TT_REDUCE_SCATTER: /* a sum that is to be rounded stays at the place of this rank's block */
        whole.data = tt_exchange_rounds(program, instr) ? segments[group->index].data : out;
        rc = tt_reduce_scatter_new(comm, group, tag, lists, all, staging, ret_collective);
        break;
    case TT_ALL_SUM:
        rc = tt_all_reduce_new(comm, group, tag, all, staging, ret_collective);
        break;
    default:
        rc = tt_all_to_all_new(comm, group, tag, lists, bytes, out, ret_collective);
    }
    tt_free(segments);
    tt_free(lists);
    return rc;
}
