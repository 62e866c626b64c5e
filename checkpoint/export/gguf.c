/* SPDX-License-Identifier: MIT
 *
 * Streams weights into a GGUF file. Tensors have the types that llama.cpp's tools would choose: vectors, norms, biases,
 * routers and learned positions stay F32; the output layer of a Q4_0 file is Q8_0; rows that do not divide into blocks
 * are F16. The checksums are values of fixed size, so the data is written first and the header last.
 */
#include "checkpoint/format/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "checkpoint/durable/durable.h"
#include "checkpoint/export/internal.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/models/gguf.h"
#include "core/os/file.h"
#include "core/tokenizer/gguf.h"
#include "core/tokenizer/tokenizer.h"

enum { QUANTIZATION_VERSION = 2 };

/* --- the place --- */

/* --- the types --- */

static const struct tt_gguf_part *part_of(const struct tt_copying *c, int i)
{
    const struct tt_weights *w = c->weights->kind == TT_WEIGHTS_MEAN ? c->weights->of : c->weights;

    return &w->gguf[w->weight[i].number];
}

static const struct tt_gguf_type_row *type_of(const struct tt_copying *c, int i)
{
    const struct tt_gguf_part *part = part_of(c, i);
    enum tt_dtype stored = c->weights->weight[i].dtype;
    /* or the embedding, if the output is tied to it */
    bool is_output = strcmp(part->name, "output.weight") == 0 ||
                     (c->model[0]->dims.tied == 1 && strcmp(part->name, "token_embd.weight") == 0);

    if (part->stays_wide)
        return tt_gguf_type_of(TT_GGML_F32);
    if (!c->copy->type)
        return tt_gguf_type_of(stored == TT_BF16 ? TT_GGML_BF16 : stored == TT_F16 ? TT_GGML_F16 : TT_GGML_F32);
    if (part->shape[part->ndim - 1] % c->copy->type->elements)
        return tt_gguf_type_of(TT_GGML_F16);
    return c->copy->type->type == TT_GGML_Q4_0 && is_output ? tt_gguf_type_of(TT_GGML_Q8_0) : c->copy->type;
}

static struct tt_gguf_tensor *tensors_of(const struct tt_copying *c)
{
    struct tt_gguf_tensor *tensor = tt_calloc((size_t)c->weights->n + 1, sizeof *tensor);
    const struct tt_gguf_part *first = NULL;
    int narrow = 0;

    for (int i = 0; i < c->weights->n; i++) {
        const struct tt_gguf_part *part = part_of(c, i);

        tensor[i] =
            (struct tt_gguf_tensor){.name = (char *)(uintptr_t)part->name, .type = type_of(c, i), .ndim = part->ndim};
        memcpy(tensor[i].shape, part->shape, sizeof tensor[i].shape);
        if (c->copy->type && !part->stays_wide && part->shape[part->ndim - 1] % c->copy->type->elements) {
            first = first ? first : part;
            narrow++;
        }
    }
    if (narrow)
        tt_note("%d tensor%s F16, not %s, since %s rows are not blocks of %" PRId64 " elements: '%s' has %" PRId64,
                narrow, narrow == 1 ? " is" : "s are", c->copy->type->name, narrow == 1 ? "its" : "their",
                c->copy->type->elements, first->name, first->shape[first->ndim - 1]);
    return tensor;
}

/* --- the values --- */

/* The id of another token that ends an answer: the first one in generation_config.json other than EOS; -1: none. */
static void find_turn(const struct tt_hf_texts *texts, int32_t eos, int32_t *ret_turn)
{
    const char *text = texts->text[TT_HF_GENERATION];
    json_t *json = NULL;
    const json_t *ids;

    *ret_turn = texts->end != eos ? texts->end : -1;
    if (!text || *ret_turn >= 0)
        return;
    if (tt_json_parse(text, texts->size[TT_HF_GENERATION], tt_hf_text_names[TT_HF_GENERATION], &json) < 0)
        return; /* not JSON, which a note has already reported */
    ids = json_object_get(json, "eos_token_id");
    for (size_t k = json_is_array(ids) ? json_array_size(ids) : 1; k > 0; k--) {
        const json_t *id = json_is_array(ids) ? json_array_get(ids, k - 1) : ids;

        if (json_is_integer(id) && json_integer_value(id) != eos)
            *ret_turn = (int32_t)json_integer_value(id);
    }
    json_decref(json);
}

/* llama.cpp then sees the same texts and conversations as a Hugging Face export would. */
static int put_tokenizer(const struct tt_copying *c, struct tt_gguf_values *values)
{
    struct tt_tokenizer *tokenizer = NULL;
    const char *path = c->copy->destination, *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    char *name = tt_strndup(file, strlen(file) - strlen(".gguf"));
    struct tt_gguf_ends ends = {.name = name, .turn = -1};
    struct tt_hf_texts texts = {0};
    int rc = 0;

    TT_TRY(tt_hf_texts_make(c->source[0], &texts));
    if (texts.text[TT_HF_TOKENIZER]) {
        TT_TRY(tt_tokenizer_parse(texts.text[TT_HF_TOKENIZER], texts.size[TT_HF_TOKENIZER],
                                  texts.text[TT_HF_TOKENIZER_CONFIG], texts.size[TT_HF_TOKENIZER_CONFIG],
                                  c->source[0]->path, &tokenizer));
        ends.chat_template = texts.template;
        ends.begins = tt_tokenizer_info(tokenizer)->adds_bos;
        find_turn(&texts, tt_tokenizer_info(tokenizer)->eos, &ends.turn);
    } else {
        tt_note("'%s' has no tokenizer: llama.cpp will read and write only token ids", c->source[0]->path);
    }
    rc = tt_gguf_put_tokenizer(tokenizer, &ends, c->model[0]->dims.vocab_size, values);
out:
    tt_tokenizer_free(tokenizer);
    tt_free(name);
    tt_hf_texts_release(&texts);
    return rc;
}

static uint32_t file_type(const struct tt_copying *c, const struct tt_gguf_tensor *tensor)
{
    if (c->copy->type)
        return c->copy->type->file_type;
    for (int i = 0; i < c->weights->n; i++)
        if (!part_of(c, i)->stays_wide)
            return tensor[i].type->file_type;
    return 0;
}

/* Adds all values except the checksums, which come last. */
static int put_values(const struct tt_copying *c, const struct tt_gguf_tensor *tensor, struct tt_gguf_values *values)
{
    int64_t context = 0;
    int rc = 0;

    TT_TRY(tt_hf_positions(c->source[0], c->model[0], &context));
    TT_TRY(tt_gguf_put_model(c->model[0], context, values));
    tt_gguf_put_string(values, "general.type", "model", 5);
    tt_gguf_put_u32(values, "general.file_type", file_type(c, tensor));
    tt_gguf_put_u32(values, "general.quantization_version", QUANTIZATION_VERSION);
    TT_TRY(put_tokenizer(c, values));
out:
    return rc;
}

/* --- the file --- */

struct job {
    struct tt_copying *c;
    struct tt_gguf_values values; /* without the checksums */
    struct tt_gguf_tensor *tensor;
    uint32_t *crc; /* of each tensor */
    struct tt_durable to;
    int number; /* of the tensor that is being written */
    int64_t at; /* the position of its next rows */
};

static void make_header(struct job *job, struct tt_text *header)
{
    struct tt_gguf_values all = {.n = job->values.n};

    tt_text_add_bytes(&all.text, job->values.text.text, job->values.text.size);
    tt_gguf_put_u32(&all, TT_GGUF_VALUES_CHECKSUM, tt_crc32c(0, all.text.text, all.text.size));
    tt_gguf_put_array(&all, TT_GGUF_CHECKSUMS, TT_GGUF_I32, job->c->weights->n + 1);
    for (int i = 0; i < job->c->weights->n; i++)
        tt_gguf_add_i32(&all, (int32_t)job->crc[i]);
    tt_gguf_add_i32(&all, (int32_t)tt_gguf_crc_of_tensors(job->tensor, job->c->weights->n));
    tt_gguf_layout(&all, job->tensor, job->c->weights->n, header, &job->c->bytes);
    tt_text_release(&all.text);
}

/*
 * float16 ends at 65504: larger numbers, and larger scales of blocks, would silently become infinite. Infinite values
 * in blocks would silently become zero.
 */
static int check_range(const struct tt_gguf_tensor *t, const float *data, int64_t n)
{
    bool blocks = t->type->elements > 1;
    float most = 65504.0F * (t->type->type == TT_GGML_Q8_0 ? 127.0F : blocks ? 8.0F : 1.0F);

    for (int64_t i = 0; (blocks || t->type->type == TT_GGML_F16) && i < n; i++)
        if (isfinite(data[i]) ? fabsf(data[i]) > most : blocks)
            return tt_fail(TT_EDATA, "tensor '%s' has %g, which %s cannot hold\nhelp: --type bf16 or f32", t->name,
                           (double)data[i], blocks ? t->type->name : "float16");
    return 0;
}

static int put_rows(void *arg, const void *rows, int64_t first, int64_t n)
{
    struct job *job = arg;
    const struct tt_gguf_tensor *t = &job->tensor[job->number];
    int64_t elements = n * tt_row_width(t->ndim, t->shape), bytes = elements / t->type->elements * t->type->bytes;
    char *blocks = NULL;
    int rc = 0;

    (void)first;
    TT_TRY(check_range(t, rows, elements));
    blocks = tt_calloc_for((size_t)(elements / t->type->elements), (size_t)t->type->bytes, t->name);
    TT_TRY(blocks ? 0 : TT_ENOMEM);
    tt_gguf_pack(t->type, rows, elements, blocks);
    job->crc[job->number] = tt_crc32c(job->crc[job->number], blocks, (size_t)bytes);
    TT_TRY(tt_durable_write(&job->to, blocks, (size_t)bytes, job->at));
    job->at += bytes;
    tt_copying_advance(job->c, bytes);
out:
    tt_free(blocks);
    return rc;
}

static int write_file(struct job *job)
{
    static const char zeros[TT_GGUF_ALIGNMENT];
    struct tt_weights *weights = job->c->weights;
    struct tt_text header = {0}, again = {0};
    int64_t end = 0;
    int rc = 0;

    make_header(job, &header);
    job->c->total = job->c->bytes;
    end = weights->n ? job->tensor[weights->n - 1].end : (int64_t)header.size;
    TT_TRY(tt_durable_begin(job->c->copy->destination, job->c->bytes, -1, &job->to));
    for (job->number = 0; job->number < weights->n; job->number++) {
        const struct tt_weight *weight = &weights->weight[job->number];

        job->at = job->tensor[job->number].begin;
        TT_TRY(tt_weights_stream(weights, weight, 0, weight->shape[0], TT_F32, put_rows, job));
    }
    TT_TRY(tt_weights_check(weights));
    TT_TRY(tt_durable_write(&job->to, zeros, (size_t)(job->c->bytes - end), end));
    make_header(job, &again);
    TT_TRY(tt_durable_write(&job->to, again.text, again.size, 0));
    TT_TRY(tt_durable_end(&job->to));
out:
    tt_durable_cancel(&job->to);
    tt_text_release(&header);
    tt_text_release(&again);
    return rc;
}

int tt_copying_to_gguf(struct tt_copying *c)
{
    struct job job = {.c = c, .tensor = tensors_of(c), .to.fd = -1};
    const char *path = c->copy->destination, *slash = strrchr(path, '/');
    char *folder = slash == path ? tt_strdup("/") : slash ? tt_strndup(path, (size_t)(slash - path)) : tt_strdup(".");
    int rc = 0;

    job.crc = tt_calloc((size_t)c->weights->n + 1, sizeof *job.crc);
    TT_TRY(put_values(c, job.tensor, &job.values));
    TT_TRY(tt_folder_make(folder));
    tt_file_sweep_beside(path);
    TT_TRY(write_file(&job));
    TT_TRY(tt_folder_sync(folder));
out:
    tt_text_release(&job.values.text);
    tt_free(job.tensor);
    tt_free(job.crc);
    tt_free(folder);
    return rc;
}
