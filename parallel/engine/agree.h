/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_AGREE_H
#define TT_PARALLEL_ENGINE_AGREE_H

#include "core/comm/comm.h"
#include "core/program/program.h"
#include "parallel/layout/mesh.h"

/**
 * Compares the exchanges in the programs of all ranks (collective). Programs may differ, since ranks may have different
 * stages. But all ranks of a group must begin the same exchanges in that group, in the same order: operation, type,
 * bytes, number of ranks, tag and purpose. All ranks must ask between the same exchanges whether to abandon the step.
 * Every send between two ranks of a pipeline must match a receive. Otherwise ranks would wait for each other for ever,
 * or add unrelated data.
 *   what  names the program in the message: "the step"
 * Errors: TT_EUSAGE on all ranks, which names the group, a rank, and the first exchange that differs.
 */
int tt_program_agree(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_program *program,
                     const char *what) TT_MUST_CHECK;

#endif
