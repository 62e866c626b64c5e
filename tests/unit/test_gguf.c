/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/format/gguf.h"
#include "checkpoint/read/map.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/math/rng.h"
#include "core/models/gguf.h"
#include "core/models/model_json.h"
#include "core/tokenizer/gguf.h"
#include "model_help.h"

/* --- the container --- */

/* A file with a value of every kind that titan writes, and two tensors. */
static void make_file(struct tt_text *bytes)
{
    struct tt_gguf_tensor tensor[2] = {
        {.name = (char *)"first.weight", .type = tt_gguf_type_of(TT_GGML_F32), .ndim = 2, .shape = {3, 5}},
        {.name = (char *)"second.weight", .type = tt_gguf_type_of(TT_GGML_Q8_0), .ndim = 3, .shape = {2, 3, 64}}};
    struct tt_gguf_values values = {0};
    int64_t size = 0;

    tt_gguf_put_u32(&values, "a.count", 7);
    tt_gguf_put_f32(&values, "a.real", 0.5);
    tt_gguf_put_bool(&values, "a.flag", true);
    tt_gguf_put_string(&values, "a.text", "word", 4);
    tt_gguf_put_array(&values, "a.list", TT_GGUF_STRING, 2);
    tt_gguf_add_string(&values, "one", 3);
    tt_gguf_add_string(&values, "", 0);
    tt_gguf_put_array(&values, "a.numbers", TT_GGUF_I32, 2);
    tt_gguf_add_i32(&values, -1);
    tt_gguf_add_i32(&values, 5);
    tt_gguf_layout(&values, tensor, 2, bytes, &size);
    assert_int_equal(bytes->size % TT_GGUF_ALIGNMENT, 0);
    while ((int64_t)bytes->size < size)
        tt_text_add_bytes(bytes, "", 1);
    tt_text_release(&values.text);
}

static void what_is_written_is_read(void **state)
{
    struct tt_text bytes = {0};
    struct tt_gguf file = {0};
    const struct tt_gguf_value *list = NULL;
    const struct tt_gguf_tensor *t;
    const int64_t absent = 3;
    int64_t count = 0;
    double real = 0.0;
    bool flag = false;
    char *text = NULL;
    size_t at = 0, size = 0;

    make_file(&bytes);
    assert_int_equal(tt_gguf_parse("f", bytes.text, bytes.size, &file), 0);
    assert_int_equal(tt_gguf_int(&file, "a.count", NULL, &count), 0);
    assert_int_equal(count, 7);
    assert_int_equal(tt_gguf_int(&file, "a.other", &absent, &count), 0);
    assert_int_equal(count, 3);
    assert_int_equal(tt_gguf_real(&file, "a.real", NULL, &real), 0);
    assert_true(real == 0.5);
    assert_int_equal(tt_gguf_bool(&file, "a.flag", NULL, &flag), 0);
    assert_true(flag);
    assert_int_equal(tt_gguf_string(&file, "a.text", &text), 0);
    assert_string_equal(text, "word");
    assert_int_equal(tt_gguf_array(&file, "a.list", TT_GGUF_STRING, &list), 0);
    assert_int_equal(list->n, 2);
    assert_memory_equal(tt_gguf_next_string(list, &at, &size), "one", 3);
    (void)tt_gguf_next_string(list, &at, &size);
    assert_int_equal(size, 0);
    assert_int_equal(tt_gguf_array(&file, "a.numbers", TT_GGUF_I32, &list), 0);
    assert_int_equal(tt_gguf_i32_at(list, 0), -1);
    assert_fails(tt_gguf_int(&file, "a.text", NULL, &count), TT_EDATA, "'a.text' is not an integer");
    assert_fails(tt_gguf_array(&file, "a.list", TT_GGUF_F32, &list), TT_EDATA, "is not a list of numbers");
    t = tt_gguf_find_tensor(&file, "second.weight");
    assert_int_equal(t->ndim, 3);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[2], 64);
    assert_int_equal(t->end - t->begin, 2 * 3 * 2 * 34);
    assert_int_equal(file.tensor[0].begin % TT_GGUF_ALIGNMENT, 0);
    tt_free(text);
    tt_gguf_release(&file);
    tt_text_release(&bytes);
}

/* A file whose end (more than padding) is missing is refused; a file with one changed byte is read or refused. */
static void damaged_files_are_refused(void **state)
{
    struct tt_text bytes = {0};
    int refused = 0;

    make_file(&bytes);
    for (size_t size = 0; size + TT_GGUF_ALIGNMENT < bytes.size; size++) {
        struct tt_gguf file = {0};
        char *part = tt_strndup("", 0);

        part = tt_realloc(part, size + 1, 1); /* an exact allocation, so that a sanitizer sees a read beyond it */
        memcpy(part, bytes.text, size);
        assert_fails(tt_gguf_parse("f", part, size, &file), TT_EDATA, "'f'");
        tt_gguf_release(&file);
        tt_free(part);
    }
    for (size_t at = 0; at < 420 && at < bytes.size; at++)
        for (int value = 0; value < 256; value += 51) {
            char kept = bytes.text[at];
            struct tt_gguf file = {0};

            bytes.text[at] = (char)value;
            refused += tt_gguf_parse("f", bytes.text, bytes.size, &file) < 0;
            bytes.text[at] = kept;
            tt_gguf_release(&file);
        }
    assert_true(refused > 400);
    tt_text_release(&bytes);
}

/* Replaces `from` in a file by bytes of the same length. */
static void refuse_with(const char *from, const char *to, size_t size, size_t skip, const char *message)
{
    struct tt_text bytes = {0};
    struct tt_gguf file = {0};
    char *at;

    make_file(&bytes);
    at = memmem(bytes.text, bytes.size, from, strlen(from));
    assert_non_null(at);
    memcpy(at + strlen(from) + skip, to, size);
    assert_fails(tt_gguf_parse("f", bytes.text, bytes.size, &file), TT_EDATA, message);
    tt_gguf_release(&file);
    tt_text_release(&bytes);
}

static void messages_say_what_is_wrong(void **state)
{
    refuse_with("GGUF", "\1\0\0\0", 4, 0, "version 1 of GGUF");
    refuse_with("GGUF", "\0\0\0\3", 4, 0, "big-endian");
    refuse_with("GGUF", "\377\377\377\377\377\377\377\17", 8, 4, "would have");
    refuse_with("a.list", "\377\377\377\377\377\377\377\177", 8, 8, "'f' is truncated or damaged");
    refuse_with("a.count", "\15\0\0\0", 4, 0, "is of kind 13");
    refuse_with("second.weight", "\11\0\0\0", 4, 0, "has 9 dimensions");
    refuse_with("second.weight", "\377\377\377\377\377\377\377\37", 8, 4, "does not fit in 64 bits");
    refuse_with("second.weight", "\14\0\0\0", 4, 28, "is Q4_K; titan reads F32, F16, BF16, Q8_0 and Q4_0");
    refuse_with("second.weight", "\1\0\0\0\0\0\0\0", 8, 32, "not a multiple of 32");
    refuse_with("second.weight", "\40\0\0\0\0\0\0\0", 8, 32, "share bytes");
    refuse_with("second.weight", "\0\0\0\1\0\0\0\0", 8, 32, "is truncated: it has");
    refuse_with("second.weight", "\41\0\0\0\0\0\0\0", 8, 4, "has rows of 33 elements");
}

/* --- the types --- */

/* The types by their definition, in double. */
static double q8_0_of(const float *x, int i)
{
    double most = 0.0;

    for (int k = 0; k < 32; k++)
        most = fmax(most, fabs((double)x[k]));
    return most == 0.0 ? 0.0 : round((double)x[i] * 127.0 / most) * most / 127.0;
}

static void blocks_are_within_half_a_step(void **state)
{
    const struct tt_gguf_type_row *q8 = tt_gguf_type_named("q8_0"), *q4 = tt_gguf_type_named("q4_0");
    float x[64], back[64];
    uint8_t bytes[68];

    for (int i = 0; i < 64; i++)
        x[i] = (float)sin(i * 1.7) * (i < 32 ? 0.01F : 3.0F);
    tt_gguf_pack(q8, x, 64, bytes);
    tt_gguf_unpack(q8, bytes, 64, back);
    for (int i = 0; i < 64; i++) {
        double most = i < 32 ? 0.01 : 3.0;

        assert_true(fabs((double)back[i] - q8_0_of(x + i / 32 * 32, i % 32)) < most / 1000.0);
        assert_true(fabs((double)(back[i] - x[i])) < most / 127.0 * 0.52);
    }
    tt_gguf_pack(q4, x, 64, bytes);
    tt_gguf_unpack(q4, bytes, 64, back);
    for (int i = 0; i < 64; i++)
        assert_true(fabs((double)(back[i] - x[i])) < (i < 32 ? 0.01 : 3.0) / 8.0 * 1.02);
    memset(x, 0, sizeof x);
    tt_gguf_pack(q8, x, 64, bytes);
    tt_gguf_unpack(q8, bytes, 64, back);
    assert_true(back[0] == 0.0F && back[63] == 0.0F);
}

/* The bytes that the `gguf` package writes: gguf.quants.quantize of i * 0.37 - 5. */
static void blocks_have_the_bytes_of_ggml(void **state)
{
    static const uint8_t q4[18] = {0x78, 0xba, 0x7e, 0x6e, 0x6d, 0x5d, 0x5c, 0x5c, 0x4b,
                                   0x4b, 0x3b, 0x3a, 0x2a, 0x29, 0x19, 0x18, 0x08, 0x07};
    const struct tt_gguf_type_row *type = tt_gguf_type_named("q4_0");
    float x[32];
    uint8_t bytes[18];

    for (int i = 0; i < 32; i++)
        x[i] = (float)i * 0.37F - 5.0F;
    tt_gguf_pack(type, x, 32, bytes);
    assert_memory_equal(bytes, q4, sizeof q4);
}

/* --- the tensors of models --- */

/* A small model of a family, with sizes that all differ. */
static struct tt_model *small(const char *name, const struct tt_model_dims *with)
{
    struct tt_model_dims dims = with ? *with : (struct tt_model_dims){.tied = -1};

    dims.n_layers = dims.n_layers ? dims.n_layers : 2;
    dims.vocab_size = 96;
    return make_of(name, "debugmodel", &dims);
}

struct tensors {
    const struct tt_model *model;
    struct tt_gguf_part *part;
    int n;
    float **data;
};

/* Every element of a parameter has its own number. */
static int read_ours(void *arg, int param, int64_t row, int64_t n, float *data)
{
    const struct tensors *t = arg;
    int64_t width = 1;

    for (int d = 1; d < t->model->params[param].ndim; d++)
        width *= t->model->params[param].shape[d];
    assert_true(row >= 0 && row + n <= t->model->params[param].shape[0]);
    for (int64_t i = 0; i < n * width; i++)
        data[i] = (float)(param * 3 + 1) * 0.001F + (float)(row * width + i);
    return 0;
}

static int read_theirs(void *arg, int number, int64_t row, int64_t n, float *data)
{
    const struct tensors *t = arg;
    int64_t width = 1;

    for (int d = 1; d < t->part[number].ndim; d++)
        width *= t->part[number].shape[d];
    assert_true(row >= 0 && row + n <= t->part[number].shape[0]);
    memcpy(data, t->data[number] + row * width, (size_t)(n * width) * sizeof *data);
    return 0;
}

static int64_t elements_of(int ndim, const int64_t *shape)
{
    int64_t n = 1;

    for (int d = 0; d < ndim; d++)
        n *= shape[d];
    return n;
}

/* If norms multiply by 1 + w, files contain this sum, which is rounded. */
static bool are_same(const struct tt_model *model, const float *wanted, const float *found, int64_t n, bool is_norm)
{
    if (!is_norm || model->row->norm != TT_NORM_RMS_OFFSET)
        return memcmp(wanted, found, (size_t)n * sizeof *wanted) == 0;
    for (int64_t i = 0; i < n; i++)
        if (found[i] != wanted[i] + 1.0F - 1.0F)
            return false;
    return true;
}

static void check_round_trip(struct tt_model *model)
{
    struct tensors t = {.model = model};
    int64_t theirs = 0, ours = 0;

    if (tt_gguf_parts(model, &t.part, &t.n) < 0)
        fail_msg("%s", tt_error_message());
    t.data = tt_calloc((size_t)t.n, sizeof *t.data);
    for (int i = 0; i < t.n; i++) {
        const struct tt_gguf_part *part = &t.part[i];

        t.data[i] = tt_calloc((size_t)elements_of(part->ndim, part->shape), sizeof(float));
        assert_int_equal(tt_gguf_export(model, part, read_ours, &t, 0, part->shape[0], t.data[i]), 0);
        if (part->layout == TT_GGUF_OFFSET)
            assert_true(t.data[i][1] == (float)(part->param[0] * 3 + 1) * 0.001F + 1.0F + 1.0F);
        theirs += part->n_params && !part->is_copy ? elements_of(part->ndim, part->shape) : 0;
    }
    for (int p = 0; p < model->n_params; p++) {
        const struct tt_param *param = &model->params[p];
        int64_t n = elements_of(param->ndim, param->shape), rows = param->shape[0];
        float *wanted, *found;

        if (param->buffer && !model->row->archs[0].latents)
            continue;
        wanted = tt_calloc((size_t)n, sizeof *wanted);
        found = tt_calloc((size_t)n, sizeof *found);
        ours += n;
        assert_int_equal(read_ours(&t, p, 0, rows, wanted), 0);
        for (int64_t row = 0, some = (rows + 2) / 3; row < rows; row += some)
            assert_int_equal(tt_gguf_import(model, t.part, t.n, p, read_theirs, &t, row,
                                            rows - row < some ? rows - row : some, found + row * (n / rows)),
                             0);
        if (!are_same(model, wanted, found, n, param->ndim == 1 && strstr(param->name, "norm.weight")))
            fail_msg("%s of %s changes on the way", param->name, model->row->name);
        tt_free(wanted);
        tt_free(found);
    }
    assert_int_equal(theirs, ours);
    for (int i = 0; i < t.n; i++)
        tt_free(t.data[i]);
    tt_free(t.data);
    tt_free(t.part);
    tt_model_free(model);
}

static void tensors_come_back_the_same(void **state)
{
    struct tt_model_dims latent = {.mla = {.q_rank = 24}, .tied = -1};
    struct tt_model_dims sigmoid = {.moe = {.score = TT_SCORE_SIGMOID, .biased = true}, .tied = -1};
    struct tt_model_dims tied = {.tied = 1};
    struct tt_model_dims windowless = {.dim = 64, .n_layers = 2, .vocab_size = 96, .ffn_dim = 96, .tied = -1};

    for (int i = 0; i < tt_model_n_rows; i++)
        if (tt_model_rows[i]->n_archs > 0)
            check_round_trip(small(tt_model_rows[i]->name, NULL));
    check_round_trip(small("deepseek_v3", &latent));
    check_round_trip(small("deepseek_v3", &sigmoid));
    check_round_trip(small("gpt_oss", &tied));
    check_round_trip(small("gpt_neox", &tied));
    check_round_trip(make_of("cohere2", "aya-8B", &windowless));
    check_round_trip(make_of("qwen3", "debugmodel_moe", &(struct tt_model_dims){.n_layers = 1, .tied = -1}));
}

/* --- the sizes --- */

/* The metadata of a model as a file; without titan's own keys, as llama.cpp's converter writes it. */
static void file_of(const struct tt_model *model, bool own, struct tt_text *bytes, struct tt_gguf *file)
{
    static const char *const lists[] = {"rope_factors_short.weight", "rope_factors_long.weight"};
    struct tt_gguf_tensor tensor[8] = {{.name = (char *)"token_embd.weight",
                                        .type = tt_gguf_type_of(TT_GGML_F16),
                                        .ndim = 2,
                                        .shape = {model->dims.vocab_size, model->dims.dim}}};
    const struct {
        const char *name;
        const bool *has;
    } biases[] = {{"blk.0.attn_q.bias", &model->dims.qkv_bias},
                  {"blk.0.attn_output.bias", &model->dims.out_bias},
                  {"blk.0.ffn_down.bias", &model->dims.mlp_bias}};
    int64_t size = 0, turned = model->dims.rotary_dim ? model->dims.rotary_dim : model->dims.head_dim;
    const struct tt_rope *rope = &model->dims.rope;
    int n = 1, factors = -1;
    struct tt_gguf_values values = {0};
    char *at;

    if (tt_gguf_put_model(model, 0, &values) < 0)
        fail_msg("%s", tt_error_message());
    if (model->dims.tied != 1)
        tensor[n++] =
            (struct tt_gguf_tensor){.name = (char *)"output.weight", .type = tensor[0].type, .ndim = 1, .shape = {32}};
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++) /* which say what the values do not */
        if (*biases[i].has && model->row->decoder)
            tensor[n++] = (struct tt_gguf_tensor){
                .name = (char *)(uintptr_t)biases[i].name, .type = tensor[0].type, .ndim = 1, .shape = {32}};
    if (tt_gguf_has_rope_factors(model)) {
        factors = n;
        tensor[n++] = (struct tt_gguf_tensor){.name = (char *)"rope_freqs.weight",
                                              .type = tt_gguf_type_of(TT_GGML_F32),
                                              .ndim = 1,
                                              .shape = {turned / 2}};
    }
    for (int i = 0; tt_rope_is_long(rope) && i < 2; i++) {
        factors = n - i; /* of the short ones */
        tensor[n++] = (struct tt_gguf_tensor){.name = (char *)(uintptr_t)lists[i],
                                              .type = tt_gguf_type_of(TT_GGML_F32),
                                              .ndim = 1,
                                              .shape = {turned / 2}};
    }
    tt_gguf_layout(&values, tensor, n, bytes, &size);
    while ((int64_t)bytes->size < size)
        tt_text_add_bytes(bytes, "", 1);
    for (int i = 0; tt_rope_is_long(rope) && i < 2; i++)
        memcpy(bytes->text + tensor[factors + i].begin, i ? rope->long_factor : rope->short_factor,
               (size_t)turned / 2 * sizeof(float));
    for (int64_t i = 0; tt_gguf_has_rope_factors(model) && i < turned / 2; i++) {
        float factor = tt_gguf_rope_factor(model, i);

        memcpy(bytes->text + tensor[factors].begin + 4 * i, &factor, sizeof factor);
    }
    at = memmem(bytes->text, bytes->size, "titan.model", 11);
    assert_non_null(at);
    if (!own)
        memcpy(at, "other", 5);
    assert_int_equal(tt_gguf_parse("f", bytes->text, bytes->size, file), 0);
    tt_text_release(&values.text);
}

static void check_dims(struct tt_model *model, bool own)
{
    struct tt_model_dims found = {0};
    struct tt_model *again = NULL;
    struct tt_text bytes = {0};
    struct tt_gguf file = {0};
    const char *name = NULL;
    char *a, *b;

    file_of(model, own, &bytes, &file);
    if (tt_gguf_model_name(&file, &name) < 0 || tt_gguf_read_dims(&file, &found) < 0)
        fail_msg("%s", tt_error_message());
    assert_string_equal(name, model->row->name);
    if (model->dims.moe.route_scale == 0.0 && found.moe.route_scale == 1.0)
        found.moe.route_scale = 0.0; /* 0 means 1 */
    if (found.sliding_window && found.max_positions == found.sliding_window)
        found.max_positions =
            model->dims.max_positions; /* llama.cpp has no windows there, so the context ends earlier */
    if (tt_model_from_dims(name, model->flavor, &found, &again) < 0)
        fail_msg("%s", tt_error_message());
    a = tt_model_json_text(model);
    b = tt_model_json_text(again);
    assert_string_equal(a, b);
    tt_free(a);
    tt_free(b);
    tt_model_free(again);
    tt_model_free(model);
    tt_gguf_release(&file);
    tt_text_release(&bytes);
}

static void sizes_come_back_the_same(void **state)
{
    struct tt_model_dims scaled = {.rope = {.factor = 32.0}, .tied = 1};
    struct tt_model_dims windowless = {.dim = 64, .n_layers = 2, .vocab_size = 96, .ffn_dim = 96, .tied = -1};
    struct tt_model_dims linear = {.rope = {.factor = 4.0, .linear = true}, .tied = -1};
    struct tt_model_dims partial = {
        .rope = {.factor = 2.0, .original_max = 2048.0}, .rotary_dim = 8, .sliding_window = 8192, .tied = 1};
    struct tt_model_dims sigmoid = {.moe = {.score = TT_SCORE_SIGMOID,
                                            .groups = 4,
                                            .kept_groups = 2,
                                            .group_rule = TT_GROUP_TWO_BEST,
                                            .route_scale = 2.5},
                                    .mla = {.q_rank = 24},
                                    .tied = -1};

    for (int i = 0; i < 4; i++) {
        partial.rope.short_factor[i] = 1.25F + (float)i;
        partial.rope.long_factor[i] = 2.5F * (float)(i + 1);
    }
    for (int own = 0; own < 2; own++) {
        for (int i = 0; i < tt_model_n_rows; i++) {
            const struct tt_model_row *row = tt_model_rows[i];
            struct tt_model_dims equal = {.n_kv_heads = row->flavors[0].dims.n_heads,
                                          .tanh_gelu = row->archs && row->archs[0].tanh_gelu,
                                          .tied = -1};

            if (row->n_archs > 0)
                check_dims(small(row->name, row->archs[0].equal_heads ? &equal : NULL), own);
        }
        check_dims(small("llama3", &scaled), own);
        check_dims(small("qwen3", &linear), own);
        check_dims(small("phi3", &partial), own);
        check_dims(make_of("cohere2", "aya-8B", &windowless), own);
        check_dims(small("deepseek_v3", &sigmoid), own);
        check_dims(make_of("qwen3", "debugmodel_moe", NULL), own);
    }
}

static void refuse(const char *name, struct tt_model_dims dims, const char *message)
{
    struct tt_gguf_values values = {0};
    struct tt_model *model;

    dims.tied = -1;
    model = small(name, &dims);
    assert_fails(tt_gguf_put_model(model, 0, &values), TT_EDATA, message);
    tt_text_release(&values.text);
    tt_model_free(model);
}

static void what_llama_cpp_does_not_compute_is_refused(void **state)
{
    struct tt_rope llama = {.factor = 8.0, .low_freq_factor = 1.0, .high_freq_factor = 4.0, .original_max = 64.0};
    struct tt_rope yarn = {.factor = 8.0, .original_max = 64.0, .beta_fast = 16.0, .beta_slow = 1.0};

    refuse("qwen3", (struct tt_model_dims){.rope = llama}, "for Llama only");
    refuse("qwen3", (struct tt_model_dims){.rope = yarn}, "beta_fast 32");
    refuse("deepseek_v3", (struct tt_model_dims){.moe = {.groups = 4, .kept_groups = 2}}, "by the best one");
    refuse("deepseek_v3", (struct tt_model_dims){.rope = {.mscale = 0.5}}, "equal mscale");
    refuse("deepseek_v3", (struct tt_model_dims){.n_layers = 27, .mla = {.q_rank = 24}}, "no latent of queries");
    refuse("mixtral", (struct tt_model_dims){.moe = {.gates_as_scored = true}}, "norm_topk_prob");
    refuse("qwen2_moe", (struct tt_model_dims){.moe = {.dense_layers = 1}}, "all its layers have experts");
    refuse("qwen2_moe", (struct tt_model_dims){.out_bias = true}, "only q, k and v have biases");
    refuse("cohere2", (struct tt_model_dims){.qkv_bias = true, .out_bias = true}, "no biases in llama.cpp");
    refuse("cohere2", (struct tt_model_dims){.head_norms = true}, "q and k have no norms in llama.cpp");
    refuse("ernie4_5", (struct tt_model_dims){.qkv_bias = true, .out_bias = true, .mlp_bias = true},
           "no biases in llama.cpp");
    refuse("gemma", (struct tt_model_dims){.qkv_bias = true, .out_bias = true}, "no biases in llama.cpp");
    refuse("qwen2", (struct tt_model_dims){.rotary_dim = 8}, "only a part of each head");
    refuse("qwen2", (struct tt_model_dims){.parallel = true}, "reads the sum");
    refuse("olmoe", (struct tt_model_dims){.n_kv_heads = 4}, "as many heads of keys");
    refuse("seed_oss", (struct tt_model_dims){.out_bias = true}, "only q, k and v have biases");
    refuse("olmo2", (struct tt_model_dims){.qkv_bias = true}, "no biases in llama.cpp");
    refuse("phi3", (struct tt_model_dims){.head_dim = 32}, "as wide as the model");
    refuse("smollm3", (struct tt_model_dims){.n_layers = 4, .unrotated = {.every = 3}}, "the layers without RoPE");
    refuse("gemma2", (struct tt_model_dims){.multipliers = {.attention = 0.5}}, "by another number");
    refuse("gemma3", (struct tt_model_dims){.logit_cap = 30.0}, "soft caps");
    refuse("gemma3", (struct tt_model_dims){.n_layers = 6, .full = {.every = 3}}, "the layers with a window");
}

/* Beyond the first training's length the base of dynamic scaling grows with the context, which llama.cpp lacks. */
static void the_context_ends_where_dynamic_scaling_begins(void **state)
{
    struct tt_model_dims dims = {
        .rope = {.factor = 2.0, .original_max = 64.0, .dynamic = true}, .max_positions = 64, .tied = -1};
    struct tt_model *model = small("qwen2", &dims);
    struct tt_text bytes = {0};
    struct tt_gguf file = {0};
    int64_t context = 0;

    file_of(model, true, &bytes, &file);
    assert_int_equal(tt_gguf_int(&file, "qwen2.context_length", NULL, &context), 0);
    assert_int_equal(context, 64);
    tt_gguf_release(&file);
    tt_text_release(&bytes);
    tt_model_free(model);
}

/* --- tokenizers --- */

static const char llama3_split[] =
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, \"behavior\": "
    "\"Isolated\"}, {\"type\": \"ByteLevel\", \"use_regex\": false}]}";

static void check_pre(const char *text, bool ignores, const char *wanted)
{
    const char *name = NULL;
    json_t *json = NULL;
    int rc;

    assert_int_equal(tt_json_parse(text, strlen(text), "t", &json), 0);
    rc = tt_gguf_pre_name(json, ignores, "t", &name);
    if (wanted)
        assert_string_equal(name ? name : tt_error_message(), wanted);
    else
        assert_fails(rc, TT_EDATA, "llama.cpp has no name");
    json_decref(json);
}

static void pre_tokenizers_have_names(void **state)
{
    static const char *const names[] = {"llama-bpe",   "dbrx",         "qwen2",          "qwen35",
                                        "gpt-2",       "smollm",       "tekken",         "gpt-4o",
                                        "deepseek-v3", "deepseek-llm", "deepseek-coder", "seed-coder"};
    static const struct {
        const char *name, *same;
        bool nfc;
    } others[] = {{"command-r", "smollm", true}, {"starcoder", "smollm", false}, {"olmo", "gpt-2", true},
                  {"glm4", "dbrx", false},       {"mpt", "gpt-2", true},         {"deepseek-r1-qwen", "qwen2", false}};

    check_pre(llama3_split, true, "llama-bpe");
    check_pre(llama3_split, false, "dbrx");
    check_pre("{\"type\": \"ByteLevel\", \"add_prefix_space\": false}", false, "gpt-2");
    check_pre("{\"type\": \"ByteLevel\", \"add_prefix_space\": true}", false, NULL);
    check_pre("{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"x+\"}}, "
              "{\"type\": \"ByteLevel\", \"use_regex\": false}]}",
              false, NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) { /* and back */
        json_t *pre = NULL;
        bool ignores = false, nfc = false;
        char *text;

        assert_int_equal(tt_gguf_pre_tokenizer(names[i], "t", &pre, &ignores, &nfc), 0);
        assert_int_equal(nfc, strcmp(names[i], "qwen2") == 0);
        text = tt_json_text(pre);
        check_pre(text, ignores, names[i]);
        tt_free(text);
        json_decref(pre);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) { /* names that share expressions */
        json_t *pre = NULL;
        bool ignores = false, nfc = false;
        char *text;

        assert_int_equal(tt_gguf_pre_tokenizer(others[i].name, "t", &pre, &ignores, &nfc), 0);
        assert_int_equal(nfc, others[i].nfc);
        text = tt_json_text(pre);
        check_pre(text, ignores, others[i].same);
        tt_free(text);
        json_decref(pre);
    }
    check_pre("{\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\p{N}\"}, \"behavior\": \"MergedWithNext\"}", false,
              NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(messages_say_what_is_wrong),
        cmocka_unit_test(blocks_are_within_half_a_step),
        cmocka_unit_test(blocks_have_the_bytes_of_ggml),
        cmocka_unit_test(tensors_come_back_the_same),
        cmocka_unit_test(sizes_come_back_the_same),
        cmocka_unit_test(what_llama_cpp_does_not_compute_is_refused),
        cmocka_unit_test(the_context_ends_where_dynamic_scaling_begins),
        cmocka_unit_test(pre_tokenizers_have_names),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
