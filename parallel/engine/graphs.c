/* SPDX-License-Identifier: MIT
 *
 * From a model to the graphs that the engine runs.
 */
#include "parallel/engine/graphs.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/graph/divide.h"
#include "core/graph/divide_experts.h"
#include "core/graph/phases.h"

/* Notes the whole gradient of each parameter, in the stage that reads it; for a tied one that of the embedding. */
static void note_gradients(const struct tt_stage *stage, int *param_grad)
{
    for (int v = 0; v < stage->graph->n_values; v++) {
        const struct tt_value *value = &stage->graph->values[v];

        if (value->kind == TT_VALUE_PARAM && value->part == 0)
            param_grad[value->param] = stage->grad[v];
    }
}

/* How a graph is divided among ranks. */
struct parts {
    struct tt_divisions layers;
    struct tt_experts_division experts;
};

/* How a rank of the mesh divides a graph; {0}: it does not. */
static struct parts parts_of(const struct tt_engine_options *o, int rank)
{
    const struct tt_mesh *mesh = &o->mesh;
    struct tt_place tp = tt_mesh_place(mesh, rank, TT_GROUP_TP), cp = tt_mesh_place(mesh, rank, TT_GROUP_CP);
    struct tt_place ep = tt_mesh_place(mesh, rank, TT_GROUP_EP);
    struct parts parts = {0};

    if (mesh->tp_grains > 1)
        parts.layers.tp = (struct tt_division){{TT_AXIS_TP, tp.n, tp.index}, mesh->tp_grains};
    if (mesh->cp_grains > 1)
        parts.layers.cp = (struct tt_division){{TT_AXIS_CP, cp.n, cp.index}, mesh->cp_grains};
    parts.layers.mirrored = mesh->cp_mirrored;
    parts.layers.gathers = mesh->cp_gathers;
    if (ep.n > 1)
        parts.experts = (struct tt_experts_division){.peers = {TT_AXIS_EP, ep.n, ep.index},
                                                     .window = o->moe_window > 0.0 ? o->moe_window : TT_MOE_WINDOW,
                                                     .round_leaves = o->reduce_dtype == TT_BF16};
    return parts;
}

static bool divides_layers(const struct parts *parts)
{
    return parts->layers.tp.grains > 1 || parts->layers.cp.grains > 1;
}

/* This rank's part of the model's forward graph. */
static int divided_model(const struct tt_engine_options *o, const struct parts *parts, int64_t batch, int64_t seq_len,
                         struct tt_graph **ret_graph)
{
    struct tt_graph *whole = NULL, *part = NULL;
    int rc = 0;

    if (parts->layers.tp.peers.n > 1 && o->model->dims.moe.experts && parts->experts.peers.n <= 1)
        return tt_fail_key(TT_EUSAGE, TT_KEY_TP_DEGREE,
                           "%d, but tensor parallelism does not divide experts\nhelp: set %s to a multiple of it",
                           parts->layers.tp.peers.n, tt_key_name(TT_KEY_EP_DEGREE));
    TT_TRY(tt_model_graph(o->model, TT_GRAPH_VALIDATE, o->param_dtype, batch, seq_len, o->documents, &whole, NULL));
    if (divides_layers(parts)) {
        TT_TRY(tt_graph_divide(whole, &parts->layers, &part));
        tt_graph_free(whole);
        whole = part;
    }
    TT_TRY(tt_graph_divide_experts(whole, &parts->experts));
    *ret_graph = whole;
    whole = NULL;
out:
    tt_graph_free(whole);
    return rc;
}

/* param_grad: NULL for the forward pass alone. */
static int cut_model(const struct tt_engine_options *o, const struct parts *parts, int n_stages, int64_t batch,
                     int64_t seq_len, struct tt_stage *stages, int *param_grad)
{
    struct tt_graph *graph = NULL;
    int *stage_of = NULL, rc = 0;

    TT_TRY(divided_model(o, parts, batch, seq_len, &graph));
    stage_of = tt_calloc((size_t)graph->n_nodes, sizeof *stage_of);
    if (o->places)
        tt_graph_stages_by_place(graph, o->model, o->places, stage_of);
    else
        tt_graph_stages_by_block(graph, n_stages, stage_of);
    TT_TRY(tt_graph_cut(graph, stage_of, n_stages, stages));
    if (!param_grad)
        goto out;
    TT_TRY(tt_stages_differentiate(stages, n_stages));
    for (int p = 0; p < o->model->n_params; p++)
        param_grad[p] = TT_NONE;
    for (int s = 0; s < n_stages; s++)
        note_gradients(&stages[s], param_grad);
out:
    tt_free(stage_of);
    tt_graph_free(graph);
    return rc;
}

static int check_gradients(const struct tt_model *model, const int *param_grad)
{
    for (int p = 0; p < model->n_params; p++)
        if (param_grad[p] == TT_NONE && !model->params[p].frozen)
            return tt_fail(TT_EINTERNAL, "parameter %s has no gradient", model->params[p].name);
    return 0;
}

/* Releases the stages of other ranks and notes which neighbours are on them. Returns the number of those that stay. */
static int keep_own(const struct tt_stage_places *places, int pp, struct tt_stage *stages)
{
    int own = 0;

    for (int s = 0; s < places->n_stages; s++) {
        int before = s > 0 ? places->rank_of_stage[s - 1] : pp;
        int after = s + 1 < places->n_stages ? places->rank_of_stage[s + 1] : pp;

        if (places->rank_of_stage[s] != pp) {
            tt_stages_release(&stages[s], 1);
            continue;
        }
        stages[s].before = (struct tt_stage_neighbour){before != pp, before};
        stages[s].after = (struct tt_stage_neighbour){after != pp, after};
        if (own != s) {
            stages[own] = stages[s];
            memset(&stages[s], 0, sizeof stages[s]);
        }
        own++;
    }
    return own;
}

/* Completes the graph of a stage; the head's phases come last. */
static int finish(const struct tt_engine_options *o, bool trains, struct tt_graph *graph)
{
    int rc = 0;

    if (trains) {
        TT_TRY(tt_graph_add_z_loss(graph, (float)o->z_loss));
        TT_TRY(tt_graph_add_router_losses(graph, &o->router_losses));
        tt_graph_recompute(graph, &o->recompute);
        if (o->reduce == TT_REDUCE_LAST)
            TT_TRY(tt_graph_carry_gradients(graph));
    }
    TT_TRY(tt_graph_phase_head(graph));
out:
    return rc;
}

int tt_engine_graphs(const struct tt_engine_options *o, int rank, enum tt_graph_mode mode, int64_t batch,
                     int64_t seq_len, struct tt_stage **ret_stages, int *ret_n)
{
    struct parts parts = parts_of(o, rank);
    bool trains = mode == TT_GRAPH_TRAIN;
    int *param_grad = trains ? tt_calloc((size_t)o->model->n_params, sizeof *param_grad) : NULL, rc = 0;
    int n = o->places ? o->places->n_stages : o->n_stages;
    struct tt_stage *stages = tt_calloc((size_t)n, sizeof *stages);

    if (n == 1 && !divides_layers(&parts) && parts.experts.peers.n == 0)
        TT_TRY(
            tt_model_graph(o->model, mode, o->param_dtype, batch, seq_len, o->documents, &stages[0].graph, param_grad));
    else
        TT_TRY(cut_model(o, &parts, n, batch, seq_len, stages, param_grad));
    if (trains)
        TT_TRY(check_gradients(o->model, param_grad));
    if (o->places)
        n = keep_own(o->places, tt_mesh_place(&o->mesh, rank, TT_GROUP_PP).index, stages);
    for (int s = 0; s < n; s++)
        TT_TRY(finish(o, trains, stages[s].graph));
    *ret_stages = stages;
    *ret_n = n;
    stages = NULL;
out:
    if (stages)
        tt_stages_release(stages, n);
    tt_free(stages);
    tt_free(param_grad);
    return rc;
}
