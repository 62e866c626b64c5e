/* SPDX-License-Identifier: MIT
 *
 * The planned program of a rank.
 */
#include "parallel/engine/transfer/ahead.h"

#include "core/base/mem.h"
#include "parallel/planner/planner.h"

int tt_plan_ahead(const struct tt_engine_options *options, struct tt_layout *layout, const struct tt_lowering *lowering,
                  const struct tt_usage *usage, int64_t step_limit, struct tt_program **program)
{
    bool *reshard = tt_calloc((size_t)layout->n_units, sizeof *reshard);
    struct tt_planned planned = {0};
    struct tt_planner planner = {.lowering = lowering,
                                 .usage = usage,
                                 .eager = *program,
                                 .machine = &options->machine,
                                 .prefetch = options->prefetch,
                                 .bucket_bytes = options->bucket_bytes,
                                 .step_limit = step_limit,
                                 .reshard = reshard,
                                 .choose_reshard = options->choose_reshard_by_limit};
    int rc = 0;

    for (int u = 0; u < layout->n_units; u++)
        reshard[u] = layout->units[u].reshard_after_forward;
    TT_TRY(tt_planner_run(&planner, &planned));
    for (int u = 0; u < layout->n_units; u++)
        layout->units[u].reshard_after_forward = planned.reshard[u];
    tt_program_free(*program);
    *program = planned.program;
    planned.program = NULL;
out:
    tt_planned_release(&planned);
    tt_free(reshard);
    return rc;
}
