/* SPDX-License-Identifier: MIT
 *
 * Merging low-rank adapters into their weights.
 */
#include "checkpoint/hf/merge.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/models/parts/lora.h"

int tt_hf_merge(const struct tt_model *model, int param, tt_hf_read_fn read, void *arg, int64_t row, int64_t n,
                float *data)
{
    int64_t width = model->params[param].shape[1], rank = model->dims.lora.rank;
    double scale = tt_lora_scale(&model->dims.lora);
    float *a = tt_calloc_for((size_t)(rank * width), sizeof *a, model->params[param + 1].name);
    float *b = tt_calloc_for((size_t)(n * rank), sizeof *b, model->params[param + 2].name);
    double *sum = tt_calloc_for((size_t)width, sizeof *sum, model->params[param].name);
    int rc = a && b && sum ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    TT_TRY(read(arg, param + 1, 0, rank, a));
    TT_TRY(read(arg, param + 2, row, n, b));
    for (int64_t r = 0; r < n; r++, data += width) {
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t k = 0; k < rank; k++)
            for (int64_t c = 0; c < width; c++)
                sum[c] += (double)b[r * rank + k] * (double)a[k * width + c];
        for (int64_t c = 0; c < width; c++)
            data[c] = (float)((double)data[c] + scale * sum[c]);
    }
out:
    tt_free(a);
    tt_free(b);
    tt_free(sum);
    return rc;
}
