/* SPDX-License-Identifier: MIT
 *
 * The names of folders that are being written, replaced or removed.
 */
#include "checkpoint/steps/leftover.h"

#include <string.h>

#include <sys/stat.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "core/os/file.h"

static const struct {
    const char *prefix, *kind;
} kinds[] = {
    {".tmp-", "temporary"},
    {".old-", "replaced"},
    {".trash-", "trash"},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

/* The name after the prefix, "step-20-RUN" or "hf-1234"; NULL when it is not one of titan's. */
static const char *after_prefix(const char *name, int *ret_kind)
{
    for (int i = 0; i < KINDS; i++) {
        size_t n = strlen(kinds[i].prefix);

        if (strncmp(name, kinds[i].prefix, n) != 0)
            continue;
        *ret_kind = i;
        name += n;
        if ((strncmp(name, "step-", 5) == 0 && isdigit((unsigned char)name[5])) ||
            (strncmp(name, "hf-", 3) == 0 && (isdigit((unsigned char)name[3]) || tt_random_is_word(name + 3))))
            return name;
        return NULL;
    }
    return NULL;
}

bool tt_leftover_is(const char *name)
{
    int kind = 0;

    return after_prefix(name, &kind) != NULL;
}

bool tt_leftover_is_step(const char *name)
{
    int kind = 0;
    const char *rest = after_prefix(name, &kind);

    return rest && strncmp(rest, "step-", 5) == 0;
}

const char *tt_leftover_kind(const char *name)
{
    int kind = 0;

    return after_prefix(name, &kind) ? kinds[kind].kind : "";
}

char *tt_leftover_home(const char *parent, const char *name)
{
    int kind = 0;
    const char *rest = after_prefix(name, &kind);
    size_t n;

    if (!rest || strcmp(kinds[kind].prefix, ".old-") != 0)
        return NULL;
    if (strncmp(rest, "hf-", 3) == 0)
        return tt_format("%s/hf", parent);
    n = 5 + strspn(rest + 5, "0123456789");
    return tt_format("%s/%.*s", parent, (int)n, rest);
}

int64_t tt_leftover_bytes(const char *folder)
{
    char **names = NULL;
    int64_t bytes = 0;
    int n = 0;

    if (tt_folder_list(folder, &names, &n) < 0)
        return 0;
    for (int i = 0; i < n; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);
        struct stat st;

        if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
            bytes += tt_leftover_bytes(path);
        else if (lstat(path, &st) == 0)
            bytes += (int64_t)st.st_size;
        tt_free(path);
    }
    tt_names_free(names, n);
    return bytes;
}
