/* SPDX-License-Identifier: MIT
 *
 * Expert parallelism: ranks that share experts, for every degree, layout, schedule and policy, give losses, norms,
 * weights and validation the bits of ranks that hold all experts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/comm/comm.h"
#include "parallel/layout/units.h"
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static struct fixture world;
static struct tt_model *models[3]; /* with the router's experts, with experts in turn, with moments in blocks */

static int tear_down(void **state)
{
    for (int m = 0; m < COUNT(models); m++)
        tt_model_free(models[m]);
    fixture_close(&world);
    return 0;
}

static int set_up(void **state)
{
    struct tt_model_dims dims = {.n_layers = 2,
                                 .dim = 20,
                                 .n_heads = 4,
                                 .n_kv_heads = 2,
                                 .head_dim = 6,
                                 .ffn_dim = 24,
                                 .vocab_size = 23,
                                 .moe = {.experts = 16, .top_k = 3, .ffn_dim = 12}};

    fixture_open(&world, &(struct fixture_size){.odd_layers = 1, .odd_vocab = 23, .tied_layers = 1, .narrow = true});
    assert_int_equal(fixture_check(tt_model_new("qwen3", "debugmodel_moe", &dims, NULL, &models[0])), 0);
    dims.moe.balanced = true;
    assert_int_equal(fixture_check(tt_model_new("qwen3", "debugmodel_moe", &dims, NULL, &models[1])), 0);
    dims.moe = (struct tt_moe){.experts = 16, .top_k = 3, .ffn_dim = 14}; /* an expert has a block, and 24 elements */
    assert_int_equal(fixture_check(tt_model_new("qwen3", "debugmodel_moe", &dims, NULL, &models[2])), 0);
    tt_param_groups_set_optim(models[2], TT_OPTIM_ADAMW_8BIT);
    return 0;
}

static struct train_job job_of(int model, int64_t global_batch)
{
    struct train_job job = train_job_make(models[model], &world.data, global_batch, 1, 8);

    job.steps = 2;
    job.validation_batches = 3;
    return job;
}

/* --- the same bits --- */

static const struct {
    int model;
    struct fixture_layout layout;
} cases[] = {
    {0, {.experts = 2, .shards = 2, .window = 2.0}},
    {0, {.experts = 4, .shards = 4, .microbatches = 2, .window = 0.1}},
    {0, {.experts = 8, .shards = 8, .window = 0.1}},
    {0, {.experts = 2, .shards = 4, .microbatches = 2, .window = 0.4}},
    {0, {.experts = 4, .shards = 8, .window = 0.5}},
    {0, {.experts = 2, .shards = 2, .replicate = 2, .microbatches = 2, .window = 1.0}},
    {0, {.experts = 2, .shards = 4, .replicate = 2, .window = 0.1}},
    {1, {.experts = 4, .shards = 4, .microbatches = 2, .window = 1.0}},
    {2, {.experts = 2, .shards = 4, .replicate = 2, .window = 1.0}},
    {2, {.experts = 4, .shards = 4, .window = 1.0}},
    {0, {.experts = 2, .shards = 2, .microbatches = 4, .window = 0.1, PIPE(2, 1, 1F1B)}},
    {0, {.experts = 4, .shards = 4, .microbatches = 4, .window = 0.3, PIPE(2, 2, ZBV_ZERO_BUBBLE)}},
};

/* Policies that vary from case to case. Those that change the result, such as bf16, are in the reference too. */
static void vary(int i, struct train_job *one, struct train_job *job)
{
    bool bf16 = i >= COUNT(cases);

    if (bf16)
        one->param_dtype = job->param_dtype = TT_BF16;
    if (bf16 && i % 3 == 1)
        one->shard_dtype = job->shard_dtype = TT_BF16;
    if (bf16 && i % 3 == 0)
        one->reduce_dtype = job->reduce_dtype = TT_BF16;
    one->documents = job->documents = i % 2;
    one->average_decay = job->average_decay = i % 4 == 1 && !job->shard_dtype ? 0.5 : 0.0;
    fixture_vary(i, job);
}

static void any_layout_has_the_bits_of_all_experts_on_each_rank(void **state)
{
    for (int i = 0; i < 2 * COUNT(cases); i++) {
        const struct fixture_layout *layout = &cases[i % COUNT(cases)].layout;
        struct train_job one = job_of(cases[i % COUNT(cases)].model, fixture_microbatches(layout)), job = one;
        struct train_result wanted;

        fixture_lay_out(&job, layout);
        vary(i, &one, &job);
        assert_int_equal(fixture_check(train_job_run(&one, &wanted)), 0);
        fixture_both_must_be(job, &wanted, "case %d", i);
        train_result_release(&wanted);
    }
}

/* --- all rows on one rank --- */

static void the_worst_imbalance_has_the_same_bits(void **state)
{
    const double windows[] = {0.1, 1.0, 8.0};

    for (int experts = 2; experts <= 8; experts *= 2) {
        struct train_job one = job_of(0, 16), job;
        struct train_result wanted;

        one.load = train_job_equal_scores;
        one.load_arg = models[0];
        job = one;
        job.ranks = 8;
        job.experts = experts;
        assert_int_equal(fixture_check(train_job_run(&one, &wanted)), 0);
        for (int i = 0; i < COUNT(windows); i++) {
            job.moe_window = windows[i];
            fixture_must_be(&job, &wanted, "all rows on one rank");
        }
        train_result_release(&wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_has_the_bits_of_all_experts_on_each_rank),
        cmocka_unit_test(the_worst_imbalance_has_the_same_bits),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("experts", tests, set_up, tear_down);
}
