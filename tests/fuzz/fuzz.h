/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_FUZZ_H
#define TT_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/**
 * One input of a fuzz target. Whatever the bytes are, the code under test may refuse them but must not crash, leak
 * memory or read out of bounds. libFuzzer calls it with bytes that it invents (meson option `fuzz`), and replay.c with
 * the corpus.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
