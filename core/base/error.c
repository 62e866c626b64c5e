/* SPDX-License-Identifier: MIT
 *
 * Error codes and the per-thread message. The message is a fixed buffer, so that reporting "out of memory" needs no
 * memory.
 */
#include "core/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/utf8.h"

static _Thread_local char message[TT_ERROR_MESSAGE_BYTES];
static _Thread_local enum tt_key key_at_fault;

static const char help[] = "\nhelp: ";

/* The arguments may contain the old message, so the new one is made in separate memory. They may also contain text from
 * files, which must not control the terminal that shows it. */
static void TT_PRINTF(1, 0) set_message(const char *fmt, va_list args)
{
    static _Thread_local char next[TT_ERROR_MESSAGE_BYTES];

    (void)vsnprintf(next, sizeof next, fmt, args);
    tt_shown(message, sizeof message, next, strlen(next));
}

int tt_fail(int code, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    set_message(fmt, args);
    va_end(args);
    key_at_fault = TT_KEY_NONE;
    return code;
}

int tt_fail_key(int code, enum tt_key key, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    set_message(fmt, args);
    va_end(args);
    key_at_fault = key;
    return code;
}

int tt_wrap(int code, const char *fmt, ...)
{
    static _Thread_local char saved[TT_ERROR_MESSAGE_BYTES];
    va_list args;
    size_t used;

    memcpy(saved, message, sizeof saved);
    va_start(args, fmt);
    set_message(fmt, args);
    va_end(args);
    used = strlen(message);
    if (used + 3 < sizeof message)
        (void)snprintf(message + used, sizeof message - used, ": %s", saved);
    return code;
}

const char *tt_error_message(void)
{
    return message;
}

enum tt_key tt_error_key(void)
{
    return key_at_fault;
}

void tt_error_drop_hint(void)
{
    char *found = strstr(message, help);

    if (found)
        *found = 0;
}

int tt_error_add_hint(int code, const char *fmt, ...)
{
    static _Thread_local char hint[TT_ERROR_MESSAGE_BYTES];
    size_t used = strlen(message), left = sizeof message - used;
    va_list args;

    if (strstr(message, help) || left <= sizeof help)
        return code;
    memcpy(message + used, help, sizeof help);
    va_start(args, fmt);
    (void)vsnprintf(hint, sizeof hint, fmt, args);
    va_end(args);
    tt_shown(message + used + strlen(help), left - strlen(help), hint, strlen(hint));
    return code;
}

int tt_error_exit_code(int code)
{
    switch (code) {
#define X(name, value, exit_code, text) \
    case name:                          \
        return exit_code;
        TT_ERROR_MAP(X)
#undef X
    default:
        return code == 0 ? 0 : 1;
    }
}

/* ---- notes, warnings and progress; the sinks are set at the start, before any thread exists ---- */

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
