/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_BASE_H
#define TT_CHECKPOINT_FORMAT_BASE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/graph/dtype.h"
#include "core/math/box.h"
#include "core/math/packing.h"

/**
 * The frozen weights that the checkpoints of a run with lora.base_dtype leave out. The manifest names them in "base":
 *
 *   path     the folder or file where the run found them; missing: random weights
 *   dtype    their packing; missing in older checkpoints, whose digests of nf4 are not comparable
 *   digests  of every frozen parameter as it was in memory
 */
struct tt_ckpt_base {
    const char *path;               /* NULL: random weights. Of the manifest, as are the digests */
    enum tt_packing_choice packing; /* of the layers that may have adapters (core/models/lora.h) */
    enum tt_dtype dtype;            /* of the other weights */
    const json_t *digests;
    bool compares; /* whether the digests of packed weights can be compared */
};

/** Whether a manifest's description names such weights, and which. */
bool tt_ckpt_base_of(const json_t *meta, struct tt_ckpt_base *ret_base);

/** The help of messages about such weights, where the user may say where they are. */
#define TT_BASE_HELP "--base PATH says where they are now"

/**
 * Where the weights are now: at `given`, if the user says so, or where the run found them. Not collective. TT_EDATA if
 * nothing is there, or if the run began from random weights.
 *   checkpoint  its path, for the message
 *   ret_path    of `given` or of the manifest
 */
int tt_ckpt_base_find(const struct tt_ckpt_base *base, const char *checkpoint, const char *given,
                      const char **ret_path) TT_MUST_CHECK;

/**
 * The digest of a part of a frozen parameter (checkpoint/format/digest.h); the digests of all parts add up to that of
 * the parameter, however ranks share it. With a packing, a part is some columns of some rows, each packed by itself,
 * and dtype says nothing.
 *   shape  of the whole parameter      data  the part, packed
 */
uint64_t tt_base_digest(enum tt_packing_choice packing, enum tt_dtype dtype, const int64_t *shape,
                        const struct tt_box *part, const void *data);

/** The digest as text, for a manifest. */
json_t *tt_base_digest_json(uint64_t digest);

/**
 * TT_EDATA if the parameter's digest is not that of the checkpoint; help: the last line of the message.
 */
int tt_base_compare(const struct tt_ckpt_base *base, const char *name, const json_t *digest,
                    const char *help) TT_MUST_CHECK;

#endif
