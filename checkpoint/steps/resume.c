/* SPDX-License-Identifier: MIT
 *
 * Chooses the step from which a run continues. Only rank 0 looks into the folder, so that ranks never act on
 * different views of it. If a step is damaged, the resume tries the next older one. If a step cannot be read at the
 * moment, the resume fails.
 */
#include <inttypes.h>
#include <string.h>

#include "checkpoint/load/load.h"
#include "checkpoint/load/loading.h"
#include "checkpoint/load/patience.h"
#include "checkpoint/load/share.h"
#include "checkpoint/steps/line.h"
#include "checkpoint/steps/steps.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

/* What rank 0 sees in the folder. */
struct view {
    int64_t *steps; /* newest first */
    int n;
    bool aside; /* the folder has steps that were set aside */
};

struct looking {
    const char *folder;
    struct view *view;
};

/* Replaces the advice of the message by another. */
static int fail_unreadable(int code, const char *folder, int64_t step)
{
    tt_error_drop_hint();
    return tt_fail(code,
                   "checkpoint step-%" PRId64 " in '%s' cannot be read at the moment, nothing was changed: %s\n"
                   "help: start the run again when it can be read, or give up the step with titan ckpt rollback",
                   step, folder, tt_error_message());
}

/* titan's steps and PyTorch's in one folder would be taken for each other by other programs, and torchtitan's run would
 * lose its newest step to a run that it does not know. */
static int check_origin(const char *folder, const struct view *view)
{
    enum tt_path_kind kind;
    int rc = 0;

    for (int i = 0; i < view->n; i++) {
        char *path = tt_step_path(folder, view->steps[i]);

        rc = tt_step_look(path, false, &kind, NULL);
        if (rc == TT_EIO)
            rc = fail_unreadable(rc, folder, view->steps[i]);
        else if (rc == 0 && kind == TT_PATH_DCP)
            rc = tt_fail(TT_EUSAGE,
                         "'%s' is a checkpoint of PyTorch, and no run of titan continues in its folder\nhelp: choose "
                         "another --%s; a new run can begin from a checkpoint of PyTorch",
                         path, tt_key_name(TT_KEY_RUN_FOLDER));
        tt_free(path);
        TT_TRY(rc);
    }
out:
    return rc;
}

static int look_around(void *arg)
{
    const char *folder = ((const struct looking *)arg)->folder;
    struct view *view = ((const struct looking *)arg)->view;
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_step_list(folder, &view->steps, &view->n));
    TT_TRY(check_origin(folder, view));
    TT_TRY(tt_folder_list_found(folder, &names, &n));
    for (int i = 0; i < n; i++)
        view->aside = view->aside || (tt_step_number(names[i]) < 0 && tt_step_number_aside(names[i]) >= 0);
    for (int i = 0; i < view->n / 2; i++) {
        int64_t step = view->steps[i];

        view->steps[i] = view->steps[view->n - 1 - i];
        view->steps[view->n - 1 - i] = step;
    }
out:
    tt_names_free(names, n);
    return rc;
}

static int share_view(struct tt_comm *comm, const char *folder, struct view *view)
{
    int64_t words[2] = {0};
    int rc = 0;

    TT_TRY(tt_patience_work(comm, comm->rank == 0, look_around, &(struct looking){folder, view}));
    words[0] = view->n;
    words[1] = view->aside;
    TT_TRY(tt_comm_broadcast(comm, words, sizeof words, 0));
    view->n = (int)words[0];
    view->aside = words[1] != 0;
    if (comm->rank != 0)
        view->steps = tt_calloc((size_t)view->n, sizeof *view->steps);
    if (view->n)
        TT_TRY(tt_comm_broadcast(comm, view->steps, (size_t)view->n * sizeof *view->steps, 0));
out:
    return rc;
}

static int fail_no_step(const char *folder, int64_t load_step, const struct view *view)
{
    struct tt_text text = {0};
    int rc;

    for (int i = 0; i < view->n && i < 10; i++)
        tt_text_add(&text, "%s%" PRId64, i ? ", " : "", view->steps[i]);
    rc =
        tt_fail(TT_EDATA, "no checkpoint of step %" PRId64 " in '%s'\nhelp: it holds %s%s%s", load_step, folder,
                view->n ? "steps " : "no checkpoint; a new run begins without a step to load", view->n ? text.text : "",
                view->aside ? "; titan ckpt list shows the steps that were set aside, which can be renamed back" : "");
    tt_text_release(&text);
    return rc;
}

/* A folder without steps has nothing to resume. But if steps were set aside, random weights must not replace them. */
static int check_empty(const char *folder, int64_t load_step, const struct view *view)
{
    if (load_step >= 0)
        return fail_no_step(folder, load_step, view);
    if (view->aside)
        return tt_fail(
            TT_EDATA,
            "all checkpoints in '%s' were set aside, so the run cannot continue\nhelp: titan ckpt list shows them; "
            "rename the one to continue from to step-N, or choose another --%s",
            folder, tt_key_name(TT_KEY_RUN_FOLDER));
    return 0;
}

struct checking {
    const char *path;
    struct tt_manifest *manifest;
};

static int check_step(void *arg)
{
    const struct checking *c = arg;

    return tt_step_check(c->path, c->manifest);
}

static int try_step(struct tt_comm *comm, const char *folder, int64_t step, struct tt_ckpt_attempt *attempt,
                    json_t **ret_meta, bool *ret_damaged)
{
    char *path = tt_step_path(folder, step);
    struct tt_manifest manifest = {0};
    int rc = 0;

    if (attempt->state) {
        rc = tt_ckpt_load_one(comm, path, TT_PATH_STEP, attempt, ret_meta, ret_damaged);
    } else if ((rc = tt_patience_work(comm, comm->rank == 0, check_step, &(struct checking){path, &manifest})) == 0) {
        rc = tt_manifest_share(comm, &manifest);
        *ret_meta = rc == 0 ? json_incref(manifest.meta) : NULL;
    } else {
        *ret_damaged = rc == TT_EDATA;
    }
    if (rc == TT_EIO)
        rc = fail_unreadable(rc, folder, step);
    tt_manifest_release(&manifest);
    tt_free(path);
    return rc;
}

/* Whether the step's line began with the request, as rank 0 sees it. ret_damaged: the step has become unreadable. */
static int is_applied(struct tt_comm *comm, const char *folder, int64_t step, const struct tt_ckpt_request *request,
                      bool *ret_applied, bool *ret_damaged)
{
    char *path = tt_step_path(folder, step);
    struct tt_manifest manifest = {0};
    int64_t applied = 0;
    int rc = 0;

    rc = tt_patience_work(comm, comm->rank == 0, check_step, &(struct checking){path, &manifest});
    *ret_damaged = rc == TT_EDATA;
    if (rc == TT_EIO)
        rc = fail_unreadable(rc, folder, step);
    TT_TRY(rc);
    applied = comm->rank == 0 && tt_line_is_begun_with(manifest.meta, &request->line);
    TT_TRY(tt_comm_broadcast(comm, &applied, sizeof applied, 0));
    *ret_applied = applied != 0;
out:
    tt_manifest_release(&manifest);
    tt_free(path);
    return rc;
}

static bool holds(const struct view *view, int64_t step)
{
    for (int i = 0; i < view->n; i++)
        if (view->steps[i] == step)
            return true;
    return false;
}

/* Tries `step`, the newest that is not known to be damaged, or instead the step that the request names. */
static int try_request(struct tt_comm *comm, const char *folder, const struct view *view, int64_t step,
                       const struct tt_ckpt_request *request, struct tt_ckpt_attempt *attempt,
                       struct tt_ckpt_found *found, bool *ret_damaged)
{
    bool asks = request->line.load_step >= 0 || request->line.skip;
    int rc = 0;

    *ret_damaged = false;
    found->applied = false;
    if (asks && !request->as_asked)
        TT_TRY(is_applied(comm, folder, step, request, &found->applied, ret_damaged));
    found->step = !found->applied && request->line.load_step >= 0 ? request->line.load_step : step;
    attempt->skip = found->applied ? 0 : request->line.skip;
    if (!holds(view, found->step)) {
        rc = fail_no_step(folder, found->step, view);
        goto out;
    }
    rc = try_step(comm, folder, found->step, attempt, &found->meta, ret_damaged);
    *ret_damaged = *ret_damaged && found->step == step && (found->applied || request->line.load_step < 0);
    found->skip = attempt->skip;
out:
    return rc;
}

static int find_and_try(struct tt_comm *comm, const char *folder, const struct tt_ckpt_request *request,
                        struct tt_ckpt_attempt *attempt, struct tt_ckpt_found *ret_found)
{
    struct tt_patience patience = tt_patience_begin(comm, "loading a checkpoint");
    struct tt_ckpt_found found = {.step = -1};
    struct view view = {0};
    bool damaged = false;
    int cap = 0, rc = 0;

    TT_TRY(share_view(comm, folder, &view));
    if (view.n == 0)
        rc = check_empty(folder, request->line.load_step, &view);
    for (int i = 0; i < view.n; i++) {
        rc = try_request(comm, folder, &view, view.steps[i], request, attempt, &found, &damaged);
        if (rc == 0 || !damaged)
            break;
        if (comm->rank == 0)
            tt_warn("checkpoint step-%" PRId64 " is damaged and passed over: %s", view.steps[i], tt_error_message());
        TT_PUSH(found.damaged, found.n_damaged, cap) = view.steps[i];
    }
    if (rc < 0 && damaged)
        rc = tt_fail(rc,
                     "none of the %d checkpoints in '%s' is intact; the oldest: %s\nhelp: bring the files back from a "
                     "copy, or begin again in another folder",
                     view.n, folder, tt_error_message());
    TT_TRY(rc);
    *ret_found = found;
    found = (struct tt_ckpt_found){0};
out:
    tt_ckpt_found_release(&found);
    tt_free(view.steps);
    tt_patience_end(comm, &patience);
    return rc;
}

void tt_ckpt_found_release(struct tt_ckpt_found *found)
{
    json_decref(found->meta);
    tt_free(found->damaged);
    *found = (struct tt_ckpt_found){0};
}

int tt_ckpt_peek(struct tt_comm *comm, const char *folder, const struct tt_ckpt_request *request,
                 struct tt_ckpt_found *ret_found)
{
    struct tt_ckpt_attempt look = {0};

    return find_and_try(comm, folder, request, &look, ret_found);
}

int tt_ckpt_resume(struct tt_comm *comm, const struct tt_mesh *mesh, const char *folder,
                   const struct tt_ckpt_request *request, const struct tt_ckpt_state *state,
                   struct tt_ckpt_found *ret_found)
{
    struct tt_ckpt_attempt load = {.mesh = mesh, .state = state, .reading = request->reading, .request = request};

    return find_and_try(comm, folder, request, &load, ret_found);
}
