/* SPDX-License-Identifier: MIT
 *
 * Readers of data files, and the compressions of files, of Parquet's pages and of Arrow's buffers. Only this file uses
 * zlib and zstd. A reader maps its file, returns plain text in place, and returns unpacked text from a buffer.
 */
#include "core/data/reader.h"

#include <string.h>
#include <strings.h>

#include "core/base/mem.h"
#include "core/base/text.h"

#define ZLIB_CONST /* makes zlib's input bytes const */
#include <zlib.h>
#include <zstd.h>

/*
 * Limits of the memory for unpacking: for a line, or for the rest of a file as one document. A few KB of zstd can
 * unpack to gigabytes, so the size of the file is no limit.
 */
enum { CHUNK_BYTES = 1 << 18, LINE_MOST = 128 << 20, REST_MOST = 1 << 30 };

enum packing { PLAIN, GZIP, ZSTD };

struct tt_reader {
    const char *name;
    struct tt_mapping mapping; /* mapping of a file that is opened by its path */
    const uint8_t *raw;
    size_t raw_size, raw_used;
    enum tt_file_form form;
    enum packing packing;
    z_stream gzip;
    ZSTD_DStream *zstd;
    bool in_frame;         /* within a gzip member or a zstd frame, where the file must not end */
    struct tt_text buffer; /* unpacked text; bytes before buffer_used have been returned */
    size_t buffer_used;
    int64_t offset; /* place of the next byte in the unpacked text */
    int64_t lines;  /* number of lines that have been returned */
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

/* Whether every other byte at the beginning is 0, as in UTF-16 without a byte order mark. */
static bool is_wide(const uint8_t *bytes, size_t size, size_t zero)
{
    size_t most = size < 64 ? size / 2 * 2 : 64;

    for (size_t i = 0; i < most; i++)
        if ((bytes[i] == 0) != (i % 2 == zero))
            return false;
    return most >= 4;
}

/* Whether a zstd frame begins here, or a skippable frame, with which pzstd begins. */
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
        {"PAR1", 4, "a Parquet file", "dataset 'parquet' reads it"},
        {"PARE", 4, "an encrypted Parquet file, which titan does not read", "write it without encryption"},
        {"ARROW1", 6, "a file of Arrow", "dataset 'arrow' reads it"},
        {"FEA1", 4, "a Feather file of version 1, which titan does not read",
         "read it with pandas and write it again: df.to_parquet(...)"},
        {"%PDF-", 5, "a PDF file, which titan does not read", "make text of it: pdftotext FILE.pdf"},
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

/* Arrow's files begin with a name, its streams with the sizes of a message and of its first table. */
static enum tt_file_form form_of(const uint8_t *raw, size_t size)
{
    if (begins(raw, size, "PAR1", 4))
        return TT_FORM_PARQUET;
    if (begins(raw, size, "ARROW1", 6) || (size >= 8 && begins(raw, size, "\xff\xff\xff\xff", 4)))
        return TT_FORM_ARROW;
    return TT_FORM_TEXT;
}

static int start(struct tt_reader *r, const char *name)
{
    const char *dot = strrchr(name, '.');
    bool may_be_html = dot && (strcasecmp(dot, ".html") == 0 || strcasecmp(dot, ".htm") == 0);
    int rc = 0;

    r->name = name;
    r->form = form_of(r->raw, r->raw_size);
    if (r->form != TT_FORM_TEXT)
        return 0;
    TT_TRY(tt_reader_refuse(name, r->raw, r->raw_size, may_be_html));
    if (begins(r->raw, r->raw_size, "\x1f\x8b", 2)) {
        if (inflateInit2(&r->gzip, 16 + MAX_WBITS) != Z_OK)
            return tt_fail(TT_ENOMEM, "%s: cannot start zlib", name);
        r->packing = GZIP;
    } else if (is_zstd(r->raw, r->raw_size)) {
        r->packing = ZSTD;
        r->zstd = ZSTD_createDStream();
        if (!r->zstd)
            return tt_fail(TT_ENOMEM, "%s: cannot start zstd", name);
    } else if (begins(r->raw, r->raw_size, "\xef\xbb\xbf", 3)) {
        r->raw_used = 3;
        r->offset = 3;
    }
out:
    return rc;
}

void tt_reader_free(struct tt_reader *reader)
{
    if (!reader)
        return;
    if (reader->packing == GZIP)
        (void)inflateEnd(&reader->gzip);
    ZSTD_freeDStream(reader->zstd);
    tt_mapping_release(&reader->mapping);
    tt_text_release(&reader->buffer);
    tt_free(reader);
}

int tt_reader_open(const char *path, struct tt_builtin builtin, struct tt_reader **ret_reader)
{
    struct tt_reader *r = tt_calloc(1, sizeof *r);
    int rc = 0;

    if (!builtin.size)
        TT_TRY(tt_mapping_open(path, &r->mapping));
    r->raw = builtin.size ? (const uint8_t *)builtin.bytes : r->mapping.data;
    r->raw_size = builtin.size ? builtin.size : r->mapping.size;
    TT_TRY(start(r, path));
    *ret_reader = r;
    r = NULL;
out:
    tt_reader_free(r);
    return rc;
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

    if (!r->in_frame && r->raw_used && !r->raw[r->raw_used]) { /* padding, as on a tape */
        while (r->raw_used < r->raw_size && !r->raw[r->raw_used])
            r->raw_used++;
        *ret_n = 0;
        return 0;
    }
    if (!r->in_frame) { /* there may be several members in a file */
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
    TT_TRY(r->packing == GZIP ? unpack_gzip(r, chunk, CHUNK_BYTES, &n) : unpack_zstd(r, chunk, CHUNK_BYTES, &n));
    if (n == 0 && r->raw_used == used)
        TT_TRY(fail_packed(r, "the file is truncated"));
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

/* The text that has not been returned yet; in a compressed file, the part of it that is already unpacked. */
static struct tt_piece unread(const struct tt_reader *r)
{
    if (r->packing == PLAIN)
        return (struct tt_piece){(const char *)r->raw + r->raw_used, r->raw_size - r->raw_used, r->offset};
    return (struct tt_piece){r->buffer.text ? r->buffer.text + r->buffer_used : "", r->buffer.size - r->buffer_used,
                             r->offset};
}

enum tt_file_form tt_reader_form(const struct tt_reader *reader)
{
    return reader->form;
}

struct tt_mapping tt_reader_stored(const struct tt_reader *reader)
{
    return (struct tt_mapping){reader->raw, reader->raw_size};
}

size_t tt_reader_used(const struct tt_reader *reader)
{
    return reader->raw_used;
}

void tt_reader_use(struct tt_reader *reader, size_t used)
{
    reader->raw_used = used;
}

static void hand_out(struct tt_reader *r, size_t size)
{
    r->offset += (int64_t)size;
    if (r->packing == PLAIN)
        r->raw_used += size;
    else
        r->buffer_used += size;
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

int tt_reader_line(struct tt_reader *reader, struct tt_piece *ret_line)
{
    struct tt_reader *r = reader;
    size_t seen = 0;
    bool more = r->packing != PLAIN;
    int rc = 0;

    for (;;) {
        struct tt_piece line = unread(r);
        const char *end = line.size > seen ? memchr(line.text + seen, '\n', line.size - seen) : NULL;

        if (!end && r->packing != PLAIN && line.size > LINE_MOST)
            return fail_line(r);
        if (end || !more) {
            line.size = end ? (size_t)(end - line.text) : line.size;
            line.text = end || line.size ? line.text : NULL;
            hand_out(r, line.size + (end != NULL));
            r->lines += end != NULL;
            *ret_line = line;
            return 0;
        }
        seen = line.size;
        if (r->buffer_used) {
            memmove(r->buffer.text, line.text, line.size);
            r->buffer.size = line.size;
            r->buffer_used = 0;
        }
        TT_TRY(unpack(r, &more));
    }
out:
    return rc;
}

int tt_reader_rest(struct tt_reader *reader, struct tt_piece *ret_rest)
{
    struct tt_reader *r = reader;
    bool more = r->packing != PLAIN;
    char most[32];
    int rc = 0;

    while (more) {
        TT_TRY(unpack(r, &more));
        if (r->buffer.size > REST_MOST)
            return tt_fail(TT_EDATA, "%s: the text is longer than %s when it is unpacked\nhelp: unpack the file",
                           r->name, tt_text_bytes(most, sizeof most, REST_MOST));
    }
    *ret_rest = unread(r);
    hand_out(r, ret_rest->size);
out:
    return rc;
}

/* ---- blocks ---- */

/* Copies a match of n bytes that begins `back` bytes before `at`; the two may overlap. */
static void repeat(uint8_t *at, size_t back, size_t n)
{
    const uint8_t *from = at - back;

    if (back >= n)
        memcpy(at, from, n);
    else
        for (size_t i = 0; i < n; i++)
            at[i] = from[i];
}

static const char short_block[] = "the packed data ends early";
static const char long_block[] = "the data is longer than its header says";
static const char bad_match[] = "a match begins before the data";

static const char *unpack_snappy(const uint8_t *in, size_t in_size, uint8_t *out, size_t out_size)
{
    const uint8_t *end = in + in_size;
    uint64_t size = 0;
    size_t done = 0;

    for (int shift = 0;; shift += 7) {
        if (in == end || shift > 28)
            return short_block;
        size |= (uint64_t)(*in & 0x7f) << shift;
        if (*in++ < 0x80)
            break;
    }
    if (size != out_size)
        return "the size of the packed data differs from its header's";
    while (in < end) {
        unsigned tag = *in++, kind = tag & 3, extra = kind == 3 ? 4 : kind;
        size_t n = (tag >> 2) + 1, back = 0;

        if (kind == 0)
            extra = n > 60 ? (unsigned)n - 60 : 0; /* bytes of the length */
        if ((size_t)(end - in) < extra)
            return short_block;
        back = tt_text_little(in, extra);
        in += extra;
        if (kind == 0) {
            n = extra ? back + 1 : n;
            if ((size_t)(end - in) < n)
                return short_block;
            if (out_size - done < n)
                return long_block;
            memcpy(out + done, in, n);
            in += n;
        } else {
            if (kind == 1) {
                n = (tag >> 2 & 7) + 4;
                back |= (size_t)(tag >> 5) << 8;
            }
            if (back == 0 || back > done)
                return bad_match;
            if (out_size - done < n)
                return long_block;
            repeat(out + done, back, n);
        }
        done += n;
    }
    return done == out_size ? NULL : short_block;
}

/* Adds the bytes that continue a length of 15 in LZ4; false if the block ends. */
static bool lengthen(const uint8_t **in, const uint8_t *end, size_t *n)
{
    uint8_t byte = 255;

    while (byte == 255) {
        if (*in == end)
            return false;
        byte = *(*in)++;
        *n += byte;
    }
    return true;
}

/* Unpacks a block of LZ4 at out + *done; matches may begin anywhere before it. */
static const char *unpack_lz4(const uint8_t *in, size_t in_size, uint8_t *out, size_t out_size, size_t *done)
{
    const uint8_t *end = in + in_size;

    while (in < end) {
        unsigned token = *in++;
        size_t n = token >> 4, back;

        if (n == 15 && !lengthen(&in, end, &n))
            return short_block;
        if ((size_t)(end - in) < n)
            return short_block;
        if (out_size - *done < n)
            return long_block;
        if (n)
            memcpy(out + *done, in, n);
        in += n;
        *done += n;
        if (in == end)
            return NULL; /* the last sequence is only literals */
        if (end - in < 2)
            return short_block;
        back = tt_text_little(in, 2);
        in += 2;
        n = token & 15;
        if (n == 15 && !lengthen(&in, end, &n))
            return short_block;
        n += 4;
        if (back == 0 || back > *done)
            return bad_match;
        if (out_size - *done < n)
            return long_block;
        repeat(out + *done, back, n);
        *done += n;
    }
    return NULL;
}

/* The frame of LZ4 without a dictionary. Checksums are not compared. */
static const char *unpack_lz4_frame(const uint8_t *in, size_t in_size, uint8_t *out, size_t out_size)
{
    enum { HAS_DICTIONARY = 1, HAS_CHECKSUM = 4, HAS_SIZE = 8, HAS_BLOCK_CHECKSUM = 16 };
    const uint8_t *end = in + in_size;
    size_t done = 0, head;
    const char *why;
    unsigned flags;

    if (in_size < 7 || tt_text_little(in, 4) != 0x184d2204)
        return "it does not begin as a frame of LZ4";
    flags = in[4];
    if (flags & HAS_DICTIONARY)
        return "it needs a dictionary of LZ4";
    head = 7 + (flags & HAS_SIZE ? 8 : 0);
    if (in_size < head)
        return short_block;
    for (in += head;;) {
        uint32_t mark, n;

        if (end - in < 4)
            return short_block;
        mark = (uint32_t)tt_text_little(in, 4);
        in += 4;
        if (!mark)
            break;
        n = mark & 0x7fffffff;
        if ((size_t)(end - in) < n)
            return short_block;
        if (mark >> 31) { /* a block that is not packed */
            if (out_size - done < n)
                return long_block;
            memcpy(out + done, in, n);
            done += n;
        } else if ((why = unpack_lz4(in, n, out, out_size, &done)) != NULL) {
            return why;
        }
        in += n;
        if (flags & HAS_BLOCK_CHECKSUM) {
            if (end - in < 4)
                return short_block;
            in += 4;
        }
    }
    return done == out_size ? NULL : short_block;
}

/* zlib's or gzip's format, perhaps several members. */
static const char *unpack_members(const uint8_t *in, size_t in_size, uint8_t *out, size_t out_size)
{
    z_stream stream = {.next_in = in, .avail_in = (uInt)in_size, .next_out = out, .avail_out = (uInt)out_size};
    const char *why = NULL;
    int status;

    if (inflateInit2(&stream, 32 + MAX_WBITS) != Z_OK)
        return "zlib cannot start";
    for (;;) {
        status = inflate(&stream, Z_FINISH);
        if (status != Z_STREAM_END || !stream.avail_in)
            break;
        (void)inflateReset(&stream);
    }
    if (status == Z_BUF_ERROR || status == Z_OK)
        why = stream.avail_in ? long_block : short_block;
    else if (status != Z_STREAM_END)
        why = "damaged gzip data";
    else if (stream.avail_out)
        why = short_block;
    (void)inflateEnd(&stream);
    return why;
}

static const char *unpack_frame(const uint8_t *in, size_t in_size, uint8_t *out, size_t out_size)
{
    size_t n = ZSTD_decompress(out, out_size, in, in_size);

    if (ZSTD_isError(n))
        return ZSTD_getErrorName(n);
    return n == out_size ? NULL : short_block;
}

const char *tt_codec_unpack(enum tt_codec codec, const uint8_t *in, size_t in_size, uint8_t *out, size_t out_size)
{
    const char *why;
    size_t done = 0;

    switch (codec) {
    case TT_CODEC_SNAPPY:
        return unpack_snappy(in, in_size, out, out_size);
    case TT_CODEC_GZIP:
        return unpack_members(in, in_size, out, out_size);
    case TT_CODEC_ZSTD:
        return unpack_frame(in, in_size, out, out_size);
    case TT_CODEC_LZ4:
        why = unpack_lz4(in, in_size, out, out_size, &done);
        return why ? why : done == out_size ? NULL : short_block;
    default:
        return unpack_lz4_frame(in, in_size, out, out_size);
    }
}
