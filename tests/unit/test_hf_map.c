/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/read/map.h"
#include "core/base/mem.h"

/*
 * A model with every kind of mapping, whose dims are all different:
 *   0  plain.weight    (5, 7)            3, 5, 7  c_attn.weight: q, k, v (3, 4) each, theirs [4, 9]
 *   1  plain.bias      (5)               4, 6, 8  c_attn.bias: q, k, v (3) each, theirs [9]
 *   2  rope.weight     (2 heads of 6, 3)
 *   9, 10  qkv.weight: (4, 2) and (3, 2), one after the other
 *   11, 12  turns.weight: (2 heads of 3, 2) each, the heads in turn
 * Experts have a test of their own.
 */
enum { N_PARAMS = 13 };

static const struct {
    const char *hf_name;
    int ndim;
    int64_t rows, width;
    enum tt_hf_transform transform;
    int heads, part, parts;
    int64_t first, all; /* rows of their tensor */
} wanted[N_PARAMS] = {
    {"plain.weight", 2, 5, 7, TT_HF_SAME, 0, 0, 0, 0, 0},
    {"plain.bias", 1, 5, 1, TT_HF_SAME, 0, 0, 0, 0, 0},
    {"rope.weight", 2, 12, 3, TT_HF_ROPE_PAIRS, 2, 0, 0, 0, 0},
    {"c_attn.weight", 2, 3, 4, TT_HF_TRANSPOSE, 0, 0, 3, 0, 9},
    {"c_attn.bias", 1, 3, 1, TT_HF_SAME, 0, 0, 3, 0, 9},
    {"c_attn.weight", 2, 3, 4, TT_HF_TRANSPOSE, 0, 1, 3, 3, 9},
    {"c_attn.bias", 1, 3, 1, TT_HF_SAME, 0, 1, 3, 3, 9},
    {"c_attn.weight", 2, 3, 4, TT_HF_TRANSPOSE, 0, 2, 3, 6, 9},
    {"c_attn.bias", 1, 3, 1, TT_HF_SAME, 0, 2, 3, 6, 9},
    {"qkv.weight", 2, 4, 2, TT_HF_SAME, 0, 0, 2, 0, 7},
    {"qkv.weight", 2, 3, 2, TT_HF_SAME, 0, 1, 2, 4, 7},
    {"turns.weight", 2, 6, 2, TT_HF_HEADS_IN_TURN, 2, 0, 2, 0, 12},
    {"turns.weight", 2, 6, 2, TT_HF_HEADS_IN_TURN, 2, 1, 2, 6, 12},
};

struct fixture {
    struct tt_param params[N_PARAMS];
    struct tt_model model;
    struct tt_hf_tensor *tensors;
    int n_tensors;
    float *theirs[N_PARAMS]; /* elements of the tensor that contains the parameter */
};

/* Every element of our parameters has its own number. */
static float element(int param, int64_t index)
{
    return (float)(1000 * param + index);
}

static int read_ours(void *arg, int param, int64_t row, int64_t n, float *data)
{
    struct fixture *f = arg;
    int64_t width = wanted[param].width;

    assert_true(row >= 0 && n > 0 && row + n <= f->params[param].shape[0]);
    for (int64_t i = 0; i < n * width; i++)
        data[i] = element(param, row * width + i);
    return 0;
}

static int read_theirs(void *arg, int param, int64_t row, int64_t n, float *data)
{
    struct fixture *f = arg;
    struct tt_hf_tensor t = tt_hf_tensor_of(&f->model, param);
    int64_t width = t.ndim == 2 ? t.shape[1] : 1;

    assert_true(row >= 0 && n > 0 && row + n <= t.shape[0]);
    memcpy(data, f->theirs[param] + row * width, (size_t)(n * width) * sizeof *data);
    return 0;
}

/* Exports every tensor, `step` rows at a time. */
static void export_all(struct fixture *f, int64_t step)
{
    for (int i = 0; i < f->n_tensors; i++) {
        const struct tt_hf_tensor *t = &f->tensors[i];
        int64_t width = t->ndim == 2 ? t->shape[1] : 1;
        float *data = tt_calloc((size_t)(t->shape[0] * width), sizeof *data);

        for (int64_t row = 0; row < t->shape[0]; row += step) {
            int64_t n = t->shape[0] - row < step ? t->shape[0] - row : step;

            assert_int_equal(tt_hf_export(&f->model, t, read_ours, f, row, n, data + row * width), 0);
        }
        tt_free(f->theirs[t->param[0]]);
        for (int k = 0; k < t->n_params; k++)
            f->theirs[t->param[k]] = data;
    }
}

static int setup(void **state)
{
    struct fixture *f = tt_calloc(1, sizeof *f);

    for (int p = 0; p < N_PARAMS; p++)
        f->params[p] = (struct tt_param){.name = (char *)"ours",
                                         .ndim = wanted[p].ndim,
                                         .shape = {wanted[p].rows, wanted[p].width},
                                         .hf_name = (char *)wanted[p].hf_name,
                                         .hf_transform = wanted[p].transform,
                                         .hf_heads = wanted[p].heads,
                                         .hf_part = wanted[p].part,
                                         .hf_row = wanted[p].first,
                                         .hf_rows = wanted[p].all,
                                         .hf_parts = wanted[p].parts};
    f->model = (struct tt_model){.params = f->params, .n_params = N_PARAMS};
    f->tensors = tt_hf_tensors(&f->model, false, &f->n_tensors);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < f->n_tensors; i++)
        tt_free(f->theirs[f->tensors[i].param[0]]);
    tt_free(f->tensors);
    tt_free(f);
    return 0;
}

static void tensors_have_their_shapes_and_parts(void **state)
{
    const struct fixture *f = *state;

    assert_int_equal(f->n_tensors, 7);
    assert_string_equal(f->tensors[3].name, "c_attn.weight");
    assert_true(f->tensors[3].ndim == 2 && f->tensors[3].shape[0] == 4 && f->tensors[3].shape[1] == 9);
    assert_true(f->tensors[3].n_params == 3 && f->tensors[3].param[1] == 5 && f->tensors[3].param[2] == 7);
    assert_true(f->tensors[4].ndim == 1 && f->tensors[4].shape[0] == 9 && f->tensors[4].param[2] == 8);
    assert_true(f->tensors[5].n_params == 2 && f->tensors[5].shape[0] == 7 && f->tensors[6].shape[0] == 12);
    assert_true(f->tensors[2].n_params == 1 && f->tensors[2].shape[0] == 12);
}

/* The elements of their tensors, computed from the definitions in model.h. */
static void exported_rows_are_where_they_belong(void **state)
{
    struct fixture *f = *state;

    export_all(f, 100);
    for (int64_t i = 0; i < 35; i++)
        assert_true(f->theirs[0][i] == element(0, i));
    for (int64_t h = 0; h < 2; h++)
        for (int64_t i = 0; i < 3; i++)
            for (int64_t c = 0; c < 2; c++)
                assert_true(f->theirs[2][(h * 6 + c * 3 + i) * 3] == element(2, (h * 6 + 2 * i + c) * 3));
    for (int64_t r = 0; r < 7; r++)
        assert_true(f->theirs[9][2 * r] == (r < 4 ? element(9, 2 * r) : element(10, 2 * (r - 4))));
    for (int part = 0; part < 2; part++)
        for (int64_t h = 0; h < 2; h++)
            for (int64_t i = 0; i < 3; i++)
                assert_true(f->theirs[11][((2 * h + part) * 3 + i) * 2] == element(11 + part, (h * 3 + i) * 2));
    for (int part = 0; part < 3; part++)
        for (int64_t r = 0; r < 3; r++) {
            assert_true(f->theirs[4][part * 3 + r] == element(4 + 2 * part, r));
            for (int64_t i = 0; i < 4; i++)
                assert_true(f->theirs[3][i * 9 + part * 3 + r] == element(3 + 2 * part, r * 4 + i));
        }
}

static void imported_rows_are_ours_again(void **state)
{
    struct fixture *f = *state;
    float data[64];

    for (int64_t step = 1; step <= 4; step++) {
        export_all(f, step);
        for (int p = 0; p < N_PARAMS; p++)
            for (int64_t row = 0; row < wanted[p].rows; row += step) {
                int64_t n = wanted[p].rows - row < step ? wanted[p].rows - row : step;

                assert_int_equal(tt_hf_import(&f->model, p, read_theirs, f, row, n, data), 0);
                for (int64_t i = 0; i < n * wanted[p].width; i++)
                    assert_true(data[i] == element(p, row * wanted[p].width + i));
            }
    }
}

/* Rows in which each element is its own number; arg is the width of a row. */
static int read_numbers(void *arg, int param, int64_t row, int64_t n, float *data)
{
    int64_t width = *(const int64_t *)arg;

    (void)param;
    for (int64_t i = 0; i < n * width; i++)
        data[i] = (float)(row * width + i);
    return 0;
}

/* Three experts of (2, 5). */
static void experts_have_a_tensor_each(void **state)
{
    struct tt_param param = {.name = (char *)"ours",
                             .ndim = 3,
                             .shape = {3, 2, 5},
                             .hf_name = (char *)"mlp.experts.*.up.weight",
                             .hf_transform = TT_HF_EXPERTS};
    struct tt_model model = {.params = &param, .n_params = 1};
    int64_t row = 5, expert = 10; /* elements of a row of theirs and of ours */
    float data[30];
    int n = 0;
    struct tt_hf_tensor *list = tt_hf_tensors(&model, false, &n);

    assert_int_equal(n, 3);
    for (int e = 0; e < 3; e++) {
        assert_true(tt_hf_is_name(&param, list[e].name));
        assert_true(list[e].ndim == 2 && list[e].shape[0] == 2 && list[e].shape[1] == 5);
        for (int64_t from = 0; from < 2; from++) { /* all rows, then the last */
            assert_int_equal(tt_hf_export(&model, &list[e], read_numbers, &expert, from, 2 - from, data), 0);
            for (int64_t i = 0; i < (2 - from) * 5; i++)
                assert_true(data[i] == (float)(e * 10 + from * 5 + i));
        }
    }
    assert_string_equal(list[2].name, "mlp.experts.2.up.weight");
    assert_false(tt_hf_is_name(&param, "mlp.experts.3.up.weight"));
    assert_false(tt_hf_is_name(&param, "mlp.experts..up.weight"));
    assert_false(tt_hf_is_name(&param, "mlp.experts.1.down.weight"));
    assert_int_equal(tt_hf_import(&model, 0, read_numbers, &row, 1, 2, data), 0);
    for (int i = 0; i < 20; i++)
        assert_true(data[i] == (float)(10 + i));
    tt_free(list);
}

/* Three experts of (2, 5) in one tensor of theirs, each transposed. */
static void experts_of_one_tensor_are_transposed(void **state)
{
    struct tt_param param = {.name = (char *)"ours",
                             .ndim = 3,
                             .shape = {3, 2, 5},
                             .hf_name = (char *)"mlp.experts.up",
                             .hf_transform = TT_HF_EXPERTS_TRANSPOSE};
    struct tt_model model = {.params = &param, .n_params = 1};
    int64_t expert = 10; /* elements of a row of both */
    float data[20];
    int n = 0;
    struct tt_hf_tensor *list = tt_hf_tensors(&model, false, &n);

    assert_int_equal(n, 1);
    assert_string_equal(list[0].name, "mlp.experts.up");
    assert_true(list[0].ndim == 3 && list[0].shape[0] == 3 && list[0].shape[1] == 5 && list[0].shape[2] == 2);
    assert_int_equal(tt_hf_export(&model, &list[0], read_numbers, &expert, 1, 2, data), 0);
    for (int e = 0; e < 2; e++)
        for (int column = 0; column < 5; column++)
            for (int row = 0; row < 2; row++)
                assert_true(data[e * 10 + column * 2 + row] == (float)((e + 1) * 10 + row * 5 + column));
    assert_int_equal(tt_hf_import(&model, 0, read_numbers, &expert, 1, 2, data), 0);
    for (int e = 0; e < 2; e++)
        for (int row = 0; row < 2; row++)
            for (int column = 0; column < 5; column++)
                assert_true(data[e * 10 + row * 5 + column] == (float)((e + 1) * 10 + column * 2 + row));
    tt_free(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_of_one_tensor_are_transposed),
        cmocka_unit_test(experts_have_a_tensor_each),
        cmocka_unit_test_setup_teardown(tensors_have_their_shapes_and_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(exported_rows_are_where_they_belong, setup, teardown),
        cmocka_unit_test_setup_teardown(imported_rows_are_ours_again, setup, teardown),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
