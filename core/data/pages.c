/* SPDX-License-Identifier: MIT
 *
 * Pages of Parquet: their compression, levels, dictionaries and encodings.
 */
#include "core/data/pages.h"

#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/data/reader.h"
#include "core/data/thrift.h"

int tt_pages_fail(const struct tt_pages *pages, const char *what)
{
    return tt_table_fail(pages->table, pages->page_at, "the page of column '%s' that begins here: %s", pages->name,
                         what);
}

/* ---- sequences of numbers ---- */

static void runs_init(struct tt_pages_runs *r, const uint8_t *at, size_t size, int width)
{
    *r = (struct tt_pages_runs){.at = at, .end = at + size, .width = width};
}

/* The number of `width` bits that begins at a bit, or 0 beyond the end. */
static uint64_t packed(const uint8_t *bytes, size_t size, uint64_t bit, unsigned width)
{
    uint64_t x = 0;
    unsigned done = 0;

    while (done < width) {
        size_t byte = (size_t)(bit >> 3);
        unsigned from = (unsigned)bit & 7, n = 8 - from < width - done ? 8 - from : width - done;

        if (byte >= size)
            break;
        x |= (uint64_t)(bytes[byte] >> from & ((1u << n) - 1)) << done;
        done += n;
        bit += n;
    }
    return x;
}

static bool begin_run(struct tt_pages_runs *r)
{
    uint64_t head = 0;
    size_t bytes = (size_t)(r->width + 7) / 8;

    if (r->is_packed) { /* the last run may be cut off after its last number */
        uint64_t used = (r->bit + 7) / 8;

        r->at += used < (uint64_t)(r->end - r->at) ? used : (uint64_t)(r->end - r->at);
        r->is_packed = false;
    }
    for (int shift = 0;; shift += 7) {
        if (r->at == r->end || shift > 35)
            return false;
        head |= (uint64_t)(*r->at & 0x7f) << shift;
        if (*r->at++ < 0x80)
            break;
    }
    r->is_packed = head & 1;
    if (r->is_packed) {
        r->left = (head >> 1) * 8;
        r->bit = 0;
        return true;
    }
    if ((size_t)(r->end - r->at) < bytes)
        return false;
    r->left = head >> 1;
    r->value = (uint32_t)tt_text_little(r->at, bytes);
    r->at += bytes;
    return true;
}

static bool runs_next(struct tt_pages_runs *r, uint32_t *ret)
{
    if (r->width == 0 && r->at == r->end && !r->left) {
        *ret = 0;
        return true;
    }
    while (!r->left)
        if (!begin_run(r))
            return false;
    r->left--;
    if (!r->is_packed) {
        *ret = r->value;
        return true;
    }
    if ((r->bit + (uint64_t)r->width + 7) / 8 > (uint64_t)(r->end - r->at))
        return false;
    *ret = (uint32_t)packed(r->at, (size_t)(r->end - r->at), r->bit, (unsigned)r->width);
    r->bit += (uint64_t)r->width;
    return true;
}

static bool deltas_number(struct tt_pages_deltas *d, uint64_t *ret)
{
    uint64_t x = 0;

    for (int shift = 0; shift < 64; shift += 7) {
        if (d->at == d->end)
            return false;
        x |= (uint64_t)(*d->at & 0x7f) << shift;
        if (*d->at++ < 0x80) {
            *ret = x;
            return true;
        }
    }
    return false;
}

static bool deltas_init(struct tt_pages_deltas *d, const uint8_t *at, size_t size)
{
    enum { BLOCK_MOST = 1 << 16, VALUES_MOST = 1 << 26 };
    uint64_t first = 0;

    *d = (struct tt_pages_deltas){.at = at, .end = at + size, .is_first = true};
    if (!deltas_number(d, &d->block) || !deltas_number(d, &d->n_parts) || !deltas_number(d, &d->left) ||
        !deltas_number(d, &first) || !d->n_parts || d->block > BLOCK_MOST || d->n_parts > d->block ||
        d->left > VALUES_MOST)
        return false;
    d->part_size = d->block / d->n_parts;
    d->value = (first >> 1) ^ -(first & 1);
    d->part = d->n_parts;
    return true;
}

static bool deltas_next(struct tt_pages_deltas *d, uint64_t *ret)
{
    uint64_t least = 0;
    unsigned width;

    if (!d->left)
        return false;
    d->left--;
    *ret = d->value;
    if (d->is_first) {
        d->is_first = false;
        return true;
    }
    if (!d->in_part) {
        if (++d->part >= d->n_parts) {
            if (!deltas_number(d, &least) || (uint64_t)(d->end - d->at) < d->n_parts)
                return false;
            d->least = (least >> 1) ^ -(least & 1);
            d->widths = d->at;
            d->at += d->n_parts;
            d->part = 0;
        }
        d->in_part = d->part_size;
        d->bit = 0;
    }
    width = d->widths[d->part];
    if (width > 64 || (d->part_size * width + 7) / 8 > (uint64_t)(d->end - d->at))
        return false;
    d->value += d->least + packed(d->at, (size_t)(d->end - d->at), d->bit, width);
    d->bit += width;
    *ret = d->value;
    if (!--d->in_part)
        d->at += (d->part_size * width + 7) / 8;
    return true;
}

/* Goes to the end of a copy of the deltas; the place after them. NULL: they are damaged. */
static const uint8_t *deltas_end(struct tt_pages_deltas d)
{
    uint64_t value;

    while (d.left)
        if (!deltas_next(&d, &value))
            return NULL;
    return d.in_part ? d.at + (d.part_size * d.widths[d.part] + 7) / 8 : d.at;
}

/* ---- pages ---- */

enum page_type { DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 };
enum encoding {
    PLAIN = 0,
    PLAIN_DICTIONARY = 2,
    RLE = 3,
    DELTA_BINARY_PACKED = 5,
    DELTA_LENGTH_BYTE_ARRAY = 6,
    DELTA_BYTE_ARRAY = 7,
    RLE_DICTIONARY = 8
};

struct page {
    int64_t type, unpacked, packed, crc;
    bool has_crc, is_packed;
    int64_t n_values, encoding, def_encoding, rep_encoding, def_size, rep_size;
};

/* The header of a page of values (version 1 or 2) or of a dictionary, whose fields have nearly the same numbers. */
static int read_page_part(struct tt_thrift *t, struct page *page, bool is_v2)
{
    struct tt_thrift_field f = {0};
    int rc = 0;

    for (;;) {
        int64_t unused, *to = &unused;

        TT_TRY(tt_thrift_next(t, &f));
        if (f.type == TT_THRIFT_STOP)
            return 0;
        if (is_v2 && f.id == 7 && (f.type == TT_THRIFT_TRUE || f.type == TT_THRIFT_FALSE)) {
            page->is_packed = f.type == TT_THRIFT_TRUE;
            continue;
        }
        switch (f.id) {
        case 1:
            to = &page->n_values;
            break;
        case 2:
            to = is_v2 ? &unused : &page->encoding;
            break;
        case 3:
            to = is_v2 || f.type == TT_THRIFT_TRUE || f.type == TT_THRIFT_FALSE ? &unused : &page->def_encoding;
            break;
        case 4:
            to = is_v2 ? &page->encoding : &page->rep_encoding;
            break;
        case 5:
            to = is_v2 ? &page->def_size : &unused;
            break;
        case 6:
            to = is_v2 ? &page->rep_size : &unused;
            break;
        default:
            break;
        }
        TT_TRY(to == &unused ? tt_thrift_skip(t, f.type) : tt_thrift_number(t, f.type, 0, INT32_MAX, to));
    }
out:
    return rc;
}

static int read_page_header(struct tt_thrift *t, struct page *page)
{
    struct tt_thrift_field f = {0};
    const uint8_t *at = t->at;
    int rc = 0;

    *page = (struct page){.type = -1,
                          .unpacked = -1,
                          .packed = -1,
                          .is_packed = true,
                          .n_values = -1,
                          .def_encoding = RLE,
                          .rep_encoding = RLE};
    for (;;) {
        TT_TRY(tt_thrift_next(t, &f));
        if (f.type == TT_THRIFT_STOP)
            break;
        if (f.id == 1) {
            TT_TRY(tt_thrift_number(t, f.type, 0, INT32_MAX, &page->type));
        } else if (f.id == 2) {
            TT_TRY(tt_thrift_number(t, f.type, 0, INT32_MAX, &page->unpacked));
        } else if (f.id == 3) {
            TT_TRY(tt_thrift_number(t, f.type, 0, INT32_MAX, &page->packed));
        } else if (f.id == 4) {
            TT_TRY(tt_thrift_number(t, f.type, INT32_MIN, INT32_MAX, &page->crc));
            page->has_crc = true;
        } else if (f.id == 5 || f.id == 7 || f.id == 8) {
            TT_TRY(tt_thrift_want(t, f.type, TT_THRIFT_STRUCT));
            TT_TRY(read_page_part(t, page, f.id == 8));
        } else {
            TT_TRY(tt_thrift_skip(t, f.type));
        }
    }
    if (page->type < 0 || page->unpacked < 0 || page->packed < 0 || page->packed > t->end - t->at ||
        (page->type != INDEX_PAGE && page->n_values < 0))
        rc = tt_table_fail(t->table, at, "the header of a page that begins here does not fit");
out:
    return rc;
}

/* Unpacks n bytes into a buffer, or points to them if they are not packed. */
static int unpack(struct tt_pages *pages, struct tt_table_buffer *buffer, const uint8_t *from, size_t n,
                  size_t unpacked, const uint8_t **ret_bytes)
{
    static const struct {
        const char *name;
        int codec;        /* -1: not read */
        unsigned expands; /* by how much at most; 0: without limit */
    } codecs[] = {{"", -1, 0},
                  {"Snappy", TT_CODEC_SNAPPY, 32},
                  {"gzip", TT_CODEC_GZIP, 1100},
                  {"LZO", -1, 0},
                  {"Brotli", -1, 0},
                  {"LZ4 with Hadoop's framing", -1, 0},
                  {"Zstandard", TT_CODEC_ZSTD, 0},
                  {"LZ4", TT_CODEC_LZ4, 260}};
    enum { N_CODECS = sizeof codecs / sizeof *codecs };
    const char *why;
    int rc = 0;

    if (pages->codec == 0) {
        if (n != unpacked)
            return tt_pages_fail(pages, "its two sizes differ, although it is not packed");
        *ret_bytes = from;
        return 0;
    }
    if (pages->codec >= N_CODECS || codecs[pages->codec].codec < 0) {
        char *what =
            pages->codec < N_CODECS
                ? tt_format("pages compressed by %s (only Snappy, gzip, Zstandard and LZ4)", codecs[pages->codec].name)
                : tt_format("the compression of number %lld", (long long)pages->codec);

        rc = tt_table_refuse(pages->table, pages->name, what);
        tt_free(what);
        return rc;
    }
    if (codecs[pages->codec].expands && unpacked / codecs[pages->codec].expands > n + 64)
        return tt_pages_fail(pages, "it cannot unpack to so many bytes");
    TT_TRY(tt_table_reserve(pages->table, pages->page_at, buffer, unpacked));
    why = tt_codec_unpack((enum tt_codec)codecs[pages->codec].codec, from, n, buffer->bytes, unpacked);
    if (why)
        TT_TRY(tt_pages_fail(pages, why));
    *ret_bytes = buffer->bytes;
out:
    return rc;
}

static int item_size(const struct tt_pages *pages)
{
    return pages->type == TT_PARQUET_INT32 || pages->type == TT_PARQUET_FLOAT    ? 4
           : pages->type == TT_PARQUET_INT64 || pages->type == TT_PARQUET_DOUBLE ? 8
                                                                                 : 0;
}

static int read_dictionary(struct tt_pages *pages, const struct page *page, const uint8_t *from)
{
    const uint8_t *bytes = NULL;
    size_t size = (size_t)page->unpacked, at = 0, n = (size_t)page->n_values, item = (size_t)item_size(pages);
    int rc = 0;

    if (page->encoding != PLAIN && page->encoding != PLAIN_DICTIONARY)
        return tt_pages_fail(pages, "the dictionary has an unknown encoding");
    if (pages->type == TT_PARQUET_BOOLEAN || n > size / (item ? item : 4))
        return tt_pages_fail(pages, "the dictionary is larger than the page");
    TT_TRY(unpack(pages, &pages->words, from, (size_t)page->packed, size, &bytes));
    if (bytes != pages->words.bytes) { /* kept while pages are read */
        TT_TRY(tt_table_reserve(pages->table, pages->page_at, &pages->words, size));
        memcpy(pages->words.bytes, bytes, size);
    }
    if (n >= pages->word_cap) {
        uint32_t *word = tt_try_realloc(pages->word, n + 1, sizeof *word);

        if (!word)
            return tt_fail(TT_ENOMEM, "%s: no memory for a dictionary of %zu values", pages->table->name, n);
        pages->word = word;
        pages->word_cap = n + 1;
    }
    for (size_t i = 0; i < n; i++) {
        size_t length = item;

        if (!item) {
            if (size - at < 4)
                return tt_pages_fail(pages, "a value of the dictionary is cut off");
            length = tt_text_little(pages->words.bytes + at, 4);
            at += 4;
        }
        if (size - at < length)
            return tt_pages_fail(pages, "a value of the dictionary is cut off");
        pages->word[i] = (uint32_t)at;
        at += length;
    }
    pages->word[n] = (uint32_t)at + (item ? 0 : 4); /* as if another length followed */
    pages->n_words = n;
out:
    return rc;
}

/* The bits of a level from 0 to `most`. */
static int width_of(int most)
{
    int width = 0;

    while (most >> width)
        width++;
    return width;
}

/* Takes the levels of a page of version 1 from the values: a length and runs. */
static int take_levels(struct tt_pages *pages, int most, int64_t encoding, struct tt_pages_runs *ret_runs)
{
    size_t n;

    if (!most)
        return 0;
    if (encoding != RLE)
        return tt_table_refuse(pages->table, pages->name, "levels in the encoding BIT_PACKED");
    if (pages->rest.size < 4)
        return tt_pages_fail(pages, "its levels are cut off");
    n = tt_text_little(pages->rest.bytes, 4);
    if (n > pages->rest.size - 4)
        return tt_pages_fail(pages, "its levels are cut off");
    runs_init(ret_runs, pages->rest.bytes + 4, n, width_of(most));
    pages->rest = (struct tt_pages_value){pages->rest.bytes + 4 + n, pages->rest.size - 4 - n};
    return 0;
}

/* Prepares the decoding of the page's values, whose bytes are pages->rest. */
static int begin_values(struct tt_pages *pages)
{
    static const char *const names[] = {"PLAIN",
                                        "",
                                        "PLAIN_DICTIONARY",
                                        "RLE",
                                        "BIT_PACKED",
                                        "DELTA_BINARY_PACKED",
                                        "DELTA_LENGTH_BYTE_ARRAY",
                                        "DELTA_BYTE_ARRAY",
                                        "RLE_DICTIONARY",
                                        "BYTE_STREAM_SPLIT"};
    enum { N_NAMES = sizeof names / sizeof *names };
    bool is_bytes = pages->type == TT_PARQUET_BYTE_ARRAY,
         is_integer = pages->type == TT_PARQUET_INT32 || pages->type == TT_PARQUET_INT64;
    const uint8_t *at = pages->rest.bytes, *end = at + pages->rest.size;
    char *what;
    int rc;

    pages->bit = 0;
    if (pages->encoding == PLAIN)
        return 0;
    if (pages->encoding == PLAIN_DICTIONARY || pages->encoding == RLE_DICTIONARY) {
        pages->encoding = RLE_DICTIONARY;
        runs_init(&pages->index, at, 0, 1);
        if (!pages->rest.size) /* all values are null */
            return 0;
        if (*at > 32)
            return tt_pages_fail(pages, "its numbers have more than 32 bits");
        runs_init(&pages->index, at + 1, pages->rest.size - 1, *at);
        return 0;
    }
    if (pages->encoding == RLE && pages->type == TT_PARQUET_BOOLEAN) {
        size_t n = pages->rest.size < 4 ? 0 : tt_text_little(at, 4);

        if (pages->rest.size < 4 || n > pages->rest.size - 4)
            return tt_pages_fail(pages, "its values are cut off");
        runs_init(&pages->index, at + 4, n, 1);
        return 0;
    }
    if (pages->encoding == DELTA_BINARY_PACKED && is_integer)
        return deltas_init(&pages->lengths, at, pages->rest.size) ? 0
                                                                  : tt_pages_fail(pages, "its differences are damaged");
    if (is_bytes && (pages->encoding == DELTA_LENGTH_BYTE_ARRAY || pages->encoding == DELTA_BYTE_ARRAY)) {
        if (pages->encoding == DELTA_BYTE_ARRAY) {
            if (!deltas_init(&pages->prefixes, at, pages->rest.size) || !(at = deltas_end(pages->prefixes)))
                return tt_pages_fail(pages, "the lengths of its prefixes are damaged");
            pages->joined.size = 0;
        }
        if (!deltas_init(&pages->lengths, at, (size_t)(end - at)) || !(at = deltas_end(pages->lengths)))
            return tt_pages_fail(pages, "the lengths of its values are damaged");
        pages->rest = (struct tt_pages_value){at, (size_t)(end - at)};
        return 0;
    }
    what = pages->encoding >= 0 && pages->encoding < N_NAMES
               ? tt_format("the encoding %s of this type", names[pages->encoding])
               : tt_format("the encoding of number %lld", (long long)pages->encoding);
    rc = tt_table_refuse(pages->table, pages->name, what);
    tt_free(what);
    return rc;
}

static int begin_page(struct tt_pages *pages, const struct page *page, const uint8_t *from)
{
    size_t levels = 0, packed = (size_t)page->packed, unpacked = (size_t)page->unpacked;
    const uint8_t *bytes = NULL;
    int rc = 0;

    pages->encoding = page->encoding;
    if (page->type == DATA_PAGE_V2) {
        levels = (size_t)page->rep_size + (size_t)page->def_size; /* stored before the values, never packed */
        if (levels > packed || levels > unpacked)
            return tt_pages_fail(pages, "its levels are longer than the page");
        runs_init(&pages->reps, from, (size_t)page->rep_size, width_of(pages->rep_most));
        runs_init(&pages->defs, from + page->rep_size, (size_t)page->def_size, width_of(pages->def_most));
    }
    if (page->type == DATA_PAGE_V2 && (!page->is_packed || packed == levels)) {
        pages->rest = (struct tt_pages_value){from + levels, packed - levels};
    } else {
        TT_TRY(unpack(pages, &pages->page, from + levels, packed - levels, unpacked - levels, &bytes));
        pages->rest = (struct tt_pages_value){bytes, unpacked - levels};
    }
    if (page->type == DATA_PAGE) {
        TT_TRY(take_levels(pages, pages->rep_most, page->rep_encoding, &pages->reps));
        TT_TRY(take_levels(pages, pages->def_most, page->def_encoding, &pages->defs));
    }
    pages->in_page = page->n_values;
    rc = begin_values(pages);
out:
    return rc;
}

/* Reads pages until one has values. */
static int next_page(struct tt_pages *pages)
{
    int rc = 0;

    while (!pages->in_page) {
        struct tt_thrift t = {pages->table, pages->at, pages->end};
        struct page page;
        const uint8_t *from;

        pages->page_at = pages->at;
        if (pages->at == pages->end || !pages->n_values)
            return tt_table_fail(pages->table, pages->at, "column '%s' has too few values for its row group",
                                 pages->name);
        TT_TRY(read_page_header(&t, &page));
        from = t.at;
        pages->at = from + page.packed;
        if (page.has_crc && tt_crc32(0, from, (size_t)page.packed) != (uint32_t)page.crc)
            return tt_pages_fail(pages, "its checksum is wrong");
        if (page.type == DICTIONARY_PAGE) {
            TT_TRY(read_dictionary(pages, &page, from));
        } else if (page.type == DATA_PAGE || page.type == DATA_PAGE_V2) {
            if (page.n_values > pages->n_values)
                return tt_pages_fail(pages, "it has more values than its column");
            TT_TRY(begin_page(pages, &page, from));
            pages->n_values -= page.n_values;
        }
    }
out:
    return rc;
}

int tt_pages_load(struct tt_pages *pages)
{
    int rc = 0;

    if (pages->is_loaded)
        return 0;
    if (!pages->in_page)
        TT_TRY(next_page(pages));
    pages->rep = pages->def = 0;
    if ((pages->rep_most && !runs_next(&pages->reps, &pages->rep)) ||
        (pages->def_most && !runs_next(&pages->defs, &pages->def)))
        return tt_pages_fail(pages, "its levels end early");
    if (pages->rep > (uint32_t)pages->rep_most || pages->def > (uint32_t)pages->def_most)
        return tt_pages_fail(pages, "a level is too large");
    pages->is_loaded = true;
out:
    return rc;
}

void tt_pages_pass(struct tt_pages *pages)
{
    pages->is_loaded = false;
    pages->in_page--;
}

static int take_bytes(struct tt_pages *pages, uint64_t n, struct tt_pages_value *ret)
{
    if (n > pages->rest.size)
        return tt_pages_fail(pages, "a value is cut off");
    *ret = (struct tt_pages_value){pages->rest.bytes, (size_t)n};
    pages->rest = (struct tt_pages_value){pages->rest.bytes + n, pages->rest.size - (size_t)n};
    return 0;
}

static int take_plain(struct tt_pages *pages, struct tt_pages_value *ret)
{
    struct tt_pages_value length = {0};
    int rc = 0;

    if (pages->type == TT_PARQUET_BOOLEAN) {
        if (pages->rest.size <= pages->bit / 8)
            return tt_pages_fail(pages, "a value is cut off");
        pages->number_value = pages->rest.bytes[pages->bit / 8] >> pages->bit % 8 & 1;
        pages->bit++;
        *ret = (struct tt_pages_value){(const uint8_t *)&pages->number_value, 8};
        return 0;
    }
    if (item_size(pages))
        return take_bytes(pages, (uint64_t)item_size(pages), ret);
    TT_TRY(take_bytes(pages, 4, &length));
    rc = take_bytes(pages, tt_text_little(length.bytes, 4), ret);
out:
    return rc;
}

int tt_pages_take(struct tt_pages *pages, struct tt_pages_value *ret_value)
{
    uint64_t n = 0, prefix = 0;
    uint32_t word = 0;
    struct tt_pages_value suffix = {0};
    int rc = 0;

    tt_pages_pass(pages);
    switch (pages->encoding) {
    case PLAIN:
        return take_plain(pages, ret_value);
    case RLE_DICTIONARY:
        if (!runs_next(&pages->index, &word))
            return tt_pages_fail(pages, "its values end early");
        if (word >= pages->n_words)
            return tt_pages_fail(pages, "a value is not in the dictionary");
        *ret_value = (struct tt_pages_value){pages->words.bytes + pages->word[word],
                                             pages->word[word + 1] - pages->word[word] - (item_size(pages) ? 0 : 4)};
        return 0;
    case RLE:
        if (!runs_next(&pages->index, &word))
            return tt_pages_fail(pages, "its values end early");
        pages->number_value = word;
        *ret_value = (struct tt_pages_value){(const uint8_t *)&pages->number_value, 8};
        return 0;
    default:
        break;
    }
    if (!deltas_next(&pages->lengths, &n) ||
        (pages->encoding == DELTA_BYTE_ARRAY && !deltas_next(&pages->prefixes, &prefix)))
        return tt_pages_fail(pages, "its values end early");
    if (pages->encoding == DELTA_BINARY_PACKED) {
        pages->number_value = pages->type == TT_PARQUET_INT32 ? (uint64_t)(int64_t)(int32_t)(uint32_t)n : n;
        *ret_value = (struct tt_pages_value){(const uint8_t *)&pages->number_value, 8};
        return 0;
    }
    if (pages->encoding == DELTA_LENGTH_BYTE_ARRAY)
        return take_bytes(pages, n, ret_value);
    TT_TRY(take_bytes(pages, n, &suffix));
    if (prefix > pages->joined.size)
        return tt_pages_fail(pages, "a prefix is longer than the value before it");
    pages->joined.size = (size_t)prefix;
    tt_text_add_bytes(&pages->joined, suffix.bytes, suffix.size);
    *ret_value = (struct tt_pages_value){(const uint8_t *)pages->joined.text, pages->joined.size};
out:
    return rc;
}

void tt_pages_begin(struct tt_pages *pages, int64_t codec, int64_t n_values, const uint8_t *begin, size_t size)
{
    pages->codec = codec;
    pages->n_values = n_values;
    pages->at = pages->page_at = begin;
    pages->end = begin + size;
    pages->n_words = 0;
    pages->in_page = 0;
    pages->is_loaded = false;
}

void tt_pages_release(struct tt_pages *pages)
{
    tt_free(pages->page.bytes);
    tt_free(pages->words.bytes);
    tt_free(pages->word);
    tt_text_release(&pages->joined);
}

bool tt_pages_are_used(const struct tt_pages *pages)
{
    return !pages->in_page && !pages->n_values;
}
