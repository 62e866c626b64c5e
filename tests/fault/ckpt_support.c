/* SPDX-License-Identifier: MIT */
#include "ckpt_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/load/load.h"
#include "checkpoint/save/plan.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "parallel/layout/placement.h"
#include "tests/help/threads.h"

static const struct tt_ckpt_chunk tensors[] = {
    {.name = "tok_embeddings.weight", .dtype = TT_F32, .ndim = 2, .shape = {613, 1001}},
    {.name = "layers.0.attention.wq.weight", .dtype = TT_F32, .ndim = 2, .shape = {7, 5}},
    {.name = "layers.0.cube", .dtype = TT_F32, .ndim = 3, .shape = {5, 3, 2}},
    {.name = "layers.0.few", .dtype = TT_F32, .ndim = 2, .shape = {2, 3}},
    {.name = "layers.0.one", .dtype = TT_F32, .ndim = 1, .shape = {1}},
    {.name = "layers.0.half", .dtype = TT_BF16, .ndim = 2, .shape = {11, 3}},
    {.name = "norm.weight", .dtype = TT_F32, .ndim = 1, .shape = {13}},
    {.name = "scalar", .dtype = TT_F32},
};
enum { TENSORS = sizeof tensors / sizeof tensors[0] };

static uint64_t seed_of(const char *name, int64_t step)
{
    return tt_hash64(name, strlen(name), (uint64_t)step + 1);
}

/* Random bits of F32 or BF16 that are neither NaN nor infinity, since those are never saved. */
static uint32_t element(uint64_t seed, int64_t index)
{
    return (uint32_t)tt_mix64(seed ^ (uint64_t)index) & 0xbfffbfffu;
}

static int64_t part_bytes(const struct tt_ckpt_chunk *c)
{
    return tt_ckpt_box_bytes(c, &c->part);
}

/* The part's elements at a step, one after the other; if the step is negative, values that no step has. */
static void write_elements(const struct tt_ckpt_chunk *c, int64_t step, void *out)
{
    struct tt_box whole = tt_box_whole(c->ndim, c->shape);
    int64_t n = tt_box_volume(&c->part), run = n ? tt_box_run(&c->part, &whole) : 0;
    uint64_t seed = seed_of(c->name, step);

    for (int64_t at = 0; at < n; at += run) {
        int64_t position = tt_box_position(&c->part, at, &whole);

        for (int64_t i = 0; i < run; i++) {
            uint32_t value = step < 0 ? 0x5eadbeefu : element(seed, position + i);

            if (c->dtype == TT_F32)
                ((uint32_t *)out)[at + i] = value;
            else
                ((uint16_t *)out)[at + i] = (uint16_t)value;
        }
    }
}

/* The next place in the pipeline holds a copy of the first tensor and of its moments, as it does of a tied weight. */
static bool holds(const struct tt_ckpt_chunk *c, const struct tt_mesh *mesh, int rank)
{
    struct tt_placement next = c->placement;

    next.pp = (next.pp + 1) % mesh->size[TT_MESH_PP];
    return tt_placement_has(mesh, &c->placement, rank) ||
           (strstr(c->name, tensors[0].name) && tt_placement_has(mesh, &next, rank));
}

static void fill(struct tt_ckpt_chunk *c, const struct tt_mesh *mesh, int rank, int64_t step)
{
    c->part = tt_box_empty(c->ndim);
    if (holds(c, mesh, rank))
        c->part =
            tt_placement_box(mesh, &c->placement, c->ndim, c->shape, tt_placement_part(mesh, &c->placement, rank));
    c->data = part_bytes(c) ? tt_calloc((size_t)part_bytes(c), 1) : NULL;
    write_elements(c, step, c->data);
}

static bool is_filled(const struct tt_ckpt_chunk *c, int64_t step)
{
    size_t bytes = (size_t)part_bytes(c);
    void *wanted = bytes ? tt_calloc(bytes, 1) : NULL;
    bool same;

    write_elements(c, step, wanted);
    same = !bytes || memcmp(c->data, wanted, bytes) == 0;
    tt_free(wanted);
    return same;
}

struct tt_mesh test_mesh(int dp_shard, int dp_replicate)
{
    struct tt_mesh mesh = tt_mesh_single();

    mesh.size[TT_MESH_DP_SHARD] = dp_shard;
    mesh.size[TT_MESH_DP_REPLICATE] = dp_replicate;
    mesh.n_ranks = dp_shard * dp_replicate;
    return mesh;
}

/* With several ranks of tp, one tensor is cut over them along the last dimension, the next by rows in grains, and the
 * next stays whole. Then all are cut by rows over the shard group. Tensors go to the places of a pipeline in turn. */
static void place(struct tt_ckpt_chunk *c, int i, const struct tt_mesh *mesh)
{
    int tp = tt_mesh_size(mesh, TT_GROUP_TP), last = c->ndim ? c->ndim - 1 : 0;

    if (tp > 1 && i % 3 < 2)
        c->placement =
            (struct tt_placement){2,
                                  {{TT_GROUP_TP, i % 3 ? 0 : last, i % 3 ? 2 * tp : 0, 0}, {TT_GROUP_FSDP, 0, 0, 0}},
                                  TT_GROUP_REPLICATE,
                                  0};
    else
        c->placement = (struct tt_placement){1, {{TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_COPIES, 0};
    c->placement.pp = (i + 1) % mesh->size[TT_MESH_PP];
}

void test_state_init_on(struct test_state *t, const struct tt_mesh *mesh, int rank, int64_t step)
{
    struct tt_ckpt_state *s = &t->state;

    t->mesh = *mesh;
    *s = (struct tt_ckpt_state){TENSORS, tt_calloc(TENSORS, sizeof *s->model), 2 * TENSORS,
                                tt_calloc((size_t)2 * TENSORS, sizeof *s->optim)};
    for (int i = 0; i < TENSORS; i++) {
        struct tt_ckpt_chunk *moment = s->optim + (size_t)2 * (size_t)i;

        s->model[i] = tensors[i];
        place(&s->model[i], i, mesh);
        moment[0] = moment[1] = s->model[i];
        moment[0].name = tt_format("state.%s.exp_avg", tensors[i].name);
        moment[1].name = tt_format("state.%s.exp_avg_sq", tensors[i].name);
        fill(&s->model[i], &t->mesh, rank, step);
        fill(&moment[0], &t->mesh, rank, step);
        fill(&moment[1], &t->mesh, rank, step);
    }
}

void test_state_init(struct test_state *t, int dp_shard, int dp_replicate, int rank, int64_t step)
{
    struct tt_mesh mesh = test_mesh(dp_shard, dp_replicate);

    test_state_init_on(t, &mesh, rank, step);
}

void test_state_release(struct test_state *t)
{
    for (int i = 0; i < t->state.n_model; i++)
        tt_free(t->state.model[i].data);
    for (int i = 0; i < t->state.n_optim; i++) {
        tt_free(t->state.optim[i].data);
        tt_free((char *)(uintptr_t)t->state.optim[i].name);
    }
    tt_free(t->state.model);
    tt_free(t->state.optim);
}

bool test_state_is(const struct test_state *t, int64_t step, bool model_only)
{
    for (int i = 0; i < t->state.n_model; i++)
        if (!is_filled(&t->state.model[i], step))
            return false;
    for (int i = 0; i < t->state.n_optim && !model_only; i++)
        if (!is_filled(&t->state.optim[i], step))
            return false;
    return true;
}

static struct tt_mesh mesh_of(const struct test_job *job)
{
    struct tt_mesh mesh = test_mesh(job->dp_shard, job->dp_replicate);

    if (job->tp > 1)
        mesh.n_ranks *= mesh.size[TT_MESH_TP] = job->tp;
    if (job->pp > 1)
        mesh.n_ranks *= mesh.size[TT_MESH_PP] = job->pp;
    return mesh;
}

bool test_rank_holds(const struct test_job *job, int rank, int tensor)
{
    struct tt_mesh mesh = mesh_of(job);
    struct test_state t;
    bool has;

    test_state_init_on(&t, &mesh, rank, 0);
    has = part_bytes(tensor < TENSORS ? &t.state.model[tensor] : &t.state.optim[tensor - TENSORS]) > 0;
    test_state_release(&t);
    return has;
}

static json_t *test_meta(const struct test_job *job)
{
    return json_pack("{s:I,s:I,s:I,s:{s:i,s:i,s:i,s:i,s:i},s:{s:{s:s}}}", "step", (json_int_t)job->step, "ntokens_seen",
                     (json_int_t)job->step * 2048, "sample_cursor", (json_int_t)job->step * 8, "mesh", "pp",
                     job->pp > 1 ? job->pp : 1, "dp_replicate", job->dp_replicate, "dp_shard", job->dp_shard, "cp", 1,
                     "tp", job->tp > 1 ? job->tp : 1, "config", "model", "name", "llama3");
}

static void spoil(struct test_state *t)
{
    for (int i = 0; i < t->state.n_model + t->state.n_optim; i++) {
        struct tt_ckpt_chunk *c = i < t->state.n_model ? &t->state.model[i] : &t->state.optim[i - t->state.n_model];

        if (c->data)
            memset(c->data, 0x55, (size_t)part_bytes(c));
    }
}

/* Flips the lowest bit of the last element of a tensor that this rank holds, if it holds any. */
static void flip_last(struct test_state *t, int i)
{
    struct tt_ckpt_chunk *c = i < t->state.n_model ? &t->state.model[i] : &t->state.optim[i - t->state.n_model];

    if (c->data)
        ((uint8_t *)c->data)[part_bytes(c) - (int64_t)tt_dtype_size(c->dtype)] ^= 1;
}

static int save_async(struct tt_ckpt_store *store, struct tt_ckpt_save *save, struct test_state *t,
                      struct tt_ckpt_saved *ret_saved)
{
    const struct tt_ckpt_policy *policy = NULL;
    struct tt_ckpt_saving *saving = NULL;
    int rc = 0;

    TT_TRY(tt_ckpt_policy_find(save->policy, save->filter, &policy));
    TT_TRY(tt_ckpt_writer_new(tt_ckpt_staging_bytes(&t->state, &t->mesh, policy, store->comm->rank), &save->writer));
    TT_TRY(tt_ckpt_save_begin(store, save, &saving));
    spoil(t);
    TT_TRY(tt_ckpt_saving_end(saving, ret_saved));
out:
    tt_ckpt_writer_free(save->writer);
    return rc;
}

static int save_rank(struct tt_comm *comm, void *arg)
{
    static const struct tt_ckpt_asset asset = {"tokenizer.json", "{\"a\": 1}\n", 9};
    struct test_job *job = arg;
    struct tt_mesh mesh = mesh_of(job);
    struct tt_ckpt_store *store = NULL;
    struct tt_ckpt_saved saved;
    struct test_state t;
    json_t *meta = test_meta(job);
    struct tt_ckpt_save save = {.state = &t.state,
                                .meta = meta,
                                .asset = &asset,
                                .n_assets = 1,
                                .policy = job->policy ? job->policy : "all",
                                .filter = job->filter,
                                .keep_latest_k = job->keep,
                                .cast_model = job->cast_model,
                                .model_dtype = job->model_dtype};
    int rc = 0;

    test_state_init_on(&t, &mesh, comm->rank, job->step);
    if (job->nonfinite && comm->rank % job->dp_shard == 0) /* the first value of the first tensor, in all replicas */
        memcpy(t.state.model[0].data, &(uint32_t){0x7f800000u}, 4);
    if (job->flip_rank == comm->rank && job->flip_rank)
        flip_last(&t, job->flip_tensor);
    if (job->threads)
        TT_TRY(tt_team_new(job->threads, &save.team));
    TT_TRY(tt_ckpt_store_open(comm, &t.mesh, job->folder, job->run_id, &store));
    rc = job->async ? save_async(store, &save, &t, &saved) : tt_ckpt_save(store, &save, &saved);
    if (rc == 0 && comm->rank == 0)
        job->saved = saved;
out:
    tt_ckpt_store_close(store);
    tt_team_free(save.team);
    test_state_release(&t);
    json_decref(meta);
    return rc;
}

static int load_rank(struct tt_comm *comm, struct test_job *job, bool resume)
{
    struct tt_mesh mesh = mesh_of(job);
    struct test_state t;
    struct tt_ckpt_request request = {.line = {job->load_step, job->skip}, .reading = job->reading};
    struct tt_ckpt_found found = {.step = -1};
    json_t *meta = NULL;
    unsigned skip = job->skip;
    int64_t wrong = 0;
    int rc = 0;

    test_state_init_on(&t, &mesh, comm->rank, -1);
    if (resume)
        TT_TRY(tt_ckpt_resume(comm, &t.mesh, job->folder, &request, &t.state, &found));
    else
        TT_TRY(tt_ckpt_load(comm, &t.mesh, job->path, job->reading, &skip, &t.state, &meta));
    wrong = !test_state_is(&t, job->expect, (job->skip & TT_SKIP_OPTIMIZER) != 0);
    TT_TRY(tt_comm_sum_i64(comm, &wrong, 1));
    if (comm->rank == 0) {
        job->found = found.step;
        job->wrong = (int)wrong;
    }
out:
    tt_ckpt_found_release(&found);
    json_decref(meta);
    test_state_release(&t);
    return rc;
}

static int resume_rank(struct tt_comm *comm, void *arg)
{
    return load_rank(comm, arg, true);
}

static int path_rank(struct tt_comm *comm, void *arg)
{
    return load_rank(comm, arg, false);
}

int test_save(struct test_job *job)
{
    return tt_comm_threads_run(mesh_of(job).n_ranks, save_rank, job);
}

int test_resume(struct test_job *job)
{
    return tt_comm_threads_run(mesh_of(job).n_ranks, resume_rank, job);
}

int test_load(struct test_job *job)
{
    return tt_comm_threads_run(mesh_of(job).n_ranks, path_rank, job);
}

char *test_folder(void)
{
    /* In memory if possible, since the tests call fsync several thousand times. */
    char *folder = tt_format("%s/titan-ckpt-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");

    assert_non_null(mkdtemp(folder));
    return folder;
}

void test_flip(const char *path, int64_t bit)
{
    int fd = open(path, O_RDWR);
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, bit / 8), 1);
    byte ^= (uint8_t)(1 << bit % 8);
    assert_int_equal(pwrite(fd, &byte, 1, bit / 8), 1);
    (void)close(fd);
}

void test_resize(const char *path, int64_t delta)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size + delta), 0);
}
