/* SPDX-License-Identifier: MIT
 *
 * The same as JSON: the names of the screen, seconds and bytes.
 */
#include "cli/cli.h"
#include "cli/cluster/screen/screen.h"
#include "cluster/model/pipeline.h"

static const char *const fit_words[] = {[TT_FIT_YES] = "fits", [TT_FIT_TIGHT] = "tight", [TT_FIT_NO] = "does not fit"};

/* Layers of each stage, if the configuration lists them. */
static json_t *layers_json(const struct tt_cluster_job *j)
{
    json_t *list = j->stage_layers ? json_array() : json_null();

    for (int i = 0; j->stage_layers && i < (int)(j->pp * j->virtual_stages); i++)
        (void)json_array_append_new(list, json_real(j->stage_layers[i]));
    return list;
}

static json_t *layout_json(const struct tt_cluster_layout *l)
{
    static const char *const again[] = {
        [TT_AGAIN_NONE] = "none",           [TT_AGAIN_OP] = "op",           [TT_AGAIN_LAYERS] = "layers",
        [TT_AGAIN_ATTENTION] = "attention", [TT_AGAIN_MODULES] = "modules", [TT_AGAIN_FULL] = "full"};
    const struct tt_cluster_job *j = &l->job;
    struct tt_text modules = {0};
    json_t *o;

    o = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:f, s:o, s:f, s:f, s:s, s:b, s:b}", "dp_replicate",
                  j->replicate, "dp_shard", j->shard, "tp", j->tp, "pp", j->pp, "cp", j->cp, "ep", j->ep, "expert_tp",
                  tt_cluster_expert_tp(j), "schedule",
                  j->pp > 1 ? json_string(tt_cluster_schedule_name(j)) : json_null(), "stages_per_rank",
                  j->virtual_stages, "stage_layers", layers_json(j), "micro_batch", j->micro_batch, "microbatches",
                  j->n_micro, "recompute", again[j->again], "keep_gathered", j->keep_gathered, "float8", j->float8);
    if (j->again == TT_AGAIN_MODULES) {
        tt_cluster_module_names(j->again_modules, &modules);
        (void)json_object_set_new(o, "recompute_modules", json_string(modules.text));
    }
    tt_text_release(&modules);
    return o;
}

static json_t *memory_json(const struct tt_cluster_memory *m)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i}", "state", m->state, "gathered", m->buffers,
                     "activations", m->activations, "logits", m->logits, "communicators", m->communicators, "context",
                     m->context, "allocator", m->allocator, "total", m->total, "usable", m->usable, "stage", m->stage);
}

static json_t *prediction_json(const struct tt_cluster_layout *l)
{
    return json_pack("{s:o, s:s, s:o, s:f, s:f}", "layout", layout_json(l), "fit",
                     fit_words[tt_cluster_fits(&l->memory)], "memory_bytes", memory_json(&l->memory), "step_s",
                     l->time.total, "tokens_per_s_per_device", l->tokens_per_sec);
}

static json_t *changes_json(const struct tt_cluster_view *view)
{
    json_t *list = json_array();

    for (int i = 0; i < view->n_changes; i++) {
        json_t *o = prediction_json(&view->change[i].layout);

        (void)json_object_update_new(
            o, json_pack("{s:s, s:f}", "change", view->change[i].text, "gain", view->change[i].gain));
        (void)json_array_append_new(list, o);
    }
    return list;
}

static json_t *course_json(const struct tt_cluster_course *c)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "tokens", c->tokens, "steps", c->steps,
                     "days", c->days, "device_hours", c->device_hours, "goodput", c->goodput, "failures", c->failures,
                     "hours_between_failures", c->failure_hours, "checkpoint_bytes", c->checkpoint_bytes,
                     "checkpoint_write_s", c->write_sec, "checkpoint_blocked_s", c->blocked_sec,
                     "checkpoint_interval_steps", c->interval_steps);
}

static json_t *evidence_json(const struct tt_cluster_view *view)
{
    json_t *list = json_array();

    for (int i = 0; i < view->n_near; i++)
        (void)json_array_append_new(
            list, json_pack("{s:o, s:s, s:s, s:f, s:f, s:o}", "id", tt_json_string(view->near[i]->id), "stack",
                            view->near[i]->job.stack->name, "machine", view->near[i]->job.machine->name, "devices",
                            tt_cluster_devices(&view->near[i]->job), "measured_s", view->near[i]->sec, "error",
                            tt_json_number(view->near_error[i])));
    return list;
}

json_t *tt_cluster_parts_json(const struct tt_cluster_time *t)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "gemm", t->gemm, "attention",
                     t->attention, "memory", t->memory, "host", t->host, "tensor", t->tensor, "context", t->context,
                     "expert", t->expert, "data", t->data, "pipeline", t->pipeline, "bubble", t->bubble, "optimizer",
                     t->optimizer, "noise", t->noise);
}

/* Bytes of a rank of each stage; null if titan planned the job. */
static json_t *stages_json(const struct tt_cluster_view *view)
{
    json_t *list = json_array();

    if (view->planned) {
        json_decref(list);
        return json_null();
    }
    for (int i = 0; i < (int)view->layout.job.pp; i++) {
        struct tt_cluster_memory m;

        tt_cluster_stage_peak(&view->layout.job, i, &m);
        (void)json_array_append_new(list, json_real(m.total));
    }
    return list;
}

json_t *tt_cluster_json(const struct tt_cluster_view *view)
{
    const struct tt_cluster_layout *l = &view->layout;
    double flops = tt_cluster_token_flops(&l->job.shape, l->job.seq_len) * l->tokens_per_sec;
    json_t *o = prediction_json(l);

    (void)json_object_update_new(
        o, json_pack("{s:o, s:f, s:s, s:s, s:f, s:[ff], s:o, s:s, s:f, s:f}", "model", tt_json_string(view->model),
                     "parameters", tt_cluster_params(&l->job.shape), "machine", l->job.machine->name, "stack",
                     l->job.stack->name, "devices", tt_cluster_devices(&l->job), "step_80_percent_s",
                     l->time.total * (1 - view->below), l->time.total * (1 + view->above), "parts_s",
                     tt_cluster_parts_json(&l->time), "limited_by", tt_cluster_dominant(&l->time),
                     "model_flops_per_s_per_device", flops, "mfu", flops / tt_cluster_peak_flops(&l->job)));
    (void)json_object_update_new(o, json_pack("{s:b, s:o, s:o, s:o, s:o}", "memory_planned", view->planned,
                                              "stage_bytes", stages_json(view), "changes", changes_json(view), "run",
                                              course_json(&view->course), "evidence", evidence_json(view)));
    return o;
}

json_t *tt_cluster_found_json(const struct tt_cluster_found *found, double devices)
{
    json_t *list = json_array();

    for (int i = 0; i < found->n; i++)
        (void)json_array_append_new(list, prediction_json(&found->layout[i]));
    return json_pack("{s:f, s:I, s:I, s:I, s:i, s:f, s:o}", "devices", devices, "tried", (json_int_t)found->n_tried,
                     "fit", (json_int_t)found->n_fit, "tight", (json_int_t)found->n_tight, "ties", found->n_ties,
                     "least_bytes", found->least_bytes, "layouts", list);
}
