/* SPDX-License-Identifier: MIT
 *
 * A command line, with one argument per line.
 */
#include <string.h>

#include "core/base/mem.h"
#include "core/config/args.h"
#include "core/config/config.h"
#include "fuzz.h"

enum { MOST_ARGS = 64 };

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

/* Cuts the text into arguments where lines end. */
static int split(char *text, char *argv[MOST_ARGS])
{
    int argc = 0;

    for (char *at = text; at && argc < MOST_ARGS; argc++) {
        char *end = strchr(at, '\n');

        argv[argc] = at;
        if (end)
            *end++ = 0;
        at = end;
    }
    return argc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = tt_strndup((const char *)data, size), *argv[MOST_ARGS];
    struct tt_args *args = NULL;
    struct tt_config *config = NULL;
    int argc = split(text, argv);

    if (tt_args_parse(argc, argv, options, &args) == 0 && tt_config_new(&config) == 0)
        (void)!tt_config_load(config, 0, NULL, args->n_overrides, args->override);
    tt_config_free(config);
    tt_args_free(args);
    tt_free(text);
    return 0;
}
