/* SPDX-License-Identifier: MIT
 *
 * GGUF files: the types of tensors, reading the header with its values, and writing it. Files may come from
 * anywhere, so every number is checked before it is used.
 */
#include "core/gguf/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/os/file.h"

/* --- types --- */

static const struct tt_gguf_type_row types[] = {
    {TT_GGML_F32, "F32", "f32", 1, 4, TT_F32, 0},      {TT_GGML_F16, "F16", "f16", 1, 2, TT_F16, 1},
    {TT_GGML_BF16, "BF16", "bf16", 1, 2, TT_BF16, 32}, {TT_GGML_Q8_0, "Q8_0", "q8_0", 32, 34, TT_U8, 7},
    {TT_GGML_Q4_0, "Q4_0", "q4_0", 32, 18, TT_U8, 2},
};

enum { N_TYPES = sizeof types / sizeof *types };

const struct tt_gguf_type_row *tt_gguf_type_of(uint32_t type)
{
    for (int i = 0; i < N_TYPES; i++)
        if ((uint32_t)types[i].type == type)
            return &types[i];
    return NULL;
}

const struct tt_gguf_type_row *tt_gguf_type_named(const char *option)
{
    for (int i = 0; i < N_TYPES; i++)
        if (strcmp(types[i].option, option) == 0)
            return &types[i];
    return NULL;
}

/* --- values --- */

static float float_at(const uint8_t *p)
{
    uint32_t bits = (uint32_t)tt_text_little(p, sizeof bits);
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

int32_t tt_gguf_i32_at(const struct tt_gguf_value *array, int64_t i)
{
    return (int32_t)(uint32_t)tt_text_little(array->data + 4 * i, 4);
}

float tt_gguf_f32_at(const struct tt_gguf_value *array, int64_t i)
{
    return float_at(array->data + 4 * i);
}

static int fail_kind(const struct tt_gguf *file, const char *key, const char *wanted)
{
    return tt_fail(TT_EDATA, "'%s': the value of '%s' is not %s", file->path, key, wanted);
}

static int fail_missing(const struct tt_gguf *file, const char *key)
{
    return tt_fail(TT_EDATA, "'%s' has no value '%s'", file->path, key);
}

/* Whether a value is a number, and which. An integer that neither a double nor an int64 represents exactly does not
 * count as one. */
static bool number_of(const struct tt_gguf_value *v, double *ret_real)
{
    uint64_t bits = v->kind == TT_GGUF_STRING || v->kind == TT_GGUF_ARRAY ? 0 : tt_text_little(v->data, v->size);
    int64_t number;
    double real;

    switch (v->kind) {
    case TT_GGUF_U8:
    case TT_GGUF_U16:
    case TT_GGUF_U32:
    case TT_GGUF_U64:
        *ret_real = (double)bits;
        return bits <= UINT64_C(1) << 53;
    case TT_GGUF_I8:
    case TT_GGUF_I16:
    case TT_GGUF_I32:
    case TT_GGUF_I64:
        number = (int64_t)(bits << (64 - 8 * v->size)) >> (64 - 8 * v->size); /* with its sign */
        *ret_real = (double)number;
        return number <= INT64_C(1) << 53 && number >= -(INT64_C(1) << 53);
    case TT_GGUF_F32:
        *ret_real = (double)float_at(v->data);
        return isfinite(*ret_real);
    case TT_GGUF_F64:
        memcpy(&real, &bits, sizeof real);
        *ret_real = real;
        return isfinite(real);
    case TT_GGUF_BOOL:
    case TT_GGUF_STRING:
    case TT_GGUF_ARRAY:
    case TT_GGUF_KINDS:
        break;
    }
    return false;
}

int tt_gguf_real(const struct tt_gguf *file, const char *key, const double *absent, double *ret_value)
{
    const struct tt_gguf_value *v = tt_gguf_find(file, key);

    if (!v && !absent)
        return fail_missing(file, key);
    if (v)
        return number_of(v, ret_value) ? 0 : fail_kind(file, key, "a finite number");
    *ret_value = *absent;
    return 0;
}

int tt_gguf_int(const struct tt_gguf *file, const char *key, const int64_t *absent, int64_t *ret_value)
{
    const struct tt_gguf_value *v = tt_gguf_find(file, key);
    double real = 0.0;

    if (!v && !absent)
        return fail_missing(file, key);
    if (!v) {
        *ret_value = *absent;
        return 0;
    }
    if (!number_of(v, &real) || !(fabs(real) <= 0x1p53) || real != floor(real))
        return fail_kind(file, key, "an integer");
    *ret_value = (int64_t)real;
    return 0;
}

int tt_gguf_bool(const struct tt_gguf *file, const char *key, const bool *absent, bool *ret_value)
{
    const struct tt_gguf_value *v = tt_gguf_find(file, key);

    if (!v && !absent)
        return fail_missing(file, key);
    if (v && v->kind != TT_GGUF_BOOL)
        return fail_kind(file, key, "true or false");
    *ret_value = v ? v->data[0] != 0 : *absent;
    return 0;
}

int tt_gguf_string(const struct tt_gguf *file, const char *key, char **ret_text)
{
    const struct tt_gguf_value *v = tt_gguf_find(file, key);

    *ret_text = NULL;
    if (!v)
        return 0;
    if (v->kind != TT_GGUF_STRING || memchr(v->data + 8, 0, v->size - 8))
        return fail_kind(file, key, "a text");
    *ret_text = tt_strndup((const char *)v->data + 8, v->size - 8);
    return 0;
}

int tt_gguf_array(const struct tt_gguf *file, const char *key, enum tt_gguf_kind item,
                  const struct tt_gguf_value **ret_value)
{
    const struct tt_gguf_value *v = tt_gguf_find(file, key);
    bool fits = v && v->kind == TT_GGUF_ARRAY && (v->item == item || (v->item == TT_GGUF_U32 && item == TT_GGUF_I32));

    *ret_value = v;
    return !v || fits ? 0 : fail_kind(file, key, item == TT_GGUF_STRING ? "a list of texts" : "a list of numbers");
}

const char *tt_gguf_next_string(const struct tt_gguf_value *array, size_t *at, size_t *ret_size)
{
    const uint8_t *p = array->data + *at;

    *ret_size = (size_t)tt_text_little(p, 8);
    *at += 8 + *ret_size;
    return (const char *)p + 8;
}

uint32_t tt_gguf_crc_of_tensors(const struct tt_gguf_tensor *tensor, int n)
{
    struct tt_text text = {0};
    uint32_t crc;

    for (int i = 0; i < n; i++) {
        tt_text_add(&text, "%s %d %d%c", tensor[i].name, (int)tensor[i].type->type, tensor[i].ndim, 0);
        for (int d = 0; d < tensor[i].ndim; d++)
            tt_text_add(&text, "%lld%c", (long long)tensor[i].shape[d], 0);
    }
    crc = tt_crc32c(0, text.text, text.size);
    tt_text_release(&text);
    return crc;
}

/* --- the header --- */

enum { VERSION_LEAST = 2, VERSION_MOST = 3, NAME_MOST = 1024, ALIGNMENT_MOST = 1 << 20 };

/* What is being read. */
struct reader {
    struct tt_gguf *file;
    size_t size, at;
};

bool tt_gguf_is_path(const char *path)
{
    bool is_folder = false;

    return path && tt_text_ends(path, ".gguf") && !(tt_path_is_folder(path, &is_folder) == 0 && is_folder);
}

static int fail_end(const struct reader *r, const char *what)
{
    return tt_fail(TT_EDATA, "'%s' is truncated or damaged: it has %zu bytes, and %s does not end within them",
                   r->file->path, r->size, what);
}

static int take(struct reader *r, uint64_t n, const char *what, const uint8_t **ret_bytes)
{
    if (n > r->size - r->at)
        return fail_end(r, what);
    *ret_bytes = r->file->bytes + r->at;
    r->at += (size_t)n;
    return 0;
}

static int read_number(struct reader *r, size_t n, const char *what, uint64_t *ret_value)
{
    const uint8_t *p = NULL;
    int rc = take(r, n, what, &p);

    *ret_value = rc == 0 ? tt_text_little(p, n) : 0;
    return rc;
}

/* The name of a value or a tensor: a short text without zero characters. */
static int read_name(struct reader *r, const char *what, char **ret_name)
{
    const uint8_t *p = NULL;
    uint64_t size = 0;
    int rc = 0;

    TT_TRY(read_number(r, 8, what, &size));
    if (size == 0 || size > NAME_MOST)
        TT_TRY(tt_fail(TT_EDATA, "'%s' is damaged: %s has %" PRIu64 " bytes, wanted 1 to %d", r->file->path, what, size,
                       NAME_MOST));
    TT_TRY(take(r, size, what, &p));
    if (memchr(p, 0, (size_t)size))
        rc = tt_fail(TT_EDATA, "'%s' is damaged: %s has a zero character", r->file->path, what);
    else
        *ret_name = tt_strndup((const char *)p, (size_t)size);
out:
    return rc;
}

/* Bytes of one value of a kind; 0 for texts and arrays. */
static size_t size_of(enum tt_gguf_kind kind)
{
    static const size_t sizes[TT_GGUF_KINDS] = {
        [TT_GGUF_U8] = 1,  [TT_GGUF_I8] = 1,  [TT_GGUF_U16] = 2, [TT_GGUF_I16] = 2,
        [TT_GGUF_U32] = 4, [TT_GGUF_I32] = 4, [TT_GGUF_F32] = 4, [TT_GGUF_BOOL] = 1,
        [TT_GGUF_U64] = 8, [TT_GGUF_I64] = 8, [TT_GGUF_F64] = 8,
    };

    return sizes[kind];
}

static int read_kind(struct reader *r, const char *key, bool is_item, enum tt_gguf_kind *ret_kind)
{
    uint64_t kind = 0;
    int rc = read_number(r, 4, key, &kind);

    if (rc == 0 && (kind >= TT_GGUF_KINDS || (is_item && kind == TT_GGUF_ARRAY)))
        rc = tt_fail(TT_EDATA, "'%s': the value of '%s' is of kind %" PRIu64 ", which titan does not read",
                     r->file->path, key, kind);
    *ret_kind = rc == 0 ? (enum tt_gguf_kind)kind : TT_GGUF_U8;
    return rc;
}

/* Steps over n values of a kind other than array. */
static int skip(struct reader *r, const char *key, enum tt_gguf_kind kind, uint64_t n)
{
    const uint8_t *p = NULL;
    int rc = 0;

    if (kind != TT_GGUF_STRING)
        return n > r->size / size_of(kind) ? fail_end(r, key) : take(r, n * size_of(kind), key, &p);
    for (uint64_t i = 0; i < n && rc == 0; i++) {
        uint64_t size = 0;

        rc = read_number(r, 8, key, &size);
        rc = rc < 0 ? rc : take(r, size, key, &p);
    }
    return rc;
}

static int read_value(struct reader *r)
{
    struct tt_gguf_value v = {0};
    uint64_t n = 1;
    size_t at;
    int rc = 0;

    TT_TRY(read_name(r, "the key of a value", &v.key));
    TT_TRY(read_kind(r, v.key, false, &v.kind));
    if (v.kind == TT_GGUF_ARRAY) {
        TT_TRY(read_kind(r, v.key, true, &v.item));
        TT_TRY(read_number(r, 8, v.key, &n));
    }
    at = r->at;
    TT_TRY(skip(r, v.key, v.kind == TT_GGUF_ARRAY ? v.item : v.kind, n));
    v.n = (int64_t)n;
    v.data = r->file->bytes + at;
    v.size = r->at - at;
    TT_PUSH(r->file->value, r->file->n_values, r->file->cap_values) = v;
    v.key = NULL;
out:
    tt_free(v.key);
    return rc;
}

/* Dimensions (the file has the innermost first) and their product. */
static int read_shape(struct reader *r, struct tt_gguf_tensor *t, int64_t *ret_elements)
{
    uint64_t n = 0, size = 0;
    int64_t elements = 1;
    int rc = 0;

    TT_TRY(read_number(r, 4, t->name, &n));
    if (n == 0 || n > TT_GGUF_DIMS)
        return tt_fail(TT_EDATA, "'%s' is damaged: tensor '%s' has %" PRIu64 " dimensions, wanted 1 to %d",
                       r->file->path, t->name, n, TT_GGUF_DIMS);
    t->ndim = (int)n;
    for (int d = t->ndim - 1; d >= 0; d--) {
        TT_TRY(read_number(r, 8, t->name, &size));
        if (size > INT64_MAX / 64 || __builtin_mul_overflow(elements, (int64_t)size, &elements) ||
            elements > INT64_MAX / 64)
            return tt_fail(TT_EDATA, "'%s' is damaged: the size of tensor '%s' does not fit in 64 bits", r->file->path,
                           t->name);
        t->shape[d] = (int64_t)size;
    }
    *ret_elements = elements;
out:
    return rc;
}

/* The name of a type that titan does not read, for the message. */
static const char *type_name(uint64_t type)
{
    static const char *const names[] = {
        [3] = "Q4_1",     [6] = "Q5_0",   [7] = "Q5_1",    [9] = "Q8_1",   [10] = "Q2_K",    [11] = "Q3_K",
        [12] = "Q4_K",    [13] = "Q5_K",  [14] = "Q6_K",   [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS",
        [18] = "IQ3_XXS", [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S", [22] = "IQ2_S",   [23] = "IQ4_XS",
        [24] = "I8",      [25] = "I16",   [26] = "I32",    [27] = "I64",   [28] = "F64",     [29] = "IQ1_M",
        [34] = "TQ1_0",   [35] = "TQ2_0", [39] = "MXFP4",
    };

    return type < sizeof names / sizeof *names && names[type] ? names[type] : "a type unknown to titan";
}

static int read_tensor(struct reader *r, uint64_t alignment)
{
    struct tt_gguf_tensor t = {0};
    uint64_t type = 0, offset = 0;
    int64_t elements = 0;
    int rc = 0;

    TT_TRY(read_name(r, "the name of a tensor", &t.name));
    TT_TRY(read_shape(r, &t, &elements));
    TT_TRY(read_number(r, 4, t.name, &type));
    TT_TRY(read_number(r, 8, t.name, &offset));
    t.type = tt_gguf_type_of((uint32_t)type);
    if (!t.type)
        TT_TRY(
            tt_fail(TT_EDATA,
                    "'%s': tensor '%s' is %s; titan reads F32, F16, BF16, Q8_0 and Q4_0\n"
                    "help: take the file of another type, or convert it: llama-quantize --allow-requantize IN OUT Q8_0",
                    r->file->path, t.name, type_name(type)));
    if (t.shape[t.ndim - 1] % t.type->elements)
        TT_TRY(tt_fail(TT_EDATA, "'%s' is damaged: tensor '%s' is %s and has rows of %" PRId64 " elements",
                       r->file->path, t.name, t.type->name, t.shape[t.ndim - 1]));
    if (offset % alignment || offset > INT64_MAX / 64)
        TT_TRY(tt_fail(TT_EDATA,
                       "'%s' is damaged: tensor '%s' begins at byte %" PRIu64 ", which is not a multiple of %" PRIu64,
                       r->file->path, t.name, offset, alignment));
    t.begin = (int64_t)offset; /* from the start of the data, whose offset is not known yet */
    t.end = t.begin + elements / t.type->elements * t.type->bytes;
    TT_PUSH(r->file->tensor, r->file->n_tensors, r->file->cap_tensors) = t;
    t.name = NULL;
out:
    tt_free(t.name);
    return rc;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* No key and no name may occur twice, since readers would disagree about which one counts. */
static int check_names(const struct tt_gguf *file, bool of_values)
{
    int n = of_values ? file->n_values : file->n_tensors, rc = 0;
    const char **name = tt_calloc((size_t)n + 1, sizeof *name);

    for (int i = 0; i < n; i++)
        name[i] = of_values ? file->value[i].key : file->tensor[i].name;
    qsort(name, (size_t)n, sizeof *name, compare_texts);
    for (int i = 1; i < n && rc == 0; i++)
        if (strcmp(name[i], name[i - 1]) == 0)
            rc = tt_fail(TT_EDATA, "'%s' is damaged: it has two %s '%s'", file->path,
                         of_values ? "values of" : "tensors", name[i]);
    tt_free(name);
    return rc;
}

static int compare_begins(const void *pa, const void *pb)
{
    const struct tt_gguf_tensor *a = *(const struct tt_gguf_tensor *const *)pa;
    const struct tt_gguf_tensor *b = *(const struct tt_gguf_tensor *const *)pb;

    return a->begin != b->begin ? (a->begin < b->begin ? -1 : 1) : (a->end > b->end) - (a->end < b->end);
}

/* Checks that tensors lie within the file and do not share bytes. */
static int check_data(struct tt_gguf *file)
{
    const struct tt_gguf_tensor **by_begin = tt_calloc((size_t)file->n_tensors + 1, sizeof *by_begin);
    int rc = 0;

    for (int i = 0; i < file->n_tensors && rc == 0; i++) {
        struct tt_gguf_tensor *t = &file->tensor[i];

        t->begin += file->data_start;
        t->end += file->data_start;
        by_begin[i] = t;
        if (t->end > file->file_bytes)
            rc = tt_fail(TT_EDATA,
                         "'%s' is truncated: it has %" PRId64 " bytes, and tensor '%s' ends at byte %" PRId64
                         "\nhelp: copy or download the file again",
                         file->path, file->file_bytes, t->name, t->end);
    }
    if (rc == 0)
        qsort(by_begin, (size_t)file->n_tensors, sizeof *by_begin, compare_begins);
    for (int i = 1; i < file->n_tensors && rc == 0; i++)
        if (by_begin[i]->begin < by_begin[i - 1]->end)
            rc = tt_fail(TT_EDATA, "'%s' is damaged: tensors '%s' and '%s' share bytes", file->path,
                         by_begin[i - 1]->name, by_begin[i]->name);
    tt_free(by_begin);
    return rc;
}

static int read_begin(struct reader *r, uint64_t *ret_tensors, uint64_t *ret_values)
{
    const char *path = r->file->path;
    const uint8_t *magic = NULL;
    uint64_t version = 0;
    int rc = 0;

    if (r->size < 4 || memcmp(r->file->bytes, "GGUF", 4) != 0)
        return tt_fail(TT_EDATA, "'%s' is not a GGUF file: it does not begin with 'GGUF'", path);
    TT_TRY(take(r, 4, "its beginning", &magic));
    TT_TRY(read_number(r, 4, "its version", &version));
    if (version & 0xff000000U)
        return tt_fail(TT_EDATA, "'%s' is a GGUF file for big-endian machines, which titan does not read", path);
    if (version < VERSION_LEAST || version > VERSION_MOST)
        return tt_fail(TT_EDATA, "'%s' is of version %" PRIu64 " of GGUF; titan reads versions %d and %d", path,
                       version, VERSION_LEAST, VERSION_MOST);
    TT_TRY(read_number(r, 8, "the number of tensors", ret_tensors));
    TT_TRY(read_number(r, 8, "the number of values", ret_values));
    /* each takes more bytes than that, so an impossible number is refused before it takes memory */
    if (*ret_tensors > r->size / 16 || *ret_values > r->size / 8)
        return tt_fail(TT_EDATA,
                       "'%s' is damaged: it would have %" PRIu64 " tensors and %" PRIu64 " values in %zu bytes", path,
                       *ret_tensors, *ret_values, r->size);
out:
    return rc;
}

int tt_gguf_parse(const char *path, const void *bytes, size_t size, struct tt_gguf *file)
{
    struct reader r = {.file = file, .size = size};
    uint64_t n_tensors = 0, n_values = 0;
    int64_t alignment = 0;
    const int64_t usual = TT_GGUF_ALIGNMENT;
    int rc = 0;

    tt_free(file->path);
    file->path = tt_strdup(path);
    file->bytes = bytes;
    file->file_bytes = (int64_t)size;
    TT_TRY(read_begin(&r, &n_tensors, &n_values));
    for (uint64_t i = 0; i < n_values; i++)
        TT_TRY(read_value(&r));
    TT_TRY(check_names(file, true));
    TT_TRY(tt_gguf_int(file, "general.alignment", &usual, &alignment));
    if (alignment < 8 || alignment > ALIGNMENT_MOST || alignment % 8)
        TT_TRY(tt_fail(TT_EDATA, "'%s' is damaged: general.alignment is %" PRId64, file->path, alignment));
    for (uint64_t i = 0; i < n_tensors; i++)
        TT_TRY(read_tensor(&r, (uint64_t)alignment));
    TT_TRY(check_names(file, false));
    file->data_start = ((int64_t)r.at + alignment - 1) / alignment * alignment;
    rc = check_data(file);
out:
    return rc;
}

int tt_gguf_open(const char *path, struct tt_gguf *ret_file)
{
    int rc = tt_mapping_open(path, &ret_file->mapping);

    return rc < 0 ? rc : tt_gguf_parse(path, ret_file->mapping.data, ret_file->mapping.size, ret_file);
}

void tt_gguf_release(struct tt_gguf *file)
{
    for (int i = 0; i < file->n_values; i++)
        tt_free(file->value[i].key);
    for (int i = 0; i < file->n_tensors; i++)
        tt_free(file->tensor[i].name);
    tt_free(file->value);
    tt_free(file->tensor);
    tt_free(file->path);
    tt_mapping_release(&file->mapping);
    *file = (struct tt_gguf){0};
}

const struct tt_gguf_value *tt_gguf_find(const struct tt_gguf *file, const char *key)
{
    for (int i = 0; i < file->n_values; i++)
        if (strcmp(file->value[i].key, key) == 0)
            return &file->value[i];
    return NULL;
}

const struct tt_gguf_tensor *tt_gguf_find_tensor(const struct tt_gguf *file, const char *name)
{
    for (int i = 0; i < file->n_tensors; i++)
        if (strcmp(file->tensor[i].name, name) == 0)
            return &file->tensor[i];
    return NULL;
}

/* --- writing --- */

static void add_string(struct tt_text *text, const char *bytes, size_t size)
{
    tt_text_add_little(text, size, 8);
    tt_text_add_bytes(text, bytes, size);
}

static void begin(struct tt_gguf_values *values, const char *key, enum tt_gguf_kind kind)
{
    add_string(&values->text, key, strlen(key));
    tt_text_add_little(&values->text, kind, 4);
    values->n++;
}

void tt_gguf_put_u32(struct tt_gguf_values *values, const char *key, int64_t value)
{
    begin(values, key, TT_GGUF_U32);
    tt_text_add_little(&values->text, (uint64_t)value, 4);
}

void tt_gguf_put_f32(struct tt_gguf_values *values, const char *key, double value)
{
    begin(values, key, TT_GGUF_F32);
    tt_gguf_add_f32(values, (float)value);
}

void tt_gguf_put_bool(struct tt_gguf_values *values, const char *key, bool value)
{
    begin(values, key, TT_GGUF_BOOL);
    tt_text_add_little(&values->text, value, 1);
}

void tt_gguf_put_string(struct tt_gguf_values *values, const char *key, const char *text, size_t size)
{
    begin(values, key, TT_GGUF_STRING);
    add_string(&values->text, text, size);
}

void tt_gguf_put_array(struct tt_gguf_values *values, const char *key, enum tt_gguf_kind item, int64_t n)
{
    begin(values, key, TT_GGUF_ARRAY);
    tt_text_add_little(&values->text, item, 4);
    tt_text_add_little(&values->text, (uint64_t)n, 8);
}

void tt_gguf_add_string(struct tt_gguf_values *values, const char *text, size_t size)
{
    add_string(&values->text, text, size);
}

void tt_gguf_add_i32(struct tt_gguf_values *values, int32_t value)
{
    tt_text_add_little(&values->text, (uint32_t)value, 4);
}

void tt_gguf_add_f32(struct tt_gguf_values *values, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    tt_text_add_little(&values->text, bits, 4);
}

static int64_t aligned(int64_t at)
{
    return (at + TT_GGUF_ALIGNMENT - 1) / TT_GGUF_ALIGNMENT * TT_GGUF_ALIGNMENT;
}

void tt_gguf_layout(const struct tt_gguf_values *values, struct tt_gguf_tensor *tensor, int n, struct tt_text *header,
                    int64_t *ret_file_bytes)
{
    static const char zeros[TT_GGUF_ALIGNMENT];
    int64_t at = 0, start;

    tt_text_add_bytes(header, "GGUF", 4);
    tt_text_add_little(header, 3, 4);
    tt_text_add_little(header, (uint64_t)n, 8);
    tt_text_add_little(header, (uint64_t)values->n, 8);
    tt_text_add_bytes(header, values->text.text, values->text.size);
    for (int i = 0; i < n; i++) {
        struct tt_gguf_tensor *t = &tensor[i];
        int64_t elements = 1;

        add_string(header, t->name, strlen(t->name));
        tt_text_add_little(header, (uint64_t)t->ndim, 4);
        for (int d = t->ndim - 1; d >= 0; d--) {
            tt_text_add_little(header, (uint64_t)t->shape[d], 8);
            elements *= t->shape[d];
        }
        tt_text_add_little(header, t->type->type, 4);
        tt_text_add_little(header, (uint64_t)at, 8);
        t->begin = at;
        t->end = at + elements / t->type->elements * t->type->bytes;
        at = aligned(t->end);
    }
    start = aligned((int64_t)header->size);
    tt_text_add_bytes(header, zeros, (size_t)(start - (int64_t)header->size));
    for (int i = 0; i < n; i++) {
        tensor[i].begin += start;
        tensor[i].end += start;
    }
    *ret_file_bytes = start + at;
}
