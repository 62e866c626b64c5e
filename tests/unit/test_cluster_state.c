/* SPDX-License-Identifier: MIT
 *
 * Memory of jobs that train parts of a model, in other types or with the state on the host, compared with what their
 * software publishes: torchtune's README, DeepSpeed's estimators, and scripts of Megatron-LM.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "estimate/model/job.h"
#include "tests/unit/cluster_help.h"

static const double gib = 1024.0 * 1024 * 1024;

/* A job of one device or, with shards, of several. */
static struct tt_cluster_job job_of(const char *model, const char *machine, const char *stack, double shards,
                                    double batch, double length)
{
    struct tt_cluster_job job = job_8b();

    assert_true(tt_cluster_shape_find(model, &job.shape));
    assert_int_equal(tt_cluster_machine_find(machine, &job.machine), 0);
    assert_int_equal(tt_cluster_stack_find(stack, &job.stack), 0);
    job.shard = shards;
    job.micro_batch = batch;
    job.seq_len = length;
    job.again = TT_AGAIN_NONE;
    return job;
}

static struct tt_cluster_memory memory(const struct tt_cluster_job *job)
{
    struct tt_cluster_memory m;

    tt_cluster_peak(job, &m);
    return m;
}

static double seconds(const struct tt_cluster_job *job)
{
    struct tt_cluster_time time;

    tt_cluster_step(job, &time);
    return time.total;
}

/* The bytes in use in the framework's allocator, in GiB. */
static double in_use(const struct tt_cluster_job *job)
{
    struct tt_cluster_memory m = memory(job);

    return (m.allocated - m.allocator) / gib;
}

#define assert_near(value, wanted, tolerance)                                     \
    do {                                                                          \
        print_message("# %s: %.2f, published %.2f\n", #value, (value), (wanted)); \
        assert_float_equal((value) / (wanted), 1, (tolerance));                   \
    } while (0)

/* torchtune's README, "Optimization flags": Llama 3.2 3B in bfloat16 on one A100, two packed sequences of 4096. */
static void torchtunes_ladder_is_climbed(void **state)
{
    struct tt_cluster_job job = job_of("llama3.2-3b", "a100-80", "torchtitan-eager-2025", 1, 2, 4096);

    tt_cluster_pure_bf16(&job);
    assert_near(in_use(&job), 60.0, 0.05);
    assert_int_equal(tt_cluster_stack_find("torchtitan-compile", &job.stack), 0);
    assert_near(in_use(&job), 51.0, 0.05);
    job.loss_chunks = 8;
    assert_near(in_use(&job), 42.9, 0.08);
    job.again = TT_AGAIN_FULL;
    assert_near(in_use(&job), 24.9, 0.12);
    job.offload_layers = job.shape.layers;
    job.lora_rank = 8;
    assert_near(in_use(&job), 8.5, 0.12);
    job.base_bits = 4;
    assert_near(in_use(&job), 4.6, 0.15);
}

/* torchtune's README, "Memory and training speed": two packed sequences of 2048, compiled. */
static void adapters_of_70b_fit_on_eight_a100(void **state)
{
    struct tt_cluster_job job = job_of("llama3.1-70b", "a100-40", "torchtitan-compile", 8, 2, 2048);
    struct tt_cluster_job all = job;

    job.again = all.again = TT_AGAIN_FULL;
    job.lora_rank = 16;
    job.loss_chunks = 8;
    job.weight_bytes = job.moment_bytes = 2;
    assert_near(in_use(&job), 27.6, 0.12);
    assert_true(memory(&job).total < memory(&job).usable && memory(&all).total > 3 * memory(&all).usable);
    /* forward is the same; backward needs half of the products and sends no gradients */
    assert_true(seconds(&job) < 0.85 * seconds(&all));
    job = job_of("llama3.1-405b", "a100-80", "torchtitan-compile", 8, 1, 2048);
    job.again = TT_AGAIN_FULL;
    job.lora_rank = 16;
    job.base_bits = 4;
    job.loss_chunks = 8;
    assert_near(in_use(&job), 44.8, 0.15);
}

/* estimate_zero2_model_states_mem_needs and estimate_zero3_model_states_mem_needs of DeepSpeed. */
static void deepspeeds_estimators_agree(void **state)
{
    static const struct {
        const char *stack;
        enum tt_cluster_offload offload;
        double whole, divided;
    } all[] = {{"deepspeed-zero2", TT_OFFLOAD_NONE, 2, 18},
               {"deepspeed-zero3", TT_OFFLOAD_NONE, 0, 18},
               {"deepspeed-zero2", TT_OFFLOAD_OPTIMIZER, 2, 0},
               {"deepspeed-zero3", TT_OFFLOAD_OPTIMIZER, 0, 2},
               {"deepspeed-zero3", TT_OFFLOAD_ALL, 0, 0}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct tt_cluster_job job = job_of("llama2-13b", "a100-80", all[i].stack, 1, 1, 2048);
        double params = tt_cluster_params(&job.shape);
        struct tt_cluster_memory m;

        *(strstr(all[i].stack, "3") ? &job.shard : &job.replicate) = 64;
        job.offload = all[i].offload;
        m = memory(&job);
        assert_float_equal(m.state, params * (all[i].whole + all[i].divided / 64), 1e-3 * params / 64);
        assert_true(all[i].offload == TT_OFFLOAD_NONE ? m.host == 0 : m.host > 11.9 * params / 64);
    }
}

/* Weights, gradients and two moments of 2 bytes each fit on one device; in float32 they do not. */
static void pure_bfloat16_trains_8b_on_one_device(void **state)
{
    struct tt_cluster_job job = job_of("llama3.1-8b", "a100-80", "torchtitan-compile-2025", 1, 1, 2048);

    job.again = TT_AGAIN_FULL;
    assert_int_equal(
        tt_cluster_fits(&(struct tt_cluster_memory){.total = memory(&job).total, .usable = memory(&job).usable}),
        TT_FIT_NO);
    tt_cluster_pure_bf16(&job);
    assert_float_equal(memory(&job).state, 8 * tt_cluster_params(&job.shape), 1e6);
    assert_true(memory(&job).total < memory(&job).usable);
}

static void optimizers_keep_different_moments(void **state)
{
    static const double bytes[] = {[TT_OPT_ADAMW] = 8, [TT_OPT_ADAMW_8BIT] = 2.03, [TT_OPT_MUON] = 4,
                                   [TT_OPT_LION] = 4,  [TT_OPT_SGD_MOMENTUM] = 4,  [TT_OPT_SGD] = 0};
    struct tt_cluster_job job = job_of("llama3.1-70b", "h100-sxm", "torchtitan-compile-2025", 64, 1, 8192);
    double params = tt_cluster_params(&job.shape), adamw = seconds(&job);

    for (int i = 0; i < TT_CLUSTER_OPTIMIZERS; i++) {
        job.optimizer = (enum tt_cluster_optimizer)i;
        /* Muon leaves the embeddings and the output, 3 % of the parameters, to AdamW */
        assert_float_equal(memory(&job).state * 64 / params, 8 + bytes[i], i == TT_OPT_MUON ? 0.13 : 0.01);
        assert_true(i == TT_OPT_MUON ? seconds(&job) > adamw : seconds(&job) <= adamw);
    }
}

static void offload_takes_time_on_the_link_to_the_host(void **state)
{
    struct tt_cluster_job job = job_of("llama3.1-70b", "h100-sxm", "torchtitan-compile-2025", 64, 1, 8192), other = job;
    struct tt_cluster_time usual, moved;

    tt_cluster_step(&job, &usual);
    other.offload = TT_OFFLOAD_OPTIMIZER;
    tt_cluster_step(&other, &moved);
    /* a node of 8 updates 4e9 parameters a second, and updates a 64th of the model for each device */
    assert_float_equal(moved.optimizer, 8 * 70.55e9 / 64 / 4e9 + 2 * 70.55e9 / 64 / 50e9, 0.02);
    assert_true(memory(&other).state < 0.5 * memory(&job).state);
    other.offload = TT_OFFLOAD_ALL;
    other.machine = job.machine;
    assert_true(seconds(&other) > seconds(&job));
    assert_true(memory(&other).state == 0 && memory(&other).host > 15.9 * 70.55e9 / 64);
    other = job;
    other.float32 = true; /* wider activations and parameters, slower GEMMs */
    assert_true(seconds(&other) > 5 * seconds(&job));
    assert_true(memory(&other).activations > 1.9 * memory(&job).activations);
}

/* NVIDIA measured these in float8 on H100: Megatron-LM's example for 8B with context parallelism 2, and Megatron
 * Bridge's 70B and 405B. */
static void measured_jobs_of_megatron_fit(void **state)
{
    static const struct {
        const char *model, *stack;
        double replicate, tp, pp, cp, virtual_stages, n_micro;
    } all[] = {{"llama3.1-8b", "megatron-lm", 4, 1, 1, 2, 1, 32},
               {"llama3.1-70b", "megatron-bridge", 2, 4, 8, 1, 5, 128},
               {"llama3.1-405b", "megatron-bridge", 8, 8, 8, 2, 8, 192}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct tt_cluster_job job = job_of(all[i].model, "h100-sxm", all[i].stack, 1, 1, 8192);

        job.replicate = all[i].replicate;
        job.tp = all[i].tp;
        job.pp = all[i].pp;
        job.cp = all[i].cp;
        job.virtual_stages = all[i].virtual_stages;
        job.n_micro = all[i].n_micro;
        job.sequence_parallel = job.tp > 1;
        job.float8 = true;
        if (i == 0) /* --grad-reduce-in-bf16 --cross-entropy-loss-fusion */
            job.state_gradient_bytes = 2, job.logit_bytes = 8;
        assert_true(memory(&job).total < memory(&job).usable);
        job.micro_batch = 4; /* this does not fit: otherwise the verdict would mean nothing */
        assert_true(memory(&job).total > memory(&job).usable);
    }
}

/* TransformerEngine's layers save, per token and in bfloat16: input and output of both norms (8 x dim); queries, keys,
 * values and attention's output (5 x dim with a quarter of the keys); input and output of SwiGLU (6 x ffn). In float8
 * the outputs of the norms and of SwiGLU take half of that, and the output of attention is kept in both types. */
static void layers_save_what_their_source_says(void **state)
{
    struct tt_cluster_job job = job_of("llama3.1-8b", "h100-sxm", "megatron-bridge", 1, 1, 4096);
    double tokens = 32.0 * 4096, d = 4096, ffn = 14336;

    assert_float_equal(memory(&job).activations, tokens * (13 * d + 6 * ffn), 1);
    job.float8 = true;
    assert_float_equal(memory(&job).activations, tokens * (12 * d + 5 * ffn), 1);
    job = job_of("llama3.1-8b", "h100-sxm", "torchtitan-eager", 1, 1, 4096);
    assert_float_equal(memory(&job).activations, tokens * (16 * d + 8 * ffn), 1);
    job.lora_rank = 8; /* no product of the feed-forward part needs its input, and the adapter's input is saved */
    job.lora_targets = TT_TARGET_Q;
    assert_float_equal(memory(&job).activations, tokens * (14 * d + 6 * ffn + 2 * 8), 1);
}

static void weights_and_cache_of_inference_are_counted(void **state)
{
    struct tt_cluster_job job = job_of("llama3.1-70b", "h100-sxm", "torchtitan-compile-2025", 1, 32, 8192);
    struct tt_cluster_inference in;

    job.tp = 4;
    tt_cluster_inference(&job, &in);
    assert_float_equal(in.weights, 2 * 70.55e9 / 4, 1e7);
    assert_float_equal(in.cache, 2.0 * 2 * 80 * 8 * 128 * 8192 * 32 / 4, 1); /* 320 KiB a token */
    assert_true(in.total > in.weights + in.cache && in.total < in.usable);
    job.base_bits = 4; /* embeddings and output stay in 16 bits */
    tt_cluster_inference(&job, &in);
    assert_float_equal(in.weights * 4, 68.45e9 * 4.127 / 8 + 2 * 2.10e9, 2e7);
}

/* With tensor parallelism 8, rows of 14400 / 8 elements do not begin at multiples of 128 bytes, those of 13824 / 8
 * do. By arithmetic alone the former take 9 % longer. */
static void unaligned_widths_are_slower(void **state)
{
    struct tt_cluster_job job = job_of("gpt-145b", "a100-80", "megatron-2021", 1, 1, 2048), wide = job;
    double widths[] = {13824, 14400}, heads[] = {96, 80}, sec[2];

    for (int i = 0; i < 2; i++) {
        wide = job;
        wide.shape.dim = widths[i];
        wide.shape.heads = wide.shape.kv_heads = heads[i];
        wide.shape.head_dim = widths[i] / heads[i];
        wide.shape.ffn = 4 * widths[i];
        wide.tp = 8;
        sec[i] = seconds(&wide);
    }
    assert_true(sec[1] / sec[0] > 1.15 && sec[1] / sec[0] < 1.3);
}

/* State divided over the ranks of a node needs more memory than state divided over all ranks, but its weights travel
 * inside the node. */
static void copies_of_the_state_cost_memory(void **state)
{
    struct tt_cluster_job job = job_of("llama3.1-8b", "a100-80", "megatron-2023", 1, 1, 4096), near;
    double params = tt_cluster_params(&job.shape);

    job.replicate = 64;
    near = job;
    near.state_copies = 8;
    assert_float_equal(memory(&near).state - memory(&job).state, params * 12 * (1.0 / 8 - 1.0 / 64), 1e6);
    assert_true(seconds(&near) != seconds(&job));
}

/* Qwen's README: LoRA of all matrices of 1.8B, with recomputation, on one A100: 8 sequences of 256 tokens take 1.0 s,
 * as long as 8 of 512, since the host launches the kernels of the adapters, too. */
static void adapters_keep_the_host_busy(void **state)
{
    struct tt_cluster_job job = job_of("qwen1.5-1.8b", "a100-80", "hf-trainer", 1, 1, 256), plain;
    double few, many;

    job.n_micro = 8;
    job.again = TT_AGAIN_FULL;
    plain = job;
    job.lora_rank = 64;
    few = seconds(&job);
    assert_true(few > 0.9 && few < 1.15 && seconds(&plain) < 0.7 * few);
    job.seq_len = 512;
    many = seconds(&job);
    assert_true(many < 1.02 * few);
    job.lora_targets = tt_cluster_targets("q_proj v_proj");
    assert_int_equal(job.lora_targets, TT_TARGET_Q | TT_TARGET_V);
    assert_int_equal(tt_cluster_targets("q k v o gate up down other_proj"), TT_TARGETS_ALL);
    assert_true(seconds(&job) < 0.7 * many);
}

/* litgpt's table: Llama 2 7B with weights in 4 bits takes 79 ms longer than in 16 bits, 13B 191 ms. */
static void weights_in_4_bits_take_time_to_unpack(void **state)
{
    struct tt_cluster_job job = job_of("llama2-7b", "a100-40", "pytorch-plain", 1, 1, 1304), packed = job;

    job.lora_rank = packed.lora_rank = 8;
    packed.base_bits = 4;
    assert_true(seconds(&packed) - seconds(&job) > 0.06 && seconds(&packed) - seconds(&job) < 0.1);
}

/* Sequences of short documents need hardly any time for attention; longer ones than the sequence change nothing. */
static void documents_do_not_attend_to_each_other(void **state)
{
    struct tt_cluster_job job = job_of("llama3.1-8b", "h100-sxm", "megatron-bridge", 1, 1, 4096);
    struct tt_cluster_time whole, parts;

    tt_cluster_step(&job, &whole);
    job.document = 250;
    tt_cluster_step(&job, &parts);
    assert_true(parts.attention < 0.25 * whole.attention && parts.gemm == whole.gemm);
    job.document = 1e6;
    assert_true(seconds(&job) == whole.total);
}

/* NeMo's table of long sequences: from 16k tokens on 16 devices to 1M tokens on 1024 devices, the rate falls only from
 * 660 to 536 TFLOP/s. */
static void long_sequences_hide_their_ring(void **state)
{
    struct tt_cluster_job job = job_of("llama2-7b", "h100-sxm", "megatron-bridge", 1, 1, 1048576);
    struct tt_cluster_time ring, gathered;

    job.replicate = 4;
    job.tp = 8;
    job.cp = 32;
    job.sequence_parallel = true;
    tt_cluster_step(&job, &ring);
    assert_true(ring.context == 0);
    assert_int_equal(tt_cluster_stack_find("torchtitan-compile-2025", &job.stack), 0);
    tt_cluster_step(&job, &gathered);
    assert_true(gathered.context > 0.1 * gathered.total);
    job.seq_len = 8192; /* a rank's blocks of 128 tokens use the device badly */
    assert_int_equal(tt_cluster_stack_find("megatron-bridge", &job.stack), 0);
    tt_cluster_step(&job, &gathered);
    assert_true(gathered.attention > 3 * ring.attention / (128 * 128));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(torchtunes_ladder_is_climbed),
        cmocka_unit_test(adapters_of_70b_fit_on_eight_a100),
        cmocka_unit_test(deepspeeds_estimators_agree),
        cmocka_unit_test(pure_bfloat16_trains_8b_on_one_device),
        cmocka_unit_test(optimizers_keep_different_moments),
        cmocka_unit_test(offload_takes_time_on_the_link_to_the_host),
        cmocka_unit_test(measured_jobs_of_megatron_fit),
        cmocka_unit_test(layers_save_what_their_source_says),
        cmocka_unit_test(weights_and_cache_of_inference_are_counted),
        cmocka_unit_test(unaligned_widths_are_slower),
        cmocka_unit_test(copies_of_the_state_cost_memory),
        cmocka_unit_test(adapters_keep_the_host_busy),
        cmocka_unit_test(weights_in_4_bits_take_time_to_unpack),
        cmocka_unit_test(documents_do_not_attend_to_each_other),
        cmocka_unit_test(long_sequences_hide_their_ring),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
