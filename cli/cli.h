/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLI_H
#define TT_CLI_CLI_H

/**
 * What the commands share. A command is a function of its own arguments, argv[0] being the command's name; it prints
 * data on stdout, everything else on stderr, and returns the process's exit code.
 */

/** Prints "titan: error: MESSAGE" with this thread's message on stderr; returns the exit code of rc. */
int tt_cli_fail(int rc);

/** `titan models [--json] [--seq_len N]`: the registry. */
int tt_command_models(int argc, char **argv);

#endif
