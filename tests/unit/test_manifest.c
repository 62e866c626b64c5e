/* SPDX-License-Identifier: MIT
 *
 * manifest.json is read back as it was written and refused when it is anything else. Folders without one are
 * consolidated into one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>
#include <malloc.h>

#include "checkpoint/export/export.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/load/share.h"
#include "checkpoint/read/source.h"
#include "checkpoint/steps/steps.h"
#include "checkpoint/tools/tools.h"
#include "ckpt_support.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/rng.h"
#include "core/os/file.h"

static char *example_of(enum tt_ckpt_group group)
{
    struct tt_manifest m = {0};
    struct tt_manifest_tensor *t;
    char *text;

    m.meta = json_pack("{s:i,s:f,s:s}", "step", 12, "lr", 0.1, "note", "caf\xc3\xa9");
    tt_manifest_add_file(&m, "model/shard-00001-model-00001-of-00001.safetensors", 4196)->crc = 0xdeadbeef;
    t = tt_manifest_add_tensor(&m, group, "norm.weight", TT_F32, 1, (int64_t[]){25});
    t->digest = UINT64_MAX - 1;
    TT_PUSH(t->chunk, t->n_chunks, t->cap_chunks) =
        (struct tt_manifest_chunk){0, {1, {0}, {25}}, 4096, 4196, 0x01020304, true, 0};
    text = tt_manifest_text(&m);
    tt_manifest_release(&m);
    return text;
}

static char *example(void)
{
    return example_of(TT_CKPT_MODEL);
}

static void what_is_written_is_read(void **state)
{
    char *text = example(), *again;
    struct tt_manifest m;
    const struct tt_manifest_tensor *t;

    assert_int_equal(tt_manifest_parse(text, strlen(text), "m", &m), 0);
    assert_int_equal(json_integer_value(json_object_get(m.meta, "step")), 12);
    assert_null(json_object_get(m.meta, "files"));
    t = tt_manifest_find(&m, TT_CKPT_MODEL, "norm.weight");
    assert_non_null(t);
    assert_null(tt_manifest_find(&m, TT_CKPT_OPTIM, "norm.weight"));
    assert_true(t->digest == UINT64_MAX - 1);
    assert_int_equal(t->chunk[0].crc, 0x01020304);
    assert_int_equal(m.file[0].crc, 0xdeadbeef);
    assert_int_equal(tt_manifest_check_cover(&m), 0);
    again = tt_manifest_text(&m);
    assert_string_equal(again, text);
    tt_free(again);
    tt_free(text);
    tt_manifest_release(&m);
}

static void what_is_packed_is_unpacked(void **state)
{
    char *text = example(), *again, *bytes;
    struct tt_manifest m;
    size_t size;

    assert_int_equal(tt_manifest_parse(text, strlen(text), "m", &m), 0);
    bytes = tt_manifest_pack(&m, &size);
    tt_manifest_release(&m);
    assert_true(size < strlen(text) / 2);
    assert_int_equal(tt_manifest_unpack(bytes, size, &m), 0);
    again = tt_manifest_text(&m);
    assert_string_equal(text, again);
    assert_true(m.tensor[0].has_digest && m.tensor[0].chunk[0].has_crc && m.file[0].has_crc);
    tt_manifest_release(&m);
    for (size_t n = 0; n < size; n++) {
        char *part = tt_calloc(n + 1, 1); /* of the exact size, so that a sanitizer sees a read beyond it */

        memcpy(part, bytes, n);
        assert_true(tt_manifest_unpack(part, n, &m) < 0);
        tt_free(part);
    }
    tt_free(bytes);
    tt_free(again);
    tt_free(text);
}

/* One flipped bit anywhere, a cut at any length, or one more byte. */
static void a_manifest_with_any_change_is_refused(void **state)
{
    char *text = example();
    size_t size = strlen(text);
    struct tt_manifest m;

    for (size_t bit = 0; bit < 8 * size; bit++) {
        text[bit / 8] = (char)(text[bit / 8] ^ (1 << bit % 8));
        assert_int_equal(tt_manifest_parse(text, size, "m", &m), TT_EDATA);
        text[bit / 8] = (char)(text[bit / 8] ^ (1 << bit % 8));
    }
    for (size_t n = 0; n < size; n++)
        assert_int_equal(tt_manifest_parse(text, n, "m", &m), TT_EDATA);
    assert_int_equal(tt_manifest_parse(text, size + 1, "m", &m), TT_EDATA);
    tt_free(text);
}

/* The text with its own checksum. */
static char *seal(const char *text)
{
    static const char key[] = ",\n\"self_crc32c\": \"";
    size_t size = (size_t)(strstr(text, key) - text);

    return tt_format("%.*s%s%08x\"\n}\n", (int)size, text, key, tt_crc32c(0, text, size));
}

/* Parses the example with the first `from` replaced, under a new checksum. */
static int parse_edited_of(enum tt_ckpt_group group, const char *from, const char *to)
{
    char *text = example_of(group), *at = strstr(text, from), *edited, *sealed;
    struct tt_manifest m = {0};
    int rc;

    assert_non_null(at);
    edited = tt_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    sealed = seal(edited);
    rc = tt_manifest_parse(sealed, strlen(sealed), "m", &m);
    if (rc == 0)
        tt_manifest_release(&m);
    tt_free(sealed);
    tt_free(edited);
    tt_free(text);
    return rc;
}

static int parse_edited(const char *from, const char *to)
{
    return parse_edited_of(TT_CKPT_MODEL, from, to);
}

static void values_that_no_save_writes_are_refused(void **state)
{
    static const char *const meta[] = {
        "\"step\": -1",
        "\"step\": 9223372036854775807",
        "\"step\": 1.5",
        "\"step\": null",
        "\"step\": \"12\"",
        "\"step\": 1, \"sample_cursor\": -1",
        "\"step\": 1, \"sample_cursor\": 9223372036854775807",
        "\"step\": 1, \"ntokens_seen\": -5",
        "\"step\": 1, \"ntokens_seen\": 9223372036854775807",
        "\"step\": 1, \"optimizer_step\": -1",
        "\"step\": 1, \"optimizer_step\": 9223372036854775807",
        "\"step\": 1, \"lr_step\": -100",
        "\"step\": 1, \"lr_step\": \"7\"",
        "\"step\": 1, \"tokens\": -1",
        "\"step\": 1, \"world\": 0",
        "\"step\": 1, \"world\": -8",
        "\"step\": 1, \"mesh\": []",
        "\"step\": 1, \"mesh\": {\"dp_shard\": 0}",
        "\"step\": 1, \"mesh\": {\"dp_shard\": 9223372036854775807}",
        "\"step\": 1, \"run_id\": 3",
        "\"step\": 1, \"policy\": null",
        "\"step\": 1, \"time\": \"now\"",
        "\"step\": 1, \"config\": 1",
        "\"step\": 1, \"data\": []",
        "\"step\": 1, \"data\": {\"seq_len\": 0}",
        "\"step\": 1, \"data\": {\"seq_len\": 9223372036854775807}",
        "\"step\": 1, \"assets\": {}",
        "\"step\": 1, \"assets\": [{\"path\": \"assets/a\", \"bytes\": -1, \"crc32c\": \"00000000\"}]",
        "\"step\": 1, \"assets\": [{\"path\": \"assets/a\", \"bytes\": 1}]",
        "\"step\": 1, \"assets\": [{\"path\": \"assets/a\", \"bytes\": 1, \"crc32c\": \"0x123456\"}]",
    };
    static const struct {
        const char *from, *to;
    } edits[] = {
        {"\"bytes\":4196", "\"bytes\":9223372036854775807"},
        {"\"bytes\":4196", "\"bytes\":-1"},
        {"deadbeef", "0xadbeef"},
        {"deadbeef", " eadbeef"},
        {"sum64:ffff", "sum64:0x12"},
        {"sum64:ffff", "sum64:zzzz"},
        {"sum64:ffff", "md5:ffff"},
        {"\"digest\":\"sum64:fffffffffffffffe\"", "\"digest\":7"},
        {"\"shape\":[25]", "\"shape\":[9223372036854775807]"},
        {"\"shape\":[25]", "\"shape\":[-25]"},
        {"\"offset\":[0]", "\"offset\":[9223372036854775807]"},
        {"\"offset\":[0]", "\"offset\":[-1]"},
        {"\"begin\":4096", "\"begin\":-9223372036854775807"},
        {"\"end\":4196", "\"end\":9223372036854775807"},
        {"\"file\":0", "\"file\":1"},
        {"\"file\":0", "\"file\":-1"},
        {"01020304", "+1020304"},
        {"\"tensors\"", "\"others\""},
        {"\"files\"", "\"others\""},
        {"],\n\"tensors\"", "]\n\"tensors\""},
        {"\"files\": [", "\"files\": [,"},
        {"\"files\": [", "\"files\": [[],"},
        {"\"files\": [", "\"files\": {},\"files\": ["},
        {"\"tensors\": {", "\"tensors\": {},\"tensors\": {"},
        {"\"tensors\": {", "\"tensors\": {\"model/norm.weight\": {\"dtype\":\"F32\",\"shape\":[25],\"chunks\":[],"
                           "\"digest\":\"sum64:0000000000000000\"},"},
        {"\"chunks\":[", "\"chunks\":[}"},
        {"\"dtype\"", "dtype"},
    };

    assert_int_equal(parse_edited("\"step\": 12", "\"step\": 13"), 0);
    assert_int_equal(parse_edited("\"step\": 12", "\"step\": 0"), 0); /* the weights before training */
    for (size_t i = 0; i < sizeof meta / sizeof meta[0]; i++) {
        if (parse_edited("\"step\": 12", meta[i]) != TT_EDATA)
            fail_msg("accepted: %s", meta[i]);
        assert_non_null(strstr(tt_error_message(), "wanted"));
    }
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++)
        if (parse_edited(edits[i].from, edits[i].to) != TT_EDATA)
            fail_msg("accepted: %s", edits[i].to);
    /* moments were saved, so at least one step was taken */
    assert_int_equal(parse_edited("\"step\": 12", "\"step\": 12, \"optimizer_step\": 0"), 0);
    assert_int_equal(parse_edited_of(TT_CKPT_OPTIM, "\"step\": 12", "\"step\": 12, \"optimizer_step\": 0"), TT_EDATA);
    assert_int_equal(parse_edited_of(TT_CKPT_OPTIM, "\"step\": 12", "\"step\": 12, \"optimizer_step\": 12"), 0);
}

static void names_of_steps(void **state)
{
    assert_int_equal(tt_step_number("step-0"), 0);
    assert_int_equal(tt_step_number("step-120"), 120);
    assert_int_equal(tt_step_number("step-0120"), -1);
    assert_int_equal(tt_step_number("step-12x"), -1);
    assert_int_equal(tt_step_number("step-"), -1);
    assert_int_equal(tt_step_number("step--1"), -1);
    assert_int_equal(tt_step_number(".tmp-step-3-x"), -1);
    assert_int_equal(tt_step_number("step-99999999999999999999"), -1);
}

static void expect_equal_model(const char *a_path, const char *b_path, enum tt_dtype dtype)
{
    struct tt_source *a = NULL, *b = NULL;
    enum tt_path_kind kind;
    char *path = NULL;

    assert_int_equal(tt_path_resolve(a_path, true, &kind, &path, NULL), 0);
    assert_int_equal(tt_source_open(path, kind, &a), 0);
    tt_free(path);
    assert_int_equal(tt_path_resolve(b_path, true, &kind, &path, NULL), 0);
    assert_int_equal(tt_source_open(path, kind, &b), 0);
    tt_free(path);
    assert_int_equal(tt_manifest_group_size(&a->manifest, TT_CKPT_MODEL, NULL), b->manifest.n_tensors);
    for (int i = 0; i < b->manifest.n_tensors; i++) {
        const struct tt_manifest_tensor *u = &b->manifest.tensor[i];
        const struct tt_manifest_tensor *t = tt_manifest_find(&a->manifest, TT_CKPT_MODEL, u->name);
        struct tt_box whole = tt_box_whole(u->ndim, u->shape);
        size_t size = (size_t)tt_box_volume(&whole) * tt_dtype_size(dtype);
        int64_t rows = u->ndim ? u->shape[0] : 1;
        char *x = tt_calloc(size, 1), *y = tt_calloc(size, 1);

        assert_non_null(t);
        assert_int_equal(tt_source_read_rows(a, t, 0, rows, dtype, x), 0);
        assert_int_equal(tt_source_read_rows(b, u, 0, rows, dtype, y), 0);
        assert_memory_equal(x, y, size);
        tt_free(x);
        tt_free(y);
    }
    tt_source_free(a);
    tt_source_free(b);
}

static void consolidated_models_are_equal(void **state)
{
    char *folder = test_folder(), *run = tt_format("%s/run", folder), *steps = tt_format("%s/checkpoint", run);
    char *out = tt_format("%s/out", folder), *asset = tt_format("%s/tokenizer.json", out);
    char *index = tt_format("%s/model.safetensors.index.json", out);
    struct tt_copy what = {.source = run, .destination = out};
    struct tt_ckpt_inspection inspection;
    struct tt_copied done;

    assert_int_equal(test_save(&(struct test_job){steps, "run", 3, 2, .step = 4}), 0);
    assert_int_equal(tt_ckpt_copy(&what, &done), 0);
    assert_int_equal(done.files, 1);
    expect_equal_model(run, out, TT_F32);
    assert_int_equal(access(asset, F_OK), 0);
    assert_int_equal(tt_ckpt_copy(&what, &done), TT_EUSAGE);
    assert_non_null(strstr(tt_error_message(), "--force replaces it"));
    what.force = true;
    what.max_shard_bytes = 100;
    what.has_dtype = true;
    what.dtype = TT_BF16;
    assert_int_equal(tt_ckpt_copy(&what, &done), 0);
    assert_true(done.files > 2);
    assert_int_equal(access(index, F_OK), 0);
    expect_equal_model(run, out, TT_BF16);
    what.destination = folder; /* has other files */
    assert_int_equal(tt_ckpt_copy(&what, &done), TT_EUSAGE);
    assert_int_equal(access(run, F_OK), 0);
    assert_int_equal(tt_ckpt_inspect(out, false, &inspection), 0);
    assert_string_equal(json_string_value(json_object_get(inspection.json, "kind")), "safetensors");
    assert_int_equal(inspection.manifest.n_tensors, 8);
    assert_true(json_is_null(json_object_get(inspection.json, "step")));
    tt_ckpt_inspection_release(&inspection);
    tt_free(index);
    tt_free(asset);
    tt_free(out);
    tt_free(steps);
    tt_free(run);
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

static void a_damaged_source_is_not_consolidated(void **state)
{
    char *folder = test_folder(), *out = tt_format("%s-out", folder), *step = tt_format("%s/step-4", folder);
    char *shard = tt_format("%s/model/shard-00002-model-00001-of-00001.safetensors", step);
    struct tt_copy what = {.source = step, .destination = out};
    struct tt_copied done;

    assert_int_equal(test_save(&(struct test_job){folder, "run", 2, 1, .step = 4}), 0);
    test_flip(shard, 72000);
    assert_int_equal(tt_ckpt_copy(&what, &done), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "has checksum"));
    assert_int_equal(access(out, F_OK), -1);
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(shard);
    tt_free(step);
    tt_free(out);
    tt_free(folder);
}

static void inspect_says_what_a_checkpoint_is(void **state)
{
    static const char *const keys[] = {"step", "tokens", "mesh", "policy", "files", "tensors", "world", "run_id"};
    char *folder = test_folder();
    struct tt_ckpt_inspection inspection;
    json_t *json = NULL, *first;

    assert_int_equal(test_save(&(struct test_job){folder, "run", 2, 2, .step = 4}), 0);
    assert_int_equal(tt_ckpt_inspect(folder, false, &inspection), 0);
    for (int i = 0; i < 8; i++)
        assert_non_null(json_object_get(inspection.json, keys[i]));
    assert_int_equal(json_integer_value(json_object_get(inspection.json, "tokens")), 4 * 2048);
    assert_int_equal(inspection.manifest.n_tensors, 24);
    first = tt_ckpt_inspect_tensor(&inspection, 0);
    assert_string_equal(json_string_value(json_object_get(first, "name")), "layers.0.attention.wq.weight");
    assert_string_equal(json_string_value(json_object_get(first, "dtype")), "F32");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(first, "shape"), 1)), 5);
    json_decref(first);
    tt_ckpt_inspection_release(&inspection);
    assert_int_equal(tt_ckpt_list(folder, &json), 0);
    first = json_array_get(json_object_get(json, "steps"), 0);
    assert_true(json_is_true(json_object_get(first, "good")));
    json_decref(json);
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(folder);
}

/* --- large ones --- */

static int64_t resident_most(void)
{
    struct rusage usage;

    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return (int64_t)usage.ru_maxrss << 10;
}

/* The text of a manifest, made without the structs whose memory is measured. */
static char *large_text(int tensors, int chunks)
{
    struct tt_text text = {0};
    char *sealed;

    tt_text_add(&text, "{\n\"titan_ckpt\": 1,\n\"step\": 12,\n\"files\": [{\"path\":\"model/a.safetensors\","
                       "\"bytes\":1048576,\"crc32c\":\"00000000\"}],\n\"tensors\": {");
    for (int i = 0; i < tensors; i++) {
        tt_text_add(&text,
                    "%s\n \"model/layers.%d.weight\": {\"dtype\":\"F32\",\"shape\":[%d],\"digest\":"
                    "\"sum64:0123456789abcdef\",\"chunks\":[",
                    i ? "," : "", i, chunks);
        for (int k = 0; k < chunks; k++)
            tt_text_add(&text,
                        "%s{\"file\":0,\"offset\":[%d],\"shape\":[1],\"begin\":%d,\"end\":%d,\"crc32c\":\"%08x\"}",
                        k ? "," : "", k, 4096 + 4 * k, 4100 + 4 * k, (unsigned)k);
        tt_text_add(&text, "]}");
    }
    tt_text_add(&text, "},\n\"self_crc32c\": \"");
    sealed = seal(text.text);
    tt_text_release(&text);
    return sealed;
}

/* A JSON value of the text would take fourteen times the text's size, and so would arrays with room for more chunks. */
static void expect_small(int tensors, int chunks)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    /* A sanitizer's own memory would be counted. */
    (void)tensors;
    (void)chunks;
#else
    struct tt_manifest m = {0};
    char *text = large_text(tensors, chunks);
    int64_t before, size = (int64_t)strlen(text);

    assert_true(size > 3 << 20);
    (void)malloc_trim(0);
    before = resident_most();
    assert_int_equal(tt_manifest_parse(text, (size_t)size, "m", &m), 0);
    assert_int_equal(m.n_tensors, tensors);
    if (resident_most() - before > 5 * size / 2)
        fail_msg("reading %lld bytes took %lld", (long long)size, (long long)(resident_most() - before));
    tt_manifest_release(&m);
    tt_free(text);
#endif
}

static void reading_takes_little_more_than_the_text(void **state)
{
    expect_small(20000, 1);
    expect_small(200, 400);
}

/* Two allocations per tensor, and some for arrays that grow, but none per member or chunk. */
static void reading_allocates_for_names_and_chunks_only(void **state)
{
    enum { TENSORS = 300, CHUNKS = 20 };
    char *text = large_text(TENSORS, CHUNKS);
    struct tt_manifest m = {0};
    uint64_t before = tt_mem_allocations(), made;

    assert_int_equal(tt_manifest_parse(text, strlen(text), "m", &m), 0);
    made = tt_mem_allocations() - before;
    if (made > 2 * TENSORS + 100)
        fail_msg("%d tensors took %llu allocations", TENSORS, (unsigned long long)made);
    tt_manifest_release(&m);
    tt_free(text);
}

/* Members may have any order; unknown ones are ignored. */
static void members_have_any_order(void **state)
{
    static const char text[] =
        "{\"tensors\": {\"model/a\": {\"chunks\": [{\"crc32c\": \"0000000a\", \"x\": {\"y\": [1, {}]}, \"end\": 8, "
        "\"begin\": 4, \"shape\": [1], \"offset\": [0], \"file\": 0}], \"new\": [[], 1e5], \"shape\": [1], "
        "\"dtype\": \"F32\"}}, \"other\": {\"z\": null}, \"files\": [{\"crc32c\": \"00000001\", \"bytes\": 8, "
        "\"new\": true, \"path\": \"model/f.safetensors\"}], \"step\": 3, \"titan_ckpt\": 1,\n\"self_crc32c\": \"";
    char *sealed = seal(text);
    struct tt_manifest m = {0};

    assert_int_equal(tt_manifest_parse(sealed, strlen(sealed), "m", &m), 0);
    assert_int_equal(m.n_tensors, 1);
    assert_false(m.tensor[0].has_digest);
    assert_int_equal(m.tensor[0].n_chunks, 1);
    assert_int_equal(m.tensor[0].chunk[0].crc, 10);
    assert_int_equal(m.tensor[0].chunk[0].begin, 4);
    assert_int_equal(json_object_size(m.meta), 2);
    assert_int_equal(tt_manifest_check_cover(&m), 0);
    tt_manifest_release(&m);
    tt_free(sealed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading_takes_little_more_than_the_text), /* first, since it measures the peak memory */
        cmocka_unit_test(reading_allocates_for_names_and_chunks_only),
        cmocka_unit_test(members_have_any_order),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(what_is_packed_is_unpacked),
        cmocka_unit_test(a_manifest_with_any_change_is_refused),
        cmocka_unit_test(values_that_no_save_writes_are_refused),
        cmocka_unit_test(names_of_steps),
        cmocka_unit_test(consolidated_models_are_equal),
        cmocka_unit_test(a_damaged_source_is_not_consolidated),
        cmocka_unit_test(inspect_says_what_a_checkpoint_is),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
