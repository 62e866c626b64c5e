/* SPDX-License-Identifier: MIT
 *
 * Statistics of a tensor's values.
 */
#include "checkpoint/format/stats.h"

#include <math.h>

#include "checkpoint/format/cast.h"
#include "core/base/log.h"
#include "core/base/mem.h"

enum { BLOCK_ELEMENTS = 1 << 20 };

struct sums {
    double min, max, sum, squares;
    int64_t finite, nonfinite;
};

/* Adds the sums of a block, so that billions of terms lose no significant digits. */
static void add_block(struct sums *s, enum tt_dtype dtype, const void *data, int64_t n)
{
    double sum = 0.0, squares = 0.0;

    for (int64_t i = 0; i < n; i++) {
        double value = tt_cast_value(dtype, data, i);

        if (!isfinite(value)) {
            s->nonfinite++;
            continue;
        }
        s->min = s->finite == 0 || value < s->min ? value : s->min;
        s->max = s->finite == 0 || value > s->max ? value : s->max;
        s->finite++;
        sum += value;
        squares += value * value;
    }
    s->sum += sum;
    s->squares += squares;
}

int tt_ckpt_stats(struct tt_source *source, const struct tt_manifest_tensor *tensor, double *done, double total,
                  json_t **ret_json)
{
    struct tt_box one = tt_box_rows(tensor->ndim, tensor->shape, 0, 1);
    int64_t width = tt_box_volume(&one), rows = tensor->ndim ? tensor->shape[0] : 1;
    int64_t step = width > 0 && width < BLOCK_ELEMENTS ? BLOCK_ELEMENTS / width : 1;
    struct sums s = {0};
    void *block = NULL;
    double n;
    int rc = 0;

    if (!tt_cast_has_value(tensor->dtype)) {
        *ret_json = json_null();
        return 0;
    }
    block = tt_calloc_for((size_t)((step < rows ? step : rows) * width), tt_dtype_size(tensor->dtype), tensor->name);
    TT_TRY(block ? 0 : TT_ENOMEM);
    for (int64_t row = 0; row < rows && width > 0; row += step) {
        int64_t have = rows - row < step ? rows - row : step;

        TT_TRY(tt_source_read_rows(source, tensor, row, have, tensor->dtype, block));
        add_block(&s, tensor->dtype, block, have * width);
        *done += (double)(have * width);
        tt_progress("reading", *done, total);
    }
    n = s.finite ? (double)s.finite : (double)NAN;
    *ret_json = json_pack("{s:o, s:o, s:o, s:o, s:I}", "min", tt_json_number(s.finite ? s.min : n), "max",
                          tt_json_number(s.finite ? s.max : n), "mean", tt_json_number(s.sum / n), "rms",
                          tt_json_number(sqrt(s.squares / n)), "nonfinite", (json_int_t)s.nonfinite);
out:
    tt_free(block);
    return rc;
}
