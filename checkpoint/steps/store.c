/* SPDX-License-Identifier: MIT
 *
 * The checkpoint folder of a job: the check that all ranks see it, the lock, and the removal of leftovers; and the list
 * of known manifests, which need not be read again.
 */
#include "checkpoint/steps/store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <unistd.h>

#include <ctype.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/durable/patience.h"
#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

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
        rc = tt_step_check_sizes(step_path, &entry->files);
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
    TT_TRY(tt_parent_sweep(store->folder));
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
