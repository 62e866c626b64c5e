/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_UNPICKLER_H
#define TT_CHECKPOINT_DCP_UNPICKLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/dcp/pickle.h"
#include "core/base/error.h"

/**
 * The stack machine that a pickle is a program for: what its opcodes (checkpoint/dcp/pickle.c) take from the pickle and
 * from the stack, and what they put there. Errors are TT_EDATA and say at which byte.
 */
struct tt_unpickler {
    const char *where;
    const uint8_t *bytes;
    size_t size, at;
    struct tt_pickle *pickle; /* owns the values */
    struct tt_pickle_value **stack;
    int n, cap;
    int *mark; /* depths of the stack */
    int n_marks, cap_marks;
    struct tt_pickle_value **memo;
    size_t n_memo, cap_memo;
    bool stopped;
};

/** Releases the stack, not the values. */
void tt_unpickler_release(struct tt_unpickler *m);

/** Sets the error "'x' is damaged: its pickle <what> (at byte 12)". */
int tt_unpickler_fail(const struct tt_unpickler *m, const char *what);

/** The next n bytes of the pickle, which belong to it. */
int tt_unpickler_take(struct tt_unpickler *m, size_t n, const uint8_t **ret_bytes) TT_MUST_CHECK;

/** The same as a number of n bytes, the lowest first. */
int tt_unpickler_take_number(struct tt_unpickler *m, int n, uint64_t *ret_number) TT_MUST_CHECK;

void tt_unpickler_push(struct tt_unpickler *m, struct tt_pickle_value *value);

/** What is below the newest mark belongs to it and cannot be taken. */
int tt_unpickler_pop(struct tt_unpickler *m, struct tt_pickle_value **ret_value) TT_MUST_CHECK;
int tt_unpickler_top(const struct tt_unpickler *m, struct tt_pickle_value **ret_value) TT_MUST_CHECK;

/** Checks that n values may be taken. */
int tt_unpickler_need(const struct tt_unpickler *m, int n) TT_MUST_CHECK;

/** Removes the newest mark; the values after it are stack[ret_from .. n). */
int tt_unpickler_pop_mark(struct tt_unpickler *m, int *ret_from) TT_MUST_CHECK;

#endif
