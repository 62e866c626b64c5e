/* SPDX-License-Identifier: MIT
 *
 * The checks, and the functions with which they describe their findings.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "cli/run/segments.h"
#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/os/file.h"
#include "core/os/machine.h"
#include "parallel/comm/mpi.h"
#include "trainer/job/facts.h"
#include "trainer/job/job.h"
#include "trainer/run/revision.h"

#define TT_CHECK(name, scope, function) {name, TT_CHECK_##scope, tt_check_##function},
const struct tt_check tt_checks[] = {
#include "cli/doctor/doctor.def"
};
const int tt_n_checks = sizeof tt_checks / sizeof *tt_checks;

static void add(struct tt_text *to, const char *separator, const char *fmt, va_list args)
{
    char *text = tt_vformat(fmt, args);

    tt_text_add(to, "%s%s", to->size ? separator : "", text);
    tt_free(text);
}

void tt_finding_add(struct tt_finding *f, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    add(&f->found, ", ", fmt, args);
    va_end(args);
}

void tt_finding_warn(struct tt_finding *f, const char *fmt, ...)
{
    va_list args;

    if (f->level < TT_DOCTOR_WARNING)
        f->level = TT_DOCTOR_WARNING;
    va_start(args, fmt);
    add(&f->help, "; ", fmt, args);
    va_end(args);
}

void tt_finding_fail(struct tt_finding *f, int rc)
{
    static const char mark[] = "\nhelp: ";
    const char *message = tt_error_message(), *help = strstr(message, mark);
    int n = (int)(help ? (size_t)(help - message) : strlen(message));

    f->level = TT_DOCTOR_ERROR;
    f->rc = rc;
    tt_finding_add(f, "%.*s", n, message);
    if (help)
        tt_text_add(&f->help, "%s%s", f->help.size ? "; " : "", help + strlen(mark));
}

void tt_finding_release(struct tt_finding *f)
{
    tt_text_release(&f->found);
    tt_text_release(&f->help);
    *f = (struct tt_finding){0};
}

/* The text of a file under doctor->root, without its last newline; NULL if it cannot be read. The caller frees. */
static char *read_text(const struct tt_doctor *doctor, const char *path)
{
    char *full = tt_format("%s%s", doctor->root, path), *text = NULL;
    size_t size = 0;

    if (tt_file_read(full, &text, &size) < 0)
        text = NULL;
    else if (size && text[size - 1] == '\n')
        text[size - 1] = 0;
    tt_free(full);
    return text;
}

/* --- the processor --- */

static const char *variable(const char *name)
{
    return getenv(name); // NOLINT(concurrency-mt-unsafe): titan never calls setenv
}

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

int tt_check_build(const struct tt_doctor *d, struct tt_finding *f)
{
    const char *revision = tt_revision();
    const struct tt_fact fact = {"its revision", revision};
    struct tt_text difference = {0};
    int rc;

    tt_finding_add(f, "%s", TITAN_VERSION);
    if (revision[0])
        tt_finding_add(f, "git %s", revision);
    rc = tt_facts_compare(d->comm, &fact, 1, &difference);
    if (rc == TT_EUSAGE) { /* with different versions no run starts */
        tt_finding_fail(f, rc);
        rc = 0;
    } else if (difference.text) {
        tt_finding_add(f, "%s", difference.text);
        tt_finding_warn(f, "ranks should run the same build: install it on all hosts, or start it from a folder that "
                           "they share");
    }
    tt_text_release(&difference);
    return rc;
}

int tt_check_cores(const struct tt_doctor *d, struct tt_finding *f)
{
    const struct tt_cores *c = tt_cores();

    (void)d;
    tt_finding_add(f, "%s", c->model);
    tt_finding_add(f, "%d core%s", c->cores, plural(c->cores));
    if (c->hardware_threads != c->cores)
        tt_finding_add(f, "%d hardware threads", c->hardware_threads);
    if (c->packages > 1)
        tt_finding_add(f, "%d packages", c->packages);
    return 0;
}

int tt_check_binding(const struct tt_doctor *d, struct tt_finding *f)
{
    const struct tt_cores *c = tt_cores();

    if (c->bound_cores < c->cores) {
        tt_finding_add(f, "bound to %d of %d cores", c->bound_cores, c->cores);
        return 0;
    }
    if (d->local_size == 1) {
        tt_finding_add(f, "one rank on this host, which may use all cores");
        return 0;
    }
    tt_finding_add(f, "not bound: %d ranks may use the same %d core%s", d->local_size, c->cores, plural(c->cores));
    if (d->local_size <= c->cores)
        tt_finding_warn(f, "start the job with `titan launch -n %d -- ...`, which binds each rank to its cores",
                        d->comm->size);
    return 0;
}

int tt_check_threads(const struct tt_doctor *d, struct tt_finding *f)
{
    int cores = tt_cores()->cores, used = d->local_size * d->threads;

    tt_finding_add(f, "%d thread%s a rank, %d rank%s on this host", d->threads, plural(d->threads), d->local_size,
                   plural(d->local_size));
    if (used < cores) {
        tt_finding_add(f, "%d of %d cores idle", cores - used, cores);
        tt_finding_warn(f, "`titan launch -n N -- ...` gives every rank its share of the cores; a quota of the control "
                           "group or parallelism.threads_per_rank may be lower");
    } else if (used > cores) {
        tt_finding_add(f, "more threads than the %d core%s", cores, plural(cores));
        tt_finding_warn(f, "use fewer ranks or a smaller parallelism.threads_per_rank: results are the same, times are "
                           "not");
    }
    return 0;
}

int tt_check_cpu(const struct tt_doctor *d, struct tt_finding *f)
{
    const struct tt_cpu cpu = tt_cpu_read();
    const char *best = tt_kernels_pick(&cpu, NULL);
    struct tt_text kernels = {0};

    (void)d;
    tt_kernels_text(&kernels);
    tt_finding_add(f, "%s",
                   cpu.features & TT_CPU_AMX           ? "AVX-512 and AMX with bfloat16"
                   : cpu.features & TT_CPU_AVX512_BF16 ? "AVX-512 with bfloat16"
                   : cpu.features & TT_CPU_AVX512      ? "AVX-512"
                   : cpu.features & TT_CPU_AVX2        ? "AVX2"
                   : cpu.features & TT_CPU_NEON        ? "NEON"
                                                       : "neither AVX2 nor AVX-512");
    tt_finding_add(f, "titan's kernels: %s", kernels.text);
    if (strcmp(tt_kernels()->name, best) != 0)
        tt_finding_warn(f,
                        variable("TITAN_CPU")
                            ? "unset TITAN_CPU: the %s kernels are faster on this processor"
                            : "this program was built for another processor: for the %s kernels build it with meson's "
                              "option -Dkernels=all",
                        best);
    else if (!(cpu.features & (TT_CPU_AVX2 | TT_CPU_NEON)))
        tt_finding_warn(f, "steps are several times slower than on a processor with AVX2");
    tt_text_release(&kernels);
    return 0;
}

/* Whether OpenBLAS's kernels of this name use fewer features than the processor offers. */
static bool is_slow(const char *kernel)
{
    static const char *const without_avx512[] = {"Haswell", "Zen", "Excavator"};
    static const char *const without_avx2[] = {
        "Generic", "Prescott",  "Core2",  "Penryn",    "Dunnington", "Nehalem", "Sandybridge", "Atom",  "Nano",
        "Opteron", "Barcelona", "Bobcat", "Bulldozer", "Athlon",     "Katmai",  "Northwood",   "Banias"};

    for (size_t i = 0; tt_cpu_has(TT_CPU_AVX512) && i < sizeof without_avx512 / sizeof *without_avx512; i++)
        if (strcmp(kernel, without_avx512[i]) == 0)
            return true;
    for (size_t i = 0; tt_cpu_has(TT_CPU_AVX2) && i < sizeof without_avx2 / sizeof *without_avx2; i++)
        if (strncmp(kernel, without_avx2[i], strlen(without_avx2[i])) == 0)
            return true;
    return false;
}

int tt_check_blas(const struct tt_doctor *d, struct tt_finding *f)
{
    int rc = tt_blas_load();

    (void)d;
    if (rc < 0 && tt_blas_is_needed()) {
        tt_finding_fail(f, rc);
        return 0;
    }
    if (rc < 0) {
        tt_finding_add(f, "none, and not needed: titan multiplies matrices itself on this processor");
        return 0;
    }
    tt_finding_add(f, "%s", tt_blas_library());
    tt_finding_add(f, "%s kernels%s", tt_blas_kernel(),
                   is_slow(tt_blas_kernel()) ? ", which are older than this processor" : "");
    if (!tt_sgemm_is_blas()) {
        tt_finding_add(f, "not used: titan multiplies matrices itself on this processor");
        return 0;
    }
    if (!is_slow(tt_blas_kernel()))
        return 0;
    tt_finding_warn(f, variable("OPENBLAS_CORETYPE")
                           ? "unset OPENBLAS_CORETYPE"
                           : "install an OpenBLAS that knows this processor: a newer one, built with DYNAMIC_ARCH");
    return 0;
}

/* --- the machine --- */

int tt_check_load(const struct tt_doctor *d, struct tt_finding *f)
{
    static const struct timespec a_moment = {.tv_nsec = 200000000};
    char *folder = d->root[0] ? tt_format("%s/proc", d->root) : NULL;
    struct tt_load before = tt_load_read(folder), now;
    struct tt_text text = {0};

    if (!folder)
        (void)nanosleep(&a_moment, NULL);
    now = tt_load_read(folder);
    tt_load_text(&before, &now, 0, &text);
    tt_free(folder);
    if (text.size) {
        tt_finding_add(f, "%s", text.text);
        tt_finding_warn(f, "measured peaks, mfu and predictions are too low while they do: wait, or use a machine of "
                           "your own");
    } else if (now.cpus > 0) {
        tt_finding_add(f, "%.1f on %d CPU%s", now.average, now.cpus, plural(now.cpus));
    } else {
        tt_finding_add(f, "unknown");
    }
    tt_text_release(&text);
    return 0;
}

/* The bytes of a line of /proc/meminfo, such as "MemTotal: 4037 kB"; negative: there is none. */
static double memory_line(const char *text, const char *name)
{
    const char *at = text ? strstr(text, name) : NULL;

    return at ? strtod(at + strlen(name), NULL) * 1024.0 : -1.0;
}

int tt_check_memory(const struct tt_doctor *d, struct tt_finding *f)
{
    char *text = read_text(d, "/proc/meminfo"), *strict = read_text(d, "/proc/sys/vm/overcommit_memory");
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
    char *text = read_text(d, path), *word = text ? strchr(text, '[') : NULL;

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

/* Appends a limit, "8.00 MiB" or "65536", and returns it; RLIM_INFINITY if it cannot be read. */
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
    (void)d;
    if (add_limit(f, RLIMIT_STACK, true) < (rlim_t)4 << 20)
        tt_finding_add(f, "which is little, so titan computes on threads with 8 MiB");
    return 0;
}

int tt_check_open_files(const struct tt_doctor *d, struct tt_finding *f)
{
    (void)d;
    if (add_limit(f, RLIMIT_NOFILE, false) < 1024)
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

int tt_check_locked_memory(const struct tt_doctor *d, struct tt_finding *f)
{
    char *path = tt_format("%s/sys/class/infiniband", d->root), **cards = NULL;
    bool limited = add_limit(f, RLIMIT_MEMLOCK, true) != RLIM_INFINITY;
    int n = 0;

    if (limited && tt_folder_list_found(path, &cards, &n) == 0 && n > 0)
        tt_finding_warn(f, "this host has InfiniBand, which locks the memory it sends from: ulimit -l unlimited");
    else if (limited)
        tt_finding_add(f, "which is enough without InfiniBand");
    tt_names_free(cards, n);
    tt_free(path);
    return 0;
}

/*
 * --- storage ---
 *
 * Checks of the file systems that runs write to. Files written here are removed at once.
 */

struct file_system {
    uint32_t magic; /* statfs(2) */
    const char *name;
    bool is_shared; /* several hosts can access it */
};

static const struct file_system file_systems[] = {
    {0xEF53, "ext4", false},      {0x58465342, "XFS", false},     {0x9123683E, "Btrfs", false},
    {0x2FC12FC1, "ZFS", false},   {0x794C7630, "overlay", false}, {0x01021994, "tmpfs", false},
    {0x6969, "NFS", true},        {0x0BD00BD0, "Lustre", true},   {0x47504653, "GPFS", true},
    {0x19830326, "BeeGFS", true}, {0x00C36400, "Ceph", true},     {0xFF534D42, "CIFS", true},
    {0xFE534D42, "SMB", true},    {0xAAD7AAEA, "PanFS", true},    {0x65735546, "FUSE", true},
    {0x01021997, "9p", true},
};

/* The nearest existing folder at or above a path; the caller frees. */
static char *existing(const char *path)
{
    char *found = tt_strdup(path[0] ? path : ".");
    bool there = false;

    while (tt_path_exists(found, &there) < 0 || !there) {
        char *slash = strrchr(found, '/');

        if (!slash) {
            tt_free(found);
            return tt_strdup(".");
        }
        slash[slash == found] = 0; /* keeps "/" */
    }
    return found;
}

static void look_at_type(const struct tt_doctor *d, const char *folder, struct tt_finding *f)
{
    const struct file_system *fs = NULL;
    struct statfs about;
    bool is_known = statfs(folder, &about) == 0;

    for (size_t i = 0; is_known && i < sizeof file_systems / sizeof *file_systems; i++)
        if (file_systems[i].magic == (uint32_t)about.f_type)
            fs = &file_systems[i];
    if (!fs) {
        tt_finding_add(f, "file system of an unknown type");
        return;
    }
    tt_finding_add(f, "%s", fs->name);
    if (strcmp(fs->name, "tmpfs") == 0)
        tt_finding_warn(f, "this folder takes up memory, and is lost when the machine stops: set job.dump_folder to a "
                           "folder on a disk");
    else if (d->n_hosts > 1 && !fs->is_shared)
        tt_finding_warn(f,
                        "all hosts must see the same folder, and %s is a host's own: set job.dump_folder to one on "
                        "NFS, Lustre or the like",
                        fs->name);
}

/* Opens a temporary file in the folder and removes its name at once; it exists until ret_fd is closed. */
static int open_scratch(const char *folder, int *ret_fd)
{
    char *path = tt_format("%s/.titan-doctor", folder), *name = NULL;
    int rc = 0;

    TT_TRY(tt_file_temporary(path, &name, ret_fd));
    (void)unlink(name);
out:
    tt_free(name);
    tt_free(path);
    return rc;
}

int tt_check_dump_folder(const struct tt_doctor *d, struct tt_finding *f)
{
    static const double little = 0x1p30;
    char *folder = existing(d->cfg->job.dump_folder), text[32];
    int64_t room = tt_folder_free_bytes(folder);
    int fd = -1, rc;

    tt_finding_add(f, "%s", d->cfg->job.dump_folder);
    rc = open_scratch(folder, &fd);
    if (rc < 0) {
        tt_finding_fail(f, rc);
        tt_text_add(&f->help, "%sset job.dump_folder to a folder that can be written", f->help.size ? "; " : "");
        goto out;
    }
    (void)close(fd);
    look_at_type(d, folder, f);
    if (room >= 0)
        tt_finding_add(f, "%s free", tt_text_bytes(text, sizeof text, (double)room));
    if (room >= 0 && (double)room < little)
        tt_finding_warn(f, "make room there, or set job.dump_folder to another disk; `titan plan --checkpoint` prints "
                           "what a checkpoint needs");
out:
    tt_free(folder);
    return 0;
}

/* The speed of writing and syncing for about half a second, in bytes per second; negative: it failed, and errno says
 * why. */
static double write_speed(int fd)
{
    enum { BLOCK = 4 << 20, BLOCKS = 16 };
    char *block = tt_calloc(1, BLOCK);
    double start = tt_clock_sec(), sec = 0.0;
    ssize_t done = 0;
    int n = 0;

    memset(block, 0x5A, BLOCK); /* some file systems do not write zeros to the disk */
    while (n < BLOCKS && sec < 0.5 && (done = write(fd, block, BLOCK)) == BLOCK && fdatasync(fd) == 0) {
        n++;
        sec = tt_clock_sec() - start;
    }
    tt_free(block);
    return n > 0 && sec > 0.0 ? (double)n * BLOCK / sec : -1.0;
}

int tt_check_disk_speed(const struct tt_doctor *d, struct tt_finding *f)
{
    static const double slow = 50e6;
    char *folder = existing(d->cfg->job.dump_folder);
    double rate = -1.0;
    int fd = -1;

    if (open_scratch(folder, &fd) == 0) {
        rate = write_speed(fd);
        (void)close(fd);
    }
    if (rate < 0.0)
        tt_finding_add(f, "not measured: the dump folder cannot be written");
    else
        tt_finding_add(f, "writes %.2g GB/s, synced", rate / 1e9);
    if (rate >= 0.0 && rate < slow)
        tt_finding_warn(f, "checkpoints take long here: use checkpoint.async_mode=async, a larger checkpoint.interval, "
                           "or a faster disk");
    tt_free(folder);
    return 0;
}

int tt_check_shm(const struct tt_doctor *d, struct tt_finding *f)
{
    enum { AGE_SEC = 60 };
    static const double a_rank = 0x1p23; /* Open MPI takes half of it */
    char *shm = tt_format("%s/dev/shm", d->root), *proc = tt_format("%s/proc", d->root), text[32];
    int64_t room = tt_folder_free_bytes(shm);
    int left = tt_segments_left(shm, proc, AGE_SEC);

    if (room < 0) {
        tt_finding_add(f, "missing");
        tt_finding_warn(f, "ranks on one host exchange messages through it: mount a tmpfs at /dev/shm");
    } else {
        tt_finding_add(f, "%s free", tt_text_bytes(text, sizeof text, (double)room));
        if ((double)room < a_rank * d->local_size)
            tt_finding_warn(f,
                            "too little for %d rank%s: remove what is not used there, or give the container more "
                            "(docker run --shm-size=1g)",
                            d->local_size, plural(d->local_size));
    }
    if (left > 0) {
        tt_finding_add(f, "%d segment%s of killed MPI processes", left, plural(left));
        tt_finding_warn(f, "the next `titan train` removes what killed processes left");
    }
    tt_free(shm);
    tt_free(proc);
    return 0;
}

/* --- jobs --- */

/* Whether a program exists in a folder of PATH. */
static bool is_installed(const char *program)
{
    char *path = tt_strdup(variable("PATH") ? variable("PATH") : ""), *rest = NULL;
    bool found = false;

    for (char *folder = strtok_r(path, ":", &rest); folder && !found; folder = strtok_r(NULL, ":", &rest)) {
        char *file = tt_format("%s/%s", folder, program);

        found = access(file, X_OK) == 0;
        tt_free(file);
    }
    tt_free(path);
    return found;
}

int tt_check_mpi(const struct tt_doctor *d, struct tt_finding *f)
{
    int ranks = d->comm->size;

    tt_finding_add(f, "%s", tt_comm_mpi_library());
    if (tt_comm_mpi_launched()) {
        tt_finding_add(f, "%d rank%s on %d host%s", ranks, plural(ranks), d->n_hosts, plural(d->n_hosts));
        return 0;
    }
    tt_finding_add(f, "one process; `titan launch -n N -- doctor` checks ranks too");
    if (!is_installed("mpirun") && !is_installed("srun")) {
        tt_finding_add(f, "neither mpirun nor srun is in PATH");
        tt_finding_warn(f, "more than one rank needs a launcher: install Open MPI's programs (Debian: openmpi-bin), or "
                           "load the module that has them");
    }
    return 0;
}

int tt_check_transports(const struct tt_doctor *d, struct tt_finding *f)
{
    const char *pml = variable("OMPI_MCA_pml"), *btl = variable("OMPI_MCA_btl");

    if (pml)
        tt_finding_add(f, "pml %s", pml);
    if (btl)
        tt_finding_add(f, "btl %s", btl);
    if (!f->found.size)
        tt_finding_add(f, tt_comm_mpi_launched() ? "chosen by Open MPI" : "chosen when ranks start");
    if (btl && btl[0] != '^' && !strstr(btl, "vader") && !strstr(btl, "sm") && d->local_size > 1)
        tt_finding_warn(f, "ranks of one host need shared memory to be fast: add vader (Open MPI 4) or sm (5) to the "
                           "btl");
    return 0;
}

int tt_check_shared_reads(const struct tt_doctor *d, struct tt_finding *f)
{
    const char *wanted = variable("TITAN_PEER_MEMORY");
    struct tt_text why = {0};
    int n = 0;

    for (int r = 0; d->comm->reachable && r < d->comm->size; r++)
        n += r != d->comm->rank && d->comm->reachable[r];
    if (wanted && strcmp(wanted, "off") == 0) {
        tt_finding_add(f, "off");
        tt_finding_warn(f, "ranks of one host exchange messages, which is slower: unset TITAN_PEER_MEMORY");
    } else if (d->local_size > 1 && n == d->local_size - 1) {
        tt_finding_add(f, "each rank can read the memory of the others on its host");
    } else if (!tt_peers_are_readable(d->root, &why)) {
        tt_finding_add(f, "refused by the kernel");
        tt_finding_warn(f, "ranks of one host exchange messages, which is slower: %s", why.text);
    } else if (d->local_size > 1) {
        tt_finding_add(f, "this rank can read %d of the %d others on its host", n, d->local_size - 1);
        tt_finding_warn(f, "ranks of one host exchange messages, which is slower: start them in one container, as one "
                           "user");
    } else {
        tt_finding_add(f, "allowed");
    }
    tt_text_release(&why);
    return 0;
}

/* Finds the host whose clock differs most from that of rank 0, in seconds, measured with an error below `least`.
 * Collective. */
static int measure_clocks(struct tt_comm *comm, double *walls, int *ret_rank, double *ret_skew, double *ret_error)
{
    enum { TRIALS = 5 };
    int rc = 0;

    *ret_error = HUGE_VAL;
    for (int trial = 0; trial < TRIALS; trial++) {
        double before, error, wall;

        TT_TRY(tt_comm_barrier(comm));
        before = tt_clock_wall_sec();
        TT_TRY(tt_comm_barrier(comm)); /* at one moment, all ranks are between the two barriers */
        wall = tt_clock_wall_sec();
        TT_TRY(tt_comm_gather_all(comm, &wall, sizeof wall, walls));
        error = tt_clock_wall_sec() - before;
        if (error >= *ret_error)
            continue;
        *ret_error = error;
        *ret_skew = 0.0;
        for (int r = 0; r < comm->size; r++) {
            if (fabs(walls[r] - walls[0]) >= fabs(*ret_skew)) {
                *ret_skew = walls[r] - walls[0];
                *ret_rank = r;
            }
        }
    }
out:
    return rc;
}

int tt_check_clock(const struct tt_doctor *d, struct tt_finding *f)
{
    static const double much = 1.0;
    double *walls = tt_calloc((size_t)d->comm->size, sizeof *walls), skew = 0.0, error = 0.0;
    int rank = 0, rc = 0;

    if (d->n_hosts == 1) {
        tt_finding_add(f, "one host");
        goto out;
    }
    TT_TRY(measure_clocks(d->comm, walls, &rank, &skew, &error));
    tt_finding_add(f, "hosts differ by at most %.3f s (measured to %.3f s)", fabs(skew), error);
    if (fabs(skew) - error > much) {
        tt_finding_add(f, "most on %s", tt_comm_host(d->comm, rank));
        tt_finding_warn(f, "times of records and files do not agree between hosts: synchronize the clocks (chrony, "
                           "ntpd)");
    }
out:
    tt_free(walls);
    return rc;
}
