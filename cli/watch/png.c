/* SPDX-License-Identifier: MIT
 *
 * A PNG of an SVG, by librsvg's program.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <spawn.h>

#include "cli/watch/chart.h"
#include "core/base/mem.h"
#include "core/os/file.h"

static int convert(const char *svg, const char *png)
{
    const char *argv[] = {"rsvg-convert", "-o", png, svg, NULL};
    pid_t pid;
    int status = 0, error = posix_spawnp(&pid, argv[0], NULL, NULL, (char *const *)(uintptr_t)argv, environ);

    if (error == ENOENT)
        return tt_fail(TT_EUSAGE, "--png needs rsvg-convert, which is not in PATH\nhelp: install it (Debian: "
                                  "librsvg2-bin; Fedora: librsvg2-tools), or use --svg, which browsers show");
    if (error)
        return tt_fail(TT_EIO, "cannot run rsvg-convert: %s", strerror(error));
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return tt_fail(TT_EIO, "cannot wait for rsvg-convert: %s", strerror(errno));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : tt_fail(TT_EIO, "rsvg-convert failed");
}

int tt_chart_png(const struct tt_text *svg, const char *path)
{
    char *from = NULL, *to = NULL;
    int from_fd = -1, to_fd = -1, rc = 0;

    tt_file_sweep_beside(path);
    TT_TRY(tt_file_temporary(path, &from, &from_fd));
    TT_TRY(tt_file_temporary(path, &to, &to_fd));
    TT_TRY(tt_file_pwrite(from_fd, from, svg->text, svg->size, 0, NULL));
    TT_TRY(convert(from, to));
    if (rename(to, path) < 0)
        rc = tt_path_fail("rename", to, errno);
out:
    if (from_fd >= 0)
        (void)close(from_fd);
    if (to_fd >= 0)
        (void)close(to_fd);
    if (from)
        (void)unlink(from);
    if (to && rc < 0)
        (void)unlink(to);
    tt_free(from);
    tt_free(to);
    return rc;
}
