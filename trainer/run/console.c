/* SPDX-License-Identifier: MIT
 *
 * A copy of all printed output. Every piece is appended with a single write(2), so that the answer to a signal appears
 * between lines, and nothing is lost when the process is killed.
 */
#include "trainer/run/console.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include <unistd.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/os/file.h"

static struct tt_text kept;
static bool keeps;           /* begun, but the file is not yet open */
static atomic_int file = -1; /* a handler may read it at any time */

void tt_console_begin(void)
{
    keeps = true;
}

void tt_console_close(void)
{
    int fd = atomic_exchange(&file, -1);

    if (fd >= 0)
        (void)close(fd);
    tt_text_release(&kept);
    keeps = false;
}

void tt_console_add(const char *text)
{
    int fd = atomic_load(&file), error;

    if (keeps)
        tt_text_add(&kept, "%s", text);
    if (fd < 0 || (error = tt_file_put(fd, text, strlen(text))) == 0)
        return;
    tt_console_close();
    tt_warn("cannot write console.log: %s; training continues without it", strerror(error));
}

void tt_console_add_in_handler(const char *text)
{
    int fd = atomic_load(&file), before = errno;

    if (fd >= 0)
        (void)tt_file_put(fd, text, strlen(text));
    errno = before;
}

void tt_console_open(const char *path, int argc, char **argv)
{
    time_t now = (time_t)tt_clock_wall_sec();
    struct tt_text begin = {0};
    struct tm utc;
    char when[32] = "";
    int fd = -1;

    if (gmtime_r(&now, &utc))
        (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    tt_text_add(&begin, "=== %s titan train", when);
    for (int i = 0; i < argc; i++) {
        tt_text_add(&begin, " ");
        tt_text_add_word(&begin, argv[i]);
    }
    tt_text_add(&begin, "\n");
    if (kept.size)
        tt_text_add_bytes(&begin, kept.text, kept.size);
    tt_console_close();
    if (tt_file_append(path, &fd) < 0) {
        tt_warn("training continues without console.log: %s", tt_error_message());
    } else {
        atomic_store(&file, fd);
        tt_console_add(begin.text);
    }
    tt_text_release(&begin);
}
