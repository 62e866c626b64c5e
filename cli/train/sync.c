/* SPDX-License-Identifier: MIT
 *
 * gradient_sync: what `auto` means here, and that a resumed run goes on as it began.
 */
#include <string.h>

#include "checkpoint/load/load.h"
#include "cli/run/folder.h"
#include "cli/train/trainer.h"
#include "core/base/log.h"
#include "core/base/mem.h"

static const char *word_of(enum tt_sync_choice sync)
{
    return sync == TT_SYNC_LAST_MICROBATCH ? "last_microbatch" : "every_microbatch";
}

/* What the run that wrote the manifest did; NULL if it does not say. */
static const char *recorded(const json_t *meta)
{
    return json_string_value(
        json_object_get(json_object_get(json_object_get(meta, "config"), "training"), "gradient_sync"));
}

int tt_trainer_sync_first_choice(const struct tt_trainer *t, enum tt_sync_choice *ret_sync)
{
    const struct tt_config *cfg = t->cfg;
    char *folder = tt_run_folder_checkpoints(cfg);
    struct tt_ckpt_found found = {.step = -1};
    struct tt_ckpt_request request;
    const char *word = NULL;
    int rc = 0;

    *ret_sync = cfg->training.gradient_sync;
    if (*ret_sync != TT_SYNC_AUTO)
        goto out;
    if (cfg->checkpoint.enable && !t->options.overwrite) {
        TT_TRY(tt_trainer_request(t, &request));
        TT_TRY(tt_ckpt_peek(t->comm, folder, &request, &found));
        word = recorded(found.meta);
    }
    if (!word)
        *ret_sync =
            cfg->parallelism.reduction_order == TT_ORDER_FAST ? TT_SYNC_LAST_MICROBATCH : TT_SYNC_EVERY_MICROBATCH;
    else
        *ret_sync =
            strcmp(word, word_of(TT_SYNC_LAST_MICROBATCH)) == 0 ? TT_SYNC_LAST_MICROBATCH : TT_SYNC_EVERY_MICROBATCH;
out:
    tt_ckpt_found_release(&found);
    tt_free(folder);
    return rc;
}

void tt_trainer_sync_note_change(const struct tt_trainer *t, const json_t *meta)
{
    const char *before = recorded(meta), *now = word_of(t->cfg->training.gradient_sync);

    if (t->comm->rank == 0 && before && strcmp(before, now) != 0)
        tt_note("the checkpoint was trained with gradient_sync %s, this run goes on with %s: losses differ in rounding",
                before, now);
}
