/* SPDX-License-Identifier: MIT
 *
 * gradcheck [--bench [THREADS]]
 *
 * Checks every graph of cases.c. Its bits must be the same on 1, 2 and 3 threads, with outputs in their own memory and
 * in the memory of inputs. Its gradients must be the same up to rounding with every variant of the kernels. The
 * gradient of every parameter is compared with central differences of the loss, element by element (a sample of large
 * parameters) and along a random direction.
 *
 * --bench prints the time of each op in a training step of the debug model.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/math/rng.h"
#include "core/passes/autodiff.h"
#include "core/passes/phases.h"
#include "tests/grad/cases.h"
#include "tests/grad/interp.h"
#include "tests/kernels/references.h"

enum { MAX_PARAMS = 64, SAMPLES = 24, MESSAGES = 4 };

/* Rounding steps of a loss: its logits, their sum of exponentials, the loss itself, its auxiliary losses. */
enum { LOSS_ROUNDINGS = 4 };

struct test {
    const char *name;
    struct tt_graph *graph;
    struct interp *interp;
    struct tt_team *team;
    struct interp_draw draw;
    int n_params;
    int param[MAX_PARAMS], grad[MAX_PARAMS];
    int failures;
    double step;  /* of the central differences */
    double loss;  /* loss of the graph as it was filled */
    double worst; /* the largest error, as a share of the tolerance */
};

static void fail(struct test *test, const char *what, double got, double want)
{
    if (test->failures++ < MESSAGES)
        printf("# %s: %s: got %.7g, wanted %.7g\n", test->name, what, got, want);
}

/* The loss with the parameter at saved + step * direction (n elements each), where the parameter then stays. */
static double loss_at(struct test *test, float *data, const float *saved, const float *direction, int64_t n,
                      double step)
{
    double loss;

    for (int64_t i = 0; i < n; i++)
        data[i] = (float)((double)saved[i] + step * (double)direction[i]);
    (void)interp_run(test->interp, test->team, INTERP_FORWARD);
    loss = interp_loss(test->interp);
    memcpy(data, saved, (size_t)n * sizeof *data);
    return loss;
}

/* The derivative along `direction` from four values of the loss, with an error of the fourth power of the step. */
static double difference(struct test *test, float *data, const float *saved, const float *direction, int64_t n,
                         double h)
{
    double one = loss_at(test, data, saved, direction, n, h) - loss_at(test, data, saved, direction, n, -h);
    double two = loss_at(test, data, saved, direction, n, 2 * h) - loss_at(test, data, saved, direction, n, -2 * h);

    return (8.0 * one - two) / (12.0 * h);
}

/*
 * A difference adds the rounding errors of four losses, with factors of 8, 8, 1 and 1 twelfths, and divides them by the
 * step; their size depends on the kernels.
 */
static double rounding_of_difference(const struct test *test)
{
    return 18.0 / 12.0 * LOSS_ROUNDINGS * 0x1p-24 * fabs(test->loss) / test->step;
}

static void compare(struct test *test, const char *what, double got, double want, double size)
{
    double allowed = 2e-3 * fmax(fabs(want), size) + fmax(5e-5, rounding_of_difference(test)), error = fabs(got - want);

    if (error <= allowed) {
        test->worst = fmax(test->worst, error / allowed);
    } else {
        fail(test, what, got, want);
    }
}

static double root_mean_square(const float *x, int64_t n)
{
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum / (double)n);
}

static void check_param(struct test *test, int p)
{
    const struct tt_value *value = &test->graph->values[test->param[p]];
    int64_t n = tt_value_elements(value), samples = n < SAMPLES ? n : SAMPLES;
    float *data = test->interp->data[test->param[p]];
    float *saved = tt_calloc((size_t)n, sizeof *saved), *grad = tt_calloc((size_t)n, sizeof *grad);
    float *direction = tt_calloc((size_t)n, sizeof *direction);
    double along = 0.0, size;
    char what[64];

    (void)interp_run(test->interp, test->team, INTERP_ALL); /* the head's gradients come from the last run */
    memcpy(saved, data, (size_t)n * sizeof *data);
    memcpy(grad, test->interp->data[test->grad[p]], (size_t)n * sizeof *grad);
    size = root_mean_square(grad, n);
    if (!(size > 1e-6))
        fail(test, "the gradient is zero or not a number", size, 1.0);
    for (int64_t s = 0; s < samples; s++) {
        int64_t i = n == samples ? s : (int64_t)(tt_rng_bits(&test->draw.rng, test->draw.drawn++) % (uint64_t)n);

        (void)snprintf(what, sizeof what, "gradient of %s[%lld]", value->name, (long long)i);
        direction[i] = 1.0F;
        compare(test, what, (double)grad[i], difference(test, data, saved, direction, n, test->step), 0.2 * size);
        direction[i] = 0.0F;
    }
    for (int64_t i = 0; i < n; i++) {
        direction[i] = (float)(interp_normal(&test->draw) / sqrt((double)n));
        along += (double)direction[i] * (double)grad[i];
    }
    (void)snprintf(what, sizeof what, "gradient of %s along a direction", value->name);
    compare(test, what, along, difference(test, data, saved, direction, n, test->step), size);
    tt_free(saved);
    tt_free(grad);
    tt_free(direction);
}

/* Other threads and other memory give the same bits, and other kernels the same gradients up to rounding. */
static void check_runs(struct test *test)
{
    for (int run = 0; run < 6; run++) { /* 1, 2, 3 threads; then the same with outputs in the memory of inputs */
        struct interp *other = interp_new(test->graph, run >= 3);
        struct tt_team *team = NULL;
        int differs;

        if (tt_team_new(1 + run % 3, &team) < 0)
            abort();
        interp_copy_leaves(other, test->interp);
        if (!interp_run(other, team, INTERP_ALL))
            fail(test, "an op wrote outside its scratch; run", run, 0.0);
        if ((differs = interp_first_difference(test->interp, other)) != TT_NONE) {
            fail(test, run < 3 ? "other bits on more threads; threads" : "other bits in shared memory; threads",
                 1.0 + run % 3, 1.0);
            printf("#   in %s\n", test->graph->values[differs].name);
        }
        interp_free(other);
        tt_team_free(team);
    }
    for (int v = 0; kernels_variant(v + 1); v++) { /* the last one differs in bfloat16 only */
        struct interp *other = interp_new(test->graph, false);

        tt_kernels_use(kernels_variant(v));
        interp_copy_leaves(other, test->interp);
        (void)interp_run(other, test->team, INTERP_ALL);
        for (int p = 0; p < test->n_params; p++) {
            const float *a = test->interp->data[test->grad[p]], *b = other->data[test->grad[p]];
            int64_t n = tt_value_elements(&test->graph->values[test->grad[p]]);
            double size = root_mean_square(a, n);

            for (int64_t i = 0; i < n; i++) {
                if (!(fabs((double)a[i] - (double)b[i]) <= 1e-4 * (fabs((double)a[i]) + size)))
                    fail(test, "a gradient with other kernels", (double)b[i], (double)a[i]);
            }
        }
        interp_free(other);
    }
    tt_kernels_use(NULL);
}

/* An input whose memory an output may take has the output's size, and no other output takes it. */
static void check_aliases(struct test *test, const struct tt_node *node)
{
    const int *alias = tt_op_row(node->op)->alias;

    for (int k = 0; k < node->n_out; k++) {
        int from = alias[k] ? node->in[alias[k] - 1] : TT_NONE;

        if (from != TT_NONE &&
            tt_value_bytes(&test->graph->values[from]) != tt_value_bytes(&test->graph->values[node->out[k]]))
            fail(test, "an alias of another size; op", node->op, k);
        for (int other = 0; other < k; other++) {
            if (alias[k] && alias[k] == alias[other])
                fail(test, "two outputs on one input; op", node->op, k);
        }
    }
}

static void check_costs(struct test *test)
{
    for (int n = 0; n < test->graph->n_nodes; n++) {
        struct tt_cost cost = {.flops = -1.0, .bytes = -1.0};

        tt_op_cost(test->graph, &test->graph->nodes[n], &cost);
        if (!(cost.flops >= 0.0) || !(cost.bytes > 0.0))
            fail(test, "the cost of an op", cost.flops, 1.0);
        check_aliases(test, &test->graph->nodes[n]);
    }
}

static bool has_case[TT_OPS]; /* whether a case differentiates a node of the op */

static void prepare(struct test *test, void (*build)(struct tt_graph *))
{
    struct tt_seed loss = {.grad = TT_GRAD_OF_LOSS};
    int *grad;

    test->graph = tt_graph_new();
    build(test->graph);
    for (int v = 0; v < test->graph->n_values; v++) {
        if (test->graph->values[v].kind == TT_VALUE_PARAM && !test->graph->values[v].constant)
            test->param[test->n_params++] = v;
    }
    for (int n = 0; n < test->graph->n_nodes; n++)
        has_case[test->graph->nodes[n].op] = true;
    grad = tt_calloc((size_t)test->graph->n_values, sizeof *grad);
    loss.value = test->graph->token_loss;
    if (tt_graph_differentiate(test->graph, &loss, 1, grad) < 0 || tt_graph_phase_head(test->graph) < 0) {
        printf("# %s: %s\n", test->name, tt_error_message());
        abort();
    }
    for (int p = 0; p < test->n_params; p++)
        test->grad[p] = grad[test->param[p]];
    tt_free(grad);
    test->interp = interp_new(test->graph, false);
    interp_fill(test->interp, &test->draw);
}

static bool run_case(const struct grad_case *one)
{
    struct test test = {.name = one->name, .step = one->step, .draw.rng = tt_rng_make(3, one->name)};

    prepare(&test, one->build);
    if (tt_team_new(1, &test.team) < 0)
        abort();
    if (!interp_run(test.interp, test.team, INTERP_ALL))
        fail(&test, "an op wrote outside its scratch", 1.0, 0.0);
    test.loss = interp_loss(test.interp);
    check_runs(&test);
    check_costs(&test);
    for (int p = 0; p < test.n_params; p++) {
        if (test.grad[p] == TT_NONE) {
            fail(&test, "no gradient of parameter", p, p);
        } else {
            check_param(&test, p);
        }
    }
    printf("%s - %-44s worst %4.2f of the tolerance\n", test.failures ? "not ok" : "ok", test.name, test.worst);
    interp_free(test.interp);
    tt_graph_free(test.graph);
    tt_team_free(test.team);
    return test.failures == 0;
}

static bool check_all_covered(void)
{
    bool good = true;

    for (int op = 0; op < TT_OPS; op++) {
        const struct tt_op_row *row = tt_op_row((enum tt_op_id)op);

        if ((!row->backward && !row->backward_of_loss) || has_case[op] || row->exchange)
            continue;
        printf("# %s has no case in cases.c\n", row->name);
        good = false;
    }
    printf("%s - every op with a gradient has a case\n", good ? "ok" : "not ok");
    return good;
}

/* A non-finite weight makes the loss non-finite, whatever parameter contains it. */
static bool check_nonfinite(void)
{
    bool good = true;

    for (int k = 0; k < 2; k++) {
        struct test test = {.name = "a non-finite weight", .draw.rng = tt_rng_make(4, "nonfinite")};

        prepare(&test, grad_cases[n_grad_cases - 1].build);
        if (tt_team_new(1, &test.team) < 0)
            abort();
        for (int p = 0; p < test.n_params; p++) {
            const int32_t *tokens = test.interp->data[test.graph->tokens];
            float *data = test.interp->data[test.param[p]];
            int64_t at = p ? 0 : tokens[0] * tt_value_width(&test.graph->values[test.param[p]]); /* a row in use */
            float saved = data[at];

            data[at] = k ? INFINITY : NAN;
            (void)interp_run(test.interp, test.team, INTERP_FORWARD);
            if (isfinite(interp_loss(test.interp)))
                fail(&test, "the loss is finite with a bad value in parameter", p, NAN);
            data[at] = saved;
        }
        good = good && test.failures == 0;
        printf("%s - a loss shows %s in any weight\n", test.failures ? "not ok" : "ok", k ? "an infinity" : "a NaN");
        interp_free(test.interp);
        tt_graph_free(test.graph);
        tt_team_free(test.team);
    }
    return good;
}

/* The type of an operand whose row says `type`, if the op computes in `compute`. */
static enum tt_dtype right_type(enum tt_op_type type, enum tt_dtype compute)
{
    return type == TT_TYPE_COMPUTE ? compute : type == TT_TYPE_IDS ? TT_I32 : TT_F32;
}

/*
 * Whether the op refuses these inputs, with a message that begins with its name and contains `found`, and leaves the
 * graph unchanged. Inputs are (4, 6) and (5, 7) in turn. All are of the right type except input `wrong`.
 */
static bool refuses(enum tt_op_id op, int n_in, enum tt_dtype compute, int wrong, const char *found)
{
    static const int64_t shapes[2][2] = {{4, 6}, {5, 7}};
    const struct tt_op_row *row = tt_op_row(op);
    struct tt_graph *graph = tt_graph_new();
    struct tt_node node = {.op = op, .n_in = n_in, .attr = {.seq_len = 3, .heads = 2, .kv_heads = 2}};
    bool good;
    int rc;

    for (int i = 0; i < n_in; i++)
        node.in[i] = tt_graph_value(graph, TT_VALUE_ACTIVATION, i == wrong ? TT_F16 : right_type(row->in[i], compute),
                                    "v", 2, shapes[i % 2]);
    rc = tt_op_infer(graph, &node, "y");
    good = rc == TT_EINTERNAL && strncmp(tt_error_message(), row->name, strlen(row->name)) == 0 &&
           strstr(tt_error_message(), found) && node.n_out == 0 && graph->n_values == n_in;
    if (!good)
        printf("# %s takes what it should not (wanted: %s): %d, %s\n", row->name, found, rc, tt_error_message());
    tt_graph_free(graph);
    return good;
}

/* Every op refuses a wrong number of inputs, shapes that do not fit, and a wrong type of each input. */
static bool check_inference(void)
{
    bool good = true;

    for (int i = 0; i < TT_OPS; i++) {
        enum tt_op_id op = (enum tt_op_id)i;
        const struct tt_op_row *row = tt_op_row(op);
        int n = 0;

        while (n < TT_MAX_INPUTS && row->in[n] != TT_TYPE_NONE)
            n++;
        good = refuses(op, n - 1, TT_F32, TT_NONE, "wants") && good;
        if (n > 1 && op != TT_OP_EMBEDDING) /* one input may have any shape, and so may the two of an embedding */
            good = refuses(op, n, TT_F32, TT_NONE, "(4, 6) (5, 7)") && good;
        for (int wrong = 0; wrong < n; wrong++)
            good = refuses(op, n, TT_F32, wrong, "F16") && good;
        good = refuses(op, n, TT_F64, TT_NONE, "F64") && good;
    }
    printf("%s - every op refuses a wrong number of inputs, wrong shapes and wrong types\n", good ? "ok" : "not ok");
    return good;
}

static void build_debugmodel(struct tt_graph *graph)
{
    build_llama(graph, &(struct llama){8, 256, 6, 256, 16, 16, 16, 768, 2048, false, false});
}

/* Prints the shortest time of each op over several steps, since other work on the machine can only add time. */
static void bench(int threads)
{
    struct test test = {.name = "bench", .draw.rng = tt_rng_make(5, "bench")};
    double best[TT_OPS], total = 0.0;
    enum { STEPS = 8 };

    prepare(&test, build_debugmodel);
    if (tt_team_new(threads, &test.team) < 0)
        abort();
    for (int step = 0; step < STEPS; step++) {
        memset(test.interp->op_seconds, 0, sizeof test.interp->op_seconds);
        memset(test.interp->op_flops, 0, sizeof test.interp->op_flops);
        (void)interp_run(test.interp, test.team, INTERP_ALL);
        for (int op = 0; op < TT_OPS; op++)
            best[op] = step ? fmin(best[op], test.interp->op_seconds[op]) : test.interp->op_seconds[op];
    }
    for (int op = 0; op < TT_OPS; op++)
        total += best[op];
    for (int op = 0; op < TT_OPS; op++) {
        if (best[op] > 0.0) {
            printf("%-16s %8.2f ms a step  %5.1f %%  %7.2f GF/s\n", tt_op_row((enum tt_op_id)op)->name, 1e3 * best[op],
                   100.0 * best[op] / total, 1e-9 * test.interp->op_flops[op] / best[op]);
        }
    }
    printf("%-16s %8.2f ms a step on %d threads\n", "all ops", 1e3 * total, threads);
    interp_free(test.interp);
    tt_graph_free(test.graph);
    tt_team_free(test.team);
}

int main(int argc, char **argv)
{
    bool good = true;

    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench(argc > 2 ? (int)strtol(argv[2], NULL, 10) : 1);
        return 0;
    }
    for (int i = 0; i < n_grad_cases; i++) {
        if (argc < 2 || strncmp(argv[1], grad_cases[i].name, strlen(argv[1])) == 0)
            good = run_case(&grad_cases[i]) && good;
    }
    if (argc < 2)
        good = check_all_covered() && good;
    good = check_nonfinite() && good;
    good = check_inference() && good;
    return good ? 0 : 1;
}
