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

/* Whether the ranks divide the work otherwise than those that saved the checkpoint. */
static bool is_divided_otherwise(const struct tt_setup *setup, const json_t *meta)
{
    const json_t *config = json_object_get(meta, "config"), *mesh = json_object_get(meta, "mesh");
    const json_t *parallelism = json_object_get(config, "parallelism"), *training = json_object_get(config, "training");
    bool differs =
        json_integer_value(json_object_get(parallelism, "expert_parallel_degree")) !=
            setup->job.mesh.size[TT_MESH_EP] ||
        json_integer_value(json_object_get(training, "local_batch_size")) != setup->cfg->training.local_batch_size;

    for (int dim = 0; dim < TT_MESH_DIMS; dim++)
        differs = differs || json_integer_value(json_object_get(mesh, tt_mesh_dim_name((enum tt_mesh_dim)dim))) !=
                                 setup->job.mesh.size[dim];
    return differs;
}

/* Whether sums over runs would have other bits on this layout, and those of every microbatch would not. */
static bool is_better_reduced_often(const struct tt_setup *setup)
{
    struct tt_engine_options runs = setup->job.engine, each = setup->job.engine;

    runs.reduce = TT_REDUCE_RUNS;
    each.reduce = TT_REDUCE_EACH;
    return !tt_engine_is_exact(&runs) && tt_engine_is_exact(&each);
}

/* Sets what a checkpoint was trained with. Gradients cannot be carried if backward goes through microbatches in another
 * order. Another layout keeps the bits of every_run, and not the way to them. */
static void adopt(struct tt_setup *setup, const json_t *meta, const char *word)
{
    enum tt_sync_choice sync = strcmp(word, tt_setup_sync_word(TT_SYNC_LAST_MICROBATCH)) == 0 ? TT_SYNC_LAST_MICROBATCH
                               : strcmp(word, tt_setup_sync_word(TT_SYNC_EVERY_RUN)) == 0     ? TT_SYNC_EVERY_RUN
                                                                                          : TT_SYNC_EVERY_MICROBATCH;

    if (sync == TT_SYNC_LAST_MICROBATCH && setup->job.pipeline && !tt_pipeline_ascends(setup->job.pipeline))
        sync = TT_SYNC_EVERY_MICROBATCH;
    if (sync == TT_SYNC_EVERY_RUN && is_divided_otherwise(setup, meta) && is_better_reduced_often(setup)) {
        setup->job.engine.reduce = TT_REDUCE_EACH;
        setup->job.sync_why = tt_strdup("after each microbatch: every_run, as in the checkpoint, would change the bits "
                                        "on this layout");
        return;
    }
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
        adopt(setup, found.meta, word);
    else
        TT_TRY(choose_once(setup));
out:
    tt_ckpt_found_release(&found);
    tt_free(folder);
    return rc;
}
