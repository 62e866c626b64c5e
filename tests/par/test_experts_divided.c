/* SPDX-License-Identifier: MIT
 *
 * Tensor and context parallelism of models with experts: ranks that share layers, sequences and experts, for every
 * degree, layout, schedule and policy, give losses, norms, loads, weights and validation the bits of one rank with the
 * same grains.
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
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

enum model { QWEN, MIXTRAL, IN_TURN, DEEPSEEK, DEEPSEEK_V2, MODELS };

static struct fixture world;
static struct tt_model *models[MODELS];

static int tear_down(void **state)
{
    for (int m = 0; m < MODELS; m++)
        tt_model_free(models[m]);
    fixture_close(&world);
    return 0;
}

static int set_up(void **state)
{
    struct tt_model_dims dims = {.n_layers = 2,
                                 .dim = 18,
                                 .n_heads = 8,
                                 .n_kv_heads = 4,
                                 .head_dim = 4,
                                 .ffn_dim = 21, /* of an expert of MIXTRAL; QWEN has no layer of it */
                                 .vocab_size = 23,
                                 .moe = {.experts = 8, .top_k = 3, .ffn_dim = 9}};

    fixture_open(&world, &(struct fixture_size){.odd_layers = 1, .odd_vocab = 23, .tied_layers = 1, .narrow = true});
    models[QWEN] = fixture_model_of("qwen3", "debugmodel_moe", &dims);
    dims.moe.balanced = true;
    models[IN_TURN] = fixture_model_of("qwen3", "debugmodel_moe", &dims);
    dims.moe = (struct tt_moe){.experts = 4, .top_k = 2};
    models[MIXTRAL] = fixture_model_of("mixtral", "debugmodel", &dims);
    dims = (struct tt_model_dims){.n_layers = 2, /* the first is dense */
                                  .dim = 18,
                                  .n_heads = 8,
                                  .n_kv_heads = 8,
                                  .head_dim = 6,
                                  .ffn_dim = 24,
                                  .vocab_size = 23,
                                  .mla = {.kv_rank = 7, .rope_dim = 2, .value_dim = 5},
                                  .moe = {.experts = 8,
                                          .top_k = 3,
                                          .ffn_dim = 12,
                                          .shared = 2,
                                          .dense_layers = 1,
                                          .biased = true,
                                          .score = TT_SCORE_SIGMOID,
                                          .groups = 4,
                                          .kept_groups = 2,
                                          .group_rule = TT_GROUP_TWO_BEST}};
    models[DEEPSEEK] = fixture_latents(&dims);
    dims.mla.q_rank = 5; /* queries have a latent too */
    dims.moe = (struct tt_moe){
        .experts = 8, .top_k = 3, .ffn_dim = 12, .shared = 2, .dense_layers = 1, .gates_as_scored = true};
    models[DEEPSEEK_V2] = fixture_latents(&dims);
    return 0;
}

/* Two sequences of 16 tokens in a microbatch. */
static struct train_job job_of(enum model model, int64_t microbatches, int sequence_grains, int grains)
{
    return fixture_sequences(&world, models[model], microbatches, sequence_grains, grains);
}

/* --- the same bits --- */

static const struct {
    enum model model;
    struct fixture_layout layout;
} cases[] = {
    {QWEN, {.experts = 2, .tensor = 2, .grains = 2, .window = 2.0}},
    {QWEN, {.experts = 2, .tensor = 2, .grains = 4, .shards = 2, .microbatches = 2, .window = 0.1}},
    {QWEN, {.experts = 4, .tensor = 4, .grains = 4, .window = 0.1}},
    {QWEN, {.experts = 8, .tensor = 2, .grains = 2, .shards = 4, .window = 0.3}},
    {MIXTRAL, {.experts = 4, .tensor = 2, .grains = 2, .shards = 2, .replicate = 2, .window = 0.5}},
    {QWEN, {.sequence_grains = 4, .shards = 2, .window = 1.0}},
    {QWEN, {.context = 2, .sequence_grains = 4, .microbatches = 2, .window = 1.0}},
    {MIXTRAL, {.context = 4, .sequence_grains = 4, .replicate = 2, .window = 1.0}},
    {QWEN, {.experts = 2, .context = 2, .sequence_grains = 2, .window = 0.1}},
    {QWEN, {.experts = 2, .grains = 2, .sequence_grains = 4, .shards = 2, .window = 0.1}},
    {QWEN, {.experts = 4, .context = 2, .sequence_grains = 4, .shards = 2, .microbatches = 2, .window = 0.2}},
    {MIXTRAL, {.experts = 2, .context = 4, .sequence_grains = 4, .shards = 2, .window = 0.4}},
    {QWEN,
     {.experts = 2, .tensor = 2, .grains = 2, .context = 2, .sequence_grains = 4, .microbatches = 2, .window = 0.1}},
    {QWEN, {.experts = 4, .tensor = 2, .grains = 2, .context = 2, .sequence_grains = 2, .window = 2.0}},
    {QWEN, {.experts = 8, .tensor = 2, .grains = 2, .context = 2, .sequence_grains = 4, .shards = 2, .window = 0.1}},
    {IN_TURN,
     {.experts = 4, .tensor = 2, .grains = 2, .context = 2, .sequence_grains = 4, .microbatches = 2, .window = 0.5}},
    {IN_TURN, {.experts = 4, .tensor = 4, .grains = 4, .microbatches = 2, .window = 0.1}},
    {QWEN, {.experts = 2, .tensor = 2, .grains = 2, .microbatches = 4, .window = 0.1, PIPE(2, 1, 1F1B)}},
    {QWEN,
     {.experts = 4,
      .tensor = 2,
      .grains = 2,
      .context = 2,
      .sequence_grains = 4,
      .microbatches = 4,
      .window = 0.1,
      PIPE(2, 2, ZBV_ZERO_BUBBLE)}},
    {MIXTRAL, {.context = 2, .sequence_grains = 4, .microbatches = 4, .window = 1.0, PIPE(2, 1, 1F1B)}},
    {DEEPSEEK, {.experts = 2, .tensor = 2, .grains = 4, .microbatches = 2, .window = 0.2}},
    {DEEPSEEK, {.experts = 4, .tensor = 2, .grains = 2, .context = 2, .sequence_grains = 4, .window = 0.5}},
    {DEEPSEEK, {.grains = 2, .context = 2, .sequence_grains = 2, .shards = 2, .window = 1.0}},
    {DEEPSEEK_V2, {.experts = 4, .tensor = 4, .grains = 4, .window = 0.1}},
    {DEEPSEEK_V2,
     {.experts = 4, .tensor = 2, .grains = 2, .context = 2, .sequence_grains = 4, .shards = 2, .window = 0.1}},
    {DEEPSEEK_V2, {.experts = 2, .tensor = 2, .grains = 2, .microbatches = 4, .window = 0.1, PIPE(2, 1, 1F1B)}},
};

/* Policies that vary from case to case. Those that change the result, such as bf16, are in the reference too. */
static void vary(int i, struct train_job *one, struct train_job *job)
{
    bool bf16 = i >= COUNT(cases), sigmoid = cases[i % COUNT(cases)].model == DEEPSEEK;

    if (bf16)
        one->param_dtype = job->param_dtype = TT_BF16;
    if (bf16 && i % 3 == 1)
        one->shard_dtype = job->shard_dtype = TT_BF16;
    if (bf16 && i % COUNT(cases) % 3 == 0 && job->context == 1) /* each rank of a sequence rounds its own */
        one->reduce_dtype = job->reduce_dtype = TT_BF16;
    one->documents = job->documents = i % 2;
    one->contiguous = job->contiguous = i % 5 == 4;
    one->balance_coeff = job->balance_coeff = sigmoid ? 0.001 : 0.0;
    if (i % 3 == 2) /* the z-loss uses a softmax */
        one->router_losses = job->router_losses = (struct tt_router_losses){0.1F, 0.2F, sigmoid ? 0.0F : 0.3F, 0.2F};
    if (i % 6 == 1)
        one->router_losses.global_batch = job->router_losses.global_batch = 0.3F;
    one->average_decay = job->average_decay = i % 4 == 1 && !job->shard_dtype ? 0.5 : 0.0;
    fixture_vary(i, job);
}

static void any_layout_has_the_bits_of_one_rank(void **state)
{
    for (int i = 0; i < 2 * COUNT(cases); i++) {
        const struct fixture_layout *layout = &cases[i % COUNT(cases)].layout;
        struct train_job one = job_of(cases[i % COUNT(cases)].model, fixture_microbatches(layout),
                                      layout->sequence_grains, layout->grains);
        struct train_job job = one;
        struct train_result wanted;

        fixture_lay_out(&job, layout);
        vary(i, &one, &job);
        assert_int_equal(fixture_check(train_job_run(&one, &wanted)), 0);
        for (int k = 0; k < (job.context > 1 ? 4 : 2); k++) {
            job.scheduler = k % 2 ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
            job.gathers = k / 2;
            fixture_must_be(&job, &wanted, "case %d", i);
        }
        train_result_release(&wanted);
    }
}

/* --- all rows on one rank --- */

/* The other experts have no rows at all. */
static void the_worst_imbalance_has_the_same_bits(void **state)
{
    const double windows[] = {0.1, 8.0};

    for (int experts = 2; experts <= 8; experts *= 2) {
        struct train_job one = job_of(QWEN, 2, 4, 2), job;
        struct train_result wanted;

        one.load = train_job_equal_scores;
        one.load_arg = models[QWEN];
        job = one;
        job.ranks = 8;
        job.tensor = job.context = 2;
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
        cmocka_unit_test(any_layout_has_the_bits_of_one_rank),
        cmocka_unit_test(the_worst_imbalance_has_the_same_bits),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("experts_divided", tests, set_up, tear_down);
}
