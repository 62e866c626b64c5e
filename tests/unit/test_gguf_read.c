/* SPDX-License-Identifier: MIT
 *
 * GGUF files that other programs wrote, and titan's files that other programs have changed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/format/gguf.h"
#include "checkpoint/read/weights.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/models/gguf.h"
#include "core/os/file.h"
#include "core/tokenizer/gguf.h"
#include "core/tokenizer/tokenizer.h"
#include "model_help.h"

static char folder[] = "/tmp/titan-test-XXXXXX";

static int make_folder(void **state)
{
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    return tt_folder_remove(folder);
}

/* All the bytes of a file; its tensors are zeros. */
static void finish(struct tt_gguf_values *values, struct tt_gguf_tensor *tensor, int n, struct tt_text *bytes)
{
    int64_t size = 0;

    tt_gguf_layout(values, tensor, n, bytes, &size);
    while ((int64_t)bytes->size < size)
        tt_text_add_bytes(bytes, "", 1);
    tt_text_release(&values->text);
}

/* --- checksums --- */

static struct tt_gguf_tensor tensor_of(const char *name, enum tt_gguf_type type)
{
    return (struct tt_gguf_tensor){
        .name = (char *)(uintptr_t)name, .type = tt_gguf_type_of((uint32_t)type), .ndim = 2, .shape = {2, 32}};
}

/* Whether the first tensor of a file passes its checksum if the file was written with two tensors of types `types`,
 * which are now of types `now`. */
static bool counts(const enum tt_gguf_type *types, const enum tt_gguf_type *now, bool turned)
{
    struct tt_gguf_tensor tensor[] = {tensor_of("a.weight", types[0]), tensor_of("b.weight", types[1])};
    char *path = tt_format("%s/x.gguf", folder);
    struct tt_gguf_values values = {0};
    struct tt_manifest manifest = {0};
    struct tt_text bytes = {0};
    bool counted;

    tt_gguf_put_array(&values, TT_GGUF_CHECKSUMS, TT_GGUF_I32, 3);
    tt_gguf_add_i32(&values, 1);
    tt_gguf_add_i32(&values, 2);
    tt_gguf_add_i32(&values, (int32_t)tt_gguf_crc_of_tensors(tensor, 2));
    tensor[turned] = tensor_of("a.weight", now[0]);
    tensor[!turned] = tensor_of("b.weight", now[1]);
    finish(&values, tensor, 2, &bytes);
    assert_int_equal(tt_file_replace(path, bytes.text, bytes.size), 0);
    assert_int_equal(tt_gguf_scan(path, &manifest), 0);
    counted = manifest.tensor[0].chunk[0].has_crc;
    tt_manifest_release(&manifest);
    tt_text_release(&bytes);
    tt_free(path);
    return counted;
}

/* llama-quantize and others copy all metadata of a file, even the checksums. */
static void checksums_of_other_tensors_do_not_count(void **state)
{
    static const enum tt_gguf_type f32[] = {TT_GGML_F32, TT_GGML_F32}, mixed[] = {TT_GGML_F32, TT_GGML_Q8_0};

    assert_true(counts(f32, f32, false));
    assert_true(counts(mixed, mixed, false));
    assert_false(counts(f32, mixed, false));
    assert_false(counts(f32, f32, true));
}

/* A model's file, all zeros, with right checksums. */
static void write_model(const struct tt_model *model, const char *path, struct tt_gguf_tensor *ret_first)
{
    struct tt_gguf_tensor tensor[64] = {{0}};
    struct tt_gguf_values values = {0};
    struct tt_gguf_part *part = NULL;
    struct tt_text bytes = {0};
    int n = 0;

    assert_int_equal(tt_gguf_parts(model, &part, &n), 0);
    assert_true(n <= 64);
    assert_int_equal(tt_gguf_put_model(model, 0, &values), 0);
    for (int i = 0; i < n; i++) {
        tensor[i] = (struct tt_gguf_tensor){.name = part[i].name,
                                            .type = tt_gguf_type_named(part[i].stays_wide ? "f32" : "q8_0"),
                                            .ndim = part[i].ndim};
        memcpy(tensor[i].shape, part[i].shape, sizeof tensor[i].shape);
    }
    tt_gguf_put_array(&values, TT_GGUF_CHECKSUMS, TT_GGUF_I32, n + 1);
    for (int i = 0; i < n; i++) {
        int64_t size = part[i].stays_wide ? 4 : 34, elements = part[i].stays_wide ? 1 : 32, count = size;
        char zero = 0;
        uint32_t crc = 0;

        for (int d = 0; d < part[i].ndim; d++)
            count *= part[i].shape[d];
        for (int64_t k = 0; k < count / elements; k++)
            crc = tt_crc32c(crc, &zero, 1);
        tt_gguf_add_i32(&values, (int32_t)crc);
    }
    tt_gguf_add_i32(&values, (int32_t)tt_gguf_crc_of_tensors(tensor, n));
    finish(&values, tensor, n, &bytes);
    *ret_first = tensor[0];
    assert_int_equal(tt_file_replace(path, bytes.text, bytes.size), 0);
    tt_text_release(&bytes);
    tt_free(part);
}

static void flip(const char *path, int64_t at)
{
    FILE *file = fopen(path, "r+b");

    assert_non_null(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    assert_int_equal(fputc(1, file), 1);
    assert_int_equal(fclose(file), 0);
}

/* Comparing them again for each block of rows would mean reading a large tensor hundreds of times. */
static void checksums_are_compared_once(void **state)
{
    struct tt_model *model = make_of("llama3", "debugmodel", &(struct tt_model_dims){.n_layers = 2, .tied = -1});
    char *path = tt_format("%s/model.gguf", folder);
    int64_t width = model->dims.dim;
    float *row = tt_calloc((size_t)width, sizeof *row);

    for (int damaged_first = 0; damaged_first < 2; damaged_first++) {
        struct tt_gguf_tensor first;
        struct tt_source *source = NULL;
        struct tt_weights w = {0};
        int rc;

        write_model(model, path, &first);
        if (tt_source_find(path, &source) < 0 || tt_weights_import(source, model, TT_EXTRA_REFUSED, &w) < 0)
            fail_msg("%s", tt_error_message());
        if (damaged_first)
            flip(path, first.end - 1);
        rc = tt_weights_read(&w, &w.weight[0], 5, 1, TT_F32, row);
        if (damaged_first)
            assert_fails(rc, TT_EDATA, "tensor 'token_embd.weight'");
        else
            assert_int_equal(rc, 0);
        flip(path, first.end - 1);
        rc = damaged_first ? 0 : tt_weights_read(&w, &w.weight[0], 6, 1, TT_F32, row);
        assert_int_equal(rc, 0);
        tt_weights_release(&w);
        tt_source_free(source);
    }
    tt_free(row);
    tt_free(path);
    tt_model_free(model);
}

/* gpt2 has q, k and v side by side in one tensor. */
static void parts_of_a_tensor_have_its_type(void **state)
{
    struct tt_model *model = make_of("gpt2", "debugmodel", &(struct tt_model_dims){.n_layers = 1, .tied = -1});
    char *path = tt_format("%s/model.gguf", folder);
    struct tt_gguf_tensor tensor[64] = {{0}};
    struct tt_gguf_values values = {0};
    struct tt_gguf_part *part = NULL;
    struct tt_source *source = NULL;
    struct tt_weights w = {0};
    struct tt_text bytes = {0};
    int n = 0;

    assert_int_equal(tt_gguf_parts(model, &part, &n), 0);
    for (int i = 0; i < n; i++) {
        tensor[i] = (struct tt_gguf_tensor){.name = part[i].name,
                                            .type = tt_gguf_type_named(part[i].stays_wide ? "f32" : "bf16"),
                                            .ndim = part[i].ndim};
        memcpy(tensor[i].shape, part[i].shape, sizeof tensor[i].shape);
    }
    assert_int_equal(tt_gguf_put_model(model, 0, &values), 0);
    finish(&values, tensor, n, &bytes);
    assert_int_equal(tt_file_replace(path, bytes.text, bytes.size), 0);
    if (tt_source_find(path, &source) < 0 || tt_weights_import(source, model, TT_EXTRA_REFUSED, &w) < 0)
        fail_msg("%s", tt_error_message());
    for (int i = 0; i < w.n; i++)
        if (strstr(w.weight[i].name, "attention.w"))
            assert_int_equal(w.weight[i].dtype, strstr(w.weight[i].name, ".bias") ? TT_F32 : TT_BF16);
    tt_weights_release(&w);
    tt_source_free(source);
    tt_text_release(&bytes);
    tt_free(part);
    tt_free(path);
    tt_model_free(model);
}

/* Blocks that another program packed need not contain the number 127, so packing their elements again would change
 * them. With qwen2, rows of queries and keys have another order in the file. */
static void blocks_stay_as_they_are(void **state)
{
    static const char *const names[] = {"llama3", "qwen2"}, *const types[] = {"q8_0", "q4_0"};
    char *path = tt_format("%s/model.gguf", folder);

    for (int k = 0; k < 4; k++) {
        struct tt_model *model =
            make_of(names[k % 2], "debugmodel", &(struct tt_model_dims){.n_layers = 1, .tied = -1});
        const struct tt_gguf_type_row *type = tt_gguf_type_named(types[k / 2]);
        struct tt_gguf_tensor tensor[64] = {{0}};
        struct tt_gguf_values values = {0};
        struct tt_gguf_part *part = NULL;
        struct tt_source *source = NULL;
        struct tt_weights w = {0};
        struct tt_text bytes = {0};
        uint64_t random = 1;
        int n = 0, compared = 0;

        assert_int_equal(tt_gguf_parts(model, &part, &n), 0);
        for (int i = 0; i < n; i++) {
            tensor[i] = (struct tt_gguf_tensor){.name = part[i].name,
                                                .type = part[i].stays_wide ? tt_gguf_type_named("f32") : type,
                                                .ndim = part[i].ndim};
            memcpy(tensor[i].shape, part[i].shape, sizeof tensor[i].shape);
        }
        assert_int_equal(tt_gguf_put_model(model, 0, &values), 0);
        finish(&values, tensor, n, &bytes);
        for (int i = 0; i < n; i++)
            for (int64_t at = tensor[i].begin; at < tensor[i].end && tensor[i].type == type; at++) {
                random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                bytes.text[at] = (char)((at - tensor[i].begin) % type->bytes == 1 ? 0x24 : random >> 34 & 0x3f);
            }
        assert_int_equal(tt_file_replace(path, bytes.text, bytes.size), 0);
        if (tt_source_find(path, &source) < 0 || tt_weights_import(source, model, TT_EXTRA_REFUSED, &w) < 0)
            fail_msg("%s", tt_error_message());
        for (int i = 0; i < w.n; i++) {
            const struct tt_weight *weight = &w.weight[i];
            enum tt_packing_choice packing = tt_gguf_packing(type);
            struct tt_box box = tt_box_whole(weight->ndim, weight->shape);
            int64_t width = weight->shape[1], row_bytes = tt_packing_row_bytes(packing, width);
            uint8_t *rows;
            float *want, *got;

            if (!tt_weights_keep_packing(&w, weight, packing))
                continue;
            rows = tt_calloc((size_t)weight->shape[0], (size_t)row_bytes);
            want = tt_calloc((size_t)tt_box_volume(&box), sizeof *want);
            got = tt_calloc((size_t)width, sizeof *got);
            assert_int_equal(tt_weights_read(&w, weight, 0, weight->shape[0], TT_F32, want), 0);
            assert_int_equal(tt_weights_read_packed(&w, weight, packing, &box, rows), 0);
            for (int64_t r = 0; r < weight->shape[0]; r++) {
                tt_unpack(packing, rows + r * row_bytes, width, 0, width, got);
                if (memcmp(got, want + r * width, (size_t)width * sizeof *got) != 0)
                    fail_msg("%s: row %d of %s", types[k / 2], (int)r, weight->name);
            }
            compared++;
            tt_free(rows);
            tt_free(want);
            tt_free(got);
        }
        assert_true(compared >= 7);
        tt_weights_release(&w);
        tt_source_free(source);
        tt_text_release(&bytes);
        tt_free(part);
        tt_model_free(model);
    }
    tt_free(path);
}

/* --- values --- */

static char said[1024];

static void listen(void *arg, enum tt_log_level level, const char *text)
{
    (void)snprintf(said, sizeof said, "%s", text);
}

/* Reads the sizes of a small Llama's file with one more metadata value, which `put` adds. */
static int read_with(void (*put)(struct tt_gguf_values *values), struct tt_model_dims *ret_dims)
{
    struct tt_model *model = make_of("llama3", "debugmodel", NULL);
    struct tt_gguf_tensor tensor[] = {tensor_of("token_embd.weight", TT_GGML_F32),
                                      tensor_of("output.weight", TT_GGML_F32)};
    struct tt_gguf_values values = {0};
    struct tt_text bytes = {0};
    struct tt_gguf file = {0};
    char *at;
    int rc;

    assert_int_equal(tt_gguf_put_model(model, 0, &values), 0);
    for (const char *key = "titan.model llama.rope.scaling.type"; key; key = strchr(key, ' ')) {
        key += *key == ' ';
        at = memmem(values.text.text, values.text.size, key, strcspn(key, " "));
        if (at)
            *at = 'x'; /* another program's value, which nothing reads */
    }
    put(&values);
    finish(&values, tensor, 2, &bytes);
    assert_int_equal(tt_gguf_parse("f", bytes.text, bytes.size, &file), 0);
    said[0] = 0;
    tt_log_set_sink(listen, NULL);
    *ret_dims = (struct tt_model_dims){0};
    rc = tt_gguf_read_dims(&file, ret_dims);
    tt_log_set_sink(NULL, NULL);
    tt_gguf_release(&file);
    tt_text_release(&bytes);
    tt_model_free(model);
    return rc;
}

static void put_nothing(struct tt_gguf_values *values)
{
}

static void put_causal(struct tt_gguf_values *values)
{
    tt_gguf_put_bool(values, "llama.attention.causal", false);
}

static void put_softcap(struct tt_gguf_values *values)
{
    tt_gguf_put_f32(values, "llama.final_logit_softcapping", 30.0);
}

static void put_harmless(struct tt_gguf_values *values)
{
    tt_gguf_put_bool(values, "llama.attention.causal", true);
    tt_gguf_put_f32(values, "llama.logit_scale", 1.0);
    tt_gguf_put_u32(values, "llama.expert_count", 0);
}

static void put_unknown(struct tt_gguf_values *values)
{
    tt_gguf_put_u32(values, "llama.something.new", 3);
    tt_gguf_put_u32(values, "qwen3.something", 3);
}

static void put_split(struct tt_gguf_values *values)
{
    tt_gguf_put_u32(values, "split.count", 3);
}

/* No key of the architecture is left out in silence. */
static void other_values_are_refused_or_named(void **state)
{
    struct tt_model_dims dims;

    assert_int_equal(read_with(put_nothing, &dims), 0);
    assert_string_equal(said, "");
    assert_int_equal(read_with(put_harmless, &dims), 0);
    assert_string_equal(said, "");
    assert_fails(read_with(put_causal, &dims), TT_EDATA,
                 "'llama.attention.causal' is 0; titan supports this model only with");
    assert_fails(read_with(put_softcap, &dims), TT_EDATA, "'llama.final_logit_softcapping' is 30");
    assert_int_equal(read_with(put_unknown, &dims), 0);
    assert_string_equal(said, "f: not used, since titan does not know them: llama.something.new");
    assert_fails(read_with(put_split, &dims), TT_EDATA, "one of 3 files");
}

static void put_yarn(struct tt_gguf_values *values)
{
    tt_gguf_put_string(values, "llama.rope.scaling.type", "yarn", 4);
    tt_gguf_put_f32(values, "llama.rope.scaling.factor", 4.0);
    tt_gguf_put_u32(values, "llama.rope.scaling.original_context_length", 512);
    tt_gguf_put_f32(values, "llama.rope.scaling.yarn_beta_fast", 16.0);
    tt_gguf_put_f32(values, "llama.rope.scaling.yarn_beta_slow", 2.0);
}

static void put_attn(struct tt_gguf_values *values)
{
    put_yarn(values);
    tt_gguf_put_f32(values, "llama.rope.scaling.yarn_attn_factor", 1.0);
}

static void put_same_attn(struct tt_gguf_values *values)
{
    put_yarn(values);
    tt_gguf_put_f32(values, "llama.rope.scaling.yarn_attn_factor", 1.138629436);
}

static void put_older(struct tt_gguf_values *values)
{
    tt_gguf_put_f32(values, "llama.rope.scale_linear", 4.0);
}

static void all_numbers_of_scaling_are_read(void **state)
{
    struct tt_model_dims dims;

    if (read_with(put_yarn, &dims) < 0)
        fail_msg("%s", tt_error_message());
    assert_true(dims.rope.factor == 4.0 && dims.rope.original_max == 512.0);
    assert_true(dims.rope.beta_fast == 16.0 && dims.rope.beta_slow == 2.0);
    assert_int_equal(read_with(put_same_attn, &dims), 0);
    assert_fails(read_with(put_attn, &dims), TT_EDATA, "yarn_attn_factor' is 1; only 1.13863 is supported");
    assert_int_equal(read_with(put_older, &dims), 0);
    assert_true(dims.rope.linear && dims.rope.factor == 4.0);
}

/* gguf_set_metadata.py and llama-quantize --override-kv leave titan.model as it was. */
static void values_that_another_program_changed_count(void **state)
{
    struct tt_model *model = make_of("llama3", "debugmodel", NULL);
    struct tt_model_dims dims = {0};

    for (int changed = 0; changed < 2; changed++) {
        static const char key[] = "llama.rope.freq_base";
        struct tt_gguf_tensor tensor[] = {tensor_of("token_embd.weight", TT_GGML_F32),
                                          tensor_of("output.weight", TT_GGML_F32)};
        struct tt_gguf_values values = {0};
        struct tt_text bytes = {0};
        struct tt_gguf file = {0};
        const float theta = 70000.0F;
        char *at;

        assert_int_equal(tt_gguf_put_model(model, 0, &values), 0);
        at = memmem(values.text.text, values.text.size, key, strlen(key));
        assert_non_null(at);
        if (changed)
            memcpy(at + strlen(key) + 4, &theta, sizeof theta);
        finish(&values, tensor, 2, &bytes);
        assert_int_equal(tt_gguf_parse("f", bytes.text, bytes.size, &file), 0);
        said[0] = 0;
        tt_log_set_sink(listen, NULL);
        if (tt_gguf_read_dims(&file, &dims) < 0)
            fail_msg("%s", tt_error_message());
        tt_log_set_sink(NULL, NULL);
        assert_int_equal(strstr(said, "another program has changed") != NULL, changed);
        assert_true(dims.rope.theta == (changed ? 70000.0 : model->dims.rope.theta));
        tt_gguf_release(&file);
        tt_text_release(&bytes);
    }
    tt_model_free(model);
}

/* --- tokenizers --- */

/* tokenizer.json of a byte-level tokenizer of two tokens. NULL: the file lacks the values. */
static int tokenizer_of(const char *arch, const char *model, const char *pre, const bool *begins, const char *json,
                        char **ret_text)
{
    struct tt_gguf_values values = {0};
    struct tt_text bytes = {0};
    struct tt_gguf file = {0};
    size_t size = 0;
    int rc;

    tt_gguf_put_string(&values, "general.architecture", arch, strlen(arch));
    tt_gguf_put_string(&values, "tokenizer.ggml.model", model, strlen(model));
    if (pre)
        tt_gguf_put_string(&values, "tokenizer.ggml.pre", pre, strlen(pre));
    tt_gguf_put_array(&values, "tokenizer.ggml.tokens", TT_GGUF_STRING, 2);
    tt_gguf_add_string(&values, "a", 1);
    tt_gguf_add_string(&values, "<s>", 3);
    tt_gguf_put_array(&values, "tokenizer.ggml.scores", TT_GGUF_F32, 2);
    tt_gguf_add_f32(&values, 0.0F);
    tt_gguf_add_f32(&values, 0.0F);
    tt_gguf_put_array(&values, "tokenizer.ggml.merges", TT_GGUF_STRING, 0);
    tt_gguf_put_u32(&values, "tokenizer.ggml.bos_token_id", 1);
    if (begins)
        tt_gguf_put_bool(&values, "tokenizer.ggml.add_bos_token", *begins);
    if (json)
        tt_gguf_put_string(&values, "tokenizer.huggingface.json", json, strlen(json));
    finish(&values, NULL, 0, &bytes);
    assert_int_equal(tt_gguf_parse("f", bytes.text, bytes.size, &file), 0);
    *ret_text = NULL;
    rc = tt_gguf_tokenizer_file(&file, "tokenizer.json", ret_text, &size);
    tt_gguf_release(&file);
    tt_text_release(&bytes);
    return rc;
}

static bool begins_with_bos(const char *model, const char *pre, const bool *begins)
{
    char *text = NULL;
    bool found;

    if (tokenizer_of("llama", model, pre, begins, NULL, &text) < 0)
        fail_msg("%s", tt_error_message());
    found = strstr(text, "TemplateProcessing") != NULL;
    tt_free(text);
    return found;
}

static void texts_begin_as_in_llama_cpp(void **state)
{
    const bool yes = true, no = false;

    assert_true(begins_with_bos("gpt2", "llama-bpe", NULL));
    assert_true(begins_with_bos("gpt2", "llama3", NULL));
    assert_true(begins_with_bos("gpt2", "tekken", NULL));
    assert_false(begins_with_bos("gpt2", "qwen2", NULL));
    assert_false(begins_with_bos("gpt2", "llama-bpe", &no));
    assert_true(begins_with_bos("gpt2", "qwen2", &yes));
    assert_true(begins_with_bos("llama", NULL, NULL));
    assert_false(begins_with_bos("llama", "default", &no));
}

/* SentencePiece puts a mark before every text, even before one that begins with a space. */
static void texts_of_sentencepiece_begin_with_a_mark(void **state)
{
    char *text = NULL;

    assert_int_equal(tokenizer_of("llama", "llama", NULL, NULL, NULL, &text), 0);
    assert_non_null(strstr(text, "\"Prepend\""));
    assert_null(strstr(text, "\"Metaspace\"")); /* Metaspace adds none before a space */
    tt_free(text);
}

/* llama.cpp's own expressions for such files belong to no model. */
static void a_file_must_say_how_text_is_cut(void **state)
{
    char *text = NULL;

    assert_fails(tokenizer_of("llama", "gpt2", NULL, NULL, NULL, &text), TT_EDATA, "tokenizer.ggml.pre is missing");
    assert_fails(tokenizer_of("qwen3", "gpt2", "default", NULL, NULL, &text), TT_EDATA, "is 'default'");
    assert_int_equal(tokenizer_of("gpt2", "gpt2", NULL, NULL, NULL, &text), 0);
    assert_non_null(strstr(text, "\\\\p{L}"));
    tt_free(text);
}

/* The tokenizer's bytes determine whether packed data belong to it. */
static void tokenizer_json_comes_back_as_it_was(void **state)
{
    static const char json[] = "{\"b\":  1.50, \"a\": [ ],\n \"post_processor\": {\"type\": \"TemplateProcessing\"}}";
    const bool yes = true;
    char *text = NULL;

    assert_int_equal(tokenizer_of("llama", "gpt2", "llama-bpe", &yes, json, &text), 0);
    assert_string_equal(text, json);
    tt_free(text);
}

/* The search tries all ways to cut a token, so a very long token would take hours. */
static void tokens_of_any_length_are_refused(void **state)
{
    struct tt_gguf_values values = {0};
    struct tt_text bytes = {0}, token = {0};
    struct tt_gguf file = {0};
    char *text = NULL;
    size_t size = 0;

    for (int i = 0; i < 1 << 20; i++)
        tt_text_add_bytes(&token, "a", 1);
    tt_gguf_put_string(&values, "tokenizer.ggml.model", "llama", 5);
    tt_gguf_put_array(&values, "tokenizer.ggml.tokens", TT_GGUF_STRING, 1);
    tt_gguf_add_string(&values, token.text, token.size);
    tt_gguf_put_array(&values, "tokenizer.ggml.scores", TT_GGUF_F32, 1);
    tt_gguf_add_f32(&values, 0.0F);
    finish(&values, NULL, 0, &bytes);
    assert_int_equal(tt_gguf_parse("f", bytes.text, bytes.size, &file), 0);
    assert_fails(tt_gguf_tokenizer_file(&file, "tokenizer.json", &text, &size), TT_EDATA, "token 0 has 1048576 bytes");
    tt_gguf_release(&file);
    tt_text_release(&bytes);
    tt_text_release(&token);
}

/* --- tokenizers that are written --- */

static const char *name = "m"; /* the model's name */
static bool has_name;          /* whether the metadata contain it */

static int put_json(const char *normalizer, const char *flags)
{
    struct tt_gguf_values values = {0};
    struct tt_tokenizer *tokenizer = NULL;
    struct tt_gguf_ends ends = {.name = name, .turn = -1};
    char *json = tt_format("{\"added_tokens\": [{\"id\": 2, \"content\": \"<s>\", \"special\": true, \"normalized\": "
                           "false%s}], \"normalizer\": %s, \"post_processor\": null, "
                           "\"decoder\": {\"type\": \"Fuse\"}, \"model\": {\"type\": \"BPE\", \"byte_fallback\": true, "
                           "\"vocab\": {\"a\": 0, \"\xe2\x96\x81\": 1}, \"merges\": []}}",
                           flags, normalizer);
    int rc;

    said[0] = 0;
    tt_log_set_sink(listen, NULL);
    if (tt_tokenizer_parse(json, strlen(json), NULL, 0, "t", &tokenizer) < 0)
        fail_msg("%s", tt_error_message());
    rc = tt_gguf_put_tokenizer(tokenizer, &ends, 8, &values);
    has_name = memmem(values.text.text, values.text.size, "general.name", 12) != NULL;
    tt_log_set_sink(NULL, NULL);
    tt_tokenizer_free(tokenizer);
    tt_text_release(&values.text);
    tt_free(json);
    return rc;
}

#define PREPEND "{\"type\": \"Prepend\", \"prepend\": \"\xe2\x96\x81\"}"
#define REPLACE "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\xe2\x96\x81\"}"
#define SPLIT(text)                                                              \
    "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"" text \
    "\"}, \"behavior\": \"MergedWithPrevious\"}"
#define STEPS(list) "{\"type\": \"Sequence\", \"normalizers\": [" list "]}"

static void normalizers_that_llama_cpp_lacks_are_refused(void **state)
{
    assert_int_equal(put_json(STEPS(PREPEND ", " REPLACE), ""), 0);
    assert_null(strstr(said, "lstrip"));
    assert_int_equal(put_json(REPLACE ", " SPLIT(" "), ""), 0); /* as Gemma's */
    assert_fails(put_json(REPLACE ", " SPLIT("a"), ""), TT_EDATA, "(pre_tokenizer Split)");
    assert_fails(put_json(STEPS("{\"type\": \"NFKC\"}, " PREPEND ", " REPLACE), ""), TT_EDATA, "(NFKC)");
    assert_fails(put_json(STEPS(PREPEND), ""), TT_EDATA, "(no Replace)");
    assert_fails(
        put_json(STEPS("{\"type\": \"Replace\", \"pattern\": {\"String\": \"x\"}, \"content\": \"y\"}, " REPLACE), ""),
        TT_EDATA, "(Replace)");
}

static void spaces_beside_added_tokens_are_named(void **state)
{
    assert_int_equal(put_json(STEPS(PREPEND ", " REPLACE), ", \"lstrip\": true"), 0);
    assert_non_null(strstr(said, "lstrip"));
}

/* llama.cpp takes a model of that name for Phi-3, and does not load it if the tokens of Phi-3 are missing. */
static void a_name_that_llama_cpp_misreads_is_left_out(void **state)
{
    static const char *const names[] = {"my-llama", "Phi-3-mine", "PHI3"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        name = names[i];
        assert_int_equal(put_json(STEPS(PREPEND ", " REPLACE), ""), 0);
        assert_int_equal(strstr(said, "has no general.name") != NULL, i > 0);
        assert_int_equal(has_name, i == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_of_other_tensors_do_not_count),
        cmocka_unit_test(checksums_are_compared_once),
        cmocka_unit_test(parts_of_a_tensor_have_its_type),
        cmocka_unit_test(blocks_stay_as_they_are),
        cmocka_unit_test(other_values_are_refused_or_named),
        cmocka_unit_test(all_numbers_of_scaling_are_read),
        cmocka_unit_test(values_that_another_program_changed_count),
        cmocka_unit_test(texts_begin_as_in_llama_cpp),
        cmocka_unit_test(texts_of_sentencepiece_begin_with_a_mark),
        cmocka_unit_test(a_file_must_say_how_text_is_cut),
        cmocka_unit_test(tokenizer_json_comes_back_as_it_was),
        cmocka_unit_test(tokens_of_any_length_are_refused),
        cmocka_unit_test(normalizers_that_llama_cpp_lacks_are_refused),
        cmocka_unit_test(spaces_beside_added_tokens_are_named),
        cmocka_unit_test(a_name_that_llama_cpp_misreads_is_left_out),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
