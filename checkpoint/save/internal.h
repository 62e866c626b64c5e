/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_SAVE_INTERNAL_H
#define TT_CHECKPOINT_SAVE_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/save/plan.h"
#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/os/team.h"

/**
 * A thread that writes during training, and the memory that it writes from. It is created once, before training, and
 * touches the memory then, since the first touch costs ten times the copy. It does one job at a time and never
 * communicates.
 *
 * It runs at the lowest priority, so that it uses only cores that the step leaves idle.
 */
struct tt_ckpt_writer;

/** bytes: the size of the staging memory; may be 0. TT_EFIT if the system cannot provide it. */
int tt_ckpt_writer_new(int64_t bytes, struct tt_ckpt_writer **ret_writer) TT_MUST_CHECK;

/** Waits for work under way. NULL is allowed. */
void tt_ckpt_writer_free(struct tt_ckpt_writer *writer);

/** Hands over work, which returns 0 or a negative code with its message. No work may be under way. */
void tt_ckpt_writer_start(struct tt_ckpt_writer *writer, int (*work)(void *arg), void *arg);

/** Whether there is no work under way. */
bool tt_ckpt_writer_is_idle(struct tt_ckpt_writer *writer);

/**
 * Waits until no work is under way. Returns the result of the last work, once; its error message becomes the caller's.
 */
int tt_ckpt_writer_wait(struct tt_ckpt_writer *writer) TT_MUST_CHECK;

/**
 * One save under way, and its phases. For save.c and write.c only.
 *
 *   check    ranks have the same tensors and therefore the same plan                        all ranks
 *   prepare  space on the disk, temporary folder                                            rank 0
 *   open     files created, their space reserved                                            writers
 *   gather   rows that their writer does not hold are sent to it, which writes them at once all ranks
 *   stage    with a writer thread: the other rows are copied and summed; training may continue writers
 *   sum      rows that another rank writes are summed, to compare replicas                  all ranks
 *   write    files are written and made durable, in the caller or in the thread; no messages writers
 *   collect  checksums and digests, summed over the ranks                                   all ranks
 *   compare  the digests of replicas                                                        all ranks
 *   finish   writes the manifest; everything is now durable under the temporary name rank 0
 *   publish  one rename; then retention, with a writer in its thread                        rank 0
 *
 * Ranks agree after every phase. A failure in any of them ends the save on all ranks, and rank 0 removes the folder.
 */

/* Numbers that are summed over the ranks. Either one rank sets a word, which is zero on the others, or the word is a
 * true sum. */
struct tt_saving_shared {
    int64_t *words;
    int64_t n;
    int64_t *crc;        /* of piece i, two to a word: the low half for even i */
    int64_t *digest;     /* of tensor i of the model, then of the optimizer */
    int64_t *nonfinite;  /* in the same order: the number of elements that are NaN or infinite */
    int64_t *file_bytes; /* at group * ranks + rank */
    int64_t *file_crc;
};

struct tt_ckpt_writer;

struct tt_ckpt_saving {
    struct tt_ckpt_store *store;
    const struct tt_ckpt_policy *policy;
    struct tt_ckpt_writer *writer; /* NULL: training waits for the save */
    struct tt_team *team;          /* may be NULL */
    struct tt_ckpt_state live;     /* the trainer's rows and data; the data is not used once staged */
    struct tt_ckpt_state stored;   /* the same tensors, with the dtypes in which the files store them */
    json_t *meta;
    const struct tt_ckpt_asset *asset;
    int n_assets;
    int keep_latest_k;
    int64_t step;
    int rank;
    struct tt_ckpt_plan plan;
    /* the pieces of file f (group * ranks + rank) are piece_of_file[file_begin[f]] and the following */
    int *piece_of_file, *file_begin;
    struct tt_saving_shared shared;
    /* step-N, its name while it is being written, and the aside name of a step that it replaces */
    char *name, *temporary, *aside;
    char *folder;                              /* the temporary folder's path */
    struct tt_shard_file file[TT_CKPT_GROUPS]; /* this rank's */
    struct tt_durable out[TT_CKPT_GROUPS];
    char *staged[TT_CKPT_GROUPS]; /* the data of a file, in the staging memory; NULL: read from live */
    uint64_t *own_digest;         /* digests of the rows of each tensor that this rank holds; NULL without replicas */
    atomic_bool stop;             /* tells the writer to give up */
    int rc;                       /* the result of the write phase if there is no thread */
    char *message;
    double begin_sec, blocked_sec, stage_sec, write_sec;
};

static inline int64_t tt_saving_slot(const struct tt_ckpt_saving *s, enum tt_ckpt_group group, int writer)
{
    return (int64_t)group * s->store->comm->size + writer;
}

/** Lays out the file of a slot; n is 0 when there is none. The caller releases it. */
int tt_saving_file(const struct tt_ckpt_saving *saving, enum tt_ckpt_group group, int writer,
                   struct tt_shard_file *ret_file) TT_MUST_CHECK;

/** Creates this rank's files. arg: the tt_ckpt_saving. Runs in tt_comm_work, like all work that only reads and writes
 * files. */
int tt_saving_open(void *arg) TT_MUST_CHECK;

/** Copies this rank's rows into the staging memory. */
int tt_saving_stage(struct tt_ckpt_saving *saving) TT_MUST_CHECK;

/** The write phase; runs in the caller with its team, or in the writer's thread. arg: the tt_ckpt_saving. */
int tt_saving_write(void *arg) TT_MUST_CHECK;

/** The gather phase (collective). A rank whose disk fails still receives what is sent to it. */
int tt_saving_gather(struct tt_ckpt_saving *saving) TT_MUST_CHECK;

#endif
