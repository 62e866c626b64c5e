/* SPDX-License-Identifier: MIT
 *
 * Predicted times of stages: their sum is the time of the whole model, and the last stage's forward includes three
 * products for the output.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/models/model.h"
#include "parallel/planner/cost.h"
#include "tests/help/machine.h"

enum { STAGES = 4, BATCH = 2, SEQ_LEN = 64, DIM = 64, VOCAB = 640 };

/* Memory takes no time, so times are flops; a message takes 2 s plus its bytes. */
static const struct tt_machine machine = TT_MACHINE("", 1.0, 1.0, 1e30, 1.5, 0.5, 1.0);

static struct tt_model *model;
static struct tt_stage stages[STAGES]; /* a block each */
static struct tt_stage_times stage_times[STAGES];
static struct tt_pipeline_times times;

static void near(double found, double wanted)
{
    if (fabs(found - wanted) > 1e-9 * fabs(wanted))
        fail_msg("%g, not %g", found, wanted);
}

static void stages_together_take_as_long_as_the_model(void **state)
{
    struct tt_graph *whole = NULL;
    int gradients[64];
    double forward = 0, backward = 0, sum_forward = 0, sum_backward = 0;

    assert_int_equal(tt_model_graph(model, TT_GRAPH_TRAIN, TT_F32, BATCH, SEQ_LEN, false, &whole, gradients), 0);
    for (int n = 0; n < whole->n_nodes; n++)
        *(whole->nodes[n].backward ? &backward : &forward) += tt_cost_node_sec(&machine, whole, n, 1);
    for (int s = 0; s < STAGES; s++) {
        near(stage_times[s].full, stage_times[s].input + stage_times[s].weight);
        sum_forward += stage_times[s].forward;
        sum_backward += stage_times[s].full;
    }
    near(sum_forward, forward);
    near(sum_backward, backward);
    tt_graph_free(whole);
}

static void equal_stages_take_equal_times(void **state)
{
    near(stage_times[2].forward, stage_times[1].forward);
    near(stage_times[2].input, stage_times[1].input);
    near(stage_times[2].weight, stage_times[1].weight);
    assert_true(stage_times[1].input > stage_times[1].weight); /* attention has no weights */
}

/* The weight part has one product for each matrix of a block, as the forward pass does. */
static void the_weight_part_is_one_product_for_each_matrix(void **state)
{
    double flops = 0;

    for (int p = 0; p < model->n_params; p++)
        if (model->params[p].block == 1 && model->params[p].ndim == 2)
            flops += 2.0 * BATCH * SEQ_LEN * (double)(model->params[p].shape[0] * model->params[p].shape[1]);
    assert_true(stage_times[1].weight >= flops && stage_times[1].weight < 1.01 * flops);
}

static void the_last_forward_has_three_products_of_the_output(void **state)
{
    double product = 2.0 * BATCH * SEQ_LEN * DIM * VOCAB, more = stage_times[3].forward - stage_times[2].forward;

    assert_true(more >= 3 * product && more < 3.05 * product);
    assert_true(stage_times[3].full - stage_times[2].full < 0.05 * product);
}

static void what_crosses_a_boundary_takes_its_bytes(void **state)
{
    near(times.send, 1.5 + 0.5 + 4.0 * BATCH * SEQ_LEN * DIM);
    assert_ptr_equal(times.stages, stage_times);
}

/* The step takes as long as its slowest stage is busy; the bubble is the rest. */
static void a_heavy_output_shows_in_the_bubble(void **state)
{
    struct tt_pipeline *pipeline = NULL;
    struct tt_pipeline_run run;

    assert_int_equal(tt_pipeline_new(TT_PP_1F1B, NULL, STAGES, STAGES, 8, &pipeline), 0);
    assert_int_equal(tt_pipeline_simulate(pipeline, &times, &run), 0);
    near(run.busy[3], 8 * (stage_times[3].forward + stage_times[3].full));
    assert_true(run.makespan > run.busy[3] && run.bubble[1] > run.bubble[3]);
    tt_pipeline_run_release(&run);
    tt_pipeline_free(pipeline);
}

static int set_up(void **state)
{
    const struct tt_model_dims dims = {
        .dim = DIM, .n_layers = STAGES, .n_heads = 4, .n_kv_heads = 4, .ffn_dim = 4 * DIM, .vocab_size = VOCAB};
    struct tt_graph *forward = NULL;
    int stage_of[256], rc = tt_model_new("llama3", "debugmodel", &dims, NULL, &model);

    if (rc == 0)
        rc = tt_model_graph(model, TT_GRAPH_VALIDATE, TT_F32, BATCH, SEQ_LEN, false, &forward, NULL);
    if (rc == 0) {
        tt_graph_stages_by_block(forward, STAGES, stage_of);
        rc = tt_graph_cut(forward, stage_of, STAGES, stages);
    }
    tt_graph_free(forward);
    if (rc < 0 || tt_stages_differentiate(stages, STAGES) < 0)
        return -1;
    times = tt_cost_pipeline(&machine, stages, STAGES, 1, stage_times);
    return 0;
}

static int tear_down(void **state)
{
    tt_stages_release(stages, STAGES);
    tt_model_free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_together_take_as_long_as_the_model),
        cmocka_unit_test(equal_stages_take_equal_times),
        cmocka_unit_test(the_weight_part_is_one_product_for_each_matrix),
        cmocka_unit_test(the_last_forward_has_three_products_of_the_output),
        cmocka_unit_test(what_crosses_a_boundary_takes_its_bytes),
        cmocka_unit_test(a_heavy_output_shows_in_the_bubble),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
