/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_LOG_H
#define TT_BASE_LOG_H

#include "core/base/error.h"

/**
 * Notes and warnings of library code. Libraries do not print. What they say goes to the sink that the program installed
 * (rank 0 of `titan` installs one that writes to stderr). Without a sink it is dropped.
 */
enum tt_log_level { TT_LOG_NOTE, TT_LOG_WARNING };

/** Receives one message without a final newline. */
typedef void (*tt_log_fn)(void *arg, enum tt_log_level level, const char *text);

/** Installs the process-wide sink. Call before threads start. */
void tt_log_set_sink(tt_log_fn fn, void *arg);

void tt_note(const char *fmt, ...) TT_PRINTF(1, 2);
void tt_warn(const char *fmt, ...) TT_PRINTF(1, 2);

/**
 * Progress of long work (tokenizing, reading, writing): done of total units. The sink decides how often
 * to show it: a terminal gets a line that is rewritten in place, a file gets a plain line now and then.
 * total is 0 when it is unknown.
 */
typedef void (*tt_progress_fn)(void *arg, const char *what, double done, double total);
void tt_log_set_progress(tt_progress_fn fn, void *arg);
void tt_progress(const char *what, double done, double total);

#endif
