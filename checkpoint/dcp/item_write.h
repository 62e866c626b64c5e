/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_ITEM_WRITE_H
#define TT_CHECKPOINT_DCP_ITEM_WRITE_H

#include <stdint.h>

#include "checkpoint/dcp/pickler.h"
#include "checkpoint/dcp/zip_write.h"
#include "core/base/error.h"
#include "core/graph/dtype.h"

/** The archives of items, as torch.save writes them; the counterpart of checkpoint/dcp/item.h. */

/** "bfloat16", as in torch.bfloat16; NULL when PyTorch's checkpoints have no such type. */
const char *tt_dcp_dtype_name(enum tt_dtype dtype);

/** A tensor, whose elements follow the archive's head. TT_EDATA if PyTorch has no such type; name: for the message. */
int tt_dcp_item_tensor(const char *name, enum tt_dtype dtype, int ndim, const int64_t *shape,
                       struct tt_archive *ret_archive) TT_MUST_CHECK;

/** An object: a pickle that has been begun and has pushed it. Releases the pickler. */
void tt_dcp_item_object(struct tt_pickler *pickler, struct tt_archive *ret_archive);

#endif
