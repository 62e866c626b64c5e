/* SPDX-License-Identifier: MIT
 *
 * Standard output and error as streams that write until all is written.
 */
#include "cli/run/streams.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>

#include <unistd.h>

#include "core/os/file.h"

static ssize_t put(void *fd, const char *bytes, size_t size)
{
    int error = tt_file_put((int)(intptr_t)fd, bytes, size);

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
