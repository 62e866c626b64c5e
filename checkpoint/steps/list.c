/* SPDX-License-Identifier: MIT
 *
 * Lists the steps of a folder and what else it contains.
 */
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

#include "checkpoint/steps/aside.h"
#include "checkpoint/steps/leftover.h"
#include "checkpoint/steps/steps.h"
#include "checkpoint/tools/inspect.h"
#include "core/base/mem.h"
#include "core/os/file.h"

/* A step that cannot be read at the moment is listed as unreadable. Running out of memory is an error. */
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
    if (!good) /* what is still known of it */
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

static json_t *list_leftover(const char *folder, const char *name)
{
    char *path = tt_format("%s/%s", folder, name);
    struct stat st;
    bool seen = lstat(path, &st) == 0;
    json_t *json = json_pack("{s:o, s:s, s:I, s:o}", "name", tt_json_string(name), "state", tt_leftover_kind(name),
                             "bytes", (json_int_t)tt_leftover_bytes(path), "age_s",
                             seen ? json_real(tt_clock_wall_sec() - (double)st.st_mtime) : json_null());

    tt_free(path);
    return json;
}

/* A step that was set aside: why, which run saved it, and which run set it aside. */
static json_t *list_aside(const char *folder, const char *name, const struct tt_aside *aside)
{
    char *path = tt_format("%s/%s", folder, name);
    struct tt_manifest manifest = {0};
    json_t *json, *run_id = NULL;
    struct stat st;
    bool seen = lstat(path, &st) == 0;

    if (tt_manifest_load(path, &manifest) == 0)
        run_id = json_object_get(manifest.meta, "run_id");
    json = json_pack("{s:o, s:I, s:s, s:O?, s:o, s:I, s:o?}", "name", tt_json_string(name), "step",
                     (json_int_t)aside->step, "state", tt_aside_word(aside->kind), "run_id",
                     json_is_string(run_id) ? run_id : NULL, "set_aside_by", tt_json_string(aside->run_id), "bytes",
                     (json_int_t)tt_leftover_bytes(path), "age_s",
                     seen ? json_real(tt_clock_wall_sec() - (double)st.st_mtime) : NULL);
    tt_manifest_release(&manifest);
    tt_free(path);
    return json;
}

/* A step that is given by its path is listed alone. The caller frees ret_steps. */
static int find_steps(const char *given, char **ret_folder, int64_t **ret_steps, int *ret_n)
{
    enum tt_path_kind kind;
    char *folder = NULL, *slash;
    int cap = 0, rc = 0;

    if ((rc = tt_path_find(given, &kind, &folder)) == TT_EDATA && tt_step_folder_find(given, "list", &folder) == 0) {
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
    json_t *list = json_array(), *aside = json_array(), *leftovers = json_array();
    int n = 0, n_names = 0, rc = 0;

    TT_TRY(find_steps(path, &folder, &steps, &n));
    for (int i = 0; i < n; i++)
        if ((rc = list_step(folder, steps[i], list)) < 0 && rc != TT_EREMOVED) /* no longer one of them */
            goto out;
    rc = 0;
    TT_TRY(tt_folder_list(folder, &names, &n_names));
    for (int i = 0; i < n_names; i++) {
        struct tt_aside what;

        if (tt_leftover_is(names[i]))
            (void)json_array_append_new(leftovers, list_leftover(folder, names[i]));
        else if (tt_aside_parse(names[i], &what))
            (void)json_array_append_new(aside, list_aside(folder, names[i], &what));
    }
    *ret_json = json_pack("{s:o,s:O,s:O,s:O}", "folder", tt_json_string(folder), "steps", list, "set_aside", aside,
                          "leftovers", leftovers);
out:
    json_decref(list);
    json_decref(aside);
    json_decref(leftovers);
    tt_names_free(names, n_names);
    tt_free(steps);
    tt_free(folder);
    return rc;
}
