/* SPDX-License-Identifier: MIT
 *
 * The end of a step, which is the same in all schedules.
 */
#include "parallel/fsdp/update.h"

static void finish_muon(struct tt_schedule *schedule, int unit)
{
    if (unit == TT_NONE)
        return;
    tt_schedule_wait(schedule, TT_GATHER_UPDATES, 0, unit, TT_NONE);
    tt_schedule_add(schedule, TT_MUON, unit);
}

void tt_fsdp_update(const struct tt_layout *layout, struct tt_schedule *schedule)
{
    int previous = TT_NONE;

    tt_schedule_add(schedule, TT_CLIP, TT_NONE);
    for (int u = 0; u < layout->n_units; u++)
        if (layout->units[u].buffers)
            tt_schedule_add(schedule, TT_BALANCE, u);
    for (int u = tt_layout_trained(layout, 0); u < layout->n_units; u = tt_layout_trained(layout, u + 1)) {
        tt_schedule_add(schedule, TT_OPTIMIZER, u);
        if (layout->units[u].n_adam == layout->units[u].n_trained)
            continue;
        tt_schedule_begin(schedule, TT_GATHER_UPDATES, 0, u, TT_NONE);
        finish_muon(schedule, previous);
        previous = u;
    }
    finish_muon(schedule, previous);
}
