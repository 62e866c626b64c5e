/* SPDX-License-Identifier: MIT
 *
 * Fault injection at the points of a save.
 */
#include "checkpoint/save/fault.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Does what one "point:rank:action" asks for. */
static int obey(const char *spec, const char *point, int rank)
{
    size_t length = strlen(point), action_length;
    const char *action;
    char *end;

    if (strncmp(spec, point, length) != 0 || spec[length] != ':')
        return 0;
    spec += length + 1;
    if (*spec == '*')
        end = (char *)(uintptr_t)spec + 1;
    else if (strtol(spec, &end, 10) != rank)
        return 0;
    action = *end == ':' ? end + 1 : end;
    action_length = strcspn(action, ",");
    if (strncmp(action, "kill", action_length) == 0)
        (void)raise(SIGKILL);
    if (strncmp(action, "pause", action_length) == 0)
        return raise(SIGSTOP); /* until the test sends SIGCONT */
    return tt_fail(TT_EIO, "save failed at '%s': %s (injected by TITAN_FAULT)", point,
                   strerror(strncmp(action, "enospc", action_length) == 0 ? ENOSPC : EIO));
}

int tt_fault(const char *point, int rank)
{
    const char *spec = getenv("TITAN_FAULT"); // NOLINT(concurrency-mt-unsafe): the environment is not changed meanwhile
    int rc = 0;

    for (; spec && rc == 0; spec = strchr(spec, ',') ? strchr(spec, ',') + 1 : NULL)
        rc = obey(spec, point, rank);
    return rc;
}
