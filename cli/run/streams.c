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

/* NULL if there is no memory for it; the C library's own stream then stays. */
static FILE *open_stream(intptr_t fd, int mode)
{
    FILE *f = fopencookie((void *)fd, "w", (cookie_io_functions_t){.write = put}); // NOLINT(performance-no-int-to-ptr)

    if (f)
        (void)setvbuf(f, NULL, mode, BUFSIZ);
    return f;
}

void tt_streams_begin(void)
{
    FILE *out = open_stream(STDOUT_FILENO, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF);
    FILE *err = open_stream(STDERR_FILENO, _IONBF);

    stdout = out ? out : stdout;
    stderr = err ? err : stderr;
}
