/* SPDX-License-Identifier: MIT
 *
 * Orders of compute: the nodes that turns stand for, and orders that cannot be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/models/model.h"
#include "core/program/order.h"

static struct tt_model *model;
static struct tt_graph *graph;

static struct tt_order order_of(const struct tt_turn *turns, int n)
{
    struct tt_order order = {0};

    for (int t = 0; t < n; t++)
        tt_order_add(&order, turns[t].microbatch, turns[t].stage, turns[t].pass);
    return order;
}

#define ORDER(...) \
    order_of((const struct tt_turn[]){__VA_ARGS__}, sizeof((struct tt_turn[]){__VA_ARGS__}) / sizeof(struct tt_turn))
#define F(mb)                  \
    {                          \
        mb, 0, TT_PASS_FORWARD \
    }
#define B(mb)                   \
    {                           \
        mb, 0, TT_PASS_BACKWARD \
    }
#define W(mb)                  \
    {                          \
        mb, 0, TT_PASS_WEIGHTS \
    }

static void accumulation_runs_the_graph_once_per_microbatch(void **state)
{
    struct tt_order order = tt_order_accumulate(3, true);
    struct tt_position *positions = NULL;
    int n = 0;

    assert_int_equal(tt_order_positions(&order, graph, &positions, &n), 0);
    assert_int_equal(n, 3 * graph->n_nodes);
    for (int pos = 0; pos < n; pos++) {
        assert_int_equal(positions[pos].microbatch, pos / graph->n_nodes);
        assert_int_equal(positions[pos].node, pos % graph->n_nodes);
        assert_int_equal(order.turns[positions[pos].turn].pass,
                         graph->nodes[positions[pos].node].backward ? TT_PASS_BACKWARD : TT_PASS_FORWARD);
    }
    tt_free(positions);
    tt_order_release(&order);
}

static bool writes_only_gradients_of_parameters(const struct tt_node *node)
{
    for (int k = 0; k < node->n_out; k++)
        if (graph->values[node->out[k]].kind != TT_VALUE_PARAM_GRAD)
            return false;
    return true;
}

/* Microbatch 0 has its weight part apart, microbatch 1 has not; every node comes once all the same. */
static void a_weight_part_is_what_only_parameters_wait_for(void **state)
{
    struct tt_order order = ORDER(F(0), F(1), B(0), B(1), W(0));
    struct tt_position *positions = NULL;
    int n = 0, parts = 0, *seen = tt_calloc(2 * (size_t)graph->n_nodes, sizeof *seen);

    assert_int_equal(tt_order_positions(&order, graph, &positions, &n), 0);
    assert_int_equal(n, 2 * graph->n_nodes);
    for (int pos = 0; pos < n; pos++) {
        const struct tt_node *node = &graph->nodes[positions[pos].node];
        enum tt_pass pass = order.turns[positions[pos].turn].pass;

        seen[positions[pos].microbatch * graph->n_nodes + positions[pos].node]++;
        if (positions[pos].microbatch == 0 && node->backward)
            assert_int_equal(pass == TT_PASS_WEIGHTS, writes_only_gradients_of_parameters(node));
        parts += pass == TT_PASS_WEIGHTS;
        assert_true(pos == 0 || positions[pos].turn >= positions[pos - 1].turn);
    }
    assert_true(parts > 0);
    for (int i = 0; i < 2 * graph->n_nodes; i++)
        assert_int_equal(seen[i], 1);
    tt_free(seen);
    tt_free(positions);
    tt_order_release(&order);
}

static void must_refuse(struct tt_order order, const char *message)
{
    struct tt_position *positions = NULL;
    int n = 0;

    assert_int_equal(tt_order_positions(&order, graph, &positions, &n), TT_EINTERNAL);
    if (!strstr(tt_error_message(), message))
        fail_msg("found '%s', wanted '%s'", tt_error_message(), message);
    tt_order_release(&order);
}

static void orders_that_cannot_be_are_errors(void **state)
{
    must_refuse(ORDER(F(0), F(0)), "the order of compute has the forward of microbatch 0 twice");
    must_refuse(ORDER(F(0), B(0), F(1), B(1), B(0)), "the order of compute has the backward of microbatch 0 twice");
    must_refuse(ORDER(F(0), B(1), F(1)), "the order of compute has the backward of microbatch 1 before its forward");
    must_refuse(ORDER(F(0), W(0), B(0)),
                "the order of compute has the weight part of microbatch 0 before its backward");
    must_refuse(ORDER(F(0), B(0), F(2), B(2)), "the order of compute lacks the forward of microbatch 1");
    must_refuse(ORDER(F(0), F(1), B(1)), "the order of compute lacks the backward of microbatch 0");
    must_refuse(ORDER({0, 1, TT_PASS_FORWARD}), "has a turn of stage 1");
}

static int set_up(void **state)
{
    const struct tt_model_dims dims = {
        .dim = 8, .n_layers = 2, .n_heads = 2, .n_kv_heads = 1, .ffn_dim = 8, .vocab_size = 16};
    int gradients[64];

    return tt_model_new("llama3", "debugmodel", &dims, NULL, &model) < 0 ||
                   tt_model_graph(model, TT_GRAPH_TRAIN, 1, 4, &graph, gradients) < 0
               ? -1
               : 0;
}

static int tear_down(void **state)
{
    tt_graph_free(graph);
    tt_model_free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulation_runs_the_graph_once_per_microbatch),
        cmocka_unit_test(a_weight_part_is_what_only_parameters_wait_for),
        cmocka_unit_test(orders_that_cannot_be_are_errors),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("order", tests, set_up, tear_down);
}
