/* SPDX-License-Identifier: MIT
 *
 * Text of others, without what a terminal or XML would take for a command.
 */
#include "core/base/shown.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/base/utf8.h"

enum { ESCAPE_BYTES = 16 };

/* Control characters of C0 and C1, and characters that set or isolate a direction, or end a line. */
static bool is_command(uint32_t code)
{
    return (code < 0x20 && code != '\n') || (code >= 0x7f && code < 0xa0) || code == 0x061c || code == 0x200e ||
           code == 0x200f || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

/* The next character of text: its bytes, or an escape in buf. ret_used: how many bytes of text it has. */
static const char *next_shown(const char *text, size_t size, char buf[ESCAPE_BYTES], size_t *ret_used, size_t *ret_n)
{
    uint32_t code = 0;
    int n = tt_utf8_decode(text, size, &code);

    *ret_used = n ? (size_t)n : 1;
    *ret_n = *ret_used;
    if (n && !is_command(code))
        return text;
    if (!n)
        code = (unsigned char)*text;
    *ret_n = (size_t)snprintf(buf, ESCAPE_BYTES, n ? "\\u%04x" : "\\x%02x", code);
    return buf;
}

void tt_shown(char *out, size_t out_size, const char *text, size_t size)
{
    size_t at = 0, used = 0;
    char buf[ESCAPE_BYTES];

    while (at < size) {
        size_t taken = 0, n = 0;
        const char *next = next_shown(text + at, size - at, buf, &taken, &n);

        if (used + n >= out_size)
            break;
        memcpy(out + used, next, n);
        used += n;
        at += taken;
    }
    if (out_size)
        out[used] = 0;
}

void tt_text_add_shown(struct tt_text *t, const char *text, size_t size)
{
    size_t plain = 0; /* where text begins that is not added yet */
    char buf[ESCAPE_BYTES];

    for (size_t at = 0, taken = 0, n = 0; at < size; at += taken) {
        if (next_shown(text + at, size - at, buf, &taken, &n) != buf)
            continue;
        tt_text_add_bytes(t, text + plain, at - plain);
        tt_text_add_bytes(t, buf, n);
        plain = at + taken;
    }
    tt_text_add_bytes(t, text + plain, size - plain);
}

void tt_text_add_xml(struct tt_text *t, const char *text)
{
    struct tt_text shown = {0};

    tt_text_add_shown(&shown, text, strlen(text));
    for (size_t i = 0; i < shown.size; i++) {
        const char c = shown.text[i];

        if (c == '<' || c == '>')
            tt_text_add(t, c == '<' ? "&lt;" : "&gt;");
        else if (c == '&' || c == '"')
            tt_text_add(t, c == '&' ? "&amp;" : "&quot;");
        else
            tt_text_add_bytes(t, &c, 1);
    }
    tt_text_release(&shown);
}
