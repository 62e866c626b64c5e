/* SPDX-License-Identifier: MIT
 *
 * A GGUF file from an unknown source: values, tensor table, the sizes of a model, a tokenizer.
 */
#include "core/base/mem.h"
#include "core/models/gguf.h"
#include "core/tokenizer/gguf.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    struct tt_model_dims dims;
    struct tt_gguf file = {0};

    if (tt_gguf_parse("fuzz", data, size, &file) == 0) {
        (void)!tt_gguf_read_dims(&file, &dims);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            char *text = NULL;
            size_t length = 0;

            (void)!tt_gguf_tokenizer_file(&file, names[i], &text, &length);
            tt_free(text);
        }
    }
    tt_gguf_release(&file);
    return 0;
}
