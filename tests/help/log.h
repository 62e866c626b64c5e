/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_HELP_LOG_H
#define TT_TESTS_HELP_LOG_H

/** Notes and warnings of the code under test, caught instead of printed. */

#include <stdio.h>

#include "core/base/error.h"

/** The notes and warnings logged since log_catch. */
static struct caught_log {
    int notes, warnings;
    char last[512]; /* the last one; "" before the first */
} caught;

static void log_catch_one(void *arg, enum tt_log_level level, const char *text)
{
    (void)arg;
    caught.notes += level == TT_LOG_NOTE;
    caught.warnings += level == TT_LOG_WARNING;
    (void)snprintf(caught.last, sizeof caught.last, "%s", text);
}

/** From now on until log_release, notes and warnings of this process go to `caught`, which starts empty. */
static void log_catch(void)
{
    caught = (struct caught_log){0};
    tt_log_set_sink(log_catch_one, NULL);
}

static void log_release(void)
{
    tt_log_set_sink(NULL, NULL);
}

#endif
