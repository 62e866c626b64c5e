/* SPDX-License-Identifier: MIT
 *
 * A device whose streams run late gives the same bits as the host, so no code relies on work being done when a call
 * returns.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/math/rng.h"
#include "parallel/comm/collectives.h"
#include "parallel/engine/generator.h"
#include "parallel/fsdp/fsdp.h"
#include "tests/help/threads.h"
#include "tests/par/fixture.h"
#include "tests/par/late_device.h"
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

/* Work runs as late as possible, or at one of two sequences of random times. */
static const uint64_t seeds[] = {0, 1, 2};
enum { SEEDS = sizeof seeds / sizeof *seeds };

/* --- training --- */

static const struct {
    const char *name;
    int ranks, replicate, microbatches;
    enum tt_engine_choice scheduler;
    enum tt_dtype dtype, shards; /* types of gathers and reductions, and of weights and moments */
    enum tt_recompute_mode recompute;
    enum tt_reshard reshard;
    bool tied;
    enum { EACH, LAST, RUN } sync;
    bool gives_up;
} cases[] = {
    {"one rank", 1, 1, 3, TT_ENGINE_EAGER, TT_F32, TT_F32, TT_RECOMPUTE_NONE, TT_RESHARD_AFTER_FORWARD_DEFAULT, 0, 0,
     0},
    {"rounded", 1, 1, 2, TT_ENGINE_EAGER, TT_BF16, TT_F32, TT_RECOMPUTE_OP, TT_RESHARD_AFTER_FORWARD_ALWAYS, 1, 0, 0},
    {"eager", 2, 1, 2, TT_ENGINE_EAGER, TT_F32, TT_F32, TT_RECOMPUTE_FULL, TT_RESHARD_AFTER_FORWARD_ALWAYS, 0, 0, 0},
    {"planned", 2, 1, 2, TT_ENGINE_PLANNED, TT_F32, TT_F32, TT_RECOMPUTE_FULL, TT_RESHARD_AFTER_FORWARD_ALWAYS, 1, 0,
     0},
    {"planned sum", 4, 1, 3, TT_ENGINE_PLANNED, TT_F32, TT_F32, TT_RECOMPUTE_NONE, TT_RESHARD_AFTER_FORWARD_NEVER, 0, 1,
     0},
    {"bfloat16", 2, 1, 2, TT_ENGINE_EAGER, TT_BF16, TT_F32, TT_RECOMPUTE_NONE, TT_RESHARD_AFTER_FORWARD_ALWAYS, 0, 0,
     0},
    {"keep", 4, 1, 1, TT_ENGINE_EAGER, TT_F32, TT_F32, TT_RECOMPUTE_NONE, TT_RESHARD_AFTER_FORWARD_PART, 1, 0, 0},
    {"keep bfloat16", 4, 1, 2, TT_ENGINE_PLANNED, TT_BF16, TT_F32, TT_RECOMPUTE_OP, TT_RESHARD_AFTER_FORWARD_PART, 0, 0,
     0},
    {"replicas", 4, 2, 2, TT_ENGINE_EAGER, TT_F32, TT_F32, TT_RECOMPUTE_NONE, TT_RESHARD_AFTER_FORWARD_DEFAULT, 1, 0,
     0},
    {"planned replicas", 4, 2, 2, TT_ENGINE_PLANNED, TT_BF16, TT_F32, TT_RECOMPUTE_NONE,
     TT_RESHARD_AFTER_FORWARD_ALWAYS, 0, 1, 0},
    {"weights", 1, 1, 2, TT_ENGINE_EAGER, TT_BF16, TT_BF16, TT_RECOMPUTE_NONE, TT_RESHARD_AFTER_FORWARD_ALWAYS, 0, 0,
     0},
    {"planned weights", 4, 1, 2, TT_ENGINE_PLANNED, TT_BF16, TT_BF16, TT_RECOMPUTE_OP, TT_RESHARD_AFTER_FORWARD_PART, 1,
     0, 0},
    {"runs", 4, 1, 4, TT_ENGINE_EAGER, TT_F32, TT_F32, TT_RECOMPUTE_NONE, TT_RESHARD_AFTER_FORWARD_NEVER, 0, RUN, 0},
    {"planned runs", 2, 1, 4, TT_ENGINE_PLANNED, TT_BF16, TT_F32, TT_RECOMPUTE_OP, TT_RESHARD_AFTER_FORWARD_ALWAYS, 1,
     RUN, 0},
    {"given up", 2, 1, 2, TT_ENGINE_EAGER, TT_BF16, TT_F32, TT_RECOMPUTE_NONE, TT_RESHARD_AFTER_FORWARD_ALWAYS, 0, 0,
     1},
};

static struct train_job job_of(size_t c)
{
    struct train_job job = train_job_make(cases[c].tied ? world.tied : world.odd, &world.data,
                                          (int64_t)cases[c].ranks * cases[c].microbatches, 1, 9);

    job.ranks = cases[c].ranks;
    job.replicate = cases[c].replicate;
    job.scheduler = cases[c].scheduler;
    job.param_dtype = job.reduce_dtype = cases[c].dtype;
    job.shard_dtype = cases[c].shards;
    job.recompute.mode = cases[c].recompute;
    job.reshard = cases[c].reshard;
    job.reshard_part = 2;
    job.last_microbatch = cases[c].sync == LAST;
    job.gives_up = cases[c].gives_up;
    job.every_run = cases[c].sync == RUN;
    return job;
}

static void training_gives_the_same_bits(void **state)
{
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct train_job job = job_of(c);
        struct train_result host;

        assert_int_equal(fixture_check(train_job_run(&job, &host)), 0);
        for (int s = 0; s < SEEDS; s++) {
            struct late_device device = late_device_make(seeds[s]);

            job.device = &device.device;
            fixture_must_be(&job, &host, "%s, seed %d", cases[c].name, (int)seeds[s]);
        }
        train_result_release(&host);
    }
}

/* Experts of several ranks: rows that the host sends are computed late, windows are so small that there are many
 * rounds, and each step depends on the loads of the previous one. */
static void shared_experts_give_the_same_bits(void **state)
{
    struct tt_model_dims dims = {.dim = 24,
                                 .n_layers = 2,
                                 .n_heads = 3,
                                 .n_kv_heads = 1,
                                 .head_dim = 8,
                                 .ffn_dim = 17,
                                 .vocab_size = 29,
                                 .moe = {.experts = 8, .top_k = 3, .ffn_dim = 11, .biased = true}};
    struct tt_model *model = NULL;

    assert_int_equal(fixture_check(tt_model_new("qwen3", "debugmodel_moe", &dims, NULL, &model)), 0);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct train_job job = train_job_make(model, &world.data, 8, 1, 9);
        struct train_result host;

        job.ranks = job.experts = 4;
        job.param_dtype = bf16 ? TT_BF16 : TT_F32;
        job.scheduler = bf16 ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
        job.moe_window = 0.1;
        job.balance_coeff = 0.001;
        job.router_losses = (struct tt_router_losses){.sequence = 0.1F, .global_batch = 0.2F};
        assert_int_equal(fixture_check(train_job_run(&job, &host)), 0);
        for (int s = 0; s < SEEDS; s++) {
            struct late_device device = late_device_make(seeds[s]);

            job.device = &device.device;
            fixture_must_be(&job, &host, "bf16 %d, seed %d", bf16, (int)seeds[s]);
        }
        train_result_release(&host);
    }
    tt_model_free(model);
}

/* --- state that is copied, loaded and rebuilt between steps --- */

enum { RANKS = 2, STEPS = 2 };

struct lives {
    const struct train_job *job;
    double loss[2 * STEPS];
    char *state[RANKS]; /* the state of the second engine, then that of the reloaded first */
    size_t bytes;
};

static int steps(struct tt_engine *engine, const struct tt_engine_options *o, int first, double *loss)
{
    int rc = 0;

    for (int s = 0; s < STEPS; s++) {
        struct tt_step step = {.scalars = {.inv_valid_tokens = 0.05F,
                                           .lr = 0.01,
                                           .beta1 = 0.9,
                                           .beta2 = 0.95,
                                           .eps = 1e-6,
                                           .bias_correction1 = 0.1,
                                           .bias_correction2 = 0.05},
                               .max_norm = 0.5};

        for (int a = 0; a < o->microbatches; a++) {
            int32_t *tokens = tt_engine_inputs(engine, a).tokens, *labels = tt_engine_inputs(engine, a).labels;

            for (int64_t i = 0; i < o->local_batch * o->seq_len; i++) {
                tokens[i] = (int32_t)((i * 5 + a + s + first) % 13);
                labels[i] = (int32_t)((i * 3 + a + s) % 13);
            }
        }
        TT_TRY(tt_engine_step(engine, &step));
        loss[s] = step.loss;
    }
out:
    return rc;
}

/* Like a checkpoint, keeps the addresses of the state and reads from them after later steps. */
static int live_twice(struct tt_comm *comm, void *arg)
{
    struct lives *lives = arg;
    struct tt_engine_options options;
    struct tt_engine *first = NULL, *second = NULL;
    struct tt_state *kept;
    double loss[2 * STEPS];
    char *saved = NULL;
    size_t bytes;
    int rc = 0;

    TT_TRY(train_job_options(lives->job, &options));
    TT_TRY(tt_engine_new(&options, comm, comm->rank, &first));
    TT_TRY(tt_engine_new(&options, comm, comm->rank, &second));
    TT_TRY(tt_engine_allocate(first));
    TT_TRY(tt_engine_allocate(second));
    bytes = (size_t)tt_engine_memory(first).state;
    saved = tt_calloc(bytes, 1);
    lives->state[comm->rank] = tt_calloc(2 * bytes, 1);
    TT_TRY(tt_engine_init_params(first, 3));
    kept = tt_engine_state(first);
    TT_TRY(steps(first, &options, 0, loss));
    TT_TRY(tt_engine_synchronize(first));
    memcpy(saved, kept->array[TT_STATE_PARAM][0], bytes); /* the state is one piece, at the beginning of the arena */
    TT_TRY(steps(first, &options, 1, loss));
    TT_TRY(tt_engine_init_params(first, 4));
    memcpy(lives->state[comm->rank] + bytes, tt_engine_state(first)->array[TT_STATE_PARAM][0], bytes);
    TT_TRY(steps(second, &options, 2, loss));
    memcpy(tt_engine_state(second)->array[TT_STATE_PARAM][0], saved, bytes);
    TT_TRY(steps(second, &options, 3, loss + STEPS));
    memcpy(lives->state[comm->rank], tt_engine_state(second)->array[TT_STATE_PARAM][0], bytes);
    if (comm->rank == 0) {
        memcpy(lives->loss, loss, sizeof loss);
        lives->bytes = 2 * bytes;
    }
    rc = steps(second, &options, 4, loss); /* the device may still work on its last update when the engine is freed */
out:
    tt_free(saved);
    tt_engine_free(first);
    tt_engine_free(second);
    return rc;
}

static void a_state_can_be_copied_loaded_and_initialised_between_steps(void **state)
{
    struct train_job job = job_of(2);
    struct lives host = {.job = &job}, late = {.job = &job};

    assert_int_equal(fixture_check(tt_comm_threads_run(RANKS, live_twice, &host)), 0);
    for (int s = 0; s < SEEDS; s++) {
        struct late_device device = late_device_make(seeds[s]);

        job.device = &device.device;
        assert_int_equal(fixture_check(tt_comm_threads_run(RANKS, live_twice, &late)), 0);
        assert_memory_equal(host.loss, late.loss, sizeof host.loss);
        for (int r = 0; r < RANKS; r++) {
            assert_memory_equal(host.state[r], late.state[r], host.bytes);
            tt_free(late.state[r]);
        }
    }
    for (int r = 0; r < RANKS; r++)
        tt_free(host.state[r]);
}

/* --- the first value that is not finite --- */

struct poisoned {
    const struct train_job *job;
    float with;
    char message[512];
};

static int run_poisoned(struct tt_comm *comm, void *arg)
{
    struct poisoned *poisoned = arg;
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;
    double loss[STEPS];
    int rc = 0;

    TT_TRY(train_job_options(poisoned->job, &options));
    TT_TRY(tt_engine_new(&options, comm, comm->rank, &engine));
    TT_TRY(tt_engine_allocate(engine));
    TT_TRY(tt_engine_init_params(engine, 3));
    TT_TRY(steps(engine, &options, 0, loss));
    *(float *)tt_engine_state(engine)->array[TT_STATE_PARAM][1] = poisoned->with;
    rc = steps(engine, &options, 0, loss);
    if (rc == TT_ENONFINITE)
        rc = tt_engine_explain(engine, &(struct tt_step){.scalars = {.inv_valid_tokens = 0.05F}});
    if (rc == TT_ENONFINITE && comm->rank == 0)
        (void)snprintf(poisoned->message, sizeof poisoned->message, "%s", tt_error_message());
    rc = rc == TT_ENONFINITE ? 0 : tt_fail(TT_EINTERNAL, "the step gave %d", rc);
out:
    tt_engine_free(engine);
    return rc;
}

static void the_first_bad_value_is_found(void **state)
{
    const float with[] = {NAN, 3e38F};

    for (int w = 0; w < 2; w++) {
        struct train_job job = job_of(2);
        struct poisoned host = {.job = &job, .with = with[w]};

        assert_int_equal(fixture_check(tt_comm_threads_run(RANKS, run_poisoned, &host)), 0);
        assert_non_null(strstr(host.message, w == 0 ? "not finite is parameter" : "of microbatch"));
        for (int s = 0; s < SEEDS; s++) {
            struct late_device device = late_device_make(seeds[s]);
            struct poisoned late = {.job = &job, .with = with[w]};

            job.device = &device.device;
            assert_int_equal(fixture_check(tt_comm_threads_run(RANKS, run_poisoned, &late)), 0);
            assert_string_equal(host.message, late.message);
        }
        job.device = NULL;
    }
}

/* --- generation --- */

enum { CONTEXT = 40, PROMPT = 23, MORE = 5, BLOCK = 8 };

/* Writes the logits after the prompt and after each of some tokens, then, with other weights, after the prompt
 * again. */
static void generate(struct tt_device *device, float *logits)
{
    const struct tt_generator_options options = {
        .model = world.odd, .device = device, .context = CONTEXT, .prompt_rows = BLOCK, .threads = 1};
    size_t V = (size_t)world.odd->dims.vocab_size;
    struct tt_generator *g = NULL;
    int32_t tokens[PROMPT + MORE];
    const float *found;

    for (int i = 0; i < PROMPT + MORE; i++)
        tokens[i] = world.tokens[i];
    assert_int_equal(fixture_check(tt_generator_new(&options, &g)), 0);
    assert_int_equal(fixture_check(tt_generator_allocate(g)), 0);
    for (uint64_t seed = 3; seed < 5; seed++) {
        tt_generator_rewind(g, 0);
        assert_int_equal(tt_init_params(NULL, tt_generator_layout(g), world.odd, TT_INIT_META, seed, TT_F32,
                                        tt_generator_state(g)->array[TT_STATE_PARAM]),
                         0);
        for (int n = 0; n < PROMPT + MORE; n += n ? 1 : PROMPT) {
            assert_int_equal(fixture_check(tt_generator_feed(g, tokens + n, n ? 1 : PROMPT, &found)), 0);
            memcpy(logits, found, V * sizeof *found);
            logits += V;
        }
    }
    tt_generator_free(g);
}

static void generation_gives_the_same_bits(void **state)
{
    size_t n = 2 * (MORE + 1) * (size_t)world.odd->dims.vocab_size;
    float *host = tt_calloc(n, sizeof *host), *late = tt_calloc(n, sizeof *late);

    generate(NULL, host);
    for (int s = 0; s < SEEDS; s++) {
        struct late_device device = late_device_make(seeds[s]);

        generate(&device.device, late);
        assert_memory_equal(host, late, n * sizeof *host);
    }
    tt_free(host);
    tt_free(late);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_gives_the_same_bits),
        cmocka_unit_test(shared_experts_give_the_same_bits),
        cmocka_unit_test(a_state_can_be_copied_loaded_and_initialised_between_steps),
        cmocka_unit_test(the_first_bad_value_is_found),
        cmocka_unit_test(generation_gives_the_same_bits),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
