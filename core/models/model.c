/* SPDX-License-Identifier: MIT
 *
 * The model registry: finds a model's row and flavor, settles its dims, lists its parameters and counts them. Everything
 * here is arithmetic on shapes; tt_param_fill is the one function that writes weights, into the caller's memory.
 *
 * To add a model: a file with its row (struct tt_model_row) and a line in tt_model_rows.
 */
#include "core/models/model.h"

#include <math.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/rng.h"
#include "core/base/text.h"
#include "core/models/rows.h"

const struct tt_model_row *const tt_model_rows[] = {
    &tt_model_llama3,
};
const int tt_model_n_rows = (int)(sizeof tt_model_rows / sizeof *tt_model_rows);

/* Bounds that keep every count in 63 bits; far above any model there is. */
enum { MAX_DIM = 1 << 24, MAX_LAYERS = 100000, MAX_HEADS = 1 << 20 };

/* A cut farther out than the uniform numbers reach (their smallest, 2^-54, lies at 8.3) changes nothing. */
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
    const char *near = tt_text_nearest(word, choices, n);
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
    rc = fail_unknown("model.name", name, names, tt_model_n_rows);
out:
    tt_free(names);
    return rc;
}

static int find_flavor(const struct tt_model_row *row, const char *flavor, struct tt_model_dims *ret_dims)
{
    const char **names = tt_calloc((size_t)row->n_flavors + 1, sizeof *names);
    char *what = tt_format("model.flavor of %s", row->name);
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

/* config.json belongs to the asked-for model; otherwise says which model.name would take it, if any. */
static int check_model_type(const struct tt_model_row *row, const char *type, const char *where)
{
    struct tt_text known = {0};
    const struct tt_model_row *other = NULL;

    if (strcmp(type, row->hf_model_type) == 0)
        return 0;
    for (int i = 0; i < tt_model_n_rows; i++) {
        if (strcmp(tt_model_rows[i]->hf_model_type, type) == 0)
            other = tt_model_rows[i];
        tt_text_add(&known, "%s%s (model.name %s)", i ? ", " : "", tt_model_rows[i]->hf_model_type,
                    tt_model_rows[i]->name);
    }
    if (other)
        (void)tt_fail(TT_EDATA, "%s: model_type '%s' is not a %s\nhelp: set model.name to %s", where, type, row->name,
                      other->name);
    else
        (void)tt_fail(TT_EDATA, "%s: model_type '%s' is not supported\nhelp: supported are %s", where, type,
                      known.text);
    tt_text_release(&known);
    return TT_EDATA;
}

static int read_hf_dims(const struct tt_model_row *row, const char *folder, struct tt_model_dims *ret_dims)
{
    char *path = NULL;
    json_t *json = NULL;
    const char *type = NULL;
    int rc = 0;

    if (!folder || !folder[0])
        return tt_fail(TT_EUSAGE, "model.flavor hf takes the dims from a Hugging Face folder, and none is given\n"
                                  "help: set model.hf_assets_path to a folder that has config.json");
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

static void override_int(int64_t *value, int64_t with)
{
    if (with != 0)
        *value = with;
}

static void override_real(double *value, double with)
{
    if (with != 0.0)
        *value = with;
}

static void apply_overrides(struct tt_model_dims *dims, const struct tt_model_dims *with)
{
    override_int(&dims->dim, with->dim);
    override_int(&dims->n_layers, with->n_layers);
    override_int(&dims->n_heads, with->n_heads);
    override_int(&dims->n_kv_heads, with->n_kv_heads);
    override_int(&dims->head_dim, with->head_dim);
    override_int(&dims->ffn_dim, with->ffn_dim);
    override_int(&dims->vocab_size, with->vocab_size);
    if (with->norm_eps != 0.0F)
        dims->norm_eps = with->norm_eps;
    override_real(&dims->rope.theta, with->rope.theta);
    override_real(&dims->rope.factor, with->rope.factor);
    override_real(&dims->rope.low_freq_factor, with->rope.low_freq_factor);
    override_real(&dims->rope.high_freq_factor, with->rope.high_freq_factor);
    override_real(&dims->rope.original_max, with->rope.original_max);
    if (with->tied >= 0)
        dims->tied = with->tied;
}

static int check_range(const char *key, int64_t value, int64_t low, int64_t high)
{
    if (value < low || value > high)
        return tt_fail(TT_EUSAGE, "model.%s is %lld; it must lie in %lld..%lld", key, (long long)value, (long long)low,
                       (long long)high);
    return 0;
}

static int check_rope(const struct tt_rope *rope)
{
    if (!(rope->theta > 0.0) || !isfinite(rope->theta))
        return tt_fail(TT_EUSAGE, "model.rope_theta is %g; it must be positive", rope->theta);
    if (rope->factor == 0.0)
        return 0;
    if (!(rope->factor >= 1.0) || !isfinite(rope->factor))
        return tt_fail(TT_EUSAGE, "model.rope_scaling.factor is %g; it must be at least 1 (1: no scaling)",
                       rope->factor);
    if (!(rope->low_freq_factor > 0.0) || !(rope->high_freq_factor > rope->low_freq_factor) ||
        !isfinite(rope->high_freq_factor))
        return tt_fail(TT_EUSAGE,
                       "model.rope_scaling: low_freq_factor %g and high_freq_factor %g must be positive, low below "
                       "high\nhelp: Llama 3.1 has low_freq_factor 1, high_freq_factor 4",
                       rope->low_freq_factor, rope->high_freq_factor);
    if (!(rope->original_max >= 1.0) || !isfinite(rope->original_max))
        return tt_fail(TT_EUSAGE,
                       "model.rope_scaling.original_max is %g; it must be the sequence length of the first training\n"
                       "help: Llama 3.1 has 8192",
                       rope->original_max);
    return 0;
}

/* Fills in the dims that follow from others and checks all of them; says which key is wrong. */
static int settle_dims(struct tt_model_dims *d)
{
    int rc = 0;

    TT_TRY(check_range("dim", d->dim, 1, MAX_DIM));
    TT_TRY(check_range("n_layers", d->n_layers, 1, MAX_LAYERS));
    TT_TRY(check_range("n_heads", d->n_heads, 1, MAX_HEADS));
    TT_TRY(check_range("ffn_dim", d->ffn_dim, 1, MAX_DIM));
    TT_TRY(check_range("vocab_size", d->vocab_size, 1, INT32_MAX));
    if (d->n_kv_heads == 0)
        d->n_kv_heads = d->n_heads;
    TT_TRY(check_range("n_kv_heads", d->n_kv_heads, 1, d->n_heads));
    if (d->n_heads % d->n_kv_heads != 0)
        return tt_fail(TT_EUSAGE, "model.n_heads %lld is not a multiple of model.n_kv_heads %lld",
                       (long long)d->n_heads, (long long)d->n_kv_heads);
    if (d->head_dim == 0 && d->dim % d->n_heads != 0)
        return tt_fail(TT_EUSAGE, "model.dim %lld is not a multiple of model.n_heads %lld\nhelp: set model.head_dim",
                       (long long)d->dim, (long long)d->n_heads);
    if (d->head_dim == 0)
        d->head_dim = d->dim / d->n_heads;
    TT_TRY(check_range("head_dim", d->head_dim, 1, MAX_DIM));
    if (d->head_dim % 2 != 0)
        return tt_fail(TT_EUSAGE,
                       "the head dimension %lld is odd; RoPE rotates pairs\nhelp: change model.head_dim, "
                       "or model.dim %lld / model.n_heads %lld",
                       (long long)d->head_dim, (long long)d->dim, (long long)d->n_heads);
    TT_TRY(check_range("n_heads * head_dim", d->n_heads * d->head_dim, 1, MAX_DIM));
    if (!(d->norm_eps > 0.0F) || !isfinite(d->norm_eps))
        return tt_fail(TT_EUSAGE, "model.norm_eps is %g; it must be positive", (double)d->norm_eps);
    TT_TRY(check_rope(&d->rope));
    if (d->rope.factor == 1.0)
        d->rope.factor = 0.0;
out:
    return rc;
}

int tt_model_new(const char *name, const char *flavor, const struct tt_model_dims *overrides, const char *hf_folder,
                 struct tt_model **ret_model)
{
    const struct tt_model_row *row = NULL;
    struct tt_model_dims dims = {0};
    struct tt_model *model;
    int rc = 0;

    TT_TRY(find_row(name, &row));
    if (strcmp(flavor, "hf") == 0)
        TT_TRY(read_hf_dims(row, hf_folder, &dims));
    else
        TT_TRY(find_flavor(row, flavor, &dims));
    if (overrides)
        apply_overrides(&dims, overrides);
    TT_TRY(settle_dims(&dims));
    model = tt_calloc(1, sizeof *model);
    model->row = row;
    model->flavor = tt_strdup(flavor);
    model->dims = dims;
    row->add_params(model);
    *ret_model = model;
out:
    return rc;
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
        n += param_elements(&model->params[i]);
    return n;
}

/* The parameters that take part in matrix products; an embedding that is also the head does. */
static int64_t counted_elements(const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;

    return tt_model_n_elements(model) - (d->tied ? 0 : d->vocab_size * d->dim);
}

/* 6: two for a multiplication and an addition, once forward and twice backward. */
static double flops_per_token(const struct tt_model *model, double keys_per_query)
{
    const struct tt_model_dims *d = &model->dims;
    double attention = (double)d->n_layers * (double)d->n_heads * 2.0 * (double)d->head_dim * keys_per_query;

    return 6.0 * (double)counted_elements(model) + 6.0 * attention;
}

double tt_model_flops_per_token(const struct tt_model *model, int64_t seq_len)
{
    return flops_per_token(model, (double)seq_len);
}

double tt_model_flops_per_token_causal(const struct tt_model *model, int64_t seq_len)
{
    return flops_per_token(model, ((double)seq_len + 1.0) / 2.0);
}

int tt_model_graph(const struct tt_model *model, enum tt_graph_mode mode, int64_t batch, int64_t seq_len,
                   struct tt_graph **ret_graph, int *ret_param_grad)
{
    struct tt_graph *graph = tt_graph_new();
    int rc = 0;

    model->row->build(model, batch, seq_len, graph);
    if (mode == TT_GRAPH_TRAIN)
        TT_TRY(tt_graph_differentiate(graph, model->n_params, ret_param_grad));
    *ret_graph = graph;
    graph = NULL;
out:
    tt_graph_free(graph);
    return rc;
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
    for (int64_t i = 0; i < n; i++)
        data[i] = (float)(param->std * tt_rng_normal(&rng, (uint64_t)(first + i), cut));
}

void tt_param_fill(const struct tt_param *param, uint64_t seed, int64_t row_begin, int64_t rows, float *data)
{
    int64_t width = param_elements(param) / param->shape[0], n = rows * width;

    switch (param->init) {
    case TT_PARAM_ONES:
        fill_constant(1.0F, n, data);
        break;
    case TT_PARAM_ZEROS:
        fill_constant(0.0F, n, data);
        break;
    case TT_PARAM_NORMAL:
        fill_normal(param, seed, row_begin * width, n, data);
        break;
    }
}
