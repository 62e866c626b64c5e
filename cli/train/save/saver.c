/* SPDX-License-Identifier: MIT
 *
 * Saving from the training loop: when a checkpoint is due, what is in it, and how a save ends.
 */
#include "cli/train/save/saver.h"

#include <inttypes.h>

#include "checkpoint/load/patience.h"
#include "checkpoint/save/replicas.h"
#include "checkpoint/steps/retain.h"
#include "core/base/mem.h"
#include "trainer/data/data.h"

/* --- what a manifest says of the run --- */

/* Hashes are text, since JSON has no uint64. */
static json_t *data_json(const struct tt_config *cfg, const struct tt_train_data *data)
{
    const struct tt_token_info *first = &data->part[0].dataset->ref.info;
    json_t *parts = data->n > 1 ? json_array() : NULL;

    for (int i = 0; i < data->n && parts; i++)
        (void)json_array_append_new(parts,
                                    json_pack("{s:o, s:o, s:I}", "name", tt_json_string(data->part[i].name), "digest",
                                              json_sprintf("%016" PRIx64, data->part[i].dataset->ref.info.digest),
                                              "share", (json_int_t)data->mixture.share[i]));
    return json_pack("{s:o, s:I, s:I, s:b, s:o, s:o, s:s*, s:o*, s:o*, s:s*, s:o*}", "dataset",
                     tt_config_value_json(cfg, tt_config_row_find("training.dataset")), "seq_len",
                     (json_int_t)cfg->training.seq_len, "seed", (json_int_t)cfg->dataloader.seed, "shuffle",
                     cfg->dataloader.shuffle, "digest", json_sprintf("%016" PRIx64, tt_train_data_digest(data)),
                     "tokenizer", json_sprintf("%016" PRIx64, first->tokenizer_hash), "unicode",
                     *first->unicode ? first->unicode : NULL, "masked", first->mask_at ? json_true() : NULL, "parts",
                     parts, "long_conversations", tt_datasets_longs(cfg, data), "split",
                     cfg->validation.split > 0.0 ? json_real(cfg->validation.split) : NULL);
}

/* The loads of experts in the last step, which the next one needs. NULL: it does not. */
static json_t *loads_json(const struct tt_setup *s)
{
    int64_t n, *loads = tt_engine_loads(s->engine, &n);
    json_t *list = s->cfg->training.global_batch_balance_loss > 0.0 ? json_array() : NULL;

    for (int64_t i = 0; list && i < n; i++)
        (void)json_array_append_new(list, json_integer(loads[i]));
    return list;
}

static json_t *describe(const struct tt_saver *saver, const struct tt_train_progress *at)
{
    const struct tt_setup *s = saver->setup;
    json_t *meta = tt_train_progress_json(at), *mesh = json_object();

    for (int d = 0; d < TT_MESH_DEGREES; d++)
        (void)json_object_set_new(mesh, tt_mesh_dim_name((enum tt_mesh_dim)d), json_integer(s->job.mesh.size[d]));
    (void)json_object_update_new(meta,
                                 json_pack("{s:o*, s:s++, s:o, s:o, s:O*, s:o, s:o}", "expert_loads", loads_json(s),
                                           "model", s->job.model->row->name, "/", s->job.model->flavor, "mesh", mesh,
                                           "data", data_json(s->cfg, saver->data), "line", saver->line, "kernels",
                                           tt_setup_kernels_json(s), "config", tt_config_to_json(s->cfg, false)));
    return meta;
}

/* --- opening --- */

void tt_saver_init(const struct tt_setup *setup, struct tt_reporter *reporter, const struct tt_train_data *data,
                   struct tt_saver *ret_saver)
{
    *ret_saver = (struct tt_saver){.setup = setup, .reporter = reporter, .data = data, .saved_step = -1};
    tt_job_tensors_init(&setup->job.engine, setup->engine, &ret_saver->tensors);
}

int tt_saver_open(struct tt_saver *saver, const char *folder, const char *run_id)
{
    const struct tt_setup *s = saver->setup;
    const struct tt_ckpt_policy *policy = NULL;
    int rc = 0;

    TT_TRY(tt_ckpt_store_open(s->comm, &s->job.mesh, folder, run_id, &saver->store));
    TT_TRY(tt_comm_agree(s->comm, tt_train_assets_init(s, saver->data->tokenizer, &saver->assets)));
    if (s->cfg->checkpoint.async_mode != TT_ASYNC_ASYNC)
        goto out;
    rc = tt_job_policy(s->cfg, &policy);
    if (rc == 0)
        rc = tt_ckpt_writer_new(tt_ckpt_staging_bytes(&saver->tensors.state, &s->job.mesh, policy, s->comm->rank),
                                &saver->writer);
    rc = tt_comm_agree(s->comm, rc);
out:
    return rc;
}

void tt_saver_close(struct tt_saver *saver)
{
    tt_ckpt_saving_drop(saver->saving);
    tt_ckpt_writer_free(saver->writer);
    tt_ckpt_store_close(saver->store);
    tt_train_assets_release(&saver->assets);
    tt_job_tensors_release(&saver->tensors);
    json_decref(saver->line);
    *saver = (struct tt_saver){.saved_step = -1};
}

/* --- one save --- */

bool tt_saver_is_due(const struct tt_saver *saver, int64_t step, bool last, bool stop)
{
    const struct tt_config *cfg = saver->setup->cfg;

    if (!saver->store || (saver->saved_step == step && !last))
        return false;
    return last || stop || step % cfg->checkpoint.interval == 0 ||
           (step == 1 && cfg->checkpoint.enable_first_step_checkpoint);
}

static void note_saved(struct tt_saver *saver, const struct tt_ckpt_saved *saved, bool async)
{
    saver->saved_step = saved->step;
    tt_reporter_saved(saver->reporter, saved, async);
}

/*
 * A save that failed for lack of space or memory, or because of a broken disk, left the older checkpoints as they were.
 * Training warns and continues. It does not continue if the save is the last one, whose loss would be that of the run,
 * or if the state is not finite.
 */
static int settle_result(struct tt_saver *saver, int rc, int64_t step, bool last)
{
    if (rc == 0)
        return 0;
    if ((rc != TT_EIO && rc != TT_ENOMEM) || last)
        return tt_wrap(rc, "checkpoint of step %" PRId64, step);
    tt_reporter_save_failed(saver->reporter, step);
    return 0;
}

int tt_saver_end(struct tt_saver *saver)
{
    struct tt_ckpt_saving *saving = saver->saving;
    struct tt_ckpt_saved saved = {0};
    int rc;

    if (!saving)
        return 0;
    saver->saving = NULL;
    rc = tt_ckpt_saving_end(saving, &saved);
    if (rc == 0)
        note_saved(saver, &saved, true);
    return settle_result(saver, rc, saver->saving_step, false);
}

bool tt_saver_is_written(const struct tt_saver *saver)
{
    return !saver->saving || tt_ckpt_saving_is_written(saver->saving);
}

int tt_saver_save(struct tt_saver *saver, const struct tt_train_progress *at, bool last, bool stop)
{
    const struct tt_config *cfg = saver->setup->cfg;
    bool model_only = last && cfg->checkpoint.last_save_model_only, async = saver->writer && !last && !stop;
    struct tt_ckpt_state state = saver->tensors.state;
    struct tt_ckpt_save save = {.state = &state,
                                .meta = describe(saver, at),
                                .asset = saver->assets.asset,
                                .n_assets = saver->assets.n,
                                .policy = tt_job_policy_name(cfg),
                                .filter = tt_job_filter_name(cfg),
                                .keep_latest_k = (int)cfg->checkpoint.keep_latest_k,
                                .cast_model = model_only,
                                .model_dtype = tt_job_export_dtype(cfg),
                                .team = tt_engine_team(saver->setup->engine),
                                .writer = async ? saver->writer : NULL};
    struct tt_ckpt_saved saved = {0};
    int rc = 0;

    if (model_only)
        state.n_optim = 0;
    if (!tt_saver_is_written(saver))
        tt_reporter_save_waits(saver->reporter, at->step, saver->saving_step);
    TT_TRY(tt_saver_end(saver));
    TT_TRY(tt_engine_synchronize(saver->setup->engine));
    saver->setup->comm->waiting_for = "checkpoint";
    if (async) {
        saver->saving_step = at->step;
        rc = tt_ckpt_save_begin(saver->store, &save, &saver->saving);
    } else {
        rc = tt_ckpt_save(saver->store, &save, &saved);
        if (rc == 0)
            note_saved(saver, &saved, false);
    }
    TT_TRY(settle_result(saver, rc, at->step, last || stop));
    if (last && cfg->checkpoint.last_save_in_hf)
        rc = tt_saver_export(saver, at->step);
out:
    json_decref(save.meta);
    return rc;
}

struct retention {
    const struct tt_saver *saver;
    int64_t step;
};

static int retain(void *arg)
{
    const struct retention *r = arg;

    tt_ckpt_retain(r->saver->store, r->step, (int)r->saver->setup->cfg->checkpoint.keep_latest_k, NULL);
    return 0;
}

int tt_saver_complete(struct tt_saver *saver, int64_t step, bool retains)
{
    struct tt_comm *comm = saver->setup->comm;
    struct retention retention = {saver, step};
    struct tt_patience patience;
    int rc = 0;

    if (!saver->store)
        return 0;
    patience = tt_patience_begin(comm, "removal of old checkpoints");
    rc = tt_patience_work(comm, comm->rank == 0 && retains, retain, &retention);
    tt_patience_end(comm, &patience);
    if (rc == 0 && saver->setup->cfg->checkpoint.last_save_in_hf)
        rc = tt_saver_export(saver, step);
    return rc;
}

int tt_saver_check_replicas(const struct tt_saver *saver, int64_t step)
{
    const struct tt_setup *s = saver->setup;
    int rc = 0;

    TT_TRY(tt_engine_synchronize(s->engine));
    s->comm->waiting_for = "comparison of replicas";
    rc = tt_replicas_check(s->comm, &s->job.mesh, &saver->tensors.state, tt_engine_team(s->engine));
out:
    return rc < 0 ? tt_wrap(rc, "step %" PRId64, step) : 0;
}

int tt_saver_drain(struct tt_saver *saver, int code)
{
    char *message;
    int rc;

    if (!saver->saving || code == TT_ECOMM)
        return code;
    message = tt_strdup(tt_error_message());
    rc = tt_saver_end(saver);
    if (code < 0)
        rc = tt_fail(code, "%s", message);
    tt_free(message);
    return rc;
}
