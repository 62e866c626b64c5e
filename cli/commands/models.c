/* SPDX-License-Identifier: MIT
 *
 * `titan models`: every model and flavor of the registry with its size and its cost per token. It allocates no weights,
 * so the largest flavor is listed as fast as the smallest.
 */
#include <inttypes.h>
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
#include "core/models/explain.h"
#include "core/models/model.h"

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
    tt_model_explain(model, &text);
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
