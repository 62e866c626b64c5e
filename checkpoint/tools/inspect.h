/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_TOOLS_INSPECT_H
#define TT_CHECKPOINT_TOOLS_INSPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/manifest.h"
#include "core/base/error.h"
#include "core/base/json.h"

/**
 * The results of `titan ckpt list`, `inspect` and `verify`, as JSON that the caller releases. The command
 * prints them, or makes tables of them. The path is a run, a checkpoint folder or a step; inspect and verify also
 * accept safetensors files and folders of any origin.
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
 * With stats every tensor has "stats" too (tt_ckpt_stats), for which it is read. For a folder: its newest good step.
 *
 * A checkpoint may have so many tensors that they are not all made JSON at once: json has null for "tensors", and
 * tt_ckpt_inspect_tensor makes one of them, which the caller releases.
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
    TT_VERIFY_BYTES, /* also every byte, against the checksums */
    TT_VERIFY_DEEP,  /* also every value: the digests of whole tensors; all values must be finite */
};

/**
 * Compares a checkpoint with its manifest (in verify.c), and the Hugging Face folder in it with its own checksums.
 * {"path", "ok", "files", "tensors", "bytes", "checksums": chunks compared, "digests": tensors compared, "seconds",
 *  "problems": [{"kind", "text"}]}
 * kind: manifest, missing, truncated, trailing, header, stale, swapped, overlap, uncovered, crc, digest, nonfinite,
 * unreadable (the system could not read it at the moment; it may be good). For a folder: its newest step, good or not.
 * A damaged checkpoint is a result (ok false), not an error.
 */
int tt_ckpt_verify(const char *path, enum tt_ckpt_depth depth, json_t **ret_json) TT_MUST_CHECK;

/** Shared with list.c: the keys tokens, time, world, mesh, policy; the sum of the files. */
void tt_ckpt_set_summary(json_t *json, const struct tt_manifest *manifest);
int64_t tt_ckpt_file_bytes(const struct tt_manifest *manifest);

#endif
