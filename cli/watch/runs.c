/* SPDX-License-Identifier: MIT
 *
 * Finds runs below a folder.
 */
#include "cli/watch/runs.h"

#include <stdbool.h>
#include <string.h>

#include "checkpoint/steps/steps.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/os/path.h"

enum { LEVELS = 3 };

static int is_run(const char *folder, bool *ret_is)
{
    static const char *const names[] = {"metrics.jsonl", "run.yaml"};
    int rc = 0;

    *ret_is = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && rc == 0 && !*ret_is; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);

        rc = tt_path_exists(path, ret_is);
        tt_free(path);
    }
    return rc;
}

static int add_below(const char *folder, int levels, struct tt_runs *runs);

/* Adds what is at a path below the folder that was given, if it is a run, or the runs below it. */
static int add_at(const char *path, int levels, struct tt_runs *runs)
{
    bool is_folder = false, is_one = false;
    int rc = 0;

    TT_TRY(tt_path_is_folder(path, &is_folder));
    if (is_folder)
        TT_TRY(is_run(path, &is_one));
    if (is_one)
        TT_PUSH(runs->folder, runs->n, runs->cap) = tt_strdup(path);
    else if (is_folder && levels > 1)
        rc = add_below(path, levels - 1, runs);
out:
    return rc;
}

/* Adds the runs below a folder, which is this many levels above the last that is looked at. What cannot be looked at,
 * such as lost+found of a disk, does not hide the others. */
static int add_below(const char *folder, int levels, struct tt_runs *runs)
{
    char **names = NULL, *path = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list_found(folder, &names, &n));
    for (int i = 0; i < n; i++) {
        if (names[i][0] == '.' || tt_step_number_aside(names[i]) >= 0)
            continue;
        tt_free(path);
        path = tt_format("%s/%s", folder, names[i]);
        if (add_at(path, levels, runs) < 0)
            tt_warn("no runs are shown of '%s': %s", path, tt_error_message());
    }
out:
    tt_free(path);
    tt_names_free(names, n);
    return rc;
}

/* Whether runs[i] is a link to another of them, from number first on. */
static int is_listed(const struct tt_runs *runs, int first, int i, bool *ret_is)
{
    struct tt_path_info link = {0}, other = {0};
    int rc = 0;

    *ret_is = false;
    TT_TRY(tt_path_look(runs->folder[i], &link));
    for (int k = first; k < runs->n && link.is_link && !*ret_is; k++) {
        if (k == i)
            continue;
        TT_TRY(tt_path_look(runs->folder[k], &other));
        *ret_is = other.device == link.device && other.inode == link.inode && (!other.is_link || k < i);
    }
out:
    return rc;
}

/* Drops links, such as `latest`, to runs that are listed under their own names. */
static int drop_links(struct tt_runs *runs, int first)
{
    bool drops = false;
    int rc = 0;

    for (int i = runs->n - 1; i >= first; i--) {
        TT_TRY(is_listed(runs, first, i, &drops));
        if (!drops)
            continue;
        tt_free(runs->folder[i]);
        runs->n--;
        memmove(&runs->folder[i], &runs->folder[i + 1], (size_t)(runs->n - i) * sizeof *runs->folder);
    }
out:
    return rc;
}

int tt_runs_add_below(const char *folder, struct tt_runs *runs)
{
    size_t size = strlen(folder);
    int before = runs->n;
    bool is_folder = false;
    char *path;
    int rc = tt_path_is_folder(folder, &is_folder);

    if (rc < 0 || !is_folder)
        return rc;
    while (size > 1 && folder[size - 1] == '/')
        size--;
    path = tt_strndup(folder, size);
    rc = add_below(path, LEVELS, runs);
    tt_free(path);
    return rc < 0 ? rc : drop_links(runs, before);
}

int tt_runs_add(const char *given, struct tt_runs *runs)
{
    int before = runs->n, rc = 0;
    bool is_folder = false, is_one = false;

    TT_TRY(tt_path_is_folder(given, &is_folder));
    if (is_folder)
        TT_TRY(is_run(given, &is_one));
    if (is_folder && !is_one)
        TT_TRY(tt_runs_add_below(given, runs));
    if (runs->n == before)
        TT_PUSH(runs->folder, runs->n, runs->cap) = tt_strdup(given);
out:
    return rc;
}

void tt_runs_release(struct tt_runs *runs)
{
    for (int i = 0; i < runs->n; i++)
        tt_free(runs->folder[i]);
    tt_free(runs->folder);
    *runs = (struct tt_runs){0};
}
