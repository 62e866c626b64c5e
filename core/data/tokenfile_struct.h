/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_TOKENFILE_STRUCT_H
#define TT_DATA_TOKENFILE_STRUCT_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/hash.h"
#include "core/data/tokenfile.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little-endian and are read as they are"
#endif

/** The header of titan's token files; private to tokenfile.c and tokenwriter.c. */
#define TT_TOKEN_MAGIC "titanTOK"

/* The content is hashed block by block, so that a writer can hash while it writes. */
enum { TT_TOKEN_VERSION = 1, TT_TOKEN_VERSION_MASK = 2, TT_TOKEN_BLOCK = 1 << 20 };

struct tt_token_header {
    char magic[8];
    uint32_t version;
    uint32_t item_size;
    int64_t n_tokens;
    int64_t n_documents;
    int64_t vocab_size;
    int64_t max_id;
    int32_t bos, eos;
    uint64_t tokenizer_hash;
    uint64_t source_hash;
    uint64_t content_hash;
    int64_t n_learned;                    /* of version 2, else 0 */
    char unicode[TT_TOKEN_UNICODE_BYTES]; /* "": unknown */
    uint64_t reserved[3];
    uint64_t header_hash; /* of the preceding bytes */
};

_Static_assert(sizeof(struct tt_token_header) == 136 - 8, "the header is 128 bytes");

static inline uint64_t tt_token_header_hash(const struct tt_token_header *h)
{
    return tt_hash64(h, offsetof(struct tt_token_header, header_hash), 0);
}

static inline int64_t tt_token_offsets_at(int64_t n_tokens, int64_t item_size)
{
    return ((int64_t)sizeof(struct tt_token_header) + n_tokens * item_size + 7) / 8 * 8;
}

#endif
