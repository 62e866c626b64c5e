/* SPDX-License-Identifier: MIT */
#ifndef TT_CONFIG_ARGS_H
#define TT_CONFIG_ARGS_H

#include <stdbool.h>

#include "core/base/error.h"
#include "core/base/text.h"

/**
 * Command lines: separates a command's own options, overrides of configuration keys, and plain words.
 *
 *     static const struct tt_option options[] = {TT_OPTION_CONFIG, {"json", NULL, NULL, "print JSON"}, {0}};
 *     TT_TRY(tt_args_parse(argc, argv, options, &args));
 *     TT_TRY(tt_config_load(cfg, n, files, args->n_overrides, args->override));
 */

/** One option of a command; a table of them ends with a row of zeros. */
struct tt_option {
    const char *name;  /* without the dashes; '_' stands for '-' */
    const char *alias; /* other names, "a|b", or NULL */
    const char *value; /* the name of its value for --help ("FILE"); NULL: it takes no value */
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
    const char *value; /* points into argv; NULL when the option takes no value */
};

struct tt_args {
    int n_options, n_overrides, n_words;
    struct tt_option_use *option; /* in the order of the command line */
    const char **override;        /* tokens for tt_config_load, as on the command line */
    const char **word;            /* all other words */
    int cap_options, cap_overrides, cap_words;
    int n_errors; /* number of errors on the command line; if it is not 0, tt_args_parse has failed */
    char *errors; /* their text, for struct tt_config_input */
};

/**
 * Separates argv[0..argc), which must outlive the result. Everything after `--` is a plain word; -h is --help. An
 * unknown option, or one without its value, is TT_EUSAGE, and the message suggests the nearest option. If the command
 * has an option "config", *ret_args then still contains the rest, so that all faults can be reported together. The
 * caller calls tt_args_free.
 */
int tt_args_parse(int argc, char **argv, const struct tt_option *options, struct tt_args **ret_args) TT_MUST_CHECK;
void tt_args_free(struct tt_args *args);

bool tt_args_has(const struct tt_args *args, const char *name);

/** The option's n-th value, counted from 0, or NULL after the last one; tt_args_last: the last value, which takes
 * precedence. */
const char *tt_args_value(const struct tt_args *args, const char *name, int n);
const char *tt_args_last(const struct tt_args *args, const char *name);

/** The width of help texts. */
enum { TT_HELP_COLUMNS = 80 };

/** Appends `left` from column 2 on, and `doc` from column `indent` on, broken into lines there. */
void tt_args_help_row(struct tt_text *out, int indent, const char *left, const char *doc);

/** Appends the lines of an options table for a command's --help. */
void tt_args_help(const struct tt_option *options, struct tt_text *out);

#endif
