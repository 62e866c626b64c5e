/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_GGUF_SCAN_H
#define TT_CHECKPOINT_GGUF_SCAN_H

#include "checkpoint/format/manifest.h"
#include "core/base/error.h"
#include "core/gguf/gguf.h"

/** The key of the checksums that titan writes: one for each tensor, and then tt_gguf_crc_of_tensors. */
#define TT_GGUF_CHECKSUMS "titan.crc32c"

/**
 * Describes a GGUF file as a manifest: its tensors, by its names, with their bytes. Those in blocks of several elements
 * are bytes (U8). The checksums are those that titan writes, if it has written the file.
 */
int tt_gguf_scan(const char *path, struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/**
 * The checksums of a file that titan wrote; NULL: it has none, or another program made the file of one of titan's, with
 * other tensors or types.
 */
int tt_gguf_checksums(const struct tt_gguf *file, const struct tt_gguf_value **ret_crc) TT_MUST_CHECK;

#endif
