/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/math/bf16.h"
#include "core/math/dynamic.h"
#include "core/math/exact.h"
#include "core/math/rng.h"
#include "core/ops/step/step.h"
#include "core/os/file.h"

enum { N = 6, STEPS = 5 };

/* Whole rows of w elements. */
#define WIDE(w) .width = (w), .stride = (w), .grain = (w), .adds = true

static const float start[N] = {-0x1.f276a8p-2F, -0x1.35281ap-1F, -0x1.1dbecap-1F,
                               0x1.55c5bep-1F,  -0x1.944e5ep-3F, 0x1.f15a42p+0F};
static const float grads[STEPS][N] = {
    {-0x1.66d5f2p+0F, -0x1.3857eap-4F, 0x1.4af00ap-11F, -0x1.1fb928p+3F, 0.0F, 0x1.72d3aap-21F},
    {0x1.c7985ep-3F, -0x1.10e2c8p-4F, 0x1.66f32p-11F, 0x1.6f5c6cp+2F, 0.0F, 0x1.9c4914p-21F},
    {0x1.d3b3fcp-5F, -0x1.e72af6p-4F, -0x1.28afcap-11F, -0x1.0a73p+3F, 0.0F, 0x1.c65874p-23F},
    {0x1.caad9ap-2F, -0x1.f2bf8ep-5F, 0x1.f51b46p-13F, 0x1.2cba84p+2F, 0.0F, -0x1.2bf7b2p-21F},
    {0x1.b7d2fep-2F, -0x1.cfbb6ep-3F, -0x1.a7058cp-13F, 0x1.55aaeap+3F, 0.0F, -0x1.2594bcp-24F}};

/* From PyTorch 2.15 after five steps in float32: lr 3e-3, betas 0.9 and 0.95, eps 1e-8, weight_decay 0.1. */
struct reference {
    float param[N], exp_avg[N], exp_avg_sq[N];
};
static const struct reference adamw = {
    {-0x1.eb6c5ap-2F, -0x1.2d4772p-1F, -0x1.21d9b2p-1F, 0x1.57ccdcp-1F, -0x1.93b336p-3F, 0x1.edebaep+0F},
    {0x1.8dd762p-7F, -0x1.8612e8p-5F, 0x1.88c492p-15F, 0x1.4a1444p-1F, 0.0F, 0x1.075a8cp-24F},
    {0x1.9ddb04p-4F, 0x1.f2bcd8p-9F, 0x1.dce2f2p-25F, 0x1.d2a1a2p+3F, 0.0F, 0x1.164a98p-44F}};
static const struct reference adam = {
    {-0x1.eb8058p-2F, -0x1.2d9394p-1F, -0x1.1610ccp-1F, 0x1.5843f8p-1F, -0x1.759c56p-3F, 0x1.ed834ap+0F},
    {-0x1.f2c2eap-8F, -0x1.2735fep-4F, -0x1.713c2p-6F, 0x1.5826c8p-1F, -0x1.0003ecp-7F, 0x1.44c3p-4F},
    {0x1.a127e8p-4F, 0x1.f5cf9ep-8F, 0x1.675ac2p-11F, 0x1.d3cd54p+3F, 0x1.5ab614p-14F, 0x1.15f9b6p-7F}};

static struct tt_scalars scalars_of_step(int step)
{
    return (struct tt_scalars){.clip = 1.0F,
                               .lr = 3e-3,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .bias_correction1 = 1.0 - pow(0.9, step),
                               .bias_correction2 = 1.0 - pow(0.95, step)};
}

/* The step ops on the host. */
static void adamw_rows(struct tt_team *team, const struct tt_scalars *scalars, bool decoupled,
                       const struct tt_rows *rows, int n_rows, float *param, const float *grad, float *exp_avg,
                       float *exp_avg_sq)
{
    const struct tt_step_call call = {.op = decoupled ? TT_STEP_ADAMW : TT_STEP_ADAM,
                                      .in = grad,
                                      .out = {param, exp_avg, exp_avg_sq},
                                      .rows = rows,
                                      .n_rows = n_rows,
                                      .scalars = scalars,
                                      .team = team};

    tt_step_row(call.op)->run(&call);
}

static void sum_squares(struct tt_team *team, const struct tt_rows *rows, int n_rows, const float *grad,
                        struct tt_exact *sum)
{
    const struct tt_step_call call = {.in = grad, .out = {sum}, .rows = rows, .n_rows = n_rows, .team = team};

    tt_step_row(TT_STEP_SQUARES)->run(&call);
}

static void sum_floats(const float *values, int64_t n, struct tt_exact *sum)
{
    const struct tt_step_call call = {.in = values, .out = {sum}, .n = n};

    tt_step_row(TT_STEP_SUM)->run(&call);
}

static struct tt_team *new_team(int threads)
{
    struct tt_team *team = NULL;

    assert_int_equal(tt_team_new(threads, &team), 0);
    return team;
}

/* Within a few roundings of the largest term: PyTorch's vector code fuses multiplications and additions. */
static void assert_near(const char *what, const float *got, const float *wanted, const double *term)
{
    for (int i = 0; i < N; i++) {
        if (fabs((double)got[i] - (double)wanted[i]) > 0x1p-22 * fmax(term[i], fabs((double)wanted[i])))
            fail_msg("%s[%d]: %a, wanted %a", what, i, (double)got[i], (double)wanted[i]);
    }
}

static void five_steps(bool decoupled, float clip, const struct reference *wanted)
{
    struct tt_team *team = new_team(1);
    const struct tt_rows rows = {.rows = 2, WIDE(3), .lr_factor = 1.0};
    float param[N], grad[N], exp_avg[N] = {0}, exp_avg_sq[N] = {0};
    double none[N] = {0.0}, term[N] = {0.0};

    memcpy(param, start, sizeof param);
    for (int s = 0; s < STEPS; s++) {
        struct tt_scalars scalars = scalars_of_step(s + 1);

        scalars.clip = clip;
        for (int i = 0; i < N; i++)
            grad[i] = grads[s][i] / clip;
        for (int i = 0; i < N; i++)
            term[i] = fmax(term[i], 0.1 * fabs((double)grads[s][i]));
        adamw_rows(team, &scalars, decoupled, &rows, 1, param, grad, exp_avg, exp_avg_sq);
    }
    assert_near("param", param, wanted->param, none);
    assert_near("exp_avg", exp_avg, wanted->exp_avg, term);
    assert_near("exp_avg_sq", exp_avg_sq, wanted->exp_avg_sq, none);
    tt_team_free(team);
}

static void adamw_is_pytorchs(void **state)
{
    five_steps(true, 1.0F, &adamw);
}

static void adam_is_pytorchs(void **state)
{
    five_steps(false, 1.0F, &adam);
}

static void clip_scales_the_gradient_first(void **state)
{
    five_steps(true, 0.25F, &adamw);
    five_steps(false, 0.25F, &adam); /* clipping comes before weight decay is added */
}

struct arrays {
    float *param, *grad, *exp_avg, *exp_avg_sq;
};

/* Elements first to first + n - 1 of one endless sequence, stored from `at` on, with NaN all around. */
static struct arrays make_arrays(int64_t n, int64_t at, int64_t first)
{
    struct tt_rng rng = tt_rng_make(1, "arrays");
    struct arrays a;
    float **array[4] = {&a.param, &a.grad, &a.exp_avg, &a.exp_avg_sq};

    for (int k = 0; k < 4; k++) {
        *array[k] = tt_calloc((size_t)(n + at + 8), sizeof(float));
        for (int64_t i = 0; i < n + at + 8; i++)
            (*array[k])[i] = NAN;
        for (int64_t i = 0; i < n; i++) {
            double x = tt_rng_normal(&rng, (uint64_t)(4 * (first + i) + k), 0.0);

            (*array[k])[at + i] = (float)(k == 3 ? x * x : x);
        }
    }
    return a;
}

static void free_arrays(struct arrays *a)
{
    tt_free(a->param);
    tt_free(a->grad);
    tt_free(a->exp_avg);
    tt_free(a->exp_avg_sq);
}

/* One call on 3 segments with 3 threads equals calls on pieces of any alignment and length. No other element
 * changes. */
static void bits_do_not_depend_on_the_split(void **state)
{
    enum { ROWS = 300, WIDTH = 173, TOTAL = ROWS * WIDTH };
    const struct tt_rows whole[3] = {{.rows = 100, WIDE(WIDTH), .lr_factor = 1.0},
                                     {.begin = (int64_t)100 * WIDTH, .rows = 199, WIDE(WIDTH), .lr_factor = 1.0},
                                     {.begin = (int64_t)299 * WIDTH, .rows = WIDTH, WIDE(1), .lr_factor = 1.0}};
    struct tt_scalars scalars = scalars_of_step(3);
    struct tt_team *one = new_team(1), *three = new_team(3);
    struct arrays a = make_arrays(TOTAL, 0, 0);

    scalars.clip = 0.37F;
    adamw_rows(three, &scalars, true, whole, 3, a.param, a.grad, a.exp_avg, a.exp_avg_sq);
    for (int64_t row = 0, rows = 1; row < ROWS; row += rows, rows = rows * 3 % 37) {
        int64_t at = row % 5;
        struct arrays b;

        rows = row + rows > ROWS ? ROWS - row : rows;
        b = make_arrays(rows * WIDTH, at, row * WIDTH);
        adamw_rows(one, &scalars, true, &(struct tt_rows){.begin = at, .rows = rows, WIDE(WIDTH), .lr_factor = 1.0}, 1,
                   b.param, b.grad, b.exp_avg, b.exp_avg_sq);
        assert_memory_equal(b.param + at, a.param + row * WIDTH, (size_t)(rows * WIDTH) * sizeof(float));
        assert_memory_equal(b.exp_avg + at, a.exp_avg + row * WIDTH, (size_t)(rows * WIDTH) * sizeof(float));
        assert_memory_equal(b.exp_avg_sq + at, a.exp_avg_sq + row * WIDTH, (size_t)(rows * WIDTH) * sizeof(float));
        for (int64_t i = 0; i < 8; i++)
            assert_true(isnan(b.param[at + rows * WIDTH + i]) && isnan(b.exp_avg[at + rows * WIDTH + i]));
        for (int64_t i = 0; i < at; i++)
            assert_true(isnan(b.param[i]) && isnan(b.exp_avg_sq[i]));
        free_arrays(&b);
    }
    free_arrays(&a);
    tt_team_free(one);
    tt_team_free(three);
}

/* A parameter of a group is updated like any other, with the group's numbers as scalars. */
static void groups_have_their_own_numbers(void **state)
{
    enum { WIDTH = 11, HALF = 5 * WIDTH };
    const struct tt_rows both[2] = {{.rows = 5, WIDE(WIDTH), .lr_factor = 0.25, .no_decay = true},
                                    {.begin = HALF, .rows = 5, WIDE(WIDTH), .lr_factor = 1.0}};
    const struct tt_rows plain[2] = {{.rows = 5, WIDE(WIDTH), .lr_factor = 1.0},
                                     {.begin = HALF, .rows = 5, WIDE(WIDTH), .lr_factor = 1.0}};
    struct tt_team *team = new_team(1);

    for (int decoupled = 0; decoupled < 2; decoupled++) {
        struct tt_scalars scalars = scalars_of_step(3);
        struct arrays a = make_arrays(2 * HALF, 0, 0), b = make_arrays(2 * HALF, 0, 0);

        adamw_rows(team, &scalars, decoupled, both, 2, a.param, a.grad, a.exp_avg, a.exp_avg_sq);
        adamw_rows(team, &scalars, decoupled, &plain[1], 1, b.param, b.grad, b.exp_avg, b.exp_avg_sq);
        scalars.lr *= 0.25;
        scalars.weight_decay = 0.0;
        adamw_rows(team, &scalars, decoupled, &plain[0], 1, b.param, b.grad, b.exp_avg, b.exp_avg_sq);
        assert_memory_equal(a.param, b.param, 2 * HALF * sizeof(float));
        assert_memory_equal(a.exp_avg, b.exp_avg, 2 * HALF * sizeof(float));
        assert_memory_equal(a.exp_avg_sq, b.exp_avg_sq, 2 * HALF * sizeof(float));
        free_arrays(&a);
        free_arrays(&b);
    }
    tt_team_free(team);
}

/* Compared with the formulas in double; the parts of a parameter get the bits of the whole. */
static void lion_is_the_papers(void **state)
{
    enum { ROWS = 50, WIDTH = 700, ALL = ROWS * WIDTH };
    const struct tt_rng rng = tt_rng_make(3, "lion");
    struct tt_scalars scalars = scalars_of_step(4);
    struct tt_rows rows = {.rows = ROWS, WIDE(WIDTH), .stream = 7, .lr_factor = 2.0};
    float *param = tt_calloc(2 * ALL, sizeof *param), *grad = tt_calloc(ALL, sizeof *grad);
    float *exp_avg = tt_calloc(2 * ALL, sizeof *exp_avg);
    struct tt_step_call call = {.op = TT_STEP_LION,
                                .in = grad,
                                .out = {param, exp_avg},
                                .rows = &rows,
                                .n_rows = 1,
                                .scalars = &scalars,
                                .team = new_team(3)};

    scalars.clip = 0.5F;
    for (int i = 0; i < ALL; i++) {
        param[i] = param[ALL + i] = (float)tt_rng_normal(&rng, (uint64_t)i, 0.0);
        grad[i] = i % 9 ? (float)tt_rng_normal(&rng, (uint64_t)(ALL + i), 0.0) : 0.0F;
        exp_avg[i] = exp_avg[ALL + i] = i % 3 ? (float)tt_rng_normal(&rng, (uint64_t)(2 * ALL + i), 0.0) : 0.0F;
    }
    tt_step_row(call.op)->run(&call);
    for (int i = 0; i < ALL; i++) {
        double g = 0.5 * (double)grad[i], m = (double)exp_avg[ALL + i], mean = 0.9 * m + 0.1 * g;
        double sign = (mean > 0.0) - (mean < 0.0), p = (double)param[ALL + i] * (1.0 - 6e-3 * 0.1) - 6e-3 * sign;

        assert_true(fabs((double)param[i] - p) < 1e-6 && fabs((double)exp_avg[i] - (0.95 * m + 0.05 * g)) < 1e-6);
    }
    for (rows.begin = 0; rows.begin < ALL; rows.begin += rows.rows * WIDTH) {
        rows.rows = rows.begin ? ROWS - 13 : 13;
        rows.index = rows.begin;
        call.out[0] = param + ALL;
        call.out[1] = exp_avg + ALL;
        tt_step_row(call.op)->run(&call);
    }
    assert_memory_equal(param, param + ALL, ALL * sizeof *param);
    assert_memory_equal(exp_avg, exp_avg + ALL, ALL * sizeof *exp_avg);
    tt_team_free(call.team);
    tt_free(param);
    tt_free(grad);
    tt_free(exp_avg);
}

/* --- weights and moments in bfloat16 --- */

/* The mean over all random bits is exactly the value; bfloat16 values, NaN and infinity do not change. */
static void rounding_at_random_keeps_the_mean(void **state)
{
    const float values[] = {1.0F, 0x1.0002p0F, -0x1.fffffep-3F, 0x1.234566p5F, 0x1p-133F, 0x1.8p-148F, 0.0F};

    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        double sum = 0.0;

        for (int random = 0; random <= UINT16_MAX; random++)
            sum += (double)tt_bf16_to_float(tt_bf16_from_float_random(values[i], (uint16_t)random));
        assert_true(sum / 65536.0 == (double)values[i]);
    }
    for (int random = 0; random <= UINT16_MAX; random += 5) {
        assert_true(tt_bf16_to_float(tt_bf16_from_float_random(1.5F, (uint16_t)random)) == 1.5F);
        assert_true(isnan(tt_bf16_to_float(tt_bf16_from_float_random(NAN, (uint16_t)random))));
        assert_true(isinf(tt_bf16_to_float(tt_bf16_from_float_random(-INFINITY, (uint16_t)random))));
    }
}

enum { MANY = 4096 };

struct halves {
    tt_bf16 param[MANY], exp_avg[MANY], exp_avg_sq[MANY];
};

static void adamw_halves(struct tt_team *team, const struct tt_scalars *scalars, const struct tt_rows *rows, int n_rows,
                         struct halves *at, const float *grad)
{
    const struct tt_step_call call = {.op = TT_STEP_ADAMW,
                                      .in = grad,
                                      .out = {at->param, at->exp_avg, at->exp_avg_sq},
                                      .rows = rows,
                                      .n_rows = n_rows,
                                      .scalars = scalars,
                                      .dtype = TT_BF16,
                                      .team = team};

    tt_step_row(call.op)->run(&call);
}

/* A step changes a weight of 1 by 2^-12, a sixteenth of the distance to the next smaller bfloat16. */
static void steps_too_small_for_bfloat16_count_on_average(void **state)
{
    enum { LONG = 256 };
    const struct tt_rows rows = {.rows = MANY, WIDE(1), .lr_factor = 1.0, .stream = 5};
    struct tt_team *team = new_team(1);
    struct halves at;
    float grad[MANY];
    double mean = 0.0;

    for (int i = 0; i < MANY; i++) {
        at.param[i] = at.exp_avg[i] = at.exp_avg_sq[i] = tt_bf16_from_float(1.0F);
        grad[i] = 1.0F;
    }
    for (int s = 0; s < LONG; s++) {
        const struct tt_scalars scalars = {.clip = 1.0F,
                                           .lr = 0x1p-12,
                                           .beta1 = 0.9,
                                           .beta2 = 0.95,
                                           .bias_correction1 = 1.0,
                                           .bias_correction2 = 1.0,
                                           .step_seed = tt_rng_seed_of_step(7, s + 1)};

        adamw_halves(team, &scalars, &rows, 1, &at, grad);
    }
    for (int i = 0; i < MANY; i++)
        mean += (double)tt_bf16_to_float(at.param[i]) / MANY;
    /* a rounding has a variance of at most 2^-18 (a quarter of 2^-16), and each of MANY weights is rounded LONG
     * times */
    assert_true(fabs(mean - (1.0 - LONG * 0x1p-12)) < 5.0 * sqrt(LONG * 0x1p-18 / MANY));
    tt_team_free(team);
}

/* Parts of a parameter at other addresses draw the random bits of their elements. Other steps and parameters draw
 * others. */
static void random_bits_belong_to_elements(void **state)
{
    enum { WIDTH = 37, ROWS = 100, TOTAL = ROWS * WIDTH };
    const struct tt_rows whole = {.rows = ROWS, WIDE(WIDTH), .lr_factor = 1.0, .stream = 9};
    struct tt_scalars scalars = scalars_of_step(3);
    struct tt_team *one = new_team(1), *three = new_team(3);
    struct arrays from = make_arrays(TOTAL, 0, 0);
    struct halves before, all, part;

    for (int i = 0; i < MANY; i++) {
        before.param[i] = tt_bf16_from_float(i < TOTAL ? from.param[i] : 0.0F);
        before.exp_avg[i] = tt_bf16_from_float(i < TOTAL ? from.exp_avg[i] : 0.0F);
        before.exp_avg_sq[i] = tt_bf16_from_float(i < TOTAL ? from.exp_avg_sq[i] : 0.0F);
    }
    scalars.step_seed = 11;
    all = before;
    adamw_halves(three, &scalars, &whole, 1, &all, from.grad);
    for (int64_t row = 0, rows; row < ROWS; row += rows) {
        struct tt_rows some = {WIDE(WIDTH), .lr_factor = 1.0, .stream = 9, .index = row * WIDTH};
        size_t bytes;

        rows = some.rows = row % 7 + 1 > ROWS - row ? ROWS - row : row % 7 + 1;
        bytes = (size_t)(rows * WIDTH) * sizeof(tt_bf16);
        memcpy(part.param, before.param + row * WIDTH, bytes);
        memcpy(part.exp_avg, before.exp_avg + row * WIDTH, bytes);
        memcpy(part.exp_avg_sq, before.exp_avg_sq + row * WIDTH, bytes);
        adamw_halves(one, &scalars, &some, 1, &part, from.grad + row * WIDTH);
        assert_memory_equal(part.param, all.param + row * WIDTH, bytes);
        assert_memory_equal(part.exp_avg, all.exp_avg + row * WIDTH, bytes);
        assert_memory_equal(part.exp_avg_sq, all.exp_avg_sq + row * WIDTH, bytes);
    }
    for (int64_t column = 0, columns; column < WIDTH; column += columns) {
        struct tt_rows some = {.rows = ROWS, .stride = WIDTH, .lr_factor = 1.0, .stream = 9, .index = column};
        float grad[TOTAL];

        columns = some.width = column % 5 + 1 > WIDTH - column ? WIDTH - column : column % 5 + 1;
        for (int64_t i = 0; i < ROWS * columns; i++) {
            int64_t from_whole = i / columns * WIDTH + column + i % columns;

            part.param[i] = before.param[from_whole];
            part.exp_avg[i] = before.exp_avg[from_whole];
            part.exp_avg_sq[i] = before.exp_avg_sq[from_whole];
            grad[i] = from.grad[from_whole];
        }
        adamw_halves(one, &scalars, &some, 1, &part, grad);
        for (int64_t i = 0; i < ROWS * columns; i++)
            assert_int_equal(part.param[i], all.param[i / columns * WIDTH + column + i % columns]);
    }
    for (int k = 0; k < 2; k++) {
        struct tt_rows other = whole;

        scalars.step_seed = k ? 11 : 12;
        other.stream = k ? 10 : 9;
        part = before;
        adamw_halves(one, &scalars, &other, 1, &part, from.grad);
        assert_memory_not_equal(part.param, all.param, TOTAL * sizeof(tt_bf16));
    }
    free_arrays(&from);
    tt_team_free(one);
    tt_team_free(three);
}

static void empty_segments_are_allowed(void **state)
{
    const struct tt_rows rows[3] = {{.rows = 0, WIDE(5), .lr_factor = 1.0},
                                    {.rows = 2, WIDE(3), .lr_factor = 1.0},
                                    {.begin = 6, .rows = 0, WIDE(1), .lr_factor = 1.0}};
    struct tt_scalars scalars = scalars_of_step(1);
    struct tt_team *team = new_team(2);
    struct arrays a = make_arrays(6, 0, 0), b = make_arrays(6, 0, 0);
    struct tt_exact sum = {0}, none = {0};

    adamw_rows(team, &scalars, true, rows, 3, a.param, a.grad, a.exp_avg, a.exp_avg_sq);
    adamw_rows(team, &scalars, true, rows + 1, 1, b.param, b.grad, b.exp_avg, b.exp_avg_sq);
    assert_memory_equal(a.param, b.param, 6 * sizeof(float));
    adamw_rows(team, &scalars, true, rows, 1, a.param, a.grad, a.exp_avg, a.exp_avg_sq);
    assert_memory_equal(a.param, b.param, 6 * sizeof(float));
    sum_squares(team, rows, 3, a.grad, &sum);
    sum_squares(team, rows, 0, a.grad, &none);
    assert_true(tt_exact_value(&sum) > 0.0 && tt_exact_value(&none) == 0.0);
    free_arrays(&a);
    free_arrays(&b);
    tt_team_free(team);
}

static void sum_of_squares_is_right(void **state)
{
    enum { ROWS = 40, WIDTH = 5003, TOTAL = ROWS * WIDTH };
    const struct tt_rows rows = {.begin = 3, .rows = ROWS, WIDE(WIDTH), .lr_factor = 1.0};
    struct tt_team *team = new_team(2);
    struct arrays a = make_arrays(TOTAL, 3, 0);
    struct tt_exact sum = {0}, small = {0};
    const float numbers[5] = {3.0F, 1e-20F, -4.0F, 1e18F, 0.0F};
    long double wanted = 0.0L;

    for (int64_t i = 0; i < TOTAL; i++)
        wanted += (long double)a.grad[3 + i] * (long double)a.grad[3 + i];
    sum_squares(team, &rows, 1, a.grad, &sum);
    assert_true(fabs(tt_exact_value(&sum) / (double)wanted - 1.0) < 1e-14);
    tt_exact_add(&small, 1.0); /* it is added to the old value */
    sum_squares(team, &(struct tt_rows){.rows = 3, WIDE(1), .lr_factor = 1.0}, 1, numbers, &small);
    assert_true(tt_exact_value(&small) == 26.0);
    free_arrays(&a);
    tt_team_free(team);
}

static void sum_of_squares_does_not_depend_on_the_split(void **state)
{
    enum { ROWS = 700, WIDTH = 301, TOTAL = ROWS * WIDTH };
    struct tt_team *one = new_team(1), *three = new_team(3);
    struct arrays a = make_arrays(TOTAL, 0, 0);
    struct tt_exact whole = {0}, parts = {0};
    struct tt_rows rows[ROWS];
    int n = 0;

    for (int64_t i = 0; i < TOTAL; i++)
        a.grad[i] = ldexpf(a.grad[i], (int)(i * 7 % 80) - 40);
    sum_squares(three, &(struct tt_rows){.rows = ROWS, WIDE(WIDTH), .lr_factor = 1.0}, 1, a.grad, &whole);
    for (int64_t row = 0, step; row < ROWS; row += step) {
        step = row % 11 + 1 > ROWS - row ? ROWS - row : row % 11 + 1;
        rows[n++] = (struct tt_rows){.begin = row * WIDTH, .rows = step, WIDE(WIDTH), .lr_factor = 1.0};
    }
    sum_squares(one, rows + n / 2, n - n / 2, a.grad, &parts);
    sum_squares(three, rows, n / 2, a.grad, &parts);
    assert_memory_equal(&whole, &parts, sizeof whole);
    free_arrays(&a);
    tt_team_free(one);
    tt_team_free(three);
}

/* Four grains of columns give the same sum when two ranks have two each, and when one rank has all. */
static void sum_of_squares_does_not_depend_on_who_has_which_columns(void **state)
{
    enum { ROWS = 70, WIDTH = 404, GRAIN = WIDTH / 4, TOTAL = ROWS * WIDTH };
    struct tt_team *team = new_team(2);
    struct arrays a = make_arrays(TOTAL, 0, 0);
    struct tt_rows whole = {.rows = ROWS, WIDE(WIDTH), .lr_factor = 1.0};
    struct tt_exact one = {0}, two = {0}, other = {0};
    float half[TOTAL / 2];

    for (int64_t i = 0; i < TOTAL; i++)
        a.grad[i] = ldexpf(a.grad[i], (int)(i * 7 % 80) - 40);
    sum_squares(team, &whole, 1, a.grad, &other);
    whole.grain = GRAIN;
    sum_squares(team, &whole, 1, a.grad, &one);
    for (int64_t column = 0; column < WIDTH; column += WIDTH / 2) {
        struct tt_rows part = whole;

        part.width = WIDTH / 2;
        for (int64_t i = 0; i < TOTAL / 2; i++)
            half[i] = a.grad[i / part.width * WIDTH + column + i % part.width];
        sum_squares(team, &part, 1, half, &two);
        part.adds = false; /* another rank adds it */
        sum_squares(team, &part, 1, half, &two);
    }
    assert_memory_equal(&one, &two, sizeof one);
    assert_memory_not_equal(&one, &other, sizeof one);
    free_arrays(&a);
    tt_team_free(team);
}

static void non_finite_gradients_make_the_norm_non_finite(void **state)
{
    const float bad[4] = {1.0F, NAN, 2.0F, INFINITY};
    struct tt_team *team = new_team(1);
    struct tt_exact sum = {0}, floats = {0};

    sum_squares(team, &(struct tt_rows){.rows = 2, WIDE(2), .lr_factor = 1.0}, 1, bad, &sum);
    assert_int_equal(sum.nonfinite, 2);
    assert_true(isnan(tt_exact_value(&sum)));
    sum_floats(bad, 4, &floats);
    assert_int_equal(floats.nonfinite, 2);
    tt_team_free(team);
}

static void floats_are_summed_exactly(void **state)
{
    const float values[6] = {1e30F, 3.25F, -1e30F, 0x1p-149F, -0x1p-149F, 1.0F};
    struct tt_exact sum = {0};

    sum_floats(values, 6, &sum);
    sum_floats(values, 0, &sum);
    assert_true(tt_exact_value(&sum) == 4.25);
}

/* The sums are in double, and the same wherever the elements begin. */
static void averages_follow_the_weights(void **state)
{
    enum { MOST = 40000, STEPS_HERE = 3 };
    static const int64_t sizes[] = {1, 7, 16384, 16385, MOST};
    static float weight[MOST], average[MOST], again[MOST];
    static tt_bf16 half[MOST];
    static double wanted[MOST];
    struct tt_rng rng = tt_rng_make(4, "averages");
    struct tt_scalars scalars = {.average_decay = 0.99};
    struct tt_team *team = NULL;

    assert_int_equal(tt_team_new(3, &team), 0);
    for (int k = 0; k < 2 * (int)(sizeof sizes / sizeof *sizes); k++) {
        int64_t n = sizes[k / 2];
        struct tt_step_call call = {.op = TT_STEP_AVERAGE,
                                    .in = k % 2 ? (const void *)half : weight,
                                    .out = {average},
                                    .n = n,
                                    .scalars = &scalars,
                                    .dtype = k % 2 ? TT_BF16 : TT_F32,
                                    .team = team};

        for (int64_t i = 0; i < n; i++)
            wanted[i] = (double)(again[i] = average[i] = (float)tt_rng_normal(&rng, (uint64_t)i, 3.0));
        for (int s = 0; s < STEPS_HERE; s++) {
            for (int64_t i = 0; i < n; i++) {
                weight[i] = (float)tt_rng_normal(&rng, (uint64_t)(i + (s + 1) * MOST), 3.0);
                half[i] = tt_bf16_from_float(weight[i]);
                wanted[i] = 0.99 * wanted[i] + 0.01 * (double)(k % 2 ? tt_bf16_to_float(half[i]) : weight[i]);
            }
            tt_step_row(call.op)->run(&call);
            for (int64_t i = n - 1; i >= 0; i--) { /* one by one */
                struct tt_step_call one = call;

                one.n = 1;
                one.in = k % 2 ? (const void *)(half + i) : weight + i;
                one.out[0] = again + i;
                if (n < MOST)
                    tt_step_row(one.op)->run(&one);
            }
        }
        for (int64_t i = 0; i < n; i++)
            if (!(fabs((double)average[i] - wanted[i]) <= 1e-6 * (1.0 + fabs(wanted[i]))))
                fail_msg("element %d of %d is %.9g, wanted %.9g", (int)i, (int)n, (double)average[i], wanted[i]);
        if (n < MOST)
            assert_memory_equal(average, again, (size_t)n * sizeof *average);
    }
    tt_team_free(team);
}

/* --- moments in blocks --- */

/* Brute force, for values at and between all numbers, and of all magnitudes. */
static void codes_are_the_nearest(void **state)
{
    const struct tt_rng rng = tt_rng_make(1, "codes");

    for (int is_signed = 0; is_signed <= 1; is_signed++) {
        const struct tt_dynamic *map = tt_dynamic_map(is_signed);

        for (int i = 0; i < 1 << 17; i++) {
            double random = tt_rng_uniform(&rng, (uint64_t)i);
            float x = i < 256   ? map->number[i]
                      : i < 512 ? map->middle[i - 256]
                      : i % 2   ? (float)random
                                : (float)exp2(-40.0 * random);
            uint8_t code;
            double best = 2.0;

            x = i == 511 ? 1.0F : is_signed && i % 3 == 0 ? -x : x;
            code = tt_dynamic_code(map, x);
            for (int k = 0; k < TT_DYNAMIC_CODES; k++)
                best = fmin(best, fabs((double)map->number[k] - (double)x));
            /* middles are rounded */
            if (fabs((double)map->number[code] - (double)x) > best + 0x1p-23 * fabs((double)x))
                fail_msg("map %d: %a has code %d", is_signed, (double)x, code);
        }
        assert_int_equal(tt_dynamic_code(map, 0.0F), is_signed ? 127 : 0);
        assert_int_equal(tt_dynamic_code(map, -0.0F), is_signed ? 127 : 0);
    }
}

/* The parameter, gradients and options of data/make_adamw8bit.py. */
enum { BLOCKS_N = 4100, BLOCKS = 24, BLOCKS_STEPS = 50, BLOCKS_EACH = 16 };

struct in_blocks {
    float param[BLOCKS_N];
    uint8_t code[2][BLOCKS_N];
    float largest[2][BLOCKS];
};

/* scale: of the elements of five blocks in turn */
static void next_numbers(uint64_t *random, const float *scale, float *x)
{
    for (int i = 0; i < BLOCKS_N; i++) {
        *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        x[i] = (float)((int)((*random >> 33) % 8192) - 4096) / 65536.0F * scale[i / 256 % 5];
    }
}

static void adamw_8bit(struct tt_team *team, const struct tt_scalars *scalars, const struct tt_rows *rows, int n_rows,
                       struct in_blocks *at, const float *grad)
{
    const struct tt_step_call call = {.op = TT_STEP_ADAMW_8BIT,
                                      .in = grad,
                                      .out = {at->param, at->code[0], at->code[1]},
                                      .largest = {at->largest[0], at->largest[1]},
                                      .rows = rows,
                                      .n_rows = n_rows,
                                      .scalars = scalars,
                                      .team = team};

    tt_step_row(call.op)->run(&call);
}

static float of_bits(const json_t *list, int i)
{
    uint32_t bits = (uint32_t)json_integer_value(json_array_get(list, (size_t)i));
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/*
 * torch fuses some multiplications and additions, so moments may differ by a few roundings. Where one is in the middle
 * of two numbers, its code may then be the other one of the two. From then on it differs by a step of the quantization,
 * up to a seventieth of the block's largest magnitude in the first moment, and less in the second, and so does the
 * update of its parameter.
 */
static void must_be_bitsandbytes(const struct in_blocks *at, const json_t *golden, int steps)
{
    const json_t *wanted = json_object_get(golden, steps == 1 ? "1" : "50");
    int others = 0, far = 0;

    for (int k = 0; k < 2; k++) {
        const struct tt_dynamic *map = tt_dynamic_map(k == 0);
        const json_t *largest = json_array_get(json_object_get(wanted, "largest"), (size_t)k);
        const char *codes = json_string_value(json_array_get(json_object_get(wanted, "code"), (size_t)k));

        for (int b = 0; b < (int)json_array_size(largest); b++)
            if (fabsf(at->largest[k][b] - of_bits(largest, b)) > (steps == 1 ? 0x1p-22F : 0x1p-7F) * at->largest[k][b])
                fail_msg("step %d, moment %d, block %d: %a, wanted %a", steps, k, b, (double)at->largest[k][b],
                         (double)of_bits(largest, b));
        for (int i = 0; i < BLOCKS_N; i += BLOCKS_EACH) {
            unsigned code;

            assert_int_equal(sscanf(codes + i / BLOCKS_EACH * 2, "%2x", &code), 1);
            others += code != at->code[k][i];
            if (fabsf(map->number[code] - map->number[at->code[k][i]]) > 0.0145F)
                fail_msg("step %d, moment %d of element %d: code %d, wanted %u", steps, k, i, at->code[k][i], code);
        }
    }
    assert_true(others <= (steps == 1 ? 5 : 20)); /* of 514 */
    for (int i = 0; i < BLOCKS_N; i += BLOCKS_EACH) {
        float param = of_bits(json_object_get(wanted, "param"), i / BLOCKS_EACH), off = fabsf(at->param[i] - param);

        far += off > (steps == 1 ? 0x1p-30F : 1e-5F);
        assert_true(off < 1e-3F); /* a step is about as large */
    }
    assert_true(far <= (steps == 1 ? 0 : 35)); /* of 257 */
}

static void adamw_8bit_is_bitsandbytes(void **state)
{
    static struct in_blocks at;
    static float grad[BLOCKS_N];
    const struct tt_rows rows = {.rows = BLOCKS_N, WIDE(1), .lr_factor = 1.0};
    struct tt_team *team = new_team(2);
    json_t *golden = NULL;
    uint64_t random = 1;

    assert_int_equal(tt_json_load(TT_SOURCE_DIR "/tests/unit/data/adamw8bit.json", &golden), 0);
    for (int is_signed = 0; is_signed <= 1; is_signed++) { /* FNV-1a */
        const uint8_t *bytes = (const void *)tt_dynamic_map(is_signed)->number;
        uint64_t digest = UINT64_C(0xcbf29ce484222325);
        char text[17];

        for (size_t i = 0; i < TT_DYNAMIC_CODES * sizeof(float); i++)
            digest = (digest ^ bytes[i]) * UINT64_C(0x100000001b3);
        (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)digest);
        assert_string_equal(text, json_string_value(json_object_get(json_object_get(golden, "map"),
                                                                    is_signed ? "signed" : "unsigned")));
    }
    next_numbers(&random, (const float[]){1.0F, 1.0F, 1.0F, 1.0F, 1.0F}, at.param);
    for (int s = 1; s <= BLOCKS_STEPS; s++) {
        struct tt_scalars scalars = scalars_of_step(s);

        scalars.lr = 1e-3;
        next_numbers(&random, (const float[]){1.0F, 0x1p-3F, 0x1p-6F, 0x1p-9F, 0.0F}, grad);
        adamw_8bit(team, &scalars, &rows, 1, &at, grad);
        if (s == 1 || s == BLOCKS_STEPS)
            must_be_bitsandbytes(&at, golden, s);
    }
    json_decref(golden);
    tt_team_free(team);
}

/* A parameter of 5 rows with two runs of 300 elements, each of which is a block of 256 and one of 44; then another
 * parameter, without runs. Their bits are those of every run alone, on any number of threads. */
static void a_block_begins_with_every_run(void **state)
{
    enum { RUN = 300, RUNS = 10, REST = 1000, ALL = RUN * RUNS + REST };
    const float ones[] = {1.0F, 1.0F, 1.0F, 1.0F, 1.0F};
    const struct tt_rows both[] = {
        {.rows = RUNS / 2, WIDE(2 * RUN), .lr_factor = 1.0, .run = RUN},
        {.begin = RUN * RUNS, .rows = REST, WIDE(1), .lr_factor = 1.0, .code = RUN * RUNS, .block = 2 * RUNS}};
    static struct in_blocks whole, alone;
    static float grad[BLOCKS_N];
    struct tt_team *team = new_team(3), *one = new_team(1);
    uint64_t random = 5;

    next_numbers(&random, ones, whole.param);
    alone = whole;
    for (int s = 1; s <= 3; s++) {
        const struct tt_scalars scalars = scalars_of_step(s);

        next_numbers(&random, ones, grad);
        adamw_8bit(team, &scalars, both, 2, &whole, grad);
        for (int r = 0; r <= RUNS; r++)
            adamw_8bit(one, &scalars,
                       &(struct tt_rows){.begin = r * RUN,
                                         .rows = r < RUNS ? RUN : REST,
                                         WIDE(1),
                                         .lr_factor = 1.0,
                                         .code = r * RUN,
                                         .block = r * 2},
                       1, &alone, grad);
    }
    assert_memory_equal(&whole, &alone, sizeof whole);
    assert_true(whole.largest[1][2 * RUNS + 3] > 0.0F);
    assert_true(whole.param[ALL] == alone.param[ALL]);
    tt_team_free(one);
    tt_team_free(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(averages_follow_the_weights),
        cmocka_unit_test(adamw_is_pytorchs),
        cmocka_unit_test(rounding_at_random_keeps_the_mean),
        cmocka_unit_test(steps_too_small_for_bfloat16_count_on_average),
        cmocka_unit_test(random_bits_belong_to_elements),
        cmocka_unit_test(adam_is_pytorchs),
        cmocka_unit_test(lion_is_the_papers),
        cmocka_unit_test(codes_are_the_nearest),
        cmocka_unit_test(adamw_8bit_is_bitsandbytes),
        cmocka_unit_test(a_block_begins_with_every_run),
        cmocka_unit_test(clip_scales_the_gradient_first),
        cmocka_unit_test(bits_do_not_depend_on_the_split),
        cmocka_unit_test(groups_have_their_own_numbers),
        cmocka_unit_test(empty_segments_are_allowed),
        cmocka_unit_test(sum_of_squares_is_right),
        cmocka_unit_test(sum_of_squares_does_not_depend_on_the_split),
        cmocka_unit_test(sum_of_squares_does_not_depend_on_who_has_which_columns),
        cmocka_unit_test(non_finite_gradients_make_the_norm_non_finite),
        cmocka_unit_test(floats_are_summed_exactly),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
