/* SPDX-License-Identifier: MIT
 *
 * The owner of zlib and zstd: reads files by lines or as a whole and unpacks them on the way. The file is mapped. Plain
 * text is handed out in place, packed text through a buffer.
 */
#include "core/data/reader.h"

#include <string.h>
#include <strings.h>

#define ZLIB_CONST /* input bytes are const */
#include <zlib.h>
#include <zstd.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

enum packing { PLAIN, GZIP, ZSTD };

/*
 * Limits of what unpacking holds in memory at once: a line, or the rest of a file as one document. A few KB of zstd can
 * unpack to gigabytes, so the size of the file sets no limit.
 */
enum { CHUNK_BYTES = 1 << 18, LINE_MOST = 128 << 20, REST_MOST = 1 << 30 };

struct tt_reader {
    char *name;
    struct tt_mapping mapping; /* of a file that was opened by its path */
    const uint8_t *raw;
    size_t raw_size, raw_used;
    enum packing packing;
    z_stream gzip;
    ZSTD_DStream *zstd;
    bool in_frame;         /* within a gzip member or a zstd frame, where the file must not end */
    struct tt_text buffer; /* unpacked text; bytes before buffer_used were handed out */
    size_t buffer_used;
    int64_t offset; /* of the next byte, unpacked */
    int64_t lines;  /* handed out */
    bool is_open;   /* the decompressor exists */
};

static bool begins(const void *bytes, size_t size, const char *magic, size_t magic_size)
{
    return size >= magic_size && memcmp(bytes, magic, magic_size) == 0;
}

static bool is_html(const char *text, size_t size)
{
    while (size && strchr(" \t\r\n", *text)) {
        text++;
        size--;
    }
    return (size >= 9 && strncasecmp(text, "<!doctype", 9) == 0) || (size >= 5 && strncasecmp(text, "<html", 5) == 0);
}

/* Whether every other byte of the beginning is 0, as in UTF-16 without a mark of the byte order. */
static bool is_wide(const uint8_t *bytes, size_t size, size_t zero)
{
    size_t most = size < 64 ? size / 2 * 2 : 64;

    for (size_t i = 0; i < most; i++)
        if ((bytes[i] == 0) != (i % 2 == zero))
            return false;
    return most >= 4;
}

/* A frame of zstd, or one that it skips, with which pzstd begins. */
static bool is_zstd(const uint8_t *raw, size_t size)
{
    return begins(raw, size, "\x28\xb5\x2f\xfd", 4) ||
           (size >= 8 && (raw[0] & 0xf0) == 0x50 && memcmp(raw + 1, "\x2a\x4d\x18", 3) == 0);
}

int tt_reader_refuse(const char *name, const void *bytes, size_t size, bool may_be_html)
{
    static const struct {
        const char *magic;
        size_t size;
        const char *what, *help;
    } other[] = {
        {"version https://git-lfs", 23, "a Git LFS pointer, not the file itself", "git lfs pull"},
        {"PAR1", 4, "a Parquet file, which titan does not read", "convert it to JSON lines"},
        {"\xfd"
         "7zXZ",
         5, "compressed by xz, which titan does not read", "unpack it, or pack it with gzip or zstd"},
        {"BZh", 3, "compressed by bzip2, which titan does not read", "unpack it, or pack it with gzip or zstd"},
        {"\x04\x22\x4d\x18", 4, "compressed by lz4, which titan does not read",
         "unpack it, or pack it with gzip or zstd"},
        {"\x02\x21\x4c\x18", 4, "compressed by lz4, which titan does not read",
         "unpack it, or pack it with gzip or zstd"},
        {"\x1f\x9d", 2, "compressed by compress, which titan does not read", "unpack it, or pack it with gzip or zstd"},
        {"\xff\xfe\x00\x00", 4, "text in UTF-32, which titan does not read", "convert it: iconv -f UTF-32 -t UTF-8"},
        {"\xff\xfe", 2, "text in UTF-16, which titan does not read", "convert it: iconv -f UTF-16 -t UTF-8"},
        {"\xfe\xff", 2, "text in UTF-16, which titan does not read", "convert it: iconv -f UTF-16 -t UTF-8"},
        {"PK\x03\x04", 4, "a zip archive, which titan does not read", "unpack it"},
    };

    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        if (begins(bytes, size, other[i].magic, other[i].size))
            return tt_fail(TT_EDATA, "'%s' is %s\nhelp: %s", name, other[i].what, other[i].help);
    }
    for (size_t zero = 0; zero < 2; zero++) {
        if (is_wide(bytes, size, zero))
            return tt_fail(TT_EDATA,
                           "'%s' is text in UTF-16, which titan does not read\nhelp: convert it: iconv -f UTF-16%s -t "
                           "UTF-8",
                           name, zero ? "LE" : "BE");
    }
    if (!may_be_html && size && is_html(bytes, size))
        return tt_fail(TT_EDATA, "'%s' is a web page, not data\nhelp: the download went wrong; look at the file", name);
    return 0;
}

static int start(struct tt_reader *r, const char *name)
{
    const char *dot = strrchr(name, '.');
    bool may_be_html = dot && (strcasecmp(dot, ".html") == 0 || strcasecmp(dot, ".htm") == 0);
    int rc = 0;

    r->name = tt_strdup(name);
    TT_TRY(tt_reader_refuse(name, r->raw, r->raw_size, may_be_html));
    if (begins(r->raw, r->raw_size, "\x1f\x8b", 2)) {
        r->packing = GZIP;
        if (inflateInit2(&r->gzip, 16 + MAX_WBITS) != Z_OK)
            return tt_fail(TT_ENOMEM, "%s: cannot start zlib", name);
        r->is_open = true;
    } else if (is_zstd(r->raw, r->raw_size)) {
        r->packing = ZSTD;
        r->zstd = ZSTD_createDStream();
        if (!r->zstd)
            return tt_fail(TT_ENOMEM, "%s: cannot start zstd", name);
        r->is_open = true;
    } else if (begins(r->raw, r->raw_size, "\xef\xbb\xbf", 3)) {
        r->raw_used = 3;
        r->offset = 3;
    }
out:
    return rc;
}

int tt_reader_open(const char *path, struct tt_reader **ret_reader)
{
    struct tt_reader *r = tt_calloc(1, sizeof *r);
    int rc = 0;

    TT_TRY(tt_mapping_open(path, &r->mapping));
    r->raw = r->mapping.data;
    r->raw_size = r->mapping.size;
    TT_TRY(start(r, path));
    *ret_reader = r;
    return 0;
out:
    tt_reader_free(r);
    return rc;
}

int tt_reader_open_bytes(const char *name, const void *bytes, size_t size, struct tt_reader **ret_reader)
{
    struct tt_reader *r = tt_calloc(1, sizeof *r);
    int rc = 0;

    r->raw = bytes;
    r->raw_size = size;
    TT_TRY(start(r, name));
    *ret_reader = r;
    return 0;
out:
    tt_reader_free(r);
    return rc;
}

void tt_reader_free(struct tt_reader *reader)
{
    if (!reader)
        return;
    if (reader->is_open && reader->packing == GZIP)
        (void)inflateEnd(&reader->gzip);
    ZSTD_freeDStream(reader->zstd);
    tt_mapping_release(&reader->mapping);
    tt_text_release(&reader->buffer);
    tt_free(reader->name);
    tt_free(reader);
}

static int fail_packed(const struct tt_reader *r, const char *why)
{
    return tt_fail(TT_EDATA, "%s: cannot unpack at byte %zu of %zu: %s", r->name, r->raw_used, r->raw_size, why);
}

static int unpack_gzip(struct tt_reader *r, uint8_t *out, size_t cap, size_t *ret_n)
{
    size_t left = r->raw_size - r->raw_used;
    uInt given = left < (1u << 30) ? (uInt)left : 1u << 30;
    int status;

    if (!r->in_frame && r->raw_used && !r->raw[r->raw_used]) { /* padding, for instance of a tape */
        while (r->raw_used < r->raw_size && !r->raw[r->raw_used])
            r->raw_used++;
        *ret_n = 0;
        return 0;
    }
    if (!r->in_frame) { /* a file may have several members */
        (void)inflateReset(&r->gzip);
        r->in_frame = true;
    }
    r->gzip.next_in = (z_const Bytef *)(r->raw + r->raw_used);
    r->gzip.avail_in = given;
    r->gzip.next_out = out;
    r->gzip.avail_out = (uInt)cap;
    status = inflate(&r->gzip, Z_NO_FLUSH);
    r->raw_used += given - r->gzip.avail_in;
    *ret_n = cap - r->gzip.avail_out;
    if (status == Z_STREAM_END) {
        r->in_frame = false;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
        return fail_packed(r, r->gzip.msg ? r->gzip.msg : "damaged gzip data");
    }
    return 0;
}

static int unpack_zstd(struct tt_reader *r, void *out, size_t cap, size_t *ret_n)
{
    ZSTD_inBuffer in = {r->raw + r->raw_used, r->raw_size - r->raw_used, 0};
    ZSTD_outBuffer to = {out, cap, 0};
    size_t status = ZSTD_decompressStream(r->zstd, &to, &in);

    if (ZSTD_isError(status))
        return fail_packed(r, ZSTD_getErrorName(status));
    r->raw_used += in.pos;
    r->in_frame = status != 0;
    *ret_n = to.pos;
    return 0;
}

/* Unpacks one more chunk at the end of the buffer; ret_more is false at the end of the file. */
static int unpack(struct tt_reader *r, bool *ret_more)
{
    size_t n = 0, before = r->buffer.size, used = r->raw_used;
    bool is_first = r->offset == 0 && before == 0;
    uint8_t *chunk = tt_calloc(CHUNK_BYTES, 1);
    int rc = 0;

    *ret_more = r->raw_used < r->raw_size || r->in_frame;
    if (!*ret_more)
        goto out;
    if (r->packing == GZIP) {
        TT_TRY(unpack_gzip(r, chunk, CHUNK_BYTES, &n));
    } else {
        TT_TRY(unpack_zstd(r, chunk, CHUNK_BYTES, &n));
    }
    if (n == 0 && r->raw_used == used) {
        rc = fail_packed(r, "the file is truncated");
        goto out;
    }
    tt_text_add_bytes(&r->buffer, chunk, n);
    if (is_first)
        TT_TRY(tt_reader_refuse(r->name, r->buffer.text, r->buffer.size, true));
    if (is_first && begins(r->buffer.text, r->buffer.size, "\xef\xbb\xbf", 3)) {
        r->buffer_used = 3;
        r->offset = 3;
    }
out:
    tt_free(chunk);
    return rc;
}

static void drop_used(struct tt_reader *r)
{
    if (!r->buffer_used)
        return;
    r->buffer.size -= r->buffer_used;
    memmove(r->buffer.text, r->buffer.text + r->buffer_used, r->buffer.size);
    r->buffer_used = 0;
}

static void hand_out(struct tt_reader *r, const char *text, size_t size, size_t end, const char **ret_text,
                     size_t *ret_size, int64_t *ret_offset)
{
    *ret_text = text;
    *ret_size = size;
    *ret_offset = r->offset;
    r->offset += (int64_t)(size + end);
    if (r->packing == PLAIN) {
        r->raw_used += size + end;
    } else {
        r->buffer_used += size + end;
    }
}

static int fail_line(const struct tt_reader *r)
{
    char most[32];

    return tt_fail(
        TT_EDATA,
        "%s:%lld: the line is longer than %s when it is unpacked\nhelp: is it JSON lines, one object a line? "
        "If so, unpack the file: lines of plain files have no limit",
        r->name, (long long)r->lines + 1, tt_text_bytes(most, sizeof most, LINE_MOST));
}

int tt_reader_line(struct tt_reader *r, const char **ret_line, size_t *ret_size, int64_t *ret_offset)
{
    size_t seen = 0;
    bool more = true;
    int rc = 0;

    for (;;) {
        const char *text = r->packing == PLAIN ? (const char *)r->raw + r->raw_used : r->buffer.text + r->buffer_used;
        size_t left = r->packing == PLAIN ? r->raw_size - r->raw_used : r->buffer.size - r->buffer_used;
        const char *end = left > seen ? memchr(text + seen, '\n', left - seen) : NULL;

        if (end) {
            hand_out(r, text, (size_t)(end - text), 1, ret_line, ret_size, ret_offset);
            r->lines++;
            return 0;
        }
        if (r->packing != PLAIN && left > LINE_MOST)
            return fail_line(r);
        if (r->packing == PLAIN || !more) {
            hand_out(r, left ? text : NULL, left, 0, ret_line, ret_size, ret_offset);
            return 0;
        }
        seen = left;
        drop_used(r);
        TT_TRY(unpack(r, &more));
    }
out:
    return rc;
}

int tt_reader_rest(struct tt_reader *r, const char **ret_text, size_t *ret_size, int64_t *ret_offset)
{
    bool more = r->packing != PLAIN;
    char most[32];
    int rc = 0;

    while (more) {
        TT_TRY(unpack(r, &more));
        if (r->buffer.size > REST_MOST) {
            return tt_fail(TT_EDATA, "%s: the text is longer than %s when it is unpacked\nhelp: unpack the file",
                           r->name, tt_text_bytes(most, sizeof most, REST_MOST));
        }
    }
    if (r->packing == PLAIN) {
        hand_out(r, (const char *)r->raw + r->raw_used, r->raw_size - r->raw_used, 0, ret_text, ret_size, ret_offset);
    } else {
        hand_out(r, r->buffer.text ? r->buffer.text + r->buffer_used : "", r->buffer.size - r->buffer_used, 0, ret_text,
                 ret_size, ret_offset);
    }
out:
    return rc;
}

int64_t tt_reader_position(const struct tt_reader *reader)
{
    return (int64_t)reader->raw_used;
}

const void *tt_reader_raw(const struct tt_reader *reader, size_t *ret_size)
{
    *ret_size = reader->raw_size;
    return reader->raw;
}
