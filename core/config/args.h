/* SPDX-License-Identifier: MIT */
#ifndef TT_CONFIG_ARGS_H
#define TT_CONFIG_ARGS_H

#include <stdbool.h>

#include "core/base/error.h"
#include "core/base/text.h"

/**
 * Command lines: separates a command's own options from overrides of configuration keys and from plain words.
 *
 *     static const struct tt_option options[] = {TT_OPTION_CONFIG, {"json", NULL, NULL, "print JSON"}, {0}};
 *     TT_TRY(tt_args_parse(argc, argv, options, &args));
 *     TT_TRY(tt_config_load(cfg, n, files, args->n_overrides, args->override));
 */

/** One option of a command; a table of them ends with a row of zeros. */
struct tt_option {
    const char *name;  /* without the dashes, '_' for '-' */
    const char *alias; /* another name, or NULL */
    const char *value; /* what it takes, for help ("FILE"); NULL when it takes nothing */
    const char *doc;
};

#define TT_OPTION_CONFIG                                                                        \
    {                                                                                           \
        "config", "job.config_file", "FILE", "read keys from FILE; may repeat, later files win" \
    }
#define TT_OPTION_HELP                        \
    {                                         \
        "help", NULL, NULL, "print this help" \
    }

struct tt_option_use {
    const struct tt_option *option;
    const char *value; /* points into argv; NULL when the option takes nothing */
};

struct tt_args {
    int n_options, n_overrides, n_words;
    struct tt_option_use *option; /* in the order given */
    const char **override;        /* tokens for tt_config_load, as they were given */
    const char **word;            /* everything else */
    int cap_options, cap_overrides, cap_words;
    int n_errors; /* of the command line; tt_args_parse has failed */
    char *errors; /* their text, for struct tt_config_input */
};

/**
 * Separates argv[0..argc), which must outlive the result. `--` makes everything after it a plain word, -h is --help.
 * An option that nobody knows, or that lacks its value, is TT_EUSAGE with the nearest one; of a command with an option
 * "config" the rest is in *ret_args all the same, so that its faults can be said with these. Caller: tt_args_free.
 */
int tt_args_parse(int argc, char **argv, const struct tt_option *options, struct tt_args **ret_args) TT_MUST_CHECK;
void tt_args_free(struct tt_args *args);

bool tt_args_has(const struct tt_args *args, const char *name);

/** The option's n-th value counted from 0, NULL after the last; tt_args_last: the one that wins. */
const char *tt_args_value(const struct tt_args *args, const char *name, int n);
const char *tt_args_last(const struct tt_args *args, const char *name);

/** Appends the lines of an options table for a command's --help. */
void tt_args_help(const struct tt_option *options, struct tt_text *out);

#endif
