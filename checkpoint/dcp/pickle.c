/* SPDX-License-Identifier: MIT
 *
 * The unpickler: a stack machine over a table of opcodes. A row's function takes its operands from the stack and puts a
 * value there. Values are in blocks and belong to the pickle; they refer to each other freely.
 *
 * Format: Lib/pickletools.py of CPython, protocols 2 to 5.
 */
#include "checkpoint/dcp/pickle.h"

#include <string.h>

#include "checkpoint/dcp/unpickler.h"
#include "core/base/mem.h"

/* 2^26 values are more than a model of 500 billion parameters on a thousand ranks needs. */
enum { BLOCKS_MOST = 1 << 16 };

static void add_items(struct tt_pickle_value *value, struct tt_pickle_value *const *item, int n)
{
    for (int i = 0; i < n; i++)
        TT_PUSH(value->item, value->n, value->cap) = item[i];
}

/* --- opcodes; `operand` is the row's --- */

static int op_skip(struct tt_unpickler *m, int bytes)
{
    const uint8_t *unused = NULL;

    return tt_unpickler_take(m, (size_t)bytes, &unused);
}

static int op_stop(struct tt_unpickler *m, int operand)
{
    struct tt_pickle_value *root = NULL;
    int rc = tt_unpickler_pop(m, &root);

    (void)operand;
    m->pickle->root = root;
    m->stopped = true;
    return rc;
}

static int op_pop(struct tt_unpickler *m, int operand)
{
    struct tt_pickle_value *unused = NULL;

    (void)operand;
    return tt_unpickler_pop(m, &unused);
}

static int op_pop_mark(struct tt_unpickler *m, int operand)
{
    (void)operand;
    return tt_unpickler_pop_mark(m, &m->n);
}

static int op_mark(struct tt_unpickler *m, int operand)
{
    (void)operand;
    TT_PUSH(m->mark, m->n_marks, m->cap_marks) = m->n;
    return 0;
}

static int op_none(struct tt_unpickler *m, int operand)
{
    (void)operand;
    tt_unpickler_push(m, tt_pickle_new(m->pickle, TT_PICKLE_NONE));
    return 0;
}

static int op_bool(struct tt_unpickler *m, int operand)
{
    struct tt_pickle_value *value = tt_pickle_new(m->pickle, TT_PICKLE_BOOL);

    value->number = operand;
    tt_unpickler_push(m, value);
    return 0;
}

/* An integer of so many bytes; of four and more the highest bit is the sign. */
static int op_int(struct tt_unpickler *m, int bytes)
{
    uint64_t number = 0;
    int rc = tt_unpickler_take_number(m, bytes, &number);
    struct tt_pickle_value *value;

    if (rc < 0)
        return rc;
    value = tt_pickle_new(m->pickle, TT_PICKLE_INT);
    value->number = bytes == 4 ? (int64_t)(int32_t)(uint32_t)number : (int64_t)number;
    tt_unpickler_push(m, value);
    return 0;
}

/* LONG1: its length, then two's complement; more than 63 bits are refused. */
static int op_long(struct tt_unpickler *m, int operand)
{
    uint64_t length = 0, number = 0;
    struct tt_pickle_value *value;
    int rc = 0;

    (void)operand;
    TT_TRY(tt_unpickler_take_number(m, 1, &length));
    if (length > 8)
        return tt_unpickler_fail(m, "has an integer of more than 64 bits");
    TT_TRY(tt_unpickler_take_number(m, (int)length, &number));
    if (length > 0 && length < 8 && number >> (8 * length - 1))
        number |= ~(uint64_t)0 << (8 * length);
    value = tt_pickle_new(m->pickle, TT_PICKLE_INT);
    value->number = (int64_t)number;
    tt_unpickler_push(m, value);
out:
    return rc;
}

static int op_real(struct tt_unpickler *m, int operand)
{
    const uint8_t *p = NULL;
    struct tt_pickle_value *value;
    uint64_t bits = 0;
    int rc = tt_unpickler_take(m, 8, &p);

    (void)operand;
    if (rc < 0)
        return rc;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | p[i]; /* the only big-endian number of the format */
    value = tt_pickle_new(m->pickle, TT_PICKLE_REAL);
    memcpy(&value->real, &bits, sizeof bits);
    tt_unpickler_push(m, value);
    return 0;
}

static int add_string(struct tt_unpickler *m, enum tt_pickle_kind kind, int length_bytes)
{
    const uint8_t *text = NULL;
    struct tt_pickle_value *value;
    uint64_t length = 0;
    int rc = 0;

    TT_TRY(tt_unpickler_take_number(m, length_bytes, &length));
    TT_TRY(tt_unpickler_take(m, (size_t)length, &text));
    value = tt_pickle_new(m->pickle, kind);
    value->text = (const char *)text;
    value->size = (size_t)length;
    tt_unpickler_push(m, value);
out:
    return rc;
}

static int op_text(struct tt_unpickler *m, int length_bytes)
{
    return add_string(m, TT_PICKLE_TEXT, length_bytes);
}

static int op_bytes(struct tt_unpickler *m, int length_bytes)
{
    return add_string(m, TT_PICKLE_BYTES, length_bytes);
}

/* A tuple of the last n values. */
static int op_tuple_of(struct tt_unpickler *m, int n)
{
    int rc = tt_unpickler_need(m, n);
    struct tt_pickle_value *value;

    if (rc < 0)
        return rc;
    value = tt_pickle_new(m->pickle, TT_PICKLE_TUPLE);
    m->n -= n;
    if (n) /* the stack may not have been allocated yet */
        add_items(value, m->stack + m->n, n);
    tt_unpickler_push(m, value);
    return 0;
}

static int op_tuple(struct tt_unpickler *m, int operand)
{
    int from = 0, rc = tt_unpickler_pop_mark(m, &from);

    (void)operand;
    return rc < 0 ? rc : op_tuple_of(m, m->n - from);
}

static int op_empty(struct tt_unpickler *m, int kind)
{
    tt_unpickler_push(m, tt_pickle_new(m->pickle, (enum tt_pickle_kind)kind));
    return 0;
}

/* Gives the values from stack[from] on to the list or dict below them; a dict takes pairs. */
static int give(struct tt_unpickler *m, int from, bool pairs)
{
    int n = m->n - from, rc = 0;
    struct tt_pickle_value *to = NULL;

    m->n = from;
    TT_TRY(tt_unpickler_top(m, &to));
    if (pairs ? (to->kind != TT_PICKLE_DICT && to->kind != TT_PICKLE_OBJECT) || n % 2 : to->kind != TT_PICKLE_LIST)
        return tt_unpickler_fail(m, "gives items to a value that takes none");
    add_items(to, m->stack + from, n);
out:
    return rc;
}

static int op_give(struct tt_unpickler *m, int n)
{
    int rc = tt_unpickler_need(m, n);

    return rc < 0 ? rc : give(m, m->n - n, n == 2);
}

static int op_give_all(struct tt_unpickler *m, int pairs)
{
    int from = 0, rc = tt_unpickler_pop_mark(m, &from);

    return rc < 0 ? rc : give(m, from, pairs != 0);
}

static int push_class(struct tt_unpickler *m, const char *module, size_t module_size, const char *name,
                      size_t name_size)
{
    enum tt_py_class class = TT_PY_OTHER;
    int rc = tt_pickle_class(m->where, module, module_size, name, name_size, &class);

    if (rc == 0) {
        tt_unpickler_push(m, tt_pickle_new(m->pickle, TT_PICKLE_CLASS));
        m->stack[m->n - 1]->class = class;
        m->stack[m->n - 1]->text = name;
        m->stack[m->n - 1]->size = name_size;
    }
    return rc;
}

/* GLOBAL: two lines of text. */
static int op_global(struct tt_unpickler *m, int operand)
{
    const char *text = (const char *)m->bytes + m->at, *end, *end2;

    (void)operand;
    end = memchr(text, '\n', m->size - m->at);
    end2 = end ? memchr(end + 1, '\n', m->size - m->at - (size_t)(end + 1 - text)) : NULL;
    if (!end2)
        return tt_unpickler_fail(m, "is truncated");
    m->at += (size_t)(end2 + 1 - text);
    return push_class(m, text, (size_t)(end - text), end + 1, (size_t)(end2 - end - 1));
}

static int op_stack_global(struct tt_unpickler *m, int operand)
{
    struct tt_pickle_value *name = NULL, *module = NULL;
    int rc = 0;

    (void)operand;
    TT_TRY(tt_unpickler_pop(m, &name));
    TT_TRY(tt_unpickler_pop(m, &module));
    if (name->kind != TT_PICKLE_TEXT || module->kind != TT_PICKLE_TEXT)
        return tt_unpickler_fail(m, "names a class by something else than text");
    rc = push_class(m, module->text, module->size, name->text, name->size);
out:
    return rc;
}

/* REDUCE and NEWOBJ: an object that remembers what it was made of. */
static int op_call(struct tt_unpickler *m, int operand)
{
    struct tt_pickle_value *args = NULL, *class = NULL, *value;
    int rc = 0;

    (void)operand;
    TT_TRY(tt_unpickler_pop(m, &args));
    TT_TRY(tt_unpickler_pop(m, &class));
    if (class->kind != TT_PICKLE_CLASS || args->kind != TT_PICKLE_TUPLE)
        return tt_unpickler_fail(m, "calls something that is not a class");
    value = tt_pickle_new(m->pickle, TT_PICKLE_OBJECT);
    value->class = class->class;
    value->args = args;
    tt_unpickler_push(m, value);
out:
    return rc;
}

static int op_build(struct tt_unpickler *m, int operand)
{
    struct tt_pickle_value *state = NULL, *object = NULL;
    int rc = 0;

    (void)operand;
    TT_TRY(tt_unpickler_pop(m, &state));
    TT_TRY(tt_unpickler_top(m, &object));
    if (object->kind != TT_PICKLE_OBJECT)
        return tt_unpickler_fail(m, "sets the state of something that is not an object");
    object->state = state;
out:
    return rc;
}

static int op_persistent(struct tt_unpickler *m, int operand)
{
    struct tt_pickle_value *id = NULL, *value;
    int rc = tt_unpickler_pop(m, &id);

    (void)operand;
    if (rc < 0)
        return rc;
    value = tt_pickle_new(m->pickle, TT_PICKLE_PERSISTENT);
    value->args = id;
    tt_unpickler_push(m, value);
    return 0;
}

static int op_get(struct tt_unpickler *m, int bytes)
{
    uint64_t i = 0;
    int rc = tt_unpickler_take_number(m, bytes, &i);

    if (rc < 0)
        return rc;
    if (i >= m->n_memo || !m->memo[i])
        return tt_unpickler_fail(m, "refers to a value that it does not have");
    tt_unpickler_push(m, m->memo[i]);
    return 0;
}

/* PyTorch numbers its memo in order, so no number is larger than that of the values before it. */
static int remember(struct tt_unpickler *m, uint64_t i)
{
    struct tt_pickle_value *value = NULL;
    int rc = tt_unpickler_top(m, &value);

    if (rc < 0)
        return rc;
    if (i > m->n_memo)
        return tt_unpickler_fail(m, "numbers its values in no order");
    if (i == m->n_memo)
        TT_PUSH(m->memo, m->n_memo, m->cap_memo) = value;
    else
        m->memo[i] = value;
    return 0;
}

static int op_put(struct tt_unpickler *m, int bytes)
{
    uint64_t i = 0;
    int rc = tt_unpickler_take_number(m, bytes, &i);

    return rc < 0 ? rc : remember(m, i);
}

static int op_memoize(struct tt_unpickler *m, int operand)
{
    (void)operand;
    return remember(m, m->n_memo);
}

/* An opcode without a function is refused by its name. */
struct op {
    const char *name;
    int (*run)(struct tt_unpickler *m, int operand);
    int operand;
};

static const struct op ops[256] = {
    [0x80] = {"PROTO", op_skip, 1},
    [0x95] = {"FRAME", op_skip, 8},
    ['.'] = {"STOP", op_stop, 0},
    ['0'] = {"POP", op_pop, 0},
    ['1'] = {"POP_MARK", op_pop_mark, 0},
    ['('] = {"MARK", op_mark, 0},
    ['N'] = {"NONE", op_none, 0},
    [0x88] = {"NEWTRUE", op_bool, 1},
    [0x89] = {"NEWFALSE", op_bool, 0},
    ['J'] = {"BININT", op_int, 4},
    ['K'] = {"BININT1", op_int, 1},
    ['M'] = {"BININT2", op_int, 2},
    [0x8a] = {"LONG1", op_long, 0},
    ['G'] = {"BINFLOAT", op_real, 0},
    ['X'] = {"BINUNICODE", op_text, 4},
    [0x8c] = {"SHORT_BINUNICODE", op_text, 1},
    [0x8d] = {"BINUNICODE8", op_text, 8},
    ['B'] = {"BINBYTES", op_bytes, 4},
    ['C'] = {"SHORT_BINBYTES", op_bytes, 1},
    [0x8e] = {"BINBYTES8", op_bytes, 8},
    [')'] = {"EMPTY_TUPLE", op_tuple_of, 0},
    [0x85] = {"TUPLE1", op_tuple_of, 1},
    [0x86] = {"TUPLE2", op_tuple_of, 2},
    [0x87] = {"TUPLE3", op_tuple_of, 3},
    ['t'] = {"TUPLE", op_tuple, 0},
    [']'] = {"EMPTY_LIST", op_empty, TT_PICKLE_LIST},
    ['}'] = {"EMPTY_DICT", op_empty, TT_PICKLE_DICT},
    ['a'] = {"APPEND", op_give, 1},
    ['e'] = {"APPENDS", op_give_all, 0},
    ['s'] = {"SETITEM", op_give, 2},
    ['u'] = {"SETITEMS", op_give_all, 1},
    ['c'] = {"GLOBAL", op_global, 0},
    [0x93] = {"STACK_GLOBAL", op_stack_global, 0},
    ['R'] = {"REDUCE", op_call, 0},
    [0x81] = {"NEWOBJ", op_call, 0},
    ['b'] = {"BUILD", op_build, 0},
    ['Q'] = {"BINPERSID", op_persistent, 0},
    ['h'] = {"BINGET", op_get, 1},
    ['j'] = {"LONG_BINGET", op_get, 4},
    ['q'] = {"BINPUT", op_put, 1},
    ['r'] = {"LONG_BINPUT", op_put, 4},
    [0x94] = {"MEMOIZE", op_memoize, 0},
    ['i'] = {"INST", NULL, 0},
    ['o'] = {"OBJ", NULL, 0},
    ['P'] = {"PERSID", NULL, 0},
    ['2'] = {"DUP", NULL, 0},
    ['I'] = {"INT", NULL, 0},
    ['L'] = {"LONG", NULL, 0},
    ['F'] = {"FLOAT", NULL, 0},
    ['S'] = {"STRING", NULL, 0},
    ['V'] = {"UNICODE", NULL, 0},
    ['d'] = {"DICT", NULL, 0},
    ['l'] = {"LIST", NULL, 0},
    ['g'] = {"GET", NULL, 0},
    ['p'] = {"PUT", NULL, 0},
    [0x82] = {"EXT1", NULL, 0},
    [0x83] = {"EXT2", NULL, 0},
    [0x84] = {"EXT4", NULL, 0},
    [0x8b] = {"LONG4", NULL, 0},
    [0x8f] = {"EMPTY_SET", NULL, 0},
    [0x90] = {"ADDITEMS", NULL, 0},
    [0x91] = {"FROZENSET", NULL, 0},
    [0x92] = {"NEWOBJ_EX", NULL, 0},
    [0x96] = {"BYTEARRAY8", NULL, 0},
    [0x97] = {"NEXT_BUFFER", NULL, 0},
    [0x98] = {"READONLY_BUFFER", NULL, 0},
};

static int run(struct tt_unpickler *m)
{
    int rc = 0;

    while (!m->stopped) {
        const uint8_t *code = NULL;

        TT_TRY(tt_unpickler_take(m, 1, &code));
        if (!ops[*code].run) {
            rc = tt_fail(TT_EDATA,
                         "'%s': its pickle has the opcode %s (0x%02x, at byte %zu), which PyTorch's do not have",
                         m->where, ops[*code].name ? ops[*code].name : "?", *code, m->at - 1);
            goto out;
        }
        TT_TRY(ops[*code].run(m, ops[*code].operand));
        if (m->pickle->n_blocks > BLOCKS_MOST) {
            rc = tt_unpickler_fail(m, "has more values than any checkpoint");
            goto out;
        }
    }
out:
    return rc;
}

int tt_pickle_read(const char *where, const void *bytes, size_t size, struct tt_pickle *ret_pickle)
{
    struct tt_pickle pickle = {0};
    struct tt_unpickler m = {.where = where, .bytes = bytes, .size = size, .pickle = &pickle};
    int rc = run(&m);

    tt_unpickler_release(&m);
    if (rc < 0)
        tt_pickle_release(&pickle);
    else
        *ret_pickle = pickle;
    return rc;
}
