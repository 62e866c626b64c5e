/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_TOOLS_TOOLS_H
#define TT_CHECKPOINT_TOOLS_TOOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/manifest.h"
#include "core/base/error.h"
#include "core/base/json.h"

/**
 * The results of `titan ckpt list`, `inspect` and `verify`, as JSON, which the caller releases. The command prints it,
 * or makes tables of it. The path leads to a run, a checkpoint folder or a step; inspect and verify also accept
 * safetensors files and folders of any origin.
 */

/**
 * {"folder", "steps": [{"step", "state": "committed" | "damaged" | "unreadable", "tokens", "time", "age_s", "files",
 *   "bytes", "world", "mesh", "policy", "good": true, "problem": null | "…"}],
 *  "set_aside": [{"name": "step-60.abandoned-RUN", "step", "state": "abandoned" | "damaged", "run_id": the run that
 *   saved it | null, "set_aside_by": "RUN", "bytes", "age_s"}],
 *  "leftovers": [{"name": ".tmp-step-20-…", "state": "temporary" | "replaced" | "trash", "bytes", "age_s"}]}
 */
int tt_ckpt_list(const char *path, json_t **ret_json) TT_MUST_CHECK;

/**
 * {"path", "kind": "step" | "safetensors" | "dcp", "step", "tokens", "sample_cursor", "world", "mesh", "policy",
 *  "run_id", "time", "bytes", "parameters", "model": {"tensors", "bytes"}, "optimizer": {"tensors", "bytes"},
 *  "files": [{"path", "bytes"}], "tensors": [{"name", "group", "dtype", "shape", "chunks", "digest"}],
 *  "assets": ["tokenizer.json", …], "hf": null | {"files", "bytes", "tensors"}, "meta": {…}}; unknown values are null.
 * With stats, every tensor is read and has "stats" too. For a folder, describes its newest good step.
 *
 * A checkpoint may have too many tensors for one JSON value: "tensors" is null in json, and tt_ckpt_inspect_tensor
 * makes the JSON of one tensor, which the caller releases.
 */
struct tt_ckpt_inspection {
    json_t *json;
    struct tt_manifest manifest;
    json_t **stats; /* per tensor; NULL without stats */
};
int tt_ckpt_inspect(const char *given, bool stats, struct tt_ckpt_inspection *ret_inspection) TT_MUST_CHECK;
json_t *tt_ckpt_inspect_tensor(const struct tt_ckpt_inspection *inspection, int number);
void tt_ckpt_inspection_release(struct tt_ckpt_inspection *inspection);

/* How much of a checkpoint tt_ckpt_verify reads. */
enum tt_ckpt_depth {
    TT_VERIFY_QUICK, /* manifest, sizes, headers, coverage */
    TT_VERIFY_BYTES, /* also every byte, compared with the checksums */
    TT_VERIFY_DEEP,  /* also every value: digests of whole tensors are compared, and all values must be finite */
};

/**
 * Compares a checkpoint with its manifest, and the Hugging Face folder in it with its own checksums.
 * {"path", "ok", "files", "tensors", "bytes", "checksums": chunks compared, "digests": tensors compared, "seconds",
 *  "problems": [{"kind", "text"}]}
 * kind: manifest, missing, truncated, trailing, header, stale, swapped, overlap, uncovered, crc, digest, nonfinite,
 * unreadable (the system could not read it at the moment; it may be good). For a folder, verifies its newest step, good
 * or not. A damaged checkpoint is a result (ok false), not an error.
 */
int tt_ckpt_verify(const char *path, enum tt_ckpt_depth depth, json_t **ret_json) TT_MUST_CHECK;

/** Sets the keys tokens, time, world, mesh and policy. */
void tt_ckpt_set_summary(json_t *json, const struct tt_manifest *manifest);

/** The bytes of all files; the number of elements of all tensors, or only of the model's. */
int64_t tt_ckpt_file_bytes(const struct tt_manifest *manifest);

/**
 * Compares the tensors of two checkpoints. The paths are as for tt_ckpt_inspect. A Hugging Face folder and a checkpoint
 * that names its model are compared under titan's names. If both checkpoints have digests, no data is read; otherwise
 * tensors are streamed.
 *   atol  differences up to atol do not count; negative: every bit counts
 *
 * {"a", "b", "equal": bool, "tensors": compared, "by_digest": of these, without reading, "different":
 *   [{"group", "name", "why": "values" | "shape" | "dtype", "max_abs", "count", "elements", "first": [index, …]}],
 *  "only_a": ["model/…"], "only_b": […], "notes": [{"key", "a", "b"}], "config": [{"key", "a", "b"}]}
 *
 * Notes are differences that do not concern the content: step, world, mesh, policy, and a group ("optim") that one
 * checkpoint lacks entirely. "config" has the keys of the configuration, "model.rope_theta", that may change what the
 * tensors hold or mean; it does not change "equal".
 */
int tt_ckpt_diff(const char *a, const char *b, double atol, json_t **ret_json) TT_MUST_CHECK;

/**
 * Cleans a checkpoint folder: removes what killed jobs of any run left, and good steps older than the newest `keep`.
 *   keep       0: all; negative: checkpoint.keep_latest_k of the run that saved the newest good step
 *   abandoned remove steps that were set aside, too (checkpoint/steps/steps.h)
 *   dry_run only reports what would be removed
 *
 * A step is renamed before it is removed, so that nobody ever sees it half removed. Damaged steps are neither counted
 * nor removed, so the only good step always stays. A step that cannot be read at the moment is an error. The folder is
 * locked meanwhile: TT_EUSAGE if a job is writing there.
 *
 * {"folder", "dry_run", "keep", "removed": [{"name", "kind": "step" | "leftover" | "restored" | "abandoned" |
 *  "damaged", "bytes"}], "bytes",
 *  "kept": [step, …], "damaged": [step, …]}; restored: a step that a killed save had renamed is back in its place.
 */
int tt_ckpt_gc(const char *path, int64_t keep, bool abandoned, bool dry_run, json_t **ret_json) TT_MUST_CHECK;

/**
 * Goes back to a step of a run: sets the newer ones aside (checkpoint/steps/steps.h), newest first, so that the next
 * start resumes from it. The step's manifest and the sizes of its files must be good; the newer steps are not read. The
 * folder is locked meanwhile: TT_EUSAGE when a job is writing there. TT_EDATA: no such step, or a damaged one.
 *
 * {"folder", "step", "dry_run", "set_aside": [{"step", "name": "step-60.abandoned-…"}]}
 */
int tt_ckpt_rollback(const char *path, int64_t step, bool dry_run, json_t **ret_json) TT_MUST_CHECK;

#endif
