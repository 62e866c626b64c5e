/* SPDX-License-Identifier: MIT
 *
 * The start of a run: from its own newest checkpoint, other weights, or random ones.
 */
#include "cli/train/start/start.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/hf/load.h"
#include "cli/run/folder.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/os/file.h"

/* A checkpoint of PyTorch's has the position of another data loader, which means nothing to this one. */
static int leave_out_foreign(const char *path, const json_t *meta, unsigned *skip)
{
    if (!json_object_get(meta, "torch"))
        return 0;
    if (!(*skip & TT_SKIP_TRAIN_STATE) && !json_object_get(meta, "step"))
        return tt_fail(TT_EDATA,
                       "'%s' does not say how many steps were done (train_state.step)\nhelp: set %s: [train_state, "
                       "lr_scheduler, optimizer], or checkpoint.initial_load_model_only: true",
                       path, tt_key_name(TT_KEY_EXCLUDE_FROM_LOADING));
    if (!(*skip & TT_SKIP_DATALOADER))
        tt_note("'%s' is a PyTorch checkpoint: the position of its data loader is not used, so the data begins with "
                "the first sample",
                path);
    *skip |= TT_SKIP_DATALOADER;
    return 0;
}

static int load_initial(const struct tt_saver *saver, struct tt_train_progress *at, struct tt_start *start)
{
    const struct tt_setup *s = saver->setup;
    const struct tt_state_view *v = &saver->view;
    const struct tt_config *cfg = s->cfg;
    const char *path = cfg->checkpoint.initial_load_path;
    bool model_only = cfg->checkpoint.initial_load_model_only;
    unsigned skip = 0;
    json_t *meta = NULL;
    int rc = 0;

    if (cfg->checkpoint.initial_load_in_hf) {
        path = path ? path : cfg->model.hf_assets_path;
        TT_TRY(tt_hf_load(s->comm, path, s->job.model, &v->tensors.state));
    } else {
        TT_TRY(tt_start_skip_flags(cfg, &skip));
        if (model_only)
            skip |= TT_SKIP_OPTIMIZER | TT_SKIP_LR_SCHEDULER | TT_SKIP_DATALOADER | TT_SKIP_TRAIN_STATE;
        TT_TRY(tt_ckpt_load(s->comm, &s->job.mesh, path, tt_job_reading(cfg), skip, &v->tensors.state, &meta));
        if (meta && !model_only) {
            TT_TRY(tt_comm_agree(s->comm, leave_out_foreign(path, meta, &skip)));
            rc = tt_start_restore(saver, meta, skip, at);
            TT_TRY(tt_comm_agree(s->comm, rc));
        }
    }
    (void)snprintf(start->weights_from, sizeof start->weights_from, "from %s", path);
out:
    json_decref(meta);
    return rc;
}

/* Warns if the folder of the model's config.json has weights too, since they were probably meant to be used. Rank 0
 * only. */
static int warn_random(const struct tt_saver *saver)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    const struct tt_config *cfg = saver->setup->cfg;
    const char *folder = cfg->model.hf_assets_path;
    bool has_weights = false;
    int rc = 0;

    if (strcmp(cfg->model.flavor, "hf") != 0 || !folder)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && rc == 0 && !has_weights; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);

        rc = tt_path_exists(path, &has_weights);
        tt_free(path);
    }
    if (rc == 0 && has_weights)
        tt_reporter_random_weights(saver->reporter, folder);
    return rc;
}

static int init_randomly(const struct tt_saver *saver, struct tt_start *start)
{
    const struct tt_setup *s = saver->setup;
    int64_t seed = s->cfg->debug.seed;
    int rc = tt_engine_init_params(s->engine, (uint64_t)seed);

    if (rc == 0 && s->comm->rank == 0)
        rc = warn_random(saver);
    TT_TRY(tt_comm_agree(s->comm, rc));
    (void)snprintf(start->weights_from, sizeof start->weights_from, "random init (seed %" PRId64 ")", seed);
    start->is_random = true;
out:
    return rc;
}

int tt_start_load(struct tt_saver *saver, const char *run_id, struct tt_train_progress *at, struct tt_start *ret_start)
{
    const struct tt_config *cfg = saver->setup->cfg;
    char *folder = tt_run_folder_checkpoints(cfg);
    bool resumed = false;
    int rc = 0;

    *ret_start = (struct tt_start){.resumed_from = -1};
    if (cfg->checkpoint.enable)
        TT_TRY(tt_start_resume(saver, folder, run_id, at, ret_start, &resumed));
    if (resumed)
        goto out;
    if (cfg->checkpoint.initial_load_path || cfg->checkpoint.initial_load_in_hf)
        rc = load_initial(saver, at, ret_start);
    else
        rc = init_randomly(saver, ret_start);
out:
    tt_free(folder);
    return rc;
}

void tt_start_release(struct tt_start *start)
{
    json_decref(start->changed);
    start->changed = NULL;
}
