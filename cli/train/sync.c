/* SPDX-License-Identifier: MIT
 *
 * gradient_sync: what `auto` means. A resumed run keeps the choice with which it began.
 */
#include <string.h>

#include "checkpoint/load/load.h"
#include "cli/run/folder.h"
#include "cli/train/setup.h"
#include "cli/train/start/start.h"
#include "core/base/mem.h"

const char *tt_setup_sync_word(enum tt_sync_choice sync)
{
    return tt_config_choice_word(tt_config_row_find("training.gradient_sync")->choices, (int)sync);
}

const char *tt_setup_recorded_sync(const json_t *meta)
{
    return json_string_value(
        json_object_get(json_object_get(json_object_get(meta, "config"), "training"), "gradient_sync"));
}

int tt_setup_first_sync(const struct tt_setup *setup, bool starts_over, enum tt_sync_choice *ret_sync)
{
    const struct tt_config *cfg = setup->cfg;
    char *folder = tt_run_folder_checkpoints(cfg);
    struct tt_ckpt_found found = {.step = -1};
    struct tt_ckpt_request request;
    const char *word = NULL;
    int rc = 0;

    *ret_sync = cfg->training.gradient_sync;
    if (*ret_sync != TT_SYNC_AUTO)
        goto out;
    if (cfg->checkpoint.enable && !starts_over) {
        TT_TRY(tt_start_request(cfg, &request));
        TT_TRY(tt_ckpt_peek(setup->comm, folder, &request, &found));
        word = tt_setup_recorded_sync(found.meta);
    }
    if (!word)
        *ret_sync =
            cfg->parallelism.reduction_order == TT_ORDER_FAST ? TT_SYNC_LAST_MICROBATCH : TT_SYNC_EVERY_MICROBATCH;
    else
        *ret_sync = strcmp(word, tt_setup_sync_word(TT_SYNC_LAST_MICROBATCH)) == 0 ? TT_SYNC_LAST_MICROBATCH
                                                                                   : TT_SYNC_EVERY_MICROBATCH;
out:
    tt_ckpt_found_release(&found);
    tt_free(folder);
    return rc;
}
