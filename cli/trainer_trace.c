/* SPDX-License-Identifier: MIT
 *
 * Traces of training steps, as profiling.* asks for them.
 */
#include "cli/trace.h"
#include "cli/trainer.h"
#include "core/base/mem.h"

bool tt_trainer_trace_is_due(const struct tt_trainer *t)
{
    return t->cfg->profiling.enable_profiling && t->at.step % t->cfg->profiling.profile_freq == 0;
}

int tt_trainer_trace(struct tt_trainer *t, double end_sec)
{
    char *folder = tt_format("%s/%s", t->cfg->job.dump_folder, t->cfg->profiling.save_traces_folder);
    struct tt_trace_step step = {.step = t->at.step,
                                 .rank = t->comm->rank,
                                 .world = t->comm->size,
                                 .threads = t->threads,
                                 .load = t->load,
                                 .end = end_sec,
                                 .lead = t->load.end - t->load.begin};
    int rc = 0;

    t->comm->waiting_for = "trace";
    TT_TRY(tt_comm_max_f64(t->comm, &step.lead, 1));
    TT_TRY(tt_comm_agree(t->comm, tt_trace_write(t->engine, &step, folder)));
out:
    tt_free(folder);
    return rc;
}
