/* SPDX-License-Identifier: MIT
 *
 * --overwrite: removes what a run left in its folder, and nothing else. A folder inside it may have files of others, or
 * be a link to a larger disk. So only files with titan's names are removed, and the folders that are then empty.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include <fnmatch.h>

#include "checkpoint/steps/aside.h"
#include "checkpoint/steps/leftover.h"
#include "checkpoint/steps/steps.h"
#include "checkpoint/steps/store.h"
#include "cli/run/console.h"
#include "cli/run/folder.h"
#include "core/base/mem.h"
#include "core/os/file.h"

static bool is_of_a_checkpoint_folder(const char *name)
{
    const char *run_id;
    int64_t step;

    return tt_step_number_aside(name) >= 0 || tt_leftover_is_step(name) || tt_parent_parse(name, &step, &run_id);
}

/* Removes the names that `is_ours` accepts from a folder, the newest last. The folder may be missing. */
static int remove_names(const char *folder, bool (*is_ours)(const char *name))
{
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list_found(folder, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);

        if (is_ours(names[i]))
            rc = tt_folder_remove(path);
        tt_free(path);
    }
out:
    tt_names_free(names, n);
    return rc;
}

static int remove_checkpoints(const struct tt_config *cfg)
{
    char *folder = tt_run_folder_checkpoints(cfg);
    struct tt_lock lock = TT_LOCK_NONE;
    bool exists = false;
    int rc = 0;

    TT_TRY(tt_path_exists(folder, &exists));
    if (!exists)
        goto out;
    TT_TRY(tt_ckpt_folder_lock(folder, &lock)); /* a command may be working there */
    TT_TRY(remove_names(folder, is_of_a_checkpoint_folder));
out:
    tt_lock_release(&lock);
    tt_free(folder);
    return rc;
}

/* Removes empty folders, from path up to the run folder. */
static int remove_empty(const char *top, const char *path)
{
    char *at = tt_strdup(path), *slash;
    int rc = 0;

    while (strlen(at) > strlen(top) + 1) {
        if (rmdir(at) < 0) {
            if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT && errno != ENOTDIR)
                rc = tt_path_fail("remove", at, errno);
            break;
        }
        slash = strrchr(at, '/');
        *slash = 0;
    }
    tt_free(at);
    return rc;
}

/* Files below folder/INSIDE/, by patterns of both names. */
static int remove_records(const char *top, const char *folder, const char *inside, const char *file)
{
    char **names = NULL, **files = NULL;
    int n = 0, n_files = 0, rc = 0;

    TT_TRY(tt_folder_list_found(folder, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);
        bool is_folder = false;

        if (fnmatch(inside, names[i], 0) == 0)
            rc = tt_path_is_folder(path, &is_folder);
        if (rc == 0 && is_folder)
            rc = tt_folder_list_found(path, &files, &n_files);
        for (int k = 0; k < n_files && rc == 0; k++) {
            char *victim = tt_format("%s/%s", path, files[k]);

            if (fnmatch(file, files[k], 0) == 0)
                rc = tt_folder_remove(victim);
            tt_free(victim);
        }
        if (rc == 0 && is_folder)
            rc = remove_empty(top, path);
        tt_names_free(files, n_files);
        files = NULL;
        n_files = 0;
        tt_free(path);
    }
out:
    tt_names_free(names, n);
    return rc;
}

static bool is_of_a_run_folder(const char *name)
{
    return strcmp(name, "metrics.jsonl") == 0 || strcmp(name, "run.yaml") == 0 || strcmp(name, "console.log") == 0 ||
           tt_file_is_temporary(name, "run.yaml");
}

int tt_run_folder_remove(const struct tt_config *cfg)
{
    const char *top = cfg->job.dump_folder;
    char *board = tt_format("%s/%s", top, cfg->metrics.save_tb_folder);
    char *traces = tt_format("%s/%s", top, cfg->profiling.save_traces_folder);
    int rc = 0;

    TT_TRY(remove_checkpoints(cfg));
    TT_TRY(remove_records(top, board, "[0-9]*-[0-9]*", "events.out.tfevents.*"));
    TT_TRY(remove_records(top, traces, "iteration_[0-9]*", "rank[0-9]*_trace.json*"));
    TT_TRY(remove_names(top, is_of_a_run_folder)); /* last, since these files mark the folder as a run's */
out:
    tt_free(board);
    tt_free(traces);
    return rc;
}

/* --- starts that fail --- */

/* What a start makes in the folder of its run. The lock comes last: another job that finds none may begin there. */
enum { METRICS, RECORD, CONSOLE, CHECKPOINTS, BOARD, LOCK, MADE };

static char *made_path(const struct tt_config *cfg, int what)
{
    static const char *const names[] = {
        [METRICS] = "metrics.jsonl", [RECORD] = "run.yaml", [CONSOLE] = "console.log", [LOCK] = ".lock"};
    const char *name = what == CHECKPOINTS ? cfg->checkpoint.folder
                       : what == BOARD     ? cfg->metrics.save_tb_folder
                                           : names[what];

    return tt_format("%s/%s", cfg->job.dump_folder, name);
}

/* Cuts the last part of a path off; false: it has only one. */
static bool cut_last(char *path)
{
    char *slash = strrchr(path, '/');

    while (slash && slash > path && slash[-1] == '/')
        slash--;
    if (!slash || slash == path)
        return false;
    *slash = 0;
    return true;
}

int tt_run_folder_look(const struct tt_config *cfg, struct tt_run_folder *folder)
{
    char *at = tt_strdup(cfg->job.dump_folder), *path = NULL;
    struct tt_path_info info = {0};
    bool exists = false;
    int rc = 0;

    for (int what = 0; what < MADE; what++) {
        tt_free(path);
        path = made_path(cfg, what);
        TT_TRY(tt_path_look(path, &info));
        exists = info.kind != TT_FILE_NONE || info.is_link; /* a link is the user's, wherever it leads */
        if (what != LOCK || !folder->lock.path)
            folder->had |= (unsigned)exists << what;
    }
    if (folder->kept)
        goto out;
    for (size_t n = strlen(at); n > 1 && at[n - 1] == '/'; n--)
        at[n - 1] = 0;
    TT_TRY(tt_path_exists(at, &exists));
    while (!exists && cut_last(at))
        TT_TRY(tt_path_exists(at, &exists));
    folder->kept = exists ? at : tt_strdup("");
    at = exists ? NULL : at;
out:
    tt_free(path);
    tt_free(at);
    return rc;
}

/* Removes the empty folders on the way to the run's that were not there. */
static void remove_made_folders(const struct tt_config *cfg, const char *kept)
{
    char *at = tt_strdup(cfg->job.dump_folder);

    for (size_t n = strlen(at); n > 1 && at[n - 1] == '/'; n--)
        at[n - 1] = 0;
    while (strlen(at) > strlen(kept) && rmdir(at) == 0 && cut_last(at))
        ;
    tt_free(at);
}

static void remove_made(const struct tt_config *cfg, int what)
{
    char *path = made_path(cfg, what), *lock = tt_format("%s/.lock", path);

    if (what == BOARD) {
        (void)!remove_records(cfg->job.dump_folder, path, "[0-9]*-[0-9]*", "events.out.tfevents.*");
        (void)!remove_empty(cfg->job.dump_folder, path);
    } else if (what == CHECKPOINTS) {
        (void)unlink(lock);
        (void)!remove_empty(cfg->job.dump_folder, path);
    } else {
        (void)unlink(path);
    }
    tt_free(lock);
    tt_free(path);
}

/* What cannot be removed stays, and the message stays that of the error that ended the start. */
void tt_run_folder_undo(const struct tt_config *cfg, struct tt_run_folder *folder)
{
    char *message = tt_strdup(tt_error_message());
    enum tt_key key = tt_error_key();
    bool is_ours = folder->lock.path && folder->kept && tt_lock_check(&folder->lock) == 0;

    if (is_ours && !(folder->had & 1U << CONSOLE)) /* a log that stays gets the message too */
        tt_console_close();
    for (int what = 0; what < MADE && is_ours; what++)
        if (!(folder->had & 1U << what))
            remove_made(cfg, what);
    tt_lock_release(&folder->lock); /* its file was removed while it was held, so that nobody can take it */
    if (is_ours)
        remove_made_folders(cfg, folder->kept);
    (void)tt_fail_key(TT_EINTERNAL, key, "%s", message);
    tt_free(message);
}
