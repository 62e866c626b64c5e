/* SPDX-License-Identifier: MIT
 *
 * Training models with experts on thread ranks: the loads that are counted, and that nothing depends on the layout.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

enum { EXPERTS = 6, TOP_K = 2, LAYERS = 3, DENSE = 1, SEQ_LEN = 10, GLOBAL_BATCH = 8 };

static struct fixture world;

static int set_up(void **state)
{
    fixture_open(&world, &(struct fixture_size){.odd_layers = 1, .odd_vocab = 29, .tied_layers = 1});
    return 0;
}

static int tear_down(void **state)
{
    fixture_close(&world);
    return 0;
}

static struct tt_model *model_of(struct tt_moe moe)
{
    struct tt_model_dims dims = {.dim = 24,
                                 .n_layers = LAYERS,
                                 .n_heads = 3,
                                 .n_kv_heads = 1,
                                 .head_dim = 8,
                                 .ffn_dim = 17,
                                 .vocab_size = 29,
                                 .tied = -1};
    struct tt_model *model = NULL;

    dims.moe = moe;
    dims.moe.experts = EXPERTS;
    dims.moe.top_k = TOP_K;
    dims.moe.ffn_dim = 11;
    dims.moe.dense_layers = DENSE;
    assert_int_equal(fixture_check(tt_model_new("qwen3", "debugmodel_moe", &dims, NULL, &model)), 0);
    return model;
}

static struct train_job job_of(const struct tt_model *model)
{
    struct train_job job = train_job_make(model, &world.data, GLOBAL_BATCH, 1, SEQ_LEN);

    job.validation_batches = 1;
    return job;
}

static void run(const struct train_job *job, struct train_result *ret_result)
{
    if (fixture_check(train_job_run(job, ret_result)) < 0)
        fail_msg("%d ranks, %d replicas", job->ranks, job->replicate);
}

/* Layouts, engines and policies that must not change a bit. */
static const struct {
    struct fixture_layout layout;
    bool planned;
    struct tt_recompute recompute;
    const char *wrap;
} layouts[] = {
    {.layout = {.shards = 2}, .recompute = {TT_RECOMPUTE_FULL, 0}},
    {.layout = {.shards = 2, .replicate = 2},
     .planned = true,
     .recompute = {TT_RECOMPUTE_SELECTIVE, 1},
     .wrap = "param"},
    {.layout = {.shards = 8}, .recompute = {TT_RECOMPUTE_OP, 0}, .wrap = "model"},
    {.layout = {.runs = 2, PIPE(2, 1, 1F1B)}, .planned = true, .recompute = {TT_RECOMPUTE_FULL, 0}},
    {.layout = {.shards = 2, .runs = 2, PIPE(2, 1, 1F1B)}},
    {.layout = {.shards = 1}, .planned = true, .recompute = {TT_RECOMPUTE_FULL, 0}},
    {.layout = {.shards = 2, .experts = 2}, .recompute = {TT_RECOMPUTE_OP, 0}},
    {.layout = {.shards = 2, .experts = 2, .runs = 2, PIPE(2, 1, 1F1B)},
     .planned = true,
     .recompute = {TT_RECOMPUTE_FULL, 0}},
    {.layout = {.shards = 4, .replicate = 2, .experts = 2}, .planned = true, .recompute = {TT_RECOMPUTE_SELECTIVE, 2}},
};

static void expect_the_same_on_all_layouts(const struct train_job *job, const struct train_result *reference)
{
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct train_job other = *job;

        fixture_lay_out(&other, &layouts[i].layout);
        other.scheduler = layouts[i].planned ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
        other.recompute = layouts[i].recompute;
        other.wrap = layouts[i].wrap;
        other.gives_up = other.pipe == 1 && i % 2;
        other.threads = 1 + (int)i % 2;
        fixture_must_be(&other, reference, "layout %d", (int)i);
    }
}

/* --- loads --- */

static const int64_t *loads_at(const struct train_result *result, int step, int layer)
{
    return result->loads + ((int64_t)step * LAYERS + layer) * EXPERTS;
}

/* Every slot of every layer with experts is counted once, whatever nodes are recomputed. */
static void loads_are_the_same_on_every_layout(void **state)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct tt_model *model = model_of((struct tt_moe){0});
        struct train_job job = job_of(model);
        struct train_result reference;
        bool uneven = false;

        job.param_dtype = bf16 ? TT_BF16 : TT_F32;
        run(&job, &reference);
        for (int s = 0; s < job.steps; s++)
            for (int l = 0; l < LAYERS; l++) {
                const int64_t *loads = loads_at(&reference, s, l);
                int64_t sum = 0;

                for (int x = 0; x < EXPERTS; x++) {
                    sum += loads[x];
                    uneven = uneven || loads[x] != loads[0];
                }
                assert_int_equal(sum, l < DENSE ? 0 : GLOBAL_BATCH * SEQ_LEN * TOP_K);
            }
        assert_true(uneven);
        expect_the_same_on_all_layouts(&job, &reference);
        train_result_release(&reference);
        tt_model_free(model);
    }
}

/* Slot i of a microbatch goes to expert i mod X, so its loads are known. */
static void loads_are_numbers_of_slots(void **state)
{
    struct tt_model *model = model_of((struct tt_moe){.balanced = true});
    struct train_job job = job_of(model);
    struct train_result result;
    int64_t slots = SEQ_LEN * TOP_K;

    job.steps = 2;
    job.ranks = 2;
    run(&job, &result);
    for (int s = 0; s < job.steps; s++)
        for (int l = DENSE; l < LAYERS; l++)
            for (int x = 0; x < EXPERTS; x++)
                assert_int_equal(loads_at(&result, s, l)[x],
                                 GLOBAL_BATCH * (slots / EXPERTS + (x < slots % EXPERTS ? 1 : 0)));
    train_result_release(&result);
    tt_model_free(model);
}

/* --- biases --- */

/* The biases of a layer, in the order of train_result.param. */
static const float *biases_at(const struct tt_model *model, const struct train_result *result, int layer)
{
    const float *at = result->param;

    for (int p = 0; p < model->n_params; p++) {
        struct tt_box whole = tt_box_whole(model->params[p].ndim, model->params[p].shape);

        if (model->params[p].buffer && model->params[p].block == layer)
            return at;
        at += tt_box_volume(&whole);
    }
    fail_msg("layer %d has no biases", layer);
    return NULL;
}

/* torchtitan's rule in other words: the changes are centred, and each is a float. */
static void move(const int64_t *loads, double coeff, double *bias)
{
    double change[EXPERTS], mean_load = 0.0, mean = 0.0;

    for (int x = 0; x < EXPERTS; x++)
        mean_load += (double)loads[x] / EXPERTS;
    for (int x = 0; x < EXPERTS; x++) {
        double off = mean_load - (double)loads[x];

        change[x] = fabs(off) < 1e-9 ? 0.0 : off > 0.0 ? coeff : -coeff;
        mean += change[x] / EXPERTS;
    }
    for (int x = 0; x < EXPERTS; x++)
        bias[x] += change[x] - mean;
}

static void biases_follow_the_loads(void **state)
{
    struct tt_model *model = model_of((struct tt_moe){.biased = true});
    struct train_job job = job_of(model);
    struct train_result result;

    job.balance_coeff = 0.01;
    job.steps = 8;
    run(&job, &result);
    for (int l = DENSE; l < LAYERS; l++) {
        const float *found = biases_at(model, &result, l);
        double wanted[EXPERTS] = {0.0}, most = 0.0;

        for (int s = 0; s < job.steps; s++)
            move(loads_at(&result, s, l), job.balance_coeff, wanted);
        for (int x = 0; x < EXPERTS; x++) {
            assert_true(fabs((double)found[x] - wanted[x]) < 1e-7);
            most = fmax(most, fabs(wanted[x]));
        }
        assert_true(most > 0.01);
    }
    train_result_release(&result);
    tt_model_free(model);
}

/* The same with weights in bfloat16, where biases stay float32. The biases must also change which experts are
 * chosen. */
static void biases_are_the_same_on_every_layout(void **state)
{
    for (int bf16 = 0; bf16 < 3; bf16++) {
        struct tt_model *model = model_of((struct tt_moe){.biased = true});
        struct train_job job = job_of(model), still;
        struct train_result reference, found;

        job.balance_coeff = 0.01;
        job.steps = 4;
        job.param_dtype = bf16 ? TT_BF16 : TT_F32;
        job.shard_dtype = bf16 == 2 ? TT_BF16 : TT_F32;
        job.average_decay = bf16 == 1 ? 0.5 : 0.0;
        run(&job, &reference);
        expect_the_same_on_all_layouts(&job, &reference);
        still = job;
        still.balance_coeff = 0.0;
        run(&still, &found);
        assert_true(biases_at(model, &found, DENSE)[0] == 0.0F);
        assert_int_equal(memcmp(loads_at(&found, 0, DENSE), loads_at(&reference, 0, DENSE), EXPERTS * sizeof(int64_t)),
                         0);
        assert_true(found.loss[3] != reference.loss[3]);
        train_result_release(&found);
        train_result_release(&reference);
        tt_model_free(model);
    }
}

/* A step with a value that is not finite ends when that is noticed; its loads must not have moved the biases by
 * then. */
static void biases_move_after_the_decision(void **state)
{
    for (int i = 0; i < 4; i++) {
        struct tt_model *model = model_of((struct tt_moe){.biased = i / 2});
        struct train_job job = job_of(model);
        struct tt_engine_options options = {0};
        struct tt_engine *engine = NULL;
        const struct tt_program *program;
        int moves = 0;
        bool decided = false;

        job.scheduler = i % 2 ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
        job.ranks = 2;
        assert_int_equal(fixture_check(train_job_options(&job, &options)), 0);
        assert_int_equal(fixture_check(tt_engine_new(&options, NULL, 0, &engine)), 0);
        program = tt_engine_program(engine);
        for (int k = 0; k < program->n_instrs; k++) {
            decided = decided || program->instrs[k].kind == TT_CLIP;
            if (program->instrs[k].kind != TT_BALANCE)
                continue;
            assert_true(decided);
            moves++;
        }
        assert_int_equal(moves, i / 2);
        tt_engine_free(engine);
        train_job_options_release(&options);
        tt_model_free(model);
    }
}

/* --- auxiliary losses --- */

/* Tokens go to experts in turn, so all loads are equal, and in every layer each balance loss is its coefficient: X sum
 * f P, f = 1 / X, sum P =
 * 1. */
static void even_loads_have_a_known_loss(void **state)
{
    struct tt_model *model = model_of((struct tt_moe){.balanced = true});
    struct train_job job = train_job_make(model, &world.data, GLOBAL_BATCH, 1, 3 * EXPERTS);
    struct train_result result;

    job.router_losses = (struct tt_router_losses){.sequence = 0.5F, .microbatch = 0.25F, .global_batch = 0.125F};
    job.ranks = 2;
    run(&job, &result);
    assert_true(fabs(result.router_losses[0][TT_ROUTER_SEQUENCE] - 0.5 * (LAYERS - DENSE)) < 1e-5);
    assert_true(fabs(result.router_losses[0][TT_ROUTER_MICROBATCH] - 0.25 * (LAYERS - DENSE)) < 1e-5);
    for (int s = 0; s < 2; s++)
        assert_true(fabs(result.router_losses[s][TT_ROUTER_GLOBAL_BATCH] - 0.125 * (LAYERS - DENSE)) < 1e-5);
    assert_true(result.router_losses[0][TT_ROUTER_Z] == 0.0);
    train_result_release(&result);
    tt_model_free(model);
}

/* The losses leave the first step's loss unchanged, but not its gradient nor later losses. */
static void auxiliary_losses_are_the_same_on_every_layout(void **state)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct tt_model *model = model_of((struct tt_moe){.biased = bf16});
        struct train_job job = job_of(model), without;
        struct train_result reference, found;

        job.param_dtype = bf16 ? TT_BF16 : TT_F32;
        job.balance_coeff = 0.001;
        without = job;
        job.router_losses = (struct tt_router_losses){0.1F, 0.2F, 0.3F, 0.4F};
        run(&job, &reference);
        expect_the_same_on_all_layouts(&job, &reference);
        for (int k = 0; k < TT_ROUTER_LOSSES; k++)
            assert_true(reference.router_losses[0][k] > 0.0);
        run(&without, &found);
        assert_true(found.loss[0] == reference.loss[0] && found.norm[0] != reference.norm[0] &&
                    found.loss[1] != reference.loss[1] && found.router_losses[0][0] == 0.0);
        train_result_release(&found);
        train_result_release(&reference);
        tt_model_free(model);
    }
}

/* The first step gets no gradient from it, up to rounding; the second one does, because the first one's loads were
 * uneven. */
static void the_loss_of_the_global_batch_is_of_the_step_before(void **state)
{
    struct tt_model *model = model_of((struct tt_moe){.biased = false});
    struct train_job job = job_of(model);
    struct train_result with, without;

    run(&job, &without);
    job.router_losses.global_batch = 0.5F;
    run(&job, &with);
    assert_true(fabs(with.router_losses[0][TT_ROUTER_GLOBAL_BATCH] - 0.5 * (LAYERS - DENSE)) < 1e-5);
    assert_true(fabs(with.router_losses[1][TT_ROUTER_GLOBAL_BATCH] - 0.5 * (LAYERS - DENSE)) > 1e-4);
    assert_true(fabs(with.norm[0] / without.norm[0] - 1.0) < 1e-5);
    assert_true(fabs(with.norm[1] / without.norm[1] - 1.0) > 1e-4);
    expect_the_same_on_all_layouts(&job, &with);
    train_result_release(&with);
    train_result_release(&without);
    tt_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_are_the_same_on_every_layout),
        cmocka_unit_test(loads_are_numbers_of_slots),
        cmocka_unit_test(biases_follow_the_loads),
        cmocka_unit_test(biases_are_the_same_on_every_layout),
        cmocka_unit_test(biases_move_after_the_decision),
        cmocka_unit_test(even_loads_have_a_known_loss),
        cmocka_unit_test(auxiliary_losses_are_the_same_on_every_layout),
        cmocka_unit_test(the_loss_of_the_global_batch_is_of_the_step_before),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
