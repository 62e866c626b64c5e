/* SPDX-License-Identifier: MIT
 *
 * Cores, packages and binding; the only file that includes hwloc.h. Where the system tells nothing about cores, as in
 * some containers, every hardware thread counts as a core.
 */
#include "core/os/cores.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <pthread.h>
#include <unistd.h>

#include <hwloc.h>

#include "core/base/mem.h"

static struct tt_cores found;

/* Objects of a type that have hardware threads of a set. */
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
 * Only what is asked for: no caches, devices or memory sizes. The component that runs an instruction on every processor
 * in turn is left out, since it moves this thread about; the kernel knows the same.
 */
static int load(hwloc_topology_t topology)
{
    if (hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE) < 0 ||
        hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL) < 0 ||
        hwloc_topology_set_type_filter(topology, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL) < 0 ||
        hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86") < 0)
        return -1;
    return hwloc_topology_load(topology);
}

static void read_model(hwloc_topology_t topology)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *model = hwloc_obj_get_info_by_name(package ? package : hwloc_get_root_obj(topology), "CPUModel");

    if (model)
        (void)snprintf(found.model, sizeof found.model, "%s", model);
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
