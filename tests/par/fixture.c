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

/* The same data with a mask, as chat data has. */
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
    for (int i = 0; i < FIXTURE_DOCUMENTS; i++) /* of 1 to some dozens of tokens */
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

void fixture_must_be(const struct train_job *job, const struct train_result *wanted, const char *what)
{
    struct train_result got;
    const char *difference;

    if (fixture_check(train_job_run(job, &got)) < 0)
        fail_msg("%s, engine %d, gathers %d", what, (int)job->scheduler, job->gathers);
    difference = train_result_difference(job, wanted, &got);
    if (difference)
        fail_msg("%s, engine %d, gathers %d: %s", what, (int)job->scheduler, job->gathers, difference);
    train_result_release(&got);
}
