/* SPDX-License-Identifier: MIT
 *
 * `titan models`: every model and flavor of the registry with its size and its cost per token. Nothing is allocated for
 * weights, so the largest flavor is listed as fast as the smallest.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/models/model.h"

struct options {
    bool json;
    int64_t seq_len;
};

static int read_seq_len(const char *text, int64_t *ret_seq_len)
{
    char *end = NULL;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < 1 || value > INT32_MAX)
        return tt_fail(TT_EUSAGE, "models: --seq_len '%s' is not a number of tokens (1..%d)", text, INT32_MAX);
    *ret_seq_len = value;
    return 0;
}

/* The option without its dashes and with `-` as `_`, up to '='; false if arg is not an option. */
static bool option_name(const char *arg, char *name, size_t size)
{
    size_t n;

    if (strncmp(arg, "--", 2) != 0)
        return false;
    n = strcspn(arg + 2, "=");
    if (n >= size)
        return false;
    memcpy(name, arg + 2, n);
    name[n] = 0;
    for (char *c = name; *c; c++) {
        if (*c == '-')
            *c = '_';
    }
    return true;
}

static int parse(int argc, char **argv, struct options *options)
{
    char name[32];
    int rc = 0;

    for (int i = 0; i < argc; i++) {
        const char *value = strchr(argv[i], '=');

        if (!option_name(argv[i], name, sizeof name)) {
            rc = tt_fail(TT_EUSAGE, "models: unexpected argument '%s'\nhelp: titan models [--json] [--seq_len N]",
                         argv[i]);
            goto out;
        }
        if (strcmp(name, "json") == 0 && !value) {
            options->json = true;
        } else if (strcmp(name, "seq_len") == 0 && (value || i + 1 < argc)) {
            TT_TRY(read_seq_len(value ? value + 1 : argv[++i], &options->seq_len));
        } else if (strcmp(name, "seq_len") == 0) {
            rc = tt_fail(TT_EUSAGE, "models: --seq_len needs a number of tokens");
            goto out;
        } else {
            rc = tt_fail(TT_EUSAGE, "models: unknown option '%s'\nhelp: titan models [--json] [--seq_len N]", argv[i]);
            goto out;
        }
    }
out:
    return rc;
}

static json_t *describe(const struct tt_model *model, int64_t seq_len)
{
    const struct tt_model_dims *d = &model->dims;

    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I}", "name", model->row->name,
                     "flavor", model->flavor, "parameters", (json_int_t)tt_model_n_elements(model), "dim",
                     (json_int_t)d->dim, "n_layers", (json_int_t)d->n_layers, "n_heads", (json_int_t)d->n_heads,
                     "n_kv_heads", (json_int_t)d->n_kv_heads, "head_dim", (json_int_t)d->head_dim, "ffn_dim",
                     (json_int_t)d->ffn_dim, "vocab_size", (json_int_t)d->vocab_size, "tie_embeddings", d->tied,
                     "flops_per_token", (json_int_t)tt_model_flops_per_token(model, seq_len), "flops_per_token_causal",
                     (json_int_t)tt_model_flops_per_token_causal(model, seq_len));
}

static void print_json(struct tt_model *const *models, int n, int64_t seq_len)
{
    json_t *list = json_array(), *all;
    char *text;

    for (int i = 0; i < n; i++)
        (void)json_array_append_new(list, describe(models[i], seq_len));
    all = json_pack("{s:I, s:o}", "seq_len", (json_int_t)seq_len, "models", list);
    text = tt_json_text(all);
    (void)puts(text);
    tt_free(text);
    json_decref(all);
}

static void print_table(struct tt_model *const *models, int n, int64_t seq_len)
{
    char count[32], flops[32], heads[32];

    (void)printf("%-7s %-11s %15s %6s %7s %9s %9s %6s %7s %5s %18s\n", "name", "flavor", "parameters", "dim", "layers",
                 "heads/kv", "head_dim", "ffn", "vocab", "tied", "flops/token");
    for (int i = 0; i < n; i++) {
        const struct tt_model_dims *d = &models[i]->dims;

        (void)snprintf(heads, sizeof heads, "%" PRId64 "/%" PRId64, d->n_heads, d->n_kv_heads);
        (void)printf("%-7s %-11s %15s %6" PRId64 " %7" PRId64 " %9s %9" PRId64 " %6" PRId64 " %7" PRId64 " %5s %18s\n",
                     models[i]->row->name, models[i]->flavor,
                     tt_text_count(count, sizeof count, tt_model_n_elements(models[i])), d->dim, d->n_layers, heads,
                     d->head_dim, d->ffn_dim, d->vocab_size, d->tied ? "yes" : "no",
                     tt_text_count(flops, sizeof flops, (int64_t)tt_model_flops_per_token(models[i], seq_len)));
    }
    (void)printf("\nflops/token: forward and backward at seq_len %" PRId64
                 " (--seq_len N), the causal mask not discounted\n",
                 seq_len);
}

int tt_command_models(int argc, char **argv)
{
    struct options options = {.json = false, .seq_len = 2048};
    struct tt_model **models = NULL;
    int n = 0, cap = 0, rc = 0;

    TT_TRY(parse(argc, argv, &options));
    for (int r = 0; r < tt_model_n_rows; r++) {
        const struct tt_model_row *row = tt_model_rows[r];

        for (int f = 0; f < row->n_flavors; f++) {
            struct tt_model *model = NULL;

            TT_TRY(tt_model_new(row->name, row->flavors[f].name, NULL, NULL, &model));
            TT_PUSH(models, n, cap) = model;
        }
    }
    (options.json ? print_json : print_table)(models, n, options.seq_len);
out:
    for (int i = 0; i < n; i++)
        tt_model_free(models[i]);
    tt_free(models);
    return rc < 0 ? tt_cli_fail(rc) : 0;
}
