/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_PLAN_H
#define TT_CHECKPOINT_SAVE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/safetensors.h"
#include "checkpoint/format/state.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/math/box.h"
#include "parallel/layout/mesh.h"

/**
 * Which rank writes what. A plan is a pure function of the tensors, the mesh and the save policy, so every rank
 * computes all of it, without messages. A piece is a run of rows of one part of a tensor, or of the whole tensor, that
 * one rank writes. A rank writes one file per group, with at most one piece per tensor, and no file if it has no piece.
 */
struct tt_ckpt_piece {
    enum tt_ckpt_group group;
    int tensor;                   /* number in struct tt_ckpt_state: tt_ckpt_state_tensor */
    int part;                     /* part of the tensor's placement; TT_NONE: the whole tensor */
    int64_t row_begin, row_count; /* rows of the tensor's first dimension; 0 and 1 for a scalar */
    int writer;                   /* rank */
};

struct tt_ckpt_plan {
    int n, cap;
    struct tt_ckpt_piece *piece; /* ordered by group, tensor, rows */
    int64_t bytes;               /* bytes of all tensors */
};

/** The elements of a piece. */
struct tt_box tt_ckpt_piece_box(const struct tt_ckpt_piece *piece, const struct tt_ckpt_chunk *tensor,
                                const struct tt_mesh *mesh);

/**
 * A save policy: which rank writes what. `assign` adds the pieces for part number `part` of every tensor with that
 * part; together, the calls for all parts must tile every tensor. load [n_ranks] counts the bytes assigned to each rank
 * so far, for policies that balance the load. A policy may assign rows to a writer that does not hold them: the ranks
 * of the writer's copy send these rows while it writes.
 */
struct tt_ckpt_policy {
    const char *name;   /* checkpoint.save_policy */
    const char *filter; /* checkpoint.filter; NULL: the policy takes no filter */
    void (*assign)(const struct tt_ckpt_state *state, const struct tt_mesh *mesh, int part, int64_t *load,
                   struct tt_ckpt_plan *plan);
};

/** The policy of that name and filter, or TT_EUSAGE with a list of all policies. filter may be NULL for a policy
 * without one. */
int tt_ckpt_policy_find(const char *name, const char *filter, const struct tt_ckpt_policy **ret_policy) TT_MUST_CHECK;

/** Policy i of the table; NULL after the last. */
const struct tt_ckpt_policy *tt_ckpt_policy_row(int i);

/** Whether the writer of a piece holds all of it. */
bool tt_ckpt_piece_is_local(const struct tt_ckpt_piece *piece, const struct tt_ckpt_chunk *tensor,
                            const struct tt_mesh *mesh);

/**
 * Reads names, dtypes, shapes and placements of tensors from state, but neither parts nor data. Release with
 * tt_ckpt_plan_release.
 */
void tt_ckpt_plan_make(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                       const struct tt_ckpt_policy *policy, struct tt_ckpt_plan *ret_plan);

/** The part of the plan for the ranks (one per copy) that hold the same shard as `rank`: all pieces that these ranks
 * write. */
void tt_ckpt_plan_shard(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                        const struct tt_ckpt_policy *policy, int rank, struct tt_ckpt_plan *ret_plan);
void tt_ckpt_plan_release(struct tt_ckpt_plan *plan);

/**
 * The pieces of each file of n_ranks ranks, in the plan's order. Group g and writer w have the indices
 *   ret_piece[ret_begin[g * n_ranks + w]] .. ret_piece[ret_begin[g * n_ranks + w + 1] - 1]
 * The caller frees both arrays (tt_free).
 */
void tt_ckpt_plan_files(const struct tt_ckpt_plan *plan, int n_ranks, int **ret_begin, int **ret_piece);

/** A hash of the plan, names, dtypes and shapes, which ranks compare before they write. */
uint64_t tt_ckpt_plan_hash(const struct tt_ckpt_state *state, const struct tt_ckpt_plan *plan);

/** "model/shard-00001-model-00001-of-00001.safetensors" for rank 0, for instance; the caller frees. */
char *tt_ckpt_shard_path(enum tt_ckpt_group group, int rank);

/**
 * One shard file of a save: its bytes, and the rank that holds each of them. It is a function of the save plan only.
 *
 * The data (everything after the header) is cut into blocks of TT_SHARD_BLOCK bytes, which are written as a whole;
 * blocks are cut into segments. A segment is a part of one tensor that one rank holds. Blocks begin at multiples of
 * 4096 bytes of the file.
 */
enum { TT_SHARD_BLOCK = 4 << 20, TT_SHARD_ALIGN = 4096 };

struct tt_shard_segment {
    int entry;      /* the tensor: index in the file's entries */
    int holder;     /* rank */
    int64_t offset; /* offset of the first byte in the entry */
    int64_t size;
    /* computed while the segment is written */
    uint32_t crc;
    uint64_t digest;
    int64_t nonfinite; /* elements that are NaN or infinite */
};

struct tt_shard_file {
    enum tt_ckpt_group group;
    int writer;                 /* rank */
    int64_t step;               /* goes into the header */
    int n;                      /* tensors; 0: there is no such file */
    struct tt_st_tensor *entry; /* in the order of their bytes; index: the piece of the plan */
    int64_t data_start, data_bytes;
    int n_segments, cap_segments;
    struct tt_shard_segment *segment; /* in the order of their bytes */
    int n_blocks;
    int *block; /* block b consists of segments block[b] .. block[b + 1] - 1 */
    bool local; /* the writer holds all of it */
};

/**
 * Lays out the file. state: the tensors as stored; piece: the indices in plan of the file's n pieces. Release with
 * tt_shard_file_release.
 */
int tt_shard_file_init(const struct tt_ckpt_state *state, const struct tt_mesh *mesh, const struct tt_ckpt_plan *plan,
                       const int *piece, int n, int64_t step, struct tt_shard_file *ret_file) TT_MUST_CHECK;

void tt_shard_file_release(struct tt_shard_file *file);

/**
 * The first bytes of the file, with the checksums that its entries have so far (their number does not change the size).
 */
int tt_shard_file_header(struct tt_shard_file *file, struct tt_text *header) TT_MUST_CHECK;

/** Bytes of the file. */
static inline int64_t tt_shard_file_bytes(const struct tt_shard_file *file)
{
    return file->data_start + file->data_bytes;
}

/**
 * The files that a save will write. They are known before there is anything to save, since they depend only on tensors,
 * mesh and policy. The save lays out its files with the same code, so the number of bytes is exact.
 */
struct tt_ckpt_preview_file {
    enum tt_ckpt_group group;
    int writer;  /* rank */
    int tensors; /* number of tensors with rows in the file */
    int64_t bytes;
};

struct tt_ckpt_preview {
    int n;
    struct tt_ckpt_preview_file *file; /* by writer, then group; only files that will exist */
    int writers;                       /* ranks that write files */
    int64_t bytes;                     /* of all files */
    int64_t most_bytes;                /* of one writer */
};

/**
 * The shard files of a save; manifest.json and the assets are not counted. Release with tt_ckpt_preview_release.
 *   state  names, stored dtypes, shapes and placements are read, neither parts nor data
 *   step   for the header of each file
 */
int tt_ckpt_preview_make(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                         const struct tt_ckpt_policy *policy, int64_t step,
                         struct tt_ckpt_preview *ret_preview) TT_MUST_CHECK;
void tt_ckpt_preview_release(struct tt_ckpt_preview *preview);

/**
 * The checkpoints that a run will save. They determine the disk space that the run needs in addition to the steps now
 * in the folder. Bytes are doubles, since a run that keeps everything may need more bytes than an integer can hold.
 */
struct tt_ckpt_demand {
    double one;     /* bytes of a regular save */
    double last;    /* of the last save, at most `one` */
    double exports; /* of the Hugging Face folder in the last save, at most `one`; 0: none */
    int64_t saves;  /* still to come, including the last one */
    int64_t held;   /* steps that the folder contains now, each assumed to take `one` bytes */
};

/**
 * The largest additional space at any time with this keep_latest_k (0: all steps stay). An old step is removed only
 * when the next one is complete. The result is never too small, and it is exact while the folder has at most `keep`
 * steps.
 */
double tt_ckpt_demand_bytes(const struct tt_ckpt_demand *demand, int64_t keep);

#endif
