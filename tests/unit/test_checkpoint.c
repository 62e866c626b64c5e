/* SPDX-License-Identifier: MIT
 *
 * Saving on P ranks and loading on Q, the save plan, and identical files for identical state. Ranks are threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/format/cast.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/load/load.h"
#include "checkpoint/save/plan.h"
#include "checkpoint/steps/steps.h"
#include "ckpt_support.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "parallel/layout/placement.h"
#include "tests/help/log.h"
#include "tests/help/sweep.h"
#include "tests/help/threads.h"

/* Every mesh of at most 8 ranks without a pipeline (FSDP, replicas alone, and both), then some with a pipeline. */
static const struct {
    int shard, replicate, pp;
} meshes[] = {{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {4, 1, 1}, {5, 1, 1}, {6, 1, 1}, {7, 1, 1}, {8, 1, 1}, {1, 2, 1},
              {1, 3, 1}, {1, 4, 1}, {1, 5, 1}, {1, 6, 1}, {1, 7, 1}, {1, 8, 1}, {2, 2, 1}, {3, 2, 1}, {4, 2, 1},
              {2, 3, 1}, {2, 4, 1}, {1, 1, 2}, {3, 1, 2}, {2, 2, 2}, {1, 2, 3}, {1, 1, 4}, {2, 1, 4}};
enum { MESHES = sizeof meshes / sizeof meshes[0] };

static struct tt_manifest load_manifest(const char *folder, int64_t step)
{
    struct tt_manifest manifest = {0};
    char *path = tt_step_path(folder, step);

    if (tt_step_check(path, &manifest) != 0)
        fail_msg("%s", tt_error_message());
    tt_free(path);
    return manifest;
}

static void saved_on_p_ranks_loads_on_q(void **state)
{
    char *folder = test_folder();

    for (int p = 0; p < MESHES; p++) {
        struct test_job save = {folder,        "run",    meshes[p].shard, meshes[p].replicate, .pp = meshes[p].pp,
                                .step = p + 1, .keep = 2};
        struct tt_manifest manifest;

        if (test_save(&save) != 0)
            fail_msg("save on %dx%dx%d: %s", meshes[p].pp, meshes[p].replicate, meshes[p].shard, tt_error_message());
        manifest = load_manifest(folder, p + 1);
        assert_int_equal(manifest.n_files, save.saved.files);
        tt_manifest_release(&manifest);
        /* the pairs of meshes alternate between the two ways of reading */
        for (int q = p % sweep_stride(); q < MESHES; q += sweep_stride()) {
            struct test_job load = {folder,
                                    "run",
                                    meshes[q].shard,
                                    meshes[q].replicate,
                                    .pp = meshes[q].pp,
                                    .load_step = -1,
                                    .expect = p + 1,
                                    .reading = (p + q) % 2 ? TT_LOAD_ALL : TT_LOAD_ONCE};

            if (test_resume(&load) != 0)
                fail_msg("saved on %d, loaded on %d: %s", p, q, tt_error_message());
            assert_int_equal(load.found, p + 1);
            assert_int_equal(load.wrong, 0);
        }
    }
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

static void digests_do_not_depend_on_the_layout(void **state)
{
    struct tt_manifest first = {0};

    for (int p = 0; p < MESHES; p++) {
        char *folder = test_folder();
        struct test_job save = {folder, "run", meshes[p].shard, meshes[p].replicate, .pp = meshes[p].pp, .step = 5};
        struct tt_manifest manifest;

        assert_int_equal(test_save(&save), 0);
        manifest = load_manifest(folder, 5);
        if (p == 0)
            first = manifest;
        assert_int_equal(manifest.n_tensors, first.n_tensors);
        for (int i = 0; i < manifest.n_tensors; i++) {
            assert_true(manifest.tensor[i].has_digest);
            assert_true(manifest.tensor[i].digest == first.tensor[i].digest);
        }
        if (p)
            tt_manifest_release(&manifest);
        assert_int_equal(tt_folder_remove(folder), 0);
        tt_free(folder);
    }
    tt_manifest_release(&first);
}

static void same_state_gives_same_bytes(void **state)
{
    char *folder[2] = {test_folder(), test_folder()};
    struct tt_manifest manifest;

    for (int i = 0; i < 2; i++) {
        struct test_job save = {folder[i], i ? "monday" : "tuesday", 2, 2, .step = 3};

        assert_int_equal(test_save(&save), 0);
    }
    manifest = load_manifest(folder[0], 3);
    assert_true(manifest.n_files > 4);
    for (int i = 0; i < manifest.n_files; i++) {
        char *text[2], *path;
        size_t size[2];

        for (int k = 0; k < 2; k++) {
            path = tt_format("%s/step-3/%s", folder[k], manifest.file[i].path);
            assert_int_equal(tt_file_read(path, &text[k], &size[k]), 0);
            tt_free(path);
        }
        assert_int_equal(size[0], size[1]);
        assert_memory_equal(text[0], text[1], size[0]);
        assert_int_equal(tt_crc32c(0, text[0], size[0]), manifest.file[i].crc);
        tt_free(text[0]);
        tt_free(text[1]);
    }
    tt_manifest_release(&manifest);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tt_folder_remove(folder[i]), 0);
        tt_free(folder[i]);
    }
}

static void replicas_share_the_work(void **state)
{
    const struct tt_ckpt_policy *policy = NULL;
    struct tt_ckpt_plan plan;
    struct test_state t;
    int64_t load[6] = {0};

    test_state_init(&t, 2, 3, 0, 1);
    assert_int_equal(tt_ckpt_policy_find("all", NULL, &policy), 0);
    assert_int_equal(tt_ckpt_policy_find("some", NULL, &policy), TT_EUSAGE);
    tt_ckpt_plan_make(&t.state, &t.mesh, policy, &plan);
    for (int i = 0; i < plan.n; i++) {
        const struct tt_ckpt_piece *p = &plan.piece[i];
        const struct tt_ckpt_chunk *c = tt_ckpt_state_tensor(&t.state, p->tensor);
        struct tt_box box = tt_ckpt_piece_box(p, c, &t.mesh);

        assert_true(p->row_count > 0);
        load[p->writer] += tt_ckpt_box_bytes(c, &box);
        for (int k = 0; k < i; k++) /* a file has at most one chunk of a tensor */
            assert_false(plan.piece[k].group == p->group && plan.piece[k].tensor == p->tensor &&
                         plan.piece[k].writer == p->writer);
    }
    for (int rank = 0; rank < 6; rank++)
        assert_true(load[rank] * 100 > plan.bytes * 98 / 6 && load[rank] * 100 < plan.bytes * 102 / 6);
    tt_ckpt_plan_release(&plan);
    test_state_release(&t);
}

static void crcs_of_two_parts_give_that_of_the_whole(void **state)
{
    char bytes[3000];

    for (int i = 0; i < 3000; i++)
        bytes[i] = (char)(i * 31);
    for (size_t cut = 0; cut <= 3000; cut += 250)
        assert_int_equal(tt_crc32c_combine(tt_crc32c(0, bytes, cut), tt_crc32c(0, bytes + cut, 3000 - cut), 3000 - cut),
                         tt_crc32c(0, bytes, 3000));
}

static void digest_sees_every_change(void **state)
{
    uint32_t data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint64_t digest = tt_digest_part(TT_F32, data, 0, 8);

    assert_true(tt_digest_part(TT_F32, data, 0, 3) + tt_digest_part(TT_F32, data + 3, 3, 5) == digest);
    assert_true(tt_digest_part(TT_F32, data, 1, 8) != digest);
    data[2] = 4;
    data[3] = 3;
    assert_true(tt_digest_part(TT_F32, data, 0, 8) != digest);
}

/* Compared element by element with the definition, at lengths that are multiples of the vector width and at lengths
 * that are not. */
static void digest_is_as_defined(void **state)
{
    uint32_t data[67];
    uint64_t sum = 0;

    for (uint32_t i = 0; i < 67; i++)
        data[i] = i * 2654435761u;
    for (int64_t i = 0; i < 67; i++) {
        uint64_t z = (uint64_t)(1000000007 + i) * 0x9e3779b97f4a7c15u ^ data[i] * UINT64_C(0x85ebca77);

        sum += (z & 0xffffffffu) * (z >> 32) + z;
        assert_true(tt_digest_part(TT_F32, data, 1000000007, i + 1) == sum);
    }
}

static void casts_round_to_nearest_even(void **state)
{
    const float values[] = {1.0f, 1.00390625f, 1.01171875f, -2.5f, 65504.0f, 65520.0f, 0x1p-24f, 0x1.8p-25f, 3.0e38f};
    const uint16_t bf16[] = {0x3f80, 0x3f80, 0x3f82, 0xc020, 0x4780, 0x4780, 0x3380, 0x3340, 0x7f62};
    const uint16_t f16[] = {0x3c00, 0x3c04, 0x3c0c, 0xc100, 0x7bff, 0x7c00, 0x0001, 0x0001, 0x7c00};
    uint16_t out[9];
    float back[9];

    tt_cast(TT_BF16, out, TT_F32, values, 9);
    assert_memory_equal(out, bf16, sizeof out);
    tt_cast(TT_F16, out, TT_F32, values, 9);
    assert_memory_equal(out, f16, sizeof out);
    tt_cast(TT_F32, back, TT_F16, out, 5);
    assert_memory_equal(back, values, sizeof back[0] * 5);
    assert_false(tt_cast_known(TT_I32, TT_F32));
}

static void retention_keeps_the_newest_intact_steps(void **state)
{
    char *folder = test_folder(), *manifest;
    int64_t *steps = NULL;
    int n = 0;

    for (int step = 1; step <= 4; step++) {
        struct test_job save = {folder, "run", 2, 1, .step = step, .keep = 0};

        assert_int_equal(test_save(&save), 0);
    }
    manifest = tt_format("%s/step-4/manifest.json", folder);
    test_flip(manifest, 100); /* step 4 is damaged: it is not counted, and it is not removed */
    assert_int_equal(test_save(&(struct test_job){folder, "run", 2, 1, .step = 5, .keep = 2}), 0);
    assert_int_equal(tt_step_list(folder, &steps, &n), 0);
    assert_int_equal(n, 3);
    assert_int_equal(steps[0], 3);
    assert_int_equal(steps[1], 4);
    assert_int_equal(steps[2], 5);
    tt_free(steps);
    /* Steps newer than the one just saved belong to another line: they are neither counted nor removed. */
    assert_int_equal(test_save(&(struct test_job){folder, "run", 2, 1, .step = 2, .keep = 1}), 0);
    assert_int_equal(tt_step_list(folder, &steps, &n), 0);
    assert_int_equal(n, 4);
    assert_int_equal(steps[0], 2);
    assert_int_equal(steps[1], 3);
    assert_int_equal(steps[3], 5);
    tt_free(steps);
    tt_free(manifest);
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

/* A step's manifest is read again only if the file has changed. The other files of the step are examined each time. */
static void a_known_manifest_is_not_read_again(void **state)
{
    char *folder = test_folder(), *manifest = tt_format("%s/step-2/manifest.json", folder),
         *shard = tt_format("%s/step-3/model/shard-00001-model-00001-of-00001.safetensors", folder), *text = NULL;
    struct tt_known_steps known = {0};
    struct tt_manifest noted;
    size_t size;

    for (int step = 1; step <= 3; step++)
        assert_int_equal(test_save(&(struct test_job){folder, "run", 2, 1, .step = step, .keep = 0}), 0);
    noted = load_manifest(folder, 1);
    text = tt_format("%s/step-1/manifest.json", folder);
    tt_known_note(&known, 1, text, &noted);
    tt_manifest_release(&noted);
    tt_free(text);
    for (int round = 0; round < 3; round++)
        for (int step = 1; step <= 3; step++)
            assert_int_equal(tt_known_check(&known, folder, step), 0);
    assert_int_equal(known.n_read, 2);
    /* the same text, but a new file */
    assert_int_equal(tt_file_read(manifest, &text, &size), 0);
    assert_int_equal(tt_file_replace(manifest, text, size), 0);
    assert_int_equal(tt_known_check(&known, folder, 2), 0);
    assert_int_equal(known.n_read, 3);
    text[size / 2] ^= 1;
    assert_int_equal(tt_file_replace(manifest, text, size), 0);
    assert_int_equal(tt_known_check(&known, folder, 2), TT_EDATA);
    test_resize(shard, -1);
    assert_int_equal(tt_known_check(&known, folder, 3), TT_EDATA);
    assert_int_equal(known.n_read, 4);
    tt_known_keep(&known, (int64_t[]){1}, 1);
    assert_int_equal(known.n, 1);
    tt_known_release(&known);
    tt_free(text);
    tt_free(manifest);
    tt_free(shard);
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

static void resume_skips_damaged_steps_with_a_warning(void **state)
{
    char *folder = test_folder(),
         *shard = tt_format("%s/step-2/model/shard-00001-model-00001-of-00001.safetensors", folder);
    struct test_job load = {folder, "run", 3, 1, .load_step = -1, .expect = 1};

    assert_int_equal(test_save(&(struct test_job){folder, "run", 2, 1, .step = 1}), 0);
    assert_int_equal(test_save(&(struct test_job){folder, "run", 2, 1, .step = 2}), 0);
    test_flip(shard, 40000);
    log_catch();
    assert_int_equal(test_resume(&load), 0);
    log_release();
    assert_int_equal(load.found, 1);
    assert_int_equal(load.wrong, 0);
    assert_int_equal(caught.warnings, 1);
    load.load_step = 2; /* a damaged step that was asked for is an error */
    assert_int_equal(test_resume(&load), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "checksum"));
    load.load_step = 7;
    assert_int_equal(test_resume(&load), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "it holds steps 2, 1"));
    tt_free(shard);
    shard = tt_format("%s/step-1/manifest.json", folder);
    test_resize(shard, -1);
    load.load_step = -1;
    assert_int_equal(test_resume(&load), TT_EDATA); /* it does not start from scratch */
    assert_non_null(strstr(tt_error_message(), "none of the 2 checkpoints"));
    tt_free(shard);
    assert_int_equal(tt_folder_remove(folder), 0);
    assert_int_equal(test_resume(&load), 0);
    assert_int_equal(load.found, -1);
    tt_free(folder);
}

static int load_other_model(struct tt_comm *comm, void *arg)
{
    struct test_job *job = arg;
    struct test_state t;
    struct tt_ckpt_request request = {.line = {-1, TT_SKIP_OPTIMIZER}};
    struct tt_ckpt_found found = {.step = -1};
    int rc;

    test_state_init(&t, comm->size, 1, comm->rank, -1);
    t.state.model[0].name = "tok_embedding.weight";
    t.state.model[1].shape[1] = 4;
    rc = tt_ckpt_resume(comm, &t.mesh, job->folder, &request, &t.state, &found);
    tt_ckpt_found_release(&found);
    test_state_release(&t);
    return rc;
}

static void another_model_is_refused_with_the_tensors_that_differ(void **state)
{
    char *folder = test_folder();
    struct test_job job = {folder, "run", 2, 1, .step = 1};

    assert_int_equal(test_save(&job), 0);
    assert_int_equal(tt_comm_threads_run(2, load_other_model, &job), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "1 tensors missing: 'tok_embedding.weight'"));
    assert_non_null(strstr(tt_error_message(), "1 too many: 'tok_embeddings.weight'"));
    assert_non_null(strstr(tt_error_message(), "wq.weight F32[0:7, 0:5], wanted F32[0:7, 0:4]"));
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

static void weights_load_from_a_run_a_folder_of_steps_a_step_and_plain_files(void **state)
{
    char *folder = test_folder(), *path[3];

    path[0] = tt_format("%s/run", folder);
    path[1] = tt_format("%s/run/checkpoint", folder);
    path[2] = tt_format("%s/run/checkpoint/step-1", folder);
    assert_int_equal(test_save(&(struct test_job){path[1], "run", 2, 1, .step = 1}), 0);
    for (int i = 0; i < 3; i++) {
        struct test_job load = {NULL, "run", 3, 1, .path = path[i], .expect = 1};

        assert_int_equal(test_load(&load), 0);
        assert_int_equal(load.wrong, 0);
        tt_free(path[i]);
    }
    path[0] = tt_format("%s/run/checkpoint/step-1/model", folder); /* plain files without a manifest */
    assert_int_equal(
        test_load(&(struct test_job){NULL, "run", 3, 1, .path = path[0], .skip = TT_SKIP_OPTIMIZER, .expect = 1}), 0);
    tt_free(path[0]);
    assert_int_equal(test_load(&(struct test_job){NULL, "run", 1, 1, .path = "/nonexistent"}), TT_EDATA);
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

/* --- shards that PyTorch wrote --- */

static const struct tt_ckpt_chunk torch_tensors[] = {
    {"tok_embeddings.weight",
     TT_F32,
     2,
     {13, 6},
     {1, {{TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0},
     {0},
     false,
     TT_PACKING_NONE,
     NULL},
    {"layers.0.attention.wq.weight",
     TT_F32,
     2,
     {8, 6},
     {1, {{TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0},
     {0},
     false,
     TT_PACKING_NONE,
     NULL},
    {"layers.0.few.weight",
     TT_F32,
     2,
     {1, 4},
     {1, {{TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0},
     {0},
     false,
     TT_PACKING_NONE,
     NULL},
    {"norm.weight",
     TT_F32,
     1,
     {6},
     {1, {{TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0},
     {0},
     false,
     TT_PACKING_NONE,
     NULL},
};
enum { TORCH_TENSORS = sizeof torch_tensors / sizeof torch_tensors[0] };

/* Every element is its index plus 1000 times the length of the name, as write_with_torch.py made it. */
static int64_t count_wrong(const struct tt_ckpt_chunk *c)
{
    struct tt_box whole = tt_box_whole(c->ndim, c->shape);
    int64_t wrong = 0;

    for (int64_t i = 0; i < tt_box_volume(&c->part); i++)
        wrong +=
            ((float *)c->data)[i] != (float)tt_box_position(&c->part, i, &whole) + 1000.0f * (float)strlen(c->name);
    return wrong;
}

static int load_torch_shards(struct tt_comm *comm, void *arg)
{
    struct tt_mesh mesh = test_mesh(comm->size, 1);
    struct tt_ckpt_chunk chunk[TORCH_TENSORS];
    struct tt_ckpt_state state = {TORCH_TENSORS, chunk, 0, NULL};
    int64_t wrong = 0;
    json_t *meta = NULL;
    int rc = 0;

    for (int i = 0; i < TORCH_TENSORS; i++) {
        chunk[i] = torch_tensors[i];
        chunk[i].part = tt_placement_box(&mesh, &chunk[i].placement, chunk[i].ndim, chunk[i].shape, comm->rank);
        chunk[i].data = tt_calloc((size_t)tt_box_volume(&chunk[i].part) + 1, sizeof(float));
    }
    TT_TRY(tt_ckpt_load(comm, &mesh, arg, TT_LOAD_ALL, &(unsigned){TT_SKIP_OPTIMIZER}, &state, &meta));
    for (int i = 0; i < TORCH_TENSORS; i++)
        wrong += count_wrong(&chunk[i]);
    TT_TRY(tt_comm_sum_i64(comm, &wrong, 1));
    rc = wrong ? tt_fail(TT_EDATA, "%d values are wrong", (int)wrong) : 0;
out:
    for (int i = 0; i < TORCH_TENSORS; i++)
        tt_free(chunk[i].data);
    json_decref(meta);
    return rc;
}

static void shards_of_pytorch_load_on_any_number_of_ranks(void **state)
{
    char folder[] = TT_SOURCE_DIR "/tests/interop/torch_shards";

    for (int ranks = 1; ranks <= 5; ranks++)
        if (tt_comm_threads_run(ranks, load_torch_shards, folder) != 0)
            fail_msg("on %d ranks: %s", ranks, tt_error_message());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_on_p_ranks_loads_on_q),
        cmocka_unit_test(digests_do_not_depend_on_the_layout),
        cmocka_unit_test(same_state_gives_same_bytes),
        cmocka_unit_test(replicas_share_the_work),
        cmocka_unit_test(crcs_of_two_parts_give_that_of_the_whole),
        cmocka_unit_test(digest_sees_every_change),
        cmocka_unit_test(digest_is_as_defined),
        cmocka_unit_test(casts_round_to_nearest_even),
        cmocka_unit_test(retention_keeps_the_newest_intact_steps),
        cmocka_unit_test(a_known_manifest_is_not_read_again),
        cmocka_unit_test(resume_skips_damaged_steps_with_a_warning),
        cmocka_unit_test(another_model_is_refused_with_the_tensors_that_differ),
        cmocka_unit_test(weights_load_from_a_run_a_folder_of_steps_a_step_and_plain_files),
        cmocka_unit_test(shards_of_pytorch_load_on_any_number_of_ranks),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
