/* SPDX-License-Identifier: MIT
 *
 * The tables of kernel variants and the choice among them, which is made once per process, at the first use.
 */
#include "core/kernels/kernels.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/os/machine.h"

static const struct tt_kernels generic = {
    .name = "generic",
#define TT_KERNEL(name, args) .name = tt_##name##_generic,
#include "core/kernels/kernels.def"
#undef TT_KERNEL
};

static bool always(void)
{
    return true;
}

/* The tables that meson's option `kernels` leaves out are NULL. */
#if defined(TT_HAS_AVX2)
#define AVX2 &tt_kernels_avx2
#else
#define AVX2 NULL
#endif
#if defined(TT_HAS_AVX512)
#define AVX512 &tt_kernels_avx512
#else
#define AVX512 NULL
#endif
#if defined(TT_HAS_AVX512_BF16)
#define AVX512_BF16 &tt_kernels_avx512_bf16
#else
#define AVX512_BF16 NULL
#endif

/* From the slowest to the fastest. If a slot is NULL, base's kernel is used, and if that is NULL too, the portable one.
 */
static const struct source {
    const char *name;
    const struct tt_kernels *own, *base;
    bool (*runs_here)(void);
    const char *needs;
} sources[] = {
    {"generic", &generic, &generic, always, ""},
#if defined(__x86_64__)
    {"avx2", AVX2, &generic, tt_cpu_has_avx2, "AVX2 and FMA"},
    {"avx512", AVX512, &generic, tt_cpu_has_avx512, "AVX-512 F, BW, VL and DQ"},
    {"avx512_bf16", AVX512_BF16, AVX512, tt_cpu_has_avx512_bf16, "AVX-512 F, BW, VL, DQ and BF16"},
#endif
};
enum { N_SOURCES = sizeof sources / sizeof *sources };

static struct tt_kernels variants[N_SOURCES]; /* those that this processor supports */
static int n_variants;
static const struct tt_kernels *chosen; /* by TITAN_CPU, else the fastest */
static const struct tt_kernels *in_use;
static const char *wanted; /* TITAN_CPU if it names none of the variants */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct tt_kernels complete(const struct source *source)
{
    struct tt_kernels table = *source->own;

#define TT_KERNEL(name, args)                                  \
    table.name = table.name ? table.name : source->base->name; \
    table.name = table.name ? table.name : generic.name;
#include "core/kernels/kernels.def"
#undef TT_KERNEL
    return table;
}

static void choose(void)
{
    const char *name = getenv("TITAN_CPU"); // NOLINT(concurrency-mt-unsafe): nobody sets variables

    for (int i = 0; i < N_SOURCES; i++) {
        if (!sources[i].own || !sources[i].runs_here())
            continue;
        variants[n_variants++] = complete(&sources[i]);
        if (name && strcmp(name, sources[i].name) == 0)
            chosen = &variants[n_variants - 1];
    }
    if (name && *name && !chosen)
        wanted = name;
    if (!chosen)
        chosen = &variants[n_variants - 1];
    in_use = chosen;
}

int tt_kernels_check(void)
{
    struct tt_text names = {0};
    int rc;

    (void)pthread_once(&once, choose);
    if (!wanted)
        return 0;
    for (int i = n_variants - 1; i >= 0; i--)
        tt_text_add(&names, "%s%s", variants[i].name, i ? ", " : "");
    for (int i = 0; i < N_SOURCES; i++) {
        if (strcmp(sources[i].name, wanted) != 0)
            continue;
        if (sources[i].runs_here())
            rc = tt_fail(TT_EUSAGE,
                         "TITAN_CPU=%s: this program was built for another processor, without these kernels\nhelp: "
                         "build it with meson's option -Dkernels=all, or set TITAN_CPU to one of %s",
                         wanted, names.text);
        else
            rc = tt_fail(TT_EUSAGE, "TITAN_CPU=%s: this processor lacks %s\nhelp: unset it, or one of %s", wanted,
                         sources[i].needs, names.text);
        goto out;
    }
    rc = tt_fail(TT_EUSAGE, "TITAN_CPU=%s is not a kernel variant\nhelp: unset it, or one of %s", wanted, names.text);
out:
    tt_text_release(&names);
    return rc;
}

const struct tt_kernels *tt_kernels(void)
{
    (void)pthread_once(&once, choose);
    return in_use;
}

const struct tt_kernels *tt_kernels_variant(int i)
{
    (void)pthread_once(&once, choose);
    return i < n_variants ? &variants[i] : NULL;
}

void tt_kernels_use(const struct tt_kernels *kernels)
{
    (void)pthread_once(&once, choose);
    in_use = kernels ? kernels : chosen;
}
