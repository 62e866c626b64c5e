/* SPDX-License-Identifier: MIT
 *
 * Checks of the program itself and of the processor: cores, binding, threads, kernels.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/doctor/doctor.h"
#include "core/kernels/blas.h"
#include "core/kernels/kernels.h"
#include "core/os/cores.h"
#include "core/os/cpu.h"
#include "trainer/job/facts.h"
#include "trainer/run/revision.h"

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
    if (rc == TT_EUSAGE) { /* other versions, with which no run starts */
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

/* Instruction sets of the processor, and the fastest kernels of titan for them. */
static const char *fastest_kernels(const char **ret_features)
{
    static const struct {
        bool (*has)(void);
        const char *features, *kernels;
    } rows[] = {
        {tt_cpu_has_avx512_bf16, "AVX-512 with bfloat16", "avx512_bf16"},
        {tt_cpu_has_avx512, "AVX-512", "avx512"},
        {tt_cpu_has_avx2, "AVX2", "avx2"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].has())
            continue;
        *ret_features = rows[i].features;
        return rows[i].kernels;
    }
    *ret_features = "neither AVX2 nor AVX-512";
    return "generic";
}

int tt_check_cpu(const struct tt_doctor *d, struct tt_finding *f)
{
    const char *features = NULL, *best = fastest_kernels(&features), *used = tt_kernels()->name;

    (void)d;
    tt_finding_add(f, "%s", features);
    tt_finding_add(f, "titan's kernels: %s", used);
    if (strcmp(used, best) != 0)
        tt_finding_warn(f, "unset TITAN_CPU: this processor can run the %s kernels", best);
    else if (strcmp(best, "generic") == 0)
        tt_finding_warn(f, "steps are several times slower than on a processor with AVX2");
    return 0;
}

/* Whether kernels of OpenBLAS with this name use less than the processor has. */
static bool is_slow(const char *kernel)
{
    static const char *const without_avx512[] = {"Haswell", "Zen", "Excavator"};
    static const char *const without_avx2[] = {
        "Generic", "Prescott",  "Core2",  "Penryn",    "Dunnington", "Nehalem", "Sandybridge", "Atom",  "Nano",
        "Opteron", "Barcelona", "Bobcat", "Bulldozer", "Athlon",     "Katmai",  "Northwood",   "Banias"};

    for (size_t i = 0; tt_cpu_has_avx512() && i < sizeof without_avx512 / sizeof *without_avx512; i++)
        if (strcmp(kernel, without_avx512[i]) == 0)
            return true;
    for (size_t i = 0; tt_cpu_has_avx2() && i < sizeof without_avx2 / sizeof *without_avx2; i++)
        if (strncmp(kernel, without_avx2[i], strlen(without_avx2[i])) == 0)
            return true;
    return false;
}

int tt_check_blas(const struct tt_doctor *d, struct tt_finding *f)
{
    const char *chosen = getenv("OPENBLAS_CORETYPE"); // NOLINT(concurrency-mt-unsafe): nobody sets it

    int rc = tt_blas_load();

    (void)d;
    if (rc < 0 && tt_blas_is_needed()) {
        tt_finding_fail(f, rc);
        return 0;
    }
    tt_finding_add(f, "%s", tt_blas_library());
    if (!tt_sgemm_is_blas()) {
        tt_finding_add(f, "not used: titan multiplies matrices itself with AVX-512");
        return 0;
    }
    if (!is_slow(tt_blas_kernel()))
        return 0;
    tt_finding_add(f, "the %s kernels do not use all of this processor's instructions", tt_blas_kernel());
    if (chosen)
        tt_finding_warn(f, "unset OPENBLAS_CORETYPE");
    else
        tt_finding_warn(f, "install an OpenBLAS that knows this processor: a newer one, built with DYNAMIC_ARCH");
    return 0;
}
