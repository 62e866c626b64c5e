/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_ZIP_H
#define TT_CHECKPOINT_DCP_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"

/**
 * Reads the zip archives that torch.save writes: entries that are stored, not compressed, with ZIP64 where needed. An
 * archive is a range of bytes of a file, or is in memory.
 */
struct tt_stretch {
    const char *path;   /* for messages */
    int fd;             /* ignored with memory */
    int64_t begin;      /* of the archive in the file */
    int64_t bytes;      /* of the archive */
    const void *memory; /* NULL: the archive is in the file */
};

struct tt_zip_entry {
    char *name;
    int64_t begin, bytes; /* of its data, from the start of the archive */
    uint32_t crc;         /* CRC-32; 0 if the writer did not compute it */
};

struct tt_zip {
    int n, cap;
    struct tt_zip_entry *entry;
};

/**
 * Reads the directory of an archive and checks that every entry lies in the archive. TT_EDATA says what is wrong:
 * truncated, compressed, encrypted, too many entries.
 */
int tt_zip_open(const struct tt_stretch *archive, struct tt_zip *ret_zip) TT_MUST_CHECK;
void tt_zip_release(struct tt_zip *zip);

/** Reads bytes of an archive; TT_EDATA when the archive is shorter. */
int tt_stretch_read(const struct tt_stretch *archive, int64_t at, void *bytes, size_t size) TT_MUST_CHECK;

/**
 * The archive that torch.save makes of one object: entries that are not compressed, each with its data at a multiple of
 * 64 bytes. The elements of a tensor come last, so the archive is head, elements, tail, and the elements can be
 * streamed.
 */
enum { TT_ARCHIVE_ENTRIES = 4 };

struct tt_archive_entry {
    const char *name; /* static */
    int64_t at, bytes;
    uint32_t crc;
};

struct tt_archive {
    struct tt_text head, tail;
    int64_t data; /* bytes of elements between head and tail */
    int n;
    struct tt_archive_entry entry[TT_ARCHIVE_ENTRIES];
};

/** The most bytes of elements in one archive, because titan writes 32-bit sizes; larger tensors must be cut. */
#define TT_ARCHIVE_DATA_MOST ((int64_t)1 << 30)

/**
 * Begins the archive of an object: its pickle, and `data` bytes of elements (0: it is not a tensor). Zero-initialise
 * ret_archive first; release it with tt_archive_release.
 */
void tt_archive_begin(const struct tt_text *pickle, int64_t data, struct tt_archive *ret_archive);

/** Makes the tail; call it only once. crc: the CRC-32 of the elements. */
void tt_archive_end(struct tt_archive *archive, uint32_t crc);
void tt_archive_release(struct tt_archive *archive);

#endif
