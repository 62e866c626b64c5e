/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_GGUF_SCAN_H
#define TT_CHECKPOINT_GGUF_SCAN_H

#include "checkpoint/format/manifest.h"
#include "core/base/error.h"

/**
 * Describes a GGUF file as a manifest: its tensors, by its names, with their bytes. Those in blocks of several elements
 * are bytes (U8). The checksums are those that titan writes ("titan.crc32c"), if it has written the file.
 */
int tt_gguf_scan(const char *path, struct tt_manifest *ret_manifest) TT_MUST_CHECK;

#endif
