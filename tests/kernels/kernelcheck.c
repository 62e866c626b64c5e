/* SPDX-License-Identifier: MIT
 *
 * kernelcheck [--bench] [--seed=N] [kernel]
 * kernelcheck --has=VARIANT      exit 0 if this processor runs it, 2 if it is the one that titan chooses here anyway
 *
 * Runs the cases of the check_*.c files on all variants of the kernels that this processor can run, and on the
 * reference, whose guards are checked too. The vector variants, and their portable sources compiled for 16 lanes,
 * must agree to the bit. Prints a line for each kernel and variant: the number of values compared,
 * and the largest error as a share of the tolerance and in units of the last place. --bench prints GB/s or GF/s of
 * every variant, from the cases of tests/kernels/kernel_bench.c.
 */
#include "tests/kernels/kernelcheck.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "tests/help/sweep.h"
#include "tests/kernels/kernel_bench.h"

enum { MAX_ARRAYS = 128, MESSAGES = 5 };
static const int64_t GUARD = 64; /* floats on each side */

static struct {
    void *memory; /* guards included */
    int64_t n;    /* elements between the guards; 0: no guards */
} arrays[MAX_ARRAYS];
static int n_arrays;

static const uint32_t guard_bits = UINT32_C(0x7fe5a5a5); /* a NaN */

float *check_array(struct check *check, int64_t n)
{
    float *memory = tt_calloc((size_t)(n + 2 * GUARD), sizeof *memory);

    (void)check;
    if (n_arrays == MAX_ARRAYS)
        abort();
    for (int64_t i = 0; i < n + 2 * GUARD; i++)
        memcpy(memory + i, &guard_bits, sizeof guard_bits);
    arrays[n_arrays].memory = memory;
    arrays[n_arrays++].n = n;
    return memory + GUARD;
}

static float draw(struct check *check, enum fill fill)
{
    double x = tt_rng_normal(&check->rng, check->drawn++, 0.0);

    switch (fill) {
    case FILL_TINY:
        return (float)(x * 1e-40);
    case FILL_LARGE:
        return (float)(x * 1e12);
    case FILL_ZERO:
        return 0.0F;
    default:
        return (float)x;
    }
}

float *check_filled(struct check *check, int64_t n, enum fill fill)
{
    float *x = check_array(check, n);

    for (int64_t i = 0; i < n; i++)
        x[i] = draw(check, fill);
    if (fill == FILL_NAN)
        x[check_draw(check, n)] = NAN;
    return x;
}

int32_t *check_labels(struct check *check, int64_t n, int64_t limit, bool ignored)
{
    int32_t *labels = (int32_t *)(void *)check_array(check, n);

    for (int64_t i = 0; i < n; i++)
        labels[i] = ignored && i % 5 == 4 ? TT_LABEL_IGNORED : (int32_t)check_draw(check, limit);
    return labels;
}

float *check_copy(struct check *check, const float *x, int64_t n)
{
    return memcpy(check_array(check, n), x, (size_t)n * sizeof *x);
}

double *check_doubles(struct check *check, int64_t n)
{
    double *x = tt_calloc((size_t)n, sizeof *x);

    (void)check;
    if (n_arrays == MAX_ARRAYS)
        abort();
    arrays[n_arrays].memory = x;
    arrays[n_arrays++].n = 0;
    return x;
}

int64_t check_draw(struct check *check, int64_t n)
{
    return (int64_t)(tt_rng_bits(&check->rng, check->drawn++) % (uint64_t)n);
}

bool check_skips(const struct check *check, int i)
{
    bool emulated = strcmp(check->table->name, "amx_emulated") == 0;

    return i % 3 != 0 && (SWEEP_SANITIZED || (emulated && sweep_stride() > 1));
}

double check_ulp(double x)
{
    if (!isfinite(x))
        return 0.0;
    return x < (double)FLT_MIN ? 0x1p-149 : ldexp(1.0, ilogb(x) - 23);
}

static void fail(struct check *check, const char *shape, const char *message)
{
    if (check->failures++ < MESSAGES)
        printf("# %s (%s) %s: %s\n", check->kernel, check->table->name, shape, message);
}

/* Adds a result to the hash; all NaNs count as one. */
static void add_bits(struct check *check, float x)
{
    uint32_t bits = UINT32_C(0x7fc00000);

    if (x == x) // NOLINT(misc-redundant-expression)
        memcpy(&bits, &x, sizeof bits);
    check->bits = (check->bits ^ bits) * UINT64_C(0x100000001b3);
    check->bits ^= check->bits >> 29;
}

void check_compare(struct check *check, const char *what, const char *shape, const float *got, const float *want,
                   int64_t n, const double *tolerance, double ulps)
{
    char message[160];

    for (int64_t i = 0; i < n; i++, check->compared++) {
        double g = (double)got[i], w = (double)want[i], ulp = check_ulp(fabs(w));
        double allowed = tolerance ? tolerance[i] : ulps * ulp, error = fabs(g - w);

        add_bits(check, got[i]);
        if (!isfinite(w) && !isfinite(g))
            continue;
        if (isfinite(w) && isfinite(g) && error <= allowed) {
            check->worst = fmax(check->worst, allowed > 0.0 ? error / allowed : 0.0);
            if (allowed < 64.0 * ulp)
                check->worst_ulp = fmax(check->worst_ulp, error / ulp);
            continue;
        }
        (void)snprintf(message, sizeof message, "%s[%lld] is %.9g, wanted %.9g +- %.2g", what, (long long)i, g, w,
                       allowed);
        fail(check, shape, message);
    }
}

void check_compare_rows(struct check *check, const char *what, const char *shape, const struct tt_matmul *g,
                        const float *got, const float *want, const double *near)
{
    for (int64_t i = 0; i < g->m; i++)
        check_compare(check, what, shape, got + i * g->ldc, want + i * g->ldc, g->n, near ? near + i * g->ldc : NULL,
                      0.0);
}

static bool is_guard(const float *x)
{
    uint32_t bits;

    memcpy(&bits, x, sizeof bits);
    return bits == guard_bits;
}

void check_reset(struct check *check, const char *shape)
{
    for (int a = 0; a < n_arrays; a++) {
        const float *memory = arrays[a].memory;

        for (int64_t i = 0; arrays[a].n && i < GUARD; i++) {
            if (!is_guard(memory + i) || !is_guard(memory + GUARD + arrays[a].n + i)) {
                fail(check, shape, "wrote outside an array");
                break;
            }
        }
        tt_free(arrays[a].memory);
    }
    n_arrays = 0;
}

static const struct {
    const struct check_case *cases;
    const int *n;
} groups[] = {
    {math_cases, &n_math_cases},     {elementwise_cases, &n_elementwise_cases},
    {gpt_cases, &n_gpt_cases},       {gpt_oss_cases, &n_gpt_oss_cases},
    {row_cases, &n_row_cases},       {attention_cases, &n_attention_cases},
    {decode_cases, &n_decode_cases}, {shard_cases, &n_shard_cases},
    {bgemm_cases, &n_bgemm_cases},   {expert_cases, &n_expert_cases},
    {sgemm_cases, &n_sgemm_cases},   {bf16_cases, &n_bf16_cases},
};

/* Times kernels at the size of the debug model's activations, which stay in the caches, so that the variants differ. */
static void bench_kernels(const char *only)
{
    for (int i = 0; i < kernel_bench_count(); i++) {
        for (int v = 1; kernels_variant(v + 1); v++) { /* the emulated kernels not counted */
            struct kernel_time time;

            if ((only && strcmp(only, kernel_bench_name(i)) != 0) || !kernel_bench_is_own(i, kernels_variant(v)))
                continue;
            kernel_bench_run(i, kernels_variant(v), INT64_C(1) << 19, 0.2, 3, &time);
            printf("%-23s %-11s %8.3f ms  %6.2f %s  %s\n", time.kernel, time.variant, 1e3 * time.sec,
                   1e-9 * (time.flops > 0.0 ? time.flops : time.bytes) / time.sec, time.flops > 0.0 ? "GF/s" : "GB/s",
                   time.shape);
        }
    }
}

/* Whether a variant's kernels promise the bits that the other such variants give (docs/design/exactness.md). */
static bool promises_bits(const struct tt_kernels *table)
{
    return table != kernels_variant(0) && strcmp(table->name, "blas") != 0 && strcmp(table->name, "avx512_bf16") != 0 &&
           strncmp(table->name, "amx", 3) != 0;
}

/* Returns whether the case passed. bits: the result of the first variant that promises its bits; 0: this is the
 * first. */
static bool run_case(const struct check_case *one, const struct tt_kernels *table, uint64_t seed, uint64_t *bits)
{
    struct check check = {.kernel = one->kernel, .table = table, .rng = tt_rng_make(seed, one->kernel)};

    one->check(&check);
    if (promises_bits(table)) {
        if (*bits && *bits != check.bits)
            fail(&check, "all shapes", "the bits differ from those of the first vector variant");
        *bits = *bits ? *bits : check.bits;
    }
    printf("%s - %-23s %-11s %9lld values, worst %4.2f of the tolerance, %5.2f ulp\n",
           check.failures || !check.compared ? "not ok" : "ok", one->kernel, table->name, (long long)check.compared,
           check.worst, check.worst_ulp);
    return check.failures == 0 && check.compared > 0;
}

/* Every kernel of the table has a case here and a case in the benchmark. */
static bool all_covered(void)
{
    static const char *const names[] = {
#define TT_KERNEL(name, args) #name,
#include "core/kernels/kernels.def"
#undef TT_KERNEL
    };
    bool all = true;

    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        bool found = false, timed = false;

        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
            for (int i = 0; i < *groups[g].n; i++)
                found = found || strcmp(groups[g].cases[i].kernel, names[k]) == 0;
        }
        for (int i = 0; i < kernel_bench_count(); i++)
            timed = timed || strcmp(kernel_bench_name(i), names[k]) == 0;
        if (!found || !timed)
            printf("not ok - %s has no case%s\n", names[k], found ? " in tests/kernels/kernel_bench.c" : "");
        all = all && found && timed;
    }
    return all;
}

/* Whether an earlier variant uses the same code for a kernel, which was checked then. */
static bool is_repetition(const char *kernel, const struct tt_kernels *variant)
{
    for (int i = 0; i < kernel_bench_count(); i++)
        if (strcmp(kernel_bench_name(i), kernel) == 0)
            return !kernel_bench_is_own(i, variant);
    return false;
}

/*
 * Multiply-adds in portable C take a hundred times as long as an instruction, so the portable sources check every fifth
 * case unless sweeps are whole: a different fifth for the variant itself and for 16 lanes.
 */
static bool is_left_out(const struct tt_kernels *variant, int number)
{
    int turn = strcmp(variant->name, "generic") == 0 ? 0 : strcmp(variant->name, "generic16") == 0 ? 1 : -1;

    return turn >= 0 && sweep_stride() > 1 && number % 5 != turn;
}

static int has(const char *variant)
{
    for (int v = 0; kernels_variant(v); v++) {
        if (strcmp(kernels_variant(v)->name, variant) == 0)
            return kernels_variant(v) == tt_kernels() ? 2 : 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    uint64_t seed = 1;
    bool bench = false, good = all_covered();
    int number = 0;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0) {
            bench = true;
        } else if (strncmp(argv[i], "--seed=", 7) == 0) {
            seed = strtoull(argv[i] + 7, NULL, 10);
        } else if (strncmp(argv[i], "--has=", 6) == 0) {
            return has(argv[i] + 6);
        } else {
            only = argv[i];
        }
    }
    if (bench) {
        bench_kernels(only);
        return 0;
    }
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        for (int i = 0; i < *groups[g].n; i++, number++) {
            uint64_t bits = 0;

            for (int v = 0; kernels_variant(v); v++) {
                const struct check_case *one = &groups[g].cases[i];

                if (only ? strcmp(only, one->kernel) != 0 : is_left_out(kernels_variant(v), number))
                    continue;
                if (!is_repetition(one->kernel, kernels_variant(v)))
                    good = run_case(one, kernels_variant(v), seed, &bits) && good;
            }
        }
    }
    return good ? 0 : 1;
}
