/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_JINJA_INTERNAL_H
#define TT_DATA_JINJA_INTERNAL_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/data/jinja/jinja.h"

/**
 * Declarations for the files of this folder: memory that is released as a whole, values, the tree of a template. An
 * error jumps to the end of the call (tt_jinja_new, tt_jinja_render), which releases everything.
 */
struct tt_jwork {
    jmp_buf end;
    int rc; /* of the error that ended the work */
    struct tt_jblock *block;
    size_t bytes, most_bytes;
    uint64_t steps, most_steps;
    int depth;
    int line; /* the line of the template being processed */
    const char *where;
};

/** Zeroed memory that lives as long as the work; a copy of a text, with a 0 at its end; an array with room for more. */
void *tt_jalloc(struct tt_jwork *w, size_t bytes);
char *tt_jcopy(struct tt_jwork *w, const char *text, size_t size);
void *tt_jgrow(struct tt_jwork *w, void *array, size_t n, size_t *cap, size_t item_size);
void tt_jwork_release(struct tt_jwork *w);

/** Counts work that does not allocate, and ends the rendering if there is too much. */
void tt_jstep(struct tt_jwork *w, size_t n);

/** Counts a level of nesting, which depth-- takes back; ends the work if there are more than `most`. */
enum { TT_J_DEEPEST = 300 };
void tt_jdeeper(struct tt_jwork *w, int most);

/** Ends the work with an error: TT_EUSAGE "where, line n: ...", or another code. */
void tt_jfail(struct tt_jwork *w, int code, const char *fmt, ...) __attribute__((noreturn, format(printf, 3, 4)));

/* --- values --- */

enum tt_jkind {
    TT_J_UNDEFINED,
    TT_J_NONE,
    TT_J_BOOL,
    TT_J_INT,
    TT_J_REAL,
    TT_J_STRING,
    TT_J_LIST,
    TT_J_TUPLE,
    TT_J_DICT,
    TT_J_NAMESPACE,
    TT_J_LOOP,
    TT_J_MACRO,
    TT_J_FUNCTION,
    TT_J_METHOD,
};

/** A value; everything to which it points lives as long as the work. Strings are valid UTF-8. */
struct tt_jvalue {
    enum tt_jkind kind;
    bool is_lazy; /* a list that Python would produce only during iteration: it has no text, no JSON and no indices */
    bool is_view; /* a lazy list of a mapping, which may be iterated again, and counts as false if empty */
    bool is_safe; /* made by the filter safe: text that is added to it is escaped */
    size_t size;  /* of a string */
    union {
        int64_t integer; /* an integer, or a boolean as 0 or 1 */
        double real;
        const char *text; /* of a string; or the name of a function or of an undefined value */
        struct tt_jlist *list;
        struct tt_jdict *dict; /* of a namespace too */
        struct tt_jloop *loop;
        struct tt_jmacro *macro;
        struct tt_jmethod *method;
    };
};

struct tt_jlist {
    struct tt_jvalue *item;
    size_t n, cap;
    bool is_walked; /* a lazy list yields its items only once */
};

struct tt_jdict {
    struct tt_jpair {
        struct tt_jvalue key, value;
    } * pair;
    size_t n, cap;
};

struct tt_jloop {
    const struct tt_jlist *list;
    size_t at;
};

struct tt_jmacro {
    const struct tt_jnode *node;
    struct tt_jscope *scope; /* where it was defined */
};

struct tt_jmethod {
    struct tt_jvalue self;
    const char *name;
};

/** The arguments of a call. */
struct tt_jargs {
    struct tt_jlist list;
    struct tt_jdict named; /* keyed by strings */
};

static const struct tt_jvalue tt_jnone = {.kind = TT_J_NONE};

static inline struct tt_jvalue tt_jundefined(const char *name)
{
    return (struct tt_jvalue){.kind = TT_J_UNDEFINED, .text = name};
}

static inline struct tt_jvalue tt_jbool(bool value)
{
    return (struct tt_jvalue){.kind = TT_J_BOOL, .integer = value};
}

static inline struct tt_jvalue tt_jint(int64_t value)
{
    return (struct tt_jvalue){.kind = TT_J_INT, .integer = value};
}

static inline struct tt_jvalue tt_jstring(const char *text, size_t size)
{
    return (struct tt_jvalue){.kind = TT_J_STRING, .text = text, .size = size};
}

static inline struct tt_jvalue tt_jword(const char *text)
{
    return tt_jstring(text, strlen(text));
}

struct tt_jvalue tt_jlist_new(struct tt_jwork *w, enum tt_jkind kind);
void tt_jlist_add(struct tt_jwork *w, struct tt_jlist *list, struct tt_jvalue value);
void tt_jlist_extend(struct tt_jwork *w, struct tt_jlist *list, const struct tt_jlist *more);
struct tt_jvalue tt_jdict_new(struct tt_jwork *w, enum tt_jkind kind);
void tt_jdict_set(struct tt_jwork *w, struct tt_jdict *dict, struct tt_jvalue key, struct tt_jvalue value);
/** The value of a key, or NULL. */
struct tt_jvalue *tt_jdict_get(struct tt_jwork *w, const struct tt_jdict *dict, struct tt_jvalue key);
struct tt_jvalue tt_jfrom_json(struct tt_jwork *w, const json_t *json);

const char *tt_jkind_name(struct tt_jvalue v);
bool tt_jis_true(struct tt_jvalue v);
bool tt_jis(struct tt_jvalue v, const char *text); /* whether v is a string with this text */
bool tt_jequal(struct tt_jwork *w, struct tt_jvalue a, struct tt_jvalue b);
/** Whether `a op b`; op is ==, !=, <, <=, >, >=, in or not in. Ends the work if the two have no order. */
bool tt_jholds(struct tt_jwork *w, const char *op, struct tt_jvalue a, struct tt_jvalue b);
/** The items over which a loop over v iterates. */
struct tt_jlist *tt_jitems(struct tt_jwork *w, struct tt_jvalue v);
int64_t tt_jlength(struct tt_jwork *w, struct tt_jvalue v);
/** Ends the work if v is a lazy list, which is not allowed here. */
void tt_jcheck_made(struct tt_jwork *w, struct tt_jvalue v);

/** A growing text in the memory of the work. */
struct tt_jtext {
    char *text;
    size_t size, cap;
};
void tt_jtext_add(struct tt_jwork *w, struct tt_jtext *t, const char *text, size_t size);
void tt_jtext_add_value(struct tt_jwork *w, struct tt_jtext *t, struct tt_jvalue v); /* as str() */
void tt_jtext_add_json(struct tt_jwork *w, struct tt_jtext *t, struct tt_jvalue v, const struct tt_jargs *args);
struct tt_jvalue tt_jtext_value(const struct tt_jtext *t);
struct tt_jvalue tt_jto_string(struct tt_jwork *w, struct tt_jvalue v);

/* --- strings --- */

/** The length of the white space character at p (as in str.isspace), or 0. */
size_t tt_jspace_at(const char *p, size_t size);
/** The string without characters of `chars` (NULL: white space) at the left (sides & 1) and the right (sides & 2). */
struct tt_jvalue tt_jstrip(struct tt_jwork *w, struct tt_jvalue v, const struct tt_jvalue *chars, int sides);
/** The offset of part in [from, size) of a text, or SIZE_MAX. */
size_t tt_jfind(struct tt_jwork *w, struct tt_jvalue text, size_t from, struct tt_jvalue part);
struct tt_jvalue tt_jslice(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue first, struct tt_jvalue end,
                           struct tt_jvalue step);
/** Item i of a list or character i of a string, undefined if there is none. */
struct tt_jvalue tt_jat(struct tt_jwork *w, struct tt_jvalue v, int64_t i);
struct tt_jvalue tt_jreplace(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue from, struct tt_jvalue to,
                             int64_t most);
/** A list of the lines, without line ends. */
struct tt_jvalue tt_jlines(struct tt_jwork *w, struct tt_jvalue v);
/** upper, lower, title, capitalize, or words (the filter title). */
struct tt_jvalue tt_jcase(struct tt_jwork *w, struct tt_jvalue v, const char *how);

/** Whether values of v's kind have a method of that name. */
bool tt_jhas_method(struct tt_jvalue v, const char *name);
struct tt_jvalue tt_jcall_method(struct tt_jwork *w, struct tt_jvalue self, const char *name,
                                 const struct tt_jargs *args);

/** Argument i, or the argument of that name, or `missing`. */
struct tt_jvalue tt_jarg(struct tt_jwork *w, const struct tt_jargs *args, size_t i, const char *name,
                         struct tt_jvalue missing);
/** Ends the work if there are more than `most` arguments, or named ones that are not in `names` (ends with NULL). */
void tt_jcheck_args(struct tt_jwork *w, const char *what, const struct tt_jargs *args, size_t most,
                    const char *const *names);

struct tt_jvalue tt_jfilter(struct tt_jwork *w, const char *name, struct tt_jvalue v, const struct tt_jargs *args);
bool tt_jtest(struct tt_jwork *w, const char *name, struct tt_jvalue v, const struct tt_jargs *args);
/** v.name or v[name]: both find members and items, but in a different order. attribute: v.name. */
struct tt_jvalue tt_jmember(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue name, bool attribute);

/* --- the tree --- */

enum tt_jnode_kind {
    TT_JN_CONST,
    TT_JN_NAME,
    TT_JN_LIST,
    TT_JN_TUPLE,
    TT_JN_DICT,
    TT_JN_COND, /* a if b else c */
    TT_JN_OR,
    TT_JN_AND,
    TT_JN_NOT,
    TT_JN_COMPARE, /* a, then the list b of operands (op, a) */
    TT_JN_BINARY,
    TT_JN_NEGATE,
    TT_JN_MEMBER, /* a.name */
    TT_JN_ITEM,   /* a[b] */
    TT_JN_SLICE,  /* a[b:c:d] */
    TT_JN_CALL,   /* name(list b); for a named argument: name and a */
    TT_JN_FILTER,
    TT_JN_TEST,
    TT_JN_ARG,
    TT_JN_TEXT,
    TT_JN_PRINT,
    TT_JN_FOR, /* a: target, b: list, c: test; body, other */
    TT_JN_IF,  /* a: test; body; other: else or TT_JN_ELIF */
    TT_JN_ELIF,
    TT_JN_SET,      /* a = b, or a = the output of body */
    TT_JN_MACRO,    /* name; b: list of parameters, each a name with default a */
    TT_JN_FILTERED, /* filter a over body */
    TT_JN_GENERATION,
    TT_JN_BREAK,
    TT_JN_CONTINUE,
};

struct tt_jnode {
    enum tt_jnode_kind kind;
    int line;
    const char *name;
    const char *op;
    struct tt_jvalue value;
    struct tt_jnode *a, *b, *c, *d, *body, *other;
    struct tt_jnode *next; /* in a list of nodes */
};

enum tt_jtoken_kind {
    TT_JT_DATA,
    TT_JT_PRINT,     /* {{ */
    TT_JT_PRINT_END, /* }} */
    TT_JT_BLOCK,     /* {% */
    TT_JT_BLOCK_END, /* %} */
    TT_JT_NAME,
    TT_JT_STRING,
    TT_JT_INT,
    TT_JT_REAL,
    TT_JT_OP,
    TT_JT_END,
};

struct tt_jtoken {
    enum tt_jtoken_kind kind;
    int line;
    const char *text; /* ends with a 0 */
    size_t size;
};

/** Cuts a template into tokens; the last one is TT_JT_END. */
const struct tt_jtoken *tt_jlex(struct tt_jwork *w, const char *text, size_t size);

/** The statements of a template; ret_generates: whether there is {% generation %}. */
struct tt_jnode *tt_jparse(struct tt_jwork *w, const struct tt_jtoken *tokens, bool *ret_generates);

#endif
