/* SPDX-License-Identifier: MIT
 *
 * The first magnitudes of DoRA. Each rank adds the squares of its part of a row, in double and by grains of columns,
 * and the ranks tell each other their sums: a sum that a rank does not have is 0, so the largest is the sum.
 */
#include "trainer/start/magnitudes.h"

#include <math.h>

#include "core/base/mem.h"
#include "core/math/bf16.h"
#include "core/math/packing.h"
#include "core/models/lora.h"
#include "core/ops/rule.h"

static float magnitude(const struct tt_ckpt_chunk *m, int64_t i)
{
    return m->dtype == TT_BF16 ? tt_bf16_to_float(((const tt_bf16 *)m->data)[i]) : ((const float *)m->data)[i];
}

static int64_t n_magnitudes(const struct tt_ckpt_chunk *m)
{
    return tt_box_volume(&m->part);
}

/* Whether this rank has magnitudes that are not set. */
static bool has_none(const struct tt_model *model, const struct tt_job_tensors *tensors)
{
    for (int p = 0; p < model->n_params; p++) {
        const struct tt_ckpt_chunk *m = &tensors->whole.model[model->params[p].lora_m];

        for (int64_t i = 0; model->params[p].lora_m && i < n_magnitudes(m); i++)
            if (magnitude(m, i) == TT_LORA_NO_MAGNITUDE)
                return true;
    }
    return false;
}

/* Row r of a rank's part, as floats. */
static void read_row(const struct tt_ckpt_chunk *w, int64_t r, float *to)
{
    int64_t width = w->part.shape[1];

    if (w->packing) {
        tt_unpack(w->packing, (const char *)w->data + r * tt_packing_row_bytes(w->packing, width), width, 0, width, to);
        return;
    }
    for (int64_t c = 0; c < width; c++)
        to[c] = w->dtype == TT_BF16 ? tt_bf16_to_float(((const tt_bf16 *)w->data)[r * width + c])
                                    : ((const float *)w->data)[r * width + c];
}

/* squares [rows][grains] */
static void add_squares(const struct tt_ckpt_chunk *w, int64_t grain, int64_t grains, double *squares)
{
    int64_t width = w->part.shape[1];
    float *row = tt_calloc((size_t)width, sizeof *row);

    for (int64_t r = 0; r < w->part.shape[0]; r++) {
        double *of = squares + (w->part.offset[0] + r) * grains;

        read_row(w, r, row);
        for (int64_t c = 0; c < width; c++)
            of[(w->part.offset[1] + c) / grain] += (double)row[c] * (double)row[c];
    }
    tt_free(row);
}

static int start_layer(const struct tt_setup *s, const struct tt_job_tensors *tensors, const struct tt_param *param,
                       const struct tt_ckpt_chunk *w)
{
    const struct tt_ckpt_chunk *m = &tensors->whole.model[param->lora_m];
    int cuts = param->tp == TT_TP_COLUMNS && s->job.mesh.tp_grains > 1 ? s->job.mesh.tp_grains : 1, rc = 0;
    struct tt_extent columns = {param->shape[1], cuts};
    int64_t grain = tt_grain_or(&columns, param->shape[1]), n = param->shape[0] * cuts;
    double *squares = tt_calloc((size_t)n, sizeof *squares);

    if (tt_box_volume(&w->part) > 0)
        add_squares(w, grain, cuts, squares);
    TT_TRY(tt_comm_max_f64(s->comm, squares, (int)n));
    for (int64_t i = 0; i < n_magnitudes(m); i++) {
        const double *of = squares + (m->part.offset[0] + i) * cuts;
        double sum = 0.0;

        for (int g = 0; g < cuts; g++)
            sum += of[g];
        if (magnitude(m, i) != TT_LORA_NO_MAGNITUDE)
            continue;
        if (m->dtype == TT_BF16)
            ((tt_bf16 *)m->data)[i] = tt_bf16_from_float((float)sqrt(sum));
        else
            ((float *)m->data)[i] = (float)sqrt(sum);
    }
out:
    tt_free(squares);
    return rc;
}

int tt_magnitudes_start(const struct tt_setup *s, const struct tt_job_tensors *tensors)
{
    const struct tt_model *model = s->job.model;
    int64_t missing;
    int rc = 0;

    if (!model->dims.lora.rank || !model->dims.lora.dora)
        return 0;
    TT_TRY(tt_engine_synchronize(s->engine));
    missing = has_none(model, tensors);
    TT_TRY(tt_comm_sum_i64(s->comm, &missing, 1));
    for (int p = 0; p < model->n_params && missing; p++)
        if (model->params[p].lora_m)
            TT_TRY(start_layer(s, tensors, &model->params[p], &tensors->whole.model[p]));
out:
    return rc;
}
