/* SPDX-License-Identifier: MIT
 *
 * Arenas: on every mesh and with both engines, every rank uses its arena up to the predicted size and no further, and
 * keeps no samples outside of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "tests/par/fixture.h"
#include "tests/par/train_job.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static struct fixture world;
static struct tt_model *even;    /* heads and the feed-forward network can be cut into 8 grains */
static struct tt_model *latents; /* the same with latent attention */
static struct tt_model *experts; /* the same with experts */

static int tear_down(void **state)
{
    tt_model_free(even);
    tt_model_free(latents);
    tt_model_free(experts);
    fixture_close(&world);
    return 0;
}

static int set_up(void **state)
{
    struct tt_model_dims dims = {
        .n_layers = 3, .dim = 18, .n_heads = 16, .n_kv_heads = 8, .head_dim = 4, .ffn_dim = 24, .vocab_size = 23};

    fixture_open(&world, &(struct fixture_size){.odd_layers = 6, .odd_vocab = 23, .tied_layers = 1, .narrow = true});
    even = fixture_model(&dims);
    dims.moe = (struct tt_moe){.experts = 8, .top_k = 2};
    assert_int_equal(fixture_check(tt_model_new("mixtral", "debugmodel", &dims, NULL, &experts)), 0);
    dims.moe = (struct tt_moe){0};
    dims.n_kv_heads = 0;
    dims.mla = (struct tt_mla){.kv_rank = 5, .q_rank = 7, .rope_dim = 2, .value_dim = 3};
    latents = fixture_latents(&dims);
    return 0;
}

/* --- the bytes that a rank uses --- */

enum { GUARD = 4096, MARK = 0xA5, MOST_RANKS = 8 };

/* The host, with marked bytes behind its arenas. */
static _Thread_local char *arena;
static _Thread_local size_t arena_bytes;

static void *allocate(struct tt_device *device, size_t bytes)
{
    arena = tt_map(bytes + GUARD);
    arena_bytes = bytes;
    memset(arena + bytes, MARK, GUARD);
    return arena;
}

static void release(struct tt_device *device, void *memory, size_t bytes)
{
    tt_unmap(memory, bytes + GUARD);
}

/* The number of bytes from `at` to the last changed one. */
static int64_t changed(const char *at, int64_t bytes)
{
    while (bytes > 0 && (unsigned char)at[bytes - 1] == MARK)
        bytes--;
    return bytes;
}

/* Where the last buffer of a step region of that many bytes begins; of several, the longest. */
static int64_t last_buffer(const struct tt_program *program, int64_t bytes)
{
    int64_t begin = bytes;

    for (int b = 0; b < program->n_buffers; b++) {
        const struct tt_buffer *buffer = &program->buffers[b];

        if (buffer->kind >= TT_MEMORY_INPUT && buffer->root == b && buffer->offset < begin &&
            tt_arena_bytes(buffer->offset + buffer->bytes) == tt_arena_bytes(bytes))
            begin = buffer->offset;
    }
    return begin;
}

static bool in_arena(const int32_t *samples)
{
    const char *at = (const char *)samples;

    return at >= arena && at < arena + arena_bytes;
}

static int check_samples(struct tt_comm *comm, const struct tt_engine *engine)
{
    int microbatches = tt_engine_program(engine)->microbatches;
    bool inside =
        in_arena(tt_engine_validation_inputs(engine).tokens) && in_arena(tt_engine_validation_inputs(engine).labels);

    for (int a = 0; a < microbatches; a++)
        inside = inside && in_arena(tt_engine_inputs(engine, a).tokens) && in_arena(tt_engine_inputs(engine, a).labels);
    return inside ? 0 : tt_fail(TT_EINTERNAL, "rank %d has samples outside of its arena", comm->rank);
}

/* Marks the step region after the first step; the second one must change it up to its last buffer.
 *   arg  what was predicted for every rank */
static int check_arena(struct tt_comm *comm, struct tt_engine *engine, int step, void *arg)
{
    const struct tt_engine_memory *memory = (const struct tt_engine_memory *)arg + comm->rank;
    char *region = arena + memory->total - tt_arena_bytes(memory->step);
    int64_t used;
    int rc = 0;

    TT_TRY(tt_engine_synchronize(engine));
    TT_TRY(check_samples(comm, engine));
    if (arena_bytes != (size_t)memory->total + tt_sums_bytes(tt_engine_layout(engine)))
        TT_TRY(tt_fail(TT_EINTERNAL, "rank %d has an arena of %zu bytes, predicted were %lld", comm->rank, arena_bytes,
                       (long long)memory->total));
    if (changed(arena + arena_bytes, GUARD))
        TT_TRY(tt_fail(TT_EINTERNAL, "rank %d writes beyond its arena", comm->rank));
    used = changed(region, memory->step);
    if (step == 1)
        memset(region, MARK, (size_t)memory->step);
    else if (used <= last_buffer(tt_engine_program(engine), memory->step))
        rc = tt_fail(TT_EINTERNAL, "rank %d uses %lld of %lld bytes", comm->rank, (long long)used,
                     (long long)memory->step);
out:
    return rc;
}

static void predict(const struct train_job *job, struct tt_engine_memory *memory)
{
    struct tt_engine_options options;

    assert_int_equal(fixture_check(train_job_options(job, &options)), 0);
    for (int rank = 0; rank < job->ranks; rank++) {
        struct tt_engine *engine = NULL;

        assert_int_equal(fixture_check(tt_engine_new(&options, NULL, rank, &engine)), 0);
        memory[rank] = tt_engine_memory(engine);
        tt_engine_free(engine);
    }
    train_job_options_release(&options);
}

static void must_be_used(struct train_job *job, const char *name)
{
    struct tt_device_ops ops = *tt_device_host()->ops;
    struct tt_device device = {&ops};
    struct tt_engine_memory memory[MOST_RANKS];
    struct train_result result;

    ops.allocate = allocate;
    ops.release = release;
    assert_true(job->ranks <= MOST_RANKS);
    job->device = &device;
    job->steps = 2;
    job->validation_batches = 1;
    job->after_step = check_arena;
    job->after_arg = memory;
    predict(job, memory);
    if (fixture_check(train_job_run(job, &result)) < 0)
        fail_msg("%s on %d ranks, engine %d", name, job->ranks, (int)job->scheduler);
    train_result_release(&result);
}

/* --- pipelines --- */

/* Every other job has two data ranks and uses the planned scheduler. */
static void pipelines_use_what_was_predicted(void **state)
{
    for (int s = 0; s < FIXTURE_SCHEDULES; s++)
        for (int data = 1; data <= 2; data++) {
            struct train_job job = train_job_make(world.odd, &world.data, 4 * data, 1, 8);

            job.pipe = 2;
            job.ranks = 2 * data;
            job.every_run = s % 2; /* with one data rank there is nothing to reduce */
            job.schedule_of_pipe = fixture_schedules[s].schedule;
            job.stages_per_rank = fixture_schedules[s].chunks;
            job.scheduler = data > 1 ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER;
            must_be_used(&job, tt_pipeline_row(fixture_schedules[s].schedule)->name);
        }
}

/* --- every dimension, and pairs of them --- */

static const struct {
    int pipe, replicate, shard, context, tensor;
} meshes[] = {
    {1, 1, 2, 1, 1}, {1, 2, 2, 1, 1}, {1, 1, 1, 1, 2}, {1, 1, 1, 1, 4}, {1, 1, 1, 1, 8}, {1, 1, 1, 2, 1},
    {1, 1, 1, 4, 1}, {1, 1, 1, 2, 2}, {1, 1, 2, 1, 2}, {1, 2, 1, 1, 2}, {1, 1, 2, 2, 1}, {1, 2, 1, 2, 1},
    {2, 1, 1, 1, 2}, {2, 1, 1, 2, 1}, {2, 1, 2, 1, 2}, {2, 1, 1, 2, 2}, {1, 1, 2, 2, 2},
};

static void use_mesh(const struct tt_model *model, int m, enum tt_engine_choice scheduler)
{
    int data = meshes[m].replicate * meshes[m].shard;
    struct train_job job = train_job_make(model, &world.data, 2 * data, 1, 16);
    char name[80];

    job.pipe = meshes[m].pipe;
    job.replicate = meshes[m].replicate;
    job.context = meshes[m].context;
    job.gathers = m % 2;
    job.tensor = meshes[m].tensor;
    job.ranks = job.pipe * data * job.context * job.tensor;
    job.experts = model->dims.moe.experts ? meshes[m].shard * job.context * job.tensor : 1;
    job.router_losses.microbatch = model->dims.moe.experts ? 0.1F : 0.0F;
    job.scheduler = scheduler;
    if (m % 3 == 2)
        job.recompute.mode = TT_RECOMPUTE_FULL;
    if (m % 4 == 3)
        job.param_dtype = TT_BF16;
    (void)snprintf(name, sizeof name, "%s, pp %d x dp_replicate %d x dp_shard %d x cp %d x tp %d", model->row->name,
                   job.pipe, job.replicate, meshes[m].shard, job.context, job.tensor);
    must_be_used(&job, name);
}

static void every_dimension_uses_what_was_predicted(void **state)
{
    for (int i = 0; i < 2 * COUNT(meshes); i += sweep_stride())
        use_mesh(even, i / 2, i % 2 ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER);
}

/* Each rank computes the latents of some tokens before they are gathered. */
static void latents_use_what_was_predicted(void **state)
{
    for (int m = 0; m < COUNT(meshes); m++)
        if (meshes[m].tensor > 1 || meshes[m].context > 1)
            use_mesh(latents, m, m % 2 ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER);
}

/* It includes the window for rows of other ranks' tokens, however many there are. */
static void experts_use_what_was_predicted(void **state)
{
    for (int m = 0; m < COUNT(meshes); m++)
        if (meshes[m].tensor > 1 || meshes[m].context > 1)
            use_mesh(experts, m, m % 2 ? TT_ENGINE_PLANNED : TT_ENGINE_EAGER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipelines_use_what_was_predicted),
        cmocka_unit_test(every_dimension_uses_what_was_predicted),
        cmocka_unit_test(latents_use_what_was_predicted),
        cmocka_unit_test(experts_use_what_was_predicted),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("arena", tests, set_up, tear_down);
}
