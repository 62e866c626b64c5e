/* SPDX-License-Identifier: MIT
 *
 * gradient_sync: what `auto` means. A resumed run keeps the choice with which it began.
 */
#include "cli/job/sync.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint/load/load.h"
#include "cli/run/folder.h"
#include "cli/train/setup.h"
#include "cli/train/start/start.h"
#include "core/base/mem.h"

const char *tt_setup_sync_word(enum tt_sync_choice sync)
{
    return tt_config_choice_word(tt_config_row_find("training.gradient_sync")->choices, (int)sync);
}

const char *tt_setup_recorded_sync(const json_t *meta)
{
    return json_string_value(
        json_object_get(json_object_get(json_object_get(meta, "config"), "training"), "gradient_sync"));
}

/* The choice of a new run. Planning takes time, so only rank 0 does it, and all ranks get the result. */
struct choosing {
    struct tt_setup *setup;
    struct {
        int when;
        char why[256];
    } chosen;
};

static int choose(void *arg)
{
    struct choosing *c = arg;
    const struct tt_config *cfg = c->setup->cfg;
    char *why = NULL;
    int rc = tt_job_choose_sync(cfg->training.gradient_sync, cfg->parallelism.reduction_order == TT_ORDER_FAST,
                                &c->setup->job, &why);

    c->chosen.when = (int)c->setup->job.engine.reduce;
    (void)snprintf(c->chosen.why, sizeof c->chosen.why, "%s", why ? why : "");
    tt_free(why);
    return rc;
}

static int choose_once(struct tt_setup *setup)
{
    struct choosing c = {.setup = setup};
    int rc = 0;

    TT_TRY(tt_comm_agree(setup->comm, setup->comm->rank == 0 ? tt_comm_work(setup->comm, choose, &c) : 0));
    TT_TRY(tt_comm_broadcast(setup->comm, &c.chosen, sizeof c.chosen, 0));
    setup->job.engine.reduce = (enum tt_reduce_when)c.chosen.when;
    setup->job.sync_why = tt_strdup(c.chosen.why);
out:
    return rc;
}

/* Sets what a checkpoint was trained with. Gradients cannot be carried if backward goes through microbatches in another
 * order. */
static void adopt(struct tt_setup *setup, const char *word)
{
    enum tt_sync_choice sync = strcmp(word, tt_setup_sync_word(TT_SYNC_LAST_MICROBATCH)) == 0 ? TT_SYNC_LAST_MICROBATCH
                               : strcmp(word, tt_setup_sync_word(TT_SYNC_EVERY_RUN)) == 0     ? TT_SYNC_EVERY_RUN
                                                                                          : TT_SYNC_EVERY_MICROBATCH;

    if (sync == TT_SYNC_LAST_MICROBATCH && setup->job.pipeline && !tt_pipeline_ascends(setup->job.pipeline))
        sync = TT_SYNC_EVERY_MICROBATCH;
    setup->job.engine.reduce = tt_job_reduce_when(sync);
    setup->job.sync_why = tt_format("%s, as in the checkpoint", tt_setup_sync_word(sync));
}

int tt_setup_first_sync(struct tt_setup *setup, bool starts_over)
{
    const struct tt_config *cfg = setup->cfg;
    char *folder = tt_run_folder_checkpoints(cfg);
    struct tt_ckpt_found found = {.step = -1};
    struct tt_ckpt_request request;
    const char *word = NULL;
    int rc = 0;

    if (cfg->training.gradient_sync != TT_SYNC_AUTO)
        goto out;
    if (cfg->checkpoint.enable && !starts_over) {
        TT_TRY(tt_start_request(cfg, &request));
        TT_TRY(tt_ckpt_peek(setup->comm, folder, &request, &found));
        word = tt_setup_recorded_sync(found.meta);
    }
    if (word)
        adopt(setup, word);
    else
        TT_TRY(choose_once(setup));
out:
    tt_ckpt_found_release(&found);
    tt_free(folder);
    return rc;
}
