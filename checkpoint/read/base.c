/* SPDX-License-Identifier: MIT
 *
 * The frozen weights of a checkpoint that has only adapters.
 */
#include "checkpoint/format/base.h"

#include "checkpoint/format/cast.h"
#include "checkpoint/read/weights.h"
#include "core/base/mem.h"
#include "core/models/lora.h"

struct tt_base {
    struct tt_ckpt_base of; /* of the checkpoint's manifest */
    const struct tt_model *model;
    struct tt_source *source;
    struct tt_weights weights;
    int param; /* in memory: packed, or elements of `of.dtype`; TT_NONE: none */
    void *data;
};

static int open_files(const struct tt_source *source, struct tt_base *base)
{
    const char *path;
    int rc = 0;

    TT_TRY(tt_ckpt_base_find(&base->of, source->path, source->base, &path));
    TT_TRY(tt_source_open(path, TT_PATH_PLAIN, &base->source));
    rc = tt_weights_import(base->source, base->model, TT_EXTRA_IGNORED, &base->weights);
out:
    return rc;
}

int tt_base_open(const struct tt_source *source, const struct tt_model *model, struct tt_base **ret_base)
{
    struct tt_base *base;
    struct tt_ckpt_base of;
    int rc;

    *ret_base = NULL;
    if (!tt_ckpt_base_of(source->manifest.meta, &of))
        return source->base ? tt_fail(TT_EUSAGE, "'%s' contains its weights\nhelp: leave out --base", source->path) : 0;
    base = tt_calloc(1, sizeof *base);
    base->of = of;
    base->model = model;
    base->param = TT_NONE;
    rc = open_files(source, base);
    if (rc < 0)
        tt_base_free(base);
    else
        *ret_base = base;
    return rc;
}

enum tt_dtype tt_base_dtype(const struct tt_base *base)
{
    return base->of.dtype;
}

static enum tt_packing_choice packing_of(const struct tt_base *base, int param)
{
    return tt_lora_is_layer(&base->model->params[param]) ? base->of.packing : TT_PACKING_NONE;
}

static const struct tt_weight *weight_of(const struct tt_base *base, int param)
{
    for (int i = 0; i < base->weights.n; i++)
        if (base->weights.weight[i].number == param)
            return &base->weights.weight[i];
    return NULL;
}

/* Reads a whole parameter, and compares it with the run's. */
static int load(struct tt_base *base, int param)
{
    const struct tt_param *of = &base->model->params[param];
    const struct tt_weight *weight = weight_of(base, param);
    enum tt_packing_choice packing = packing_of(base, param);
    struct tt_box whole = tt_box_whole(of->ndim, of->shape);
    size_t rows = of->ndim ? (size_t)of->shape[0] : 1;
    size_t row_bytes = packing ? (size_t)tt_packing_row_bytes(packing, of->shape[1])
                               : (size_t)tt_row_width(of->ndim, of->shape) * tt_dtype_size(base->of.dtype);
    json_t *digest = NULL;
    int rc = 0;

    if (!weight)
        return tt_fail(TT_EDATA, "'%s' has no tensor for %s", base->source->path, of->name);
    tt_free(base->data);
    base->param = TT_NONE;
    base->data = tt_calloc_for(rows, row_bytes, of->name);
    TT_TRY(base->data ? 0 : TT_ENOMEM);
    TT_TRY(packing ? tt_weights_read_packed(&base->weights, weight, packing, &whole, base->data)
                   : tt_weights_read(&base->weights, weight, 0, (int64_t)rows, base->of.dtype, base->data));
    digest = tt_base_digest_json(tt_base_digest(packing, base->of.dtype, of->shape, &whole, base->data));
    if (base->of.compares || !packing)
        TT_TRY(tt_base_compare(&base->of, of->name, digest, TT_BASE_HELP));
    base->param = param;
out:
    json_decref(digest);
    return rc;
}

int tt_base_read(struct tt_base *base, int param, int64_t row, int64_t n, float *data)
{
    const struct tt_param *of = &base->model->params[param];
    enum tt_packing_choice packing = packing_of(base, param);
    int64_t width = tt_row_width(of->ndim, of->shape);
    int rc = base->param == param ? 0 : load(base, param);

    if (rc < 0)
        return rc;
    for (int64_t r = 0; r < n && packing; r++)
        tt_unpack(packing, (const char *)base->data + (row + r) * tt_packing_row_bytes(packing, width), width, 0, width,
                  data + r * width);
    if (!packing)
        tt_cast(TT_F32, data, base->of.dtype,
                (const char *)base->data + (size_t)(row * width) * tt_dtype_size(base->of.dtype), n * width);
    return 0;
}

void tt_base_free(struct tt_base *base)
{
    if (!base)
        return;
    tt_weights_release(&base->weights);
    tt_source_free(base->source);
    tt_free(base->data);
    tt_free(base);
}
