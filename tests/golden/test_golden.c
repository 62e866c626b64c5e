/* SPDX-License-Identifier: MIT
 *
 * Whole training runs, compared with Hugging Face's models in float64. The loss, gradient norm and learning rate of
 * every step are compared, then the final weights.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "tests/golden/reference.h"
#include "tests/help/sweep.h"

#define LOSS_TOLERANCE 2e-5
#define NORM_TOLERANCE 2e-4
/*
 * Tolerances for the final weights, as a share of how far training moved them, beyond what rounding_of_first_step
 * allows. Apart from the signs of first steps, rounding gives 1e-4 and 1e-3, whatever kernels OpenBLAS uses. A wrong
 * rule (weight decay, bias correction, the last learning rate) gives 1e-2 or more.
 */
#define WEIGHT_RMS_TOLERANCE  1e-3
#define WEIGHT_MOST_TOLERANCE 0.02

/* A run without a z-loss must report none. */
static double z_loss_off(const struct reference *r, const struct train_result *found, int s)
{
    if (r->job.z_loss > 0.0)
        return reference_off(found->z_loss[s], reference_number(r, "z_loss", s));
    return fabs(found->z_loss[s]);
}

/* The largest difference of the auxiliary losses of routers; a run without them must report none. */
static double router_losses_off(const struct reference *r, const struct train_result *found, int s)
{
    const struct tt_router_losses *of = &r->job.router_losses;
    const struct {
        int row;
        float coefficient;
        const char *name;
    } losses[] = {{TT_ROUTER_SEQUENCE, of->sequence, "sequence"},
                  {TT_ROUTER_GLOBAL_BATCH, of->global_batch, "global_batch"},
                  {TT_ROUTER_Z, of->z, "z"},
                  {TT_ROUTER_MICROBATCH, 0.0F, NULL}};
    double most = 0.0;

    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        double value = found->router_losses[s][losses[i].row];

        most = fmax(most, losses[i].coefficient > 0.0F ? reference_off(value, reference_number(r, losses[i].name, s))
                                                       : fabs(value));
    }
    return most;
}

static void check_curve(const struct reference *r, const struct train_job *job, const struct train_result *found)
{
    for (int s = 0; s < job->steps; s++) {
        double loss = reference_off(found->loss[s], reference_number(r, "loss", s));
        double norm = reference_off(found->norm[s], reference_number(r, "grad_norm", s));
        double lr = fabs(found->lr[s] - reference_number(r, "lr", s));
        double auxiliary = fmax(z_loss_off(r, found, s), router_losses_off(r, found, s));

        if (!(loss <= LOSS_TOLERANCE) || !(auxiliary <= LOSS_TOLERANCE) || !(norm <= NORM_TOLERANCE) || !(lr <= 1e-12))
            fail_msg(
                "%d ranks, local batch %d, step %d: loss %.9g is off by %.2g, auxiliary ones by %.2g, norm %.9g by "
                "%.2g, lr %.9g by %.2g",
                job->ranks, (int)job->local_batch, s + 1, found->loss[s], loss, auxiliary, found->norm[s], norm,
                found->lr[s], lr);
    }
}

/*
 * Where RoPE does not rotate, a bias of k adds the same to all scores of a query, and softmax cancels it. So the
 * gradient of element i is zero, and AdamW's steps come from rounding errors alone. The learning rates bound them.
 */
static bool has_no_gradient(const struct tt_model *model, const struct tt_param *param, int64_t i)
{
    const struct tt_model_dims *d = &model->dims;

    return strstr(param->name, "attention.wk.bias") != NULL &&
           (model->row->learned_positions || tt_layers_have(&d->unrotated, param->block) ||
            (d->rotary_dim > 0 && i % d->head_dim >= d->rotary_dim));
}

static double sum_of_rates(const struct train_result *found, int steps)
{
    double sum = 0.0;

    for (int s = 0; s < steps; s++)
        sum += found->lr[s];
    return sum;
}

/* AdamW's first step for a gradient, as a share of the learning rate; its moments are the gradient and its square. */
static double first_step(double gradient, double eps)
{
    return gradient / (fabs(gradient) + eps);
}

/*
 * The most by which rounding can change the first step of a row's weights, as a share of the learning rate.
 *
 * That step is the sign of the gradient, unless eps is as large as it. A gradient near zero is what is left of a sum
 * over the n tokens of a step, and if rounding errors are larger, they determine the sign. Kernels add in any order,
 * but each of n additions rounds by at most 2^-24 of the sum of the terms' sizes, and that is at most sqrt(n) times the
 * root of the sum of their squares. The latter is the usual size of a sum of such terms with random signs, so it equals
 * the usual size of the row's gradients. The bound leaves room for the errors of the terms themselves, most of which
 * cancel. `gradients` are those of one run: the reference's are off by at most this error, and those of another run by
 * twice as much.
 *
 * Later steps divide by the root of a mean of squares, to which the first gradient belongs. They need no allowance,
 * unless the gradient of a weight is near zero in two steps.
 */
static void rounding_of_first_step(const struct train_job *job, int64_t width, const float *gradients, double *ret_most)
{
    double n = (double)(job->global_batch * job->seq_len), squares = 0.0, error;

    for (int64_t i = 0; i < width; i++)
        squares += (double)gradients[i] * (double)gradients[i];
    error = n * 0x1p-24 * sqrt(n * squares / (double)width);
    for (int64_t i = 0; i < width; i++)
        ret_most[i] =
            first_step(gradients[i] + 2.0 * error, job->eps) - first_step(gradients[i] - 2.0 * error, job->eps);
}

/* The same for all weights, in the model's order. Muon's steps are not signs. */
static double *roundings_of_first_step(const struct reference *r, const struct train_job *job)
{
    struct train_job one = *job;
    struct train_result found;
    double *most;
    int64_t at = 0;

    one.steps = 1;
    assert_int_equal(reference_check(train_job_run(&one, &found)), 0);
    most = tt_calloc((size_t)found.n_elements, sizeof *most);
    for (int64_t i = 0; i < found.n_elements; i++)
        found.exp_avg[i] /= (float)(1.0 - job->beta1);
    for (int p = 0; p < r->model->n_params; p++) {
        const struct tt_param *param = &r->model->params[p];
        struct tt_box whole = tt_box_whole(param->ndim, param->shape);
        int64_t end = at + tt_box_volume(&whole), width = param->shape[param->ndim - 1];

        for (; at < end; at += width)
            if (!param->frozen && param->optim == TT_OPTIM_ADAMW)
                rounding_of_first_step(job, width, found.exp_avg + at, most + at);
    }
    train_result_release(&found);
    return most;
}

/* Weights, or averages of them, after the last step. */
static void check_values(const struct reference *r, const struct train_job *job, const struct train_result *found,
                         const double *roundings, const float *values, const float *wanted)
{
    int64_t at = 0;

    for (int p = 0; p < r->model->n_params; p++) {
        const struct tt_param *param = &r->model->params[p];
        struct tt_box whole = tt_box_whole(param->ndim, param->shape);
        int64_t n = tt_box_volume(&whole);
        double wrong = 0.0, moved = 0.0, most = 0.0, furthest = 0.0, noise = 0.0;

        for (int64_t i = at; i < at + n; i++) {
            double error = fabs((double)values[i] - (double)wanted[i]) - roundings[i] * found->lr[0];
            double way = (double)wanted[i] - (double)r->before[i];

            if (error < 0.0) /* not fmax, which would take 0 for NaN */
                error = 0.0;
            if (has_no_gradient(r->model, param, i - at)) {
                if (!(error <= noise))
                    noise = error;
                continue;
            }
            wrong += error * error;
            moved += way * way;
            most = fmax(most, error);
            furthest = fmax(furthest, fabs(way));
        }
        at += n;
        assert_true(noise <= sum_of_rates(found, job->steps));
        if (param->frozen || moved == 0.0) {
            assert_true(most == 0.0);
            continue;
        }
        if (!(sqrt(wrong / moved) <= WEIGHT_RMS_TOLERANCE) || !(most <= WEIGHT_MOST_TOLERANCE * furthest))
            fail_msg("%d ranks, local batch %d: %s is off by %.2g of the way that it moved, at worst by %.2g of the "
                     "longest way",
                     job->ranks, (int)job->local_batch, param->name, sqrt(wrong / moved), most / furthest);
    }
}

/* What may differ between runs without changing the curve: how the batch is split, and what the ranks keep. */
struct split {
    int ranks, replicate;
    int64_t local_batch;
    enum tt_reshard reshard;
    int prefetch, threads;
};

/* How layers and sequences are divided; see struct train_job. */
struct pipe {
    int ranks, stages_per_rank;
    enum tt_pipeline_schedule schedule;
    int tensor, context;
    bool gathers;
    int experts; /* ranks that share experts */
};

static const struct pipe no_pipe = {1, 1, TT_PP_1F1B, 1, 1, false, 1};

#define DEFAULT TT_RESHARD_AFTER_FORWARD_DEFAULT
#define ALWAYS  TT_RESHARD_AFTER_FORWARD_ALWAYS
#define NEVER   TT_RESHARD_AFTER_FORWARD_NEVER

enum { MOST_SPLITS = 16 };

/* The whole batch at once; single sequences, in two threads; and as many ranks as divide the batch. */
static int make_splits(int64_t batch, struct split *splits)
{
    static const enum tt_reshard reshard[] = {DEFAULT, ALWAYS, NEVER};
    int n = 0;

    splits[n++] = (struct split){1, 1, batch, DEFAULT, 1, 1};
    splits[n++] = (struct split){1, 1, 1, DEFAULT, 1, 2};
    for (int ranks = 2; ranks <= 12; ranks++) {
        int64_t local = batch / ranks;

        if (batch % ranks != 0)
            continue;
        local = n % 2 ? 1 : local % 2 == 0 ? 2 : local;
        splits[n] = (struct split){ranks, n % 3 || ranks % 2 ? 1 : 2, local, reshard[n % 3], n % 3, 1};
        n++;
    }
    return n;
}

/* splits NULL: those that the batch allows, or every fifth of them, beginning at one that depends on the length of the
 * name. */
static void expect_the_curve_of(const char *name, void (*use)(struct reference *), const struct split *splits, int n,
                                const struct pipe *pipe)
{
    bool values = !use || use == reference_use_lora || use == reference_use_muon || use == reference_use_averages;
    double *roundings = NULL;
    struct split all[MOST_SPLITS];
    struct reference r;
    int stride = 1, offset = 0;

    reference_open(&r, name);
    if (use)
        use(&r);
    if (!splits) {
        n = make_splits(r.job.global_batch, all);
        splits = all;
        stride = sweep_stride() == 1 ? 1 : 5;
        offset = (int)strlen(name) % stride % n;
    }
    for (int i = 0; i < n; i++) {
        struct train_job job = r.job;
        struct train_result found;

        if (i % stride != offset)
            continue;
        job.ranks = splits[i].ranks;
        job.replicate = splits[i].replicate;
        job.local_batch = splits[i].local_batch;
        job.reshard = splits[i].reshard;
        job.prefetch = splits[i].prefetch;
        job.threads = splits[i].threads;
        job.pipe = pipe->ranks;
        job.stages_per_rank = pipe->stages_per_rank;
        job.schedule_of_pipe = pipe->schedule;
        job.tensor = pipe->tensor;
        job.context = pipe->context;
        job.gathers = pipe->gathers;
        job.experts = pipe->experts;
        job.contiguous = job.seq_len % (2 * pipe->context) != 0;
        job.load = reference_load;
        job.load_arg = &r;
        if (values && !roundings)
            roundings = roundings_of_first_step(&r, &job);
        assert_int_equal(reference_check(train_job_run(&job, &found)), 0);
        check_curve(&r, &job, &found);
        if (values)
            check_values(&r, &job, &found, roundings, found.param, r.after);
        if (r.averages)
            check_values(&r, &job, &found, roundings, found.ema, r.averages);
        train_result_release(&found);
    }
    tt_free(roundings);
    reference_close(&r);
}

/* The curve of a run, whose name is the test's. */
static void a_run(void **state)
{
    expect_the_curve_of(*state, NULL, NULL, 0, &no_pipe);
}

/* What may be recorded for a run besides its curve: a part of expect.json, or a folder. */
static const struct part {
    const char *name;
    void (*use)(struct reference *);
} parts[] = {
    {"documents", reference_use_documents}, /* tokens attend within their documents only */
    {"chat", reference_use_chat},           /* samples of conversations, of which some tokens are learned */
    {"z_loss", reference_use_z_loss},
    {"router_losses", reference_use_router_losses}, /* losses of an uneven load, and of large logits */
    {"ema", reference_use_averages},                /* averages of the weights, against PyTorch's */
    {"muon", reference_use_muon},                   /* Muon for the matrices of the blocks, against PyTorch's */
    {"lora", reference_use_lora},                   /* low-rank adapters, against PEFT's */
};

enum { N_PARTS = sizeof parts / sizeof *parts };

/* All runs for which a part is recorded. */
static void a_part(void **state)
{
    const struct part *part = *state;
    int n = 0, found = 0;
    char **names = reference_names(&n);

    for (int i = 0; i < n; i++) {
        if (!reference_has(names[i], part->name))
            continue;
        expect_the_curve_of(names[i], part->use, NULL, 0, &no_pipe);
        found++;
    }
    assert_true(found > 0);
}

/* Whether the sizes of a run allow a division. */
static bool fits(const char *name, const struct split *split, const struct pipe *pipe)
{
    struct reference r;
    const struct tt_model_dims *d;
    int together = pipe->ranks * pipe->tensor * pipe->context;
    bool good;

    reference_open(&r, name);
    d = &r.model->dims;
    good = split->ranks % together == 0 && d->n_kv_heads % (pipe->tensor * (pipe->gathers ? 1 : pipe->context)) == 0 &&
           r.job.seq_len % pipe->context == 0 && pipe->ranks * pipe->stages_per_rank <= d->n_layers + 1 &&
           r.job.global_batch % (split->ranks / together * split->local_batch) == 0;
    if (d->moe.experts)
        good = good && d->moe.experts % pipe->experts == 0 && split->ranks / pipe->ranks % pipe->experts == 0 &&
               pipe->experts % pipe->tensor == 0;
    else
        good = good && pipe->experts == 1;
    if (r.model->row->undivided)
        good = good && pipe->tensor == 1 && pipe->context == 1 && pipe->experts == 1;
    reference_close(&r);
    return good;
}

#define COUNT(table) (int)(sizeof(table) / sizeof *(table))

/* How ranks share layers, sequences and experts, and what else may vary then. */
struct ways {
    const struct pipe *pipes;
    int n_pipes;
    const struct split *splits;
    int n_splits;
};

#define WAYS(pipes, splits) (&(const struct ways){pipes, COUNT(pipes), splits, COUNT(splits)})

/*
 * Follows a run in every n-th of the ways that its sizes allow, or in all of them if sweeps are whole. Runs with
 * neighbouring numbers take different ones. Returns how many there were.
 */
static int follow(const char *name, int number, void (*use)(struct reference *), const struct ways *ways, int n)
{
    int stride = sweep_stride() == 1 ? 1 : n, found = 0;

    for (int i = 0; i < ways->n_pipes * ways->n_splits; i++) {
        const struct split *split = &ways->splits[i % ways->n_splits];
        const struct pipe *pipe = &ways->pipes[i / ways->n_splits];

        if (!fits(name, split, pipe) || (number + found++) % stride)
            continue;
        expect_the_curve_of(name, use, split, 1, pipe);
    }
    return found;
}

/* The run of each family without experts, which has the family's name, and the runs whose case is "divided". */
static void follow_dense(const struct ways *ways)
{
    int n = 0;
    char **names = reference_names(&n);

    for (int r = 0; r < tt_model_n_rows; r++)
        if (tt_model_rows[r]->flavors[0].dims.moe.experts == 0)
            assert_true(follow(tt_model_rows[r]->name, r, NULL, ways, 6) > 0);
    for (int i = 0; i < n; i++)
        if (reference_is(names[i], "divided"))
            (void)follow(names[i], i, NULL, ways, 3);
}

/* The runs of models with experts: their cases say how far every choice of experts is from a tie. */
static void follow_experts(const struct ways *ways)
{
    int n = 0, number = 0;
    char **names = reference_names(&n);

    for (int i = 0; i < n; i++)
        if (reference_is(names[i], "gap"))
            (void)follow(names[i], number++, NULL, ways, 3);
}

/* Ranks share experts, layers and sequences; the models have latents, windows, or layers without experts. */
static void experts(void **state)
{
    static const struct pipe pipes[] = {
        {1, 1, TT_PP_1F1B, 1, 1, false, 2}, {1, 1, TT_PP_1F1B, 1, 1, false, 4}, {1, 1, TT_PP_1F1B, 2, 1, false, 2},
        {1, 1, TT_PP_1F1B, 1, 2, false, 1}, {1, 1, TT_PP_1F1B, 1, 2, true, 1},  {1, 1, TT_PP_1F1B, 1, 2, true, 2},
        {1, 1, TT_PP_1F1B, 2, 2, true, 2},  {2, 1, TT_PP_1F1B, 1, 1, false, 1}, {2, 1, TT_PP_GPIPE, 1, 1, false, 2},
    };
    static const struct pipe stages[] = {{2, 2, TT_PP_INTERLEAVED_1F1B, 1, 1, false, 1},
                                         {2, 2, TT_PP_ZBV_ZERO_BUBBLE, 1, 1, false, 1}};
    static const struct split splits[] = {{2, 1, 2, DEFAULT, 1, 1}, {4, 1, 1, NEVER, 1, 2}, {4, 1, 2, DEFAULT, 1, 1}};
    static const struct split piped[] = {{2, 1, 1, DEFAULT, 1, 1}, {4, 2, 1, ALWAYS, 0, 1}};

    follow_experts(WAYS(pipes, splits));
    follow_experts(WAYS(stages, piped));
}

/* Follows the runs for which a part of expect.json is recorded, in some ways. */
static void follow_part(const char *part, void (*use)(struct reference *), const struct ways *ways)
{
    int n = 0, found = 0;
    char **names = reference_names(&n);

    for (int i = 0; i < n; i++)
        if (reference_has(names[i], part))
            found += follow(names[i], i, use, ways, 3);
    assert_true(found > 0);
}

/* Losses of routers are the same where ranks share experts, layers or sequences. */
static void router_losses_divided(void **state)
{
    static const struct pipe pipes[] = {{1, 1, TT_PP_1F1B, 1, 1, false, 2},
                                        {1, 1, TT_PP_1F1B, 2, 1, false, 2},
                                        {1, 1, TT_PP_1F1B, 1, 2, true, 2},
                                        {2, 1, TT_PP_1F1B, 1, 1, false, 1}};
    static const struct split splits[] = {{2, 1, 2, DEFAULT, 1, 1}, {4, 1, 1, NEVER, 1, 2}};

    follow_part("router_losses", reference_use_router_losses, WAYS(pipes, splits));
}

/* Each rank of a pipeline has some of the layers. Both ends have a tied weight. */
static void pipelines(void **state)
{
    static const struct pipe pipes[] = {
        {2, 1, TT_PP_1F1B, 1, 1, false, 1},
        {2, 1, TT_PP_GPIPE, 1, 1, false, 1},
        {2, 2, TT_PP_INTERLEAVED_1F1B, 1, 1, false, 1},
        {2, 2, TT_PP_ZBV_ZERO_BUBBLE, 1, 1, false, 1},
    };
    static const struct split splits[] = {{2, 1, 1, DEFAULT, 1, 1}, {4, 1, 1, NEVER, 1, 2}, {4, 2, 1, ALWAYS, 0, 1}};

    follow_dense(WAYS(pipes, splits));
}

/* Ranks share layers, also those of a pipeline. */
static void tensor(void **state)
{
    static const struct pipe shared[] = {{1, 1, TT_PP_1F1B, 2, 1, false, 1}};
    static const struct pipe piped[] = {{2, 1, TT_PP_1F1B, 2, 1, false, 1}};
    static const struct split splits[] = {{2, 1, 2, DEFAULT, 1, 1}, {4, 1, 1, NEVER, 1, 2}, {8, 2, 1, ALWAYS, 0, 1}};
    static const struct split piped_splits[] = {{4, 1, 1, DEFAULT, 1, 1}, {8, 2, 1, NEVER, 1, 1}};

    follow_dense(WAYS(shared, splits));
    follow_dense(WAYS(piped, piped_splits));
}

/* Ranks share sequences: they exchange heads, or gather keys and values; also those of a pipeline or of a layer. */
static void context(void **state)
{
    static const struct pipe pipes[] = {{1, 1, TT_PP_1F1B, 1, 2, false, 1}, {1, 1, TT_PP_1F1B, 1, 2, true, 1}};
    static const struct pipe more[] = {{2, 1, TT_PP_1F1B, 1, 2, true, 1}, {1, 1, TT_PP_1F1B, 2, 2, true, 1}};
    static const struct split splits[] = {{2, 1, 2, DEFAULT, 1, 1}, {4, 1, 1, NEVER, 1, 2}};
    static const struct split of_four[] = {{4, 1, 1, DEFAULT, 1, 1}};

    follow_dense(WAYS(pipes, splits));
    follow_dense(WAYS(more, of_four));
    follow_part("documents", reference_use_documents, WAYS(pipes, splits));
}

/* test_golden [sample]: with that word, and under a sanitizer, every sixth case; all of them in the long test run. */
int main(int argc, char **argv)
{
    static const struct CMUnitTest divided[] = {
        cmocka_unit_test(pipelines),
        cmocka_unit_test(tensor),
        cmocka_unit_test(context),
        cmocka_unit_test(experts),
        cmocka_unit_test(router_losses_divided),
    };
    int n_runs = 0, n = 0, failed;
    char **names = reference_names(&n_runs);
    struct CMUnitTest *tests = tt_calloc((size_t)n_runs + N_PARTS + COUNT(divided), sizeof *tests);

    for (int i = 0; i < n_runs; i++)
        tests[n++] = (struct CMUnitTest){.name = names[i], .test_func = a_run, .initial_state = names[i]};
    for (int i = 0; i < N_PARTS; i++)
        tests[n++] = (struct CMUnitTest){
            .name = parts[i].name, .test_func = a_part, .initial_state = (void *)(uintptr_t)&parts[i]};
    for (int i = 0; i < COUNT(divided); i++)
        tests[n++] = divided[i];
    for (int i = 0; (SWEEP_SANITIZED || (argc > 1 && strcmp(argv[1], "sample") == 0)) && i < n; i++)
        if (i % 6 && sweep_stride() > 1)
            tests[i].test_func = NULL; /* cmocka skips these */
    cmocka_set_message_output(CM_OUTPUT_TAP);
    failed = _cmocka_run_group_tests("golden", tests, (size_t)n, NULL, NULL);
    tt_free(tests);
    return failed;
}
