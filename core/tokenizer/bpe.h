/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_BPE_H
#define TT_CORE_TOKENIZER_BPE_H

#include <stddef.h>
#include <stdint.h>

/**
 * Byte pair encoding of one word. Symbols begin as single bytes. The adjacent pair with the lowest merge rank (leftmost
 * first) is replaced by its merged token until no pair has a merge. Takes n log n steps for any length.
 */
struct tt_bpe_merge {
    uint64_t pair; /* left id << 32 | right id */
    int32_t rank;  /* -1: the entry is free */
    int32_t id;    /* the merged token */
};

/** The merges: an open-addressing table. Zero-initialise. Read-only use is thread-safe. */
struct tt_bpe {
    struct tt_bpe_merge *merge;
    size_t n;
    size_t cap; /* a power of two, or 0 */
};

/** Adds a merge; a later one of the same pair replaces it. */
void tt_bpe_add(struct tt_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id);
void tt_bpe_release(struct tt_bpe *bpe);

/** Scratch of one thread. Zero-initialise. */
struct tt_bpe_scratch {
    struct tt_bpe_symbol *symbol;
    struct tt_bpe_candidate *heap;
    size_t symbol_cap;
    size_t heap_cap;
};
void tt_bpe_scratch_release(struct tt_bpe_scratch *scratch);

/** Merges n ids in place; returns the number of remaining ids. */
size_t tt_bpe_encode(const struct tt_bpe *bpe, struct tt_bpe_scratch *scratch, int32_t *ids, size_t n);

#endif
