/* SPDX-License-Identifier: MIT
 *
 * The sinks of notes, warnings and progress. Set once at start, before any thread exists; read-only afterwards.
 */
#include "core/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/shown.h"

static tt_log_fn sink;
static void *sink_arg;
static tt_progress_fn progress_sink;
static void *progress_arg;

void tt_log_set_sink(tt_log_fn fn, void *arg)
{
    sink = fn;
    sink_arg = arg;
}

static void say(enum tt_log_level level, const char *fmt, va_list args)
{
    char text[4096], shown[4096];

    if (!sink)
        return;
    (void)vsnprintf(text, sizeof text, fmt, args);
    tt_shown(shown, sizeof shown, text, strlen(text));
    sink(sink_arg, level, shown);
}

void tt_note(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    say(TT_LOG_NOTE, fmt, args);
    va_end(args);
}

void tt_warn(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    say(TT_LOG_WARNING, fmt, args);
    va_end(args);
}

void tt_log_set_progress(tt_progress_fn fn, void *arg)
{
    progress_sink = fn;
    progress_arg = arg;
}

void tt_progress(const char *what, double done, double total)
{
    if (progress_sink)
        progress_sink(progress_arg, what, done, total);
}
