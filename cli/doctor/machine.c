/* SPDX-License-Identifier: MIT
 *
 * Checks of memory and of what the system allows a process.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <sys/resource.h>

#include "cli/doctor/doctor.h"
#include "core/base/mem.h"
#include "core/kernels/blas.h"
#include "core/os/limits.h"
#include "trainer/job/job.h"

/* A line "MemTotal:  4037 kB" of /proc/meminfo, in bytes; negative: not there. */
static double memory_line(const char *text, const char *name)
{
    const char *at = text ? strstr(text, name) : NULL;

    return at ? strtod(at + strlen(name), NULL) * 1024.0 : -1.0;
}

int tt_check_memory(const struct tt_doctor *d, struct tt_finding *f)
{
    char *text = tt_doctor_read(d, "/proc/meminfo"), *strict = tt_doctor_read(d, "/proc/sys/vm/overcommit_memory");
    double total = memory_line(text, "MemTotal:"), have = memory_line(text, "MemAvailable:");
    double limit = (double)tt_job_memory_limit(d->cfg, d->local_size);
    char a[32], b[32];

    if (total >= 0.0)
        tt_finding_add(f, "%s", tt_text_bytes(a, sizeof a, total));
    if (have >= 0.0)
        tt_finding_add(f, "%s available", tt_text_bytes(a, sizeof a, have));
    tt_finding_add(f, "a rank may use %s", tt_text_bytes(b, sizeof b, limit));
    if (have >= 0.0 && have < limit * d->local_size / 2.0)
        tt_finding_warn(f, "other programs use memory that titan counts on: end them, or set parallelism.memory_limit "
                           "to what is left for a rank");
    if (strict && strtol(strict, NULL, 10) == 2) {
        tt_finding_add(f, "the kernel refuses to overcommit");
        tt_finding_warn(
            f, "address space counts as memory here: use fewer ranks or threads, or set vm.overcommit_memory to 0");
    }
    tt_free(text);
    tt_free(strict);
    return 0;
}

int tt_check_cgroup(const struct tt_doctor *d, struct tt_finding *f)
{
    struct tt_limits limits = tt_limits_read(d->root);
    char text[32];

    if (isfinite(limits.memory_bytes) && limits.memory_bytes < 0x1p60)
        tt_finding_add(f, "memory %s", tt_text_bytes(text, sizeof text, limits.memory_bytes));
    if (isfinite(limits.cpus))
        tt_finding_add(f, "time of %.1f processors", limits.cpus);
    if (limits.cpuset > 0)
        tt_finding_add(f, "a set of %d hardware threads", limits.cpuset);
    if (!f->found.size)
        tt_finding_add(f, "no limit");
    if (limits.cpus < d->local_size) {
        tt_finding_add(f, "%d ranks on this host", d->local_size);
        tt_finding_warn(f, "ranks take turns: give the container or job at least one processor for each rank");
    }
    return 0;
}

int tt_check_huge_pages(const struct tt_doctor *d, struct tt_finding *f)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    char *text = tt_doctor_read(d, path), *word = text ? strchr(text, '[') : NULL;

    if (!word) {
        tt_finding_add(f, "not known: no %s", path);
    } else {
        word[strcspn(word, "]")] = 0;
        tt_finding_add(f, "transparent huge pages: %s", word + 1);
        if (strcmp(word + 1, "never") == 0)
            tt_finding_warn(f, "large arrays are slower in small pages: as root, echo madvise >%s", path);
    }
    tt_free(text);
    return 0;
}

/* --- limits of the process --- */

/* A limit, "8.00 MiB" or "65536"; RLIM_INFINITY if it cannot be read. */
static rlim_t add_limit(struct tt_finding *f, int resource, bool is_bytes)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    char text[32];

    if (getrlimit((__rlimit_resource_t)resource, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        tt_finding_add(f, "unlimited");
    else if (is_bytes)
        tt_finding_add(f, "%s", tt_text_bytes(text, sizeof text, (double)limit.rlim_cur));
    else
        tt_finding_add(f, "%" PRIu64, (uint64_t)limit.rlim_cur);
    return limit.rlim_cur;
}

int tt_check_address_space(const struct tt_doctor *d, struct tt_finding *f)
{
    int rc;

    (void)add_limit(f, RLIMIT_AS, true);
    if ((rc = tt_blas_check_room(d->threads)) < 0)
        tt_finding_fail(f, rc);
    return 0;
}

int tt_check_stack(const struct tt_doctor *d, struct tt_finding *f)
{
    static const rlim_t least = (rlim_t)4 << 20;

    (void)d;
    if (add_limit(f, RLIMIT_STACK, true) < least)
        tt_finding_add(f, "which is little, so titan computes on threads with 8 MiB");
    return 0;
}

int tt_check_open_files(const struct tt_doctor *d, struct tt_finding *f)
{
    static const rlim_t least = 1024;

    (void)d;
    if (add_limit(f, RLIMIT_NOFILE, false) < least)
        tt_finding_warn(f, "launchers and checkpoints of many ranks need more: ulimit -n 4096");
    return 0;
}

int tt_check_file_size(const struct tt_doctor *d, struct tt_finding *f)
{
    (void)d;
    if (add_limit(f, RLIMIT_FSIZE, true) != RLIM_INFINITY)
        tt_finding_warn(f, "larger files of checkpoints and token caches cannot be written: ulimit -f unlimited");
    return 0;
}

/* Whether a folder has anything in it. */
static bool has_entries(const struct tt_doctor *d, const char *path)
{
    char *full = tt_format("%s%s", d->root, path);
    DIR *folder = opendir(full);
    bool found = false;

    for (struct dirent *e; folder && (e = readdir(folder));) // NOLINT(concurrency-mt-unsafe): a stream of its own
        found = found || e->d_name[0] != '.';
    if (folder)
        (void)closedir(folder);
    tt_free(full);
    return found;
}

int tt_check_locked_memory(const struct tt_doctor *d, struct tt_finding *f)
{
    bool limited = add_limit(f, RLIMIT_MEMLOCK, true) != RLIM_INFINITY;

    if (limited && has_entries(d, "/sys/class/infiniband"))
        tt_finding_warn(f, "this host has InfiniBand, which locks the memory it sends from: ulimit -l unlimited");
    else if (limited)
        tt_finding_add(f, "which is enough without InfiniBand");
    return 0;
}
