/* SPDX-License-Identifier: MIT
 *
 * Retention: which older steps are removed after a new one is saved.
 */
#include "checkpoint/steps/retain.h"

#include <inttypes.h>

#include "checkpoint/steps/commit.h"
#include "checkpoint/steps/steps.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"

struct retention {
    struct tt_ckpt_store *store;
    int64_t just_saved;
    int keep;
};

static int remove_step(const struct tt_ckpt_store *store, int64_t step)
{
    char *name = tt_format("step-%" PRId64, step), *aside = tt_ckpt_store_aside(store, "trash", step);
    int rc = tt_commit_remove(store->folder, name, aside, store->comm->rank);

    tt_free(name);
    tt_free(aside);
    return rc;
}

static int remove_older(const struct retention *r)
{
    int64_t *steps = NULL;
    int n = 0, kept = 1, rc = 0;

    TT_TRY(tt_step_list(r->store->folder, &steps, &n));
    tt_known_keep(&r->store->known, steps, n);
    for (int i = n - 1; i >= 0; i--) {
        bool good = steps[i] < r->just_saved && tt_known_check(&r->store->known, r->store->folder, steps[i]) == 0;

        if (good && ++kept > r->keep)
            TT_TRY(remove_step(r->store, steps[i]));
    }
out:
    tt_free(steps);
    return rc;
}

/* The work of the writer's thread; frees arg. */
static int retire(void *arg)
{
    struct retention *r = arg;

    if (remove_older(r) < 0)
        tt_warn("old checkpoints could not be removed: %s", tt_error_message());
    tt_free(r);
    return 0;
}

void tt_ckpt_retain(struct tt_ckpt_store *store, int64_t just_saved, int keep, struct tt_ckpt_writer *writer)
{
    struct retention *r;

    if (keep <= 0)
        return;
    r = tt_calloc(1, sizeof *r);
    *r = (struct retention){store, just_saved, keep};
    store->retiring = writer;
    if (writer)
        tt_ckpt_writer_start(writer, retire, r);
    else
        (void)retire(r);
}

int tt_ckpt_retain_wait(struct tt_ckpt_store *store)
{
    struct tt_ckpt_writer *writer = store->retiring;

    store->retiring = NULL;
    return writer ? tt_ckpt_writer_wait(writer) : 0;
}
