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

static const struct tt_kernels blas = {
    .name = "blas",
#define TT_KERNEL(name, args) .name = tt_##name##_loops,
#include "core/kernels/kernels.def"
#undef TT_KERNEL
};

/* The tables that meson's option `kernels` leaves out are NULL. */
#if defined(TT_HAS_GENERIC)
#define GENERIC &tt_kernels_generic
#else
#define GENERIC NULL
#endif
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
#if defined(TT_HAS_AMX)
#define AMX &tt_kernels_amx
#else
#define AMX NULL
#endif

/* A fact about a processor: with this variant, bfloat16 products run at `gain` times the rate of float32 products. */
struct known {
    const char *vendor;
    int family;
    double gain;
};

/*
 * From the slowest instruction set to the fastest, except for `blas`, whose bits differ from all others. If a slot is
 * NULL, the kernel of `base` is used, and if that is NULL too, the loops. Variants that widen bfloat16 to float32 while
 * they pack it are used wherever they run, the last one first. The others replace only the bfloat16 products and
 * attention of their base; one of them is used if its gain is the largest and above WORTH. On a processor that is not
 * in the table, such a variant must first multiply small matrices correctly and agree with its base about attention,
 * and then its gain is measured. AMX is always treated in this way: titan has run on only one such processor, whose
 * gain varied from 1.9 to 5.8, since others used its host.
 *
 * Sources: AMD: measured on two EPYCs, one of family 26 (BENCHMARKS.md); Intel: measured on family 6, model 207.
 */
static const struct source {
    const char *name;
    const struct tt_kernels *own, *base;
    unsigned feature; /* flag in enum tt_cpu_feature; 0: none */
    const char *needs;
    const char *products;     /* a word for records: how it multiplies bfloat16 */
    const char *instructions; /* the instructions for this; NULL: widens to float32 */
    struct known known[4];
} sources[] = {
    {"blas", &blas, &blas, 0, "", "widened", NULL, {{0}}},
    {"generic", GENERIC, &blas, 0, "", "widened", NULL, {{0}}},
#if defined(__x86_64__)
    {"avx2", AVX2, &blas, TT_CPU_AVX2, "AVX2 and FMA", "widened", NULL, {{0}}},
    {"avx512", AVX512, &blas, TT_CPU_AVX512, "AVX-512 F, BW, VL and DQ", "widened", NULL, {{0}}},
    {"avx512_bf16",
     AVX512_BF16,
     AVX512,
     TT_CPU_AVX512_BF16,
     "AVX-512 F, BW, VL, DQ and BF16",
     "dot",
     "vdpbf16ps",
     {{"AuthenticAMD", 25, 2.0}, {"AuthenticAMD", 26, 2.0}, {"GenuineIntel", 6, 0.5}}},
    {"amx",
     AMX,
     AVX512,
     TT_CPU_AMX,
     "AVX-512 and AMX-BF16, or the system does not permit tiles",
     "tiles",
     "tdpbf16ps",
     {{0}}},
#elif defined(__aarch64__)
    {"neon", &tt_kernels_neon, &blas, TT_CPU_NEON, "NEON", "widened", NULL, {{0}}},
#endif
};
enum { N_SOURCES = sizeof sources / sizeof *sources };
static const double WORTH = 1.25;

static struct tt_kernels variants[N_SOURCES]; /* the variants that this processor supports */
static const struct source *source_of[N_SOURCES];
static double gains[N_SOURCES];  /* gains of bfloat16 products; 1: widened */
static bool measured[N_SOURCES]; /* measured gains, for processors that are not in the table */
static bool wrong[N_SOURCES];    /* variants that multiply wrongly on this processor */
static int n_variants;
static const struct tt_kernels *chosen; /* chosen by TITAN_CPU, else as above */
static const struct tt_kernels *in_use;
static const char *wanted; /* the value of TITAN_CPU if it names no variant */
static bool forced;        /* chosen by TITAN_CPU */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct tt_kernels complete(const struct source *source)
{
    struct tt_kernels table = *source->own;

#define TT_KERNEL(name, args)                                  \
    table.name = table.name ? table.name : source->base->name; \
    table.name = table.name ? table.name : blas.name;
#include "core/kernels/kernels.def"
#undef TT_KERNEL
    table.name = source->name;
    return table;
}

/* --- the rate of products of bfloat16 --- */

/* 0: unknown */
static double known_gain(const struct source *source, const struct tt_cpu *cpu)
{
    if (!source->instructions)
        return 1.0;
    for (const struct known *k = source->known; k->vendor; k++)
        if (strcmp(k->vendor, cpu->vendor) == 0 && k->family == cpu->family)
            return k->gain;
    return 0.0;
}

/* --- the choice --- */

/* The best of n rows with these gains; rows that the processor cannot run have a gain of 0. */
static int pick(const double *gain_of)
{
    int best = 0;

    for (int i = 0; i < N_SOURCES; i++)
        if (gain_of[i] > 0.0 && !sources[i].instructions)
            best = i;
    for (int i = 0; i < N_SOURCES; i++)
        if (sources[i].instructions && gain_of[i] > (sources[best].instructions ? gain_of[best] : WORTH))
            best = i;
    return best;
}

static void choose(void)
{
    const char *name = getenv("TITAN_CPU"); // NOLINT(concurrency-mt-unsafe): nobody sets variables
    const struct tt_cpu cpu = tt_cpu_read();
    double gain_of[N_SOURCES] = {0};
    int best;

    for (int i = 0; i < N_SOURCES; i++) {
        int v = n_variants;

        if (!sources[i].own || (cpu.features & sources[i].feature) != sources[i].feature)
            continue;
        source_of[v] = &sources[i];
        variants[v] = complete(&sources[i]);
        gains[v] = known_gain(&sources[i], &cpu);
        measured[v] = gains[v] == 0.0;
        wrong[i] = measured[v] &&
                   !(tt_bgemm_is_right(variants[v].bgemm) && tt_attention_is_right(&variants[v], sources[i].base));
        if (wrong[i]) {
            tt_warn("products of bfloat16 by %s are wrong on this processor: titan does not use its %s kernels",
                    sources[i].instructions, sources[i].name);
            continue;
        }
        if (measured[v])
            gains[v] = tt_bgemm_gain(&variants[v]);
        gain_of[i] = gains[v];
        n_variants++;
        if (name && strcmp(name, sources[i].name) == 0)
            chosen = &variants[v];
    }
    if (name && *name && !chosen)
        wanted = name;
    forced = chosen != NULL;
    best = pick(gain_of);
    for (int v = 0; v < n_variants && !forced; v++)
        if (source_of[v] == &sources[best])
            chosen = &variants[v];
    in_use = chosen;
}

/* The measured gain; 0 if the row was not built. */
static double gain_here(int source)
{
    (void)pthread_once(&once, choose);
    for (int v = 0; v < n_variants; v++)
        if (source_of[v] == &sources[source])
            return gains[v];
    return 0.0;
}

const char *tt_kernels_pick(const struct tt_cpu *cpu, double (*measure)(const char *name))
{
    double gain_of[N_SOURCES] = {0};

    for (int i = 0; i < N_SOURCES; i++) {
        if ((cpu->features & sources[i].feature) != sources[i].feature)
            continue;
        gain_of[i] = known_gain(&sources[i], cpu);
        if (gain_of[i] == 0.0)
            gain_of[i] = measure ? measure(sources[i].name) : gain_here(i);
    }
    return sources[pick(gain_of)].name;
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
        if (wrong[i])
            rc = tt_fail(
                TT_EUSAGE,
                "TITAN_CPU=%s: products of bfloat16 by %s are wrong on this processor\nhelp: unset it, or one of %s",
                wanted, sources[i].instructions, names.text);
        else if (!sources[i].feature || tt_cpu_has((enum tt_cpu_feature)sources[i].feature))
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

const char *tt_kernels_bits(const struct tt_kernels *kernels, bool bf16)
{
    for (int i = 0; i < N_SOURCES; i++)
        if (strcmp(sources[i].name, kernels->name) == 0 &&
            (sources[i].own == &blas || (bf16 && sources[i].instructions)))
            return sources[i].name;
    return "portable";
}

void tt_kernels_take_fastest(void)
{
    (void)pthread_once(&once, choose);
    if (!forced && in_use == chosen && strcmp(chosen->name, "generic") == 0)
        in_use = chosen = &variants[0];
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

/* --- the variant in use --- */

/* The number of the variant in use; n_variants: a test's own table. */
static int used(void)
{
    int v = 0;

    (void)pthread_once(&once, choose);
    while (v < n_variants && in_use != &variants[v])
        v++;
    return v;
}

const char *tt_kernels_products(void)
{
    int v = used();

    return v < n_variants ? source_of[v]->products : "widened";
}

double tt_kernels_gain(void)
{
    int v = used();

    return v < n_variants ? gains[v] : 1.0;
}

const struct tt_kernels *tt_kernels_fallback(void)
{
    int v = used();

    if (v == n_variants || forced || !source_of[v]->instructions)
        return in_use;
    for (int i = 0; i < n_variants; i++)
        if (source_of[i]->own == source_of[v]->base)
            return &variants[i];
    return in_use;
}

void tt_kernels_text(struct tt_text *out)
{
    int v = used();

    tt_text_add(out, "%s, products of bfloat16 ", in_use->name);
    if (v < n_variants && source_of[v]->instructions)
        tt_text_add(out, "by %s", source_of[v]->instructions);
    else
        tt_text_add(out, "widened to float32");
    for (int i = 0; i < n_variants; i++)
        if (source_of[i]->instructions)
            tt_text_add(out, "; %s runs at %.2g times the rate of float32%s", source_of[i]->instructions, gains[i],
                        measured[i] ? " (measured)" : "");
    if (forced)
        tt_text_add(out, "; TITAN_CPU chose them");
}
