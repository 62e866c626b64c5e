/* SPDX-License-Identifier: MIT
 *
 * Two things forbid it: Yama, a security module, with a number that is not 0, and a filter of system calls, as
 * containers have.
 */
#include "core/os/peers.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/os/file.h"

/* The number that follows `row` in a file, or at its start if row is ""; 0 if it is not there. */
static long number_in(const char *root, const char *path, const char *row)
{
    char *full = tt_format("%s%s", root, path), *text = NULL, *at;
    size_t size = 0;
    long number = 0;

    if (tt_file_read(full, &text, &size) == 0 && (at = strstr(text, row)))
        number = strtol(at + strlen(row), NULL, 10);
    tt_free(text);
    tt_free(full);
    return number;
}

bool tt_peers_are_readable(const char *root, struct tt_text *ret_why)
{
    bool yama = number_in(root, "/proc/sys/kernel/yama/ptrace_scope", "") != 0;
    bool filter = number_in(root, "/proc/self/status", "Seccomp:") != 0;

    if (yama && ret_why)
        tt_text_add(ret_why, "set kernel.yama.ptrace_scope to 0 (sysctl)");
    if (filter && ret_why)
        tt_text_add(ret_why, "%sstart the container with the capability SYS_PTRACE", yama ? " and " : "");
    return !yama && !filter;
}
