/* SPDX-License-Identifier: MIT
 *
 * A save without its data: the plan and the layout of each file.
 */
#include "checkpoint/save/preview.h"

#include "checkpoint/format/shard_file.h"
#include "core/base/mem.h"

int tt_ckpt_preview_make(const struct tt_ckpt_state *state, const struct tt_mesh *mesh,
                         const struct tt_ckpt_policy *policy, int64_t step, struct tt_ckpt_preview *ret_preview)
{
    int n_ranks = mesh->n_ranks, *begin = NULL, *piece = NULL, rc = 0;
    struct tt_ckpt_preview preview = {0};
    struct tt_ckpt_plan plan = {0};

    preview.file = tt_calloc((size_t)TT_CKPT_GROUPS * (size_t)n_ranks, sizeof *preview.file);
    tt_ckpt_plan_make(state, mesh, policy, &plan);
    tt_ckpt_plan_files(&plan, n_ranks, &begin, &piece);
    for (int rank = 0; rank < n_ranks; rank++) {
        int64_t bytes = 0;

        for (int group = 0; group < TT_CKPT_GROUPS; group++) {
            int slot = group * n_ranks + rank, n = begin[slot + 1] - begin[slot];
            struct tt_shard_file file = {0};

            if (n == 0)
                continue;
            TT_TRY(tt_shard_file_measure(state, mesh, &plan, piece + begin[slot], n, step, &file));
            bytes += tt_shard_file_bytes(&file);
            preview.file[preview.n++] =
                (struct tt_ckpt_preview_file){(enum tt_ckpt_group)group, rank, n, tt_shard_file_bytes(&file)};
            tt_shard_file_release(&file);
        }
        preview.writers += bytes > 0;
        preview.bytes += bytes;
        preview.most_bytes = bytes > preview.most_bytes ? bytes : preview.most_bytes;
    }
    *ret_preview = preview;
    preview = (struct tt_ckpt_preview){0};
out:
    tt_ckpt_preview_release(&preview);
    tt_ckpt_plan_release(&plan);
    tt_free(begin);
    tt_free(piece);
    return rc;
}

void tt_ckpt_preview_release(struct tt_ckpt_preview *preview)
{
    tt_free(preview->file);
    *preview = (struct tt_ckpt_preview){0};
}
