/* SPDX-License-Identifier: MIT
 *
 * Orders of compute: the nodes of each turn, and orders that are refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/models/model.h"
#include "core/passes/autodiff.h"
#include "core/program/order.h"
#include "tests/par/orders.h"

static struct tt_model *model;
static struct tt_stage whole; /* the model as one graph */
static const struct tt_graph *graph;

enum { STAGES = 3 };
static struct tt_stage stages[STAGES]; /* the same model, cut */

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
    struct tt_order order = tt_order_accumulate(3, 1, true);
    struct tt_position *positions = NULL;
    int n = 0;

    assert_int_equal(tt_order_positions(&order, &whole, 1, &positions, &n), 0);
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

/* Microbatch 0 has a separate weight part, microbatch 1 does not. Either way every node runs once. */
static void a_weight_part_is_what_only_parameters_wait_for(void **state)
{
    struct tt_order order = ORDER(F(0), F(1), B(0), B(1), W(0));
    struct tt_position *positions = NULL;
    int n = 0, parts = 0, *seen = tt_calloc(2 * (size_t)graph->n_nodes, sizeof *seen);

    assert_int_equal(tt_order_positions(&order, &whole, 1, &positions, &n), 0);
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

static void must_refuse_of(const struct tt_stage *of, int n_stages, struct tt_order order, const char *message)
{
    struct tt_position *positions = NULL;
    int n = 0;

    assert_int_equal(tt_order_positions(&order, of, n_stages, &positions, &n), TT_EINTERNAL);
    if (!strstr(tt_error_message(), message))
        fail_msg("found '%s', wanted '%s'", tt_error_message(), message);
    tt_order_release(&order);
}

static void must_refuse(struct tt_order order, const char *message)
{
    must_refuse_of(&whole, 1, order, message);
}

static void impossible_orders_are_refused(void **state)
{
    must_refuse(ORDER(F(0), F(0)), "the order of compute has the forward of microbatch 0 twice");
    must_refuse(ORDER(F(0), B(0), F(1), B(1), B(0)), "the order of compute has the backward of microbatch 0 twice");
    must_refuse(ORDER(F(0), B(1), F(1)), "the order of compute has the backward of microbatch 1 before its forward");
    must_refuse(ORDER(F(0), W(0), B(0)),
                "the order of compute has the weight part of microbatch 0 before its backward");
    must_refuse(ORDER(F(0), B(0), F(2), B(2)), "the order of compute lacks the forward of microbatch 1");
    must_refuse(ORDER(F(0), F(1), B(1)), "the order of compute lacks the backward of microbatch 0");
    must_refuse(ORDER({0, 1, TT_PASS_FORWARD}), "has a turn of stage 1, but there are only 1");
}

/* --- several stages --- */

#define FS(mb, stage)              \
    {                              \
        mb, stage, TT_PASS_FORWARD \
    }
#define BS(mb, stage)               \
    {                               \
        mb, stage, TT_PASS_BACKWARD \
    }
#define WS(mb, stage)              \
    {                              \
        mb, stage, TT_PASS_WEIGHTS \
    }

/* In every order of tests/par/orders.h, each node of each stage comes once per microbatch. */
static void every_node_of_every_stage_comes_once(void **state)
{
    enum { MICROBATCHES = 3, SEEDS = 20 };

    for (int kind = 0; kind < ORDERS_KINDS + SEEDS; kind++) {
        enum orders_kind of = kind < ORDERS_KINDS ? (enum orders_kind)kind : ORDERS_RANDOM;
        struct tt_order order = orders_make(of, MICROBATCHES, STAGES, (uint64_t)kind, kind % 2);
        struct tt_position *positions = NULL;
        int n = 0, wanted = 0, seen[MICROBATCHES][STAGES] = {{0}};

        assert_int_equal(tt_order_positions(&order, stages, STAGES, &positions, &n), 0);
        for (int pos = 0; pos < n; pos++) {
            const struct tt_turn *turn = &order.turns[positions[pos].turn];

            assert_int_equal(positions[pos].stage, turn->stage);
            assert_int_equal(positions[pos].microbatch, turn->microbatch);
            assert_true(positions[pos].node < stages[turn->stage].graph->n_nodes);
            seen[turn->microbatch][turn->stage]++;
        }
        for (int s = 0; s < STAGES; s++) {
            wanted += stages[s].graph->n_nodes;
            for (int mb = 0; mb < MICROBATCHES; mb++)
                assert_int_equal(seen[mb][s], stages[s].graph->n_nodes);
        }
        assert_int_equal(n, MICROBATCHES * wanted);
        tt_free(positions);
        tt_order_release(&order);
    }
}

static void stages_follow_each_other(void **state)
{
    must_refuse_of(stages, 2, ORDER(FS(0, 1), FS(0, 0)),
                   "the order of compute has the forward of microbatch 0 in stage 1 before that of stage 0");
    must_refuse_of(stages, 2, ORDER(FS(0, 0), FS(1, 0), FS(1, 1), FS(0, 1), BS(0, 0)),
                   "the order of compute has the backward of microbatch 0 in stage 0 before that of stage 1");
    must_refuse_of(stages, 2, ORDER(FS(0, 0), BS(0, 0)),
                   "the order of compute has the backward of microbatch 0 in stage 0 before that of stage 1");
    must_refuse_of(stages, 2, ORDER(FS(0, 0), FS(0, 1), WS(0, 1)),
                   "the order of compute has the weight part of microbatch 0 in stage 1 before its backward");
    must_refuse_of(stages, 2, ORDER(FS(0, 0), FS(0, 1), BS(0, 1), BS(0, 1)),
                   "the order of compute has the backward of microbatch 0 in stage 1 twice");
    must_refuse_of(stages, 2, ORDER(FS(0, 0), FS(0, 1), BS(0, 1)),
                   "the order of compute lacks the backward of microbatch 0 in stage 0");
    must_refuse_of(stages, 2, ORDER(FS(0, 0), FS(1, 0), FS(0, 1)),
                   "the order of compute lacks the forward of microbatch 1 in stage 1");
    must_refuse_of(stages, 2, ORDER(FS(0, 0), FS(0, 2)), "has a turn of stage 2, but there are only 2");
}

/* With carried gradients, a microbatch adds to the gradients of the previous one. */
static void carried_gradients_need_the_microbatches_in_order(void **state)
{
    struct tt_graph *carrying = NULL;
    struct tt_stage stage = {0};
    struct tt_position *positions = NULL;
    struct tt_order good = ORDER(F(0), F(1), B(0), B(1), W(0), W(1));
    int gradients[64], n = 0;

    assert_int_equal(tt_model_graph(model, TT_GRAPH_TRAIN, TT_F32, 1, 4, false, &carrying, gradients), 0);
    assert_int_equal(tt_graph_carry_gradients(carrying), 0);
    stage.graph = carrying;
    assert_int_equal(tt_order_positions(&good, &stage, 1, &positions, &n), 0);
    must_refuse_of(
        &stage, 1, ORDER(F(0), F(1), B(1), B(0)),
        "the order of compute has the backward of microbatch 1 before that of the microbatch whose gradients");
    must_refuse_of(&stage, 1, ORDER(F(1), F(0), B(0), B(1)),
                   "the forward of microbatch 1 before that of the microbatch");
    must_refuse_of(&stage, 1, ORDER(F(0), F(1), B(0), B(1), W(1), W(0)), "the weight part of microbatch 1 before");
    must_refuse_of(&stage, 1, ORDER(F(0), F(1), B(0), B(1), W(0)), "the backward of microbatch 1 before");
    tt_free(positions);
    tt_order_release(&good);
    tt_stages_release(&stage, 1);
}

static int cut_model(void)
{
    struct tt_graph *forward = NULL;
    int stage_of[256], rc = tt_model_graph(model, TT_GRAPH_VALIDATE, TT_F32, 1, 4, false, &forward, NULL);

    if (rc == 0) {
        tt_graph_stages_by_block(forward, STAGES, stage_of);
        rc = tt_graph_cut(forward, stage_of, STAGES, stages);
    }
    tt_graph_free(forward);
    return rc < 0 ? rc : tt_stages_differentiate(stages, STAGES);
}

static int set_up(void **state)
{
    const struct tt_model_dims dims = {
        .dim = 8, .n_layers = 4, .n_heads = 2, .n_kv_heads = 1, .ffn_dim = 8, .vocab_size = 16};
    int gradients[64];

    if (tt_model_new("llama3", "debugmodel", &dims, NULL, &model) < 0 ||
        tt_model_graph(model, TT_GRAPH_TRAIN, TT_F32, 1, 4, false, &whole.graph, gradients) < 0 || cut_model() < 0)
        return -1;
    graph = whole.graph;
    return 0;
}

static int tear_down(void **state)
{
    tt_stages_release(&whole, 1);
    tt_stages_release(stages, STAGES);
    tt_model_free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulation_runs_the_graph_once_per_microbatch),
        cmocka_unit_test(a_weight_part_is_what_only_parameters_wait_for),
        cmocka_unit_test(impossible_orders_are_refused),
        cmocka_unit_test(every_node_of_every_stage_comes_once),
        cmocka_unit_test(stages_follow_each_other),
        cmocka_unit_test(carried_gradients_need_the_microbatches_in_order),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("order", tests, set_up, tear_down);
}
