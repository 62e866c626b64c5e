/* SPDX-License-Identifier: MIT
 *
 * mpirun's remarks about exit codes are removed, and nothing else is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/run/supervise.h"

#define DASHES "--------------------------------------------------------------------------\n"
#define NORMAL                                                          \
    DASHES "Primary job  terminated normally, but 1 process returned\n" \
           "a non-zero exit code. Per user-direction, the job has been aborted.\n" DASHES
#define DETECTED                                                                                    \
    DASHES "mpirun detected that one or more processes exited with non-zero status, thus causing\n" \
           "the job to be terminated. The first process to do so was:\n\n"                          \
           "  Process name: [[26388,1],0]\n  Exit code:    75\n" DASHES
#define DETECTED_5                                                                      \
    DASHES "prterun detected that one or more processes exited with non-zero status,\n" \
           "thus causing the job to be terminated. The first process to do so was:\n\n" \
           "   Process name: [prterun-vm-9524@1,1]\n   Exit code:    75\n" DASHES
#define CRASH DASHES "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 11.\n" DASHES

/* The output arrives in parts of every length, since a pipe may break it anywhere. */
static void pass(const char *text, const char *expect)
{
    size_t n = strlen(text);

    for (size_t part = 1; part <= n; part++) {
        struct tt_remarks remarks = {.at = TT_REMARKS_LINE_START};
        struct tt_text out = {0};

        for (size_t i = 0; i < n; i += part)
            tt_remarks_pass(&remarks, text + i, i + part < n ? part : n - i, &out);
        tt_remarks_end(&remarks, &out);
        assert_string_equal(out.text ? out.text : "", expect);
        tt_text_release(&out);
    }
}

static void remarks_are_left_out(void **state)
{
    pass(NORMAL, "");
    pass("titan: error: x\n" NORMAL DETECTED, "titan: error: x\n");
    pass(DETECTED "titan: stopped\n", "titan: stopped\n");
    pass("titan: stopped\n" DETECTED_5, "titan: stopped\n");
    pass("mpirun: Forwarding signal 12 to job\ntitan: stopping\n", "titan: stopping\n");
    pass("\rstep: 1/3\033[K\r" NORMAL, "\rstep: 1/3\033[K\r"); /* a live line */
}

static void all_else_is_passed_on(void **state)
{
    pass(CRASH, CRASH);
    pass(NORMAL CRASH "end", CRASH "end");
    pass("a - b\n-- c\n---\n-", "a - b\n-- c\n---\n-");
    pass(DASHES "Primary job  terminated normally, but", DASHES "Primary job  terminated normally, but");
    pass("text " NORMAL, "text " NORMAL);
    pass("mpirun: killing job...\nmpirun: Forwarding", "mpirun: killing job...\nmpirun: Forwarding");
}

static void what_is_no_block_is_not_held(void **state)
{
    struct tt_remarks remarks = {.at = TT_REMARKS_LINE_START};
    struct tt_text out = {0};

    tt_remarks_pass(&remarks, "\rtitan: tokenizing 10%", 22, &out);
    assert_string_equal(out.text, "\rtitan: tokenizing 10%");
    tt_remarks_end(&remarks, &out);
    tt_text_release(&out);
}

static void a_block_without_an_end_is_released(void **state)
{
    struct tt_remarks remarks = {.at = TT_REMARKS_LINE_START};
    struct tt_text out = {0};

    tt_remarks_pass(&remarks, DASHES, strlen(DASHES), &out);
    assert_int_equal(out.size, 0);
    for (int i = 0; i < 5000; i++)
        tt_remarks_pass(&remarks, "x", 1, &out);
    assert_int_equal(out.size, strlen(DASHES) + 5000);
    tt_text_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(remarks_are_left_out),
        cmocka_unit_test(all_else_is_passed_on),
        cmocka_unit_test(what_is_no_block_is_not_held),
        cmocka_unit_test(a_block_without_an_end_is_released),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
