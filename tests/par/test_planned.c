/* SPDX-License-Identifier: MIT
 *
 * The planned scheduler compared with the eager one: the same bits, no more memory, fewer collectives, and exactly the
 * predicted payload (train_job_run checks that, and the program, on every rank).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/os/file.h"
#include "parallel/comm/collectives.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/planner/planner.h"
#include "parallel/planner/simple_fsdp.h"
#include "tests/help/machine.h"
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

static const enum tt_reshard policies[] = {TT_RESHARD_AFTER_FORWARD_DEFAULT, TT_RESHARD_AFTER_FORWARD_ALWAYS,
                                           TT_RESHARD_AFTER_FORWARD_NEVER};
static const char *const policy_names[] = {"default", "always", "never"};

/* Slow to fast links on the same computer. They differ in what is worth hiding and bucketing. */
static const struct tt_machine machines[] = {
    TT_MACHINE("fast", 1e9, 1e9, 1e9, 1e-7, 1e-7, 1e10),
    TT_MACHINE("latency", 1e11, 1e11, 1e11, 1e-3, 1e-3, 1e10),
    TT_MACHINE("slow", 1e10, 1e10, 1e10, 1e-6, 1e-6, 1e7),
};
enum { N_MACHINES = sizeof machines / sizeof *machines };

static struct fixture world;

static int set_up(void **state)
{
    fixture_open(&world, &(struct fixture_size){.odd_layers = 3, .odd_vocab = 101, .tied_layers = 5});
    return 0;
}

static int tear_down(void **state)
{
    fixture_close(&world);
    return 0;
}

static struct train_job job_of(const struct tt_model *model, int64_t global_batch)
{
    struct train_job job = train_job_make(model, &world.data, global_batch, 1, 12);

    job.steps = 2;
    job.validation_batches = 0;
    job.schedule = (struct tt_lr_schedule){.base = 0.02, .total_steps = 8};
    return job;
}

static const char *name_of(const struct train_job *job)
{
    static char text[200];

    (void)snprintf(text, sizeof text,
                   "%d ranks, %d replicas, wrap %s, reshard %s, prefetch %d, %d samples, buckets %d, %s%s", job->ranks,
                   job->replicate, job->wrap ? job->wrap : "block",
                   job->reshard < 3 ? policy_names[job->reshard] : "part", job->prefetch, (int)job->global_batch,
                   (int)job->bucket_bytes, job->machine.name, job->last_microbatch ? ", last microbatch" : "");
    return text;
}

static void run(const struct train_job *job, struct train_result *ret_result)
{
    if (fixture_check(train_job_run(job, ret_result)) < 0)
        fail_msg("%s", name_of(job));
}

/* Compares the planned run of a job with its eager run, and the latter with the reference of one rank. */
static void compare_engines(struct train_job job, const struct train_result *reference)
{
    struct train_result eager, planned;
    const char *difference;

    job.scheduler = TT_ENGINE_EAGER;
    run(&job, &eager);
    job.scheduler = TT_ENGINE_PLANNED;
    run(&job, &planned);
    if ((difference = train_result_difference(&job, &eager, &planned)))
        fail_msg("%s: eager and planned differ in %s", name_of(&job), difference);
    if (reference && (difference = train_result_difference(&job, reference, &planned)))
        fail_msg("%s: one rank and planned differ in %s", name_of(&job), difference);
    if (planned.step_bytes > eager.step_bytes)
        fail_msg("%s: planned needs %lld bytes, eager %lld", name_of(&job), (long long)planned.step_bytes,
                 (long long)eager.step_bytes);
    if (planned.collectives > eager.collectives || planned.payload > eager.payload)
        fail_msg("%s: planned begins %d collectives and sends %lld bytes, eager %d and %lld", name_of(&job),
                 planned.collectives, (long long)planned.payload, eager.collectives, (long long)eager.payload);
    train_result_release(&eager);
    train_result_release(&planned);
}

struct ranks {
    int ranks, replicate;
};

static void sweep(const struct tt_model *model, int64_t global_batch, const struct ranks *meshes, int n, bool exact)
{
    static const int64_t buckets[] = {0, 1, 4000, 1 << 20};
    struct train_job job = job_of(model, global_batch);
    struct train_result reference;
    int turn = 0;

    run(&job, &reference);
    for (int m = 0; m < n; m++)
        for (int p = m % sweep_stride(); p < 3; p += sweep_stride(), turn++) {
            job.ranks = meshes[m].ranks;
            job.replicate = meshes[m].replicate;
            job.reshard = policies[p];
            job.machine = machines[(m + p) % N_MACHINES];
            job.prefetch = (2 * m + p) % 3;
            job.bucket_bytes = buckets[turn % 4];
            compare_engines(job, exact ? &reference : NULL);
        }
    train_result_release(&reference);
}

#define SWEEP(model, global, meshes, exact) \
    sweep(model, global, meshes, (int)(sizeof(meshes) / sizeof *(meshes)), exact)

static void same_bits_on_every_layout_and_machine(void **state)
{
    static const struct ranks meshes[] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {8, 1}, {8, 2}, {8, 8}};

    SWEEP(world.odd, 8, meshes, true);
    SWEEP(world.tied, 16, meshes, true);
}

static void same_bits_as_eager_where_layouts_differ(void **state)
{
    static const struct ranks meshes[] = {{3, 1}, {6, 2}, {12, 3}};

    SWEEP(world.odd, 12, meshes, false);
}

/* Units of every kind, parts kept by neighbours, and one reduction per step give the eager scheduler's bits. */
static void every_policy_gives_the_bits_of_eager(void **state)
{
    static const char *const wraps[] = {"block", "model", "param", "size:3000"};
    int turn = 0, stride = sweep_stride();

    for (int w = 0; w < (int)(sizeof wraps / sizeof *wraps); w++)
        for (int last = 0; last < 2; last++)
            for (int r = 0; r < 3; r++, turn++) {
                struct train_job job = job_of(turn % 2 ? world.odd : world.tied, 16);

                if ((turn + w) % stride)
                    continue;
                job.wrap = wraps[w];
                job.last_microbatch = last;
                job.reshard = r == 2 ? TT_RESHARD_AFTER_FORWARD_PART : policies[r];
                job.reshard_part = 2;
                job.ranks = 4 + 4 * (turn / 2 % 2);
                job.replicate = 1 + turn / 3 % 2;
                job.machine = machines[turn % N_MACHINES];
                compare_engines(job, NULL);
            }
}

/* --- plans for other machines --- */

struct shape {
    const char *model, *flavor;
    int ranks, replicate, microbatches;
    int64_t seq_len;
};

static const struct shape shapes[] = {
    {"llama3", "8B", 8, 1, 1, 2048},        {"llama3", "8B", 64, 2, 1, 2048},
    {"llama3", "8B", 64, 1, 4, 512},        {"llama3", "70B", 64, 1, 1, 2048},
    {"llama3", "debugmodel", 2, 1, 1, 64},  {"llama3", "debugmodel", 6, 1, 4, 128},
    {"llama3", "debugmodel", 8, 8, 2, 128}, {"llama3", "debugmodel", 16, 2, 2, 256},
};

static struct tt_model *model_of(const struct shape *shape)
{
    struct tt_model *model = NULL;

    assert_int_equal(
        fixture_check(tt_model_new(shape->model, shape->flavor, &(struct tt_model_dims){.tied = -1}, NULL, &model)), 0);
    return model;
}

static struct tt_engine *plan(const struct shape *shape, const struct tt_model *model, int policy, int machine,
                              enum tt_engine_choice scheduler)
{
    struct train_job job = job_of(model, (int64_t)shape->ranks * shape->microbatches);
    struct tt_engine_options options;
    struct tt_engine *engine = NULL;

    job.ranks = shape->ranks;
    job.replicate = shape->replicate;
    job.seq_len = shape->seq_len;
    job.reshard = policies[policy];
    job.machine = machines[machine];
    job.scheduler = scheduler;
    assert_int_equal(fixture_check(train_job_options(&job, &options)), 0);
    assert_int_equal(fixture_check(tt_engine_new(&options, NULL, 0, &engine)), 0);
    assert_int_equal(fixture_check(tt_program_check(tt_engine_program(engine))), 0);
    return engine;
}

/*
 * The planned scheduler's largest memory for exchange, as a share of the eager scheduler's. With policy never, kept
 * units use all of it. On slow links, large models need more to be as fast as the eager scheduler.
 */
static double most_exchanged(const struct shape *shape, int policy, int machine)
{
    bool slow_and_large = machine != 0 && strcmp(shape->flavor, "debugmodel") != 0;

    return policies[policy] == TT_RESHARD_AFTER_FORWARD_NEVER ? 1.0 : slow_and_large ? 0.95 : 0.85;
}

/* The plan uses no more memory than the eager scheduler and less for exchange, and is predicted to be as fast. */
static void compare_plans(const struct shape *shape, const struct tt_model *model, int policy, int machine)
{
    struct tt_engine *engines[2] = {plan(shape, model, policy, machine, TT_ENGINE_EAGER),
                                    plan(shape, model, policy, machine, TT_ENGINE_PLANNED)};
    const struct tt_program *eager = tt_engine_program(engines[0]), *planned = tt_engine_program(engines[1]);
    double exchanged = (double)tt_program_exchanged_bytes(planned) / (double)tt_program_exchanged_bytes(eager);
    struct tt_timeline times[2];

    tt_cost_simulate(&machines[machine], eager, &times[0]);
    tt_cost_simulate(&machines[machine], planned, &times[1]);
    if (planned->step_bytes > eager->step_bytes || exchanged > most_exchanged(shape, policy, machine) ||
        times[1].step_sec > (1.0 + 1e-9) * times[0].step_sec || tt_program_payload(planned) > tt_program_payload(eager))
        fail_msg("%s on %d ranks, reshard %s, %s: memory %.3f, exchanged %.3f, time %.3f of eager's", shape->flavor,
                 shape->ranks, policy_names[policy], machines[machine].name,
                 (double)planned->step_bytes / (double)eager->step_bytes, exchanged,
                 times[1].step_sec / times[0].step_sec);
    for (int i = 0; i < 2; i++) {
        tt_timeline_release(&times[i]);
        tt_engine_free(engines[i]);
    }
}

/* Every shape with every policy and with every machine; over all shapes together, every policy with every machine. */
static void plans_keep_their_targets(void **state)
{
    for (int s = 0; s < (int)(sizeof shapes / sizeof *shapes); s++) {
        struct tt_model *model = model_of(&shapes[s]);

        for (int p = s % sweep_stride(); p < 3; p += sweep_stride())
            compare_plans(&shapes[s], model, p, (s + p) % N_MACHINES);
        tt_model_free(model);
    }
}

static struct tt_program *plan_within(struct tt_engine *eager, int64_t step_limit, bool *reshard)
{
    const struct tt_program *program = tt_engine_program(eager);
    const struct tt_lowering lowering = {.stages = program->stages,
                                         .n_stages = program->n_stages,
                                         .layout = program->layout,
                                         .microbatches = program->microbatches,
                                         .threads = 1,
                                         .staging = tt_collective_staging};
    struct tt_order order = tt_order_accumulate(program->microbatches, program->n_stages, true);
    struct tt_usage usage;
    const struct tt_planner planner = {.lowering = &lowering,
                                       .usage = &usage,
                                       .eager = program,
                                       .machine = &machines[0],
                                       .prefetch = 1,
                                       .step_limit = step_limit,
                                       .reshard = reshard};
    struct tt_program *planned = NULL;

    assert_int_equal(
        fixture_check(tt_usage_make(&order, program->stages, program->n_stages, program->layout, 1, &usage)), 0);
    assert_int_equal(fixture_check(tt_planner_run(&planner, &planned)), 0);
    tt_usage_release(&usage);
    tt_order_release(&order);
    return planned;
}

/* If the state alone exceeds the limit of a rank, the plan that needs least is taken, not the last one tried. */
static void a_limit_out_of_reach_gives_the_least_memory(void **state)
{
    struct tt_model *model = model_of(&shapes[0]);
    struct tt_engine *eager = plan(&shapes[0], model, 1, 0, TT_ENGINE_EAGER);
    bool reshard[64];
    struct tt_program *free, *bound;

    memset(reshard, true, sizeof reshard);
    free = plan_within(eager, INT64_MAX, reshard);
    bound = plan_within(eager, -1, reshard);
    assert_true(bound->step_bytes <= free->step_bytes);
    assert_true(tt_program_exchanged_bytes(bound) <= tt_program_exchanged_bytes(free));
    tt_program_free(free);
    tt_program_free(bound);
    tt_engine_free(eager);
    tt_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_limit_out_of_reach_gives_the_least_memory),
        cmocka_unit_test(plans_keep_their_targets),
        cmocka_unit_test(same_bits_on_every_layout_and_machine),
        cmocka_unit_test(every_policy_gives_the_bits_of_eager),
        cmocka_unit_test(same_bits_as_eager_where_layouts_differ),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("planned", tests, set_up, tear_down);
}
