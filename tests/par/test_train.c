/* SPDX-License-Identifier: MIT
 *
 * Training on thread ranks. Losses and weights do not depend on the layout, to the last bit. The bytes sent match the
 * formula, and memory matches the plan. The step loop allocates nothing. A value that is not finite stops every rank.
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
#include "parallel/layout/units.h"
#include "tests/help/threads.h"
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

#define DEFAULT TT_RESHARD_AFTER_FORWARD_DEFAULT
#define ALWAYS  TT_RESHARD_AFTER_FORWARD_ALWAYS
#define NEVER   TT_RESHARD_AFTER_FORWARD_NEVER

static const enum tt_reshard policies[] = {DEFAULT, ALWAYS, NEVER};
static const char *const policy_names[] = {"default", "always", "never"};

static struct fixture world;

static int set_up(void **state)
{
    fixture_open(&world, &(struct fixture_size){.odd_layers = 2, .odd_vocab = 101, .tied_layers = 3});
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

static const char *name_of(const struct train_job *job)
{
    static char text[160];

    (void)snprintf(text, sizeof text, "%d ranks, %d replicas, reshard %s, prefetch %d, %d threads, local batch %d",
                   job->ranks, job->replicate, policy_names[job->reshard], job->prefetch, job->threads,
                   (int)job->local_batch);
    return text;
}

/* A tied weight's gradient is two sums. The number of elements of the second one in a shard. */
static int64_t second_sum(const struct tt_model *model, int64_t shards)
{
    return (model->dims.vocab_size + shards - 1) / shards * model->dims.dim;
}

/* The payload of one step, computed from the shapes of the parameters alone. */
static int64_t payload_formula(const struct train_job *job)
{
    const struct tt_model *model = job->model;
    int64_t S = job->ranks / job->replicate, bytes = 0, first = 0, last = model->dims.n_layers + 1;

    /* Unit 0 is the embeddings, then come the blocks, then norm and output, with the embeddings if they are tied. */
    for (int64_t unit = first; unit <= last; unit++) {
        bool kept = job->reshard == NEVER || (job->reshard == DEFAULT && unit == last);
        int64_t shard = 0, grads;

        for (int p = 0; p < model->n_params; p++) {
            const struct tt_param *param = &model->params[p];
            int64_t of = param->block >= 0 ? param->block + 1 : param->block == TT_BLOCK_EMBEDDINGS ? first : last;

            if (model->dims.tied == 1 && of == first)
                of = last;
            if (of == unit)
                shard += (param->shape[0] + S - 1) / S * (param->ndim == 2 ? param->shape[1] : 1);
        }
        grads = shard + (model->dims.tied == 1 && unit == last ? second_sum(model, S) : 0);
        bytes += train_job_payload(job, shard, grads, kept ? 1 : S);
    }
    return bytes;
}

/* Runs the job. Its payload must match the formula. */
static void run(const struct train_job *job, struct train_result *ret_result)
{
    if (fixture_check(train_job_run(job, ret_result)) < 0)
        fail_msg("%s", name_of(job));
    if (ret_result->payload != payload_formula(job))
        fail_msg("%s: %lld bytes of payload, the formula gives %lld", name_of(job), (long long)ret_result->payload,
                 (long long)payload_formula(job));
}

static void must_equal(const struct train_job *job, const struct train_result *reference)
{
    struct train_result found;
    const char *difference;

    run(job, &found);
    difference = train_result_difference(job, reference, &found);
    if (difference)
        fail_msg("%s: %s", name_of(job), difference);
    train_result_release(&found);
}

/* --- the same bits --- */

struct ranks {
    int ranks, replicate;
};

/* Every layout of `meshes` with every policy, and with the next of three prefetch distances and thread counts in
 * turn. */
static void sweep(const struct tt_model *model, int64_t global_batch, int64_t local_batch, int64_t seq_len,
                  const struct ranks *meshes, int n_meshes)
{
    static const int prefetch[] = {0, 1, 3};
    struct train_job job = job_of(model, global_batch, local_batch, seq_len);
    struct train_result reference;

    run(&job, &reference);
    assert_true(fabs(reference.loss[2] - reference.loss[0]) > 1e-4); /* the loss changes */
    for (int m = 0; m < n_meshes; m++)
        for (int p = 0; p < 3; p++)
            for (int f = (m + p) % sweep_stride(); f < 3; f += sweep_stride()) {
                job.ranks = meshes[m].ranks;
                job.replicate = meshes[m].replicate;
                job.reshard = policies[p];
                job.prefetch = prefetch[f];
                job.threads = 1 + (m + p + f) % 3;
                must_equal(&job, &reference);
            }
    train_result_release(&reference);
}

#define SWEEP(model, global, local, seq, meshes) \
    sweep(model, global, local, seq, meshes, (int)(sizeof(meshes) / sizeof *(meshes)))

static const struct ranks powers_of_two[] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2},
                                             {4, 4}, {8, 1}, {8, 2}, {8, 4}, {8, 8}};

static void odd_sizes_give_the_same_bits_on_every_layout(void **state)
{
    SWEEP(world.odd, 8, 1, 16, powers_of_two);
}

static void larger_local_batches_too(void **state)
{
    static const struct ranks meshes[] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}};

    SWEEP(world.odd, 12, 3, 7, meshes);
}

static void tied_embeddings_and_empty_shards_too(void **state)
{
    SWEEP(world.tied, 8, 1, 8, powers_of_two);
    SWEEP(world.tied, 16, 2, 5, powers_of_two);
}

/* With 12 microbatches the tree is not full. S is a power of two, and R is 1 or A S is a power of two. */
static void batches_that_are_no_power_of_two_too(void **state)
{
    static const struct ranks meshes[] = {{1, 1}, {2, 1}, {3, 3}, {4, 1}, {6, 3}, {12, 3}};

    SWEEP(world.tied, 12, 1, 8, meshes);
}

static void every_number_of_threads_gives_the_same_bits(void **state)
{
    struct train_job job = job_of(world.odd, 8, 2, 33);
    struct train_result reference;

    run(&job, &reference);
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        for (job.ranks = ranks, job.threads = 1; job.threads <= 4; job.threads++)
            must_equal(&job, &reference);
    train_result_release(&reference);
}

/* Without the payload formula, which holds for AdamW in float32. */
static void run_optimizer(const struct train_job *job, struct train_result *ret_result)
{
    if (fixture_check(train_job_run(job, ret_result)) < 0)
        fail_msg("%s", name_of(job));
}

/* Every optimizer of the table, with float32 and bfloat16 state; its bits differ from every other optimizer's. */
static void every_optimizer_gives_the_same_bits(void **state)
{
    static const struct ranks meshes[] = {{2, 1}, {4, 1}, {4, 2}};
    /* the feed-forward matrices have enough elements for moments in blocks, of which some are in several rows */
    struct tt_model *wide = fixture_model(&(struct tt_model_dims){.n_layers = 2,
                                                                  .dim = 18,
                                                                  .n_heads = 3,
                                                                  .n_kv_heads = 1,
                                                                  .head_dim = 6,
                                                                  .ffn_dim = 1024,
                                                                  .vocab_size = 13,
                                                                  .tied = 1});

    for (int bf16 = 0; bf16 <= 1; bf16++) {
        struct train_result of[TT_OPTIMS], found;

        for (int i = 0; i < TT_OPTIMS; i++) {
            struct train_job job = job_of(wide, 8, 1, 8);

            job.shard_dtype = job.param_dtype = bf16 ? TT_BF16 : TT_F32;
            tt_param_groups_set_optim(wide, (enum tt_optim_choice)i);
            run_optimizer(&job, &of[i]);
            for (int k = 0; k < i; k++)
                assert_non_null(train_result_difference(&job, &of[i], &of[k]));
            for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
                const char *difference;

                job.ranks = meshes[m].ranks;
                job.replicate = meshes[m].replicate;
                job.scheduler = m % 2 ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
                run_optimizer(&job, &found);
                difference = train_result_difference(&job, &of[i], &found);
                if (difference)
                    fail_msg("optimizer %d, %s: %s", i, name_of(&job), difference);
                train_result_release(&found);
            }
        }
        for (int i = 0; i < TT_OPTIMS; i++)
            train_result_release(&of[i]);
    }
    tt_model_free(wide);
}

/* Logits are so large that some tokens have no loss and others lose hundreds. The sum has more digits than a double. */
static int load_sharp(struct tt_comm *comm, struct tt_engine *engine, void *arg)
{
    const struct train_job *job = arg;
    const struct tt_layout *layout = tt_engine_layout(engine);
    int last = layout->n_params - 1;
    const struct tt_unit_param *place = tt_layout_param(layout, last);
    float *output = (float *)tt_engine_state(engine)->array[TT_STATE_PARAM][layout->unit_of[last]] + place->offset;
    int rc = tt_engine_init_params(engine, job->seed);

    (void)comm;
    for (int64_t i = 0; i < tt_box_volume(&place->box); i++)
        output[i] *= 60.0F;
    return rc;
}

static void validation_gives_the_same_bits_too(void **state)
{
    static const struct ranks meshes[] = {{2, 1}, {3, 1}, {4, 2}, {5, 5}, {8, 1}};
    struct train_job job = job_of(world.odd, 120, 1, 16);
    struct train_result reference;

    job.steps = 0;
    job.validation_batches = 233;
    job.load = load_sharp;
    job.load_arg = &job;
    assert_int_equal(fixture_check(train_job_run(&job, &reference)), 0);
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        job.ranks = meshes[m].ranks;
        job.replicate = meshes[m].replicate;
        fixture_must_be(&job, &reference, "%s", name_of(&job));
    }
    train_result_release(&reference);
}

/* --- other rank counts: close and reproducible --- */

static void other_rank_counts_are_close_and_deterministic(void **state)
{
    static const struct ranks meshes[] = {{3, 1}, {5, 1}, {6, 1}, {6, 2}, {2, 2}, {10, 2}, {15, 5}};
    struct train_job job = job_of(world.odd, 30, 1, 8);
    struct train_result reference;

    run(&job, &reference);
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        struct train_result first;
        double distance;

        job.ranks = meshes[m].ranks;
        job.replicate = meshes[m].replicate;
        job.reshard = DEFAULT;
        job.prefetch = 1;
        job.threads = 1;
        run(&job, &first);
        distance = train_result_distance(&job, &reference, &first);
        if (!(distance <= 1e-5) || !(fabs(first.validation / reference.validation - 1.0) <= 1e-5))
            fail_msg("%s: off by %g", name_of(&job), distance);
        job.reshard = policies[m % 3];
        job.prefetch = 2;
        job.threads = 2;
        must_equal(&job, &first);
        train_result_release(&first);
    }
    train_result_release(&reference);
}

/* --- steps that are given up --- */

static void a_step_that_is_given_up_changes_nothing(void **state)
{
    static const struct ranks meshes[] = {{1, 1}, {2, 1}, {4, 2}, {4, 1}};
    struct train_job job = job_of(world.odd, 8, 1, 8);
    struct train_result reference;

    job.steps = 8;
    run(&job, &reference);
    job.gives_up = true;
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (int planned = 0; planned <= 1; planned++) {
            job.ranks = meshes[m].ranks;
            job.replicate = meshes[m].replicate;
            job.reshard = policies[m % 3];
            job.prefetch = 1 + (int)m % 2;
            job.threads = 1 + (int)m % 2;
            job.scheduler = planned ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
            fixture_must_be(&job, &reference, "%s", name_of(&job));
        }
    train_result_release(&reference);
}

/* --- memory --- */

static void policies_order_the_memory(void **state)
{
    int64_t bytes[3];

    for (int prefetch = 0; prefetch <= 1; prefetch++) {
        for (int p = 0; p < 3; p++) {
            struct train_job job = job_of(world.odd, 4, 1, 16);
            struct tt_engine_options options;
            struct tt_engine *engine = NULL;

            job.ranks = 4;
            job.reshard = policies[p];
            job.prefetch = prefetch;
            assert_int_equal(fixture_check(train_job_options(&job, &options)), 0);
            assert_int_equal(fixture_check(tt_engine_new(&options, NULL, 1, &engine)), 0);
            bytes[p] = tt_engine_memory(engine).total;
            tt_engine_free(engine);
        }
        print_message("# prefetch %d: never %lld, default %lld, always %lld\n", prefetch, (long long)bytes[2],
                      (long long)bytes[0], (long long)bytes[1]);
        assert_true(bytes[2] > bytes[0]);
        /* `default` keeps only units that backward needs at once, so the two differ only in the placement of small
         * buffers. */
        assert_true(bytes[0] + bytes[0] / 100 >= bytes[1]);
    }
}

/* The arena, and the kinds at its peak, match what the engine predicted before it allocated anything. */
static void more_ranks_need_less_memory(void **state)
{
    int64_t before = INT64_MAX;

    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        struct train_job job = job_of(world.odd, 8, 1, 16);
        struct tt_engine_options options;
        struct tt_engine *engine = NULL;
        struct tt_engine_memory memory;
        int64_t sum = 0;

        job.ranks = ranks;
        assert_int_equal(fixture_check(train_job_options(&job, &options)), 0);
        assert_int_equal(fixture_check(tt_engine_new(&options, NULL, 0, &engine)), 0);
        memory = tt_engine_memory(engine);
        for (int k = 0; k < TT_MEMORY_KINDS; k++)
            sum += memory.by_kind[k];
        assert_true(memory.state < before);
        assert_true(sum <= memory.total && (double)memory.total <= 1.05 * (double)sum + 64.0 * 100.0);
        before = memory.state;
        tt_engine_free(engine);
    }
}

static void the_step_loop_allocates_nothing(void **state)
{
    static const struct ranks meshes[] = {{1, 1}, {2, 1}, {4, 2}, {3, 1}};

    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        struct train_job job = job_of(world.tied, 12, 1, 8);
        struct train_result result;

        job.ranks = meshes[m].ranks;
        job.replicate = meshes[m].replicate;
        /* The message pool of thread ranks grows until it holds the most messages that are under way at once. */
        job.steps = job.ranks == 1 ? 6 : 24;
        run(&job, &result);
        if (result.allocations != 0)
            fail_msg("%s: %llu allocations in four steps", name_of(&job), (unsigned long long)result.allocations);
        train_result_release(&result);
    }
}

/* --- numbers that are not finite --- */

struct poison {
    const struct train_job *job;
    int param;
    int64_t row;
    float with;
    const char *message;
};

static int put_poison(struct tt_engine *engine, const struct poison *poison)
{
    const struct tt_layout *layout = tt_engine_layout(engine);
    const struct tt_unit_param *place = tt_layout_param(layout, poison->param);
    int64_t row = poison->row - place->box.offset[0];
    float *shard = tt_engine_state(engine)->array[TT_STATE_PARAM][layout->unit_of[poison->param]];

    if (row >= 0 && row < place->box.shape[0])
        shard[place->offset + row * tt_box_row_elements(&place->box)] = poison->with;
    return 0;
}

static int poisoned_rank(struct tt_comm *comm, void *arg)
{
    const struct poison *poison = arg;
    const struct train_job *job = poison->job;
    struct tt_step step = {
        .scalars = {.inv_valid_tokens = 0.01F, .lr = 1.0, .bias_correction1 = 0.1, .bias_correction2 = 0.1},
        .max_norm = 1.0};
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;
    char *before = NULL;
    size_t bytes = 0;
    int rc = 0;

    TT_TRY(train_job_options(job, &options));
    TT_TRY(tt_engine_new(&options, comm, comm->rank, &engine));
    TT_TRY(tt_engine_allocate(engine));
    TT_TRY(tt_engine_init_params(engine, 1));
    TT_TRY(put_poison(engine, poison));
    bytes = (size_t)tt_engine_memory(engine).state;
    before = tt_calloc(bytes, 1);
    memcpy(before, tt_engine_state(engine)->array[TT_STATE_PARAM][0],
           bytes); /* the state is one piece, at the beginning of the arena */
    for (int a = 0; a < options.microbatches; a++)
        for (int64_t i = 0; i < options.local_batch * options.seq_len; i++)
            tt_engine_inputs(engine, a).tokens[i] = tt_engine_inputs(engine, a).labels[i] = (int32_t)(i % 13);
    rc = tt_engine_step(engine, &step);
    if (rc == TT_ENONFINITE) {
        rc = tt_engine_explain(engine, &step);
        if (rc != TT_ENONFINITE || !strstr(tt_error_message(), poison->message))
            rc = tt_fail(TT_EINTERNAL, "rank %d: '%s' does not name '%s'", comm->rank, tt_error_message(),
                         poison->message);
        else if (memcmp(before, tt_engine_state(engine)->array[TT_STATE_PARAM][0], bytes) != 0)
            rc = tt_fail(TT_EINTERNAL, "rank %d: the state has changed", comm->rank);
        else
            rc = 0;
    } else {
        rc = tt_fail(TT_EINTERNAL, "rank %d: the step gave %d", comm->rank, rc);
    }
    rc = tt_comm_agree(comm, rc);
out:
    tt_free(before);
    tt_engine_free(engine);
    return rc;
}

/* The last row is on the last rank that has any, so most ranks only see effects of it. */
static void a_bad_parameter_is_named_on_every_rank(void **state)
{
    static const struct ranks meshes[] = {{1, 1}, {2, 1}, {4, 1}, {4, 2}, {3, 1}, {8, 1}};

    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (int p = 0; p < world.tied->n_params; p++) {
            struct train_job job = job_of(world.tied, 24, 1, 8);
            char message[128];
            struct poison poison = {.job = &job, .param = p, .message = message};

            (void)snprintf(message, sizeof message, "parameter %s", world.tied->params[p].name);
            job.ranks = meshes[m].ranks;
            job.replicate = meshes[m].replicate;
            /* for the embeddings, a token that occurs in the data */
            poison.row = p == 0 ? 7 : world.tied->params[p].shape[0] - 1;
            poison.with = p % 2 ? (float)NAN : (float)INFINITY;
            if (fixture_check(tt_comm_threads_run(job.ranks, poisoned_rank, &poison)) < 0)
                fail_msg("%s, %s", name_of(&job), world.tied->params[p].name);
        }
}

/* The weights are finite but their product overflows: the first activation is named, with its microbatch. */
static void an_overflow_names_the_activation(void **state)
{
    struct train_job job = job_of(world.tied, 4, 1, 8);
    struct poison poison = {.job = &job, .param = 1, .row = 0, .with = 1e38F, .message = "layers.0."};

    for (int p = 0; p < world.tied->n_params; p++)
        if (strcmp(world.tied->params[p].name, "layers.0.attention_norm.weight") == 0)
            poison.param = p;
    for (job.ranks = 1; job.ranks <= 4; job.ranks *= 2)
        assert_int_equal(fixture_check(tt_comm_threads_run(job.ranks, poisoned_rank, &poison)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_sizes_give_the_same_bits_on_every_layout),
        cmocka_unit_test(larger_local_batches_too),
        cmocka_unit_test(tied_embeddings_and_empty_shards_too),
        cmocka_unit_test(batches_that_are_no_power_of_two_too),
        cmocka_unit_test(every_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(every_optimizer_gives_the_same_bits),
        cmocka_unit_test(validation_gives_the_same_bits_too),
        cmocka_unit_test(other_rank_counts_are_close_and_deterministic),
        cmocka_unit_test(a_step_that_is_given_up_changes_nothing),
        cmocka_unit_test(policies_order_the_memory),
        cmocka_unit_test(more_ranks_need_less_memory),
        cmocka_unit_test(the_step_loop_allocates_nothing),
        cmocka_unit_test(a_bad_parameter_is_named_on_every_rank),
        cmocka_unit_test(an_overflow_names_the_activation),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
