/* SPDX-License-Identifier: MIT
 *
 * Saving from the training loop: the contents of a checkpoint, the phases of a save, and the disk space for it.
 */
#include "trainer/save/saver.h"

#include <inttypes.h>
#include <string.h>

#include "checkpoint/durable/patience.h"
#include "checkpoint/export/export.h"
#include "checkpoint/save/save.h"
#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/models/model_json.h"
#include "core/os/file.h"
#include "trainer/data/data.h"
#include "trainer/job/tensors.h"
#include "trainer/run/folder.h"

/* --- small files of a checkpoint: the model's sizes, the tokenizer, files of a Hugging Face folder --- */

static void add_asset(struct tt_train_assets *a, const char *name, const void *bytes, size_t size)
{
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->asset[i].name, name) == 0)
            return;
    TT_PUSH(a->asset, a->n, a->cap) = (struct tt_ckpt_asset){name, bytes, size};
}

/* The tokenizer may be NULL; it must outlive the assets. Not collective. Release even after an error. */
static int init_assets(const struct tt_setup *s, const struct tt_tokenizer *tokenizer,
                       struct tt_train_assets *ret_assets)
{
    const char *folder = s->cfg->model.hf_assets_path;
    struct tt_train_assets *a = ret_assets;
    bool is_folder = false;
    int rc = 0;

    *a = (struct tt_train_assets){.n = 0};
    a->model_config = tt_model_json_text(s->job.model);
    add_asset(a, "model.json", a->model_config, strlen(a->model_config));
    if (tokenizer) {
        const struct tt_tokenizer_info *files = tt_tokenizer_info(tokenizer);

        add_asset(a, "tokenizer.json", files->json, files->json_size);
        if (files->config)
            add_asset(a, "tokenizer_config.json", files->config, files->config_size);
    }
    if (!folder || s->comm->rank > 0)
        goto out;
    TT_TRY(tt_path_is_folder(folder, &is_folder));
    if (is_folder) /* config.json describes the model only if the model was made from it */
        TT_TRY(tt_hf_files_read(folder, strcmp(s->cfg->model.flavor, "hf") == 0, &a->file, &a->n_files));
    for (int i = 0; i < a->n_files; i++)
        add_asset(a, a->file[i].name, a->file[i].text, a->file[i].size);
out:
    return rc;
}

static void release_assets(struct tt_train_assets *a)
{
    tt_hf_files_free(a->file, a->n_files);
    tt_free(a->asset);
    tt_free(a->model_config);
    *a = (struct tt_train_assets){.n = 0};
}

/* --- checkpoint.last_save_in_hf: a copy of the last step in Hugging Face's format --- */

struct export
{
    const struct tt_saver *saver;
    int64_t step;
    char *folder;              /* step-N/hf */
    struct tt_copied exported; /* no files are needed: the step was already exported */
};

static int export_step(void *arg)
{
    struct export *e = arg;
    char *step = tt_step_path(e->saver->store->folder, e->step), *folder = e->folder = tt_format("%s/hf", step);
    struct tt_copy what = {.source = step,
                           .destination = folder,
                           .format = TT_FORMAT_HF,
                           .has_dtype = true,
                           .dtype = tt_job_export_dtype(e->saver->setup->cfg)};
    bool exists = false;
    int rc = 0;

    TT_TRY(tt_path_exists(folder, &exists)); /* an existing export is complete, since only a rename publishes it */
    if (exists)
        goto out;
    TT_TRY(tt_ckpt_copy(&what, &e->exported));
out:
    tt_free(step);
    return rc;
}

/* Exports a saved step as a Hugging Face folder, step-N/hf. Rank 0 streams the weights from the committed step and
 * publishes the folder by a rename; the others wait. An existing export is kept. Collective. */
static int export_hf(const struct tt_saver *saver, int64_t step)
{
    static const char what[] = "writing Hugging Face weights";
    struct tt_comm *comm = saver->setup->comm;
    struct tt_patience patience = tt_patience_begin(comm, what);
    struct export e = {.saver = saver, .step = step};
    char size[32];
    int rc = tt_patience_work(comm, comm->rank == 0, export_step, &e);

    tt_patience_end(comm, &patience);
    if (rc == 0 && e.exported.files)
        tt_note("Hugging Face weights %s: %s in %d file%s", e.folder,
                tt_text_bytes(size, sizeof size, (double)e.exported.bytes), e.exported.files,
                e.exported.files == 1 ? "" : "s");
    tt_free(e.folder);
    if (rc < 0) {
        rc = tt_fail(rc, "step %" PRId64 " is saved, but not its Hugging Face weights: %s", step, tt_error_message());
        rc = tt_error_add_hint(rc, "start the run again: it writes the missing weights and trains nothing");
    }
    return rc;
}

/* --- the run's part of a manifest --- */

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
                     tt_config_value_json(cfg, tt_config_row(TT_KEY(training.dataset))), "seq_len",
                     (json_int_t)cfg->training.seq_len, "seed", (json_int_t)cfg->dataloader.seed, "shuffle",
                     cfg->dataloader.shuffle, "digest", json_sprintf("%016" PRIx64, tt_train_data_digest(data)),
                     "tokenizer", json_sprintf("%016" PRIx64, first->tokenizer_hash), "unicode",
                     *first->unicode ? first->unicode : NULL, "masked", first->mask_at ? json_true() : NULL, "parts",
                     parts, "long_conversations", tt_datasets_longs(cfg, data), "split",
                     cfg->validation.split > 0.0 ? json_real(cfg->validation.split) : NULL);
}

static json_t *describe(const struct tt_saver *saver, const struct tt_train_progress *at)
{
    const struct tt_setup *s = saver->setup;
    json_t *meta = tt_train_progress_json(at), *mesh = json_object(), *list = NULL;
    int64_t n, *loads = tt_engine_loads(s->engine, &n);

    if (s->cfg->training.global_batch_balance_loss > 0.0) /* the next step needs the loads of experts in this step */
        list = json_array();
    for (int64_t i = 0; list && i < n; i++)
        (void)json_array_append_new(list, json_integer(loads[i]));
    for (int d = 0; d < TT_MESH_DEGREES; d++)
        (void)json_object_set_new(mesh, tt_mesh_dim_name((enum tt_mesh_dim)d), json_integer(s->job.mesh.size[d]));
    (void)json_object_update_new(meta, json_pack("{s:o*, s:O*, s:s++, s:o, s:o, s:O*, s:o, s:o}", "expert_loads", list,
                                                 "base", saver->base, "model", s->job.model->row->name, "/",
                                                 s->job.model->flavor, "mesh", mesh, "data",
                                                 data_json(s->cfg, saver->data), "line", saver->line, "kernels",
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
    TT_TRY(tt_comm_agree(s->comm, init_assets(s, saver->data->tokenizer, &saver->assets)));
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
    release_assets(&saver->assets);
    tt_job_tensors_release(&saver->tensors);
    json_decref(saver->line);
    json_decref(saver->base);
    *saver = (struct tt_saver){.saved_step = -1};
}

/* --- one save --- */

static void note_saved(struct tt_saver *saver, const struct tt_ckpt_saved *saved, bool async)
{
    saver->saved_step = saved->step;
    tt_reporter_saved(saver->reporter, saved, async);
}

/*
 * If a save fails for lack of space or memory, or because of a broken disk, the older checkpoints are unchanged, so
 * training warns and continues. It ends instead if this was the last save, without which the run would be lost, or if
 * the state is not finite.
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
        tt_note("checkpoint step-%" PRId64 " is due while step-%" PRId64 " is still being written: waiting for it",
                at->step, saver->saving_step);
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
        rc = export_hf(saver, at->step);
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
        rc = export_hf(saver, step);
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

/*
 * --- space on the disk ---
 *
 * The user should know before training, not after hours of it, whether the checkpoints fit.
 */

/* Bytes of a save of these tensors; the last save may contain only the model. */
static int64_t room_of(const struct tt_setup *s, struct tt_ckpt_state *state, const struct tt_train_assets *assets,
                       bool model_only, const struct tt_ckpt_policy *policy)
{
    if (model_only)
        state->n_optim = 0;
    for (int i = 0; i < state->n_model && model_only; i++)
        state->model[i].dtype = tt_job_export_dtype(s->cfg);
    return tt_ckpt_save_room(state, &s->job.mesh, policy, assets->asset, assets->n);
}

/* The checkpoints that a run saves from step `at` on, in a folder without checkpoints. */
static int find_demand(const struct tt_setup *s, const struct tt_train_data *data, const struct tt_train_assets *assets,
                       const struct tt_train_progress *at, struct tt_ckpt_demand *ret_demand)
{
    const struct tt_config *cfg = s->cfg;
    const struct tt_ckpt_policy *policy = NULL;
    struct tt_job_tensors tensors = {0};
    struct tt_ckpt_state state;
    double weights = (double)tt_model_n_elements(s->job.model) * (double)tt_dtype_size(tt_job_export_dtype(cfg));
    int64_t interval = cfg->checkpoint.interval, last = tt_train_progress_last_step(at, s, data);
    bool saves_first = cfg->checkpoint.enable_first_step_checkpoint && at->step == 0 && interval > 1 && last > 1;
    struct tt_ckpt_demand d = {.exports = cfg->checkpoint.last_save_in_hf ? 1.01 * weights + 0x1p20 : 0.0};
    int rc = 0;

    if (last > at->step)
        d.saves = last / interval - at->step / interval + (last % interval != 0) + saves_first;
    tt_job_tensors_init(&s->job.engine, NULL, &tensors);
    state = tensors.state;
    TT_TRY(tt_job_policy(cfg, &policy));
    d.one = d.last = (double)room_of(s, &state, assets, false, policy);
    if (cfg->checkpoint.last_save_model_only)
        d.last = (double)room_of(s, &state, assets, true, policy);
    *ret_demand = d;
out:
    tt_job_tensors_release(&tensors);
    return rc;
}

static int look(const struct tt_setup *s, const struct tt_train_data *data, const struct tt_train_assets *assets,
                const struct tt_train_progress *at, bool overwrite, struct tt_saver_disk *disk)
{
    const struct tt_ckpt_demand *d = &disk->demand;
    char *path = tt_run_folder_checkpoints(s->cfg), *slash, need[32], have[32];
    bool exists = false;
    int64_t *steps = NULL, keep = 1;
    double least;
    int held = 0, rc = 0;

    disk->folder = tt_strdup(path);
    while (tt_path_exists(path, &exists) == 0 && !exists && (slash = strrchr(path, '/')) && slash > path)
        *slash = 0;
    disk->have = (double)tt_folder_free_bytes(exists ? path : disk->folder[0] == '/' ? "/" : ".");
    TT_TRY(find_demand(s, data, assets, at, &disk->demand));
    TT_TRY(tt_step_list(disk->folder, &steps, &held));
    disk->demand.held = overwrite ? 0 : held;
    disk->replaced = overwrite ? held : 0;
    disk->most = tt_ckpt_demand_bytes(d, s->cfg->checkpoint.keep_latest_k);
    least = tt_ckpt_demand_bytes(d, 1);
    if (disk->have < 0.0 || disk->replaced) /* free space is unknown, or a removal will make room */
        goto out;
    if (disk->have < least)
        rc = tt_fail(TT_EIO,
                     "not enough space for checkpoints in '%s': need %s for %s, have %s\n"
                     "help: free space there, choose a job.dump_folder on another disk, or train a smaller model",
                     disk->folder, tt_text_bytes(need, sizeof need, least),
                     d->held == 0 && d->saves > 1 ? "one and for the next, which is written while that one is kept"
                                                  : "one",
                     tt_text_bytes(have, sizeof have, disk->have));
    else if (disk->have < disk->most) {
        while (keep < d->held + d->saves && tt_ckpt_demand_bytes(d, keep + 1) <= disk->have)
            keep++;
        disk->fits = keep;
    }
out:
    tt_free(path);
    tt_free(steps);
    return rc;
}

int tt_saver_look_at_disk(const struct tt_setup *s, const struct tt_train_data *data,
                          const struct tt_train_progress *at, bool overwrite, struct tt_saver_disk *ret_disk)
{
    struct tt_train_assets assets = {.n = 0};
    int rc = 0;

    *ret_disk = (struct tt_saver_disk){.folder = NULL};
    if (!s->cfg->checkpoint.enable || s->cfg->checkpoint.load_only)
        return 0;
    TT_TRY(init_assets(s, data->tokenizer, &assets));
    rc = look(s, data, &assets, at, overwrite, ret_disk);
out:
    release_assets(&assets);
    return rc;
}

void tt_saver_disk_release(struct tt_saver_disk *disk)
{
    tt_free(disk->folder);
    *disk = (struct tt_saver_disk){.folder = NULL};
}

struct looking {
    const struct tt_saver *saver;
    const struct tt_train_progress *at;
    struct tt_saver_disk disk;
};

static int look_from_run(void *arg)
{
    struct looking *l = arg;

    return look(l->saver->setup, l->saver->data, &l->saver->assets, l->at, false, &l->disk);
}
void tt_saver_warn_of_space(const struct tt_config *cfg, const struct tt_saver_disk *disk)
{
    char need_text[32], have_text[32];

    if (disk->fits)
        tt_warn("not enough space in '%s' for all checkpoints that checkpoint.keep_latest_k=%" PRId64
                " keeps: need %s, have %s; saves that do not fit will fail\n"
                "help: free space there, or set checkpoint.keep_latest_k=%" PRId64,
                disk->folder, cfg->checkpoint.keep_latest_k, tt_text_bytes(need_text, sizeof need_text, disk->most),
                tt_text_bytes(have_text, sizeof have_text, disk->have), disk->fits);
}

int tt_saver_check_space(const struct tt_saver *saver, const struct tt_train_progress *at)
{
    struct tt_comm *comm = saver->setup->comm;
    struct looking l = {.saver = saver, .at = at};
    struct tt_patience patience;
    int rc;

    if (!saver->store)
        return 0;
    patience = tt_patience_begin(comm, "look at the free space for checkpoints");
    rc = tt_patience_work(comm, comm->rank == 0, look_from_run, &l);
    tt_patience_end(comm, &patience);
    if (rc == 0)
        tt_saver_warn_of_space(saver->setup->cfg, &l.disk);
    tt_saver_disk_release(&l.disk);
    return rc;
}
