/* SPDX-License-Identifier: MIT
 *
 * Measures how two tensors differ, in one pass over their rows, and knows what the names of parameters say.
 */
#include "cli/referee/pair.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "core/base/text.h"

enum { BLOCK_ELEMENTS = 1 << 20 };

/* --- names --- */

/*
 * What a part of a name says, in the names of Hugging Face and titan: the first row of which a word is in the name
 * counts. `rank` is the place in a layer in forward order.
 */
static const struct {
    const char *words; /* with "|" between them */
    enum tt_role role;
    int rank;
} parts[] = {
    {"embed_tokens|tok_embeddings|word_embeddings|transformer.wte|embed_in", TT_ROLE_EMBEDDING, 0},
    {"transformer.wpe|embed_positions", TT_ROLE_OTHER, 0},
    {"lm_head|embed_out", TT_ROLE_HEAD, 2},
    {"q_a_layernorm|kv_a_layernorm|kv_norm", TT_ROLE_NORM, 3},
    {"q_norm|k_norm", TT_ROLE_NORM, 5},
    {"input_layernorm|attention_norm|ln_1", TT_ROLE_NORM, 1},
    {"post_attention_layernorm|ffn_norm|ln_2|pre_feedforward_layernorm", TT_ROLE_NORM, 7},
    {"post_feedforward_layernorm", TT_ROLE_NORM, 12},
    {"layernorm|_norm|.norm|ln_f", TT_ROLE_NORM, 1},
    {"qkv|c_attn|query_key_value", TT_ROLE_QKV, 4},
    {"q_a_proj|.wq_a", TT_ROLE_QUERY, 2},
    {"kv_a_proj|.wkv_a", TT_ROLE_KEY, 2},
    {"q_proj|.wq|q_b_proj", TT_ROLE_QUERY, 4},
    {"k_proj|.wk|kv_b_proj", TT_ROLE_KEY, 4},
    {"v_proj|.wv", TT_ROLE_VALUE, 4},
    {"o_proj|.wo|attn.c_proj|attention.dense", TT_ROLE_OUTPUT, TT_RANK_ATTENTION},
    {"experts", TT_ROLE_EXPERT, 9},
    {"router|mlp.gate.|.gate.weight|.gate.bias|block_sparse_moe.gate", TT_ROLE_ROUTER, 8},
    {"down_proj|.w2|mlp.c_proj", TT_ROLE_DOWN, 10},
    {"gate_proj|up_proj|gate_up_proj|.w1|.w3|c_fc", TT_ROLE_MLP, 9},
    {"self_attn|attention|.attn", TT_ROLE_OTHER, TT_RANK_ATTENTION},
    {"mlp|feed_forward|moe", TT_ROLE_OTHER, 10},
};

static const char *const role_names[] = {
    "other", "embedding",       "output matrix",    "norm",   "bias",   "query", "key",
    "value", "query-key-value", "attention output", "router", "expert", "MLP",   "MLP down"};

const char *tt_role_name(enum tt_role role)
{
    return role_names[role];
}

/* Whether one of the words is in the name. */
static bool contains(const char *name, const char *words)
{
    const char *end;

    for (const char *word = words; word; word = end ? end + 1 : NULL) {
        char text[64];
        size_t size;

        end = strchr(word, '|');
        size = end ? (size_t)(end - word) : strlen(word);
        memcpy(text, word, size);
        text[size] = 0;
        if (strstr(name, text))
            return true;
    }
    return false;
}

/* Reads role, layer and place from the name. */
static void classify(struct tt_pair *p)
{
    const char *name = p->a->name;
    int behind = 0; /* tensors in no layer come before all layers, or after them */
    enum { AFTER = 1 << 20, PLACES = 16 };

    p->layer = -1;
    for (const char *at = name; p->layer < 0 && at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL) {
        char *end;
        long number = isdigit((unsigned char)*at) ? strtol(at, &end, 10) : -1;

        if (number >= 0 && number < AFTER && (*end == '.' || *end == 0))
            p->layer = (int)number;
    }
    p->role = TT_ROLE_OTHER;
    p->rank = p->layer < 0 ? 1 : 13; /* a whole layer comes after its parts */
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (contains(name, parts[i].words)) {
            p->role = parts[i].role;
            p->rank = parts[i].rank;
            break;
        }
    if (strcmp(name, "output.weight") == 0) {
        p->role = TT_ROLE_HEAD;
        p->rank = 2;
    }
    if (tt_text_begins(name, "norm."))
        p->role = TT_ROLE_NORM;
    if (tt_text_ends(name, ".bias") && p->role != TT_ROLE_HEAD)
        p->role = TT_ROLE_BIAS;
    behind = p->rank > 0;
    p->order = (p->layer >= 0 ? p->layer + 1 : behind ? AFTER : 0) * PLACES + p->rank;
}

/* --- numbers --- */

static void add(struct tt_pair *p, int64_t row, int64_t n, const double *a, const double *b)
{
    int64_t columns = p->columns;

    for (int64_t r = 0; r < n; r++) {
        double sum[4] = {0};

        for (int64_t c = 0; c < columns; c++) {
            double x = a[r * columns + c], y = b[r * columns + c], term[4] = {x * x, y * y, x * y, (y - x) * (y - x)};

            p->zeros_a += x == 0.0;
            p->zeros_b += y == 0.0;
            p->not_finite += !isfinite(x) || !isfinite(y);
            for (int k = 0; k < 4; k++) {
                sum[k] += term[k];
                if (p->column[k])
                    p->column[k][c] += term[k];
            }
        }
        for (int k = 0; k < 4; k++)
            p->row[k][row + r] = sum[k];
    }
}

/* Sums the sums of the rows. */
static void total(struct tt_pair *p)
{
    double sum[4] = {0};

    for (int k = 0; k < 4; k++)
        for (int64_t r = 0; r < p->rows; r++)
            sum[k] += p->row[k][r];
    p->norm_a = sqrt(sum[TT_SUM_AA]);
    p->norm_b = sqrt(sum[TT_SUM_BB]);
    p->norm_diff = sqrt(sum[TT_SUM_DIFF]);
    p->dot = sum[TT_SUM_AB];
}

static int64_t rows_of(const struct tt_dump_tensor *t)
{
    return t->tensor->ndim ? t->tensor->shape[0] : 1;
}

/* Whether both are outputs of a module that differ only in how their dimensions are joined: some modules see a batch as
 * one row of tokens, or all heads as one row. */
static bool is_regrouped(const struct tt_dump_tensor *of, const struct tt_manifest_tensor *a,
                         const struct tt_manifest_tensor *b)
{
    struct tt_box whole = tt_box_whole(a->ndim, a->shape), other = tt_box_whole(b->ndim, b->shape);

    return (of->section == TT_SECTION_ACTIVATIONS || of->section == TT_SECTION_ACTIVATION_GRADIENTS) &&
           tt_box_volume(&whole) == tt_box_volume(&other) && a->ndim > 1 && b->ndim > 1;
}

int tt_pair_measure(const struct tt_dump_tensor *a, const struct tt_dump_tensor *b, struct tt_pair *pair)
{
    const struct tt_manifest_tensor *t = a->tensor;
    struct tt_box whole = tt_box_whole(t->ndim, t->shape), other = tt_box_whole(b->tensor->ndim, b->tensor->shape);
    bool equal = tt_box_equal(&whole, &other);
    double *x = NULL, *y = NULL;
    int64_t step;
    int rc = 0;

    *pair =
        (struct tt_pair){.a = a, .b = b, .rows = rows_of(a), .columns = tt_box_row_elements(&whole), .divisor = 1.0};
    classify(pair);
    if (!equal && !is_regrouped(a, t, b->tensor)) {
        pair->judgement = TT_SHAPE;
        return 0;
    }
    step = pair->columns > 0 && pair->columns < BLOCK_ELEMENTS ? BLOCK_ELEMENTS / pair->columns : 1;
    step = step < pair->rows && equal ? step : pair->rows;
    x = tt_calloc_for((size_t)(step * pair->columns) + 1, sizeof *x, a->name);
    y = tt_calloc_for((size_t)(step * pair->columns) + 1, sizeof *y, a->name);
    TT_TRY(x && y ? 0 : TT_ENOMEM);
    for (int k = 0; k < 4; k++) {
        pair->row[k] = tt_calloc_for((size_t)pair->rows + 1, sizeof(double), a->name);
        TT_TRY(pair->row[k] ? 0 : TT_ENOMEM);
        if (t->ndim < 2)
            continue;
        pair->column[k] = tt_calloc_for((size_t)pair->columns + 1, sizeof(double), a->name);
        TT_TRY(pair->column[k] ? 0 : TT_ENOMEM);
    }
    for (int64_t row = 0; row < pair->rows; row += step) {
        int64_t n = pair->rows - row < step ? pair->rows - row : step;

        TT_TRY(tt_dump_read(a, row, n, x));
        TT_TRY(tt_dump_read(b, row, equal ? n : rows_of(b), y));
        add(pair, row, n, x, y);
    }
    total(pair);
out:
    tt_free(x);
    tt_free(y);
    return rc;
}

void tt_pair_release(struct tt_pair *pair)
{
    for (int k = 0; k < 4; k++) {
        tt_free(pair->row[k]);
        tt_free(pair->column[k]);
    }
    *pair = (struct tt_pair){0};
}

double tt_pair_error(const struct tt_pair *pair)
{
    return pair->norm_diff == 0.0 ? 0.0 : pair->norm_diff / pair->norm_a;
}

double tt_pair_cosine(const struct tt_pair *pair)
{
    return pair->dot / pair->norm_a / pair->norm_b;
}

double tt_pair_ratio(const struct tt_pair *pair)
{
    return pair->norm_b / pair->norm_a;
}

double tt_pair_factor(const struct tt_pair *pair, double *ret_rest)
{
    double aa = pair->norm_a * pair->norm_a, factor = pair->dot / aa;
    double rest = pair->norm_b * pair->norm_b - factor * pair->dot;

    *ret_rest = sqrt(fmax(rest, 0.0)) / (fabs(factor) * pair->norm_a);
    return factor;
}

void tt_pair_divide(struct tt_pair *pair, double factor)
{
    pair->divisor *= factor;
    for (int64_t i = 0; i < pair->rows + (pair->column[0] ? pair->columns : 0); i++) {
        double **sum = i < pair->rows ? pair->row : pair->column;
        int64_t at = i < pair->rows ? i : i - pair->rows;

        sum[TT_SUM_BB][at] /= factor * factor;
        sum[TT_SUM_AB][at] /= factor;
        sum[TT_SUM_DIFF][at] = fmax(sum[TT_SUM_AA][at] + sum[TT_SUM_BB][at] - 2.0 * sum[TT_SUM_AB][at], 0.0);
    }
    total(pair);
}

int tt_pair_read(const struct tt_pair *pair, double **ret_a, double **ret_b)
{
    size_t n = (size_t)(pair->rows * pair->columns) + 1;
    double *a = tt_calloc_for(n, sizeof *a, pair->a->name), *b = a ? tt_calloc_for(n, sizeof *b, pair->a->name) : NULL;
    int rc = b ? 0 : TT_ENOMEM;

    TT_TRY(rc);
    TT_TRY(tt_dump_read(pair->a, 0, pair->rows, a));
    TT_TRY(tt_dump_read(pair->b, 0, rows_of(pair->b), b));
    for (int64_t i = 0; i < pair->rows * pair->columns; i++)
        b[i] /= pair->divisor;
    *ret_a = a;
    *ret_b = b;
    a = b = NULL;
out:
    tt_free(a);
    tt_free(b);
    return rc;
}

double tt_distance(const double *a, const double *b, int64_t n)
{
    double diff = 0.0, size = 0.0;

    for (int64_t i = 0; i < n; i++) {
        diff += (b[i] - a[i]) * (b[i] - a[i]);
        size += a[i] * a[i];
    }
    return diff == 0.0 ? 0.0 : sqrt(diff / size);
}
