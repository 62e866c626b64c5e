/* SPDX-License-Identifier: MIT
 *
 * Reads the rows of tt_weights, including FP8 and MXFP4, and computes their digests.
 */
#include <math.h>
#include <string.h>

#include "checkpoint/format/cast.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/gguf.h"
#include "checkpoint/read/map.h"
#include "checkpoint/read/weights.h"
#include "core/base/mem.h"
#include "core/math/bf16.h"
#include "core/math/round.h"
#include "core/models/lora.h"
#include "core/os/file.h"

/* --- weights in FP8 and MXFP4 --- */

/* A power of two, as an exponent with a bias of 127; all ones mean NaN. */
static float from_exponent(uint8_t bits)
{
    return bits == 0xff ? NAN : ldexpf(1.0F, bits - 127);
}

/* Reads n scales as floats. */
static void read_factors(enum tt_dtype dtype, const void *scales, int64_t n, float *factors)
{
    const uint8_t *bytes = scales;

    if (tt_dtype_size(dtype) > 1)
        tt_cast(TT_F32, factors, dtype, scales, n);
    else
        for (int64_t i = 0; i < n; i++)
            factors[i] = from_exponent(bytes[i]);
}

/*
 * FP8 has a sign, 4 bits of exponent with a bias of 7, and 3 bits of fraction. If its bits are read as a float16, whose
 * exponent has 5 bits and a bias of 15, every value is too small by a factor of 2^8, even a subnormal one. There is no
 * infinity; in NaN all bits are set.
 */
static float from_fp8(uint8_t bits)
{
    uint16_t half = (uint16_t)((bits & 0x80) << 8 | (bits & 0x7f) << 7);
    float value;

    tt_cast(TT_F32, &value, TT_F16, &half, 1);
    return (bits & 0x7f) == 0x7f ? NAN : value * 256.0F;
}

/* FP4: a sign, 2 exponent bits and one fraction bit. */
static const float fp4[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                              -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

/* Unpacks rows [row, row + n) from their elements and the scales of their blocks. */
static void unpack_rows(const struct tt_hf_stored *stored, int64_t row, int64_t n, const uint8_t *values,
                        const float *factors, tt_bf16 *data)
{
    bool is_fp8 = stored->values->dtype == TT_F8_E4M3;
    struct tt_box whole = tt_box_whole(stored->ndim, stored->shape);
    int64_t width = tt_box_row_elements(&whole), blocks = tt_div_up(width, stored->block_width);

    for (int64_t r = 0; r < n; r++) {
        int64_t block_row = (row + r) / stored->block_rows - row / stored->block_rows;

        for (int64_t b = 0; b < blocks; b++) {
            int64_t at = b * stored->block_width, end = at + stored->block_width;
            float factor = factors[block_row * blocks + b];

            at += r * width;
            end = r * width + (end < width ? end : width);
            for (int64_t i = at; i < end && is_fp8; i++)
                data[i] = tt_bf16_from_float(from_fp8(values[i]) * factor);
            for (int64_t i = at; i < end && !is_fp8; i++)
                data[i] = tt_bf16_from_float(fp4[i % 2 ? values[i / 2] >> 4 : values[i / 2] & 15] * factor);
        }
    }
}

/* --- rows --- */

/* The blocks of an export are large because each block reads the whole of a transposed tensor, an expert or a head. */
enum { BLOCK_BYTES = 4 << 20, EXPORT_BLOCK_BYTES = 32 << 20 };

/* Adds rows to the digest of their tensor unless they were read before. Rows are read in ascending order. */
static void count_rows(struct tt_weights *w, const struct tt_manifest_tensor *t, int64_t row, int64_t n,
                       const void *data)
{
    int64_t *seen = &w->seen[t - w->source->manifest.tensor], skip = *seen - row,
            width = tt_row_width(t->ndim, t->shape);

    if (skip < 0 || skip >= n)
        return;
    w->digest[t - w->source->manifest.tensor] +=
        tt_digest_part(t->dtype, (const char *)data + (size_t)(skip * width) * tt_dtype_size(t->dtype), *seen * width,
                       (n - skip) * width);
    *seen = row + n;
}

/* A tensor with a digest needs no such check: its digest is computed while it is read, and compared at the end. */
int tt_weights_check_pieces(struct tt_weights *w, const struct tt_manifest_tensor *t)
{
    bool *checked = &w->checked[t - w->source->manifest.tensor];
    int rc = 0;

    if (t->has_digest || *checked)
        return 0;
    for (int i = 0; i < t->n_chunks; i++)
        TT_TRY(tt_source_verify_chunk(w->source, t, &t->chunk[i]));
    *checked = true;
out:
    return rc;
}

/* Rows of a weight in FP8 or MXFP4. */
static int read_packed(struct tt_weights *w, const struct tt_hf_stored *t, int64_t row, int64_t n, enum tt_dtype dtype,
                       char *data)
{
    const struct tt_manifest_tensor *scales = t->scales;
    int64_t width = tt_row_width(t->ndim, t->shape), scales_width = tt_row_width(scales->ndim, scales->shape);
    int64_t row_bytes = tt_row_width(t->values->ndim, t->values->shape) * (int64_t)tt_dtype_size(t->values->dtype);
    int64_t step = row_bytes < BLOCK_BYTES ? BLOCK_BYTES / row_bytes : 1, rows = step < n ? step : n;
    size_t n_scales = (size_t)((t->block_rows > 1 ? rows / t->block_rows + 2 : rows) * scales_width);
    uint8_t *values = tt_calloc_for((size_t)rows, (size_t)row_bytes, t->values->name);
    char *scale = tt_calloc_for(n_scales, tt_dtype_size(scales->dtype), t->values->name);
    float *factors = tt_calloc_for(n_scales, sizeof *factors, t->values->name);
    tt_bf16 *block = tt_calloc_for((size_t)(rows * width), sizeof *block, t->values->name);
    int rc = values && scale && factors && block ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    TT_TRY(tt_weights_check_pieces(w, t->values));
    TT_TRY(tt_weights_check_pieces(w, scales));
    for (int64_t end = row + n, have; row < end; row += have, data += (size_t)(have * width) * tt_dtype_size(dtype)) {
        int64_t first = row / t->block_rows, more;

        have = end - row < step ? end - row : step;
        more = (row + have - 1) / t->block_rows + 1 - first;
        TT_TRY(tt_source_read_rows(w->source, t->values, row, have, t->values->dtype, values));
        TT_TRY(tt_source_read_rows(w->source, scales, first, more, scales->dtype, scale));
        count_rows(w, t->values, row, have, values);
        count_rows(w, scales, first, more, scale);
        read_factors(scales->dtype, scale, more * scales_width, factors);
        unpack_rows(t, row, have, values, factors, block);
        tt_cast(dtype, data, TT_BF16, block, have * width);
    }
out:
    tt_free(values);
    tt_free(scale);
    tt_free(factors);
    tt_free(block);
    return rc;
}

/* Reads rows of a stored tensor and counts them. Rows in blocks of a GGUF file are read as TT_F32. */
static int read_plain(struct tt_weights *w, const struct tt_manifest_tensor *t, int64_t row, int64_t n,
                      enum tt_dtype dtype, char *data)
{
    int64_t stored = tt_row_width(t->ndim, t->shape), row_bytes = stored * (int64_t)tt_dtype_size(t->dtype);
    int64_t width = t->packing ? stored / t->packing->bytes * t->packing->elements : stored;
    int64_t step = row_bytes < BLOCK_BYTES ? BLOCK_BYTES / row_bytes : 1;
    char *block = NULL;
    int rc = 0;

    TT_TRY(tt_weights_check_pieces(w, t));
    if (dtype != t->dtype && !(block = tt_calloc_for((size_t)(step < n ? step : n), (size_t)row_bytes, t->name)))
        return TT_ENOMEM;
    for (int64_t at = 0; at < n; at += step) {
        int64_t have = n - at < step ? n - at : step;
        char *to = data + (size_t)(at * width) * tt_dtype_size(dtype);

        TT_TRY(tt_source_read_rows(w->source, t, row + at, have, t->dtype, block ? block : to));
        if (t->has_digest)
            count_rows(w, t, row + at, have, block ? block : to);
        if (t->packing)
            tt_gguf_unpack(t->packing, block, have * width, (float *)(void *)to);
        else if (block)
            tt_cast(dtype, to, t->dtype, block, have * width);
    }
out:
    tt_free(block);
    return rc;
}

/* Rows of bitsandbytes' values; Hugging Face folders contain no checksums for them. */
static int read_bnb(struct tt_weights *w, const struct tt_bnb *bnb, int64_t row, int64_t n, enum tt_dtype dtype,
                    char *data)
{
    int64_t width = bnb->shape[1], step = width < BLOCK_BYTES / 4 ? BLOCK_BYTES / 4 / width : 1;
    float *block = dtype == TT_F32 ? NULL : tt_calloc_for((size_t)((step < n ? step : n) * width), 4, "rows");
    int rc = block || dtype == TT_F32 ? 0 : TT_ENOMEM;

    for (int64_t at = 0, some; at < n && rc == 0; at += some) {
        char *to = data + (size_t)(at * width) * tt_dtype_size(dtype);

        some = n - at < step ? n - at : step;
        rc = tt_bnb_read(w->source, bnb, row + at, some, block ? block : (float *)(void *)to);
        if (rc == 0 && block)
            tt_cast(dtype, to, TT_F32, block, some * width);
    }
    tt_free(block);
    return rc;
}

static int read_rows(struct tt_weights *w, const struct tt_hf_stored *t, int64_t row, int64_t n, enum tt_dtype dtype,
                     char *data)
{
    if (t->bnb)
        return read_bnb(w, t->bnb, row, n, dtype, data);
    return t->scales ? read_packed(w, t, row, n, dtype, data) : read_plain(w, t->values, row, n, dtype, data);
}

/* The mean of all rows, added in double, in order. */
static int read_mean_row(struct tt_weights *w, const struct tt_hf_stored *t, float *mean)
{
    int64_t width = tt_row_width(t->ndim, t->shape), rows = t->shape[0];
    int64_t step = width < BLOCK_BYTES / 4 ? BLOCK_BYTES / 4 / width : 1;
    float *block = tt_calloc_for((size_t)(step < rows ? step : rows), (size_t)width * sizeof *block, t->values->name);
    double *sum = tt_calloc_for((size_t)width, sizeof *sum, t->values->name);
    int rc = block && sum ? 0 : TT_ENOMEM;

    for (int64_t row = 0, n; row < rows && rc == 0; row += n) {
        n = rows - row < step ? rows - row : step;
        rc = read_rows(w, t, row, n, TT_F32, (char *)block);
        for (int64_t i = 0; i < n * width && rc == 0; i++)
            sum[i % width] += (double)block[i];
    }
    for (int64_t c = 0; c < width && rc == 0; c++)
        mean[c] = (float)(sum[c] / (double)rows);
    tt_free(block);
    tt_free(sum);
    return rc;
}

/* Rows of a tensor. Rows beyond its last one are the mean of all rows (source.h: extend_vocabulary). */
static int read_stored(struct tt_weights *w, const struct tt_hf_stored *t, int64_t row, int64_t n, enum tt_dtype dtype,
                       char *data)
{
    int64_t width = tt_row_width(t->ndim, t->shape), have = n;
    float *mean = NULL;
    int rc = 0;

    if (t->ndim && row + n > t->shape[0])
        have = row < t->shape[0] ? t->shape[0] - row : 0;
    if (have)
        TT_TRY(read_rows(w, t, row, have, dtype, data));
    if (have == n)
        return 0;
    if (!(mean = tt_calloc_for((size_t)width, sizeof *mean, t->values->name)))
        return TT_ENOMEM;
    TT_TRY(read_mean_row(w, t, mean));
    for (int64_t r = have; r < n; r++)
        tt_cast(dtype, data + (size_t)(r * width) * tt_dtype_size(dtype), TT_F32, mean, width);
out:
    tt_free(mean);
    return rc;
}

/* One half of the bits of each element. Maps move elements without looking at them, so they can move doubles as two
 * halves. */
static int read_word(struct tt_weights *w, const struct tt_hf_stored *t, int64_t row, int64_t n, float *data)
{
    int64_t elements = n * tt_row_width(t->ndim, t->shape);
    double *block = tt_calloc_for((size_t)elements, sizeof *block, t->values->name);
    int rc = block ? read_stored(w, t, row, n, TT_F64, (char *)block) : TT_ENOMEM;

    for (int64_t i = 0; i < elements && rc == 0; i++)
        memcpy(&data[i], (char *)&block[i] + (w->word == 2 ? sizeof *data : 0), sizeof *data);
    tt_free(block);
    return rc;
}

static int read_one(struct tt_weights *w, const struct tt_hf_stored *t, int64_t row, int64_t n, float *data)
{
    return w->word ? read_word(w, t, row, n, data) : read_stored(w, t, row, n, TT_F32, (char *)data);
}

static int read_counterpart(void *arg, int param, int64_t row, int64_t n, float *data)
{
    struct tt_weights *w = arg;
    const struct tt_hf_stored *stored = &w->stored[w->first[param]];
    int64_t rows, width;
    int rc = 0;

    if (!stored->values)
        return tt_base_read(w->base, param, row, n, data);
    if (w->kind != TT_WEIGHTS_FROM_HF || w->model->params[param].hf_transform != TT_HF_EXPERTS)
        return read_one(w, &stored[0], row, n, data);
    rows = stored[0].shape[0];
    width = tt_row_width(stored[0].ndim, stored[0].shape);
    for (int64_t end = row + n, some; row < end && rc == 0; row += some, data += some * width) {
        some = rows - row % rows < end - row ? rows - row % rows : end - row;
        rc = read_one(w, &stored[row / rows], row % rows, some, data);
    }
    return rc;
}

/* Divides a row by its norm and multiplies it by its magnitude; a row of zeros stays as it is. */
static void magnify(double *row, int64_t width, float magnitude)
{
    double squares = 0.0, factor;

    for (int64_t c = 0; c < width; c++)
        squares += row[c] * row[c];
    factor = squares > 0.0 ? (double)magnitude / sqrt(squares) : 1.0;
    for (int64_t c = 0; c < width; c++)
        row[c] *= factor;
}

/* Adds the product of a parameter's adapter to its rows [row, row + n), which are in `data` (n, columns), and with DoRA
 * sets their norms. This is computed in double and rounded once. */
static int merge(struct tt_weights *w, int param, int64_t row, int64_t n, float *data)
{
    const struct tt_model *model = w->model;
    int64_t width = model->params[param].shape[1], rank = model->dims.lora.rank;
    double scale = tt_lora_scale(&model->dims.lora);
    float *a = tt_calloc_for((size_t)(rank * width), sizeof *a, model->params[model->params[param].lora_a].name);
    float *b = tt_calloc_for((size_t)(n * rank), sizeof *b, model->params[model->params[param].lora_b].name);
    double *sum = tt_calloc_for((size_t)width, sizeof *sum, model->params[param].name);
    float *m = tt_calloc_for((size_t)n, sizeof *m, model->params[param].name);
    int rc = a && b && sum && m ? 0 : TT_ENOMEM, magnitudes = model->params[param].lora_m;

    TT_TRY(rc);
    TT_TRY(read_counterpart(w, model->params[param].lora_a, 0, rank, a));
    TT_TRY(read_counterpart(w, model->params[param].lora_b, row, n, b));
    if (magnitudes)
        TT_TRY(read_counterpart(w, magnitudes, row, n, m));
    for (int64_t r = 0; r < n; r++, data += width) {
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t k = 0; k < rank; k++)
            for (int64_t c = 0; c < width; c++)
                sum[c] += (double)b[r * rank + k] * (double)a[k * width + c];
        for (int64_t c = 0; c < width; c++)
            sum[c] = (double)data[c] + scale * sum[c];
        if (magnitudes)
            magnify(sum, width, m[r]);
        for (int64_t c = 0; c < width; c++)
            data[c] = (float)sum[c];
    }
out:
    tt_free(m);
    tt_free(a);
    tt_free(b);
    tt_free(sum);
    return rc;
}

static int read_merged(void *arg, int param, int64_t row, int64_t n, float *data)
{
    struct tt_weights *w = arg;
    int rc = read_counterpart(arg, param, row, n, data);

    if (rc == 0 && w->model->params[param].adapted)
        rc = merge(w, param, row, n, data);
    return rc;
}

/* Rows of a tensor of a GGUF file. */
static int read_numbered(void *arg, int number, int64_t row, int64_t n, float *data)
{
    struct tt_weights *w = arg;

    return read_plain(w, w->stored[number].values, row, n, TT_F32, (char *)data);
}

static int read_mapped(struct tt_weights *w, const struct tt_weight *weight, int64_t row, int64_t n, float *data)
{
    if (w->kind == TT_WEIGHTS_TO_HF)
        return tt_hf_export(w->model, &w->hf[weight->number], read_merged, w, row, n, data);
    if (w->kind == TT_WEIGHTS_TO_GGUF)
        return tt_gguf_export(w->model, &w->gguf[weight->number], read_merged, w, row, n, data);
    if (w->kind == TT_WEIGHTS_FROM_GGUF)
        return tt_gguf_import(w->model, w->gguf, w->n_gguf, weight->number, read_numbered, w, row, n, data);
    return tt_hf_import(w->model, weight->number, read_counterpart, w, row, n, data);
}

/* The number of rows that are mapped at once if they must also be converted: all rows, or the rows of a head or an
 * expert. */
static int64_t rows_at_once(const struct tt_weights *w, const struct tt_weight *weight)
{
    const struct tt_param *param;
    const struct tt_model_dims *d;
    int64_t bytes = tt_row_width(weight->ndim, weight->shape) * (int64_t)sizeof(float);

    if (w->kind != TT_WEIGHTS_FROM_HF && w->kind != TT_WEIGHTS_FROM_GGUF)
        return weight->shape[0];
    d = &w->model->dims;
    param = &w->model->params[weight->number];
    if (w->kind == TT_WEIGHTS_FROM_HF && param->hf_transform == TT_HF_ROPE_PAIRS)
        return param->shape[0] / param->hf_heads;
    if (w->kind == TT_WEIGHTS_FROM_HF)
        return param->hf_transform == TT_HF_EXPERTS || param->hf_transform == TT_HF_EXPERTS_TRANSPOSE ? 1
                                                                                                      : param->shape[0];
    for (int i = 0; i < w->n_gguf; i++) {
        if (!w->gguf[i].n_params || w->gguf[i].param[0] != weight->number)
            continue;
        if (w->gguf[i].layout == TT_GGUF_PAIRS)
            return d->head_dim;
        if (w->gguf[i].layout == TT_GGUF_KEYS)
            return d->head_dim - d->mla.rope_dim + d->mla.value_dim;
        if (w->gguf[i].layout != TT_GGUF_SAME && w->gguf[i].layout != TT_GGUF_OFFSET)
            return 1;
    }
    return bytes < BLOCK_BYTES ? BLOCK_BYTES / bytes : 1;
}

/* Rows of doubles, in two passes. Only Hugging Face's maps move them, and adapters are not merged in float64. */
static int read_doubles(struct tt_weights *w, const struct tt_weight *weight, int64_t row, int64_t n, double *data)
{
    int64_t elements = n * tt_row_width(weight->ndim, weight->shape);
    float *half = tt_calloc_for((size_t)elements, sizeof *half, weight->name);
    int rc = half ? 0 : TT_ENOMEM;

    if (rc == 0 && w->model->dims.lora.rank)
        rc = tt_fail(TT_EUSAGE, "adapters are not merged in float64\nhelp: leave out %s", TT_KEY_NAME(lora.rank));
    for (w->word = 1; w->word <= 2 && rc == 0; w->word++) {
        rc = read_mapped(w, weight, row, n, half);
        for (int64_t i = 0; i < elements && rc == 0; i++)
            memcpy((char *)&data[i] + (w->word == 2 ? sizeof *half : 0), &half[i], sizeof *half);
    }
    w->word = 0;
    tt_free(half);
    return rc;
}

static int read_converted(struct tt_weights *w, const struct tt_weight *weight, int64_t row, int64_t rows,
                          enum tt_dtype dtype, char *data)
{
    int64_t width = tt_row_width(weight->ndim, weight->shape), step = rows_at_once(w, weight);
    float *block = tt_calloc_for((size_t)(step < rows ? step : rows), (size_t)width * sizeof *block, weight->name);
    int rc = block ? 0 : TT_ENOMEM;

    for (int64_t at = 0, n; at < rows && rc == 0; at += n) {
        n = step - (row + at) % step < rows - at ? step - (row + at) % step : rows - at;
        rc = read_mapped(w, weight, row + at, n, block);
        if (rc == 0)
            tt_cast(dtype, data + (size_t)(at * width) * tt_dtype_size(dtype), TT_F32, block, n * width);
    }
    tt_free(block);
    return rc;
}

/* Adds in double and divides once, so that the mean of equal weights is that weight. */
static int read_mean(struct tt_weights *w, const struct tt_weight *weight, int64_t row, int64_t rows,
                     enum tt_dtype dtype, char *data)
{
    int64_t n = rows * tt_row_width(weight->ndim, weight->shape);
    float *one = tt_calloc_for((size_t)n, sizeof *one, weight->name);
    double *sum = tt_calloc_for((size_t)n, sizeof *sum, weight->name), shares = 0.0;
    int rc = one && sum ? 0 : TT_ENOMEM;

    for (int k = 0; k < w->n_of && rc == 0; k++) {
        rc = tt_weights_read(&w->of[k], &w->of[k].weight[weight - w->weight], row, rows, TT_F32, one);
        for (int64_t i = 0; i < n && rc == 0; i++)
            sum[i] += w->share[k] * (double)one[i];
        shares += w->share[k];
    }
    for (int64_t i = 0; i < n && rc == 0; i++)
        one[i] = (float)(sum[i] / shares);
    if (rc == 0)
        tt_cast(dtype, data, TT_F32, one, n);
    tt_free(one);
    tt_free(sum);
    return rc;
}

int tt_weights_read(struct tt_weights *weights, const struct tt_weight *weight, int64_t row_begin, int64_t rows,
                    enum tt_dtype dtype, void *data)
{
    const struct tt_param *param = weights->kind == TT_WEIGHTS_FROM_HF ? &weights->model->params[weight->number] : NULL;
    const struct tt_hf_stored *stored = param ? &weights->stored[weights->first[weight->number]] : NULL;

    if (!tt_cast_known(dtype, weight->dtype))
        return tt_cast_fail(weight->name, tt_dtype_size(weight->dtype) ? "read as floating-point numbers" : "read",
                            weight->dtype);
    if (rows == 0 || tt_row_width(weight->ndim, weight->shape) == 0)
        return 0;
    if (weights->kind == TT_WEIGHTS_MEAN)
        return read_mean(weights, weight, row_begin, rows, dtype, data);
    if (weights->kind == TT_WEIGHTS_STORED)
        return read_plain(weights, &weights->source->manifest.tensor[weight->number], row_begin, rows, dtype, data);
    /* read into place, and converted only if it is of another type */
    if (param && (param->hf_transform == TT_HF_SAME || stored->is_turned))
        return read_stored(weights, stored, param->hf_row + row_begin, rows, dtype, data);
    if (weight->dtype == TT_F64 && dtype == TT_F64 &&
        (weights->kind == TT_WEIGHTS_FROM_HF || weights->kind == TT_WEIGHTS_TO_HF))
        return read_doubles(weights, weight, row_begin, rows, data);
    if (!tt_cast_known(TT_F32, weight->dtype))
        return tt_cast_fail(weight->name, "rearranged", weight->dtype);
    if (dtype == TT_F32)
        return read_mapped(weights, weight, row_begin, rows, data);
    return read_converted(weights, weight, row_begin, rows, dtype, data);
}

int tt_weights_stream(struct tt_weights *weights, const struct tt_weight *weight, int64_t row, int64_t rows,
                      enum tt_dtype dtype, tt_use_rows use, void *arg)
{
    const struct tt_weights *first = weights->kind == TT_WEIGHTS_MEAN ? weights->of : weights;
    int64_t width = tt_row_width(weight->ndim, weight->shape), row_bytes = width * (int64_t)tt_dtype_size(dtype);
    int64_t most = first->kind == TT_WEIGHTS_STORED ? BLOCK_BYTES : EXPORT_BLOCK_BYTES;
    int64_t step = row_bytes > 0 && row_bytes < most ? most / row_bytes : 1;
    char *block = tt_calloc_for((size_t)(step < rows ? step : rows), (size_t)row_bytes, weight->name);
    int rc = block ? 0 : TT_ENOMEM;

    for (int64_t end = row + rows, n; row < end && width > 0 && rc == 0; row += n) {
        n = end - row < step ? end - row : step;
        rc = tt_weights_read(weights, weight, row, n, dtype, block);
        if (rc == 0)
            rc = use(arg, block, row, n);
    }
    tt_free(block);
    return rc;
}

/* --- the digests --- */

int tt_weights_check(struct tt_weights *weights)
{
    const struct tt_manifest *m = &weights->source->manifest;
    int rc = 0;

    for (int k = 0; k < weights->n_of; k++)
        TT_TRY(tt_weights_check(&weights->of[k]));
    for (int i = 0; i < m->n_tensors; i++) {
        const struct tt_manifest_tensor *t = &m->tensor[i];
        int64_t rows = t->ndim ? t->shape[0] : 1;

        if (!t->has_digest || weights->seen[i] != rows || weights->digest[i] == t->digest)
            continue;
        for (int k = 0; k < t->n_chunks; k++) /* the checksums locate the damage */
            TT_TRY(tt_source_verify_chunk(weights->source, t, &t->chunk[k]));
        TT_TRY(tt_fail(TT_EDATA, "'%s': tensor '%s' does not have the digest of the manifest", weights->source->path,
                       t->name));
    }
out:
    return rc;
}
