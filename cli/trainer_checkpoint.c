/* SPDX-License-Identifier: MIT
 *
 * What the trainer puts into a checkpoint and takes out of it: the shards of the engine, and where the run stands.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/hf_load.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/steps.h"
#include "cli/run_folder.h"
#include "cli/trainer.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/models/model_json.h"

/* --- the state as the checkpoint sees it --- */

struct view {
    struct tt_ckpt_state state;
    struct tt_ckpt_layout layout;
    char **names; /* of optimizer tensors */
};

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

static struct view view_of(struct tt_trainer *t, bool with_optimizer)
{
    const struct tt_layout *layout = tt_engine_layout(t->engine);
    struct tt_state *state = tt_engine_state(t->engine);
    int n = t->model->n_params;
    struct view v = {
        .layout = {layout->shard_degree, layout->replicate_degree, layout->shard_index, layout->replicate_index}};

    v.state.n_model = n;
    v.state.model = tt_calloc((size_t)n, sizeof *v.state.model);
    v.state.n_optim = with_optimizer ? 2 * n : 0;
    v.state.optim = tt_calloc(2 * (size_t)n, sizeof *v.state.optim);
    v.names = tt_calloc(2 * (size_t)n, sizeof(char *));
    for (int p = 0; p < n; p++) {
        const struct tt_param *param = &t->model->params[p];

        v.names[2 * (size_t)p] = tt_format("state.%s.exp_avg", param->name);
        v.names[2 * (size_t)p + 1] = tt_format("state.%s.exp_avg_sq", param->name);
        v.state.model[p] = chunk_of(t->engine, param, p, param->name, state->param);
        v.state.optim[2 * (size_t)p] = chunk_of(t->engine, param, p, v.names[2 * (size_t)p], state->exp_avg);
        v.state.optim[2 * (size_t)p + 1] = chunk_of(t->engine, param, p, v.names[2 * (size_t)p + 1], state->exp_avg_sq);
    }
    return v;
}

static void view_release(struct tt_trainer *t, struct view *v)
{
    for (int i = 0; i < 2 * t->model->n_params; i++)
        tt_free(v->names[i]);
    tt_free(v->names);
    tt_free(v->state.model);
    tt_free(v->state.optim);
}

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
    (void)json_object_set_new(meta, "config", tt_config_to_json(t->cfg, false));
    return meta;
}

/* --- saving --- */

int tt_trainer_save(struct tt_trainer *t, bool last)
{
    bool model_only = last && t->cfg->checkpoint.last_save_model_only;
    struct view v = view_of(t, !model_only);
    struct tt_ckpt_asset assets[3];
    char *model_config = tt_model_json_text(t->model);
    json_t *meta = describe(t);
    struct tt_ckpt_save save = {.state = &v.state,
                                .meta = meta,
                                .asset = assets,
                                .policy = "all",
                                .keep_latest_k = (int)t->cfg->checkpoint.keep_latest_k};
    struct tt_ckpt_saved saved = {0};
    int rc;

    assets[save.n_assets++] = (struct tt_ckpt_asset){"model.json", model_config, strlen(model_config)};
    if (t->data.tokenizer) {
        struct tt_tokenizer_files files = tt_tokenizer_files(t->data.tokenizer);

        assets[save.n_assets++] = (struct tt_ckpt_asset){"tokenizer.json", files.json, files.json_size};
        if (files.config)
            assets[save.n_assets++] = (struct tt_ckpt_asset){"tokenizer_config.json", files.config, files.config_size};
    }
    t->comm->waiting_for = "checkpoint";
    rc = tt_ckpt_save(t->store, &save, &saved);
    if (rc == 0 && t->comm->rank == 0) {
        char size[32];

        tt_metrics_checkpoint(&t->metrics, t->at.step, saved.seconds, saved.bytes, saved.files);
        tt_note("checkpoint step-%" PRId64 ": %s in %d files, %.2f s", t->at.step,
                tt_text_bytes(size, sizeof size, (double)saved.bytes), saved.files, saved.seconds);
    } else if (rc < 0) {
        rc = tt_wrap(rc, "checkpoint of step %" PRId64, t->at.step);
    }
    json_decref(meta);
    tt_free(model_config);
    view_release(t, &v);
    return rc;
}

/* --- loading --- */

static int skip_flags(const struct tt_trainer *t, unsigned *ret_skip)
{
    const struct tt_words *words = &t->cfg->checkpoint.exclude_from_loading;
    unsigned flag = 0;
    int rc = 0;

    *ret_skip = 0;
    for (int i = 0; i < words->n; i++) {
        TT_TRY(tt_ckpt_skip_flag(words->word[i], &flag));
        *ret_skip |= flag;
    }
out:
    return rc;
}

/* A run can only go on where it stopped if its samples are the same ones. */
static int check_data(const struct tt_trainer *t, const json_t *meta)
{
    const json_t *data = json_object_get(meta, "data");
    const char *digest = json_string_value(json_object_get(data, "digest"));
    int64_t seq_len = (int64_t)json_integer_value(json_object_get(data, "seq_len"));
    char now[32];

    (void)snprintf(now, sizeof now, "%016" PRIx64, t->data.dataset->ref.info.digest);
    if (seq_len != t->cfg->training.seq_len)
        return tt_fail(TT_EDATA,
                       "the checkpoint was trained with training.seq_len %" PRId64 ", this run has %" PRId64
                       ": the position in the data would mean other samples\nhelp: to start the data over, "
                       "--checkpoint.exclude_from_loading=dataloader",
                       seq_len, t->cfg->training.seq_len);
    if (!digest || strcmp(digest, now) != 0)
        return tt_fail(TT_EDATA,
                       "the checkpoint was trained on other data or with another tokenizer (token digest %s, now "
                       "%s)\nhelp: to start the data over, --checkpoint.exclude_from_loading=dataloader",
                       digest ? digest : "none", now);
    return 0;
}

static int restore_progress(struct tt_trainer *t, const json_t *meta, unsigned skip)
{
    static const char where[] = "manifest.json";
    struct tt_progress_state at = {0};
    int rc = 0;

    if (!(skip & TT_SKIP_DATALOADER)) {
        TT_TRY(check_data(t, meta));
        TT_TRY(tt_json_get_int(meta, "sample_cursor", where, &at.sample_cursor));
    }
    if (!(skip & TT_SKIP_TRAIN_STATE)) {
        TT_TRY(tt_json_get_int(meta, "step", where, &at.step));
        TT_TRY(tt_json_get_int(meta, "ntokens_seen", where, &at.ntokens_seen));
    }
    if (!(skip & TT_SKIP_OPTIMIZER))
        TT_TRY(tt_json_get_int(meta, "optimizer_step", where, &at.optimizer_step));
    if (!(skip & TT_SKIP_LR_SCHEDULER))
        TT_TRY(tt_json_get_int(meta, "lr_step", where, &at.lr_step));
    t->at = at;
out:
    return rc;
}

bool tt_trainer_can_resume(const struct tt_trainer *t)
{
    char *folder = tt_run_folder_checkpoints(t->cfg);
    int64_t *steps = NULL;
    int n = 0;
    bool any = t->cfg->checkpoint.enable && tt_step_list(folder, &steps, &n) == 0 && n > 0;

    tt_free(steps);
    tt_free(folder);
    return any;
}

/* The keys whose values differ from those that the checkpoint was made with: {"training.steps": [60, 90], …}. */
static json_t *changed_keys(const struct tt_trainer *t, const json_t *before)
{
    json_t *now = tt_config_to_json(t->cfg, false), *changed = json_object(), *section, *value;
    const char *section_name, *key;

    json_object_foreach(now, section_name, section)
    {
        json_object_foreach(section, key, value)
        {
            json_t *old = json_object_get(json_object_get(before, section_name), key);
            char path[256];

            if (json_equal(old, value))
                continue;
            (void)snprintf(path, sizeof path, "%s.%s", section_name, key);
            (void)json_object_set_new(changed, path, json_pack("[O?, O]", old, value));
        }
    }
    json_decref(now);
    return changed;
}

/* The run's own newest good step, if there is one. */
static int resume(struct tt_trainer *t, struct view *v, const char *folder, bool *ret_resumed)
{
    int64_t step = -1;
    json_t *meta = NULL;
    unsigned skip = 0;
    int rc = 0;

    TT_TRY(skip_flags(t, &skip));
    TT_TRY(tt_ckpt_resume(t->comm, &v->layout, folder, t->cfg->checkpoint.load_step, skip, &v->state, &step, &meta));
    *ret_resumed = step >= 0;
    if (step >= 0) {
        rc = restore_progress(t, meta, skip);
        TT_TRY(tt_comm_agree(t->comm, rc));
        tt_trainer_sync_note_change(t, meta);
        t->resumed_from = step;
        t->changed = changed_keys(t, json_object_get(meta, "config"));
        (void)snprintf(t->weights_from, sizeof t->weights_from, "step-%" PRId64 " of %s", step, folder);
    }
out:
    json_decref(meta);
    return rc;
}

static int load_initial(struct tt_trainer *t, struct view *v)
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
        TT_TRY(skip_flags(t, &skip));
        if (model_only)
            skip |= TT_SKIP_OPTIMIZER | TT_SKIP_LR_SCHEDULER | TT_SKIP_DATALOADER | TT_SKIP_TRAIN_STATE;
        TT_TRY(tt_ckpt_load(t->comm, &v->layout, path, skip, &v->state, &meta));
        if (meta && !model_only) {
            rc = restore_progress(t, meta, skip);
            TT_TRY(tt_comm_agree(t->comm, rc));
        }
    }
    (void)snprintf(t->weights_from, sizeof t->weights_from, "from %s", path);
out:
    json_decref(meta);
    return rc;
}

static int open_store(struct tt_trainer *t, const struct view *v, const char *folder)
{
    if (t->cfg->checkpoint.load_only)
        return 0;
    return tt_ckpt_store_open(t->comm, &v->layout, folder, t->run_id, &t->store);
}

int tt_trainer_load(struct tt_trainer *t)
{
    struct view v = view_of(t, true);
    char *folder = tt_run_folder_checkpoints(t->cfg);
    bool loaded = false;
    int rc = 0;

    if (t->cfg->checkpoint.enable) {
        TT_TRY(open_store(t, &v, folder));
        TT_TRY(resume(t, &v, folder, &loaded));
    }
    if (!loaded && (t->cfg->checkpoint.initial_load_path || t->cfg->checkpoint.initial_load_in_hf)) {
        TT_TRY(load_initial(t, &v));
        loaded = true;
    }
    if (!loaded) {
        rc = tt_engine_init_params(t->engine, (uint64_t)t->cfg->debug.seed);
        TT_TRY(tt_comm_agree(t->comm, rc));
        (void)snprintf(t->weights_from, sizeof t->weights_from, "random init (seed %" PRId64 ")", t->cfg->debug.seed);
    }
out:
    tt_free(folder);
    view_release(t, &v);
    return rc;
}
