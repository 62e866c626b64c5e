/* SPDX-License-Identifier: MIT
 *
 * Tiny models and random tokens for the training tests.
 */
#include "tests/par/fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/math/rng.h"
#include "core/os/file.h"

int fixture_check(int rc)
{
    if (rc < 0)
        print_message("# %s\n", tt_error_message());
    return rc;
}

struct tt_model *fixture_model_of(const char *name, const char *flavor, const struct tt_model_dims *dims)
{
    struct tt_model *model = NULL;

    assert_int_equal(fixture_check(tt_model_new(name, flavor, dims, NULL, &model)), 0);
    return model;
}

struct tt_model *fixture_model(const struct tt_model_dims *dims)
{
    return fixture_model_of("llama3", "debugmodel", dims);
}

struct tt_model *fixture_latents(const struct tt_model_dims *dims)
{
    struct tt_model_dims all = *dims;
    struct tt_model *model = NULL;

    all.norm_eps = 1e-6F;
    all.rope = (struct tt_rope){.theta = 10000.0,
                                .factor = 4.0,
                                .original_max = 4.0,
                                .beta_fast = 32.0,
                                .beta_slow = 1.0,
                                .mscale = 1.0,
                                .mscale_all_dim = 0.7};
    assert_int_equal(fixture_check(tt_model_from_dims("deepseek_v3", "latents", &all, &model)), 0);
    return model;
}

/* The same data with a mask, as in chat data. */
static void write_mask(struct fixture *f, struct tt_rng *rng)
{
    uint8_t mask[(sizeof f->tokens / sizeof *f->tokens + 7) / 8];

    for (size_t i = 0; i < sizeof mask; i++)
        mask[i] = (uint8_t)tt_rng_bits(rng, 100000 + i);
    assert_int_equal(fixture_check(tt_file_pwrite(f->data.fd, "mask", mask, sizeof mask, sizeof f->tokens, NULL)), 0);
    f->chats = f->data;
    f->chats.ref.info.mask_at = sizeof f->tokens;
}

static void make_data(struct fixture *f)
{
    enum { N = sizeof f->tokens / sizeof *f->tokens };
    struct tt_rng rng = tt_rng_make(5, "tokens");

    for (int i = 0; i < N; i++)
        f->tokens[i] = (uint16_t)((int)(fabs(tt_rng_normal(&rng, (uint64_t)i, 0.0)) * 5.0) % 13);
    f->data.fd = memfd_create("tokens", MFD_CLOEXEC);
    assert_true(f->data.fd >= 0);
    assert_int_equal(fixture_check(tt_file_pwrite(f->data.fd, "tokens", f->tokens, sizeof f->tokens, 0, NULL)), 0);
    f->data.ref.info =
        (struct tt_token_info){.item_size = 2, .n_tokens = N, .n_documents = FIXTURE_DOCUMENTS, .max_id = UINT16_MAX};
    for (int i = 0; i < FIXTURE_DOCUMENTS; i++) /* conversations of 1 to a few dozen tokens */
        f->offsets[i + 1] = f->offsets[i] + 1 + (int64_t)(tt_rng_bits(&rng, (uint64_t)(N + i)) % 29);
    f->offsets[FIXTURE_DOCUMENTS] = N;
    f->data.offsets = f->offsets;
    write_mask(f, &rng);
}

void fixture_open(struct fixture *fixture, const struct fixture_size *size)
{
    struct tt_model_dims odd = {.n_layers = size->odd_layers,
                                .dim = size->narrow ? 14 : 34,
                                .n_heads = 3,
                                .n_kv_heads = 1,
                                .head_dim = size->narrow ? 6 : 10,
                                .ffn_dim = size->narrow ? 17 : 37,
                                .vocab_size = size->odd_vocab};
    struct tt_model_dims tied = {.n_layers = size->tied_layers,
                                 .dim = 6,
                                 .n_heads = 3,
                                 .n_kv_heads = 1,
                                 .head_dim = 2,
                                 .ffn_dim = 7,
                                 .vocab_size = 13,
                                 .tied = 1};

    fixture->odd = fixture_model(&odd);
    fixture->tied = fixture_model(&tied);
    make_data(fixture);
}

void fixture_close(struct fixture *fixture)
{
    tt_model_free(fixture->odd);
    tt_model_free(fixture->tied);
    (void)close(fixture->data.fd);
}

const struct fixture_schedule fixture_schedules[FIXTURE_SCHEDULES] = {
    {TT_PP_1F1B, 1},
    {TT_PP_GPIPE, 1},
    {TT_PP_LOOPED_BFS, 2},
    {TT_PP_INTERLEAVED_1F1B, 2},
    {TT_PP_INTERLEAVED_1F1B, 3},
    {TT_PP_INTERLEAVED_ZERO_BUBBLE, 2},
    {TT_PP_ZBV_ZERO_BUBBLE, 2},
    {TT_PP_DUAL_PIPE_V, 2},
};

struct train_job fixture_sequences(const struct fixture *fixture, const struct tt_model *model, int64_t microbatches,
                                   int sequence_grains, int grains)
{
    struct train_job job = train_job_make(model, &fixture->data, 2 * microbatches, 2, 16);

    job.steps = 2;
    job.validation_batches = 3;
    job.sequence_grains = sequence_grains;
    job.grains = grains;
    return job;
}

static int at_least_1(int n)
{
    return n > 0 ? n : 1;
}

int64_t fixture_microbatches(const struct fixture_layout *l)
{
    return (int64_t)at_least_1(l->microbatches) * at_least_1(l->runs) * at_least_1(l->shards) *
           at_least_1(l->replicate);
}

void fixture_lay_out(struct train_job *job, const struct fixture_layout *l)
{
    job->replicate = at_least_1(l->replicate);
    job->context = at_least_1(l->context);
    job->tensor = at_least_1(l->tensor);
    job->experts = at_least_1(l->experts);
    job->moe_window = l->window;
    job->pipe = at_least_1(l->pipe);
    job->stages_per_rank = at_least_1(l->stages_per_rank);
    job->schedule_of_pipe = l->schedule;
    job->runs = at_least_1(l->runs);
    job->ranks = job->pipe * job->replicate * at_least_1(l->shards) * job->context * job->tensor;
}

void fixture_vary(int i, struct train_job *job)
{
    static const struct tt_recompute recomputes[] = {
        {TT_RECOMPUTE_NONE, 0}, {TT_RECOMPUTE_FULL, 0}, {TT_RECOMPUTE_OP, 0}, {TT_RECOMPUTE_SELECTIVE, 2}};
    static const enum tt_reshard reshards[] = {TT_RESHARD_AFTER_FORWARD_DEFAULT, TT_RESHARD_AFTER_FORWARD_ALWAYS,
                                               TT_RESHARD_AFTER_FORWARD_NEVER, TT_RESHARD_AFTER_FORWARD_LAST_LAYER};
    static const char *const wraps[] = {"block", "model", "param"};

    job->recompute = recomputes[i % 4];
    job->reshard = reshards[i / 2 % 4];
    job->wrap = wraps[i % 3];
    job->prefetch = i % 3;
    job->threads = 1 + i % 2;
    job->gives_up = job->pipe > 1 ? job->runs > 1 : i % 4 == 3;
}

static void must_be(const struct train_job *job, const struct train_result *wanted, const char *what, va_list values)
{
    struct train_result got;
    const char *difference;
    char text[256];

    (void)vsnprintf(text, sizeof text, what, values);
    if (fixture_check(train_job_run(job, &got)) < 0)
        fail_msg("%s, engine %d, gathers %d", text, (int)job->scheduler, job->gathers);
    difference = train_result_difference(job, wanted, &got);
    if (difference)
        fail_msg("%s, engine %d, gathers %d: %s", text, (int)job->scheduler, job->gathers, difference);
    train_result_release(&got);
}

void fixture_must_be(const struct train_job *job, const struct train_result *wanted, const char *what, ...)
{
    va_list values;

    va_start(values, what);
    must_be(job, wanted, what, values);
    va_end(values);
}

void fixture_both_must_be(struct train_job job, const struct train_result *wanted, const char *what, ...)
{
    for (int planned = 0; planned < 2; planned++) {
        va_list values;

        va_start(values, what);
        job.scheduler = planned ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
        must_be(&job, wanted, what, values);
        va_end(values);
    }
}
