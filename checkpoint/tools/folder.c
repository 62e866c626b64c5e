/* SPDX-License-Identifier: MIT
 *
 * What commands do with a checkpoint folder: list its contents, remove what need not be kept, go back to a step.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <sys/stat.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/steps/steps.h"
#include "checkpoint/tools/tools.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

/* --- listing --- */

/* Bytes of the files below a folder, as far as they can be read. */
static int64_t bytes_below(const char *folder)
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
            bytes += bytes_below(path);
        else if (lstat(path, &st) == 0)
            bytes += (int64_t)st.st_size;
        tt_free(path);
    }
    tt_names_free(names, n);
    return bytes;
}

/* A step that cannot be read at the moment is listed as unreadable. Only running out of memory is an error. */
static int list_step(const char *folder, int64_t step, json_t *list)
{
    char *path = tt_step_path(folder, step);
    struct tt_manifest manifest = {0};
    json_t *json, *time;
    struct tt_step_place place = {0};
    enum tt_path_kind kind;
    int rc = tt_step_place(path, &place), more = 0;
    char *problem = NULL;
    bool good;

    if (rc == 0)
        rc = tt_step_explain(tt_step_look(path, true, &kind, &manifest), path, &place);
    if (rc == TT_EREMOVED) {
        tt_free(path);
        return rc;
    }
    good = rc == 0;
    problem = good ? NULL : tt_strdup(tt_error_message());
    if (!good) /* lists the values that can still be read */
        more = tt_manifest_load(path, &manifest);
    json = json_pack("{s:I, s:s}", "step", (json_int_t)step, "state",
                     good             ? "committed"
                     : rc == TT_EDATA ? "damaged"
                                      : "unreadable");
    tt_ckpt_set_summary(json, &manifest);
    time = json_object_get(json, "time");
    (void)json_object_update_new(
        json, json_pack("{s:o?, s:o?, s:o?, s:b, s:o}", "age_s",
                        json_is_number(time) ? json_real(tt_clock_wall_sec() - json_number_value(time)) : NULL, "files",
                        manifest.meta ? json_integer(manifest.n_files) : NULL, "bytes",
                        manifest.meta ? json_integer(tt_ckpt_file_bytes(&manifest)) : NULL, "good", good, "problem",
                        problem ? tt_json_string(problem) : json_null()));
    tt_manifest_release(&manifest);
    (void)json_array_append_new(list, json);
    tt_free(problem);
    tt_free(path);
    return rc == TT_ENOMEM || more == TT_ENOMEM ? TT_ENOMEM : 0;
}

/* Seconds since a folder was changed; NULL if it cannot be examined. */
static json_t *age_of(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 ? json_real(tt_clock_wall_sec() - (double)st.st_mtime) : NULL;
}

static json_t *list_leftover(const char *folder, const char *name, const char *kind)
{
    char *path = tt_format("%s/%s", folder, name);
    json_t *json = json_pack("{s:o, s:s, s:I, s:o?}", "name", tt_json_string(name), "state", kind, "bytes",
                             (json_int_t)bytes_below(path), "age_s", age_of(path));

    tt_free(path);
    return json;
}

/* A step that was set aside: the reason, the run that saved it, and the run that set it aside. */
static json_t *list_aside(const char *folder, const char *name, const struct tt_aside *aside)
{
    char *path = tt_format("%s/%s", folder, name);
    struct tt_manifest manifest = {0};
    json_t *json, *run_id = NULL;

    if (tt_manifest_load(path, &manifest) == 0)
        run_id = json_object_get(manifest.meta, "run_id");
    json = json_pack("{s:o, s:I, s:s, s:O?, s:o, s:I, s:o?}", "name", tt_json_string(name), "step",
                     (json_int_t)aside->step, "state", aside->word, "run_id", json_is_string(run_id) ? run_id : NULL,
                     "set_aside_by", tt_json_string(aside->run_id), "bytes", (json_int_t)bytes_below(path), "age_s",
                     age_of(path));
    tt_manifest_release(&manifest);
    tt_free(path);
    return json;
}

/*
 * The checkpoint folder of a run, or the folder itself. It may have no steps yet (its first save was killed), or only
 * steps that were set aside; then it is recognized by its lock file. verb: the command, for the message. The caller
 * frees ret_folder.
 */
static int find_folder(const char *path, const char *verb, char **ret_folder)
{
    enum tt_path_kind kind;
    bool has_lock = false;
    int rc = 0;

    TT_TRY(tt_path_has(path, "checkpoint/.lock", &has_lock));
    if (has_lock)
        *ret_folder = tt_format("%s/checkpoint", path);
    else if ((rc = tt_path_find(path, &kind, ret_folder)) == 0 && kind != TT_PATH_FOLDER)
        rc = tt_fail(TT_EUSAGE, "'%s' is not a folder of steps\nhelp: %s takes a run or its checkpoint folder", path,
                     verb);
out:
    return rc;
}

/* Lists a step alone if its path is given. The caller frees ret_steps. */
static int find_steps(const char *given, char **ret_folder, int64_t **ret_steps, int *ret_n)
{
    enum tt_path_kind kind;
    char *folder = NULL, *slash;
    int cap = 0, rc = 0;

    if ((rc = tt_path_find(given, &kind, &folder)) == TT_EDATA && find_folder(given, "list", &folder) == 0) {
        kind = TT_PATH_FOLDER; /* all its steps were set aside */
        rc = 0;
    }
    TT_TRY(rc);
    slash = strrchr(folder, '/');
    if (kind == TT_PATH_FOLDER) {
        TT_TRY(tt_step_list(folder, ret_steps, ret_n));
    } else if (kind == TT_PATH_STEP && slash && tt_step_number(slash + 1) >= 0) {
        TT_PUSH(*ret_steps, *ret_n, cap) = tt_step_number(slash + 1);
        *slash = 0;
    } else {
        rc = tt_fail(kind == TT_PATH_STEP ? TT_EUSAGE : TT_EDATA,
                     "'%s' is not a folder of steps\nhelp: titan ckpt inspect describes it", given);
        goto out;
    }
    *ret_folder = folder;
    folder = NULL;
out:
    tt_free(folder);
    return rc;
}

int tt_ckpt_list(const char *path, json_t **ret_json)
{
    int64_t *steps = NULL;
    char *folder = NULL, **names = NULL;
    json_t *json = json_pack("{s:n, s:[], s:[], s:[]}", "folder", "steps", "set_aside", "leftovers");
    int n = 0, n_names = 0, rc = 0;

    TT_TRY(find_steps(path, &folder, &steps, &n));
    for (int i = 0; i < n; i++) {
        rc = list_step(folder, steps[i], json_object_get(json, "steps"));
        TT_TRY(rc == TT_EREMOVED ? 0 : rc); /* the step was removed meanwhile */
    }
    TT_TRY(tt_folder_list(folder, &names, &n_names));
    for (int i = 0; i < n_names; i++) {
        struct tt_leftover left;
        struct tt_aside what;

        if (tt_leftover_parse(names[i], &left))
            (void)json_array_append_new(json_object_get(json, "leftovers"), list_leftover(folder, names[i], left.kind));
        else if (tt_aside_parse(names[i], &what))
            (void)json_array_append_new(json_object_get(json, "set_aside"), list_aside(folder, names[i], &what));
    }
    (void)json_object_set_new(json, "folder", tt_json_string(folder));
    *ret_json = json_incref(json);
out:
    json_decref(json);
    tt_names_free(names, n_names);
    tt_free(steps);
    tt_free(folder);
    return rc;
}

/* --- removing --- */

struct gc {
    char *folder;
    bool dry_run;
    int64_t keep;
    json_t *json; /* the result */
    int64_t bytes;
};

static void add(struct gc *gc, const char *list, json_t *value)
{
    (void)json_array_append_new(json_object_get(gc->json, list), value);
}

static void add_removed(struct gc *gc, const char *name, const char *kind, int64_t bytes)
{
    add(gc, "removed",
        json_pack("{s:o, s:s, s:I}", "name", tt_json_string(name), "kind", kind, "bytes", (json_int_t)bytes));
    if (strcmp(kind, "restored") != 0)
        gc->bytes += bytes;
}

/* Removes a step, or a step that was set aside. */
static int discard(struct gc *gc, const char *name, const char *kind, int64_t step)
{
    char *path = tt_format("%s/%s", gc->folder, name), *trash = tt_format(".trash-step-%" PRId64 "-gc", step);
    int rc = 0;

    add_removed(gc, name, kind, bytes_below(path));
    if (!gc->dry_run)
        rc = tt_commit_remove(gc->folder, name, trash, -1);
    tt_free(path);
    tt_free(trash);
    return rc;
}

/* parent is the folder given to `gc`, or a step in it. */
static int clear_leftover(struct gc *gc, const char *parent, const char *name)
{
    char *path = tt_format("%s/%s", parent, name), *home = tt_leftover_home(parent, name);
    bool taken = true;
    int rc = 0;

    if (home)
        TT_TRY(tt_path_exists(home, &taken));
    add_removed(gc, path + strlen(gc->folder) + 1, taken ? "leftover" : "restored", bytes_below(path));
    if (!gc->dry_run && taken)
        rc = tt_folder_remove(path);
    else if (!gc->dry_run && rename(path, home) < 0)
        rc = tt_fail(TT_EIO, "cannot put '%s' back as '%s': %s", path, home, strerror(errno));
out:
    tt_free(path);
    tt_free(home);
    return rc;
}

static int clear_leftovers(struct gc *gc, const char *parent)
{
    struct tt_leftover left;
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list(parent, &names, &n));
    for (int i = 0; i < n; i++)
        if (tt_leftover_parse(names[i], &left))
            TT_TRY(clear_leftover(gc, parent, names[i]));
out:
    tt_names_free(names, n);
    return rc;
}

/* Keeps or removes a good step; no other step is removed. */
static int judge_step(struct gc *gc, const char *path, int64_t step, int *good)
{
    struct tt_manifest manifest = {0};
    int rc = tt_step_check(path, &manifest);

    if (rc == TT_EDATA) { /* after any other error the step may be good */
        add(gc, "damaged", json_integer(step));
        return 0;
    }
    TT_TRY(rc);
    if (++*good == 1 && gc->keep < 0) { /* keep_latest_k of the run that saved the newest good step */
        const json_t *config = json_object_get(json_object_get(manifest.meta, "config"), "checkpoint");

        gc->keep = (int64_t)json_integer_value(json_object_get(config, "keep_latest_k"));
    }
    if (gc->keep > 0 && *good > gc->keep)
        TT_TRY(discard(gc, path + strlen(gc->folder) + 1, "step", step));
    else
        add(gc, "kept", json_integer(step));
out:
    tt_manifest_release(&manifest);
    return rc;
}

/* titan does not remove PyTorch's steps. */
static int look_at_step(struct gc *gc, int64_t step, int *good)
{
    char *path = tt_step_path(gc->folder, step);
    enum tt_path_kind kind;
    bool is_folder = false;
    int rc = 0;

    TT_TRY(tt_step_look(path, false, &kind, NULL));
    if (kind == TT_PATH_DCP) {
        add(gc, "pytorch", json_integer(step));
        goto out;
    }
    TT_TRY(judge_step(gc, path, step, good));
    TT_TRY(tt_path_is_folder(path, &is_folder));
    if (is_folder)
        rc = clear_leftovers(gc, path); /* left by a killed export */
out:
    tt_free(path);
    return rc;
}

static int clear_steps(struct gc *gc)
{
    int64_t *steps = NULL;
    int n = 0, good = 0, rc = 0;

    TT_TRY(tt_step_list(gc->folder, &steps, &n));
    for (int i = n - 1; i >= 0; i--)
        TT_TRY(look_at_step(gc, steps[i], &good));
out:
    tt_free(steps);
    return rc;
}

/* Removes steps that were set aside, if the user asks for it. */
static int clear_aside(struct gc *gc)
{
    struct tt_aside aside;
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list(gc->folder, &names, &n));
    for (int i = 0; i < n; i++)
        if (tt_aside_parse(names[i], &aside))
            TT_TRY(discard(gc, names[i], aside.word, aside.step));
out:
    tt_names_free(names, n);
    return rc;
}

int tt_ckpt_gc(const char *path, int64_t keep, bool abandoned, bool dry_run, json_t **ret_json)
{
    struct gc gc = {.dry_run = dry_run,
                    .keep = keep,
                    .json = json_pack("{s:n, s:b, s:n, s:[], s:n, s:[], s:[], s:[]}", "folder", "dry_run", dry_run,
                                      "keep", "removed", "bytes", "kept", "damaged", "pytorch")};
    struct tt_lock lock = TT_LOCK_NONE;
    int rc = 0;

    TT_TRY(find_folder(path, "gc", &gc.folder));
    TT_TRY(tt_ckpt_folder_lock(gc.folder, &lock));
    TT_TRY(clear_leftovers(&gc, gc.folder)); /* comes first, since it may restore a step */
    TT_TRY(clear_steps(&gc));
    if (abandoned)
        TT_TRY(clear_aside(&gc));
    (void)json_object_set_new(gc.json, "folder", tt_json_string(gc.folder));
    (void)json_object_set_new(gc.json, "keep", json_integer(gc.keep < 0 ? 0 : gc.keep));
    (void)json_object_set_new(gc.json, "bytes", json_integer(gc.bytes));
    *ret_json = json_incref(gc.json);
out:
    tt_lock_release(&lock);
    json_decref(gc.json);
    tt_free(gc.folder);
    return rc;
}

/* --- going back by hand --- */

static int check_target(const char *folder, int64_t step, const int64_t *steps, int n)
{
    char *path = tt_step_path(folder, step);
    struct tt_text have = {0};
    bool found = false;
    int rc = 0;

    for (int i = n - 1; i >= 0; i--) {
        found = found || steps[i] == step;
        tt_text_add(&have, "%s%" PRId64, i == n - 1 ? "" : ", ", steps[i]);
    }
    if (!found)
        rc = tt_fail(TT_EDATA, "no checkpoint of step %" PRId64 " in '%s'\nhelp: it holds %s%s", step, folder,
                     n ? "steps " : "none", n ? have.text : "");
    else
        rc = tt_step_check(path, NULL);
    tt_text_release(&have);
    tt_free(path);
    return rc;
}

/* titan neither resumes from PyTorch's steps nor sets them aside. Newer steps need not be readable. */
static int check_kinds(const char *folder, int64_t step, const int64_t *steps, int n)
{
    enum tt_path_kind kind;
    int rc = 0;

    for (int i = n - 1; i >= 0 && steps[i] >= step && rc == 0; i--) {
        char *path = tt_step_path(folder, steps[i]);

        if (tt_step_look(path, false, &kind, NULL) == 0 && kind == TT_PATH_DCP)
            rc = tt_fail(TT_EUSAGE,
                         "'%s' is a PyTorch checkpoint, which rollback neither returns to nor sets aside\n"
                         "help: a new run can begin from a PyTorch checkpoint",
                         path);
        tt_free(path);
    }
    return rc;
}

int tt_ckpt_rollback(const char *path, int64_t step, bool dry_run, json_t **ret_json)
{
    struct tt_lock lock = TT_LOCK_NONE;
    char *folder = NULL, id[TT_RANDOM_WORD_BYTES];
    json_t *aside = json_array();
    int64_t *steps = NULL;
    int n = 0, rc = 0;

    TT_TRY(find_folder(path, "rollback", &folder));
    TT_TRY(tt_ckpt_folder_lock(folder, &lock));
    TT_TRY(tt_step_list(folder, &steps, &n));
    TT_TRY(check_kinds(folder, step, steps, n));
    TT_TRY(check_target(folder, step, steps, n));
    tt_random_word(id);
    for (int i = n - 1; i >= 0 && steps[i] > step; i--) {
        char *name = tt_aside_name(steps[i], TT_ASIDE_ABANDONED, id);

        (void)json_array_append_new(aside, json_pack("{s:I, s:s}", "step", (json_int_t)steps[i], "name", name));
        tt_free(name);
        if (!dry_run)
            TT_TRY(tt_aside_step(folder, steps[i], TT_ASIDE_ABANDONED, id));
    }
    *ret_json = json_pack("{s:o, s:I, s:b, s:O}", "folder", tt_json_string(folder), "step", (json_int_t)step, "dry_run",
                          dry_run, "set_aside", aside);
out:
    tt_lock_release(&lock);
    json_decref(aside);
    tt_free(steps);
    tt_free(folder);
    return rc;
}
