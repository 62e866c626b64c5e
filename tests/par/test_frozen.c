/* SPDX-License-Identifier: MIT
 *
 * Frozen parameters keep their values, the others are trained as if none were frozen, the bits do not depend on the
 * layout, and frozen parameters need neither gradients nor moments nor reductions.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static struct fixture world;

static int set_up(void **state)
{
    fixture_open(&world, &(struct fixture_size){.odd_layers = 2, .odd_vocab = 23, .tied_layers = 3, .narrow = true});
    return 0;
}

static int tear_down(void **state)
{
    fixture_close(&world);
    return 0;
}

/* --- what is frozen --- */

static bool all_but_values(const char *name)
{
    return !strstr(name, "wv");
}

/* Whole units are frozen, among them both ends of the model. */
static bool all_but_a_layer(const char *name)
{
    return strncmp(name, "layers.1.", 9) != 0;
}

static bool norms(const char *name)
{
    return strstr(name, "norm") != NULL;
}

static bool head_and_embedding(const char *name)
{
    return strncmp(name, "layers.", 7) != 0;
}

static bool none(const char *name)
{
    return name == NULL;
}

static const struct {
    const char *name;
    bool (*is_frozen)(const char *name);
} choices[] = {{"all but wv", all_but_values},
               {"all but a layer", all_but_a_layer},
               {"norms", norms},
               {"head and embedding", head_and_embedding}};

static void freeze(struct tt_model *model, bool (*is_frozen)(const char *name))
{
    for (int p = 0; p < model->n_params; p++)
        model->params[p].frozen = is_frozen(model->params[p].name);
}

/* --- runs --- */

static struct train_job job_of(const struct tt_model *model)
{
    struct train_job job = train_job_make(model, &world.data, 8, 1, 8);

    job.steps = 2;
    job.validation_batches = 2;
    return job;
}

static void run(const struct train_job *job, struct train_result *ret_result)
{
    assert_int_equal(fixture_check(train_job_run(job, ret_result)), 0);
}

static const struct way {
    const char *name;
    int ranks, replicate;
    const char *wrap;
    enum tt_reshard reshard;
    int part;
    enum tt_engine_choice scheduler;
    bool last_microbatch, every_run;
    int n_stages;
    enum tt_recompute_mode recompute;
} ways[] = {
    {"two ranks", .ranks = 2, .replicate = 1, .wrap = "block"},
    {"four, never", .ranks = 4, .replicate = 1, .wrap = "block", .reshard = TT_RESHARD_AFTER_FORWARD_NEVER},
    {"eight, always", .ranks = 8, .replicate = 1, .wrap = "block", .reshard = TT_RESHARD_AFTER_FORWARD_ALWAYS},
    {"HSDP", .ranks = 8, .replicate = 2, .wrap = "block", .last_microbatch = true},
    {"once a step", .ranks = 4, .replicate = 1, .wrap = "block", .every_run = true},
    {"planned, once a step", .ranks = 4, .replicate = 2, .wrap = "param", .scheduler = TT_ENGINE_PLANNED,
     .every_run = true},
    {"DDP", .ranks = 2, .replicate = 2, .wrap = "model"},
    {"parts", .ranks = 4, .replicate = 1, .wrap = "param", .reshard = TT_RESHARD_AFTER_FORWARD_PART, .part = 2},
    {"planned", .ranks = 4, .replicate = 1, .wrap = "block", .scheduler = TT_ENGINE_PLANNED},
    {"planned, parameters", .ranks = 4, .replicate = 2, .wrap = "param", .scheduler = TT_ENGINE_PLANNED},
    {"planned, last", .ranks = 8, .replicate = 1, .wrap = "size:1k", .scheduler = TT_ENGINE_PLANNED,
     .last_microbatch = true},
    {"stages", .ranks = 2, .replicate = 1, .wrap = "block", .n_stages = 2},
    {"recomputed", .ranks = 1, .replicate = 1, .wrap = "block", .recompute = TT_RECOMPUTE_FULL},
};

static void use(struct train_job *job, const struct way *way)
{
    job->ranks = way->ranks;
    job->replicate = way->replicate;
    job->wrap = way->wrap;
    job->reshard = way->reshard;
    job->reshard_part = way->part;
    job->scheduler = way->scheduler;
    job->last_microbatch = way->last_microbatch;
    job->every_run = way->every_run;
    job->n_stages = way->n_stages;
    job->recompute.mode = way->recompute;
}

static void the_bits_do_not_depend_on_the_layout(void **state)
{
    for (int i = 0; i < 2 * COUNT(choices); i++) {
        struct tt_model *model = i % 2 ? world.tied : world.odd;
        struct train_job job = job_of(model);
        struct train_result one;

        freeze(model, choices[i / 2].is_frozen);
        job.param_dtype = i / 2 == 0 ? TT_BF16 : TT_F32;
        run(&job, &one);
        for (int w = 0; w < COUNT(ways); w++) {
            use(&job, &ways[w]);
            fixture_must_be(&job, &one, "%s frozen, %s", choices[i / 2].name, ways[w].name);
        }
        train_result_release(&one);
        freeze(model, none);
    }
}

/* Every second layer has an adapter whose A and B have a number of rows that no number of ranks divides. */
static void the_bits_of_adapters_do_not_depend_on_the_layout(void **state)
{
    struct tt_model *model = fixture_model(&(struct tt_model_dims){.dim = 14,
                                                                   .n_layers = 2,
                                                                   .n_heads = 3,
                                                                   .n_kv_heads = 1,
                                                                   .head_dim = 6,
                                                                   .ffn_dim = 22,
                                                                   .vocab_size = 23,
                                                                   .tied = -1,
                                                                   .lora = {.rank = 3, .alpha = 4.0, .modules = 0x55}});

    for (int wire = 0; wire < 3; wire++) {
        struct train_job job = job_of(model);
        struct train_result one;

        job.param_dtype = wire ? TT_BF16 : TT_F32;
        job.shard_dtype = wire == 2 ? TT_BF16 : TT_F32;
        run(&job, &one);
        for (int w = 0; w < COUNT(ways); w++) {
            use(&job, &ways[w]);
            fixture_must_be(&job, &one, "types %d, %s", wire, ways[w].name);
        }
        train_result_release(&one);
    }
    tt_model_free(model);
}

/* Without clipping, the first moment after one step is (1 - beta1) times the gradient. */
static void what_is_trained_has_the_gradients_of_full_training(void **state)
{
    for (int i = 0; i < 2 * COUNT(choices); i++) {
        struct tt_model *model = i % 2 ? world.tied : world.odd;
        struct train_job job = job_of(model);
        struct train_result full, found, initial;
        int64_t at = 0;

        job.steps = 1;
        job.max_norm = 0.0;
        run(&job, &full);
        freeze(model, choices[i / 2].is_frozen);
        run(&job, &found);
        job.schedule.base = 0.0;
        run(&job, &initial);
        if (full.loss[0] != found.loss[0] || !(full.norm[0] > found.norm[0]))
            fail_msg("%s frozen: loss %.17g and %.17g, norm %g and %g", choices[i / 2].name, full.loss[0],
                     found.loss[0], full.norm[0], found.norm[0]);
        for (int p = 0; p < model->n_params; p++) {
            const struct tt_param *param = &model->params[p];
            int64_t n = param->shape[0] * (param->ndim > 1 ? param->shape[1] : 1);
            size_t bytes = (size_t)n * sizeof(float);
            bool changed = memcmp(&found.param[at], &initial.param[at], bytes) != 0;

            if (changed == param->frozen)
                fail_msg("%s frozen: %s %s", choices[i / 2].name, param->name, changed ? "changed" : "is unchanged");
            if (!param->frozen && (memcmp(&found.exp_avg[at], &full.exp_avg[at], bytes) != 0 ||
                                   memcmp(&found.param[at], &full.param[at], bytes) != 0))
                fail_msg("%s frozen: %s is trained otherwise", choices[i / 2].name, param->name);
            at += n;
        }
        freeze(model, none);
        train_result_release(&full);
        train_result_release(&found);
        train_result_release(&initial);
    }
}

/* --- costs --- */

static struct tt_engine *engine_of(const struct train_job *job)
{
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;

    assert_int_equal(fixture_check(train_job_options(job, &options)), 0);
    assert_int_equal(fixture_check(tt_engine_new(&options, NULL, 0, &engine)), 0);
    return engine;
}

/* The number of nodes of an op. */
static int count_ops(const struct tt_graph *graph, enum tt_op_id op)
{
    int n = 0;

    for (int i = 0; i < graph->n_nodes; i++)
        n += graph->nodes[i].op == op;
    return n;
}

static int count_reductions(const struct tt_program *program)
{
    int n = 0;

    for (int i = 0; i < program->n_instrs; i++)
        n += program->instrs[i].kind == TT_BEGIN && program->instrs[i].purpose == TT_REDUCE;
    return n;
}

static void what_is_frozen_costs_no_gradient(void **state)
{
    struct train_job job = job_of(world.odd);
    struct tt_engine_memory all, some;
    struct tt_engine *engine;
    int reductions;

    job.ranks = 4;
    engine = engine_of(&job);
    all = tt_engine_memory(engine);
    reductions = count_reductions(tt_engine_program(engine));
    tt_engine_free(engine);
    freeze(world.odd, all_but_a_layer);
    engine = engine_of(&job);
    some = tt_engine_memory(engine);
    assert_int_equal(count_reductions(tt_engine_program(engine)), reductions / 4); /* embedding, two layers, head */
    /* neither the embedding nor the first layer is differentiated */
    assert_int_equal(count_ops(tt_engine_program(engine)->stages[0].graph, TT_OP_EMBEDDING_BWD), 0);
    assert_int_equal(count_ops(tt_engine_program(engine)->stages[0].graph, TT_OP_ATTENTION_BWD), 1);
    assert_int_equal(count_ops(tt_engine_program(engine)->stages[0].graph, TT_OP_LINEAR_BWD_W), 7);
    assert_int_equal(count_ops(tt_engine_program(engine)->stages[0].graph, TT_OP_LINEAR_BWD_X), 7);
    assert_true(some.by_kind[TT_MEMORY_PARAM] == all.by_kind[TT_MEMORY_PARAM]);
    assert_true(some.by_kind[TT_MEMORY_OPTIMIZER] * 2 < all.by_kind[TT_MEMORY_OPTIMIZER]);
    assert_true(some.step < all.step);
    tt_engine_free(engine);
    freeze(world.odd, none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_do_not_depend_on_the_layout),
        cmocka_unit_test(the_bits_of_adapters_do_not_depend_on_the_layout),
        cmocka_unit_test(what_is_trained_has_the_gradients_of_full_training),
        cmocka_unit_test(what_is_frozen_costs_no_gradient),
    };

    (void)cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
