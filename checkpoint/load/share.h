/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_LOAD_SHARE_H
#define TT_CHECKPOINT_LOAD_SHARE_H

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/state.h"
#include "checkpoint/read/source.h"
#include "core/comm/comm.h"
#include "parallel/layout/mesh.h"

/* Passes on the bytes that one rank has read, so that storage delivers them only once. */

/**
 * Broadcasts rank 0's manifest (collective): it is input on rank 0 and output on the others, which release it. It
 * travels in a compact form, a fifth of the size of its text.
 */
int tt_manifest_share(struct tt_comm *comm, struct tt_manifest *manifest) TT_MUST_CHECK;

/** The compact form in memory, for tt_manifest_unpack. Does not change the manifest. The caller frees it (tt_free). */
char *tt_manifest_pack(struct tt_manifest *manifest, size_t *ret_size);

/** Errors: TT_EINTERNAL if the bytes do not come from tt_manifest_pack. */
int tt_manifest_unpack(const char *bytes, size_t size, struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/**
 * Copies the first copy of every part to all its other copies (collective).
 *   model_only  do not copy the parts of the optimizer
 */
int tt_parts_share(struct tt_comm *comm, const struct tt_mesh *mesh, const struct tt_ckpt_state *state,
                   bool model_only) TT_MUST_CHECK;

#endif
