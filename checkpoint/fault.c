/* SPDX-License-Identifier: MIT
 *
 * Fault injection at the points of a save.
 */
#include "checkpoint/fault.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int tt_fault(const char *point, int rank)
{
    const char *spec = getenv("TITAN_FAULT"); // NOLINT(concurrency-mt-unsafe): the environment is not changed meanwhile
    size_t length = strlen(point);
    const char *action;
    char *end;

    if (!spec || strncmp(spec, point, length) != 0 || spec[length] != ':')
        return 0;
    spec += length + 1;
    if (*spec == '*')
        end = (char *)(uintptr_t)spec + 1;
    else if (strtol(spec, &end, 10) != rank)
        return 0;
    action = *end == ':' ? end + 1 : end;
    if (strcmp(action, "kill") == 0)
        (void)raise(SIGKILL);
    return tt_fail(TT_EIO, "save failed at '%s': %s (injected by TITAN_FAULT)", point,
                   strerror(strcmp(action, "enospc") == 0 ? ENOSPC : EIO));
}
