/* SPDX-License-Identifier: MIT
 *
 * checkpoint.last_save_in_hf: writes the last step once more, in Hugging Face's format.
 */
#include <inttypes.h>

#include "checkpoint/load/patience.h"
#include "checkpoint/steps/steps.h"
#include "checkpoint/tools/consolidate.h"
#include "cli/train/save/saver.h"
#include "core/base/mem.h"
#include "core/os/file.h"

struct export
{
    const struct tt_saver *saver;
    int64_t step;
    char *folder;                    /* step-N/hf */
    struct tt_consolidated exported; /* no files: the step already had its export */
};

static int export_step(void *arg)
{
    struct export *e = arg;
    char *step = tt_step_path(e->saver->store->folder, e->step), *folder = e->folder = tt_format("%s/hf", step);
    struct tt_consolidate what = {.source = step,
                                  .destination = folder,
                                  .format = TT_FORMAT_HF,
                                  .has_dtype = true,
                                  .dtype = tt_job_export_dtype(e->saver->setup->cfg)};
    bool exists = false;
    int rc = 0;

    TT_TRY(tt_path_exists(folder, &exists)); /* if it exists it is complete, since it is published by a rename */
    if (exists)
        goto out;
    TT_TRY(tt_ckpt_consolidate(&what, &e->exported));
out:
    tt_free(step);
    return rc;
}

int tt_saver_export(const struct tt_saver *saver, int64_t step)
{
    static const char what[] = "writing Hugging Face weights";
    struct tt_comm *comm = saver->setup->comm;
    struct tt_patience patience = tt_patience_begin(comm, what);
    struct export e = {.saver = saver, .step = step};
    int rc = tt_patience_work(comm, comm->rank == 0, export_step, &e);

    tt_patience_end(comm, &patience);
    if (rc == 0 && e.exported.files)
        tt_reporter_exported(saver->reporter, e.folder, &e.exported);
    tt_free(e.folder);
    if (rc < 0) {
        rc = tt_fail(rc, "step %" PRId64 " is saved, but not its Hugging Face weights: %s", step, tt_error_message());
        rc = tt_error_add_hint(rc, "start the run again: it makes what is missing, and trains nothing");
    }
    return rc;
}
