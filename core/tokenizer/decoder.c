/* SPDX-License-Identifier: MIT
 *
 * Decoders of BPE, one token at a time, with the same results as the `tokenizers` library.
 */
#include "core/tokenizer/decoder.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"

/* --- the alphabet of byte-level BPE --- */

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

/* --- decoders --- */

enum { DEEPEST_SEQUENCE = 4 };

/* The steps of a decoder other than ByteLevel, in the order in which they may occur. */
enum { NONE, SPACES, BYTES, FUSE, STRIP };

static int read_replace(struct tt_decoder *d, const json_t *json, const char *where)
{
    const char *from = tt_json_plain_string(json_object_get(json_object_get(json, "pattern"), "String"));
    const char *to = tt_json_plain_string(json_object_get(json, "content"));

    if (!from || !*from || !to) {
        return tt_fail(TT_EDATA, "%s: decoder Replace is supported with a string as pattern.String and as content",
                       where);
    }
    d->from = tt_strdup(from);
    d->to = tt_strdup(to);
    return 0;
}

static int read_strip(struct tt_decoder *d, const json_t *json, int after, const char *where)
{
    const char *content = tt_json_plain_string(json_object_get(json, "content"));
    int64_t stop = 0;
    uint32_t code;
    int rc = 0;

    if (!content || !*content || tt_utf8_decode(content, strlen(content), &code) != (int)strlen(content))
        return tt_fail(TT_EDATA, "%s: the content of decoder Strip is not one character", where);
    TT_TRY(tt_json_get_int(json, "start", where, &d->strip_most));
    TT_TRY(tt_json_get_int(json, "stop", where, &stop));
    if (after != FUSE || stop != 0 || d->strip_most < 0) {
        rc = tt_fail(TT_EDATA, "%s: decoder Strip is supported after Fuse, with stop 0", where);
        goto out;
    }
    d->strip = tt_strdup(content);
out:
    return rc;
}

/* Whether marks are replaced after ByteFallback, and perhaps after Fuse. Refuses a replacement that might span tokens,
 * since the result would differ. */
static bool may_follow(const struct tt_decoder *d, const char *type, const json_t *json, int at)
{
    const char *from = tt_json_plain_string(json_object_get(json_object_get(json, "pattern"), "String"));
    uint32_t code;

    if (d->from || d->has_metaspace || (at != BYTES && at != FUSE))
        return false;
    return at == BYTES || (strcmp(type, "Replace") == 0 && from && *from &&
                           tt_utf8_decode(from, strlen(from), &code) == (int)strlen(from));
}

static int add_steps(struct tt_decoder *d, const json_t *json, const char *where, int depth, int *at)
{
    static const struct {
        const char *type;
        int step;
    } known[] = {{"Replace", SPACES}, {"Metaspace", SPACES}, {"ByteFallback", BYTES}, {"Fuse", FUSE}, {"Strip", STRIP}};
    const char *type = json_string_value(json_object_get(json, "type"));
    const json_t *list = json_object_get(json, "decoders");
    int step = NONE, rc = 0;
    bool is_late;

    if (type && strcmp(type, "Sequence") == 0 && depth < DEEPEST_SEQUENCE) {
        for (size_t i = 0; i < json_array_size(list); i++)
            TT_TRY(add_steps(d, json_array_get(list, i), where, depth + 1, at));
        goto out;
    }
    if (d->is_byte_level && type && strcmp(type, "ByteLevel") == 0)
        goto out;
    for (size_t i = 0; type && !d->is_byte_level && i < sizeof known / sizeof known[0]; i++)
        if (strcmp(type, known[i].type) == 0)
            step = known[i].step;
    is_late = step == SPACES && may_follow(d, type, json, *at);
    if (step == NONE || (step <= *at && !is_late)) {
        rc = tt_fail(TT_EDATA, "%s: decoder '%s' is not supported%s (%s)", where, type ? type : "(no type)",
                     step == NONE ? "" : " at its place",
                     d->is_byte_level ? "the pre_tokenizer is ByteLevel, and ByteLevel is"
                                      : "these are: Replace or Metaspace, ByteFallback, Fuse, Strip, in this order, or "
                                        "with ByteFallback first");
        goto out;
    }
    if (step == STRIP) {
        TT_TRY(read_strip(d, json, *at, where));
    } else if (strcmp(type, "Replace") == 0) {
        TT_TRY(read_replace(d, json, where));
    } else if (strcmp(type, "Metaspace") == 0) {
        d->has_metaspace = true;
        TT_TRY(tt_metaspace_init(&d->metaspace, json, "decoder", where));
    } else if (step == BYTES) {
        d->has_byte_fallback = true;
    }
    d->bytes_first = d->bytes_first || (is_late && d->has_byte_fallback);
    *at = is_late ? *at : step;
out:
    return rc;
}

int tt_decoder_init(struct tt_decoder *d, const json_t *json, bool is_byte_level, const char *where)
{
    int at = NONE;

    *d = (struct tt_decoder){.is_byte_level = is_byte_level};
    if (json && !json_is_null(json))
        return add_steps(d, json, where, 0, &at);
    if (is_byte_level)
        return 0;
    return tt_fail(TT_EDATA,
                   "%s: there is no decoder, so titan cannot tell where its texts have spaces\n"
                   "help: save the tokenizer again with a decoder",
                   where);
}

void tt_decoder_release(struct tt_decoder *d)
{
    tt_free(d->from);
    tt_free(d->to);
    tt_free(d->strip);
    *d = (struct tt_decoder){0};
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The byte that a token such as <0x0A> denotes, or -1. */
static int byte_of(const char *token, size_t size)
{
    int high, low;

    if (size != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    high = token[3] == '+' ? 0 : hex_digit(token[3]); /* the library reads a number, so it accepts a sign */
    low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

/* Adds text, except the characters that Strip removes from the beginning. */
static void put(const struct tt_decoder *d, struct tt_decoding *state, const char *piece, size_t size,
                struct tt_text *text)
{
    size_t strip_size = d->strip ? strlen(d->strip) : 0;

    while (d->strip && size && state->stripped >= 0) {
        if (state->stripped == d->strip_most || size < strip_size || memcmp(piece, d->strip, strip_size) != 0) {
            state->stripped = -1;
            break;
        }
        state->stripped++;
        piece += strip_size;
        size -= strip_size;
    }
    tt_text_add_bytes(text, piece, size);
}

/* Adds a token with its marks replaced by spaces. With Metaspace the marks of the first token are removed. */
static void add_spaced(const struct tt_decoder *d, struct tt_decoding *state, const char *token, size_t size,
                       struct tt_text *piece)
{
    bool is_begin = !state->has_begun;

    state->has_begun = true;
    tt_text_add_bytes(piece, "", 0);
    if (d->has_metaspace)
        tt_text_add_replaced(piece, token, size, d->metaspace.mark,
                             is_begin && d->metaspace.prepend != TT_PREPEND_NEVER ? "" : " ");
    else if (d->from)
        tt_text_add_replaced(piece, token, size, d->from, d->to);
    else
        tt_text_add_bytes(piece, token, size);
}

/* Adds the text of a token that is not a byte, or of the bytes before it. */
static void put_token(const struct tt_decoder *d, struct tt_decoding *state, const char *token, size_t size,
                      struct tt_text *text)
{
    struct tt_text piece = {0};

    if (!d->bytes_first) {
        put(d, state, token, size, text);
        return;
    }
    add_spaced(d, state, token, size, &piece);
    put(d, state, piece.text, piece.size, text);
    tt_text_release(&piece);
}

/* If all held bytes together are valid UTF-8, they are text; otherwise each becomes U+FFFD. */
static void put_held(const struct tt_decoder *d, struct tt_decoding *state, struct tt_text *text)
{
    struct tt_text held = state->held;

    if (!held.size)
        return;
    state->held = (struct tt_text){0};
    if (tt_utf8_invalid(held.text, held.size) < 0) {
        put_token(d, state, held.text, held.size, text);
    } else {
        for (size_t i = 0; i < held.size; i++)
            put_token(d, state, "\xef\xbf\xbd", 3, text);
    }
    tt_text_release(&held);
}

void tt_decoder_add(const struct tt_decoder *d, struct tt_decoding *state, const char *token, size_t size,
                    struct tt_text *text)
{
    struct tt_text piece = {0};
    int byte;

    if (d->is_byte_level) {
        tt_text_add_bytes(text, token, size);
        return;
    }
    if (d->bytes_first)
        tt_text_add_bytes(&piece, token, size);
    else
        add_spaced(d, state, token, size, &piece);
    byte = d->has_byte_fallback ? byte_of(piece.text, piece.size) : -1;
    if (byte >= 0) {
        char c = (char)byte;

        tt_text_add_bytes(&state->held, &c, 1);
    } else {
        put_held(d, state, text);
        put_token(d, state, piece.text, piece.size, text);
    }
    tt_text_release(&piece);
}

void tt_decoder_end(const struct tt_decoder *d, struct tt_decoding *state, struct tt_text *text)
{
    put_held(d, state, text);
}

void tt_decoding_release(struct tt_decoding *state)
{
    tt_text_release(&state->held);
    *state = (struct tt_decoding){0};
}
