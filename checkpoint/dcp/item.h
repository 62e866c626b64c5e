/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_ITEM_H
#define TT_CHECKPOINT_DCP_ITEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/dcp/pickle.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/graph/dtype.h"
#include "core/math/box.h"

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
