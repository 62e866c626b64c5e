/* SPDX-License-Identifier: MIT
 *
 * The file layer: an error is never taken for an absent file, only regular files are read, temporary names are unique.
 * The system calls defined here fail on demand.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>
#include <dlfcn.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/os/file.h"

/* The next `times` calls of the function `call` fail with `error`. */
static struct {
    const char *call;
    int error, times;
} plan;

static int fails(const char *call)
{
    if (!plan.call || strcmp(plan.call, call) != 0 || plan.times == 0)
        return 0;
    plan.times--;
    errno = plan.error;
    return 1;
}

static void fail_next(const char *call, int error, int times)
{
    plan.call = call;
    plan.error = error;
    plan.times = times;
}

int stat(const char *path, struct stat *st)
{
    return fails("stat") ? -1 : (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, 0);
}

int lstat(const char *path, struct stat *st)
{
    return fails("stat") ? -1 : (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

int fsync(int fd)
{
    return fails("fsync") ? -1 : (int)syscall(SYS_fsync, fd);
}

/* The number of the rename that fails, from 1; 0: none. */
static int rename_to_fail;

int rename(const char *from, const char *to)
{
    if (rename_to_fail > 0 && --rename_to_fail == 0) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

struct dirent *readdir(DIR *dir)
{
    struct dirent *(*next)(DIR *);
    void *symbol = dlsym(RTLD_NEXT, "readdir64");

    memcpy(&next, &symbol, sizeof next);
    return fails("readdir") ? NULL : next(dir);
}

/* The number of next random numbers that are all the same. */
static int equal_numbers;

ssize_t getrandom(void *bytes, size_t size, unsigned flags)
{
    if (equal_numbers == 0)
        return syscall(SYS_getrandom, bytes, size, flags);
    equal_numbers--;
    memset(bytes, 7, size);
    return (ssize_t)size;
}

static char folder[] = "/tmp/titan-test-XXXXXX";

static char *at(const char *name)
{
    static char path[256];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void only_enoent_is_absence(void **state)
{
    static const int errors[] = {EIO, EACCES, EMFILE, EPERM};
    bool exists = true;

    assert_int_equal(tt_path_exists(at("nothing"), &exists), 0);
    assert_false(exists);
    assert_int_equal(tt_path_exists(folder, &exists), 0);
    assert_true(exists);
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        fail_next("stat", errors[i], 1);
        assert_int_equal(tt_path_exists(folder, &exists), TT_EIO);
        assert_non_null(strstr(tt_error_message(), strerror(errors[i])));
        assert_non_null(strstr(tt_error_message(), folder));
        fail_next("stat", errors[i], 1);
        assert_int_equal(tt_path_is_folder(folder, &exists), TT_EIO);
    }
    fail_next("stat", ENOMEM, 1);
    assert_int_equal(tt_path_exists(folder, &exists), TT_ENOMEM);
    fail_next("", 0, 0);
}

static void transient_errors_are_tried_again(void **state)
{
    static const int errors[] = {EINTR, EAGAIN, ESTALE};
    bool exists;

    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        exists = false;
        fail_next("stat", errors[i], 2);
        assert_int_equal(tt_path_exists(folder, &exists), 0);
        assert_true(exists);
        fail_next("fsync", errors[i], 2);
        assert_int_equal(tt_folder_sync(folder), 0);
    }
    fail_next("stat", ESTALE, 1000000); /* permanent failure is an error */
    assert_int_equal(tt_path_exists(folder, &exists), TT_EIO);
    fail_next("stat", EINTR, 1000000);
    assert_int_equal(tt_path_exists(folder, &exists), TT_EIO);
    fail_next("", 0, 0);
}

static void a_path_through_a_file_is_an_error(void **state)
{
    bool exists;

    assert_int_equal(tt_file_replace(at("file"), "x", 1), 0);
    assert_int_equal(tt_path_exists(at("file/below"), &exists), TT_EDATA);
    assert_int_equal(symlink("loop", at("loop")), 0);
    assert_int_equal(tt_path_exists(at("loop"), &exists), TT_EDATA);
    assert_int_equal(unlink(at("loop")), 0);
}

static void a_look_tells_the_kind_of_a_file_and_whether_it_is_a_link(void **state)
{
    struct tt_path_info info, linked;

    assert_int_equal(tt_path_look(folder, &info), 0);
    assert_int_equal(info.kind, TT_FILE_FOLDER);
    assert_int_equal(tt_path_look("/dev/null", &info), 0);
    assert_int_equal(info.kind, TT_FILE_OTHER);
    assert_int_equal(tt_file_replace(at("file"), "four", 4), 0);
    assert_int_equal(tt_path_look(at("file"), &info), 0);
    assert_int_equal(info.kind, TT_FILE_REGULAR);
    assert_int_equal(info.bytes, 4);
    assert_false(info.is_link);
    assert_int_equal(symlink("file", at("link")), 0);
    assert_int_equal(tt_path_look(at("link"), &linked), 0);
    assert_true(linked.is_link);
    assert_int_equal(linked.kind, TT_FILE_REGULAR);
    assert_true(linked.inode == info.inode && linked.device == info.device);
    assert_int_equal(unlink(at("link")), 0);
    assert_int_equal(symlink("nothing", at("link")), 0);
    assert_int_equal(tt_path_look(at("link"), &linked), 0);
    assert_true(linked.is_link && linked.kind == TT_FILE_NONE);
    assert_int_equal(unlink(at("link")), 0);
}

static void a_listing_that_breaks_off_is_an_error(void **state)
{
    char **names = NULL;
    int n = 0;

    assert_int_equal(tt_file_replace(at("file"), "x", 1), 0);
    fail_next("readdir", EIO, 1);
    assert_int_equal(tt_folder_list(folder, &names, &n), TT_EIO);
    fail_next("readdir", EIO, 1);
    assert_int_equal(tt_folder_list_found(folder, &names, &n), TT_EIO);
    fail_next("readdir", ESTALE, 1);
    assert_int_equal(tt_folder_list(folder, &names, &n), 0);
    assert_int_equal(n, 1);
    tt_names_free(names, n);
    fail_next("", 0, 0);
    assert_int_equal(tt_folder_list(at("nothing"), &names, &n), TT_EDATA);
    assert_int_equal(tt_folder_list_found(at("nothing"), &names, &n), 0);
    assert_int_equal(n, 0);
    assert_int_equal(tt_folder_list_found(at("file"), &names, &n), TT_EDATA);
}

/* None of these reads may block, and none may end the process. */
static void only_regular_files_are_read(void **state)
{
    struct tt_mapping mapping = {0};
    char *text = NULL;
    size_t size = 0;
    json_t *json = NULL;
    int fd;

    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    assert_int_equal(symlink("pipe", at("link")), 0);
    assert_int_equal(tt_file_read(at("pipe"), &text, &size), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "it is a pipe"));
    assert_int_equal(tt_file_read(at("link"), &text, &size), TT_EDATA);
    assert_int_equal(tt_mapping_open(at("pipe"), &mapping), TT_EDATA);
    assert_int_equal(tt_file_read("/dev/zero", &text, &size), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "it is a device"));
    assert_int_equal(tt_file_read(folder, &text, &size), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "it is a folder"));
    fd = open(at("sparse"), O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
    (void)close(fd);
    assert_int_equal(tt_file_read(at("sparse"), &text, &size), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "too large"));
    assert_int_equal(tt_json_load(at("sparse"), &json), TT_EDATA);
    assert_int_equal(tt_file_replace(at("file"), "12345", 5), 0);
    assert_int_equal(tt_file_read_any(at("file"), 4, &text, &size), TT_EDATA);
    assert_int_equal(tt_file_read_any(at("file"), 5, &text, &size), 0);
    assert_string_equal(text, "12345");
    tt_free(text);
    assert_int_equal(tt_file_read("/proc/self/status", &text, &size), 0); /* its reported size is 0 */
    assert_true(size > 100);
    tt_free(text);
    assert_int_equal(unlink(at("link")), 0);
}

static void what_a_user_names_may_be_a_pipe(void **state)
{
    char *text = NULL;
    size_t size = 0;
    int ends[2];
    char path[64];

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "typed", 5), 5);
    assert_int_equal(close(ends[1]), 0);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    assert_int_equal(tt_file_read_any(path, 1000, &text, &size), 0);
    assert_string_equal(text, "typed");
    tt_free(text);
    assert_int_equal(close(ends[0]), 0);
    assert_int_equal(tt_file_read_any("/dev/zero", 1000, &text, &size), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "too large"));
}

static void temporary_names_are_unique(void **state)
{
    char *a = NULL, *b = NULL, *under;
    int fd_a = -1, fd_b = -1;

    assert_int_equal(tt_file_temporary(at("data.tokens"), &a, &fd_a), 0);
    assert_int_equal(tt_file_temporary(at("data.tokens"), &b, &fd_b), 0);
    assert_string_not_equal(a, b);
    assert_true(tt_file_is_temporary(a, ".tokens"));
    assert_false(tt_file_is_temporary(a, ".json"));
    assert_false(tt_file_is_temporary("data.tokens.tmp-0123", ".tokens"));
    (void)close(fd_a);
    (void)close(fd_b);
    assert_int_equal(unlink(a), 0);
    assert_int_equal(unlink(b), 0);
    tt_free(a);
    tt_free(b);
    /* A name that another process has already created is not used. */
    equal_numbers = 3;
    assert_int_equal(tt_file_temporary(at("data.tokens"), &a, &fd_a), 0);
    assert_int_equal(tt_file_temporary(at("data.tokens"), &b, &fd_b), 0);
    assert_int_equal(equal_numbers, 0);
    assert_string_not_equal(a, b);
    (void)close(fd_a);
    (void)close(fd_b);
    assert_int_equal(unlink(a), 0);
    assert_int_equal(unlink(b), 0);
    /* A file of another process under the fixed name of earlier versions is left alone. */
    under = at("file.tmp");
    assert_int_equal(close(open(under, O_CREAT | O_EXCL | O_WRONLY, 0600)), 0);
    assert_int_equal(tt_file_replace(at("file"), "new", 3), 0);
    assert_int_equal(access(at("file.tmp"), F_OK), 0);
    tt_free(a);
    tt_free(b);
}

static void what_killed_writers_left_is_swept(void **state)
{
    static const char *const names[] = {"x.json.tmp-0123456789abcdef", "x.json.tmp-0123456789abcde",
                                        "ax.json.tmp-0123456789abcdef", "x.json.tmp-0123456789abcdeg", "x.json.tmp"};
    char *live = NULL;
    bool exists;
    int fd = -1;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(close(open(at(names[i]), O_CREAT | O_EXCL | O_WRONLY, 0600)), 0);
    assert_int_equal(tt_file_temporary(at("x.json"), &live, &fd), 0); /* of a writer that is alive */
    assert_int_equal(tt_file_replace(at("x.json"), "new", 3), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(tt_path_exists(at(names[i]), &exists), 0);
        assert_int_equal(exists, i > 0);
    }
    assert_int_equal(tt_path_exists(live, &exists), 0);
    assert_true(exists);
    (void)close(fd);
    assert_int_equal(tt_file_replace(at("x.json"), "new", 3), 0);
    assert_int_equal(tt_path_exists(live, &exists), 0);
    assert_false(exists);
    tt_free(live);
}

static void a_pair_is_replaced_whole_or_its_main_file_is_missing(void **state)
{
    char *main_path = tt_strdup(at("main")), *other_path = tt_strdup(at("other"));
    struct tt_new_file new_main = {main_path, "new main", 8}, new_other = {other_path, "new other", 9};
    bool failed = true, exists;
    char *bytes = NULL;
    size_t size;

    for (int call = 1; failed; call++) {
        assert_int_equal(tt_file_replace(main_path, "old main", 8), 0);
        assert_int_equal(tt_file_replace(other_path, "old other", 9), 0);
        rename_to_fail = call;
        failed = tt_file_replace_pair(new_main, new_other) < 0;
        rename_to_fail = 0;
        assert_int_equal(failed, call <= 2);
        assert_int_equal(tt_path_exists(main_path, &exists), 0);
        assert_int_equal(exists, !failed);
    }
    assert_int_equal(tt_file_read(other_path, &bytes, &size), 0);
    assert_memory_equal(bytes, "new other", 9);
    tt_free(bytes);
    /* a failure before the first rename changes nothing */
    assert_int_equal(unlink(other_path), 0);
    assert_int_equal(mkdir(other_path, 0700), 0);
    assert_int_equal(tt_file_replace_pair((struct tt_new_file){main_path, "x", 1}, new_other), TT_EDATA);
    assert_int_equal(tt_file_read(main_path, &bytes, &size), 0);
    assert_memory_equal(bytes, "new main", 8);
    tt_free(bytes);
    tt_free(main_path);
    tt_free(other_path);
}

static void only_regular_files_are_replaced(void **state)
{
    static const char *const names[] = {"pipe", "link", "dangling", "sub"};

    assert_int_equal(tt_file_replace(at("file"), "old", 3), 0);
    assert_int_equal(tt_file_replace(at("file"), "new", 3), 0);
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    assert_int_equal(mkdir(at("sub"), 0700), 0);
    assert_int_equal(symlink("file", at("link")), 0);
    assert_int_equal(symlink("nowhere", at("dangling")), 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct tt_path_info before, after;

        assert_int_equal(tt_path_look(at(names[i]), &before), 0);
        assert_int_equal(tt_file_replace(at(names[i]), "new", 3), TT_EDATA);
        assert_non_null(strstr(tt_error_message(), names[i]));
        assert_int_equal(tt_path_look(at(names[i]), &after), 0);
        assert_true(before.kind == after.kind && before.is_link == after.is_link && before.inode == after.inode);
    }
}

static void file_systems_that_cannot_sync_folders_are_tolerated(void **state)
{
    static const int errors[] = {EINVAL, EOPNOTSUPP};

    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        fail_next("fsync", errors[i], 1);
        assert_int_equal(tt_folder_sync(folder), 0);
    }
    fail_next("fsync", EIO, 1);
    assert_int_equal(tt_folder_sync(folder), TT_EIO);
    fail_next("", 0, 0);
}

static void an_impossible_size_can_be_refused_without_an_exit(void **state)
{
    char *p = tt_calloc(4, 1);

    assert_null(tt_calloc_for(SIZE_MAX / 2, 4, "x"));
    assert_null(tt_try_realloc(p, SIZE_MAX / 2, 4));
    assert_memory_equal(p, "\0\0\0\0", 4);
    tt_free(p);
}

static int set_up(void **state)
{
    return mkdtemp(folder) ? 0 : -1;
}

static int clear(void **state)
{
    fail_next("", 0, 0);
    return tt_folder_remove(folder) < 0 || mkdir(folder, 0700) < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    return tt_folder_remove(folder);
}

#define CASE(test) cmocka_unit_test_teardown(test, clear)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(only_enoent_is_absence),
        CASE(transient_errors_are_tried_again),
        CASE(a_path_through_a_file_is_an_error),
        CASE(a_look_tells_the_kind_of_a_file_and_whether_it_is_a_link),
        CASE(a_listing_that_breaks_off_is_an_error),
        CASE(only_regular_files_are_read),
        CASE(what_a_user_names_may_be_a_pipe),
        CASE(temporary_names_are_unique),
        CASE(what_killed_writers_left_is_swept),
        CASE(a_pair_is_replaced_whole_or_its_main_file_is_missing),
        CASE(only_regular_files_are_replaced),
        CASE(file_systems_that_cannot_sync_folders_are_tolerated),
        CASE(an_impossible_size_can_be_refused_without_an_exit),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
