/* SPDX-License-Identifier: MIT
 *
 * What gradient_sync auto becomes, and what titan prints about it.
 */
#include "config_help.h"
#include "trainer/job/predict.h"

enum { SLOW_LINK = 1, FAST_LINK = 1000 }; /* MB/s */

/* The choice for four ranks, in words. The caller frees *ret_job, which refers to the configuration. */
static char *choice_of(int link, int64_t memory, struct tt_config *cfg, struct tt_job *ret_job)
{
    char *why = NULL;

    *ret_job = (struct tt_job){0};
    assert_int_equal(tt_job_init(cfg, 4, 1, memory, ret_job), 0);
    ret_job->engine.machine.link_bytes_per_sec = 1e6 * link;
    assert_int_equal(tt_job_choose_sync(cfg->training.gradient_sync, cfg->parallelism.reduction_order == TT_ORDER_FAST,
                                        ret_job, &why),
                     0);
    return why;
}

/* Checks the choice with these flags and the default ones. wanted: part of the message; NULL: there is none. */
static void must_choose(int link, int64_t memory, const char *const *flags, int n, enum tt_reduce_when when,
                        const char *wanted)
{
    const char *all[16] = {"--training.gradient_sync=auto", "--training.seq_len=32", "--training.local_batch_size=4",
                           "--model.n_layers=2"};
    struct tt_config *cfg;
    struct tt_job job;
    char *why;

    for (int i = 0; i < n; i++)
        all[4 + i] = flags[i];
    cfg = good_flags(4 + n, all);
    why = choice_of(link, memory, cfg, &job);
    if (wanted)
        assert_contains(why, wanted);
    else
        assert_null(why);
    assert_int_equal(job.engine.reduce, when);
    tt_free(why);
    tt_job_release(&job);
    tt_config_free(cfg);
}

static const int64_t plenty = INT64_C(1) << 40;

static void a_slow_link_reduces_once_per_run(void **state)
{
    const char *accumulated[] = {"--training.global_batch_size=64"};
    const char *piped[] = {"--training.global_batch_size=32", "--parallelism.pipeline_parallel_degree=2",
                           "--parallelism.pipeline_parallel_schedule=LoopedBFS"};

    must_choose(SLOW_LINK, plenty, accumulated, 1, TT_REDUCE_RUNS, "once a step of 4 microbatches: ");
    must_choose(SLOW_LINK, plenty, accumulated, 1, TT_REDUCE_RUNS, " predicted; after each microbatch: ");
    must_choose(SLOW_LINK, plenty, piped, 3, TT_REDUCE_RUNS, "once per run of 4 microbatches: ");
}

static void without_gain_memory_is_saved(void **state)
{
    const char *accumulated[] = {"--training.global_batch_size=64"};

    must_choose(FAST_LINK * 1000, plenty, accumulated, 1, TT_REDUCE_EACH, "after each microbatch: ");
    must_choose(FAST_LINK * 1000, plenty, accumulated, 1, TT_REDUCE_EACH,
                " predicted; once a step of 4 microbatches: ");
}

/* The limit lies between the memory needs of the two settings. */
static void memory_limits_the_choice(void **state)
{
    const char *flags[] = {"--training.gradient_sync=auto", "--training.seq_len=32", "--training.local_batch_size=4",
                           "--model.n_layers=2", "--training.global_batch_size=64"};
    struct tt_job_prediction each = {0}, runs = {0};
    struct tt_config *cfg = good_flags(5, flags);
    struct tt_job job;

    tt_free(choice_of(SLOW_LINK, plenty, cfg, &job));
    assert_int_equal(job.engine.reduce, TT_REDUCE_RUNS);
    assert_int_equal(tt_job_predict(&job, &job.engine.machine, NULL, 0, &runs), 0);
    job.engine.reduce = TT_REDUCE_EACH;
    assert_int_equal(tt_job_predict(&job, &job.engine.machine, NULL, 0, &each), 0);
    assert_true(each.memory.total < runs.memory.total && runs.step_sec < each.step_sec);
    must_choose(SLOW_LINK, runs.memory.total + job.staging_bytes, &flags[4], 1, TT_REDUCE_RUNS, "once a step");
    must_choose(SLOW_LINK, runs.memory.total + job.staging_bytes - 1, &flags[4], 1, TT_REDUCE_EACH, ", but only ");
    tt_job_prediction_release(&each);
    tt_job_prediction_release(&runs);
    tt_job_release(&job);
    tt_config_free(cfg);
}

/* auto never changes the bits, unless reduction_order fast allows it. */
static void bits_limit_the_choice(void **state)
{
    const char *odd[] = {"--training.global_batch_size=48"};
    const char *fast[] = {"--training.global_batch_size=48", "--parallelism.reduction_order=fast"};
    const char *descending[] = {"--training.global_batch_size=24", "--parallelism.reduction_order=fast",
                                "--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=3",
                                "--parallelism.pipeline_parallel_schedule=LoopedBFS"};

    must_choose(SLOW_LINK, plenty, odd, 1, TT_REDUCE_EACH, "after each microbatch: other sums would change the bits");
    must_choose(SLOW_LINK, plenty, fast, 2, TT_REDUCE_LAST, "once a step of 3 microbatches: ");
    must_choose(SLOW_LINK, plenty, descending, 5, TT_REDUCE_RUNS, "once per run of 3 microbatches: ");
}

static void there_may_be_nothing_to_choose(void **state)
{
    const char *one[] = {"--training.global_batch_size=16"};
    const char *replicas[] = {"--training.global_batch_size=64", "--parallelism.data_parallel_replicate_degree=4"};
    const char *configured[] = {"--training.global_batch_size=48", "--training.gradient_sync=every_run"};

    must_choose(SLOW_LINK, plenty, one, 1, TT_REDUCE_EACH, "there is one microbatch");
    must_choose(SLOW_LINK, plenty, replicas, 2, TT_REDUCE_EACH, "one shard reduces nothing");
    must_choose(SLOW_LINK, plenty, configured, 2, TT_REDUCE_RUNS, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_link_reduces_once_per_run), cmocka_unit_test(without_gain_memory_is_saved),
        cmocka_unit_test(memory_limits_the_choice),         cmocka_unit_test(bits_limit_the_choice),
        cmocka_unit_test(there_may_be_nothing_to_choose),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("sync", tests, NULL, NULL);
}
