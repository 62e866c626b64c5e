/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_METADATA_WRITE_H
#define TT_CHECKPOINT_DCP_METADATA_WRITE_H

#include "checkpoint/dcp/metadata.h"
#include "core/base/text.h"

/** The bytes of a .metadata file, added to text. Types are those that tt_dcp_dtype_name knows. */
void tt_dcp_metadata_text(const struct tt_dcp_metadata *metadata, struct tt_text *text);

#endif
