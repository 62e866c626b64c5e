/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_TRANSFER_EXCHANGE_H
#define TT_PARALLEL_ENGINE_TRANSFER_EXCHANGE_H

#include "core/comm/comm.h"
#include "core/program/executor.h"
#include "parallel/layout/mesh.h"

struct tt_collective;

/**
 * The collective of an instruction that begins an exchange inside of a layer (core/program/instr/exchange.c), in the
 * memory of its operands. The caller's (tt_collective_free). Collective over the group.
 */
int tt_exchange_new(struct tt_comm *comm, const struct tt_group *group, int tag, const struct tt_program *program,
                    const struct tt_executor *executor, int instr, struct tt_collective **ret_collective) TT_MUST_CHECK;

#endif
