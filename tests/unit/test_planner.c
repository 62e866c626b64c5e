/* SPDX-License-Identifier: MIT
 *
 * What the planned scheduler promises about a policy. Its step is predicted to be as fast as the eager scheduler's
 * with the same policy, in no more memory. If nothing fits the memory limit, it uses the least memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "parallel/engine/engine.h"
#include "parallel/planner/cost.h"
#include "tests/help/mesh.h"

static struct tt_model *model;

static const struct {
    const char *name;
    struct tt_sharding sharding;
    bool choose;
} policies[] = {
    {"default", {.wrap = "block", .reshard = TT_RESHARD_AFTER_FORWARD_DEFAULT}, false},
    {"always", {.wrap = "block", .reshard = TT_RESHARD_AFTER_FORWARD_ALWAYS}, false},
    {"never", {.wrap = "block", .reshard = TT_RESHARD_AFTER_FORWARD_NEVER}, false},
    {"last_layer", {.wrap = "block", .reshard = TT_RESHARD_AFTER_FORWARD_LAST_LAYER}, false},
    {"2", {.wrap = "block", .reshard = TT_RESHARD_AFTER_FORWARD_PART, .reshard_part = 2}, false},
    {"auto", {.wrap = "block", .reshard = TT_RESHARD_AFTER_FORWARD_DEFAULT}, true},
};
enum { N_POLICIES = sizeof policies / sizeof *policies, ALWAYS = 1, AUTO = N_POLICIES - 1 };

struct result {
    int64_t bytes; /* of the rank */
    double step_sec;
};

static struct result plan(int policy, int ranks, enum tt_engine_choice scheduler, int64_t limit)
{
    const struct tt_machine machine = tt_machine_builtin();
    struct tt_engine_options options = {.model = model,
                                        .sharding = policies[policy].sharding,
                                        .machine = machine,
                                        .scheduler = scheduler,
                                        .choose_reshard_by_limit =
                                            policies[policy].choose && scheduler == TT_ENGINE_PLANNED,
                                        .memory_limit = limit,
                                        .prefetch = 1,
                                        .threads = 1,
                                        .local_batch = 1,
                                        .seq_len = 512,
                                        .microbatches = 1};
    struct tt_engine *engine = NULL;
    struct tt_timeline times;
    struct result result;

    assert_int_equal(tt_mesh_init(DP_DEGREES(1, -1), ranks, &options.mesh), 0);
    if (tt_engine_new(&options, NULL, 0, &engine) < 0 || tt_program_check(tt_engine_program(engine)) < 0)
        fail_msg("%s", tt_error_message());
    tt_cost_simulate(&machine, tt_engine_program(engine), &times);
    result = (struct result){tt_engine_memory(engine).total, times.step_sec};
    tt_timeline_release(&times);
    tt_engine_free(engine);
    return result;
}

/* If the same seconds are added in another order, a prediction changes by less than this factor. */
static const double AS_FAST = 1.0 + 1e-9;

static void no_plan_is_slower_than_its_policy(void **state)
{
    for (int ranks = 2; ranks <= 8; ranks *= 2)
        for (int policy = 0; policy < N_POLICIES; policy++) {
            struct result eager = plan(policy, ranks, TT_ENGINE_EAGER, 0);
            struct result planned = plan(policy, ranks, TT_ENGINE_PLANNED, 0);

            if (planned.step_sec > AS_FAST * eager.step_sec)
                fail_msg("%s on %d ranks: %.6f s, eager %.6f s", policies[policy].name, ranks, planned.step_sec,
                         eager.step_sec);
            if (policy != AUTO && planned.bytes > eager.bytes)
                fail_msg("%s on %d ranks: %lld bytes, eager %lld", policies[policy].name, ranks,
                         (long long)planned.bytes, (long long)eager.bytes);
        }
}

/* If nothing fits, the plan uses no more memory than without a limit, than the eager scheduler, or than another
 * policy. */
static void a_limit_that_nothing_fits_takes_the_least_memory(void **state)
{
    static const int64_t limits[] = {60 << 20, 70 << 20, 78 << 20, 79 << 20, 80 << 20, 84 << 20};

    for (int policy = 0; policy < N_POLICIES; policy++) {
        int64_t eager = plan(policy, 4, TT_ENGINE_EAGER, 0).bytes;
        int64_t unlimited = plan(policy, 4, TT_ENGINE_PLANNED, 0).bytes;

        for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
            int64_t bytes = plan(policy, 4, TT_ENGINE_PLANNED, limits[l]).bytes;

            if (bytes > limits[l] && (bytes > unlimited || bytes > eager))
                fail_msg("%s within %lld bytes: %lld, without a limit %lld, eager %lld", policies[policy].name,
                         (long long)limits[l], (long long)bytes, (long long)unlimited, (long long)eager);
            if (policy == AUTO && bytes > limits[l] && bytes > plan(ALWAYS, 4, TT_ENGINE_PLANNED, limits[l]).bytes)
                fail_msg("auto within %lld bytes: %lld, more than always", (long long)limits[l], (long long)bytes);
        }
    }
}

static int set_up(void **state)
{
    return tt_model_new("llama3", "debugmodel", &(struct tt_model_dims){.tied = -1}, NULL, &model);
}

static int tear_down(void **state)
{
    tt_model_free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_plan_is_slower_than_its_policy),
        cmocka_unit_test(a_limit_that_nothing_fits_takes_the_least_memory),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("planner", tests, set_up, tear_down);
}
