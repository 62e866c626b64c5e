/* SPDX-License-Identifier: MIT
 *
 * Locks on files, and the substitutes for file systems that have none.
 */
#include "core/os/lock.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/os/file.h"

enum { TRIES = 20, NAME_BYTES = 256, STAT_BYTES = 1024 };

enum verdict { HELD, TAKEN, NO_LOCKS, BROKEN };

static bool has_no_locks(int error)
{
    return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS;
}

/* --- locks of the system --- */

static enum verdict lock_whole_file(int fd)
{
    while (flock(fd, LOCK_EX | LOCK_NB) < 0)
        if (errno != EINTR)
            return errno == EWOULDBLOCK ? TAKEN : has_no_locks(errno) ? NO_LOCKS : BROKEN;
    return HELD;
}

/* Such a lock belongs to the open file, like a lock by flock, and not to the process. EINVAL: the kernel does not
 * support it. */
static enum verdict lock_record(int fd)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    while (fcntl(fd, F_OFD_SETLK, &whole) < 0) {
        if (errno == EAGAIN || errno == EACCES)
            return TAKEN;
        if (errno != EINTR)
            return has_no_locks(errno) || errno == EINVAL ? NO_LOCKS : BROKEN;
    }
    return HELD;
}

/* --- owner files --- */

/* The beginning of a file of the kernel; "" if it cannot be read. */
static void read_beginning(const char *path, char *text, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, cap - 1) : -1;

    text[n > 0 ? n : 0] = 0;
    if (fd >= 0)
        (void)close(fd);
}

/* Field 22 of /proc/PID/stat: when the process began. It shows whether the process number has been reused. */
static int64_t start_of(int64_t pid)
{
    char path[64], text[STAT_BYTES], *at;

    (void)snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    read_beginning(path, text, sizeof text);
    at = strrchr(text, ')'); /* the program's name may contain any characters */
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? (int64_t)strtoll(at, NULL, 10) : -1;
}

/* Identifies this process, so that another can tell whether it is alive. Unknown facts are empty strings. */
static json_t *describe_self(void)
{
    char host[NAME_BYTES] = "", space[NAME_BYTES] = "", boot[64];

    (void)gethostname(host, sizeof host - 1);
    (void)!readlink("/proc/self/ns/pid", space, sizeof space - 1);
    read_beginning("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    boot[strcspn(boot, "\n")] = 0;
    return json_pack("{s:s,s:s,s:s,s:I,s:I}", "host", host, "boot", boot, "pid_namespace", space, "pid",
                     (json_int_t)getpid(), "start", (json_int_t)start_of((int64_t)getpid()));
}

/* Whether both facts are known and equal. */
static bool same_text(const json_t *a, const json_t *b, const char *key)
{
    const char *x = json_string_value(json_object_get(a, key)), *y = json_string_value(json_object_get(b, key));

    return x && y && x[0] && strcmp(x, y) == 0;
}

/* Whether the process that wrote an owner file is certainly dead. */
static bool is_dead(const char *text, size_t size, const json_t *self)
{
    json_t *owner = NULL;
    int64_t pid, start, now;
    bool dead = false;

    if (tt_json_parse(text, size, "owner", &owner) < 0)
        return false;
    pid = (int64_t)json_integer_value(json_object_get(owner, "pid"));
    start = (int64_t)json_integer_value(json_object_get(owner, "start"));
    now = pid > 0 ? start_of(pid) : -1;
    if (same_text(owner, self, "host") && !same_text(owner, self, "boot"))
        dead = same_text(owner, owner, "boot") && same_text(self, self, "boot"); /* both boot ids are known */
    else if (same_text(owner, self, "host") && same_text(owner, self, "pid_namespace") && pid > 0)
        dead = (kill((pid_t)pid, 0) < 0 && errno == ESRCH) || (now >= 0 && start >= 0 && now != start);
    json_decref(owner);
    return dead;
}

/* Removes a dead owner's file, but not one that another process put there meanwhile. */
static int remove_dead(const char *owner, const char *text, size_t size)
{
    char word[TT_RANDOM_WORD_BYTES], *away, *found = NULL;
    size_t found_size = 0;
    int rc = 0;

    tt_random_word(word);
    away = tt_format("%s.dead-%s", owner, word);
    if (rename(owner, away) < 0) {
        rc = errno == ENOENT ? 0 : tt_path_fail("rename", owner, errno);
        goto out;
    }
    TT_TRY(tt_file_read(away, &found, &found_size));
    if (found_size != size || memcmp(found, text, size) != 0)
        (void)!link(away, owner);
    (void)unlink(away);
out:
    tt_free(found);
    tt_free(away);
    return rc;
}

/* Writes this process's owner file under a unique name and links it into place. Only one process succeeds. */
static int link_owner(const char *owner, const json_t *self, bool *ret_held)
{
    char *mine = NULL, *text = tt_json_text(self);
    int fd = -1, rc = 0;

    TT_TRY(tt_file_temporary(owner, &mine, &fd));
    TT_TRY(tt_file_pwrite(fd, mine, text, strlen(text), 0, NULL));
    *ret_held = link(mine, owner) == 0;
    if (!*ret_held && errno != EEXIST)
        rc = tt_path_fail("link", owner, errno);
out:
    if (fd >= 0) {
        (void)close(fd);
        (void)unlink(mine);
    }
    tt_free(text);
    tt_free(mine);
    return rc;
}

/* Whether an owner that may be alive holds the lock. If the owner is dead, removes its file. */
static int look_for_owner(const char *owner, const json_t *self, bool *ret_taken)
{
    char *text = NULL;
    size_t size = 0;
    bool found = false;
    int rc = 0;

    *ret_taken = false;
    TT_TRY(tt_path_exists(owner, &found));
    if (!found)
        goto out;
    TT_TRY(tt_file_read(owner, &text, &size));
    *ret_taken = !is_dead(text, size, self);
    if (!*ret_taken)
        TT_TRY(remove_dead(owner, text, size));
out:
    tt_free(text);
    return rc;
}

static int take_owner(struct tt_lock *lock, const char *owner, const json_t *self, bool *ret_taken)
{
    bool held = false;
    int rc = 0;

    for (int i = 0; i < TRIES && !held; i++) {
        TT_TRY(look_for_owner(owner, self, ret_taken));
        if (*ret_taken)
            goto out;
        TT_TRY(link_owner(owner, self, &held));
    }
    *ret_taken = !held;
    if (!held)
        goto out;
    lock->owner = tt_strdup(owner);
    tt_note("the file system of '%s' has no locks; the file '%s' keeps other jobs out instead", lock->path, owner);
out:
    return rc;
}

/* --- taking and releasing --- */

/* Whether the file at the path is the open one. */
static int is_in_place(const struct tt_lock *lock, bool *ret_same)
{
    struct tt_path_info there;
    struct stat here;
    int rc = 0;

    if (fstat(lock->fd, &here) < 0)
        return tt_path_fail("examine", lock->path, errno);
    TT_TRY(tt_path_look(lock->path, &there));
    *ret_same =
        there.kind != TT_FILE_NONE && (uint64_t)here.st_ino == there.inode && (uint64_t)here.st_dev == there.device;
out:
    return rc;
}

static int take_open_file(struct tt_lock *lock, bool *ret_taken)
{
    char *owner = tt_format("%s.owner", lock->path);
    json_t *self = describe_self();
    enum verdict verdict = lock_whole_file(lock->fd);
    int rc = 0;

    if (verdict == NO_LOCKS)
        verdict = lock_record(lock->fd);
    *ret_taken = verdict == TAKEN;
    if (verdict == BROKEN)
        rc = tt_path_fail("lock", lock->path, errno);
    else if (verdict == NO_LOCKS)
        rc = take_owner(lock, owner, self, ret_taken);
    else if (verdict == HELD) /* an owner on a host that mounts the same folder without locks holds it */
        rc = look_for_owner(owner, self, ret_taken);
    json_decref(self);
    tt_free(owner);
    return rc;
}

int tt_lock_take(const char *path, struct tt_lock *ret_lock, bool *ret_taken)
{
    struct tt_lock lock = TT_LOCK_NONE;
    bool same = false;
    int rc = 0, tries = 0;

    *ret_taken = false;
    for (int i = 0; i < TRIES && !same && !*ret_taken; i++) { /* another process may remove it first */
        tt_lock_release(&lock);
        lock = (struct tt_lock){.fd = -1, .path = tt_strdup(path)};
        do
            lock.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        while (lock.fd < 0 && tt_path_again(errno, &tries));
        if (lock.fd < 0)
            TT_TRY(tt_path_fail("open", path, errno));
        TT_TRY(take_open_file(&lock, ret_taken));
        TT_TRY(is_in_place(&lock, &same));
    }
    if (!same && !*ret_taken)
        TT_TRY(tt_fail(TT_EIO, "cannot lock '%s': other processes keep removing it", path));
    *ret_lock = lock;
    lock = TT_LOCK_NONE;
out:
    tt_lock_release(&lock);
    return rc;
}

int tt_lock_is_held(const char *path, bool *ret_held)
{
    struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    char *owner = tt_format("%s.owner", path), *text = NULL;
    json_t *self = describe_self();
    size_t size = 0;
    bool owned = false, held;
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;

    if (fd < 0 && errno != ENOENT)
        TT_TRY(tt_path_fail("open", path, errno));
    held = fd >= 0 && ((flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK) ||
                       (fcntl(fd, F_OFD_SETLK, &whole) < 0 && (errno == EAGAIN || errno == EACCES)));
    TT_TRY(tt_path_exists(owner, &owned));
    if (owned && !held) {
        TT_TRY(tt_file_read(owner, &text, &size));
        held = !is_dead(text, size, self);
    }
    *ret_held = held;
out:
    if (fd >= 0)
        (void)close(fd);
    json_decref(self);
    tt_free(text);
    tt_free(owner);
    return rc;
}

int tt_lock_check(const struct tt_lock *lock)
{
    bool same = true;
    int rc = 0;

    if (!lock->path)
        return 0;
    TT_TRY(is_in_place(lock, &same));
    if (!same)
        rc = tt_fail(TT_EDATA,
                     "'%s' is not the file that this run locked: its folder was removed or replaced during the run\n"
                     "help: start the run again, in a folder that nothing else changes",
                     lock->path);
out:
    return rc;
}

void tt_lock_release(struct tt_lock *lock)
{
    if (lock->owner)
        (void)unlink(lock->owner);
    if (lock->fd >= 0)
        (void)close(lock->fd);
    tt_free(lock->owner);
    tt_free(lock->path);
    *lock = TT_LOCK_NONE;
}
