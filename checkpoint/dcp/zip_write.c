/* SPDX-License-Identifier: MIT
 *
 * Writes zip archives as torch.save does. Sizes and checksum of an entry follow its data, so that data can be streamed;
 * the directory has them again. Format: PKWARE's APPNOTE.TXT, 4.3 and 4.5.
 */
#include "checkpoint/dcp/zip_write.h"

#include <string.h>

#include "core/base/hash.h"

enum { ALIGNMENT = 64, HEADER_BYTES = 30, EXTRA_BYTES = 4, VERSION = 0, VERSION_64 = 45 };

/* Flags: sizes follow the data, and names are UTF-8. */
enum { FLAGS = 0x0808 };

static void add(struct tt_text *text, uint64_t number, int bytes)
{
    uint8_t byte[8];

    for (int i = 0; i < bytes; i++)
        byte[i] = (uint8_t)(number >> 8 * i);
    tt_text_add_bytes(text, byte, (size_t)bytes);
}

/* The header of an entry, with padding so that its data begins at a multiple of 64. */
static void begin_entry(struct tt_archive *a, const char *name, int64_t bytes)
{
    static const char padding[ALIGNMENT] = {0};
    size_t used = a->head.size + HEADER_BYTES + strlen(name) + EXTRA_BYTES;
    size_t fill = (ALIGNMENT - used % ALIGNMENT) % ALIGNMENT;

    a->entry[a->n].name = name;
    a->entry[a->n].at = (int64_t)a->head.size;
    a->entry[a->n].bytes = bytes;
    a->n++;
    add(&a->head, 0x04034b50, 4);
    add(&a->head, VERSION, 2);
    add(&a->head, FLAGS, 2);
    add(&a->head, 0, 2); /* stored */
    add(&a->head, 0, 4); /* no time */
    add(&a->head, 0, 8); /* checksum and size: after the data */
    add(&a->head, 0, 4);
    add(&a->head, strlen(name), 2);
    add(&a->head, EXTRA_BYTES + fill, 2);
    tt_text_add(&a->head, "%s", name);
    add(&a->head, 0x4246, 2); /* as PyTorch names its padding */
    add(&a->head, fill, 2);
    tt_text_add_bytes(&a->head, padding, fill);
}

static void end_entry(struct tt_archive *a, struct tt_text *text, uint32_t crc)
{
    int64_t bytes = a->entry[a->n - 1].bytes;

    a->entry[a->n - 1].crc = crc;
    add(text, 0x08074b50, 4);
    add(text, crc, 4);
    add(text, (uint64_t)bytes, 4);
    add(text, (uint64_t)bytes, 4);
}

static void add_entry(struct tt_archive *a, const char *name, const void *bytes, size_t size)
{
    begin_entry(a, name, (int64_t)size);
    tt_text_add_bytes(&a->head, bytes, size);
    end_entry(a, &a->head, tt_crc32(0, bytes, size));
}

void tt_archive_begin(const struct tt_text *pickle, int64_t data, struct tt_archive *ret_archive)
{
    ret_archive->data = data;
    add_entry(ret_archive, "archive/data.pkl", pickle->text, pickle->size);
    add_entry(ret_archive, "archive/byteorder", "little", 6);
    add_entry(ret_archive, "archive/version", "3\n", 2);
    if (data)
        begin_entry(ret_archive, "archive/data/0", data);
}

static void add_directory(struct tt_archive *a)
{
    for (int i = 0; i < a->n; i++) {
        add(&a->tail, 0x02014b50, 4);
        add(&a->tail, VERSION, 2);
        add(&a->tail, VERSION, 2);
        add(&a->tail, FLAGS, 2);
        add(&a->tail, 0, 2); /* stored */
        add(&a->tail, 0, 4); /* no time */
        add(&a->tail, a->entry[i].crc, 4);
        add(&a->tail, (uint64_t)a->entry[i].bytes, 4);
        add(&a->tail, (uint64_t)a->entry[i].bytes, 4);
        add(&a->tail, strlen(a->entry[i].name), 2);
        add(&a->tail, 0, 8); /* no extra, no comment, first disk, no attributes */
        add(&a->tail, 0, 4);
        add(&a->tail, (uint64_t)a->entry[i].at, 4);
        tt_text_add(&a->tail, "%s", a->entry[i].name);
    }
}

void tt_archive_end(struct tt_archive *archive, uint32_t crc)
{
    struct tt_text *tail = &archive->tail;
    uint64_t at, bytes, n = (uint64_t)archive->n;

    if (archive->data)
        end_entry(archive, tail, crc);
    at = archive->head.size + (uint64_t)archive->data + tail->size;
    bytes = tail->size;
    add_directory(archive);
    bytes = tail->size - bytes;
    add(tail, 0x06064b50, 4); /* the end of the directory with 64 bits, as PyTorch always writes it */
    add(tail, 44, 8);
    add(tail, VERSION_64, 2);
    add(tail, VERSION_64, 2);
    add(tail, 0, 8); /* disks */
    add(tail, n, 8);
    add(tail, n, 8);
    add(tail, bytes, 8);
    add(tail, at, 8);
    add(tail, 0x07064b50, 4); /* where that is */
    add(tail, 0, 4);
    add(tail, at + bytes, 8);
    add(tail, 1, 4);
    add(tail, 0x06054b50, 4); /* the end */
    add(tail, 0, 4);
    add(tail, n, 2);
    add(tail, n, 2);
    add(tail, bytes, 4);
    add(tail, at, 4);
    add(tail, 0, 2);
}

void tt_archive_release(struct tt_archive *archive)
{
    tt_text_release(&archive->head);
    tt_text_release(&archive->tail);
}
