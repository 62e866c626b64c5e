/* SPDX-License-Identifier: MIT
 *
 * The checkpoints of a planned job, as text and as JSON: the files and bytes of each writer, for the
 * configured save policy or for all of them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/plan/view.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "trainer/job/tensors.h"

static int make(const struct tt_plan_view *v, bool last, struct tt_plan_save *save)
{
    const struct tt_config *cfg = v->cfg;
    struct tt_job_tensors tensors = {0};
    struct tt_ckpt_state state;
    bool is_open = cfg->training.epochs != TT_NULL_INT; /* the steps are counted when the data is open */
    int64_t interval = cfg->checkpoint.interval, steps = cfg->training.steps;
    int rc = 0;

    tt_job_tensors_init(&v->job.engine, NULL, &tensors);
    state = tensors.state;
    /* step of the first regular save, or of the last one; file headers contain this number */
    save->step = !is_open && (last || interval > steps) ? steps : interval;
    save->model_only = last;
    save->is_open = last && is_open;
    if (last)
        state.n_optim = 0;
    for (int i = 0; i < state.n_model && last; i++)
        state.model[i].dtype = tt_job_export_dtype(cfg);
    TT_TRY(tt_job_policy(cfg, &save->configured));
    for (int i = 0; tt_ckpt_policy_row(i); i++) {
        struct tt_plan_policy policy = {tt_ckpt_policy_row(i), {0}};

        if (!v->checkpoint && policy.policy != save->configured)
            continue;
        TT_TRY(tt_ckpt_preview_make(&state, &v->job.mesh, policy.policy, save->step, &policy.preview));
        TT_PUSH(save->policies, save->n, save->cap) = policy;
    }
out:
    tt_job_tensors_release(&tensors);
    return rc;
}

int tt_plan_checkpoint_make(struct tt_plan_view *v)
{
    int rc = 0;

    TT_TRY(make(v, false, &v->save));
    if (v->cfg->checkpoint.last_save_model_only)
        TT_TRY(make(v, true, &v->last_save));
out:
    return rc;
}

static void release(struct tt_plan_save *save)
{
    for (int i = 0; i < save->n; i++)
        tt_ckpt_preview_release(&save->policies[i].preview);
    tt_free(save->policies);
    *save = (struct tt_plan_save){0};
}

void tt_plan_checkpoint_release(struct tt_plan_view *v)
{
    release(&v->save);
    release(&v->last_save);
}

/* --- JSON --- */

static json_t *writers_json(const struct tt_ckpt_preview *p)
{
    json_t *list = json_array();

    for (int i = 0; i < p->n;) {
        json_t *files = json_array();
        int64_t bytes = 0;
        int rank = p->file[i].writer;

        for (; i < p->n && p->file[i].writer == rank; i++) {
            char *path = tt_ckpt_shard_path(p->file[i].group, rank);

            bytes += p->file[i].bytes;
            (void)json_array_append_new(files, json_pack("{s:s, s:i, s:I}", "path", path, "tensors", p->file[i].tensors,
                                                         "bytes", (json_int_t)p->file[i].bytes));
            tt_free(path);
        }
        (void)json_array_append_new(
            list, json_pack("{s:i, s:I, s:o}", "rank", rank, "bytes", (json_int_t)bytes, "files", files));
    }
    return list;
}

static json_t *save_json(const struct tt_plan_save *save)
{
    json_t *policies = json_array();

    for (int i = 0; i < save->n; i++) {
        const struct tt_ckpt_policy *policy = save->policies[i].policy;
        const struct tt_ckpt_preview *p = &save->policies[i].preview;

        (void)json_array_append_new(policies,
                                    json_pack("{s:s, s:s?, s:b, s:i, s:i, s:I, s:I, s:o}", "save_policy", policy->name,
                                              "filter", policy->filter, "configured", policy == save->configured,
                                              "writers", p->writers, "files", p->n, "bytes", (json_int_t)p->bytes,
                                              "most_bytes", (json_int_t)p->most_bytes, "per_writer", writers_json(p)));
    }
    return json_pack("{s:o, s:b, s:o}", "step", save->is_open ? json_null() : json_integer(save->step), "model_only",
                     save->model_only, "policies", policies);
}

json_t *tt_plan_checkpoint_json(const struct tt_plan_view *v)
{
    json_t *json = save_json(&v->save);

    (void)json_object_update_new(json, json_pack("{s:b, s:o?}", "enabled",
                                                 v->cfg->checkpoint.enable && !v->cfg->checkpoint.load_only, "last",
                                                 v->last_save.n ? save_json(&v->last_save) : NULL));
    return json;
}

/* --- text --- */

static void policy_text(const struct tt_ckpt_policy *policy, char *buf, size_t size)
{
    (void)snprintf(buf, size, "%s%s%s", policy->name, policy->filter ? ", filter " : "",
                   policy->filter ? policy->filter : "");
}

static void print_policies(const struct tt_plan_save *save)
{
    static const struct tt_column columns[] = {{"save policy", 28, false, 2, 0, 0},
                                               {"writers", 8, true, 1, 1, 0},
                                               {"files", 8, true, 1, 0, 0},
                                               {"together", 14, true, 1, 0, 0},
                                               {"most of one writer", 20, true, 1, 0, 0},
                                               {"", 0, false, 2, 0, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};
    char text[64];

    for (int i = 0; i < save->n; i++) {
        const struct tt_ckpt_preview *p = &save->policies[i].preview;

        policy_text(save->policies[i].policy, text, sizeof text);
        tt_columns_cell(&table, "%s", text);
        tt_columns_cell(&table, "%d", p->writers);
        tt_columns_cell(&table, "%d", p->n);
        tt_columns_cell(&table, "%s", tt_text_bytes(text, sizeof text, (double)p->bytes));
        tt_columns_cell(&table, "%s", tt_text_bytes(text, sizeof text, (double)p->most_bytes));
        tt_columns_cell(&table, "%s", save->policies[i].policy == save->configured ? "(configured)" : "");
    }
    tt_columns_print(&table);
}

static void print_files(const struct tt_ckpt_policy *policy, const struct tt_ckpt_preview *p)
{
    static const struct tt_column columns[] = {{"rank", 11, false, 2, 2, 0},
                                               {"file", 50, false, 2, 0, 0},
                                               {"tensors", 14, true, 1, 1, 0},
                                               {"bytes", 26, true, 1, 0, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns, .no_titles = true};
    char text[64];

    policy_text(policy, text, sizeof text);
    tt_print("\n  %s\n", text);
    for (int i = 0; i < p->n; i++) {
        char *path = tt_ckpt_shard_path(p->file[i].group, p->file[i].writer);

        tt_columns_cell(&table, "rank %6d", p->file[i].writer);
        tt_columns_cell(&table, "%s", path);
        tt_columns_cell(&table, "%d tensors", p->file[i].tensors);
        tt_columns_cell(&table, "%s bytes", tt_text_count(text, sizeof text, p->file[i].bytes));
        tt_free(path);
    }
    tt_columns_print(&table);
}

static void print_save(const struct tt_plan_save *save)
{
    if (save->is_open)
        tt_print_broken(2, "\nthe last checkpoint (after training.epochs; the model only), besides manifest.json and "
                           "assets\n");
    else
        tt_print_broken(2, "\na checkpoint of step %" PRId64 "%s, besides manifest.json and assets\n", save->step,
                        save->model_only ? " (the last one, the model only)" : "");
    print_policies(save);
    for (int i = 0; i < save->n; i++)
        print_files(save->policies[i].policy, &save->policies[i].preview);
}

void tt_plan_print_checkpoint(const struct tt_plan_view *v)
{
    print_save(&v->save);
    if (v->last_save.n)
        print_save(&v->last_save);
}
