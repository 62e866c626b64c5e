/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_COMPLETION_COMPLETION_H
#define TT_CLI_COMPLETION_COMPLETION_H

#include "cli/cli.h"
#include "core/base/text.h"

/**
 * Scripts that complete titan's command lines in a shell. All words come from the tables that --help is made from:
 * commands, their options, and the configuration's keys with what they accept.
 */
struct tt_completion_shell {
    const char *name;
    void (*write)(const struct tt_command *commands, int n, struct tt_text *out);
};

extern const struct tt_completion_shell tt_completion_shells[];
extern const int tt_completion_n_shells;

/* tables.c: what the scripts are made of */

/** Appends the words that a command takes first: "show check diff" of "show|check|diff [--config FILE]". */
void tt_completion_add_verbs(const struct tt_command *command, struct tt_text *out);

/** Whether the command reads a configuration, so that keys are among its flags. */
bool tt_completion_takes_keys(const struct tt_command *command);

/** Whether a key is a flag that needs no value. */
bool tt_completion_is_switch(const struct tt_config_row *row);

/** Appends the words that a key accepts, with spaces between them; nothing for numbers and free text. */
void tt_completion_add_key_values(const struct tt_config_row *row, struct tt_text *out);

/** The same for an option of a command. */
void tt_completion_add_option_values(const struct tt_option *option, struct tt_text *out);

/** Whether a value may be the name of a file. */
bool tt_completion_key_is_path(const struct tt_config_row *row);
bool tt_completion_option_is_path(const struct tt_option *option);

/** Appends "--max-new-tokens". */
void tt_completion_add_flag(const struct tt_option *option, struct tt_text *out);

/* one file for each syntax */

void tt_completion_write_bash(const struct tt_command *commands, int n, struct tt_text *out);
void tt_completion_write_zsh(const struct tt_command *commands, int n, struct tt_text *out);
void tt_completion_write_fish(const struct tt_command *commands, int n, struct tt_text *out);

#endif
