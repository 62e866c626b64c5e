/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "core/os/lock.h"

static char *new_folder(void)
{
    char *path = tt_strdup("/tmp/titan-lock-XXXXXX");

    assert_non_null(mkdtemp(path));
    return path;
}

static void remove_folder(char *folder)
{
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

static void one_holder_at_a_time(void **state)
{
    char *folder = new_folder(), *path = tt_format("%s/.lock", folder);
    struct tt_lock first = TT_LOCK_NONE, second = TT_LOCK_NONE;
    bool taken = true;

    assert_int_equal(tt_lock_take(path, &first, &taken), 0);
    assert_false(taken);
    assert_int_equal(tt_lock_take(path, &second, &taken), 0);
    assert_true(taken);
    assert_true(second.fd >= 0); /* so that the caller can read who holds it */
    tt_lock_release(&second);
    tt_lock_release(&first);
    assert_int_equal(tt_lock_take(path, &second, &taken), 0);
    assert_false(taken);
    tt_lock_release(&second);
    tt_lock_release(&second);
    tt_free(path);
    remove_folder(folder);
}

static void a_look_at_a_lock_neither_takes_it_nor_makes_it(void **state)
{
    char *folder = new_folder(), *path = tt_format("%s/.lock", folder);
    struct tt_lock lock = TT_LOCK_NONE;
    bool taken = true, held = true, exists = true;

    assert_int_equal(tt_lock_is_held(path, &held), 0);
    assert_false(held);
    assert_int_equal(tt_path_exists(path, &exists), 0);
    assert_false(exists);
    assert_int_equal(tt_lock_take(path, &lock, &taken), 0);
    assert_false(taken);
    assert_int_equal(tt_lock_is_held(path, &held), 0);
    assert_true(held);
    tt_lock_release(&lock);
    assert_int_equal(tt_lock_is_held(path, &held), 0);
    assert_false(held);
    assert_int_equal(tt_lock_take(path, &lock, &taken), 0);
    assert_false(taken);
    tt_lock_release(&lock);
    tt_free(path);
    remove_folder(folder);
}

static void a_lock_whose_file_is_gone_says_so(void **state)
{
    char *folder = new_folder(), *path = tt_format("%s/.lock", folder), *moved = tt_format("%s/moved", folder);
    struct tt_lock lock = TT_LOCK_NONE, other = TT_LOCK_NONE;
    bool taken = true;

    assert_int_equal(tt_lock_check(&lock), 0);
    assert_int_equal(tt_lock_take(path, &lock, &taken), 0);
    assert_int_equal(tt_lock_check(&lock), 0);
    assert_int_equal(rename(path, moved), 0);
    assert_int_equal(tt_lock_check(&lock), TT_EDATA);
    assert_int_equal(tt_lock_take(path, &other, &taken), 0);
    assert_false(taken);
    assert_int_equal(tt_lock_check(&lock), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), path));
    assert_int_equal(tt_lock_check(&other), 0);
    tt_lock_release(&lock);
    tt_lock_release(&other);
    tt_free(moved);
    tt_free(path);
    remove_folder(folder);
}

/* On a file system without locks the owner in PATH.owner holds the lock. That file is also read where locks work. */
static void owners_that_may_live_are_respected(void **state)
{
    static const struct {
        const char *text;
        bool taken;
    } rows[] = {
        {"", true}, /* it is being written, or damaged: the owner is unknown */
        {"{\"host\":\"nowhere\",\"boot\":\"1\",\"pid_namespace\":\"n\",\"pid\":1,\"start\":1}", true},
        {"{\"host\":\"%h\",\"boot\":\"another\",\"pid_namespace\":\"n\",\"pid\":1,\"start\":1}", false},
        {"{\"host\":\"%h\",\"boot\":\"%b\",\"pid_namespace\":\"another\",\"pid\":1,\"start\":1}", true},
        {"{\"host\":\"%h\",\"boot\":\"%b\",\"pid_namespace\":\"%n\",\"pid\":%p,\"start\":7}", false},
        {"{\"host\":\"%h\",\"boot\":\"%b\",\"pid_namespace\":\"%n\",\"pid\":%p,\"start\":-1}", true},
        {"{\"host\":\"%h\",\"boot\":\"%b\",\"pid_namespace\":\"%n\",\"pid\":%d,\"start\":7}", false},
    };
    char *folder = new_folder(), *path = tt_format("%s/.lock", folder), *owner = tt_format("%s.owner", path);
    char host[256] = "", space[256] = "", *boot = NULL;
    size_t size = 0;
    pid_t dead = fork();

    if (dead == 0)
        _exit(0);
    assert_int_equal(waitpid(dead, NULL, 0), dead);
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    assert_true(readlink("/proc/self/ns/pid", space, sizeof space - 1) > 0);
    assert_int_equal(tt_file_read("/proc/sys/kernel/random/boot_id", &boot, &size), 0);
    boot[strcspn(boot, "\n")] = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tt_lock lock = TT_LOCK_NONE;
        struct tt_text text = {0};
        bool taken = !rows[i].taken;

        for (const char *p = rows[i].text; *p; p++) {
            if (*p != '%')
                tt_text_add(&text, "%c", *p);
            else if (*++p == 'p' || *p == 'd')
                tt_text_add(&text, "%d", *p == 'p' ? (int)getpid() : (int)dead);
            else
                tt_text_add(&text, "%s", *p == 'h' ? host : *p == 'b' ? boot : space);
        }
        assert_int_equal(tt_file_replace(owner, text.text ? text.text : "", text.size), 0);
        assert_int_equal(tt_lock_take(path, &lock, &taken), 0);
        assert_int_equal(taken, rows[i].taken);
        tt_lock_release(&lock);
        tt_text_release(&text);
    }
    tt_free(boot);
    tt_free(owner);
    tt_free(path);
    remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_holder_at_a_time),
        cmocka_unit_test(a_look_at_a_lock_neither_takes_it_nor_makes_it),
        cmocka_unit_test(a_lock_whose_file_is_gone_says_so),
        cmocka_unit_test(owners_that_may_live_are_respected),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
