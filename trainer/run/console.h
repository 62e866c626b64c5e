/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_RUN_CONSOLE_H
#define TT_TRAINER_RUN_CONSOLE_H

#include "core/base/error.h"

/**
 * console.log of a run: everything that rank 0 prints, without colours and progress lines, whatever happens to the
 * terminal. There is one per process. No function here fails: if the file cannot be written, titan warns once.
 */

/** Keeps all output from now on, for the file that is opened later. */
void tt_console_begin(void);

/**
 * Appends to the file from now on: a line with the time and the command line, then the output kept so far. Call it only
 * after the run has locked the folder.
 */
void tt_console_open(const char *path, int argc, char **argv);

/** Adds whole lines that were printed. Does nothing before tt_console_begin. */
void tt_console_add(const char *text);

/** The same for a signal handler: only if the file is open. */
void tt_console_add_in_handler(const char *text);

/** Closes the file, or drops the output kept so far. */
void tt_console_close(void);

#endif
