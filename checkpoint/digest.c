/* SPDX-License-Identifier: MIT
 *
 * Digests of tensors and joined checksums.
 */
#include "checkpoint/digest.h"

/* Multiplying by an index is adding once per element. */
#define SUM(type)                                                 \
    do {                                                          \
        const type *element = data;                               \
        for (int64_t i = 0; i < n; i++, key += step) {            \
            uint64_t z = key ^ element[i] * UINT64_C(0x85ebca77); \
            sum += (z & 0xffffffffu) * (z >> 32) + z;             \
        }                                                         \
    } while (0)

uint64_t tt_digest_part(enum tt_dtype dtype, const void *data, int64_t first, int64_t n)
{
    static const uint64_t step = 0x9e3779b97f4a7c15u;
    size_t size = tt_dtype_size(dtype);
    uint64_t sum = 0, key;

    if (size == 8) {
        first *= 2;
        n *= 2;
    }
    key = (uint64_t)first * step;
    if (size >= 4)
        SUM(uint32_t);
    else if (size == 2)
        SUM(uint16_t);
    else
        SUM(uint8_t);
    return sum;
}

/* The index, in the whole tensor, of element `at` of the packed box. */
static int64_t index_in_tensor(const int64_t *shape, const struct tt_box *box, int64_t at)
{
    int64_t index = 0, stride = 1;

    for (int d = box->ndim - 1; d >= 0; d--) {
        index += (box->offset[d] + at % box->shape[d]) * stride;
        at /= box->shape[d];
        stride *= shape[d];
    }
    return index;
}

uint64_t tt_digest_box(enum tt_dtype dtype, const int64_t *shape, const struct tt_box *box, int64_t at, int64_t n,
                       const void *data)
{
    int64_t run = 1, done = 0; /* elements of the box that are neighbours in the tensor too */
    uint64_t sum = 0;

    for (int d = box->ndim - 1; d >= 0; d--) {
        run *= box->shape[d];
        if (box->shape[d] != shape[d])
            break;
    }
    while (done < n) {
        int64_t left = run - (at + done) % run, part = left < n - done ? left : n - done;

        sum += tt_digest_part(dtype, (const char *)data + (size_t)done * tt_dtype_size(dtype),
                              index_in_tensor(shape, box, at + done), part);
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

/* a * b modulo the Castagnoli polynomial; bit 31 is x^0, as in the checksum itself. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? (b >> 1) ^ 0x82f63b78u : b >> 1;
    }
    return product;
}

uint32_t tt_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
{
    uint32_t power = 1u << 23; /* x^8: one byte */
    uint32_t shift = 1u << 31; /* x^0 */

    for (; size_b; size_b >>= 1) {
        if (size_b & 1)
            shift = multiply(shift, power);
        power = multiply(power, power);
    }
    return multiply(shift, crc_a) ^ crc_b;
}
