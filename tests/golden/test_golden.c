/* SPDX-License-Identifier: MIT
 *
 * Whole training runs, compared with Hugging Face's models in float64 (data/, make_reference.py). Weights and tokens
 * are read as `titan train` reads them. The loss, gradient norm and learning rate of every step are compared, then the
 * final weights.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/hf/load.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "parallel/comm/self.h"
#include "tests/par/train_job.h"

#define LOSS_TOLERANCE 2e-5
#define NORM_TOLERANCE 2e-4
/*
 * Tolerances for the final weights, as a share of how far training moved them. AdamW divides each gradient by its own
 * size, so where a gradient is near zero, a rounding error of float32 becomes a visible part of the step. The mean
 * square over a parameter has no such outliers. A wrong rule (weight decay, bias correction, the last learning rate)
 * gives 1e-2 or more.
 */
#define WEIGHT_RMS_TOLERANCE  1e-3
#define WEIGHT_MOST_TOLERANCE 0.02

static int check(int rc)
{
    if (rc < 0)
        print_message("# %s\n", tt_error_message());
    return rc;
}

/* --- a reference --- */

struct reference {
    char *folder;
    struct tt_model *model;
    struct tt_dataset *dataset;
    json_t *expect;
    struct train_job job;  /* without ranks and policies */
    float *before, *after; /* whole weights, in the model's order */
};

static json_t *member(const struct reference *r, const char *object, const char *key)
{
    json_t *at = json_object_get(r->expect, "case");

    return json_object_get(object ? json_object_get(at, object) : at, key);
}

static double number(const struct reference *r, const char *object, const char *key)
{
    json_t *value = member(r, object, key);

    assert_non_null(value);
    return json_is_null(value) ? (double)NAN : json_number_value(value);
}

static double expected(const struct reference *r, const char *what, int step)
{
    json_t *value = json_array_get(json_object_get(r->expect, what), (size_t)step);

    assert_non_null(value);
    return json_number_value(value);
}

static enum tt_decay decay_type(const struct reference *r)
{
    const char *name = json_string_value(member(r, "lr_scheduler", "decay_type"));

    assert_non_null(name);
    return strcmp(name, "cosine") == 0 ? TT_LR_COSINE : strcmp(name, "sqrt") == 0 ? TT_LR_SQRT : TT_LR_LINEAR;
}

static void read_recipe(struct reference *r)
{
    r->job = (struct train_job){
        .model = r->model,
        .dataset = r->dataset,
        .replicate = 1,
        .threads = 1,
        .prefetch = 1,
        .global_batch = (int64_t)number(r, NULL, "global_batch_size"),
        .seq_len = (int64_t)number(r, NULL, "seq_len"),
        .steps = (int)number(r, NULL, "steps"),
        .max_norm = number(r, NULL, "max_norm"),
        .schedule = {.base = number(r, "optimizer", "lr"),
                     .warmup_steps = (int64_t)number(r, "lr_scheduler", "warmup_steps"),
                     .total_steps = (int64_t)number(r, NULL, "steps"),
                     .decay_ratio = number(r, "lr_scheduler", "decay_ratio"),
                     .decay = decay_type(r),
                     .min_factor = number(r, "lr_scheduler", "min_lr_factor")},
        .beta1 = number(r, "optimizer", "beta1"),
        .beta2 = number(r, "optimizer", "beta2"),
        .eps = number(r, "optimizer", "eps"),
        .weight_decay = number(r, "optimizer", "weight_decay"),
    };
}

/* A rank's part of a parameter, in the form that the loader of weights takes. */
static struct tt_ckpt_chunk chunk_of(const struct tt_param *param, const struct tt_box *part, float *data)
{
    struct tt_ckpt_chunk chunk = {.name = param->name,
                                  .dtype = TT_F32,
                                  .ndim = param->ndim,
                                  .placement = tt_param_placement(),
                                  .part = *part,
                                  .data = data};

    memcpy(chunk.shape, param->shape, sizeof chunk.shape);
    return chunk;
}

static int64_t width_of(const struct tt_param *param)
{
    return param->ndim == 2 ? param->shape[1] : 1;
}

/* The whole weights of a safetensors file, with the rows of q and k in our order. */
static float *read_weights(const struct tt_model *model, const char *path)
{
    float *whole = tt_calloc((size_t)tt_model_n_elements(model), sizeof *whole), *at = whole;
    struct tt_ckpt_chunk *chunks = tt_calloc((size_t)model->n_params, sizeof *chunks);
    struct tt_ckpt_state state = {.n_model = model->n_params, .model = chunks};
    struct tt_comm *comm = tt_comm_self_new();

    for (int p = 0; p < model->n_params; p++) {
        struct tt_box all = tt_box_whole(model->params[p].ndim, model->params[p].shape);

        chunks[p] = chunk_of(&model->params[p], &all, at);
        at += model->params[p].shape[0] * width_of(&model->params[p]);
    }
    assert_int_equal(check(tt_hf_load(comm, path, model, &state)), 0);
    tt_comm_free(comm);
    tt_free(chunks);
    return whole;
}

static void reference_open(struct reference *r, const char *model, const char *name)
{
    struct tt_dataset_spec spec = {.name = "tokens"};
    struct tt_dataset_ref ref;
    char *tokens, *before, *after, *expect;

    memset(r, 0, sizeof *r);
    r->folder = tt_format("%s/tests/golden/data/%s", TT_SOURCE_DIR, name);
    tokens = tt_format("%s/tokens.bin", r->folder);
    before = tt_format("%s/model.safetensors", r->folder);
    after = tt_format("%s/final.safetensors", r->folder);
    expect = tt_format("%s/expect.json", r->folder);
    assert_int_equal(check(tt_model_new(model, "hf", &(struct tt_model_dims){.tied = -1}, r->folder, &r->model)), 0);
    spec.path = tokens;
    spec.vocab_size = r->model->dims.vocab_size;
    assert_int_equal(check(tt_dataset_prepare(&spec, &ref)), 0);
    assert_int_equal(check(tt_dataset_open(&ref, &r->dataset)), 0);
    assert_int_equal(check(tt_json_load(expect, &r->expect)), 0);
    read_recipe(r);
    r->before = read_weights(r->model, before);
    r->after = read_weights(r->model, after);
    tt_free(tokens);
    tt_free(before);
    tt_free(after);
    tt_free(expect);
}

static void reference_close(struct reference *r)
{
    tt_free(r->before);
    tt_free(r->after);
    json_decref(r->expect);
    tt_dataset_free(r->dataset);
    tt_model_free(r->model);
    tt_free(r->folder);
}

/* --- a run --- */

static int load_rank(struct tt_comm *comm, struct tt_engine *engine, void *arg)
{
    const struct reference *r = arg;
    const struct tt_layout *layout = tt_engine_layout(engine);
    struct tt_ckpt_chunk *chunks = tt_calloc((size_t)layout->n_params, sizeof *chunks);
    struct tt_ckpt_state state = {.n_model = layout->n_params, .model = chunks};
    int rc;

    for (int p = 0; p < layout->n_params; p++) {
        const struct tt_unit_param *place = tt_layout_param(layout, p);

        chunks[p] = chunk_of(&r->model->params[p], &place->box,
                             tt_engine_state(engine)->param[layout->unit_of[p]] + place->offset);
    }
    rc = tt_hf_load(comm, r->folder, r->model, &state);
    tt_free(chunks);
    return rc;
}

static double relative(double found, double wanted)
{
    return fabs(found / wanted - 1.0);
}

static void check_curve(const struct reference *r, const struct train_job *job, const struct train_result *found)
{
    for (int s = 0; s < job->steps; s++) {
        double loss = relative(found->loss[s], expected(r, "loss", s));
        double norm = relative(found->norm[s], expected(r, "grad_norm", s));
        double lr = fabs(found->lr[s] - expected(r, "lr", s));

        if (!(loss <= LOSS_TOLERANCE) || !(norm <= NORM_TOLERANCE) || !(lr <= 1e-12))
            fail_msg("%d ranks, local batch %d, step %d: loss %.9g is off by %.2g, norm %.9g by %.2g, lr %.9g by %.2g",
                     job->ranks, (int)job->local_batch, s + 1, found->loss[s], loss, found->norm[s], norm, found->lr[s],
                     lr);
    }
}

/*
 * A bias of k adds the same to all scores of a query, and softmax cancels it. So its gradient is zero, and AdamW's
 * steps come from rounding errors alone. The learning rates bound them.
 */
static bool has_no_gradient(const struct tt_param *param)
{
    return strstr(param->name, "attention.wk.bias") != NULL;
}

static double sum_of_rates(const struct train_result *found, int steps)
{
    double sum = 0.0;

    for (int s = 0; s < steps; s++)
        sum += found->lr[s];
    return sum;
}

static void check_weights(const struct reference *r, const struct train_job *job, const struct train_result *found)
{
    int64_t at = 0;

    for (int p = 0; p < r->model->n_params; p++) {
        const struct tt_param *param = &r->model->params[p];
        int64_t n = param->shape[0] * width_of(param);
        double wrong = 0.0, moved = 0.0, most = 0.0, furthest = 0.0;

        for (int64_t i = at; i < at + n; i++) {
            double error = (double)found->param[i] - (double)r->after[i];
            double way = (double)r->after[i] - (double)r->before[i];

            wrong += error * error;
            moved += way * way;
            most = fmax(most, fabs(error));
            furthest = fmax(furthest, fabs(way));
        }
        at += n;
        if (has_no_gradient(param)) {
            assert_true(most <= sum_of_rates(found, job->steps));
            continue;
        }
        if (!(sqrt(wrong / moved) <= WEIGHT_RMS_TOLERANCE) || !(most <= WEIGHT_MOST_TOLERANCE * furthest))
            fail_msg("%d ranks, local batch %d: %s is off by %.2g of the way that it moved, at worst by %.2g of the "
                     "longest way",
                     job->ranks, (int)job->local_batch, param->name, sqrt(wrong / moved), most / furthest);
    }
}

/* What a run may choose without changing its curve: how the batch is split, and what the ranks keep. */
struct split {
    int ranks, replicate;
    int64_t local_batch;
    enum tt_reshard reshard;
    int prefetch, threads;
};

static void expect_the_curve_of(const char *model, const char *name, const struct split *splits, int n)
{
    struct reference r;

    reference_open(&r, model, name);
    for (int i = 0; i < n; i++) {
        struct train_job job = r.job;
        struct train_result found;

        job.ranks = splits[i].ranks;
        job.replicate = splits[i].replicate;
        job.local_batch = splits[i].local_batch;
        job.reshard = splits[i].reshard;
        job.prefetch = splits[i].prefetch;
        job.threads = splits[i].threads;
        job.load = load_rank;
        job.load_arg = &r;
        assert_int_equal(check(train_job_run(&job, &found)), 0);
        check_curve(&r, &job, &found);
        check_weights(&r, &job, &found);
        train_result_release(&found);
    }
    reference_close(&r);
}

#define FOLLOW(model, name, splits) expect_the_curve_of(model, name, splits, (int)(sizeof(splits) / sizeof *(splits)))

#define DEFAULT TT_RESHARD_AFTER_FORWARD_DEFAULT
#define ALWAYS  TT_RESHARD_AFTER_FORWARD_ALWAYS
#define NEVER   TT_RESHARD_AFTER_FORWARD_NEVER

static void llama3(void **state)
{
    static const struct split splits[] = {
        {1, 1, 8, DEFAULT, 1, 1}, {1, 1, 1, DEFAULT, 1, 2}, {2, 1, 2, DEFAULT, 1, 1},
        {4, 1, 1, ALWAYS, 2, 1},  {4, 2, 2, NEVER, 1, 1},   {8, 1, 1, DEFAULT, 1, 1},
    };

    FOLLOW("llama3", "llama3", splits);
}

static void llama3_tied_scaled(void **state)
{
    static const struct split splits[] = {
        {1, 1, 2, DEFAULT, 1, 1},
        {2, 1, 1, ALWAYS, 1, 1},
        {2, 2, 2, DEFAULT, 1, 1},
        {4, 1, 1, NEVER, 0, 1},
    };

    FOLLOW("llama3", "llama3_tied_scaled", splits);
}

static void llama3_three(void **state)
{
    static const struct split splits[] = {
        {1, 1, 3, DEFAULT, 1, 1}, {1, 1, 12, DEFAULT, 1, 1}, {2, 1, 2, ALWAYS, 1, 1},
        {3, 1, 1, DEFAULT, 1, 1}, {3, 1, 4, NEVER, 1, 1},    {3, 3, 2, DEFAULT, 1, 1},
        {4, 1, 3, DEFAULT, 1, 1}, {6, 2, 1, DEFAULT, 2, 1},  {12, 1, 1, DEFAULT, 1, 1},
    };

    FOLLOW("llama3", "llama3_three", splits);
}

static void llama3_clipped(void **state)
{
    static const struct split splits[] = {
        {1, 1, 6, DEFAULT, 1, 1},
        {2, 1, 1, DEFAULT, 1, 1},
        {3, 1, 2, ALWAYS, 1, 1},
        {6, 3, 1, NEVER, 1, 1},
    };

    FOLLOW("llama3", "llama3_clipped", splits);
}

static void qwen3(void **state)
{
    static const struct split splits[] = {
        {1, 1, 4, DEFAULT, 1, 1}, {1, 1, 1, DEFAULT, 1, 2}, {2, 1, 1, ALWAYS, 1, 1},
        {2, 2, 2, DEFAULT, 1, 1}, {4, 1, 1, NEVER, 0, 1},
    };

    FOLLOW("qwen3", "qwen3", splits);
}

static void qwen3_eight(void **state)
{
    static const struct split splits[] = {
        {1, 1, 3, DEFAULT, 1, 1}, {2, 1, 4, DEFAULT, 1, 1}, {3, 1, 2, ALWAYS, 1, 1},
        {4, 2, 1, NEVER, 1, 1},   {8, 1, 3, DEFAULT, 1, 1}, {8, 4, 1, ALWAYS, 2, 1},
    };

    FOLLOW("qwen3", "qwen3_eight", splits);
}

static void gpt2(void **state)
{
    static const struct split splits[] = {
        {1, 1, 4, DEFAULT, 1, 1}, {1, 1, 1, DEFAULT, 1, 2}, {2, 1, 1, ALWAYS, 1, 1},
        {2, 2, 2, DEFAULT, 1, 1}, {4, 1, 1, NEVER, 0, 1},
    };

    FOLLOW("gpt2", "gpt2", splits);
}

static void gpt2_eight(void **state)
{
    static const struct split splits[] = {
        {1, 1, 3, DEFAULT, 1, 1}, {2, 1, 4, DEFAULT, 1, 1}, {3, 1, 2, ALWAYS, 1, 1},
        {4, 2, 1, NEVER, 1, 1},   {8, 1, 3, DEFAULT, 1, 1}, {8, 4, 1, ALWAYS, 2, 1},
    };

    FOLLOW("gpt2", "gpt2_eight", splits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama3),       cmocka_unit_test(llama3_tied_scaled),
        cmocka_unit_test(llama3_three), cmocka_unit_test(llama3_clipped),
        cmocka_unit_test(qwen3),        cmocka_unit_test(gpt2),
        cmocka_unit_test(qwen3_eight),  cmocka_unit_test(gpt2_eight),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
