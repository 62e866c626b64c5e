/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_METADATA_H
#define TT_CHECKPOINT_DCP_METADATA_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/graph/dtype.h"
#include "core/math/box.h"

/**
 * The file .metadata of a folder of PyTorch's torch.distributed.checkpoint: the keys of the checkpoint, how each tensor
 * is cut, and where each piece is. The file is a pickle of class Metadata.
 */
struct tt_dcp_piece {
    struct tt_box box;
    int file;
    int64_t begin, bytes; /* the place of the item's archive in the file */
};

struct tt_dcp_entry {
    char *key;      /* "optimizer.state.norm.weight.exp_avg" */
    size_t leaf;    /* where the last name of the key's path begins; 0: the path is one name */
    bool is_tensor; /* otherwise it is an object, stored as one piece without dimensions */
    enum tt_dtype dtype;
    int ndim;
    int64_t shape[TT_BOX_DIMS];
    int n, cap;
    struct tt_dcp_piece *piece;
    char *unread; /* why titan does not read it, although it is intact: "is …"; NULL: titan can read it */
};

struct tt_dcp_file {
    char *name;    /* below the folder */
    int64_t bytes; /* up to the end of the last archive in the file, even if that archive has no elements */
};

struct tt_dcp_metadata {
    int n_files, cap_files;
    struct tt_dcp_file *file; /* sorted by name */
    int n, cap;
    struct tt_dcp_entry *entry;
    bool by_titan; /* titan wrote it; tt_dcp_metadata_text always records this */
};

/** Reads the bytes of a .metadata file; `where` is for messages. TT_EDATA says what is wrong with it. */
int tt_dcp_metadata_parse(const char *where, const void *bytes, size_t size,
                          struct tt_dcp_metadata *ret_metadata) TT_MUST_CHECK;
void tt_dcp_metadata_release(struct tt_dcp_metadata *metadata);

/** Adds the bytes of a .metadata file to text. tt_py_type_of must know the types of all tensors. */
void tt_dcp_metadata_text(const struct tt_dcp_metadata *metadata, struct tt_text *text);

#endif
