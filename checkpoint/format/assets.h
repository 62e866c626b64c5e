/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_ASSETS_H
#define TT_CHECKPOINT_FORMAT_ASSETS_H

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/state.h"

/**
 * What a manifest says about the files in step-N/assets: "assets": [{"path": "assets/tokenizer.json", "bytes",
 * "crc32c"}, …]. Training does not read them, so damage there does not stop a run. Commands that generate, export or
 * verify check them.
 */
json_t *tt_assets_json(const struct tt_ckpt_asset *asset, int n);

/** The same for the files in folder/assets. */
int tt_assets_scan(const char *folder, json_t **ret_json) TT_MUST_CHECK;

/** The list of a manifest, borrowed; NULL when it has none, as in old checkpoints. */
const json_t *tt_assets_of(const struct tt_manifest *manifest);

/**
 * Reads the file of one entry: TT_EDATA when it is not what the manifest says, with ret_kind (may be NULL) "missing",
 * "truncated", "trailing", "crc" or "manifest".
 */
int tt_asset_check(const char *step_path, const json_t *entry, const char **ret_kind) TT_MUST_CHECK;

/** Checks all of them; reports the first that is wrong. */
int tt_assets_check(const char *step_path, const struct tt_manifest *manifest) TT_MUST_CHECK;

#endif
