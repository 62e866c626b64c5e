/* SPDX-License-Identifier: MIT
 *
 * The tables of numbers of 8 bits.
 */
#include "core/math/dynamic.h"

#include <math.h>

#include <pthread.h>

static struct tt_dynamic maps[2]; /* unsigned, signed */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Number i of n that are evenly spaced from 0.1 to 1, with torch.linspace's roundings. */
static float spaced(int n, int i)
{
    const float first = 0.1F, last = 1.0F, step = (last - first) / (float)(n - 1);

    return i < n / 2 ? first + step * (float)i : last - step * (float)(n - 1 - i);
}

/* The numbers between 0 and 1, ascending, as bitsandbytes computes them: the decade that ends at 10^-d has the middles
 * of 2^(fraction - d) equal parts. Returns how many. */
static int between(int fraction, float *numbers)
{
    static const float power[] = {1.0F, 1e-1F, 1e-2F, 1e-3F, 1e-4F, 1e-5F, 1e-6F};
    int n = 0;

    for (int decade = 6; decade >= 0; decade--) {
        int parts = 1 << (fraction - decade);

        for (int i = 0; i < parts; i++)
            numbers[n++] = power[decade] * ((spaced(parts + 1, i) + spaced(parts + 1, i + 1)) / 2.0F);
    }
    return n;
}

static float of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The number of middles below x. */
static uint8_t nearest(const struct tt_dynamic *map, float x)
{
    int code = 0;

    while (x > map->middle[code])
        code++;
    return (uint8_t)code;
}

static void finish(struct tt_dynamic *map)
{
    for (int i = 0; i + 1 < TT_DYNAMIC_CODES; i++)
        map->middle[i] = (map->number[i] + map->number[i + 1]) / 2.0F;
    map->middle[TT_DYNAMIC_CODES - 1] = INFINITY;
    for (uint32_t i = 0; i < TT_DYNAMIC_BUCKETS; i++) {
        uint32_t bits = (TT_DYNAMIC_LOWEST + i) << 16;

        map->lower[0][i] = i == 0 ? nearest(map, 0.0F) : nearest(map, of_bits(bits));
        map->lower[1][i] = nearest(map, -of_bits(bits | 0xffff));
    }
}

static void compute(void)
{
    float numbers[TT_DYNAMIC_CODES];
    int n = between(6, numbers);

    for (int i = 0; i < n; i++) {
        maps[1].number[i] = -numbers[n - 1 - i];
        maps[1].number[n + 1 + i] = numbers[i];
    }
    maps[1].number[n] = 0.0F;
    maps[1].number[2 * n + 1] = 1.0F;
    n = between(7, maps[0].number + 1);
    maps[0].number[0] = 0.0F;
    maps[0].number[n + 1] = 1.0F;
    finish(&maps[0]);
    finish(&maps[1]);
}

const struct tt_dynamic *tt_dynamic_map(bool is_signed)
{
    (void)pthread_once(&once, compute);
    return &maps[is_signed];
}
