/* SPDX-License-Identifier: MIT
 *
 * Predictions for clusters: recomputation of single modules of a layer, layers that predict further tokens, and what
 * recipes say about both.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "estimate/model/internal.h"
#include "tests/unit/cluster_help.h"

/* DeepSeek-V3 with 32 ranks that share experts, one microbatch of 4096 tokens. */
static struct tt_cluster_job job_671b(unsigned modules)
{
    struct tt_cluster_job job = job_8b();

    assert_true(tt_cluster_shape_find("deepseek-v3-671b", &job.shape));
    assert_int_equal(tt_cluster_stack_find("megatron-bridge-2026", &job.stack), 0);
    job.replicate = 128;
    job.shard = 1;
    job.ep = 32;
    job.seq_len = 4096;
    job.micro_batch = 1;
    job.again = modules ? TT_AGAIN_MODULES : TT_AGAIN_NONE;
    job.again_modules = modules;
    return job;
}

static struct tt_cluster_time step(struct tt_cluster_job job)
{
    struct tt_cluster_time time;

    tt_cluster_step(&job, &time);
    return time;
}

static double activations(struct tt_cluster_job job)
{
    struct tt_cluster_memory memory;

    tt_cluster_peak(&job, &memory);
    return memory.activations;
}

static double forward_sec(const struct tt_cluster_job *job, double n, double k)
{
    struct tt_cluster_product p = {.groups = 1, .m = 4096, .n = n, .k = k, .gain = 1, .in_bytes = 2};

    return tt_cluster_linear_sec(job->machine, &p, false) / job->stack->number[TT_S_GEMM].value;
}

/* The forward products of a module are repeated, in those layers that contain the module. */
static void modules_repeat_their_products(void **state)
{
    struct tt_cluster_job job = job_671b(0);
    const struct tt_cluster_shape *s = &job.shape;
    double plain = step(job).gemm, one;

    one = forward_sec(&job, 128 * (128 + 128), 512) + forward_sec(&job, 128 * (128 + 64), 1536);
    assert_float_equal((step(job_671b(TT_MODULE_LATENT_UP)).gemm - plain) / one, s->layers, 1e-6);
    one = forward_sec(&job, 2 * s->ffn, s->dim) + forward_sec(&job, s->dim, s->ffn);
    assert_float_equal((step(job_671b(TT_MODULE_FFN)).gemm - plain) / one, s->dense_layers, 1e-6);
    one = forward_sec(&job, 2 * s->shared_ffn, s->dim) + forward_sec(&job, s->dim, s->shared_ffn);
    assert_float_equal((step(job_671b(TT_MODULE_SHARED_EXPERTS)).gemm - plain) / one, s->layers - s->dense_layers,
                       1e-6);
    assert_true(step(job_671b(TT_MODULE_EXPERTS)).gemm - plain > 5 * one * (s->layers - s->dense_layers));
}

/* Norms and activations of experts only cost memory traffic; recomputing experts repeats half of their exchange. */
static void modules_repeat_their_traffic(void **state)
{
    struct tt_cluster_job job = job_671b(0);
    struct tt_cluster_time plain = step(job), t = step(job_671b(TT_MODULE_NORMS | TT_MODULE_EXPERT_ACT));
    double rate = job.machine->number[TT_M_MEMORY_RATE].value * job.machine->number[TT_M_MEMORY_SHARE].value;
    double bytes = 4096.0 * (61 * 8 * 7168 + 58 * 6 * 8 * 2048);

    assert_float_equal(t.gemm, plain.gemm, 1e-12);
    assert_float_equal((t.memory - plain.memory) * rate / bytes, 1, 1e-9);
    assert_float_equal(t.attention, plain.attention, 1e-12);
    t = step(job_671b(TT_MODULE_CORE_ATTENTION));
    assert_true(t.attention > 1.25 * plain.attention && t.attention < 1.5 * plain.attention);
    t = step(job_671b(TT_MODULE_EXPERTS));
    assert_float_equal(t.expert / plain.expert, 1.5, 1e-9);
}

/* Repeated results are not kept: all modules need more time and less memory than none, but less time than full
 * recomputation. */
static void modules_save_memory(void **state)
{
    static const unsigned one[] = {TT_MODULE_NORMS,   TT_MODULE_LATENT_UP,  TT_MODULE_FFN,
                                   TT_MODULE_EXPERTS, TT_MODULE_EXPERT_ACT, TT_MODULE_SHARED_EXPERTS};
    struct tt_cluster_job full = job_671b(0), none = full;
    unsigned all = 0;

    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        assert_true(activations(job_671b(one[i])) < activations(none));
        assert_true(step(job_671b(one[i])).total > step(none).total);
        all |= one[i];
    }
    assert_float_equal((activations(none) - activations(job_671b(TT_MODULE_NORMS))) / (60 * 4 * 7168 * 4096.0), 1,
                       1e-9); /* except in the layer that is being computed */
    full.again = TT_AGAIN_FULL;
    assert_true(activations(full) < activations(job_671b(all)));
    assert_true(step(full).total > step(job_671b(all)).total);
}

/* Results of experts that selective recomputation keeps are also kept without recomputation. */
static void keeping_all_needs_most(void **state)
{
    static const char *const model[] = {"deepseek-v3-671b", "qwen3-235b-a22b", "gpt-oss-120b", "mixtral-8x7b"};
    struct tt_cluster_job job = job_8b(), op;

    for (size_t i = 0; i < sizeof model / sizeof *model; i++) {
        assert_true(tt_cluster_shape_find(model[i], &job.shape));
        job.ep = i % 2 ? 1 : 8;
        job.again = TT_AGAIN_NONE;
        op = job;
        op.again = TT_AGAIN_OP;
        assert_true(activations(op) < activations(job));
    }
}

static void modules_have_names(void **state)
{
    struct tt_text text = {0};

    assert_int_equal(tt_cluster_modules("moe_act layernorm"), TT_MODULE_EXPERT_ACT | TT_MODULE_NORMS);
    assert_int_equal(tt_cluster_modules("moe"), TT_MODULE_EXPERTS);
    assert_int_equal(tt_cluster_modules("modules mla_up_proj"), TT_MODULE_LATENT_UP);
    assert_int_equal(tt_cluster_modules(""), 0);
    tt_cluster_module_names(127, &text);
    assert_int_equal(tt_cluster_modules(text.text), 127);
    tt_text_release(&text);
}

/* One more layer with its projection and loss. In a pipeline it belongs to the last rank, which then has fewer other
 * layers. */
static void layers_that_predict_further(void **state)
{
    struct tt_cluster_job job = job_671b(0), more;
    double params = tt_cluster_params(&job.shape), plain = step(job).total, layer;

    more = job;
    more.shape.mtp_layers = 1;
    assert_float_equal(tt_cluster_params(&more.shape) - params,
                       tt_cluster_block_params(&job.shape, true) + 2 * 7168 * 7168.0, 1);
    layer = step(more).total / plain - 1;
    assert_true(layer > 1 / 61.0 && layer < 3 / 61.0);
    job.pp = more.pp = 16; /* 4 layers on each rank, 1 on the last */
    job.replicate = more.replicate = 8;
    job.ep = more.ep = 8;
    job.n_micro = more.n_micro = 64;
    assert_float_equal(step(more).total / step(job).total, 1, 0.04);
    job.shape.layers = more.shape.layers = 64; /* 4 on the last too */
    assert_true(step(more).total / step(job).total > 1.2);
}

static void narrow_gradients_halve_their_traffic(void **state)
{
    struct tt_cluster_job job = job_8b(), narrow;

    assert_int_equal(tt_cluster_stack_find("megatron-bridge", &job.stack), 0);
    job.replicate = 128;
    job.shard = 1;
    job.seq_len = 256; /* there is nothing to hide behind */
    narrow = job;
    narrow.gradient_bytes = 2;
    assert_true(step(narrow).data < 0.55 * step(job).data);
    assert_true(step(narrow).data > 0.3 * step(job).data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modules_repeat_their_products),
        cmocka_unit_test(modules_repeat_their_traffic),
        cmocka_unit_test(modules_save_memory),
        cmocka_unit_test(keeping_all_needs_most),
        cmocka_unit_test(modules_have_names),
        cmocka_unit_test(layers_that_predict_further),
        cmocka_unit_test(narrow_gradients_halve_their_traffic),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
