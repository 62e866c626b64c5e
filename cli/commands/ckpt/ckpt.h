/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_COMMANDS_CKPT_CKPT_H
#define TT_CLI_COMMANDS_CKPT_CKPT_H

#include "cli/cli.h"

/** The subcommands of `titan ckpt`, one row each in ckpt.c; args->word[0] is the subcommand's name. */
typedef int (*tt_ckpt_verb_fn)(const struct tt_args *args);

int tt_ckpt_verb_list(const struct tt_args *args);
int tt_ckpt_verb_inspect(const struct tt_args *args);
int tt_ckpt_verb_verify(const struct tt_args *args);
int tt_ckpt_verb_diff(const struct tt_args *args);

/**
 * Reads members of the library's results: integers (0), strings ("-"), and for tables counts and sizes ("-" for null).
 */
int64_t tt_ckpt_int(const json_t *json, const char *key);
const char *tt_ckpt_text(const json_t *json, const char *key);
const char *tt_ckpt_bytes(char *buf, size_t buf_size, const json_t *json, const char *key);

#endif
