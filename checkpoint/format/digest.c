/* SPDX-License-Identifier: MIT
 *
 * Digests of tensors.
 */
#include "checkpoint/format/digest.h"

#include "core/os/machine.h"

static const uint64_t step = 0x9e3779b97f4a7c15u, factor = 0x85ebca77u;

/* Adds the constant once per element, which gives the product of index and constant without a multiplication. */
#define SUM(type)                                      \
    do {                                               \
        const type *element = data;                    \
        for (int64_t i = 0; i < n; i++, key += step) { \
            uint64_t z = key ^ element[i] * factor;    \
            sum += (z & 0xffffffffu) * (z >> 32) + z;  \
        }                                              \
    } while (0)

#if defined(__x86_64__)
/* The same for four elements at a time; n is a multiple of 4. Compilers do not find these 32-bit multiplications
 * themselves. */
__attribute__((target("avx2"))) static uint64_t sum_words_avx2(const uint32_t *element, int64_t n, uint64_t key)
{
    typedef uint64_t words __attribute__((vector_size(32)));
    typedef int halves __attribute__((vector_size(32)));
    words keys = {key, key + step, key + 2 * step, key + 3 * step}, sum = {0};
    const words steps = {4 * step, 4 * step, 4 * step, 4 * step}, factors = {factor, factor, factor, factor};

    for (int64_t i = 0; i < n; i += 4, keys += steps) {
        words z = {element[i], element[i + 1], element[i + 2], element[i + 3]};

        z = keys ^ (words)__builtin_ia32_pmuludq256((halves)z, (halves)factors);
        sum += (words)__builtin_ia32_pmuludq256((halves)z, (halves)(z >> 32)) + z;
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}
#endif

static uint64_t sum_words(const uint32_t *data, int64_t n, uint64_t key)
{
    uint64_t sum = 0;

#if defined(__x86_64__)
    if (tt_cpu_has(TT_CPU_AVX2)) {
        int64_t whole = n / 4 * 4;

        sum = sum_words_avx2(data, whole, key);
        data += whole;
        key += (uint64_t)whole * step;
        n -= whole;
    }
#endif
    SUM(uint32_t);
    return sum;
}

uint64_t tt_digest_part(enum tt_dtype dtype, const void *data, int64_t first, int64_t n)
{
    size_t size = tt_dtype_size(dtype);
    uint64_t sum = 0, key;

    if (size > 4) {
        first *= (int64_t)size / 4;
        n *= (int64_t)size / 4;
    }
    key = (uint64_t)first * step;
    if (size >= 4)
        sum = sum_words(data, n, key);
    else if (size == 2)
        SUM(uint16_t);
    else
        SUM(uint8_t);
    return sum;
}

uint64_t tt_digest_box(enum tt_dtype dtype, const int64_t *shape, const struct tt_box *box, int64_t at, int64_t n,
                       const void *data)
{
    const struct tt_box whole = tt_box_whole(box->ndim, shape);
    int64_t run = tt_box_run(box, &whole), done = 0;
    uint64_t sum = 0;

    while (done < n) {
        int64_t left = run - (at + done) % run, part = left < n - done ? left : n - done;

        sum += tt_digest_part(dtype, (const char *)data + (size_t)done * tt_dtype_size(dtype),
                              tt_box_position(box, at + done, &whole), part);
        done += part;
    }
    return sum;
}

/* A float is not finite when all bits of its exponent are set. */
#define COUNT(type, exponent)                                           \
    do {                                                                \
        const type *element = data;                                     \
        for (int64_t i = 0; i < n; i++)                                 \
            count += ((uint32_t)element[i] & (exponent)) == (exponent); \
    } while (0)

int64_t tt_digest_nonfinite(enum tt_dtype dtype, const void *data, int64_t n)
{
    int64_t count = 0;

    if (dtype == TT_F32)
        COUNT(uint32_t, 0x7f800000u);
    else if (dtype == TT_BF16)
        COUNT(uint16_t, 0x7f80u);
    else if (dtype == TT_F16)
        COUNT(uint16_t, 0x7c00u);
    return count;
}
