/* SPDX-License-Identifier: MIT
 *
 * Measurements on machines with other users. All readings are invented: no case depends on a clock or on the load.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include <cmocka.h>

#include "cli/train/screen.h"
#include "core/base/mem.h"
#include "core/os/machine.h"
#include "trainer/step/peak.h"

static const struct tt_load idle = {.average = 0.3, .running = 1, .cpus = 2, .total = 1000.0};

static void expect_text(const struct tt_load *before, const struct tt_load *now, int own, const char *wanted)
{
    struct tt_text text = {0};

    tt_load_text(before, now, own, &text);
    assert_string_equal(text.text ? text.text : "", wanted);
    tt_text_release(&text);
}

static struct tt_load load_of(double average, int running, int cpus)
{
    struct tt_load load = idle;

    load.average = average;
    load.running = running;
    load.cpus = cpus;
    return load;
}

static void says_that_others_use_the_machine(void **state)
{
    struct tt_load busy = load_of(13.2, 14, 2), one = load_of(3.0, 4, 1);

    expect_text(&busy, &busy, 2, "load 13 on 2 CPUs: others use this machine");
    expect_text(&one, &one, 1, "load 3 on 1 CPU: others use this machine");
}

static void an_idle_machine_and_work_of_the_job_itself_are_no_load(void **state)
{
    struct tt_load busy_before = load_of(20.0, 1, 2), oversubscribed = load_of(8.1, 9, 2), full = load_of(2.1, 3, 2);
    struct tt_load unknown = {0};

    expect_text(&idle, &idle, 2, "");
    expect_text(&busy_before, &busy_before, 2, ""); /* a build has just ended */
    expect_text(&oversubscribed, &oversubscribed, 8, "");
    expect_text(&oversubscribed, &oversubscribed, 2, "load 8 on 2 CPUs: others use this machine");
    expect_text(&full, &full, 2, ""); /* an earlier run of the same job */
    expect_text(&unknown, &unknown, 2, "");
}

static void says_that_time_is_stolen(void **state)
{
    struct tt_load now = idle;

    now.total += 100.0;
    now.stolen = 4.0;
    expect_text(&idle, &now, 2, "");
    now.stolen = 12.0;
    expect_text(&idle, &now, 2, "12 % of processor time is stolen by other VMs");
    now.total = idle.total + 10.0; /* a single tick may be chance */
    now.stolen = 1.0;
    expect_text(&idle, &now, 2, "");
}

static void write_file(const char *folder, const char *name, const char *content)
{
    char *path = tt_format("%s/%s", folder, name);
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    (void)fputs(content, file);
    (void)fclose(file);
    tt_free(path);
}

static void reads_what_the_kernel_writes(void **state)
{
    char folder[] = "/tmp/titan-load-XXXXXX";
    struct tt_load load;
    char *path;

    assert_non_null(mkdtemp(folder));
    load = tt_load_read(folder);
    assert_int_equal(load.cpus, 0);
    assert_true(load.average == 0.0 && load.total == 0.0);
    write_file(folder, "loadavg", "13.04 11.50 9.00 7/812 31337\n");
    write_file(folder, "stat",
               "cpu  100 1 20 800 5 0 4 70 30 0\ncpu0 50 1 10 400 5 0 2 35 15 0\ncpu1 50 0 10 400 0 0 2 35 15 0\n"
               "intr 12345 0 0\nctxt 99\nprocs_running 7\n");
    load = tt_load_read(folder);
    assert_true(load.average == 13.04);
    assert_int_equal(load.running, 7);
    assert_int_equal(load.cpus, 2);
    assert_true(load.stolen == 70.0);
    assert_true(load.total == 1000.0); /* the time of guests is in the time of users */
    for (int i = 0; i < 2; i++) {
        path = tt_format("%s/%s", folder, i ? "stat" : "loadavg");
        assert_int_equal(unlink(path), 0);
        tt_free(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* 100 Gflop each: half a second by the clock on two threads. */
static struct tt_peak_round round_of(double wall_sec, double processor_sec, bool is_preempted)
{
    return (struct tt_peak_round){100e9, wall_sec, processor_sec, is_preempted};
}

static void the_peak_is_that_of_rounds_without_preemption(void **state)
{
    const struct tt_peak_round quiet[] = {round_of(0.5, 0.99, false), round_of(0.6, 1.19, false)};
    /* a thread that ran alone had a higher clock rate for a while */
    const struct tt_peak_round mixed[] = {round_of(0.5, 0.99, false), round_of(1.6, 0.8, true),
                                          round_of(1.7, 0.8, false), round_of(0.45, 0.9, true)};

    assert_true(fabs(tt_peak_of(quiet, 2, 2) - 200e9) < 1.0);
    assert_true(fabs(tt_peak_of(mixed, 4, 2) - 200e9) < 1.0);
}

static void without_a_quiet_round_the_peak_is_in_processor_time(void **state)
{
    const struct tt_peak_round busy[] = {round_of(5.0, 1.1, true), round_of(3.0, 1.0, true), round_of(9.0, 1.3, true)};
    const struct tt_peak_round uneven[] = {round_of(1.0, 1.0, false)}; /* one of two threads waited for the other */

    assert_true(fabs(tt_peak_of(busy, 3, 2) - 200e9) < 1.0); /* by the clock it would be 33e9 */
    assert_true(fabs(tt_peak_of(uneven, 1, 2) - 200e9) < 1.0);
    assert_true(tt_peak_of(busy, 0, 2) == 0.0);
}

static void expect_pace(int64_t steps, double step_sec, const char *others, const char *wanted)
{
    struct tt_spent spent = {.steps = steps, .step_sec = step_sec};
    struct tt_text text = {0};

    tt_advice_pace(&spent, 0.1, others, &text);
    if (wanted)
        assert_non_null(strstr(text.text ? text.text : "", wanted));
    else
        assert_int_equal(text.size, 0);
    tt_text_release(&text);
}

static void slow_steps_get_a_hint(void **state)
{
    expect_pace(100, 26.0, "", "hint     steps took 2.6 times as long as predicted (100 ms); `titan doctor`");
    expect_pace(100, 26.0, "load 9 on 2 CPUs: others use this machine", "(100 ms); load 9 on 2 CPUs");
    expect_pace(100, 19.0, "", NULL);
    expect_pace(10, 2.6, "", NULL); /* too short to matter, and its first step counts too much */
    expect_pace(0, 0.0, "", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_that_others_use_the_machine),
        cmocka_unit_test(an_idle_machine_and_work_of_the_job_itself_are_no_load),
        cmocka_unit_test(says_that_time_is_stolen),
        cmocka_unit_test(reads_what_the_kernel_writes),
        cmocka_unit_test(the_peak_is_that_of_rounds_without_preemption),
        cmocka_unit_test(without_a_quiet_round_the_peak_is_in_processor_time),
        cmocka_unit_test(slow_steps_get_a_hint),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
