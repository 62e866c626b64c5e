/* SPDX-License-Identifier: MIT
 *
 * Checksums and hashes. CRC32C uses the processor's instruction if there is one, otherwise tables for eight bytes at a
 * time. Both give the same value (RFC 3720 appendix B.4: "123456789" is e3069283). CRC-32 is zlib's.
 */
#include "core/base/hash.h"

#include <string.h>

#include <pthread.h>
#ifdef __aarch64__
#include <sys/auxv.h>

#include <asm/hwcap.h>
#endif

#include <xxhash.h>
#include <zlib.h>

#define POLYNOMIAL 0x82f63b78u /* Castagnoli's polynomial; bit 31 is x^0, as in the checksum itself */

/* a * b modulo the polynomial, where bit 31 is x^0. Multiplying a checksum by x^(8 n) moves it past n bytes. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        product ^= a & bit ? b : 0;
        b = (b >> 1) ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

/* table[k][b]: the checksum of the byte b, followed by k zero bytes. */
static uint32_t table[8][256];

static void make_table(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = b;

        for (int k = 0; k < 8; k++)
            c = c & 1 ? POLYNOMIAL ^ (c >> 1) : c >> 1;
        table[0][b] = c;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t b = 0; b < 256; b++)
            table[k][b] = table[0][table[k - 1][b] & 0xff] ^ (table[k - 1][b] >> 8);
}

uint32_t tt_crc32c_portable(uint32_t crc, const void *bytes, size_t size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const uint8_t *p = bytes;

    (void)pthread_once(&once, make_table);
    crc = ~crc;
    for (; size >= 8; p += 8, size -= 8)
        crc = table[7][(crc ^ p[0]) & 0xff] ^ table[6][((crc >> 8) ^ p[1]) & 0xff] ^
              table[5][((crc >> 16) ^ p[2]) & 0xff] ^ table[4][(crc >> 24) ^ p[3]] ^ table[3][p[4]] ^ table[2][p[5]] ^
              table[1][p[6]] ^ table[0][p[7]];
    for (; size; p++, size--)
        crc = table[0][(crc ^ *p) & 0xff] ^ (crc >> 8);
    return ~crc;
}

/* The instructions of x86 and ARM: they continue the checksum crc over eight bytes, or over one. */
#if defined(__x86_64__)
#define TARGET              __attribute__((target("sse4.2")))
#define CRC_WORD(crc, word) __builtin_ia32_crc32di(crc, word)
#define CRC_BYTE(crc, byte) __builtin_ia32_crc32qi((uint32_t)(crc), byte)
#define IS_SUPPORTED        __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__)
#define IS_SUPPORTED (getauxval(AT_HWCAP) & HWCAP_CRC32)
#ifdef __clang__
#define TARGET              __attribute__((target("crc")))
#define CRC_WORD(crc, word) __builtin_arm_crc32cd((uint32_t)(crc), word)
#define CRC_BYTE(crc, byte) __builtin_arm_crc32cb((uint32_t)(crc), byte)
#else
#define TARGET              __attribute__((target("+crc")))
#define CRC_WORD(crc, word) __builtin_aarch64_crc32cx((uint32_t)(crc), word)
#define CRC_BYTE(crc, byte) __builtin_aarch64_crc32cb((uint32_t)(crc), byte)
#endif
#endif

#ifdef IS_SUPPORTED
#define LANE ((size_t)4096) /* bytes */

static uint64_t word_at(const uint8_t *p)
{
    uint64_t word;

    memcpy(&word, p, sizeof word);
    return word;
}

/* A processor can begin an instruction every cycle, but a result takes three cycles. So long stretches run in three
 * lanes at once. */
TARGET static uint32_t crc32c_by_words(uint32_t crc, const uint8_t *p, size_t size)
{
    static const uint32_t past_one = 0x35d73a62u, past_two = 0x28461564u; /* x^(8 LANE), x^(16 LANE) */
    uint64_t a = crc;

    for (; size >= 3 * LANE; p += 3 * LANE, size -= 3 * LANE) {
        uint64_t b = 0, c = 0;

        for (size_t i = 0; i < LANE; i += 8) {
            a = CRC_WORD(a, word_at(p + i));
            b = CRC_WORD(b, word_at(p + i + LANE));
            c = CRC_WORD(c, word_at(p + i + 2 * LANE));
        }
        a = multiply(past_two, (uint32_t)a) ^ multiply(past_one, (uint32_t)b) ^ c;
    }
    for (; size >= 8; p += 8, size -= 8)
        a = CRC_WORD(a, word_at(p));
    for (; size; p++, size--)
        a = CRC_BYTE(a, *p);
    return (uint32_t)a;
}
#endif

uint32_t tt_crc32c(uint32_t crc, const void *bytes, size_t size)
{
#ifdef IS_SUPPORTED
    if (IS_SUPPORTED)
        return ~crc32c_by_words(~crc, bytes, size);
#endif
    return tt_crc32c_portable(crc, bytes, size);
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

uint32_t tt_crc32(uint32_t crc, const void *bytes, size_t size)
{
    return (uint32_t)crc32_z(crc, bytes, size);
}

uint64_t tt_hash64(const void *bytes, size_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, size, seed);
}

uint64_t tt_mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
