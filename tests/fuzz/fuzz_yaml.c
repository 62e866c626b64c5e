/* SPDX-License-Identifier: MIT
 *
 * A configuration file. If it is accepted, it must print as YAML that is accepted too.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/text.h"
#include "core/config/config.h"
#include "fuzz.h"

static bool load(const char *text, size_t size, struct tt_config **ret_config)
{
    const struct tt_config_input input = {.text = text, .text_size = size, .text_name = "fuzz.yaml"};
    struct tt_config *config = NULL;

    if (tt_config_new(&config) < 0)
        return false;
    if (tt_config_read(config, &input) == 0) {
        *ret_config = config;
        return true;
    }
    tt_config_free(config);
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tt_config *config = NULL, *again = NULL;
    struct tt_text yaml = {0};

    if (!load((const char *)data, size, &config))
        return 0;
    tt_config_to_yaml(config, TT_CONFIG_PLAIN, &yaml);
    if (!load(yaml.text, yaml.size, &again))
        abort();
    tt_config_free(again);
    tt_config_free(config);
    tt_text_release(&yaml);
    return 0;
}
