/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_AGREE_H
#define TT_PARALLEL_ENGINE_AGREE_H

#include "core/comm/comm.h"
#include "core/program/program.h"
#include "parallel/layout/mesh.h"

/**
 * Compares what the ranks exchange in their programs (collective). Programs may differ, since ranks may have different
 * stages. But the ranks of a group must exchange the same in that group, in the same order: operation, type, bytes,
 * number of ranks, tag and purpose. And between the same exchanges all ranks must ask whether the step is to be given
 * up. What a rank of a pipeline sends to another one must be what that one receives from it. Otherwise they would wait
 * for each other for ever, or add what does not belong together.
 *   what  the program does, for the message: "the step"
 * Errors: TT_EUSAGE on all ranks, which names the group, a rank, and the first exchange that differs.
 */
int tt_program_agree(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_program *program,
                     const char *what) TT_MUST_CHECK;

#endif
