/* SPDX-License-Identifier: MIT
 *
 * Lowering: several stages become one program. A value that leaves a stage and the one that enters the next stage are
 * the same, so they share a buffer, which lives for the readers of both. In the other direction the same is true of
 * gradients. Inputs and constants that several stages read share buffers too.
 */
#include "core/base/mem.h"
#include "core/program/lower/lowering.h"

/* --- stages that cannot be one program --- */

/* Whether stage s of the program continues in the next one of this rank. */
static bool continues(const struct tt_lowering *in, int s)
{
    return s >= 0 && s + 1 < in->n_stages && in->stages[s + 1].number == in->stages[s].number + 1;
}

static int check_neighbours(const struct tt_lowering *in)
{
    for (int s = 0; s < in->n_stages; s++) {
        const struct tt_stage *stage = &in->stages[s];
        int enter = continues(in, s - 1) ? in->stages[s - 1].n_out : 0;
        int leave = continues(in, s) ? in->stages[s + 1].n_in : 0;

        if ((!stage->before.apart && stage->n_in != enter) || (!stage->after.apart && stage->n_out != leave))
            return tt_fail(TT_EINTERNAL, "stage %d exchanges values with a stage that no rank has", stage->number);
    }
    return 0;
}

/* A gradient of a parameter accumulates in one place, but a second stage would overwrite it. */
static int check_gradients(const struct tt_lowering *in)
{
    int *made_in = tt_calloc(2 * (size_t)in->layout->n_params, sizeof *made_in); /* 2 * param + part -> 1 + stage */
    int rc = 0;

    for (int s = 0; s < in->n_stages; s++)
        for (int v = 0; v < in->stages[s].graph->n_values; v++) {
            const struct tt_value *value = &in->stages[s].graph->values[v];
            int *made;

            if (value->kind != TT_VALUE_PARAM_GRAD)
                continue;
            made = &made_in[2 * value->param + value->part];
            if (*made && *made != s + 1) {
                rc = tt_fail(TT_EINTERNAL, "stages %d and %d both make '%s'", *made - 1, s, value->name);
                goto out;
            }
            *made = s + 1;
        }
out:
    tt_free(made_in);
    return rc;
}

/* --- values that are the same --- */

static int number(const struct tt_walk *w, int stage, int value)
{
    return w->first_value[stage] + value;
}

static void join(struct tt_walk *w, int stage, int value, int with_stage, int with)
{
    if (value != TT_NONE && with != TT_NONE)
        w->same_as[number(w, stage, value)] = w->same_as[number(w, with_stage, with)];
}

/* A stage's inputs and constants are those of the first stage that has them. */
static void join_given(struct tt_walk *w, int stage)
{
    const struct tt_graph *graph = w->in.stages[stage].graph;

    for (int s = stage - 1; s >= 0; s--) {
        const struct tt_graph *before = w->in.stages[s].graph;

        join(w, stage, graph->tokens, s, before->tokens);
        join(w, stage, graph->labels, s, before->labels);
        join(w, stage, graph->positions, s, before->positions);
        join(w, stage, graph->rope_table, s, before->rope_table);
    }
}

/* Joins values from the first stage to the last, since a value may pass through a stage, and gradients the other
 * way. */
static void join_boundaries(struct tt_walk *w)
{
    const struct tt_stage *stages = w->in.stages;

    for (int s = 1; s < w->in.n_stages; s++)
        for (int i = 0; continues(&w->in, s - 1) && i < stages[s].n_in; i++)
            join(w, s, stages[s].in[i].value, s - 1, stages[s - 1].out[i].value);
    for (int s = w->in.n_stages - 2; s >= 0; s--)
        for (int i = 0; continues(&w->in, s) && i < stages[s].n_out; i++)
            join(w, s, stages[s].out[i].grad, s + 1, stages[s + 1].in[i].grad);
}

int tt_lower_join_stages(struct tt_walk *w)
{
    const struct tt_lowering *in = &w->in;
    int rc = 0;

    TT_TRY(check_neighbours(in));
    TT_TRY(check_gradients(in));
    w->first_value = tt_calloc((size_t)in->n_stages, sizeof *w->first_value);
    for (int s = 0; s < in->n_stages; s++) {
        w->first_value[s] = w->n_values;
        w->n_values += in->stages[s].graph->n_values;
        w->carries = w->carries || in->stages[s].graph->carries;
    }
    w->same_as = tt_calloc((size_t)w->n_values + 1, sizeof *w->same_as);
    for (int v = 0; v < w->n_values; v++)
        w->same_as[v] = v;
    for (int s = 1; s < in->n_stages; s++)
        join_given(w, s);
    join_boundaries(w);
out:
    return rc;
}
