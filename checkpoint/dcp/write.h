/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_WRITE_H
#define TT_CHECKPOINT_DCP_WRITE_H

#include <stdint.h>

#include "checkpoint/dcp/metadata.h"
#include "checkpoint/dcp/pickler.h"
#include "checkpoint/hf/weights_file.h"
#include "checkpoint/steps/commit.h"
#include "core/base/error.h"

/**
 * Writes a folder of PyTorch's torch.distributed.checkpoint, as one rank would: files __0_N.distcp of archives, and
 * .metadata last. Tensors are streamed, cut by rows into pieces of at most 1 GiB. Local. The same input gives the same
 * bytes.
 */
struct tt_dcp_writer {
    const char *folder;   /* borrowed */
    struct tt_durable to; /* the file that is being written */
    int64_t at;           /* its bytes so far */
    int64_t bytes;        /* of all files that are complete */
    struct tt_dcp_metadata metadata;
};

struct tt_dcp_writer tt_dcp_writer_new(const char *folder);

/** Completes the file before, and begins another one. */
int tt_dcp_writer_file(struct tt_dcp_writer *writer) TT_MUST_CHECK;

/**
 * Adds weight `number` of `file`, in the dtype that it has there, under a key. root: the first name of the key's path
 * in the state dictionary, "optimizer"; NULL: the key is a path of one name. TT_EDATA: PyTorch has no such type.
 */
int tt_dcp_writer_weight(struct tt_dcp_writer *writer, struct tt_weights_file *file, int number, const char *key,
                         const char *root) TT_MUST_CHECK;

/** Adds an object: a pickle that has been begun and has pushed it. Releases the pickler. */
int tt_dcp_writer_object(struct tt_dcp_writer *writer, const char *key, const char *root,
                         struct tt_pickler *pickler) TT_MUST_CHECK;

/** Adds a float32 tensor without dimensions. */
int tt_dcp_writer_scalar(struct tt_dcp_writer *writer, const char *key, const char *root, float number) TT_MUST_CHECK;

/** Another key for a weight that was added as `of`, if there is none of that key; its bytes are stored once. */
void tt_dcp_writer_alias(struct tt_dcp_writer *writer, const char *key, const char *of);

/** Completes the last file and writes .metadata. Release the writer after it. */
int tt_dcp_writer_finish(struct tt_dcp_writer *writer) TT_MUST_CHECK;

/** Releases; gives up the file that is not complete. */
void tt_dcp_writer_release(struct tt_dcp_writer *writer);

#endif
