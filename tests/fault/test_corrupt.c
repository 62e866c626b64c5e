/* SPDX-License-Identifier: MIT
 *
 * Every kind of damage to a checkpoint has its own message, from verify and from a load. A damaged checkpoint is never
 * loaded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/format/manifest.h"
#include "checkpoint/tools/tools.h"
#include "ckpt_support.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/math/rng.h"
#include "core/os/file.h"

#define SHARD(n) "model/shard-0000" #n "-model-00001-of-00001.safetensors"

static char *folder, *step_path;

static char *in_step(const char *name)
{
    return tt_format("%s/%s", step_path, name);
}

static int fresh(void **state)
{
    struct test_job save;

    folder = test_folder();
    step_path = tt_format("%s/step-7", folder);
    save = (struct test_job){folder, "run", 3, 1, .step = 7};
    return test_save(&save);
}

static int clean(void **state)
{
    int rc = tt_folder_remove(folder);

    tt_free(step_path);
    tt_free(folder);
    return rc;
}

/* The first problem that verify reports must have this kind and this text, and no load may succeed. */
static void expect_problem(const char *kind, const char *text)
{
    struct test_job load = {folder, "run", 2, 1, .load_step = 7, .expect = 7};
    json_t *json = NULL, *first;

    assert_int_equal(tt_ckpt_verify(step_path, TT_VERIFY_DEEP, &json), 0);
    assert_true(json_is_false(json_object_get(json, "ok")));
    first = json_array_get(json_object_get(json, "problems"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "kind")), kind);
    if (!strstr(json_string_value(json_object_get(first, "text")), text))
        fail_msg("'%s' does not say '%s'", json_string_value(json_object_get(first, "text")), text);
    json_decref(json);
    assert_int_equal(test_resume(&load), TT_EDATA);
}

static void an_intact_checkpoint_is_ok(void **state)
{
    json_t *json = NULL;

    assert_int_equal(tt_ckpt_verify(folder, TT_VERIFY_DEEP, &json), 0);
    assert_true(json_is_true(json_object_get(json, "ok")));
    assert_true(json_integer_value(json_object_get(json, "checksums")) > 24);
    json_decref(json);
}

static void a_shard_that_lacks_a_byte(void **state)
{
    char *path = in_step(SHARD(2));

    test_resize(path, -1);
    expect_problem("truncated", "is truncated: it has");
    tt_free(path);
}

static void a_shard_with_eight_more_bytes(void **state)
{
    char *path = in_step(SHARD(2));

    test_resize(path, 8);
    expect_problem("trailing", "has 8 bytes too many");
    tt_free(path);
}

static void a_missing_shard(void **state)
{
    static const char *const shards[] = {SHARD(1), SHARD(2), SHARD(3)};

    for (int i = 0; i < 3; i++) {
        char *path = in_step(shards[i]);

        assert_int_equal(unlink(path), 0);
        expect_problem("missing", shards[i]);
        tt_free(path);
        (void)clean(state);
        assert_int_equal(fresh(state), 0);
    }
}

static void swap(const char *a, const char *b)
{
    char *path[3] = {in_step(a), in_step(b), in_step("model/x")};

    for (int i = 0; i < 3; i++)
        assert_int_equal(rename(path[i], path[(i + 2) % 3]), 0);
    for (int i = 0; i < 3; i++)
        tt_free(path[i]);
}

static void swapped_shards(void **state)
{
    struct test_job save = {folder, "run", 8, 1, .step = 7};

    swap(SHARD(1), SHARD(2));
    expect_problem("swapped", "files were swapped");
    assert_int_equal(test_save(&save), 0);
    swap(SHARD(3), SHARD(4)); /* they are of equal size, so only their contents differ */
    expect_problem("swapped", "it is the file of rank 3");
}

/* The shard belongs to another step. */
static void a_shard_of_another_step(void **state)
{
    struct test_job save = {folder, "run", 3, 1, .step = 6};
    char *mine = in_step(SHARD(2)), *other = tt_format("%s/step-6/" SHARD(2), folder);

    assert_int_equal(test_save(&save), 0);
    assert_int_equal(rename(other, mine), 0);
    expect_problem("stale", "is from step 6, the checkpoint is step 7");
    tt_free(mine);
    tt_free(other);
}

static void an_additional_file_among_the_shards(void **state)
{
    char *a = in_step(SHARD(1)), *b = in_step(SHARD(4)), *text = NULL;
    size_t size = 0;
    json_t *json = NULL, *first;

    assert_int_equal(tt_file_read(a, &text, &size), 0);
    assert_int_equal(tt_file_replace(b, text, size), 0);
    assert_int_equal(tt_ckpt_verify(step_path, TT_VERIFY_DEEP, &json), 0);
    first = json_array_get(json_object_get(json, "problems"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "kind")), "stale");
    json_decref(json);
    tt_free(text);
    tt_free(a);
    tt_free(b);
}

/* Replaces text in the manifest and corrects its checksum, so that the damage looks like a bug, not like a bad disk. */
static void edit_manifest(const char *from, const char *to)
{
    char *path = in_step("manifest.json"), *text = NULL, *at, *edited, *tail;
    size_t size = 0;

    assert_int_equal(tt_file_read(path, &text, &size), 0);
    at = strstr(text, from);
    assert_non_null(at);
    edited = tt_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    tail = strstr(edited, ",\n\"self_crc32c\"");
    *tail = 0;
    tail = tt_format("%s,\n\"self_crc32c\": \"%08x\"\n}\n", edited, tt_crc32c(0, edited, strlen(edited)));
    assert_int_equal(tt_file_replace(path, tail, strlen(tail)), 0);
    tt_free(tail);
    tt_free(edited);
    tt_free(text);
    tt_free(path);
}

static void overlapping_chunks(void **state)
{
    /* On 3 ranks, layers.0.attention.wq.weight [7, 5] is cut into rows 0:3, 3:6 and 6:7. */
    edit_manifest("\"offset\":[3,0],\"shape\":[3,5]", "\"offset\":[2,0],\"shape\":[3,5]");
    expect_problem("overlap", "chunks overlap: [0:3, 0:5]");
}

static void a_hole_between_chunks(void **state)
{
    edit_manifest("{\"file\":2,\"offset\":[6,0],\"shape\":[1,5]", "{\"file\":2,\"offset\":[6,0],\"shape\":[0,5]");
    expect_problem("manifest", "contradict each other"); /* the bytes of the chunk no longer match its shape */
}

static void a_chunk_outside_of_its_tensor(void **state)
{
    edit_manifest("\"offset\":[6,0],\"shape\":[1,5]", "\"offset\":[7,0],\"shape\":[1,5]");
    expect_problem("manifest", "lies outside of [0:7, 0:5]");
}

static void a_path_out_of_the_checkpoint(void **state)
{
    edit_manifest("\"path\":\"model/shard-00001", "\"path\":\"../shard-00001");
    expect_problem("manifest", "a checkpoint cannot contain");
}

static void a_manifest_without_a_tensor(void **state)
{
    /* The file still contains the tensor. */
    edit_manifest("\"model/layers.0.one\"", "\"model/layers.0.two\"");
    expect_problem("swapped", "has no tensor 'layers.0.two'");
}

static void a_missing_manifest(void **state)
{
    char *path = in_step("manifest.json");

    assert_int_equal(unlink(path), 0);
    expect_problem("manifest", "has no manifest.json");
    tt_free(path);
}

/* Random bits of headers, padding, data and manifest. Each flip must be found. */
static void every_flipped_bit_is_found(void **state)
{
    static const char *const names[] = {SHARD(1), SHARD(3), "optim/shard-00002-optim-00001-of-00001.safetensors",
                                        "manifest.json"};
    struct tt_rng rng = tt_rng_make(11, "flips");

    for (int i = 0; i < 1000; i++) {
        char *path = in_step(names[i % 4]);
        struct stat st;
        int64_t bit;
        json_t *json = NULL;

        assert_int_equal(stat(path, &st), 0);
        bit = (int64_t)(tt_rng_bits(&rng, (uint64_t)i) % (uint64_t)((i / 4 % 2 ? st.st_size : 4096) * 8));
        test_flip(path, bit);
        assert_int_equal(tt_ckpt_verify(step_path, TT_VERIFY_DEEP, &json), 0);
        if (!json_is_false(json_object_get(json, "ok")))
            fail_msg("bit %lld of %s was not found", (long long)bit, names[i % 4]);
        json_decref(json);
        test_flip(path, bit);
        tt_free(path);
    }
    an_intact_checkpoint_is_ok(state);
}

static void a_flipped_bit_is_never_loaded(void **state)
{
    char *path = in_step(SHARD(3));
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    test_flip(path, st.st_size * 8 - 5);
    expect_problem("crc", "has checksum");
    tt_free(path);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fresh, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(an_intact_checkpoint_is_ok),
        CASE(a_shard_that_lacks_a_byte),
        CASE(a_shard_with_eight_more_bytes),
        CASE(a_missing_shard),
        CASE(swapped_shards),
        CASE(a_shard_of_another_step),
        CASE(an_additional_file_among_the_shards),
        CASE(overlapping_chunks),
        CASE(a_hole_between_chunks),
        CASE(a_chunk_outside_of_its_tensor),
        CASE(a_path_out_of_the_checkpoint),
        CASE(a_manifest_without_a_tensor),
        CASE(a_missing_manifest),
        CASE(every_flipped_bit_is_found),
        CASE(a_flipped_bit_is_never_loaded),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
