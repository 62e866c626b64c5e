/* SPDX-License-Identifier: MIT
 *
 * Reads and writes Python's pickles without Python. The reader is a stack machine over a table of opcodes: a row's
 * function pops its operands from the stack and pushes a value. The pickle owns all values, in blocks; they may refer
 * to each other freely.
 *
 * Format: Lib/pickletools.py of CPython, protocols 2 to 5.
 */
#include "checkpoint/dcp/pickle.h"

#include <stdio.h>
#include <string.h>

#include "core/base/mem.h"

/* --- values, and the classes that may occur --- */

/* 2^26 values: more than a model of 500 billion parameters on a thousand ranks needs. */
enum { BLOCK_VALUES = 1024, BLOCKS_MOST = 1 << 16, NAME_SHOWN = 80, MEMBERS_MOST = 64 };

static bool same(const char *a, size_t a_size, const char *b)
{
    return a_size == strlen(b) && memcmp(a, b, a_size) == 0;
}

static const struct tt_py_type types[] = {
    {TT_F32, "float32", "FloatStorage"},
    {TT_BF16, "bfloat16", "BFloat16Storage"},
    {TT_F16, "float16", "HalfStorage"},
    {TT_F64, "float64", "DoubleStorage"},
    {TT_I64, "int64", "LongStorage"},
    {TT_I32, "int32", "IntStorage"},
    {TT_I16, "int16", "ShortStorage"},
    {TT_I8, "int8", "CharStorage"},
    {TT_U8, "uint8", "ByteStorage"},
    {TT_BOOL, "bool", "BoolStorage"},
    {TT_C64, "complex64", "ComplexFloatStorage"},
    {TT_C128, "complex128", "ComplexDoubleStorage"},
    {TT_U16, "uint16", NULL},
    {TT_U32, "uint32", NULL},
    {TT_U64, "uint64", NULL},
    {TT_F8_E4M3, "float8_e4m3fn", NULL},
    {TT_F8_E5M2, "float8_e5m2", NULL},
    {TT_F8_E8M0, "float8_e8m0fnu", NULL},
    {TT_F8_E4M3FNUZ, "float8_e4m3fnuz", NULL},
    {TT_F8_E5M2FNUZ, "float8_e5m2fnuz", NULL},
};

enum { N_TYPES = sizeof types / sizeof types[0] };

/* Types of torch that titan does not read. */
static const char strange[] =
    "|complex32|ComplexHalfStorage|float4_e2m1fn_x2|quint8|QUInt8Storage|qint8|QInt8Storage|qint32|"
    "QInt32Storage|quint4x2|quint2x4|bits8|bits16|bits1x8|bits2x4|bits4x2|uint1|uint2|uint3|uint4|"
    "uint5|uint6|uint7|int1|int2|int3|int4|int5|int6|int7|";

/* Other classes and functions that may occur; several rows may have one id. */
static const struct {
    enum tt_py_class class;
    const char *module, *name;
} classes[] = {
    {TT_PY_METADATA, "torch.distributed.checkpoint.metadata", "Metadata"},
    {TT_PY_TENSOR_METADATA, "torch.distributed.checkpoint.metadata", "TensorStorageMetadata"},
    {TT_PY_BYTES_METADATA, "torch.distributed.checkpoint.metadata", "BytesStorageMetadata"},
    {TT_PY_CHUNK, "torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"},
    {TT_PY_PROPERTIES, "torch.distributed.checkpoint.metadata", "TensorProperties"},
    {TT_PY_PROPERTIES, "torch.distributed._shard.sharded_tensor.metadata", "TensorProperties"},
    {TT_PY_OTHER, "torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"},
    {TT_PY_OTHER, "torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"},
    {TT_PY_INDEX, "torch.distributed.checkpoint.metadata", "MetadataIndex"},
    {TT_PY_STORAGE_META, "torch.distributed.checkpoint.metadata", "StorageMeta"},
    {TT_PY_STORAGE_INFO, "torch.distributed.checkpoint.filesystem", "_StorageInfo"},
    {TT_PY_OTHER, "torch.serialization", "_get_layout"},
    {TT_PY_OTHER, "pathlib", "PosixPath"},
    {TT_PY_OTHER, "pathlib._local", "PosixPath"},
    {TT_PY_OTHER, "collections", "OrderedDict"},
    {TT_PY_OTHER, "_codecs", "encode"},
    {TT_PY_SIZE, "torch", "Size"},
    {TT_PY_REBUILD_TENSOR, "torch._utils", "_rebuild_tensor_v2"},
    {TT_PY_REBUILD_TYPED, "torch._utils", "_rebuild_tensor_v3"},
    {TT_PY_REBUILD_STRANGE, "torch._utils", "_rebuild_qtensor"},
    {TT_PY_REBUILD_STRANGE, "torch._utils", "_rebuild_sparse_tensor"},
    {TT_PY_REBUILD_PARAMETER, "torch._utils", "_rebuild_parameter"},
    {TT_PY_UNTYPED, "torch.storage", "UntypedStorage"},
};

const struct tt_py_type *tt_py_type_of(enum tt_dtype dtype)
{
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].dtype == dtype)
            return &types[i];
    return NULL;
}

void tt_pickle_release(struct tt_pickle *pickle)
{
    for (int b = 0; b < pickle->n_blocks; b++) {
        for (int i = 0; i < (b == pickle->n_blocks - 1 ? pickle->used : BLOCK_VALUES); i++)
            tt_free(pickle->block[b][i].item);
        tt_free(pickle->block[b]);
    }
    tt_free(pickle->block);
    *pickle = (struct tt_pickle){0};
}

/* Many objects may share one state, and searching a large state again for each of them would take too long. */
const struct tt_pickle_value *tt_pickle_member(const struct tt_pickle_value *value, const char *name)
{
    if (value && value->kind == TT_PICKLE_OBJECT)
        value = value->state;
    if (value && value->n > 2 * MEMBERS_MOST)
        return NULL;
    for (int i = 0; value && value->kind == TT_PICKLE_DICT && i < value->n; i += 2)
        if (tt_pickle_text_is(value->item[i], name))
            return value->item[i + 1];
    return NULL;
}

bool tt_pickle_text_is(const struct tt_pickle_value *value, const char *text)
{
    return value && value->kind == TT_PICKLE_TEXT && same(value->text, value->size, text);
}

char *tt_pickle_text(const struct tt_pickle_value *value)
{
    if (!value || value->kind != TT_PICKLE_TEXT || memchr(value->text, 0, value->size))
        return NULL;
    return tt_strndup(value->text, value->size);
}

bool tt_pickle_sizes(const struct tt_pickle_value *value, int64_t *ret_sizes, int most, int *ret_n)
{
    if (tt_pickle_is(value, TT_PY_SIZE))
        value = value->args->n == 1 ? value->args->item[0] : NULL;
    if (!value || (value->kind != TT_PICKLE_TUPLE && value->kind != TT_PICKLE_LIST) || value->n > most)
        return false;
    for (int i = 0; i < value->n; i++) {
        if (value->item[i]->kind != TT_PICKLE_INT || value->item[i]->number < 0)
            return false;
        ret_sizes[i] = value->item[i]->number;
    }
    *ret_n = value->n;
    return true;
}

/* --- the stack machine --- */

/*
 * The stack machine that runs a pickle. Its opcodes take bytes of the pickle and values from the stack, and push
 * values. Errors are TT_EDATA and say at which byte.
 */
struct unpickler {
    const char *where;
    const uint8_t *bytes;
    size_t size, at;
    struct tt_pickle *pickle; /* owns the values */
    struct tt_pickle_value **stack;
    int n, cap;
    int *mark; /* depths of the stack at the marks */
    int n_marks, cap_marks;
    struct tt_pickle_value **memo;
    size_t n_memo, cap_memo;
    bool stopped;
};

/* Sets the error "'x' is damaged: its pickle <what> (at byte 12)". */
static int fail(const struct unpickler *m, const char *what)
{
    return tt_fail(TT_EDATA, "'%s' is damaged: its pickle %s (at byte %zu)", m->where, what, m->at);
}

/* Takes the next n bytes of the pickle, which still owns them. */
static int take(struct unpickler *m, size_t n, const uint8_t **ret_bytes)
{
    if (n > m->size - m->at)
        return fail(m, "is truncated");
    *ret_bytes = m->bytes + m->at;
    m->at += n;
    return 0;
}

/* Takes the next n bytes as a little-endian number. */
static int take_number(struct unpickler *m, int n, uint64_t *ret_number)
{
    const uint8_t *p = NULL;
    int rc = take(m, (size_t)n, &p);

    *ret_number = rc == 0 ? tt_text_little(p, (size_t)n) : 0;
    return rc;
}

/* Pushes a new value, which the pickle owns. */
static struct tt_pickle_value *push_new(struct unpickler *m, enum tt_pickle_kind kind)
{
    struct tt_pickle *p = m->pickle;
    struct tt_pickle_value *value;

    if (p->n_blocks == 0 || p->used == BLOCK_VALUES) {
        TT_PUSH(p->block, p->n_blocks, p->cap_blocks) = tt_calloc(BLOCK_VALUES, sizeof **p->block);
        p->used = 0;
    }
    value = &p->block[p->n_blocks - 1][p->used++];
    value->kind = kind;
    value->class = TT_PY_OTHER;
    return TT_PUSH(m->stack, m->n, m->cap) = value;
}

/* The lowest place of the stack from which an opcode may take a value. */
static int floor_of(const struct unpickler *m)
{
    return m->n_marks ? m->mark[m->n_marks - 1] : 0;
}

/* Checks that there are n values to take. */
static int need(const struct unpickler *m, int n)
{
    return m->n - n < floor_of(m) ? fail(m, "takes a value from an empty stack") : 0;
}

static int pop(struct unpickler *m, struct tt_pickle_value **ret_value)
{
    int rc = need(m, 1);

    if (rc == 0)
        *ret_value = m->stack[--m->n];
    return rc;
}

/* Values below the newest mark belong to that mark and cannot be taken. */
static int top(const struct unpickler *m, struct tt_pickle_value **ret_value)
{
    if (m->n <= floor_of(m))
        return fail(m, "needs a value on an empty stack");
    *ret_value = m->stack[m->n - 1];
    return 0;
}

/* Removes the newest mark; the values after it are stack[ret_from .. n). */
static int pop_mark(struct unpickler *m, int *ret_from)
{
    if (m->n_marks == 0)
        return fail(m, "needs a mark that it has not set");
    *ret_from = m->mark[--m->n_marks];
    return 0;
}

static void add_items(struct tt_pickle_value *value, struct tt_pickle_value *const *item, int n)
{
    for (int i = 0; i < n; i++)
        TT_PUSH(value->item, value->n, value->cap) = item[i];
}

/* --- opcodes --- */

/* A row of the table below; `run` NULL: the opcode is refused, and the message names it. */
struct op {
    const char *name;
    int (*run)(struct unpickler *m, const struct op *op);
    int operand; /* a number of bytes, or of values to take; negative: all values after the newest mark */
    enum tt_pickle_kind kind;
};

/* The number of values that an opcode pops. */
static int count_values(struct unpickler *m, const struct op *op, int *ret_n)
{
    int from = 0, rc = op->operand < 0 ? pop_mark(m, &from) : need(m, op->operand);

    *ret_n = op->operand < 0 ? m->n - from : op->operand;
    return rc;
}

static int op_skip(struct unpickler *m, const struct op *op)
{
    const uint8_t *unused = NULL;

    return take(m, (size_t)op->operand, &unused);
}

static int op_stop(struct unpickler *m, const struct op *op)
{
    struct tt_pickle_value *root = NULL;
    int rc = pop(m, &root);

    (void)op;
    m->pickle->root = root;
    m->stopped = true;
    return rc;
}

static int op_pop(struct unpickler *m, const struct op *op)
{
    struct tt_pickle_value *unused = NULL;

    (void)op;
    return pop(m, &unused);
}

static int op_pop_mark(struct unpickler *m, const struct op *op)
{
    (void)op;
    return pop_mark(m, &m->n);
}

static int op_mark(struct unpickler *m, const struct op *op)
{
    (void)op;
    TT_PUSH(m->mark, m->n_marks, m->cap_marks) = m->n;
    return 0;
}

/* None, true, false, and an empty list or dict. */
static int op_new(struct unpickler *m, const struct op *op)
{
    push_new(m, op->kind)->number = op->operand;
    return 0;
}

/* An integer of the given number of bytes; with four or more, the highest bit is the sign. */
static int op_int(struct unpickler *m, const struct op *op)
{
    uint64_t number = 0;
    int rc = take_number(m, op->operand, &number);

    if (rc == 0)
        push_new(m, TT_PICKLE_INT)->number = op->operand == 4 ? (int64_t)(int32_t)(uint32_t)number : (int64_t)number;
    return rc;
}

/* LONG1: a length, then that many bytes in two's complement; integers of more than 63 bits are refused. */
static int op_long(struct unpickler *m, const struct op *op)
{
    uint64_t length = 0, number = 0;
    int rc = 0;

    (void)op;
    TT_TRY(take_number(m, 1, &length));
    if (length > 8)
        return fail(m, "has an integer of more than 64 bits");
    TT_TRY(take_number(m, (int)length, &number));
    if (length > 0 && length < 8 && number >> (8 * length - 1))
        number |= ~(uint64_t)0 << (8 * length);
    push_new(m, TT_PICKLE_INT)->number = (int64_t)number;
out:
    return rc;
}

static int op_real(struct unpickler *m, const struct op *op)
{
    const uint8_t *p = NULL;
    uint64_t bits = 0;
    int rc = take(m, 8, &p);

    (void)op;
    if (rc < 0)
        return rc;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | p[i]; /* the only big-endian number of the format */
    memcpy(&push_new(m, TT_PICKLE_REAL)->real, &bits, sizeof bits);
    return 0;
}

/* Text or bytes; the operand is the size of the length field in bytes. */
static int op_text(struct unpickler *m, const struct op *op)
{
    const uint8_t *text = NULL;
    struct tt_pickle_value *value;
    uint64_t length = 0;
    int rc = 0;

    TT_TRY(take_number(m, op->operand, &length));
    TT_TRY(take(m, (size_t)length, &text));
    value = push_new(m, op->kind);
    value->text = (const char *)text;
    value->size = (size_t)length;
out:
    return rc;
}

static int op_tuple(struct unpickler *m, const struct op *op)
{
    int n = 0, rc = count_values(m, op, &n);
    struct tt_pickle_value *value;

    if (rc < 0)
        return rc;
    value = push_new(m, TT_PICKLE_TUPLE);
    m->n -= n + 1;
    add_items(value, m->stack + m->n, n);
    m->stack[m->n++] = value;
    return 0;
}

/* Adds values to the list or dict below them; a dict takes pairs. */
static int op_give(struct unpickler *m, const struct op *op)
{
    bool pairs = op->kind == TT_PICKLE_DICT;
    struct tt_pickle_value *to = NULL;
    int n = 0, rc = 0;

    TT_TRY(count_values(m, op, &n));
    m->n -= n;
    TT_TRY(top(m, &to));
    if (pairs ? (to->kind != TT_PICKLE_DICT && to->kind != TT_PICKLE_OBJECT) || n % 2 : to->kind != TT_PICKLE_LIST)
        return fail(m, "gives items to a value that takes none");
    add_items(to, m->stack + m->n, n);
out:
    return rc;
}

/* Pushes the class of the given module and name. TT_EDATA names a class that is not in the lists. */
static int push_class(struct unpickler *m, const char *module, size_t module_size, const char *name, size_t name_size)
{
    struct tt_pickle_value *value = push_new(m, TT_PICKLE_CLASS);
    bool is_torch = same(module, module_size, "torch");
    int shown_module = (int)(module_size < NAME_SHOWN ? module_size : NAME_SHOWN);
    int shown = (int)(name_size < NAME_SHOWN ? name_size : NAME_SHOWN);
    char between_bars[NAME_SHOWN + 3];

    value->text = name;
    value->size = name_size;
    for (int i = 0; i < N_TYPES && is_torch; i++) {
        if (same(name, name_size, types[i].name) || (types[i].storage && same(name, name_size, types[i].storage))) {
            value->class = TT_PY_TYPE;
            value->dtype = types[i].dtype;
            return 0;
        }
    }
    (void)snprintf(between_bars, sizeof between_bars, "|%.*s|", shown, name);
    value->class = TT_PY_STRANGE_TYPE;
    if (is_torch && strstr(strange, between_bars))
        return 0;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        value->class = classes[i].class;
        if (same(module, module_size, classes[i].module) && same(name, name_size, classes[i].name))
            return 0;
    }
    return tt_fail(TT_EDATA,
                   "'%s': its pickle asks for '%.*s.%.*s', which is not part of a checkpoint of tensors; nothing was "
                   "executed\nhelp: if you trust the file, load it in PyTorch and save only tensors and numbers",
                   m->where, shown_module, module, shown, name);
}

/* GLOBAL: the module and the name of a class, each on its own line. */
static int op_global(struct unpickler *m, const struct op *op)
{
    const char *text = (const char *)m->bytes + m->at, *end, *end2;

    (void)op;
    end = memchr(text, '\n', m->size - m->at);
    end2 = end ? memchr(end + 1, '\n', m->size - m->at - (size_t)(end + 1 - text)) : NULL;
    if (!end2)
        return fail(m, "is truncated");
    m->at += (size_t)(end2 + 1 - text);
    return push_class(m, text, (size_t)(end - text), end + 1, (size_t)(end2 - end - 1));
}

static int op_stack_global(struct unpickler *m, const struct op *op)
{
    struct tt_pickle_value *name = NULL, *module = NULL;
    int rc = 0;

    (void)op;
    TT_TRY(pop(m, &name));
    TT_TRY(pop(m, &module));
    if (name->kind != TT_PICKLE_TEXT || module->kind != TT_PICKLE_TEXT)
        return fail(m, "names a class by something other than text");
    rc = push_class(m, module->text, module->size, name->text, name->size);
out:
    return rc;
}

/* REDUCE and NEWOBJ: an object that records the class and the arguments of the call. */
static int op_call(struct unpickler *m, const struct op *op)
{
    struct tt_pickle_value *args = NULL, *class = NULL, *value;
    int rc = 0;

    (void)op;
    TT_TRY(pop(m, &args));
    TT_TRY(pop(m, &class));
    if (class->kind != TT_PICKLE_CLASS || args->kind != TT_PICKLE_TUPLE)
        return fail(m, "calls something that is not a class");
    value = push_new(m, TT_PICKLE_OBJECT);
    value->class = class->class;
    value->args = args;
out:
    return rc;
}

static int op_build(struct unpickler *m, const struct op *op)
{
    struct tt_pickle_value *state = NULL, *object = NULL;
    int rc = 0;

    (void)op;
    TT_TRY(pop(m, &state));
    TT_TRY(top(m, &object));
    if (object->kind != TT_PICKLE_OBJECT)
        return fail(m, "sets the state of something that is not an object");
    object->state = state;
out:
    return rc;
}

static int op_persistent(struct unpickler *m, const struct op *op)
{
    struct tt_pickle_value *id = NULL;
    int rc = pop(m, &id);

    (void)op;
    if (rc == 0)
        push_new(m, TT_PICKLE_PERSISTENT)->args = id;
    return rc;
}

static int op_get(struct unpickler *m, const struct op *op)
{
    uint64_t i = 0;
    int rc = take_number(m, op->operand, &i);

    if (rc < 0)
        return rc;
    if (i >= m->n_memo || !m->memo[i])
        return fail(m, "refers to a value that it has not stored");
    TT_PUSH(m->stack, m->n, m->cap) = m->memo[i];
    return 0;
}

/* PyTorch numbers its memo from 0, without gaps. MEMOIZE has no operand and uses the next number. */
static int op_put(struct unpickler *m, const struct op *op)
{
    struct tt_pickle_value *value = NULL;
    uint64_t i = m->n_memo;
    int rc = 0;

    if (op->operand)
        TT_TRY(take_number(m, op->operand, &i));
    TT_TRY(top(m, &value));
    if (i > m->n_memo)
        return fail(m, "numbers its values out of order");
    if (i == m->n_memo)
        TT_PUSH(m->memo, m->n_memo, m->cap_memo) = value;
    else
        m->memo[i] = value;
out:
    return rc;
}

static const struct op ops[256] = {
    [0x80] = {"PROTO", op_skip, 1, TT_PICKLE_NONE},
    [0x95] = {"FRAME", op_skip, 8, TT_PICKLE_NONE},
    ['.'] = {"STOP", op_stop, 0, TT_PICKLE_NONE},
    ['0'] = {"POP", op_pop, 0, TT_PICKLE_NONE},
    ['1'] = {"POP_MARK", op_pop_mark, 0, TT_PICKLE_NONE},
    ['('] = {"MARK", op_mark, 0, TT_PICKLE_NONE},
    ['N'] = {"NONE", op_new, 0, TT_PICKLE_NONE},
    [0x88] = {"NEWTRUE", op_new, 1, TT_PICKLE_BOOL},
    [0x89] = {"NEWFALSE", op_new, 0, TT_PICKLE_BOOL},
    ['J'] = {"BININT", op_int, 4, TT_PICKLE_NONE},
    ['K'] = {"BININT1", op_int, 1, TT_PICKLE_NONE},
    ['M'] = {"BININT2", op_int, 2, TT_PICKLE_NONE},
    [0x8a] = {"LONG1", op_long, 0, TT_PICKLE_NONE},
    ['G'] = {"BINFLOAT", op_real, 0, TT_PICKLE_NONE},
    ['X'] = {"BINUNICODE", op_text, 4, TT_PICKLE_TEXT},
    [0x8c] = {"SHORT_BINUNICODE", op_text, 1, TT_PICKLE_TEXT},
    [0x8d] = {"BINUNICODE8", op_text, 8, TT_PICKLE_TEXT},
    ['B'] = {"BINBYTES", op_text, 4, TT_PICKLE_BYTES},
    ['C'] = {"SHORT_BINBYTES", op_text, 1, TT_PICKLE_BYTES},
    [0x8e] = {"BINBYTES8", op_text, 8, TT_PICKLE_BYTES},
    [')'] = {"EMPTY_TUPLE", op_tuple, 0, TT_PICKLE_NONE},
    [0x85] = {"TUPLE1", op_tuple, 1, TT_PICKLE_NONE},
    [0x86] = {"TUPLE2", op_tuple, 2, TT_PICKLE_NONE},
    [0x87] = {"TUPLE3", op_tuple, 3, TT_PICKLE_NONE},
    ['t'] = {"TUPLE", op_tuple, -1, TT_PICKLE_NONE},
    [']'] = {"EMPTY_LIST", op_new, 0, TT_PICKLE_LIST},
    ['}'] = {"EMPTY_DICT", op_new, 0, TT_PICKLE_DICT},
    ['a'] = {"APPEND", op_give, 1, TT_PICKLE_LIST},
    ['e'] = {"APPENDS", op_give, -1, TT_PICKLE_LIST},
    ['s'] = {"SETITEM", op_give, 2, TT_PICKLE_DICT},
    ['u'] = {"SETITEMS", op_give, -1, TT_PICKLE_DICT},
    ['c'] = {"GLOBAL", op_global, 0, TT_PICKLE_NONE},
    [0x93] = {"STACK_GLOBAL", op_stack_global, 0, TT_PICKLE_NONE},
    ['R'] = {"REDUCE", op_call, 0, TT_PICKLE_NONE},
    [0x81] = {"NEWOBJ", op_call, 0, TT_PICKLE_NONE},
    ['b'] = {"BUILD", op_build, 0, TT_PICKLE_NONE},
    ['Q'] = {"BINPERSID", op_persistent, 0, TT_PICKLE_NONE},
    ['h'] = {"BINGET", op_get, 1, TT_PICKLE_NONE},
    ['j'] = {"LONG_BINGET", op_get, 4, TT_PICKLE_NONE},
    ['q'] = {"BINPUT", op_put, 1, TT_PICKLE_NONE},
    ['r'] = {"LONG_BINPUT", op_put, 4, TT_PICKLE_NONE},
    [0x94] = {"MEMOIZE", op_put, 0, TT_PICKLE_NONE},
    ['i'] = {"INST", NULL, 0, TT_PICKLE_NONE},
    ['o'] = {"OBJ", NULL, 0, TT_PICKLE_NONE},
    ['P'] = {"PERSID", NULL, 0, TT_PICKLE_NONE},
    ['2'] = {"DUP", NULL, 0, TT_PICKLE_NONE},
    ['I'] = {"INT", NULL, 0, TT_PICKLE_NONE},
    ['L'] = {"LONG", NULL, 0, TT_PICKLE_NONE},
    ['F'] = {"FLOAT", NULL, 0, TT_PICKLE_NONE},
    ['S'] = {"STRING", NULL, 0, TT_PICKLE_NONE},
    ['V'] = {"UNICODE", NULL, 0, TT_PICKLE_NONE},
    ['d'] = {"DICT", NULL, 0, TT_PICKLE_NONE},
    ['l'] = {"LIST", NULL, 0, TT_PICKLE_NONE},
    ['g'] = {"GET", NULL, 0, TT_PICKLE_NONE},
    ['p'] = {"PUT", NULL, 0, TT_PICKLE_NONE},
    [0x82] = {"EXT1", NULL, 0, TT_PICKLE_NONE},
    [0x83] = {"EXT2", NULL, 0, TT_PICKLE_NONE},
    [0x84] = {"EXT4", NULL, 0, TT_PICKLE_NONE},
    [0x8b] = {"LONG4", NULL, 0, TT_PICKLE_NONE},
    [0x8f] = {"EMPTY_SET", NULL, 0, TT_PICKLE_NONE},
    [0x90] = {"ADDITEMS", NULL, 0, TT_PICKLE_NONE},
    [0x91] = {"FROZENSET", NULL, 0, TT_PICKLE_NONE},
    [0x92] = {"NEWOBJ_EX", NULL, 0, TT_PICKLE_NONE},
    [0x96] = {"BYTEARRAY8", NULL, 0, TT_PICKLE_NONE},
    [0x97] = {"NEXT_BUFFER", NULL, 0, TT_PICKLE_NONE},
    [0x98] = {"READONLY_BUFFER", NULL, 0, TT_PICKLE_NONE},
};

static int run(struct unpickler *m)
{
    int rc = 0;

    while (!m->stopped) {
        const uint8_t *code = NULL;

        TT_TRY(take(m, 1, &code));
        if (!ops[*code].run)
            TT_TRY(tt_fail(TT_EDATA,
                           "'%s': its pickle has the opcode %s (0x%02x, at byte %zu), which PyTorch does not write",
                           m->where, ops[*code].name ? ops[*code].name : "?", *code, m->at - 1));
        TT_TRY(ops[*code].run(m, &ops[*code]));
        if (m->pickle->n_blocks > BLOCKS_MOST)
            TT_TRY(fail(m, "has more values than any checkpoint"));
    }
out:
    return rc;
}

int tt_pickle_read(const char *where, const void *bytes, size_t size, struct tt_pickle *ret_pickle)
{
    struct tt_pickle pickle = {0};
    struct unpickler m = {.where = where, .bytes = bytes, .size = size, .pickle = &pickle};
    int rc = run(&m);

    tt_free(m.stack);
    tt_free(m.mark);
    tt_free(m.memo);
    if (rc < 0)
        tt_pickle_release(&pickle);
    else
        *ret_pickle = pickle;
    return rc;
}

/* --- writing --- */

static void add_code(struct tt_pickler *p, uint8_t code)
{
    tt_text_add_bytes(&p->text, &code, 1);
}

void tt_pickler_begin(struct tt_pickler *pickler)
{
    tt_text_add_bytes(&pickler->text, "\x80\x02", 2);
}

void tt_pickler_release(struct tt_pickler *pickler)
{
    for (int i = 0; i < pickler->n_classes; i++)
        tt_free(pickler->class[i]);
    tt_text_release(&pickler->text);
    *pickler = (struct tt_pickler){0};
}

void tt_pickler_add(struct tt_pickler *pickler, const char *codes)
{
    tt_text_add(&pickler->text, "%s", codes);
}

void tt_pickler_class(struct tt_pickler *pickler, const char *module, const char *name)
{
    char *wanted = tt_format("%s\n%s\n", module, name);
    int i = 0;

    while (i < pickler->n_classes && strcmp(pickler->class[i], wanted) != 0)
        i++;
    if (i < pickler->n_classes) {
        add_code(pickler, 'h'); /* BINGET */
        tt_free(wanted);
    } else {
        add_code(pickler, 'c'); /* GLOBAL */
        tt_text_add(&pickler->text, "%s", wanted);
        add_code(pickler, 'q'); /* BINPUT */
        pickler->class[pickler->n_classes++] = wanted;
    }
    tt_text_add_little(&pickler->text, (uint64_t)i, 1);
}

void tt_pickler_int(struct tt_pickler *pickler, int64_t number)
{
    size_t bytes = 1;

    if (number >= 0 && number <= UINT8_MAX) {
        add_code(pickler, 'K'); /* BININT1 */
    } else if (number >= INT32_MIN && number <= INT32_MAX) {
        add_code(pickler, 'J'); /* BININT */
        bytes = 4;
    } else {
        add_code(pickler, 0x8a); /* LONG1 */
        add_code(pickler, 8);
        bytes = 8;
    }
    tt_text_add_little(&pickler->text, (uint64_t)number, bytes);
}

/* The only big-endian number of a pickle. */
void tt_pickler_real(struct tt_pickler *pickler, double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    add_code(pickler, 'G'); /* BINFLOAT */
    for (int shift = 56; shift >= 0; shift -= 8)
        tt_text_add_little(&pickler->text, bits >> shift & 0xff, 1);
}

void tt_pickler_bool(struct tt_pickler *pickler, bool value)
{
    add_code(pickler, value ? 0x88 : 0x89); /* NEWTRUE, NEWFALSE */
}

void tt_pickler_text(struct tt_pickler *pickler, const char *text)
{
    add_code(pickler, 'X'); /* BINUNICODE */
    tt_text_add_little(&pickler->text, strlen(text), 4);
    tt_text_add(&pickler->text, "%s", text);
}

void tt_pickler_tuple(struct tt_pickler *pickler, const int64_t *number, int n)
{
    tt_pickler_add(pickler, TT_PICKLER_MARK);
    for (int i = 0; i < n; i++)
        tt_pickler_int(pickler, number[i]);
    tt_pickler_add(pickler, TT_PICKLER_TUPLE);
}
