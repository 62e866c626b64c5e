/* SPDX-License-Identifier: MIT
 *
 * Whether the disk has room for the checkpoints that the run will save: better said before training than after hours of it.
 */
#include <inttypes.h>
#include <string.h>

#include "checkpoint/load/patience.h"
#include "checkpoint/save/demand.h"
#include "checkpoint/save/save.h"
#include "checkpoint/steps/steps.h"
#include "cli/train/trainer.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

/* Saves from here to the last step. */
static int64_t saves_to_come(const struct tt_trainer *t, int64_t last)
{
    int64_t at = t->at.step, interval = t->cfg->checkpoint.interval;
    int64_t saves = last / interval - at / interval + (last % interval != 0);

    if (last <= at)
        return 0;
    return saves + (t->cfg->checkpoint.enable_first_step_checkpoint && at == 0 && interval > 1 && last > 1);
}

/* Bytes of the last save, which may be of the model only. */
static int64_t last_room(const struct tt_trainer *t, const struct tt_ckpt_policy *policy)
{
    struct tt_ckpt_state state = t->view.state;
    int64_t room;

    state.n_optim = 0;
    state.model = tt_calloc((size_t)state.n_model, sizeof *state.model);
    memcpy(state.model, t->view.state.model, (size_t)state.n_model * sizeof *state.model);
    for (int i = 0; i < state.n_model; i++)
        state.model[i].dtype = tt_job_export_dtype(t->cfg);
    room = tt_ckpt_save_room(&state, &t->view.layout, policy, t->assets.asset, t->assets.n);
    tt_free(state.model);
    return room;
}

static int find_demand(const struct tt_trainer *t, struct tt_ckpt_demand *ret_demand)
{
    const struct tt_config *cfg = t->cfg;
    const struct tt_ckpt_policy *policy = NULL;
    int64_t *steps = NULL;
    double weights = (double)tt_model_n_elements(t->model) * (double)tt_dtype_size(tt_job_export_dtype(cfg));
    struct tt_ckpt_demand d = {.saves = saves_to_come(t, tt_trainer_last_step(t)),
                               .exports = cfg->checkpoint.last_save_in_hf ? 1.01 * weights + 0x1p20 : 0.0};
    int n = 0, rc = 0;

    TT_TRY(tt_job_policy(cfg, &policy));
    TT_TRY(tt_step_list(t->store->folder, &steps, &n));
    d.held = n;
    d.one = d.last = (double)tt_ckpt_save_room(&t->view.state, &t->view.layout, policy, t->assets.asset, t->assets.n);
    if (cfg->checkpoint.last_save_model_only)
        d.last = (double)last_room(t, policy);
    *ret_demand = d;
out:
    tt_free(steps);
    return rc;
}

/* The largest keep_latest_k that there is room for; there is for 1. */
static int64_t most_to_keep(const struct tt_ckpt_demand *d, double have)
{
    int64_t keep = 1;

    while (keep < d->held + d->saves && tt_ckpt_demand_bytes(d, keep + 1) <= have)
        keep++;
    return keep;
}

static int check(void *arg)
{
    const struct tt_trainer *t = arg;
    const char *folder = t->store->folder;
    int64_t free_bytes = tt_folder_free_bytes(folder), keep = t->cfg->checkpoint.keep_latest_k;
    double have = (double)free_bytes, least, most;
    struct tt_ckpt_demand d = {0};
    char need_text[32], have_text[32];
    int rc = 0;

    if (free_bytes < 0) /* not known */
        return 0;
    TT_TRY(find_demand(t, &d));
    least = tt_ckpt_demand_bytes(&d, 1);
    most = tt_ckpt_demand_bytes(&d, keep);
    tt_text_bytes(have_text, sizeof have_text, have);
    if (have < least)
        rc = tt_fail(TT_EIO,
                     "not enough space for checkpoints in '%s': need %s for %s, have %s\n"
                     "help: free space there, choose a job.dump_folder on another disk, or train a smaller model",
                     folder, tt_text_bytes(need_text, sizeof need_text, least),
                     d.held == 0 && d.saves > 1 ? "one and for the next, which is written while that one is kept"
                                                : "one",
                     have_text);
    else if (have < most)
        tt_warn("not enough space in '%s' for all checkpoints that checkpoint.keep_latest_k=%" PRId64
                " keeps: need %s, have %s; saves that do not fit will fail\n"
                "help: free space there, or set checkpoint.keep_latest_k=%" PRId64,
                folder, keep, tt_text_bytes(need_text, sizeof need_text, most), have_text, most_to_keep(&d, have));
out:
    return rc;
}

int tt_trainer_check_space(struct tt_trainer *t)
{
    struct tt_patience patience;
    int rc;

    if (!t->store)
        return 0;
    patience = tt_patience_begin(t->comm, "look at the free space for checkpoints");
    rc = tt_patience_work(t->comm, t->comm->rank == 0, check, t);
    tt_patience_end(t->comm, &patience);
    return rc;
}
