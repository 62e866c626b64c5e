/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_ZIP_H
#define TT_CHECKPOINT_DCP_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/**
 * Reads the zip archives that torch.save writes: entries that are stored, not compressed, with ZIP64 where needed. An
 * archive is a stretch of a file, or is in memory.
 */
struct tt_stretch {
    const char *path;   /* for messages */
    int fd;             /* ignored with memory */
    int64_t begin;      /* in the file */
    int64_t bytes;      /* of the archive */
    const void *memory; /* NULL: it is in the file */
};

struct tt_zip_entry {
    char *name;
    int64_t begin, bytes; /* of its data, from the start of the archive */
    uint32_t crc;         /* CRC-32; 0 also when the writer has not computed it */
};

struct tt_zip {
    int n, cap;
    struct tt_zip_entry *entry;
};

/**
 * Reads the directory of an archive and checks that every entry lies in it. TT_EDATA says what is wrong: truncated,
 * compressed, encrypted, too many entries.
 */
int tt_zip_open(const struct tt_stretch *archive, struct tt_zip *ret_zip) TT_MUST_CHECK;
void tt_zip_release(struct tt_zip *zip);

/** The entry whose name is `name` in the archive's one folder ("archive/data.pkl"), or NULL. */
const struct tt_zip_entry *tt_zip_find(const struct tt_zip *zip, const char *name);

/** Reads bytes of an archive; TT_EDATA when it does not have them. */
int tt_stretch_read(const struct tt_stretch *archive, int64_t at, void *bytes, size_t size) TT_MUST_CHECK;

#endif
