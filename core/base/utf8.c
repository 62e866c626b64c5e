/* SPDX-License-Identifier: MIT
 *
 * The owner of utf8proc: characters and normal forms (UAX #15). Code points that its tables do not assign stay as they
 * are.
 */
#include "core/base/utf8.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

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

int tt_utf8_normalize(enum tt_utf8_form form, const char *text, size_t size, struct tt_text *ret_text)
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
    utf8proc_uint8_t *made = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, &made, row[form].options);

    if (n < 0)
        return tt_fail(TT_EDATA, "cannot convert %zu bytes of text to normal form %s: %s", size, row[form].name,
                       utf8proc_errmsg(n));
    ret_text->size = 0;
    tt_text_add_bytes(ret_text, made, (size_t)n);
    free(made);
    return 0;
}
