/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_ZIP_WRITE_H
#define TT_CHECKPOINT_DCP_ZIP_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/text.h"

/**
 * The archive that torch.save makes of one object: entries that are stored as they are, the data of each at a multiple
 * of 64 bytes. The elements of a tensor come last, so that the archive is head, elements, tail, and elements can be
 * streamed.
 */
enum { TT_ARCHIVE_ENTRIES = 4 };

struct tt_archive {
    struct tt_text head, tail;
    int64_t data; /* bytes of elements between the two */
    int n;
    struct {
        const char *name; /* static */
        int64_t at, bytes;
        uint32_t crc;
    } entry[TT_ARCHIVE_ENTRIES];
};

/** Bytes of elements in one archive, whose sizes have 32 bits here; cut larger tensors. */
#define TT_ARCHIVE_DATA_MOST ((int64_t)1 << 30)

/**
 * Begins the archive of an object: its pickle, and `data` bytes of elements (0: it is not a tensor). Zero-initialise
 * ret_archive before, and release it with tt_archive_release.
 */
void tt_archive_begin(const struct tt_text *pickle, int64_t data, struct tt_archive *ret_archive);

/** Makes the tail, once; crc: the CRC-32 of the elements. */
void tt_archive_end(struct tt_archive *archive, uint32_t crc);
void tt_archive_release(struct tt_archive *archive);

#endif
