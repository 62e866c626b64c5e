/* SPDX-License-Identifier: MIT
 *
 * Meshes of several dimensions: for tensor parallelism of every degree, and for triples of dimensions, every engine,
 * kind of recomputation and type gives losses, norms, weights and validation the bits of one rank with the same grains.
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

enum { GLOBAL_BATCH = 8, SEQ_LEN = 16 };

static struct fixture world;
static struct tt_model *model;

/* The results of one rank, by number of grains and type. */
static const struct grains {
    int layer, sequence;
} grains[] = {{8, 1}, {4, 1}, {4, 2}};
static struct train_result references[COUNT(grains)][2];

static const struct mesh {
    int grains; /* index */
    struct fixture_layout layout;
} meshes[] = {
    {0, {.tensor = 1}},
    {0, {.tensor = 2}},
    {0, {.tensor = 4}},
    {0, {.tensor = 8}},
    {1, {.pipe = 2, .shards = 2, .tensor = 2}},
    {1, {.pipe = 2, .replicate = 2, .shards = 2, .tensor = 2}},
    {2, {.shards = 2, .context = 2, .tensor = 2}},
    {2, {.pipe = 2, .context = 2, .tensor = 2}},
    {2, {.replicate = 2, .context = 2, .tensor = 4}},
};

static const struct tt_recompute recomputes[] = {
    {TT_RECOMPUTE_NONE, 0}, {TT_RECOMPUTE_FULL, 0}, {TT_RECOMPUTE_OP, 0}, {TT_RECOMPUTE_SELECTIVE, 2}};
static const char *const recompute_names[] = {"none", "full", "op", "every second block"};

static const struct {
    enum tt_pipeline_schedule schedule;
    int stages_per_rank;
} schedules[] = {{TT_PP_1F1B, 1}, {TT_PP_INTERLEAVED_1F1B, 2}, {TT_PP_ZBV_ZERO_BUBBLE, 2}};

static const enum tt_reshard reshards[] = {TT_RESHARD_AFTER_FORWARD_DEFAULT, TT_RESHARD_AFTER_FORWARD_ALWAYS,
                                           TT_RESHARD_AFTER_FORWARD_NEVER};

static struct train_job job_of(const struct grains *of, bool bf16)
{
    struct train_job job = train_job_make(model, &world.data, GLOBAL_BATCH, 1, SEQ_LEN);

    job.steps = 2;
    job.validation_batches = 3;
    job.grains = of->layer;
    job.sequence_grains = of->sequence;
    if (bf16)
        job.param_dtype = TT_BF16;
    return job;
}

static int tear_down(void **state)
{
    for (int g = 0; g < COUNT(grains); g++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            train_result_release(&references[g][bf16]);
    tt_model_free(model);
    fixture_close(&world);
    return 0;
}

/* Heads and the feed-forward network divide into 8 grains; the vocabulary and the width do not. */
static int set_up(void **state)
{
    struct tt_model_dims dims = {
        .n_layers = 3, .dim = 18, .n_heads = 16, .n_kv_heads = 8, .head_dim = 4, .ffn_dim = 24, .vocab_size = 23};

    fixture_open(&world, &(struct fixture_size){.odd_layers = 1, .odd_vocab = 23, .tied_layers = 1, .narrow = true});
    model = fixture_model(&dims);
    for (int g = 0; g < COUNT(grains); g++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct train_job one = job_of(&grains[g], bf16);

            if (fixture_check(train_job_run(&one, &references[g][bf16])) < 0)
                return -1;
        }
    return 0;
}

/* Run i of all combinations of meshes, engines, kinds of recomputation and types. */
static void must_be_exact(int i)
{
    const struct mesh *m = &meshes[i / 16];
    int recompute = i / 4 % 4, s = i % COUNT(schedules);
    bool planned = i % 2, bf16 = i / 2 % 2;
    struct train_job job = job_of(&grains[m->grains], bf16);

    fixture_lay_out(&job, &m->layout);
    job.schedule_of_pipe = schedules[s].schedule;
    job.stages_per_rank = schedules[s].stages_per_rank;
    job.gathers = i / 4 % 2;
    job.scheduler = planned ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
    job.recompute = recomputes[recompute];
    job.reshard = reshards[i / 2 % COUNT(reshards)];
    fixture_must_be(&job, &references[m->grains][bf16],
                    "%d ranks: pp %d (%s) x dp_replicate %d x cp %d x tp %d, recompute %s, %s", job.ranks, job.pipe,
                    tt_pipeline_row(job.schedule_of_pipe)->name, job.replicate, job.context, job.tensor,
                    recompute_names[recompute], bf16 ? "bfloat16" : "float32");
}

static void any_mesh_has_the_bits_of_one_rank(void **state)
{
    for (int i = sweep_stride() - 1; i < 16 * COUNT(meshes); i += sweep_stride())
        must_be_exact(i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_mesh_has_the_bits_of_one_rank),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("meshes", tests, set_up, tear_down);
}
