/* SPDX-License-Identifier: MIT
 *
 * Checksums and hashes. CRC32C is computed by the SSE4.2 instruction, else by a byte table; both give the same value
 * (RFC 3720 appendix B.4: "123456789" is e3069283).
 */
#include "core/base/hash.h"

#include <string.h>

#include <xxhash.h>

static uint32_t crc_table_entry(uint32_t byte)
{
    uint32_t c = byte;

    for (int k = 0; k < 8; k++)
        c = c & 1 ? 0x82f63b78u ^ (c >> 1) : c >> 1;
    return c;
}

static uint32_t crc32c_portable(uint32_t crc, const uint8_t *p, size_t size)
{
    while (size--)
        crc = crc_table_entry((crc ^ *p++) & 0xff) ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const uint8_t *p, size_t size)
{
    uint64_t c = crc;

    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word;

        memcpy(&word, p, 8);
        c = __builtin_ia32_crc32di(c, word);
    }
    for (; size; p++, size--)
        c = __builtin_ia32_crc32qi((uint32_t)c, *p);
    return (uint32_t)c;
}
#endif

uint32_t tt_crc32c(uint32_t crc, const void *bytes, size_t size)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return ~crc32c_sse42(~crc, bytes, size);
#endif
    return ~crc32c_portable(~crc, bytes, size);
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
