/* SPDX-License-Identifier: MIT
 *
 * What the checks of `titan doctor` report about other systems; the files of each are under its own root folder.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/doctor/doctor.h"
#include "core/base/mem.h"
#include "core/comm/comm.h"
#include "core/os/file.h"

struct place {
    char *root;
    struct tt_comm *comm;
    struct tt_config *cfg;
    struct tt_doctor doctor;
    struct tt_finding finding;
};

static struct place place_make(void)
{
    const char *tmp = getenv("TMPDIR");
    struct place p = {.root = tt_format("%s/titan-doctor.XXXXXX", tmp ? tmp : "/tmp"), .comm = tt_comm_self_new()};

    assert_non_null(mkdtemp(p.root));
    assert_int_equal(tt_config_new(&p.cfg), 0);
    p.doctor =
        (struct tt_doctor){.comm = p.comm, .cfg = p.cfg, .root = p.root, .local_size = 1, .n_hosts = 1, .threads = 1};
    return p;
}

static void place_release(struct place *p)
{
    tt_finding_release(&p->finding);
    tt_config_free(p->cfg);
    tt_comm_free(p->comm);
    assert_int_equal(tt_folder_remove(p->root), 0);
    tt_free(p->root);
}

static void put(const struct place *p, const char *path, const char *text)
{
    char *full = tt_format("%s%s", p->root, path);
    char *slash = strrchr(full, '/');

    *slash = 0;
    assert_int_equal(tt_folder_make(full), 0);
    *slash = '/';
    assert_int_equal(tt_file_replace(full, text, strlen(text)), 0);
    tt_free(full);
}

static void look(struct place *p, int (*check)(const struct tt_doctor *, struct tt_finding *))
{
    tt_finding_release(&p->finding);
    assert_int_equal(check(&p->doctor, &p->finding), 0);
    assert_true(p->finding.found.size > 0);
    assert_int_equal(p->finding.level == TT_DOCTOR_OK, p->finding.help.size == 0);
}

static void huge_pages_that_are_off_are_a_warning(void **state)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    struct place p = place_make();

    look(&p, tt_check_huge_pages);
    assert_int_equal(p.finding.level, TT_DOCTOR_OK); /* not known */
    put(&p, path, "always [madvise] never\n");
    look(&p, tt_check_huge_pages);
    assert_int_equal(p.finding.level, TT_DOCTOR_OK);
    put(&p, path, "always madvise [never]\n");
    look(&p, tt_check_huge_pages);
    assert_int_equal(p.finding.level, TT_DOCTOR_WARNING);
    assert_string_equal(p.finding.found.text, "transparent huge pages: never");
    place_release(&p);
}

static void what_forbids_shared_reads_is_named(void **state)
{
    struct place p = place_make();

    put(&p, "/proc/sys/kernel/yama/ptrace_scope", "0\n");
    put(&p, "/proc/self/status", "Name:\ttitan\nSeccomp:\t0\n");
    look(&p, tt_check_shared_reads);
    assert_int_equal(p.finding.level, TT_DOCTOR_OK);
    put(&p, "/proc/sys/kernel/yama/ptrace_scope", "1\n");
    look(&p, tt_check_shared_reads);
    assert_int_equal(p.finding.level, TT_DOCTOR_WARNING);
    assert_non_null(strstr(p.finding.help.text, "ptrace_scope to 0"));
    assert_null(strstr(p.finding.help.text, "SYS_PTRACE"));
    put(&p, "/proc/self/status", "Name:\ttitan\nSeccomp:\t2\n");
    look(&p, tt_check_shared_reads);
    assert_non_null(strstr(p.finding.help.text, "SYS_PTRACE"));
    place_release(&p);
}

static void memory_that_others_use_is_a_warning(void **state)
{
    struct place p = place_make();

    p.cfg->parallelism.memory_limit = (int64_t)8 << 30;
    put(&p, "/proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    7340032 kB\n");
    look(&p, tt_check_memory);
    assert_int_equal(p.finding.level, TT_DOCTOR_OK);
    assert_string_equal(p.finding.found.text, "16.00 GiB, 7.00 GiB available, a rank may use 8.00 GiB");
    put(&p, "/proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    2097152 kB\n");
    look(&p, tt_check_memory);
    assert_int_equal(p.finding.level, TT_DOCTOR_WARNING);
    put(&p, "/proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    16777216 kB\n");
    put(&p, "/proc/sys/vm/overcommit_memory", "2\n");
    look(&p, tt_check_memory);
    assert_int_equal(p.finding.level, TT_DOCTOR_WARNING);
    assert_non_null(strstr(p.finding.found.text, "refuses to overcommit"));
    place_release(&p);
}

static void fewer_processors_than_ranks_are_a_warning(void **state)
{
    struct place p = place_make();

    look(&p, tt_check_cgroup);
    assert_string_equal(p.finding.found.text, "no limit");
    put(&p, "/proc/self/cgroup", "0::/\n");
    put(&p, "/proc/self/mountinfo", "30 20 0:26 / /cg rw,nosuid - cgroup2 cgroup2 rw\n");
    put(&p, "/cg/cpu.max", "150000 100000\n");
    put(&p, "/cg/memory.max", "1073741824\n");
    look(&p, tt_check_cgroup);
    assert_int_equal(p.finding.level, TT_DOCTOR_OK);
    assert_string_equal(p.finding.found.text, "memory 1.00 GiB, time of 1.5 processors");
    p.doctor.local_size = 2;
    look(&p, tt_check_cgroup);
    assert_int_equal(p.finding.level, TT_DOCTOR_WARNING);
    place_release(&p);
}

static void no_shared_memory_folder_is_a_warning(void **state)
{
    struct place p = place_make();

    look(&p, tt_check_shm);
    assert_int_equal(p.finding.level, TT_DOCTOR_WARNING);
    assert_string_equal(p.finding.found.text, "missing");
    place_release(&p);
}

static void an_error_keeps_its_message_help_and_code(void **state)
{
    struct tt_finding f = {.level = TT_DOCTOR_OK};

    tt_finding_add(&f, "one");
    tt_finding_fail(&f, tt_fail(TT_EFIT, "two\nhelp: do this"));
    tt_finding_warn(&f, "and that");
    assert_int_equal(f.level, TT_DOCTOR_ERROR);
    assert_int_equal(f.rc, TT_EFIT);
    assert_string_equal(f.found.text, "one, two");
    assert_string_equal(f.help.text, "do this; and that");
    tt_finding_release(&f);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(huge_pages_that_are_off_are_a_warning),
        cmocka_unit_test(what_forbids_shared_reads_is_named),
        cmocka_unit_test(memory_that_others_use_is_a_warning),
        cmocka_unit_test(fewer_processors_than_ranks_are_a_warning),
        cmocka_unit_test(no_shared_memory_folder_is_a_warning),
        cmocka_unit_test(an_error_keeps_its_message_help_and_code),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
