/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/os/file.h"
#include "tests/help/log.h"
#include "trainer/run/records.h"

static void assert_holds(const char *path, const char *wanted)
{
    char *text = NULL;
    size_t size = 0;

    assert_int_equal(tt_file_read(path, &text, &size), 0);
    assert_string_equal(text, wanted);
    tt_free(text);
}

static void a_torn_last_line_is_mended(void **state)
{
    static const struct {
        const char *before, *after;
    } rows[] = {
        {"", "{\"n\":1}\n"},
        {"{\"a\":1}\n", "{\"a\":1}\n{\"n\":1}\n"},
        {"{\"a\":1}\n{\"b\":2}", "{\"a\":1}\n{\"b\":2}\n{\"n\":1}\n"}, /* only the end of the line was missing */
        {"{\"a\":1}\n{\"b\":", "{\"a\":1}\n{\"n\":1}\n"},
        {"{\"b\":", "{\"n\":1}\n"},
        {"{\"a\":1}\n12", "{\"a\":1}\n{\"n\":1}\n"}, /* it may be half of a longer number, so it is not a record */
    };
    char folder[] = "/tmp/titan-records-XXXXXX", *path;

    assert_non_null(mkdtemp(folder));
    path = tt_format("%s/metrics.jsonl", folder);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tt_records *records = NULL;

        assert_int_equal(tt_file_replace(path, rows[i].before, strlen(rows[i].before)), 0);
        assert_int_equal(tt_records_open(path, &records), 0);
        tt_records_add(records, "{\"n\":1}");
        tt_records_close(records);
        assert_holds(path, rows[i].after);
    }
    tt_free(path);
    assert_int_equal(tt_folder_remove(folder), 0);
}

/* The disk fills in the middle of a record: there is one warning, no partial line remains, and later records are
 * whole. */
static void a_full_disk_leaves_whole_lines(void **state)
{
    char folder[] = "/tmp/titan-records-XXXXXX", *path;
    struct rlimit unlimited, small;
    struct tt_records *records = NULL;

    assert_non_null(mkdtemp(folder));
    path = tt_format("%s/metrics.jsonl", folder);
    assert_int_equal(tt_records_open(path, &records), 0);
    tt_records_add(records, "{\"n\":1}");
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
    small = (struct rlimit){12, unlimited.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    log_catch();
    tt_records_add(records, "{\"n\":2}");
    tt_records_add(records, "{\"n\":3}");
    log_release();
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
    assert_int_equal(caught.warnings, 1);
    assert_holds(path, "{\"n\":1}\n");
    tt_records_add(records, "{\"n\":4}");
    tt_records_close(records);
    assert_holds(path, "{\"n\":1}\n{\"n\":4}\n");
    tt_free(path);
    assert_int_equal(tt_folder_remove(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_torn_last_line_is_mended),
        cmocka_unit_test(a_full_disk_leaves_whole_lines),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
