/* SPDX-License-Identifier: MIT
 *
 * Philox4x32-10 and the normal distribution by inversion. Inversion (Wichura 1988, algorithm AS 241, PPND16, relative
 * accuracy 1e-16) takes one uniform per value, which makes truncation exact and every element independent.
 */
#include "core/math/rng.h"

#include <math.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/math/elementary.h"

struct tt_rng tt_rng_make(uint64_t seed, const char *name)
{
    return (struct tt_rng){.seed = seed, .stream = tt_hash64(name, strlen(name), 0)};
}

uint64_t tt_rng_seed_of_step(uint64_t seed, int64_t step)
{
    const uint64_t both[2] = {seed, (uint64_t)step};

    return tt_hash64(both, sizeof both, 0);
}

uint64_t tt_rng_bits(const struct tt_rng *rng, uint64_t index)
{
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)rng->stream, c3 = (uint32_t)(rng->stream >> 32);
    uint32_t k0 = (uint32_t)rng->seed, k1 = (uint32_t)(rng->seed >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (uint64_t)c0 | (uint64_t)c1 << 32;
}

double tt_rng_uniform(const struct tt_rng *rng, uint64_t index)
{
    return ((double)(tt_rng_bits(rng, index) >> 11) + 0.5) * 0x1p-53;
}

static double ratio(const double *a, const double *b, double x)
{
    double p = a[7], q = b[7];

    for (int i = 6; i >= 0; i--) {
        p = p * x + a[i];
        q = q * x + b[i];
    }
    return p / q;
}

/* The inverse of the normal distribution function at 1/2 + q, |q| <= CENTER; meaningless beyond. */
static const double CENTER = 0.425;

static double inverse_in_center(double q)
{
    static const double a[8] = {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                                1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                                3.3430575583588128105e4, 2.5090809287301226727e3};
    static const double b[8] = {1.0,
                                4.2313330701600911252e1,
                                6.8718700749205790830e2,
                                5.3941960214247511077e3,
                                2.1213794301586595867e4,
                                3.9307895800092710610e4,
                                2.8729085735721942674e4,
                                5.2264952788528545610e3};

    return q * ratio(a, b, 0.180625 - q * q);
}

/* The same at u, beyond the center. */
static double inverse_in_tail(double u)
{
    static const double c[8] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double d[8] = {1.0,
                                2.05319162663775882187e0,
                                1.67638483018380384940e0,
                                6.89767334985100004550e-1,
                                1.48103976427480074590e-1,
                                1.51986665636164571966e-2,
                                5.47593808499534494600e-4,
                                1.05075007164441684324e-9};
    static const double e[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                                2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static const double f[8] = {1.0,
                                5.99832206555887937690e-1,
                                1.36929880922735805310e-1,
                                1.48753612908506148525e-2,
                                7.86869131145613259100e-4,
                                1.84631831751005468180e-5,
                                1.42151175831644588870e-7,
                                2.04426310338993978564e-15};
    double q = u - 0.5, r = sqrt(-tt_log(q < 0.0 ? u : 1.0 - u));
    double x = r <= 5.0 ? ratio(c, d, r - 1.6) : ratio(e, f, r - 5.0);

    return q < 0.0 ? -x : x;
}

/* The probability of less than -cut. */
static double below_cut(double cut)
{
    return cut > 0.0 ? 0.5 * tt_erfc(cut / sqrt(2.0)) : 0.0;
}

/* Maps u to the part of (0, 1) that the cuts on both sides leave. */
static double truncated(double u, double below)
{
    return below > 0.0 ? below + u * (1.0 - 2.0 * below) : u;
}

double tt_rng_normal(const struct tt_rng *rng, uint64_t index, double cut)
{
    static _Thread_local double last_cut, last_below; /* callers draw many numbers with one cut, and erfc is slow */
    double u;

    if (cut != last_cut) {
        last_cut = cut;
        last_below = below_cut(cut);
    }
    u = truncated(tt_rng_uniform(rng, index), last_below);
    return fabs(u - 0.5) <= CENTER ? inverse_in_center(u - 0.5) : inverse_in_tail(u);
}

/* Uses loops that the compiler vectorizes; only the numbers in the tails, one in seven, are computed one by one. */
void tt_rng_normals(const struct tt_rng *rng, uint64_t first, int64_t n, double std, double cut, float *to)
{
    enum { AT_ONCE = 256 };
    double below = below_cut(cut), u[AT_ONCE], x[AT_ONCE];
    int tail[AT_ONCE];

    for (int64_t begin = 0; begin < n; begin += AT_ONCE) {
        int some = n - begin < AT_ONCE ? (int)(n - begin) : AT_ONCE, tails = 0;

        for (int i = 0; i < some; i++)
            u[i] = truncated(tt_rng_uniform(rng, first + (uint64_t)(begin + i)), below);
        for (int i = 0; i < some; i++)
            x[i] = inverse_in_center(u[i] - 0.5);
        for (int i = 0; i < some; i++) { /* without a branch, which would be unpredictable */
            tail[tails] = i;
            tails += fabs(u[i] - 0.5) > CENTER;
        }
        for (int i = 0; i < tails; i++)
            x[tail[i]] = inverse_in_tail(u[tail[i]]);
        for (int i = 0; i < some; i++)
            to[begin + i] = (float)(std * x[i]);
    }
}

void tt_rng_permutation(const struct tt_rng *rng, int64_t n, int64_t *order)
{
    for (int64_t i = 0; i < n; i++)
        order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        /* the high half of a 64-bit product: uniform in [0, i] to within 2^-32, for n below 2^32 */
        int64_t j = (int64_t)((tt_rng_bits(rng, (uint64_t)i) >> 32) * (uint64_t)(i + 1) >> 32);
        int64_t kept = order[i];

        order[i] = order[j];
        order[j] = kept;
    }
}
