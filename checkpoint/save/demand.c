/* SPDX-License-Identifier: MIT
 *
 * How much disk space the checkpoints of a run will need.
 */
#include "checkpoint/save/demand.h"

#include <math.h>
#include <stdbool.h>

double tt_ckpt_demand_bytes(const struct tt_ckpt_demand *d, int64_t keep)
{
    bool removes = keep > 0 && (d->held > keep || d->saves > keep - d->held);
    int64_t together = d->saves; /* the most new steps before an older one is removed */
    double before, saved, exported;

    if (d->saves <= 0)
        return 0.0;
    if (removes) {
        int64_t room = d->held >= keep ? 1 : keep - d->held + 1;

        together = together < room ? together : room;
    }
    before = (double)(together - 1) * d->one;
    saved = before + (together < d->saves ? d->one : d->last);
    exported = before + d->last + d->exports - (removes ? d->one : 0.0);
    return fmax(saved, exported);
}
