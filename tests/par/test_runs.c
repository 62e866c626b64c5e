/* SPDX-License-Identifier: MIT
 *
 * Gradients that are reduced once per run (gradient_sync every_run): the bits are those of one rank that reduces every
 * microbatch, in whatever order a schedule has them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "parallel/comm/collectives.h"
#include "tests/par/fixture.h"
#include "tests/par/orders.h"
#include "tests/par/train_job.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static struct fixture world;

static int tear_down(void **state)
{
    fixture_close(&world);
    return 0;
}

static int set_up(void **state)
{
    fixture_open(&world, &(struct fixture_size){.odd_layers = 4, .odd_vocab = 23, .tied_layers = 4, .narrow = true});
    return 0;
}

static struct train_job job_of(bool tied, int64_t global_batch)
{
    struct train_job job = train_job_make(tied ? world.tied : world.odd, &world.data, global_batch, 1, 8);

    job.steps = 2;
    job.validation_batches = 0;
    return job;
}

/* Policies that vary from case to case. Those that change the result, such as bf16, are in the reference too. */
static void vary(int i, struct train_job *one, struct train_job *job)
{
    one->param_dtype = job->param_dtype = i % 5 == 2 ? TT_BF16 : TT_F32;
    one->reduce_dtype = job->reduce_dtype = i % 3 == 1 ? TT_BF16 : TT_F32;
    fixture_vary(i, job);
    job->every_run = true;
}

/* --- pipelines --- */

static const struct {
    struct fixture_layout layout;
    bool tied;
} cases[] = {
    {.layout = {.microbatches = 4, .shards = 2, PIPE(2, 1, 1F1B)}},
    {.layout = {.microbatches = 4, .runs = 2, .shards = 2, PIPE(2, 1, GPIPE)}, .tied = true},
    {.layout = {.microbatches = 4, .shards = 2, PIPE(2, 2, LOOPED_BFS)}},
    {.layout = {.microbatches = 2, .runs = 3, .shards = 2, PIPE(2, 2, LOOPED_BFS)}, .tied = true},
    {.layout = {.microbatches = 4, .runs = 2, .shards = 2, .replicate = 2, PIPE(2, 2, INTERLEAVED_1F1B)}},
    {.layout = {.microbatches = 4, .shards = 2, PIPE(2, 2, INTERLEAVED_ZERO_BUBBLE)}, .tied = true},
    {.layout = {.microbatches = 4, .shards = 4, PIPE(2, 2, ZBV_ZERO_BUBBLE)}},
    {.layout = {.microbatches = 8, .shards = 2, PIPE(2, 2, ZBV_ZERO_BUBBLE)}, .tied = true},
    {.layout = {.microbatches = 4, .shards = 2, PIPE(2, 2, DUAL_PIPE_V)}},
    {.layout = {.microbatches = 3, PIPE(2, 2, LOOPED_BFS)}}, /* one shard: any number of microbatches */
    {.layout = {.microbatches = 5, PIPE(2, 1, 1F1B)}, .tied = true},
    {.layout = {.microbatches = 3, .runs = 2, PIPE(2, 2, ZBV_ZERO_BUBBLE)}},
};

static void any_schedule_has_the_bits_of_one_rank(void **state)
{
    for (int i = 0; i < COUNT(cases); i++) {
        struct train_job one = job_of(cases[i].tied, fixture_microbatches(&cases[i].layout)), job = one;
        struct train_result wanted;

        fixture_lay_out(&job, &cases[i].layout);
        vary(i, &one, &job);
        assert_true(train_job_is_exact(&job));
        assert_int_equal(fixture_check(train_job_run(&one, &wanted)), 0);
        fixture_both_must_be(job, &wanted, "case %d", i);
        train_result_release(&wanted);
    }
}

/* --- no pipeline, and orders that no pipeline uses --- */

struct pick {
    enum orders_kind kind;
    uint64_t seed;
};

static struct tt_order order_of(const struct tt_engine_options *options)
{
    const struct pick *pick = options->order_arg;

    return orders_make(pick->kind, options->microbatches, options->n_stages, pick->seed, false);
}

static void any_order_has_the_bits_of_one_rank(void **state)
{
    static const struct {
        int ranks, replicate, microbatches;
    } meshes[] = {{2, 1, 8}, {4, 2, 4}, {4, 1, 2}};

    for (int m = 0; m < COUNT(meshes); m++)
        for (int kind = 0; kind < ORDERS_KINDS; kind++) {
            int i = m * ORDERS_KINDS + kind;
            struct pick pick = {(enum orders_kind)kind, (uint64_t)i};
            struct train_job one = job_of(i % 2, (int64_t)meshes[m].ranks * meshes[m].microbatches), job = one;
            struct train_result wanted;

            vary(i, &one, &job);
            job.ranks = meshes[m].ranks;
            job.replicate = meshes[m].replicate;
            job.n_stages = 1 + i % 3;
            job.order = order_of;
            job.order_arg = &pick;
            assert_true(train_job_is_exact(&job));
            assert_int_equal(fixture_check(train_job_run(&one, &wanted)), 0);
            fixture_both_must_be(job, &wanted, "order %d", i);
            train_result_release(&wanted);
        }
}

/* If the microbatches of a run are no power of two, the bits are those of this layout, in any order. */
static void odd_runs_have_the_bits_of_their_layout(void **state)
{
    static const struct {
        enum tt_pipeline_schedule schedule;
        int stages_per_rank;
    } schedules[] = {{TT_PP_1F1B, 1}, {TT_PP_LOOPED_BFS, 2}, {TT_PP_ZBV_ZERO_BUBBLE, 2}};

    for (int n = 3; n <= 6; n += 3) {
        struct train_job one = job_of(false, (int64_t)2 * n), flat = one, job;
        struct train_result exact, wanted;

        flat.ranks = 2;
        flat.every_run = true;
        assert_false(train_job_is_exact(&flat));
        assert_int_equal(fixture_check(train_job_run(&one, &exact)), 0);
        assert_int_equal(fixture_check(train_job_run(&flat, &wanted)), 0);
        assert_true(train_result_distance(&one, &exact, &wanted) < 1e-4);
        for (int s = 0; s < COUNT(schedules); s++) {
            job = flat;
            job.ranks = 4;
            job.pipe = 2;
            job.schedule_of_pipe = schedules[s].schedule;
            job.stages_per_rank = schedules[s].stages_per_rank;
            fixture_both_must_be(job, &wanted, "odd run %d", 10 * n + s);
        }
        train_result_release(&exact);
        train_result_release(&wanted);
    }
}

/* Gradients in bfloat16 are rounded for each microbatch, but their sums are not. */
static void bfloat16_is_rounded_before_it_is_added(void **state)
{
    struct train_job one = job_of(false, 16), job = one;
    struct train_result wanted, unrounded;

    job.ranks = 4;
    job.every_run = true;
    assert_int_equal(fixture_check(train_job_run(&job, &unrounded)), 0);
    one.reduce_dtype = job.reduce_dtype = TT_BF16;
    assert_int_equal(fixture_check(train_job_run(&one, &wanted)), 0);
    assert_non_null(train_result_difference(&job, &wanted, &unrounded));
    fixture_both_must_be(job, &wanted, "bfloat16 %d", 0);
    train_result_release(&wanted);
    train_result_release(&unrounded);
}

/* Gradients of expert layers are added like others. Ranks that share experts get rows of each other's microbatches, so
 * they add in another order, which is the same for both engines. */
static void experts_are_added_too(void **state)
{
    const struct tt_model_dims dims = {.n_layers = 2,
                                       .dim = 20,
                                       .n_heads = 4,
                                       .n_kv_heads = 2,
                                       .head_dim = 6,
                                       .ffn_dim = 24,
                                       .vocab_size = 23,
                                       .moe = {.experts = 8, .top_k = 3, .ffn_dim = 12}};
    struct tt_model *model = NULL;

    assert_int_equal(fixture_check(tt_model_new("qwen3", "debugmodel_moe", &dims, NULL, &model)), 0);
    for (int bf16 = 0; bf16 <= 1; bf16++) {
        struct train_job one = job_of(false, 16), job;
        struct train_result wanted, shared;

        one.model = model;
        one.reduce_dtype = bf16 ? TT_BF16 : TT_F32;
        assert_int_equal(fixture_check(train_job_run(&one, &wanted)), 0);
        job = one;
        job.ranks = 4;
        job.every_run = true;
        assert_true(train_job_is_exact(&job));
        fixture_both_must_be(job, &wanted, "experts %d", bf16);
        job.experts = 2;
        assert_false(train_job_is_exact(&job));
        assert_int_equal(fixture_check(train_job_run(&job, &shared)), 0);
        one.steps = 1; /* a large learning rate makes rounding visible in the second step */
        assert_true(train_result_distance(&one, &wanted, &shared) < 1e-5);
        fixture_both_must_be(job, &shared, "shared experts %d", bf16);
        train_result_release(&wanted);
        train_result_release(&shared);
    }
    tt_model_free(model);
}

/* --- traffic and memory --- */

static struct tt_engine *plan(struct train_job job, bool every_run, bool last, enum tt_engine_choice scheduler)
{
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;

    job.every_run = every_run;
    job.last_microbatch = last;
    job.scheduler = scheduler;
    assert_int_equal(fixture_check(train_job_options(&job, &options)), 0);
    assert_int_equal(fixture_check(tt_engine_new(&options, NULL, 0, &engine)), 0);
    return engine;
}

static int64_t sent(const struct train_job *job, bool every_run, bool last)
{
    struct tt_engine *engine = plan(*job, every_run, last, TT_ENGINE_EAGER);
    int64_t bytes = tt_program_payload(tt_engine_program(engine));

    tt_engine_free(engine);
    return bytes;
}

/* One reduction instead of n saves n - 1; a run sends the same number of bytes as one that carries its gradients. */
static void a_run_sends_one_reduction(void **state)
{
    struct train_job job = job_of(true, 32);
    struct tt_engine *engine;
    int64_t reduction = 0;

    job.ranks = 4;
    engine = plan(job, true, false, TT_ENGINE_EAGER);
    for (int u = 0; u < tt_engine_layout(engine)->n_units; u++)
        reduction += 3 * tt_engine_layout(engine)->units[u].grad_elements * (int64_t)sizeof(float);
    tt_engine_free(engine);
    assert_int_equal(sent(&job, true, false), sent(&job, false, true));
    assert_int_equal(sent(&job, false, false) - sent(&job, true, false), 7 * reduction);
}

/* The largest share of the bytes of all units' whole gradients that live at once on the rank. */
static double whole_gradients(const struct tt_engine *engine)
{
    const struct tt_program *p = tt_engine_program(engine);
    int64_t *live = tt_calloc((size_t)p->n_instrs + 1, sizeof *live), most = 0, all = 0;

    for (int u = 0; u < p->layout->n_units; u++)
        for (int k = 0; k < p->layout->units[u].n_grads; k++)
            all += tt_unit_whole(p->layout, u, p->layout->units[u].grads[k].chunk) * (int64_t)sizeof(float);
    for (int b = 0; b < p->n_buffers; b++)
        if (p->buffers[b].kind == TT_MEMORY_PARAM_GRAD && p->buffers[b].root == b) {
            live[p->buffers[b].first] += p->buffers[b].bytes;
            live[p->buffers[b].last + 1] -= p->buffers[b].bytes;
        }
    for (int i = 0; i < p->n_instrs; i++) {
        live[i + 1] += live[i];
        most = live[i] > most ? live[i] : most;
    }
    tt_free(live);
    return (double)most / (double)all;
}

/* Gradients of n microbatches are added as soon as possible, so there are never more than floor(log2 n) + 1 of them. */
static void a_run_holds_a_sum_for_each_level(void **state)
{
    static const enum tt_pipeline_schedule schedules[] = {TT_PP_1F1B, TT_PP_GPIPE, TT_PP_LOOPED_BFS,
                                                          TT_PP_ZBV_ZERO_BUBBLE};

    for (int s = 0; s < COUNT(schedules); s++)
        for (int n = 2, levels = 1; n <= 16; n++) {
            struct train_job job = job_of(false, (int64_t)2 * n);
            struct tt_engine *engine;

            levels += (n & (n - 1)) == 0;
            job.ranks = 4;
            job.pipe = 2;
            job.schedule_of_pipe = schedules[s];
            job.stages_per_rank = schedules[s] == TT_PP_LOOPED_BFS || schedules[s] == TT_PP_ZBV_ZERO_BUBBLE ? 2 : 1;
            for (int planned = 0; planned < 2; planned++) {
                engine = plan(job, true, false, planned ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER);
                if (whole_gradients(engine) > (double)levels)
                    fail_msg("schedule %d, %d microbatches: %.3g whole gradients, wanted at most %d", s, n,
                             whole_gradients(engine), levels);
                tt_engine_free(engine);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_schedule_has_the_bits_of_one_rank),
        cmocka_unit_test(any_order_has_the_bits_of_one_rank),
        cmocka_unit_test(odd_runs_have_the_bits_of_their_layout),
        cmocka_unit_test(bfloat16_is_rounded_before_it_is_added),
        cmocka_unit_test(experts_are_added_too),
        cmocka_unit_test(a_run_sends_one_reduction),
        cmocka_unit_test(a_run_holds_a_sum_for_each_level),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("runs", tests, set_up, tear_down);
}
