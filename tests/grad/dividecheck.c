/* SPDX-License-Identifier: MIT
 *
 * dividecheck
 *
 * Divides the graphs of models among 1, 2, 4 and 8 ranks, in 8 grains, and runs the ranks in one process, node by node;
 * exchanges are done here, in the order of core/math/tree.h. The outputs and the gradients of all parameters must have
 * the same bits for every number of ranks, and equal those of the undivided graph up to rounding.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/math/bf16.h"
#include "core/models/model.h"
#include "core/passes/autodiff.h"
#include "core/passes/divide.h"
#include "core/passes/phases.h"
#include "core/passes/recompute.h"
#include "core/passes/stage.h"
#include "tests/grad/interp.h"
#include "tests/help/tree.h"

enum { GRAINS = 8, BATCH = 2, SEQ_LEN = 144, MESSAGES = 6 };

struct model_case {
    const char *name, *model;
    struct tt_model_dims dims;
    bool documents, bf16;
    bool aliased; /* outputs take the memory of inputs */
    enum tt_recompute_mode recompute;
    float z_loss;
};

/* One division: the graphs of its ranks. */
struct side {
    int n; /* ranks; 0: the undivided graph */
    struct tt_graph *graphs[GRAINS];
    struct interp *interps[GRAINS];
    int *grads[GRAINS]; /* value -> its gradient */
};

struct test {
    const struct model_case *of;
    struct tt_team *team;
    struct tt_model *model;
    int failures;
};

static void must(int rc)
{
    if (rc < 0) {
        printf("# %s\n", tt_error_message());
        abort();
    }
}

static void fail(struct test *test, int n, const char *what, const char *value)
{
    if (test->failures++ < MESSAGES)
        printf("# %s, %d ranks: %s of '%s' differs\n", test->of->name, n, what, value);
}

/* --- graphs --- */

static struct tt_graph *whole_graph(const struct test *test)
{
    struct tt_graph *graph = NULL;

    must(tt_model_graph(test->model, TT_GRAPH_FORWARD, test->of->bf16 ? TT_BF16 : TT_F32, BATCH, SEQ_LEN,
                        test->of->documents, &graph, NULL));
    return graph;
}

static void differentiate(const struct model_case *of, struct side *side, int r)
{
    struct tt_graph *graph = side->graphs[r];
    struct tt_seed seed = {graph->token_loss, TT_GRAD_OF_LOSS};

    side->grads[r] = tt_calloc((size_t)graph->n_values, sizeof *side->grads[r]);
    must(tt_graph_differentiate(graph, &seed, 1, side->grads[r]));
    must(tt_graph_add_z_loss(graph, of->z_loss));
    tt_graph_recompute(graph, &(struct tt_recompute){.mode = of->recompute, .every = 1});
    if (of->documents)
        must(tt_graph_carry_gradients(graph));
    must(tt_graph_phase_head(graph));
    side->interps[r] = interp_new(graph, of->aliased);
}

static void make_side(const struct test *test, struct side *side, int n)
{
    side->n = n;
    for (int r = 0; r < (n ? n : 1); r++) {
        struct tt_graph *whole = whole_graph(test);
        struct tt_divisions divisions = {.tp = {.peers = {TT_AXIS_TP, n, r}, .grains = GRAINS}};

        if (n) {
            must(tt_graph_divide(whole, &divisions, &side->graphs[r]));
            tt_graph_free(whole);
        } else {
            side->graphs[r] = whole;
        }
        differentiate(test->of, side, r);
    }
}

static int ranks_of(const struct side *side)
{
    return side->n ? side->n : 1;
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

static size_t size_of(const struct tt_value *value)
{
    return tt_dtype_size(value->dtype);
}

/* Where element i of rank r's part lies in the whole value, if the part is smaller in one dimension. */
static int64_t place(const struct tt_value *whole, const struct tt_value *part, int64_t first_row, int r, int64_t i)
{
    int64_t width = tt_value_width(part);

    if (part->shape[0] != whole->shape[0])
        return first_row * (tt_value_elements(part) / part->shape[0]) + i;
    if (width != tt_value_width(whole))
        return i / width * tt_value_width(whole) + r * width + i % width;
    return i;
}

/* The first row of each rank's part, since parts may differ in length. */
static int64_t first_row(const struct side *side, int r, int value)
{
    int64_t row = 0;

    for (int i = 0; i < r; i++)
        row += side->graphs[i]->values[value].shape[0];
    return row;
}

static int find(const struct tt_graph *graph, const struct tt_value *like)
{
    for (int v = 0; v < graph->n_values; v++)
        if (graph->values[v].producer == TT_NONE && graph->values[v].kind == like->kind &&
            graph->values[v].part == like->part && strcmp(graph->values[v].name, like->name) == 0)
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

/* Weights that give activations about the same size everywhere; likewise gradients that come from outside. */
static void fill_whole(struct side *side, struct interp_draw *draw)
{
    struct interp *interp = side->interps[0];
    const struct tt_graph *graph = interp->graph;

    interp_fill(interp, draw);
    for (int v = 0; v < graph->n_values; v++) {
        const struct tt_value *value = &graph->values[v];
        bool matrix = value->ndim == 2 && value->kind == TT_VALUE_PARAM && v != graph->nodes[0].in[1];
        bool grad = value->kind == TT_VALUE_GRAD || value->kind == TT_VALUE_PARAM_GRAD;
        double scale = matrix ? 1.0 / sqrt((double)tt_value_width(value)) : 1.0;

        for (int64_t i = 0; value->producer == TT_NONE && (matrix || grad) && i < tt_value_elements(value); i++)
            store(interp, v, i, (float)(scale * interp_normal(draw)));
    }
}

/* Copies the parts of the values that no node of the whole graph makes. */
static void fill_side(struct side *side, const struct side *whole)
{
    for (int r = 0; r < ranks_of(side); r++) {
        const struct interp *to = side->interps[r], *from = whole->interps[0];

        side->interps[r]->scalars = from->scalars;
        for (int v = 0; v < to->graph->n_values; v++) {
            const struct tt_value *part = &to->graph->values[v];
            int w = part->producer == TT_NONE ? find(from->graph, part) : TT_NONE;

            for (int64_t i = 0; w != TT_NONE && i < tt_value_elements(part); i++)
                memcpy((char *)to->data[v] + (size_t)i * size_of(part),
                       (char *)from->data[w] +
                           (size_t)place(&from->graph->values[w], part, first_row(side, r, v), r, i) * size_of(part),
                       size_of(part));
        }
    }
}

/* The whole of a value, as doubles, from the parts of all ranks. Sets `differ` if ranks hold different copies. */
static double *assemble(const struct side *side, const int *values, const struct tt_value *whole, bool *ret_differ)
{
    int64_t n = tt_value_elements(whole);
    double *all = tt_calloc((size_t)n, sizeof *all);
    int64_t row = 0;

    for (int64_t i = 0; i < n; i++)
        all[i] = NAN;
    for (int r = 0; r < ranks_of(side); r++) {
        const struct tt_value *part = &side->graphs[r]->values[values[r]];

        for (int64_t i = 0; i < tt_value_elements(part); i++) {
            int64_t at = place(whole, part, row, r, i);
            double x = interp_element(side->interps[r], values[r], i);

            if (tt_value_elements(part) == n && r > 0 && memcmp(&all[at], &x, sizeof x) != 0)
                *ret_differ = true;
            all[at] = x;
        }
        row += part->shape[0];
    }
    return all;
}

/* --- running --- */

static float *floats_of(const struct side *side, int r, int value, int64_t begin, int64_t n)
{
    float *x = tt_calloc((size_t)n, sizeof *x);

    for (int64_t i = 0; i < n; i++)
        x[i] = (float)interp_element(side->interps[r], value, begin + i);
    return x;
}

/* The sum over the ranks of elements [begin, begin + n) of a value. */
static float *sum_of(const struct side *side, int value, int64_t begin, int64_t n)
{
    float *terms[GRAINS];

    for (int r = 0; r < side->n; r++)
        terms[r] = floats_of(side, r, value, begin, n);
    fold_tree(terms, side->n, n);
    for (int r = 1; r < side->n; r++)
        tt_free(terms[r]);
    return terms[0];
}

static void exchange_sum(struct side *side, const struct tt_node *node, bool scatter)
{
    int64_t n = tt_value_elements(&side->graphs[0]->values[node->out[0]]);

    for (int r = 0; r < side->n; r++) {
        struct interp *interp = side->interps[r];
        float *sum = sum_of(side, node->in[0], scatter ? r * n : 0, n);
        const float *acc = !scatter && node->in[1] != TT_NONE ? interp->data[node->in[1]] : NULL;

        for (int64_t i = 0; i < n; i++)
            store(interp, node->out[0], i, acc ? acc[i] + sum[i] : sum[i]);
        tt_free(sum);
    }
}

/* Block b of rank r goes to block r of rank b; in a gather every rank has one block, which all ranks get. */
static void exchange_blocks(struct side *side, const struct tt_node *node, bool gather)
{
    const struct tt_value *in = &side->graphs[0]->values[node->in[0]];
    size_t block = (size_t)tt_value_bytes(in) / (gather ? 1 : (size_t)side->n);

    for (int to = 0; to < side->n; to++)
        for (int from = 0; from < side->n; from++)
            memcpy((char *)side->interps[to]->data[node->out[0]] + (size_t)from * block,
                   (char *)side->interps[from]->data[node->in[0]] + (gather ? 0 : (size_t)to * block), block);
}

static void exchange(struct side *side, const struct tt_node *node)
{
    switch (tt_op_row(node->op)->exchange) {
    case TT_EXCHANGE_GATHER:
        exchange_blocks(side, node, true);
        break;
    case TT_EXCHANGE_BLOCKS:
        exchange_blocks(side, node, false);
        break;
    case TT_EXCHANGE_SCATTER:
        exchange_sum(side, node, true);
        break;
    default:
        exchange_sum(side, node, false);
    }
}

static void run_side(struct test *test, struct side *side)
{
    for (int n = 0; n < side->graphs[0]->n_nodes; n++) {
        const struct tt_node *node = &side->graphs[0]->nodes[n];

        if (tt_op_row(node->op)->exchange) {
            exchange(side, node);
            continue;
        }
        for (int r = 0; r < ranks_of(side); r++)
            if (!interp_run_node(side->interps[r], test->team, n))
                fail(test, side->n, "the scratch", tt_op_row(node->op)->name);
    }
}

/* --- comparing --- */

/* Bits against those of one rank, and the values against the undivided graph's. */
static void compare(struct test *test, const struct side *sides, int s, int (*values)[GRAINS], const char *name)
{
    const struct tt_value *whole = &sides[0].graphs[0]->values[values[0][0]];
    double *all[3], size = 0.0, error = 0.0;
    bool differ = false;
    int64_t n = tt_value_elements(whole);

    all[0] = assemble(&sides[0], values[0], whole, &differ);
    all[1] = assemble(&sides[1], values[1], whole, &differ);
    all[2] = assemble(&sides[s], values[s], whole, &differ);
    if (differ)
        fail(test, sides[s].n, "a rank's copy", name);
    if (memcmp(all[1], all[2], (size_t)n * sizeof(double)) != 0)
        fail(test, sides[s].n, "a bit", name);
    for (int64_t i = 0; i < n; i++) {
        size = fmax(size, fabs(all[0][i]));
        error = fmax(error, fabs(all[2][i] - all[0][i]));
    }
    if (strstr(name, "wk.bias")) /* softmax does not depend on it, so its gradient is only rounding error */
        error = 0.0;
    /* The gradients of adapters are small sums of large terms: 1.4e-5 and 2.5e-5 of error, by the kernels. */
    if (!(size > 0.0) || !(error <= (test->of->bf16 ? 6e-2 : 1e-4) * size)) {
        printf("# error %g of %g\n", error, size);
        fail(test, sides[s].n, "the size", name);
    }
    for (int i = 0; i < 3; i++)
        tt_free(all[i]);
}

enum { SIDES = 5 }; /* undivided, 1, 2, 4, 8 ranks */

static void compare_sides(struct test *test, const struct side *sides)
{
    int values[SIDES][GRAINS];

    for (int s = 1; s < SIDES; s++) {
        for (int i = 0; i < SIDES; i++)
            for (int r = 0; r < ranks_of(&sides[i]); r++)
                values[i][r] = sides[i].graphs[r]->token_loss;
        compare(test, sides, s, values, "token_loss");
        for (int v = 0; v < sides[0].graphs[0]->n_values; v++) {
            const struct tt_value *param = &sides[0].graphs[0]->values[v];

            if (param->kind != TT_VALUE_PARAM || sides[0].grads[0][v] == TT_NONE)
                continue;
            for (int i = 0; i < SIDES; i++)
                for (int r = 0; r < ranks_of(&sides[i]); r++)
                    values[i][r] = sides[i].grads[r][find(sides[i].graphs[r], param)];
            compare(test, sides, s, values, param->name);
        }
    }
}

static bool run_case(const struct model_case *of, int threads)
{
    struct test test = {.of = of};
    struct interp_draw draw = {.rng = tt_rng_make(11, of->name)};
    struct side sides[SIDES] = {{0}};

    must(tt_team_new(threads, &test.team));
    must(tt_model_new(of->model, "debugmodel", &of->dims, NULL, &test.model));
    for (int s = 0; s < SIDES; s++)
        make_side(&test, &sides[s], s ? 1 << (s - 1) : 0);
    fill_whole(&sides[0], &draw);
    for (int s = 0; s < SIDES; s++) {
        if (s)
            fill_side(&sides[s], &sides[0]);
        run_side(&test, &sides[s]);
    }
    compare_sides(&test, sides);
    for (int s = 0; s < SIDES; s++)
        release_side(&sides[s]);
    printf("%s - %s\n", test.failures ? "not ok" : "ok", of->name);
    tt_model_free(test.model);
    tt_team_free(test.team);
    return test.failures == 0;
}

/* --- graphs that cannot be divided, and the effects of a division --- */

static bool refused(const char *model, const struct tt_model_dims *dims, struct tt_divisions divisions,
                    const char *wanted)
{
    struct tt_model *of = NULL;
    struct tt_graph *graph = NULL, *part = NULL;
    bool good;

    must(tt_model_new(model, "debugmodel", dims, NULL, &of));
    must(tt_model_graph(of, TT_GRAPH_VALIDATE, TT_F32, 1, 16, false, &graph, NULL));
    good = tt_graph_divide(graph, &divisions, &part) == TT_EINTERNAL && strstr(tt_error_message(), wanted);
    if (!good)
        printf("# wanted '%s', got '%s'\n", wanted, tt_error_message());
    tt_graph_free(graph);
    tt_graph_free(part);
    tt_model_free(of);
    return good;
}

#define LLAMA(is_tied)                                                                                               \
    {                                                                                                                \
        .dim = 48, .n_layers = 2, .n_heads = 16, .n_kv_heads = 8, .head_dim = 8, .ffn_dim = 1536, .vocab_size = 301, \
        .tied = is_tied                                                                                              \
    }
#define HEAD_NORMS                                                                                                   \
    {                                                                                                                \
        .dim = 48, .n_layers = 2, .n_heads = 16, .n_kv_heads = 8, .head_dim = 8, .ffn_dim = 1536, .vocab_size = 301, \
        .tied = 1, .head_norms = true                                                                                \
    }
#define ADAPTED(of_modules)                                                                                          \
    {                                                                                                                \
        .dim = 48, .n_layers = 2, .n_heads = 16, .n_kv_heads = 8, .head_dim = 8, .ffn_dim = 1536, .vocab_size = 301, \
        .lora = {                                                                                                    \
            .rank = 3,                                                                                               \
            .alpha = 8.0,                                                                                            \
            .dora = true,                                                                                            \
            .dropout = 0.3,                                                                                          \
            .modules = of_modules                                                                                    \
        }                                                                                                            \
    }
#define GPT2                                                                                                 \
    {                                                                                                        \
        .dim = 64, .n_layers = 2, .n_heads = 8, .n_kv_heads = 8, .head_dim = 8, .vocab_size = 301, .tied = 1 \
    }
#define LATENT(of_queries)                                                                         \
    {                                                                                              \
        .dim = 48, .n_layers = 2, .n_heads = 16, .head_dim = 12, .ffn_dim = 96, .vocab_size = 301, \
        .mla = {.kv_rank = 20, .q_rank = of_queries, .rope_dim = 4, .value_dim = 10}, .moe = {     \
            .dense_layers = 2                                                                      \
        }                                                                                          \
    }

static bool check_refusals(void)
{
    const struct tt_model_dims heads = {.n_heads = 8, .n_kv_heads = 4, .tied = -1};
    const struct tt_model_dims vocabulary = {.vocab_size = 49, .tied = -1};
    const struct tt_division eight = {.peers = {TT_AXIS_TP, 2, 0}, .grains = 8};
    const struct tt_division three = {.peers = {TT_AXIS_TP, 2, 0}, .grains = 3};
    bool good = refused("llama3", &heads, (struct tt_divisions){.tp = eight},
                        "4 of 'layers.0.attention.heads' cannot be divided into 8 grains");

    good = refused("llama3", &vocabulary, (struct tt_divisions){.tp = eight},
                   "49 of 'tok_embeddings.weight' cannot be divided into 8 grains") &&
           good;
    good = refused("llama3", &heads, (struct tt_divisions){.tp = three}, "3 grains cannot be divided among 2") && good;
    printf("%s - what cannot be divided is refused\n", good ? "ok" : "not ok");
    return good;
}

/* The ranks of a stage send only their own rows to the next stage. */
static bool check_stages(void)
{
    const struct tt_divisions divisions = {.tp = {.peers = {TT_AXIS_TP, 4, 1}, .grains = GRAINS}};
    const struct model_case of = {"stages", "llama3", LLAMA(0), true, true, false, TT_RECOMPUTE_NONE, 0.0F};
    struct test test = {.of = &of};
    struct tt_graph *whole, *part = NULL;
    struct tt_stage stages[2];
    int *stage_of;
    bool good;

    must(tt_model_new(of.model, "debugmodel", &of.dims, NULL, &test.model));
    whole = whole_graph(&test);
    must(tt_graph_divide(whole, &divisions, &part));
    stage_of = tt_calloc((size_t)part->n_nodes, sizeof *stage_of);
    tt_graph_stages_by_block(part, 2, stage_of);
    must(tt_graph_cut(part, stage_of, 2, stages));
    good =
        stages[0].n_out == 1 && tt_value_rows(&stages[0].graph->values[stages[0].out[0].value]) == BATCH * SEQ_LEN / 4;
    must(tt_stages_differentiate(stages, 2));
    for (int s = 0; s < 2; s++)
        good = good && stages[s].graph->dtype == TT_BF16 && stages[s].graph->documents;
    printf("%s - a divided graph is cut into stages\n", good ? "ok" : "not ok");
    tt_stages_release(stages, 2);
    tt_free(stage_of);
    tt_graph_free(whole);
    tt_graph_free(part);
    tt_model_free(test.model);
    return good;
}

/* Without grains the graph is the same, op by op. */
static bool check_identity(void)
{
    const struct model_case of = {"identity", "gpt2", GPT2, false, false, false, TT_RECOMPUTE_NONE, 0.0F};
    struct test test = {.of = &of};
    struct tt_graph *whole, *same = NULL;
    bool good;

    must(tt_model_new(of.model, "debugmodel", &of.dims, NULL, &test.model));
    whole = whole_graph(&test);
    must(tt_graph_divide(whole, &(struct tt_divisions){0}, &same));
    good = whole->n_nodes == same->n_nodes && whole->n_values == same->n_values &&
           strcmp(whole->values[whole->token_loss].name, same->values[same->token_loss].name) == 0;
    for (int n = 0; n < whole->n_nodes && good; n++)
        good = whole->nodes[n].op == same->nodes[n].op && whole->nodes[n].block == same->nodes[n].block &&
               memcmp(&whole->nodes[n].attr, &same->nodes[n].attr, sizeof whole->nodes[n].attr) == 0;
    printf("%s - a graph without grains stays as it is\n", good ? "ok" : "not ok");
    tt_graph_free(whole);
    tt_graph_free(same);
    tt_model_free(test.model);
    return good;
}

static const struct model_case cases[] = {
    {"llama3", "llama3", LLAMA(0), false, false, false, TT_RECOMPUTE_NONE, 0.0F},
    {"llama3, tied, documents", "llama3", LLAMA(1), true, false, false, TT_RECOMPUTE_NONE, 0.0F},
    {"llama3, every block twice, in shared memory", "llama3", LLAMA(0), false, false, true, TT_RECOMPUTE_FULL, 0.25F},
    {"qwen3", "qwen3", LLAMA(0), false, false, false, TT_RECOMPUTE_NONE, 0.0F},
    {"gpt2", "gpt2", GPT2, false, false, false, TT_RECOMPUTE_NONE, 0.0F},
    {"gpt2, documents, in shared memory", "gpt2", GPT2, true, false, true, TT_RECOMPUTE_OP, 0.25F},
    {"cohere2, norms with weights of each head", "cohere2", HEAD_NORMS, true, false, true, TT_RECOMPUTE_OP, 0.0F},
    {"cohere2, the same in bfloat16", "cohere2", HEAD_NORMS, false, true, false, TT_RECOMPUTE_NONE, 0.0F},
    {"llama3 in bfloat16", "llama3", LLAMA(0), false, true, false, TT_RECOMPUTE_NONE, 0.0F},
    {"qwen3, documents, in bfloat16, in shared memory", "qwen3", LLAMA(1), true, true, true, TT_RECOMPUTE_OP, 0.25F},
    {"gpt2 in bfloat16", "gpt2", GPT2, false, true, false, TT_RECOMPUTE_NONE, 0.0F},
    {"llama3, adapters of all layers", "llama3", ADAPTED(0x7f), false, false, false, TT_RECOMPUTE_NONE, 0.0F},
    {"llama3, adapters of some layers, in shared memory", "llama3", ADAPTED(0x59), true, false, true, TT_RECOMPUTE_FULL,
     0.25F},
    {"qwen3, adapters, in bfloat16", "qwen3", ADAPTED(0x7f), false, true, true, TT_RECOMPUTE_OP, 0.0F},
    {"deepseek_v3", "deepseek_v3", LATENT(0), false, false, false, TT_RECOMPUTE_NONE, 0.0F},
    {"deepseek_v3, latents of queries, documents", "deepseek_v3", LATENT(28), true, false, true, TT_RECOMPUTE_FULL,
     0.25F},
    {"deepseek_v3 in bfloat16", "deepseek_v3", LATENT(0), true, true, true, TT_RECOMPUTE_OP, 0.0F},
    {"deepseek_v3, latents of queries, in bfloat16", "deepseek_v3", LATENT(28), false, true, false, TT_RECOMPUTE_NONE,
     0.0F},
};

int main(void)
{
    bool good = true;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        good = run_case(&cases[i], 1 + (int)i % 3) && good;
    good = check_refusals() && good;
    good = check_stages() && good;
    good = check_identity() && good;
    return good ? 0 : 1;
}
