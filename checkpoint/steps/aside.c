/* SPDX-License-Identifier: MIT
 *
 * Steps that are set aside by name, and the mark of a step that is about to be set aside.
 */
#include "checkpoint/steps/aside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <unistd.h>

#include <ctype.h>

#include "checkpoint/steps/steps.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/os/file.h"

static const char *const words[] = {[TT_ASIDE_ABANDONED] = "abandoned", [TT_ASIDE_DAMAGED] = "damaged"};

/* The number of "step-60" at the beginning of text; ret_end is what follows. -1 when there is none. */
static int64_t leading_step(const char *text, const char **ret_end)
{
    size_t n = strncmp(text, "step-", 5) == 0 ? 5 + strspn(text + 5, "0123456789") : 0;
    char *name = tt_strndup(text, n);
    int64_t step = tt_step_number(name);

    *ret_end = text + n;
    tt_free(name);
    return step;
}

const char *tt_aside_word(enum tt_aside_kind kind)
{
    return words[kind];
}

bool tt_aside_parse(const char *name, struct tt_aside *ret_aside)
{
    const char *rest;
    int64_t step = leading_step(name, &rest);

    for (int kind = 0; step >= 0 && kind < (int)(sizeof words / sizeof words[0]); kind++) {
        size_t n = strlen(words[kind]);

        if (rest[0] != '.' || strncmp(rest + 1, words[kind], n) != 0 || rest[1 + n] != '-' || !rest[2 + n])
            continue;
        *ret_aside = (struct tt_aside){(enum tt_aside_kind)kind, step, rest + 2 + n};
        return true;
    }
    return false;
}

char *tt_aside_name(int64_t step, enum tt_aside_kind kind, const char *run_id)
{
    return tt_format("step-%" PRId64 ".%s-%s", step, words[kind], run_id);
}

int tt_aside_step(const char *folder, int64_t step, enum tt_aside_kind kind, const char *run_id)
{
    char *from = tt_step_path(folder, step), *name = tt_aside_name(step, kind, run_id);
    char *to = tt_format("%s/%s", folder, name);
    int rc = 0;

    /* a plain rename does not replace a folder with content either */
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) < 0 &&
        ((errno != EINVAL && errno != ENOSYS) || rename(from, to) < 0)) {
        rc = tt_path_fail("set aside", from, errno);
        goto out;
    }
    TT_TRY(tt_folder_sync(folder));
    tt_note("step-%" PRId64 " is set aside as '%s'", step, to);
out:
    tt_free(from);
    tt_free(name);
    tt_free(to);
    return rc;
}

/* --- the mark of a step that gives way --- */

static const char mark_prefix[] = ".parent-";

static char *mark_path(const char *folder, int64_t step, const char *run_id)
{
    return tt_format("%s/%sstep-%" PRId64 "-%s", folder, mark_prefix, step, run_id);
}

bool tt_parent_parse(const char *name, int64_t *ret_step, const char **ret_run_id)
{
    const char *rest;
    int64_t step;

    if (strncmp(name, mark_prefix, sizeof mark_prefix - 1) != 0)
        return false;
    step = leading_step(name + sizeof mark_prefix - 1, &rest);
    if (step < 0 || rest[0] != '-' || !rest[1])
        return false;
    *ret_step = step;
    *ret_run_id = rest + 1;
    return true;
}

int tt_parent_mark(const char *folder, int64_t step, const char *run_id)
{
    char *path = mark_path(folder, step, run_id);
    int fd, tries = 0, rc;

    do
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    while (fd < 0 && tt_path_again(errno, &tries));
    rc = fd < 0 ? tt_path_fail("create", path, errno) : tt_folder_sync(folder);
    if (fd >= 0)
        (void)close(fd);
    tt_free(path);
    return rc;
}

int tt_parent_unmark(const char *folder, int64_t step, const char *run_id)
{
    char *path = mark_path(folder, step, run_id);
    int rc = unlink(path) < 0 && errno != ENOENT ? tt_path_fail("remove", path, errno) : 0;

    tt_free(path);
    return rc;
}
