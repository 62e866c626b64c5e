/* SPDX-License-Identifier: MIT
 *
 * Which of Open MPI's shared segments are removed: old ones that belong to this host and user and that no process uses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/run/segments.h"
#include "core/base/mem.h"
#include "core/os/file.h"

struct place {
    char *root, *shm, *proc;
};

/* With a list of processes that includes this one, as in /proc. */
static struct place place_make(void)
{
    const char *tmp = getenv("TMPDIR");
    struct place p = {.root = tt_format("%s/titan-segments.XXXXXX", tmp ? tmp : "/tmp")};
    char *own;

    assert_non_null(mkdtemp(p.root));
    p.shm = tt_format("%s/shm", p.root);
    p.proc = tt_format("%s/proc", p.root);
    assert_int_equal(tt_folder_make(p.shm), 0);
    own = tt_format("%s/%ld", p.proc, (long)getpid());
    assert_int_equal(tt_folder_make(own), 0);
    tt_free(own);
    return p;
}

static void place_release(struct place *p)
{
    assert_int_equal(tt_folder_remove(p->root), 0);
    tt_free(p->root);
    tt_free(p->shm);
    tt_free(p->proc);
}

/* Makes a segment, written an hour ago, of a job of `user` on `host`. The caller frees its name. */
static char *segment(const struct place *p, const char *host, unsigned user, const char *job)
{
    char *name = tt_format("vader_segment.%s.%u.%s", host, user, job), *path = tt_format("%s/%s", p->shm, name);
    struct timespec times[2] = {{.tv_sec = time(NULL) - 3600}, {.tv_sec = time(NULL) - 3600}};

    assert_int_equal(tt_file_replace(path, "x", 1), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    tt_free(path);
    return name;
}

static void process(const struct place *p, const char *pid, const char *mapped)
{
    char *folder = tt_format("%s/%s", p->proc, pid), *path = tt_format("%s/maps", folder);
    char *text = tt_format("7f00-7f01 r-xp 0 00:19 7 /usr/lib/libmpi.so\n7f10-7f20 rw-s 0 00:19 5 %s\n", mapped);

    assert_int_equal(tt_folder_make(folder), 0);
    assert_int_equal(tt_file_replace(path, text, strlen(text)), 0);
    tt_free(folder);
    tt_free(path);
    tt_free(text);
}

/* The variables that mpirun gives a process of a job. */
static void belongs(const struct place *p, const char *pid, const char *job)
{
    char *path = tt_format("%s/%s/environ", p->proc, pid), text[64] = "HOME=/";
    int at = 7;

    at += snprintf(text + at, sizeof text - (size_t)at, "PMIX_NAMESPACE=%s", job) + 1;
    assert_int_equal(tt_file_replace(path, text, (size_t)at), 0);
    tt_free(path);
}

static bool is_there(const struct place *p, const char *name)
{
    char *path = tt_format("%s/%s", p->shm, name);
    bool found = access(path, F_OK) == 0;

    tt_free(path);
    return found;
}

static void only_segments_that_no_process_uses_are_removed(void **state)
{
    struct place p = place_make();
    char host[256] = "", *mapped, *dead, *longer, *foreign_host, *foreign_user, *other, *maps;

    (void)gethostname(host, sizeof host - 1);
    mapped = segment(&p, host, geteuid(), "4d300001.1");
    longer = segment(&p, host, geteuid(), "4d300001.11"); /* its name begins with that of a segment that is mapped */
    dead = segment(&p, host, geteuid(), "4d300001.0");
    foreign_host = segment(&p, "elsewhere", geteuid(), "4d300001.0");
    foreign_user = segment(&p, host, geteuid() + 1, "4d300001.0");
    other = segment(&p, "", 0, "");
    maps = tt_format("/dev/shm/%s", mapped);
    process(&p, "17", "/dev/shm/other");
    process(&p, "18", maps);
    assert_int_equal(tt_segments_sweep(p.shm, p.proc, 60.0), 2);
    assert_true(is_there(&p, mapped) && is_there(&p, foreign_host) && is_there(&p, foreign_user) &&
                is_there(&p, other));
    assert_false(is_there(&p, dead) || is_there(&p, longer));
    tt_free(mapped);
    tt_free(longer);
    tt_free(dead);
    tt_free(foreign_host);
    tt_free(foreign_user);
    tt_free(other);
    tt_free(maps);
    place_release(&p);
}

/* A rank unmaps its segment before it removes it. */
static void segments_of_a_job_that_still_runs_stay(void **state)
{
    struct place p = place_make();
    char host[256] = "", *running, *ended;

    (void)gethostname(host, sizeof host - 1);
    running = segment(&p, host, geteuid(), "39d10001.1");
    ended = segment(&p, host, geteuid(), "39d20001.1");
    process(&p, "17", "/dev/shm/other");
    belongs(&p, "17", "969998337"); /* 0x39d10001 */
    assert_int_equal(tt_segments_sweep(p.shm, p.proc, 60.0), 1);
    assert_true(is_there(&p, running));
    assert_false(is_there(&p, ended));
    tt_free(running);
    tt_free(ended);
    place_release(&p);
}

static void new_segments_stay(void **state)
{
    struct place p = place_make();
    char host[256] = "", *name;

    (void)gethostname(host, sizeof host - 1);
    name = segment(&p, host, geteuid(), "4d300001.0");
    assert_int_equal(tt_segments_sweep(p.shm, p.proc, 7200.0), 0);
    assert_true(is_there(&p, name));
    tt_free(name);
    place_release(&p);
}

/* If a file of a process cannot be read (here it is a folder), the process may use any segment. */
static void nothing_is_removed_if_a_process_cannot_be_read(void **state)
{
    static const char *const files[] = {"maps", "environ"};

    for (int i = 0; i < 2; i++) {
        struct place p = place_make();
        char host[256] = "", *name, *file = tt_format("%s/17/%s", p.proc, files[i]);

        (void)gethostname(host, sizeof host - 1);
        name = segment(&p, host, geteuid(), "4d300001.0");
        assert_int_equal(tt_folder_make(file), 0);
        assert_int_equal(tt_segments_sweep(p.shm, p.proc, 60.0), 0);
        assert_true(is_there(&p, name));
        tt_free(file);
        tt_free(name);
        place_release(&p);
    }
}

/* In a container the first process may be a rank. Often nobody can read the files of that process; segments are then
 * removed nevertheless. */
static void the_first_process_is_asked_if_it_can_be(void **state)
{
    struct place p = place_make();
    char host[256] = "", *name, *maps, *file = tt_format("%s/1/maps", p.proc);

    (void)gethostname(host, sizeof host - 1);
    name = segment(&p, host, geteuid(), "4d300001.0");
    maps = tt_format("/dev/shm/%s", name);
    process(&p, "1", maps);
    assert_int_equal(tt_segments_sweep(p.shm, p.proc, 60.0), 0);
    assert_true(is_there(&p, name));
    assert_int_equal(tt_folder_remove(file), 0);
    assert_int_equal(tt_folder_make(file), 0);
    assert_int_equal(tt_segments_sweep(p.shm, p.proc, 60.0), 1);
    tt_free(file);
    tt_free(maps);
    tt_free(name);
    place_release(&p);
}

/* There is no list of processes, it is empty, or it belongs to another system. */
static void nothing_is_removed_without_a_list_of_processes(void **state)
{
    static const char *const lists[] = {"none", "empty", "proc"};

    for (int i = 0; i < 3; i++) {
        struct place p = place_make();
        char host[256] = "", *name, *proc = tt_format("%s/%s", p.root, lists[i]), *own;

        (void)gethostname(host, sizeof host - 1);
        name = segment(&p, host, geteuid(), "4d300001.0");
        own = tt_format("%s/%ld", p.proc, (long)getpid());
        if (i == 1)
            assert_int_equal(tt_folder_make(proc), 0);
        assert_int_equal(tt_folder_remove(own), 0);
        process(&p, "17", "/dev/shm/other");
        assert_int_equal(tt_segments_sweep(p.shm, proc, 60.0), 0);
        assert_true(is_there(&p, name));
        tt_free(own);
        tt_free(proc);
        tt_free(name);
        place_release(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_segments_that_no_process_uses_are_removed),
        cmocka_unit_test(segments_of_a_job_that_still_runs_stay),
        cmocka_unit_test(new_segments_stay),
        cmocka_unit_test(nothing_is_removed_if_a_process_cannot_be_read),
        cmocka_unit_test(the_first_process_is_asked_if_it_can_be),
        cmocka_unit_test(nothing_is_removed_without_a_list_of_processes),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
