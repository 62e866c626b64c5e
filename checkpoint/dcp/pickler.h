/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_PICKLER_H
#define TT_CHECKPOINT_DCP_PICKLER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/text.h"

/**
 * Writes a pickle, as far as PyTorch's checkpoints need it: opcodes of protocol 2, which every Python reads. A class is
 * spelled out once and referred to after that. Zero-initialise; the bytes are in `text`; release it when done.
 */
enum tt_pickler_op {
    TT_PICKLER_MARK = '(',
    TT_PICKLER_TUPLE = 't', /* of the values after the mark */
    TT_PICKLER_EMPTY_TUPLE = ')',
    TT_PICKLER_LIST = ']',
    TT_PICKLER_APPENDS = 'e', /* the values after the mark, to the list below it */
    TT_PICKLER_DICT = '}',
    TT_PICKLER_SETITEMS = 'u', /* keys and values after the mark, to the dict below it */
    TT_PICKLER_CALL = 'R',     /* a function with the tuple above it */
    TT_PICKLER_OBJECT = 0x81,  /* of a class, with the tuple above it */
    TT_PICKLER_BUILD = 'b',    /* gives an object its state */
    TT_PICKLER_PERSISTENT = 'Q',
    TT_PICKLER_NONE = 'N',
    TT_PICKLER_STOP = '.',
};

enum { TT_PICKLER_CLASSES = 32 };

struct tt_pickler {
    struct tt_text text;
    char *class[TT_PICKLER_CLASSES]; /* "module\nname\n", by their number in the memo */
    int n_classes;
};

/** The header of a pickle. */
void tt_pickler_begin(struct tt_pickler *pickler);
void tt_pickler_release(struct tt_pickler *pickler);

/** Adds opcodes that have no operand. */
void tt_pickler_add(struct tt_pickler *pickler, enum tt_pickler_op op);

/** Push a value. A pickle has at most TT_PICKLER_CLASSES classes. */
void tt_pickler_class(struct tt_pickler *pickler, const char *module, const char *name);
void tt_pickler_int(struct tt_pickler *pickler, int64_t number);
void tt_pickler_real(struct tt_pickler *pickler, double number);
void tt_pickler_bool(struct tt_pickler *pickler, bool value);
void tt_pickler_text(struct tt_pickler *pickler, const char *text);
void tt_pickler_tuple(struct tt_pickler *pickler, const int64_t *number, int n);

/** Pushes a torch.Size. */
void tt_pickler_sizes(struct tt_pickler *pickler, const int64_t *size, int n);

#endif
