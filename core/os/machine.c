/* SPDX-License-Identifier: MIT
 *
 * Cores, packages and binding; processor features; limits of control groups. The only file that includes hwloc.h. If
 * the system reports nothing about cores, as in some containers, every hardware thread counts as a core.
 */
#include "core/os/machine.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <hwloc.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

static struct tt_cores found;

/* The number of objects of a type that contain hardware threads of a set. */
static int count(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_const_cpuset_t set)
{
    int n = 0;

    for (hwloc_obj_t object = NULL; (object = hwloc_get_next_obj_by_type(topology, type, object));)
        n += hwloc_bitmap_intersects(object->cpuset, set);
    return n;
}

static int cores_of(hwloc_topology_t topology, hwloc_const_cpuset_t set)
{
    int n = count(topology, HWLOC_OBJ_CORE, set);

    return n > 0 ? n : count(topology, HWLOC_OBJ_PU, set);
}

/*
 * Loads only what titan uses: no caches, devices or memory sizes. Excludes the component that runs an instruction on
 * every processor in turn: it would move this thread around, and the kernel provides the same facts. On Arm there is no
 * such component, and hwloc treats excluding it as an error.
 */
static int load(hwloc_topology_t topology)
{
    if (hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE) < 0 ||
        hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL) < 0 ||
        hwloc_topology_set_type_filter(topology, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL) < 0)
        return -1;
    (void)hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    return hwloc_topology_load(topology);
}

/* For Arm processors the kernel reports no names, only the numbers of the designer and of the core. */
static const struct {
    long designer, core;
    const char *name;
} arm_cores[] = {
    {0x41, 0xd03, "Arm Cortex-A53"},  {0x41, 0xd08, "Arm Cortex-A72"},  {0x41, 0xd0b, "Arm Cortex-A76"},
    {0x41, 0xd0c, "Arm Neoverse N1"}, {0x41, 0xd40, "Arm Neoverse V1"}, {0x41, 0xd49, "Arm Neoverse N2"},
    {0x41, 0xd4f, "Arm Neoverse V2"}, {0x41, 0xd83, "Arm Neoverse V3"}, {0x41, 0xd84, "Arm Neoverse V3"},
    {0x41, 0xd8e, "Arm Neoverse N3"}, {0x43, 0x0af, "ThunderX2"},       {0x46, 0x001, "Fujitsu A64FX"},
    {0x48, 0xd01, "Kunpeng 920"},     {0xc0, 0xac3, "AmpereOne"},       {0xc0, 0xac4, "AmpereOne"},
};

static void name_arm_core(long designer, long core)
{
    for (size_t i = 0; i < sizeof arm_cores / sizeof *arm_cores; i++) {
        if (arm_cores[i].designer == designer && arm_cores[i].core == core) {
            (void)snprintf(found.model, sizeof found.model, "%s", arm_cores[i].name);
            return;
        }
    }
    (void)snprintf(found.model, sizeof found.model, "Arm processor, designer 0x%02lx, core 0x%03lx", designer, core);
}

static void read_model(hwloc_topology_t topology)
{
    hwloc_obj_t object = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *model, *designer, *core;

    object = object ? object : hwloc_get_root_obj(topology);
    model = hwloc_obj_get_info_by_name(object, "CPUModel");
    designer = hwloc_obj_get_info_by_name(object, "CPUImplementer");
    core = hwloc_obj_get_info_by_name(object, "CPUPart");
    if (model)
        (void)snprintf(found.model, sizeof found.model, "%s", model);
    else if (designer && core)
        name_arm_core(strtol(designer, NULL, 16), strtol(core, NULL, 16));
}

static void read_topology(hwloc_topology_t topology)
{
    hwloc_const_cpuset_t all = hwloc_topology_get_topology_cpuset(topology);
    hwloc_cpuset_t bound = hwloc_bitmap_dup(all);

    found.hardware_threads = count(topology, HWLOC_OBJ_PU, all);
    found.cores = cores_of(topology, all);
    found.packages = count(topology, HWLOC_OBJ_PACKAGE, all);
    found.packages = found.packages > 0 ? found.packages : 1;
    if (hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_THREAD) < 0)
        (void)hwloc_bitmap_copy(bound, all);
    found.bound_hardware_threads = count(topology, HWLOC_OBJ_PU, bound);
    found.bound_cores = cores_of(topology, bound);
    hwloc_bitmap_free(bound);
    read_model(topology);
}

static void find(void)
{
    enum { MORE_THAN_HWLOC_NEEDS = 1 << 20 };
    static const char quiet[] = "HWLOC_HIDE_ERRORS"; /* hwloc complains where there is no /sys */
    bool is_quiet = getenv(quiet) != NULL;           // NOLINT(concurrency-mt-unsafe): threads start later
    int online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    hwloc_topology_t topology;

    /* hwloc does not check all its allocations. If memory has run out, the process ends here, with a message. */
    tt_free(tt_calloc(MORE_THAN_HWLOC_NEEDS, 1));
    found = (struct tt_cores){online, online, 1, online, online, "unknown processor"};
    if (!is_quiet)
        (void)setenv(quiet, "2", 1); // NOLINT(concurrency-mt-unsafe)
    if (hwloc_topology_init(&topology) == 0) {
        if (load(topology) == 0)
            read_topology(topology);
        hwloc_topology_destroy(topology);
    }
    if (!is_quiet)
        (void)unsetenv(quiet); // NOLINT(concurrency-mt-unsafe)
}

const struct tt_cores *tt_cores(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, find);
    return &found;
}

/* ---- processor features: the compiler's run time reads CPUID and, with XGETBV, what the system saves ---- */

#if defined(__x86_64__)
#define HAS(feature) __builtin_cpu_supports(feature)
#else
#define HAS(feature) false
#endif

#if defined(__x86_64__) && defined(__linux__)

/* Whether the processor has tiles for bfloat16, and the system saves and restores them and lets this process use them
 * (the kernel's Documentation/arch/x86/xstate.rst). */
static bool may_use_tiles(void)
{
    enum { ASK = 0x1023 /* ARCH_REQ_XCOMP_PERM */, TILES = 18 /* number of this component of the state */ };
    const unsigned saved = 3U << (TILES - 1), bf16_and_tiles = 1U << 22 | 1U << 24;
    unsigned a = 0, b = 0, c = 0, d = 0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return false;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    if ((a & saved) != saved || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & bf16_and_tiles) != bf16_and_tiles)
        return false;
    return syscall(SYS_arch_prctl, ASK, TILES) == 0;
}

#else

static bool may_use_tiles(void)
{
    return false;
}

#endif

static unsigned has;

static void find_features(void)
{
    if (HAS("avx2") && HAS("fma"))
        has |= TT_CPU_AVX2;
    if (has & TT_CPU_AVX2 && HAS("avx512f") && HAS("avx512bw") && HAS("avx512vl") && HAS("avx512dq"))
        has |= TT_CPU_AVX512;
    if (has & TT_CPU_AVX512 && HAS("avx512bf16"))
        has |= TT_CPU_AVX512_BF16;
    if (has & TT_CPU_AVX512 && may_use_tiles())
        has |= TT_CPU_AMX;
#if defined(__aarch64__)
    has |= TT_CPU_NEON;
#endif
}

static unsigned features(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, find_features);
    return has;
}

bool tt_cpu_has(enum tt_cpu_feature feature)
{
    return features() & (unsigned)feature;
}

struct tt_cpu tt_cpu_read(void)
{
    struct tt_cpu cpu = {.features = features()};
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;

    if (__get_cpuid(0, &a, &b, &c, &d)) {
        memcpy(cpu.vendor, &b, sizeof b);
        memcpy(cpu.vendor + 4, &d, sizeof d);
        memcpy(cpu.vendor + 8, &c, sizeof c);
    }
    if (__get_cpuid(1, &a, &b, &c, &d)) {
        unsigned family = a >> 8 & 15, model = a >> 4 & 15;

        if (family == 6 || family == 15)
            model += (a >> 16 & 15) << 4;
        if (family == 15)
            family += a >> 20 & 255;
        cpu.family = (int)family;
        cpu.model = (int)model;
    }
#endif
    return cpu;
}

/* ---- limits of control groups ---- */

/*
 * /proc/self/cgroup names this process's group in each hierarchy; /proc/self/mountinfo says where the hierarchy is
 * mounted and which group is the root of that mount. In a container that is often the group itself.
 */

/* The text of a kernel file; NULL if there is none. */
static char *read_text(const char *path)
{
    char *text = NULL;
    size_t size = 0;

    if (access(path, F_OK) < 0 && (errno == ENOENT || errno == ENOTDIR))
        return NULL;
    if (tt_file_read(path, &text, &size) < 0)
        tt_warn("%s; a limit in it is not respected", tt_error_message());
    return text;
}

/* Whether a list such as "cpu,cpuacct" contains the word. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == 0 || at[n] == ','))
            return true;
    return false;
}

/* This process's group in the hierarchy of a version 1 controller, or, if controller is NULL, in that of version 2. */
static bool find_group(char *cgroups, const char *controller, char **ret_group)
{
    char *save = NULL;

    for (char *line = strtok_r(cgroups, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;

        if (!path)
            continue;
        *controllers++ = 0;
        *path++ = 0;
        if (controller ? has_word(controllers, controller) : !*controllers && strcmp(line, "0") == 0) {
            *ret_group = tt_strdup(path);
            return true;
        }
    }
    return false;
}

/* Where the hierarchy is mounted, and the group that is the root of the mount. */
static bool find_mount(char *mounts, const char *controller, char **ret_point, char **ret_root)
{
    char *save = NULL;

    for (char *line = strtok_r(mounts, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *rest = strstr(line, " - "), root[4096], point[4096], type[64], options[4096] = "";

        /* the width keeps each within its array: mount ID, parent ID, device, root, mount point */
        if (!rest || sscanf(line, "%*s %*s %*s %4095s %4095s", root, point) != 2 ||
            sscanf(rest, " - %63s %*s %4095s", type, options) < 1)
            continue;
        if (controller ? strcmp(type, "cgroup") == 0 && has_word(options, controller) : strcmp(type, "cgroup2") == 0) {
            *ret_point = tt_strdup(point);
            *ret_root = tt_strdup(root);
            return true;
        }
    }
    return false;
}

/* The text of a file of a group. */
static char *group_text(const char *folder, const char *name)
{
    char *path = tt_format("%s/%s", folder, name), *text = read_text(path);

    tt_free(path);
    return text;
}

/* A number of a group; negative if there is none: no such file, "max", or -1. */
static double group_number(const char *folder, const char *name)
{
    char *text = group_text(folder, name), *end = NULL;
    double number = text ? strtod(text, &end) : -1.0;

    if (end == text)
        number = -1.0;
    tt_free(text);
    return number;
}

/* "0-3,8,10-11" */
static int count_cpus(const char *list)
{
    int n = 0;

    while (list && *list) {
        char *end;
        long first = strtol(list, &end, 10), last = first;

        if (end == list)
            break;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        n += last >= first ? (int)(last - first + 1) : 0;
        list = *end == ',' ? end + 1 : NULL;
    }
    return n;
}

/* Lowers the limits to those in a group's folder, whatever the version. For processors, the nearest group that lists
 * any is decisive; the groups above it have the same ones or more. */
static void read_group(const char *folder, struct tt_limits *limits)
{
    static const char *const memory[] = {"memory.max", "memory.high", "memory.limit_in_bytes"};
    static const char *const cpusets[] = {"cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"};
    double quota = group_number(folder, "cpu.cfs_quota_us"), period = group_number(folder, "cpu.cfs_period_us");
    char *text = group_text(folder, "cpu.max"), *end;

    if (text) {
        quota = strtod(text, &end); /* "max 100000": no limit */
        period = strtod(end, NULL);
    }
    tt_free(text);
    if (quota > 0.0 && period > 0.0)
        limits->cpus = fmin(limits->cpus, quota / period);
    for (int i = 0; i < 3; i++) { /* in version 1, 2^63 - 4096 means no limit */
        double bytes = group_number(folder, memory[i]);

        limits->memory_bytes = bytes >= 0.0 ? fmin(limits->memory_bytes, bytes) : limits->memory_bytes;
    }
    for (int i = 0; i < 3 && !limits->cpuset; i++) {
        text = group_text(folder, cpusets[i]);
        limits->cpuset = count_cpus(text);
        tt_free(text);
    }
}

/* Visits the groups up to the root of the mount. For a group outside the mount, as in a container, the walk begins at
 * the root. */
static void walk(const char *root, const char *point, const char *mount_root, const char *group,
                 struct tt_limits *limits)
{
    size_t n = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    bool inside = strncmp(group, mount_root, n) == 0 && (group[n] == '/' || !group[n]) && !strstr(group, "/..");
    char *folder = tt_format("%s%s%s", root, point, inside ? group + n : "");
    size_t top = strlen(root) + strlen(point);

    for (;;) {
        size_t size = strlen(folder);

        while (size > top && folder[size - 1] == '/')
            folder[--size] = 0;
        read_group(folder, limits);
        if (size <= top)
            break;
        *strrchr(folder, '/') = 0;
    }
    tt_free(folder);
}

static void read_hierarchy(const char *root, const char *controller, struct tt_limits *limits)
{
    char *files[] = {tt_format("%s/proc/self/cgroup", root), tt_format("%s/proc/self/mountinfo", root)};
    char *cgroups = read_text(files[0]), *mounts = read_text(files[1]);
    char *group = NULL, *point = NULL, *mount_root = NULL;

    if (cgroups && mounts && find_group(cgroups, controller, &group) &&
        find_mount(mounts, controller, &point, &mount_root))
        walk(root, point, mount_root, group, limits);
    tt_free(group);
    tt_free(point);
    tt_free(mount_root);
    tt_free(cgroups);
    tt_free(mounts);
    tt_free(files[0]);
    tt_free(files[1]);
}

struct tt_limits tt_limits_read(const char *root)
{
    struct tt_limits limits = {.memory_bytes = HUGE_VAL, .cpus = HUGE_VAL};

    read_hierarchy(root, NULL, &limits);
    read_hierarchy(root, "memory", &limits);
    read_hierarchy(root, "cpu", &limits);
    read_hierarchy(root, "cpuset", &limits);
    return limits;
}

/* ---- load ---- */

/* A line of /proc/stat: "cpu  user nice system idle iowait irq softirq steal ...", the sums over all processors. */
static void read_times(const char *line, struct tt_load *load)
{
    enum { TIMES = 8, STEAL = 7 };
    char *end = (char *)(uintptr_t)line + strlen("cpu ");

    for (int i = 0; i < TIMES; i++) {
        double ticks = strtod(end, &end);

        load->total += ticks;
        if (i == STEAL)
            load->stolen = ticks;
    }
}

/* The text of a file, NULL if it cannot be read: nothing depends on it. Inlined, gcc 12 warns of a dangling pointer. */
static __attribute__((noinline)) char *try_text(const char *folder, const char *name)
{
    char *path = tt_format("%s/%s", folder, name), *text = NULL;
    size_t size = 0;

    if (tt_file_read(path, &text, &size) < 0)
        text = NULL;
    tt_free(path);
    return text;
}

struct tt_load tt_load_read(const char *folder)
{
    const char *told = getenv("TITAN_PROC"); // NOLINT(concurrency-mt-unsafe): nobody sets it
    struct tt_load load = {0};
    char *text, *end;

    folder = folder ? folder : told ? told : "/proc";
    text = try_text(folder, "loadavg"); /* "0.20 0.18 0.12 1/80 11206" */
    if (text) {
        load.average = strtod(text, &end);
        (void)strtod(end, &end); /* the means over five and fifteen minutes */
        (void)strtod(end, &end);
        load.running = (int)strtol(end, NULL, 10);
    }
    tt_free(text);
    text = try_text(folder, "stat");
    if (text && strncmp(text, "cpu ", 4) == 0)
        read_times(text, &load);
    for (const char *at = text; at && (at = strstr(at, "\ncpu")); at++)
        load.cpus++;
    tt_free(text);
    return load;
}

void tt_load_text(const struct tt_load *before, const struct tt_load *now, int own, struct tt_text *out)
{
    /* With one process more than there are processors, two of them already run a third slower; besides, the mean lags
     * behind. */
    static const double crowd = 1.5, theft = 0.05;
    double cpus = now->cpus, total = now->total - before->total, stolen = now->stolen - before->stolen;
    bool crowded = now->average >= crowd * cpus && now->average - own >= (crowd - 1.0) * cpus;

    if (now->cpus > 0 && crowded && now->running > now->cpus)
        tt_text_add(out, "load %.0f on %d CPU%s: others use this machine", now->average, now->cpus,
                    now->cpus == 1 ? "" : "s");
    else if (total > 0.0 && stolen >= theft * total && stolen > 1.0)
        tt_text_add(out, "%.0f %% of processor time is stolen by other VMs", 100.0 * stolen / total);
}

/* ---- reading the memory of other processes: Yama, a security module, or a container's filter can forbid it ---- */

/* The number that follows `row` in a file, or at its start if row is ""; 0 if it is not there. */
static long number_in(const char *root, const char *path, const char *row)
{
    char *text = try_text(root, path);
    const char *at = text ? strstr(text, row) : NULL;
    long number = at ? strtol(at + strlen(row), NULL, 10) : 0;

    tt_free(text);
    return number;
}

bool tt_peers_are_readable(const char *root, struct tt_text *ret_why)
{
    bool yama = number_in(root, "proc/sys/kernel/yama/ptrace_scope", "") != 0;
    bool filter = number_in(root, "proc/self/status", "Seccomp:") != 0;

    if (yama && ret_why)
        tt_text_add(ret_why, "set kernel.yama.ptrace_scope to 0 (sysctl)");
    if (filter && ret_why)
        tt_text_add(ret_why, "%sstart the container with the capability SYS_PTRACE", yama ? " and " : "");
    return !yama && !filter;
}
