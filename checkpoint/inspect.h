/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_INSPECT_H
#define TT_CHECKPOINT_INSPECT_H

#include "core/base/error.h"
#include "core/base/json.h"

/**
 * What `titan ckpt list`, `inspect` and `verify` say, as JSON objects (the caller's); the command prints them or makes
 * tables of them. The path: a run, a checkpoint folder or a step; inspect and verify also take safetensors files and
 * folders of any origin.
 */

/**
 * {"folder": "…", "steps": [{"step", "tokens", "time", "files", "bytes", "world", "mesh", "policy", "good": true,
 *  "problem": null | "…"}], "leftovers": [".tmp-step-20-…", …]}
 */
int tt_ckpt_list(const char *path, json_t **ret_json) TT_MUST_CHECK;

/**
 * {"path", "kind": "step" | "safetensors", "step", "tokens", "sample_cursor", "world", "mesh", "policy", "run_id",
 *  "time", "bytes", "parameters", "model": {"tensors", "bytes"}, "optimizer": {"tensors", "bytes"},
 *  "files": [{"path", "bytes"}], "tensors": [{"name", "group", "dtype", "shape", "chunks", "digest"}],
 *  "assets": ["tokenizer.json", …], "meta": {…}}; what is not known is null.
 * Of a folder: its newest good step.
 */
int tt_ckpt_inspect(const char *given, json_t **ret_json) TT_MUST_CHECK;

/**
 * Reads every byte and compares sizes, headers, coverage and checksums with the manifest (in verify.c).
 * {"path", "ok", "files", "tensors", "bytes", "checksums": chunks compared, "seconds",
 *  "problems": [{"kind", "text"}]}
 * kind: manifest, missing, truncated, trailing, header, stale, swapped, overlap, uncovered, crc.
 * Of a folder: its newest step, good or not. A damaged checkpoint is a result (ok false), not an error.
 */
int tt_ckpt_verify(const char *path, json_t **ret_json) TT_MUST_CHECK;

#endif
