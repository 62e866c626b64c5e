/* SPDX-License-Identifier: MIT
 *
 * Degrees of tensor and context parallelism, and of exactness, that conflict with each other, the model or the batch.
 */
#include "config_help.h"
#include "core/config/config.h"
#include "trainer/job/job.h"

/* Reads flags on a model with 12 heads, 4 key/value heads, a width of 96 in the middle and 61 rows of vocabulary, and
 * 24 tokens in a microbatch; NULL if they are refused. */
static struct tt_config *read_flags(const char *const *more)
{
    static const char *const base[] = {"--model.dim=48",       "--model.n_heads=12",    "--model.n_kv_heads=4",
                                       "--model.ffn_dim=96",   "--model.vocab_size=61", "--training.local_batch_size=2",
                                       "--training.seq_len=12"};

    return checked_flags((struct tt_config_input){.check = tt_job_check, .args = base, .n_args = COUNT(base)}, more);
}

#define FLAGS(...)  ((const char *const[]){__VA_ARGS__, NULL})
#define TP(n)       "--parallelism.tensor_parallel_degree=" #n
#define EXACT(n)    "--parallelism.exact_tensor_parallel_degree=" #n
#define CP(n)       "--parallelism.context_parallel_degree=" #n
#define EXACT_CP(n) "--parallelism.exact_context_parallel_degree=" #n

static void must_refuse(const char *const *flags, const char *message)
{
    assert_refused(read_flags(flags), message);
}

static void expect_grains(const char *const *flags, int n_ranks, int tp, int grains)
{
    struct tt_config *cfg = read_flags(flags);
    struct tt_job job = {0};

    if (!cfg)
        fail_msg("%s", tt_error_message());
    assert_int_equal(tt_job_init(cfg, n_ranks, 1, (int64_t)1 << 40, &job), 0);
    assert_int_equal(job.mesh.size[TT_MESH_TP], tp);
    assert_int_equal(job.mesh.tp_grains, grains);
    tt_job_release(&job);
    tt_config_free(cfg);
}

static void a_layer_has_as_many_grains_as_the_larger_degree(void **state)
{
    expect_grains(FLAGS(TP(1)), 2, 1, 1);
    expect_grains(FLAGS(TP(2)), 2, 2, 2);
    expect_grains(FLAGS(TP(4)), 8, 4, 4);
    expect_grains(FLAGS(EXACT(4)), 1, 1, 4);
    expect_grains(FLAGS(TP(2), EXACT(4)), 2, 2, 4);
    expect_grains(FLAGS(TP(4), EXACT(2)), 4, 4, 4);
}

static void a_layer_must_be_divisible(void **state)
{
    must_refuse(FLAGS(TP(3)), "flag --parallelism.tensor_parallel_degree: 3 parts of a layer are not possible with "
                              "model.n_kv_heads 4\nhelp: these work: 1, 2, 4");
    must_refuse(FLAGS(TP(8)), "8 parts of a layer are not possible with model.n_heads 12, model.n_kv_heads 4\n");
    must_refuse(FLAGS(EXACT(8)), "flag --parallelism.exact_tensor_parallel_degree: 8 parts of a layer are not possible "
                                 "with model.n_heads 12, model.n_kv_heads 4\nhelp: these work: 1, 2, 4");
    must_refuse(FLAGS(TP(4), "--model.ffn_dim=90"), "with model.ffn_dim 90\nhelp: these work: 1, 2");
    must_refuse(FLAGS(TP(4), "--training.seq_len=13"), "with the tokens of a microbatch, 26\nhelp: these work: 1, 2");
    must_refuse(FLAGS(TP(4), "--training.local_batch_size=4", "--training.seq_len=13",
                      "--parallelism.pipeline_parallel_degree=2"),
                "with the tokens of a microbatch, 13\nhelp: these work: 1");
    must_refuse(FLAGS(TP(4), "--validation.enable", "--validation.local_batch_size=1", "--validation.seq_len=10"),
                "with the tokens of a batch of validation, 10\nhelp: these work: 1, 2");
    must_refuse(FLAGS(TP(4), "--model.vocab_size=5"), "with model.vocab_size 5\nhelp: these work: 1, 2");
}

static void the_exact_degree_is_a_power_of_two(void **state)
{
    must_refuse(FLAGS(EXACT(3)), "exact_tensor_parallel_degree 3 is not a power of two\nhelp: use 1, 2, 4, 8");
    must_refuse(FLAGS(EXACT_CP(6)), "exact_context_parallel_degree 6 is not a power of two\n");
    must_refuse(FLAGS(TP(3), EXACT(4)), "tensor_parallel_degree 3 does not divide exact_tensor_parallel_degree 4\n");
    must_refuse(FLAGS(CP(3), EXACT_CP(4)),
                "context_parallel_degree 3 does not divide exact_context_parallel_degree 4\n");
    must_refuse(FLAGS(TP(96)), "tensor_parallel_degree 96 is more than 64");
}

#define ULYSSES "--parallelism.context_parallel_method=ulysses"

static void a_sequence_must_be_divisible(void **state)
{
    must_refuse(FLAGS(CP(8)), "flag --parallelism.context_parallel_degree: 8 parts of a sequence are not possible with "
                              "training.seq_len 12 and 2 pieces of each part\nhelp: these work: 1, 2, 3, 6; or set "
                              "context_parallel_load_balancer=null");
    must_refuse(FLAGS(EXACT_CP(4)), "flag --parallelism.exact_context_parallel_degree: 4 parts of a sequence are not "
                                    "possible with training.seq_len 12 and 2 pieces of each part\nhelp: these work: 1, "
                                    "2; or set context_parallel_load_balancer=null");
    must_refuse(FLAGS(CP(4), "--training.seq_len=10", "--parallelism.context_parallel_load_balancer=null"),
                "with training.seq_len 10\nhelp: these work: 1, 2, 5, 10");
    must_refuse(FLAGS(CP(4), "--training.seq_len=16", "--validation.enable", "--validation.seq_len=12"),
                "with validation.seq_len 12 and 2 pieces of each part\nhelp: these work: 1, 2; or set");
    must_refuse(
        FLAGS(CP(2), TP(2), "--training.seq_len=12", "--training.local_batch_size=1", "--validation.enable",
              "--validation.local_batch_size=1", "--validation.seq_len=4", EXACT(4)),
        "4 parts of a layer are not possible with the tokens of a microbatch, 12 and 2 parts of a sequence, the "
        "tokens of a batch of validation, 4 and 2 parts of a sequence\nhelp: these work: 1, 2");
}

static void exchanged_heads_must_be_divisible(void **state)
{
    must_refuse(FLAGS(CP(3), ULYSSES),
                "flag --parallelism.context_parallel_degree: 3 parts of a sequence are not possible "
                "with model.n_kv_heads 4\nhelp: these work: 1, 2; or set "
                "context_parallel_method=gather");
    must_refuse(FLAGS(CP(8), EXACT_CP(8), "--training.seq_len=32", ULYSSES),
                "flag --parallelism.context_parallel_degree: 8 parts of a sequence are not possible with "
                "model.n_kv_heads 4\nhelp: these work: 1, 2, 4; or set");
    must_refuse(FLAGS(CP(4), TP(2), "--training.seq_len=16", ULYSSES),
                "4 parts of a sequence are not possible with model.n_kv_heads 4 and 2 parts of a layer\nhelp: these "
                "work: 1, 2; or set");
}

/* The method of a job on n ranks. */
static void expect_method(const char *const *flags, int n_ranks, bool gathers, bool mirrored)
{
    struct tt_config *cfg = read_flags(flags);
    struct tt_job job = {0};

    if (!cfg)
        fail_msg("%s", tt_error_message());
    assert_int_equal(tt_job_init(cfg, n_ranks, 1, (int64_t)1 << 40, &job), 0);
    assert_int_equal(job.mesh.cp_gathers, gathers);
    assert_int_equal(job.mesh.cp_mirrored, mirrored);
    tt_job_release(&job);
    tt_config_free(cfg);
}

static void keys_are_gathered_where_heads_do_not_divide(void **state)
{
    expect_method(FLAGS(CP(2)), 2, false, true);
    expect_method(FLAGS(CP(3)), 3, true, true);
    expect_method(FLAGS(CP(4), TP(2), "--training.seq_len=16"), 8, true, true);
    expect_method(FLAGS(CP(2), EXACT_CP(8), "--training.seq_len=16"), 2, false, true);
    expect_method(FLAGS(CP(2), "--parallelism.context_parallel_method=gather",
                        "--parallelism.context_parallel_load_balancer=null"),
                  2, true, false);
    expect_method(FLAGS(CP(2), "--training.document_mask"), 2, false, true);
}

static void adapters_and_what_muon_trains_are_divided(void **state)
{
    expect_grains(FLAGS(TP(2), "--optimizer.name=Muon"), 2, 2, 2);
    expect_grains(FLAGS(TP(2), "--lora.rank=3"), 2, 2, 2);
    expect_grains(FLAGS(EXACT(2), "--optimizer.name=Muon"), 1, 1, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_has_as_many_grains_as_the_larger_degree),
        cmocka_unit_test(a_layer_must_be_divisible),
        cmocka_unit_test(the_exact_degree_is_a_power_of_two),
        cmocka_unit_test(a_sequence_must_be_divisible),
        cmocka_unit_test(exchanged_heads_must_be_divisible),
        cmocka_unit_test(keys_are_gathered_where_heads_do_not_divide),
        cmocka_unit_test(adapters_and_what_muon_trains_are_divided),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("divisions", tests, NULL, NULL);
}
