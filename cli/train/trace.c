/* SPDX-License-Identifier: MIT
 *
 * Traces of training steps, as profiling.* asks for them.
 */
#include "cli/run/trace.h"

#include "cli/train/trainer.h"
#include "core/base/log.h"
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
    /* a run folder that was removed is not made again: it would be nobody's */
    rc = tt_comm_agree(t->comm, tt_lock_check(&t->lock));
    if (rc == 0)
        rc = tt_comm_agree(t->comm, tt_trace_write(t->engine, &step, folder));
    if (rc != TT_EIO && rc != TT_EDATA && rc != TT_ENOMEM)
        goto out;
    if (t->comm->rank == 0)
        tt_warn("no trace of step %lld, training goes on: %s", (long long)step.step, tt_error_message());
    rc = 0;
out:
    tt_free(folder);
    return rc;
}
