/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_RUN_CONSOLE_H
#define TT_TRAINER_RUN_CONSOLE_H

#include "core/base/error.h"

/**
 * console.log of a run: what rank 0 prints, without colours and without progress that is rewritten in place. Whatever
 * happens to the terminal, the file has it. There is one per process. Nothing here fails a run: if the file cannot be
 * written, that is warned of once.
 */

/** Keeps all output from now on, for the file that is opened later. */
void tt_console_begin(void);

/**
 * Appends to the file from now on: a line with the time and the command line, then what was kept. The folder belongs to
 * the run already.
 */
void tt_console_open(const char *path, int argc, char **argv);

/** Adds text that was printed, whole lines. Does nothing before tt_console_begin. */
void tt_console_add(const char *text);

/** The same for a signal handler: only if the file is open. */
void tt_console_add_in_handler(const char *text);

/** Closes the file, or drops what was kept. */
void tt_console_close(void);

#endif
