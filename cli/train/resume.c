/* SPDX-License-Identifier: MIT
 *
 * Going on with a run: which step, whether it is one of this run as it is configured now, and what of it counts.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/load/load.h"
#include "checkpoint/steps/line.h"
#include "checkpoint/steps/steps.h"
#include "cli/run/folder.h"
#include "cli/train/trainer.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/os/file.h"

int tt_trainer_skip_flags(const struct tt_trainer *t, unsigned *ret_skip)
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

int tt_trainer_request(const struct tt_trainer *t, struct tt_ckpt_request *ret_request)
{
    *ret_request = (struct tt_ckpt_request){.line.load_step = t->cfg->checkpoint.load_step,
                                            .reading = tt_job_reading(t->cfg),
                                            .as_asked = t->cfg->checkpoint.load_only};
    return tt_trainer_skip_flags(t, &ret_request->line.skip);
}

/* Steps that were set aside, or that a killed save had put aside, count: what is to become of them is decided with the lock
 * held, not by beginning again. */
int tt_trainer_can_resume(const struct tt_trainer *t, bool *ret_can)
{
    char *folder = tt_run_folder_checkpoints(t->cfg), **names = NULL;
    int n = 0, rc = 0;

    *ret_can = false;
    if (t->cfg->checkpoint.enable)
        TT_TRY(tt_folder_list_found(folder, &names, &n));
    for (int i = 0; i < n; i++)
        *ret_can = *ret_can || tt_step_number_aside(names[i]) >= 0 || strncmp(names[i], ".old-step-", 10) == 0;
out:
    tt_names_free(names, n);
    tt_free(folder);
    return rc;
}

/* The same samples in another order would be read twice, or never. An older titan does not say which order it was. */
static int check_order(const struct tt_trainer *t, const json_t *data)
{
    const json_t *seed = json_object_get(data, "seed"), *shuffle = json_object_get(data, "shuffle");

    if (json_is_integer(seed) && json_is_true(shuffle) && t->cfg->dataloader.shuffle &&
        (int64_t)json_integer_value(seed) != t->cfg->dataloader.seed)
        return tt_fail(TT_EDATA,
                       "the checkpoint was trained with dataloader.seed %" PRId64 ", this run has %" PRId64
                       ": the position in the data would mean other samples\nhelp: to start the data over, "
                       "--checkpoint.exclude_from_loading=dataloader",
                       (int64_t)json_integer_value(seed), t->cfg->dataloader.seed);
    if (json_is_boolean(shuffle) && json_is_true(shuffle) != t->cfg->dataloader.shuffle)
        return tt_fail(
            TT_EDATA,
            "the checkpoint was trained with dataloader.shuffle %s, this run has %s: the position in the data "
            "would mean other samples\nhelp: to start the data over, "
            "--checkpoint.exclude_from_loading=dataloader",
            json_is_true(shuffle) ? "true" : "false", t->cfg->dataloader.shuffle ? "true" : "false");
    return 0;
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
    return check_order(t, data);
}

int tt_trainer_restore_progress(struct tt_trainer *t, const json_t *meta, unsigned skip)
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

/* Sequences of a step when the checkpoint was saved; 0 if it does not say. */
static int64_t batch_of(const json_t *meta)
{
    const json_t *training = json_object_get(json_object_get(meta, "config"), "training");
    const json_t *mesh = json_object_get(meta, "mesh");
    int64_t global = (int64_t)json_integer_value(json_object_get(training, "global_batch_size"));
    int64_t local = (int64_t)json_integer_value(json_object_get(training, "local_batch_size"));

    return global > 0 ? global
                      : local * (int64_t)json_integer_value(json_object_get(mesh, "dp_replicate")) *
                            (int64_t)json_integer_value(json_object_get(mesh, "dp_shard"));
}

/* Whether a step that was found is one of this run as it is configured now (tt_ckpt_request). The last step of a run may hold
 * the weights alone: where nothing is left to train, they are enough. */
static int accept(void *arg, const struct tt_manifest *manifest, unsigned *skip)
{
    const struct tt_trainer *t = arg;
    int64_t step = (int64_t)json_integer_value(json_object_get(manifest->meta, "step"));

    if (step >= t->cfg->training.steps && !(*skip & TT_SKIP_TRAIN_STATE) &&
        tt_manifest_group_size(manifest, TT_CKPT_OPTIM, NULL) == 0)
        *skip |= TT_SKIP_OPTIMIZER;
    return tt_trainer_check_model(t, manifest->meta);
}

/* What the newest step was passed over for, and how to ask again. */
static void note_applied(const struct tt_trainer *t, const struct tt_ckpt_found *found)
{
    if (t->comm->rank == 0)
        tt_note(
            "checkpoint.load_step and exclude_from_loading were applied when this line of steps began; it goes on from "
            "step-%" PRId64 " (titan ckpt rollback %s STEP goes back again)",
            found->step, t->cfg->job.dump_folder);
}

/* The line that the steps of this process will belong to; rank 0 sets aside what is not of it. */
static int settle_line(struct tt_trainer *t, const struct tt_ckpt_request *request, const struct tt_ckpt_found *found)
{
    bool asks = request->line.load_step >= 0 || request->line.skip;
    struct tt_line_start start = {.step = found->step,
                                  .begins = asks && !found->applied,
                                  .restarts = (request->line.skip & TT_SKIP_TRAIN_STATE) && !found->applied,
                                  .damaged = found->damaged,
                                  .n_damaged = found->n_damaged};
    int rc = 0;

    t->line = start.begins ? tt_line_new(t->run_id, found->meta, &request->line) : tt_line_of(found->meta);
    if (!t->store || t->at.step >= t->cfg->training.steps)
        goto out; /* nothing will be saved */
    rc = t->comm->rank == 0 ? tt_line_start(t->store, &start) : 0;
    TT_TRY(tt_comm_agree(t->comm, rc));
out:
    return rc;
}

int tt_trainer_resume(struct tt_trainer *t, const char *folder, bool *ret_resumed)
{
    const struct tt_trainer_view *v = &t->view;
    struct tt_ckpt_request request;
    struct tt_ckpt_found found = {.step = -1};
    int rc = 0;

    TT_TRY(tt_trainer_request(t, &request));
    request.accept = accept;
    request.arg = t;
    TT_TRY(tt_ckpt_resume(t->comm, &v->layout, folder, &request, &v->state, &found));
    *ret_resumed = found.step >= 0;
    if (found.step < 0) {
        t->line = tt_line_new(t->run_id, NULL, &request.line);
        goto out;
    }
    TT_TRY(tt_comm_agree(t->comm, tt_trainer_restore_progress(t, found.meta, found.skip)));
    TT_TRY(settle_line(t, &request, &found));
    if (found.applied)
        note_applied(t, &found);
    tt_trainer_sync_note_change(t, found.meta);
    t->resumed_from = found.step;
    t->changed = tt_trainer_changed_keys(t, json_object_get(found.meta, "config"));
    t->batch_before = batch_of(found.meta);
    (void)snprintf(t->weights_from, sizeof t->weights_from, "step-%" PRId64 " of %s", found.step, folder);
out:
    tt_ckpt_found_release(&found);
    return rc;
}
