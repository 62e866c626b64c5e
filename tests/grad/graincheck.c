/* SPDX-License-Identifier: MIT
 *
 * graincheck
 *
 * Compares graphs whose dimensions have two grains with the same graphs cut in two. Each half has half of the local
 * shape and the same logical extents. The results of the halves must be the parts of the whole's results, to the bit.
 * If the op sums over the cut dimension, the whole must be the sum of the two halves. Rows are cut first, then heads
 * and the width of the FFN, then the vocabulary.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/passes/autodiff.h"
#include "tests/grad/cases.h"
#include "tests/grad/interp.h"

enum { WHOLE = 2, MESSAGES = 6 }; /* sides 0 and 1 are the halves */

static bool rows_cut[TT_OPS]; /* whether some graph contained the op with cut rows */

struct side {
    struct tt_graph *graph;
    struct interp *interp;
};

struct test {
    const char *name;
    struct side sides[3];
    struct tt_team *team;
    int failures, compared;
};

static void must(int rc)
{
    if (rc < 0) {
        printf("# %s\n", tt_error_message());
        abort();
    }
}

/* --- a value of the whole graph, and of a half --- */

enum relation { SAME, PART_OF_ROWS, PART_OF_COLUMNS, TERM_OF_SUM };

static enum relation relation_of(const struct test *test, int v)
{
    const struct tt_value *whole = &test->sides[WHOLE].graph->values[v], *half = &test->sides[0].graph->values[v];

    bool is_of_weights =
        whole->producer != TT_NONE && test->sides[WHOLE].graph->nodes[whole->producer].op == TT_OP_ROW_SQUARES;

    if (tt_value_elements(whole) == tt_value_elements(half))
        return whole->producer == TT_NONE || is_of_weights ? SAME : TERM_OF_SUM;
    return whole->shape[0] != half->shape[0] ? PART_OF_ROWS : PART_OF_COLUMNS;
}

/* The index, in the whole value, of element i of half `h`. */
static int64_t place(const struct test *test, int v, int h, int64_t i)
{
    const struct tt_value *half = &test->sides[h].graph->values[v];
    int64_t n = tt_value_elements(half), width = tt_value_width(half);

    switch (relation_of(test, v)) {
    case PART_OF_ROWS:
        return h * n + i;
    case PART_OF_COLUMNS:
        return i / width * 2 * width + h * width + i % width;
    default:
        return i;
    }
}

static void copy_element(struct interp *to, int v, int64_t i, const struct interp *from, int64_t j)
{
    size_t size = tt_dtype_size(to->graph->values[v].dtype);

    memcpy((char *)to->data[v] + (size_t)i * size, (char *)from->data[v] + (size_t)j * size, size);
}

static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void fill_half(struct test *test, int h)
{
    const struct interp *whole = test->sides[WHOLE].interp;
    struct interp *half = test->sides[h].interp;

    half->scalars = whole->scalars;
    for (int v = 0; v < half->graph->n_values; v++)
        for (int64_t i = 0;
             half->graph->values[v].producer == TT_NONE && i < tt_value_elements(&half->graph->values[v]); i++)
            copy_element(half, v, i, whole, place(test, v, h, i));
}

static bool is_equal(const struct test *test, int v)
{
    const struct interp *whole = test->sides[WHOLE].interp;
    const struct interp *halves[2] = {test->sides[0].interp, test->sides[1].interp};
    int64_t n = tt_value_elements(&test->sides[0].graph->values[v]);
    bool equal = true;

    for (int64_t i = 0; i < n; i++) {
        float sum = (float)(interp_element(halves[0], v, i) + interp_element(halves[1], v, i));

        if (relation_of(test, v) == TERM_OF_SUM)
            equal = equal && same_bits(interp_element(whole, v, i), (double)sum);
        for (int h = 0; h < 2 && relation_of(test, v) != TERM_OF_SUM; h++)
            equal = equal && same_bits(interp_element(whole, v, place(test, v, h, i)), interp_element(halves[h], v, i));
    }
    return equal;
}

static void compare_values(struct test *test)
{
    const struct tt_graph *graph = test->sides[WHOLE].graph;

    for (int v = 0; v < graph->n_values; v++) {
        if (graph->values[v].producer == TT_NONE)
            continue;
        test->compared++;
        if (!is_equal(test, v) && test->failures++ < MESSAGES)
            printf("# %s: value %d, '%s', of %s differs\n", test->name, v, graph->values[v].name,
                   tt_op_row(graph->nodes[graph->values[v].producer].op)->name);
    }
}

/* --- making and running the three sides --- */

/* A pass that cuts sets extents on existing nodes, and the rows of their ops must accept them. */
static void check_again(struct tt_graph *graph)
{
    for (int n = 0; n < graph->n_nodes; n++)
        must(tt_op_infer(graph, &graph->nodes[n], ""));
}

/* A cut head_loss counts before differentiation, which replaces it by head_loss_grad. */
static void note_cut_rows(const struct tt_graph *graph)
{
    for (int n = 0; n < graph->n_nodes; n++)
        rows_cut[graph->nodes[n].op] = rows_cut[graph->nodes[n].op] || graph->nodes[n].attr.rows.grains > 1;
}

static void differentiate(struct side *side, const struct tt_seed *seeds, int n_seeds)
{
    int *grad = tt_calloc((size_t)side->graph->n_values, sizeof *grad);

    check_again(side->graph);
    note_cut_rows(side->graph);
    must(tt_graph_differentiate(side->graph, seeds, n_seeds, grad));
    note_cut_rows(side->graph);
    side->interp = interp_new(side->graph, false);
    tt_free(grad);
}

static void run(struct test *test)
{
    for (int h = 0; h < 2; h++)
        fill_half(test, h);
    for (int s = 0; s < 3; s++)
        if (!interp_run(test->sides[s].interp, test->team, INTERP_ALL) && test->failures++ < MESSAGES)
            printf("# %s: an op wrote outside its scratch\n", test->name);
}

static bool end(struct test *test)
{
    bool good = test->failures == 0 && test->compared > 0;

    printf("%s - %s: %d values\n", good ? "ok" : "not ok", test->name, test->compared);
    for (int s = 0; s < 3; s++) {
        interp_free(test->sides[s].interp);
        tt_graph_free(test->sides[s].graph);
    }
    tt_team_free(test->team);
    return good;
}

static int add_node(struct tt_graph *graph, enum tt_op_id op, const struct tt_attr *attr, int a, int b, int c)
{
    int in[TT_MAX_INPUTS] = {a, b, c}, n_in = 0;

    while (tt_op_row(op)->in[n_in] != TT_TYPE_NONE)
        n_in++;
    if (op == TT_OP_ROPE)
        in[n_in - 1] = graph->positions;
    if (op == TT_OP_ATTENTION) {
        in[3] = graph->positions;
        in[4] = TT_NONE; /* sinks */
    }
    return tt_graph_out(graph, tt_graph_node(graph, op, "y", in, n_in, attr));
}

static int add_param(struct tt_graph *graph, int64_t rows, int64_t width)
{
    int64_t shape[2] = {rows, width};

    return tt_graph_param(graph, graph->n_values, 0, TT_F32, "w", rows ? 2 : 1, rows ? shape : &width);
}

/* --- rows --- */

/* So long that tiles, chunks, blocks of rows and ranges of keys all depend on the number of rows. */
enum { SEQ_LEN = 1100, VOCAB = 300 };

static void build_llama_rows(struct tt_graph *graph, int64_t batch)
{
    build_llama(graph, &(struct llama){batch, SEQ_LEN, 1, 48, 8, 8, 8, 64, VOCAB, false, false});
}

static void build_llama_documents(struct tt_graph *graph, int64_t batch)
{
    graph->documents = true;
    build_llama_rows(graph, batch);
}

static void build_gpt_rows(struct tt_graph *graph, int64_t batch)
{
    int64_t tokens[2] = {batch, SEQ_LEN};
    struct tt_attr norm = {.eps = 1e-5F}, position = {.seq_len = SEQ_LEN};
    int x, y;

    graph->tokens = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "tokens", 2, tokens);
    graph->labels = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "labels", 2, tokens);
    graph->positions = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "positions", 2, tokens);
    x = add_node(graph, TT_OP_EMBEDDING, NULL, graph->tokens, add_param(graph, VOCAB, 48), TT_NONE);
    x = add_node(graph, TT_OP_POSITION, &position, x, add_param(graph, SEQ_LEN, 48), graph->positions);
    y = add_node(graph, TT_OP_LAYERNORM, &norm, x, add_param(graph, 0, 48), add_param(graph, 0, 48));
    y = add_node(graph, TT_OP_LINEAR, NULL, y, add_param(graph, 96, 48), TT_NONE);
    y = add_node(graph, TT_OP_GELU, NULL, add_node(graph, TT_OP_BIAS, NULL, y, add_param(graph, 0, 96), TT_NONE),
                 TT_NONE, TT_NONE);
    y = add_node(graph, TT_OP_GEGLU, NULL, y, add_node(graph, TT_OP_GELU_ERF, NULL, y, TT_NONE, TT_NONE), TT_NONE);
    y = add_node(graph, TT_OP_LINEAR, NULL, y, add_param(graph, 48, 96), TT_NONE);
    x = add_node(graph, TT_OP_ADD, NULL, x, y, TT_NONE);
    x = add_node(graph, TT_OP_LAYERNORM, &norm, x, add_param(graph, 0, 48), TT_NONE);
    graph->token_loss = add_node(graph, TT_OP_HEAD_LOSS, NULL, x, add_param(graph, VOCAB, 48), graph->labels);
}

static void build_z_loss_rows(struct tt_graph *graph, int64_t batch)
{
    build_gpt_rows(graph, batch);
    must(tt_graph_add_z_loss(graph, 0.25F));
}

/* A frozen layer with a low-rank adapter, and a frozen head. */
static void build_adapter_rows(struct tt_graph *graph, int64_t batch)
{
    int64_t tokens[2] = {batch, SEQ_LEN};
    struct tt_attr scale = {.scale = 1.5F}, drop = {.seq_len = SEQ_LEN, .dropout = {.rate = 0.4, .stream = 3}};
    int x, y, w;

    graph->tokens = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "tokens", 2, tokens);
    graph->labels = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "labels", 2, tokens);
    x = add_node(graph, TT_OP_EMBEDDING, NULL, graph->tokens, add_param(graph, VOCAB, 48), TT_NONE);
    y = add_node(graph, TT_OP_DROPOUT, &drop, x, TT_NONE, TT_NONE);
    y = add_node(graph, TT_OP_LINEAR, NULL, y, add_param(graph, 4, 48), TT_NONE);
    y = add_node(graph, TT_OP_SCALE, &scale, y, TT_NONE, TT_NONE);
    y = add_node(graph, TT_OP_LINEAR, NULL, y, add_param(graph, 48, 4), TT_NONE);
    x = add_node(graph, TT_OP_ADD, NULL, x, y, TT_NONE);
    y = add_node(graph, TT_OP_ROW_SQUARES, &scale, add_param(graph, 48, 48), add_param(graph, 4, 48),
                 add_param(graph, 48, 4));
    x = add_node(graph, TT_OP_DORA, NULL, x, add_param(graph, 0, 48), y);
    w = add_param(graph, VOCAB, 48);
    graph->values[w].constant = true;
    graph->token_loss = add_node(graph, TT_OP_HEAD_LOSS, NULL, x, w, graph->labels);
}

/* Attention with a sliding window and sinks. */
static void build_sinks_rows(struct tt_graph *graph, int64_t batch)
{
    int64_t tokens[2] = {batch, SEQ_LEN};
    struct tt_attr attr = {.seq_len = SEQ_LEN, .heads = 6, .kv_heads = 2, .head_dim = 8, .sliding_window = 100};
    int x, in[5];

    graph->tokens = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "tokens", 2, tokens);
    graph->labels = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "labels", 2, tokens);
    x = add_node(graph, TT_OP_EMBEDDING, NULL, graph->tokens, add_param(graph, VOCAB, 48), TT_NONE);
    in[0] = add_node(graph, TT_OP_LINEAR, NULL, x, add_param(graph, 48, 48), TT_NONE);
    in[1] = add_node(graph, TT_OP_LINEAR, NULL, x, add_param(graph, 16, 48), TT_NONE);
    in[2] = add_node(graph, TT_OP_LINEAR, NULL, x, add_param(graph, 16, 48), TT_NONE);
    in[3] = TT_NONE;
    in[4] = add_param(graph, 0, 6);
    x = tt_graph_out(graph, tt_graph_node(graph, TT_OP_ATTENTION, "y", in, 5, &attr));
    graph->token_loss = add_node(graph, TT_OP_HEAD_LOSS, NULL, x, add_param(graph, VOCAB, 48), graph->labels);
}

/* Two products of one x, whose outputs have grains too: their gradients of x are one node. */
static void build_products_rows(struct tt_graph *graph, int64_t batch)
{
    int64_t tokens[2] = {batch, SEQ_LEN};
    struct tt_attr attr = {.out = {96, 2}};
    int x, y;

    graph->tokens = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "tokens", 2, tokens);
    graph->labels = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "labels", 2, tokens);
    x = add_node(graph, TT_OP_EMBEDDING, NULL, graph->tokens, add_param(graph, VOCAB, 48), TT_NONE);
    y = add_node(graph, TT_OP_LINEAR, &attr, x, add_param(graph, 96, 48), TT_NONE);
    y = add_node(graph, TT_OP_ADD, NULL, y, add_node(graph, TT_OP_LINEAR, &attr, x, add_param(graph, 96, 48), TT_NONE),
                 TT_NONE);
    graph->token_loss = add_node(graph, TT_OP_HEAD_LOSS, NULL, y, add_param(graph, VOCAB, 96), graph->labels);
}

/* A router; later values depend on its gates. */
static void build_router_rows(struct tt_graph *graph, int64_t batch)
{
    int64_t tokens[2] = {batch, SEQ_LEN};
    struct tt_attr attr = {.experts = 12, .top_k = 3, .router = {.normalize = true}};
    int x, y, in[3];

    graph->tokens = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "tokens", 2, tokens);
    graph->labels = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "labels", 2, tokens);
    x = add_node(graph, TT_OP_EMBEDDING, NULL, graph->tokens, add_param(graph, VOCAB, 48), TT_NONE);
    in[0] = x;
    in[1] = add_param(graph, attr.experts, 48);
    in[2] = TT_NONE;
    y = graph->nodes[tt_graph_node(graph, TT_OP_ROUTER, "router", in, 3, &attr)].out[1];
    y = add_node(graph, TT_OP_LINEAR, NULL, y, add_param(graph, 48, attr.top_k), TT_NONE);
    x = add_node(graph, TT_OP_ADD, NULL, x, y, TT_NONE);
    graph->token_loss = add_node(graph, TT_OP_HEAD_LOSS, NULL, x, add_param(graph, VOCAB, 48), graph->labels);
}

static bool check_rows(const char *name, void (*build)(struct tt_graph *, int64_t batch), bool bf16, int threads)
{
    struct test test = {.name = name};
    struct interp_draw draw = {.rng = tt_rng_make(8, name)};

    must(tt_team_new(threads, &test.team));
    for (int s = 0; s < 3; s++) {
        struct side *side = &test.sides[s];
        struct tt_seed loss = {.grad = TT_GRAD_OF_LOSS};

        side->graph = tt_graph_new();
        build(side->graph, s == WHOLE ? 2 : 1);
        if (bf16)
            interp_use_bf16(side->graph);
        for (int n = 0; n < side->graph->n_nodes; n++)
            if (tt_op_row(side->graph->nodes[n].op)->cuts & TT_CUT_ROWS) {
                side->graph->nodes[n].attr.rows = (struct tt_extent){INT64_C(2) * SEQ_LEN, 2};
                if (side->graph->nodes[n].op == TT_OP_DROPOUT && s != WHOLE)
                    side->graph->nodes[n].attr.first_row = (int64_t)s * SEQ_LEN;
            }
        loss.value = side->graph->token_loss;
        differentiate(side, &loss, 1);
    }
    interp_fill(test.sides[WHOLE].interp, &draw);
    run(&test);
    compare_values(&test);
    return end(&test);
}

/* --- heads and the width of the FFN --- */

enum { DIM = 40, HEADS = 16, KV_HEADS = 8, HEAD_DIM = 8, FFN = 1600 };

static int add_input(struct tt_graph *graph, enum tt_value_kind kind, int64_t rows, int64_t width)
{
    int64_t shape[2] = {rows, width};

    return tt_graph_value(graph, kind, TT_F32, "x", 2, shape);
}

static int add_linear(struct tt_graph *graph, int x, int64_t width, struct tt_extent out)
{
    struct tt_attr attr = {.out = out};

    return add_node(graph, TT_OP_LINEAR, &attr, x, add_param(graph, width, tt_value_width(&graph->values[x])), TT_NONE);
}

static int add_back(struct tt_graph *graph, int x, struct tt_extent in)
{
    struct tt_attr attr = {.in = in};

    return add_node(graph, TT_OP_LINEAR, &attr, x, add_param(graph, DIM, tt_value_width(&graph->values[x])), TT_NONE);
}

/*
 * The products of an attention with normed heads and of an FFN, with 1 / parts of the heads and of the width. Every
 * product reads an x of its own, so no gradient is a chain of products. ret_seeds gets the seeds of the two outputs.
 */
static void build_columns(struct tt_graph *graph, int parts, struct tt_seed *ret_seeds)
{
    const int64_t n = INT64_C(2) * SEQ_LEN, heads = HEADS / parts, kv_heads = KV_HEADS / parts, ffn = FFN / parts;
    const int64_t table[3] = {SEQ_LEN, HEAD_DIM / 2, 2};
    struct tt_attr norm = {.eps = 1e-5F, .out = {HEADS, 2}};
    struct tt_attr attention = {
        .seq_len = SEQ_LEN, .heads = (int)heads, .kv_heads = (int)kv_heads, .head_dim = HEAD_DIM, .out = {KV_HEADS, 2}};
    int x[5], q, k, v, g, u, y[2];

    graph->rope_table = tt_graph_value(graph, TT_VALUE_CONST, TT_F32, "rope", 3, table);
    for (int i = 0; i < 5; i++)
        x[i] = add_input(graph, TT_VALUE_ACTIVATION, n, DIM);
    q = add_linear(graph, x[0], heads * HEAD_DIM, (struct tt_extent){HEADS * HEAD_DIM, 2});
    q = add_node(graph, TT_OP_RMSNORM, &norm, q, add_param(graph, 0, HEAD_DIM), TT_NONE);
    q = add_node(graph, TT_OP_ROPE, &attention, q, graph->rope_table, TT_NONE);
    k = add_linear(graph, x[1], kv_heads * HEAD_DIM, (struct tt_extent){KV_HEADS * HEAD_DIM, 2});
    v = add_linear(graph, x[2], kv_heads * HEAD_DIM, (struct tt_extent){KV_HEADS * HEAD_DIM, 2});
    y[0] =
        add_back(graph, add_node(graph, TT_OP_ATTENTION, &attention, q, k, v), (struct tt_extent){HEADS * HEAD_DIM, 2});
    g = add_linear(graph, x[3], ffn, (struct tt_extent){FFN, 2});
    u = add_linear(graph, x[4], ffn, (struct tt_extent){FFN, 2});
    y[1] = add_back(graph, add_node(graph, TT_OP_SWIGLU, NULL, g, u, TT_NONE), (struct tt_extent){FFN, 2});
    for (int i = 0; i < 2; i++)
        ret_seeds[i] = (struct tt_seed){y[i], add_input(graph, TT_VALUE_GRAD, n, DIM)};
}

static bool check_columns(int threads)
{
    struct test test = {.name = "heads and the FFN's width"};
    struct interp_draw draw = {.rng = tt_rng_make(9, "columns")};
    struct interp *whole;

    must(tt_team_new(threads, &test.team));
    for (int s = 0; s < 3; s++) {
        struct tt_seed seeds[2];

        test.sides[s].graph = tt_graph_new();
        build_columns(test.sides[s].graph, s == WHOLE ? 1 : 2, seeds);
        differentiate(&test.sides[s], seeds, 2);
    }
    whole = test.sides[WHOLE].interp;
    interp_fill(whole, &draw);
    for (int v = 0; v < whole->graph->n_values; v++)
        for (int64_t i = 0;
             whole->graph->values[v].producer == TT_NONE && strcmp(whole->graph->values[v].name, "x") == 0 &&
             i < tt_value_elements(&whole->graph->values[v]);
             i++)
            ((float *)whole->data[v])[i] = (float)interp_normal(&draw);
    run(&test);
    compare_values(&test);
    return end(&test);
}

/* --- the vocabulary --- */

/* A grain is long enough for the largest number of slices of dx. */
enum { GRAIN = 65536, FEW_ROWS = 4, FEW = 3 };

/*
 * The softmax of a half covers only its own rows of the weight. So the weight's second half is chosen to have a share
 * of 0, and the first half alone gives the losses and gradients of the whole.
 */
static bool check_vocabulary(const char *name, float z_loss)
{
    struct test test = {.name = name};
    struct interp_draw draw = {.rng = tt_rng_make(10, "vocabulary")};
    int x = TT_NONE, w = TT_NONE;
    float *data;

    must(tt_team_new(1, &test.team));
    for (int s = 0; s < 3; s++) {
        struct tt_graph *graph = test.sides[s].graph = tt_graph_new();
        int64_t labels[2] = {1, FEW_ROWS};
        struct tt_attr attr = {.out = {INT64_C(2) * GRAIN, 2}};
        struct tt_seed loss = {.grad = TT_GRAD_OF_LOSS};

        x = add_input(graph, TT_VALUE_ACTIVATION, FEW_ROWS, FEW);
        w = add_param(graph, s == WHOLE ? 2 * GRAIN : GRAIN, FEW);
        graph->labels = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "labels", 2, labels);
        loss.value = graph->token_loss = add_node(graph, TT_OP_HEAD_LOSS, &attr, x, w, graph->labels);
        must(tt_graph_add_z_loss(graph, z_loss));
        differentiate(&test.sides[s], &loss, 1);
    }
    interp_fill(test.sides[WHOLE].interp, &draw);
    data = test.sides[WHOLE].interp->data[x];
    for (int i = 0; i < FEW_ROWS * FEW; i++)
        data[i] = i % FEW == FEW - 1 ? 1.0F : (float)interp_normal(&draw);
    for (int i = 0; i < FEW_ROWS; i++)
        ((int32_t *)test.sides[WHOLE].interp->data[test.sides[WHOLE].graph->labels])[i] = 100 * i;
    data = test.sides[WHOLE].interp->data[w];
    for (int64_t i = INT64_C(1) * GRAIN * FEW; i < INT64_C(2) * GRAIN * FEW; i++)
        data[i] = i % FEW == FEW - 1 ? -1e4F : 0.0F;
    run(&test);
    for (int k = 0; k < 3; k++) {
        int out[2] = {test.sides[0].graph->nodes[0].out[k], test.sides[WHOLE].graph->nodes[0].out[k]};

        test.compared++;
        if (memcmp(test.sides[0].interp->data[out[0]], test.sides[WHOLE].interp->data[out[1]],
                   (size_t)tt_value_bytes(&test.sides[0].graph->values[out[0]])) != 0 &&
            test.failures++ < MESSAGES)
            printf("# %s: output %d differs\n", test.name, k);
    }
    return end(&test);
}

/* --- what cannot be cut --- */

static bool refused(enum tt_op_id op, struct tt_attr attr, int b, int64_t rows, const char *text)
{
    struct tt_graph *graph = tt_graph_new();
    struct tt_node node = {.op = op, .n_in = 2, .attr = attr};
    bool good;

    node.in[0] = add_input(graph, TT_VALUE_ACTIVATION, rows, b);
    node.in[1] =
        op == TT_OP_PICK_ROWS ? tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "t", 1, &rows) : add_param(graph, 6, b);
    good = tt_op_infer(graph, &node, "y") == TT_EINTERNAL && strstr(tt_error_message(), text);
    if (!good)
        printf("# wanted '%s', got %s\n", text, tt_error_message());
    tt_graph_free(graph);
    return good;
}

/* A dimension that the op cannot cut, a part that ends inside a grain, and a local part of an extent that has one
 * grain. */
static bool check_refusals(void)
{
    bool good = refused(TT_OP_PICK_ROWS, (struct tt_attr){.rows = {8, 2}}, 3, 8, "pick_rows cannot be cut in rows");

    good = refused(TT_OP_LINEAR, (struct tt_attr){.rows = {8, 2}}, 3, 6, "linear wants x (N, K), w (M, K)") && good;
    good = refused(TT_OP_LINEAR, (struct tt_attr){.in = {8, 1}}, 4, 6, "linear wants x (N, K), w (M, K)") && good;
    printf("%s - what lies between grains is refused\n", good ? "ok" : "not ok");
    return good;
}

static bool check_all_covered(void)
{
    bool good = true;

    for (int op = 0; op < TT_OPS; op++) {
        const struct tt_op_row *row = tt_op_row((enum tt_op_id)op);

        if (!(row->cuts & TT_CUT_ROWS) || rows_cut[op])
            continue;
        printf("# no graph here has %s, whose rows may be cut\n", row->name);
        good = false;
    }
    printf("%s - every op whose rows may be cut is in a graph\n", good ? "ok" : "not ok");
    return good;
}

int main(void)
{
    bool good = check_rows("rows of a llama", build_llama_rows, false, 1);

    good = check_rows("rows of a llama, 3 threads", build_llama_rows, false, 3) && good;
    good = check_rows("rows of a llama with documents", build_llama_documents, false, 2) && good;
    good = check_rows("rows of a llama with documents in bfloat16", build_llama_documents, true, 3) && good;
    good = check_rows("rows of a GPT", build_gpt_rows, false, 1) && good;
    good = check_rows("rows of a llama in bfloat16", build_llama_rows, true, 1) && good;
    good = check_rows("rows of a GPT in bfloat16", build_gpt_rows, true, 2) && good;
    good = check_rows("rows of attention with sinks", build_sinks_rows, false, 2) && good;
    good = check_rows("rows of attention with sinks in bfloat16", build_sinks_rows, true, 2) && good;
    good = check_rows("rows of an adapter", build_adapter_rows, false, 2) && good;
    good = check_rows("rows of products of one x", build_products_rows, false, 2) && good;
    good = check_rows("rows of a router", build_router_rows, false, 2) && good;
    good = check_rows("rows with a z-loss", build_z_loss_rows, false, 2) && good;
    good = check_rows("rows with a z-loss in bfloat16", build_z_loss_rows, true, 2) && good;
    good = check_columns(2) && good;
    good = check_vocabulary("vocabulary", 0.0F) && check_vocabulary("vocabulary with a z-loss", 0.25F) && good;
    good = check_refusals() && good;
    good = check_all_covered() && good;
    return good ? 0 : 1;
}
