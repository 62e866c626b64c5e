/* SPDX-License-Identifier: MIT
 *
 * The byte-level alphabet of byte-level BPE.
 */
#include "core/tokenizer/bytelevel.h"

#include "core/base/utf8.h"

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
