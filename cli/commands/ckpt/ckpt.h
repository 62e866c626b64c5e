/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_COMMANDS_CKPT_CKPT_H
#define TT_CLI_COMMANDS_CKPT_CKPT_H

#include "cli/cli.h"

/** The subcommands of `titan ckpt` that inspect.c implements; ckpt.c lists all of them. */
int tt_ckpt_verb_inspect(const struct tt_args *args);
int tt_ckpt_verb_diff(const struct tt_args *args);

/** Members of results as text: a count, a size ("-" for null), and the mesh dimensions with several ranks. */
const char *tt_ckpt_count(char *buf, size_t buf_size, const json_t *json, const char *key);
const char *tt_ckpt_bytes(char *buf, size_t buf_size, const json_t *json, const char *key);
const char *tt_ckpt_mesh(char *buf, size_t buf_size, const json_t *json);

#endif
