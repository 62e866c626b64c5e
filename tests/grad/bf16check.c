/* SPDX-License-Identifier: MIT
 *
 * bf16check
 *
 * Every graph of cases.c in bfloat16, against the same graph in float on the same leaves. The bits are the same on 1, 2
 * and 3 threads and with outputs that take over memory. Losses and gradients, with every variant of the kernels, differ
 * from the float ones by no more than rounding explains. The test measures the effect of rounding: in float runs, each
 * element of each value that would be bfloat16 gets a relative error of ROUNDING, up or down at random. The deviation
 * may be as large as the largest of TRIALS such runs. Values that ops round internally get an error of THREE_ROUNDINGS:
 * the gradient of logits, and in attention the probabilities, in both passes, and the gradient of scores. Sizes are
 * root mean squares over a tensor.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/passes/autodiff.h"
#include "core/passes/phases.h"
#include "tests/grad/cases.h"
#include "tests/grad/interp.h"
#include "tests/kernels/references.h"

enum { TRIALS = 8, MESSAGES = 4 };

/*
 * A bfloat16 has 8 binary digits, so its neighbours are at most 2^-7 of it away, and a rounding errs by at most half of
 * that. The errors are uniform, so their root mean square is the largest one over the square root of 3. It is
 * multiplied by that square root for three roundings, which are independent.
 */
#define ROUNDING        (0x1p-8 / sqrt(3.0))
#define THREE_ROUNDINGS 0x1p-8

struct side {
    struct tt_graph *graph;
    struct interp *interp;
    int *grad;  /* by value */
    int leaves; /* values before differentiation */
};

struct test {
    const char *name;
    struct side half, wide;
    struct interp_draw draw;
    double *allowed; /* by value: of token_loss and of gradients */
    double worst;    /* deviation as a share of the allowed one */
    int failures;
};

static void fail(struct test *test, const char *what, const char *value, double got, double want)
{
    if (test->failures++ < MESSAGES)
        printf("# %s: %s '%s': %.3g, allowed %.3g\n", test->name, what, value, got, want);
}

static struct tt_team *team_of(int threads)
{
    struct tt_team *team = NULL;

    if (tt_team_new(threads, &team) < 0)
        abort();
    return team;
}

static struct side make_side(void (*build)(struct tt_graph *), bool bf16)
{
    struct side side = {.graph = tt_graph_new()};
    struct tt_seed loss = {.grad = TT_GRAD_OF_LOSS};

    build(side.graph);
    if (bf16)
        interp_use_bf16(side.graph);
    side.leaves = side.graph->n_values;
    side.grad = tt_calloc((size_t)side.leaves, sizeof *side.grad);
    loss.value = side.graph->token_loss;
    if (tt_graph_differentiate(side.graph, &loss, 1, side.grad) < 0 || tt_graph_phase_head(side.graph) < 0) {
        printf("# %s\n", tt_error_message());
        abort();
    }
    side.interp = interp_new(side.graph, false);
    return side;
}

/* The float leaves equal the bfloat16 ones. */
static void copy_leaves(struct test *test)
{
    for (int v = 0; v < test->wide.leaves; v++) {
        const struct tt_value *value = &test->wide.graph->values[v];

        if (value->producer != TT_NONE)
            continue;
        if (value->dtype == test->half.graph->values[v].dtype) {
            memcpy(test->wide.interp->data[v], test->half.interp->data[v], (size_t)tt_value_bytes(value));
            continue;
        }
        for (int64_t i = 0; i < tt_value_elements(value); i++)
            ((float *)test->wide.interp->data[v])[i] = (float)interp_element(test->half.interp, v, i);
    }
}

/* The value of `side` that leaf v is compared by: its gradient, or the loss itself. TT_NONE: nothing. */
static int compared(const struct side *side, int v)
{
    if (v == side->graph->token_loss)
        return v;
    return side->graph->values[v].producer == TT_NONE ? side->grad[v] : TT_NONE;
}

static double distance(const struct test *test, const struct side *side, const struct interp *run, int v)
{
    int a = compared(side, v), b = compared(&test->wide, v);
    int64_t n = tt_value_elements(&side->graph->values[a]);
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++) {
        double off = interp_element(run, a, i) - interp_element(test->wide.interp, b, i);

        sum += off * off;
    }
    return sqrt(sum / (double)n);
}

static double size_of(const struct test *test, int v)
{
    int64_t n = tt_value_elements(&test->wide.graph->values[compared(&test->wide, v)]);
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++) {
        double x = interp_element(test->wide.interp, compared(&test->wide, v), i);

        sum += x * x;
    }
    return sqrt(sum / (double)n);
}

static void measure(struct test *test, struct tt_team *team)
{
    struct interp *run = interp_new(test->wide.graph, false);

    interp_copy_leaves(run, test->wide.interp);
    run->perturbation = ROUNDING;
    run->signs.rng = tt_rng_make(11, test->name);
    for (int trial = 0; trial < TRIALS; trial++) {
        (void)interp_run(run, team, INTERP_ALL);
        for (int v = 0; v < test->wide.leaves; v++)
            if (compared(&test->wide, v) != TT_NONE)
                test->allowed[v] = fmax(test->allowed[v], distance(test, &test->wide, run, v));
    }
    for (int v = 0; v < test->wide.leaves; v++)
        if (compared(&test->wide, v) != TT_NONE)
            test->allowed[v] += THREE_ROUNDINGS * size_of(test, v);
    interp_free(run);
}

static void compare_variants(struct test *test, struct tt_team *team)
{
    for (int k = 0; kernels_variant(k); k++) {
        struct interp *run = interp_new(test->half.graph, false);

        tt_kernels_use(kernels_variant(k));
        interp_copy_leaves(run, test->half.interp);
        if (!interp_run(run, team, INTERP_ALL))
            fail(test, "an op wrote outside its scratch", kernels_variant(k)->name, 0.0, 0.0);
        for (int v = 0; v < test->half.leaves; v++) {
            double off;

            if (compared(&test->half, v) == TT_NONE)
                continue;
            off = distance(test, &test->half, run, v);
            if (!(off <= test->allowed[v]))
                fail(test, kernels_variant(k)->name, test->half.graph->values[v].name, off, test->allowed[v]);
            else if (test->allowed[v] > 0.0)
                test->worst = fmax(test->worst, off / test->allowed[v]);
        }
        interp_free(run);
    }
    tt_kernels_use(NULL);
}

static void compare_bits(struct test *test)
{
    for (int k = 0; k < 6; k++) { /* 1, 2, 3 threads; with outputs in their own memory and in that of inputs */
        struct interp *run = interp_new(test->half.graph, k >= 3);
        struct tt_team *team = team_of(1 + k % 3);
        int differs;

        interp_copy_leaves(run, test->half.interp);
        (void)interp_run(run, team, INTERP_ALL);
        if ((differs = interp_first_difference(test->half.interp, run)) != TT_NONE)
            fail(test, k < 3 ? "other bits on more threads" : "other bits in shared memory",
                 test->half.graph->values[differs].name, 1.0 + k % 3, 1.0);
        interp_free(run);
        tt_team_free(team);
    }
}

static bool run_case(const struct grad_case *one)
{
    struct test test = {.name = one->name, .draw.rng = tt_rng_make(12, one->name)};
    struct tt_team *team = team_of(1);

    test.half = make_side(one->build, true);
    test.wide = make_side(one->build, false);
    test.allowed = tt_calloc((size_t)test.wide.leaves, sizeof *test.allowed);
    interp_fill(test.half.interp, &test.draw);
    copy_leaves(&test);
    (void)interp_run(test.half.interp, team, INTERP_ALL);
    (void)interp_run(test.wide.interp, team, INTERP_ALL);
    measure(&test, team);
    compare_variants(&test, team);
    compare_bits(&test);
    printf("%s - %-44s worst %4.2f of the tolerance\n", test.failures ? "not ok" : "ok", test.name, test.worst);
    for (int s = 0; s < 2; s++) {
        struct side *side = s ? &test.half : &test.wide;

        interp_free(side->interp);
        tt_graph_free(side->graph);
        tt_free(side->grad);
    }
    tt_free(test.allowed);
    tt_team_free(team);
    return test.failures == 0;
}

int main(void)
{
    bool good = true;

    for (int i = 0; i < n_grad_cases; i++)
        good = run_case(&grad_cases[i]) && good;
    return good ? 0 : 1;
}
