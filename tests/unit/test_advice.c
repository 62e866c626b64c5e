/* SPDX-License-Identifier: MIT
 *
 * The hint at the end of a run: it depends on what slowed the run, and it recommends a policy only if that fits into
 * memory. Also: which time counts.
 */
#include "cli/train/screen.h"
#include "config_help.h"
#include "core/comm/comm.h"
#include "core/os/file.h"
#include "trainer/job/predict.h"
#include "trainer/step/reporter.h"

struct run {
    struct tt_config *cfg;
    struct tt_setup setup;
};

/* The set-up of a job; only the members that tt_advice reads are set. */
static struct run run_on(int ranks, const char *one, const char *other, int64_t memory_limit)
{
    const char *flags[] = {"--training.seq_len=64", "--training.global_batch_size=8", one, other};
    struct run run = {0};
    struct tt_setup *s = &run.setup;

    run.cfg = good_flags(4, flags);
    assert_int_equal(tt_job_init(run.cfg, ranks, 1, memory_limit, &s->job), 0);
    assert_int_equal(tt_job_engine_alone(run.cfg, &s->job, 0, &s->engine), 0);
    s->memory = tt_engine_memory(s->engine);
    s->memory_limit = memory_limit;
    return run;
}

static struct run run_of(const char *flag, int64_t memory_limit)
{
    return run_on(2, "--training.local_batch_size=1", flag, memory_limit);
}

static void release(struct run *run)
{
    tt_engine_free(run->setup.engine);
    tt_job_release(&run->setup.job);
    tt_config_free(run->cfg);
}

static char *advice_of(const struct run *run, double data, double exposed)
{
    struct tt_spent spent = {.step_sec = 100.0, .data_sec = data, .exposed_sec = exposed};
    struct tt_text text = {0};

    tt_advice(&run->setup, &spent, &text);
    return text.text;
}

static void says_where_the_time_went(void **state)
{
    struct run run = run_of("--parallelism.fsdp_reshard_after_forward=default", INT64_C(1) << 40);
    char *text = advice_of(&run, 1.0, 2.0);

    assert_string_equal(text, "  time     compute 97 %, exposed communication 2 %, data 1 %\n");
    tt_free(text);
    release(&run);
}

static void names_the_degree_whose_ranks_wait(void **state)
{
    struct run run = run_of("--parallelism.tensor_parallel_degree=2", INT64_C(1) << 40);
    char *text = advice_of(&run, 0.0, 20.0);

    assert_non_null(strstr(text,
                           "hint     ranks that share layers wait for each other in every layer: keep them on one "
                           "host, or lower parallelism.tensor_parallel_degree\n"));
    tt_free(text);
    release(&run);
}

/* The local batch has its default, so the pipeline runs eight microbatches. */
static void names_the_dimension_that_waits_most(void **state)
{
    struct run run = run_on(4, "--parallelism.tensor_parallel_degree=2", "--parallelism.pipeline_parallel_degree=2",
                            INT64_C(1) << 40);
    struct tt_spent spent = {.step_sec = 100.0, .exposed_sec = 20.0};

    for (int layers = 0; layers < 2; layers++) {
        struct tt_text text = {0};

        spent.group_sec[TT_GROUP_PP] = 9.0;
        spent.group_sec[TT_GROUP_TP] = layers ? 10.0 : 8.0;
        tt_advice(&run.setup, &spent, &text);
        assert_contains(text.text, layers ? "hint     ranks that share layers" : "hint     a pipeline waits less");
        tt_text_release(&text);
    }
    release(&run);
}

static void names_the_policy_that_sends_less(void **state)
{
    struct run run = run_of("--parallelism.fsdp_reshard_after_forward=always", INT64_C(1) << 40);
    char *text = advice_of(&run, 0.0, 20.0);

    assert_contains(text, "exposed communication 20 %");
    assert_contains(text, "hint     --parallelism.fsdp_reshard_after_forward=never sends ");
    tt_free(text);
    release(&run);
    run = run_of("--parallelism.fsdp_reshard_after_forward=never", INT64_C(1) << 40);
    text = advice_of(&run, 0.0, 20.0);
    assert_contains(text, "--training.gradient_sync=every_run sends ");
    tt_free(text);
    release(&run);
}

static void names_no_policy_that_does_not_fit(void **state)
{
    struct run run = run_of("--parallelism.fsdp_reshard_after_forward=always", INT64_C(1) << 40);
    char *text;

    run.setup.memory_limit = run.setup.memory.total;
    text = advice_of(&run, 0.0, 20.0);
    assert_null(strstr(text, "after_forward=never"));
    tt_free(text);
    text = advice_of(&run, 0.0, 0.0);
    assert_contains(text, "memory is nearly full");
    tt_free(text);
    release(&run);
}

static void blames_the_data_when_it_is_the_data(void **state)
{
    struct run run = run_of("--parallelism.fsdp_reshard_after_forward=always", INT64_C(1) << 40);
    char *text = advice_of(&run, 30.0, 20.0);

    assert_contains(text, "cache_dir");
    tt_free(text);
    release(&run);
}

/* Saves and validations do not count as step time. An asynchronous save may end within such a pause. */
static void a_pause_within_a_pause_counts_once(void **state)
{
    struct tt_comm *comm = tt_comm_self_new();
    struct tt_setup setup = {.comm = comm};
    struct tt_reporter reporter = {.setup = &setup};
    double begin = tt_clock_sec();
    struct tt_pause outer = tt_reporter_pause(&reporter), inner = tt_reporter_pause(&reporter);

    while (tt_clock_sec() - begin < 0.01)
        ;
    tt_reporter_resume(&reporter, &inner);
    tt_reporter_resume(&reporter, &outer);
    assert_true(reporter.window.start > 0.0 && reporter.window.start <= tt_clock_sec() - begin);
    tt_comm_free(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_where_the_time_went),
        cmocka_unit_test(names_the_degree_whose_ranks_wait),
        cmocka_unit_test(names_the_dimension_that_waits_most),
        cmocka_unit_test(names_the_policy_that_sends_less),
        cmocka_unit_test(names_no_policy_that_does_not_fit),
        cmocka_unit_test(blames_the_data_when_it_is_the_data),
        cmocka_unit_test(a_pause_within_a_pause_counts_once),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
