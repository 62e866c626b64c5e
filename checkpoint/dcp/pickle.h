/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_DCP_PICKLE_H
#define TT_CHECKPOINT_DCP_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/graph/dtype.h"

/**
 * Reads those Python pickles that PyTorch's checkpoints consist of, without Python. Nothing is executed: a class or
 * function is only a name from a list, and a call makes a value that records the function and its arguments. Every
 * other name and every opcode that PyTorch does not write are refused.
 *
 * Memory is at most proportional to the size of the pickle. Nothing here is recursive; a value may contain itself.
 */

enum tt_py_class {
    TT_PY_METADATA,
    TT_PY_TENSOR_METADATA,
    TT_PY_BYTES_METADATA,
    TT_PY_CHUNK,
    TT_PY_PROPERTIES,
    TT_PY_INDEX,
    TT_PY_STORAGE_META,
    TT_PY_STORAGE_INFO,
    TT_PY_SIZE,
    TT_PY_REBUILD_TENSOR,
    TT_PY_REBUILD_TYPED,   /* a tensor whose type is the last argument, because its storage does not tell it */
    TT_PY_REBUILD_STRANGE, /* a tensor that is not an array of numbers */
    TT_PY_REBUILD_PARAMETER,
    TT_PY_TYPE,         /* an element type, or the class of its storage */
    TT_PY_UNTYPED,      /* a storage of bytes */
    TT_PY_STRANGE_TYPE, /* a type that titan does not read */
    TT_PY_OTHER,        /* a class that may occur, but that titan does not need */
};

enum tt_pickle_kind {
    TT_PICKLE_NONE,
    TT_PICKLE_BOOL,
    TT_PICKLE_INT,
    TT_PICKLE_REAL,
    TT_PICKLE_TEXT,
    TT_PICKLE_BYTES,
    TT_PICKLE_TUPLE,
    TT_PICKLE_LIST,
    TT_PICKLE_DICT,       /* items: key, value, key, value, … */
    TT_PICKLE_CLASS,      /* a class; `text` is its name, without the module */
    TT_PICKLE_OBJECT,     /* the result of calling a class; its items, if any, are a dict's */
    TT_PICKLE_PERSISTENT, /* an object outside the pickle, whose id is `args` */
};

struct tt_pickle_value {
    enum tt_pickle_kind kind;
    enum tt_py_class class;
    enum tt_dtype dtype; /* of a TT_PY_TYPE */
    int64_t number;      /* of a bool or an int */
    double real;
    const char *text; /* text or bytes in the pickle, without a final 0 */
    size_t size;
    struct tt_pickle_value **item;
    int n, cap;
    struct tt_pickle_value *args;  /* of an object: the arguments of the call */
    struct tt_pickle_value *state; /* of an object: the state it was given, or NULL */
};

struct tt_pickle {
    const struct tt_pickle_value *root;
    struct tt_pickle_value **block; /* all values */
    int n_blocks, cap_blocks, used;
};

/** An element type as PyTorch names it: torch.bfloat16, torch.BFloat16Storage. */
struct tt_py_type {
    enum tt_dtype dtype;
    const char *name, *storage; /* storage NULL: PyTorch stores it as bytes */
};

/** NULL if PyTorch's checkpoints have no such type. */
const struct tt_py_type *tt_py_type_of(enum tt_dtype dtype);

/**
 * Reads a pickle, whose bytes must outlive ret_pickle; `where` is for messages. TT_EDATA names the class or opcode that
 * is refused, or says that the pickle is truncated or damaged and at which byte.
 */
int tt_pickle_read(const char *where, const void *bytes, size_t size, struct tt_pickle *ret_pickle) TT_MUST_CHECK;
void tt_pickle_release(struct tt_pickle *pickle);

/* The following accept NULL and any kind of value. */

/** Whether the value is an object of a class. */
static inline bool tt_pickle_is(const struct tt_pickle_value *value, enum tt_py_class class)
{
    return value && value->kind == TT_PICKLE_OBJECT && value->class == class;
}

/**
 * The member called `name` of a dict or of an object's state; NULL if there is none, or if there are more than 64
 * members.
 */
const struct tt_pickle_value *tt_pickle_member(const struct tt_pickle_value *value, const char *name);

/** Item i of a tuple or list, or NULL. */
static inline const struct tt_pickle_value *tt_pickle_item(const struct tt_pickle_value *value, int i)
{
    return value && (value->kind == TT_PICKLE_TUPLE || value->kind == TT_PICKLE_LIST) && i < value->n ? value->item[i]
                                                                                                      : NULL;
}

/** Whether the value is a text equal to `text`. */
bool tt_pickle_text_is(const struct tt_pickle_value *value, const char *text);

/** A copy of a text without zero bytes, or NULL; the caller frees. */
char *tt_pickle_text(const struct tt_pickle_value *value);

/** A torch.Size or tuple of at most `most` sizes, none negative. */
bool tt_pickle_sizes(const struct tt_pickle_value *value, int64_t *ret_sizes, int most, int *ret_n);

/**
 * Writes the pickles that PyTorch's checkpoints need, with opcodes of protocol 2, which every Python reads. A class is
 * written once; later references use its number. Zero-initialise the struct; the bytes are in `text`; release it when
 * done.
 */
#define TT_PICKLER_MARK        "("
#define TT_PICKLER_TUPLE       "t" /* makes a tuple of the values after the mark */
#define TT_PICKLER_EMPTY_TUPLE ")"
#define TT_PICKLER_LIST        "]"
#define TT_PICKLER_APPENDS     "e" /* appends the values after the mark to the list below it */
#define TT_PICKLER_DICT        "}"
#define TT_PICKLER_SETITEMS    "u"    /* adds the keys and values after the mark to the dict below it */
#define TT_PICKLER_CALL        "R"    /* calls the function with the tuple above it */
#define TT_PICKLER_OBJECT      "\x81" /* makes an object of the class with the tuple above it */
#define TT_PICKLER_BUILD       "b"    /* gives an object its state */
#define TT_PICKLER_PERSISTENT  "Q"
#define TT_PICKLER_NONE        "N"
#define TT_PICKLER_STOP        "."

enum { TT_PICKLER_CLASSES = 32 };

struct tt_pickler {
    struct tt_text text;
    char *class[TT_PICKLER_CLASSES]; /* "module\nname\n", by its number in the memo */
    int n_classes;
};

/** The header of a pickle. */
void tt_pickler_begin(struct tt_pickler *pickler);
void tt_pickler_release(struct tt_pickler *pickler);

/** Adds opcodes without operands; `codes` may contain several. */
void tt_pickler_add(struct tt_pickler *pickler, const char *codes);

/** Push a value. A pickle has at most TT_PICKLER_CLASSES classes. */
void tt_pickler_class(struct tt_pickler *pickler, const char *module, const char *name);
void tt_pickler_int(struct tt_pickler *pickler, int64_t number);
void tt_pickler_real(struct tt_pickler *pickler, double number);
void tt_pickler_bool(struct tt_pickler *pickler, bool value);
void tt_pickler_text(struct tt_pickler *pickler, const char *text);
void tt_pickler_tuple(struct tt_pickler *pickler, const int64_t *number, int n);

#endif
