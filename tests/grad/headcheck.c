/* SPDX-License-Identifier: MIT
 *
 * headcheck
 *
 * The head in phases on 1, 2 and 4 ranks, each of which has a part of the vocabulary. The ranks run side by side in one
 * process, and the test exchanges what they gather and sum. The losses on every rank, a rank's rows of dx and its rows
 * of dw must have the bits of one rank. One rank must agree with the head in one op up to rounding.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/math/bf16.h"
#include "core/passes/autodiff.h"
#include "core/passes/phases.h"
#include "tests/grad/interp.h"

enum { GRAINS = 4, MOST = 4, MESSAGES = 6, FUSED = 0 /* used as a number of ranks: one rank without grains */ };

struct shape {
    const char *name;
    int64_t tokens, vocab, width;
    int row_grains;
    float z_loss, soft_cap;
    bool bf16, frozen, trains;
};

/* Ranks that share the vocabulary. Values of the ranks have the same ids. */
struct world {
    const struct shape *shape;
    int n;
    struct interp *ranks[MOST];
    int x, w, labels;       /* x: this rank's rows */
    int token_loss, dx, dw; /* TT_NONE: there is none */
};

static int failures;

static void must(int rc)
{
    if (rc < 0) {
        printf("# %s\n", tt_error_message());
        abort();
    }
}

static void fail(const char *name, const char *what, int n, int rank)
{
    if (failures++ < MESSAGES)
        printf("# %s: %s on rank %d of %d\n", name, what, rank, n);
}

static int ranks_of(const struct world *world)
{
    return world->n == FUSED ? 1 : world->n;
}

/* --- the graphs --- */

static int64_t vocab_begin(const struct shape *shape, int n, int rank)
{
    int64_t begin = (shape->vocab + GRAINS - 1) / GRAINS * (GRAINS / n) * rank;

    return begin < shape->vocab ? begin : shape->vocab;
}

static struct tt_graph *build(struct world *world, int rank)
{
    const struct shape *s = world->shape;
    int n = ranks_of(world);
    int64_t tokens[2] = {1, s->tokens}, x[2] = {s->tokens / n, s->width};
    int64_t w[2] = {vocab_begin(s, n, rank + 1) - vocab_begin(s, n, rank), s->width};
    struct tt_attr attr = {.rows = {s->tokens, s->row_grains}, .soft_cap = s->soft_cap};
    enum tt_dtype dtype = s->bf16 ? TT_BF16 : TT_F32;
    struct tt_graph *graph = tt_graph_new();
    int in[3];

    graph->dtype = dtype;
    if (s->row_grains == 0)
        attr.rows = (struct tt_extent){0};
    graph->labels = world->labels = in[2] = tt_graph_value(graph, TT_VALUE_INPUT, TT_I32, "labels", 2, tokens);
    world->x = in[0] = tt_graph_value(graph, TT_VALUE_ACTIVATION, dtype, "x", 2, x);
    world->w = in[1] = tt_graph_param(graph, 0, 0, dtype, "w", 2, w);
    graph->values[in[1]].constant = s->frozen;
    if (world->n > 1) {
        struct tt_attr gather = {.peers = {TT_AXIS_TP, n, rank}};

        in[0] = tt_graph_out(graph, tt_graph_node(graph, TT_OP_GATHER_ROWS, "x.gathered", in, 1, &gather));
        attr.peers = gather.peers;
    }
    if (world->n != FUSED)
        attr.out = (struct tt_extent){s->vocab, GRAINS};
    world->token_loss = graph->token_loss =
        tt_graph_out(graph, tt_graph_node(graph, TT_OP_HEAD_LOSS, "token_loss", in, 3, &attr));
    must(tt_graph_add_z_loss(graph, s->z_loss));
    return graph;
}

static struct world make_world(const struct shape *shape, int n)
{
    struct world world = {.shape = shape, .n = n, .dx = TT_NONE, .dw = TT_NONE};

    for (int r = 0; r < ranks_of(&world); r++) {
        struct tt_graph *graph = build(&world, r);
        int *grad = tt_calloc((size_t)graph->n_values, sizeof *grad);

        if (shape->trains) {
            must(tt_graph_differentiate(graph, &(struct tt_seed){world.token_loss, TT_GRAD_OF_LOSS}, 1, grad));
            world.dx = grad[world.x];
            world.dw = shape->frozen ? TT_NONE : grad[world.w];
        }
        must(tt_graph_phase_head(graph));
        world.ranks[r] = interp_new(graph, true);
        world.ranks[r]->scalars.inv_valid_tokens = 1.0F / (float)shape->tokens;
        tt_free(grad);
    }
    return world;
}

static void free_world(struct world *world)
{
    for (int r = 0; r < ranks_of(world); r++) {
        struct tt_graph *graph = world->ranks[r]->graph;

        interp_free(world->ranks[r]);
        tt_graph_free(graph);
    }
}

/* --- exchanges --- */

static void set(const struct shape *shape, void *data, int64_t i, float x)
{
    if (shape->bf16)
        ((tt_bf16 *)data)[i] = tt_bf16_from_float(x);
    else
        ((float *)data)[i] = x;
}

static size_t bytes_of(const struct interp *interp, int value)
{
    return (size_t)tt_value_bytes(&interp->graph->values[value]);
}

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

static void exchange(struct world *world, int n)
{
    const struct tt_node *node = &world->ranks[0]->graph->nodes[n];
    int in = node->in[0], out = node->out[0];
    int64_t elements = tt_value_elements(&world->ranks[0]->graph->values[out]);

    for (int r = 0; r < world->n; r++) {
        struct interp *rank = world->ranks[r];
        char *to = rank->data[out];

        for (int p = 0; node->op == TT_OP_GATHER_ROWS && p < world->n && p < MOST; p++)
            memcpy(to + (size_t)p * bytes_of(rank, in), world->ranks[p]->data[in], bytes_of(rank, in));
        for (int64_t i = 0; node->op == TT_OP_SUM_ROWS && i < elements; i++) {
            float terms[MOST];

            for (int p = 0; p < world->n && p < MOST; p++)
                terms[p] = ((const float *)world->ranks[p]->data[in])[r * elements + i];
            set(world->shape, to, i, sum_of(terms, world->n));
        }
    }
}

static void run(struct world *world, struct tt_team *team)
{
    for (int n = 0; n < world->ranks[0]->graph->n_nodes; n++) {
        if (tt_op_row(world->ranks[0]->graph->nodes[n].op)->exchange) {
            exchange(world, n);
            continue;
        }
        for (int r = 0; r < ranks_of(world); r++)
            if (!interp_run_node(world->ranks[r], team, n))
                fail(world->shape->name, "an op wrote outside its scratch", world->n, r);
    }
}

/* --- inputs --- */

static void fill(struct world *one)
{
    const struct shape *s = one->shape;
    struct interp_draw draw = {.rng = tt_rng_make(12, s->name)};
    int32_t *labels = one->ranks[0]->data[one->labels];

    for (int64_t i = 0; i < s->tokens * s->width; i++)
        set(s, one->ranks[0]->data[one->x], i, (float)interp_normal(&draw));
    for (int64_t i = 0; i < s->vocab * s->width; i++)
        set(s, one->ranks[0]->data[one->w], i, (float)interp_normal(&draw));
    for (int64_t i = 0; i < s->tokens; i++) {
        labels[i] = (int32_t)(tt_rng_bits(&draw.rng, draw.drawn++) % (uint64_t)s->vocab);
        if (i % 6 == 4)
            labels[i] = TT_LABEL_IGNORED;
    }
}

/* Every rank gets its part of one rank's values. */
static void copy_parts(struct world *to, const struct world *one)
{
    const struct shape *s = to->shape;
    size_t row = (size_t)s->width * (s->bf16 ? sizeof(tt_bf16) : sizeof(float));

    for (int r = 0; r < ranks_of(to); r++) {
        struct interp *rank = to->ranks[r];
        size_t first = to->n == FUSED ? 0 : (size_t)vocab_begin(s, to->n, r);

        memcpy(rank->data[to->labels], one->ranks[0]->data[one->labels], bytes_of(rank, to->labels));
        memcpy(rank->data[to->x], (char *)one->ranks[0]->data[one->x] + (size_t)r * bytes_of(rank, to->x),
               bytes_of(rank, to->x));
        memcpy(rank->data[to->w], (char *)one->ranks[0]->data[one->w] + first * row, bytes_of(rank, to->w));
    }
}

/* --- comparisons --- */

static void compare_bits(const struct world *world, const struct world *one)
{
    const struct shape *s = world->shape;
    const struct interp *whole = one->ranks[0];

    for (int r = 0; r < world->n; r++) {
        const struct interp *rank = world->ranks[r];
        size_t row = (size_t)s->width * sizeof(float);

        if (memcmp(rank->data[world->token_loss], whole->data[one->token_loss], bytes_of(rank, world->token_loss)) != 0)
            fail(s->name, "other losses", world->n, r);
        if (world->dx != TT_NONE &&
            memcmp(rank->data[world->dx], (char *)whole->data[one->dx] + (size_t)r * bytes_of(rank, world->dx),
                   bytes_of(rank, world->dx)) != 0)
            fail(s->name, "another dx", world->n, r);
        if (world->dw != TT_NONE &&
            memcmp(rank->data[world->dw], (char *)whole->data[one->dw] + (size_t)vocab_begin(s, world->n, r) * row,
                   bytes_of(rank, world->dw)) != 0)
            fail(s->name, "another dw", world->n, r);
    }
}

/* Whether the elements of two values agree up to `tolerance` of their root mean square. */
static bool near(const struct interp *a, int value_a, const struct interp *b, int value_b, double tolerance)
{
    int64_t n = tt_value_elements(&a->graph->values[value_a]);
    double size = 0.0, worst = 0.0;

    for (int64_t i = 0; i < n; i++) {
        double x = interp_element(a, value_a, i), y = interp_element(b, value_b, i);

        size += x * x / (double)n;
        worst = fabs(x - y) > worst || isnan(x - y) ? fabs(x - y) : worst;
    }
    return size > 0.0 && worst <= tolerance * sqrt(size);
}

static void compare_near(const struct world *one, const struct world *fused)
{
    const struct interp *a = fused->ranks[0], *b = one->ranks[0];
    double tolerance = one->shape->bf16 ? 0.1 : 2e-4;

    if (!near(a, fused->token_loss, b, one->token_loss, 1e-5))
        fail(one->shape->name, "losses other than those of one op", 1, 0);
    if (one->dx != TT_NONE && !near(a, fused->dx, b, one->dx, tolerance))
        fail(one->shape->name, "a dx other than that of one op", 1, 0);
    if (one->dw != TT_NONE && !near(a, fused->dw, b, one->dw, tolerance))
        fail(one->shape->name, "a dw other than that of one op", 1, 0);
}

/* --- the cases --- */

/* Each grain contains the largest logit of some row; otherwise the test would not notice a wrong maximum. */
static void check_maxima(const struct world *one)
{
    const struct shape *s = one->shape;
    const struct interp *rank = one->ranks[0];
    int64_t grain = vocab_begin(s, GRAINS, 1);
    bool seen[GRAINS] = {false};

    for (int64_t t = 0; t < s->tokens && t < 64; t++) {
        double largest = -INFINITY;
        int64_t at = 0;

        for (int64_t v = 0; v < s->vocab; v++) {
            double logit = 0.0;

            for (int64_t k = 0; k < s->width; k++)
                logit +=
                    interp_element(rank, one->x, t * s->width + k) * interp_element(rank, one->w, v * s->width + k);
            at = logit > largest ? v : at;
            largest = logit > largest ? logit : largest;
        }
        seen[at / grain] = true;
    }
    for (int g = 0; g < GRAINS; g++)
        if (!seen[g])
            fail(s->name, "no row has its largest logit in this grain", GRAINS, g);
}

static bool check(const struct shape *shape)
{
    int before = failures;
    struct world one = make_world(shape, 1), fused = make_world(shape, FUSED), more[2];
    struct tt_team *team = NULL;

    must(tt_team_new(2, &team));
    fill(&one);
    check_maxima(&one);
    copy_parts(&fused, &one);
    for (int k = 0; k < 2; k++) {
        more[k] = make_world(shape, 2 << k);
        copy_parts(&more[k], &one);
        run(&more[k], team);
    }
    run(&fused, team);
    tt_team_free(team);
    must(tt_team_new(1, &team));
    run(&one, team);
    compare_near(&one, &fused);
    for (int k = 0; k < 2; k++) {
        compare_bits(&more[k], &one);
        free_world(&more[k]);
    }
    free_world(&one);
    free_world(&fused);
    tt_team_free(team);
    printf("%s - %s\n", failures == before ? "ok" : "not ok", shape->name);
    return failures == before;
}

/* A weight that is not finite makes every rank's losses of all tokens that count non-finite; -inf does not. */
static bool check_nonfinite(float bad)
{
    const struct shape shape = {.name = "a weight that is not finite", .tokens = 12, .vocab = 30, .width = 3};
    struct world one = make_world(&shape, 1), two = make_world(&shape, 2);
    struct tt_team *team = NULL;
    bool good = true;

    must(tt_team_new(1, &team));
    fill(&one);
    for (int64_t i = 0; i < shape.tokens * shape.width; i++)
        set(&shape, one.ranks[0]->data[one.x], i, 1.0F);
    set(&shape, one.ranks[0]->data[one.w], 10 * shape.width, bad);
    if (bad < 0.0F) /* a whole grain */
        for (int64_t i = 8 * shape.width; i < 16 * shape.width; i++)
            set(&shape, one.ranks[0]->data[one.w], i, bad);
    for (int64_t i = 0; i < shape.tokens; i++)
        ((int32_t *)one.ranks[0]->data[one.labels])[i] = i % 6 == 4 ? TT_LABEL_IGNORED : 20;
    copy_parts(&two, &one);
    run(&two, team);
    for (int r = 0; r < 2; r++)
        for (int64_t i = 0; i < shape.tokens; i++)
            good = good && isfinite(interp_element(two.ranks[r], two.token_loss, i)) == (i % 6 == 4 || bad < 0.0F);
    printf("%s - a weight of %g in one part of the vocabulary\n", good ? "ok" : "not ok", (double)bad);
    free_world(&one);
    free_world(&two);
    tt_team_free(team);
    return good;
}

int main(void)
{
    static const struct shape shapes[] = {
        {.name = "two chunks", .tokens = 600, .vocab = 331, .width = 24, .trains = true},
        {.name = "two chunks, no gradients", .tokens = 600, .vocab = 331, .width = 24},
        {.name = "z-loss", .tokens = 600, .vocab = 331, .width = 24, .z_loss = 0.25F, .trains = true},
        {.name = "frozen weight", .tokens = 600, .vocab = 331, .width = 24, .frozen = true, .trains = true},
        {.name = "grains of rows", .tokens = 1800, .vocab = 331, .width = 24, .row_grains = 3, .trains = true},
        {.name = "bfloat16", .tokens = 600, .vocab = 331, .width = 24, .bf16 = true, .trains = true},
        {.name = "bfloat16, z-loss",
         .tokens = 600,
         .vocab = 331,
         .width = 24,
         .z_loss = 0.25F,
         .bf16 = true,
         .trains = true},
        {.name = "soft cap", .tokens = 600, .vocab = 331, .width = 24, .soft_cap = 2.0F, .trains = true},
        {.name = "soft cap, no gradients", .tokens = 600, .vocab = 331, .width = 24, .soft_cap = 2.0F},
        {.name = "soft cap, z-loss, bfloat16",
         .tokens = 600,
         .vocab = 331,
         .width = 24,
         .z_loss = 0.25F,
         .soft_cap = 2.0F,
         .bf16 = true,
         .trains = true},
        {.name = "a large vocabulary", .tokens = 520, .vocab = 50257, .width = 16, .trains = true},
        {.name = "a large vocabulary in bfloat16",
         .tokens = 64,
         .vocab = 50257,
         .width = 16,
         .bf16 = true,
         .trains = true},
    };
    bool good = true;

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        good = check(&shapes[i]) && good;
    good = check_nonfinite(NAN) && good;
    good = check_nonfinite(INFINITY) && good;
    good = check_nonfinite(-INFINITY) && good;
    return good ? 0 : 1;
}
