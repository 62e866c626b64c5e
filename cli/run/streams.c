/* SPDX-License-Identifier: MIT
 *
 * Standard output and error as streams that write until all is written.
 */
#include "cli/run/streams.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <poll.h>
#include <unistd.h>

#include "core/os/file.h"

static atomic_bool is_live; /* the live line is on the screen */

static ssize_t put(void *fd, const char *bytes, size_t size)
{
    int error;

    tt_streams_erase_live();
    error = tt_file_put((int)(intptr_t)fd, bytes, size);

    errno = error ? error : errno;
    return error ? 0 : (ssize_t)size;
}

/* NULL if there is no memory for it; the C library's own stream then stays. The buffer is given, since the C library
 * would allocate one when the stream is first written to, and drop the output if there is no memory then. */
static FILE *open_stream(intptr_t fd, int mode, char *buffer, size_t size)
{
    FILE *f = fopencookie((void *)fd, "w", (cookie_io_functions_t){.write = put}); // NOLINT(performance-no-int-to-ptr)

    if (f)
        (void)setvbuf(f, buffer, mode, size);
    return f;
}

void tt_streams_begin(void)
{
    static char buffer[BUFSIZ];
    FILE *out = open_stream(STDOUT_FILENO, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, buffer, sizeof buffer);
    FILE *err = open_stream(STDERR_FILENO, _IONBF, NULL, 0);

    stdout = out ? out : stdout;
    stderr = err ? err : stderr;
}

/* A line ends with a return, and so does its erasure: mpirun's remarks are looked for at the beginning of a line. */
void tt_streams_put_live(const char *text)
{
    struct pollfd terminal = {.fd = STDERR_FILENO, .events = POLLOUT};
    char line[256];
    int n = snprintf(line, sizeof line, "\r%s\033[K\r", text);

    if (n < 0 || n >= (int)sizeof line || poll(&terminal, 1, 0) != 1 || !(terminal.revents & POLLOUT))
        return;
    atomic_store(&is_live, true);
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return;
    atomic_store(&is_live, true); /* a handler may have answered in between */
}

void tt_streams_erase_live(void)
{
    static const char erase[] = "\r\033[2K\r";

    if (atomic_exchange(&is_live, false))
        (void)tt_file_put(STDERR_FILENO, erase, sizeof erase - 1);
}
