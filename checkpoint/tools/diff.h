/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_TOOLS_DIFF_H
#define TT_CHECKPOINT_TOOLS_DIFF_H

#include "core/base/error.h"
#include "core/base/json.h"

/**
 * Compares the tensors of two checkpoints (paths as tt_ckpt_inspect takes them; a Hugging Face folder is compared under
 * titan's names with a checkpoint that says its model). Where both have digests no data is read; the rest streams.
 *   atol  differences up to it do not count; negative: every bit counts
 *
 * {"a", "b", "equal": bool, "tensors": compared, "by_digest": of which without reading, "different":
 *   [{"group", "name", "why": "values" | "shape" | "dtype", "max_abs", "count", "elements", "first": [index, …]}],
 *  "only_a": ["model/…"], "only_b": […], "notes": [{"key", "a", "b"}]}
 *
 * Notes are what is not a difference of content: step, world, mesh, policy, and a group ("optim") that one of them lacks as a
 * whole.
 */
int tt_ckpt_diff(const char *a, const char *b, double atol, json_t **ret_json) TT_MUST_CHECK;

#endif
