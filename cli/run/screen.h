/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_RUN_SCREEN_H
#define TT_CLI_RUN_SCREEN_H

#include <stdio.h>

/** The terminal on which this process's output is shown, if any. */

/**
 * Columns of the terminal; 0: the output goes to a file or a pipe, where lines may have any length. TITAN_COLUMNS takes
 * precedence: `titan launch` sets it for its ranks, whose output goes through pipes before it reaches the terminal.
 */
int tt_screen_columns(void);

/** Prints text. Lines longer than columns (0: no limit) are broken at a space and continue after `indent` spaces. */
void tt_screen_put(FILE *file, const char *text, int columns, int indent);

#endif
