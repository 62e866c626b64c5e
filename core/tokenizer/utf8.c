/* SPDX-License-Identifier: MIT
 *
 * UTF-8 and the byte-level alphabet of byte-level BPE.
 */
#include "core/tokenizer/utf8.h"

#include <string.h>

int tt_utf8_decode(const char *p, size_t size, uint32_t *ret_code)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const uint8_t *u = (const uint8_t *)p;
    uint32_t code;
    int n;

    if (!size)
        return 0;
    if (u[0] < 0x80) {
        *ret_code = u[0];
        return 1;
    }
    n = u[0] < 0xc2 ? 0 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : u[0] < 0xf5 ? 4 : 0;
    if (!n || (size_t)n > size)
        return 0;
    code = u[0] & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) {
        if ((u[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (u[i] & 0x3f);
    }
    if (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return 0;
    *ret_code = code;
    return n;
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
    static const uint8_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;

    for (int i = n - 1; i > 0; i--) {
        buf[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    buf[0] = (char)(lead[n] | code);
    return n;
}

static bool is_itself(uint32_t code)
{
    return (code >= 33 && code <= 126) || (code >= 161 && code <= 172) || (code >= 174 && code <= 255);
}

/* The 68 others are 0-32 (33 of them), 127-160 (34) and 173. */
uint32_t tt_bytelevel_code(uint8_t byte)
{
    if (is_itself(byte))
        return byte;
    return byte <= 32 ? 256u + byte : byte == 173 ? 256u + 67 : 256u + 33 + (byte - 127u);
}

int tt_bytelevel_byte(uint32_t code)
{
    if (code < 256)
        return is_itself(code) ? (int)code : -1;
    code -= 256;
    return code <= 32 ? (int)code : code < 67 ? (int)(code - 33 + 127) : code == 67 ? 173 : -1;
}

bool tt_bytelevel_decode(const char *text, size_t size, struct tt_text *out)
{
    size_t before = out->size;

    while (size) {
        uint32_t code;
        int n = tt_utf8_decode(text, size, &code);
        int byte = n ? tt_bytelevel_byte(code) : -1;
        char c = (char)byte;

        if (byte < 0) {
            out->size = before;
            return false;
        }
        tt_text_add_bytes(out, &c, 1);
        text += n;
        size -= (size_t)n;
    }
    return true;
}
