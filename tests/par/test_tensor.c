/* SPDX-License-Identifier: MIT
 *
 * Tensor parallelism: ranks that share layers, for every degree, layout, schedule and policy, give losses, norms,
 * weights and validation the bits of one rank with the same grains.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "parallel/layout/units.h"
#include "tests/help/threads.h"
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

enum model {
    LLAMA,
    TIED,
    QWEN,
    GPT,
    LATENT,
    LATENTS,
    MUON,
    MUON_GPT,
    ADAPTED,
    SOME_ADAPTED,
    MUON_ADAPTED,
    MUON_LATENTS,
    IN_BLOCKS,
    MODELS
};

static struct fixture world;
static struct tt_model *models[MODELS];

static int tear_down(void **state)
{
    for (int m = 0; m < MODELS; m++)
        tt_model_free(models[m]);
    fixture_close(&world);
    return 0;
}

/* Everything except the vocabulary and the width divides into 8 grains. */
static int set_up(void **state)
{
    struct tt_model_dims dims = {
        .n_layers = 3, .dim = 18, .n_heads = 16, .n_kv_heads = 8, .head_dim = 4, .ffn_dim = 24, .vocab_size = 23};

    fixture_open(&world, &(struct fixture_size){.odd_layers = 1, .odd_vocab = 23, .tied_layers = 1, .narrow = true});
    models[LLAMA] = fixture_model_of("llama3", "debugmodel", &dims);
    models[QWEN] = fixture_model_of("qwen3", "debugmodel", &dims);
    dims.lora = (struct tt_lora){.rank = 3, .alpha = 6.0, .modules = 0x7f}; /* no degree divides 3 */
    models[ADAPTED] = fixture_model_of("llama3", "debugmodel", &dims);
    models[MUON_ADAPTED] = fixture_model_of("llama3", "debugmodel", &dims);
    dims.lora.modules = 0x49;
    models[SOME_ADAPTED] = fixture_model_of("qwen3", "debugmodel", &dims);
    dims.lora = (struct tt_lora){0};
    models[MUON] = fixture_model_of("qwen3", "debugmodel", &dims);
    dims.ffn_dim = 256; /* its parameters have enough elements for blocks; some grains are whole blocks, some are not */
    models[IN_BLOCKS] = fixture_model_of("llama3", "debugmodel", &dims);
    dims.ffn_dim = 24;
    dims.tied = 1;
    models[TIED] = fixture_model_of("llama3", "debugmodel", &dims);
    dims = (struct tt_model_dims){
        .n_layers = 3, .dim = 32, .n_heads = 8, .ffn_dim = 40, .vocab_size = 23, .max_positions = 16};
    models[GPT] = fixture_model_of("gpt2", "debugmodel", &dims);
    models[MUON_GPT] = fixture_model_of("gpt2", "debugmodel", &dims);
    dims = (struct tt_model_dims){.n_layers = 3,
                                  .dim = 18,
                                  .n_heads = 16,
                                  .head_dim = 6,
                                  .ffn_dim = 24,
                                  .vocab_size = 23,
                                  .mla = {.kv_rank = 5, .rope_dim = 2, .value_dim = 3}};
    models[LATENT] = fixture_latents(&dims);
    dims.mla.q_rank = 7; /* no degree divides the latent ranks */
    models[LATENTS] = fixture_latents(&dims);
    models[MUON_LATENTS] = fixture_latents(&dims);
    tt_param_groups_set_optim(models[MUON], TT_OPTIM_MUON);
    tt_param_groups_set_optim(models[MUON_GPT], TT_OPTIM_MUON);
    tt_param_groups_set_optim(models[MUON_ADAPTED], TT_OPTIM_MUON);
    tt_param_groups_set_optim(models[MUON_LATENTS], TT_OPTIM_MUON);
    tt_param_groups_set_optim(models[IN_BLOCKS], TT_OPTIM_ADAMW_8BIT);
    return 0;
}

static struct train_job job_of(enum model model, int64_t global_batch, int grains)
{
    struct train_job job = train_job_make(models[model], &world.data, global_batch, 1, 8);

    job.steps = model >= ADAPTED ? 3 : 2; /* in the first step, only B of an adapter gets a gradient */
    job.validation_batches = 3;
    job.grains = grains;
    return job;
}

/* --- the same bits --- */

static const struct {
    enum model model;
    struct fixture_layout layout;
} cases[] = {
    {LLAMA, {.grains = 8, .microbatches = 2}},
    {LLAMA, {.tensor = 2, .grains = 8, .microbatches = 2}},
    {LLAMA, {.tensor = 4, .grains = 8, .microbatches = 2}},
    {LLAMA, {.tensor = 8, .grains = 8, .microbatches = 2}},
    {QWEN, {.tensor = 2, .grains = 8, .microbatches = 3}},
    {QWEN, {.tensor = 4, .grains = 4, .shards = 2}},
    {GPT, {.tensor = 2, .grains = 2, .shards = 2, .replicate = 2, .microbatches = 2}},
    {GPT, {.tensor = 4, .grains = 8, .replicate = 2}},
    {TIED, {.tensor = 2, .grains = 8, .shards = 2, .microbatches = 2}},
    {TIED, {.tensor = 8, .grains = 8}},
    {LLAMA, {.tensor = 2, .grains = 4, .shards = 4, .microbatches = 2}},
    {LLAMA, {.tensor = 2, .grains = 8, .microbatches = 4, PIPE(2, 1, 1F1B)}},
    {QWEN, {.tensor = 2, .grains = 4, .shards = 2, .microbatches = 4, PIPE(2, 2, INTERLEAVED_1F1B)}},
    {TIED, {.tensor = 2, .grains = 2, .microbatches = 4, PIPE(2, 1, 1F1B)}},
    {GPT, {.tensor = 2, .grains = 4, .replicate = 2, .microbatches = 4, PIPE(2, 2, ZBV_ZERO_BUBBLE)}},
    {ADAPTED, {.tensor = 2, .grains = 8, .microbatches = 2}},
    {ADAPTED, {.tensor = 4, .grains = 4, .shards = 2}},
    {ADAPTED, {.tensor = 8, .grains = 8}},
    {SOME_ADAPTED, {.tensor = 2, .grains = 2, .shards = 2, .replicate = 2, .microbatches = 2}},
    {SOME_ADAPTED, {.tensor = 2, .grains = 4, .microbatches = 4, PIPE(2, 2, ZBV_ZERO_BUBBLE)}},
    {MUON, {.tensor = 2, .grains = 8}},
    {MUON, {.tensor = 4, .grains = 4, .shards = 2, .microbatches = 2}},
    {MUON, {.tensor = 2, .grains = 2, .shards = 4}},
    {MUON_GPT, {.tensor = 2, .grains = 8, .shards = 2, .replicate = 2}},
    {MUON, {.tensor = 2, .grains = 4, .microbatches = 4, PIPE(2, 1, 1F1B)}},
    {MUON_ADAPTED, {.tensor = 2, .grains = 4, .shards = 2, .microbatches = 2}},
    {LATENT, {.tensor = 2, .grains = 8, .microbatches = 2}},
    {LATENT, {.tensor = 4, .grains = 4, .shards = 2}},
    {LATENT, {.tensor = 8, .grains = 8}},
    {LATENTS, {.tensor = 2, .grains = 8, .shards = 2, .replicate = 2, .microbatches = 2}},
    {LATENTS, {.tensor = 4, .grains = 8, .microbatches = 2}},
    {LATENTS, {.tensor = 2, .grains = 4, .microbatches = 4, PIPE(2, 2, ZBV_ZERO_BUBBLE)}},
    {MUON_LATENTS, {.tensor = 2, .grains = 4, .shards = 2, .microbatches = 2}},
    {IN_BLOCKS, {.tensor = 2, .grains = 8, .shards = 2, .microbatches = 2}},
    {IN_BLOCKS, {.tensor = 2, .grains = 2, .shards = 2, .replicate = 2}},
    {IN_BLOCKS, {.tensor = 4, .grains = 4}},
    {IN_BLOCKS, {.tensor = 2, .grains = 2, .microbatches = 4, PIPE(2, 1, 1F1B)}},
};

/* Policies that vary from case to case. Those that change the result, such as bf16, are in the reference too. */
static void vary(int i, bool bf16, struct train_job *one, struct train_job *job)
{
    if (bf16)
        one->param_dtype = job->param_dtype = TT_BF16;
    if (bf16 && i % 2)
        one->shard_dtype = job->shard_dtype = TT_BF16;
    one->documents = job->documents = i % 2;
    one->z_loss = job->z_loss = i % 3 == 2 ? 0.1 : 0.0;
    one->average_decay = job->average_decay = i % 4 == 1 && !job->shard_dtype ? 0.5 : 0.0;
    one->last_microbatch = job->last_microbatch = i % 5 == 1 && job->pipe <= 1 && job->ranks == job->tensor;
    job->every_run = i % 3 == 0 && !job->last_microbatch;
    fixture_vary(i, job);
}

static void any_layout_has_the_bits_of_one_rank(void **state)
{
    for (int i = 0; i < 2 * COUNT(cases); i++) {
        const struct fixture_layout *layout = &cases[i % COUNT(cases)].layout;
        struct train_job one = job_of(cases[i % COUNT(cases)].model, fixture_microbatches(layout), layout->grains);
        struct train_job job = one;
        struct train_result wanted;

        fixture_lay_out(&job, layout);
        vary(i, i >= COUNT(cases), &one, &job);
        assert_int_equal(fixture_check(train_job_run(&one, &wanted)), 0);
        fixture_both_must_be(job, &wanted, "case %d", i);
        train_result_release(&wanted);
    }
}

/* --- without grains in common --- */

/* There is one grain per rank, so sums are added in another order than on one rank. */
static void other_grains_differ_by_rounding(void **state)
{
    for (int m = 0; m < MODELS; m++) {
        struct train_job one = job_of((enum model)m, 2, 1), job = one;
        struct train_result wanted, got;
        double distance;

        one.steps = job.steps = 1; /* a large learning rate makes rounding visible in the second step */
        job.tensor = job.ranks = 2 << m % 3;
        job.grains = 0;
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

/* --- values that are not finite --- */

/* The last row of w1, which is on the last rank, overflows. */
static int overflowing_rank(struct tt_comm *comm, void *arg)
{
    const struct train_job *job = arg;
    struct tt_step step = {.scalars = {.inv_valid_tokens = 0.01F, .lr = 1.0}, .max_norm = 1.0};
    struct tt_engine_options options = {0};
    struct tt_engine *engine = NULL;
    int rc = 0, p = 0;

    TT_TRY(train_job_options(job, &options));
    TT_TRY(tt_engine_new(&options, comm, comm->rank, &engine));
    TT_TRY(tt_engine_allocate(engine));
    TT_TRY(tt_engine_init_params(engine, 1));
    while (strcmp(job->model->params[p].name, "layers.1.feed_forward.w1.weight") != 0)
        p++;
    if (comm->rank == comm->size - 1) {
        const struct tt_layout *layout = tt_engine_layout(engine);
        const struct tt_unit_param *place = tt_layout_param(layout, p);
        float *part = tt_state_at(tt_engine_state(engine), TT_STATE_PARAM, layout->unit_of[p], place);

        for (int64_t i = 0; i < place->box.shape[1]; i++)
            part[tt_box_volume(&place->box) - 1 - i] = 3e38F;
    }
    for (int64_t i = 0; i < options.local_batch * options.seq_len; i++)
        tt_engine_inputs(engine, 0).tokens[i] = tt_engine_inputs(engine, 0).labels[i] = (int32_t)(i % 13);
    rc = tt_engine_step(engine, &step);
    if (rc == TT_ENONFINITE)
        rc = tt_engine_explain(engine, &step);
out:
    rc = tt_comm_agree(comm, rc);
    tt_engine_free(engine);
    train_job_options_release(&options);
    return rc;
}

/* The other ranks receive it with the next sum, and must not take that for the cause. */
static void the_rank_with_the_first_bad_value_names_it(void **state)
{
    struct train_job job = job_of(LLAMA, 1, 8);

    for (job.tensor = 2; job.tensor <= 8; job.tensor *= 2) {
        job.ranks = job.tensor;
        assert_int_equal(tt_comm_threads_run(job.ranks, overflowing_rank, &job), TT_ENONFINITE);
        if (!strstr(tt_error_message(), "is layers.1.feed_forward.gate of microbatch 0"))
            fail_msg("%s", tt_error_message());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_has_the_bits_of_one_rank),
        cmocka_unit_test(other_grains_differ_by_rounding),
        cmocka_unit_test(the_rank_with_the_first_bad_value_names_it),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("tensor", tests, set_up, tear_down);
}
