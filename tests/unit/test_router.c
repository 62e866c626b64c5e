/* SPDX-License-Identifier: MIT
 *
 * The choice and the weights of experts, compared with the rule in double, and in cases with known answers.
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
#include "core/ops/experts/router.h"
#include "core/ops/op.h"

enum { EXPERTS = 8, MOST_ROWS = 200 };

/* A router's results for `rows` tokens. */
struct routed {
    int32_t ids[MOST_ROWS * EXPERTS];
    float gates[MOST_ROWS * EXPERTS], scores[MOST_ROWS * EXPERTS];
};

/* Routes tokens whose logits are the rows of x, since the weight is the identity. bias: NULL, or of each expert. */
static void route(const float *x, int64_t rows, const struct tt_attr *attr, const float *bias, struct routed *ret)
{
    struct tt_graph *graph = tt_graph_new();
    int64_t shape[2] = {rows, EXPERTS}, square[2] = {EXPERTS, EXPERTS}, experts = EXPERTS;
    int in[3] = {tt_graph_value(graph, TT_VALUE_ACTIVATION, TT_F32, "x", 2, shape),
                 tt_graph_value(graph, TT_VALUE_PARAM, TT_F32, "w", 2, square),
                 bias ? tt_graph_value(graph, TT_VALUE_PARAM, TT_F32, "bias", 1, &experts) : TT_NONE};
    int node = tt_graph_node(graph, TT_OP_ROUTER, "y", in, 3, attr);
    const struct tt_op_row *row = tt_op_row(TT_OP_ROUTER);
    struct tt_call call = {.graph = graph, .node = &graph->nodes[node]};
    float w[EXPERTS * EXPERTS] = {0.0F};

    for (int i = 0; i < EXPERTS; i++)
        w[i * EXPERTS + i] = 1.0F;
    assert_int_equal(tt_team_new(1, &call.team), 0);
    call.scratch = tt_calloc((size_t)row->scratch_bytes(graph, call.node, 1) + 64, 1);
    call.in[0] = (void *)(uintptr_t)x;
    call.in[1] = w;
    call.in[2] = (void *)(uintptr_t)bias;
    call.out[0] = ret->ids;
    call.out[1] = ret->gates;
    call.out[2] = ret->scores;
    row->run(&call);
    tt_free(call.scratch);
    tt_team_free(call.team);
    tt_graph_free(graph);
}

static void check_ids(const struct routed *got, int64_t row, int k, const int32_t *wanted)
{
    for (int j = 0; j < k; j++)
        if (got->ids[row * k + j] != wanted[j])
            fail_msg("row %d: expert %d is %d, wanted %d", (int)row, j, got->ids[row * k + j], wanted[j]);
}

/* Among equal scores the smaller ids win; a bias affects the choice but not the gates. */
static void ties_and_biases(void **state)
{
    static const float x[2 * EXPERTS] = {1, 3, 3, 0, 3, 2, 2, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    static const float bias[EXPERTS] = {0, 0, 0, 0, -0.5F, 0, 0, 0.9F};
    struct tt_attr attr = {.experts = EXPERTS, .top_k = 2, .router = {.score = TT_SCORE_SIGMOID}};
    static struct routed got;

    route(x, 2, &attr, NULL, &got);
    check_ids(&got, 0, 2, (const int32_t[]){1, 2});
    check_ids(&got, 1, 2, (const int32_t[]){0, 1});
    attr.top_k = 4;
    route(x, 2, &attr, bias, &got); /* the third 3 is worth 0.4526, the -1 is 1.1689 */
    check_ids(&got, 0, 4, (const int32_t[]){1, 2, 5, 7});
    check_ids(&got, 1, 4, (const int32_t[]){0, 1, 2, 7});
    assert_true(fabsf(got.gates[3] - 0.26894142F) < 1e-6F);
    assert_true(got.gates[7] == 0.5F);
}

/* Groups of two: their best experts, or the sum of both, decide which groups are kept. */
static void groups(void **state)
{
    static const float x[EXPERTS] = {5, -9, 2, 2.5F, 3, 1, 4, -8};
    static const float low[EXPERTS] = {-1, -1, -1, -1, -1, -1, -1, -1};
    struct tt_attr attr = {.experts = EXPERTS, .top_k = 2, .router = {.groups = 4, .kept_groups = 2}};
    static struct routed got;

    attr.router.score = TT_SCORE_SIGMOID;
    route(x, 1, &attr, NULL, &got);
    check_ids(&got, 0, 2, (const int32_t[]){0, 6});
    attr.router.group_rule = TT_GROUP_TWO_BEST;
    route(x, 1, &attr, NULL, &got); /* sums: 0.993, 1.805, 1.684, 0.982 */
    check_ids(&got, 0, 2, (const int32_t[]){3, 4});
    route(x, 1, &attr, low, &got); /* all scores are negative: an expert that is not kept does not count as 0 */
    check_ids(&got, 0, 2, (const int32_t[]){3, 4});
    attr.top_k = 4;
    route(x, 1, &attr, low, &got);
    check_ids(&got, 0, 4, (const int32_t[]){2, 3, 4, 5});
}

/* Sigmoids that underflow give gates of 0, not NaN. */
static void no_sum(void **state)
{
    static const float x[EXPERTS] = {-200, -200, -200, -200, -200, -200, -200, -200};
    struct tt_attr attr = {
        .experts = EXPERTS, .top_k = 2, .router = {.score = TT_SCORE_SIGMOID, .normalize = true, .scale = 2.5F}};
    static struct routed got;

    route(x, 1, &attr, NULL, &got);
    check_ids(&got, 0, 2, (const int32_t[]){0, 1});
    assert_true(got.gates[0] == 0.0F && got.gates[1] == 0.0F);
}

/* --- the rule in double --- */

static double choice_of(const struct routed *got, int64_t row, const float *bias, int i)
{
    /* computed from the scores as they are, since the last bit of a sum decides between near ones */
    return (double)(bias ? got->scores[row * EXPERTS + i] + bias[i] : got->scores[row * EXPERTS + i]);
}

/* Does a come before b? Greater values do, and among equal ones the smaller index. */
static bool is_before(const double *value, int a, int b)
{
    return value[a] > value[b] || (value[a] == value[b] && a < b);
}

/* The number of eligible values, of n, that come before value i. */
static int rank_of(const double *value, const bool *counts, int n, int i)
{
    int before = 0;

    for (int j = 0; j < n; j++)
        before += counts[j] && j != i && is_before(value, j, i);
    return before;
}

static void chosen_of(const struct tt_attr *attr, const double *choice, bool *ret_chosen)
{
    int groups = attr->router.groups > 1 ? attr->router.groups : 1, each = EXPERTS / groups;
    double value[EXPERTS] = {0.0};
    bool all[EXPERTS], kept[EXPERTS];

    for (int g = 0; g < groups; g++) {
        double best = -INFINITY, second = -INFINITY;

        for (int i = g * each; i < (g + 1) * each; i++) {
            if (choice[i] > best) {
                second = best;
                best = choice[i];
            } else {
                second = fmax(second, choice[i]);
            }
        }
        value[g] = attr->router.group_rule == TT_GROUP_TWO_BEST ? (double)((float)best + (float)second) : best;
    }
    memset(all, 1, sizeof all);
    for (int i = 0; i < EXPERTS; i++)
        kept[i] = groups == 1 || rank_of(value, all, groups, i / each) < attr->router.kept_groups;
    for (int i = 0; i < EXPERTS; i++)
        ret_chosen[i] = kept[i] && rank_of(choice, kept, EXPERTS, i) < attr->top_k;
}

static double score_of(const struct tt_attr *attr, const float *x, int i)
{
    double sum = 0.0;

    if (attr->router.score == TT_SCORE_SIGMOID)
        return 1.0 / (1.0 + exp(-(double)x[i]));
    for (int j = 0; j < EXPERTS; j++)
        sum += exp((double)x[j] - (double)x[i]);
    return 1.0 / sum;
}

static void check_row(const struct tt_attr *attr, const float *x, const float *bias, const struct routed *got,
                      int64_t row)
{
    double choice[EXPERTS], score[EXPERTS], sum = attr->router.score == TT_SCORE_SIGMOID ? 1e-20 : 0.0, gate;
    double scale = attr->router.scale > 0.0F ? (double)attr->router.scale : 1.0;
    bool chosen[EXPERTS];
    int at = 0;

    for (int i = 0; i < EXPERTS; i++) {
        choice[i] = choice_of(got, row, bias, i);
        score[i] = score_of(attr, x, i);
        assert_true(fabs((double)got->scores[row * EXPERTS + i] - score[i]) < 3e-7);
    }
    chosen_of(attr, choice, chosen);
    for (int i = 0; i < EXPERTS; i++)
        sum += chosen[i] ? score[i] : 0.0;
    for (int i = 0; i < EXPERTS; i++) {
        if (!chosen[i])
            continue;
        assert_int_equal(got->ids[row * attr->top_k + at], i);
        gate = scale * (attr->router.normalize ? score[i] / sum : score[i]);
        assert_true(fabs((double)got->gates[row * attr->top_k + at++] - gate) < 1e-6 * scale);
    }
    assert_int_equal(at, attr->top_k);
}

static void the_rule(void **state)
{
    static const struct tt_router options[] = {
        {.score = TT_SCORE_SOFTMAX},
        {.score = TT_SCORE_SOFTMAX, .normalize = true},
        {.score = TT_SCORE_SOFTMAX, .groups = 4, .kept_groups = 3, .scale = 16.0F},
        {.score = TT_SCORE_SIGMOID, .normalize = true, .scale = 2.5F},
        {.score = TT_SCORE_SIGMOID, .normalize = true, .groups = 4, .kept_groups = 2, .group_rule = TT_GROUP_TWO_BEST},
        {.score = TT_SCORE_SIGMOID, .groups = 2, .kept_groups = 1, .group_rule = TT_GROUP_BEST, .scale = 0.5F},
    };
    static struct routed got;
    static float x[MOST_ROWS * EXPERTS];
    struct tt_rng rng = tt_rng_make(42, "router");
    float bias[EXPERTS];

    for (int i = 0; i < EXPERTS; i++)
        bias[i] = (float)(0.2 * tt_rng_normal(&rng, (uint64_t)i, 0.0));
    for (size_t i = 0; i < MOST_ROWS * EXPERTS; i++) /* few values, so that there are ties */
        x[i] = roundf((float)(4.0 * tt_rng_normal(&rng, 100 + (uint64_t)i, 0.0))) / 4.0F;
    for (size_t o = 0; o < 2 * sizeof options / sizeof *options; o++) {
        const float *with = o % 2 ? bias : NULL;

        for (int k = 1; k <= 4; k++) {
            struct tt_attr attr = {.experts = EXPERTS, .top_k = k, .router = options[o / 2]};

            route(x, MOST_ROWS, &attr, with, &got);
            for (int64_t r = 0; r < MOST_ROWS; r++)
                check_row(&attr, x + r * EXPERTS, with, &got, r);
        }
    }
}

/* Coefficient X f_x of the given loads, whatever experts the tokens of the microbatch chose. Without loads all are
 * even. */
static void factors_of_the_global_batch(void **state)
{
    const struct tt_attr attr = {.top_k = 1, .losses = {.global_batch = 0.5F}};
    const int64_t loads[EXPERTS] = {1, 0, 5, 2, 0, 0, 8, 0}, none[EXPERTS] = {0};
    const int32_t ids[4] = {7, 7, 7, 7};
    float factors[3 * EXPERTS];

    assert_int_equal(tt_router_factor_floats(&attr, 4, EXPERTS), 3 * EXPERTS);
    tt_router_factors(&attr, ids, loads, 4, EXPERTS, factors);
    for (int e = 0; e < EXPERTS; e++)
        assert_true(factors[2 * EXPERTS + e] == 0.5F * EXPERTS * (float)loads[e] / 16.0F);
    tt_router_factors(&attr, ids, none, 4, EXPERTS, factors);
    for (int e = 0; e < EXPERTS; e++)
        assert_true(factors[2 * EXPERTS + e] == 0.5F && factors[e] == 0.0F && factors[EXPERTS + e] == 0.0F);
    tt_router_factors(&attr, ids, NULL, 4, EXPERTS, factors);
    assert_true(factors[2 * EXPERTS] == 0.5F);
}

/* Two sequences of four tokens, of which the second ends with padding, and one that is all padding: f_x counts the
 * slots of tokens, as in a microbatch that has only these tokens. */
static void padding_is_not_counted(void **state)
{
    enum { ROWS = 12, K = 2 };
    const struct tt_attr attr = {.top_k = K, .seq_len = 4, .losses = {.sequence = 0.7F, .microbatch = 0.4F, .z = 0.5F}};
    const int32_t ids[ROWS * K] = {0, 1, 1, 2, 1, 7, 3, 4, 0, 5, 5, 6, ~0, ~1, ~0, ~1, ~2, ~3, ~2, ~3, ~2, ~3, ~2, ~3};
    const double tokens[4] = {4, 2, 0, 6}; /* of each sequence, and of all */
    float factors[5 * EXPERTS], losses[TT_ROUTER_LOSS_ROWS * ROWS], scores[EXPERTS] = {0.5F, 0.5F};

    assert_int_equal(tt_router_factor_floats(&attr, ROWS, EXPERTS), 5 * EXPERTS);
    tt_router_factors(&attr, ids, NULL, ROWS, EXPERTS, factors);
    for (int t = 0; t < 4; t++)
        for (int e = 0; e < EXPERTS; e++) {
            double slots = 0.0, wanted;

            for (int i = t < 3 ? t * 4 * K : 0; i < (t < 3 ? (t + 1) * 4 * K : ROWS * K); i++)
                slots += ids[i] == e;
            wanted = tokens[t] > 0.0 ? (t < 3 ? 0.7 : 0.4) * EXPERTS * slots / (tokens[t] * K) : 0.0;
            assert_true(fabs((double)factors[t * EXPERTS + e] - wanted) < 1e-6);
        }
    for (int64_t r = 5; r < 7; r++)
        tt_router_loss_terms(&attr, tt_router_token_factors(&attr, factors, r, ROWS, EXPERTS),
                             &(struct tt_loss_token){scores, 2.0F, r == 6}, r, ROWS, EXPERTS, losses);
    assert_true(losses[TT_ROUTER_Z * ROWS + 5] == 2.0F && losses[TT_ROUTER_MICROBATCH * ROWS + 5] > 0.0F);
    for (int k = 0; k < TT_ROUTER_LOSSES; k++)
        assert_true(losses[k * ROWS + 6] == 0.0F);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ties_and_biases),
        cmocka_unit_test(groups),
        cmocka_unit_test(no_sum),
        cmocka_unit_test(the_rule),
        cmocka_unit_test(factors_of_the_global_batch),
        cmocka_unit_test(padding_is_not_counted),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
