/* SPDX-License-Identifier: MIT
 *
 * The start of a run: from its own newest checkpoint, other weights, or random ones.
 */
#include "cli/train/start/start.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/hf/load.h"
#include "checkpoint/load/patience.h"
#include "cli/train/start/changed.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "trainer/job/tensors.h"
#include "trainer/run/folder.h"

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

/* The weights to start from; NULL: random ones. */
static const char *initial_path(const struct tt_config *cfg)
{
    const char *path = cfg->checkpoint.initial_load_path;

    return cfg->checkpoint.initial_load_in_hf && !path ? cfg->model.hf_assets_path : path;
}

static void describe_initial(const struct tt_config *cfg, struct tt_start *start)
{
    (void)snprintf(start->weights_from, sizeof start->weights_from, "from %s", initial_path(cfg));
}

static void describe_random(const struct tt_config *cfg, struct tt_start *start)
{
    (void)snprintf(start->weights_from, sizeof start->weights_from, "random init (seed %" PRId64 ")", cfg->debug.seed);
    start->is_random = true;
}

/* The parts of the checkpoint that are not taken. */
static int initial_skip(const struct tt_config *cfg, unsigned *ret_skip)
{
    int rc = tt_job_skip_flags(cfg, ret_skip);
    enum tt_key key = cfg->checkpoint.initial_load_extend_vocabulary ? TT_KEY_EXTEND_VOCABULARY : TT_KEY_LEAVE_OUT;

    /* these are not Hugging Face's weights */
    if (cfg->checkpoint.initial_load_extend_vocabulary || cfg->checkpoint.initial_load_leave_out.n)
        return tt_fail(TT_EUSAGE,
                       "%s is for a Hugging Face folder, and '%s' is none\n"
                       "help: titan ckpt consolidate %s FOLDER --format hf makes one",
                       tt_key_name(key), initial_path(cfg), initial_path(cfg));
    if (rc == 0 && cfg->checkpoint.initial_load_model_only)
        *ret_skip |= TT_SKIP_OPTIMIZER | TT_SKIP_LR_SCHEDULER | TT_SKIP_DATALOADER | TT_SKIP_TRAIN_STATE;
    return rc;
}

/* Continues as far as the run had come that saved the checkpoint. meta is NULL if the checkpoint does not say. */
static int restore_initial(const struct tt_config *cfg, const struct tt_train_data *data, const json_t *meta,
                           unsigned skip, struct tt_train_progress *at)
{
    int rc = 0;

    TT_TRY(tt_changed_check_adapters(cfg, initial_path(cfg), meta));
    if (!meta || cfg->checkpoint.initial_load_model_only)
        return 0;
    TT_TRY(leave_out_foreign(initial_path(cfg), meta, &skip));
    rc = tt_start_restore(cfg, data, meta, skip, at);
out:
    return rc;
}

static struct tt_hf_options hf_options(const struct tt_config *cfg)
{
    return (struct tt_hf_options){.leave_out = &cfg->checkpoint.initial_load_leave_out,
                                  .extend_vocabulary = cfg->checkpoint.initial_load_extend_vocabulary};
}

static int load_initial(const struct tt_saver *saver, struct tt_train_progress *at, struct tt_start *start)
{
    const struct tt_setup *s = saver->setup;
    const struct tt_ckpt_state *state = &saver->tensors.state;
    const struct tt_config *cfg = s->cfg;
    const struct tt_hf_options options = hf_options(cfg);
    unsigned skip = 0;
    json_t *meta = NULL;
    int rc = 0;

    if (s->job.model->dims.lora.rank) /* adapters, which the weights to start from may lack */
        TT_TRY(tt_comm_agree(s->comm, tt_engine_init_params(s->engine, (uint64_t)cfg->debug.seed)));
    if (cfg->checkpoint.initial_load_in_hf) {
        TT_TRY(tt_hf_load(s->comm, initial_path(cfg), &options, s->job.model, state));
    } else {
        TT_TRY(initial_skip(cfg, &skip));
        TT_TRY(tt_ckpt_load(s->comm, &s->job.mesh, initial_path(cfg), tt_job_reading(cfg), &skip, state, &meta));
        TT_TRY(tt_comm_agree(s->comm, restore_initial(cfg, saver->data, meta, skip, at)));
    }
    if (cfg->checkpoint.initial_load_in_hf || (skip & (TT_SKIP_OPTIMIZER | TT_SKIP_AVERAGES)))
        tt_state_start_averages(tt_engine_state(s->engine), tt_engine_layout(s->engine));
    describe_initial(cfg, start);
out:
    json_decref(meta);
    return rc;
}

/* Warns if the folder of the model's config.json has weights too, since they were probably meant to be used.
 * Collective. */
static int warn_random(const struct tt_setup *s, const struct tt_reporter *reporter)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    const char *folder = s->cfg->model.hf_assets_path;
    bool has_weights = false, looks = s->comm->rank == 0 && strcmp(s->cfg->model.flavor, "hf") == 0 && folder;
    int rc = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names && looks && rc == 0 && !has_weights; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);

        rc = tt_path_exists(path, &has_weights);
        tt_free(path);
    }
    if (rc == 0 && has_weights)
        tt_reporter_random_weights(reporter, folder);
    return tt_comm_agree(s->comm, rc);
}

static int init_randomly(const struct tt_saver *saver, struct tt_start *start)
{
    const struct tt_setup *s = saver->setup;
    int rc = 0;

    TT_TRY(tt_comm_agree(s->comm, tt_engine_init_params(s->engine, (uint64_t)s->cfg->debug.seed)));
    tt_state_start_averages(tt_engine_state(s->engine), tt_engine_layout(s->engine));
    TT_TRY(warn_random(s, saver->reporter));
    describe_random(s->cfg, start);
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
    if (initial_path(cfg))
        rc = load_initial(saver, at, ret_start);
    else
        rc = init_randomly(saver, ret_start);
out:
    tt_free(folder);
    return rc;
}

int tt_start_examine(const struct tt_setup *s, const char *path, unsigned skip, json_t **ret_meta)
{
    struct tt_job_tensors tensors = {0};
    int rc;

    tt_job_tensors_init(&s->job.engine, NULL, &tensors);
    rc = tt_ckpt_examine(path, &tensors.state, skip, ret_meta);
    tt_job_tensors_release(&tensors);
    return rc;
}

struct peek {
    const struct tt_setup *setup;
    const struct tt_train_data *data;
    struct tt_train_progress *at;
};

/* Compares the weights to start from with the model, without reading them. */
static int peek_initial(void *arg)
{
    const struct peek *peek = arg;
    const struct tt_setup *s = peek->setup;
    const struct tt_hf_options options = hf_options(s->cfg);
    json_t *meta = NULL;
    unsigned skip = 0;
    int rc = 0;

    if (s->cfg->checkpoint.initial_load_in_hf)
        return tt_hf_examine(initial_path(s->cfg), &options, s->job.model);
    TT_TRY(initial_skip(s->cfg, &skip));
    TT_TRY(tt_start_examine(s, initial_path(s->cfg), skip, &meta));
    rc = restore_initial(s->cfg, peek->data, meta, skip, peek->at);
out:
    json_decref(meta);
    return rc;
}

int tt_start_peek(const struct tt_setup *s, const struct tt_train_data *data, const struct tt_reporter *reporter,
                  bool starts_over, struct tt_train_progress *at, struct tt_start *ret_start)
{
    struct tt_patience patience = tt_patience_begin(s->comm, "look at the checkpoint");
    struct peek peek = {s, data, at};
    bool resumes = false;
    int rc = 0;

    *ret_start = (struct tt_start){.resumed_from = -1};
    if (s->cfg->checkpoint.enable && !starts_over)
        TT_TRY(tt_start_peek_step(s, data, at, ret_start, &resumes));
    if (!resumes && initial_path(s->cfg)) {
        TT_TRY(tt_patience_work(s->comm, s->comm->rank == 0, peek_initial, &peek));
        TT_TRY(tt_comm_broadcast(s->comm, at, sizeof *at, 0));
        describe_initial(s->cfg, ret_start);
    } else if (!resumes) {
        TT_TRY(warn_random(s, reporter));
        describe_random(s->cfg, ret_start);
    }
out:
    tt_patience_end(s->comm, &patience);
    return rc;
}

void tt_start_release(struct tt_start *start)
{
    json_decref(start->changed);
    start->changed = NULL;
}
