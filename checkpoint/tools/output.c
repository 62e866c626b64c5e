/* SPDX-License-Identifier: MIT
 *
 * Output folders that appear complete or not at all.
 */
#include "checkpoint/tools/output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "checkpoint/dcp/metadata.h"
#include "checkpoint/dcp/scan.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/steps/commit.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

/* Whether an object in JSON has a member of that name. A manifest may be large, so no tree is made of it. */
static int find_member(struct tt_json_reader *reader, const char *name, bool *ret_found)
{
    struct tt_json_span key;
    bool more = tt_json_peek(reader) == '{';
    int rc = 0;

    if (!more)
        goto out;
    TT_TRY(tt_json_open(reader));
    for (;;) {
        TT_TRY(tt_json_next(reader, &more));
        if (!more)
            break;
        TT_TRY(tt_json_key(reader, &key));
        *ret_found = *ret_found || (key.size == strlen(name) && memcmp(key.text, name, key.size) == 0);
        TT_TRY(tt_json_skip(reader));
    }
    rc = tt_json_finish(reader);
out:
    return rc;
}

/* Whether a step was made by a conversion, as its manifest says. A step from training is never replaced. */
static int is_converted(const char *path, bool *ret_own)
{
    char *manifest = tt_format("%s/manifest.json", path), *text = NULL;
    struct tt_json_reader reader = {0};
    bool exists = false, found = false;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_path_exists(manifest, &exists));
    rc = exists ? tt_file_read(manifest, &text, &size) : 0;
    if (exists && rc == 0) {
        tt_json_reader_init(&reader, text, size, manifest);
        rc = find_member(&reader, "converted_from", &found);
    }
    *ret_own = rc == 0 && found;
    rc = rc == TT_EDATA ? 0 : rc; /* a damaged step is not known to be titan's */
out:
    tt_json_reader_release(&reader);
    tt_free(text);
    tt_free(manifest);
    return rc;
}

/* Whether titan wrote the file: its metadata then has the tensors' checksums. */
static int is_own_file(const char *path, bool *ret_own)
{
    struct tt_safetensors file = {0};
    int rc = tt_safetensors_open(path, &file);

    *ret_own = rc == 0 && tt_safetensors_metadata(&file, "titan.crc") != NULL;
    if (rc == 0)
        tt_safetensors_release(&file);
    return rc == TT_EDATA ? 0 : rc;
}

/* A file that an export writes with the weights. The user put any other file there. */
static bool is_companion(const char *name)
{
    return tt_text_ends(name, ".json") || tt_text_ends(name, ".jinja") || strcmp(name, "merges.txt") == 0 ||
           strcmp(name, "tokenizer.model") == 0;
}

static int is_weights(const char *path, char *const *names, int n, bool *ret_own)
{
    bool any = false, fine = true;
    int rc = 0;

    for (int i = 0; i < n && fine && rc == 0; i++) {
        bool weights = tt_text_ends(names[i], ".safetensors");
        char *child = tt_format("%s/%s", path, names[i]);
        struct tt_path_info info = {0};

        rc = tt_path_look(child, &info);
        fine = info.kind != TT_FILE_FOLDER && (weights || is_companion(names[i]));
        if (rc == 0 && fine && weights)
            rc = is_own_file(child, &fine);
        tt_free(child);
        any = any || weights;
    }
    *ret_own = any && fine;
    return rc;
}

/* Whether titan wrote the folder for PyTorch, as its metadata says. */
static int is_torch(const char *path, char *const *names, int n, bool *ret_own)
{
    char *metadata = tt_format("%s/" TT_DCP_METADATA, path), *bytes = NULL;
    struct tt_dcp_metadata found = {0};
    bool exists = false, fine = true;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_path_exists(metadata, &exists));
    for (int i = 0; i < n && exists && fine; i++)
        fine = strcmp(names[i], TT_DCP_METADATA) == 0 || is_companion(names[i]) || tt_text_ends(names[i], ".distcp");
    if (!exists || !fine)
        goto out;
    TT_TRY(tt_file_read(metadata, &bytes, &size));
    rc = tt_dcp_metadata_parse(metadata, bytes, size, &found);
    *ret_own = rc == 0 && found.by_titan;
    rc = rc == TT_EDATA ? 0 : rc; /* a damaged folder is not known to be titan's */
out:
    tt_dcp_metadata_release(&found);
    tt_free(bytes);
    tt_free(metadata);
    return rc;
}

int tt_output_check(const char *path, bool force)
{
    struct tt_path_info info;
    char **names = NULL;
    bool own = false;
    int n = 0, rc = 0;

    TT_TRY(tt_path_look(path, &info));
    if (info.kind == TT_FILE_NONE)
        return 0;
    if (info.kind != TT_FILE_FOLDER)
        return tt_fail(TT_EUSAGE, "'%s' exists and is not a folder", path);
    TT_TRY(tt_folder_list(path, &names, &n));
    TT_TRY(is_weights(path, names, n, &own));
    if (!own)
        TT_TRY(is_converted(path, &own));
    if (!own)
        TT_TRY(is_torch(path, names, n, &own));
    if (n && !force)
        rc = tt_fail(TT_EUSAGE, "'%s' exists and is not empty\nhelp: %s", path,
                     own ? "--force replaces it" : "choose another folder");
    else if (n && !own)
        rc = tt_fail(TT_EUSAGE, "'%s' is not the output of an earlier run: --force will not replace it", path);
out:
    tt_names_free(names, n);
    return rc;
}

/* NULL if nothing exists at path. A path that cannot be examined at the moment is an error. */
static int find_real(const char *path, char **ret_real)
{
    int tries = 0;

    while (!(*ret_real = realpath(path, NULL)))
        if (!tt_path_again(errno, &tries))
            return errno == ENOENT ? 0 : tt_path_fail("look at", path, errno);
    return 0;
}

int tt_output_check_apart(const char *path, const char *source)
{
    char *target = NULL, *from = NULL;
    size_t n;
    int rc = 0;

    TT_TRY(find_real(path, &target));
    TT_TRY(find_real(source, &from));
    n = target ? strlen(target) : 0;
    if (target && from && strncmp(from, target, n) == 0 && (from[n] == '/' || !from[n]))
        rc = tt_fail(TT_EUSAGE, "'%s' would replace '%s', from which it is made\nhelp: choose another folder", path,
                     source);
out:
    free(target);
    free(from);
    return rc;
}

static void release(struct tt_output *output)
{
    tt_mem_on_end(NULL, NULL);
    tt_free(output->parent);
    tt_free(output->name);
    tt_free(output->temporary);
    tt_free(output->aside);
    tt_free(output->folder);
    if (output->lock_fd >= 0)
        (void)close(output->lock_fd);
    *output = (struct tt_output){.lock_fd = -1};
}

static void name_output(const char *given, struct tt_output *output)
{
    char *path = tt_strdup(given), *slash;

    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    slash = strrchr(path, '/');
    output->name = tt_strdup(slash ? slash + 1 : path);
    output->parent = slash == path ? tt_strdup("/") : slash ? tt_strndup(path, (size_t)(slash - path)) : tt_strdup(".");
    tt_free(path);
}

/* Called when memory runs out, before the process ends: removes what it was making. */
static void remove_folder(void *folder)
{
    (void)!tt_folder_remove(folder);
}

/* Makes the folder to build, and the name that an older output has while it is replaced. */
static int make_folder(struct tt_output *output)
{
    char *prefix = tt_format("%s/.tmp-%s", output->parent, output->name);
    int rc = 0;

    TT_TRY(tt_folder_temporary(prefix, &output->folder));
    tt_mem_on_end(remove_folder, output->folder);
    output->temporary = tt_strdup(output->folder + strlen(output->parent) + 1);
    output->aside = tt_format(".old%s", output->temporary + strlen(".tmp"));
out:
    tt_free(prefix);
    return rc;
}

/* Locks a folder while it is being made; -1 when it is already locked or the file system has no such locks. */
static int lock_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

/* ".tmp-NAME-0123456789abcdef" with the prefix ".tmp-NAME-"; older releases used the process number. */
static bool is_made(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);

    return strncmp(name, prefix, n) == 0 && name[n] &&
           (tt_random_is_word(name + n) || strspn(name + n, "0123456789") == strlen(name + n));
}

/* Removes what a killed command left of the same output. A folder that is being made is locked. An older output is only
 * renamed just before the new one takes its place, so it is useless if that place is taken. */
int tt_output_sweep(const char *parent, const char *name)
{
    char *temporary = tt_format(".tmp-%s-", name), *aside = tt_format(".old-%s-", name);
    char *home = tt_format("%s/%s", parent, name), **names = NULL;
    bool taken = false;
    int n = 0, rc = 0;

    TT_TRY(tt_path_exists(home, &taken));
    TT_TRY(tt_folder_list(parent, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *path = tt_format("%s/%s", parent, names[i]);
        int lock = is_made(names[i], temporary) ? lock_folder(path) : -1;

        if (lock >= 0 || (is_made(names[i], aside) && taken))
            rc = tt_folder_remove(path);
        if (lock >= 0)
            (void)close(lock);
        tt_free(path);
    }
out:
    tt_names_free(names, n);
    tt_free(temporary);
    tt_free(aside);
    tt_free(home);
    return rc;
}

int tt_output_begin(const char *path, int64_t bytes, struct tt_output *ret_output)
{
    struct tt_output output = {.lock_fd = -1};
    int rc = 0;

    name_output(path, &output);
    TT_TRY(tt_folder_make(output.parent));
    TT_TRY(tt_output_sweep(output.parent, output.name));
    TT_TRY(tt_commit_check_space(output.parent, bytes + bytes / 100 + ((int64_t)1 << 20)));
    TT_TRY(make_folder(&output));
    output.lock_fd = lock_folder(output.folder);
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

    TT_TRY(tt_folder_list_found(from_folder, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        struct tt_path_info info = {0};
        char *from = tt_format("%s/%s", from_folder, names[i]);
        char *to = tt_format("%s/%s%s%s", output->folder, to_folder, to_folder[0] ? "/" : "", names[i]);

        rc = want(names[i]) ? tt_path_look(from, &info) : 0;
        if (rc == 0 && info.kind != TT_FILE_NONE && info.kind != TT_FILE_FOLDER)
            rc = copy_file(from, to);
        tt_free(from);
        tt_free(to);
    }
out:
    tt_names_free(names, n);
    return rc;
}
