/* SPDX-License-Identifier: MIT
 *
 * The types of tensors, and the values of a file, as C's.
 */
#include <math.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/gguf/gguf.h"

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

/* --- reading --- */

static uint64_t little(const uint8_t *p, size_t n)
{
    uint64_t value = 0;

    for (size_t i = n; i > 0; i--)
        value = value << 8 | p[i - 1];
    return value;
}

static float float_at(const uint8_t *p)
{
    uint32_t bits = (uint32_t)little(p, sizeof bits);
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

int32_t tt_gguf_i32_at(const struct tt_gguf_value *array, int64_t i)
{
    return (int32_t)(uint32_t)little(array->data + 4 * i, 4);
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
    return tt_fail(TT_EDATA, "'%s' has no value of '%s'", file->path, key);
}

/* Whether a value is a number, and which. An integer that is not exact as a double, or as an int64, is none. */
static bool number_of(const struct tt_gguf_value *v, double *ret_real)
{
    uint64_t bits = v->kind == TT_GGUF_STRING || v->kind == TT_GGUF_ARRAY ? 0 : little(v->data, v->size);
    double real;

    switch (v->kind) {
    case TT_GGUF_U8:
    case TT_GGUF_U16:
    case TT_GGUF_U32:
    case TT_GGUF_U64:
        *ret_real = (double)bits;
        return bits <= UINT64_C(1) << 53;
    case TT_GGUF_I8:
        *ret_real = (double)(int8_t)bits;
        return true;
    case TT_GGUF_I16:
        *ret_real = (double)(int16_t)bits;
        return true;
    case TT_GGUF_I32:
        *ret_real = (double)(int32_t)bits;
        return true;
    case TT_GGUF_I64:
        *ret_real = (double)(int64_t)bits;
        return (int64_t)bits <= INT64_C(1) << 53 && (int64_t)bits >= -(INT64_C(1) << 53);
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

int tt_gguf_bool(const struct tt_gguf *file, const char *key, bool absent, bool *ret_value)
{
    const struct tt_gguf_value *v = tt_gguf_find(file, key);

    if (v && v->kind != TT_GGUF_BOOL)
        return fail_kind(file, key, "true or false");
    *ret_value = v ? v->data[0] != 0 : absent;
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

    *ret_size = (size_t)little(p, 8);
    *at += 8 + *ret_size;
    return (const char *)p + 8;
}

uint32_t tt_gguf_crc_of_tensors(const struct tt_gguf_tensor *tensor, int n)
{
    uint32_t crc = 0;

    for (int i = 0; i < n; i++) {
        const struct tt_gguf_tensor *t = &tensor[i];
        char *text = tt_format("%s %d %d", t->name, (int)t->type->type, t->ndim);

        crc = tt_crc32c(crc, text, strlen(text) + 1);
        tt_free(text);
        for (int d = 0; d < t->ndim; d++) {
            text = tt_format("%lld", (long long)t->shape[d]);
            crc = tt_crc32c(crc, text, strlen(text) + 1);
            tt_free(text);
        }
    }
    return crc;
}

/* --- writing --- */

static void add_little(struct tt_text *text, uint64_t value, size_t n)
{
    uint8_t bytes[8];

    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    tt_text_add_bytes(text, bytes, n);
}

static void add_string(struct tt_text *text, const char *bytes, size_t size)
{
    add_little(text, size, 8);
    tt_text_add_bytes(text, bytes, size);
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void begin(struct tt_gguf_values *values, const char *key, enum tt_gguf_kind kind)
{
    add_string(&values->text, key, strlen(key));
    add_little(&values->text, kind, 4);
    values->n++;
}

void tt_gguf_put_u32(struct tt_gguf_values *values, const char *key, int64_t value)
{
    begin(values, key, TT_GGUF_U32);
    add_little(&values->text, (uint64_t)value, 4);
}

void tt_gguf_put_f32(struct tt_gguf_values *values, const char *key, double value)
{
    begin(values, key, TT_GGUF_F32);
    add_little(&values->text, bits_of((float)value), 4);
}

void tt_gguf_put_bool(struct tt_gguf_values *values, const char *key, bool value)
{
    begin(values, key, TT_GGUF_BOOL);
    add_little(&values->text, value, 1);
}

void tt_gguf_put_string(struct tt_gguf_values *values, const char *key, const char *text, size_t size)
{
    begin(values, key, TT_GGUF_STRING);
    add_string(&values->text, text, size);
}

void tt_gguf_put_array(struct tt_gguf_values *values, const char *key, enum tt_gguf_kind item, int64_t n)
{
    begin(values, key, TT_GGUF_ARRAY);
    add_little(&values->text, item, 4);
    add_little(&values->text, (uint64_t)n, 8);
}

void tt_gguf_add_string(struct tt_gguf_values *values, const char *text, size_t size)
{
    add_string(&values->text, text, size);
}

void tt_gguf_add_i32(struct tt_gguf_values *values, int32_t value)
{
    add_little(&values->text, (uint32_t)value, 4);
}

void tt_gguf_add_f32(struct tt_gguf_values *values, float value)
{
    add_little(&values->text, bits_of(value), 4);
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
    add_little(header, 3, 4);
    add_little(header, (uint64_t)n, 8);
    add_little(header, (uint64_t)values->n, 8);
    tt_text_add_bytes(header, values->text.text, values->text.size);
    for (int i = 0; i < n; i++) {
        struct tt_gguf_tensor *t = &tensor[i];
        int64_t elements = 1;

        add_string(header, t->name, strlen(t->name));
        add_little(header, (uint64_t)t->ndim, 4);
        for (int d = t->ndim - 1; d >= 0; d--) {
            add_little(header, (uint64_t)t->shape[d], 8);
            elements *= t->shape[d];
        }
        add_little(header, t->type->type, 4);
        add_little(header, (uint64_t)at, 8);
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
