/* SPDX-License-Identifier: MIT
 *
 * Python's pickles, read and written without Python. The reader is a stack machine over a table of opcodes: a row's
 * function takes its operands from the stack and puts a value there. Values are in blocks and belong to the pickle;
 * they refer to each other freely.
 *
 * Format: Lib/pickletools.py of CPython, protocols 2 to 5.
 */
#include "checkpoint/dcp/pickle.h"

#include <string.h>

#include "core/base/mem.h"

/* --- values, and the classes that may occur --- */

enum { BLOCK_VALUES = 1024, NAME_SHOWN = 80, MEMBERS_MOST = 64 };

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

/* Types of the module torch that titan does not read. */
static const char *const strange[] = {"complex32",
                                      "ComplexHalfStorage",
                                      "float4_e2m1fn_x2",
                                      "quint8",
                                      "QUInt8Storage",
                                      "qint8",
                                      "QInt8Storage",
                                      "qint32",
                                      "QInt32Storage",
                                      "quint4x2",
                                      "quint2x4",
                                      "bits8",
                                      "bits16",
                                      "bits1x8",
                                      "bits2x4",
                                      "bits4x2",
                                      "uint1",
                                      "uint2",
                                      "uint3",
                                      "uint4",
                                      "uint5",
                                      "uint6",
                                      "uint7",
                                      "int1",
                                      "int2",
                                      "int3",
                                      "int4",
                                      "int5",
                                      "int6",
                                      "int7"};

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

/* Sets the class of that module and name. TT_EDATA naming it if it is in no list; `where` is for the message. */
static int find_class(const char *where, const char *module, size_t module_size, const char *name, size_t name_size,
                      struct tt_pickle_value *value)
{
    bool is_torch = same(module, module_size, "torch");

    for (int i = 0; i < N_TYPES && is_torch; i++) {
        if (same(name, name_size, types[i].name) || (types[i].storage && same(name, name_size, types[i].storage))) {
            value->class = TT_PY_TYPE;
            value->dtype = types[i].dtype;
            return 0;
        }
    }
    value->class = TT_PY_STRANGE_TYPE;
    for (size_t i = 0; i < sizeof strange / sizeof strange[0] && is_torch; i++)
        if (same(name, name_size, strange[i]))
            return 0;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        value->class = classes[i].class;
        if (same(module, module_size, classes[i].module) && same(name, name_size, classes[i].name))
            return 0;
    }
    return tt_fail(TT_EDATA,
                   "'%s': its pickle asks for '%.*s.%.*s', which is not part of a checkpoint of tensors; nothing was "
                   "executed\nhelp: if you trust the file, load it in PyTorch and save only tensors and numbers",
                   where, (int)(module_size < NAME_SHOWN ? module_size : NAME_SHOWN), module,
                   (int)(name_size < NAME_SHOWN ? name_size : NAME_SHOWN), name);
}

/* A new value of a pickle, which owns it. */
static struct tt_pickle_value *new_value(struct tt_pickle *p, enum tt_pickle_kind kind)
{
    struct tt_pickle_value *value;

    if (p->n_blocks == 0 || p->used == BLOCK_VALUES) {
        TT_PUSH(p->block, p->n_blocks, p->cap_blocks) = tt_calloc(BLOCK_VALUES, sizeof **p->block);
        p->used = 0;
    }
    value = &p->block[p->n_blocks - 1][p->used++];
    value->kind = kind;
    value->class = TT_PY_OTHER;
    return value;
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

bool tt_pickle_is(const struct tt_pickle_value *value, enum tt_py_class class)
{
    return value && value->kind == TT_PICKLE_OBJECT && value->class == class;
}

/* Objects may share one state, so a search in a large one would take long for all of them. */
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

const struct tt_pickle_value *tt_pickle_item(const struct tt_pickle_value *value, int i)
{
    return value && (value->kind == TT_PICKLE_TUPLE || value->kind == TT_PICKLE_LIST) && i < value->n ? value->item[i]
                                                                                                      : NULL;
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
 * The stack machine that runs a pickle: how its opcodes take bytes of the pickle and values of the stack, and push
 * values. Errors are TT_EDATA and say at which byte.
 */
struct unpickler {
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

static void unpickler_release(struct unpickler *m)
{
    tt_free(m->stack);
    tt_free(m->mark);
    tt_free(m->memo);
}

/* Sets the error "'x' is damaged: its pickle <what> (at byte 12)". */
static int fail(const struct unpickler *m, const char *what)
{
    return tt_fail(TT_EDATA, "'%s' is damaged: its pickle %s (at byte %zu)", m->where, what, m->at);
}

/* The next n bytes of the pickle, which belong to it. */
static int take(struct unpickler *m, size_t n, const uint8_t **ret_bytes)
{
    if (n > m->size - m->at)
        return fail(m, "is truncated");
    *ret_bytes = m->bytes + m->at;
    m->at += n;
    return 0;
}

/* The same as a number of n bytes, the lowest first. */
static int take_number(struct unpickler *m, int n, uint64_t *ret_number)
{
    const uint8_t *p = NULL;
    int rc = take(m, (size_t)n, &p);

    *ret_number = 0;
    for (int i = n - 1; rc == 0 && i >= 0; i--)
        *ret_number = *ret_number << 8 | p[i];
    return rc;
}

static void push(struct unpickler *m, struct tt_pickle_value *value)
{
    TT_PUSH(m->stack, m->n, m->cap) = value;
}

/* The lowest place of the stack that may be taken. */
static int floor_of(const struct unpickler *m)
{
    return m->n_marks ? m->mark[m->n_marks - 1] : 0;
}

/* Checks that n values may be taken. */
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

/* 2^26 values are more than a model of 500 billion parameters on a thousand ranks needs. */
enum { BLOCKS_MOST = 1 << 16 };

static void add_items(struct tt_pickle_value *value, struct tt_pickle_value *const *item, int n)
{
    for (int i = 0; i < n; i++)
        TT_PUSH(value->item, value->n, value->cap) = item[i];
}

/* --- opcodes; `operand` is the row's --- */

static int op_skip(struct unpickler *m, int bytes)
{
    const uint8_t *unused = NULL;

    return take(m, (size_t)bytes, &unused);
}

static int op_stop(struct unpickler *m, int operand)
{
    struct tt_pickle_value *root = NULL;
    int rc = pop(m, &root);

    (void)operand;
    m->pickle->root = root;
    m->stopped = true;
    return rc;
}

static int op_pop(struct unpickler *m, int operand)
{
    struct tt_pickle_value *unused = NULL;

    (void)operand;
    return pop(m, &unused);
}

static int op_pop_mark(struct unpickler *m, int operand)
{
    (void)operand;
    return pop_mark(m, &m->n);
}

static int op_mark(struct unpickler *m, int operand)
{
    (void)operand;
    TT_PUSH(m->mark, m->n_marks, m->cap_marks) = m->n;
    return 0;
}

static int op_none(struct unpickler *m, int operand)
{
    (void)operand;
    push(m, new_value(m->pickle, TT_PICKLE_NONE));
    return 0;
}

static int op_bool(struct unpickler *m, int operand)
{
    struct tt_pickle_value *value = new_value(m->pickle, TT_PICKLE_BOOL);

    value->number = operand;
    push(m, value);
    return 0;
}

/* An integer of so many bytes; of four and more the highest bit is the sign. */
static int op_int(struct unpickler *m, int bytes)
{
    uint64_t number = 0;
    int rc = take_number(m, bytes, &number);
    struct tt_pickle_value *value;

    if (rc < 0)
        return rc;
    value = new_value(m->pickle, TT_PICKLE_INT);
    value->number = bytes == 4 ? (int64_t)(int32_t)(uint32_t)number : (int64_t)number;
    push(m, value);
    return 0;
}

/* LONG1: its length, then two's complement; more than 63 bits are refused. */
static int op_long(struct unpickler *m, int operand)
{
    uint64_t length = 0, number = 0;
    struct tt_pickle_value *value;
    int rc = 0;

    (void)operand;
    TT_TRY(take_number(m, 1, &length));
    if (length > 8)
        return fail(m, "has an integer of more than 64 bits");
    TT_TRY(take_number(m, (int)length, &number));
    if (length > 0 && length < 8 && number >> (8 * length - 1))
        number |= ~(uint64_t)0 << (8 * length);
    value = new_value(m->pickle, TT_PICKLE_INT);
    value->number = (int64_t)number;
    push(m, value);
out:
    return rc;
}

static int op_real(struct unpickler *m, int operand)
{
    const uint8_t *p = NULL;
    struct tt_pickle_value *value;
    uint64_t bits = 0;
    int rc = take(m, 8, &p);

    (void)operand;
    if (rc < 0)
        return rc;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | p[i]; /* the only big-endian number of the format */
    value = new_value(m->pickle, TT_PICKLE_REAL);
    memcpy(&value->real, &bits, sizeof bits);
    push(m, value);
    return 0;
}

static int add_string(struct unpickler *m, enum tt_pickle_kind kind, int length_bytes)
{
    const uint8_t *text = NULL;
    struct tt_pickle_value *value;
    uint64_t length = 0;
    int rc = 0;

    TT_TRY(take_number(m, length_bytes, &length));
    TT_TRY(take(m, (size_t)length, &text));
    value = new_value(m->pickle, kind);
    value->text = (const char *)text;
    value->size = (size_t)length;
    push(m, value);
out:
    return rc;
}

static int op_text(struct unpickler *m, int length_bytes)
{
    return add_string(m, TT_PICKLE_TEXT, length_bytes);
}

static int op_bytes(struct unpickler *m, int length_bytes)
{
    return add_string(m, TT_PICKLE_BYTES, length_bytes);
}

/* A tuple of the last n values. */
static int op_tuple_of(struct unpickler *m, int n)
{
    int rc = need(m, n);
    struct tt_pickle_value *value;

    if (rc < 0)
        return rc;
    value = new_value(m->pickle, TT_PICKLE_TUPLE);
    m->n -= n;
    if (n) /* the stack may not have been allocated yet */
        add_items(value, m->stack + m->n, n);
    push(m, value);
    return 0;
}

static int op_tuple(struct unpickler *m, int operand)
{
    int from = 0, rc = pop_mark(m, &from);

    (void)operand;
    return rc < 0 ? rc : op_tuple_of(m, m->n - from);
}

static int op_empty(struct unpickler *m, int kind)
{
    push(m, new_value(m->pickle, (enum tt_pickle_kind)kind));
    return 0;
}

/* Gives the values from stack[from] on to the list or dict below them; a dict takes pairs. */
static int give(struct unpickler *m, int from, bool pairs)
{
    int n = m->n - from, rc = 0;
    struct tt_pickle_value *to = NULL;

    m->n = from;
    TT_TRY(top(m, &to));
    if (pairs ? (to->kind != TT_PICKLE_DICT && to->kind != TT_PICKLE_OBJECT) || n % 2 : to->kind != TT_PICKLE_LIST)
        return fail(m, "gives items to a value that takes none");
    add_items(to, m->stack + from, n);
out:
    return rc;
}

static int op_give(struct unpickler *m, int n)
{
    int rc = need(m, n);

    return rc < 0 ? rc : give(m, m->n - n, n == 2);
}

static int op_give_all(struct unpickler *m, int pairs)
{
    int from = 0, rc = pop_mark(m, &from);

    return rc < 0 ? rc : give(m, from, pairs != 0);
}

static int push_class(struct unpickler *m, const char *module, size_t module_size, const char *name, size_t name_size)
{
    struct tt_pickle_value *value = new_value(m->pickle, TT_PICKLE_CLASS);

    value->text = name;
    value->size = name_size;
    push(m, value);
    return find_class(m->where, module, module_size, name, name_size, value);
}

/* GLOBAL: two lines of text. */
static int op_global(struct unpickler *m, int operand)
{
    const char *text = (const char *)m->bytes + m->at, *end, *end2;

    (void)operand;
    end = memchr(text, '\n', m->size - m->at);
    end2 = end ? memchr(end + 1, '\n', m->size - m->at - (size_t)(end + 1 - text)) : NULL;
    if (!end2)
        return fail(m, "is truncated");
    m->at += (size_t)(end2 + 1 - text);
    return push_class(m, text, (size_t)(end - text), end + 1, (size_t)(end2 - end - 1));
}

static int op_stack_global(struct unpickler *m, int operand)
{
    struct tt_pickle_value *name = NULL, *module = NULL;
    int rc = 0;

    (void)operand;
    TT_TRY(pop(m, &name));
    TT_TRY(pop(m, &module));
    if (name->kind != TT_PICKLE_TEXT || module->kind != TT_PICKLE_TEXT)
        return fail(m, "names a class by something else than text");
    rc = push_class(m, module->text, module->size, name->text, name->size);
out:
    return rc;
}

/* REDUCE and NEWOBJ: an object that remembers what it was made of. */
static int op_call(struct unpickler *m, int operand)
{
    struct tt_pickle_value *args = NULL, *class = NULL, *value;
    int rc = 0;

    (void)operand;
    TT_TRY(pop(m, &args));
    TT_TRY(pop(m, &class));
    if (class->kind != TT_PICKLE_CLASS || args->kind != TT_PICKLE_TUPLE)
        return fail(m, "calls something that is not a class");
    value = new_value(m->pickle, TT_PICKLE_OBJECT);
    value->class = class->class;
    value->args = args;
    push(m, value);
out:
    return rc;
}

static int op_build(struct unpickler *m, int operand)
{
    struct tt_pickle_value *state = NULL, *object = NULL;
    int rc = 0;

    (void)operand;
    TT_TRY(pop(m, &state));
    TT_TRY(top(m, &object));
    if (object->kind != TT_PICKLE_OBJECT)
        return fail(m, "sets the state of something that is not an object");
    object->state = state;
out:
    return rc;
}

static int op_persistent(struct unpickler *m, int operand)
{
    struct tt_pickle_value *id = NULL, *value;
    int rc = pop(m, &id);

    (void)operand;
    if (rc < 0)
        return rc;
    value = new_value(m->pickle, TT_PICKLE_PERSISTENT);
    value->args = id;
    push(m, value);
    return 0;
}

static int op_get(struct unpickler *m, int bytes)
{
    uint64_t i = 0;
    int rc = take_number(m, bytes, &i);

    if (rc < 0)
        return rc;
    if (i >= m->n_memo || !m->memo[i])
        return fail(m, "refers to a value that it does not have");
    push(m, m->memo[i]);
    return 0;
}

/* PyTorch numbers its memo from 0 on, without gaps. */
static int remember(struct unpickler *m, uint64_t i)
{
    struct tt_pickle_value *value = NULL;
    int rc = top(m, &value);

    if (rc < 0)
        return rc;
    if (i > m->n_memo)
        return fail(m, "numbers its values in no order");
    if (i == m->n_memo)
        TT_PUSH(m->memo, m->n_memo, m->cap_memo) = value;
    else
        m->memo[i] = value;
    return 0;
}

static int op_put(struct unpickler *m, int bytes)
{
    uint64_t i = 0;
    int rc = take_number(m, bytes, &i);

    return rc < 0 ? rc : remember(m, i);
}

static int op_memoize(struct unpickler *m, int operand)
{
    (void)operand;
    return remember(m, m->n_memo);
}

/* An opcode without a function is refused by its name. */
struct op {
    const char *name;
    int (*run)(struct unpickler *m, int operand);
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

static int run(struct unpickler *m)
{
    int rc = 0;

    while (!m->stopped) {
        const uint8_t *code = NULL;

        TT_TRY(take(m, 1, &code));
        if (!ops[*code].run)
            TT_TRY(tt_fail(TT_EDATA,
                           "'%s': its pickle has the opcode %s (0x%02x, at byte %zu), which PyTorch's do not have",
                           m->where, ops[*code].name ? ops[*code].name : "?", *code, m->at - 1));
        TT_TRY(ops[*code].run(m, ops[*code].operand));
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

    unpickler_release(&m);
    if (rc < 0)
        tt_pickle_release(&pickle);
    else
        *ret_pickle = pickle;
    return rc;
}

/* --- writing --- */

static void add_number(struct tt_pickler *p, uint64_t number, int bytes)
{
    uint8_t byte[8];

    for (int i = 0; i < bytes; i++)
        byte[i] = (uint8_t)(number >> 8 * i);
    tt_text_add_bytes(&p->text, byte, (size_t)bytes);
}

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

void tt_pickler_add(struct tt_pickler *pickler, enum tt_pickler_op op)
{
    add_code(pickler, (uint8_t)op);
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
    add_number(pickler, (uint64_t)i, 1);
}

void tt_pickler_int(struct tt_pickler *pickler, int64_t number)
{
    int bytes = 1;

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
    add_number(pickler, (uint64_t)number, bytes);
}

/* The only number that a pickle has with its highest byte first. */
void tt_pickler_real(struct tt_pickler *pickler, double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    add_code(pickler, 'G'); /* BINFLOAT */
    for (int shift = 56; shift >= 0; shift -= 8)
        add_number(pickler, bits >> shift & 0xff, 1);
}

void tt_pickler_bool(struct tt_pickler *pickler, bool value)
{
    add_code(pickler, value ? 0x88 : 0x89); /* NEWTRUE, NEWFALSE */
}

void tt_pickler_text(struct tt_pickler *pickler, const char *text)
{
    add_code(pickler, 'X'); /* BINUNICODE */
    add_number(pickler, strlen(text), 4);
    tt_text_add(&pickler->text, "%s", text);
}

void tt_pickler_tuple(struct tt_pickler *pickler, const int64_t *number, int n)
{
    tt_pickler_add(pickler, TT_PICKLER_MARK);
    for (int i = 0; i < n; i++)
        tt_pickler_int(pickler, number[i]);
    tt_pickler_add(pickler, TT_PICKLER_TUPLE);
}
