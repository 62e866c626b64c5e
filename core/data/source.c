/* SPDX-License-Identifier: MIT
 *
 * Reads the files of a corpus, by lines or as a whole. Only this file uses zlib and zstd: a reader unpacks files as it
 * reads. It maps the file, returns plain text in place, and returns unpacked text from a buffer.
 */
#include "core/data/source.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/os/file.h"

#define ZLIB_CONST /* makes zlib's input bytes const */
#include <zlib.h>
#include <zstd.h>

enum packing { PLAIN, GZIP, ZSTD };

/*
 * Limits of the memory for unpacking: for a line, or for the rest of a file as one document. A few KB of zstd can
 * unpack to gigabytes, so the size of the file is no limit.
 */
enum { CHUNK_BYTES = 1 << 18, LINE_MOST = 128 << 20, REST_MOST = 1 << 30 };

/* Reads text files, plain or compressed with gzip or zstd; the first bytes show which. For any other file (a Git LFS
 * pointer, a web page, Parquet, another compression), TT_EDATA says what it is. */
struct reader {
    const char *name;
    struct tt_mapping mapping; /* mapping of a file that is opened by its path */
    const uint8_t *raw;
    size_t raw_size, raw_used;
    enum packing packing;
    z_stream gzip;
    ZSTD_DStream *zstd;
    bool in_frame;         /* within a gzip member or a zstd frame, where the file must not end */
    struct tt_text buffer; /* unpacked text; bytes before buffer_used have been returned */
    size_t buffer_used;
    int64_t offset; /* place of the next byte in the unpacked text */
    int64_t lines;  /* number of lines that have been returned */
};

/* The part of the file that is returned next. */
struct piece {
    const char *text;
    size_t size;
    int64_t offset; /* in bytes of the (unpacked) file */
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

static int start(struct reader *r, const char *name)
{
    const char *dot = strrchr(name, '.');
    bool may_be_html = dot && (strcasecmp(dot, ".html") == 0 || strcasecmp(dot, ".htm") == 0);
    int rc = 0;

    r->name = name;
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

static void reader_free(struct reader *reader)
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

/* Reads file i of the source, which must outlive the reader. */
static int reader_open(const struct tt_source *s, int i, struct reader **ret_reader)
{
    struct reader *r = tt_calloc(1, sizeof *r);
    int rc = 0;

    if (!s->builtin.size)
        TT_TRY(tt_mapping_open(s->path[i], &r->mapping));
    r->raw = s->builtin.size ? (const uint8_t *)s->builtin.bytes : r->mapping.data;
    r->raw_size = s->builtin.size ? s->builtin.size : r->mapping.size;
    TT_TRY(start(r, s->path[i]));
    *ret_reader = r;
    r = NULL;
out:
    reader_free(r);
    return rc;
}

static int fail_packed(const struct reader *r, const char *why)
{
    return tt_fail(TT_EDATA, "%s: cannot unpack at byte %zu of %zu: %s", r->name, r->raw_used, r->raw_size, why);
}

static int unpack_gzip(struct reader *r, uint8_t *out, size_t cap, size_t *ret_n)
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

static int unpack_zstd(struct reader *r, void *out, size_t cap, size_t *ret_n)
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
static int unpack(struct reader *r, bool *ret_more)
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
static struct piece unread(const struct reader *r)
{
    if (r->packing == PLAIN)
        return (struct piece){(const char *)r->raw + r->raw_used, r->raw_size - r->raw_used, r->offset};
    return (struct piece){r->buffer.text ? r->buffer.text + r->buffer_used : "", r->buffer.size - r->buffer_used,
                          r->offset};
}

static void hand_out(struct reader *r, size_t size)
{
    r->offset += (int64_t)size;
    if (r->packing == PLAIN)
        r->raw_used += size;
    else
        r->buffer_used += size;
}

static int fail_line(const struct reader *r)
{
    char most[32];

    return tt_fail(
        TT_EDATA,
        "%s:%lld: the line is longer than %s when it is unpacked\nhelp: is it JSON lines, one object a line? "
        "If so, unpack the file: lines of plain files have no limit",
        r->name, (long long)r->lines + 1, tt_text_bytes(most, sizeof most, LINE_MOST));
}

/*
 * The next line, without its end and without a byte order mark at the start of the file. The line is valid until the
 * next call; its text is NULL at the end of the file. TT_EDATA names the line if a line of a compressed file exceeds
 * 128 MiB, since unpacked lines are held in memory.
 */
static int reader_line(struct reader *r, struct piece *ret_line)
{
    size_t seen = 0;
    bool more = r->packing != PLAIN;
    int rc = 0;

    for (;;) {
        struct piece line = unread(r);
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

/* The whole rest of the file, valid until the reader is freed. TT_EDATA if it exceeds 1 GiB in a compressed file. */
static int reader_rest(struct reader *r, struct piece *ret_rest)
{
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

/* ---- documents of text files and JSON lines; errors name the file, the line and the byte ---- */

enum { DEEPEST_FOLDER = 16, HASH_BLOCK = 1 << 20, PROGRESS_BYTES = 1 << 17 };

/* Whether such a name belongs only to files of JSON lines. */
static bool is_lines_name(const char *name)
{
    static const char *const suffix[] = {".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst"};
    bool found = false;

    for (size_t i = 0; i < sizeof suffix / sizeof suffix[0]; i++)
        found = found || tt_text_ends(name, suffix[i]);
    return found;
}

static bool is_jsonl_name(const char *name)
{
    return is_lines_name(name) || tt_text_ends(name, ".json") || tt_text_ends(name, ".json.gz") ||
           tt_text_ends(name, ".json.zst");
}

/* Whether the file contains JSON lines, compressed in a way that titan does not read. */
static bool is_other_lines_name(const char *name)
{
    static const char *const packed[] = {".xz", ".bz2", ".lz4", ".lzma", ".br", ".zip", ".7z", ".Z"};
    bool found = false;

    for (size_t i = 0; i < sizeof packed / sizeof *packed && !found; i++) {
        char *plain = tt_strndup(name, strlen(name) - (tt_text_ends(name, packed[i]) ? strlen(packed[i]) : 0));

        found = tt_text_ends(name, packed[i]) && is_jsonl_name(plain);
        tt_free(plain);
    }
    return found;
}

int tt_source_fail_parquet(const char *path)
{
    return tt_fail(TT_EDATA,
                   "'%s' is a Parquet file, which titan does not read: Debian has no library for that format\nhelp: "
                   "convert it to JSON lines: duckdb -c \"COPY (FROM '%s') TO 'data.jsonl' (FORMAT JSON)\"; then use "
                   "dataset jsonl with data.jsonl. titan-data(1) has the line for pyarrow",
                   path, path);
}

/* A folder, and the folder through which it was reached. */
struct nested {
    const struct nested *parent;
    const char *path;
    dev_t device;
    ino_t node;
    int depth;
};

/* Identifies a folder, and fails if the folder contains itself through a link. */
static int enter(struct nested *here)
{
    struct stat st;

    if (stat(here->path, &st) < 0)
        return tt_fail(TT_EIO, "cannot examine '%s': %s", here->path, strerror(errno));
    here->device = st.st_dev;
    here->node = st.st_ino;
    here->depth = here->parent ? here->parent->depth + 1 : 0;
    for (const struct nested *up = here->parent; up; up = up->parent)
        if (up->device == here->device && up->node == here->node)
            return tt_fail(
                TT_EDATA, "'%s' is a link to '%s', the folder that contains it: a loop of links\nhelp: remove the link",
                here->path, up->path);
    if (here->depth > DEEPEST_FOLDER)
        return tt_fail(TT_EDATA, "'%s': folders are nested deeper than %d", here->path, DEEPEST_FOLDER);
    return 0;
}

/* Adds the files below a folder, in the order of their names. */
static int add_folder(struct tt_source *s, const char *folder, const struct nested *parent, int *n_cap)
{
    struct nested here = {.parent = parent, .path = folder};
    char **names = NULL, *left_name = NULL;
    int n = 0, left_out = 0, rc = 0;

    TT_TRY(enter(&here));
    TT_TRY(tt_folder_list(folder, &names, &n));
    for (int i = 0; i < n; i++) {
        bool is_folder = false;
        char *path;

        if (names[i][0] == '.')
            continue;
        path = tt_format("%s/%s", folder, names[i]);
        rc = tt_path_is_folder(path, &is_folder);
        if (rc < 0 || is_folder) {
            rc = rc < 0 ? rc : add_folder(s, path, &here, n_cap);
            tt_free(path);
            if (rc < 0)
                goto out;
        } else if (tt_text_ends(path, ".parquet") ||
                   is_other_lines_name(path)) { /* otherwise it would be left out, or misread as text */
            rc = tt_text_ends(path, ".parquet")
                     ? tt_source_fail_parquet(path)
                     : tt_fail(TT_EDATA,
                               "'%s' is packed in a way that titan does not read\nhelp: unpack it, or pack it with "
                               "gzip or zstd",
                               path);
            tt_free(path);
            goto out;
        } else if (s->kind == TT_SOURCE_TEXT || is_jsonl_name(names[i])) {
            TT_PUSH(s->path, s->n_paths, *n_cap) = path;
        } else {
            left_out++;
            tt_free(left_name);
            left_name = path;
        }
    }
    if (left_out)
        tt_note("%d %s left out, since only files named .jsonl, .json or .ndjson (plain, .gz or .zst) are read: '%s'%s",
                left_out, left_out > 1 ? "files were" : "file was", left_name, left_out > 1 ? " is one" : "");
out:
    tt_free(left_name);
    tt_names_free(names, n);
    return rc;
}

int tt_source_init(struct tt_source *source, enum tt_source_kind kind, const char *path, const char *text_field)
{
    bool is_folder = false;
    int cap = 0, rc = 0;

    source->kind = kind;
    source->text_field = tt_strdup(text_field && *text_field ? text_field : "text");
    TT_TRY(tt_path_is_folder(path, &is_folder));
    if (!is_folder && tt_text_ends(path, ".parquet"))
        return tt_source_fail_parquet(path);
    if (is_folder) {
        TT_TRY(add_folder(source, path, NULL, &cap));
    } else {
        TT_PUSH(source->path, source->n_paths, cap) = tt_strdup(path);
    }
    if (!source->n_paths) {
        return tt_fail(TT_EDATA, "'%s' holds no %s", path,
                       kind == TT_SOURCE_TEXT ? "files" : "files named .jsonl, .json or .ndjson (plain, .gz or .zst)");
    }
    for (int i = 0; i < source->n_paths; i++) {
        struct tt_path_info info;

        if (kind == TT_SOURCE_TEXT && is_lines_name(source->path[i]))
            return tt_fail(TT_EDATA,
                           "'%s' holds JSON lines, and dataset 'text' would take their braces and quotes for text\n"
                           "help: dataset 'jsonl' reads them",
                           source->path[i]);
        TT_TRY(tt_path_look(source->path[i], &info));
        source->bytes += info.bytes;
    }
out:
    return rc;
}

void tt_source_init_builtin(struct tt_source *source, struct tt_builtin builtin)
{
    int cap = 0;

    *source = (struct tt_source){
        .kind = TT_SOURCE_JSONL, .text_field = tt_strdup("text"), .builtin = builtin, .bytes = (int64_t)builtin.size};
    TT_PUSH(source->path, source->n_paths, cap) = tt_strdup(builtin.name);
}

void tt_source_release(struct tt_source *source)
{
    tt_names_free(source->path, source->n_paths);
    tt_free(source->text_field);
    *source = (struct tt_source){0};
}

int tt_source_hash(const struct tt_source *source, uint64_t *ret_hash)
{
    uint64_t hash = 0;
    int64_t before = 0;
    int rc = 0;

    for (int i = 0; i < source->n_paths; i++) {
        struct reader *reader = NULL;
        size_t size;

        TT_TRY(reader_open(source, i, &reader));
        size = reader->raw_size;
        hash = tt_hash64(&size, sizeof size, hash);
        for (size_t at = 0; at < size; at += HASH_BLOCK) {
            hash = tt_hash64(reader->raw + at, size - at < HASH_BLOCK ? size - at : HASH_BLOCK, hash);
            if (source->bytes > 64 * (int64_t)HASH_BLOCK)
                tt_progress("reading", (double)before + (double)at, (double)source->bytes);
        }
        before += (int64_t)size;
        reader_free(reader);
    }
    *ret_hash = hash;
out:
    return rc;
}

struct walk {
    const struct tt_source *source;
    const char *what;
    tt_document_fn fn;
    void *arg;
    const char *file; /* the file that is being read */
    struct reader *reader;
    int64_t line;
    int64_t done_bytes; /* bytes of the previous files */
    int64_t shown_bytes;
    int64_t text_bytes; /* bytes of all documents */
    int64_t documents;
    struct tt_text text; /* text of a line */
};

static void show_progress(struct walk *w)
{
    int64_t now = w->done_bytes + (int64_t)w->reader->raw_used;

    if (now - w->shown_bytes < PROGRESS_BYTES && now < w->source->bytes)
        return;
    w->shown_bytes = now;
    tt_progress(w->what, (double)now, (double)w->source->bytes);
}

/* Checks text that begins at the present line. */
static int check_utf8(const struct walk *w, const struct piece *piece)
{
    int64_t bad = tt_utf8_invalid(piece->text, piece->size), line = w->line;

    if (bad < 0)
        return 0;
    for (int64_t i = 0; i < bad; i++)
        line += piece->text[i] == '\n';
    return tt_fail(TT_EDATA,
                   "%s:%lld: invalid UTF-8 at byte %lld of the file (0x%02x)\nhelp: is it text? If so, convert "
                   "it: iconv -f ISO-8859-1 -t UTF-8",
                   w->file, (long long)line, (long long)(piece->offset + bad), (unsigned char)piece->text[bad]);
}

static int take_document(struct walk *w, const char *text, size_t size)
{
    int rc = w->fn(w->arg, text, size);

    /* not a fault of the document: writing it failed, or the configuration is wrong */
    if (rc == TT_EIO || rc == TT_EUSAGE)
        return rc;
    if (rc < 0)
        return tt_wrap(rc, "%s:%lld", w->file, (long long)w->line);
    w->documents++;
    w->text_bytes += (int64_t)size;
    return 0;
}

static int read_text(struct walk *w)
{
    struct piece all = {0};
    int rc = 0;

    TT_TRY(reader_rest(w->reader, &all));
    w->line = 1;
    TT_TRY(check_utf8(w, &all));
    if (all.size) /* an empty file is not a document */
        TT_TRY(take_document(w, all.text, all.size));
    show_progress(w);
out:
    return rc;
}

/* Fails because the text field is missing; names the fields of the line, and the one that the user probably meant. */
static int fail_field(const struct walk *w, const struct tt_json_field *f, const char *line, size_t size)
{
    static const char of_chats[] =
        "messages|conversation|conversations|prompt|instruction|response|completion|chosen|rejected";
    json_t *tree = f->value ? NULL : tt_json_value_tree(line, size), *value;
    const char *key, *first = NULL;
    struct tt_text names = {0};
    bool is_chat = false;
    int rc;

    if (f->value)
        return tt_fail(TT_EDATA, "%s:%lld: field '%s' is %s, wanted a string", w->file, (long long)w->line, f->name,
                       tt_json_kind_name(f->kind));
    json_object_foreach(tree, key, value)
    {
        is_chat = is_chat || tt_text_is_listed(key, of_chats);
        first = !first && json_is_string(value) ? key : first;
        if (names.size < 400)
            tt_text_add(&names, "%s%.100s", names.size ? ", " : "", key);
    }
    rc = tt_fail(TT_EDATA, "%s:%lld: no string field '%s' (fields: %s)", w->file, (long long)w->line, f->name,
                 names.size ? names.text : "none");
    if (is_chat)
        rc = tt_error_add_hint(rc, "dataset 'jsonl_sft' reads chat data");
    else if (first)
        rc = tt_error_add_hint(rc, "set %s=%.100s", TT_KEY_NAME(training.text_field), first);
    tt_text_release(&names);
    json_decref(tree);
    return rc;
}

static int take_line(struct walk *w, const char *line, size_t size)
{
    struct tt_json_field f = {.name = w->source->text_field};
    struct tt_json_problem problem;
    json_type kind;

    if (!tt_json_fields(line, size, &f, 1, &kind, &problem))
        return tt_fail(TT_EDATA, "%s:%lld:%zu: invalid JSON: %s", w->file, (long long)w->line, problem.column,
                       problem.what);
    if (kind != JSON_OBJECT)
        return tt_fail(TT_EDATA, "%s:%lld: the line is %s, wanted an object with a field '%s'", w->file,
                       (long long)w->line, tt_json_kind_name(kind), f.name);
    if (!f.value || f.kind != JSON_STRING)
        return fail_field(w, &f, line, size);
    w->text.size = 0;
    tt_text_add_bytes(&w->text, "", 0);
    tt_json_add_string(f.value, f.size, &w->text);
    return take_document(w, w->text.text, w->text.size);
}

static bool is_blank(const char *line, size_t size)
{
    while (size && strchr(" \t\r", *line) && *line) {
        line++;
        size--;
    }
    return size == 0;
}

static int read_jsonl(struct walk *w)
{
    int rc = 0;

    for (w->line = 1;; w->line++) {
        struct piece line = {0};

        TT_TRY(reader_line(w->reader, &line));
        if (!line.text)
            break;
        show_progress(w);
        if (is_blank(line.text, line.size))
            continue;
        if (w->line == 1 && line.size == 1 && (line.text[0] == '[' || line.text[0] == '{'))
            return tt_fail(TT_EDATA,
                           "%s:1: the file is one JSON document over many lines, wanted one object a line\n"
                           "help: jq -c '.[]' makes lines of an array",
                           w->file);
        TT_TRY(check_utf8(w, &line));
        TT_TRY(w->source->kind == TT_SOURCE_LINES ? take_document(w, line.text, line.size)
                                                  : take_line(w, line.text, line.size));
    }
out:
    return rc;
}

int tt_source_each(const struct tt_source *source, const char *what, tt_document_fn fn, void *arg)
{
    struct walk w = {.source = source, .what = what, .fn = fn, .arg = arg};
    int rc = 0;

    for (int i = 0; i < source->n_paths; i++) {
        w.file = source->path[i];
        TT_TRY(reader_open(source, i, &w.reader));
        TT_TRY(source->kind == TT_SOURCE_TEXT ? read_text(&w) : read_jsonl(&w));
        w.done_bytes += (int64_t)w.reader->raw_size;
        reader_free(w.reader);
        w.reader = NULL;
    }
    if (!w.text_bytes)
        rc = tt_fail(TT_EDATA, "'%s' holds no text (%d file%s, %lld documents, all empty)", w.file, source->n_paths,
                     source->n_paths == 1 ? "" : "s", (long long)w.documents);
out:
    tt_text_release(&w.text);
    reader_free(w.reader);
    return rc;
}
