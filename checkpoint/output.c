/* SPDX-License-Identifier: MIT
 *
 * Folders that appear whole or not at all.
 */
#include "checkpoint/output.h"

#include <string.h>

#include <unistd.h>

#include "checkpoint/commit.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/mem.h"

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

/* A step that a conversion made says so; one that training made is never replaced. */
static bool is_converted(const char *path)
{
    char *manifest = tt_format("%s/manifest.json", path);
    json_t *json = NULL;
    bool found = tt_path_exists(manifest) && tt_json_load(manifest, &json) == 0 &&
                 json_object_get(json, "converted_from") != NULL;

    json_decref(json);
    tt_free(manifest);
    return found;
}

static bool is_weights(const char *path, char *const *names, int n)
{
    bool any = false;

    for (int i = 0; i < n; i++) {
        char *child = tt_format("%s/%s", path, names[i]);
        bool folder = tt_path_is_folder(child);

        tt_free(child);
        if (folder)
            return false;
        any = any || ends_with(names[i], ".safetensors");
    }
    return any;
}

int tt_output_check(const char *path, bool force)
{
    char **names = NULL;
    int n = 0, rc = 0;

    if (!tt_path_exists(path))
        return 0;
    if (!tt_path_is_folder(path))
        return tt_fail(TT_EUSAGE, "'%s' exists and is not a folder", path);
    TT_TRY(tt_folder_list(path, &names, &n));
    if (n && !force)
        rc = tt_fail(TT_EUSAGE, "'%s' exists and is not empty\nhelp: --force replaces it", path);
    else if (n && !is_weights(path, names, n) && !is_converted(path))
        rc = tt_fail(TT_EUSAGE, "'%s' is not the output of an earlier run: --force will not replace it", path);
out:
    tt_names_free(names, n);
    return rc;
}

static void release(struct tt_output *output)
{
    tt_free(output->parent);
    tt_free(output->name);
    tt_free(output->temporary);
    tt_free(output->aside);
    tt_free(output->folder);
    *output = (struct tt_output){0};
}

static void name_output(const char *given, struct tt_output *output)
{
    char *path = tt_strdup(given), *slash;

    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    slash = strrchr(path, '/');
    output->name = tt_strdup(slash ? slash + 1 : path);
    output->parent = slash == path ? tt_strdup("/") : slash ? tt_strndup(path, (size_t)(slash - path)) : tt_strdup(".");
    output->temporary = tt_format(".tmp-%s-%d", output->name, (int)getpid());
    output->aside = tt_format(".old-%s-%d", output->name, (int)getpid());
    output->folder = tt_format("%s/%s", output->parent, output->temporary);
    tt_free(path);
}

int tt_output_begin(const char *path, int64_t bytes, struct tt_output *ret_output)
{
    struct tt_output output = {0};
    int rc = 0;

    name_output(path, &output);
    TT_TRY(tt_folder_make(output.parent));
    TT_TRY(tt_commit_check_space(output.parent, bytes + bytes / 100 + ((int64_t)1 << 20)));
    TT_TRY(tt_folder_remove(output.folder));
    TT_TRY(tt_folder_make(output.folder));
    *ret_output = output;
out:
    if (rc < 0)
        release(&output);
    return rc;
}

int tt_output_publish(struct tt_output *output)
{
    int rc = 0;

    TT_TRY(tt_commit_sync_tree(output->folder));
    TT_TRY(tt_commit_publish(output->parent, output->temporary, output->name, output->aside, true, -1));
    release(output);
out:
    return rc;
}

void tt_output_abandon(struct tt_output *output)
{
    char *message = tt_strdup(tt_error_message());

    if (output->folder) {
        (void)!tt_folder_remove(output->folder);
        (void)tt_fail(0, "%s", message);
    }
    release(output);
    tt_free(message);
}

int tt_output_put(const struct tt_output *output, const char *name, const void *bytes, size_t size)
{
    char *path = tt_format("%s/%s", output->folder, name);
    int rc = tt_durable_put(path, bytes, size);

    tt_free(path);
    return rc;
}

static int copy_file(const char *from, const char *to)
{
    char *text = NULL;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_file_read(from, &text, &size));
    TT_TRY(tt_durable_put(to, text, size));
out:
    tt_free(text);
    return rc;
}

int tt_output_copy(const struct tt_output *output, const char *from_folder, const char *to_folder,
                   bool (*want)(const char *name))
{
    char **names = NULL;
    int n = 0, rc = 0;

    if (tt_path_is_folder(from_folder))
        TT_TRY(tt_folder_list(from_folder, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *from = tt_format("%s/%s", from_folder, names[i]);
        char *to = tt_format("%s/%s%s%s", output->folder, to_folder, to_folder[0] ? "/" : "", names[i]);

        if (want(names[i]) && !tt_path_is_folder(from))
            rc = copy_file(from, to);
        tt_free(from);
        tt_free(to);
    }
out:
    tt_names_free(names, n);
    return rc;
}
