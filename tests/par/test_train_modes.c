/* SPDX-License-Identifier: MIT
 *
 * Training on thread ranks with recomputed activations, bfloat16 in collectives, and every way to initialise: what each
 * of them may change and may not change.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "tests/help/threads.h"
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

static struct fixture world;

static int set_up(void **state)
{
    fixture_open(&world, &(struct fixture_size){.odd_layers = 4, .odd_vocab = 29, .tied_layers = 4});
    return 0;
}

static int tear_down(void **state)
{
    fixture_close(&world);
    return 0;
}

static struct train_job job_of(const struct tt_model *model, int64_t global_batch, int64_t local_batch, int64_t seq_len)
{
    return train_job_make(model, &world.data, global_batch, local_batch, seq_len);
}

static void run(const struct train_job *job, struct train_result *ret_result)
{
    if (fixture_check(train_job_run(job, ret_result)) < 0)
        fail_msg("%d ranks, %d replicas", job->ranks, job->replicate);
}

/* --- groups of parameters --- */

/* Shards are cut inside parameters and at their borders; a frozen parameter stays unchanged. */
static void groups_of_parameters_give_the_same_bits_on_every_layout(void **state)
{
    static const int meshes[][2] = {{2, 1}, {4, 2}, {8, 1}};
    struct train_job job = job_of(world.odd, 8, 1, 9);
    struct train_result reference, plain;

    job.threads = 2;
    run(&job, &plain);
    for (int p = 0; p < world.odd->n_params; p++) {
        world.odd->params[p].lr_factor = (double)(p % 4) / 2.0;
        world.odd->params[p].no_decay = p % 3 == 1;
    }
    run(&job, &reference);
    assert_non_null(train_result_difference(&job, &plain, &reference));
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        job.ranks = meshes[m][0];
        job.replicate = meshes[m][1];
        fixture_must_be(&job, &reference, "%d ranks", job.ranks);
    }
    for (int p = 0; p < world.odd->n_params; p++) {
        world.odd->params[p].lr_factor = 1.0;
        world.odd->params[p].no_decay = false;
    }
    train_result_release(&reference);
    train_result_release(&plain);
}

/* --- activation checkpointing --- */

static const struct tt_recompute modes[] = {
    {TT_RECOMPUTE_NONE, 0},      {TT_RECOMPUTE_OP, 0},        {TT_RECOMPUTE_SELECTIVE, 4},
    {TT_RECOMPUTE_SELECTIVE, 2}, {TT_RECOMPUTE_SELECTIVE, 1}, {TT_RECOMPUTE_FULL, 0},
};

enum { MODES = sizeof modes / sizeof *modes };

/* On one layout: the same bits and the same payload as without recomputation. */
static void recompute_like(const struct train_job *job, const struct train_result *reference, int64_t payload)
{
    for (int m = (job->ranks + job->replicate) % sweep_stride(); m < MODES; m += sweep_stride()) {
        struct train_job again = *job;
        struct train_result found;
        const char *difference;

        again.recompute = modes[m];
        run(&again, &found);
        difference = train_result_difference(job, reference, &found);
        if (difference)
            fail_msg("mode %d/%d, %d ranks: %s", modes[m].mode, modes[m].every, job->ranks, difference);
        assert_int_equal(found.payload, payload);
        train_result_release(&found);
    }
}

static void recomputing_changes_no_bit_and_no_traffic(void **state)
{
    static const int meshes[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {8, 1}};
    static const enum tt_reshard policies[] = {TT_RESHARD_AFTER_FORWARD_DEFAULT, TT_RESHARD_AFTER_FORWARD_ALWAYS,
                                               TT_RESHARD_AFTER_FORWARD_NEVER};
    const struct tt_model *models[] = {world.odd, world.tied};

    for (size_t i = 0; i < 2; i++) {
        struct train_job job = job_of(models[i], 8, 1, 9);
        struct train_result reference;

        run(&job, &reference);
        for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
            struct train_result plain;

            job.ranks = meshes[m][0];
            job.replicate = meshes[m][1];
            job.reshard = policies[m % 3];
            job.prefetch = (int)m % 3;
            run(&job, &plain);
            recompute_like(&job, &reference, plain.payload);
            train_result_release(&plain);
        }
        train_result_release(&reference);
    }
}

struct demand {
    int64_t step;                   /* bytes of a step's region */
    int64_t kinds[TT_MEMORY_KINDS]; /* bytes of all buffers of a kind */
};

/* The predicted memory of a step. */
static struct demand demand_of(const struct train_job *job)
{
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;
    const struct tt_program *program;
    struct demand demand = {0};

    assert_int_equal(fixture_check(train_job_options(job, &options)), 0);
    assert_int_equal(fixture_check(tt_engine_new(&options, NULL, 0, &engine)), 0);
    program = tt_engine_program(engine);
    assert_int_equal(fixture_check(tt_program_check(program)), 0);
    demand.step = tt_engine_memory(engine).step;
    for (int b = 0; b < program->n_buffers; b++)
        demand.kinds[program->buffers[b].kind] += program->buffers[b].bytes;
    tt_engine_free(engine);
    return demand;
}

static int64_t step_bytes(const struct train_job *job)
{
    return demand_of(job).step;
}

static void the_more_is_recomputed_the_less_memory_it_takes(void **state)
{
    static const int ranks[] = {1, 2, 4};
    struct tt_model *model = fixture_model(&(struct tt_model_dims){
        .dim = 64, .n_layers = 8, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .ffn_dim = 192, .vocab_size = 64});

    for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
        struct train_job job = job_of(model, 8, 2, 256);
        int64_t last = INT64_MAX, bytes;

        job.ranks = ranks[r];
        for (int m = 0; m < MODES; m++) {
            job.recompute = modes[m];
            bytes = step_bytes(&job);
            if (bytes >= last)
                fail_msg("%d ranks, mode %d/%d: %lld bytes, before %lld", job.ranks, modes[m].mode, modes[m].every,
                         (long long)bytes, (long long)last);
            if (modes[m].mode != TT_RECOMPUTE_OP) /* op only needs less than none */
                last = bytes;
        }
    }
    tt_model_free(model);
}

/* --- bfloat16 --- */

/* The types of gathered parameters, of gradients as they travel, and of weights and moments. */
static const enum tt_dtype wires[][3] = {{TT_F32, TT_F32, TT_F32},
                                         {TT_BF16, TT_F32, TT_F32},
                                         {TT_F32, TT_BF16, TT_F32},
                                         {TT_BF16, TT_BF16, TT_F32},
                                         {TT_BF16, TT_F32, TT_BF16}};
static const char *const wire_names[] = {"float32", "bfloat16 parameters", "bfloat16 gradients", "bfloat16",
                                         "bfloat16 weights and moments"};

enum { WIRES = sizeof wires / sizeof *wires };

static void set_wire(struct train_job *job, int wire)
{
    job->param_dtype = wires[wire][0];
    job->reduce_dtype = wires[wire][1];
    job->shard_dtype = wires[wire][2];
}

static double loss_distance(const struct train_job *job, const struct train_result *a, const struct train_result *b)
{
    double most = 0.0;

    for (int s = 0; s < job->steps; s++)
        most = fmax(most, fabs(a->loss[s] / b->loss[s] - 1.0));
    return most;
}

/* Every layout, policy and number of threads, with recomputation, gives the bits of one rank. */
static void wire_gives_the_same_bits(const struct train_job *one, int wire, const struct train_result *reference)
{
    static const int meshes[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {8, 1}, {8, 2}};
    static const enum tt_reshard policies[] = {TT_RESHARD_AFTER_FORWARD_DEFAULT, TT_RESHARD_AFTER_FORWARD_ALWAYS,
                                               TT_RESHARD_AFTER_FORWARD_NEVER};

    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (int p = ((int)m + wire) % sweep_stride(); p < 3; p += sweep_stride()) {
            struct train_job job = *one;

            job.ranks = meshes[m][0];
            job.replicate = meshes[m][1];
            job.reshard = policies[p];
            job.prefetch = (int)(m + (size_t)p) % 3;
            job.threads = 1 + (int)m % 3;
            job.recompute = modes[((int)m + p) % MODES];
            fixture_must_be(&job, reference, "%s, %d ranks, %d replicas", wire_names[wire], job.ranks, job.replicate);
        }
}

static void bfloat16_gives_the_same_bits_on_every_layout(void **state)
{
    const struct tt_model *models[] = {world.odd, world.tied};

    for (size_t i = 0; i < 2; i++) {
        struct train_job job = job_of(models[i], 8, 1, 9);
        struct train_result exact;

        run(&job, &exact);
        for (int wire = 1; wire < WIRES; wire++) {
            struct train_result reference;
            double distance;

            set_wire(&job, wire);
            run(&job, &reference);
            distance = loss_distance(&job, &reference, &exact);
            if (!(distance > 0.0 && distance < 1e-2))
                fail_msg("%s: the loss is off by %g", wire_names[wire], distance);
            wire_gives_the_same_bits(&job, wire, &reference);
            train_result_release(&reference);
        }
        train_result_release(&exact);
    }
}

/* With kept parts, and with both engines. */
static void bfloat16_gives_the_same_bits_from_kept_parts(void **state)
{
    static const int meshes[][3] = {{2, 1, 2}, {4, 1, 2}, {4, 1, 4}, {8, 1, 4}, {8, 2, 2}}; /* ranks, replicas, n */

    for (int wire = 1; wire < WIRES; wire++) {
        struct train_job job = job_of(world.odd, 8, 1, 8);
        struct train_result reference;

        set_wire(&job, wire);
        run(&job, &reference);
        job.reshard = TT_RESHARD_AFTER_FORWARD_PART;
        for (size_t m = (size_t)(wire % sweep_stride()); m < sizeof meshes / sizeof *meshes;
             m += (size_t)sweep_stride()) {
            job.ranks = meshes[m][0];
            job.replicate = meshes[m][1];
            job.reshard_part = meshes[m][2];
            job.scheduler = m % 2 ? TT_ENGINE_EAGER : TT_ENGINE_PLANNED;
            fixture_must_be(&job, &reference, "%s, %d ranks, %d replicas, %d keep", wire_names[wire], job.ranks,
                            job.replicate, job.reshard_part);
        }
        train_result_release(&reference);
    }
}

/* With one reduction per step, each mesh adds in its own order, which is the same for every policy and engine. */
static void bfloat16_defers_its_reduction(void **state)
{
    static const int meshes[][2] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 2}};

    for (int wire = 1; wire < WIRES; wire++)
        for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
            struct train_job job = job_of(world.tied, 12, 1, 8);
            struct train_result every, eager, planned;

            set_wire(&job, wire);
            job.ranks = meshes[m][0];
            job.replicate = meshes[m][1];
            run(&job, &every);
            job.last_microbatch = true;
            run(&job, &eager);
            job.reshard = TT_RESHARD_AFTER_FORWARD_NEVER;
            job.scheduler = TT_ENGINE_PLANNED;
            run(&job, &planned);
            if (train_result_difference(&job, &eager, &planned) || loss_distance(&job, &every, &eager) > 1e-2)
                fail_msg("%s, %d ranks, %d replicas: engines differ, or %g from every microbatch's", wire_names[wire],
                         job.ranks, job.replicate, loss_distance(&job, &every, &eager));
            train_result_release(&every);
            train_result_release(&eager);
            train_result_release(&planned);
        }
}

static void other_rank_counts_are_close_in_bfloat16(void **state)
{
    static const int meshes[][2] = {{3, 1}, {6, 2}, {6, 1}, {5, 1}};

    for (int wire = 1; wire < WIRES; wire++) {
        struct train_job job = job_of(world.odd, 30, 1, 8);
        struct train_result reference;

        set_wire(&job, wire);
        run(&job, &reference);
        for (size_t m = (size_t)(wire % sweep_stride()); m < sizeof meshes / sizeof *meshes;
             m += (size_t)sweep_stride()) {
            struct train_result found;
            double distance;

            job.ranks = meshes[m][0];
            job.replicate = meshes[m][1];
            run(&job, &found);
            distance = loss_distance(&job, &reference, &found);
            if (!(distance <= 1e-3)) /* a weight that is rounded the other way differs by 0.4 % */
                fail_msg("%s, %d ranks: off by %g", wire_names[wire], job.ranks, distance);
            train_result_release(&found);
        }
        train_result_release(&reference);
    }
}

/* With policy always there are two gathers and one reduce-scatter of the same bytes. */
static void bfloat16_halves_its_part_of_the_traffic(void **state)
{
    for (int ranks = 2; ranks <= 5; ranks++) {
        struct train_job job = job_of(world.odd, (int64_t)ranks * 2, 1, 8);
        int64_t payload[WIRES];

        job.ranks = ranks;
        job.reshard = TT_RESHARD_AFTER_FORWARD_ALWAYS;
        for (int wire = 0; wire < WIRES; wire++) {
            struct train_result found;

            set_wire(&job, wire);
            run(&job, &found); /* compares the bytes that were sent with the formula */
            payload[wire] = found.payload;
            train_result_release(&found);
        }
        assert_true(payload[0] > 0 && payload[0] % 6 == 0);
        assert_int_equal(payload[1], payload[0] / 6 * 4);
        assert_int_equal(payload[2], payload[0] / 6 * 5);
        assert_int_equal(payload[3], payload[0] / 2);
    }
}

/* Pairs of the four ranks keep halves: a gather of three shards, a gather of two from kept parts, and a reduce-scatter
 * of three. */
static void bfloat16_halves_what_neighbours_kept(void **state)
{
    struct train_job job = job_of(world.odd, 4, 1, 8);
    int64_t payload[WIRES], kept[WIRES];

    job.ranks = 4;
    job.reshard = TT_RESHARD_AFTER_FORWARD_PART;
    job.reshard_part = 2;
    for (int wire = 0; wire < WIRES; wire++) {
        struct train_result found;

        set_wire(&job, wire);
        run(&job, &found);
        payload[wire] = found.payload;
        kept[wire] = found.step_bytes;
        train_result_release(&found);
    }
    assert_true(payload[0] > 0 && payload[0] % 16 == 0);
    assert_int_equal(payload[1], payload[0] / 16 * 11);
    assert_int_equal(payload[2], payload[0] / 16 * 13);
    assert_int_equal(payload[3], payload[0] / 2);
    assert_true(kept[1] < kept[0]);
}

/* Gathered parameters and gradients of activations take half of the memory, activations take less, and float32 sums
 * take as much as before. */
static void bfloat16_takes_half_of_the_memory(void **state)
{
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        struct train_job job = job_of(world.odd, 8, 1, 8);
        struct demand wide, half;

        job.ranks = ranks;
        wide = demand_of(&job);
        job.param_dtype = TT_BF16;
        half = demand_of(&job);
        assert_true(ranks == 1 ? half.kinds[TT_MEMORY_UNSHARDED] > 0
                               : half.kinds[TT_MEMORY_UNSHARDED] * 2 == wide.kinds[TT_MEMORY_UNSHARDED]);
        assert_true(half.kinds[TT_MEMORY_ACTIVATION_GRAD] * 2 == wide.kinds[TT_MEMORY_ACTIVATION_GRAD]);
        assert_true(half.kinds[TT_MEMORY_ACTIVATION] < wide.kinds[TT_MEMORY_ACTIVATION]);
        assert_true(half.kinds[TT_MEMORY_PARAM_GRAD] == wide.kinds[TT_MEMORY_PARAM_GRAD]);
        assert_true(half.kinds[TT_MEMORY_GRAD] == wide.kinds[TT_MEMORY_GRAD]);
        job.reduce_dtype = TT_BF16;
        assert_true(step_bytes(&job) <= half.step);
    }
}

/* Nothing travels there, so keeping a rounded parameter longer would only save its rounding. */
static void alone_a_rounded_parameter_lives_until_its_last_read(void **state)
{
    static const enum tt_reshard policies[] = {TT_RESHARD_AFTER_FORWARD_DEFAULT, TT_RESHARD_AFTER_FORWARD_ALWAYS,
                                               TT_RESHARD_AFTER_FORWARD_NEVER};

    for (int i = 0; i < 6; i++) {
        struct train_job job = job_of(i % 2 ? world.odd : world.tied, 2, 1, 8);
        struct tt_engine_options options;
        struct tt_engine *engine = NULL;
        const struct tt_program *program;

        job.ranks = 1;
        job.param_dtype = TT_BF16;
        job.reshard = policies[i / 2];
        assert_int_equal(fixture_check(train_job_options(&job, &options)), 0);
        assert_int_equal(fixture_check(tt_engine_new(&options, NULL, 0, &engine)), 0);
        program = tt_engine_program(engine);
        for (int b = 0; b < program->n_buffers; b++)
            if (program->buffers[b].kind == TT_MEMORY_UNSHARDED &&
                program->instrs[program->buffers[b].last].kind == TT_RESHARD)
                fail_msg("case %d: a parameter of %s is kept", i,
                         program->layout->units[program->buffers[b].unit].name);
        tt_engine_free(engine);
    }
}

/* The state takes half of the memory, and parameters that need no gather are used in place. */
static void bfloat16_weights_take_half_of_the_memory(void **state)
{
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        struct train_job job = job_of(world.odd, 8, 1, 8);
        struct demand half, less;
        struct train_result wide, found;

        job.ranks = ranks;
        job.param_dtype = TT_BF16;
        half = demand_of(&job);
        run(&job, &wide);
        job.shard_dtype = TT_BF16;
        less = demand_of(&job);
        run(&job, &found);
        assert_true(found.memory.state * 2 <= wide.memory.state + 4096);
        assert_true(found.memory.state * 2 >= wide.memory.state);
        assert_true(ranks == 1 ? less.kinds[TT_MEMORY_UNSHARDED] == 0
                               : less.kinds[TT_MEMORY_UNSHARDED] == half.kinds[TT_MEMORY_UNSHARDED]);
        assert_int_equal(found.payload, wide.payload);
        train_result_release(&wide);
        train_result_release(&found);
    }
}

/* --- initial weights --- */

static void ways_give_the_same_bits(const struct tt_model *model, int wire)
{
    struct train_job job = job_of(model, 8, 1, 8);
    struct train_result reference;

    set_wire(&job, wire);
    run(&job, &reference);
    for (job.ranks = 1; job.ranks <= 8; job.ranks *= 2)
        for (int how = TT_INIT_META; how <= TT_INIT_LAYERWISE; how++) {
            job.init = (enum tt_init_choice)how;
            fixture_must_be(&job, &reference, "%s, way %d, %d ranks", wire_names[wire], how, job.ranks);
        }
    train_result_release(&reference);
}

static void every_way_to_initialise_gives_the_same_bits(void **state)
{
    const struct tt_model *models[] = {world.odd, world.tied};

    for (size_t i = 0; i < 2; i++)
        for (int wire = 0; wire < WIRES; wire += WIRES - 1) /* with weights in float32, and in bfloat16 */
            ways_give_the_same_bits(models[i], wire);
}

static void initialising_needs_what_is_said(void **state)
{
    struct train_job job = job_of(world.odd, 8, 1, 8);
    int64_t whole = tt_model_n_elements(world.odd) * (int64_t)sizeof(float);

    for (job.ranks = 1; job.ranks <= 8; job.ranks *= 2) {
        struct tt_engine_options options;
        struct tt_engine *engine = NULL;
        struct tt_engine_memory memory;
        int64_t block = 0;

        assert_int_equal(fixture_check(train_job_options(&job, &options)), 0);
        assert_int_equal(fixture_check(tt_engine_new(&options, NULL, 0, &engine)), 0);
        memory = tt_engine_memory(engine);
        for (int p = 0; p < world.odd->n_params; p++) { /* here a block is larger than the embeddings and the head */
            const struct tt_param *param = &world.odd->params[p];

            if (param->block == 1)
                block += param->shape[0] * (param->ndim == 2 ? param->shape[1] : 1) * (int64_t)sizeof(float);
        }
        assert_int_equal(tt_engine_init_bytes(engine, TT_INIT_META), memory.state + memory.constants);
        assert_int_equal(tt_engine_init_bytes(engine, TT_INIT_LAYERWISE), memory.state + memory.constants + block);
        assert_int_equal(tt_engine_init_bytes(engine, TT_INIT_FULL), memory.state + memory.constants + whole);
        tt_engine_free(engine);
    }
}

static int init_without_a_rule(struct tt_comm *comm, void *arg)
{
    const struct train_job *job = arg;
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;
    int rc = 0;

    TT_TRY(train_job_options(job, &options));
    TT_TRY(tt_engine_new(&options, comm, comm->rank, &engine));
    TT_TRY(tt_engine_allocate(engine));
    rc = tt_engine_init_params(engine, 1);
out:
    tt_engine_free(engine);
    return rc;
}

static void a_parameter_without_a_rule_is_named(void **state)
{
    struct train_job job = job_of(world.tied, 8, 1, 8);
    enum tt_param_init was = world.tied->params[4].init;

    world.tied->params[4].init = TT_PARAM_NONE;
    for (int how = TT_INIT_META; how <= TT_INIT_LAYERWISE; how++) {
        job.init = (enum tt_init_choice)how;
        job.ranks = 1 << how;
        assert_int_equal(tt_comm_threads_run(job.ranks, init_without_a_rule, &job), TT_EINTERNAL);
        assert_non_null(strstr(tt_error_message(), "parameter layers.0.attention.wv.weight of llama3 has no rule"));
    }
    world.tied->params[4].init = was;
}

/* --- documents --- */

static const int document_meshes[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {8, 1}};

static void expect_the_same_on_all_meshes(const struct train_job *job, const struct train_result *reference)
{
    for (size_t k = 0; k < sizeof document_meshes / sizeof *document_meshes; k++) {
        struct train_job again = *job;

        again.ranks = document_meshes[k][0];
        again.replicate = document_meshes[k][1];
        again.threads = 1 + (int)k % 3;
        again.scheduler = k % 2 ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
        fixture_must_be(&again, reference, "%d ranks, %d replicas", again.ranks, again.replicate);
    }
}

/* Samples of whole conversations with padding; some microbatches have more labels that count than others. */
static void chats_give_the_same_bits_on_every_layout(void **state)
{
    for (int m = 0; m < 4; m++) {
        struct train_job job = job_of(m % 2 ? world.tied : world.odd, 8, 1, 40), all;
        struct train_result reference, found;

        job.documents = m < 2;
        job.validation_batches = 3;
        all = job;
        job.dataset = &world.chats;
        run(&job, &reference);
        run(&all, &found);
        assert_true(found.loss[0] != reference.loss[0]);
        train_result_release(&found);
        expect_the_same_on_all_meshes(&job, &reference);
        train_result_release(&reference);
    }
}

static void documents_give_the_same_bits_on_every_layout(void **state)
{
    const struct tt_model *models[] = {world.odd, world.tied};

    for (int m = 0; m < 4; m++) {
        struct train_job job = job_of(models[m % 2], 8, 1, 40), causal;
        struct train_result reference, found;

        job.documents = true;
        job.validation_batches = 3;
        job.param_dtype = m / 2 ? TT_BF16 : TT_F32;
        causal = job;
        causal.documents = false;
        run(&job, &reference);
        run(&causal, &found);
        assert_true(found.loss[0] != reference.loss[0]);
        train_result_release(&found);
        expect_the_same_on_all_meshes(&job, &reference);
        train_result_release(&reference);
    }
}

/* The final validation has no z-loss, so without a training step it gives the same loss with and without it. */
static void a_z_loss_gives_the_same_bits_on_every_layout(void **state)
{
    const struct tt_model *models[] = {world.odd, world.tied};

    for (int m = 0; m < 4; m++) {
        struct train_job job = job_of(models[m % 2], 8, 1, 40), without;
        struct train_result reference, found;

        job.z_loss = 0.1;
        job.validation_batches = 3;
        job.param_dtype = m / 2 ? TT_BF16 : TT_F32;
        job.gives_up = m == 3;
        without = job;
        without.z_loss = 0.0;
        run(&job, &reference);
        run(&without, &found);
        assert_true(found.loss[0] == reference.loss[0] && found.loss[1] != reference.loss[1]);
        assert_true(found.z_loss[0] == 0.0 && reference.z_loss[0] > 0.0 && reference.norm[0] != found.norm[0]);
        train_result_release(&found);
        expect_the_same_on_all_meshes(&job, &reference);
        train_result_release(&reference);
        job.steps = without.steps = 0;
        run(&job, &reference);
        run(&without, &found);
        assert_true(found.validation > 0.0 && found.validation == reference.validation);
        train_result_release(&found);
        train_result_release(&reference);
    }
}

/* The averages of a run equal averages of the weights that the host computes after each step. */
static void average_on_the_host(const struct train_job *job, const struct train_result *wanted)
{
    struct train_job one = *job;
    float *average = tt_calloc((size_t)wanted->n_elements, sizeof *average);
    float decay = (float)job->average_decay, mix = (float)(1.0 - job->average_decay);

    for (one.steps = 0; one.steps <= job->steps; one.steps++) {
        struct train_result found;

        run(&one, &found);
        for (int64_t i = 0; i < found.n_elements; i++)
            average[i] = one.steps == 0 ? found.param[i] : decay * average[i] + mix * found.param[i];
        train_result_release(&found);
    }
    assert_memory_equal(average, wanted->ema, (size_t)wanted->n_elements * sizeof *average);
    tt_free(average);
}

static void averages_give_the_same_bits_on_every_layout(void **state)
{
    const struct tt_model *models[] = {world.odd, world.tied};

    for (int m = 0; m < 4; m++) {
        struct train_job job = job_of(models[m % 2], 8, 1, 40), without;
        struct train_result reference, found;

        job.average_decay = 0.7;
        job.param_dtype = job.shard_dtype = m / 2 ? TT_BF16 : TT_F32;
        job.gives_up = m == 3;
        job.validation_batches = 0;
        without = job;
        without.average_decay = 0.0;
        run(&job, &reference);
        run(&without, &found);
        assert_memory_equal(found.param, reference.param, (size_t)found.n_elements * sizeof(float));
        assert_int_equal(reference.memory.by_kind[TT_MEMORY_PARAM], found.memory.by_kind[TT_MEMORY_PARAM]);
        assert_in_range(reference.memory.total - found.memory.total, found.n_elements * (int64_t)sizeof(float),
                        found.n_elements * (int64_t)sizeof(float) + 4096);
        train_result_release(&found);
        average_on_the_host(&job, &reference);
        expect_the_same_on_all_meshes(&job, &reference);
        train_result_release(&reference);
    }
}

static void mixtures_give_the_same_bits_on_every_layout(void **state)
{
    struct train_job job = job_of(world.odd, 8, 1, 40), one;
    struct train_result reference, found;
    struct tt_mixture mixture;

    assert_int_equal(tt_mixture_init(&mixture, (const double[]){3.0, 2.0}, 2), 0);
    one = job;
    job.mixture = &mixture;
    run(&job, &reference);
    run(&one, &found);
    assert_true(found.loss[1] != reference.loss[1]);
    train_result_release(&found);
    for (size_t k = 0; k < sizeof document_meshes / sizeof *document_meshes; k++) {
        struct train_job again = job;

        again.ranks = document_meshes[k][0];
        again.replicate = document_meshes[k][1];
        again.scheduler = k % 2 ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
        fixture_must_be(&again, &reference, "%d ranks, %d replicas", again.ranks, again.replicate);
    }
    train_result_release(&reference);
    tt_mixture_release(&mixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixtures_give_the_same_bits_on_every_layout),
        cmocka_unit_test(groups_of_parameters_give_the_same_bits_on_every_layout),
        cmocka_unit_test(recomputing_changes_no_bit_and_no_traffic),
        cmocka_unit_test(the_more_is_recomputed_the_less_memory_it_takes),
        cmocka_unit_test(bfloat16_gives_the_same_bits_on_every_layout),
        cmocka_unit_test(bfloat16_gives_the_same_bits_from_kept_parts),
        cmocka_unit_test(bfloat16_defers_its_reduction),
        cmocka_unit_test(other_rank_counts_are_close_in_bfloat16),
        cmocka_unit_test(bfloat16_halves_its_part_of_the_traffic),
        cmocka_unit_test(bfloat16_halves_what_neighbours_kept),
        cmocka_unit_test(bfloat16_takes_half_of_the_memory),
        cmocka_unit_test(alone_a_rounded_parameter_lives_until_its_last_read),
        cmocka_unit_test(bfloat16_weights_take_half_of_the_memory),
        cmocka_unit_test(documents_give_the_same_bits_on_every_layout),
        cmocka_unit_test(averages_give_the_same_bits_on_every_layout),
        cmocka_unit_test(a_z_loss_gives_the_same_bits_on_every_layout),
        cmocka_unit_test(chats_give_the_same_bits_on_every_layout),
        cmocka_unit_test(every_way_to_initialise_gives_the_same_bits),
        cmocka_unit_test(initialising_needs_what_is_said),
        cmocka_unit_test(a_parameter_without_a_rule_is_named),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
