/* SPDX-License-Identifier: MIT
 *
 * stagecheck
 *
 * Cuts every graph of cases.c into stages, at every node, and runs the stages one after the other, forward and
 * backward, in separate memory. They must give the losses and gradients of the whole graph, to the bit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/passes/autodiff.h"
#include "core/passes/stage.h"
#include "tests/grad/cases.h"
#include "tests/grad/interp.h"

enum { MAX_STAGES = 3, MESSAGES = 4 };

struct test {
    const char *name;
    void (*build)(struct tt_graph *graph);
    bool bf16;
    struct tt_team *team;
    struct tt_graph *graph; /* whole */
    struct interp *interp;
    int *grad;
    struct tt_stage stages[MAX_STAGES];
    struct interp *parts[MAX_STAGES];
    int n_stages, cuts, failures;
};

static void fail(struct test *test, const char *what, const char *value)
{
    if (test->failures++ < MESSAGES)
        printf("# %s: %s of '%s' differs\n", test->name, what, value);
}

static void must(int rc)
{
    if (rc < 0) {
        printf("# %s\n", tt_error_message());
        abort();
    }
}

static int *differentiated(struct tt_graph *graph)
{
    const struct tt_seed loss = {graph->token_loss, TT_GRAD_OF_LOSS};
    int *grad = tt_calloc((size_t)graph->n_values, sizeof *grad);

    must(tt_graph_differentiate(graph, &loss, 1, grad));
    return grad;
}

static int64_t bytes(const struct tt_graph *graph, int value)
{
    return tt_value_bytes(&graph->values[value]);
}

static bool is_leaf(const struct tt_value *value)
{
    return value->kind == TT_VALUE_PARAM || value->kind == TT_VALUE_INPUT || value->kind == TT_VALUE_CONST;
}

/* The parameter, input or constant of the whole graph that this is a copy of. */
static int original(const struct test *test, const struct tt_value *copy)
{
    int v = 0;

    while (test->graph->values[v].kind != copy->kind || test->graph->values[v].param != copy->param ||
           strcmp(test->graph->values[v].name, copy->name) != 0)
        v++;
    return v;
}

static void begin_stage(struct test *test, int s)
{
    struct tt_graph *graph = test->stages[s].graph;

    test->parts[s] = interp_new(graph, false);
    test->parts[s]->scalars = test->interp->scalars;
    for (int v = 0; v < graph->n_values; v++)
        if (is_leaf(&graph->values[v]))
            memcpy(test->parts[s]->data[v], test->interp->data[original(test, &graph->values[v])],
                   (size_t)bytes(graph, v));
}

static void move(struct test *test, int from_stage, int from, int to_stage, int to)
{
    memcpy(test->parts[to_stage]->data[to], test->parts[from_stage]->data[from],
           (size_t)bytes(test->stages[to_stage].graph, to));
}

static void run_stages(struct test *test)
{
    struct tt_stage *stages = test->stages;

    for (int s = 0; s < test->n_stages; s++) {
        (void)interp_run(test->parts[s], test->team, INTERP_FORWARD);
        for (int i = 0; i < stages[s].n_out; i++)
            move(test, s, stages[s].out[i].value, s + 1, stages[s + 1].in[i].value);
    }
    for (int s = test->n_stages - 1; s >= 0; s--) {
        for (int i = 0; i < stages[s].n_out; i++)
            if (stages[s].out[i].grad != TT_NONE)
                move(test, s + 1, stages[s + 1].in[i].grad, s, stages[s].out[i].grad);
        (void)interp_run(test->parts[s], test->team, INTERP_BACKWARD);
    }
}

/* The stage's gradient of a parameter of the whole graph, or NULL. */
static const float *stage_gradient(const struct test *test, int s, int param)
{
    const struct tt_stage *stage = &test->stages[s];

    for (int v = 0; v < stage->graph->n_values; v++) {
        const struct tt_value *value = &stage->graph->values[v];

        if (value->kind == TT_VALUE_PARAM && original(test, value) == param && stage->grad[v] != TT_NONE)
            return test->parts[s]->data[stage->grad[v]];
    }
    return NULL;
}

/* Compares the sum over all stages that read the parameter: to the bit if there is one, up to rounding if there are
 * several. */
static void compare_gradient(struct test *test, int param)
{
    const struct tt_value *value = &test->graph->values[param];
    int64_t n = tt_value_elements(value);
    const float *whole = test->interp->data[test->grad[param]];
    double *sum = tt_calloc((size_t)n, sizeof *sum), size = 0.0;
    bool good = true;
    int found = 0;

    for (int s = 0; s < test->n_stages; s++) {
        const float *part = stage_gradient(test, s, param);

        for (int64_t i = 0; part && i < n; i++)
            sum[i] += (double)part[i];
        found += part != NULL;
    }
    for (int64_t i = 0; i < n; i++)
        size = fmax(size, fabs((double)whole[i]));
    for (int64_t i = 0; i < n; i++)
        good = good && fabs(sum[i] - (double)whole[i]) <= (found > 1 ? 1e-5 * size : 0.0);
    if (!good || found == 0)
        fail(test, "the gradient", value->name);
    tt_free(sum);
}

static void compare_loss(struct test *test)
{
    const struct tt_graph *last = test->stages[test->n_stages - 1].graph;

    if (last->token_loss == TT_NONE ||
        memcmp(test->parts[test->n_stages - 1]->data[last->token_loss], test->interp->data[test->graph->token_loss],
               (size_t)bytes(last, last->token_loss)) != 0)
        fail(test, "the loss", "token_loss");
}

static void build_graph(const struct test *test, struct tt_graph *graph)
{
    test->build(graph);
    if (test->bf16)
        interp_use_bf16(graph);
}

/* Cuts after node `first` and after node `second`, which is past the last node if there are two stages. */
static void check_cut(struct test *test, int first, int second)
{
    struct tt_graph *graph = tt_graph_new();
    int *stage_of;

    build_graph(test, graph);
    stage_of = tt_calloc((size_t)graph->n_nodes, sizeof *stage_of);
    for (int n = 0; n < graph->n_nodes; n++)
        stage_of[n] = (n > first) + (n > second);
    test->n_stages = 1 + stage_of[graph->n_nodes - 1];
    must(tt_graph_cut(graph, stage_of, test->n_stages, test->stages));
    must(tt_stages_differentiate(test->stages, test->n_stages));
    for (int s = 0; s < test->n_stages; s++)
        begin_stage(test, s);
    run_stages(test);
    compare_loss(test);
    for (int v = 0; v < test->graph->n_values; v++)
        if (test->graph->values[v].kind == TT_VALUE_PARAM && !test->graph->values[v].constant)
            compare_gradient(test, v);
    for (int s = 0; s < test->n_stages; s++)
        interp_free(test->parts[s]);
    tt_stages_release(test->stages, test->n_stages);
    tt_free(stage_of);
    tt_graph_free(graph);
    test->cuts++;
}

static bool run_case(const struct grad_case *one, bool bf16, struct tt_team *team)
{
    struct test test = {.name = one->name, .build = one->build, .bf16 = bf16, .team = team, .graph = tt_graph_new()};
    struct interp_draw draw = {.rng = tt_rng_make(7, one->name)};
    int n_nodes;

    build_graph(&test, test.graph);
    n_nodes = test.graph->n_nodes;
    test.grad = differentiated(test.graph);
    test.interp = interp_new(test.graph, false);
    interp_fill(test.interp, &draw);
    (void)interp_run(test.interp, team, INTERP_ALL);
    for (int first = -1; first < n_nodes - 1; first++) /* -1: one stage */
        check_cut(&test, first < 0 ? n_nodes : first, n_nodes);
    for (int first = 0; first + 2 < n_nodes; first += 2)
        check_cut(&test, first, (first + n_nodes) / 2 < n_nodes - 1 ? (first + n_nodes) / 2 : first + 1);
    printf("%s - %s%s: %d cuts\n", test.failures ? "not ok" : "ok", test.name, bf16 ? " in bfloat16" : "", test.cuts);
    interp_free(test.interp);
    tt_graph_free(test.graph);
    tt_free(test.grad);
    return test.failures == 0;
}

static bool refused(int rc, const char *text)
{
    bool good = rc == TT_EINTERNAL && strstr(tt_error_message(), text);

    if (!good)
        printf("# wanted '%s', got %d\n", text, rc);
    return good;
}

/* A stage that reads a later stage's result, a stage that does not exist, a graph that is already differentiated, and
 * two seeds for one value are refused. */
static bool check_errors(void)
{
    const struct grad_case *one = &grad_cases[n_grad_cases - 1];
    struct tt_graph *graph = tt_graph_new();
    struct tt_stage stages[2];
    struct tt_seed seeds[2];
    int *stage_of, *grad;
    bool good;

    one->build(graph);
    stage_of = tt_calloc((size_t)graph->n_nodes, sizeof *stage_of);
    stage_of[0] = 1;
    good = refused(tt_graph_cut(graph, stage_of, 2, stages), "stage 0 reads 'y', which stage 1 makes");
    stage_of[0] = 2;
    good = refused(tt_graph_cut(graph, stage_of, 2, stages), "node 0 is in stage 2 of 2") && good;
    stage_of[0] = 0;
    seeds[0] = seeds[1] = (struct tt_seed){graph->token_loss, TT_GRAD_OF_LOSS};
    grad = tt_calloc((size_t)graph->n_values, sizeof *grad);
    good = refused(tt_graph_differentiate(graph, seeds, 2, grad), "two seeds for 'y'") && good;
    seeds[0].value = graph->nodes[0].out[0];
    good =
        refused(tt_graph_differentiate(graph, seeds, 1, grad), "op embedding has no backward rule as the loss") && good;
    tt_free(grad);
    grad = differentiated(graph);
    tt_free(stage_of);
    stage_of = tt_calloc((size_t)graph->n_nodes, sizeof *stage_of);
    good = refused(tt_graph_cut(graph, stage_of, 2, stages), "before it is differentiated") && good;
    printf("%s - cuts and seeds that make no sense are refused\n", good ? "ok" : "not ok");
    tt_free(stage_of);
    tt_free(grad);
    tt_graph_free(graph);
    return good;
}

int main(void)
{
    struct tt_team *team = NULL;
    bool good = true;

    must(tt_team_new(1, &team));
    for (int i = 0; i < n_grad_cases; i++)
        if (strncmp(grad_cases[i].name, "linears", 7) != 0) /* their gradient is one node, which is in one stage */
            good = run_case(&grad_cases[i], false, team) && good;
    for (int i = 0; i < n_grad_cases; i++) /* graphs that begin with tokens: activations are made by stages */
        if (strncmp(grad_cases[i].name, "embedding", 9) == 0 || strncmp(grad_cases[i].name, "llama", 5) == 0)
            good = run_case(&grad_cases[i], true, team) && good;
    good = check_errors() && good;
    tt_team_free(team);
    return good ? 0 : 1;
}
