/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_BOX_READ_H
#define TT_CHECKPOINT_FORMAT_BOX_READ_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/math/box.h"

/**
 * Reads the part of the box `want` that the box `stored` has (packed row-major in the file from byte `begin`) into
 * `bytes`, which is packed as `want`. Parts of `want` outside of `stored` are not touched. item: bytes per element.
 * path is for messages.
 */
int tt_box_read(int fd, const char *path, int64_t begin, const struct tt_box *stored, const struct tt_box *want,
                size_t item, void *bytes) TT_MUST_CHECK;

#endif
