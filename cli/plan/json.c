/* SPDX-License-Identifier: MIT
 *
 * A planned rank as JSON. titan-plan(1) lists the keys, which must not change.
 */
#include "cli/plan/view.h"
#include "core/base/mem.h"
#include "core/program/instr/instr.h"
#include "parallel/comm/collectives.h"

static void put(json_t *object, const char *key, json_t *value)
{
    (void)json_object_set_new(object, key, value);
}

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
        json_t *o = json_object(), *params = json_array();
        int64_t shard = unit->shard_elements * (int64_t)sizeof(float);

        for (int i = 0; i < unit->n_params; i++) {
            const struct tt_param *param = &v->job.model->params[unit->params[i].param];

            (void)json_array_append_new(params, json_string(param->name));
        }
        put(o, "name", json_string(unit->name));
        put(o, "parameters", json_integer(tt_summary_unit_elements(v->job.model, unit)));
        put(o, "bytes", json_integer(shard * tt_unit_shard(l, u).n));
        put(o, "shard_bytes", json_integer(shard));
        put(o, "after_forward", json_string(tt_plan_unit_fate(l, unit)));
        put(o, "names", params);
        (void)json_array_append_new(list, o);
    }
    return list;
}

/* Every set of units whose collectives are issued as one, once. */
static json_t *buckets(const struct tt_plan_view *v)
{
    const struct tt_summary *s = &v->summary;
    json_t *list = json_array(), *known = json_object(); /* sets by the text of their numbers */

    for (int i = 0; i < s->n_collectives; i++) {
        const struct tt_summary_collective *c = &s->collectives[i];
        struct tt_text key = {0};

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
        json_t *o = json_object();

        put(o, "op", json_string(tt_purpose_row(c->purpose)->name));
        put(o, "units", unit_names(l, c->units, c->n_units));
        put(o, "count", json_integer(c->count));
        put(o, "shard_bytes", json_integer(c->shard_bytes));
        put(o, "payload_bytes", json_integer(c->payload_bytes));
        put(o, "predicted_s", tt_json_number(tt_cost_transfer_sec(&v->machine, s->program, c->first)));
        (void)json_array_append_new(list, o);
    }
    return list;
}

static json_t *memory(const struct tt_plan_view *v)
{
    const struct tt_engine_memory *m = &v->summary.memory;
    struct tt_text peak = {0};
    json_t *o = json_object(), *timeline = json_array();

    tt_plan_peak_text(v, &peak);
    put(o, "peak_bytes", json_integer(m->total));
    put(o, "peak_instruction", json_string(peak.text));
    put(o, "by_kind", tt_summary_by_kind(m));
    put(o, "state_bytes", json_integer(m->state));
    put(o, "constant_bytes", json_integer(m->constants));
    put(o, "step_bytes", json_integer(m->step));
    for (int i = 0; i < v->summary.program->n_instrs; i++)
        (void)json_array_append_new(timeline, json_integer(tt_summary_live_bytes(&v->summary, i)));
    put(o, "timeline", timeline);
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
    json_t *o = json_object();

    put(o, "step_s", tt_json_number(v->time.step_sec));
    put(o, "compute_s", tt_json_number(v->time.compute_sec));
    put(o, "comm_s", tt_json_number(v->time.transfer_sec));
    put(o, "exposed_s", tt_json_number(v->time.exposed_sec));
    put(o, "machine", json_string(v->machine.name));
    return o;
}

json_t *tt_plan_json(const struct tt_plan_view *v)
{
    const struct tt_layout *l = tt_engine_layout(v->engine);
    struct tt_text policies = {0};
    json_t *o = json_object();

    tt_job_policies_text(v->cfg, &policies);
    put(o, "type", json_string("plan"));
    put(o, "schema", json_integer(1));
    put(o, "model",
        json_pack("{s:s, s:s, s:I}", "name", v->job.model->row->name, "flavor", v->job.model->flavor, "parameters",
                  (json_int_t)tt_model_n_elements(v->job.model)));
    put(o, "mesh",
        json_pack("{s:i, s:i, s:i, s:i}", "ranks", v->job.mesh.n_ranks, "rank", v->rank, "dp_replicate",
                  l->groups[TT_GROUP_REPLICATE].n, "dp_shard", l->groups[TT_GROUP_FSDP].n));
    put(o, "policies", json_string(policies.text));
    put(o, "microbatches", json_integer(v->job.microbatches));
    put(o, "global_batch_size", json_integer(v->job.global_batch));
    put(o, "threads", json_integer(v->job.engine.threads));
    put(o, "units", units(v));
    put(o, "buckets", buckets(v));
    put(o, "collectives", collectives(v));
    put(o, "gathers", json_integer(tt_summary_count(&v->summary, TT_ALL_GATHER)));
    put(o, "reduces", json_integer(tt_summary_count(&v->summary, TT_REDUCE_SCATTER)));
    put(o, "all_reduces", json_integer(tt_summary_count(&v->summary, TT_ALL_SUM)));
    put(o, "payload_bytes_per_step", json_integer(tt_program_payload(v->summary.program)));
    put(o, "memory", memory(v));
    put(o, "predicted", predicted(v));
    put(o, "checkpoint", tt_plan_checkpoint_json(v));
    put(o, "n_instructions", json_integer(v->summary.program->n_instrs));
    if (v->instructions)
        put(o, "instructions", instructions(v));
    tt_text_release(&policies);
    return o;
}
