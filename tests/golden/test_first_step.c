/* SPDX-License-Identifier: MIT
 *
 * The first step in bfloat16: loss and gradient norm, compared with Hugging Face's model in float64 and in bfloat16,
 * within what rounding explains.
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
#include "core/math/rng.h"
#include "tests/golden/reference.h"

/*
 * The tolerance in bfloat16 is derived from the effect of one rounding of all weights, which is measured in float32:
 * TRIALS first steps, in each of which every weight has a random relative error of at most MOST_ROUNDING, the largest
 * one of a rounding to bfloat16. The root mean square of the deviations is the effect. To first order, rounding a
 * product's result has no larger effect than rounding its weights: with x the input, w the weights, y = w x and g the
 * gradient of y, the mean squares are the sums of (g y)^2 and of (g x w)^2 over tokens, and they are equal if signs are
 * random and tokens independent; correlation between tokens only adds to the second. Roundings are independent, so
 * their squares add. A graph with R results in bfloat16 for each weight thus has sqrt(1 + R) times the effect of the
 * weights. Two graphs that round the same weights differ by sqrt(R + R') times that effect. Values as far off as SIGMAS
 * standard deviations pass.
 */
enum { TRIALS = 8, SIGMAS = 3 };
#define MOST_ROUNDING 0x1p-8

struct moved {
    const struct reference *reference;
    uint64_t trial;
};

/* On one rank, which has whole parameters. */
static int load_moved(struct tt_comm *comm, struct tt_engine *engine, void *arg)
{
    const struct moved *moved = arg;
    const struct tt_layout *layout = tt_engine_layout(engine);
    int rc = reference_load(comm, engine, (void *)moved->reference);

    for (int p = 0; p < layout->n_params; p++) {
        const struct tt_unit_param *place = tt_layout_param(layout, p);
        struct tt_rng rng = tt_rng_make(moved->trial, moved->reference->model->params[p].name);
        float *data = (float *)tt_engine_state(engine)->array[TT_STATE_PARAM][layout->unit_of[p]] + place->offset;

        for (int64_t i = 0; i < tt_box_volume(&place->box); i++)
            data[i] *= (float)(1.0 + MOST_ROUNDING * (2.0 * tt_rng_uniform(&rng, (uint64_t)i) - 1.0));
    }
    return rc;
}

/* A number for the loss and one for the gradient norm of the first step. */
struct first_step {
    double loss, norm;
};

static struct first_step first_step(const struct train_job *job)
{
    struct train_result found;
    struct first_step first;

    assert_int_equal(reference_check(train_job_run(job, &found)), 0);
    first = (struct first_step){found.loss[0], found.norm[0]};
    train_result_release(&found);
    return first;
}

static double computed_in_bf16(const struct train_job *job, enum tt_graph_mode mode)
{
    int *grads = tt_calloc((size_t)job->model->n_params, sizeof *grads), n = 0;
    struct tt_graph *graph = NULL;

    assert_int_equal(reference_check(tt_model_graph(job->model, mode, TT_BF16, job->local_batch, job->seq_len, false,
                                                    &graph, mode == TT_GRAPH_TRAIN ? grads : NULL)),
                     0);
    for (int v = 0; v < graph->n_values; v++)
        n += graph->values[v].producer != TT_NONE && graph->values[v].dtype == TT_BF16;
    tt_graph_free(graph);
    tt_free(grads);
    return n;
}

/* Results in bfloat16 for each weight, in titan's graph. */
static struct first_step our_roundings(const struct train_job *job)
{
    return (struct first_step){computed_in_bf16(job, TT_GRAPH_VALIDATE) / job->model->n_params,
                               computed_in_bf16(job, TT_GRAPH_TRAIN) / job->model->n_params};
}

/* A member of expect.json's "bfloat16", or of an object in it. */
static struct first_step in_bf16(const struct reference *r, const char *object)
{
    const json_t *at = json_object_get(r->expect, "bfloat16");

    at = object ? json_object_get(at, object) : at;
    assert_true(json_is_number(json_object_get(at, "loss")) && json_is_number(json_object_get(at, "grad_norm")));
    return (struct first_step){json_number_value(json_object_get(at, "loss")),
                               json_number_value(json_object_get(at, "grad_norm"))};
}

/* The effect of one rounding of all weights, as relative errors. */
static struct first_step effect_of_weights(const struct reference *r, const struct train_job *job,
                                           const struct first_step *right)
{
    struct first_step squares = {0.0, 0.0};
    struct train_job trial = *job;

    for (int i = 0; i < TRIALS; i++) {
        struct moved moved = {r, (uint64_t)i};
        struct first_step found;

        trial.load = load_moved;
        trial.load_arg = &moved;
        found = first_step(&trial);
        squares.loss += pow(reference_off(found.loss, right->loss), 2.0) / TRIALS;
        squares.norm += pow(reference_off(found.norm, right->norm), 2.0) / TRIALS;
    }
    return (struct first_step){sqrt(squares.loss), sqrt(squares.norm)};
}

static void expect_near(const char *what, int ranks, double found, double wanted, double most)
{
    double off = reference_off(found, wanted);

    if (!(off <= most))
        fail_msg("%s on %d ranks: %.9g, wanted %.9g; it is off by %.2g of that, more than %.2g", what, ranks, found,
                 wanted, off, most);
}

/* The first step of a run, whose name is the test's. */
static void a_run(void **state)
{
    struct reference r;
    struct first_step right, rounded, effect, ours, theirs;
    struct train_job job;

    reference_open(&r, *state);
    right = (struct first_step){reference_number(&r, "loss", 0), reference_number(&r, "grad_norm", 0)};
    rounded = in_bf16(&r, NULL);
    theirs = in_bf16(&r, "roundings");
    theirs = (struct first_step){theirs.loss / r.model->n_params, theirs.norm / r.model->n_params};
    job = r.job;
    job.steps = job.ranks = 1;
    job.local_batch = job.global_batch;
    effect = effect_of_weights(&r, &job, &right);
    ours = our_roundings(&job);
    job.param_dtype = TT_BF16;
    job.load = reference_load;
    job.load_arg = &r;
    for (job.ranks = 1; job.ranks <= 2; job.ranks++) {
        struct first_step found;

        job.local_batch = job.global_batch / job.ranks;
        found = first_step(&job);
        expect_near("loss", job.ranks, found.loss, right.loss, SIGMAS * effect.loss * sqrt(1.0 + ours.loss));
        expect_near("norm", job.ranks, found.norm, right.norm, SIGMAS * effect.norm * sqrt(1.0 + ours.norm));
        expect_near("loss against a model in bfloat16", job.ranks, found.loss, rounded.loss,
                    SIGMAS * effect.loss * sqrt(ours.loss + theirs.loss));
        expect_near("norm against a model in bfloat16", job.ranks, found.norm, rounded.norm,
                    SIGMAS * effect.norm * sqrt(ours.norm + theirs.norm));
    }
    reference_close(&r);
}

int main(void)
{
    int n = 0, failed;
    char **names = reference_names(&n);
    struct CMUnitTest *tests = tt_calloc((size_t)n, sizeof *tests);

    for (int i = 0; i < n; i++)
        tests[i] = (struct CMUnitTest){.name = names[i], .test_func = a_run, .initial_state = names[i]};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    failed = _cmocka_run_group_tests("golden_bf16", tests, (size_t)n, NULL, NULL);
    tt_free(tests);
    return failed;
}
