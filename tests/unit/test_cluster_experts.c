/* SPDX-License-Identifier: MIT
 *
 * Predictions for clusters: the cost of experts, and of adding gradients.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "estimate/model/internal.h"
#include "tests/unit/cluster_help.h"

static double linear_sec(const struct tt_cluster_machine *machine, double groups, double together, double m, double n)
{
    struct tt_cluster_product p = {.groups = groups,
                                   .together = together,
                                   .m = m,
                                   .n = n,
                                   .k = 2048,
                                   .gain = 1,
                                   .in_bytes = 2,
                                   .gradient_bytes = 2};

    return tt_cluster_linear_sec(machine, &p, false);
}

static void experts_share_the_waves_of_one_kernel(void **state)
{
    const struct tt_cluster_machine *machine;
    double one;

    assert_int_equal(tt_cluster_machine_find("h100-sxm", &machine), 0);
    one = linear_sec(machine, 1, 0, 128, 1408); /* few tiles on 132 units */
    assert_true(linear_sec(machine, 16, 0, 128, 1408) < 8 * one);
    assert_float_equal(linear_sec(machine, 16, 1, 128, 1408) / one, 16, 0.1); /* one after the other */
    assert_true(linear_sec(machine, 16, 4, 128, 1408) < 8 * one);             /* four at once */
    one = linear_sec(machine, 1, 0, 4096, 14336);                             /* many waves: nothing is saved */
    assert_float_equal(linear_sec(machine, 16, 0, 4096, 14336) / one, 16, 0.5);
}

/* Seconds of the products of a DeepSeek-V3 with 32 experts on each rank. */
static double gemm_sec(const struct tt_cluster_stack *stack)
{
    struct tt_cluster_job job = job_8b();
    struct tt_cluster_time time;

    assert_true(tt_cluster_shape_find("deepseek-v3-671b", &job.shape));
    job.stack = stack;
    job.ep = 8;
    job.seq_len = 1024;
    job.micro_batch = 1;
    tt_cluster_step(&job, &time);
    return time.gemm;
}

/* If each expert gets few rows, adding gradients in float32 bounds the backward pass. */
static void gradients_of_weights_are_moved(void **state)
{
    const struct tt_cluster_stack *megatron;
    struct tt_cluster_stack other;
    struct tt_cluster_product p = {
        .groups = 32, .m = 256, .n = 4096, .k = 7168, .gain = 1.75, .in_bytes = 1, .gradient_bytes = 2};
    const struct tt_cluster_machine *machine;
    double written, added, m = 32.0 * 4096 * 7168;

    assert_int_equal(tt_cluster_machine_find("b200", &machine), 0);
    written = tt_cluster_linear_sec(machine, &p, true);
    p.gradient_bytes = 8;
    added = tt_cluster_linear_sec(machine, &p, true);
    assert_true(added > written);
    assert_true(added > 8 * m / (machine->number[TT_M_MEMORY_RATE].value * machine->number[TT_M_MEMORY_SHARE].value));
    p.m = 16384; /* bound by arithmetic */
    added = tt_cluster_linear_sec(machine, &p, true);
    p.gradient_bytes = 2;
    assert_float_equal(added, tt_cluster_linear_sec(machine, &p, true), 1e-12);
    assert_int_equal(tt_cluster_stack_find("megatron-bridge", &megatron), 0);
    other = *megatron;
    other.number[TT_S_STATE_WHOLE].value = 0; /* PyTorch's own: gradients are written in bfloat16 */
    assert_true(gemm_sec(megatron) > 1.1 * gemm_sec(&other));
}

/* The keys of a job that concern experts: equal loads, overlapped exchange, a limit on the groups of a token,
 * biases. */
static void experts_have_their_price(void **state)
{
    struct tt_cluster_job job = job_8b();
    struct tt_cluster_time plain, changed;

    assert_true(tt_cluster_shape_find("deepseek-v3-671b", &job.shape));
    assert_int_equal(tt_cluster_stack_find("megatron-bridge", &job.stack), 0);
    job.shard = 1;
    job.replicate = 64;
    job.ep = 64;
    tt_cluster_step(&job, &plain);
    job.balanced = true;
    tt_cluster_step(&job, &changed);
    assert_float_equal(changed.expert / plain.expert, 1 / 1.2, 1e-6);
    assert_true(changed.gemm < plain.gemm);
    job.balanced = false;
    job.expert_overlap = true;
    tt_cluster_step(&job, &changed);
    assert_float_equal(changed.expert / plain.expert, 0.63, 1e-6);
    job.expert_overlap = false;
    job.shape.groups = 0; /* tokens go to any of the 8 nodes, not only to 4 */
    tt_cluster_step(&job, &changed);
    assert_true(changed.expert > 1.2 * plain.expert);
    job.shape.expert_bias = true;
    tt_cluster_step(&job, &changed);
    assert_true(changed.memory > 1.5 * plain.memory);
}

/* The host launches the products of each of a rank's experts. */
static void more_experts_keep_the_host_busier(void **state)
{
    struct tt_cluster_job job = job_8b();
    struct tt_cluster_time few, many;

    assert_true(tt_cluster_shape_find("qwen3-30b-a3b", &job.shape));
    assert_int_equal(tt_cluster_stack_find("megatron-bridge", &job.stack), 0);
    job.shard = 1;
    job.replicate = 8;
    job.ep = 8;
    job.again = TT_AGAIN_NONE;
    job.micro_batch = 1;
    job.seq_len = 512;
    tt_cluster_step(&job, &few);
    job.shape.experts *= 4;
    tt_cluster_step(&job, &many);
    assert_true(many.total > few.total + job.n_micro * job.shape.layers * 0.9 * 48 * 1e-4);
    assert_int_equal(tt_cluster_stack_find("megatron-bridge-2026", &job.stack), 0); /* one graph */
    tt_cluster_step(&job, &many);
    assert_float_equal(many.host, 0, 1e-12);
}

/* Gradient reductions hide behind one microbatch, so with few microbatches much of them is exposed. */
static void sums_hide_behind_one_microbatch(void **state)
{
    struct tt_cluster_job job = job_8b();
    struct tt_cluster_time one, two;

    assert_int_equal(tt_cluster_stack_find("megatron-bridge", &job.stack), 0);
    job.shard = 1;
    job.replicate = 64;
    job.seq_len = 256; /* little work beside the same reductions */
    tt_cluster_step(&job, &one);
    job.micro_batch *= 2;
    tt_cluster_step(&job, &two);
    assert_true(one.data > 0.1 * one.total);
    assert_true(two.data < one.data);
    job.seq_len = 65536; /* all of it is hidden except the share that the stack exposes */
    tt_cluster_step(&job, &two);
    assert_true(two.data < 0.2 * one.data);
}

/* AutoModel's benchmarks replace the router by a counter, so that a token's experts are neighbours: 4 of 128 are on two
 * ranks of one node, and not on three or four of eight nodes. */
static void neighbouring_experts_need_less_traffic(void **state)
{
    struct tt_cluster_job job = job_8b();
    struct tt_cluster_time random, counted;

    assert_true(tt_cluster_shape_find("gpt-oss-120b", &job.shape));
    job.shard = job.ep = 64;
    job.balanced = true;
    tt_cluster_step(&job, &random);
    job.adjacent = true;
    tt_cluster_step(&job, &counted);
    assert_true(counted.expert < 0.5 * random.expert && counted.expert > 0.1 * random.expert);
    assert_true(counted.gemm == random.gemm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_share_the_waves_of_one_kernel),
        cmocka_unit_test(gradients_of_weights_are_moved),
        cmocka_unit_test(experts_have_their_price),
        cmocka_unit_test(more_experts_keep_the_host_busier),
        cmocka_unit_test(sums_hide_behind_one_microbatch),
        cmocka_unit_test(neighbouring_experts_need_less_traffic),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
