/* SPDX-License-Identifier: MIT
 *
 * Saving from the training loop: what goes into a checkpoint, when it is due, and what is said about it. With async_mode
 * at most one save is under way; it is ended, with its agreement and renaming, at the end of a step by all ranks at once.
 */
#include "checkpoint/save/save.h"

#include <inttypes.h>
#include <string.h>

#include "checkpoint/load/patience.h"
#include "checkpoint/save/replicas.h"
#include "checkpoint/steps/retain.h"
#include "cli/train/trainer.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/models/model_json.h"
#include "core/os/file.h"

/* --- where the run stands --- */

/* The hashes are of the packed tokens, which stand for corpus and tokenizer both; as text, since JSON has no uint64. */
static void set_hash(json_t *object, const char *key, uint64_t hash)
{
    (void)json_object_set_new(object, key, json_sprintf("%016" PRIx64, hash));
}

static json_t *describe(const struct tt_trainer *t)
{
    const struct tt_progress_state *at = &t->at;
    json_t *meta = json_object(), *mesh = json_object(), *data = json_object();

    for (int d = 0; d < TT_MESH_DIMS; d++)
        (void)json_object_set_new(mesh, tt_mesh_dim_name((enum tt_mesh_dim)d), json_integer(t->mesh.size[d]));
    (void)json_object_set_new(data, "dataset", json_string(t->cfg->training.dataset));
    (void)json_object_set_new(data, "seq_len", json_integer(t->cfg->training.seq_len));
    (void)json_object_set_new(data, "seed", json_integer(t->cfg->dataloader.seed));
    (void)json_object_set_new(data, "shuffle", json_boolean(t->cfg->dataloader.shuffle));
    set_hash(data, "digest", t->data.dataset->ref.info.digest);
    set_hash(data, "tokenizer", t->data.dataset->ref.info.tokenizer_hash);
    (void)json_object_set_new(meta, "step", json_integer(at->step));
    (void)json_object_set_new(meta, "tokens", json_integer(at->ntokens_seen));
    (void)json_object_set_new(meta, "ntokens_seen", json_integer(at->ntokens_seen));
    (void)json_object_set_new(meta, "sample_cursor", json_integer(at->sample_cursor));
    (void)json_object_set_new(meta, "optimizer_step", json_integer(at->optimizer_step));
    (void)json_object_set_new(meta, "lr_step", json_integer(at->lr_step));
    (void)json_object_set_new(meta, "model", json_sprintf("%s/%s", t->model->row->name, t->model->flavor));
    (void)json_object_set_new(meta, "mesh", mesh);
    (void)json_object_set_new(meta, "data", data);
    (void)json_object_set(meta, "line", t->line);
    (void)json_object_set_new(meta, "kernels", tt_trainer_kernels_json(t));
    (void)json_object_set_new(meta, "config", tt_config_to_json(t->cfg, false));
    return meta;
}

/* --- what travels along --- */

static void add_asset(struct tt_trainer_assets *a, const char *name, const void *bytes, size_t size)
{
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->asset[i].name, name) == 0)
            return;
    TT_PUSH(a->asset, a->n, a->cap) = (struct tt_ckpt_asset){name, bytes, size};
}

static int list_assets(struct tt_trainer *t)
{
    const char *folder = t->cfg->model.hf_assets_path;
    struct tt_trainer_assets *a = &t->assets;
    bool is_folder = false;
    int rc = 0;

    a->model_config = tt_model_json_text(t->model);
    add_asset(a, "model.json", a->model_config, strlen(a->model_config));
    if (t->data.tokenizer) {
        struct tt_tokenizer_files files = tt_tokenizer_files(t->data.tokenizer);

        add_asset(a, "tokenizer.json", files.json, files.json_size);
        if (files.config)
            add_asset(a, "tokenizer_config.json", files.config, files.config_size);
    }
    if (!folder || t->comm->rank > 0)
        goto out;
    TT_TRY(tt_path_is_folder(folder, &is_folder));
    if (is_folder) /* config.json is the model's only where the model is config.json's */
        TT_TRY(tt_hf_files_read(folder, strcmp(t->cfg->model.flavor, "hf") == 0, &a->file, &a->n_files));
    for (int i = 0; i < a->n_files; i++)
        add_asset(a, a->file[i].name, a->file[i].text, a->file[i].size);
out:
    return rc;
}

/* --- opening --- */

int tt_trainer_save_open(struct tt_trainer *t, const char *folder)
{
    const struct tt_ckpt_policy *policy = NULL;
    int rc = 0;

    TT_TRY(tt_ckpt_store_open(t->comm, &t->view.layout, folder, t->run_id, &t->store));
    TT_TRY(tt_comm_agree(t->comm, list_assets(t)));
    if (t->cfg->checkpoint.async_mode != TT_ASYNC_ASYNC)
        goto out;
    rc = tt_job_policy(t->cfg, &policy);
    if (rc == 0)
        rc = tt_ckpt_writer_new(tt_ckpt_staging_bytes(&t->view.state, &t->view.layout, policy), &t->writer);
    rc = tt_comm_agree(t->comm, rc);
out:
    return rc;
}

void tt_trainer_save_close(struct tt_trainer *t)
{
    tt_ckpt_saving_drop(t->saving);
    t->saving = NULL;
    tt_ckpt_writer_free(t->writer);
    tt_ckpt_store_close(t->store);
    tt_hf_files_free(t->assets.file, t->assets.n_files);
    tt_free(t->assets.asset);
    tt_free(t->assets.model_config);
}

/* --- one save --- */

static void report(struct tt_trainer *t, const struct tt_ckpt_saved *saved, bool async)
{
    double sec = async ? saved->write_sec : saved->seconds; /* the time that is printed beside it */
    double rate = sec > 0.0 ? (double)saved->bytes / sec / 1e9 : 0.0;
    char size[32];

    t->saved_step = saved->step;
    if (t->comm->rank != 0)
        return;
    tt_metrics_checkpoint(&t->metrics, saved, async);
    tt_text_bytes(size, sizeof size, (double)saved->bytes);
    if (async)
        tt_note("checkpoint step-%" PRId64
                ": %s in %d files, training waited %.2f s (%.2f s for the copy), written in %.2f s (%.2f GB/s)",
                saved->step, size, saved->files, saved->blocked_sec, saved->stage_sec, saved->write_sec, rate);
    else
        tt_note("checkpoint step-%" PRId64 ": %s in %d files, %.2f s (%.2f GB/s)", saved->step, size, saved->files,
                saved->seconds, rate);
}

/*
 * A save that failed for want of space or memory, or because of a broken disk, left the older checkpoints as they were:
 * training goes on to the next one, loudly. The last save of a run is what it was for, and a state that is not finite is
 * not worth going on with.
 */
static int settle(struct tt_trainer *t, int rc, int64_t step, bool last)
{
    if (rc == 0)
        return 0;
    if ((rc != TT_EIO && rc != TT_ENOMEM) || last)
        return tt_wrap(rc, "checkpoint of step %" PRId64, step);
    if (t->comm->rank == 0) {
        tt_metrics_checkpoint_failed(&t->metrics, step, tt_error_message());
        tt_warn("checkpoint of step %" PRId64 " FAILED, training goes on, older checkpoints are as they were: %s", step,
                tt_error_message());
    }
    return 0;
}

int tt_trainer_save_end(struct tt_trainer *t)
{
    struct tt_ckpt_saving *saving = t->saving;
    struct tt_ckpt_saved saved = {0};
    int rc;

    if (!saving)
        return 0;
    t->saving = NULL;
    rc = tt_ckpt_saving_end(saving, &saved);
    if (rc == 0)
        report(t, &saved, true);
    return settle(t, rc, t->saving_step, false);
}

bool tt_trainer_save_is_written(const struct tt_trainer *t)
{
    return !t->saving || tt_ckpt_saving_is_written(t->saving);
}

int tt_trainer_save(struct tt_trainer *t, bool last, bool stop)
{
    const struct tt_config *cfg = t->cfg;
    bool model_only = last && cfg->checkpoint.last_save_model_only, async = t->writer && !last && !stop;
    struct tt_ckpt_state state = t->view.state;
    struct tt_ckpt_save save = {.state = &state,
                                .meta = describe(t),
                                .asset = t->assets.asset,
                                .n_assets = t->assets.n,
                                .policy = tt_job_policy_name(cfg),
                                .filter = tt_job_filter_name(cfg),
                                .keep_latest_k = (int)cfg->checkpoint.keep_latest_k,
                                .cast_model = model_only,
                                .model_dtype = tt_job_export_dtype(cfg),
                                .team = tt_engine_team(t->engine),
                                .writer = async ? t->writer : NULL};
    struct tt_ckpt_saved saved = {0};
    int rc = 0;

    if (model_only)
        state.n_optim = 0;
    if (t->saving && t->comm->rank == 0 && !tt_trainer_save_is_written(t))
        tt_note("checkpoint step-%" PRId64 " is due while step-%" PRId64 " is still being written: waiting for it",
                t->at.step, t->saving_step);
    TT_TRY(tt_trainer_save_end(t));
    t->comm->waiting_for = "checkpoint";
    if (async) {
        t->saving_step = t->at.step;
        rc = tt_ckpt_save_begin(t->store, &save, &t->saving);
    } else {
        rc = tt_ckpt_save(t->store, &save, &saved);
        if (rc == 0)
            report(t, &saved, false);
    }
    TT_TRY(settle(t, rc, t->at.step, last || stop));
    if (last && cfg->checkpoint.last_save_in_hf)
        rc = tt_trainer_export(t);
out:
    json_decref(save.meta);
    return rc;
}

static int retain(void *arg)
{
    const struct tt_trainer *t = arg;

    tt_ckpt_retain(t->store, t->at.step, (int)t->cfg->checkpoint.keep_latest_k, NULL);
    return 0;
}

int tt_trainer_save_complete(struct tt_trainer *t)
{
    const struct tt_config *cfg = t->cfg;
    struct tt_patience patience;
    bool retains = cfg->checkpoint.load_step < 0 && !json_object_get(t->changed, "checkpoint.keep_latest_k");
    int rc = 0;

    if (!t->store || t->resumed_from < 0) /* the step is not in this run's folder */
        return 0;
    patience = tt_patience_begin(t->comm, "removal of old checkpoints");
    rc = tt_patience_work(t->comm, t->comm->rank == 0 && retains, retain, t);
    tt_patience_end(t->comm, &patience);
    if (rc == 0 && cfg->checkpoint.last_save_in_hf)
        rc = tt_trainer_export(t);
    return rc;
}

int tt_trainer_check_replicas(struct tt_trainer *t)
{
    int rc;

    t->comm->waiting_for = "comparison of replicas";
    rc = tt_replicas_check(t->comm, &t->view.layout, &t->view.state, tt_engine_team(t->engine));
    return rc < 0 ? tt_wrap(rc, "step %" PRId64, t->at.step) : 0;
}

int tt_trainer_save_drain(struct tt_trainer *t, int code)
{
    char *message;
    int rc;

    if (!t->saving || code == TT_ECOMM)
        return code;
    message = tt_strdup(tt_error_message());
    rc = tt_trainer_save_end(t);
    if (code < 0)
        rc = tt_fail(code, "%s", message);
    tt_free(message);
    return rc;
}
