/* SPDX-License-Identifier: MIT
 *
 * Whether the disk has space for the checkpoints that the run will save. It is better to know before training than
 * after hours of it.
 */
#include <inttypes.h>

#include "checkpoint/load/patience.h"
#include "checkpoint/save/save.h"
#include "checkpoint/steps/steps.h"
#include "cli/train/save/saver.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "trainer/job/tensors.h"

/* Saves from here to the last step. */
static int64_t saves_to_come(const struct tt_config *cfg, int64_t at, int64_t last)
{
    int64_t interval = cfg->checkpoint.interval;
    int64_t saves = last / interval - at / interval + (last % interval != 0);

    if (last <= at)
        return 0;
    return saves + (cfg->checkpoint.enable_first_step_checkpoint && at == 0 && interval > 1 && last > 1);
}

/* Bytes of a save of these tensors, for the last one perhaps of the model only. */
static int64_t room_of(const struct tt_setup *s, struct tt_ckpt_state *state, const struct tt_train_assets *assets,
                       bool model_only, const struct tt_ckpt_policy *policy)
{
    if (model_only)
        state->n_optim = 0;
    for (int i = 0; i < state->n_model && model_only; i++)
        state->model[i].dtype = tt_job_export_dtype(s->cfg);
    return tt_ckpt_save_room(state, &s->job.mesh, policy, assets->asset, assets->n);
}

int tt_saver_demand(const struct tt_setup *s, const struct tt_train_data *data, const struct tt_train_assets *assets,
                    const struct tt_train_progress *at, struct tt_ckpt_demand *ret_demand)
{
    const struct tt_config *cfg = s->cfg;
    const struct tt_ckpt_policy *policy = NULL;
    struct tt_job_tensors tensors = {0};
    struct tt_ckpt_state state;
    double weights = (double)tt_model_n_elements(s->job.model) * (double)tt_dtype_size(tt_job_export_dtype(cfg));
    struct tt_ckpt_demand d = {.saves = saves_to_come(cfg, at->step, tt_train_progress_last_step(at, s, data)),
                               .exports = cfg->checkpoint.last_save_in_hf ? 1.01 * weights + 0x1p20 : 0.0};
    int rc = 0;

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

static int find_demand(const struct tt_saver *saver, const struct tt_train_progress *at,
                       struct tt_ckpt_demand *ret_demand)
{
    int64_t *steps = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_saver_demand(saver->setup, saver->data, &saver->assets, at, ret_demand));
    TT_TRY(tt_step_list(saver->store->folder, &steps, &n));
    ret_demand->held = n;
out:
    tt_free(steps);
    return rc;
}

/* The largest keep_latest_k for which there is space; there is space for 1. */
static int64_t most_to_keep(const struct tt_ckpt_demand *d, double have)
{
    int64_t keep = 1;

    while (keep < d->held + d->saves && tt_ckpt_demand_bytes(d, keep + 1) <= have)
        keep++;
    return keep;
}

int tt_saver_compare_space(const char *folder, const struct tt_ckpt_demand *d, int64_t keep, double have,
                           struct tt_saver_space *ret_space)
{
    struct tt_saver_space space = {.have = have, .most = tt_ckpt_demand_bytes(d, keep)};
    double least = tt_ckpt_demand_bytes(d, 1);
    char need_text[32], have_text[32];

    if (have < least)
        return tt_fail(TT_EIO,
                       "not enough space for checkpoints in '%s': need %s for %s, have %s\n"
                       "help: free space there, choose a job.dump_folder on another disk, or train a smaller model",
                       folder, tt_text_bytes(need_text, sizeof need_text, least),
                       d->held == 0 && d->saves > 1 ? "one and for the next, which is written while that one is kept"
                                                    : "one",
                       tt_text_bytes(have_text, sizeof have_text, have));
    if (have < space.most)
        space.fits = most_to_keep(d, have);
    *ret_space = space;
    return 0;
}

struct look {
    const struct tt_saver *saver;
    const struct tt_train_progress *at;
    struct tt_saver_space space;
};

static int look_at_space(void *arg)
{
    struct look *look = arg;
    const struct tt_saver *saver = look->saver;
    const char *folder = saver->store->folder;
    int64_t free_bytes = tt_folder_free_bytes(folder);
    struct tt_ckpt_demand d = {0};
    int rc = 0;

    if (free_bytes < 0) /* not known */
        return 0;
    TT_TRY(find_demand(saver, look->at, &d));
    rc = tt_saver_compare_space(folder, &d, saver->setup->cfg->checkpoint.keep_latest_k, (double)free_bytes,
                                &look->space);
out:
    return rc;
}

int tt_saver_check_space(const struct tt_saver *saver, const struct tt_train_progress *at)
{
    struct tt_comm *comm = saver->setup->comm;
    struct look look = {.saver = saver, .at = at};
    struct tt_patience patience;
    int rc;

    if (!saver->store)
        return 0;
    patience = tt_patience_begin(comm, "look at the free space for checkpoints");
    rc = tt_patience_work(comm, comm->rank == 0, look_at_space, &look);
    tt_patience_end(comm, &patience);
    if (rc == 0 && look.space.fits)
        tt_reporter_space_is_scarce(saver->reporter, saver->store->folder, &look.space);
    return rc;
}
