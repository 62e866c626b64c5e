/* SPDX-License-Identifier: MIT
 *
 * A tokenizer.json, then a byte 0, then a text to encode with it.
 */
#include <string.h>

#include "core/tokenizer/tokenizer.h"
#include "fuzz.h"

static void encode(const struct tt_tokenizer *tokenizer, const char *text, size_t size)
{
    struct tt_encoder *encoder = NULL;
    struct tt_ids ids = {0};
    struct tt_text decoded = {0};

    if (tt_encoder_new(tokenizer, &encoder) == 0 && tt_encoder_encode_document(encoder, text, size, &ids) == 0 &&
        tt_tokenizer_decode(tokenizer, ids.id, (int64_t)ids.n, &decoded) < 0)
        decoded.size = 0; /* an error is fine here, a crash is not */
    tt_text_release(&decoded);
    tt_ids_release(&ids);
    tt_encoder_free(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char sample[] = "In the beginning, 12345 caf\xc3\xa9s  and don't\n\n\xe4\xb8\xad\xe6\x96\x87";
    const uint8_t *end = memchr(data, 0, size);
    size_t json_size = end ? (size_t)(end - data) : size;
    struct tt_tokenizer *tokenizer = NULL;

    if (tt_tokenizer_parse((const char *)data, json_size, NULL, 0, "fuzz", &tokenizer) < 0)
        return 0;
    encode(tokenizer, sample, sizeof sample - 1);
    if (end)
        encode(tokenizer, (const char *)end + 1, size - json_size - 1);
    tt_tokenizer_free(tokenizer);
    return 0;
}
