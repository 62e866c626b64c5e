/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLI_H
#define TT_CLI_CLI_H

/** What the commands share: how they end and how they print. Only this layer prints and chooses exit codes. */

#include "core/base/error.h"
#include "core/base/json.h"

/** Prints this thread's error message to stderr as "titan: error: ..." and returns the exit code of rc. */
int tt_cli_fail(int rc);

/** Prints json to stdout, indented, and releases it; 0, or the exit code of a failed write. */
int tt_cli_print_json(json_t *json);

/** Flushes stdout; 0, or the exit code of a failed write (a full disk, a closed pipe), said on stderr. */
int tt_cli_finish(void);

/**
 * `titan config show|check|diff|init`. argv[0] is the first word after "config". Returns the exit code.
 */
int tt_command_config(int argc, char **argv);

#endif
