/* SPDX-License-Identifier: MIT
 *
 * A chat template that writes a conversation. The evaluation of any template ends; its output is UTF-8, and the marked
 * passages lie in the output.
 */
#include <stdlib.h>

#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/data/jinja/jinja.h"
#include "fuzz.h"

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" Größe \\n\"}, {\"role\": \"user\", \"content\": \"a b\"}, "
    "{\"role\": \"assistant\", \"content\": \"<think>\\nso\\n</think>\\n\\n1\", \"reasoning_content\": \"大小\"}], "
    "\"tools\": [{\"name\": \"f\", \"args\": {\"x\": [1, -2.5e-7, null, true], \"\": {}}}], \"documents\": null, "
    "\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_generation_prompt\": true}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *context;
    struct tt_text text = {0};
    struct tt_passages generated = {0};
    struct tt_jinja *jinja = NULL;

    if (!context && tt_json_parse(conversation, sizeof conversation - 1, "fuzz", &context) < 0)
        abort();
    if (tt_jinja_new((const char *)data, size, "fuzz", &jinja) == 0 &&
        tt_jinja_render(jinja, context, &text, &generated) == 0 && tt_utf8_invalid(text.text, text.size) >= 0)
        abort();
    for (size_t i = 0; i < generated.n; i++)
        if (text.text && generated.item[i].end > text.size)
            abort();
    tt_jinja_free(jinja);
    tt_text_release(&text);
    tt_passages_release(&generated);
    return 0;
}
