/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_HASH_H
#define TT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/** CRC32C (Castagnoli) of bytes, continued from crc (0 to begin). Uses the CPU's instruction if it has one. */
uint32_t tt_crc32c(uint32_t crc, const void *bytes, size_t size);

/** The same without that instruction. */
uint32_t tt_crc32c_portable(uint32_t crc, const void *bytes, size_t size);

/** The CRC32C of A followed by B, from the CRCs of both and the size of B, without a second pass over the bytes. */
uint32_t tt_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);

/** CRC-32 of bytes, as in zip and gzip files, continued from crc (0 to begin). */
uint32_t tt_crc32(uint32_t crc, const void *bytes, size_t size);

/** 64-bit content hash (XXH3), continued from seed. It serves as a cache key; it is not secure against attackers. */
uint64_t tt_hash64(const void *bytes, size_t size, uint64_t seed);

/** A bijective mix of 64 bits (splitmix64's finaliser). */
uint64_t tt_mix64(uint64_t x);

#endif
