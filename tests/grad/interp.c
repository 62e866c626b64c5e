/* SPDX-License-Identifier: MIT
 *
 * The simplest executor, for tests of ops.
 */
#include "tests/grad/interp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/math/bf16.h"
#include "core/ops/experts/router.h"

enum { CACHE_LINE = 64, UNDEFINED = 0xff /* every float a NaN */ };
static const int64_t GUARD_BYTES = 256;

static bool is_table(const struct tt_graph *graph, int value)
{
    for (int n = 0; n < graph->n_nodes; n++)
        if (graph->nodes[n].op == TT_OP_EMBEDDING && graph->nodes[n].in[1] == value)
            return true;
    return false;
}

void interp_use_bf16(struct tt_graph *graph)
{
    for (int v = 0; v < graph->n_values; v++) {
        struct tt_value *value = &graph->values[v];

        if (value->kind != TT_VALUE_PARAM || value->name[0] == 'f')
            continue;
        value->dtype = TT_BF16;
        if (value->name[0] == 'x' && !is_table(graph, v))
            value->kind = TT_VALUE_ACTIVATION;
    }
    for (int n = 0; n < graph->n_nodes; n++) {
        struct tt_node *node = &graph->nodes[n];

        for (int k = 0; k < node->n_out; k++)
            if (tt_op_row(node->op)->out[k] == TT_TYPE_COMPUTE)
                graph->values[node->out[k]].dtype = TT_BF16;
        if (tt_op_infer(graph, node, "") < 0) {
            printf("# %s\n", tt_error_message());
            abort();
        }
    }
}

double interp_element(const struct interp *interp, int value, int64_t i)
{
    if (interp->graph->values[value].dtype == TT_BF16)
        return (double)tt_bf16_to_float(((const tt_bf16 *)interp->data[value])[i]);
    return (double)((const float *)interp->data[value])[i];
}

static void set_element(struct interp *interp, int value, int64_t i, double x)
{
    if (interp->graph->values[value].dtype == TT_BF16)
        ((tt_bf16 *)interp->data[value])[i] = tt_bf16_from_float((float)x);
    else
        ((float *)interp->data[value])[i] = (float)x;
}

static int last_reader(const struct tt_graph *graph, int value)
{
    for (int n = graph->n_nodes - 1; n >= 0; n--) {
        for (int i = 0; i < graph->nodes[n].n_in; i++) {
            if (graph->nodes[n].in[i] == value)
                return n;
        }
    }
    return TT_NONE;
}

static bool made_by_node(const struct tt_graph *graph, int value)
{
    return graph->values[value].producer != TT_NONE;
}

/* Puts output k of a node into the memory of the input that its row names, if nothing reads that input later. */
static void take_over(struct interp *interp, int n, int k)
{
    const struct tt_node *node = &interp->graph->nodes[n];
    int alias = tt_op_row(node->op)->alias[k] - 1, from;

    if (alias < 0 || alias >= node->n_in || node->in[alias] == TT_NONE)
        return;
    from = node->in[alias];
    if (tt_value_bytes(&interp->graph->values[from]) != tt_value_bytes(&interp->graph->values[node->out[k]]))
        return;
    if (!made_by_node(interp->graph, from) || interp->gone[from] || last_reader(interp->graph, from) != n)
        return;
    interp->data[node->out[k]] = interp->data[from];
    interp->gone[from] = true;
}

struct interp *interp_new(struct tt_graph *graph, bool aliased)
{
    static const int64_t loads[] = {0, 0, 0, 0, 0, 7, 0, 2, 1, 5}; /* of two blocks with five experts */
    struct interp *interp = tt_calloc(1, sizeof *interp);
    size_t n = (size_t)graph->n_values;

    interp->graph = graph;
    interp->data = tt_calloc(n, sizeof *interp->data);
    interp->owned = tt_calloc(n, sizeof *interp->owned);
    interp->gone = tt_calloc(n, sizeof *interp->gone);
    interp->scalars.inv_valid_tokens = interp->scalars.inv_tokens = 1.0F;
    interp->scalars.loads = loads;
    for (int v = 0; v < graph->n_values; v++) {
        if (!made_by_node(graph, v))
            interp->owned[v] = true;
    }
    for (int node = 0; node < graph->n_nodes; node++) {
        for (int k = 0; k < graph->nodes[node].n_out; k++) {
            if (aliased)
                take_over(interp, node, k);
            interp->owned[graph->nodes[node].out[k]] = !interp->data[graph->nodes[node].out[k]];
            if (interp->owned[graph->nodes[node].out[k]]) {
                interp->data[graph->nodes[node].out[k]] =
                    tt_calloc(1, (size_t)tt_value_bytes(&graph->values[graph->nodes[node].out[k]]));
            }
        }
    }
    for (int v = 0; v < graph->n_values; v++) {
        if (!interp->data[v])
            interp->data[v] = tt_calloc(1, (size_t)tt_value_bytes(&graph->values[v]));
    }
    return interp;
}

void interp_free(struct interp *interp)
{
    if (!interp)
        return;
    for (int v = 0; v < interp->graph->n_values; v++) {
        if (interp->owned[v])
            tt_free(interp->data[v]);
    }
    tt_free(interp->data);
    tt_free(interp->owned);
    tt_free(interp->gone);
    tt_free(interp);
}

void interp_copy_leaves(struct interp *to, const struct interp *from)
{
    to->scalars = from->scalars;
    for (int v = 0; v < to->graph->n_values; v++) {
        if (!made_by_node(to->graph, v))
            memcpy(to->data[v], from->data[v], (size_t)tt_value_bytes(&to->graph->values[v]));
    }
}

double interp_normal(struct interp_draw *draw)
{
    return tt_rng_normal(&draw->rng, draw->drawn++, 3.0);
}

/* Documents of random lengths, some of them shorter than a vector. */
static void fill_positions(struct interp_draw *draw, const struct tt_value *value, int32_t *positions)
{
    uint64_t length = 3 + (uint64_t)value->shape[1] / 6;

    for (int64_t i = 0; i < tt_value_elements(value); i++) {
        bool begins = i % value->shape[1] == 0 || tt_rng_bits(&draw->rng, draw->drawn++) % length == 0;

        positions[i] = begins ? 0 : positions[i - 1] + 1;
    }
}

/* The rows of a table that tokens select. */
static int64_t vocabulary(const struct tt_graph *graph)
{
    int n = graph->token_loss == TT_NONE ? 0 : graph->values[graph->token_loss].producer;
    const struct tt_node *node = &graph->nodes[n];

    return node->attr.out.whole ? node->attr.out.whole : graph->values[node->in[1]].shape[0];
}

static void fill_value(struct interp *interp, struct interp_draw *draw, int v)
{
    const struct tt_graph *graph = interp->graph;
    const struct tt_value *value = &graph->values[v];
    int64_t n = tt_value_elements(value);
    bool drawn = value->kind == TT_VALUE_PARAM || (value->kind == TT_VALUE_ACTIVATION && value->producer == TT_NONE);
    int32_t *ids = interp->data[v];
    double spread = value->name[0] == 'w' ? 1.0 / sqrt((double)tt_value_width(value)) : 0.7;

    for (int64_t i = 0; i < n && drawn; i++)
        set_element(interp, v, i, value->ndim == 1 ? 1.0 + 0.3 * interp_normal(draw) : spread * interp_normal(draw));
    for (int64_t i = 0; i < n && value->kind == TT_VALUE_CONST; i++) { /* (T, E/2, 2) */
        int64_t position = i / 2 / value->shape[1], pair = i / 2 % value->shape[1];
        double angle = (double)position * pow(100.0, -(double)pair / (double)value->shape[1]);

        set_element(interp, v, i, i % 2 ? sin(angle) : cos(angle));
    }
    if (v == graph->positions)
        fill_positions(draw, value, ids);
    for (int64_t i = 0; i < n && value->kind == TT_VALUE_INPUT && v != graph->positions; i++) {
        ids[i] = (int32_t)(tt_rng_bits(&draw->rng, draw->drawn++) % (uint64_t)vocabulary(graph));
        if (v == graph->labels && i % 6 == 4)
            ids[i] = i % 12 == 4 ? TT_LABEL_PADDING : TT_LABEL_IGNORED;
    }
}

void interp_fill(struct interp *interp, struct interp_draw *draw)
{
    for (int v = 0; v < interp->graph->n_values; v++)
        fill_value(interp, draw, v);
}

static double seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool on_an_input(const struct tt_call *call, int k)
{
    for (int i = 0; i < call->node->n_in; i++) {
        if (call->in[i] == call->out[k])
            return true;
    }
    return false;
}

static void perturb(struct interp *interp, const struct tt_node *node)
{
    for (int k = 0; k < node->n_out; k++) {
        int out = node->out[k];

        for (int64_t i = 0;
             tt_op_row(node->op)->out[k] == TT_TYPE_COMPUTE && i < tt_value_elements(&interp->graph->values[out]);
             i++) {
            bool up = tt_rng_bits(&interp->signs.rng, interp->signs.drawn++) & 1U;

            set_element(interp, out, i,
                        interp_element(interp, out, i) * (1.0 + (up ? 1.0 : -1.0) * interp->perturbation));
        }
    }
}

static bool run_node(struct interp *interp, struct tt_team *team, const struct tt_node *node)
{
    const struct tt_op_row *row = tt_op_row(node->op);
    struct tt_call call = {.graph = interp->graph, .node = node, .scalars = &interp->scalars, .team = team};
    int64_t bytes = row->scratch_bytes ? row->scratch_bytes(interp->graph, node, tt_team_threads(team)) : 0;
    size_t size = (size_t)(bytes + 2 * GUARD_BYTES + CACHE_LINE);
    unsigned char *memory = tt_calloc(1, size), *scratch;
    struct tt_cost cost;
    bool inside = true;
    double begin;

    scratch = memory + GUARD_BYTES;
    scratch += (CACHE_LINE - (uintptr_t)scratch % CACHE_LINE) % CACHE_LINE;
    memset(memory, UNDEFINED, size);
    call.scratch = bytes ? scratch : NULL;
    for (int i = 0; i < node->n_in; i++)
        call.in[i] = node->in[i] == TT_NONE ? NULL : interp->data[node->in[i]];
    for (int k = 0; k < node->n_out; k++) {
        call.out[k] = interp->data[node->out[k]];
        if (!on_an_input(&call, k))
            memset(call.out[k], UNDEFINED, (size_t)tt_value_bytes(&interp->graph->values[node->out[k]]));
    }
    begin = seconds();
    row->run(&call);
    interp->op_seconds[node->op] += seconds() - begin;
    tt_op_cost(interp->graph, node, &cost);
    interp->op_flops[node->op] += cost.flops;
    if (interp->perturbation > 0.0)
        perturb(interp, node);
    for (int i = 0; i < GUARD_BYTES; i++)
        inside = inside && scratch[-1 - i] == UNDEFINED && scratch[bytes + i] == UNDEFINED;
    tt_free(memory);
    return inside;
}

bool interp_run_node(struct interp *interp, struct tt_team *team, int node)
{
    return run_node(interp, team, &interp->graph->nodes[node]);
}

bool interp_run(struct interp *interp, struct tt_team *team, enum interp_pass pass)
{
    bool inside = true;

    for (int n = 0; n < interp->graph->n_nodes; n++) {
        if (pass == INTERP_ALL || interp->graph->nodes[n].backward == (pass == INTERP_BACKWARD))
            inside = run_node(interp, team, &interp->graph->nodes[n]) && inside;
    }
    return inside;
}

/* The losses of all the forward pass's routers. */
static double router_losses(const struct interp *interp)
{
    double sum = 0.0;

    for (int n = 0; n < interp->graph->n_nodes; n++) {
        const struct tt_node *node = &interp->graph->nodes[n];
        const float *terms = node->op == TT_OP_ROUTER && node->n_out > 3 ? interp->data[node->out[3]] : NULL;
        int64_t tokens = terms ? tt_value_width(&interp->graph->values[node->out[3]]) : 0;

        for (int64_t t = 0; t < TT_ROUTER_LOSSES * tokens; t++)
            sum += (double)terms[t];
    }
    return sum * (double)interp->scalars.inv_tokens;
}

double interp_loss(const struct interp *interp)
{
    const struct tt_value *value = &interp->graph->values[interp->graph->token_loss];
    const float *loss = interp->data[interp->graph->token_loss];
    double sum = 0.0;

    for (int64_t i = 0; i < tt_value_elements(value); i++)
        sum += (double)loss[i];
    return sum * (double)interp->scalars.inv_valid_tokens + router_losses(interp);
}

int interp_first_difference(const struct interp *a, const struct interp *b)
{
    for (int v = 0; v < a->graph->n_values; v++) {
        if (!a->gone[v] && !b->gone[v] &&
            memcmp(a->data[v], b->data[v], (size_t)tt_value_bytes(&a->graph->values[v])) != 0)
            return v;
    }
    return TT_NONE;
}
