/* SPDX-License-Identifier: MIT
 *
 * Weights in FP8 and MXFP4; see packed.h.
 */
#include "checkpoint/read/packed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/format/cast.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/os/path.h"

enum { MXFP4_BLOCK = 32, MXFP4_BYTES = MXFP4_BLOCK / 2, FP8_BLOCK = 128 };

struct tt_hf_stored tt_hf_stored_plain(const struct tt_manifest_tensor *tensor)
{
    struct tt_hf_stored stored = {.values = tensor, .dtype = tensor->dtype, .ndim = tensor->ndim};

    memcpy(stored.shape, tensor->shape, sizeof stored.shape);
    return stored;
}

static int64_t parts_of(int64_t n, int64_t of)
{
    return n / of + (n % of > 0);
}

static int fail_scales(const struct tt_manifest_tensor *values, const struct tt_manifest_tensor *scales,
                       const char *wanted)
{
    struct tt_box a = tt_box_whole(values->ndim, values->shape), b = tt_box_whole(scales->ndim, scales->shape);
    char of[128], have[128];

    return tt_fail(TT_EDATA, "tensor '%s' is %s %s, and its scales '%s' are %s %s; wanted %s", values->name,
                   tt_dtype_name(values->dtype), tt_box_text(of, sizeof of, &a), scales->name,
                   tt_dtype_name(scales->dtype), tt_box_text(have, sizeof have, &b), wanted);
}

static int pack_fp8(const int64_t *block, struct tt_hf_stored *s)
{
    const struct tt_manifest_tensor *scales = s->scales;
    struct tt_box whole = tt_box_whole(scales->ndim, scales->shape);
    bool is_one = block[0] == 0 || scales->ndim < 2; /* scale for the matrix */
    char wanted[128];

    (void)snprintf(wanted, sizeof wanted, "a matrix, and a scale for each block of %lld by %lld elements",
                   (long long)block[0], (long long)block[1]);
    s->block_rows = is_one ? s->shape[0] : block[0];
    s->block_width = is_one ? s->shape[1] : block[1];
    if (s->ndim != 2 ||
        !(tt_cast_known(TT_F32, scales->dtype) || scales->dtype == TT_F8_E8M0 || scales->dtype == TT_U8) ||
        (is_one ? tt_box_volume(&whole) != 1
                : scales->shape[0] != parts_of(s->shape[0], block[0]) ||
                      scales->shape[1] != parts_of(s->shape[1], block[1]) || scales->ndim != 2))
        return fail_scales(s->values, scales, is_one ? "a matrix and one scale" : wanted);
    return 0;
}

static int pack_mxfp4(struct tt_hf_stored *s)
{
    const struct tt_manifest_tensor *scales = s->scales;
    int n = s->ndim - 1;

    if (s->ndim != 4 || s->shape[n] != MXFP4_BYTES || scales->ndim != n ||
        memcmp(scales->shape, s->shape, (size_t)n * sizeof *s->shape) != 0 || scales->dtype != TT_U8)
        return fail_scales(s->values, scales, "16 bytes in the last dimension, and a U8 for each 16");
    s->ndim = n;
    s->shape[n - 1] *= MXFP4_BLOCK;
    s->shape[n] = 0;
    s->block_rows = 1;
    s->block_width = MXFP4_BLOCK;
    s->is_turned = true;
    return 0;
}

int tt_hf_stored_packed(const struct tt_manifest_tensor *values, const struct tt_manifest_tensor *scales,
                        const int64_t *block, struct tt_hf_stored *ret_stored)
{
    *ret_stored = tt_hf_stored_plain(values);
    ret_stored->scales = scales;
    ret_stored->dtype = TT_BF16;
    return values->dtype == TT_F8_E4M3 ? pack_fp8(block, ret_stored) : pack_mxfp4(ret_stored);
}

int tt_hf_block_size(const struct tt_source *source, int64_t *ret_block)
{
    char *assets = tt_source_assets(source), *path = tt_format("%s/config.json", assets);
    json_t *config = NULL;
    const json_t *size;
    bool exists = false;
    int n = 0, rc = 0;

    ret_block[0] = ret_block[1] = FP8_BLOCK;
    TT_TRY(tt_path_exists(path, &exists));
    TT_TRY(exists ? tt_json_load(path, &config) : 0);
    size = json_object_get(json_object_get(config, "quantization_config"), "weight_block_size");
    if (json_is_null(size))
        ret_block[0] = ret_block[1] = 0;
    else if (size && (!tt_json_sizes(size, ret_block, 2, &n) || n != 2 || ret_block[0] < 1 || ret_block[1] < 1))
        rc = tt_fail(TT_EDATA, "'%s': quantization_config: weight_block_size must be two positive integers", path);
out:
    json_decref(config);
    tt_free(assets);
    tt_free(path);
    return rc;
}

size_t tt_hf_weight_name(const char *name)
{
    static const char *const ends[] = {"_scale_inv", "_blocks", "_scales"};
    size_t size = strlen(name);

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(ends[i]);

        if (size > n && strcmp(name + size - n, ends[i]) == 0)
            return size - n;
    }
    return size;
}

/* A power of two with a bias of 127; all bits: not a number. */
static float from_exponent(uint8_t bits)
{
    return bits == 0xff ? NAN : ldexpf(1.0F, bits - 127);
}

void tt_hf_factors(enum tt_dtype dtype, const void *scales, int64_t n, float *factors)
{
    const uint8_t *bytes = scales;

    if (tt_dtype_size(dtype) > 1)
        tt_cast(TT_F32, factors, dtype, scales, n);
    else
        for (int64_t i = 0; i < n; i++)
            factors[i] = from_exponent(bytes[i]);
}

/*
 * A sign, 4 bits of exponent with a bias of 7, 3 of the fraction. As bits of a half, whose exponent has 5 bits and a
 * bias of 15, every value is 2^8 too small, even a subnormal one. There is no infinity; NaN has all bits set.
 */
static float from_fp8(uint8_t bits)
{
    uint16_t half = (uint16_t)((bits & 0x80) << 8 | (bits & 0x7f) << 7);
    float value;

    tt_cast(TT_F32, &value, TT_F16, &half, 1);
    return (bits & 0x7f) == 0x7f ? NAN : value * 256.0F;
}

/* FP4 has a sign, 2 bits of exponent and one of the fraction. */
static const float fp4[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                              -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

static void unpack_fp8(const uint8_t *values, float factor, int64_t n, tt_bf16 *data)
{
    for (int64_t i = 0; i < n; i++)
        data[i] = tt_bf16_from_float(from_fp8(values[i]) * factor);
}

static void unpack_fp4(const uint8_t *values, float factor, int64_t n, tt_bf16 *data)
{
    for (int64_t i = 0; i < n; i++)
        data[i] = tt_bf16_from_float(fp4[i % 2 ? values[i / 2] >> 4 : values[i / 2] & 15] * factor);
}

void tt_hf_unpack(const struct tt_hf_stored *stored, int64_t row, int64_t n, const uint8_t *values,
                  const float *factors, tt_bf16 *data)
{
    bool is_fp8 = stored->values->dtype == TT_F8_E4M3;
    struct tt_box whole = tt_box_whole(stored->ndim, stored->shape);
    int64_t width = tt_box_row_elements(&whole), blocks = parts_of(width, stored->block_width);

    for (int64_t r = 0; r < n; r++) {
        int64_t block_row = (row + r) / stored->block_rows - row / stored->block_rows;

        for (int64_t b = 0; b < blocks; b++) {
            int64_t at = b * stored->block_width, end = at + stored->block_width;
            float factor = factors[block_row * blocks + b];

            at += r * width;
            end = r * width + (end < width ? end : width);
            if (is_fp8)
                unpack_fp8(values + at, factor, end - at, data + at);
            else
                unpack_fp4(values + at / 2, factor, end - at, data + at);
        }
    }
}
