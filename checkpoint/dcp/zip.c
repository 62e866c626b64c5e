/* SPDX-License-Identifier: MIT
 *
 * Zip archives as torch.save writes them: the end of the archive leads to its directory, the directory to each entry's
 * header, and the header to its data. Sizes and checksum of an entry that is written follow its data, so that data can
 * be streamed; the directory repeats them. Format: PKWARE's APPNOTE.TXT, 4.3 and 4.5.
 */
#include "checkpoint/dcp/zip.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/os/file.h"

enum {
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    ENTRY_BYTES = 46,
    HEADER_BYTES = 30,
    WINDOW_BYTES = 2048,
    ENTRIES_MOST = 64,
    DIRECTORY_MOST = 1 << 20,
};

/* The most recently read bytes of an archive. A small archive takes two reads, one for each end. */
struct window {
    const struct tt_stretch *archive;
    int64_t at, n;
    uint8_t bytes[WINDOW_BYTES];
};

static int fail(const struct tt_stretch *a, const char *what)
{
    return tt_fail(TT_EDATA, "'%s' is damaged: the archive at byte %" PRId64 " %s", a->path, a->begin, what);
}

int tt_stretch_read(const struct tt_stretch *a, int64_t at, void *bytes, size_t size)
{
    if (at < 0 || at > a->bytes || size > (uint64_t)(a->bytes - at))
        return fail(a, "is truncated");
    if (!a->memory)
        return tt_file_pread(a->fd, a->path, bytes, size, a->begin + at);
    memcpy(bytes, (const char *)a->memory + at, size);
    return 0;
}

/* Points to n bytes at `at`, which stay valid until the next call. from: where to begin reading if they are not in the
 * window. */
static int look(struct window *w, int64_t at, int64_t n, int64_t from, const uint8_t **ret_bytes)
{
    int rc = 0;

    if (at < 0 || at > w->archive->bytes || n > w->archive->bytes - at)
        return fail(w->archive, "is truncated");
    if (at < w->at || at + n > w->at + w->n) {
        w->at = from < 0 ? 0 : from;
        w->n = w->archive->bytes - w->at < WINDOW_BYTES ? w->archive->bytes - w->at : WINDOW_BYTES;
        TT_TRY(tt_stretch_read(w->archive, w->at, w->bytes, (size_t)w->n));
    }
    *ret_bytes = w->bytes + (at - w->at);
out:
    return rc;
}

/* Finds the directory by the last bytes of the archive; torch.save writes no comment after them. */
static int find_directory(struct window *w, int64_t *ret_at, int64_t *ret_bytes, int64_t *ret_n)
{
    int64_t total = w->archive->bytes, end64;
    const uint8_t *p = NULL;
    int rc = 0;

    TT_TRY(look(w, total - END_BYTES, END_BYTES, total - WINDOW_BYTES, &p));
    if (tt_text_little(p, 4) != 0x06054b50)
        return fail(w->archive, "was not written by torch.save, or is truncated");
    *ret_n = (int64_t)tt_text_little(p + 10, 2);
    *ret_bytes = (int64_t)tt_text_little(p + 12, 4);
    *ret_at = (int64_t)tt_text_little(p + 16, 4);
    if (*ret_n != 0xffff && *ret_bytes != 0xffffffff && *ret_at != 0xffffffff)
        goto out;
    TT_TRY(look(w, total - END_BYTES - LOCATOR_BYTES, LOCATOR_BYTES, total - WINDOW_BYTES, &p));
    if (tt_text_little(p, 4) != 0x07064b50)
        return fail(w->archive, "lacks the locator of its directory");
    end64 = (int64_t)tt_text_little(p + 8, 8);
    TT_TRY(look(w, end64, END64_BYTES, end64, &p));
    if (tt_text_little(p, 4) != 0x06064b50)
        return fail(w->archive, "lacks the end of its directory");
    *ret_n = (int64_t)tt_text_little(p + 32, 8);
    *ret_bytes = (int64_t)tt_text_little(p + 40, 8);
    *ret_at = (int64_t)tt_text_little(p + 48, 8);
out:
    return rc;
}

/* Reads the 64-bit numbers of an entry: one for each field whose bits are all 1, in the order of the fields. */
static bool read_extra(const uint8_t *extra, int64_t size, int64_t *stored, int64_t *bytes, int64_t *header)
{
    int64_t *const field[] = {bytes, stored, header};

    for (int64_t at = 0; at + 4 <= size;) {
        int64_t n = (int64_t)tt_text_little(extra + at + 2, 2), used = 0;

        if (n > size - at - 4)
            return false;
        for (int i = 0; tt_text_little(extra + at, 2) == 1 && i < 3; i++) {
            if (*field[i] != 0xffffffff)
                continue;
            if (used + 8 > n)
                return false;
            *field[i] = (int64_t)tt_text_little(extra + at + 4 + used, 8);
            used += 8;
        }
        at += 4 + n;
    }
    return true;
}

static int read_entry(struct window *w, struct tt_zip *zip, const uint8_t *entry, int64_t left, int64_t *ret_used)
{
    int64_t names, extras, stored, bytes, header, data;
    const uint8_t *p = NULL;
    int rc = 0;

    if (left < ENTRY_BYTES || tt_text_little(entry, 4) != 0x02014b50)
        return fail(w->archive, "has a damaged directory");
    names = (int64_t)tt_text_little(entry + 28, 2);
    extras = (int64_t)tt_text_little(entry + 30, 2);
    *ret_used = ENTRY_BYTES + names + extras + (int64_t)tt_text_little(entry + 32, 2);
    if (*ret_used > left || memchr(entry + ENTRY_BYTES, 0, (size_t)names))
        return fail(w->archive, "has a damaged directory");
    if (tt_text_little(entry + 8, 2) & 1 || tt_text_little(entry + 10, 2) != 0)
        return fail(w->archive, "has an entry that is compressed or encrypted; torch.save stores entries as they are");
    stored = (int64_t)tt_text_little(entry + 20, 4);
    bytes = (int64_t)tt_text_little(entry + 24, 4);
    header = (int64_t)tt_text_little(entry + 42, 4);
    if (!read_extra(entry + ENTRY_BYTES + names, extras, &stored, &bytes, &header) || stored != bytes)
        return fail(w->archive, "has a damaged directory");
    TT_TRY(look(w, header, HEADER_BYTES, header, &p));
    if (tt_text_little(p, 4) != 0x04034b50)
        return fail(w->archive, "has an entry without a header");
    data = header + HEADER_BYTES + (int64_t)tt_text_little(p + 26, 2) + (int64_t)tt_text_little(p + 28, 2);
    if (bytes < 0 || data > w->archive->bytes || bytes > w->archive->bytes - data)
        return fail(w->archive, "has an entry that does not end in it: it is truncated");
    TT_PUSH(zip->entry, zip->n, zip->cap) =
        (struct tt_zip_entry){tt_strndup((const char *)entry + ENTRY_BYTES, (size_t)names), data, bytes,
                              (uint32_t)tt_text_little(entry + 16, 4)};
out:
    return rc;
}

int tt_zip_open(const struct tt_stretch *archive, struct tt_zip *ret_zip)
{
    struct window w = {.archive = archive};
    struct tt_zip zip = {0};
    int64_t at = 0, bytes = 0, n = 0, used = 0;
    uint8_t *directory = NULL;
    int rc = 0;

    TT_TRY(find_directory(&w, &at, &bytes, &n));
    if (n < 0 || n > ENTRIES_MOST || bytes < 0 || bytes > DIRECTORY_MOST)
        TT_TRY(fail(archive, "has a larger directory than torch.save writes"));
    directory = tt_calloc((size_t)bytes + 1, 1);
    TT_TRY(tt_stretch_read(archive, at, directory, (size_t)bytes));
    for (int64_t i = 0, done = 0; i < n; i++, done += used)
        TT_TRY(read_entry(&w, &zip, directory + done, bytes - done, &used));
    *ret_zip = zip;
    zip = (struct tt_zip){0};
out:
    tt_zip_release(&zip);
    tt_free(directory);
    return rc;
}

void tt_zip_release(struct tt_zip *zip)
{
    for (int i = 0; i < zip->n; i++)
        tt_free(zip->entry[i].name);
    tt_free(zip->entry);
    *zip = (struct tt_zip){0};
}

/* --- writing --- */

enum { ALIGNMENT = 64, EXTRA_BYTES = 4, VERSION = 0, VERSION_64 = 45 };

/* Flags: sizes follow the data, and names are UTF-8. */
enum { FLAGS = 0x0808 };

/* Adds the header of an entry, padded so that its data begins at a multiple of 64. */
static void begin_entry(struct tt_archive *a, const char *name, int64_t bytes)
{
    static const char padding[ALIGNMENT] = {0};
    size_t used = a->head.size + HEADER_BYTES + strlen(name) + EXTRA_BYTES;
    size_t fill = (ALIGNMENT - used % ALIGNMENT) % ALIGNMENT;

    a->entry[a->n++] = (struct tt_archive_entry){.name = name, .at = (int64_t)a->head.size, .bytes = bytes};
    tt_text_add_little(&a->head, 0x04034b50, 4);
    tt_text_add_little(&a->head, VERSION, 2);
    tt_text_add_little(&a->head, FLAGS, 2);
    tt_text_add_little(&a->head, 0, 2); /* stored, not compressed */
    tt_text_add_little(&a->head, 0, 4); /* no date and time */
    tt_text_add_little(&a->head, 0, 8); /* checksum and sizes follow the data */
    tt_text_add_little(&a->head, 0, 4);
    tt_text_add_little(&a->head, strlen(name), 2);
    tt_text_add_little(&a->head, EXTRA_BYTES + fill, 2);
    tt_text_add(&a->head, "%s", name);
    tt_text_add_little(&a->head, 0x4246, 2); /* the tag of the padding, as in PyTorch */
    tt_text_add_little(&a->head, fill, 2);
    tt_text_add_bytes(&a->head, padding, fill);
}

static void end_entry(struct tt_archive *a, struct tt_text *text, uint32_t crc)
{
    int64_t bytes = a->entry[a->n - 1].bytes;

    a->entry[a->n - 1].crc = crc;
    tt_text_add_little(text, 0x08074b50, 4);
    tt_text_add_little(text, crc, 4);
    tt_text_add_little(text, (uint64_t)bytes, 4);
    tt_text_add_little(text, (uint64_t)bytes, 4);
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
        tt_text_add_little(&a->tail, 0x02014b50, 4);
        tt_text_add_little(&a->tail, VERSION, 2);
        tt_text_add_little(&a->tail, VERSION, 2);
        tt_text_add_little(&a->tail, FLAGS, 2);
        tt_text_add_little(&a->tail, 0, 2); /* stored, not compressed */
        tt_text_add_little(&a->tail, 0, 4); /* no date and time */
        tt_text_add_little(&a->tail, a->entry[i].crc, 4);
        tt_text_add_little(&a->tail, (uint64_t)a->entry[i].bytes, 4);
        tt_text_add_little(&a->tail, (uint64_t)a->entry[i].bytes, 4);
        tt_text_add_little(&a->tail, strlen(a->entry[i].name), 2);
        tt_text_add_little(&a->tail, 0, 8); /* no extra, no comment, first disk, no attributes */
        tt_text_add_little(&a->tail, 0, 4);
        tt_text_add_little(&a->tail, (uint64_t)a->entry[i].at, 4);
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
    tt_text_add_little(tail, 0x06064b50, 4); /* the end of the directory with 64 bits, as PyTorch always writes it */
    tt_text_add_little(tail, 44, 8);
    tt_text_add_little(tail, VERSION_64, 2);
    tt_text_add_little(tail, VERSION_64, 2);
    tt_text_add_little(tail, 0, 8); /* disk numbers */
    tt_text_add_little(tail, n, 8);
    tt_text_add_little(tail, n, 8);
    tt_text_add_little(tail, bytes, 8);
    tt_text_add_little(tail, at, 8);
    tt_text_add_little(tail, 0x07064b50, 4); /* the locator of that end */
    tt_text_add_little(tail, 0, 4);
    tt_text_add_little(tail, at + bytes, 8);
    tt_text_add_little(tail, 1, 4);
    tt_text_add_little(tail, 0x06054b50, 4); /* the end of the directory */
    tt_text_add_little(tail, 0, 4);
    tt_text_add_little(tail, n, 2);
    tt_text_add_little(tail, n, 2);
    tt_text_add_little(tail, bytes, 4);
    tt_text_add_little(tail, at, 4);
    tt_text_add_little(tail, 0, 2);
}

void tt_archive_release(struct tt_archive *archive)
{
    tt_text_release(&archive->head);
    tt_text_release(&archive->tail);
}
