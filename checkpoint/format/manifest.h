/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_MANIFEST_H
#define TT_CHECKPOINT_FORMAT_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/state.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/gguf/gguf.h"
#include "core/graph/dtype.h"
#include "core/math/box.h"

/**
 * step-N/manifest.json, the record that makes a folder of shards a checkpoint; the last file written.
 *
 *     {"titan_ckpt": 1,                          version of this format
 *      "step", "ntokens_seen", "sample_cursor", what training needs in order to continue
 *      "mesh": {"pp", "dp_replicate", "dp_shard", "cp", "tp"}, "world", "policy", "run_id", "time",
 *      "config": {…}, …                          whatever else the trainer passed
 *      "assets": [{"path": "assets/tokenizer.json", "bytes", "crc32c"}, …],  see tt_assets_json
 *      "files": [{"path": "model/….safetensors", "bytes": 528384, "crc32c": "1a2b3c4d"}, …],
 *      "tensors": {"model/norm.weight":
 *        {"dtype": "F32", "shape": [256], "digest": "sum64:…",
 *         "chunks": [{"file": 0, "offset": [0], "shape": [128], "begin": 4096, "end": 4608, "crc32c": "…"}]}, …},
 *      "self_crc32c": "…"}
 *
 * begin and end are bytes of the file. offset and shape are the chunk's box. self_crc32c covers every byte before its
 * own key. The same struct describes a folder without a manifest (read from the headers of its files).
 */
struct tt_manifest_file {
    char *path; /* below the folder */
    int64_t bytes;
    uint32_t crc;
    bool has_crc;
};

struct tt_manifest_chunk {
    int file;
    struct tt_box box;
    int64_t begin, end;
    uint32_t crc;
    bool has_crc;
    /* 0: packed by rows. In PyTorch's files: the dimensions from the outermost on, four bits each, lowest bits first */
    uint32_t order;
};

struct tt_manifest_tensor {
    char *name; /* without its group */
    enum tt_ckpt_group group;
    enum tt_dtype dtype;
    int ndim;
    int64_t shape[TT_BOX_DIMS];
    /* for a GGUF tensor, whose last dimension then counts the bytes of blocks; NULL: elements */
    const struct tt_gguf_type_row *packing;
    /* an average that has replaced its weight: tt_manifest_use_averages */
    bool is_average;
    uint64_t digest;
    bool has_digest;
    int n_chunks, cap_chunks;
    struct tt_manifest_chunk *chunk;
};

struct tt_manifest {
    json_t *meta; /* everything except files, tensors and the checksum; NULL without a manifest */
    int n_files, cap_files;
    struct tt_manifest_file *file;
    int n_tensors, cap_tensors;
    struct tt_manifest_tensor *tensor; /* after tt_manifest_sort: by group, then name */
    /* averages have replaced the weights in this list; the files contain both */
    bool has_averages;
};

void tt_manifest_release(struct tt_manifest *manifest);

/** Append an item; names are copied. The chunk array of a tensor grows with TT_PUSH(t->chunk, t->n_chunks,
 * t->cap_chunks). */
struct tt_manifest_file *tt_manifest_add_file(struct tt_manifest *manifest, const char *path, int64_t bytes);
struct tt_manifest_tensor *tt_manifest_add_tensor(struct tt_manifest *manifest, enum tt_ckpt_group group,
                                                  const char *name, enum tt_dtype dtype, int ndim,
                                                  const int64_t *shape);

/** Sorts the tensors; tt_manifest_find needs this. */
void tt_manifest_sort(struct tt_manifest *manifest);

/** The tensor or NULL. */
struct tt_manifest_tensor *tt_manifest_find(const struct tt_manifest *manifest, enum tt_ckpt_group group,
                                            const char *name);

/** Removes a tensor from the manifest. */
void tt_manifest_remove(struct tt_manifest *manifest, struct tt_manifest_tensor *tensor);

/**
 * Replaces the weights by their averages (tt_ckpt_is_average). TT_EDATA if there are no averages. `where` names the
 * checkpoint in the message.
 */
int tt_manifest_use_averages(struct tt_manifest *manifest, const char *where) TT_MUST_CHECK;

/** The number of tensors in a group, their bytes and, if ret_bytes is given, the sum of the bytes. */
int tt_manifest_group_size(const struct tt_manifest *manifest, enum tt_ckpt_group group, int64_t *ret_bytes);

/**
 * Checks that the chunks of every tensor tile it exactly: TT_EDATA names the tensor, and the rows that overlap or are
 * missing.
 */
int tt_manifest_check_cover(const struct tt_manifest *manifest) TT_MUST_CHECK;

/** The same for one tensor; ret_kind (may be NULL) gets "overlap", "uncovered" or "manifest". */
int tt_manifest_check_tensor(const struct tt_manifest *manifest, const struct tt_manifest_tensor *tensor,
                             const char **ret_kind) TT_MUST_CHECK;

/** The largest size of a checkpoint in bytes: sums of sizes must not overflow. */
#define TT_MANIFEST_BYTES_MOST (INT64_MAX / 64)

/** Checks that no name occurs twice in a group of a sorted manifest. */
int tt_manifest_check_names(const struct tt_manifest *manifest, const char *where) TT_MUST_CHECK;

/** Checks only that the sum of the sizes of all tensors does not overflow; also for folders without a manifest. */
int tt_manifest_check_totals(const struct tt_manifest *manifest, const char *where) TT_MUST_CHECK;

/**
 * Checks that a file exists and is of the given size. TT_EDATA with ret_kind "missing", "truncated" or "trailing"; if
 * it is not a regular file, ret_kind is not changed.
 */
int tt_manifest_check_size(const char *path, int64_t bytes, const char **ret_kind) TT_MUST_CHECK;

/** The text of manifest.json, including its checksum; the caller frees. */
char *tt_manifest_text(const struct tt_manifest *manifest);

/**
 * titan.json lies beside the weights that `consolidate --format titan` writes. It contains the facts about the run from
 * the manifest of their step ("config", "data", "step", "ntokens_seen", "run_id"). Without it, a later export would
 * know neither the chat template nor the length of training. A folder whose weights do not come from a run has no such
 * file.
 */
#define TT_RUN_FILE "titan.json"

/** Reads the file of a folder. ret_meta is NULL if there is none; TT_EDATA if it is damaged. */
int tt_run_file_read(const char *folder, json_t **ret_meta) TT_MUST_CHECK;

/* Functions that fill a manifest overwrite ret_manifest, and leave it empty after a failure. */

/** Reads folder/manifest.json and checks its form, its own checksum and every number in it, but not the coverage. */
int tt_manifest_load(const char *folder, struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/** The same from text; `where` is for messages. */
int tt_manifest_parse(const char *text, size_t size, const char *where, struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/**
 * Describes the *.safetensors files of a folder that has no manifest, by their headers: a consolidated checkpoint, a
 * model/ folder copied alone, a Hugging Face or PyTorch folder. All tensors are in group model. path may be one file.
 */
int tt_manifest_scan(const char *path, struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/**
 * The manifest's entries for the files in step-N/assets: "assets": [{"path": "assets/tokenizer.json", "bytes",
 * "crc32c"}, …]. Training does not read them, so damage there does not stop a run. Commands that generate, export or
 * verify check them.
 */
json_t *tt_assets_json(const struct tt_ckpt_asset *asset, int n);

/** The same for the files in folder/assets. */
int tt_assets_scan(const char *folder, json_t **ret_json) TT_MUST_CHECK;

/**
 * Reads the file of one entry and compares it: TT_EDATA if it differs from the manifest, with ret_kind (may be NULL)
 * "missing", "truncated", "trailing", "crc" or "manifest".
 */
int tt_asset_check(const char *step_path, const json_t *entry, const char **ret_kind) TT_MUST_CHECK;

/** Checks all these files; reports the first one that differs. */
int tt_assets_check(const char *step_path, const struct tt_manifest *manifest) TT_MUST_CHECK;

#endif
