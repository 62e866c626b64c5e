/* SPDX-License-Identifier: MIT
 *
 * Memory limits of control groups; each case makes its own root folder.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/os/file.h"
#include "core/os/machine.h"

struct file {
    const char *path, *text;
};

/* The limits that titan reads from a root with these files. */
static struct tt_limits limits_of(const struct file *files, size_t n)
{
    const char *tmp = getenv("TMPDIR");
    char *root = tt_format("%s/titan-limits.XXXXXX", tmp ? tmp : "/tmp");
    struct tt_limits limits;

    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < n; i++) {
        char *path = tt_format("%s/%s", root, files[i].path), *folder = tt_strdup(path);

        *strrchr(folder, '/') = 0;
        assert_int_equal(tt_folder_make(folder), 0);
        assert_int_equal(tt_file_replace(path, files[i].text, strlen(files[i].text)), 0);
        tt_free(folder);
        tt_free(path);
    }
    limits = tt_limits_read(root);
    assert_int_equal(tt_folder_remove(root), 0);
    tt_free(root);
    return limits;
}

#define LIMITS_OF(...) \
    limits_of((const struct file[]){__VA_ARGS__}, sizeof((const struct file[]){__VA_ARGS__}) / sizeof(struct file))

#define MOUNT_V2 \
    "24 1 0:22 / /proc rw - proc proc rw\n35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"

#define MOUNTS_V1                                                                          \
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n" \
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"  \
    "36 31 0:33 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"           \
    "37 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n"

static void without_control_groups_there_is_no_limit(void **state)
{
    struct tt_limits limits = LIMITS_OF({"etc/hostname", "x"});

    assert_true(isinf(limits.memory_bytes) && isinf(limits.cpus) && limits.cpuset == 0);
}

/* Slurm with version 2: the limit is on the job's group; the task's group, below it, has none. */
static void the_smallest_limit_on_the_way_up_counts(void **state)
{
    struct tt_limits limits =
        LIMITS_OF({"proc/self/cgroup", "0::/system.slice/job_7/step_0/task_1\n"}, {"proc/self/mountinfo", MOUNT_V2},
                  {"sys/fs/cgroup/cgroup.procs", "1\n"}, {"sys/fs/cgroup/system.slice/memory.max", "8589934592\n"},
                  {"sys/fs/cgroup/system.slice/job_7/memory.max", "4294967296\n"},
                  {"sys/fs/cgroup/system.slice/job_7/cpu.max", "300000 100000\n"},
                  {"sys/fs/cgroup/system.slice/job_7/step_0/memory.max", "max\n"},
                  {"sys/fs/cgroup/system.slice/job_7/step_0/cpuset.cpus.effective", "0-2,8,10-11\n"},
                  {"sys/fs/cgroup/system.slice/job_7/step_0/task_1/memory.max", "max\n"},
                  {"sys/fs/cgroup/system.slice/job_7/step_0/task_1/cpu.max", "max 100000\n"});

    assert_true(limits.memory_bytes == 0x1p32);
    assert_true(limits.cpus == 3.0);
    assert_int_equal(limits.cpuset, 6);
}

static void memory_high_counts_too(void **state)
{
    struct tt_limits limits =
        LIMITS_OF({"proc/self/cgroup", "0::/a\n"}, {"proc/self/mountinfo", MOUNT_V2},
                  {"sys/fs/cgroup/a/memory.max", "2147483648\n"}, {"sys/fs/cgroup/a/memory.high", "1073741824\n"});

    assert_true(limits.memory_bytes == 0x1p30);
}

/* Version 1: every hierarchy has a group, and controllers may share a mount. */
static void version_1_has_a_group_per_hierarchy(void **state)
{
    struct tt_limits limits = LIMITS_OF(
        {"proc/self/cgroup", "9:name=systemd:/x\n4:memory:/slurm/uid_1/job_2/step_0\n3:cpuset:/slurm/uid_1/job_2\n"
                             "1:cpuacct,cpu:/docker\n0::/\n"},
        {"proc/self/mountinfo", MOUNTS_V1}, {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
        {"sys/fs/cgroup/memory/slurm/uid_1/job_2/memory.limit_in_bytes", "1073741824\n"},
        {"sys/fs/cgroup/memory/slurm/uid_1/job_2/step_0/memory.limit_in_bytes", "2147483648\n"},
        {"sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "150000\n"},
        {"sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n"},
        {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"},
        {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"},
        {"sys/fs/cgroup/cpuset/slurm/uid_1/job_2/cpuset.cpus", "4-7\n"});

    assert_true(limits.memory_bytes == 0x1p30);
    assert_true(limits.cpus == 1.5);
    assert_int_equal(limits.cpuset, 4);
}

/* A container that sees the host's names: the root of the mount is its own group. */
static void a_mount_may_begin_inside_the_hierarchy(void **state)
{
    static const char mount[] = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n";
    struct tt_limits limits =
        LIMITS_OF({"proc/self/cgroup", "4:memory:/docker/abc/inner\n"}, {"proc/self/mountinfo", mount},
                  {"sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"},
                  {"sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "2147483648\n"});

    assert_true(limits.memory_bytes == 0x1p30);
}

/* The group is not below the mount, as in a container that has its own cgroup namespace and was entered from
 * outside. */
static void a_group_outside_of_the_mount_is_its_root(void **state)
{
    struct tt_limits limits =
        LIMITS_OF({"proc/self/cgroup", "0::/../other\n"}, {"proc/self/mountinfo", MOUNT_V2},
                  {"sys/fs/cgroup/memory.max", "1073741824\n"}, {"sys/fs/other/memory.max", "1\n"});

    assert_true(limits.memory_bytes == 0x1p30);
}

/* The group was removed or its folder is hidden: the limits of the groups above it still apply. */
static void a_group_that_is_gone_leaves_those_above(void **state)
{
    struct tt_limits limits = LIMITS_OF({"proc/self/cgroup", "0::/job/gone/task\n"}, {"proc/self/mountinfo", MOUNT_V2},
                                        {"sys/fs/cgroup/job/memory.max", "1073741824\n"});

    assert_true(limits.memory_bytes == 0x1p30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_control_groups_there_is_no_limit),
        cmocka_unit_test(the_smallest_limit_on_the_way_up_counts),
        cmocka_unit_test(memory_high_counts_too),
        cmocka_unit_test(version_1_has_a_group_per_hierarchy),
        cmocka_unit_test(a_mount_may_begin_inside_the_hierarchy),
        cmocka_unit_test(a_group_outside_of_the_mount_is_its_root),
        cmocka_unit_test(a_group_that_is_gone_leaves_those_above),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
