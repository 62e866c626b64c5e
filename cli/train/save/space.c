/* SPDX-License-Identifier: MIT
 *
 * Whether the disk has space for the checkpoints that the run will save. It is better to know before training than
 * after hours of it.
 */
#include <inttypes.h>
#include <string.h>

#include "checkpoint/load/patience.h"
#include "checkpoint/save/demand.h"
#include "checkpoint/save/save.h"
#include "checkpoint/steps/steps.h"
#include "cli/train/save/saver.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

/* Saves from here to the last step. */
static int64_t saves_to_come(const struct tt_config *cfg, int64_t at, int64_t last)
{
    int64_t interval = cfg->checkpoint.interval;
    int64_t saves = last / interval - at / interval + (last % interval != 0);

    if (last <= at)
        return 0;
    return saves + (cfg->checkpoint.enable_first_step_checkpoint && at == 0 && interval > 1 && last > 1);
}

/* Bytes of the last save, which may be of the model only. */
static int64_t last_room(const struct tt_saver *saver, const struct tt_ckpt_policy *policy)
{
    struct tt_ckpt_state state = saver->view.tensors.state;
    int64_t room;

    state.n_optim = 0;
    state.model = tt_calloc((size_t)state.n_model, sizeof *state.model);
    memcpy(state.model, saver->view.tensors.state.model, (size_t)state.n_model * sizeof *state.model);
    for (int i = 0; i < state.n_model; i++)
        state.model[i].dtype = tt_job_export_dtype(saver->setup->cfg);
    room = tt_ckpt_save_room(&state, &saver->setup->job.mesh, policy, saver->assets.asset, saver->assets.n);
    tt_free(state.model);
    return room;
}

static int find_demand(const struct tt_saver *saver, const struct tt_train_progress *at,
                       struct tt_ckpt_demand *ret_demand)
{
    const struct tt_setup *s = saver->setup;
    const struct tt_config *cfg = s->cfg;
    const struct tt_ckpt_policy *policy = NULL;
    int64_t *steps = NULL;
    double weights = (double)tt_model_n_elements(s->job.model) * (double)tt_dtype_size(tt_job_export_dtype(cfg));
    struct tt_ckpt_demand d = {.saves = saves_to_come(cfg, at->step, tt_train_progress_last_step(at, s, saver->data)),
                               .exports = cfg->checkpoint.last_save_in_hf ? 1.01 * weights + 0x1p20 : 0.0};
    int n = 0, rc = 0;

    TT_TRY(tt_job_policy(cfg, &policy));
    TT_TRY(tt_step_list(saver->store->folder, &steps, &n));
    d.held = n;
    d.one = d.last = (double)tt_ckpt_save_room(&saver->view.tensors.state, &s->job.mesh, policy, saver->assets.asset,
                                               saver->assets.n);
    if (cfg->checkpoint.last_save_model_only)
        d.last = (double)last_room(saver, policy);
    *ret_demand = d;
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

struct look {
    const struct tt_saver *saver;
    const struct tt_train_progress *at;
    double have, most; /* bytes: free, and needed for all checkpoints that are kept */
    int64_t fits;      /* how many can be kept; 0: as many as keep_latest_k says */
};

static int look_at_space(void *arg)
{
    struct look *look = arg;
    const struct tt_saver *saver = look->saver;
    const char *folder = saver->store->folder;
    int64_t free_bytes = tt_folder_free_bytes(folder);
    struct tt_ckpt_demand d = {0};
    char need_text[32], have_text[32];
    double least;
    int rc = 0;

    if (free_bytes < 0) /* not known */
        return 0;
    TT_TRY(find_demand(saver, look->at, &d));
    least = tt_ckpt_demand_bytes(&d, 1);
    look->have = (double)free_bytes;
    look->most = tt_ckpt_demand_bytes(&d, saver->setup->cfg->checkpoint.keep_latest_k);
    if (look->have < least)
        rc = tt_fail(TT_EIO,
                     "not enough space for checkpoints in '%s': need %s for %s, have %s\n"
                     "help: free space there, choose a job.dump_folder on another disk, or train a smaller model",
                     folder, tt_text_bytes(need_text, sizeof need_text, least),
                     d.held == 0 && d.saves > 1 ? "one and for the next, which is written while that one is kept"
                                                : "one",
                     tt_text_bytes(have_text, sizeof have_text, look->have));
    else if (look->have < look->most)
        look->fits = most_to_keep(&d, look->have);
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
    if (rc == 0 && look.fits)
        tt_reporter_space_is_scarce(saver->reporter, saver->store->folder, look.most, look.have, look.fits);
    return rc;
}
