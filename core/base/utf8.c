/* SPDX-License-Identifier: MIT
 *
 * The owner of utf8proc: characters and normal forms (UAX #15).
 */
#include "core/base/utf8.h"

#include <string.h>

#include <utf8proc.h>

#include "core/base/mem.h"

int tt_utf8_decode(const char *p, size_t size, uint32_t *ret_code)
{
    utf8proc_int32_t code;
    utf8proc_ssize_t n;

    if (size && (unsigned char)*p < 0x80) { /* most characters */
        *ret_code = (unsigned char)*p;
        return 1;
    }
    n = utf8proc_iterate((const utf8proc_uint8_t *)p, size < 4 ? (utf8proc_ssize_t)size : 4, &code);
    if (n <= 0)
        return 0;
    *ret_code = (uint32_t)code;
    return (int)n;
}

int64_t tt_utf8_invalid(const char *text, size_t size)
{
    size_t i = 0;
    uint32_t code;
    uint64_t word;

    while (i < size) {
        int n;

        if (i + 8 <= size) {
            memcpy(&word, text + i, 8);
            if (!(word & 0x8080808080808080u)) {
                i += 8;
                continue;
            }
        }
        n = tt_utf8_decode(text + i, size - i, &code);
        if (!n)
            return (int64_t)i;
        i += (size_t)n;
    }
    return -1;
}

/* Whether the n bytes are the beginning of a longer valid character. */
static bool may_become_valid(const char *p, size_t n)
{
    static const char low[] = "\x80\x80\x80", high[] = "\xbf\xbf\xbf";
    char with_low[4], with_high[4];
    uint32_t code;

    if (n > 3)
        return false;
    for (size_t more = 1; n + more <= 4; more++) {
        memcpy(with_low, p, n);
        memcpy(with_low + n, low, more);
        memcpy(with_high, p, n);
        memcpy(with_high + n, high, more);
        if (tt_utf8_decode(with_low, n + more, &code) == (int)(n + more) ||
            tt_utf8_decode(with_high, n + more, &code) == (int)(n + more))
            return true;
    }
    return false;
}

size_t tt_utf8_unfinished(const char *text, size_t size)
{
    for (size_t n = size < 3 ? size : 3; n > 0; n--)
        if (may_become_valid(text + size - n, n))
            return n;
    return 0;
}

void tt_utf8_repair(const char *text, size_t size, struct tt_text *out)
{
    while (size) {
        int64_t bad = tt_utf8_invalid(text, size);
        size_t good = bad < 0 ? size : (size_t)bad, skip = 0;

        tt_text_add_bytes(out, text, good);
        text += good;
        size -= good;
        if (!size)
            break;
        /* the longest incomplete character gives one mark, and so does any other bad byte */
        for (skip = 3; skip > 1 && (skip > size || !may_become_valid(text, skip)); skip--) {
        }
        tt_text_add_bytes(out, "\xef\xbf\xbd", 3);
        text += skip;
        size -= skip;
    }
}

int tt_utf8_encode(uint32_t code, char *buf)
{
    return (int)utf8proc_encode_char((utf8proc_int32_t)code, (utf8proc_uint8_t *)buf);
}

/* Code points, with room for at least one more. */
struct codes {
    utf8proc_int32_t *code;
    utf8proc_ssize_t n, cap;
};

static utf8proc_ssize_t decompose(struct codes *c, utf8proc_int32_t code, utf8proc_option_t options)
{
    int boundary = 0;

    for (;;) {
        utf8proc_ssize_t room = c->cap - c->n;
        utf8proc_ssize_t n = utf8proc_decompose_char(code, c->code + c->n, room, options, &boundary);

        if (n <= room) {
            c->n += n > 0 ? n : 0;
            return n;
        }
        c->cap = 2 * c->cap + n;
        c->code = tt_realloc(c->code, (size_t)c->cap, sizeof *c->code);
    }
}

static unsigned class_of(utf8proc_int32_t code)
{
    return (unsigned)utf8proc_get_property(code)->combining_class;
}

/* Sorts a run of combining marks by their classes, of which there are 256; equal ones keep their order. */
static void sort_marks(utf8proc_int32_t *code, size_t n)
{
    size_t begin[257] = {0};
    utf8proc_int32_t *sorted;

    for (size_t i = 0; i < n; i++)
        begin[class_of(code[i]) + 1]++;
    for (int k = 0; k < 256; k++)
        begin[k + 1] += begin[k];
    sorted = tt_calloc(n, sizeof *sorted);
    for (size_t i = 0; i < n; i++)
        sorted[begin[class_of(code[i])]++] = code[i];
    memcpy(code, sorted, n * sizeof *sorted);
    tt_free(sorted);
}

static void order_marks(struct codes *c)
{
    for (utf8proc_ssize_t i = 0, begin = 0; i < c->n; i = begin = i + 1) {
        unsigned last = class_of(c->code[i]), next;
        bool is_sorted = true;

        for (; last && i + 1 < c->n && (next = class_of(c->code[i + 1])); i++) {
            is_sorted = is_sorted && last <= next;
            last = next;
        }
        if (!is_sorted)
            sort_marks(c->code + begin, (size_t)(i + 1 - begin));
    }
}

/* utf8proc_map would sort the marks in a time that grows with the square of their number. */
int tt_utf8_normalize(enum tt_utf8_form form, const char *text, size_t size, struct tt_text *out)
{
    static const struct {
        const char *name;
        utf8proc_option_t options;
    } row[] = {
        [TT_UTF8_NFC] = {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        [TT_UTF8_NFD] = {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        [TT_UTF8_NFKC] = {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        [TT_UTF8_NFKD] = {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    struct codes c = {.cap = (utf8proc_ssize_t)size + 8};
    utf8proc_ssize_t n = 0;

    c.code = tt_calloc((size_t)c.cap, sizeof *c.code);
    for (size_t i = 0, length; i < size && n >= 0; i += length) {
        uint32_t code;

        length = (size_t)tt_utf8_decode(text + i, size - i, &code);
        n = length ? decompose(&c, (utf8proc_int32_t)code, row[form].options) : UTF8PROC_ERROR_INVALIDUTF8;
    }
    if (n >= 0) {
        order_marks(&c);
        n = utf8proc_normalize_utf32(c.code, c.n, row[form].options);
    }
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        char bytes[4];

        tt_text_add_bytes(out, bytes, (size_t)tt_utf8_encode((uint32_t)c.code[i], bytes));
    }
    tt_free(c.code);
    if (n >= 0)
        return 0;
    return tt_fail(TT_EDATA, "cannot convert %zu bytes of text to normal form %s: %s", size, row[form].name,
                   utf8proc_errmsg(n));
}
