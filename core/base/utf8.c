/* SPDX-License-Identifier: MIT
 *
 * UTF-8 characters, by utf8proc, and the display of text. Nothing here allocates, so that errors can use it. The
 * normal forms are in text.c.
 */
#include "core/base/utf8.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

int tt_utf8_decode(const char *p, size_t size, uint32_t *ret_code)
{
    utf8proc_int32_t code;
    utf8proc_ssize_t n;

    if (size && (unsigned char)*p < 0x80) { /* most characters are ASCII */
        *ret_code = (unsigned char)*p;
        return 1;
    }
    n = utf8proc_iterate((const utf8proc_uint8_t *)p, size < 4 ? (utf8proc_ssize_t)size : 4, &code);
    if (n <= 0)
        return 0;
    *ret_code = (uint32_t)code;
    return (int)n;
}

/* Characters whose upper or title case is several: SpecialCasing.txt of Unicode, without conditions. */
static bool grows(uint32_t code)
{
    return code == 0xdf || code == 0x149 || code == 0x1f0 || code == 0x390 || code == 0x3b0 || code == 0x587 ||
           (code >= 0x1e96 && code <= 0x1e9a) || (code >= 0x1f50 && code <= 0x1ffc) ||
           (code >= 0xfb00 && code <= 0xfb17);
}

uint32_t tt_utf8_case(uint32_t code, enum tt_case to)
{
    if (to == TT_LOWER)
        return code == 0x130 || code == 0x3a3 ? 0 : (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
    if (grows(code))
        return 0;
    return (uint32_t)(to == TT_UPPER ? utf8proc_toupper : utf8proc_totitle)((utf8proc_int32_t)code);
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

int tt_utf8_encode(uint32_t code, char *buf)
{
    return (int)utf8proc_encode_char((utf8proc_int32_t)code, (utf8proc_uint8_t *)buf);
}

/* ---- text without characters that a terminal or XML would interpret ---- */

/* Whether a character is a control character of C0 or C1, sets or isolates a text direction, or ends a line. */
static bool is_command(uint32_t code)
{
    return (code < 0x20 && code != '\n') || (code >= 0x7f && code < 0xa0) || code == 0x061c || code == 0x200e ||
           code == 0x200f || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

const char *tt_shown_next(const char *text, size_t size, char *buf, size_t *ret_used, size_t *ret_n)
{
    uint32_t code = 0;
    int n = tt_utf8_decode(text, size, &code);

    *ret_used = n ? (size_t)n : 1;
    *ret_n = *ret_used;
    if (n && !is_command(code))
        return text;
    if (!n)
        code = (unsigned char)*text;
    *ret_n = (size_t)snprintf(buf, TT_SHOWN_BYTES, n ? "\\u%04x" : "\\x%02x", code);
    return buf;
}

void tt_shown(char *out, size_t out_size, const char *text, size_t size)
{
    size_t at = 0, used = 0;
    char buf[TT_SHOWN_BYTES];

    while (at < size) {
        size_t taken = 0, n = 0;
        const char *next = tt_shown_next(text + at, size - at, buf, &taken, &n);

        if (used + n >= out_size)
            break;
        memcpy(out + used, next, n);
        used += n;
        at += taken;
    }
    if (out_size)
        out[used] = 0;
}
