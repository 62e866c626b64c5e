/* SPDX-License-Identifier: MIT
 *
 * Weights as bitsandbytes stores them.
 */
#include "checkpoint/read/bitsandbytes.h"

#include <math.h>
#include <string.h>

#include "checkpoint/format/cast.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/packing.h"
#include "core/math/round.h"

/* --- names --- */

static const char weight[] = ".weight";
static const char *const states[] = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"};

static const struct tt_manifest_tensor *find(const struct tt_source *source, const char *name, const char *end)
{
    char *whole = tt_format("%s%s", name, end);
    const struct tt_manifest_tensor *t = tt_manifest_find(&source->manifest, TT_CKPT_MODEL, whole);

    tt_free(whole);
    return t;
}

/* Finds the tensor NAME.SCB of NAME.weight. */
static const struct tt_manifest_tensor *find_row_scales(const struct tt_source *source, const char *name)
{
    char *layer = tt_strndup(name, strlen(name) - (tt_text_ends(name, weight) ? sizeof weight - 1 : 0));
    const struct tt_manifest_tensor *t = find(source, layer, ".SCB");

    tt_free(layer);
    return t;
}

char *tt_bnb_weight_of(const char *name)
{
    static const char *const ends[] = {".absmax",           ".quant_map", ".nested_absmax",
                                       ".nested_quant_map", "_format",    ".SCB"};
    size_t size = strlen(name), n = sizeof ends / sizeof *ends;

    for (size_t i = 0; i < n + sizeof states / sizeof *states; i++) {
        const char *end = i < n ? ends[i] : states[i - n];
        char *of;

        if (!tt_text_ends(name, end))
            continue;
        of = tt_strndup(name, size - strlen(end));
        if (i == n - 1) { /* NAME.SCB */
            char *layer = of;

            of = tt_format("%s%s", layer, weight);
            tt_free(layer);
        }
        return of;
    }
    return NULL;
}

/* --- finding --- */

static int fail_tensor(const struct tt_manifest_tensor *t, const char *wanted)
{
    struct tt_box whole = tt_box_whole(t->ndim, t->shape);
    char found[128];

    return tt_fail(TT_EDATA, "tensor '%s' is %s %s; wanted %s", t->name, tt_dtype_name(t->dtype),
                   tt_box_text(found, sizeof found, &whole), wanted);
}

static int64_t elements_of(const struct tt_manifest_tensor *t)
{
    struct tt_box whole = tt_box_whole(t->ndim, t->shape);

    return tt_box_volume(&whole);
}

/* Finds the tensor NAME<end> of n elements of the given type. */
static int need(const struct tt_source *source, const char *name, const char *end, enum tt_dtype dtype, int64_t n,
                const struct tt_manifest_tensor **ret_tensor)
{
    const struct tt_manifest_tensor *t = find(source, name, end);
    char wanted[64];
    int rc = 0;

    *ret_tensor = t;
    if (!t)
        return tt_fail(TT_EDATA, "the weights in '%s' lack tensor '%s%s', which belongs to a 4-bit weight",
                       source->path, name, end);
    (void)snprintf(wanted, sizeof wanted, "%lld elements of %s", (long long)n, tt_dtype_name(dtype));
    if (t->dtype != dtype || elements_of(t) != n || t->ndim < 1)
        rc = fail_tensor(t, wanted);
    return rc;
}

/* A table of n floats. */
static int read_map(struct tt_source *source, const char *name, const char *end, int64_t n, float *map)
{
    const struct tt_manifest_tensor *t;
    int rc = need(source, name, end, TT_F32, n, &t);

    return rc < 0 ? rc : tt_source_read_rows(source, t, 0, t->shape[0], TT_F32, map);
}

/* The JSON of a weight's sizes. */
static int read_state(struct tt_source *source, const char *name, json_t **ret_json)
{
    const struct tt_manifest_tensor *t = NULL;
    char *text = NULL;
    int rc = 0;

    for (size_t i = 0; i < sizeof states / sizeof *states && !t; i++)
        t = find(source, name, states[i]);
    if (!t)
        return tt_fail(TT_EDATA,
                       "the weights in '%s' lack tensor '%s%s', the sizes of a 4-bit weight; tables other than nf4 "
                       "and fp4 are not supported",
                       source->path, name, states[0]);
    if (t->dtype != TT_U8 || t->ndim != 1 || t->shape[0] < 2 || t->shape[0] > 1 << 16)
        return fail_tensor(t, "JSON as U8");
    text = tt_calloc((size_t)t->shape[0] + 1, 1);
    TT_TRY(tt_source_read_rows(source, t, 0, t->shape[0], TT_U8, text));
    rc = tt_json_parse(text, (size_t)t->shape[0], t->name, ret_json);
out:
    tt_free(text);
    return rc;
}

static int read_sizes(const json_t *json, const char *where, struct tt_bnb *bnb)
{
    const char *dtype = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_json_get_int(json, "blocksize", where, &bnb->block));
    TT_TRY(tt_json_get_string(json, "dtype", where, &dtype));
    bnb->dtype = strcmp(dtype, "bfloat16") == 0 ? TT_BF16 : strcmp(dtype, "float16") == 0 ? TT_F16 : TT_F32;
    if (bnb->dtype == TT_F32 && strcmp(dtype, "float32") != 0)
        rc = tt_fail(TT_EDATA, "%s: the sizes of a 4-bit weight have dtype '%s'", where, dtype);
    else if (!tt_json_sizes(json_object_get(json, "shape"), bnb->shape, 2, &n) || n != 2 || bnb->block < 1)
        rc = tt_fail(TT_EDATA, "%s: the sizes of a 4-bit weight must have a shape of two dimensions and a blocksize",
                     where);
out:
    return rc;
}

/* bnb_4bit_quant_storage: the bytes may be declared as numbers of another type, which PyTorch's FSDP can shard. */
static bool is_storage(enum tt_dtype dtype)
{
    return dtype == TT_U8 || dtype == TT_BF16 || dtype == TT_F16 || dtype == TT_F32;
}

static int find_four_bit(struct tt_source *source, struct tt_bnb *bnb)
{
    const char *name = bnb->values->name;
    json_t *json = NULL;
    double offset = 0.0;
    int64_t blocks;
    int rc = 0;

    TT_TRY(read_state(source, name, &json));
    TT_TRY(read_sizes(json, name, bnb));
    blocks = tt_div_up(bnb->shape[0] * bnb->shape[1], bnb->block);
    if (!is_storage(bnb->values->dtype) || bnb->values->ndim < 1 ||
        elements_of(bnb->values) * (int64_t)tt_dtype_size(bnb->values->dtype) !=
            tt_div_up(bnb->shape[0] * bnb->shape[1], 2))
        TT_TRY(fail_tensor(bnb->values, "two elements of its matrix in each byte, as U8, BF16, F16 or F32 "
                                        "(bnb_4bit_quant_storage)"));
    TT_TRY(read_map(source, name, ".quant_map", TT_NF4_VALUES, bnb->map));
    if (!json_object_get(json, "nested_blocksize")) {
        rc = need(source, name, ".absmax", TT_F32, blocks, &bnb->absmax);
        goto out;
    }
    TT_TRY(tt_json_get_int(json, "nested_blocksize", name, &bnb->nested_block));
    TT_TRY(tt_json_get_real(json, "nested_offset", name, &offset));
    bnb->offset = (float)offset;
    if (bnb->nested_block < 1)
        TT_TRY(tt_fail(TT_EDATA, "%s: nested_blocksize must be positive", name));
    TT_TRY(need(source, name, ".absmax", TT_U8, blocks, &bnb->absmax));
    TT_TRY(need(source, name, ".nested_absmax", TT_F32, tt_div_up(blocks, bnb->nested_block), &bnb->nested));
    TT_TRY(read_map(source, name, ".nested_quant_map", TT_NF4_FACTORS, bnb->nested_map));
out:
    json_decref(json);
    return rc;
}

static int find_int8(const struct tt_manifest_tensor *scales, struct tt_bnb *bnb)
{
    bnb->absmax = scales;
    bnb->dtype = TT_F32;
    if (bnb->values->ndim != 2)
        return fail_tensor(bnb->values, "a matrix");
    memcpy(bnb->shape, bnb->values->shape, sizeof bnb->shape);
    if (scales->dtype != TT_F32 || scales->ndim < 1 || elements_of(scales) != bnb->shape[0])
        return fail_tensor(scales, "a float for each row of the weight");
    return 0;
}

int tt_bnb_find(struct tt_source *source, const struct tt_manifest_tensor *values, struct tt_bnb **ret_bnb)
{
    const struct tt_manifest_tensor *scales = values->dtype == TT_I8 ? find_row_scales(source, values->name) : NULL;
    bool four_bit = find(source, values->name, ".absmax") != NULL;
    struct tt_bnb *bnb;
    int rc;

    *ret_bnb = NULL;
    if (!scales && !four_bit)
        return 0;
    bnb = tt_calloc(1, sizeof *bnb);
    bnb->values = values;
    rc = scales ? find_int8(scales, bnb) : find_four_bit(source, bnb);
    if (rc < 0)
        tt_free(bnb);
    else
        *ret_bnb = bnb;
    return rc;
}

/* --- reading --- */

/* Elements [first, first + n) of a tensor with only one dimension larger than 1, or of a single row. */
static int read_run(struct tt_source *source, const struct tt_manifest_tensor *t, int64_t first, int64_t n, void *data)
{
    struct tt_box box = tt_box_whole(t->ndim, t->shape);
    int d = 0;

    while (d < t->ndim - 1 && t->shape[d] == 1)
        d++;
    for (int k = d + 1; k < t->ndim; k++)
        if (t->shape[k] != 1)
            return fail_tensor(t, "one dimension that is not 1");
    box.offset[d] = first;
    box.shape[d] = n;
    return tt_source_read(source, t, &box, t->dtype, data);
}

/* The factors of blocks [first, first + n). */
static int read_factors(struct tt_source *source, const struct tt_bnb *bnb, int64_t first, int64_t n, float *factors)
{
    int64_t begin = bnb->nested ? first / bnb->nested_block : 0;
    int64_t of_blocks = bnb->nested ? (first + n - 1) / bnb->nested_block + 1 - begin : 0;
    uint8_t *numbers = NULL;
    float *outer = NULL;
    int rc = 0;

    if (!bnb->nested)
        return read_run(source, bnb->absmax, first, n, factors);
    numbers = tt_calloc((size_t)n, 1);
    outer = tt_calloc((size_t)of_blocks, sizeof *outer);
    TT_TRY(read_run(source, bnb->absmax, first, n, numbers));
    TT_TRY(read_run(source, bnb->nested, begin, of_blocks, outer));
    for (int64_t i = 0; i < n; i++)
        factors[i] =
            tt_unpack_factor(bnb->nested_map, numbers[i], outer[(first + i) / bnb->nested_block - begin], bnb->offset);
out:
    tt_free(numbers);
    tt_free(outer);
    return rc;
}

/* Rounds to the type to which bitsandbytes unpacks the weight, and back. */
static void round_to(enum tt_dtype dtype, int64_t n, float *data)
{
    enum { SOME = 256 };
    uint16_t narrow[SOME];

    for (int64_t i = 0, some; i < n && dtype != TT_F32; i += some) {
        some = n - i < SOME ? n - i : SOME;
        tt_cast(dtype, narrow, TT_F32, data + i, some);
        tt_cast(TT_F32, data + i, dtype, narrow, some);
    }
}

static int read_four_bit(struct tt_source *source, const struct tt_bnb *bnb, int64_t row, int64_t n, float *data)
{
    int64_t begin = row * bnb->shape[1], end = begin + n * bnb->shape[1];
    int64_t item = (int64_t)tt_dtype_size(bnb->values->dtype), place = begin / 2 / item, byte = place * item;
    int64_t items = tt_div_up((end + 1) / 2, item) - place;
    int64_t first = begin / bnb->block, blocks = (end - 1) / bnb->block + 1 - first;
    uint8_t *values = tt_calloc_for((size_t)items, (size_t)item, bnb->values->name);
    float *factors = tt_calloc_for((size_t)blocks, sizeof *factors, bnb->values->name);
    int rc = values && factors ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    TT_TRY(read_run(source, bnb->values, place, items, values));
    TT_TRY(read_factors(source, bnb, first, blocks, factors));
    tt_unpack_4bit(values + (begin / 2 - byte), begin, end - begin, bnb->map, bnb->block, factors, data);
    round_to(bnb->dtype, end - begin, data);
out:
    tt_free(values);
    tt_free(factors);
    return rc;
}

static int read_int8(struct tt_source *source, const struct tt_bnb *bnb, int64_t row, int64_t n, float *data)
{
    int64_t width = bnb->shape[1];
    int8_t *values = tt_calloc_for((size_t)(n * width), 1, bnb->values->name);
    float *scales = tt_calloc_for((size_t)n, sizeof *scales, bnb->values->name);
    int rc = values && scales ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    TT_TRY(tt_source_read_rows(source, bnb->values, row, n, TT_I8, values));
    TT_TRY(read_run(source, bnb->absmax, row, n, scales));
    for (int64_t r = 0; r < n; r++)
        tt_unpack_int8(values + r * width, scales[r], width, data + r * width);
out:
    tt_free(values);
    tt_free(scales);
    return rc;
}

int tt_bnb_read(struct tt_source *source, const struct tt_bnb *bnb, int64_t row, int64_t n, float *data)
{
    if (n == 0)
        return 0;
    return (bnb->block ? read_four_bit : read_int8)(source, bnb, row, n, data);
}

/* --- reading packed rows --- */

enum { NF4_GROUP = 256 /* blocks */ };

bool tt_bnb_is_packed(const struct tt_bnb *bnb, enum tt_packing_choice packing)
{
    if (packing == TT_PACKING_INT8)
        return !bnb->block;
    return packing == TT_PACKING_NF4 && bnb->block == TT_NF4_BLOCK && bnb->nested_block == NF4_GROUP &&
           bnb->shape[1] % TT_NF4_BLOCK == 0 && tt_nf4_has_tables(bnb->map, bnb->nested_map);
}

static int read_int8_rows(struct tt_source *source, const struct tt_bnb *bnb, int64_t row, int64_t n, char *rows)
{
    int64_t width = bnb->shape[1], bytes = tt_packing_row_bytes(TT_PACKING_INT8, width);
    int8_t *values = tt_calloc_for((size_t)(n * width), 1, bnb->values->name);
    float *scales = tt_calloc_for((size_t)n, sizeof *scales, bnb->values->name);
    int rc = values && scales ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    TT_TRY(tt_source_read_rows(source, bnb->values, row, n, TT_I8, values));
    TT_TRY(read_run(source, bnb->absmax, row, n, scales));
    for (int64_t r = 0; r < n; r++)
        tt_int8_row(width, scales[r], values + r * width, rows + r * bytes);
out:
    tt_free(values);
    tt_free(scales);
    return rc;
}

static int read_nf4_rows(struct tt_source *source, const struct tt_bnb *bnb, int64_t row, int64_t n, char *rows)
{
    int64_t width = bnb->shape[1], blocks = width / TT_NF4_BLOCK, bytes = tt_packing_row_bytes(TT_PACKING_NF4, width);
    int64_t item = (int64_t)tt_dtype_size(bnb->values->dtype), first = row * blocks, group = first / NF4_GROUP;
    int64_t n_groups = (first + n * blocks - 1) / NF4_GROUP + 1 - group;
    uint8_t *values = tt_calloc_for((size_t)n, (size_t)(width / 2), bnb->values->name);
    uint8_t *numbers = tt_calloc_for((size_t)n, (size_t)blocks, bnb->values->name);
    float *groups = tt_calloc_for((size_t)n_groups, sizeof *groups, bnb->values->name);
    int rc = values && numbers && groups ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    TT_TRY(read_run(source, bnb->values, row * width / 2 / item, n * width / 2 / item, values));
    TT_TRY(read_run(source, bnb->absmax, first, n * blocks, numbers));
    TT_TRY(read_run(source, bnb->nested, group, n_groups, groups));
    for (int64_t r = 0; r < n; r++)
        tt_nf4_row(width, bnb->offset, first + r * blocks, groups + ((first + r * blocks) / NF4_GROUP - group),
                   numbers + r * blocks, values + r * (width / 2), rows + r * bytes);
out:
    tt_free(values);
    tt_free(numbers);
    tt_free(groups);
    return rc;
}

int tt_bnb_read_packed(struct tt_source *source, const struct tt_bnb *bnb, int64_t row, int64_t n, void *rows)
{
    if (n == 0)
        return 0;
    return (bnb->block ? read_nf4_rows : read_int8_rows)(source, bnb, row, n, rows);
}
