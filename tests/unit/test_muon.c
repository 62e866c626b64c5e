/* SPDX-License-Identifier: MIT
 *
 * Muon's step ops, against references in double.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/math/bf16.h"
#include "core/math/rng.h"
#include "core/ops/step/step.h"
#include "core/optim/optim.h"

static struct tt_team *new_team(int threads)
{
    struct tt_team *team = NULL;

    assert_int_equal(tt_team_new(threads, &team), 0);
    return team;
}

static float *random_floats(int64_t n, const char *name)
{
    struct tt_rng rng = tt_rng_make(7, name);
    float *data = tt_calloc((size_t)n, sizeof *data);

    for (int64_t i = 0; i < n; i++)
        data[i] = (float)(tt_rng_uniform(&rng, (uint64_t)i) - 0.5);
    return data;
}

/* --- the iteration --- */

/* to (m, n) = a A + b B C, with B (m, k) and C (k, n) */
static void combine(double *to, double a, const double *A, double b, const double *B, const double *C, int64_t m,
                    int64_t k, int64_t n)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;

            for (int64_t l = 0; l < k; l++)
                sum += B[i * k + l] * C[l * n + j];
            to[i * n + j] = a * (A ? A[i * n + j] : 0.0) + b * sum;
        }
}

static void transpose(double *to, const double *from, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            to[j * rows + i] = from[i * columns + j];
}

/* As in PyTorch, a matrix with more rows than columns is transposed. */
static void orthogonalize_ref(double *x, int64_t rows, int64_t columns, int steps)
{
    int64_t m = rows > columns ? columns : rows, n = rows > columns ? rows : columns;
    double *at = tt_calloc((size_t)(m * n), sizeof *at), *flipped = tt_calloc((size_t)(m * n), sizeof *flipped);
    double *gram = tt_calloc((size_t)(m * m), sizeof *gram), *poly = tt_calloc((size_t)(m * m), sizeof *poly);
    double *next = tt_calloc((size_t)(m * n), sizeof *next), norm = 0.0;

    for (int64_t i = 0; i < m * n; i++)
        norm += x[i] * x[i];
    for (int64_t i = 0; i < m * n; i++)
        x[i] /= fmax(sqrt(norm), 1e-7);
    if (rows > columns)
        transpose(at, x, rows, columns);
    else
        memcpy(at, x, (size_t)(m * n) * sizeof *at);
    for (int s = 0; s < steps; s++) {
        transpose(flipped, at, m, n);
        combine(gram, 0.0, NULL, 1.0, at, flipped, m, n, m);
        combine(poly, -4.7750, gram, 2.0315, gram, gram, m, m, m);
        combine(next, 3.4445, at, 1.0, poly, at, m, m, n);
        memcpy(at, next, (size_t)(m * n) * sizeof *at);
    }
    if (rows > columns)
        transpose(x, at, m, n);
    else
        memcpy(x, at, (size_t)(m * n) * sizeof *at);
    tt_free(at);
    tt_free(flipped);
    tt_free(gram);
    tt_free(poly);
    tt_free(next);
}

static void orthogonalize(struct tt_team *team, float *x, int64_t rows, int64_t columns, int steps)
{
    size_t bytes = (size_t)tt_orthogonalize_scratch_bytes(rows, columns, tt_team_threads(team));
    char *memory = tt_calloc(bytes + 64, 1), *scratch = memory + (64 - (uintptr_t)memory % 64);
    const struct tt_step_call call = {
        .op = TT_STEP_ORTHOGONALIZE, .out = {x, scratch}, .n = rows, .stride = columns, .parts = steps, .team = team};

    tt_step_row(call.op)->run(&call);
    tt_free(memory);
}

/*
 * Elements are at most 1.3 in size. An iteration multiplies an error by at most 3.4, and adds some roundings of sums of
 * up to `columns` terms; so 1e-4 is far above the error of five iterations, and far below the effect of another
 * coefficient.
 */
static void the_iteration_is_pytorchs(void **state)
{
    static const struct {
        int64_t rows, columns;
        int steps;
    } cases[] = {{1, 1, 5}, {7, 7, 5}, {5, 13, 5}, {13, 5, 5}, {64, 33, 4}, {33, 64, 1}, {200, 96, 5}, {96, 200, 6}};
    struct tt_team *team = new_team(2);

    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int64_t rows = cases[c].rows, columns = cases[c].columns;
        float *x = random_floats(rows * columns, "matrix");
        double *wanted = tt_calloc((size_t)(rows * columns), sizeof *wanted);

        for (int64_t i = 0; i < rows * columns; i++)
            wanted[i] = (double)x[i];
        orthogonalize(team, x, rows, columns, cases[c].steps);
        orthogonalize_ref(wanted, rows, columns, cases[c].steps);
        for (int64_t i = 0; i < rows * columns; i++)
            if (!(fabs((double)x[i] - wanted[i]) <= 1e-4))
                fail_msg("%lld x %lld after %d iterations: element %lld is %g, wanted %g", (long long)rows,
                         (long long)columns, cases[c].steps, (long long)i, (double)x[i], wanted[i]);
        tt_free(x);
        tt_free(wanted);
    }
    tt_team_free(team);
}

/* Muon's purpose: the rows of a wide matrix become nearly orthogonal, with lengths near 1. */
static void the_result_is_nearly_orthogonal(void **state)
{
    enum { ROWS = 24, COLUMNS = 80 };
    struct tt_team *team = new_team(1);
    float *x = random_floats(ROWS * COLUMNS, "rows");

    orthogonalize(team, x, ROWS, COLUMNS, 5);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < ROWS; j++) {
            double product = 0.0;

            for (int k = 0; k < COLUMNS; k++)
                product += (double)x[i * COLUMNS + k] * (double)x[j * COLUMNS + k];
            assert_true(i == j ? product > 0.4 && product < 1.5 : fabs(product) < 0.4);
        }
    tt_free(x);
    tt_team_free(team);
}

/* As the gradient of an adapter's A in its first step. */
static void zero_stays_zero(void **state)
{
    struct tt_team *team = new_team(1);
    float x[6] = {0};

    orthogonalize(team, x, 2, 3, 5);
    for (int i = 0; i < 6; i++)
        assert_true(x[i] == 0.0F);
    tt_team_free(team);
}

static void its_bits_do_not_depend_on_threads(void **state)
{
    enum { ROWS = 300, COLUMNS = 210 };
    float *wanted = random_floats(ROWS * COLUMNS, "threads");
    struct tt_team *team = new_team(1);

    orthogonalize(team, wanted, ROWS, COLUMNS, 5);
    tt_team_free(team);
    for (int threads = 2; threads <= 4; threads++) {
        float *x = random_floats(ROWS * COLUMNS, "threads");

        team = new_team(threads);
        orthogonalize(team, x, ROWS, COLUMNS, 5);
        assert_memory_equal(x, wanted, (size_t)(ROWS * COLUMNS) * sizeof *x);
        tt_team_free(team);
        tt_free(x);
    }
    tt_free(wanted);
}

/* --- momentum and update --- */

enum { ROWS = 40, WIDTH = 1000, ALL = ROWS * WIDTH };

static struct tt_scalars scalars_of(enum tt_adjust_choice muon_lr, bool nesterov)
{
    return (struct tt_scalars){.clip = 0.5F,
                               .lr = 0.01,
                               .weight_decay = 0.3,
                               .momentum = 0.9,
                               .muon_lr = muon_lr,
                               .nesterov = nesterov,
                               .step_seed = 5};
}

static struct tt_rows rows_of(int64_t first, int64_t rows)
{
    return (struct tt_rows){.rows = rows,
                            .width = WIDTH,
                            .stride = WIDTH,
                            .stream = 3,
                            .index = first * WIDTH,
                            .lr_factor = 2.0,
                            .no_decay = false};
}

static void run(enum tt_step_op_id op, struct tt_team *team, const struct tt_scalars *scalars, struct tt_rows rows,
                enum tt_dtype dtype, const void *in, void *out, void *momentum)
{
    const struct tt_step_call call = {.op = op,
                                      .in = in,
                                      .out = {op == TT_STEP_MUON_APPLY ? out : NULL, momentum, NULL, out},
                                      .n = ROWS,
                                      .rows = &rows,
                                      .n_rows = 1,
                                      .scalars = scalars,
                                      .dtype = dtype,
                                      .team = team};

    tt_step_row(op)->run(&call);
}

static void momentum_is_pytorchs(void **state)
{
    struct tt_team *team = new_team(2);

    for (int nesterov = 0; nesterov <= 1; nesterov++) {
        const struct tt_scalars scalars = scalars_of(TT_ADJUST_ORIGINAL, nesterov);
        float *grad = random_floats(ALL, "grad"), *momentum = random_floats(ALL, "momentum");
        float *given = random_floats(ALL, "grad"), *before = random_floats(ALL, "momentum");

        run(TT_STEP_MUON, team, &scalars, rows_of(0, ROWS), TT_F32, NULL, grad, momentum);
        for (int i = 0; i < ALL; i++) {
            double g = 0.5 * (double)given[i], m = 0.9 * (double)before[i] + 0.1 * g;

            assert_true(fabs((double)momentum[i] - m) < 1e-7);
            assert_true(fabs((double)grad[i] - (nesterov ? 0.1 * g + 0.9 * m : m)) < 1e-7);
        }
        tt_free(grad);
        tt_free(momentum);
        tt_free(given);
        tt_free(before);
    }
    tt_team_free(team);
}

/* Decay uses the learning rate without the factor for the shape. */
static void the_rate_depends_on_the_shape(void **state)
{
    static const enum tt_adjust_choice hows[] = {TT_ADJUST_ORIGINAL, TT_ADJUST_MATCH_RMS_ADAMW,
                                                 TT_ADJUST_SPECTRAL_UNCLAMPED};
    const double factor[] = {1.0, 0.2 * sqrt((double)WIDTH), sqrt((double)ROWS / WIDTH)};
    struct tt_team *team = new_team(2);

    for (int how = 0; how < 3; how++) {
        const struct tt_scalars scalars = scalars_of(hows[how], true);
        float *param = random_floats(ALL, "param"), *given = random_floats(ALL, "param");
        float *update = random_floats(ALL, "update");

        run(TT_STEP_MUON_APPLY, team, &scalars, rows_of(0, ROWS), TT_F32, update, param, NULL);
        for (int i = 0; i < ALL; i++)
            assert_true(fabs((double)param[i] -
                             ((double)given[i] * (1.0 - 0.02 * 0.3) - 0.02 * factor[how] * (double)update[i])) < 1e-7);
        tt_free(param);
        tt_free(given);
        tt_free(update);
    }
    tt_team_free(team);
}

/* Some of the rows alone get the same bits as in the whole, in both types. */
static void bits_do_not_depend_on_the_split(void **state)
{
    enum { CUT = 17 };
    const struct tt_scalars scalars = scalars_of(TT_ADJUST_MATCH_RMS_ADAMW, true);
    struct tt_team *team = new_team(2);

    for (int half = 0; half <= 1; half++) {
        enum tt_dtype dtype = half ? TT_BF16 : TT_F32;
        size_t size = tt_dtype_size(dtype);
        float *grad[2], *update = random_floats(ALL, "update");
        char *momentum[2], *param[2];

        for (int k = 0; k < 2; k++) {
            float *wide = random_floats(ALL, "state");

            grad[k] = random_floats(ALL, "grad");
            momentum[k] = tt_calloc(ALL, size);
            param[k] = tt_calloc(ALL, size);
            for (int i = 0; i < ALL && half; i++)
                ((tt_bf16 *)(void *)momentum[k])[i] = ((tt_bf16 *)(void *)param[k])[i] = tt_bf16_from_float(wide[i]);
            if (!half) {
                memcpy(momentum[k], wide, ALL * size);
                memcpy(param[k], wide, ALL * size);
            }
            tt_free(wide);
        }
        run(TT_STEP_MUON, team, &scalars, rows_of(0, ROWS), dtype, NULL, grad[0], momentum[0]);
        run(TT_STEP_MUON_APPLY, team, &scalars, rows_of(0, ROWS), dtype, update, param[0], NULL);
        for (int64_t first = 0; first < ROWS; first += CUT) {
            int64_t rows = ROWS - first < CUT ? ROWS - first : CUT, at = first * WIDTH;

            run(TT_STEP_MUON, team, &scalars, rows_of(first, rows), dtype, NULL, grad[1] + at,
                momentum[1] + at * (int64_t)size);
            run(TT_STEP_MUON_APPLY, team, &scalars, rows_of(first, rows), dtype, update, param[1] + at * (int64_t)size,
                NULL);
        }
        assert_memory_equal(grad[1], grad[0], ALL * sizeof(float));
        assert_memory_equal(momentum[1], momentum[0], ALL * size);
        assert_memory_equal(param[1], param[0], ALL * size);
        for (int k = 0; k < 2; k++) {
            tt_free(grad[k]);
            tt_free(momentum[k]);
            tt_free(param[k]);
        }
        tt_free(update);
    }
    tt_team_free(team);
}

/* The columns of a rank that shares a layer get the same bits as in the whole matrix, in both types. */
static void columns_have_the_bits_of_the_whole(void **state)
{
    enum { PART = WIDTH / 3, FIRST = WIDTH / 2 };
    const struct tt_scalars scalars = scalars_of(TT_ADJUST_SPECTRAL_UNCLAMPED, true);
    struct tt_team *team = new_team(2);
    struct tt_rows columns = rows_of(0, ROWS);

    columns.width = PART;
    columns.index = FIRST;
    for (int half = 0; half <= 1; half++) {
        enum tt_dtype dtype = half ? TT_BF16 : TT_F32;
        size_t size = tt_dtype_size(dtype);
        float *grad = random_floats(ALL, "grad"), *update = random_floats(ALL, "update");
        float *part_grad = tt_calloc(ALL, sizeof *part_grad);
        char *param = tt_calloc(ALL, size), *momentum = tt_calloc(ALL, size);
        char *part = tt_calloc(ALL, size), *part_momentum = tt_calloc(ALL, size);

        for (int64_t r = 0; r < ROWS; r++)
            memcpy(part_grad + r * PART, grad + r * WIDTH + FIRST, PART * sizeof *grad);
        run(TT_STEP_MUON, team, &scalars, rows_of(0, ROWS), dtype, NULL, grad, momentum);
        run(TT_STEP_MUON_APPLY, team, &scalars, rows_of(0, ROWS), dtype, update, param, NULL);
        run(TT_STEP_MUON, team, &scalars, columns, dtype, NULL, part_grad, part_momentum);
        run(TT_STEP_MUON_APPLY, team, &scalars, columns, dtype, update, part, NULL);
        for (size_t r = 0; r < ROWS; r++) {
            assert_memory_equal(part_grad + r * PART, grad + r * WIDTH + FIRST, PART * sizeof *grad);
            assert_memory_equal(part_momentum + r * PART * size, momentum + (r * WIDTH + FIRST) * size, PART * size);
            assert_memory_equal(part + r * PART * size, param + (r * WIDTH + FIRST) * size, PART * size);
        }
        tt_free(grad);
        tt_free(update);
        tt_free(part_grad);
        tt_free(param);
        tt_free(momentum);
        tt_free(part);
        tt_free(part_momentum);
    }
    tt_team_free(team);
}

/* Two blocks of columns, each cut by rows over two ranks, with padding after the second one's rows. */
static void parts_make_the_matrix(void **state)
{
    enum { EACH = (ROWS + 1) / 2, LEFT = WIDTH / 3, CHUNK = EACH * (WIDTH - LEFT) };
    struct tt_team *team = new_team(2);
    float *wanted = random_floats(ALL, "matrix"), *found = tt_calloc(ALL, sizeof *found);
    float *gathered = tt_calloc((size_t)4 * CHUNK, sizeof *gathered);
    struct tt_rows parts[4];

    for (int i = 0; i < 4; i++) {
        int64_t row = i / 2 * EACH, rows = i / 2 ? ROWS - EACH : EACH, column = i % 2 ? LEFT : 0;
        int64_t width = i % 2 ? WIDTH - LEFT : LEFT;

        parts[i] = (struct tt_rows){
            .begin = (int64_t)i * CHUNK, .rows = rows, .width = width, .stride = WIDTH, .index = row * WIDTH + column};
        for (int64_t r = 0; r < rows; r++)
            memcpy(gathered + i * CHUNK + r * width, wanted + (row + r) * WIDTH + column,
                   (size_t)width * sizeof *wanted);
    }
    tt_step_row(TT_STEP_ASSEMBLE)
        ->run(&(struct tt_step_call){
            .op = TT_STEP_ASSEMBLE, .in = gathered, .out = {found}, .rows = parts, .n_rows = 4, .team = team});
    assert_memory_equal(found, wanted, ALL * sizeof *wanted);
    tt_free(wanted);
    tt_free(found);
    tt_free(gathered);
    tt_team_free(team);
}

/* Steps of a hundredth of the distance between neighbours in bfloat16 have their effect on average. */
static void rounding_at_random_keeps_small_steps(void **state)
{
    struct tt_scalars scalars = scalars_of(TT_ADJUST_ORIGINAL, true);
    struct tt_team *team = new_team(1);
    tt_bf16 *param = tt_calloc(ALL, sizeof *param);
    float *update = tt_calloc(ALL, sizeof *update);
    double sum = 0.0;

    scalars.lr = 0x1p-15;
    scalars.weight_decay = 0.0;
    for (int i = 0; i < ALL; i++) {
        param[i] = tt_bf16_from_float(1.5F);
        update[i] = 1.0F;
    }
    for (int s = 0; s < 16; s++) {
        scalars.step_seed = (uint64_t)s;
        run(TT_STEP_MUON_APPLY, team, &scalars, rows_of(0, ROWS), TT_BF16, update, param, NULL);
    }
    for (int i = 0; i < ALL; i++)
        sum += (double)tt_bf16_to_float(param[i]);
    assert_true(fabs(sum / ALL - (1.5 - 16 * 0x1p-14)) < 0x1p-14); /* lr_factor is 2 */
    tt_free(param);
    tt_free(update);
    tt_team_free(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_iteration_is_pytorchs),
        cmocka_unit_test(the_result_is_nearly_orthogonal),
        cmocka_unit_test(zero_stays_zero),
        cmocka_unit_test(its_bits_do_not_depend_on_threads),
        cmocka_unit_test(momentum_is_pytorchs),
        cmocka_unit_test(the_rate_depends_on_the_shape),
        cmocka_unit_test(bits_do_not_depend_on_the_split),
        cmocka_unit_test(columns_have_the_bits_of_the_whole),
        cmocka_unit_test(parts_make_the_matrix),
        cmocka_unit_test(rounding_at_random_keeps_small_steps),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
