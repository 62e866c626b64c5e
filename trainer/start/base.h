/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_START_BASE_H
#define TT_TRAINER_START_BASE_H

#include "core/base/json.h"
#include "trainer/job/setup.h"
#include "trainer/job/tensors.h"

/**
 * The frozen weights of a run that packs them (lora.base_dtype). Its checkpoints leave them out, and name them by
 * digests: of every frozen parameter, as it is in memory (checkpoint/format/digest.h).
 */

/**
 * A new object of the weights that are loaded, for manifests (collective): as checkpoint/format/base.h says.
 * path: NULL for random weights. The caller releases it.
 */
int tt_base_describe(const struct tt_setup *setup, const struct tt_job_tensors *tensors, const char *path,
                     json_t **ret_base) TT_MUST_CHECK;

/** A rank's part of the digest of a parameter; 0 if an earlier rank holds the same part. Not collective. */
uint64_t tt_base_part_digest(const struct tt_mesh *mesh, int rank, const struct tt_ckpt_chunk *chunk);

/**
 * TT_EDATA if the weights in memory are not those of a checkpoint, with the first parameter that differs.
 *   now  of tt_base_describe      meta  of the checkpoint's manifest
 * Not collective.
 */
int tt_base_check(const struct tt_model *model, const json_t *now, const json_t *meta) TT_MUST_CHECK;

#endif
