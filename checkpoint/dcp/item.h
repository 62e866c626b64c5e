/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_ITEM_H
#define TT_CHECKPOINT_DCP_ITEM_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/dcp/pickle.h"
#include "checkpoint/dcp/zip.h"
#include "core/base/error.h"
#include "core/graph/dtype.h"
#include "core/math/box.h"

/**
 * One item of a .distcp file: a tensor or a Python object as torch.save writes it, a zip archive with a pickle that
 * refers to the bytes of tensors.
 */
struct tt_dcp_tensor {
    enum tt_dtype dtype;
    int ndim;
    int64_t shape[TT_BOX_DIMS];
    int64_t begin, end; /* place of the packed elements, from the start of the archive */
    uint32_t order;     /* order of the dimensions, as in tt_manifest_chunk */
    uint32_t crc;       /* CRC-32 of these bytes, if has_crc */
    bool has_crc;
    const char *unread; /* why titan does not read it, although it is intact: "is …" (static); NULL: titan reads it */
};

/**
 * Finds the bytes of a tensor. TT_EDATA: the archive is damaged or contains no tensor. name: of the tensor, for
 * messages.
 */
int tt_dcp_tensor_find(const struct tt_stretch *archive, const char *name,
                       struct tt_dcp_tensor *ret_tensor) TT_MUST_CHECK;

/** Reads a number: an int, a float, a bool or a tensor of one element. TT_EDATA: the item is neither. */
int tt_dcp_number_read(const struct tt_stretch *archive, const char *name, double *ret_number) TT_MUST_CHECK;

/**
 * Makes the archive of a tensor as torch.save writes it; the caller writes the elements between its head and its tail.
 * TT_EDATA if PyTorch has no such type. name: for the message. To write any other object, end its pickle with
 * TT_PICKLER_STOP and call tt_archive_begin.
 */
int tt_dcp_item_tensor(const char *name, enum tt_dtype dtype, int ndim, const int64_t *shape,
                       struct tt_archive *ret_archive) TT_MUST_CHECK;

#endif
