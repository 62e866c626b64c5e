/* SPDX-License-Identifier: MIT
 *
 * Groups, names and sizes of the tensors of a checkpoint.
 */
#include "checkpoint/format/state.h"

#include <string.h>

#include "core/base/text.h"

const char *tt_ckpt_group_name(enum tt_ckpt_group group)
{
    static const char *const names[TT_CKPT_GROUPS] = {[TT_CKPT_MODEL] = "model", [TT_CKPT_OPTIM] = "optim"};

    return names[group];
}

int64_t tt_ckpt_box_bytes(const struct tt_ckpt_chunk *tensor, const struct tt_box *box)
{
    if (tensor->packing && tt_box_volume(box) > 0)
        return box->shape[0] * tt_packing_row_bytes(tensor->packing, box->shape[1]);
    return tt_box_volume(box) * (int64_t)tt_dtype_size(tensor->dtype);
}

bool tt_ckpt_is_average(const char *name)
{
    return tt_text_begins(name, "state.") && tt_text_ends(name, ".ema") && strlen(name) > strlen("state..ema");
}
