/* SPDX-License-Identifier: MIT
 *
 * Every save policy leaves the same checkpoint, with and without a writer thread. Ranks are threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/format/digest.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/save/plan.h"
#include "checkpoint/steps/steps.h"
#include "ckpt_support.h"
#include "core/base/mem.h"
#include "core/config/config.h"
#include "core/os/file.h"
#include "tests/help/sweep.h"

static const struct {
    int shard, replicate, pp;
} meshes[] = {{1, 1, 1}, {3, 1, 1}, {1, 3, 1}, {2, 2, 1}, {3, 2, 1}, {8, 1, 1}, {1, 1, 2}, {2, 1, 2},
              {1, 3, 2}, {2, 2, 2}, {1, 1, 3}, {2, 1, 3}, {1, 2, 3}, {1, 1, 4}, {2, 1, 4}, {2, 2, 4}};
enum { MESHES = sizeof meshes / sizeof meshes[0] };

static struct test_job job_of(const char *folder, int policy, int mesh)
{
    const struct tt_ckpt_policy *row = tt_ckpt_policy_row(policy);

    return (struct test_job){.folder = folder,
                             .run_id = "run",
                             .dp_shard = meshes[mesh].shard,
                             .dp_replicate = meshes[mesh].replicate,
                             .pp = meshes[mesh].pp,
                             .step = 5,
                             .policy = row->name,
                             .filter = row->filter};
}

static void save(struct test_job *job)
{
    if (test_save(job) != 0)
        fail_msg("%s %s on %dx%dx%d%s: %s", job->policy, job->filter ? job->filter : "", job->pp, job->dp_replicate,
                 job->dp_shard, job->async ? ", async" : "", tt_error_message());
}

static struct tt_manifest manifest_of(const struct test_job *job)
{
    struct tt_manifest manifest = {0};
    char *path = tt_step_path(job->folder, job->step);

    if (tt_step_check(path, &manifest) != 0)
        fail_msg("%s", tt_error_message());
    tt_free(path);
    return manifest;
}

static void remove_folder(char *folder)
{
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

static void expect_same_digests(const struct tt_manifest *a, const struct tt_manifest *b)
{
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (int i = 0; i < a->n_tensors; i++) {
        assert_string_equal(a->tensor[i].name, b->tensor[i].name);
        assert_true(a->tensor[i].has_digest && a->tensor[i].digest == b->tensor[i].digest);
    }
}

static bool has_filter(int policy, const char *filter)
{
    const char *of_row = tt_ckpt_policy_row(policy)->filter;

    return of_row && strcmp(of_row, filter) == 0;
}

/* The number of files that are not empty: one per writer and group. A place of a pipeline has few tensors, so not every
 * replica writes a tensor of each group. */
static void expect_files(int n, int policy, int mesh)
{
    int ranks = meshes[mesh].shard * meshes[mesh].replicate * meshes[mesh].pp;

    if (has_filter(policy, "rank0"))
        assert_int_equal(n, 2);
    else if (has_filter(policy, "replica0"))
        assert_int_equal(n, 2 * ranks / meshes[mesh].replicate);
    else if (meshes[mesh].pp == 1)
        assert_int_equal(n, 2 * ranks);
    else
        assert_in_range(n, ranks, 2 * ranks);
}

/* Only ranks at place 1 of a pipeline write a tensor of that place; the replicas divide its large parts. */
static void expect_writers(const struct tt_manifest *manifest, int policy, int mesh)
{
    const struct tt_manifest_tensor *t = tt_manifest_find(manifest, TT_CKPT_MODEL, "tok_embeddings.weight");
    int dp = meshes[mesh].shard * meshes[mesh].replicate, place = meshes[mesh].pp > 1;

    for (int i = 0; i < t->n_chunks && !has_filter(policy, "rank0"); i++) {
        const char *file = manifest->file[t->chunk[i].file].path;
        long writer = strtol(strstr(file, "shard-") + 6, NULL, 10) - 1;

        assert_in_range(writer, place * dp, place * dp + dp - 1);
    }
}

static void every_policy_saves_the_same(void **state)
{
    struct tt_manifest first = {0}, manifest;

    for (int mesh = 0; mesh < MESHES; mesh++) {
        for (int policy = mesh % sweep_stride(); tt_ckpt_policy_row(policy); policy += sweep_stride()) {
            char *folder = test_folder();
            struct test_job job = job_of(folder, policy, mesh);
            struct test_job load = {folder, "run", 2, 2, .pp = (mesh + policy) % 3 + 1, .load_step = -1, .expect = 5};

            load.reading = mesh % 2 ? TT_LOAD_ALL : TT_LOAD_ONCE;
            job.async = (mesh + policy) % 2; /* so that each policy has both */
            save(&job);
            manifest = manifest_of(&job);
            assert_int_equal(manifest.n_files, job.saved.files);
            expect_files(manifest.n_files, policy, mesh);
            expect_writers(&manifest, policy, mesh);
            assert_string_equal(json_string_value(json_object_get(manifest.meta, "policy")), job.policy);
            if (!first.meta) {
                first = manifest;
            } else {
                expect_same_digests(&first, &manifest);
                tt_manifest_release(&manifest);
            }
            assert_int_equal(test_resume(&load), 0);
            assert_int_equal(load.wrong, 0);
            remove_folder(folder);
        }
    }
    tt_manifest_release(&first);
}

/* Parts may be cut along two dimensions, as in tensor parallelism. The digests are the same, and any mesh loads
 * them. */
static void parts_may_be_cut_by_columns_too(void **state)
{
    static const enum tt_load_choice readings[] = {TT_LOAD_ONCE, TT_LOAD_ALL};

    for (int policy = 0; tt_ckpt_policy_row(policy); policy++) {
        char *folder = test_folder(), *plain = test_folder();
        struct test_job job = job_of(folder, policy, 3), rows = job_of(plain, policy, 3);
        struct tt_manifest first, manifest;

        job.tp = 2;
        job.async = policy != 0;
        save(&job);
        save(&rows);
        first = manifest_of(&rows);
        manifest = manifest_of(&job);
        expect_same_digests(&first, &manifest);
        tt_manifest_release(&first);
        tt_manifest_release(&manifest);
        for (int tp = 1; tp <= 4; tp++)
            for (int i = 0; i < 2; i++) {
                struct test_job load = {folder,         "run",       2,           tp % 2 + 1,
                                        .tp = tp,       .pp = i + 1, .expect = 5, .reading = readings[i],
                                        .load_step = -1};

                if (test_resume(&load) != 0)
                    fail_msg("policy %d, tp %d: %s", policy, tp, tt_error_message());
                assert_int_equal(load.wrong, 0);
            }
        remove_folder(folder);
        remove_folder(plain);
    }
}

static void expect_same_files(const struct test_job *a, const struct test_job *b)
{
    struct tt_manifest manifest = manifest_of(a);

    for (int i = 0; i < manifest.n_files; i++) {
        const struct test_job *job[2] = {a, b};
        char *text[2];
        size_t size[2];

        for (int k = 0; k < 2; k++) {
            char *path = tt_format("%s/step-5/%s", job[k]->folder, manifest.file[i].path);

            assert_int_equal(tt_file_read(path, &text[k], &size[k]), 0);
            tt_free(path);
        }
        assert_int_equal(size[0], size[1]);
        assert_memory_equal(text[0], text[1], size[0]);
        tt_free(text[0]);
        tt_free(text[1]);
    }
    tt_manifest_release(&manifest);
}

static void a_thread_writes_the_same_bytes(void **state)
{
    for (int policy = 0; tt_ckpt_policy_row(policy); policy++) {
        char *a = test_folder(), *b = test_folder();
        struct test_job sync = job_of(a, policy, 3), async = job_of(b, policy, 3);

        async.async = true;
        async.threads = 2; /* reading by teams gives the same */
        save(&sync);
        save(&async);
        expect_same_files(&sync, &async);
        sync.threads = 3;
        save(&sync);
        expect_same_files(&sync, &async);
        remove_folder(a);
        remove_folder(b);
    }
}

static void the_model_in_another_type(void **state)
{
    struct tt_manifest first = {0}, manifest;

    for (int policy = 0; tt_ckpt_policy_row(policy); policy++) {
        for (int async = 0; async < 2; async++) {
            char *folder = test_folder();
            struct test_job job = job_of(folder, policy, 3);

            job.cast_model = true;
            job.model_dtype = TT_BF16;
            job.async = async;
            save(&job);
            manifest = manifest_of(&job);
            assert_int_equal(tt_manifest_find(&manifest, TT_CKPT_MODEL, "norm.weight")->dtype, TT_BF16);
            assert_int_equal(tt_manifest_find(&manifest, TT_CKPT_OPTIM, "state.norm.weight.exp_avg")->dtype, TT_F32);
            if (!first.meta) {
                first = manifest;
            } else {
                expect_same_digests(&first, &manifest);
                tt_manifest_release(&manifest);
            }
            remove_folder(folder);
        }
    }
    tt_manifest_release(&first);
}

static void what_is_not_finite_is_not_saved(void **state)
{
    char *folder = test_folder();
    struct test_job job = job_of(folder, 0, 3), load = {folder, "run", 1, 1, .load_step = -1, .expect = 5};

    save(&job); /* step 5, which the next save would replace */
    job.nonfinite = true;
    for (int async = 0; async < 2; async++) {
        job.async = async;
        assert_int_equal(test_save(&job), TT_ENONFINITE);
        assert_non_null(strstr(tt_error_message(), "tensor 'tok_embeddings.weight' has 1 values that are not finite"));
        assert_int_equal(test_resume(&load), 0);
        assert_int_equal(load.wrong, 0);
    }
    remove_folder(folder);
}

/* The bytes of a rank's file; 0 if it is gathered from other ranks, since then nothing is staged. */
static int64_t staged(struct test_state *t, const struct tt_ckpt_plan *plan, enum tt_ckpt_group group, int rank)
{
    int64_t bytes = 0;

    for (int i = 0; i < plan->n; i++) {
        const struct tt_ckpt_piece *p = &plan->piece[i];
        const struct tt_ckpt_chunk *c;
        struct tt_box box;

        if (p->writer != rank || p->group != group)
            continue;
        c = tt_ckpt_state_tensor(&t->state, p->tensor);
        if (!tt_ckpt_piece_is_local(p, c, &t->mesh))
            return 0;
        box = tt_ckpt_piece_box(p, c, &t->mesh);
        bytes += tt_ckpt_box_bytes(c, &box);
    }
    return bytes;
}

/* The memory for staging is predicted before anything exists. The memory that a rank then uses fits into it, and a
 * writer's own files fill it. */
static void staging_is_what_the_files_need(void **state)
{
    for (int policy = 0; tt_ckpt_policy_row(policy); policy++) {
        const struct tt_ckpt_policy *row = tt_ckpt_policy_row(policy);
        struct tt_ckpt_plan plan;
        struct test_state t;

        for (int tp = 1; tp <= 2; tp++) {
            struct tt_mesh mesh = test_mesh(2, 3);
            int64_t most = 0;

            mesh.n_ranks *= mesh.size[TT_MESH_TP] = tp;
            test_state_init_on(&t, &mesh, 0, 1);
            tt_ckpt_plan_make(&t.state, &t.mesh, row, &plan);
            for (int rank = 0; rank < 6 * tp; rank++) {
                int64_t bytes = staged(&t, &plan, TT_CKPT_MODEL, rank) + staged(&t, &plan, TT_CKPT_OPTIM, rank);

                if (rank / tp % 2 == 0) /* the ranks of shard 0 */
                    most = bytes > most ? bytes : most;
            }
            assert_in_range(tt_ckpt_staging_bytes(&t.state, &t.mesh, row, 0), most,
                            most ? most + 2 * TT_SHARD_ALIGN : 0);
            tt_ckpt_plan_release(&plan);
            test_state_release(&t);
        }
    }
}

static void values_that_are_not_finite_are_counted(void **state)
{
    const uint32_t f32[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f7fffff, 0, 0x80000000};
    const uint16_t bf16[] = {0x7f80, 0xff81, 0x7f7f, 0}, f16[] = {0x7c00, 0xfe00, 0x7bff, 0};

    assert_int_equal(tt_digest_nonfinite(TT_F32, f32, 6), 3);
    assert_int_equal(tt_digest_nonfinite(TT_BF16, bf16, 4), 2);
    assert_int_equal(tt_digest_nonfinite(TT_F16, f16, 4), 2);
    assert_int_equal(tt_digest_nonfinite(TT_U32, f32, 6), 0);
}

/* A tensor that differs between replicas is found and named, whichever rank writes it. Nothing is saved. */
static void replicas_that_differ_are_not_saved(void **state)
{
    static const struct {
        int shard, replicate, pp, rank;
        const char *says;
    } flips[] = {
        {1, 3, 1, 2, "rank 2 differs from most replicas"}, {1, 3, 1, 1, "rank 1 differs from most replicas"},
        {2, 3, 1, 4, "rank 4 differs from most replicas"}, {2, 2, 1, 2, "ranks 0, 2 differ from each other"},
        {3, 2, 1, 3, "ranks 0, 3 differ from each other"}, {1, 3, 2, 4, "rank 4 differs from most replicas"},
        {1, 3, 2, 1, "rank 1 differs from most replicas"}, {2, 2, 2, 6, "ranks 4, 6 differ from each other"},
    };
    struct test_state names;

    test_state_init(&names, 1, 1, 0, 5);
    for (size_t f = 0; f < sizeof flips / sizeof *flips; f++)
        for (int policy = 0; tt_ckpt_policy_row(policy); policy++)
            for (int tensor = policy; tensor < names.state.n_model + names.state.n_optim; tensor += 5) {
                const struct tt_ckpt_chunk *c = tensor < names.state.n_model
                                                    ? &names.state.model[tensor]
                                                    : &names.state.optim[tensor - names.state.n_model];
                char *folder = test_folder(), *where = tt_format("first in tensor '%s'", c->name);
                struct test_job job = {.folder = folder,
                                       .run_id = "run",
                                       .dp_shard = flips[f].shard,
                                       .dp_replicate = flips[f].replicate,
                                       .pp = flips[f].pp,
                                       .step = 5,
                                       .policy = tt_ckpt_policy_row(policy)->name,
                                       .filter = tt_ckpt_policy_row(policy)->filter,
                                       .async = tensor % 2 == 1,
                                       .threads = tensor % 3 == 2 ? 2 : 0,
                                       .flip_rank = flips[f].rank,
                                       .flip_tensor = tensor};
                int64_t *steps = NULL;
                int n = 0;

                if (!test_rank_holds(&job, flips[f].rank, tensor))
                    assert_int_equal(test_save(&job), 0); /* nothing was flipped */
                else if (test_save(&job) != TT_EINTERNAL || !strstr(tt_error_message(), flips[f].says) ||
                         !strstr(tt_error_message(), where))
                    fail_msg("%s, %dx%dx%d, %s: wanted '%s', '%s', found: %s", job.policy, job.pp, job.dp_replicate,
                             job.dp_shard, c->name, flips[f].says, where, tt_error_message());
                assert_int_equal(tt_step_list(folder, &steps, &n), 0);
                assert_int_equal(n, !test_rank_holds(&job, flips[f].rank, tensor));
                tt_free(steps);
                tt_free(where);
                remove_folder(folder);
            }
    test_state_release(&names);
}

/* Every third tensor, which tensor parallelism does not divide, has copies along tp as well; the others do not. */
static void ranks_along_tp_have_the_same_copies(void **state)
{
    static const struct {
        int shard, replicate, tensor;
        const char *says; /* NULL: no rank has a copy */
    } flips[] = {
        {1, 1, 2, "ranks 0, 1 differ from each other, first in tensor 'layers.0.cube'"},
        {1, 1, 0, NULL},
        {1, 1, 1, NULL},
        {2, 2, 2, "rank 1 differs from most replicas, first in tensor 'layers.0.cube'"},
        {2, 2, 0, "ranks 1, 5 differ from each other, first in tensor 'tok_embeddings.weight'"},
    };

    for (size_t f = 0; f < sizeof flips / sizeof *flips; f++)
        for (int policy = 0; tt_ckpt_policy_row(policy); policy++) {
            char *folder = test_folder();
            struct test_job job = {.folder = folder,
                                   .run_id = "run",
                                   .dp_shard = flips[f].shard,
                                   .dp_replicate = flips[f].replicate,
                                   .tp = 2,
                                   .step = 5,
                                   .policy = tt_ckpt_policy_row(policy)->name,
                                   .filter = tt_ckpt_policy_row(policy)->filter,
                                   .async = f % 2,
                                   .flip_rank = 1,
                                   .flip_tensor = flips[f].tensor};
            int rc = test_save(&job);

            assert_true(test_rank_holds(&job, 1, flips[f].tensor));
            if (!flips[f].says)
                assert_int_equal(rc, 0);
            else if (rc != TT_EINTERNAL || !strstr(tt_error_message(), flips[f].says))
                fail_msg("wanted '%s', found: %s", flips[f].says, tt_error_message());
            remove_folder(folder);
        }
}

/* The words of features that are not available are choices, but titan-config(5) does not list them. */
static bool is_offered(const char *path, const char *word)
{
    struct tt_text range = {0};
    bool found = false;
    char *next = NULL, *at;

    tt_config_range_text(tt_config_row_find(path), &range);
    for (at = strtok_r(range.text, "|", &next); at; at = strtok_r(NULL, "|", &next))
        found = found || strcmp(at, word) == 0;
    tt_text_release(&range);
    return found;
}

/* A policy that no configuration can name, or a name without a policy, means that somebody forgot a line. */
static void policies_are_the_choices_of_their_keys(void **state)
{
    const struct tt_choices *choices = tt_config_row(TT_KEY(checkpoint.save_policy))->choices;
    const struct tt_ckpt_policy *row = NULL;

    for (int i = 0; (row = tt_ckpt_policy_row(i)); i++)
        if (!is_offered("checkpoint.save_policy", row->name) ||
            (row->filter && !is_offered("checkpoint.filter", row->filter)))
            fail_msg("the configuration has no save policy %s %s", row->name, row->filter ? row->filter : "");
    for (int i = 0; i < choices->n; i++)
        if (tt_ckpt_policy_find(choices->choice[i].word, "replica0", &row) < 0)
            fail_msg("%s", tt_error_message());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_saves_the_same),
        cmocka_unit_test(parts_may_be_cut_by_columns_too),
        cmocka_unit_test(a_thread_writes_the_same_bytes),
        cmocka_unit_test(the_model_in_another_type),
        cmocka_unit_test(what_is_not_finite_is_not_saved),
        cmocka_unit_test(staging_is_what_the_files_need),
        cmocka_unit_test(values_that_are_not_finite_are_counted),
        cmocka_unit_test(replicas_that_differ_are_not_saved),
        cmocka_unit_test(ranks_along_tp_have_the_same_copies),
        cmocka_unit_test(policies_are_the_choices_of_their_keys),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
