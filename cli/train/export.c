/* SPDX-License-Identifier: MIT
 *
 * checkpoint.last_save_in_hf: the last step once more, for others to load.
 */
#include <inttypes.h>
#include <string.h>

#include "checkpoint/load/patience.h"
#include "checkpoint/steps/steps.h"
#include "checkpoint/tools/consolidate.h"
#include "cli/train/trainer.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/os/file.h"

static int export_step(void *arg)
{
    const struct tt_trainer *t = arg;
    char *step = tt_step_path(t->store->folder, t->at.step), *folder = tt_format("%s/hf", step), size[32];
    struct tt_consolidate what = {.source = step,
                                  .destination = folder,
                                  .format = TT_FORMAT_HF,
                                  .has_dtype = true,
                                  .dtype = tt_job_export_dtype(t->cfg)};
    struct tt_consolidated done;
    bool exists = false;
    int rc = 0;

    TT_TRY(tt_path_exists(folder, &exists)); /* it appears whole or not at all */
    if (exists)
        goto out;
    TT_TRY(tt_ckpt_consolidate(&what, &done));
    tt_note("Hugging Face weights %s: %s in %d file%s", folder, tt_text_bytes(size, sizeof size, (double)done.bytes),
            done.files, done.files == 1 ? "" : "s");
out:
    tt_free(step);
    tt_free(folder);
    return rc;
}

static int fail_export(const struct tt_trainer *t, int rc)
{
    char *cause = tt_strdup(tt_error_message());

    rc = tt_fail(
        rc, "step %" PRId64 " is saved, but not its Hugging Face weights: %s%s", t->at.step, cause,
        strstr(cause, "\nhelp: ") ? "" : "\nhelp: start the run again: it makes what is missing, and trains nothing");
    tt_free(cause);
    return rc;
}

int tt_trainer_export(struct tt_trainer *t)
{
    static const char what[] = "writing Hugging Face weights";
    struct tt_patience patience = tt_patience_begin(t->comm, what);
    int rc = tt_patience_work(t->comm, t->comm->rank == 0, export_step, t);

    tt_patience_end(t->comm, &patience);
    return rc < 0 ? fail_export(t, rc) : 0;
}
