/* SPDX-License-Identifier: MIT
 *
 * `titan models`: every model and flavor of the registry with its size and its cost per token. It allocates no weights,
 * so the largest flavor is listed as fast as the smallest.
 */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/config/args.h"
#include "core/models/hf.h"
#include "core/models/internal.h"
#include "core/models/model.h"

/* --- the description of a model: the parts of its blocks, and its parameters --- */

/* A line: its title, and the text that `fmt` gives. */
#define LINE(text, title, ...)              \
    do {                                    \
        tt_text_add(text, "%-14s ", title); \
        tt_text_add(text, __VA_ARGS__);     \
        tt_text_add(text, "\n");            \
    } while (0)

/* The layers of which fn is true, as "0-2, 4-6"; "all" or "none". */
static void add_layers(struct tt_text *t, const struct tt_model_dims *d,
                       bool (*fn)(const struct tt_model_dims *, int64_t))
{
    int64_t n = 0;

    for (int64_t l = 0; l < d->n_layers; l++)
        n += fn(d, l);
    if (n == 0 || n == d->n_layers) {
        tt_text_add(t, n ? "all layers" : "no layer");
        return;
    }
    tt_text_add(t, "layers");
    for (int64_t l = 0, end; l < d->n_layers; l = end + 1) {
        for (end = l; end < d->n_layers && fn(d, end);)
            end++;
        if (end > l + 1)
            tt_text_add(t, " %" PRId64 "-%" PRId64, l, end - 1);
        else if (end > l)
            tt_text_add(t, " %" PRId64, l);
    }
}

static bool is_unrotated(const struct tt_model_dims *d, int64_t layer)
{
    return tt_layers_have(&d->unrotated, layer);
}

static const char *yes(bool on, const char *what)
{
    return on ? what : "";
}

static void add_norms(struct tt_text *t, const struct tt_model *model)
{
    static const char *const kinds[] = {[TT_NORM_RMS] = "RMSNorm",
                                        [TT_NORM_LAYER] = "LayerNorm with a bias",
                                        [TT_NORM_LAYER_PLAIN] = "LayerNorm without a bias",
                                        [TT_NORM_RMS_OFFSET] = "RMSNorm times 1 + w"};
    const struct tt_norm_names *at = tt_norm_names_of(model->row);
    bool is_shared = model->dims.parallel && !at->before_ffn;

    LINE(t, "norm", "%s, epsilon %g", kinds[model->row->norm], (double)model->dims.norm_eps);
    LINE(t, "  places", "%s%s%s%sbefore the head",
         yes(at->before_attention, is_shared ? "before attention and the feed-forward, " : "before attention, "),
         yes(at->after_attention, "after attention, "), yes(at->before_ffn, "before the feed-forward, "),
         yes(at->after_ffn, "after the feed-forward, "));
}

static void add_attention(struct tt_text *t, const struct tt_model *model)
{
    static const char *const qk_norms[] = {[TT_QK_HEADS] = "each head by itself",
                                           [TT_QK_WIDTH] = "all heads as one",
                                           [TT_QK_EACH] = "each head by itself, with weights of its own"};
    const struct tt_model_dims *d = &model->dims;
    const struct tt_decoder *of = model->row->decoder;
    struct tt_text layers = {0};

    if (d->mla.kv_rank)
        LINE(t, "attention", "latent: %" PRId64 " heads of %" PRId64 ", keys and values from %" PRId64 " numbers",
             d->n_heads, d->head_dim, d->mla.kv_rank);
    else
        LINE(t, "attention", "%" PRId64 " heads of %" PRId64 ", %" PRId64 " of keys and values", d->n_heads,
             d->head_dim, d->n_kv_heads);
    if (of && tt_qk_norm_of(model) != TT_QK_NONE)
        LINE(t, "  norm of q, k", "%s", qk_norms[tt_qk_norm_of(model)]);
    if (of)
        LINE(t, "biases", "%s%s%s%s", yes(of->qkv_bias || d->qkv_bias, "q, k, v "), yes(d->out_bias, "wo "),
             yes(d->mlp_bias, "feed-forward"),
             yes(!of->qkv_bias && !d->qkv_bias && !d->out_bias && !d->mlp_bias, "none"));
    if (d->multipliers.attention != 0.0)
        LINE(t, "  scale", "%g", d->multipliers.attention);
    if (d->score_cap > 0.0)
        LINE(t, "  soft cap", "%g", d->score_cap);
    if (d->sliding_window > 0) {
        add_layers(&layers, d, tt_model_is_windowed);
        LINE(t, "  window", "%" PRId64 " tokens in %s", d->sliding_window, layers.text);
        tt_text_release(&layers);
    }
}

static const char *scaling_of(const struct tt_rope *rope)
{
    return rope->factor == 0.0     ? "not scaled"
           : rope->dynamic         ? "dynamic"
           : rope->linear          ? "scaled linearly"
           : rope->beta_fast > 0.0 ? "scaled by YaRN"
           : tt_rope_is_long(rope) ? "scaled by LongRoPE"
                                   : "scaled as in Llama 3.1";
}

static void add_positions(struct tt_text *t, const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;
    struct tt_text layers = {0};

    if (model->row->learned_positions) {
        LINE(t, "positions", "%" PRId64 " learned ones", d->max_positions);
        return;
    }
    LINE(t, "RoPE", "base %g, %s", d->rope.theta, scaling_of(&d->rope));
    if (d->rotary_dim)
        LINE(t, "  of each head", "the first %" PRId64 " of %" PRId64 " elements", d->rotary_dim, d->head_dim);
    if (d->local_theta != 0.0 && d->sliding_window > 0)
        LINE(t, "  with window", "base %g, not scaled", d->local_theta);
    if (d->unrotated.every || d->unrotated.bits) {
        add_layers(&layers, d, is_unrotated);
        LINE(t, "  without", "%s", layers.text);
        tt_text_release(&layers);
    }
}

static void add_feed_forward(struct tt_text *t, const struct tt_model *model)
{
    const struct tt_model_dims *d = &model->dims;
    const struct tt_moe *moe = &d->moe;
    const struct tt_decoder *of = model->row->decoder;
    bool gated = tt_model_is_gated(model->row);
    const char *function = !of                                    ? ""
                           : !gated                               ? ", w2 gelu(w1 x)"
                           : of->activation == TT_ACTIVATION_SILU ? ", w2 (silu(w1 x) * w3 x)"
                                                                  : ", w2 (gelu(w1 x) * w3 x)";

    if (moe->experts)
        LINE(t, "experts", "%" PRId64 " of width %" PRId64 ", %" PRId64 " for each token%s", moe->experts, moe->ffn_dim,
             moe->top_k, moe->shared ? ", and shared ones" : "");
    if (moe->shared_dim)
        LINE(t, "  for all", "one of width %" PRId64 ", times the sigmoid of a product with the token",
             moe->shared_dim);
    if (!moe->experts || tt_model_dense_layers(d) > 0)
        LINE(t, "feed-forward", "width %" PRId64 "%s", d->ffn_dim, function);
    if (of && of->activation != TT_ACTIVATION_SILU)
        LINE(t, "  gelu", "%s", of->activation == TT_ACTIVATION_GELU && !d->tanh_gelu ? "exact" : "its tanh form");
}

static void add_multipliers(struct tt_text *t, const struct tt_multipliers *m)
{
    const struct {
        const char *of;
        double by;
    } each[] = {{"embeddings", m->embedding}, {"residual", m->residual}, {"logits", m->logits}};
    int n = 0;

    for (int i = 0; i < TT_COUNT(each); i++)
        if (each[i].by != 0.0 && each[i].by != 1.0)
            LINE(t, n++ == 0 ? "multipliers" : "", "%s %g", each[i].of, each[i].by);
}

/* The parameters of block 0 (and of the last block, if its parameters differ), and those outside the blocks. */
static void add_params(struct tt_text *t, const struct tt_model *model)
{
    LINE(t, "parameters", "in block 0 and outside the blocks, with their names in Hugging Face's files");
    for (int p = 0; p < model->n_params; p++) {
        const struct tt_param *param = &model->params[p];
        struct tt_text shape = {0};

        if (param->block > 0)
            continue;
        for (int i = 0; i < param->ndim; i++)
            tt_text_add(&shape, "%s%" PRId64, i ? " x " : "", param->shape[i]);
        tt_text_add(t, "  %-40s %-20s %s", param->name, shape.text, param->hf_name ? param->hf_name : "-");
        if (param->hf_transform == TT_HF_HEADS_IN_TURN)
            tt_text_add(t, ", part %d of %d of each head", param->hf_part + 1, param->hf_parts);
        else if (param->hf_parts > 1)
            tt_text_add(t, ", rows from %" PRId64 " of %" PRId64, param->hf_row, param->hf_rows);
        tt_text_add(t, "\n");
        tt_text_release(&shape);
    }
}

/* Adds the description of a model in lines: the parts of its blocks, and its parameters. */
static void add_description(const struct tt_model *model, struct tt_text *text)
{
    const struct tt_model_dims *d = &model->dims;

    LINE(text, "model", "%s, %" PRId64 " blocks of width %" PRId64 ", %" PRId64 " tokens", model->title, d->n_layers,
         d->dim, d->vocab_size);
    for (int c = 0; c < model->row->n_classes; c++)
        LINE(text, c ? "" : "classes", "%s (model_type %s)", model->row->classes[c].architecture,
             model->row->classes[c].type);
    add_norms(text, model);
    if (d->parallel)
        LINE(text, "residual", "attention and feed-forward read the same x");
    add_attention(text, model);
    add_positions(text, model);
    add_feed_forward(text, model);
    add_multipliers(text, &d->multipliers);
    if (model->row->decoder && model->row->decoder->scaled_embeddings)
        LINE(text, "multipliers", "embeddings %g, the square root of their width", sqrt((double)d->dim));
    LINE(text, "head", "%s", d->tied ? "tied to the embeddings" : "its own weights");
    if (d->logit_cap > 0.0)
        LINE(text, "  soft cap", "%g", d->logit_cap);
    LINE(text, "adapters", "%s", model->row->adaptable ? "LoRA" : "none");
    if (model->row->undivided)
        LINE(text, "parallelism", "data and pipeline only");
    add_params(text, model);
}

static const struct tt_option options[] = {
    {"json", NULL, NULL, "print JSON"},
    {"explain", NULL, "NAME",
     "print the parts and the parameters of a model; NAME/FLAVOR for a flavor other than "
     "debugmodel"},
    {"seq_len", NULL, "N", "length of the sequences for which flops per token are counted (default: 2048)"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] = "usage: titan models [--json] [--seq-len N]\n"
                            "       titan models --explain NAME[/FLAVOR]\n"
                            "\n"
                            "Lists the models and their flavors, or describes one.\n"
                            "\n";

static json_t *describe(const struct tt_model *model, int64_t seq_len)
{
    const struct tt_model_dims *d = &model->dims;

    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I}", "name", model->row->name,
                     "flavor", model->flavor, "parameters", (json_int_t)tt_model_n_elements(model), "active_parameters",
                     (json_int_t)tt_model_n_active(model), "dim", (json_int_t)d->dim, "n_layers",
                     (json_int_t)d->n_layers, "n_heads", (json_int_t)d->n_heads, "n_kv_heads",
                     (json_int_t)d->n_kv_heads, "head_dim", (json_int_t)d->head_dim, "ffn_dim", (json_int_t)d->ffn_dim,
                     "vocab_size", (json_int_t)d->vocab_size, "tie_embeddings", d->tied, "flops_per_token",
                     (json_int_t)tt_model_flops_per_token(model, seq_len), "flops_per_token_causal",
                     (json_int_t)tt_model_flops_per_token_causal(model, seq_len));
}

static void print_table(struct tt_model *const *models, int n, int64_t seq_len)
{
    char count[32], flops[32], heads[32];

    tt_print("%-11s %-14s %15s %6s %7s %9s %9s %6s %7s %5s %18s\n", "name", "flavor", "parameters", "dim", "layers",
             "heads/kv", "head_dim", "ffn", "vocab", "tied", "flops/token");
    for (int i = 0; i < n; i++) {
        const struct tt_model_dims *d = &models[i]->dims;

        (void)snprintf(heads, sizeof heads, "%" PRId64 "/%" PRId64, d->n_heads, d->n_kv_heads);
        tt_print("%-11s %-14s %15s %6" PRId64 " %7" PRId64 " %9s %9" PRId64 " %6" PRId64 " %7" PRId64 " %5s %18s\n",
                 models[i]->row->name, models[i]->flavor,
                 tt_text_count(count, sizeof count, tt_model_n_elements(models[i])), d->dim, d->n_layers, heads,
                 d->head_dim, d->ffn_dim, d->vocab_size, d->tied ? "yes" : "no",
                 tt_text_count(flops, sizeof flops, (int64_t)tt_model_flops_per_token(models[i], seq_len)));
    }
    tt_print("\nflops/token: forward and backward at seq_len %" PRId64
             " (--seq_len N), the causal mask not discounted\n",
             seq_len);
}

static int explain(const char *name)
{
    const char *slash = strchr(name, '/');
    char *row = tt_format("%.*s", slash ? (int)(slash - name) : (int)strlen(name), name);
    struct tt_model *model = NULL;
    struct tt_text text = {0};
    int rc = 0;

    TT_TRY(tt_model_new(row, slash ? slash + 1 : tt_model_rows[0]->flavors[0].name, NULL, NULL, &model));
    add_description(model, &text);
    tt_print("%s", text.text);
out:
    tt_text_release(&text);
    tt_model_free(model);
    tt_free(row);
    return rc;
}

static int list(const struct tt_args *args)
{
    bool is_json = tt_args_has(args, "json");
    struct tt_model **models = NULL;
    json_t *all = json_array();
    int64_t seq_len = 2048;
    int n = 0, cap = 0, rc = 0;

    if (args->n_words)
        TT_TRY(tt_fail(TT_EUSAGE, "models: unknown argument '%s'\nhelp: titan models [--json] [--seq-len N]",
                       args->word[0]));
    if (tt_args_has(args, "explain")) {
        rc = explain(tt_args_last(args, "explain"));
        goto out;
    }
    TT_TRY(tt_cli_count("models", args, "seq_len", 1, INT32_MAX, &seq_len));
    for (int r = 0; r < tt_model_n_rows; r++) {
        const struct tt_model_row *row = tt_model_rows[r];

        for (int f = 0; f < row->n_flavors; f++) {
            struct tt_model *model = NULL;

            TT_TRY(tt_model_new(row->name, row->flavors[f].name, NULL, NULL, &model));
            TT_PUSH(models, n, cap) = model;
            if (is_json)
                (void)json_array_append_new(all, describe(model, seq_len));
        }
    }
    if (is_json)
        tt_cli_print_line(json_pack("{s:I, s:O}", "seq_len", (json_int_t)seq_len, "models", all));
    else
        print_table(models, n, seq_len);
out:
    for (int i = 0; i < n; i++)
        tt_model_free(models[i]);
    tt_free(models);
    json_decref(all);
    return rc;
}

const struct tt_command tt_command_models = {
    .name = "models",
    .arguments = "[--json]",
    .summary = "the models and their flavors",
    .usage = usage,
    .options = options,
    .run = list,
};
