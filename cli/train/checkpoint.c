/* SPDX-License-Identifier: MIT
 *
 * The state as a checkpoint sees it, and what a run starts from: its own newest checkpoint, other weights, or chance.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/hf/load.h"
#include "checkpoint/load/load.h"
#include "checkpoint/steps/steps.h"
#include "cli/run/folder.h"
#include "cli/train/trainer.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/os/file.h"

/* --- the state as the checkpoint sees it --- */

static struct tt_ckpt_chunk chunk_of(const struct tt_engine *engine, const struct tt_param *param, int p,
                                     const char *name, float *const *arrays)
{
    const struct tt_layout *layout = tt_engine_layout(engine);
    const struct tt_unit_param *place = tt_layout_param(layout, p);
    struct tt_ckpt_chunk chunk = {.name = name,
                                  .dtype = TT_F32,
                                  .ndim = param->ndim,
                                  .row_begin = place->row_begin,
                                  .row_count = place->valid_rows,
                                  .data = arrays[layout->unit_of[p]] + place->offset};

    memcpy(chunk.shape, param->shape, sizeof chunk.shape);
    return chunk;
}

static void make_view(struct tt_trainer *t)
{
    const struct tt_layout *layout = tt_engine_layout(t->engine);
    struct tt_state *state = tt_engine_state(t->engine);
    int n = t->model->n_params;
    struct tt_trainer_view *v = &t->view;

    v->layout = (struct tt_ckpt_layout){layout->shard_degree, layout->replicate_degree, layout->shard_index,
                                        layout->replicate_index};
    v->state = (struct tt_ckpt_state){n, tt_calloc((size_t)n, sizeof *v->state.model), 2 * n,
                                      tt_calloc(2 * (size_t)n, sizeof *v->state.optim)};
    v->names = tt_calloc(2 * (size_t)n, sizeof(char *));
    for (int p = 0; p < n; p++) {
        const struct tt_param *param = &t->model->params[p];

        v->names[2 * (size_t)p] = tt_format("state.%s.exp_avg", param->name);
        v->names[2 * (size_t)p + 1] = tt_format("state.%s.exp_avg_sq", param->name);
        v->state.model[p] = chunk_of(t->engine, param, p, param->name, state->param);
        v->state.optim[2 * (size_t)p] = chunk_of(t->engine, param, p, v->names[2 * (size_t)p], state->exp_avg);
        v->state.optim[2 * (size_t)p + 1] =
            chunk_of(t->engine, param, p, v->names[2 * (size_t)p + 1], state->exp_avg_sq);
    }
}

void tt_trainer_view_release(struct tt_trainer_view *v)
{
    for (int i = 0; i < v->state.n_optim; i++)
        tt_free(v->names[i]);
    tt_free(v->names);
    tt_free(v->state.model);
    tt_free(v->state.optim);
    *v = (struct tt_trainer_view){0};
}

/* --- loading --- */

static int load_initial(struct tt_trainer *t, const struct tt_trainer_view *v)
{
    const struct tt_config *cfg = t->cfg;
    const char *path = cfg->checkpoint.initial_load_path;
    bool model_only = cfg->checkpoint.initial_load_model_only;
    unsigned skip = 0;
    json_t *meta = NULL;
    int rc = 0;

    if (cfg->checkpoint.initial_load_in_hf) {
        path = path ? path : cfg->model.hf_assets_path;
        TT_TRY(tt_hf_load(t->comm, path, t->model, &v->state));
    } else {
        TT_TRY(tt_trainer_skip_flags(t, &skip));
        if (model_only)
            skip |= TT_SKIP_OPTIMIZER | TT_SKIP_LR_SCHEDULER | TT_SKIP_DATALOADER | TT_SKIP_TRAIN_STATE;
        TT_TRY(tt_ckpt_load(t->comm, &v->layout, path, tt_job_reading(cfg), skip, &v->state, &meta));
        if (meta && !model_only) {
            rc = tt_trainer_restore_progress(t, meta, skip);
            TT_TRY(tt_comm_agree(t->comm, rc));
        }
    }
    (void)snprintf(t->weights_from, sizeof t->weights_from, "from %s", path);
out:
    json_decref(meta);
    return rc;
}

/* Weights beside the config.json that the model comes from are most likely meant to be used. Rank 0 only. */
static int warn_random(const struct tt_trainer *t)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    const char *folder = t->cfg->model.hf_assets_path;
    bool has_weights = false;
    int rc = 0;

    if (strcmp(t->cfg->model.flavor, "hf") != 0 || !folder)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && rc == 0 && !has_weights; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);

        rc = tt_path_exists(path, &has_weights);
        tt_free(path);
    }
    if (rc == 0 && has_weights)
        tt_warn("training starts from random weights: those in '%s' are not used\n"
                "help: --checkpoint.initial_load_in_hf loads them",
                folder);
    return rc;
}

int tt_trainer_load(struct tt_trainer *t)
{
    char *folder = tt_run_folder_checkpoints(t->cfg);
    bool loaded = false;
    int rc = 0;

    make_view(t);
    if (t->cfg->checkpoint.enable && !t->cfg->checkpoint.load_only)
        TT_TRY(tt_trainer_save_open(t, folder));
    if (t->cfg->checkpoint.enable)
        TT_TRY(tt_trainer_resume(t, folder, &loaded));
    if (!loaded && (t->cfg->checkpoint.initial_load_path || t->cfg->checkpoint.initial_load_in_hf)) {
        TT_TRY(load_initial(t, &t->view));
        loaded = true;
    }
    if (!loaded) {
        rc = tt_engine_init_params(t->engine, (uint64_t)t->cfg->debug.seed);
        if (rc == 0 && t->comm->rank == 0)
            rc = warn_random(t);
        TT_TRY(tt_comm_agree(t->comm, rc));
        (void)snprintf(t->weights_from, sizeof t->weights_from, "random init (seed %" PRId64 ")", t->cfg->debug.seed);
    }
out:
    tt_free(folder);
    return rc;
}
