/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_ERROR_H
#define TT_BASE_ERROR_H

#include "core/keys/key.h"

/**
 * Errors: one negative code per class, one message, set once where the fault is.
 *
 * A function that can fail returns 0 or a negative TT_E* code. The code determines the exit code of the process; the
 * message (kept per thread) states the expected and the actual value, the place, and a remedy. Library code never
 * prints or exits.
 *
 *     int rc = 0;
 *     TT_TRY(tt_file_read(path, &text, &size));
 *     out: free(text); return rc;
 */

/* X(name, value, exit code, description) */
#define TT_ERROR_MAP(X)                                        \
    X(TT_EINTERNAL, -1, 1, "internal error")                   \
    X(TT_EUSAGE, -2, 2, "usage or configuration error")        \
    X(TT_EDATA, -3, 3, "data, tokenizer or checkpoint error")  \
    X(TT_ECOMM, -4, 4, "communication error")                  \
    X(TT_ENONFINITE, -5, 5, "non-finite loss or gradient")     \
    X(TT_EFIT, -6, 6, "does not fit in memory")                \
    X(TT_EIO, -7, 3, "input/output error")                     \
    X(TT_ENOMEM, -8, 1, "out of memory")                       \
    X(TT_ESTOPPED, -9, 75, "stopped by a signal after saving") \
    X(TT_EINTERRUPTED, -10, 130, "interrupted")                \
    X(TT_EREMOVED, -11, 3, "removed while it was read")

enum tt_error {
#define X(name, value, exit_code, text) name = (value),
    TT_ERROR_MAP(X)
#undef X
};

#define TT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define TT_MUST_CHECK        __attribute__((warn_unused_result))

/**
 * Runs a call that returns 0 or a negative code; on failure jumps to the only `out:` label of the function. Needs `int
 * rc`.
 */
#define TT_TRY(call)           \
    do {                       \
        if ((rc = (call)) < 0) \
            goto out;          \
    } while (0)

/** Longest message, including the final 0: a configuration file reports all its errors at once. */
enum { TT_ERROR_MESSAGE_BYTES = 16384 };

/**
 * Sets this thread's error message and returns code, so that `return tt_fail(TT_EDATA, ...)` reads naturally. A second
 * line that begins with "help: " says what to do. tt_error_message() may be among the arguments.
 */
int tt_fail(int code, const char *fmt, ...) TT_PRINTF(2, 3);

/**
 * The same for an error about a key. The message does not name the key; a caller that knows where the user set it adds
 * it (tt_config_locate). The key stays with the error through tt_wrap, tt_comm_agree and tt_comm_work, until the next
 * tt_fail.
 */
int tt_fail_key(int code, enum tt_key key, const char *fmt, ...) TT_PRINTF(3, 4);

/** Puts "context: " in front of this thread's message; returns code unchanged. Never replaces the message. */
int tt_wrap(int code, const char *fmt, ...) TT_PRINTF(2, 3);

/** This thread's message; never NULL. Valid until the thread's next tt_fail or tt_wrap. */
const char *tt_error_message(void);

/** The key of this thread's error; TT_KEY_NONE: the error is not about a key, or the message names it. */
enum tt_key tt_error_key(void);

/** Removes the hint, "help: ...", from this thread's message. */
void tt_error_drop_hint(void);

/** Adds a line "help: ..." to this thread's message, unless it contains one; returns code unchanged. */
int tt_error_add_hint(int code, const char *fmt, ...) TT_PRINTF(2, 3);

/** The process exit code of an error code (0 for 0). */
int tt_error_exit_code(int code);

/**
 * Notes and warnings of library code. Libraries do not print. Their messages go to the sink that the program has
 * installed (rank 0 of `titan` installs one that writes to stderr). Without a sink they are dropped.
 */
enum tt_log_level { TT_LOG_NOTE, TT_LOG_WARNING };

/** Receives one message without a final newline. */
typedef void (*tt_log_fn)(void *arg, enum tt_log_level level, const char *text);

/** Installs the process-wide sink. Call before threads start. */
void tt_log_set_sink(tt_log_fn fn, void *arg);

void tt_note(const char *fmt, ...) TT_PRINTF(1, 2);
void tt_warn(const char *fmt, ...) TT_PRINTF(1, 2);

/**
 * Progress of long work (tokenizing, reading, writing): `done` of `total` units are finished. The sink decides how
 * often to show it: a terminal gets a line that is rewritten in place, a file gets a plain line now and then. total is
 * 0 if it is unknown.
 */
typedef void (*tt_progress_fn)(void *arg, const char *what, double done, double total);
void tt_log_set_progress(tt_progress_fn fn, void *arg);
void tt_progress(const char *what, double done, double total);

#endif
