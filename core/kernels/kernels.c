/* SPDX-License-Identifier: MIT
 *
 * The tables of kernel variants and the choice among them, which is made once per process, at the first use.
 */
#include "core/kernels/kernels.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pthread.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/kernels/matmul.h"
#include "core/os/machine.h"

/* Trials of kernels that few processors run. Products are checked on small matrices of whole numbers, whose sums are
 * exact in any order. Every product has rows, columns and steps of k that do not fill a tile, and more than one block
 * of k. Attention is compared with another kernel. Speed is measured in processor time. */

enum { ROWS = 37, COLUMNS = 45, DEPTH = TT_BGEMM_DEPTH + 71, AWAY = 3 /* elements between rows */ };
enum { A = (ROWS + AWAY) * (DEPTH + AWAY), B = (COLUMNS + AWAY) * (DEPTH + AWAY), C = ROWS * COLUMNS };
enum { LEFT = ROWS * DEPTH, RIGHT = COLUMNS * DEPTH };

struct trial {
    short *left, *right; /* the numbers of A and of the transpose of B (ROWS, DEPTH), (COLUMNS, DEPTH) */
    tt_bf16 *a, *b, *c;
    float *sums, *scratch, *want; /* the sums and their expected values (ROWS, COLUMNS) */
};

/* In the product's memory order; the elements between rows are NaN. */
static void fill(const struct trial *trial, const struct tt_matmul *gemm)
{
    for (int i = 0; i < A; i++)
        trial->a[i] = 0x7fc0;
    for (int i = 0; i < B; i++)
        trial->b[i] = 0x7fc0;
    for (int p = 0; p < DEPTH; p++) {
        for (int i = 0; i < ROWS; i++)
            trial->a[gemm->trans_a ? p * gemm->lda + i : i * gemm->lda + p] =
                tt_bf16_from_float(trial->left[i * DEPTH + p]);
        for (int j = 0; j < COLUMNS; j++)
            trial->b[gemm->trans_b ? j * gemm->ldb + p : p * gemm->ldb + j] =
                tt_bf16_from_float(trial->right[j * DEPTH + p]);
    }
}

/* acc is one half everywhere. */
static bool multiplies(const struct trial *trial, void (*bgemm)(const struct tt_matmul *gemm), int flags)
{
    struct tt_matmul gemm = {.bf16 = true,
                             .c_bf16 = flags & 1,
                             .trans_a = flags & 2,
                             .trans_b = flags & 4,
                             .m = ROWS,
                             .n = COLUMNS,
                             .k = DEPTH,
                             .a = trial->a,
                             .b = trial->b,
                             .ldc = COLUMNS,
                             .scratch = trial->scratch};

    gemm.lda = (gemm.trans_a ? ROWS : DEPTH) + AWAY;
    gemm.ldb = (gemm.trans_b ? DEPTH : COLUMNS) + AWAY;
    gemm.c = gemm.c_bf16 ? (void *)trial->c : (void *)trial->sums;
    gemm.acc = gemm.c;
    fill(trial, &gemm);
    for (int i = 0; i < C; i++) {
        trial->c[i] = tt_bf16_from_float(0.5F);
        trial->sums[i] = 0.5F;
    }
    bgemm(&gemm);
    for (int i = 0; i < C; i++) {
        float want = trial->want[i] + 0.5F;

        if (gemm.c_bf16 ? trial->c[i] != tt_bf16_from_float(want) : trial->sums[i] != want)
            return false;
    }
    return true;
}

/* Small whole numbers. */
static int left(int i, int p)
{
    return (5 * i + 3 * p) % 17 - 8;
}

static int right(int j, int p)
{
    return (7 * j + 11 * p) % 13 - 6;
}

/* Every start of the program waits for this, so each number is computed once. */
static void set_numbers(const struct trial *trial)
{
    for (int i = 0; i < ROWS; i++)
        for (int p = 0; p < DEPTH; p++)
            trial->left[i * DEPTH + p] = (short)left(i, p);
    for (int j = 0; j < COLUMNS; j++)
        for (int p = 0; p < DEPTH; p++)
            trial->right[j * DEPTH + p] = (short)right(j, p);
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            int sum = 0;

            for (int p = 0; p < DEPTH; p++)
                sum += trial->left[i * DEPTH + p] * trial->right[j * DEPTH + p];
            trial->want[i * COLUMNS + j] = (float)sum;
        }
    }
}

bool tt_bgemm_is_right(void (*bgemm)(const struct tt_matmul *gemm))
{
    const struct tt_matmul sizes = {.bf16 = true, .c_bf16 = true, .m = ROWS, .n = COLUMNS, .k = DEPTH};
    struct trial trial = {.left = tt_calloc(LEFT, sizeof(short)),
                          .right = tt_calloc(RIGHT, sizeof(short)),
                          .a = tt_calloc(A, sizeof(tt_bf16)),
                          .b = tt_calloc(B, sizeof(tt_bf16)),
                          .c = tt_calloc(C, sizeof(tt_bf16)),
                          .sums = tt_calloc(C, sizeof(float)),
                          .want = tt_calloc(C, sizeof(float)),
                          .scratch = tt_calloc((size_t)tt_bgemm_scratch(&sizes), sizeof(float))};
    bool right_always = true;

    set_numbers(&trial);
    for (int flags = 0; flags < 8 && right_always; flags++)
        right_always = multiplies(&trial, bgemm, flags);
    tt_free(trial.left);
    tt_free(trial.right);
    tt_free(trial.a);
    tt_free(trial.b);
    tt_free(trial.c);
    tt_free(trial.sums);
    tt_free(trial.want);
    tt_free(trial.scratch);
    return right_always;
}

/* --- attention --- */

/* A sequence whose rows, keys and heads do not fill a tile; heads of o and do have V elements. */
enum { T = 150, HEADS = 2, E = 40, V = 33 };

/* One result of attention, by the kernels on trial and by others. */
struct outcome {
    tt_bf16 o[T * HEADS * V];
    float lse[T * HEADS];
    float dq[T * HEADS * E], dk[T * E], dv[T * V];
};

static const struct tt_attention_shape trial_shape = {
    .seq_len = T, .heads = HEADS, .kv_heads = 1, .head_dim = E, .value_dim = V};

static void attend(const struct tt_kernels *kernels, const tt_bf16 *some, struct outcome *out, float *scratch)
{
    const tt_bf16 *q = some, *k = q + 5, *v = q + 11, *dout = q + 13;

    for (int64_t h = 0; h < HEADS; h++)
        for (int row = 0; row < T; row += TT_ATTENTION_ROWS)
            kernels->attention_fwd_bf16(out->o + h * V, out->lse + h, q + h * E, k, v, &trial_shape, row,
                                        T - row < TT_ATTENTION_ROWS ? T - row : TT_ATTENTION_ROWS, scratch);
    kernels->attention_bwd_bf16(
        &(struct tt_attention_bf16_grads){out->dq, out->dk, out->dv, dout, q, k, v, out->o, out->lse}, &trial_shape,
        HEADS, 0, T, scratch);
}

/* Kernels may round weights and the gradients of scores to bfloat16, with relative errors of 2^-9. */
static bool are_near(const float *a, const float *b, int n, float near)
{
    bool all = true;

    for (int i = 0; i < n; i++)
        all = all && fabsf(a[i] - b[i]) <= near; /* false for NaN */
    return all;
}

static bool outputs_are_near(const tt_bf16 *a, const tt_bf16 *b)
{
    bool all = true;

    for (int i = 0; i < T * HEADS * V; i++)
        all = all && fabsf(tt_bf16_to_float(a[i]) - tt_bf16_to_float(b[i])) <= 0x1p-6F;
    return all;
}

bool tt_attention_is_right(const struct tt_kernels *kernels, const struct tt_kernels *like)
{
    int64_t forward = tt_attention_fwd_scratch(&trial_shape, true);
    int64_t backward = tt_attention_bwd_scratch(&trial_shape, T, true);
    float *scratch = tt_calloc((size_t)(forward > backward ? forward : backward), sizeof *scratch);
    tt_bf16 *some = tt_calloc(T * HEADS * E + 13, sizeof *some); /* q, and a little later k, v and do */
    struct outcome *got = tt_calloc(2, sizeof *got), *want = got + 1;
    bool agree;

    for (int i = 0; i < T * HEADS * E + 13; i++)
        some[i] = tt_bf16_from_float((float)(left(i, i / 7) + right(i / 3, i)) / 8.0F);
    attend(kernels, some, got, scratch);
    attend(like, some, want, scratch);
    agree = outputs_are_near(got->o, want->o) && are_near(got->lse, want->lse, T * HEADS, 0x1p-12F) &&
            are_near(got->dq, want->dq, T * HEADS * E, 0x1p-4F) && are_near(got->dk, want->dk, T * E, 0x1p-4F) &&
            are_near(got->dv, want->dv, T * V, 0x1p-4F);
    tt_free(some);
    tt_free(got);
    tt_free(scratch);
    return agree;
}

/* --- the rate --- */

/* Floats for the operands of a measured product, and for its scratch. */
enum { M = 96, N = 192, K = 384, ROUNDS = 5 };

/* The processor time of the fastest of several rounds, which is about the same on a busy machine. */
static double seconds_of(void (*kernel)(const struct tt_matmul *), const struct tt_matmul *product)
{
    double least = HUGE_VAL;

    for (int i = 0; i < ROUNDS + 1; i++) { /* the first one touches the memory */
        struct timespec begin, end;

        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        kernel(product);
        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        least = fmin(least, (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec));
    }
    return least;
}

/* The rate of products of bfloat16, as a multiple of float32's, in about a millisecond. The operands are 0, which takes
 * as long as any other number. */
static double bgemm_gain(const struct tt_kernels *kernels)
{
    struct tt_matmul product = {.m = M, .n = N, .k = K, .lda = K, .ldb = N, .ldc = N};
    struct tt_matmul half;
    float *a = tt_calloc((size_t)M * K, sizeof *a), *b = tt_calloc((size_t)N * K, sizeof *b);
    float *c = tt_calloc((size_t)M * N, sizeof *c), *scratch;
    double gain;

    product.a = a;
    product.b = b;
    product.c = c;
    half = product;
    half.bf16 = true;
    scratch = tt_calloc((size_t)(tt_sgemm_scratch(&product) + tt_bgemm_scratch(&half)), sizeof *scratch);
    product.scratch = half.scratch = scratch;
    gain = seconds_of(kernels->sgemm, &product) / seconds_of(kernels->bgemm, &half);
    tt_free(a);
    tt_free(b);
    tt_free(c);
    tt_free(scratch);
    return gain;
}

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
            gains[v] = bgemm_gain(&variants[v]);
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
