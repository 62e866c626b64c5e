/* SPDX-License-Identifier: MIT
 *
 * Context parallelism: ranks that share sequences, for both methods and every degree, layout, schedule and policy, give
 * losses, norms, weights and validation the bits of one rank with the same grains.
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

enum model { LLAMA, TIED, QWEN, GPT, ONE, LATENT, LATENTS, MODELS };

static struct fixture world;
static struct tt_model *models[MODELS];

static int tear_down(void **state)
{
    for (int m = 0; m < MODELS; m++)
        tt_model_free(models[m]);
    fixture_close(&world);
    return 0;
}

/* Heads can be divided into 8 grains, and the width of the feed-forward network into 4; but ONE has one key/value
 * head for each of 2 ranks of a layer, so ranks that share a sequence can only gather. */
static int set_up(void **state)
{
    struct tt_model_dims dims = {
        .n_layers = 3, .dim = 18, .n_heads = 16, .n_kv_heads = 8, .head_dim = 4, .ffn_dim = 20, .vocab_size = 23};

    fixture_open(&world, &(struct fixture_size){.odd_layers = 1, .odd_vocab = 23, .tied_layers = 1, .narrow = true});
    models[LLAMA] = fixture_model_of("llama3", "debugmodel", &dims);
    models[QWEN] = fixture_model_of("qwen3", "debugmodel", &dims);
    dims.tied = 1;
    models[TIED] = fixture_model_of("llama3", "debugmodel", &dims);
    dims.tied = 0;
    dims.n_heads = 6;
    dims.n_kv_heads = 2;
    models[ONE] = fixture_model_of("llama3", "debugmodel", &dims);
    dims = (struct tt_model_dims){
        .n_layers = 3, .dim = 32, .n_heads = 8, .ffn_dim = 40, .vocab_size = 23, .max_positions = 16};
    models[GPT] = fixture_model_of("gpt2", "debugmodel", &dims);
    dims = (struct tt_model_dims){.n_layers = 3,
                                  .dim = 18,
                                  .n_heads = 8,
                                  .head_dim = 6,
                                  .ffn_dim = 20,
                                  .vocab_size = 23,
                                  .mla = {.kv_rank = 5, .rope_dim = 2, .value_dim = 3}};
    models[LATENT] = fixture_latents(&dims);
    dims.mla.q_rank = 7;
    models[LATENTS] = fixture_latents(&dims);
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
    {LLAMA, {.sequence_grains = 8, .shards = 2}},
    {LLAMA, {.context = 2, .sequence_grains = 8, .microbatches = 2}},
    {LLAMA, {.context = 4, .sequence_grains = 8, .microbatches = 3}},
    {LLAMA, {.context = 4, .sequence_grains = 4}},
    {LLAMA, {.context = 8, .sequence_grains = 8}},
    {QWEN, {.context = 2, .sequence_grains = 4, .shards = 2, .microbatches = 2}},
    {TIED, {.context = 2, .sequence_grains = 8, .shards = 4}},
    {GPT, {.context = 4, .sequence_grains = 8, .shards = 2, .microbatches = 2}},
    {LLAMA, {.context = 2, .sequence_grains = 4, .shards = 2, .replicate = 2}},
    {QWEN, {.context = 4, .sequence_grains = 4, .replicate = 2, .microbatches = 2}},
    {LLAMA, {.context = 2, .sequence_grains = 4, .tensor = 2, .grains = 2, .microbatches = 2}},
    {TIED, {.context = 2, .sequence_grains = 2, .tensor = 2, .grains = 4, .shards = 2}},
    {GPT, {.context = 4, .sequence_grains = 4, .tensor = 2, .grains = 2, .microbatches = 2}},
    {QWEN, {.context = 2, .sequence_grains = 4, .tensor = 2, .grains = 2}},
    {LLAMA, {.context = 2, .sequence_grains = 8, .microbatches = 4, PIPE(2, 1, 1F1B)}},
    {QWEN, {.context = 2, .sequence_grains = 4, .shards = 2, .microbatches = 4, PIPE(2, 2, INTERLEAVED_1F1B)}},
    {TIED, {.context = 4, .sequence_grains = 4, .microbatches = 4, PIPE(2, 1, 1F1B)}},
    {GPT, {.context = 2, .sequence_grains = 4, .replicate = 2, .microbatches = 4, PIPE(2, 2, ZBV_ZERO_BUBBLE)}},
    {LLAMA, {.context = 2, .sequence_grains = 2, .tensor = 2, .grains = 2, .microbatches = 4, PIPE(2, 1, GPIPE)}},
    {ONE, {.context = 4, .sequence_grains = 8, .microbatches = 2}},
    {ONE, {.context = 2, .sequence_grains = 4, .tensor = 2, .grains = 2}},
    {ONE, {.context = 4, .sequence_grains = 4, .shards = 2}},
    {ONE, {.context = 4, .sequence_grains = 4, .microbatches = 4, PIPE(2, 1, 1F1B)}},
    {LATENT, {.context = 2, .sequence_grains = 8, .shards = 2, .microbatches = 2}},
    {LATENTS, {.context = 4, .sequence_grains = 4}},
    {LATENT, {.context = 2, .sequence_grains = 4, .tensor = 2, .grains = 2, .microbatches = 2}},
    {LATENTS, {.context = 2, .sequence_grains = 2, .tensor = 4, .grains = 4}},
    {LATENTS,
     {.context = 2, .sequence_grains = 4, .tensor = 2, .grains = 2, .microbatches = 4, PIPE(2, 2, ZBV_ZERO_BUBBLE)}},
};

/* Policies that vary from case to case. Those that change the result, such as bf16, are in the reference too. */
static void vary(int i, bool bf16, struct train_job *one, struct train_job *job)
{
    if (bf16)
        one->param_dtype = job->param_dtype = TT_BF16;
    if (bf16 && i % 2)
        one->shard_dtype = job->shard_dtype = TT_BF16;
    one->dataset = job->dataset = i % 2 ? &world.chats : &world.data;
    one->documents = job->documents = i % 3 == 1;
    one->contiguous = job->contiguous = i % 5 == 4;
    one->z_loss = job->z_loss = i % 3 == 2 ? 0.1 : 0.0;
    one->average_decay = job->average_decay = i % 4 == 1 && !job->shard_dtype ? 0.5 : 0.0;
    fixture_vary(i, job);
}

static void any_layout_has_the_bits_of_one_rank(void **state)
{
    for (int i = 0; i < 2 * COUNT(cases); i++) {
        const struct fixture_layout *layout = &cases[i % COUNT(cases)].layout;
        enum model model = cases[i % COUNT(cases)].model;
        struct train_job one = job_of(model, fixture_microbatches(layout), layout->sequence_grains, layout->grains);
        struct train_job job = one;
        struct train_result wanted;

        fixture_lay_out(&job, layout);
        vary(i, i >= COUNT(cases), &one, &job);
        assert_int_equal(fixture_check(train_job_run(&one, &wanted)), 0);
        for (int k = sweep_stride() == 1 ? 0 : i % 4; k < 4; k += sweep_stride()) {
            job.scheduler = k % 2 ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
            job.gathers = k / 2;
            if (job.gathers || model != ONE)
                fixture_must_be(&job, &wanted, "case %d", i);
        }
        train_result_release(&wanted);
    }
}

/* --- without grains in common --- */

/* Sequences have one grain per rank, so sums are added in another order than on one rank. */
static void other_grains_differ_by_rounding(void **state)
{
    for (int m = 0; m < MODELS; m++) {
        struct train_job one = job_of((enum model)m, 2, 1, 1), job = one;
        struct train_result wanted, got;
        double distance;

        job.gathers = m == ONE || m % 2;
        one.steps = job.steps = 1; /* a large learning rate makes rounding visible in the second step */
        job.context = job.ranks = 2 << m % 3;
        job.sequence_grains = 0;
        assert_int_equal(fixture_check(train_job_run(&one, &wanted)), 0);
        assert_int_equal(fixture_check(train_job_run(&job, &got)), 0);
        distance = train_result_distance(&one, &wanted, &got);
        if (!(distance < 1e-5))
            fail_msg("model %d on %d ranks: the distance is %g", m, job.ranks, distance);
        assert_non_null(train_result_difference(&one, &wanted, &got));
        train_result_release(&wanted);
        train_result_release(&got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_has_the_bits_of_one_rank),
        cmocka_unit_test(other_grains_differ_by_rounding),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("context", tests, set_up, tear_down);
}
