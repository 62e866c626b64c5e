/* SPDX-License-Identifier: MIT
 *
 * `titan plan`: the program that a rank of a job of any size would run, without starting a rank.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/plan/view.h"
#include "core/base/mem.h"
#include "core/config/args.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/collectives.h"
#include "trainer/job/job.h"
#include "trainer/job/summary.h"
#include "trainer/job/tensors.h"

/* A planned rank as JSON. titan-plan(1) lists the keys; they must not change. */

static json_t *unit_names(const struct tt_layout *layout, const int *units, int n)
{
    json_t *names = json_array();

    for (int i = 0; i < n; i++)
        (void)json_array_append_new(names, json_string(layout->units[units[i]].name));
    return names;
}

static json_t *units(const struct tt_plan_view *v)
{
    const struct tt_layout *l = tt_engine_layout(v->engine);
    json_t *list = json_array();

    for (int u = 0; u < l->n_units; u++) {
        const struct tt_unit *unit = &l->units[u];
        json_t *params = json_array();
        int64_t shard = unit->shard_elements *
                        (int64_t)tt_dtype_size(tt_state_unit_dtype(TT_STATE_PARAM, unit, v->job.engine.shard_dtype));

        for (int i = 0; i < unit->n_params; i++) {
            const struct tt_param *param = &v->job.model->params[unit->params[i].param];

            (void)json_array_append_new(params, json_string(param->name));
        }
        (void)json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I, s:s, s:o}", "name", unit->name, "parameters",
                                                    (json_int_t)tt_summary_unit_elements(v->job.model, unit), "bytes",
                                                    (json_int_t)(shard * tt_unit_shard(l, u).n), "shard_bytes",
                                                    (json_int_t)shard, "after_forward", tt_plan_unit_fate(l, unit),
                                                    "names", params));
    }
    return list;
}

/* Lists the sets of units whose collectives are issued as one, each set once. */
static json_t *buckets(const struct tt_plan_view *v)
{
    const struct tt_summary *s = &v->summary;
    json_t *list = json_array(), *known = json_object(); /* known: the sets so far, by the text of their numbers */

    for (int i = 0; i < s->n_collectives; i++) {
        const struct tt_summary_collective *c = &s->collectives[i];
        struct tt_text key = {0};

        if (c->n_units == 0) /* a transfer between stages */
            continue;
        for (int u = 0; u < c->n_units; u++)
            tt_text_add(&key, "%d ", c->units[u]);
        if (!json_object_get(known, key.text)) {
            json_t *names = unit_names(s->program->layout, c->units, c->n_units);

            (void)json_object_set_new(known, key.text, json_true());
            (void)json_array_append_new(
                list, json_pack("{s:o, s:I}", "units", names, "shard_bytes", (json_int_t)c->shard_bytes));
        }
        tt_text_release(&key);
    }
    json_decref(known);
    return list;
}

static json_t *collectives(const struct tt_plan_view *v)
{
    const struct tt_summary *s = &v->summary;
    const struct tt_layout *l = s->program->layout;
    json_t *list = json_array();

    for (int i = 0; i < s->n_collectives; i++) {
        const struct tt_summary_collective *c = &s->collectives[i];

        (void)json_array_append_new(
            list, json_pack("{s:s, s:o, s:I, s:I, s:I, s:o}", "op", tt_purpose_row(c->purpose)->name, "units",
                            unit_names(l, c->units, c->n_units), "count", (json_int_t)c->count, "shard_bytes",
                            (json_int_t)c->shard_bytes, "payload_bytes", (json_int_t)c->payload_bytes, "predicted_s",
                            tt_json_number(tt_cost_transfer_sec(&v->machine, s->program, c->first))));
    }
    return list;
}

static json_t *memory(const struct tt_plan_view *v)
{
    const struct tt_engine_memory *m = &v->summary.memory;
    struct tt_text peak = {0};
    json_t *o, *timeline = json_array();

    tt_plan_peak_text(v, &peak);
    for (int i = 0; i < v->summary.program->n_instrs; i++)
        (void)json_array_append_new(timeline, json_integer(tt_summary_live_bytes(&v->summary, i)));
    o = json_pack("{s:I, s:s, s:o, s:I, s:I, s:I, s:I, s:o}", "peak_bytes", (json_int_t)m->total, "peak_instruction",
                  peak.text, "by_kind", tt_summary_by_kind(m), "state_bytes", (json_int_t)m->state, "constant_bytes",
                  (json_int_t)m->constants, "sample_bytes", (json_int_t)m->samples, "step_bytes", (json_int_t)m->step,
                  "timeline", timeline);
    tt_text_release(&peak);
    return o;
}

static json_t *instructions(const struct tt_plan_view *v)
{
    const struct tt_program *p = v->summary.program;
    json_t *list = json_array();

    for (int i = 0; i < p->n_instrs; i++) {
        struct tt_text text = {0};

        tt_instr_text(p, i, &text);
        (void)json_array_append_new(list, json_string(text.text));
        tt_text_release(&text);
    }
    return list;
}

static json_t *predicted(const struct tt_plan_view *v)
{
    json_t *most = v->all.routed_most ? tt_json_number(v->all.step_most_sec) : NULL;

    return json_pack("{s:o*, s:o, s:o, s:o, s:o, s:o*}", "step_most_s", most, "step_s", tt_json_number(v->all.step_sec),
                     "compute_s", tt_json_number(v->time.compute_sec), "comm_s", tt_json_number(v->time.transfer_sec),
                     "exposed_s", tt_json_number(v->time.exposed_sec), "machine", json_string(v->machine.name));
}

static json_t *model(const struct tt_plan_view *v)
{
    return json_pack("{s:s, s:s, s:I, s:I}", "name", v->job.model->row->name, "flavor", v->job.model->flavor,
                     "parameters", (json_int_t)tt_model_n_elements(v->job.model), "active_parameters",
                     (json_int_t)tt_model_n_active(v->job.model));
}

static json_t *mesh(const struct tt_plan_view *v)
{
    const int *size = v->job.mesh.size;

    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "ranks", v->job.mesh.n_ranks, "rank", v->rank, "pp",
                     size[TT_MESH_PP], "dp_replicate", size[TT_MESH_DP_REPLICATE], "dp_shard", size[TT_MESH_DP_SHARD],
                     "cp", size[TT_MESH_CP], "tp", size[TT_MESH_TP], "ep", size[TT_MESH_EP]);
}

/* null without a pipeline */
static json_t *pipeline(const struct tt_plan_view *v)
{
    const struct tt_pipeline *p = v->job.pipeline;
    json_t *stages;

    if (!p)
        return json_null();
    stages = json_array();
    for (int s = 0; s < p->n_stages; s++)
        (void)json_array_append_new(stages, json_integer(p->rank_of_stage[s]));
    return json_pack("{s:s, s:i, s:i, s:o, s:i, s:I, s:i, s:I, s:I, s:o, s:o}", "schedule", p->schedule->name, "ranks",
                     p->ranks, "microbatches", p->microbatches, "rank_of_stage", stages, "largest_rank", v->all.rank,
                     "largest_peak_bytes", (json_int_t)v->all.memory.total, "largest_sender", v->all.sender,
                     "largest_payload_bytes", (json_int_t)v->all.payload_bytes, "payload_bytes_all",
                     (json_int_t)v->all.payload_sum, "run_s", tt_json_number(v->all.run.makespan), "bubble_share",
                     tt_json_number(v->all.run.bubble_share));
}

static json_t *traffic(const struct tt_plan_view *v)
{
    const struct tt_summary *s = &v->summary;

    json_t *o = json_pack("{s:o, s:o, s:o, s:I, s:I, s:I, s:I}", "units", units(v), "buckets", buckets(v),
                          "collectives", collectives(v), "gathers", (json_int_t)tt_summary_count(s, TT_ALL_GATHER),
                          "reduces", (json_int_t)tt_summary_count(s, TT_REDUCE_SCATTER), "all_reduces",
                          (json_int_t)tt_summary_count(s, TT_ALL_SUM), "payload_bytes_per_step",
                          (json_int_t)tt_program_payload(s->program));
    int64_t most, routed = tt_program_routed_bytes(s->program, &most);

    if (most)
        (void)json_object_update_new(o, json_pack("{s:I, s:I}", "expert_bytes_per_step", (json_int_t)routed,
                                                  "most_expert_bytes_per_step", (json_int_t)most));
    return o;
}

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

static json_t *checkpoint_json(const struct tt_plan_view *v)
{
    json_t *json = save_json(&v->save);

    (void)json_object_update_new(json, json_pack("{s:b, s:o?}", "enabled",
                                                 v->cfg->checkpoint.enable && !v->cfg->checkpoint.load_only, "last",
                                                 v->last_save.n ? save_json(&v->last_save) : NULL));
    return json;
}

/* The plan as JSON, with the keys that titan-plan(1) lists; json_decref. */
static json_t *plan_json(const struct tt_plan_view *v)
{
    struct tt_text policies = {0};
    json_t *o;

    tt_job_policies_text(v->cfg, &policies);
    o = json_pack("{s:s, s:i, s:o, s:o, s:o, s:o*, s:I, s:I, s:i}", "type", "plan", "schema", 1, "model", model(v),
                  "mesh", mesh(v), "pipeline", pipeline(v), "policies", json_string(policies.text), "microbatches",
                  (json_int_t)v->job.microbatches, "global_batch_size", (json_int_t)v->job.global_batch, "threads",
                  v->job.engine.threads);
    if (v->job.sync_why)
        (void)json_object_set_new(o, "gradient_sync_choice", tt_json_string(v->job.sync_why));
    (void)json_object_update_new(o, traffic(v));
    (void)json_object_update_new(o, json_pack("{s:o, s:o, s:o, s:i, s:o*}", "memory", memory(v), "predicted",
                                              predicted(v), "checkpoint", checkpoint_json(v), "n_instructions",
                                              v->summary.program->n_instrs, "instructions",
                                              v->instructions ? instructions(v) : NULL));
    tt_text_release(&policies);
    return o;
}

static const struct tt_option options[] = {
    TT_OPTION_CONFIG,
    {"ranks", NULL, "N", "ranks of the job (default: 1)"},
    {"rank", NULL, "R", "the rank whose program is shown (default: 0)"},
    {"instructions", NULL, NULL, "list every instruction"},
    {"checkpoint", NULL, NULL, "list the files that a checkpoint writes, for every save policy"},
    {"svg", NULL, "FILE", "write a picture: memory over instructions, compute against communication over time"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan plan [--config FILE]... --ranks N [--rank R] [--section.key=value]...\n\n"
    "Shows the training step of one rank of a job: units, collectives, memory, predicted time. Starts\n"
    "no ranks. Without --config: the built-in quick run.\n\n";

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

/* Fills in the files of saves. */
static int make_checkpoint(struct tt_plan_view *v)
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

static void release_checkpoint(struct tt_plan_view *v)
{
    release(&v->save);
    release(&v->last_save);
}

/* The row of an instruction, found in the chain of rows with the same first unit; TT_NONE if there is none yet. Rows
 * without units are told apart by their stages and, for the same purpose, by their bytes. */
static int find_row(const struct tt_summary *s, const int *chain, int head, const struct tt_instr *instr)
{
    const struct tt_bucket of = tt_instr_units(s->program->buckets, instr);

    for (int r = head; r != TT_NONE; r = chain[r]) {
        const struct tt_summary_collective *row = &s->collectives[r];

        if (row->purpose == instr->purpose && row->n_units == of.n &&
            row->shard_bytes == instr->collective.shard_bytes && s->program->instrs[row->first].stage == instr->stage &&
            (of.n == 0 || memcmp(row->units, of.units, (size_t)of.n * sizeof *of.units) == 0))
            return r;
    }
    return TT_NONE;
}

static void add_collective(struct tt_summary *s, int *head, int **chain, int *cap_chain, int i)
{
    const struct tt_instr *instr = &s->program->instrs[i];
    struct tt_summary_total *total = &s->totals[instr->purpose];
    int row, n_chain = s->n_collectives;
    const struct tt_bucket of = tt_instr_units(s->program->buckets, instr);
    int *start = &head[of.n ? of.units[0] : s->program->layout->n_units];

    row = find_row(s, *chain, *start, instr);
    if (row == TT_NONE) {
        row = s->n_collectives;
        TT_PUSH(s->collectives, s->n_collectives, s->cap_collectives) =
            (struct tt_summary_collective){.purpose = instr->purpose,
                                           .units = of.units,
                                           .n_units = of.n,
                                           .first = i,
                                           .shard_bytes = instr->collective.shard_bytes,
                                           .payload_bytes = tt_instr_payload(instr)};
        TT_PUSH(*chain, n_chain, *cap_chain) = *start;
        *start = row;
    }
    s->collectives[row].count++;
    total->count++;
    total->shard_bytes += s->collectives[row].shard_bytes;
    total->payload_bytes += s->collectives[row].payload_bytes;
}

static void find_collectives(struct tt_summary *s)
{
    int n_units = s->program->layout->n_units, cap_chain = 0;
    /* chain: of rows with the same first unit; the last head is for rows without units (transfers of stages) */
    int *head = tt_calloc((size_t)n_units + 1, sizeof *head), *chain = NULL;

    for (int u = 0; u <= n_units; u++)
        head[u] = TT_NONE;
    for (int i = 0; i < s->program->n_instrs; i++)
        if (tt_instr_row(&s->program->instrs[i])->begins)
            add_collective(s, head, &chain, &cap_chain, i);
    tt_free(head);
    tt_free(chain);
}

static void find_live(struct tt_summary *s)
{
    const struct tt_program *p = s->program;

    s->live = tt_calloc((size_t)p->n_instrs + 1, sizeof *s->live);
    for (int b = 0; b < p->n_buffers; b++) {
        const struct tt_buffer *buffer = &p->buffers[b];

        if (buffer->root != b || buffer->kind == TT_MEMORY_PARAM || buffer->kind == TT_MEMORY_CONST)
            continue;
        s->live[buffer->first][buffer->kind] += buffer->bytes;
        s->live[buffer->last + 1][buffer->kind] -= buffer->bytes;
    }
    for (int i = 1; i < p->n_instrs; i++)
        for (int k = 0; k < TT_MEMORY_KINDS; k++)
            s->live[i][k] += s->live[i - 1][k];
    for (int i = 0; i < p->n_instrs; i++) {
        s->live[i][TT_MEMORY_PARAM] = s->memory.by_kind[TT_MEMORY_PARAM];
        s->live[i][TT_MEMORY_OPTIMIZER] = s->memory.by_kind[TT_MEMORY_OPTIMIZER];
        s->live[i][TT_MEMORY_CONST] = s->memory.by_kind[TT_MEMORY_CONST];
        s->live[i][TT_MEMORY_INPUT] += s->memory.samples;
    }
}

/* The program must outlive the summary; release when done. */
static void init_summary(const struct tt_engine *engine, struct tt_summary *ret_summary)
{
    *ret_summary = (struct tt_summary){.program = tt_engine_program(engine), .memory = tt_engine_memory(engine)};
    find_collectives(ret_summary);
    find_live(ret_summary);
}

static void release_summary(struct tt_summary *s)
{
    tt_free(s->collectives);
    tt_free(s->live);
    *s = (struct tt_summary){0};
}

static int plan(const struct tt_args *args)
{
    struct tt_plan_view view = {.instructions = tt_args_has(args, "instructions"),
                                .checkpoint = tt_args_has(args, "checkpoint")};
    struct tt_config *cfg = NULL;
    int64_t ranks = 1, rank = 0;
    int threads, rc = 0;

    tt_cli_install_log(); /* shows notes about keys that have no effect */
    TT_TRY(tt_cli_load_config("plan", args, &cfg));
    view.cfg = cfg;
    TT_TRY(tt_cli_count("plan", args, "ranks", 1, TT_MOST_RANKS, &ranks));
    TT_TRY(tt_cli_count("plan", args, "rank", 0, TT_MOST_RANKS, &rank));
    if (rank >= ranks) {
        rc = tt_fail(TT_EUSAGE,
                     "plan: --rank %" PRId64 " of %" PRId64 " ranks\nhelp: ranks are counted from 0: --rank %" PRId64
                     " is the last of them",
                     rank, ranks, ranks - 1);
        goto out;
    }
    view.rank = (int)rank;
    threads = tt_job_threads(cfg, (int)ranks);
    TT_TRY(tt_job_init(cfg, (int)ranks, threads, tt_job_memory_limit(cfg, tt_job_ranks_on_host((int)ranks, threads)),
                       &view.job));
    tt_cli_note_idle(cfg, view.job.model);
    TT_TRY(tt_job_engine_alone(cfg, &view.job, view.rank, &view.engine));
    init_summary(view.engine, &view.summary);
    view.machine = view.job.engine.machine;
    tt_cost_simulate(&view.machine, tt_engine_program(view.engine), &view.time);
    TT_TRY(tt_job_predict(&view.job, &view.machine, view.engine, view.rank, &view.all));
    if (view.checkpoint || tt_args_has(args, "json"))
        TT_TRY(make_checkpoint(&view));
    if (tt_args_last(args, "svg"))
        TT_TRY(tt_plan_svg(&view, tt_args_last(args, "svg")));
    if (tt_args_has(args, "json"))
        rc = tt_cli_print_json(plan_json(&view));
    else
        tt_plan_print(&view);
out:
    rc = tt_config_locate(cfg, rc);
    release_checkpoint(&view);
    tt_job_prediction_release(&view.all);
    tt_timeline_release(&view.time);
    release_summary(&view.summary);
    tt_engine_free(view.engine);
    tt_job_release(&view.job);
    tt_config_free(cfg);
    return rc;
}

const struct tt_command tt_command_plan = {
    .name = "plan",
    .arguments = "[--config FILE]... --ranks N [--rank R]",
    .summary = "the step of one rank: units, collectives, memory, time",
    .usage = usage,
    .options = options,
    .run = plan,
};
