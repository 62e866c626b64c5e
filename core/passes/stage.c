/* SPDX-License-Identifier: MIT
 *
 * Cuts a forward graph into stages. Nodes keep their order and their blocks. A value is copied into a stage when the
 * first of its nodes reads it; if another stage produces it, it is also copied into the stages in between.
 */
#include "core/passes/stage.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/ops/rule.h"
#include "core/passes/autodiff.h"

struct cut {
    const struct tt_graph *whole;
    struct tt_stage *stages;
    int n_stages;
    int *made_in; /* value -> the stage that produces it; TT_NONE: no node does */
    int *id;      /* stage * n_values + value -> the stage's own value; TT_NONE: not there yet */
};

static int *id_of(const struct cut *cut, int stage, int value)
{
    return &cut->id[(size_t)stage * (size_t)cut->whole->n_values + (size_t)value];
}

static int copy_value(const struct cut *cut, int stage, int value)
{
    const struct tt_graph *whole = cut->whole;
    const struct tt_value *from = &whole->values[value];
    struct tt_graph *graph = cut->stages[stage].graph;
    const int places[] = {whole->tokens,     whole->labels, whole->positions,       whole->rope_table,
                          whole->token_loss, whole->logits, whole->local_rope_table};
    int *const to[] = {&graph->tokens,     &graph->labels, &graph->positions,       &graph->rope_table,
                       &graph->token_loss, &graph->logits, &graph->local_rope_table};
    int id = tt_graph_value(graph, from->kind, from->dtype, from->name, from->ndim, from->shape);

    graph->values[id].param = from->param;
    graph->values[id].part = from->part;
    graph->values[id].constant = from->constant;
    graph->values[id].partial = from->partial;
    graph->values[id].tp = from->tp;
    graph->values[id].packing = from->packing;
    for (int i = 0; i < 7; i++)
        if (value == places[i])
            *to[i] = id;
    *id_of(cut, stage, value) = id;
    return id;
}

/* The stage's own id for a value that one of its nodes reads. If another stage produces the value, the stages pass it
 * on to this one. */
static int bring(struct cut *cut, int stage, int value)
{
    int made_in = cut->made_in[value];

    for (int s = made_in + 1; made_in != TT_NONE && s <= stage; s++) {
        struct tt_stage *from = &cut->stages[s - 1], *to = &cut->stages[s];

        if (*id_of(cut, s, value) != TT_NONE)
            continue;
        TT_PUSH(from->out, from->n_out, from->cap_out) = (struct tt_boundary){*id_of(cut, s - 1, value), TT_NONE};
        TT_PUSH(to->in, to->n_in, to->cap_in) = (struct tt_boundary){copy_value(cut, s, value), TT_NONE};
    }
    return *id_of(cut, stage, value) == TT_NONE ? copy_value(cut, stage, value) : *id_of(cut, stage, value);
}

static int copy_node(struct cut *cut, int node, int stage)
{
    struct tt_node copy = cut->whole->nodes[node];

    if (copy.backward)
        return tt_fail(TT_EINTERNAL, "a graph is cut into stages before it is differentiated");
    if (stage < 0 || stage >= cut->n_stages)
        return tt_fail(TT_EINTERNAL, "node %d is in stage %d of %d", node, stage, cut->n_stages);
    for (int i = 0; i < copy.n_in; i++) {
        if (copy.in[i] == TT_NONE)
            continue;
        if (cut->made_in[copy.in[i]] > stage)
            return tt_fail(TT_EINTERNAL, "stage %d reads '%s', which stage %d makes", stage,
                           cut->whole->values[copy.in[i]].name, cut->made_in[copy.in[i]]);
        copy.in[i] = bring(cut, stage, copy.in[i]);
    }
    for (int k = 0; k < copy.n_out; k++) {
        cut->made_in[copy.out[k]] = stage;
        copy.out[k] = copy_value(cut, stage, copy.out[k]);
    }
    tt_graph_append(cut->stages[stage].graph, &copy);
    return 0;
}

int tt_graph_cut(const struct tt_graph *graph, const int *stage_of, int n_stages, struct tt_stage *ret_stages)
{
    struct cut cut = {.whole = graph, .stages = ret_stages, .n_stages = n_stages};
    size_t n_values = (size_t)graph->n_values;
    const int inputs[] = {graph->tokens, graph->labels, graph->positions};
    int rc = 0;

    cut.made_in = tt_ids_new(n_values);
    cut.id = tt_ids_new((size_t)n_stages * n_values);
    for (int s = 0; s < n_stages; s++) {
        ret_stages[s] = (struct tt_stage){.number = s, .graph = tt_graph_new()};
        ret_stages[s].graph->dtype = graph->dtype;
        ret_stages[s].graph->documents = graph->documents;
        ret_stages[s].graph->rope = graph->rope;
        ret_stages[s].graph->local_rope = graph->local_rope;
        ret_stages[s].graph->cache_len = graph->cache_len;
    }
    for (int n = 0; n < graph->n_nodes; n++)
        TT_TRY(copy_node(&cut, n, stage_of[n]));
    for (int s = 0; s < n_stages; s++) /* every rank of a pipeline loads the samples, and counts their tokens */
        for (int i = 0; i < 3; i++)
            if (inputs[i] != TT_NONE)
                (void)bring(&cut, s, inputs[i]);
out:
    if (rc < 0)
        tt_stages_release(ret_stages, n_stages);
    tt_free(cut.made_in);
    tt_free(cut.id);
    return rc;
}

void tt_graph_stages_by_block(const struct tt_graph *graph, int n_stages, int *ret_stage_of)
{
    int n_blocks = 0, stage = 0;

    for (int n = 0; n < graph->n_nodes; n++)
        if (graph->nodes[n].block >= n_blocks)
            n_blocks = graph->nodes[n].block + 1;
    for (int n = 0; n < graph->n_nodes; n++) {
        int block = graph->nodes[n].block;

        if (block != TT_NONE)
            stage = (int)((int64_t)block * n_stages / n_blocks);
        else if (n > 0 && graph->nodes[n - 1].block != TT_NONE)
            stage = n_stages - 1;
        ret_stage_of[n] = stage;
    }
}

int tt_stages_differentiate(struct tt_stage *stages, int n_stages)
{
    struct tt_seed *seeds = NULL;
    int rc = 0;

    for (int s = n_stages - 1; s >= 0; s--) {
        struct tt_stage *stage = &stages[s];
        struct tt_graph *graph = stage->graph;
        int n = 0;

        seeds = tt_realloc(seeds, (size_t)stage->n_out + 1, sizeof *seeds);
        for (int i = 0; i < stage->n_out; i++) {
            if (stage[1].in[i].grad == TT_NONE)
                continue;
            stage->out[i].grad = tt_graph_grad_value(graph, stage->out[i].value);
            seeds[n++] = (struct tt_seed){stage->out[i].value, stage->out[i].grad};
        }
        if (graph->token_loss != TT_NONE)
            seeds[n++] = (struct tt_seed){graph->token_loss, TT_GRAD_OF_LOSS};
        stage->grad = tt_calloc((size_t)graph->n_values + 1, sizeof *stage->grad);
        TT_TRY(tt_graph_differentiate(graph, seeds, n, stage->grad));
        for (int i = 0; i < stage->n_in; i++)
            stage->in[i].grad = stage->grad[stage->in[i].value];
    }
out:
    tt_free(seeds);
    return rc;
}

void tt_stages_release(struct tt_stage *stages, int n_stages)
{
    for (int s = 0; s < n_stages; s++) {
        tt_graph_free(stages[s].graph);
        tt_free(stages[s].in);
        tt_free(stages[s].out);
        tt_free(stages[s].grad);
    }
    memset(stages, 0, (size_t)n_stages * sizeof *stages);
}
