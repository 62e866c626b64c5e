/* SPDX-License-Identifier: MIT
 *
 * Cores, packages and binding. hwloc reads the machine that HWLOC_SYNTHETIC describes, if set; each case runs in its
 * own process, since the result is cached.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/os/machine.h"

/* The cores that a process finds on `machine` (NULL: this one) when it is bound to the first n of its processors (0:
 * not bound). `machine` is hwloc's description or its XML. */
static struct tt_cores ask(const char *machine, int n)
{
    struct tt_cores cores = {0};
    int ends[2], status = 0;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    assert_true((child = fork()) >= 0);
    if (child == 0) {
        cpu_set_t all, set;

        CPU_ZERO(&set);
        (void)sched_getaffinity(0, sizeof all, &all);
        for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&set) < n; i++)
            if (CPU_ISSET(i, &all))
                CPU_SET(i, &set);
        if (n > 0)
            (void)sched_setaffinity(0, sizeof set, &set);
        if (machine)
            (void)setenv(strstr(machine, ".xml") ? "HWLOC_XMLFILE" : "HWLOC_SYNTHETIC", machine, 1);
        if (machine && n > 0)
            (void)setenv("HWLOC_THISSYSTEM", "1", 1);
        _exit(write(ends[1], tt_cores(), sizeof cores) == (ssize_t)sizeof cores ? 0 : 1);
    }
    (void)close(ends[1]);
    assert_int_equal(read(ends[0], &cores, sizeof cores), sizeof cores);
    (void)close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    return cores;
}

static void this_machine_has_what_the_kernel_allows(void **state)
{
    struct tt_cores here = ask(NULL, 0), bound = ask(NULL, 1);
    cpu_set_t set;

    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_int_equal(here.bound_hardware_threads, CPU_COUNT(&set));
    assert_in_range(here.bound_cores, 1, here.bound_hardware_threads);
    assert_in_range(here.cores, here.bound_cores, here.hardware_threads);
    assert_in_range(here.packages, 1, here.cores);
    assert_int_equal(bound.bound_hardware_threads, 1);
    assert_int_equal(bound.bound_cores, 1);
    assert_int_equal(bound.cores, here.cores);
    assert_string_equal(bound.model, here.model);
}

static void hardware_threads_are_not_cores(void **state)
{
    struct tt_cores cores = ask("package:2 core:4 pu:2", 0);

    assert_int_equal(cores.packages, 2);
    assert_int_equal(cores.cores, 8);
    assert_int_equal(cores.hardware_threads, 16);
    assert_int_equal(cores.bound_cores, 8);
    assert_string_equal(cores.model, "unknown processor");
}

static void a_core_is_bound_with_any_of_its_threads(void **state)
{
    struct tt_cores cores;
    cpu_set_t set;

    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    if (!CPU_ISSET(0, &set) || !CPU_ISSET(1, &set))
        return; /* the processors of an imagined machine are counted from 0 */
    cores = ask("package:1 core:4 pu:2", 2);
    assert_int_equal(cores.bound_hardware_threads, 2);
    assert_int_equal(cores.bound_cores, 1);
    assert_int_equal(cores.cores, 4);
}

static void without_cores_threads_count(void **state)
{
    struct tt_cores cores = ask("pu:3", 0);

    assert_int_equal(cores.cores, 3);
    assert_int_equal(cores.bound_cores, 3);
    assert_int_equal(cores.packages, 1);
}

/* The name of a processor that Linux describes by these two numbers alone. */
static void assert_arm_name(const char *designer, const char *core, const char *name)
{
    char path[] = "/tmp/titan-cores-XXXXXX.xml";
    int fd = mkstemps(path, 4);

    assert_true(fd >= 0);
    assert_true(dprintf(fd,
                        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                        "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
                        "<topology version=\"2.0\">\n"
                        "  <object type=\"Machine\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" "
                        "allowed_cpuset=\"0x1\" nodeset=\"0x1\" complete_nodeset=\"0x1\" allowed_nodeset=\"0x1\" "
                        "gp_index=\"1\">\n"
                        "    <info name=\"CPUImplementer\" value=\"%s\"/>\n"
                        "    <info name=\"CPUPart\" value=\"%s\"/>\n"
                        "    <object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" "
                        "nodeset=\"0x1\" complete_nodeset=\"0x1\" gp_index=\"2\"/>\n"
                        "    <object type=\"PU\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" "
                        "nodeset=\"0x1\" complete_nodeset=\"0x1\" gp_index=\"3\"/>\n"
                        "  </object>\n"
                        "</topology>\n",
                        designer, core) > 0);
    (void)close(fd);
    assert_string_equal(ask(path, 0).model, name);
    (void)unlink(path);
}

static void arm_cores_have_names(void **state)
{
    assert_arm_name("0x41", "0xd4f", "Arm Neoverse V2");
    assert_arm_name("0x41", "0xfff", "Arm processor, designer 0x41, core 0xfff");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_machine_has_what_the_kernel_allows),
        cmocka_unit_test(hardware_threads_are_not_cores),
        cmocka_unit_test(a_core_is_bound_with_any_of_its_threads),
        cmocka_unit_test(without_cores_threads_count),
        cmocka_unit_test(arm_cores_have_names),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("cores", tests, NULL, NULL);
}
