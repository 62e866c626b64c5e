/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_DECODER_H
#define TT_CORE_TOKENIZER_DECODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/tokenizer/pretokenizer.h"

/**
 * The byte-level alphabet of GPT-2: a token's text has one printable character per byte. Bytes 33-126, 161-172 and
 * 174-255 are written as themselves, the other 68 as U+0100 and up, in order.
 */
uint32_t tt_bytelevel_code(uint8_t byte);

/** The byte of a character of that alphabet, or -1. */
int tt_bytelevel_byte(uint32_t code);

/**
 * The decoder of a tokenizer.json, from tokens to text. It is either ByteLevel, where a token is bytes, or the steps of
 * SentencePiece-style tokenizers: Replace or Metaspace (marks become spaces), ByteFallback (tokens <0x00> to <0xFF>
 * become bytes), Fuse, and Strip (at the beginning of the text), in this order. ByteFallback may come first, followed
 * by Fuse, before a Replace of one character, as in Yi's files.
 */
struct tt_decoder {
    bool is_byte_level;
    bool has_metaspace;
    bool has_byte_fallback;
    bool bytes_first; /* ByteFallback comes before Replace or Metaspace, which then see the text of bytes too */
    char *from, *to;  /* the text that Replace replaces, or NULL */
    struct tt_metaspace metaspace;
    char *strip; /* the character that Strip removes, or NULL */
    int64_t strip_most;
};

/**
 * Reads the JSON value of "decoder". If it is absent, a byte-level tokenizer gets ByteLevel, and any other is refused.
 *   is_byte_level  whether the pre_tokenizer is; where (a file) is for messages. Release even after an error.
 */
int tt_decoder_init(struct tt_decoder *d, const json_t *json, bool is_byte_level, const char *where) TT_MUST_CHECK;
void tt_decoder_release(struct tt_decoder *d);

/** A text that is being decoded, token after token. Zero-initialise; release when done. */
struct tt_decoding {
    struct tt_text held; /* bytes of byte tokens; the next other token decides whether they are text */
    int64_t stripped;    /* characters stripped from the beginning so far; -1: the beginning is over */
    bool has_begun;      /* there was a token */
};

/**
 * Appends the text that a token adds.
 *   token  the token as written, or, with ByteLevel, its bytes
 */
void tt_decoder_add(const struct tt_decoder *d, struct tt_decoding *state, const char *token, size_t size,
                    struct tt_text *text);

/** Appends the text that is still held back; call it after the last token. */
void tt_decoder_end(const struct tt_decoder *d, struct tt_decoding *state, struct tt_text *text);
void tt_decoding_release(struct tt_decoding *state);

#endif
