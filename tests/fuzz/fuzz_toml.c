/* SPDX-License-Identifier: MIT
 *
 * A TOML file for `titan config import`. titan's YAML reader must accept the resulting YAML.
 */
#include <stdlib.h>

#include "core/config/config.h"
#include "core/config/yaml.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tt_text out = {0}, why = {0};
    struct tt_yaml_doc doc = {0};
    int line, column;

    if (tt_config_import("fuzz.toml", (const char *)data, size, 0, NULL, &out) == 0 &&
        !tt_yaml_parse(out.text, out.size, &doc, &line, &column, &why))
        abort();
    tt_yaml_release(&doc);
    tt_text_release(&out);
    tt_text_release(&why);
    return 0;
}
