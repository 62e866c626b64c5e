/* SPDX-License-Identifier: MIT
 *
 * Pipelines of configurations: what the keys ask for, and every fault that a check without ranks finds.
 */
#include <stdio.h>

#include <unistd.h>

#include "config_help.h"
#include "core/config/config.h"
#include "parallel/comm/collectives.h"
#include "trainer/job/job.h"
#include "trainer/job/predict.h"

/* Reads flags on a pipeline of 4 ranks over a model with 30 layers; NULL if they are refused. */
static struct tt_config *read_flags(const char *const *more)
{
    static const char *const base[] = {"--parallelism.pipeline_parallel_degree=4", "--model.n_layers=30",
                                       "--training.local_batch_size=8"};

    return checked_flags((struct tt_config_input){.check = tt_job_check_files, .args = base, .n_args = COUNT(base)},
                         more);
}

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void must_refuse(const char *const *flags, const char *message)
{
    assert_refused(read_flags(flags), message);
}

/* The stages and orders that flags ask for. */
static void expect_pipeline(const char *const *flags, int n_stages, int last_layers, int microbatches, const char *name)
{
    struct tt_config *cfg = read_flags(flags);
    struct tt_pipeline *pipeline = NULL;
    struct tt_stage_split split;
    int n = 0;

    if (!cfg)
        fail_msg("%s", tt_error_message());
    assert_int_equal(tt_job_pipeline_microbatches(cfg, &n), 0);
    assert_int_equal(n, microbatches);
    assert_int_equal(tt_job_pipeline_split(cfg, 30, &split), 0);
    assert_int_equal(split.n_stages, n_stages);
    assert_int_equal(tt_stage_split_layers(&split, n_stages - 1).n_layers, last_layers);
    assert_int_equal(tt_job_pipeline_new(cfg, n_stages, n, &pipeline), 0);
    assert_string_equal(pipeline->schedule->name, name);
    assert_int_equal(pipeline->ranks, 4);
    assert_int_equal(pipeline->microbatches, microbatches);
    tt_pipeline_free(pipeline);
    tt_stage_split_release(&split);
    tt_config_free(cfg);
}

static void keys_give_a_pipeline(void **state)
{
    expect_pipeline(FLAGS(NULL), 4, 7, 8, "1F1B");
    expect_pipeline(FLAGS("--parallelism.pipeline_parallel_schedule=zbvzerobubble"), 8, 3, 8, "ZBVZeroBubble");
    expect_pipeline(FLAGS("--parallelism.pipeline_parallel_schedule=INTERLEAVED1F1B",
                          "--parallelism.pipeline_parallel_layers_per_stage=2",
                          "--parallelism.pipeline_parallel_microbatch_size=2"),
                    16, 1, 4, "Interleaved1F1B");
    expect_pipeline(FLAGS("--parallelism.pipeline_parallel_first_stage_less_layers=0",
                          "--parallelism.pipeline_parallel_last_stage_less_layers=4"),
                    4, 4, 8, "1F1B");
}

static void modules_may_be_listed(void **state)
{
    static const char *const forms[] = {
        "--parallelism.module_fqns_per_model_part=[[tok_embeddings,layers.0],[\"layers.1\", layers.2],[norm],[output]]",
        "--parallelism.module_fqns_per_model_part=tok_embeddings layers.0,layers.1 layers.2,norm,output",
    };

    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct tt_config *cfg = read_flags(FLAGS("--model.n_layers=3", forms[i]));
        struct tt_stage_split split;

        if (!cfg)
            fail_msg("%s", tt_error_message());
        assert_int_equal(tt_job_pipeline_split(cfg, 3, &split), 0);
        assert_int_equal(split.module_stage[1], 0);
        assert_int_equal(split.module_stage[3], 1);
        assert_int_equal(split.module_stage[4], 2);
        assert_int_equal(split.module_stage[5], 3);
        tt_stage_split_release(&split);
        tt_config_free(cfg);
    }
}

static void faults_are_found_without_ranks(void **state)
{
    must_refuse(FLAGS("--parallelism.pipeline_parallel_microbatch_size=3"),
                "flag --parallelism.pipeline_parallel_microbatch_size: 3 does not divide training.local_batch_size, "
                "which is 8\nhelp: set parallelism.pipeline_parallel_microbatch_size to 2");
    must_refuse(FLAGS("--parallelism.pipeline_parallel_microbatch_size=4"),
                "schedule 1F1B on 4 ranks needs at least 4 microbatches, found 2");
    must_refuse(FLAGS("--parallelism.pipeline_parallel_schedule=DualPipeV", "--training.local_batch_size=7"),
                "needs at least 8 microbatches, found 7");
    must_refuse(FLAGS("--parallelism.pipeline_parallel_schedule=Interleaved1F1B", "--training.local_batch_size=9"),
                "what works is 8, 12 or another multiple of 4");
    must_refuse(FLAGS("--parallelism.pipeline_parallel_schedule=ZBVZeroBubble",
                      "--parallelism.pipeline_parallel_layers_per_stage=2"),
                "schedule ZBVZeroBubble has 2 stages on each of 4 ranks, found 16 stages");
    must_refuse(FLAGS("--parallelism.pipeline_parallel_layers_per_stage=5"),
                "flag --parallelism.pipeline_parallel_layers_per_stage: parallelism.pipeline_parallel_layers_per_stage "
                "5 makes 7 stages of 30 layers");
    must_refuse(FLAGS("--model.n_layers=1"),
                "parallelism.pipeline_parallel_degree 4 needs 4 stages, and 1 layer, with 1 and 1 more "
                "for embeddings and output, is too few");
    must_refuse(FLAGS("--parallelism.pipeline_parallel_first_stage_less_layers=20"), "20 is more than the");
    must_refuse(FLAGS("--parallelism.pipeline_parallel_last_stage_less_layers=20"), "it can be ");
    must_refuse(FLAGS("--parallelism.pipeline_parallel_schedule=2F2B"), "'2F2B' is not one of 1F1B, GPipe");
    must_refuse(FLAGS("--parallelism.module_fqns_per_model_part=[[tok_embeddings],[layers.1],[norm],[output]]"),
                "flag --parallelism.module_fqns_per_model_part: no stage has module 'layers.0'");
    must_refuse(FLAGS("--parallelism.module_fqns_per_model_part=[[tok_embeddings],[],[norm],[output]]"),
                "expected a list of names in the list");
}

static void faults_of_different_keys_come_together(void **state)
{
    const char *const flags[] = {"--parallelism.pipeline_parallel_microbatch_size=3",
                                 "--parallelism.pipeline_parallel_layers_per_stage=5", NULL};

    must_refuse(flags, "which cannot be shared equally by 4 ranks");
    must_refuse(flags, "3 does not divide");
}

/* Compares the prediction with the engines of all ranks.
 *   wanted  the lowest of the ranks that need most memory */
static void expect_prediction(const struct tt_job *job, int wanted)
{
    struct tt_job_prediction p = {0};
    int64_t most = 0, largest = 0, payload = 0, most_payload = 0, init = 0;
    double alone = 0.0;
    int rank_of_most = 0;

    assert_int_equal(tt_job_predict(job, &job->engine.machine, NULL, 0, &p), 0);
    for (int rank = 0; rank < job->mesh.n_ranks; rank++) {
        struct tt_engine *engine = NULL;
        const struct tt_program *program;
        struct tt_timeline time;

        assert_int_equal(tt_engine_new(&job->engine, NULL, rank, &engine), 0);
        program = tt_engine_program(engine);
        most = tt_engine_memory(engine).total;
        if (most > largest) {
            largest = most;
            rank_of_most = rank;
        }
        payload += tt_program_payload(program);
        if (tt_program_payload(program) > most_payload)
            most_payload = tt_program_payload(program);
        if (tt_engine_init_bytes(engine, TT_INIT_FULL) > init)
            init = tt_engine_init_bytes(engine, TT_INIT_FULL);
        tt_cost_simulate(&job->engine.machine, program, &time);
        alone = time.compute_sec > alone ? time.compute_sec : alone;
        tt_timeline_release(&time);
        tt_engine_free(engine);
    }
    assert_int_equal(p.memory.total, largest);
    assert_int_equal(p.rank, rank_of_most);
    assert_int_equal(p.rank, wanted);
    assert_int_equal(p.payload_bytes, most_payload);
    assert_int_equal(p.payload_sum, payload);
    assert_int_equal(p.init_bytes[TT_INIT_FULL], init);
    assert_true(p.step_sec >= alone);
    if (job->pipeline)
        assert_true(p.run.makespan > 0.0 && p.run.bubble_share > 0.0 && p.run.bubble_share < 1.0);
    tt_job_prediction_release(&p);
}

/* The place that needs most memory is the first, the last, or one between. In the last case four ranks share 301 rows
 * of the vocabulary. The last of them has fewer rows, so its buffers leave gaps into which others fit worse. */
static void predictions_are_of_all_places(void **state)
{
    const struct {
        const char *const *flags;
        int ranks, threads, largest;
    } cases[] = {
        {FLAGS("--parallelism.pipeline_parallel_first_stage_less_layers=0"), 4, 1, 0},
        {FLAGS("--parallelism.module_fqns_per_model_part=tok_embeddings,layers.0,layers.1,layers.2 layers.3 layers.4 "
               "layers.5 norm output",
               "--model.n_layers=6", "--model.vocab_size=2048", "--parallelism.pipeline_parallel_schedule=GPipe"),
         4, 1, 3},
        {FLAGS("--parallelism.module_fqns_per_model_part=tok_embeddings,layers.0 layers.1 layers.2 layers.3,layers.4 "
               "layers.5,norm output",
               "--model.n_layers=6", "--model.vocab_size=2048"),
         4, 1, 1},
        {FLAGS("--parallelism.pipeline_parallel_schedule=ZBVZeroBubble"), 8, 1, 6},
        {FLAGS("--parallelism.pipeline_parallel_degree=1", "--parallelism.tensor_parallel_degree=4",
               "--parallelism.context_parallel_degree=2", "--model.vocab_size=301", "--model.n_layers=2",
               "--model.dim=32", "--model.n_heads=8", "--model.n_kv_heads=4", "--model.ffn_dim=64",
               "--training.seq_len=32", "--training.local_batch_size=2", "--training.global_batch_size=24",
               "--validation.enable", "--validation.local_batch_size=2", "--validation.seq_len=32",
               "--optimizer.name=Muon", "--parallelism.fsdp_prefetch=0", "--training.dataset=tokens_u16",
               "--training.dataset_path=/proc/self/exe"),
         8, 2, 3},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tt_config *cfg = read_flags(cases[i].flags);
        struct tt_job job = {0};

        if (!cfg)
            fail_msg("%s", tt_error_message());
        assert_int_equal(tt_job_init(cfg, cases[i].ranks, cases[i].threads, INT64_MAX, &job), 0);
        expect_prediction(&job, cases[i].largest);
        tt_job_release(&job);
        tt_config_free(cfg);
    }
}

static void schedules_in_files_are_read(void **state)
{
    char path[] = "/tmp/titan-test-pipeline-XXXXXX", flag[128];
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");
    const char *const flags[] = {"--parallelism.pipeline_parallel_schedule=PipelineScheduleSingle", flag, NULL};

    (void)snprintf(flag, sizeof flag, "--parallelism.pipeline_parallel_schedule_csv=%s", path);
    assert_non_null(file);
    assert_true(fputs("0F0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0,\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    must_refuse(flags, "line 1: 0F1 is missing on rank 0");
    must_refuse(flags, "flag --parallelism.pipeline_parallel_schedule_csv: ");
    expect_pipeline((const char *const[]){flags[0], flags[1], "--training.local_batch_size=1", NULL}, 4, 7, 1,
                    "PipelineScheduleSingle");
    must_refuse(FLAGS(flag), "schedule 1F1B is built in, but the file");
    must_refuse(FLAGS(flags[0]), "help: set parallelism.pipeline_parallel_schedule_csv to its path");
    assert_int_equal(unlink(path), 0);
    must_refuse(flags, "flag --parallelism.pipeline_parallel_schedule_csv: ");
}

/* With one rank, none of these keys means anything, so none is checked. */
static void keys_are_idle_without_a_pipeline(void **state)
{
    struct tt_config *cfg = read_flags(FLAGS("--parallelism.pipeline_parallel_degree=1",
                                             "--parallelism.pipeline_parallel_microbatch_size=3",
                                             "--parallelism.pipeline_parallel_layers_per_stage=5"));

    if (!cfg)
        fail_msg("%s", tt_error_message());
    tt_config_free(cfg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_give_a_pipeline),
        cmocka_unit_test(modules_may_be_listed),
        cmocka_unit_test(faults_are_found_without_ranks),
        cmocka_unit_test(faults_of_different_keys_come_together),
        cmocka_unit_test(predictions_are_of_all_places),
        cmocka_unit_test(schedules_in_files_are_read),
        cmocka_unit_test(keys_are_idle_without_a_pipeline),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
