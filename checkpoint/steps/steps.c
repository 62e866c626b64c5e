/* SPDX-License-Identifier: MIT
 *
 * Finding checkpoints: run folder, checkpoint folder, step, plain safetensors folder; and the names of what else is in
 * a checkpoint folder.
 */
#include "checkpoint/steps/steps.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctype.h>

#include "checkpoint/dcp/scan.h"
#include "checkpoint/durable/durable.h"
#include "checkpoint/durable/patience.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

int64_t tt_step_number(const char *name)
{
    size_t n = strncmp(name, "step-", 5) == 0 ? strspn(name + 5, "0123456789") : 0;

    if (n == 0 || n > 18 || name[5 + n] || (name[5] == '0' && n > 1))
        return -1;
    return strtoll(name + 5, NULL, 10);
}

int64_t tt_step_number_aside(const char *name)
{
    struct tt_aside aside;

    return tt_aside_parse(name, &aside) ? aside.step : tt_step_number(name);
}

char *tt_step_path(const char *folder, int64_t step)
{
    return tt_format("%s/step-%" PRId64, folder, step);
}

static int compare_steps(const void *pa, const void *pb)
{
    const int64_t *a = pa, *b = pb;

    return *a < *b ? -1 : *a > *b;
}

/* Whether run_id saved the step; false for a damaged one. */
static int is_step_of(const char *folder, int64_t step, const char *run_id, bool *ret_is)
{
    char *path = tt_step_path(folder, step);
    struct tt_manifest manifest = {0};
    const char *found;
    int rc = tt_manifest_load(path, &manifest);

    found = json_string_value(json_object_get(manifest.meta, "run_id"));
    *ret_is = rc == 0 && found && strcmp(found, run_id) == 0;
    tt_manifest_release(&manifest);
    tt_free(path);
    return rc == TT_EDATA ? 0 : rc;
}

/* The numbers of all steps, in the order of their names. */
static int64_t *numbers(char *const *names, int n_names, int *ret_n)
{
    int64_t *steps = NULL;
    int n = 0, cap = 0;

    for (int i = 0; i < n_names; i++)
        if (tt_step_number(names[i]) >= 0)
            TT_PUSH(steps, n, cap) = tt_step_number(names[i]);
    *ret_n = n;
    return steps;
}

/* Whether step-N, from which run_id began, no longer counts because run_id has since saved its own step. */
static int gives_way_to(const char *folder, int64_t step, const char *run_id, bool *ret_gives_way)
{
    char **names = NULL;
    int64_t *steps = NULL;
    bool exists = false, own = false, child = false;
    int n_names = 0, n = 0, rc = 0;

    TT_TRY(tt_folder_list(folder, &names, &n_names));
    steps = numbers(names, n_names, &n);
    for (int i = 0; i < n; i++)
        exists = exists || steps[i] == step;
    if (exists)
        TT_TRY(is_step_of(folder, step, run_id, &own));
    for (int i = 0; i < n && exists && !own && !child; i++)
        if (steps[i] != step)
            TT_TRY(is_step_of(folder, steps[i], run_id, &child));
    *ret_gives_way = child;
out:
    tt_free(steps);
    tt_names_free(names, n_names);
    return rc;
}

int tt_step_list(const char *folder, int64_t **ret_steps, int *ret_n)
{
    char **names = NULL;
    const char *run_id;
    int64_t *steps = NULL, parent;
    int n_names = 0, n = 0, rc = 0;

    TT_TRY(tt_folder_list_found(folder, &names, &n_names));
    steps = numbers(names, n_names, &n);
    for (int i = 0; i < n_names; i++) {
        bool gives_way = false;
        int kept = 0;

        if (!tt_parent_parse(names[i], &parent, &run_id))
            continue;
        TT_TRY(gives_way_to(folder, parent, run_id, &gives_way));
        for (int k = 0; k < n; k++)
            if (!gives_way || steps[k] != parent)
                steps[kept++] = steps[k];
        n = kept;
    }
    if (n)
        qsort(steps, (size_t)n, sizeof *steps, compare_steps);
    *ret_steps = steps;
    *ret_n = n;
    steps = NULL;
out:
    tt_free(steps);
    tt_names_free(names, n_names);
    return rc;
}

/* The part of tt_step_check that checks that every file of the manifest exists with its size. */
static int check_sizes(const char *step_path, const struct tt_manifest *manifest)
{
    const char *unused;
    int rc = 0;

    for (int i = 0; i < manifest->n_files && rc == 0; i++) {
        char *path = tt_format("%s/%s", step_path, manifest->file[i].path);

        rc = tt_manifest_check_size(path, manifest->file[i].bytes, &unused);
        tt_free(path);
    }
    return rc;
}

/* A copy of a path without trailing slashes, which would make lstat follow a link. */
static char *without_slash(const char *path)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    return tt_strndup(path, n);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

int tt_step_manifest(const char *step_path, struct tt_manifest *ret_manifest)
{
    char *path = without_slash(step_path);
    struct tt_path_info info;
    int64_t number, step;
    int rc = 0;

    number = tt_step_number(base_name(path));
    TT_TRY(tt_path_look(path, &info));
    if (number >= 0 && info.is_link)
        TT_TRY(tt_fail(TT_EDATA, "'%s' is a link, not a step's folder\nhelp: name the folder that it leads to", path));
    TT_TRY(tt_manifest_load(path, ret_manifest));
    step = (int64_t)json_integer_value(json_object_get(ret_manifest->meta, "step"));
    if (number >= 0 && step != number) {
        tt_manifest_release(ret_manifest);
        rc = tt_fail(TT_EDATA, "'%s' holds step %" PRId64 ": its folder was renamed or copied", path, step);
    }
out:
    tt_free(path);
    return rc;
}

int tt_step_check(const char *step_path, struct tt_manifest *ret_manifest)
{
    struct tt_manifest unused = {0}, *manifest = ret_manifest ? ret_manifest : &unused;
    int rc = 0;

    TT_TRY(tt_step_manifest(step_path, manifest));
    TT_TRY(tt_manifest_check_cover(manifest));
    TT_TRY(check_sizes(step_path, manifest));
out:
    if (rc < 0 || !ret_manifest)
        tt_manifest_release(manifest);
    return rc;
}

/* Whether a folder contains steps; false for a file and for a path that does not exist. */
static int has_steps(const char *folder, bool *ret_has)
{
    int64_t *steps = NULL;
    bool is_folder = false;
    int n = 0, rc = 0;

    *ret_has = false;
    TT_TRY(tt_path_is_folder(folder, &is_folder));
    if (is_folder)
        TT_TRY(tt_step_list(folder, &steps, &n));
    *ret_has = n > 0;
out:
    tt_free(steps);
    return rc;
}

/* TT_EDATA for a folder without a checkpoint; the message mentions runs below it. */
static int fail_empty(const char *path, char *const *names, int n)
{
    bool found = false;
    int rc = 0;

    for (int i = 0; i < n && rc == 0; i++) {
        char *run = tt_format("%s/%s", path, names[i]), *below = tt_format("%s/checkpoint", run);
        bool is_folder = false;

        rc = tt_path_is_folder(run, &is_folder);
        if (rc == 0 && is_folder)
            rc = has_steps(below, &found);
        if (rc == 0 && found)
            rc = tt_fail(TT_EDATA,
                         "'%s' is a folder of runs and contains no checkpoint itself\n"
                         "help: name a run, such as '%s'",
                         path, run);
        found = false;
        tt_free(below);
        tt_free(run);
    }
    return rc < 0 ? rc
                  : tt_fail(TT_EDATA,
                            "no checkpoint in '%s': neither step-N folders nor .safetensors files nor PyTorch's "
                            ".metadata",
                            path);
}

/* Searches a folder for the folder of a run's steps, and for weights. */
static int look_into(const char *path, enum tt_path_kind *ret_kind, char **ret_folder)
{
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list(path, &names, &n));
    for (int i = 0; i < n; i++)
        if (tt_text_ends(names[i], ".safetensors")) {
            *ret_kind = TT_PATH_PLAIN;
            *ret_folder = tt_strdup(path);
            goto out;
        }
    *ret_kind = TT_PATH_FOLDER;
    for (int i = 0; i < n && rc == 0 && !*ret_folder; i++) {
        char *child = tt_format("%s/%s", path, names[i]);
        bool found = false;

        rc = has_steps(child, &found);
        *ret_folder = found ? tt_strdup(child) : NULL;
        tt_free(child);
    }
    if (rc == 0 && !*ret_folder)
        rc = fail_empty(path, names, n);
out:
    tt_names_free(names, n);
    return rc;
}

int tt_path_find(const char *given, enum tt_path_kind *ret_kind, char **ret_folder)
{
    char *path = without_slash(given), *run = tt_format("%s/checkpoint", path);
    bool has_manifest = false, torch = false, here = false, below = false, is_step;
    struct tt_path_info info = {0};
    int rc = 0;

    is_step = tt_step_number_aside(base_name(path)) >= 0;
    *ret_folder = NULL;
    TT_TRY(tt_path_look(path, &info));
    if (info.kind == TT_FILE_FOLDER) {
        TT_TRY(tt_path_has(path, "manifest.json", &has_manifest));
        /* torchtitan's checkpoint folders contain folders with this file */
        TT_TRY(tt_path_has(path, TT_DCP_METADATA, &torch));
        TT_TRY(has_steps(path, &here));
        TT_TRY(has_steps(run, &below));
    }
    if (info.kind == TT_FILE_NONE) {
        char *seen = tt_path_seen(path);

        rc = tt_fail(TT_EDATA, "no checkpoint at '%s': no such file or folder%s", path, seen);
        tt_free(seen);
    } else if (info.kind == TT_FILE_FOLDER && !torch && !has_manifest && !is_step && !here && !below) {
        rc = look_into(path, ret_kind, ret_folder);
    } else {
        *ret_kind = info.kind != TT_FILE_FOLDER ? TT_PATH_PLAIN
                    : torch && !has_manifest    ? TT_PATH_DCP
                    : has_manifest || is_step   ? TT_PATH_STEP
                                                : TT_PATH_FOLDER;
        *ret_folder = tt_strdup(*ret_kind == TT_PATH_FOLDER && !here ? run : path);
    }
out:
    tt_free(path);
    tt_free(run);
    return rc;
}

int tt_step_look(const char *step_path, bool check, enum tt_path_kind *ret_kind, struct tt_manifest *ret_manifest)
{
    struct tt_manifest unused = {0}, *manifest = ret_manifest ? ret_manifest : &unused;
    bool is_folder = false, has_manifest = false, torch = false;
    int rc = 0;

    TT_TRY(tt_path_is_folder(step_path, &is_folder));
    if (is_folder) { /* for a file, tt_step_check reports the kind */
        TT_TRY(tt_path_has(step_path, "manifest.json", &has_manifest));
        TT_TRY(tt_path_has(step_path, TT_DCP_METADATA, &torch));
    }
    *ret_kind = torch && !has_manifest ? TT_PATH_DCP : TT_PATH_STEP;
    if (check && *ret_kind == TT_PATH_STEP) {
        TT_TRY(tt_step_check(step_path, manifest));
    } else if (check) {
        TT_TRY(tt_dcp_scan(step_path, manifest, NULL));
        TT_TRY(tt_manifest_check_cover(manifest));
    }
out:
    if (rc < 0 || !ret_manifest)
        tt_manifest_release(manifest);
    return rc;
}

/* --- steps that are removed meanwhile --- */

enum { TRIES_MOST = 20 };

int tt_step_place(const char *path, struct tt_step_place *ret_place)
{
    struct stat st;
    int rc = 0;

    *ret_place = (struct tt_step_place){0};
    if (stat(path, &st) == 0)
        *ret_place = (struct tt_step_place){(uint64_t)st.st_dev, (uint64_t)st.st_ino};
    else if (errno != ENOENT && errno != ESTALE)
        rc = tt_path_fail("examine", path, errno);
    return rc;
}

int tt_step_explain(int rc, const char *path, const struct tt_step_place *place)
{
    struct tt_step_place now;
    struct stat st;
    bool gone;
    int error;

    if (rc != TT_EDATA && rc != TT_EIO)
        return rc;
    error = stat(path, &st) < 0 ? errno : 0;
    gone = error == ENOENT || error == ESTALE;
    if (error && !gone) /* the step may still exist */
        return rc;
    now = gone ? (struct tt_step_place){0} : (struct tt_step_place){(uint64_t)st.st_dev, (uint64_t)st.st_ino};
    if (gone || (place->inode && (now.device != place->device || now.inode != place->inode)))
        rc = tt_fail(TT_EREMOVED,
                     "'%s' was %s by another process while it was read\n"
                     "help: a running job keeps only its newest steps (%s); name its folder to get the newest one",
                     path, gone ? "removed" : "replaced", TT_KEY_NAME(checkpoint.keep_latest_k));
    return rc;
}

bool tt_step_try_again(int rc, const char *given, int *tries)
{
    struct stat st;

    return rc == TT_EREMOVED && ++*tries < TRIES_MOST && stat(given, &st) == 0;
}

/* The newest good step of a folder or, if !good_only, the newest step. TT_EREMOVED: a step was removed meanwhile. */
static int find_newest(const char *folder, bool good_only, enum tt_path_kind *ret_kind, char **ret_path,
                       struct tt_manifest *ret_manifest)
{
    int64_t *steps = NULL;
    char *step = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_step_list(folder, &steps, &n));
    for (int i = n - 1; i >= 0; i--) {
        struct tt_step_place place;

        tt_free(step);
        step = tt_step_path(folder, steps[i]);
        TT_TRY(tt_step_place(step, &place));
        rc = tt_step_explain(tt_step_look(step, good_only, ret_kind, ret_manifest), step, &place);
        if (rc == 0) {
            *ret_path = step;
            step = NULL;
            goto out;
        }
        if (rc != TT_EDATA) /* the step may be good, so an older one must not replace it */
            goto out;
        tt_warn("skipping the damaged checkpoint '%s': %s", step, tt_error_message());
    }
    rc = tt_fail(TT_EDATA, "none of the %d checkpoints in '%s' is intact; the oldest: %s", n, folder,
                 n ? tt_error_message() : "");
out:
    tt_free(step);
    tt_free(steps);
    return rc;
}

int tt_path_resolve(const char *path, bool good_only, enum tt_path_kind *ret_kind, char **ret_path,
                    struct tt_manifest *ret_manifest)
{
    char *folder = NULL;
    int tries = 0, rc = 0;

    do {
        tt_free(folder);
        folder = NULL;
        TT_TRY(tt_path_find(path, ret_kind, &folder));
        if (*ret_kind != TT_PATH_FOLDER) {
            *ret_path = folder;
            folder = NULL;
            goto out;
        }
        rc = find_newest(folder, good_only, ret_kind, ret_path, ret_manifest);
    } while (tt_step_try_again(rc, path, &tries));
out:
    tt_free(folder);
    return rc;
}

/* --- steps that were set aside --- */

static const char *const aside_words[] = {[TT_ASIDE_ABANDONED] = "abandoned", [TT_ASIDE_DAMAGED] = "damaged"};

/* The number in "step-60" at the beginning of text; ret_end points to the rest. -1 if there is none. */
static int64_t leading_step(const char *text, const char **ret_end)
{
    size_t n = strncmp(text, "step-", 5) == 0 ? 5 + strspn(text + 5, "0123456789") : 0;
    char *name = tt_strndup(text, n);
    int64_t step = tt_step_number(name);

    *ret_end = text + n;
    tt_free(name);
    return step;
}

bool tt_aside_parse(const char *name, struct tt_aside *ret_aside)
{
    const char *rest;
    int64_t step = leading_step(name, &rest);

    for (int kind = 0; step >= 0 && kind < (int)(sizeof aside_words / sizeof aside_words[0]); kind++) {
        size_t n = strlen(aside_words[kind]);

        if (rest[0] != '.' || strncmp(rest + 1, aside_words[kind], n) != 0 || rest[1 + n] != '-' || !rest[2 + n])
            continue;
        *ret_aside = (struct tt_aside){(enum tt_aside_kind)kind, aside_words[kind], step, rest + 2 + n};
        return true;
    }
    return false;
}

char *tt_aside_name(int64_t step, enum tt_aside_kind kind, const char *run_id)
{
    return tt_format("step-%" PRId64 ".%s-%s", step, aside_words[kind], run_id);
}

int tt_aside_step(const char *folder, int64_t step, enum tt_aside_kind kind, const char *run_id)
{
    char *from = tt_step_path(folder, step), *name = tt_aside_name(step, kind, run_id);
    char *to = tt_format("%s/%s", folder, name);
    int rc = 0;

    /* a plain rename does not replace a folder that is not empty, either */
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) < 0 &&
        ((errno != EINVAL && errno != ENOSYS) || rename(from, to) < 0))
        TT_TRY(tt_path_fail("set aside", from, errno));
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

/* For rank 0, after locking: finishes setting aside the step from which a run restarted, if the run was killed just
 * before that. */
static int sweep_parents(const char *folder)
{
    char **names = NULL;
    const char *run_id;
    int64_t step;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list(folder, &names, &n));
    for (int i = 0; i < n; i++) {
        bool gives_way = false;

        if (!tt_parent_parse(names[i], &step, &run_id))
            continue;
        TT_TRY(gives_way_to(folder, step, run_id, &gives_way));
        if (gives_way)
            TT_TRY(tt_aside_step(folder, step, TT_ASIDE_ABANDONED, run_id));
        TT_TRY(tt_parent_unmark(folder, step, run_id));
    }
out:
    tt_names_free(names, n);
    return rc;
}

/* --- folders that are being written, replaced or removed --- */

bool tt_leftover_parse(const char *name, struct tt_leftover *ret_leftover)
{
    static const struct {
        const char *prefix, *kind;
    } row[] = {{".tmp-", "temporary"}, {".old-", "replaced"}, {".trash-", "trash"}};

    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const char *rest = name + strlen(row[i].prefix);
        size_t digits;

        if (!tt_text_begins(name, row[i].prefix))
            continue;
        digits = tt_text_begins(rest, "step-") ? strspn(rest + 5, "0123456789") : 0;
        *ret_leftover = (struct tt_leftover){row[i].kind, digits > 0, digits ? rest : "hf", digits ? 5 + digits : 2};
        return digits ||
               (tt_text_begins(rest, "hf-") && (isdigit((unsigned char)rest[3]) || tt_random_is_word(rest + 3)));
    }
    return false;
}

char *tt_leftover_home(const char *parent, const char *name)
{
    struct tt_leftover found;

    if (!tt_leftover_parse(name, &found) || strcmp(found.kind, "replaced") != 0)
        return NULL;
    return tt_format("%s/%.*s", parent, (int)found.size, found.name);
}

/* The checkpoint folder of a job: the check that all ranks see it, the lock, and the removal of leftovers; and the list
 * of known manifests, which need not be read again. */

static struct tt_known_step *find_known(const struct tt_known_steps *known, int64_t step)
{
    for (int i = 0; i < known->n; i++)
        if (known->list[i].step == step)
            return &known->list[i];
    return NULL;
}

static void add_known(struct tt_known_steps *known, int64_t step, const struct tt_path_info *info,
                      struct tt_manifest *manifest)
{
    struct tt_known_step *entry = find_known(known, step);

    if (!entry) {
        TT_PUSH(known->list, known->n, known->cap) = (struct tt_known_step){.step = step};
        entry = &known->list[known->n - 1];
    }
    tt_manifest_release(&entry->files);
    entry->manifest = *info;
    entry->files =
        (struct tt_manifest){.n_files = manifest->n_files, .cap_files = manifest->cap_files, .file = manifest->file};
    manifest->file = NULL;
    manifest->n_files = manifest->cap_files = 0;
}

int tt_known_check(struct tt_known_steps *known, const char *folder, int64_t step)
{
    char *step_path = tt_step_path(folder, step), *path = tt_format("%s/manifest.json", step_path);
    const struct tt_known_step *entry = find_known(known, step);
    const struct tt_path_info *before = entry ? &entry->manifest : NULL;
    struct tt_manifest manifest = {0};
    struct tt_path_info info;
    int rc = 0;

    TT_TRY(tt_path_look(path, &info));
    if (before && before->kind == info.kind && before->is_link == info.is_link && before->bytes == info.bytes &&
        before->device == info.device && before->inode == info.inode && before->modified_sec == info.modified_sec) {
        rc = check_sizes(step_path, &entry->files);
        goto out;
    }
    known->n_read++;
    TT_TRY(tt_step_check(step_path, &manifest));
    add_known(known, step, &info, &manifest);
out:
    tt_manifest_release(&manifest);
    tt_free(step_path);
    tt_free(path);
    return rc;
}

void tt_known_note(struct tt_known_steps *known, int64_t step, const char *path, struct tt_manifest *manifest)
{
    struct tt_path_info info;

    if (tt_path_look(path, &info) == 0)
        add_known(known, step, &info, manifest);
}

void tt_known_keep(struct tt_known_steps *known, const int64_t *steps, int n)
{
    int kept = 0;

    for (int i = 0; i < known->n; i++) {
        bool there = false;

        for (int k = 0; k < n && !there; k++)
            there = steps[k] == known->list[i].step;
        if (there)
            known->list[kept++] = known->list[i];
        else
            tt_manifest_release(&known->list[i].files);
    }
    known->n = kept;
}

void tt_known_release(struct tt_known_steps *known)
{
    tt_known_keep(known, NULL, 0);
    tt_free(known->list);
    *known = (struct tt_known_steps){0};
}

enum { HOST_BYTES = 256, SEEN_TRIES = 50, SEEN_PAUSE_NSEC = 100000000 };

/* The prefix of a file that shows whether all ranks see the same folder. */
static const char nonce_prefix[] = ".nonce-";

char *tt_ckpt_store_aside(const struct tt_ckpt_store *store, const char *kind, int64_t step)
{
    return tt_format(".%s-step-%" PRId64 "-%s", kind, step, store->run_id);
}

static int check_run_id(const char *run_id)
{
    size_t n = strlen(run_id);

    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)run_id[i]) && !strchr("-_.", run_id[i]))
            n = 0;
    if (n == 0 || n >= TT_RUN_ID_BYTES)
        return tt_fail(TT_EINTERNAL, "run id '%s' is not a plain word of less than %d bytes", run_id, TT_RUN_ID_BYTES);
    return 0;
}

/* Every rank must see the file that rank 0 just wrote. Otherwise ranks would write into different folders. */
static int check_seen(const char *folder, const char *nonce, int rank)
{
    char *path = tt_format("%s/%s%s", folder, nonce_prefix, nonce), host[HOST_BYTES] = "?";
    bool seen = false;
    int rc = 0;

    for (int i = 0; i < SEEN_TRIES && !seen && rc == 0; i++) { /* a network file system may show a new file late */
        if (i)
            (void)nanosleep(&(struct timespec){.tv_nsec = SEEN_PAUSE_NSEC}, NULL);
        rc = tt_path_exists(path, &seen);
    }
    if (rc == 0 && !seen) {
        (void)gethostname(host, sizeof host - 1);
        rc = tt_fail(TT_EDATA,
                     "rank %d on host '%s' does not see the checkpoint folder '%s' of rank 0\n"
                     "help: %s must be on a file system that all hosts share",
                     rank, host, folder, TT_KEY_NAME(job.dump_folder));
    }
    tt_free(path);
    return rc;
}

static int check_shared(struct tt_comm *comm, const char *folder)
{
    char nonce[TT_RANDOM_WORD_BYTES] = {0}, *path = NULL;
    int rc = 0;

    if (comm->rank == 0) {
        tt_random_word(nonce);
        path = tt_format("%s/%s%s", folder, nonce_prefix, nonce);
        rc = tt_file_replace(path, nonce, strlen(nonce));
    }
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_comm_broadcast(comm, nonce, sizeof nonce, 0));
    TT_TRY(tt_comm_agree(comm, check_seen(folder, nonce, comm->rank)));
out:
    if (path)
        (void)unlink(path);
    tt_free(path);
    return rc;
}

/* Fails because the folder is locked. The file names the last holder of the lock, as JSON; it is empty if the holder
 * closed the folder properly. */
static int fail_locked(const char *folder, int fd)
{
    const char *host = NULL, *run_id = NULL;
    json_t *holder = NULL;
    char text[1024];
    ssize_t n = pread(fd, text, sizeof text, 0);
    int rc;

    if (n > 0 && tt_json_parse(text, (size_t)n, ".lock", &holder) == 0) {
        host = json_string_value(json_object_get(holder, "host"));
        run_id = json_string_value(json_object_get(holder, "run_id"));
    }
    rc = tt_fail(TT_EUSAGE,
                 "another titan job is writing checkpoints into '%s' (run %s, process %" PRId64 " on %s)\n"
                 "help: wait for it or stop it, or give this run another %s",
                 folder, run_id ? run_id : "?", (int64_t)json_integer_value(json_object_get(holder, "pid")),
                 host ? host : "?", TT_KEY_NAME(job.dump_folder));
    json_decref(holder);
    return rc;
}

/*
 * Removes the remains of an unfinished save or retention of any run; only the holder of the lock makes such folders. If
 * a step was renamed to be replaced, and nothing has taken its place, puts it back. A folder that cannot be removed
 * only takes up space.
 */
static int sweep_one(const char *folder, const char *name)
{
    char *path = tt_format("%s/%s", folder, name), *home = tt_leftover_home(folder, name);
    bool taken = true;
    int rc = 0;

    if (home)
        TT_TRY(tt_path_exists(home, &taken));
    if (!taken && rename(path, home) < 0)
        rc = tt_fail(TT_EIO, "cannot put '%s' back as '%s': %s", path, home, strerror(errno));
    else if (!taken)
        tt_warn("a save was interrupted while it replaced '%s'; the older one is back in its place", home);
    else if (tt_folder_remove(path) < 0)
        tt_warn("the leftovers of an earlier job could not be removed: %s", tt_error_message());
out:
    tt_free(path);
    tt_free(home);
    return rc;
}

/* Removes what an export into a step left. Only a folder counts as a step, since a link may lead to somebody else's
 * folder. */
static void sweep_exports(const char *folder, const char *step)
{
    char *path = tt_format("%s/%s", folder, step);
    struct tt_path_info info;
    int rc = tt_path_look(path, &info);

    if (rc == 0 && info.kind == TT_FILE_FOLDER && !info.is_link)
        rc = tt_output_sweep(path, "hf");
    if (rc < 0)
        tt_warn("the leftovers of an earlier export could not be removed: %s", tt_error_message());
    tt_free(path);
}

static int sweep(const char *folder)
{
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list(folder, &names, &n));
    for (int i = 0; i < n; i++) {
        struct tt_leftover left;

        if ((tt_leftover_parse(names[i], &left) && left.is_step) || tt_text_begins(names[i], nonce_prefix))
            TT_TRY(sweep_one(folder, names[i]));
        else if (tt_step_number(names[i]) >= 0)
            sweep_exports(folder, names[i]);
    }
out:
    tt_names_free(names, n);
    return rc;
}

static int write_holder(int fd, const char *folder, const char *run_id)
{
    char host[HOST_BYTES] = "?", *text;
    json_t *holder;
    int rc, tries = 0;

    (void)gethostname(host, sizeof host - 1);
    holder = json_pack("{s:s,s:s,s:I}", "run_id", run_id, "host", host, "pid", (json_int_t)getpid());
    text = tt_json_text(holder);
    while ((rc = ftruncate(fd, 0)) < 0 && tt_path_again(errno, &tries))
        ;
    rc = rc < 0 ? tt_fail(TT_EIO, "cannot write '%s/.lock': %s", folder, strerror(errno))
                : tt_file_pwrite(fd, folder, text, strlen(text), 0, NULL);
    tt_free(text);
    json_decref(holder);
    return rc;
}

int tt_ckpt_folder_lock(const char *folder, struct tt_lock *ret_lock)
{
    char *path = tt_format("%s/.lock", folder);
    struct tt_lock lock = TT_LOCK_NONE;
    bool taken = false;
    int rc = 0;

    TT_TRY(tt_lock_take(path, &lock, &taken));
    if (taken)
        TT_TRY(fail_locked(folder, lock.fd));
    *ret_lock = lock;
    lock = TT_LOCK_NONE;
out:
    tt_lock_release(&lock);
    tt_free(path);
    return rc;
}

/* Rank 0: takes the lock, then removes what earlier jobs left. */
static int lock_and_sweep(void *arg)
{
    struct tt_ckpt_store *store = arg;
    int rc = 0;

    TT_TRY(tt_folder_make(store->folder));
    TT_TRY(tt_ckpt_folder_lock(store->folder, &store->lock));
    TT_TRY(sweep(store->folder));
    TT_TRY(sweep_parents(store->folder));
    TT_TRY(write_holder(store->lock.fd, store->folder, store->run_id));
out:
    return rc;
}

int tt_ckpt_store_open(struct tt_comm *comm, const struct tt_mesh *mesh, const char *folder, const char *run_id,
                       struct tt_ckpt_store **ret_store)
{
    struct tt_patience patience = tt_patience_begin(comm, "opening the checkpoint folder");
    struct tt_ckpt_store *store = tt_calloc(1, sizeof *store);
    int rc = 0;

    store->comm = comm;
    store->mesh = *mesh;
    store->folder = tt_strdup(folder);
    store->lock = TT_LOCK_NONE;
    store->parent_step = -1;
    if (mesh->n_ranks != comm->size)
        rc = tt_fail(TT_EINTERNAL, "a mesh of %d ranks does not fit a job of %d", mesh->n_ranks, comm->size);
    else if (comm->rank == 0 && (rc = check_run_id(run_id)) == 0)
        (void)snprintf(store->run_id, sizeof store->run_id, "%s", run_id);
    TT_TRY(tt_comm_agree(comm, rc));
    TT_TRY(tt_comm_broadcast(comm, store->run_id, sizeof store->run_id, 0));
    TT_TRY(tt_patience_work(comm, comm->rank == 0, lock_and_sweep, store));
    TT_TRY(check_shared(comm, folder));
    *ret_store = store;
    store = NULL;
out:
    tt_ckpt_store_close(store);
    tt_patience_end(comm, &patience);
    return rc;
}

void tt_ckpt_store_close(struct tt_ckpt_store *store)
{
    if (!store)
        return;
    if (store->lock.fd >= 0)
        (void)!ftruncate(store->lock.fd, 0); /* closed properly: there is no holder */
    tt_lock_release(&store->lock);
    tt_known_release(&store->known);
    tt_free(store->folder);
    tt_free(store);
}
