/* SPDX-License-Identifier: MIT */
#include "tests/golden/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/load/hf.h"
#include "checkpoint/read/map.h"
#include "checkpoint/read/source.h"
#include "core/base/mem.h"
#include "core/comm/comm.h"
#include "core/models/lora.h"
#include "core/os/file.h"
#include "parallel/layout/units.h"

int reference_check(int rc)
{
    if (rc < 0)
        print_message("# %s\n", tt_error_message());
    return rc;
}

static json_t *member(const struct reference *r, const char *object, const char *key)
{
    json_t *at = json_object_get(r->expect, "case");

    return json_object_get(object ? json_object_get(at, object) : at, key);
}

static double number(const struct reference *r, const char *object, const char *key)
{
    json_t *value = member(r, object, key);

    assert_non_null(value);
    return json_is_null(value) ? (double)NAN : json_number_value(value);
}

double reference_number(const struct reference *r, const char *what, int step)
{
    json_t *from = r->part ? json_object_get(r->expect, r->part) : r->expect;
    json_t *value = json_array_get(json_object_get(from, what), (size_t)step);

    assert_non_null(value);
    return json_number_value(value);
}

static enum tt_decay_choice decay_type(const struct reference *r)
{
    const char *name = json_string_value(member(r, "lr_scheduler", "decay_type"));

    assert_non_null(name);
    return strcmp(name, "cosine") == 0 ? TT_DECAY_COSINE : strcmp(name, "sqrt") == 0 ? TT_DECAY_SQRT : TT_DECAY_LINEAR;
}

static void read_recipe(struct reference *r)
{
    r->job = (struct train_job){
        .model = r->model,
        .dataset = r->dataset,
        .replicate = 1,
        .threads = 1,
        .prefetch = 1,
        .global_batch = (int64_t)number(r, NULL, "global_batch_size"),
        .seq_len = (int64_t)number(r, NULL, "seq_len"),
        .steps = (int)number(r, NULL, "steps"),
        .max_norm = number(r, NULL, "max_norm"),
        .schedule = {.base = number(r, "optimizer", "lr"),
                     .warmup_steps = (int64_t)number(r, "lr_scheduler", "warmup_steps"),
                     .total_steps = (int64_t)number(r, NULL, "steps"),
                     .decay_ratio = number(r, "lr_scheduler", "decay_ratio"),
                     .decay = decay_type(r),
                     .min_factor = number(r, "lr_scheduler", "min_lr_factor")},
        .beta1 = number(r, "optimizer", "beta1"),
        .beta2 = number(r, "optimizer", "beta2"),
        .eps = number(r, "optimizer", "eps"),
        .weight_decay = number(r, "optimizer", "weight_decay"),
    };
}

/* A rank's part of a parameter, in the form that the loader of weights takes. */
static struct tt_ckpt_chunk chunk_of(const struct tt_param *param, const struct tt_box *part, float *data)
{
    struct tt_ckpt_chunk chunk = {.name = param->name,
                                  .dtype = TT_F32,
                                  .ndim = param->ndim,
                                  .placement = {1, {{TT_GROUP_FSDP, 0, 0, 0}}, TT_GROUP_REPLICATE, 0},
                                  .part = *part,
                                  .data = data};

    memcpy(chunk.shape, param->shape, sizeof chunk.shape);
    return chunk;
}

static int64_t width_of(const struct tt_param *param)
{
    struct tt_box one = tt_box_rows(param->ndim, param->shape, 0, 1);

    return tt_box_volume(&one);
}

/* Of all parameters and buffers. */
static int64_t elements_of(const struct tt_model *model)
{
    int64_t n = 0;

    for (int p = 0; p < model->n_params; p++)
        n += model->params[p].shape[0] * width_of(&model->params[p]);
    return n;
}

/* The whole weights of a safetensors file, with the rows of q and k in our order. */
static float *read_weights(const struct tt_model *model, const char *path)
{
    float *whole = tt_calloc((size_t)elements_of(model), sizeof *whole), *at = whole;
    struct tt_ckpt_chunk *chunks = tt_calloc((size_t)model->n_params, sizeof *chunks);
    struct tt_ckpt_state state = {.n_model = model->n_params, .model = chunks};
    struct tt_comm *comm = tt_comm_self_new();

    for (int p = 0; p < model->n_params; p++) {
        struct tt_box all = tt_box_whole(model->params[p].ndim, model->params[p].shape);

        chunks[p] = chunk_of(&model->params[p], &all, at);
        at += model->params[p].shape[0] * width_of(&model->params[p]);
    }
    assert_int_equal(reference_check(tt_hf_load(comm, path, NULL, model, &state)), 0);
    tt_comm_free(comm);
    tt_free(chunks);
    return whole;
}

static char *folder_of(const char *name)
{
    return tt_format("%s/tests/golden/data/%s", TT_SOURCE_DIR, name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char **reference_names(int *ret_n)
{
    static char **names; /* so that a test may ask again and does not free them */
    static int n, cap;
    char *folder = tt_format("%s/tests/golden/data", TT_SOURCE_DIR);
    struct dirent *entry;
    DIR *dir = names ? NULL : opendir(folder);

    assert_true(names || dir);
    while (dir && (entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            TT_PUSH(names, n, cap) = tt_strdup(entry->d_name);
    if (dir) {
        (void)closedir(dir);
        qsort(names, (size_t)n, sizeof *names, by_name);
    }
    tt_free(folder);
    *ret_n = n;
    return names;
}

static json_t *load_expect(const char *name)
{
    char *folder = folder_of(name), *path = tt_format("%s/expect.json", folder);
    json_t *expect = NULL;

    assert_int_equal(reference_check(tt_json_load(path, &expect)), 0);
    tt_free(folder);
    tt_free(path);
    return expect;
}

bool reference_has(const char *name, const char *part)
{
    char *folder = folder_of(name), *apart = tt_format("%s/%s/expect.json", folder, part);
    json_t *expect = load_expect(name);
    bool has = json_object_get(expect, part) || access(apart, R_OK) == 0;

    json_decref(expect);
    tt_free(folder);
    tt_free(apart);
    return has;
}

bool reference_is(const char *name, const char *key)
{
    json_t *expect = load_expect(name), *value = json_object_get(json_object_get(expect, "case"), key);
    bool is = value && !json_is_false(value);

    json_decref(expect);
    return is;
}

void reference_open(struct reference *r, const char *name)
{
    struct tt_dataset_spec spec = {.name = "tokens"};
    struct tt_dataset_ref ref;
    char *tokens, *before, *after, *expect;

    memset(r, 0, sizeof *r);
    r->folder = folder_of(name);
    tokens = tt_format("%s/tokens.bin", r->folder);
    before = tt_format("%s/model.safetensors", r->folder);
    after = tt_format("%s/final.safetensors", r->folder);
    expect = tt_format("%s/expect.json", r->folder);
    assert_int_equal(reference_check(tt_model_from_hf(r->folder, &r->model)), 0);
    spec.path = tokens;
    spec.vocab_size = r->model->dims.vocab_size;
    assert_int_equal(reference_check(tt_dataset_prepare(&spec, &ref)), 0);
    assert_int_equal(reference_check(tt_dataset_open(&ref, &r->dataset)), 0);
    assert_int_equal(reference_check(tt_json_load(expect, &r->expect)), 0);
    read_recipe(r);
    r->before = read_weights(r->model, before);
    r->after = read_weights(r->model, after);
    tt_free(tokens);
    tt_free(before);
    tt_free(after);
    tt_free(expect);
}

void reference_use_documents(struct reference *r)
{
    json_t *offsets = json_object_get(json_object_get(r->expect, "documents"), "offsets");
    size_t n = json_array_size(offsets);

    assert_true(n > 1);
    r->dataset->offsets = tt_calloc(n, sizeof *r->dataset->offsets);
    for (size_t i = 0; i < n; i++)
        r->dataset->offsets[i] = (int64_t)json_integer_value(json_array_get(offsets, i));
    assert_int_equal(r->dataset->offsets[n - 1], r->dataset->ref.info.n_tokens);
    r->dataset->ref.info.n_documents = (int64_t)n - 1;
    r->job.documents = true;
    r->part = "documents";
}

void reference_use_z_loss(struct reference *r)
{
    r->part = "z_loss";
    r->job.z_loss = json_number_value(json_object_get(json_object_get(r->expect, r->part), "coefficient"));
    assert_true(r->job.z_loss > 0.0);
}

void reference_use_router_losses(struct reference *r)
{
    json_t *coefficients = json_object_get(json_object_get(r->expect, "router_losses"), "coefficients");

    r->part = "router_losses";
    r->job.router_losses = (struct tt_router_losses){
        .sequence = (float)json_number_value(json_object_get(coefficients, "sequence")),
        .global_batch = (float)json_number_value(json_object_get(coefficients, "global_batch")),
        .z = (float)json_number_value(json_object_get(coefficients, "z"))};
    assert_true(r->job.router_losses.sequence > 0.0F && r->job.router_losses.global_batch > 0.0F);
}

void reference_use_averages(struct reference *r)
{
    char *path = tt_format("%s/ema.safetensors", r->folder);

    r->job.average_decay = json_number_value(json_object_get(json_object_get(r->expect, "ema"), "decay"));
    assert_true(r->job.average_decay > 0.0);
    r->averages = read_weights(r->model, path);
    tt_free(path);
}

/* Writes a token file with the conversations of the data. */
static void write_chat(const struct reference *r, const char *path)
{
    const json_t *chat = json_object_get(r->expect, "chat"), *offsets = json_object_get(chat, "offsets");
    const char *learned = json_string_value(json_object_get(chat, "learned"));
    struct tt_token_info about = {.bos = -1, .eos = -1}, info;
    struct tt_token_writer *writer = NULL;
    int64_t n = r->dataset->ref.info.n_tokens;
    int32_t *ids = tt_calloc((size_t)n, sizeof *ids), *counts = tt_calloc((size_t)n, sizeof *counts);

    assert_non_null(learned);
    assert_int_equal(strlen(learned), n);
    assert_int_equal(reference_check(tt_dataset_copy(r->dataset, 0, n, ids)), 0);
    for (int64_t i = 0; i < n; i++)
        counts[i] = learned[i] == '1';
    assert_int_equal(reference_check(tt_token_writer_new(path, r->model->dims.vocab_size, &writer)), 0);
    for (size_t d = 0; d + 1 < json_array_size(offsets); d++) {
        size_t begin = (size_t)json_integer_value(json_array_get(offsets, d));
        size_t end = (size_t)json_integer_value(json_array_get(offsets, d + 1));

        assert_int_equal(reference_check(tt_token_writer_add(writer, ids + begin, counts + begin, end - begin)), 0);
    }
    assert_int_equal(reference_check(tt_token_writer_finish(writer, &about, &info)), 0);
    tt_token_writer_free(writer);
    tt_free(ids);
    tt_free(counts);
}

void reference_use_chat(struct reference *r)
{
    char folder[] = "/tmp/titan_golden_XXXXXX", *path;
    struct tt_dataset_spec spec = {.name = "tokens"};
    struct tt_dataset_ref ref;

    assert_non_null(mkdtemp(folder));
    path = tt_format("%s/chat.tokens", folder);
    write_chat(r, path);
    tt_dataset_free(r->dataset);
    spec.path = path;
    assert_int_equal(reference_check(tt_dataset_prepare(&spec, &ref)), 0);
    assert_int_equal(reference_check(tt_dataset_open(&ref, &r->dataset)), 0);
    assert_int_equal(tt_folder_remove(folder), 0); /* the dataset has it open */
    tt_free(path);
    r->job.dataset = r->dataset;
    r->job.documents = true;
    r->part = "chat";
}

struct adapter_file {
    struct tt_source *source;
    const struct tt_model *model;
};

static int read_adapter_rows(void *arg, int param, int64_t row, int64_t n, float *data)
{
    const struct adapter_file *file = arg;
    const struct tt_manifest_tensor *t =
        tt_manifest_find(&file->source->manifest, TT_CKPT_MODEL, file->model->params[param].hf_name);

    assert_non_null(t);
    return tt_source_read_rows(file->source, t, row, n, TT_F32, data);
}

/* Base weights, and the adapters of a file of PEFT's. */
static float *read_adapted(const struct reference *r, const char *adapters)
{
    char *base = tt_format("%s/model.safetensors", r->folder), *path = tt_format("%s/lora/%s", r->folder, adapters);
    float *whole = read_weights(r->model, base), *at = whole;
    struct adapter_file file = {.model = r->model};

    assert_int_equal(reference_check(tt_source_open(path, TT_PATH_PLAIN, &file.source)), 0);
    for (int p = 0; p < r->model->n_params; p++) {
        const struct tt_param *param = &r->model->params[p];

        if (param->adapter)
            assert_int_equal(
                reference_check(tt_hf_import(r->model, p, read_adapter_rows, &file, 0, param->shape[0], at)), 0);
        at += param->shape[0] * width_of(param);
    }
    tt_source_free(file.source);
    tt_free(base);
    tt_free(path);
    return whole;
}

static struct tt_lora lora_of(const json_t *expect)
{
    const json_t *lora = json_object_get(expect, "lora"), *modules = json_object_get(lora, "target_modules");
    struct tt_lora found = {.rank = (int64_t)json_integer_value(json_object_get(lora, "rank")),
                            .alpha = json_number_value(json_object_get(lora, "alpha"))};

    for (size_t i = 0; i < json_array_size(modules); i++)
        found.modules |= tt_lora_module(json_string_value(json_array_get(modules, i)));
    return found;
}

void reference_use_lora(struct reference *r)
{
    char *path = tt_format("%s/lora/expect.json", r->folder);
    struct tt_model_dims dims = r->model->dims;
    struct tt_model *model = NULL;

    json_decref(r->expect);
    assert_int_equal(reference_check(tt_json_load(path, &r->expect)), 0);
    dims.lora = lora_of(r->expect);
    assert_int_equal(reference_check(tt_model_from_dims(r->model->row->name, "hf", &dims, &model)), 0);
    tt_model_free(r->model);
    r->job.model = r->model = model;
    tt_free(r->before);
    tt_free(r->after);
    r->before = read_adapted(r, "before.safetensors");
    r->after = read_adapted(r, "after.safetensors");
    tt_free(path);
}

static enum tt_adjust_choice muon_lr_of(const char *word)
{
    return strcmp(word, "match_rms_adamw") == 0 ? TT_ADJUST_MATCH_RMS_ADAMW : TT_ADJUST_ORIGINAL;
}

void reference_use_muon(struct reference *r)
{
    const json_t *recipe = json_object_get(json_object_get(r->expect, "muon"), "recipe");
    char *path = tt_format("%s/muon.safetensors", r->folder);

    assert_non_null(recipe);
    tt_param_groups_set_optim(r->model, TT_OPTIM_MUON);
    r->job.momentum = json_number_value(json_object_get(recipe, "momentum"));
    r->job.nesterov = json_is_true(json_object_get(recipe, "nesterov"));
    r->job.muon_steps = (int)json_integer_value(json_object_get(recipe, "ns_steps"));
    r->job.muon_lr = muon_lr_of(json_string_value(json_object_get(recipe, "adjust_lr_fn")));
    r->part = "muon";
    tt_free(r->after);
    r->after = read_weights(r->model, path);
    tt_free(path);
}

void reference_close(struct reference *r)
{
    tt_free(r->before);
    tt_free(r->after);
    tt_free(r->averages);
    json_decref(r->expect);
    tt_dataset_free(r->dataset);
    tt_model_free(r->model);
    tt_free(r->folder);
}

int reference_load(struct tt_comm *comm, struct tt_engine *engine, void *arg)
{
    const struct reference *r = arg;
    const struct tt_layout *layout = tt_engine_layout(engine);
    struct tt_ckpt_chunk *chunks = tt_calloc((size_t)layout->n_params, sizeof *chunks);
    struct tt_ckpt_state state = {.n_model = layout->n_params, .model = chunks};
    const float *at = r->before;
    int rc;

    for (int p = 0; p < layout->n_params; p++) {
        const struct tt_unit_param *place = tt_layout_has(layout, p) ? tt_layout_param(layout, p) : NULL;
        struct tt_box nothing = {.ndim = r->model->params[p].ndim};

        if (place)
            chunks[p] =
                chunk_of(&r->model->params[p], &place->box,
                         (float *)tt_engine_state(engine)->array[TT_STATE_PARAM][layout->unit_of[p]] + place->offset);
        else
            chunks[p] = chunk_of(&r->model->params[p], &nothing, NULL); /* at another place of the pipeline */
    }
    rc = tt_hf_load(comm, r->folder, NULL, r->model, &state);
    for (int p = 0; p < layout->n_params; p++) {
        const struct tt_param *param = &r->model->params[p];
        int64_t width = width_of(param);

        if (param->adapter && chunks[p].data) /* the folder has none */
            memcpy(chunks[p].data, at + chunks[p].part.offset[0] * width,
                   (size_t)tt_box_volume(&chunks[p].part) * sizeof *at);
        at += param->shape[0] * width;
    }
    tt_free(chunks);
    return rc;
}
