/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_LOAD_SHARE_H
#define TT_CHECKPOINT_LOAD_SHARE_H

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/state.h"
#include "core/comm/comm.h"

/**
 * What one rank read, passed to others, so that storage is asked once.
 */

/**
 * Rank 0's manifest on all ranks (collective): in on rank 0, out on the others, which release it. It travels as numbers of
 * few bytes, a fifth of its text.
 */
int tt_manifest_share(struct tt_comm *comm, struct tt_manifest *manifest) TT_MUST_CHECK;

/** The same in memory: bytes that tt_manifest_unpack reads, the caller's (tt_free). */
char *tt_manifest_pack(const struct tt_manifest *manifest, size_t *ret_size);

/** Errors: TT_EINTERNAL when the bytes are not what tt_manifest_pack made. */
int tt_manifest_unpack(const char *bytes, size_t size, struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/**
 * The first replica's rows on all replicas of their shard (collective).
 *   model_only  leave the optimizer's as they are
 */
int tt_rows_share(struct tt_comm *comm, const struct tt_ckpt_layout *layout, const struct tt_ckpt_state *state,
                  bool model_only) TT_MUST_CHECK;

#endif
