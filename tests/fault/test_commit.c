/* SPDX-License-Identifier: MIT
 *
 * The commit protocol: a process that is killed at any point of a save, or finds the disk full, leaves the old
 * checkpoint or the new one, whole, and a later run continues from it.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/steps/steps.h"
#include "checkpoint/tools/tools.h"
#include "ckpt_support.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "tests/help/threads.h"

static const char *const points[] = {
#define X(name) #name,
    TT_FAULT_MAP(X)
#undef X
};
enum { POINTS = sizeof points / sizeof points[0] };

/* Runs a save in a child process. Returns its wait status. */
static int save_in_child(struct test_job *job, const char *fault)
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        if (fault)
            (void)setenv("TITAN_FAULT", fault, 1);
        _exit(test_save(job) == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static int count_leftovers(const char *folder)
{
    char **names = NULL;
    int n = 0, found = 0;

    assert_int_equal(tt_folder_list(folder, &names, &n), 0);
    for (int i = 0; i < n; i++)
        found += names[i][0] == '.' && strcmp(names[i], ".lock") != 0;
    tt_names_free(names, n);
    return found;
}

/* The step that a restart loads. It must be `old` or `new`, with the right bits. */
static int64_t restart(const char *folder, int64_t old, int64_t new)
{
    struct test_job load = {folder, "later", 3, 1, .load_step = -1};
    int64_t *steps = NULL;
    json_t *json = NULL;
    int n = 0;

    assert_int_equal(tt_step_list(folder, &steps, &n), 0);
    assert_true(n > 0);
    load.expect = steps[n - 1];
    tt_free(steps);
    assert_int_equal(test_resume(&load), 0);
    assert_int_equal(load.wrong, 0);
    assert_int_equal(load.found, load.expect);
    assert_true(load.found == old || load.found == new);
    assert_int_equal(tt_ckpt_verify(folder, TT_VERIFY_DEEP, &json), 0);
    assert_true(json_is_true(json_object_get(json, "ok")));
    json_decref(json);
    return load.found;
}

static void a_kill_anywhere_leaves_the_old_step_or_the_new_one(void **state)
{
    bool seen_old = false, seen_new = false;

    for (int point = 0; point < POINTS; point++) {
        for (int rank = 0; rank < 3; rank += 2) {
            char *folder = test_folder(), *fault = tt_format("%s:%d:kill", points[point], rank);
            struct test_job save = {folder, "run", 3, 1, .step = 1, .keep = 2};
            int64_t found;
            int status;

            for (save.step = 1; save.step <= 2; save.step++) /* two, so that the third save retires the first step */
                assert_int_equal(test_save(&save), 0);
            status = save_in_child(&save, fault);
            found = restart(folder, 2, 3);
            if (WIFSIGNALED(status)) {
                seen_old = seen_old || found == 2;
                seen_new = seen_new || found == 3;
            } else { /* this rank does not reach that point, or there is nothing to replace */
                assert_int_equal(status, 0);
                assert_int_equal(found, 3);
            }
            save.step = 4; /* the next save works and removes what the killed one left */
            save.run_id = "another";
            assert_int_equal(test_save(&save), 0);
            assert_int_equal(restart(folder, 4, 4), 4);
            assert_int_equal(count_leftovers(folder), 0);
            assert_int_equal(tt_folder_remove(folder), 0);
            tt_free(folder);
            tt_free(fault);
        }
    }
    assert_true(seen_old && seen_new);
}

/* Saves the same step again. The values are those of the step, so the mesh in the manifest tells the old from the
 * new. */
static void a_kill_while_a_step_is_replaced_leaves_one_of_the_two(void **state)
{
    static const char *const at[] = {"write", "manifest", "publish", "published", "replaced", "end"};

    for (int i = 0; i < 6; i++) {
        char *folder = test_folder(), *fault = tt_format("%s:0:kill", at[i]);
        struct test_job save = {folder, "run", 3, 1, .step = 5};

        assert_int_equal(test_save(&save), 0);
        save.dp_shard = 2;
        assert_true(WIFSIGNALED(save_in_child(&save, fault)));
        assert_int_equal(restart(folder, 5, 5), 5);
        assert_int_equal(test_save(&save), 0);
        assert_int_equal(restart(folder, 5, 5), 5);
        assert_int_equal(count_leftovers(folder), 0);
        assert_int_equal(tt_folder_remove(folder), 0);
        tt_free(folder);
        tt_free(fault);
    }
}

/* On a file system without exchange, the older step is renamed first, and renamed back if the save dies at that
 * moment. */
static void a_kill_between_two_renames_loses_no_step(void **state)
{
    static const char *const faults[] = {"exchange:0:eio", "exchange:0:eio,aside:0:kill", "exchange:0:eio,aside:0:eio",
                                         "exchange:0:eio,published:0:kill"};

    for (int i = 0; i < 4; i++) {
        char *folder = test_folder(), *five;
        struct test_job save = {folder, "run", 3, 1, .step = 5};
        int status;

        assert_int_equal(test_save(&save), 0);
        save.dp_shard = 2;
        status = save_in_child(&save, faults[i]);
        assert_int_equal(WIFSIGNALED(status) != 0, i % 2);
        if (!WIFSIGNALED(status))
            assert_int_equal(WEXITSTATUS(status), i == 2);
        save.step = 6; /* opening the folder removes the remains and puts the older step back */
        assert_int_equal(test_save(&save), 0);
        assert_int_equal(count_leftovers(folder), 0);
        five = tt_step_path(folder, 5);
        assert_int_equal(tt_step_check(five, NULL), 0);
        tt_free(five);
        assert_int_equal(tt_folder_remove(folder), 0);
        tt_free(folder);
    }
}

static void an_async_save_that_is_killed_or_fails_leaves_the_old_step(void **state)
{
    static const char *const at[] = {"gather", "stage",   "staged",  "open",   "write",
                                     "fsync",  "written", "collect", "publish"};

    for (int i = 0; i < 2 * 9; i++) {
        bool kill = i % 2;
        char *folder = test_folder(), *fault = tt_format("%s:0:%s", at[i / 2], kill ? "kill" : "enospc");
        struct test_job save = {folder, "run", 2, 2, .step = 1, .policy = "filtered"};
        int status;

        save.async = true;
        save.filter = i / 2 == 0 ? "rank0" : "replica0";
        assert_int_equal(test_save(&save), 0);
        save.step = 2;
        status = save_in_child(&save, fault);
        assert_int_equal(WIFSIGNALED(status) != 0, kill);
        assert_int_equal(restart(folder, 1, 1), 1);
        if (!kill)
            assert_int_equal(count_leftovers(folder), 0);
        assert_int_equal(test_save(&save), 0);
        assert_int_equal(restart(folder, 2, 2), 2);
        assert_int_equal(count_leftovers(folder), 0);
        assert_int_equal(tt_folder_remove(folder), 0);
        tt_free(folder);
        tt_free(fault);
    }
}

/* The only step of the folder; 0 if there are several. */
static int64_t only_step(const char *folder)
{
    int64_t *steps = NULL, step;
    int n = 0;

    assert_int_equal(tt_step_list(folder, &steps, &n), 0);
    step = n == 1 ? steps[0] : 0;
    tt_free(steps);
    return step;
}

static void an_async_save_retires_older_steps(void **state)
{
    static const char *const faults[] = {"retention:0:kill", "retention_remove:0:kill", "retention:0:eio",
                                         "retention_remove:0:eio"};

    for (int i = 0; i < 4; i++) {
        char *folder = test_folder();
        struct test_job save = {folder, "run", 2, 1, .keep = 1, .async = true};
        int status;

        for (save.step = 1; save.step <= 2; save.step++) {
            assert_int_equal(test_save(&save), 0);
            assert_int_equal(only_step(folder), save.step);
        }
        status = save_in_child(&save, faults[i]);
        assert_int_equal(WIFSIGNALED(status) != 0, i < 2);
        if (i >= 2) /* the new step is complete; the remains of the old one only cause a warning */
            assert_int_equal(status, 0);
        assert_int_equal(restart(folder, 3, 3), 3);
        save.step = 4;
        assert_int_equal(test_save(&save), 0);
        assert_int_equal(only_step(folder), 4);
        assert_int_equal(count_leftovers(folder), 0);
        assert_int_equal(tt_folder_remove(folder), 0);
        tt_free(folder);
    }
}

static void a_failed_save_is_undone_on_all_ranks(void **state)
{
    for (int point = 0; point < POINTS; point++) {
        char *folder = test_folder(), *fault = tt_format("%s:%s:enospc", points[point], point % 2 ? "*" : "0");
        struct test_job save = {folder, "run", 3, 1, .step = 1, .keep = 1};
        int rc;

        assert_int_equal(test_save(&save), 0);
        (void)setenv("TITAN_FAULT", fault, 1);
        save.step = 2;
        rc = test_save(&save);
        (void)unsetenv("TITAN_FAULT");
        if (rc < 0) {
            assert_int_equal(rc, TT_EIO);
            assert_non_null(strstr(tt_error_message(), "No space left on device"));
        }
        if (rc < 0 && strcmp(points[point], "published") != 0 && strcmp(points[point], "end") != 0)
            assert_int_equal(restart(folder, 1, 1), 1);
        else
            assert_int_equal(restart(folder, 2, 2), 2);
        if (strncmp(points[point], "retention", 9) != 0)
            assert_int_equal(count_leftovers(folder), 0);
        save.step = 3;
        assert_int_equal(test_save(&save), 0);
        assert_int_equal(tt_folder_remove(folder), 0);
        tt_free(folder);
        tt_free(fault);
    }
}

/* A system limit instead of an injected error: files may not grow beyond 100 KiB. */
static void a_full_disk_loses_nothing(void **state)
{
    char *folder = test_folder();
    struct test_job save = {folder, "run", 2, 2, .step = 1};
    struct rlimit before, small;
    int rc;

    assert_int_equal(test_save(&save), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){100 << 10, before.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    save.step = 2;
    rc = test_save(&save);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(rc, TT_EIO);
    assert_non_null(strstr(tt_error_message(), "File too large"));
    assert_non_null(strstr(tt_error_message(), "help: raise the limit"));
    assert_int_equal(count_leftovers(folder), 0);
    assert_int_equal(restart(folder, 1, 1), 1);
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

static int open_twice(struct tt_comm *comm, void *arg)
{
    struct tt_mesh mesh = test_mesh(1, 1);
    struct tt_ckpt_store *first = NULL, *second = NULL;
    int rc = 0;

    TT_TRY(tt_ckpt_store_open(comm, &mesh, arg, "monday", &first));
    rc = tt_ckpt_store_open(comm, &mesh, arg, "tuesday", &second);
out:
    tt_ckpt_store_close(first);
    return rc;
}

static void a_second_job_in_the_folder_is_refused(void **state)
{
    char *folder = test_folder();
    struct test_job save = {folder, "wednesday", 1, 1, .step = 1};

    assert_int_equal(tt_comm_threads_run(1, open_twice, folder), TT_EUSAGE);
    assert_non_null(strstr(tt_error_message(), "another titan job is writing checkpoints"));
    assert_non_null(strstr(tt_error_message(), "run monday"));
    assert_int_equal(test_save(&save), 0); /* the lock ended with the process that held it */
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

struct apart {
    const char *folder[2];
};

static int open_apart(struct tt_comm *comm, void *arg)
{
    struct apart *apart = arg;
    struct tt_mesh mesh = test_mesh(2, 1);
    struct tt_ckpt_store *store = NULL;
    int rc = tt_ckpt_store_open(comm, &mesh, apart->folder[comm->rank], "run", &store);

    tt_ckpt_store_close(store);
    return rc;
}

static void ranks_must_see_one_folder(void **state)
{
    char *a = test_folder(), *b = test_folder();
    struct apart apart = {{a, b}};

    assert_int_equal(tt_comm_threads_run(2, open_apart, &apart), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "rank 1 on host '"));
    assert_non_null(strstr(tt_error_message(), "all hosts share"));
    assert_int_equal(tt_folder_remove(a), 0);
    assert_int_equal(tt_folder_remove(b), 0);
    tt_free(a);
    tt_free(b);
}

/* Only the holder of the lock makes temporary steps, so all others are left from dead jobs. Other names are kept. */
static void temporaries_of_every_job_are_removed(void **state)
{
    static const char *const swept[] = {".tmp-step-9-someone", ".trash-step-3-gc", ".old-step-1-someone"};
    static const char *const kept[] = {".tmp-notes", ".snapshots", "step-1.mine"};
    char *folder = test_folder();
    struct test_job save = {folder, "run", 2, 1, .step = 1};

    assert_int_equal(test_save(&save), 0);
    for (int i = 0; i < 6; i++) {
        char *path = tt_format("%s/%s", folder, i < 3 ? swept[i] : kept[i - 3]);

        assert_int_equal(tt_folder_make(path), 0);
        tt_free(path);
    }
    save.step = 2;
    assert_int_equal(test_save(&save), 0);
    for (int i = 0; i < 6; i++) {
        char *path = tt_format("%s/%s", folder, i < 3 ? swept[i] : kept[i - 3]);

        assert_int_equal(access(path, F_OK) == 0, i >= 3);
        tt_free(path);
    }
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

/* The next `times` calls of fallocate fail with `error`. */
static struct {
    int error, times;
} reserving;

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if (reserving.times == 0)
        return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    reserving.times--;
    errno = reserving.error;
    return -1;
}

/* Reserves 1 MiB for a file. Returns the code; *ret_bytes: the space that the file takes on the disk before it is
 * written. */
static int reserve(const char *folder, int error, int times, int64_t *ret_bytes)
{
    char *path = tt_format("%s/file", folder);
    struct tt_durable file;
    struct stat st;
    int rc;

    reserving.error = error;
    reserving.times = times;
    rc = tt_durable_begin(path, 1 << 20, -1, &file);
    reserving.times = 0;
    if (rc == 0) {
        assert_int_equal(fstat(file.fd, &st), 0);
        *ret_bytes = (int64_t)st.st_blocks * 512;
        tt_durable_cancel(&file);
    }
    tt_free(path);
    return rc;
}

/* Without a reservation nothing is written instead. An interrupted call is repeated. */
static void space_is_reserved_without_writing(void **state)
{
    char *folder = test_folder();
    int64_t bytes = -1, reserved = -1;

    assert_int_equal(reserve(folder, 0, 0, &reserved), 0);
    assert_int_equal(reserve(folder, EOPNOTSUPP, 1, &bytes), 0);
    assert_int_equal(bytes, 0);
    assert_int_equal(reserve(folder, EINTR, 3, &bytes), 0);
    assert_int_equal(bytes, reserved);
    assert_int_equal(reserve(folder, ENOSPC, 1, &bytes), TT_EIO);
    assert_non_null(strstr(tt_error_message(), "cannot reserve space for"));
    assert_int_equal(count_leftovers(folder), 0);
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kill_anywhere_leaves_the_old_step_or_the_new_one),
        cmocka_unit_test(a_kill_while_a_step_is_replaced_leaves_one_of_the_two),
        cmocka_unit_test(a_kill_between_two_renames_loses_no_step),
        cmocka_unit_test(an_async_save_that_is_killed_or_fails_leaves_the_old_step),
        cmocka_unit_test(an_async_save_retires_older_steps),
        cmocka_unit_test(a_failed_save_is_undone_on_all_ranks),
        cmocka_unit_test(a_full_disk_loses_nothing),
        cmocka_unit_test(a_second_job_in_the_folder_is_refused),
        cmocka_unit_test(ranks_must_see_one_folder),
        cmocka_unit_test(temporaries_of_every_job_are_removed),
        cmocka_unit_test(space_is_reserved_without_writing),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
