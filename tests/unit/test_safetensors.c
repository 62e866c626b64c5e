/* SPDX-License-Identifier: MIT
 *
 * The strict safetensors reader against hostile headers, and the writer's layout.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/rng.h"
#include "core/os/file.h"

/* The bytes of a file: this header, then data_bytes zeros. */
static struct tt_text make(const char *header, size_t data_bytes)
{
    struct tt_text file = {0};
    size_t n = strlen(header);

    for (int i = 0; i < 8; i++)
        tt_text_add_bytes(&file, &(char){(char)(n >> (8 * i))}, 1);
    tt_text_add_bytes(&file, header, n);
    for (size_t i = 0; i < data_bytes; i++)
        tt_text_add_bytes(&file, "", 1);
    return file;
}

static void expect(const char *header, size_t data_bytes, int rc, const char *message)
{
    struct tt_text file = make(header, data_bytes);
    struct tt_safetensors st = {.fd = -1};
    /* A copy of the exact size, so that a sanitizer sees a read past its end. */
    char *bytes = tt_calloc(file.size, 1);

    memcpy(bytes, file.text, file.size);
    if (tt_safetensors_parse("x.safetensors", bytes, file.size, (int64_t)file.size, &st) != rc)
        fail_msg("%s: %s", header, tt_error_message());
    if (message && !strstr(tt_error_message(), message))
        fail_msg("%s: '%s' does not say '%s'", header, tt_error_message(), message);
    if (rc == 0)
        tt_safetensors_release(&st);
    tt_free(bytes);
    tt_text_release(&file);
}

static void good_headers_are_read(void **state)
{
    expect("{}", 0, 0, NULL);
    expect("{\"__metadata__\":{\"format\":\"pt\"}}      ", 0, 0, NULL);
    expect("{\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24, 0, NULL);
    expect("{\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 0, NULL);
    expect("{\"b\":{\"dtype\":\"F32\",\"shape\":[0,9],\"data_offsets\":[0,0],\"more\":1}}", 0, 0, NULL);
    expect("{\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[4,8]},"
           "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
           8, 0, NULL);
    expect("{\"b\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2, 0, NULL);
    expect("{\"b\":{\"dtype\":\"F8_E8M0\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3, 0, NULL);
    expect("{\"a\\\"b\\\\\\u00e9/x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0, NULL);
}

static void bad_headers_are_refused(void **state)
{
    expect("", 0, TT_EDATA, "invalid JSON");
    expect("[]", 0, TT_EDATA, "does not begin with '{'");
    expect(" {}", 0, TT_EDATA, "does not begin with '{'");
    expect("{}{}", 0, TT_EDATA, "invalid JSON");
    expect("{\"a\":", 0, TT_EDATA, "invalid JSON");
    expect("{\"\xff\":1}", 0, TT_EDATA, "invalid JSON");
    expect("{\"a\":1}", 0, TT_EDATA, "not an object");
    expect("{\"a\":{}}", 0, TT_EDATA, "no dtype");
    expect("{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, TT_EIO,
           "titan does not read the type 'F31' of tensor 'a'");
    expect("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, TT_EDATA, "shape is not");
    expect("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, TT_EDATA, "shape is not");
    expect("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, TT_EIO,
           "more than 8 dimensions");
    expect("{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, TT_EDATA, "shape is not");
    expect("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, TT_EDATA, "data_offsets");
    expect("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, TT_EDATA, "data_offsets");
    expect("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, TT_EDATA, "span 8 bytes");
    expect("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
           TT_EDATA, "does not fit");
    expect("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, TT_EDATA,
           "does not fit");
    expect("{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0, TT_EDATA,
           "shape is not a list of at most 8 sizes");
    expect("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, TT_EDATA, "whole bytes");
    expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
           2, TT_EDATA, "duplicate");
    expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
           1, TT_EDATA, "overlaps");
    expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, TT_EDATA, "a hole");
    expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", 8, TT_EDATA, "(1 missing)");
    expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", 17, TT_EDATA, "8 bytes too many");
    expect("{\"__metadata__\":1}", 0, TT_EDATA, "not an object");
    expect("{\"__metadata__\":{\"a\":1}}", 0, TT_EDATA, "not a string");
}

static void bad_sharding_info_is_refused(void **state)
{
    expect("{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"a\\\": {\\\"saved_offsets\\\": [3]}}\"},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
           1, 0, NULL);
    expect("{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
           1, TT_EDATA, "no DCP_SHARDING_INFO");
    expect("{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"a\\\": {\\\"saved_offsets\\\": [3, 0]}}\"},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
           1, TT_EDATA, "do not match");
    expect("{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"a\\\": {\\\"saved_offsets\\\": [9223372036854775807]}}\"},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
           1, TT_EDATA, "too large");
    expect("{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"x\"}}", 0, TT_EDATA, "invalid JSON");
    expect("{\"__metadata__\":{\"titan.crc\":\"{}\"},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
           TT_EDATA, "no checksum");
}

static void expect_bytes(const void *bytes, size_t size, const char *message)
{
    struct tt_safetensors st;

    assert_int_equal(tt_safetensors_parse("x", bytes, size, (int64_t)size, &st), TT_EDATA);
    if (!strstr(tt_error_message(), message))
        fail_msg("'%s' does not say '%s'", tt_error_message(), message);
}

static void files_that_are_something_else(void **state)
{
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    static const uint8_t huge[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, limit[8] = {1, 0xe1, 0xf5, 5};
    static const uint8_t longer[10] = {100, 0, 0, 0, 0, 0, 0, 0, '{', '}'};

    expect_bytes("", 0, "at least 8");
    expect_bytes("1234567", 7, "at least 8");
    expect_bytes(lfs, sizeof lfs - 1, "Git LFS pointer");
    expect_bytes(huge, 8, "not a safetensors file");
    expect_bytes(limit, 8, "the format allows at most 100000000");
    expect_bytes("PK\3\4 something zipped", 20, "not a safetensors file");
    expect_bytes(longer, 10, "truncated within its header: it has 10 bytes, but the header needs 108");
}

/* Files that are cut or lengthened, or in which bits are flipped at random, give an error or a sane result, never a
 * crash. The sanitizer build finds bad reads. */
static void random_damage_never_crashes(void **state)
{
    struct tt_text file =
        make("{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"a\\\": {\\\"saved_offsets\\\": [3, 0]}}\"},"
             "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
             24);
    struct tt_rng rng = tt_rng_make(5, "damage");

    for (uint64_t i = 0; i < 20000; i++) {
        size_t size = i % 3 ? file.size : tt_rng_bits(&rng, 5 * i) % (file.size + 1);
        char *bytes = tt_calloc(size, 1);
        struct tt_safetensors st;

        memcpy(bytes, file.text, size);
        for (uint64_t k = 0; size && k < i % 4; k++)
            bytes[tt_rng_bits(&rng, 5 * i + k + 1) % size] = (char)tt_rng_bits(&rng, ~(5 * i + k));
        if (tt_safetensors_parse("x", bytes, size, (int64_t)size, &st) == 0)
            tt_safetensors_release(&st);
        tt_free(bytes);
    }
    tt_text_release(&file);
}

static void layout_is_sorted_aligned_and_repeatable(void **state)
{
    struct tt_st_tensor t[] = {
        {.name = (char[]){"b"}, .dtype = TT_BF16, .box = {1, {0}, {3}}, .crc = 0x1234, .has_crc = true},
        {.name = (char[]){"c"}, .dtype = TT_F32, .box = {2, {5, 0}, {2, 3}}, .has_crc = true},
        {.name = (char[]){"a\"\\"}, .dtype = TT_F32, .box = {0}, .has_crc = true},
    };
    struct tt_text first = {0}, second = {0};
    struct tt_safetensors st;
    int64_t bytes = 0;

    assert_int_equal(tt_safetensors_layout(t, 3, NULL, true, &first, &bytes), 0);
    assert_int_equal(first.size % 4096, 0);
    assert_int_equal(bytes, (int64_t)first.size + 4 + 24 + 6);
    assert_string_equal(t[0].name, "a\"\\");
    assert_string_equal(t[2].name, "b"); /* narrow types last, so that all are aligned */
    assert_int_equal(tt_safetensors_layout(t, 3, NULL, true, &second, &bytes), 0);
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.text, second.text, first.size);
    assert_non_null(strstr(first.text + 8, "\\\"c\\\": {\\\"saved_offsets\\\": [5, 0]}"));
    assert_int_equal(tt_safetensors_parse("x", first.text, first.size, bytes, &st), 0);
    assert_int_equal(st.n, 3);
    assert_true(st.sharded);
    assert_int_equal(tt_safetensors_find(&st, "c")->box.offset[0], 5);
    assert_int_equal(tt_safetensors_find(&st, "b")->crc, 0x1234);
    assert_string_equal(tt_safetensors_metadata(&st, "format"), "pt");
    tt_safetensors_release(&st);
    t[0].name = t[1].name; /* a file cannot have two chunks of one name */
    assert_int_equal(tt_safetensors_layout(t, 3, NULL, true, &second, &bytes), TT_EINTERNAL);
    tt_text_release(&first);
    tt_text_release(&second);
}

/* Tiles in two dimensions, as PyTorch writes them with FSDP and tensor parallelism. */
static void tiles_are_read_into_any_box(void **state)
{
    const struct tt_box want = {3, {1, 1, 0}, {3, 3, 2}};
    const struct tt_box tile[4] = {
        {3, {0, 0, 0}, {2, 3, 2}}, {3, {0, 3, 0}, {2, 2, 2}}, {3, {2, 0, 0}, {3, 3, 2}}, {3, {2, 3, 0}, {3, 2, 2}}};
    char path[] = "/tmp/titan-tile-XXXXXX";
    uint16_t got[18] = {0};
    int fd = mkstemp(path);
    int64_t at = 0;

    assert_true(fd >= 0);
    for (int i = 0; i < 4; i++) {
        int64_t begin = at;

        for (int64_t r = 0; r < tile[i].shape[0]; r++) {
            for (int64_t c = 0; c < tile[i].shape[1] * 2; c++, at += 2) {
                uint16_t value = (uint16_t)((tile[i].offset[0] + r) * 100 + tile[i].offset[1] * 2 + c);

                assert_int_equal(tt_file_pwrite(fd, path, &value, 2, at, NULL), 0);
            }
        }
        assert_int_equal(tt_box_read(fd, path, begin, &tile[i], &want, 2, got), 0);
    }
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 6; c++)
            assert_int_equal(got[r * 6 + c], (r + 1) * 100 + 2 + c);
    (void)close(fd);
    (void)unlink(path);
}

static void coverage_is_exact_or_says_what_is_wrong(void **state)
{
    const int64_t shape[] = {4, 6};
    struct tt_box box[4] = {{2, {0, 0}, {2, 3}}, {2, {0, 3}, {2, 3}}, {2, {2, 0}, {1, 6}}, {2, {3, 0}, {1, 6}}}, a, b;
    char text[64];

    assert_int_equal(tt_box_cover(2, shape, box, 4, &a, &b), TT_COVER_EXACT);
    assert_int_equal(tt_box_cover(2, shape, box, 3, &a, &b), TT_COVER_MISSING);
    assert_string_equal(tt_box_text(text, sizeof text, &a), "[3:4, 0:6]");
    box[1].offset[1] = 2;
    assert_int_equal(tt_box_cover(2, shape, box, 4, &a, &b), TT_COVER_OVERLAP);
    box[1].offset[1] = 4;
    assert_int_equal(tt_box_cover(2, shape, box, 4, &a, &b), TT_COVER_OUTSIDE);
    assert_int_equal(tt_box_cover(0, NULL, box, 0, &a, &b), TT_COVER_MISSING);
    assert_int_equal(tt_box_cover(1, (int64_t[]){0}, box, 0, &a, &b), TT_COVER_EXACT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_headers_are_read),        cmocka_unit_test(bad_headers_are_refused),
        cmocka_unit_test(bad_sharding_info_is_refused), cmocka_unit_test(files_that_are_something_else),
        cmocka_unit_test(random_damage_never_crashes),  cmocka_unit_test(layout_is_sorted_aligned_and_repeatable),
        cmocka_unit_test(tiles_are_read_into_any_box),  cmocka_unit_test(coverage_is_exact_or_says_what_is_wrong),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
