/* SPDX-License-Identifier: MIT
 *
 * sequencecheck
 *
 * Divides the sequences of models among 1, 2 and 4 ranks, in 4 grains, alone and with layers that are divided among 1
 * and 2 ranks. In attention, ranks exchange heads or gather keys and values. The ranks run in one process, node by
 * node, and exchanges are done here. The losses of all tokens, and the gradients of all parameters, added over the
 * ranks of a sequence as a tree, must have the same bits for every number of ranks and both methods, and equal those of
 * the undivided graph up to rounding.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/graph/pieces.h"
#include "core/kernels/kernels.h"
#include "core/math/bf16.h"
#include "core/models/model.h"
#include "core/passes/autodiff.h"
#include "core/passes/divide.h"
#include "core/passes/phases.h"
#include "tests/grad/interp.h"

enum { GRAINS = 4, PARTS = 2, MOST = 8, SEQ_LEN = 144, SIDES = 11, MESSAGES = 6 };

struct model_case {
    const char *name, *model;
    struct tt_model_dims dims;
    int64_t batch;
    bool bf16;
    bool layers;     /* layers are divided too */
    bool documents;  /* sequences that do not attend to each other */
    bool contiguous; /* a grain is one piece */
    struct tt_router_losses losses;
    int64_t seq_len; /* 0: SEQ_LEN */
};

/* One division. Rank i * tp + j is place i of a sequence and place j of a layer. cp 0: the undivided graph. */
struct side {
    int tp, cp;
    bool gathers;
    struct tt_graph *graphs[MOST];
    struct interp *interps[MOST];
    int *grads[MOST]; /* value -> its gradient */
};

struct test {
    const struct model_case *of;
    struct tt_model *model;
    struct tt_team *team;
    int failures;
};

static void must(int rc)
{
    if (rc < 0) {
        printf("# %s\n", tt_error_message());
        abort();
    }
}

static void fail(struct test *test, const struct side *side, const char *what, const char *value)
{
    if (test->failures++ < MESSAGES)
        printf("# %s, tp %d, cp %d, %s: %s of '%s' differs\n", test->of->name, side->tp, side->cp,
               side->gathers ? "gathered" : "exchanged", what, value);
}

static int64_t length_of(const struct test *test)
{
    return test->of->seq_len ? test->of->seq_len : SEQ_LEN;
}

static int ranks_of(const struct side *side)
{
    return side->cp ? side->cp * side->tp : 1;
}

/* --- graphs --- */

static struct tt_graph *graph_of(const struct test *test, const struct side *side, int r)
{
    struct tt_divisions divisions = {.cp = {{TT_AXIS_CP, side->cp, r / side->tp}, GRAINS},
                                     .mirrored = !test->of->contiguous,
                                     .gathers = side->gathers};
    struct tt_graph *whole = NULL, *part = NULL;

    must(tt_model_graph(test->model, TT_GRAPH_FORWARD, test->of->bf16 ? TT_BF16 : TT_F32, test->of->batch,
                        length_of(test), test->of->documents, &whole, NULL));
    if (!side->cp)
        return whole;
    if (test->of->layers)
        divisions.tp = (struct tt_division){{TT_AXIS_TP, side->tp, r % side->tp}, PARTS};
    must(tt_graph_divide(whole, &divisions, &part));
    tt_graph_free(whole);
    return part;
}

static void make_side(const struct test *test, struct side *side)
{
    for (int r = 0; r < ranks_of(side); r++) {
        struct tt_graph *graph = side->graphs[r] = graph_of(test, side, r);
        struct tt_seed loss = {graph->token_loss, TT_GRAD_OF_LOSS};

        side->grads[r] = tt_calloc((size_t)graph->n_values, sizeof *side->grads[r]);
        must(tt_graph_differentiate(graph, &loss, 1, side->grads[r]));
        must(tt_graph_add_router_losses(graph, &test->of->losses));
        must(tt_graph_phase_head(graph));
        side->interps[r] = interp_new(graph, true);
        side->interps[r]->scalars.inv_valid_tokens = 1.0F / (float)(test->of->batch * length_of(test));
        side->interps[r]->scalars.inv_tokens = side->interps[r]->scalars.inv_valid_tokens;
    }
}

static void release_side(struct side *side)
{
    for (int r = 0; r < ranks_of(side); r++) {
        interp_free(side->interps[r]);
        tt_graph_free(side->graphs[r]);
        tt_free(side->grads[r]);
    }
}

/* --- parts of values --- */

/* The piece at a place, counted in the order of the rows of all ranks. Mirrored: 0, 7, 1, 6, 2, 5, 3, 4. */
static int64_t piece_at(const struct test *test, int64_t place)
{
    if (test->of->contiguous)
        return place;
    return place % 2 ? 2 * GRAINS - 1 - place / 2 : place / 2;
}

/* The place of a rank's token i among all tokens [sequence][position]; the rank's tokens are
 * [piece][sequence][position]. */
static int64_t token_of(const struct test *test, const struct side *side, int r, int64_t i)
{
    int64_t pieces = test->of->contiguous ? GRAINS : 2 * GRAINS, length = length_of(test) / pieces;
    int64_t of_piece = length * test->of->batch, first;

    if (!side->cp)
        return i;
    first = r / side->tp * (pieces / side->cp);
    return i % of_piece / length * length_of(test) + piece_at(test, first + i / of_piece) * length + i % length;
}

static int64_t first_row(const struct side *side, int r, int value)
{
    int64_t row = 0;

    for (int j = r - r % side->tp; j < r; j++)
        row += side->graphs[j]->values[value].shape[0];
    return row;
}

/* Where element i of a rank's part lies in the whole parameter. */
static int64_t place(const struct side *side, int r, int value, const struct tt_value *whole, int64_t i)
{
    const struct tt_value *part = &side->graphs[r]->values[value];
    int64_t width = tt_value_width(part);

    if (part->shape[0] != whole->shape[0])
        return first_row(side, r, value) * (tt_value_elements(part) / part->shape[0]) + i;
    return i / width * tt_value_width(whole) + (width == tt_value_width(whole) ? 0 : r % side->tp * width) + i % width;
}

static int find(const struct tt_graph *graph, const struct tt_value *like)
{
    for (int v = 0; v < graph->n_values; v++)
        if (graph->values[v].kind == like->kind && graph->values[v].part == like->part &&
            strcmp(graph->values[v].name, like->name) == 0)
            return v;
    return TT_NONE;
}

static void store(struct interp *interp, int value, int64_t i, float x)
{
    if (interp->graph->values[value].dtype == TT_BF16)
        ((tt_bf16 *)interp->data[value])[i] = tt_bf16_from_float(x);
    else
        ((float *)interp->data[value])[i] = x;
}

/* Weights that give activations about the same size everywhere. */
static void fill_whole(struct side *side, struct interp_draw *draw)
{
    struct interp *interp = side->interps[0];

    interp_fill(interp, draw);
    for (int v = 0; v < interp->graph->n_values; v++) {
        const struct tt_value *value = &interp->graph->values[v];
        double scale = 1.0 / sqrt((double)tt_value_width(value));

        for (int64_t i = 0; value->kind == TT_VALUE_PARAM && value->ndim == 2 && i < tt_value_elements(value); i++)
            store(interp, v, i, (float)(scale * interp_normal(draw)));
    }
}

static void fill_rank(const struct test *test, struct side *side, int r, const struct side *whole)
{
    const struct interp *from = whole->interps[0];
    struct interp *to = side->interps[r];

    for (int v = 0; v < to->graph->n_values; v++) {
        const struct tt_value *value = &to->graph->values[v];
        int w = value->kind == TT_VALUE_INPUT && v == to->graph->positions ? TT_NONE : find(from->graph, value);

        if (value->producer != TT_NONE)
            continue;
        for (int64_t i = 0; i < tt_value_elements(value); i++) {
            int64_t token = value->kind == TT_VALUE_INPUT ? token_of(test, side, r, i) : 0;

            if (v == to->graph->positions)
                ((int32_t *)to->data[v])[i] = test->of->documents
                                                  ? ((int32_t *)from->data[from->graph->positions])[token]
                                                  : (int32_t)(token % length_of(test));
            else if (value->kind == TT_VALUE_INPUT)
                ((int32_t *)to->data[v])[i] = ((int32_t *)from->data[w])[token];
            else
                store(to, v, i, (float)interp_element(from, w, place(side, r, v, &from->graph->values[w], i)));
        }
    }
}

/* --- running --- */

/* The sum of n terms, by the tree that is full on the left. */
static float sum_of(const float *terms, int n)
{
    int half = 1;

    if (n == 1)
        return *terms;
    while (2 * half < n)
        half *= 2;
    return sum_of(terms, half) + sum_of(terms + half, n - half);
}

/* One exchange of n ranks. */
static void exchange(struct interp *const *ranks, int n, const struct tt_node *node)
{
    enum tt_op_exchange kind = tt_op_row(node->op)->exchange;
    int in = node->in[0], out = node->out[0];
    int64_t elements = tt_value_elements(&ranks[0]->graph->values[out]);
    size_t bytes = (size_t)tt_value_bytes(&ranks[0]->graph->values[in]);
    size_t block = kind == TT_EXCHANGE_BLOCKS ? bytes / (size_t)n : bytes;

    for (int r = 0; r < n; r++) {
        for (int from = 0; (kind == TT_EXCHANGE_BLOCKS || kind == TT_EXCHANGE_GATHER) && from < n; from++)
            memcpy((char *)ranks[r]->data[out] + (size_t)from * block,
                   (char *)ranks[from]->data[in] + (kind == TT_EXCHANGE_BLOCKS ? (size_t)r * block : 0), block);
        for (int64_t i = 0; (kind == TT_EXCHANGE_SCATTER || kind == TT_EXCHANGE_SUM) && i < elements; i++) {
            const float *acc = kind == TT_EXCHANGE_SUM && node->in[1] != TT_NONE ? ranks[r]->data[node->in[1]] : NULL;
            float terms[MOST], sum;

            for (int p = 0; p < n; p++)
                terms[p] = ((const float *)ranks[p]->data[in])[(kind == TT_EXCHANGE_SCATTER ? r * elements : 0) + i];
            sum = sum_of(terms, n);
            store(ranks[r], out, i, acc ? acc[i] + sum : sum);
        }
    }
}

/* Every group of ranks that differ only in their place on the axis. */
static void exchange_all(const struct side *side, const struct tt_node *node)
{
    bool tp = node->attr.peers.axis == TT_AXIS_TP;
    int n = tp ? side->tp : side->cp;
    struct interp *ranks[MOST];

    for (int g = 0; g < ranks_of(side) / n; g++) {
        for (int i = 0; i < n; i++)
            ranks[i] = side->interps[tp ? g * side->tp + i : i * side->tp + g];
        exchange(ranks, n, node);
    }
}

static void run_side(struct test *test, struct side *side)
{
    for (int n = 0; n < side->graphs[0]->n_nodes; n++) {
        const struct tt_node *node = &side->graphs[0]->nodes[n];

        if (tt_op_row(node->op)->exchange)
            exchange_all(side, node);
        for (int r = 0; r < ranks_of(side) && !tt_op_row(node->op)->exchange; r++)
            if (!interp_run_node(side->interps[r], test->team, n))
                fail(test, side, "the scratch", tt_op_row(node->op)->name);
    }
}

/* --- comparing --- */

static double *losses_of(const struct test *test, const struct side *side)
{
    double *all = tt_calloc((size_t)(test->of->batch * length_of(test)), sizeof *all);

    for (int r = 0; r < ranks_of(side); r++) {
        int value = side->graphs[r]->token_loss;

        for (int64_t i = 0; i < tt_value_elements(&side->graphs[r]->values[value]); i++)
            all[token_of(test, side, r, i)] = interp_element(side->interps[r], value, i);
    }
    return all;
}

/* The whole gradient of a parameter, added over the ranks of a sequence. */
static double *gradient_of(const struct side *side, const struct tt_value *param)
{
    double *all = tt_calloc((size_t)tt_value_elements(param), sizeof *all);

    for (int j = 0; j < (side->cp ? side->tp : 1); j++) {
        int value = find(side->graphs[j], param);

        for (int64_t i = 0; i < tt_value_elements(&side->graphs[j]->values[value]); i++) {
            float terms[MOST];

            for (int p = 0; p < (side->cp ? side->cp : 1); p++) {
                int r = p * side->tp + j;

                terms[p] = (float)interp_element(side->interps[r], side->grads[r][value], i);
            }
            all[place(side, j, value, param, i)] = (double)sum_of(terms, side->cp ? side->cp : 1);
        }
    }
    return all;
}

/* Bits of `one` rank and of a side, and the values of the undivided graph; frees the side's. */
static void compare(struct test *test, const struct side *side, const double *whole, const double *one, double *many,
                    int64_t n, const char *name)
{
    double size = 0.0, error = 0.0;

    if (memcmp(one, many, (size_t)n * sizeof *one) != 0)
        fail(test, side, "a bit", name);
    for (int64_t i = 0; i < n; i++) {
        size = fmax(size, fabs(whole[i]));
        error = isfinite(many[i]) ? fmax(error, fabs(many[i] - whole[i])) : INFINITY;
    }
    if (strstr(name, "wk.bias")) /* softmax does not depend on it: its gradient is nothing but rounding */
        error = 0.0;
    if (!(size > 0.0) || !(error <= (test->of->bf16 ? 6e-2 : 4e-5) * size)) {
        printf("# error %g of %g\n", error, size);
        fail(test, side, "the size", name);
    }
    tt_free(many);
}

static void compare_sides(struct test *test, const struct side *sides, int n_sides)
{
    const struct tt_graph *graph = sides[0].graphs[0];
    double *whole = losses_of(test, &sides[0]), *one = losses_of(test, &sides[1]);

    for (int s = 1; s < n_sides; s++)
        compare(test, &sides[s], whole, one, losses_of(test, &sides[s]), test->of->batch * length_of(test),
                "token_loss");
    for (int v = 0; v < graph->n_values; v++) {
        const struct tt_value *param = &graph->values[v];

        if (param->kind != TT_VALUE_PARAM || param->constant)
            continue;
        tt_free(whole);
        tt_free(one);
        whole = gradient_of(&sides[0], param);
        one = gradient_of(&sides[1], param);
        for (int s = 1; s < n_sides; s++)
            compare(test, &sides[s], whole, one, gradient_of(&sides[s], param), tt_value_elements(param), param->name);
    }
    tt_free(whole);
    tt_free(one);
}

/* The undivided graph, one rank, and the possible divisions. Returns their number. */
static int choose_sides(const struct test *test, struct side *sides)
{
    static const struct {
        int tp, cp;
        bool gathers;
    } all[SIDES] = {{1, 0, false}, {1, 1, false}, {1, 2, false}, {1, 4, false}, {1, 2, true}, {1, 4, true},
                    {2, 1, false}, {2, 2, false}, {2, 4, false}, {2, 2, true},  {2, 4, true}};
    int parts = test->of->layers ? PARTS : 1, n = 0;

    for (int s = 0; s < SIDES; s++) {
        bool divides = all[s].gathers || !all[s].cp || test->model->dims.n_kv_heads % (all[s].cp * parts) == 0;

        if (divides && all[s].tp <= parts)
            sides[n++] = (struct side){.tp = all[s].tp, .cp = all[s].cp, .gathers = all[s].gathers};
    }
    return n;
}

static bool run_case(const struct model_case *of, int threads)
{
    struct test test = {.of = of};
    struct interp_draw draw = {.rng = tt_rng_make(13, of->name)};
    struct side sides[SIDES] = {{.cp = 0}};
    int n;

    must(tt_team_new(threads, &test.team));
    must(tt_model_new(of->model, "debugmodel", &of->dims, NULL, &test.model));
    n = choose_sides(&test, sides);
    for (int s = 0; s < n; s++) {
        make_side(&test, &sides[s]);
        if (s == 0)
            fill_whole(&sides[0], &draw);
        for (int r = 0; s > 0 && r < ranks_of(&sides[s]); r++)
            fill_rank(&test, &sides[s], r, &sides[0]);
        run_side(&test, &sides[s]);
    }
    compare_sides(&test, sides, n);
    for (int s = 0; s < n; s++)
        release_side(&sides[s]);
    printf("%s - %s\n", test.failures ? "not ok" : "ok", of->name);
    tt_model_free(test.model);
    tt_team_free(test.team);
    return test.failures == 0;
}

/* --- what is refused --- */

static bool refused(const char *model, int64_t seq_len, struct tt_divisions divisions, const char *wanted)
{
    const struct tt_model_dims dims = {.n_heads = 8, .n_kv_heads = 4, .tied = -1};
    struct tt_model *of = NULL;
    struct tt_graph *graph = NULL, *part = NULL;
    bool good;

    must(tt_model_new(model, "debugmodel", &dims, NULL, &of));
    must(tt_model_graph(of, TT_GRAPH_VALIDATE, TT_F32, 1, seq_len, false, &graph, NULL));
    good = tt_graph_divide(graph, &divisions, &part) == TT_EINTERNAL && strstr(tt_error_message(), wanted);
    if (!good)
        printf("# wanted '%s', got '%s'\n", wanted, tt_error_message());
    tt_graph_free(graph);
    tt_graph_free(part);
    tt_model_free(of);
    return good;
}

static bool check_refusals(void)
{
    const struct tt_division eight = {{TT_AXIS_CP, 8, 0}, 8}, four = {{TT_AXIS_CP, 4, 0}, 4};
    const struct tt_division three = {{TT_AXIS_CP, 2, 0}, 3}, two = {{TT_AXIS_TP, 1, 0}, 2};
    bool good = refused("llama3", 16, (struct tt_divisions){.cp = eight}, "4 heads of keys and values");

    good = refused("llama3", 18, (struct tt_divisions){.cp = four}, "18 tokens cannot be divided into 4 p") && good;
    good = refused("llama3", 20, (struct tt_divisions){.cp = four, .mirrored = true}, "divided into 8 pieces") && good;
    good = refused("llama3", 18, (struct tt_divisions){.cp = three}, "3 grains of a sequence") && good;
    good = refused("qwen3", 16, (struct tt_divisions){.cp = four, .tp = two},
                   "4 of 'layers.0.attention.heads' cannot be divided into 8 grains") &&
           good;
    printf("%s - what cannot be divided is refused\n", good ? "ok" : "not ok");
    return good;
}

#define LLAMA                                                                                                      \
    {                                                                                                              \
        .dim = 48, .n_layers = 2, .n_heads = 16, .n_kv_heads = 8, .head_dim = 8, .ffn_dim = 96, .vocab_size = 301, \
    }
#define ADAPTERS                                                            \
    {                                                                       \
        .n_layers = 1, .n_heads = 8, .n_kv_heads = 4, .tied = -1, .lora = { \
            .rank = 4,                                                      \
            .alpha = 8.0,                                                   \
            .dora = true,                                                   \
            .dropout = 0.3,                                                 \
            .modules = 0x7f                                                 \
        }                                                                   \
    }
#define GPT2                                                                                                 \
    {                                                                                                        \
        .dim = 64, .n_layers = 2, .n_heads = 8, .n_kv_heads = 8, .head_dim = 8, .vocab_size = 301, .tied = 1 \
    }
#define LATENT(of_queries)                                                                        \
    {                                                                                             \
        .dim = 48, .n_layers = 2, .n_heads = 8, .head_dim = 12, .ffn_dim = 96, .vocab_size = 301, \
        .mla = {.kv_rank = 20, .q_rank = of_queries, .rope_dim = 4, .value_dim = 10}, .moe = {    \
            .dense_layers = 2                                                                     \
        }                                                                                         \
    }

/* Numbers of key/value heads that only two ranks can exchange, and that only one can. */
#define TWO                                                                                                        \
    {                                                                                                              \
        .dim = 32, .n_layers = 1, .n_heads = 8, .n_kv_heads = 2, .head_dim = 12, .ffn_dim = 48, .vocab_size = 101, \
    }
#define EIGHT                                                                                                     \
    {                                                                                                             \
        .dim = 32, .n_layers = 1, .n_heads = 8, .n_kv_heads = 8, .head_dim = 8, .ffn_dim = 48, .vocab_size = 101, \
    }
#define ONE                                                                                                       \
    {                                                                                                             \
        .dim = 32, .n_layers = 1, .n_heads = 3, .n_kv_heads = 1, .head_dim = 8, .ffn_dim = 48, .vocab_size = 101, \
    }

#define EXPERTS                                                                                                   \
    {                                                                                                             \
        .dim = 32, .n_layers = 2, .n_heads = 8, .n_kv_heads = 4, .head_dim = 8, .ffn_dim = 24, .vocab_size = 101, \
        .moe = {                                                                                                  \
            .experts = 6,                                                                                         \
            .top_k = 2                                                                                            \
        }                                                                                                         \
    }

static const struct model_case cases[] = {
    {"llama3", "llama3", LLAMA, 4, .bf16 = false},
    {"llama3, one sequence", "llama3", LLAMA, 1, .contiguous = true},
    {"qwen3", "qwen3", LLAMA, 2, .bf16 = false},
    {"gpt2", "gpt2", GPT2, 3, .documents = true},
    {"llama3 in bfloat16", "llama3", LLAMA, 2, .bf16 = true},
    {"llama3, adapters", "llama3", ADAPTERS, 2, .bf16 = false},
    {"llama3, layers", "llama3", LLAMA, 2, .layers = true},
    {"qwen3, layers", "qwen3", LLAMA, 2, .layers = true, .documents = true},
    {"gpt2, layers", "gpt2", GPT2, 2, .layers = true},
    {"llama3, layers, in bfloat16", "llama3", LLAMA, 1, .bf16 = true, .layers = true},
    {"two heads, pieces of 67 tokens", "llama3", TWO, 2, .seq_len = 536},
    {"two heads, in bfloat16, documents", "qwen3", TWO, 1, .bf16 = true, .documents = true, .seq_len = 1048},
    {"as many tasks as ranges of keys", "llama3", EIGHT, 4, .seq_len = 512},
    {"one head, documents", "llama3", ONE, 2, .documents = true, .seq_len = 536},
    {"mixtral", "mixtral", EXPERTS, 2, .bf16 = false},
    {"mixtral, losses", "mixtral", EXPERTS, 3, .contiguous = true, .losses = {0.3F, 0.2F, 0.1F}},
    {"mixtral, losses, mirrored", "mixtral", EXPERTS, 2, .documents = true, .losses = {0.3F, 0.2F, 0.0F}},
    {"one head, contiguous", "llama3", ONE, 1, .contiguous = true, .seq_len = 1100},
    {"deepseek_v3", "deepseek_v3", LATENT(28), 2, .documents = true},
    {"deepseek_v3, layers", "deepseek_v3", LATENT(0), 2, .layers = true},
    {"deepseek_v3, layers, in bfloat16", "deepseek_v3", LATENT(28), 1, .bf16 = true, .layers = true, .documents = true},
};

int main(void)
{
    bool good = true;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        good = run_case(&cases[i], 1 + (int)i % 3) && good;
    good = check_refusals() && good;
    return good ? 0 : 1;
}
