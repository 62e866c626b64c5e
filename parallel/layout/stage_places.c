/* SPDX-License-Identifier: MIT
 *
 * The stages of a pipeline, by module.
 */
#include "parallel/layout/stage_places.h"

#include <string.h>

#include "core/base/mem.h"

int tt_model_modules(const struct tt_model *model)
{
    return (int)model->dims.n_layers + 3;
}

static bool is_output(const struct tt_model *model, int param, int part)
{
    return part == 1 || strncmp(model->params[param].name, "output.", 7) == 0;
}

static int module_of(const struct tt_model *model, int param, int part)
{
    int block = model->params[param].block, last = tt_model_modules(model) - 1;

    if (is_output(model, param, part))
        return last;
    return block >= 0 ? 1 + block : block == TT_BLOCK_HEAD ? last - 1 : 0;
}

int tt_param_stage(const struct tt_stage_places *places, const struct tt_model *model, int param, int part)
{
    return places ? places->module_stage[module_of(model, param, part)] : 0;
}

int tt_param_pp(const struct tt_stage_places *places, const struct tt_model *model, int param)
{
    return places ? places->rank_of_stage[tt_param_stage(places, model, param, 0)] : 0;
}

/* The module of a node that is in no block. The embeddings come before all blocks, norm and output after them. */
static int module_outside(const struct tt_graph *graph, const struct tt_model *model, const struct tt_node *node,
                          bool after)
{
    int last = tt_model_modules(model) - 1;

    for (int i = 0; i < node->n_in; i++) {
        const struct tt_value *in = node->in[i] == TT_NONE ? NULL : &graph->values[node->in[i]];

        if (after && in && in->kind == TT_VALUE_PARAM && is_output(model, in->param, in->part))
            return last;
    }
    return after ? last - 1 : 0;
}

void tt_graph_stages_by_place(const struct tt_graph *graph, const struct tt_model *model,
                              const struct tt_stage_places *places, int *ret_stage_of)
{
    bool after = false;
    int most = 0;

    for (int n = 0; n < graph->n_nodes; n++) {
        const struct tt_node *node = &graph->nodes[n];
        /* rows are gathered where they are read, so that the ranks of the stage before send only their own */
        const struct tt_node *reader = node->op == TT_OP_GATHER_ROWS && n + 1 < graph->n_nodes ? node + 1 : node;
        int module = node->block == TT_NONE ? module_outside(graph, model, reader, after) : 1 + node->block;

        after = after || node->block != TT_NONE;
        most = module > most ? module : most; /* what follows the output belongs to it */
        ret_stage_of[n] = places->module_stage[most];
    }
}

void tt_stage_places_release(struct tt_stage_places *places)
{
    tt_free(places->module_stage);
    *places = (struct tt_stage_places){0};
}
