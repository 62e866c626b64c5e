/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_PASSAGES_H
#define TT_CORE_TOKENIZER_PASSAGES_H

#include <stdbool.h>
#include <stddef.h>

/** Marked passages of a text: bytes [begin, end), in order. Zero-initialise; release when done. */
struct tt_passage {
    size_t begin, end;
};

struct tt_passages {
    struct tt_passage *item;
    size_t n, cap;
};

/** Adds one that begins where the last one ends, or later. An empty one is left out. */
void tt_passages_add(struct tt_passages *passages, size_t begin, size_t end);
void tt_passages_release(struct tt_passages *passages);

/** Adds to ret_passages what [at, at + size) of the text has of the passages (NULL: none), counted from `at`. */
void tt_passages_cut(const struct tt_passages *passages, size_t at, size_t size, struct tt_passages *ret_passages);

/** Whether [begin, end) of the text has a marked byte; an empty one, whether the byte after it is marked. */
bool tt_passages_touch(const struct tt_passages *passages, size_t begin, size_t end);

#endif
