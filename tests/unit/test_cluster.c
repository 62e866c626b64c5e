/* SPDX-License-Identifier: MIT
 *
 * Predictions about clusters: sizes of models, collectives and products compared with arithmetic by hand, and tables of
 * runs. tests/cli/test_backtest.sh tests how well titan predicts measured runs.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/models/hf.h"
#include "estimate/model/internal.h"
#include "estimate/model/job.h"
#include "estimate/search/search.h"
#include "parallel/pipeline/split.h"
#include "tests/unit/cluster_help.h"
#include "tests/unit/model_help.h"

static double seconds(const struct tt_cluster_job *job)
{
    struct tt_cluster_time time;

    tt_cluster_step(job, &time);
    assert_float_equal(time.gemm + time.attention + time.memory + time.host + time.tensor + time.context + time.expert +
                           time.data + time.pipeline + time.bubble + time.optimizer + time.noise,
                       time.total, 1e-9 * time.total);
    return time.total;
}

static double bytes(const struct tt_cluster_job *job)
{
    struct tt_cluster_memory memory;

    tt_cluster_peak(job, &memory);
    return memory.total;
}

static void models_have_as_many_parameters_as_published(void **state)
{
    static const struct {
        const char *name;
        double params, tolerance;
    } models[] = {{"llama3.1-8b", 8030261248, 1e-4},
                  {"llama3.1-70b", 70553706496, 1e-4},
                  {"llama3.1-405b", 405853388800, 1e-4},
                  {"llama2-13b", 13015864320, 1e-4},
                  {"mpt-7b", 6658859008, 2e-3},
                  {"gpt-175b", 174600000000, 3e-3},
                  {"mixtral-8x7b", 46700000000, 3e-3},
                  {"qwen3-30b-a3b", 30500000000, 1e-2},
                  {"deepseek-v3-16b", 15700000000, 4e-2},
                  {"deepseek-v3-671b", 671000000000, 4e-2},
                  {"gemma2-9b", 9240000000, 5e-3},
                  {"gemma3-27b", 27000000000, 5e-3},
                  {"phi4", 14660000000, 5e-3},
                  {"mistral-nemo", 12250000000, 5e-3},
                  {"olmo2-13b", 13700000000, 5e-3},
                  {"falcon-180b", 179500000000, 8e-3},
                  {"starcoder2-15b", 15960000000, 5e-3},
                  {"pythia-12b", 11850000000, 5e-3},
                  {"bloom", 176200000000, 5e-3},
                  {"nemotron4-340b", 341000000000, 5e-3},
                  {"dbrx", 131600000000, 5e-3},
                  {"glm4.5", 352800000000, 5e-3},
                  {"qwen3-coder-480b-a35b", 480e9, 5e-3},
                  {"kimi-k2", 1027000000000, 5e-3}};
    struct tt_cluster_shape shape;

    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        assert_true(tt_cluster_shape_find(models[i].name, &shape));
        assert_float_equal(tt_cluster_params(&shape) / models[i].params, 1, models[i].tolerance);
    }
    assert_false(tt_cluster_shape_find("llama9-9b", &shape));
    assert_true(tt_cluster_shape_find("llama3.1-8b", &shape));
    assert_float_equal(tt_cluster_token_flops(&shape, 8192), 5.79e10, 0.01e10); /* without a discount for the mask */
}

static void a_ring_runs_at_the_sum_of_the_network_cards_of_its_members(void **state)
{
    struct tt_cluster_job job = job_8b();
    double size = 1e12, whole, eighth; /* so many bytes that latency does not count */

    whole = tt_cluster_gather_sec(&job, tt_cluster_group(&job, 128, 1), size);
    eighth = tt_cluster_gather_sec(&job, tt_cluster_group(&job, 16, 8), size);
    /* all 8 cards of a node: 400 GB/s x 0.91, but no more than 450 GB/s x 0.81 of the links inside; and one: 50 GB/s */
    assert_float_equal(whole, size * 127 / 128 / (0.8 * 0.91 * 400e9), 0.01 * whole);
    assert_float_equal(eighth, size * 15 / 16 / (0.8 * 0.91 * 50e9), 0.01 * eighth);
    assert_float_equal(tt_cluster_gather_sec(&job, tt_cluster_group(&job, 8, 1), size),
                       size * 7 / 8 / (0.8 * 0.81 * 450e9), 0.01 * whole);
    assert_true(tt_cluster_gather_sec(&job, tt_cluster_group(&job, 1, 1), size) == 0);
}

static void latency_ends_large_rings(void **state)
{
    static const struct {
        double n, sec;
    } ring[] = {{128, 0.60e-3}, {512, 2.4e-3}, {8192, 39e-3}};
    struct tt_cluster_job job = job_8b();

    for (size_t i = 0; i < sizeof ring / sizeof *ring; i++)
        assert_float_equal(tt_cluster_gather_sec(&job, tt_cluster_group(&job, ring[i].n, 1), ring[i].n * 70e3) /
                               (ring[i].sec + ring[i].n * 70e3 / 291e9),
                           1, 0.1);
}

static double gemm_sec(const struct tt_cluster_machine *machine, double m, double n, double k)
{
    struct tt_cluster_product p = {.groups = 1, .m = m, .n = n, .k = k, .gain = 1, .in_bytes = 2};

    return tt_cluster_linear_sec(machine, &p, false);
}

static void products_waste_units_in_their_last_wave(void **state)
{
    const struct tt_cluster_machine *machine;
    double peak, wide, narrow;

    assert_int_equal(tt_cluster_machine_find("h100-sxm", &machine), 0);
    peak = machine->number[TT_M_PEAK_BF16].value * machine->number[TT_M_GEMM_SHARE].value *
           machine->number[TT_M_CLOCK].value;
    wide = 2.0 * 8192 * 14336 * 4096 / gemm_sec(machine, 8192, 14336, 4096) / peak;
    narrow = 2.0 * 2048 * 1792 * 4096 / gemm_sec(machine, 2048, 1792, 4096) / peak;
    assert_in_range((int)(1000 * wide), 950, 1000);
    assert_float_equal(narrow, 112.0 / 132, 1e-3); /* 16 x 7 tiles on 132 units */
}

/* Products that XLA measured (backends/gpu/cost_model/matmul_interpolator_data.h), and two linear layers of a Llama 2
 * 70B on MI300X without tuning (ROCm's TransformerEngine, issue 73), in TFLOP/s. */
static void products_are_as_fast_as_others_measured(void **state)
{
    static const struct {
        const char *machine;
        double groups, m, n, k, measured;
    } all[] = {{"h100-sxm", 4, 4096, 4096, 4096, 793.1}, {"h100-sxm", 4, 4096, 4096, 2048, 764.6},
               {"h100-sxm", 4, 4096, 4096, 1024, 725.5}, {"h100-sxm", 4, 4096, 4096, 512, 619.9},
               {"h100-sxm", 1, 4096, 4096, 2048, 738.7}, {"h100-sxm", 1, 2048, 2048, 4096, 738.0},
               {"b200", 4, 4096, 4096, 4096, 1670.5},    {"b200", 4, 4096, 4096, 2048, 1539.9},
               {"b200", 4, 4096, 4096, 1024, 1350.5},    {"b200", 4, 4096, 4096, 512, 1090.6},
               {"b200", 1, 4096, 4096, 4096, 1416.9},    {"b200", 1, 2048, 4096, 4096, 1342.5},
               {"mi300x", 1, 16384, 8192, 1280, 491.7},  {"mi300x", 1, 16384, 1024, 8192, 470.0}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct tt_cluster_product p = {
            .groups = all[i].groups, .m = all[i].m, .n = all[i].n, .k = all[i].k, .gain = 1, .in_bytes = 2};
        const struct tt_cluster_machine *machine;
        double flops = 2 * p.groups * p.m * p.n * p.k, rate;

        assert_int_equal(tt_cluster_machine_find(all[i].machine, &machine), 0);
        rate = flops / tt_cluster_linear_sec(machine, &p, false) / machine->number[TT_M_CLOCK].value / 1e12;
        print_message("# %s %g x %g x %g x %g: %.0f, measured %.0f\n", all[i].machine, p.groups, p.m, p.n, p.k, rate,
                      all[i].measured);
        assert_float_equal(rate / all[i].measured, 1, 0.09);
    }
}

/* flash-attention issue 1141: a 70B model on 16 nodes with heads of 132 reached 219 TF/s, with heads of 128 370 TF/s.
 * Heads of 150, which begin at multiples of 4 bytes, are slower again; stacks that fill heads up do not care. */
static void heads_that_are_not_aligned_are_slow(void **state)
{
    struct tt_cluster_job job = job_8b(), other;
    double usual, with;

    assert_int_equal(tt_cluster_stack_find("megatron-lm", &job.stack), 0);
    assert_true(tt_cluster_shape_find("llama3.1-70b", &job.shape));
    job.shard = 1;
    job.replicate = 8;
    job.tp = job.pp = 4;
    job.sequence_parallel = true;
    job.micro_batch = 1;
    job.n_micro = 32;
    job.again = TT_AGAIN_NONE;
    usual = seconds(&job);
    other = job;
    other.shape.head_dim = 132;
    with = seconds(&other);
    print_message("# heads of 132: %.2f times slower, measured 1.69\n", with / usual);
    assert_float_equal(with / usual, 370.0 / 219, 0.15);
    assert_true(bytes(&other) > 2 * bytes(&job)); /* the scores are kept */
    other.shape.head_dim = 150;
    assert_true(seconds(&other) > 1.5 * with);
    assert_int_equal(tt_cluster_stack_find("torchtitan-compile", &other.stack), 0);
    assert_int_equal(tt_cluster_kernel(&other), 2);
}

/* A pipeline over several nodes is as fast as its slowest hop, even if most neighbours are in one node. */
static void the_slowest_hop_paces_a_pipeline(void **state)
{
    struct tt_cluster_job job = job_8b();
    double size = 1e9, inside, between;

    job.pp = 2;
    inside = tt_cluster_message_sec(&job, 4, size);
    job.pp = 16;
    between = tt_cluster_message_sec(&job, 4, size);
    assert_float_equal(inside, size / (0.8 * 0.81 * 450e9), 0.01 * inside);
    assert_float_equal(between, size / (0.8 * 0.91 * 400e9 / 4), 0.01 * between);
    assert_float_equal(tt_cluster_message_sec(&job, 8, size), size / (0.8 * 0.91 * 400e9 / 8), 0.01 * between);
}

static void steps_and_memory_follow_the_layout(void **state)
{
    struct tt_cluster_job job = job_8b(), other;

    other = job; /* more devices, more latency */
    other.shard = 8192;
    assert_true(seconds(&other) > seconds(&job));
    assert_true(bytes(&other) < bytes(&job));
    other = job;
    other.again = TT_AGAIN_FULL;
    assert_true(seconds(&other) > seconds(&job));
    assert_true(bytes(&other) < bytes(&job));
    other = job;
    other.float8 = true;
    assert_true(seconds(&other) < 0.9 * seconds(&job));
    other = job;
    other.micro_batch = 1;
    other.n_micro = 2;
    assert_true(seconds(&other) > seconds(&job)); /* parameters are gathered twice */
    assert_true(bytes(&other) < bytes(&job));
    other = job; /* 8 stages with 8 microbatches: a rank waits at least 7/8 as long as it works */
    other.shard = 16;
    other.pp = 8;
    other.micro_batch = 2;
    other.n_micro = 8;
    assert_true(seconds(&other) > 1.8 * seconds(&job));
    job = other;
    other.virtual_stages = 4;
    assert_true(seconds(&other) < 0.75 * seconds(&job));
}

/* --- pipelines --- */

/* A 70B model on 8 x p devices, in pipelines of p. */
static struct tt_cluster_job job_pipeline(enum tt_cluster_order order, double p, double stages, double n)
{
    struct tt_cluster_job job = job_8b();

    assert_true(tt_cluster_shape_find("llama3.1-70B", &job.shape));
    job.shard = 8;
    job.pp = p;
    job.virtual_stages = stages;
    job.order = order;
    job.micro_batch = 1;
    job.n_micro = n;
    return job;
}

static const struct {
    enum tt_cluster_order order;
    double stages;
} schedules[] = {{TT_ORDER_1F1B, 1},
                 {TT_ORDER_1F1B, 2},
                 {TT_ORDER_1F1B, 4},
                 {TT_ORDER_ALL_FORWARD, 1},
                 {TT_ORDER_ALL_FORWARD, 2},
                 {TT_ORDER_INTERLEAVED_ZERO_BUBBLE, 2},
                 {TT_ORDER_INTERLEAVED_ZERO_BUBBLE, 4},
                 {TT_ORDER_ZBV_ZERO_BUBBLE, 2},
                 {TT_ORDER_DUAL_PIPE_V, 2}};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

static const struct tt_cluster_passes passes[] = {{1, 1, 1}, {1, 1.2, 0.8}, {1, 2, 1}, {1.1, 0.9, 0.7}};

static struct tt_pipeline_run simulated(const struct tt_cluster_job *job, const struct tt_cluster_passes *pass,
                                        struct tt_pipeline **ret_pipeline)
{
    int n = (int)(job->pp * job->virtual_stages);
    struct tt_stage_times stage[64];
    struct tt_pipeline_times times = {.stages = stage};
    struct tt_pipeline_run run;

    for (int i = 0; i < n; i++)
        stage[i] = (struct tt_stage_times){pass->forward / job->virtual_stages, pass->input / job->virtual_stages,
                                           pass->weight / job->virtual_stages,
                                           (pass->input + pass->weight) / job->virtual_stages};
    assert_int_equal(tt_pipeline_new(tt_cluster_schedule(job), NULL, (int)job->pp, n, (int)job->n_micro, ret_pipeline),
                     0);
    assert_int_equal(tt_pipeline_simulate(*ret_pipeline, &times, &run), 0);
    return run;
}

static void bubbles_are_those_of_the_simulator(void **state)
{
    for (int s = 0; s < SCHEDULES; s++)
        for (int p = 2; p <= 8; p += 2)
            for (int rounds = 2; rounds <= 10; rounds += 4)
                for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
                    struct tt_cluster_job job =
                        job_pipeline(schedules[s].order, p, schedules[s].stages, (double)p * rounds);
                    struct tt_pipeline *pipeline;
                    struct tt_pipeline_run run = simulated(&job, &passes[i], &pipeline);
                    double found = tt_cluster_bubble(&job, &passes[i]);

                    if (fabs(found - run.bubble[0]) > 1e-9)
                        fail_msg("%s, %d ranks, %d microbatches, passes %zu: %g, not %g",
                                 tt_cluster_schedule_name(&job), p, p * rounds, i, found, run.bubble[0]);
                    tt_pipeline_run_release(&run);
                    tt_pipeline_free(pipeline);
                }
}

/* The largest value of saved + late x pending in the turns of a rank, in chunks; pending counts chunks whose weight
 * part is still to come. */
static int peak_of(const struct tt_pipeline *p, int rank, int late)
{
    int saved = 0, pending = 0, most = 0;

    for (int t = 0; t < p->orders[rank].n; t++) {
        char letter = tt_pipeline_letter(p, &p->orders[rank].turns[t]);

        saved += (letter == 'F') - (letter == 'B' || letter == 'I');
        pending += (letter == 'I') - (letter == 'W');
        most = saved + late * pending > most ? saved + late * pending : most;
    }
    return most;
}

static void ranks_hold_what_the_orders_say(void **state)
{
    for (int s = 0; s < SCHEDULES; s++)
        for (int p = 2; p <= 8; p++) {
            struct tt_cluster_job job = job_pipeline(schedules[s].order, p, schedules[s].stages, 4.0 * p);
            struct tt_pipeline *pipeline;
            struct tt_pipeline_run run = simulated(&job, &passes[0], &pipeline);

            for (int rank = 0; rank < p; rank++) {
                struct tt_cluster_held h = tt_cluster_held(&job, rank);
                double v = job.virtual_stages;

                if (fabs(h.most * v - peak_of(pipeline, rank, 1)) > 1e-9)
                    fail_msg("%s, rank %d of %d: %g, not %d", tt_cluster_schedule_name(&job), rank, p, h.most * v,
                             peak_of(pipeline, rank, 1));
                for (int late = 2; late <= 8; late += 3) {
                    double least = peak_of(pipeline, rank, late),
                           found = fmax(h.most + (late - 1) * h.now, h.beside + late * h.pending) * v;

                    if (found < least ||
                        found > least + (job.order == TT_ORDER_DUAL_PIPE_V ? late : 0)) /* at most one chunk more */
                        fail_msg("%s, rank %d of %d, late %d: %g, not %g", tt_cluster_schedule_name(&job), rank, p,
                                 late, found, least);
                }
            }
            tt_pipeline_run_release(&run);
            tt_pipeline_free(pipeline);
        }
}

/* The picture shows the step that was predicted: with a cheap output its length is the work plus the waiting. */
static void lanes_are_those_of_the_step(void **state)
{
    for (int s = 0; s < SCHEDULES; s++) {
        struct tt_cluster_job job = job_pipeline(schedules[s].order, 4, schedules[s].stages, 16);
        struct tt_cluster_lanes lanes;
        struct tt_cluster_time time;

        job.shape.vocab = 64;
        tt_cluster_step(&job, &time);
        assert_int_equal(tt_cluster_lanes_make(&job, 100000, &lanes), 0);
        assert_int_equal(lanes.microbatches, 16);
        assert_float_equal(lanes.run.makespan,
                           time.gemm + time.attention + time.memory + time.tensor + time.host + time.bubble,
                           1e-3 * time.total);
        tt_cluster_lanes_release(&lanes);
        assert_int_equal(tt_cluster_lanes_make(&job, 1, &lanes), 0);
        assert_int_equal(lanes.microbatches, 8); /* two rounds at least */
        tt_cluster_lanes_release(&lanes);
    }
}

/* How parallel/pipeline assigns layers to ranks, and how the keys for the ends of the model change that. */
static void stages_have_the_layers_of_the_split(void **state)
{
    static const int layers[] = {32, 61, 80, 126};

    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int p = 2; p <= 8; p *= 2)
            for (int v = 1; v <= 2; v++)
                for (int less = 0; less <= 3; less++) {
                    struct tt_pipeline_rule rule = {
                        .n_layers = layers[i], .ranks = p, .first_less = less, .last_less = 3 - less, .multi = v > 1};
                    struct tt_cluster_job job =
                        job_pipeline(v > 1 ? TT_ORDER_ZBV_ZERO_BUBBLE : TT_ORDER_1F1B, p, v, 16);
                    struct tt_stage_split split;

                    job.shape.layers = layers[i];
                    job.split_known = true;
                    job.first_less = less;
                    job.last_less = 3 - less;
                    if (fmax(less, 3 - less) > floor((layers[i] + 3.0) / (p * v)))
                        continue;
                    assert_int_equal(tt_pipeline_split(&rule, &split), 0);
                    for (int rank = 0; rank < p; rank++) {
                        int found = tt_stage_split_layers(&split, rank).n_layers;

                        if (v > 1)
                            found += tt_stage_split_layers(&split, 2 * p - 1 - rank).n_layers;
                        assert_float_equal(tt_cluster_rank_layers(&job, rank), found, 1e-9);
                    }
                    tt_stage_split_release(&split);
                }
}

static void layers_taken_from_the_ends_balance_the_ranks(void **state)
{
    struct tt_cluster_job job = job_pipeline(TT_ORDER_1F1B, 4, 1, 16), less = job;
    struct tt_cluster_memory even, last;

    job.split_known = less.split_known = true;
    less.last_less = 4; /* 9, 9, 9 and 5 layers */
    assert_true(seconds(&less) < 1.02 * seconds(&job) && seconds(&less) != seconds(&job));
    job.shape.vocab *= 4; /* now the output is the longest stage by far */
    less.shape.vocab *= 4;
    assert_true(seconds(&less) < 0.95 * seconds(&job));
    tt_cluster_stage_peak(&job, 3, &even);
    tt_cluster_stage_peak(&less, 3, &last);
    assert_true(last.state < even.state && last.activations < even.activations);
}

static void a_loss_that_is_not_divided_needs_more(void **state)
{
    struct tt_cluster_job job = job_8b(), whole;
    struct tt_cluster_time divided, gathered;

    job.tp = 8;
    job.shard = 16;
    job.sequence_parallel = true;
    whole = job;
    whole.whole_logits = true;
    assert_true(seconds(&whole) > seconds(&job));
    tt_cluster_step(&job, &divided);
    tt_cluster_step(&whole, &gathered);
    assert_true(gathered.memory - divided.memory >
                16.0 * 2 * 8192 * 128256 * 7 / 8 / 3.35e12); /* bytes over the peak */
    assert_true(gathered.tensor - divided.tensor > 2.0 * 2 * 8192 * 128256 * 7 / 8 / 450e9);
    assert_true(bytes(&whole) > bytes(&job) + 12.0 * 2 * 8192 * 128256 * 7 / 8); /* 12 bytes of each logit */
}

/* Without recomputation a layer also saves 4 bytes of gathered inputs per token and dimension. */
static void gathered_inputs_are_saved_where_the_software_does(void **state)
{
    struct tt_cluster_stack stack;
    struct tt_cluster_job job = job_8b();
    struct tt_cluster_memory kept, again;

    job.tp = 8;
    job.shard = 16;
    job.sequence_parallel = true;
    job.again = TT_AGAIN_NONE;
    stack = *job.stack;
    job.stack = &stack;
    tt_cluster_peak(&job, &kept);
    stack.number[TT_S_KEEPS_GATHERED].value = 0;
    tt_cluster_peak(&job, &again);
    assert_float_equal(kept.activations - again.activations, 32 * 4.0 * 2 * 8192 * 4096 * 7 / 8, 1);
}

/* With few tokens the host's launches bound the time of a layer with experts; with many, the device does. */
static void the_host_bounds_layers_with_experts(void **state)
{
    struct tt_cluster_job job = job_8b();
    struct tt_cluster_time one, two, many;

    assert_true(tt_cluster_shape_find("qwen3-30b-a3b", &job.shape));
    assert_int_equal(tt_cluster_stack_find("megatron-bridge", &job.stack), 0);
    job.shard = 1;
    job.replicate = 8;
    job.ep = 8;
    job.again = TT_AGAIN_NONE;
    job.micro_batch = 1;
    job.seq_len = 512;
    tt_cluster_step(&job, &one);
    assert_true(one.host > 0.7 * job.shape.layers * job.stack->number[TT_S_EXPERT_HOST].value);
    job.micro_batch = 2;
    tt_cluster_step(&job, &two);
    assert_true(two.total < 1.1 * one.total);
    job.micro_batch = 64;
    tt_cluster_step(&job, &many);
    assert_float_equal(many.host, 0, 1e-9);
    (void)seconds(&job);
}

static void an_expert_layer_is_priced_by_what_a_token_meets(void **state)
{
    struct tt_cluster_job job = job_8b();
    struct tt_cluster_time time;

    assert_true(tt_cluster_shape_find("qwen3-30b-a3b", &job.shape));
    job.ep = 8;
    tt_cluster_step(&job, &time);
    assert_true(time.expert > 0);
    assert_true(time.gemm < 6 * 30e9 * 16384 / (0.5 * 989e12)); /* a token uses 3e9 of the 30e9 parameters */
}

/* Windows save work in attention only; heads of latent attention are wider than the model, and cost memory traffic. */
static void windows_and_latents_have_their_price(void **state)
{
    struct tt_cluster_latent latent = {512, 1536, 64, 128, 128};
    struct tt_cluster_job job = job_8b(), other = job;
    struct tt_cluster_time plain, changed;

    tt_cluster_step(&job, &plain);
    other.shape.window = 128;
    other.shape.window_layers = 16;
    tt_cluster_step(&other, &changed);
    assert_true(changed.attention > 0.5 * plain.attention && changed.attention < 0.6 * plain.attention);
    assert_float_equal(changed.gemm, plain.gemm, 1e-9);
    assert_true(tt_cluster_shape_find("deepseek-v3-671b", &job.shape));
    tt_cluster_step(&job, &plain);
    other = job;
    other.shape.score_dim = 0;
    tt_cluster_step(&other, &changed);
    assert_true(plain.memory > 1.2 * changed.memory);
    other = job; /* the sizes in the paper give the number of parameters that is in the model's name */
    tt_cluster_shape_set_latent(&other.shape, &latent);
    assert_float_equal(other.shape.head_dim / job.shape.head_dim, 1, 0.01);
    assert_float_equal(tt_cluster_params(&other.shape) / 671.0e9, 1, 0.002);
}

static void names_that_are_not_built_in_are_refused(void **state)
{
    const struct tt_cluster_machine *machine;
    const struct tt_cluster_stack *stack;

    assert_int_equal(tt_cluster_machine_find("h100", &machine), TT_EUSAGE);
    assert_non_null(strstr(tt_error_message(), "h100-sxm"));
    assert_int_equal(tt_cluster_stack_find("", &stack), TT_EUSAGE);
    assert_non_null(strstr(tt_error_message(), "torchtitan-compile"));
}

static void every_number_has_an_origin(void **state)
{
    for (int i = 0; tt_cluster_machine_at(i); i++)
        for (int k = 0; k < TT_MACHINE_KEYS; k++)
            assert_non_null(tt_cluster_machine_at(i)->number[k].origin);
    for (int i = 0; tt_cluster_stack_at(i); i++)
        for (int k = 0; k < TT_STACK_KEYS; k++)
            assert_non_null(tt_cluster_stack_at(i)->number[k].origin);
}

static const char table[] =
    "id,source,model,gpus,machine,stack,node_gbps,dp_shard,seq_len,local_batch,global_batch,ac,options,tps_per_gpu,"
    "notes\r\n"
    "a,torchtitan,llama3-8B,128,h100-sxm,torchtitan-compile-2025,800,128,8192,2,256,op,keep_gathered async_tp,6500,"
    "\"a \"\"quoted\"\" note, which is not read\"\n"
    "\n"
    "b,x,unknown,8,a100-80,,,8,8192,2,16,full,,100,\n"
    "c,x,llama3-8b,9,A100-80,torchtitan-eager?,,8,8192,2,16,full?,,100,\n"
    "d,x,llama3-8b,8,a100-80,jax,,8,8192,2,16,,,100,\n"
    "e,x,gpt-oss-120b,64,h100-sxm,,,1,4096,,1280,modules moe shared_experts,balanced expert_overlap,100,\n"
    "f,x,gpt-oss-120b,64,h100-sxm,megatron-bridge,,1,4096,,1280,layers 7,,100,\n";

static void rows_of_tables_become_jobs(void **state)
{
    struct tt_csv csv;
    struct tt_cluster_run *runs;

    assert_int_equal(tt_csv_parse(table, sizeof table - 1, "t.csv", &csv), 0);
    assert_int_equal(csv.n_rows, 6);
    assert_string_equal(csv.field[csv.n_columns - 1], "a \"quoted\" note, which is not read");
    assert_int_equal(tt_cluster_runs(&csv, "t.csv", &runs), 0);
    assert_null(runs[0].excluded);
    assert_string_equal(runs[0].job.machine->name, "h100-sxm");
    assert_string_equal(runs[0].job.stack->name, "torchtitan-compile-2025");
    assert_float_equal(runs[0].sec, 2 * 8192 / 6500.0, 1e-9);
    assert_float_equal(runs[0].job.node_net, 100e9, 1);
    assert_int_equal(runs[0].job.again, TT_AGAIN_OP);
    assert_string_equal(runs[1].excluded, "the model's sizes are unknown");
    assert_string_equal(runs[2].excluded, "the degrees of parallelism do not multiply to the devices");
    assert_string_equal(runs[2].job.machine->name, "a100-80");
    assert_string_equal(runs[2].job.stack->name, "torchtitan-eager");
    assert_string_equal(runs[3].excluded, "titan has no stack of that name");
    assert_true(runs[0].ac_stated && !runs[2].ac_stated && !runs[0].stack_assumed && runs[2].stack_assumed);
    assert_true(runs[0].job.keep_gathered && runs[0].job.async_tp && !runs[0].job.balanced);
    assert_int_equal(runs[4].job.again_modules, TT_MODULE_EXPERTS | TT_MODULE_SHARED_EXPERTS);
    assert_true(runs[4].job.balanced && runs[4].job.expert_overlap && runs[4].stack_assumed);
    assert_int_equal(runs[5].job.again, TT_AGAIN_LAYERS);
    assert_float_equal(runs[5].job.again_layers, 7, 0);
    tt_free(runs);
    tt_csv_release(&csv);
}

static void tables_that_cannot_be_read_are_refused(void **state)
{
    struct tt_csv csv;
    struct tt_cluster_run *runs;

    assert_int_equal(tt_csv_parse("a,b\n1\n", 6, "t.csv", &csv), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "t.csv: the row that ends before line 3 has 1 fields"));
    assert_int_equal(tt_csv_parse("\n", 1, "t.csv", &csv), TT_EDATA);
    assert_int_equal(tt_csv_parse("a,b\n1,2\n", 8, "t.csv", &csv), 0);
    assert_int_equal(tt_cluster_runs(&csv, "t.csv", &runs), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "no columns id"));
    tt_csv_release(&csv);
    assert_int_equal(tt_csv_parse("id,model,machine\nx,llama3-8b,Z80\n", 33, "t.csv", &csv), 0);
    assert_int_equal(tt_cluster_runs(&csv, "t.csv", &runs), 0); /* one row does not spoil a table */
    assert_string_equal(runs[0].excluded, "titan has no table of the device");
    tt_free(runs);
    tt_csv_release(&csv);
}

static void cells_out_of_range_are_refused(void **state)
{
    static const struct {
        const char *column, *cell;
    } bad[] = {{"pp", "1e10"},
               {"pp", "nan"},
               {"tp", "inf"},
               {"tp", "-1"},
               {"tp", "0"},
               {"cp", "1.5"},
               {"layers", "1e6"},
               {"params", "1e99"},
               {"seq_len", "8k"},
               {"gpus", "many"},
               {"step_s", "inf"},
               {"tps_per_gpu", "nan"},
               {"vocab", "0"},
               {"sp", "-1"},
               {"ep", "0x"},
               {"mfu_percent", "101"},
               {"peak_mem_gib", "1e9"},
               {"node_gbps", "0"},
               {"virtual_stages", "n/a"}};
    struct tt_cluster_run *runs;
    struct tt_csv csv;
    char text[200], want[80];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        (void)snprintf(text, sizeof text, "id,machine,model,%s\na,h100-sxm,llama3-8b,\nb,h100-sxm,llama3-8b,%s\n",
                       bad[i].column, bad[i].cell);
        (void)snprintf(want, sizeof want, "t.csv: row 2, column %s: '%s' is not ", bad[i].column, bad[i].cell);
        assert_int_equal(tt_csv_parse(text, strlen(text), "t.csv", &csv), 0);
        assert_int_equal(tt_cluster_runs(&csv, "t.csv", &runs), TT_EDATA);
        assert_non_null(strstr(tt_error_message(), want));
        tt_csv_release(&csv);
    }
    assert_int_equal(tt_csv_parse("id,machine,tp,model,tp\n", 23, "t.csv", &csv), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "t.csv: columns 3 and 5 are both named 'tp'"));
}

/* Nothing fits, so there is no list to sort. */
static void a_search_may_find_nothing(void **state)
{
    struct tt_cluster_job job = job_8b();
    struct tt_cluster_found found;

    tt_cluster_search(&job, 8, 1, 10, NULL, &found);
    assert_int_equal(found.n, 0);
    assert_true(found.n_tried > 0);
    tt_free(found.layout);
}

/* A search may be limited, also to a degree that is no power of two. */
static void a_search_keeps_what_is_fixed(void **state)
{
    struct tt_cluster_job job = job_8b();
    struct tt_cluster_fixed fixed = {.tp = 4, .micro_batch = 3};
    struct tt_cluster_found found;

    job.n_micro = 6;
    tt_cluster_search(&job, 128, 0, 10, &fixed, &found);
    assert_true(found.n > 0);
    for (int i = 0; i < found.n; i++)
        assert_true(found.layout[i].job.tp == 4 && found.layout[i].job.micro_batch == 3);
    tt_free(found.layout);
    fixed = (struct tt_cluster_fixed){.pp = 3, .again = true};
    tt_cluster_search(&job, 96, 0, 10, &fixed, &found);
    assert_true(found.n > 0);
    for (int i = 0; i < found.n; i++)
        assert_true(found.layout[i].job.pp == 3 && found.layout[i].job.again == job.again);
    tt_free(found.layout);
}

/* Compares what `estimate` reads in a config.json with the model that training makes of it. */
static void check_hf(const struct tt_model_row *row, const json_t *config)
{
    char *text = tt_json_text(config);
    struct tt_cluster_shape shape;
    struct tt_model *model = NULL;
    double windowed = 0;

    if (model_of_json(row->name, text, &model) < 0 || tt_cluster_shape_of_hf(config, "config.json", &shape) < 0)
        fail_msg("%s: %s", text, tt_error_message());
    for (int64_t l = 0; l < model->dims.n_layers; l++)
        windowed += tt_model_is_windowed(&model->dims, l);
    if (fabs(tt_cluster_params(&shape) / (double)tt_model_n_elements(model) - 1) > 5e-3)
        fail_msg("%s: %.0f parameters, wanted %lld", text, tt_cluster_params(&shape),
                 (long long)tt_model_n_elements(model));
    if (shape.window_layers != windowed || (windowed > 0 && shape.window != (double)model->dims.sliding_window))
        fail_msg("%s: %.0f layers have a window of %.0f, wanted %.0f", text, shape.window_layers, shape.window,
                 windowed);
    if (shape.dense_layers != (double)tt_model_dense_layers(&model->dims))
        fail_msg("%s: %.0f layers without experts", text, shape.dense_layers);
    tt_model_free(model);
    tt_free(text);
}

/* Files with a few sizes, which leave the others to the class, and those of published models. */
static void classes_of_families_are_those_of_the_registry(void **state)
{
    static const char *const sizes[] = {
        "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "n_embd", "n_layer", "n_head"};
    char *path = tt_format("%s/tests/unit/data/hf_classes.json", TT_SOURCE_DIR);
    const char *type, *flavor;
    json_t *classes = NULL, *of, *published;

    assert_int_equal(tt_json_load(path, &classes), 0);
    json_object_foreach(classes, type, of)
    {
        json_t *bare = json_object(), *keys = json_object_get(of, "keys");
        const struct tt_model_row *row = NULL;

        assert_non_null(tt_hf_find_class(type, &row));
        (void)json_object_set_new(bare, "model_type", json_string(type));
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            (void)json_object_set(bare, sizes[i], json_object_get(keys, sizes[i]));
        add_needed(type, bare, NULL);
        check_hf(row, bare);
        json_object_foreach(json_object_get(of, "published"), flavor, published)
        {
            json_t *config = json_object_get(published, "config");

            (void)json_object_set_new(config, "model_type", json_string(type));
            check_hf(row, config);
        }
        json_decref(bare);
    }
    json_decref(classes);
    tt_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_have_as_many_parameters_as_published),
        cmocka_unit_test(classes_of_families_are_those_of_the_registry),
        cmocka_unit_test(a_ring_runs_at_the_sum_of_the_network_cards_of_its_members),
        cmocka_unit_test(latency_ends_large_rings),
        cmocka_unit_test(products_waste_units_in_their_last_wave),
        cmocka_unit_test(products_are_as_fast_as_others_measured),
        cmocka_unit_test(heads_that_are_not_aligned_are_slow),
        cmocka_unit_test(the_slowest_hop_paces_a_pipeline),
        cmocka_unit_test(steps_and_memory_follow_the_layout),
        cmocka_unit_test(bubbles_are_those_of_the_simulator),
        cmocka_unit_test(ranks_hold_what_the_orders_say),
        cmocka_unit_test(lanes_are_those_of_the_step),
        cmocka_unit_test(stages_have_the_layers_of_the_split),
        cmocka_unit_test(layers_taken_from_the_ends_balance_the_ranks),
        cmocka_unit_test(a_loss_that_is_not_divided_needs_more),
        cmocka_unit_test(gathered_inputs_are_saved_where_the_software_does),
        cmocka_unit_test(the_host_bounds_layers_with_experts),
        cmocka_unit_test(an_expert_layer_is_priced_by_what_a_token_meets),
        cmocka_unit_test(windows_and_latents_have_their_price),
        cmocka_unit_test(names_that_are_not_built_in_are_refused),
        cmocka_unit_test(every_number_has_an_origin),
        cmocka_unit_test(rows_of_tables_become_jobs),
        cmocka_unit_test(tables_that_cannot_be_read_are_refused),
        cmocka_unit_test(cells_out_of_range_are_refused),
        cmocka_unit_test(a_search_may_find_nothing),
        cmocka_unit_test(a_search_keeps_what_is_fixed),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("cluster", tests, NULL, NULL);
}
