/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_GGUF_H
#define TT_CHECKPOINT_FORMAT_GGUF_H

#include <stdint.h>

#include "checkpoint/format/manifest.h"
#include "core/base/error.h"
#include "core/gguf/gguf.h"
#include "core/math/packing.h"

/** The key of the checksums that titan writes: one for each tensor, and then tt_gguf_crc_of_tensors. */
#define TT_GGUF_CHECKSUMS "titan.crc32c"

/** The key of the checksum of the bytes of all values before it. */
#define TT_GGUF_VALUES_CHECKSUM "titan.crc32c.values"

/**
 * Describes a GGUF file as a manifest: its tensors, under the file's names, with their bytes. Tensors that are packed
 * in blocks have type U8. Only files that titan wrote have checksums.
 */
int tt_gguf_scan(const char *path, struct tt_manifest *ret_manifest) TT_MUST_CHECK;

/**
 * The checksums of a file that titan wrote; NULL: there are none, or another program made the file from one of titan's,
 * with other tensors or types.
 */
int tt_gguf_checksums(const struct tt_gguf *file, const struct tt_gguf_value **ret_crc) TT_MUST_CHECK;

/**
 * Compares the values of a file that titan wrote (sizes, tokenizer, chat template) with their checksum: TT_EDATA if
 * they differ. 0 for files without one, and if another program made the file from one of titan's.
 */
int tt_gguf_check_values(const char *path) TT_MUST_CHECK;

/**
 * Elements in the types of a GGUF file, rounded as in ggml, so that the files have the same bits. Blocks are packed as
 * in core/math/packing.h.
 */

/** The packing whose rows are the type's blocks; NONE: the type has no blocks. */
enum tt_packing_choice tt_gguf_packing(const struct tt_gguf_type_row *type);

/** Packs n elements (whole blocks). */
void tt_gguf_pack(const struct tt_gguf_type_row *type, const float *data, int64_t n, void *bytes);

/** Unpacks n elements (whole blocks). */
void tt_gguf_unpack(const struct tt_gguf_type_row *type, const void *bytes, int64_t n, float *data);

#endif
