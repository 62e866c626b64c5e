/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_TOOLS_DIFF_H
#define TT_CHECKPOINT_TOOLS_DIFF_H

#include "core/base/error.h"
#include "core/base/json.h"

/**
 * Compares the tensors of two checkpoints. The paths are as for tt_ckpt_inspect. A Hugging Face folder is
 * compared under titan's names with a checkpoint that says its model. If both have digests, no data is read; the
 * rest is streamed.
 *   atol  differences up to atol do not count; negative: every bit counts
 *
 * {"a", "b", "equal": bool, "tensors": compared, "by_digest": of which without reading, "different":
 *   [{"group", "name", "why": "values" | "shape" | "dtype", "max_abs", "count", "elements", "first": [index, …]}],
 *  "only_a": ["model/…"], "only_b": […], "notes": [{"key", "a", "b"}], "config": [{"key", "a", "b"}]}
 *
 * Notes are differences that do not concern the content: step, world, mesh, policy, and a group ("optim") that one
 * checkpoint lacks entirely. "config" has the keys of the configuration, "model.rope_theta", that may change what the
 * tensors hold or mean; it does not change "equal".
 */
int tt_ckpt_diff(const char *a, const char *b, double atol, json_t **ret_json) TT_MUST_CHECK;

#endif
