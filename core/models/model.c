/* SPDX-License-Identifier: MIT
 *
 * The model registry: finds a model's row and flavor, settles its dims, lists its parameters and counts them.
 * Everything here is arithmetic on shapes, except that tt_param_fill writes weights into the caller's memory.
 *
 * To add a model: a file with its row (struct tt_model_row) and a line in tt_model_rows.
 */
#include "core/models/model.h"

#include <string.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/rng.h"
#include "core/models/gguf.h"
#include "core/models/parts/lora.h"
#include "core/models/rows.h"
#include "core/passes/autodiff.h"

const struct tt_model_row *const tt_model_rows[] = {
    &tt_model_llama3, &tt_model_qwen3, &tt_model_gpt2, &tt_model_mixtral, &tt_model_deepseek_v3, &tt_model_gpt_oss,
};
const int tt_model_n_rows = (int)(sizeof tt_model_rows / sizeof tt_model_rows[0]);

/* A cut beyond the reach of the uniform numbers (the smallest, 2^-54, gives 8.3) has no effect. */
static const double cut_beyond_reach = 9.0;

/* "a, b, c" of at most 16 words, for messages. The caller frees. */
static char *list_words(const char *const *words, int n)
{
    struct tt_text text = {0};

    for (int i = 0; i < n; i++)
        tt_text_add(&text, "%s%s", i ? ", " : "", words[i]);
    return text.text ? text.text : tt_strdup("");
}

static int fail_unknown(const char *what, const char *word, const char *const *choices, int n)
{
    const char *near = tt_text_meant(word, choices, n);
    char *all = list_words(choices, n);

    (void)tt_fail(TT_EUSAGE, "unknown %s '%s'\nhelp: %s%s%sthe choices are %s", what, word, near ? "did you mean " : "",
                  near ? near : "", near ? "? " : "", all);
    tt_free(all);
    return TT_EUSAGE;
}

static int find_row(const char *name, const struct tt_model_row **ret_row)
{
    const char **names = tt_calloc((size_t)tt_model_n_rows, sizeof *names);
    int rc = 0;

    for (int i = 0; i < tt_model_n_rows; i++) {
        names[i] = tt_model_rows[i]->name;
        if (strcmp(names[i], name) == 0) {
            *ret_row = tt_model_rows[i];
            goto out;
        }
    }
    rc = fail_unknown(tt_key_name(TT_KEY_MODEL), name, names, tt_model_n_rows);
out:
    tt_free(names);
    return rc;
}

static int find_flavor(const struct tt_model_row *row, const char *flavor, struct tt_model_dims *ret_dims)
{
    const char **names = tt_calloc((size_t)row->n_flavors + 1, sizeof *names);
    char *what = tt_format("%s of %s", tt_key_name(TT_KEY_FLAVOR), row->name);
    int rc = 0;

    for (int i = 0; i < row->n_flavors; i++) {
        names[i] = row->flavors[i].name;
        if (strcmp(names[i], flavor) == 0) {
            *ret_dims = row->flavors[i].dims;
            goto out;
        }
    }
    names[row->n_flavors] = "hf";
    rc = fail_unknown(what, flavor, names, row->n_flavors + 1);
out:
    tt_free(what);
    tt_free(names);
    return rc;
}

static bool is_of_type(const struct tt_model_row *row, const char *type)
{
    return strcmp(row->hf_model_type, type) == 0 || (row->hf_same_as && strcmp(row->hf_same_as, type) == 0) ||
           (row->hf_code_of && strcmp(row->hf_code_of, type) == 0);
}

/* "llama (model llama3), ..." */
static char *list_model_types(void)
{
    struct tt_text text = {0};

    for (int i = 0; i < tt_model_n_rows; i++) {
        const struct tt_model_row *row = tt_model_rows[i];

        tt_text_add(&text, "%s%s%s%s%s%s (%s %s)", i ? ", " : "", row->hf_model_type, row->hf_same_as ? " and " : "",
                    row->hf_same_as ? row->hf_same_as : "", row->hf_code_of ? " and " : "",
                    row->hf_code_of ? row->hf_code_of : "", tt_key_name(TT_KEY_MODEL), row->name);
    }
    return text.text;
}

/* Checks that config.json belongs to the requested model; otherwise names the model that would
 * accept it, if any. */
static int check_model_type(const struct tt_model_row *row, const char *type, const char *where)
{
    char *known;

    if (is_of_type(row, type))
        return 0;
    for (int i = 0; i < tt_model_n_rows; i++) {
        if (is_of_type(tt_model_rows[i], type)) {
            return tt_fail(TT_EDATA, "%s: model_type '%s' is not a %s\nhelp: set %s to %s", where, type, row->name,
                           tt_key_name(TT_KEY_MODEL), tt_model_rows[i]->name);
        }
    }
    known = list_model_types();
    (void)tt_fail(TT_EDATA, "%s: model_type '%s' is not supported\nhelp: supported are %s", where, type, known);
    tt_free(known);
    return TT_EDATA;
}

/* The dims of a GGUF file, which takes the place of a folder. */
static int read_gguf_dims(const struct tt_model_row *row, const char *path, struct tt_model_dims *ret_dims)
{
    struct tt_gguf file = {0};
    const char *name = NULL;
    int rc = 0;

    TT_TRY(tt_gguf_open(path, &file));
    TT_TRY(tt_gguf_model_name(&file, &name));
    if (strcmp(name, row->name) != 0)
        rc =
            tt_fail(TT_EDATA, "'%s' is not a %s\nhelp: set %s to %s", path, row->name, tt_key_name(TT_KEY_MODEL), name);
    else
        rc = tt_gguf_read_dims(&file, ret_dims);
out:
    tt_gguf_release(&file);
    return rc;
}

static int read_hf_dims(const struct tt_model_row *row, const char *folder, struct tt_model_dims *ret_dims)
{
    char *path = NULL;
    json_t *json = NULL;
    const char *type = NULL;
    int rc = 0;

    if (!folder || !folder[0]) {
        return tt_fail(TT_EUSAGE,
                       "%s hf takes the dims from a Hugging Face folder, and none is given\n"
                       "help: set %s to a folder that has config.json",
                       tt_key_name(TT_KEY_FLAVOR), tt_key_name(TT_KEY_MODEL_FOLDER));
    }
    if (tt_gguf_is_path(folder))
        return read_gguf_dims(row, folder, ret_dims);
    path = tt_format("%s/config.json", folder);
    TT_TRY(tt_json_load(path, &json));
    if (!json_is_object(json)) {
        rc = tt_fail(TT_EDATA, "%s: not a JSON object", path);
        goto out;
    }
    TT_TRY(tt_json_get_string(json, "model_type", path, &type));
    TT_TRY(check_model_type(row, type, path));
    TT_TRY(row->read_hf_config(json, path, ret_dims));
out:
    json_decref(json);
    tt_free(path);
    return rc;
}

/* A flavor of which nothing is left but its name is not part of the model's. */
static void name_without_flavor(struct tt_model *model, const struct tt_model_dims *over)
{
    const struct tt_model_row *row = model->row;

    for (int i = 0; i < row->n_flavors && over; i++) {
        const struct tt_model_dims *d = &row->flavors[i].dims;

        if (strcmp(row->flavors[i].name, model->flavor) == 0 && over->dim && over->n_layers && over->n_heads &&
            over->ffn_dim &&
            (over->dim != d->dim || over->n_layers != d->n_layers || over->n_heads != d->n_heads ||
             over->ffn_dim != d->ffn_dim))
            model->title[strlen(row->name)] = 0;
    }
}

/* Makes a model after settling and checking the dims. Takes ownership of nothing. */
static int make_model(const struct tt_model_row *row, const char *flavor, struct tt_model_dims dims,
                      struct tt_model **ret_model)
{
    struct tt_model *model;
    int rc = 0;

    TT_TRY(tt_model_dims_settle(row, &dims));
    model = tt_calloc(1, sizeof *model);
    model->row = row;
    model->flavor = tt_strdup(flavor);
    model->title = tt_format("%s %s", row->name, flavor);
    model->dims = dims;
    row->add_params(model);
    tt_lora_add(model);
    *ret_model = model;
out:
    return rc;
}

/* The dims from name, flavor and folder. A fault is reported to fn with its keys and the message that is set. */
static int find_dims(const char *name, const char *flavor, const char *hf_folder, tt_model_fault_fn fn, void *arg,
                     const struct tt_model_row **ret_row, struct tt_model_dims *ret_dims)
{
    static const enum tt_key of_name[] = {TT_KEY_MODEL, TT_KEY_NONE};
    static const enum tt_key of_flavor[] = {TT_KEY_FLAVOR, TT_KEY_MODEL, TT_KEY_NONE};
    static const enum tt_key of_folder[] = {TT_KEY_MODEL_FOLDER, TT_KEY_FLAVOR, TT_KEY_NONE};
    bool is_hf = strcmp(flavor, "hf") == 0;
    int rc = find_row(name, ret_row);

    if (rc < 0) {
        fn(arg, of_name, tt_error_message());
        return rc;
    }
    rc = is_hf ? read_hf_dims(*ret_row, hf_folder, ret_dims) : find_flavor(*ret_row, flavor, ret_dims);
    if (rc < 0)
        fn(arg, is_hf ? of_folder : of_flavor, tt_error_message());
    return rc;
}

int tt_model_check(const char *name, const char *flavor, const struct tt_model_dims *overrides, const char *hf_folder,
                   tt_model_fault_fn fn, void *arg, struct tt_model **ret_model)
{
    const struct tt_model_row *row = NULL;
    struct tt_model_dims dims = {0};
    int rc = 0;

    TT_TRY(find_dims(name, flavor, hf_folder, fn, arg, &row, &dims));
    if (overrides)
        tt_model_dims_override(&dims, overrides);
    TT_TRY(tt_model_dims_check(row, &dims, fn, arg));
    if (!ret_model)
        goto out;
    TT_TRY(make_model(row, flavor, dims, ret_model));
    name_without_flavor(*ret_model, overrides);
out:
    return rc;
}

/* The first fault of the sizes of a folder, which says where they are. */
struct first_fault {
    const char *folder;
    bool has_one;
};

static void keep_first(void *arg, const enum tt_key *keys, const char *message)
{
    struct first_fault *first = arg;

    if (!first->has_one && *keys == TT_KEY_MODEL_FOLDER)
        (void)tt_fail(TT_EUSAGE, "%s%s: %s", first->folder, tt_gguf_is_path(first->folder) ? "" : "/config.json",
                      message);
    else
        tt_model_first_fault(&first->has_one, keys, message);
    first->has_one = true;
}

int tt_model_new(const char *name, const char *flavor, const struct tt_model_dims *overrides, const char *hf_folder,
                 struct tt_model **ret_model)
{
    bool has_one = true; /* find_dims has set the message; among sizes, the first fault sets it */
    struct first_fault first = {hf_folder, false};
    const struct tt_model_row *row = NULL;
    struct tt_model_dims dims = {0};
    int rc = 0;

    TT_TRY(find_dims(name, flavor, hf_folder, tt_model_first_fault, &has_one, &row, &dims));
    if (overrides)
        tt_model_dims_override(&dims, overrides);
    if (strcmp(flavor, "hf") == 0)
        TT_TRY(tt_model_dims_check(row, &dims, keep_first, &first));
    TT_TRY(make_model(row, flavor, dims, ret_model));
    name_without_flavor(*ret_model, overrides);
out:
    return rc;
}

int tt_model_from_dims(const char *name, const char *flavor, const struct tt_model_dims *dims,
                       struct tt_model **ret_model)
{
    const struct tt_model_row *row = NULL;
    int rc = find_row(name, &row);

    return rc < 0 ? rc : make_model(row, flavor, *dims, ret_model);
}

static int gguf_name(const char *path, const char **ret_name)
{
    struct tt_gguf file = {0};
    int rc = tt_gguf_open(path, &file);

    if (rc == 0)
        rc = tt_gguf_model_name(&file, ret_name);
    tt_gguf_release(&file);
    return rc;
}

int tt_model_hf_name(const char *folder, const char **ret_name)
{
    char *path, *known;
    const char *type = NULL;
    json_t *json = NULL;
    int rc = 0;

    *ret_name = NULL;
    if (tt_gguf_is_path(folder))
        return gguf_name(folder, ret_name);
    path = tt_format("%s/config.json", folder);
    TT_TRY(tt_json_load(path, &json));
    TT_TRY(tt_json_get_string(json, "model_type", path, &type));
    for (int i = 0; i < tt_model_n_rows && !*ret_name; i++)
        if (is_of_type(tt_model_rows[i], type))
            *ret_name = tt_model_rows[i]->name;
    if (!*ret_name) {
        known = list_model_types();
        rc = tt_fail(TT_EDATA, "%s: model_type '%s' is not supported\nhelp: supported are %s", path, type, known);
        tt_free(known);
    }
out:
    json_decref(json);
    tt_free(path);
    return rc;
}

int tt_model_from_hf(const char *folder, struct tt_model **ret_model)
{
    const char *name = NULL;
    int rc = tt_model_hf_name(folder, &name);

    return rc < 0 ? rc : tt_model_new(name, "hf", NULL, folder, ret_model);
}

void tt_model_free(struct tt_model *model)
{
    if (!model)
        return;
    for (int i = 0; i < model->n_params; i++) {
        tt_free(model->params[i].name);
        tt_free(model->params[i].hf_name);
    }
    tt_free(model->params);
    tt_free(model->flavor);
    tt_free(model->title);
    tt_free(model);
}

static int64_t param_elements(const struct tt_param *param)
{
    int64_t n = 1;

    for (int i = 0; i < param->ndim; i++)
        n *= param->shape[i];
    return n;
}

int64_t tt_model_n_elements(const struct tt_model *model)
{
    int64_t n = 0;

    for (int i = 0; i < model->n_params; i++)
        n += model->params[i].buffer ? 0 : param_elements(&model->params[i]);
    return n;
}

int64_t tt_model_n_trained(const struct tt_model *model)
{
    int64_t n = 0;

    for (int p = 0; p < model->n_params; p++)
        n += model->params[p].frozen ? 0 : param_elements(&model->params[p]);
    return n;
}

int64_t tt_model_n_active(const struct tt_model *model)
{
    const struct tt_moe *moe = &model->dims.moe;
    int64_t of_experts = 0;

    for (int p = 0; p < model->n_params; p++)
        of_experts += tt_param_is_of_experts(&model->params[p]) ? param_elements(&model->params[p]) : 0;
    return tt_model_n_elements(model) - of_experts + (moe->experts ? of_experts * moe->top_k / moe->experts : 0);
}

/* The elements of parameters in a token's matrix products; an embedding counts if it is also the head. */
static int64_t counted_elements(const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;
    int64_t looked_up = (d->tied ? 0 : d->vocab_size) + (model->row->learned_positions ? d->max_positions : 0);

    return tt_model_n_active(model) - looked_up * d->dim;
}

/* Weights of products for which backward computes no gradient: those of layers and of the output. */
static int64_t frozen_elements(const struct tt_model *model)
{
    const struct tt_moe *moe = &model->dims.moe;
    int64_t n = 0, of_experts = 0;

    for (int p = 0; p < model->n_params; p++)
        if (model->params[p].frozen && !model->params[p].buffer &&
            (model->params[p].block != TT_BLOCK_EMBEDDINGS || model->params[p].tied))
            *(tt_param_is_of_experts(&model->params[p]) ? &of_experts : &n) += param_elements(&model->params[p]);
    return n + (moe->experts ? of_experts * moe->top_k / moe->experts : 0);
}

/* 6: a multiplication and an addition, once in forward and twice in backward; once in backward if it is frozen. */
static double flops_per_token(const struct tt_model *model, double keys_per_query, double keys_of_window)
{
    const struct tt_model_dims *d = &model->dims;
    double elements = (double)(d->head_dim + (d->mla.kv_rank ? d->mla.value_dim : d->head_dim)); /* of keys, values */
    double keys, attention;
    int64_t windows = 0;

    for (int64_t l = 0; l < d->n_layers; l++)
        windows += tt_model_is_windowed(d, l);
    keys = (double)(d->n_layers - windows) * keys_per_query + (double)windows * keys_of_window;
    attention = (double)d->n_heads * elements * keys;
    return 6.0 * (double)counted_elements(model) - 2.0 * (double)frozen_elements(model) + 6.0 * attention;
}

double tt_model_flops_per_token(const struct tt_model *model, int64_t seq_len)
{
    return flops_per_token(model, (double)seq_len, (double)seq_len);
}

double tt_model_flops_per_token_causal(const struct tt_model *model, int64_t seq_len)
{
    double all = ((double)seq_len + 1.0) / 2.0, window = (double)model->dims.sliding_window, hidden;

    if (window >= (double)seq_len)
        return flops_per_token(model, all, all);
    hidden = ((double)seq_len - window) * ((double)seq_len - window + 1.0) / 2.0; /* of the pairs under the mask */
    return flops_per_token(model, all, all - hidden / (double)seq_len);
}

int tt_model_check_seq_len(const struct tt_model *model, int64_t seq_len)
{
    long long positions = (long long)model->dims.max_positions;

    if (model->dims.rope.dynamic && (double)seq_len > model->dims.rope.original_max)
        return tt_fail(TT_EUSAGE,
                       "seq_len %lld is longer than the %g positions of %s, whose rope_type is dynamic: beyond these "
                       "each sequence is rotated by a base that depends on its own length, which titan does not do"
                       "\nhelp: set %s and %s to at most %g, or change rope_scaling in config.json to yarn or linear",
                       (long long)seq_len, model->dims.rope.original_max, model->title, tt_key_name(TT_KEY_SEQ_LEN),
                       tt_key_name(TT_KEY_VALIDATION_SEQ_LEN), model->dims.rope.original_max);
    if (!model->row->learned_positions || seq_len <= model->dims.max_positions)
        return 0;
    return tt_fail(TT_EUSAGE,
                   "seq_len %lld is longer than the %lld positions that %s has learned\nhelp: set %s and %s to at most "
                   "%lld; a model that starts from random weights may have more (%s)",
                   (long long)seq_len, positions, model->title, tt_key_name(TT_KEY_SEQ_LEN),
                   tt_key_name(TT_KEY_VALIDATION_SEQ_LEN), positions, tt_key_name(TT_KEY_MAX_POSITIONS));
}

int64_t tt_model_rope_dim(const struct tt_model_dims *dims)
{
    return dims->mla.kv_rank ? dims->mla.rope_dim : dims->head_dim;
}

/* Appends the backward pass from the loss; ret_param_grad by parameter. */
static int differentiate(struct tt_graph *graph, int n_params, int *ret_param_grad)
{
    const struct tt_seed loss = {graph->token_loss, TT_GRAD_OF_LOSS};
    int n_values = graph->n_values, rc = 0;
    int *grad = tt_calloc((size_t)n_values, sizeof *grad);

    TT_TRY(tt_graph_differentiate(graph, &loss, 1, grad));
    for (int p = 0; p < n_params; p++)
        ret_param_grad[p] = TT_NONE;
    for (int v = 0; v < n_values; v++)
        if (graph->values[v].kind == TT_VALUE_PARAM && graph->values[v].part == 0)
            ret_param_grad[graph->values[v].param] = grad[v];
out:
    tt_free(grad);
    return rc;
}

int tt_model_graph(const struct tt_model *model, enum tt_graph_mode mode, enum tt_dtype dtype, int64_t batch,
                   int64_t seq_len, bool documents, struct tt_graph **ret_graph, int *ret_param_grad)
{
    struct tt_graph *graph;
    int rc = 0;

    if ((rc = tt_model_check_seq_len(model, seq_len)) < 0)
        return rc;
    graph = tt_graph_new();
    graph->dtype = dtype;
    graph->documents = documents;
    model->row->build(model, batch, seq_len, graph);
    if (mode == TT_GRAPH_TRAIN)
        TT_TRY(differentiate(graph, model->n_params, ret_param_grad));
    *ret_graph = graph;
    graph = NULL;
out:
    tt_graph_free(graph);
    return rc;
}

int tt_model_decode_graph(const struct tt_model *model, enum tt_dtype dtype, int64_t rows, int64_t cache_len,
                          struct tt_graph **ret_graph)
{
    struct tt_graph *graph;
    int rc = tt_model_check_seq_len(model, cache_len);

    if (rc < 0)
        return rc;
    graph = tt_graph_new();
    graph->dtype = dtype;
    graph->cache_len = cache_len;
    model->row->build(model, 1, rows, graph);
    *ret_graph = graph;
    return 0;
}

static void fill_constant(float value, int64_t n, float *data)
{
    for (int64_t i = 0; i < n; i++)
        data[i] = value;
}

static void fill_normal(const struct tt_param *param, uint64_t seed, int64_t first, int64_t n, float *data)
{
    struct tt_rng rng = tt_rng_make(seed, param->name);
    double cut = param->cut / param->std;

    if (cut > cut_beyond_reach)
        cut = 0.0;
    tt_rng_normals(&rng, (uint64_t)first, n, param->std, cut, data);
}

static void fill_uniform(const struct tt_param *param, uint64_t seed, int64_t first, int64_t n, float *data)
{
    struct tt_rng rng = tt_rng_make(seed, param->name);

    for (int64_t i = 0; i < n; i++)
        data[i] = (float)(param->low + (param->high - param->low) * tt_rng_uniform(&rng, (uint64_t)(first + i)));
}

/* Fills n consecutive elements, from element `first` of the whole parameter on. */
static void fill_run(const struct tt_param *param, uint64_t seed, int64_t first, int64_t n, float *data)
{
    switch (param->init) {
    case TT_PARAM_NONE:
        break;
    case TT_PARAM_ONES:
        fill_constant(1.0F, n, data);
        break;
    case TT_PARAM_ZEROS:
        fill_constant(0.0F, n, data);
        break;
    case TT_PARAM_NORMAL:
        fill_normal(param, seed, first, n, data);
        break;
    case TT_PARAM_UNIFORM:
        fill_uniform(param, seed, first, n, data);
        break;
    case TT_PARAM_CONSTANT:
        fill_constant((float)param->low, n, data);
        break;
    }
}

void tt_param_fill(const struct tt_param *param, uint64_t seed, const struct tt_box *part, float *data)
{
    struct tt_box whole = tt_box_whole(param->ndim, param->shape);
    int64_t run = tt_box_run(part, &whole), n = tt_box_volume(part);

    for (int64_t at = 0; at < n; at += run)
        fill_run(param, seed, tt_box_position(part, at, &whole), run, data + at);
}
