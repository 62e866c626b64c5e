/* SPDX-License-Identifier: MIT
 *
 * Lines of steps: which steps of a folder belong to the current run.
 */
#include "checkpoint/steps/line.h"

#include <string.h>

#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/base/mem.h"

/* In the order of the bits of their flags. */
static const char *const skipped[] = {"optimizer", "lr_scheduler", "dataloader", "train_state"};

enum { N_SKIPPED = sizeof skipped / sizeof *skipped };

int tt_ckpt_skip_flag(const char *name, unsigned *ret_flag)
{
    for (int i = 0; i < N_SKIPPED; i++)
        if (strcmp(skipped[i], name) == 0) {
            *ret_flag = 1U << i;
            return 0;
        }
    return tt_fail(TT_EUSAGE,
                   "%s has no '%s'\n"
                   "help: it takes optimizer, lr_scheduler, dataloader, train_state",
                   TT_KEY_NAME(checkpoint.exclude_from_loading), name);
}

/* --- the line in the manifest --- */

static json_t *request_json(const struct tt_line_request *request)
{
    json_t *exclude = json_array();

    for (int i = 0; i < N_SKIPPED; i++)
        if (request->skip & 1U << i)
            (void)json_array_append_new(exclude, json_string(skipped[i]));
    return json_pack("{s:I, s:o}", "load_step", (json_int_t)request->load_step, "exclude", exclude);
}

json_t *tt_line_of(const json_t *meta)
{
    static const struct tt_line_request none = {-1, 0};
    json_t *line = json_object_get(meta, "line");
    const char *run_id = json_string_value(json_object_get(meta, "run_id"));

    if (json_is_object(line))
        return json_incref(line);
    return json_pack("{s:s, s:n, s:o}", "id", run_id ? run_id : "", "parent", "begun_with", request_json(&none));
}

json_t *tt_line_new(const char *run_id, const json_t *parent_meta, const struct tt_line_request *request)
{
    json_t *parent = json_null();

    if (parent_meta)
        parent = json_pack("{s:O?, s:O?}", "run_id", json_object_get(parent_meta, "run_id"), "step",
                           json_object_get(parent_meta, "step"));
    return json_pack("{s:s, s:o, s:o}", "id", run_id, "parent", parent, "begun_with", request_json(request));
}

bool tt_line_is_begun_with(const json_t *meta, const struct tt_line_request *request)
{
    json_t *line = tt_line_of(meta), *wanted = request_json(request);
    bool same = json_equal(json_object_get(line, "begun_with"), wanted) == 1;

    json_decref(line);
    json_decref(wanted);
    return same;
}

/* --- the steps of the folder --- */

int tt_line_start(struct tt_ckpt_store *store, const struct tt_line_start *start)
{
    int64_t *steps = NULL;
    int n = 0, aside = 0, rc = 0;

    TT_TRY(tt_step_list(store->folder, &steps, &n));
    for (int i = n - 1; i >= 0; i--) {
        bool damaged = false;

        for (int k = 0; k < start->n_damaged; k++)
            damaged = damaged || start->damaged[k] == steps[i];
        if (steps[i] == start->step)
            continue;
        if (!damaged && !(start->begins && (steps[i] > start->step || start->restarts)))
            continue;
        TT_TRY(tt_aside_step(store->folder, steps[i], damaged ? TT_ASIDE_DAMAGED : TT_ASIDE_ABANDONED, store->run_id));
        aside++;
    }
    if (start->begins && start->restarts) {
        TT_TRY(tt_parent_mark(store->folder, start->step, store->run_id));
        store->parent_step = start->step;
    }
    if (aside)
        tt_note("titan ckpt list shows what was set aside, titan ckpt gc --abandoned removes it");
out:
    tt_free(steps);
    return rc;
}

void tt_line_committed(struct tt_ckpt_store *store, int64_t step)
{
    int64_t parent = store->parent_step;
    int rc = 0;

    if (parent < 0)
        return;
    if (parent != step) /* unless publishing the step has already set the parent aside */
        TT_TRY(tt_aside_step(store->folder, parent, TT_ASIDE_ABANDONED, store->run_id));
    store->parent_step = -1;
    TT_TRY(tt_parent_unmark(store->folder, parent, store->run_id));
out:
    if (rc < 0)
        tt_warn("the step that this run began from could not be set aside: %s", tt_error_message());
}
