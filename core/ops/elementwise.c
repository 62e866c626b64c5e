/* SPDX-License-Identifier: MIT
 *
 * Ops that work element by element (core/graph/ops.def says how to add one), and at the end the gate of rows. N is any
 * number of rows.
 *
 * ADD: out = a + b, the residual connection and the sum of two gradients.
 *   in   a, b of one shape      out  of that shape, may take a's memory
 *
 * SCALE: y = attr.scale x. It is its own backward.
 *   in   x (N, D)      out  y (N, D), may take x's memory
 *
 * GELU in its tanh form (Hendrycks & Gimpel 2016; "gelu_new" of transformers): y = x (1 + tanh(u)) / 2 with
 * u = sqrt(2 / pi) (x + 0.044715 x^3). Since (1 + tanh(u)) / 2 is the sigmoid of 2u, y = x / (1 + exp(-2u)).
 *   in   x (N, F)      out  y (N, F), may take x's memory
 * GELU_BWD:
 *   in   dy, x (N, F)      out  dx, may take dy's memory
 *
 * GELU_ERF, the exact form: y = x (1 + erf(x / sqrt(2))) / 2 ("gelu" of transformers); GELU_ERF_BWD. As GELU.
 *
 * SWIGLU: h = silu(g) * u with silu(g) = g / (1 + exp(-g)) (Shazeer 2020).
 *   in   g, u (N, F)      out  h (N, F), may take g's memory
 * SWIGLU_BWD:
 *   in   dh, g, u (N, F)      out  dg, du; dg may take dh's memory and du u's
 *
 * GEGLU: h = gelu(g) * u with GELU's gelu (Shazeer 2020; Gemma); GEGLU_BWD. As SWIGLU.
 *
 * SWIGLU_CLAMPED: h = (u + 1) g / (1 + exp(-1.702 g)), where x consists of pairs of a gate g and a factor u: (g, u) are
 * columns 2i and 2i + 1. First, g is clamped to at most 7, and u to -7..7 (gpt-oss).
 *   in   x (N, 2 F)      out  h (N, F)
 * SWIGLU_CLAMPED_BWD: 0 for clamped elements.
 *   in   dh (N, F), x (N, 2 F)      out  dx (N, 2 F), may take x's memory
 *
 * DROPOUT: y = [acc +] x times 0, with probability attr.dropout.rate, or else 1 / (1 - rate). It is its own backward.
 *   in   x (N, D), acc (N, D) or none      out  y (N, D), may take acc's memory
 *   attr dropout, seq_len (T), pieces, first_row, rows: where the rows are in the microbatch; in: where the columns are
 *   Which elements are 0 depends on the step's seed, attr.dropout.stream, the sequence in the step's global batch, the
 *   position in it, and the column. So every layout has the same zeros, and a node that runs again has them too.
 */
#include <string.h>

#include "core/graph/pieces.h"
#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { TILE = 8192, LARGE_TILE = 16384 };

/* What differs between the ops. A backward op reads the gradient of the output, then the inputs. */
struct kind {
    void (*run)(const struct tt_call *call,
                struct tt_range part); /* runs on a range of elements, or of pairs of them */
    double flops;                      /* flops of each of these */
    int64_t tile;
    const char *wanted;
    bool differentiates;
    bool pairs; /* each element of h comes from two elements of x */
};

#define IN(i)        tt_call_in_at(call, i, part.begin)
#define OUT(k)       tt_call_out_at(call, k, part.begin)
#define IN_PAIRS(i)  tt_call_in_at(call, i, 2 * part.begin)
#define OUT_PAIRS(k) tt_call_out_at(call, k, 2 * part.begin)
#define KERNEL(name, ...)                                              \
    static void name(const struct tt_call *call, struct tt_range part) \
    {                                                                  \
        TT_RUN_KERNEL(call, name, __VA_ARGS__, part.n);                \
    }

KERNEL(add, OUT(0), IN(0), IN(1))
KERNEL(scale, OUT(0), IN(0), (tt_real)call->node->attr.scale)
KERNEL(gelu_fwd, OUT(0), IN(0))
KERNEL(gelu_bwd, OUT(0), IN(0), IN(1))
KERNEL(gelu_erf_fwd, OUT(0), IN(0))
KERNEL(gelu_erf_bwd, OUT(0), IN(0), IN(1))
KERNEL(geglu_fwd, OUT(0), IN(0), IN(1))
KERNEL(geglu_bwd, OUT(0), OUT(1), IN(0), IN(1), IN(2))
KERNEL(swiglu_fwd, OUT(0), IN(0), IN(1))
KERNEL(swiglu_bwd, OUT(0), OUT(1), IN(0), IN(1), IN(2))
KERNEL(swiglu_clamped_fwd, OUT(0), IN_PAIRS(0))
KERNEL(swiglu_clamped_bwd, OUT_PAIRS(0), IN(0), IN_PAIRS(1))

static const struct kind kinds[TT_OPS] = {
    [TT_OP_ADD] = {add, 1.0, LARGE_TILE, .wanted = "a, b of one shape"},
    [TT_OP_SCALE] = {scale, 1.0, TILE, .wanted = "x (N, D)"},
    [TT_OP_GELU] = {gelu_fwd, 8.0, TILE, .wanted = "x (N, F)"},
    [TT_OP_GELU_BWD] = {gelu_bwd, 14.0, TILE, .wanted = "dy, x (N, F)", .differentiates = true},
    [TT_OP_GELU_ERF] = {gelu_erf_fwd, 20.0, TILE, .wanted = "x (N, F)"},
    [TT_OP_GELU_ERF_BWD] = {gelu_erf_bwd, 22.0, TILE, .wanted = "dy, x (N, F)", .differentiates = true},
    [TT_OP_GEGLU] = {geglu_fwd, 9.0, TILE, .wanted = "g, u (N, F)"},
    [TT_OP_GEGLU_BWD] = {geglu_bwd, 18.0, TILE, .wanted = "dh, g, u (N, F)", .differentiates = true},
    [TT_OP_SWIGLU] = {swiglu_fwd, 4.0, TILE, .wanted = "g, u (N, F)"},
    [TT_OP_SWIGLU_BWD] = {swiglu_bwd, 10.0, TILE, .wanted = "dh, g, u (N, F)", .differentiates = true},
    [TT_OP_SWIGLU_CLAMPED] = {swiglu_clamped_fwd, 6.0, TILE, .wanted = "x (N, 2 F)", .pairs = true},
    [TT_OP_SWIGLU_CLAMPED_BWD] = {swiglu_clamped_bwd, 14.0, TILE, .wanted = "dh (N, F), x (N, 2 F)", .pairs = true,
                                  .differentiates = true},
};

/* All inputs have the shape of x, the first input that is not a gradient; with pairs, h and its gradient are half as
 * wide. A backward op has one output of x's shape for every input that is not a gradient. */
static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct kind *kind = &kinds[node->op];
    const struct tt_value x = graph->values[node->in[kind->differentiates]];
    int64_t rows = tt_value_rows(&x), width = tt_value_width(&x), half[2] = {rows, width / 2};
    int rc = 0;

    if (kind->pairs && (width % 2 != 0 || (kind->differentiates && !tt_op_acc_fits(graph, node, 0, rows, width / 2))))
        return tt_op_mismatch(graph, node, kind->wanted);
    for (int i = 0; i < node->n_in && !kind->pairs; i++)
        if (!tt_op_acc_fits(graph, node, i, rows, width))
            return tt_op_mismatch(graph, node, kind->wanted);
    if (kind->pairs && !kind->differentiates)
        return tt_op_output(graph, node, 0, name, NULL, 2, half);
    for (int k = 0; k < (kind->differentiates ? node->n_in - 1 : 1); k++)
        TT_TRY(tt_op_output(graph, node, k, name, k ? "up" : NULL, x.ndim, x.shape));
out:
    return rc;
}

/* The number of elements of the narrower operand: h, if there are pairs. */
static int64_t elements(const struct tt_graph *graph, const struct tt_node *node)
{
    int64_t in = tt_value_elements(&graph->values[node->in[0]]), out = tt_value_elements(&graph->values[node->out[0]]);

    return in < out ? in : out;
}

static void run(const struct tt_call *call)
{
    const struct kind *kind = &kinds[call->node->op];

    tt_op_run_tiles(call, elements(call->graph, call->node), kind->tile, kind->run);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    ret_cost->flops = kinds[node->op].flops * (double)elements(graph, node);
}

/* clang-format off */
#define ROW(op) .name = (op), .infer = infer, .run = run, .cost = cost
#define GRADIENT(op, n, ...) .backward = tt_rule_backward, .gradients = {{op, 0, n, {__VA_ARGS__}}}
#define ONE     {TT_TYPE_COMPUTE}
#define TWO     {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE}
#define THREE   {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE}

const struct tt_op_row TT_OF_TYPE(tt_op_add) = {
    ROW("add"), .in = TWO, .out = ONE, .cuts = TT_CUT_ANY, .alias = {1}, .backward = tt_rule_backward, .passes = 2};
const struct tt_op_row TT_OF_TYPE(tt_op_scale) = {
    ROW("scale"), .in = ONE, .out = ONE, .cuts = TT_CUT_ANY, .alias = {1}, GRADIENT(TT_OP_SCALE, 1, TT_DY0)};
const struct tt_op_row TT_OF_TYPE(tt_op_gelu) = {
    ROW("gelu"), .in = ONE, .out = ONE, .cuts = TT_CUT_ANY, .alias = {1}, GRADIENT(TT_OP_GELU_BWD, 1, TT_DY0, TT_X0)};
const struct tt_op_row TT_OF_TYPE(tt_op_gelu_bwd) = {
    ROW("gelu_bwd"), .in = TWO, .out = ONE, .cuts = TT_CUT_ANY, .alias = {1}};
const struct tt_op_row TT_OF_TYPE(tt_op_gelu_erf) = {
    ROW("gelu_erf"), .in = ONE, .out = ONE, .cuts = TT_CUT_ANY, .alias = {1},
    GRADIENT(TT_OP_GELU_ERF_BWD, 1, TT_DY0, TT_X0)};
const struct tt_op_row TT_OF_TYPE(tt_op_gelu_erf_bwd) = {
    ROW("gelu_erf_bwd"), .in = TWO, .out = ONE, .cuts = TT_CUT_ANY, .alias = {1}};
const struct tt_op_row TT_OF_TYPE(tt_op_geglu) = {
    ROW("geglu"), .in = TWO, .out = ONE, .cuts = TT_CUT_ANY, .alias = {1},
    GRADIENT(TT_OP_GEGLU_BWD, 2, TT_DY0, TT_X0, TT_X1)};
const struct tt_op_row TT_OF_TYPE(tt_op_geglu_bwd) = {
    ROW("geglu_bwd"), .in = THREE, .out = TWO, .cuts = TT_CUT_ANY, .alias = {1, 3}};
const struct tt_op_row TT_OF_TYPE(tt_op_swiglu) = {
    ROW("swiglu"), .in = TWO, .out = ONE, .cuts = TT_CUT_ANY, .alias = {1},
    GRADIENT(TT_OP_SWIGLU_BWD, 2, TT_DY0, TT_X0, TT_X1)};
const struct tt_op_row TT_OF_TYPE(tt_op_swiglu_bwd) = {
    ROW("swiglu_bwd"), .in = THREE, .out = TWO, .cuts = TT_CUT_ANY, .alias = {1, 3}};
const struct tt_op_row TT_OF_TYPE(tt_op_swiglu_clamped) = {
    ROW("swiglu_clamped"), .in = ONE, .out = ONE, GRADIENT(TT_OP_SWIGLU_CLAMPED_BWD, 1, TT_DY0, TT_X0)};
const struct tt_op_row TT_OF_TYPE(tt_op_swiglu_clamped_bwd) = {
    ROW("swiglu_clamped_bwd"), .in = TWO, .out = ONE, .alias = {2}};
/* clang-format on */

/*
 * GATE_ROWS: y = sigmoid(g) x, each row with its own g (the shared expert of Qwen2-MoE).
 *   in   x (N, D), g (N, 1)      out  y (N, D)
 * GATE_ROWS_BWD: dx = sigmoid(g) dy, dg = dot(dy, x) sigmoid(g) (1 - sigmoid(g)).
 *   in   dy, x (N, D), g (N, 1)      out  dx (N, D), may take x's memory; dg (N, 1)
 */
enum { GATED_ROWS = 64 };

static int gate_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    bool differentiates = node->op == TT_OP_GATE_ROWS_BWD;
    const struct tt_value x = graph->values[node->in[differentiates]];
    int64_t g[2] = {tt_value_rows(&x), 1};
    int rc = 0;

    if (!tt_op_acc_fits(graph, node, 0, g[0], tt_value_width(&x)) ||
        !tt_op_acc_fits(graph, node, differentiates ? 2 : 1, g[0], 1))
        return tt_op_mismatch(graph, node, differentiates ? "dy, x (N, D), g (N, 1)" : "x (N, D), g (N, 1)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape));
    if (differentiates)
        TT_TRY(tt_op_output(graph, node, 1, name, "gate", 2, g));
out:
    return rc;
}

/* The kernels for rows of experts take gates and places: here the gates are the sigmoids of some rows, and each row's
 * place is itself. */
struct gates {
    int32_t places[GATED_ROWS];
    tt_real sigmoids[GATED_ROWS];
};

static void make_gates(const struct tt_call *call, int input, struct tt_range rows, struct gates *ret_gates)
{
    tt_real *s = ret_gates->sigmoids;

    if (tt_call_in(call, input)->dtype == TT_BF16)
        tt_kernels()->bf16_widen(s, tt_call_in_at(call, input, rows.begin), rows.n);
    else
        memcpy(s, tt_call_in_at(call, input, rows.begin), (size_t)rows.n * sizeof *s);
    tt_kernels()->scale(s, s, -1.0F, rows.n);
    tt_kernels()->exp(s, s, rows.n);
    for (int r = 0; r < (int)rows.n; r++) {
        s[r] = 1.0F / (1.0F + s[r]);
        ret_gates->places[r] = r;
    }
}

static void gate_tile(const struct tt_call *call, struct tt_range part)
{
    int64_t width = tt_value_width(tt_call_in(call, 0)), at = part.begin * width;
    struct gates gates;

    make_gates(call, 1, part, &gates);
    TT_RUN_KERNEL(call, mix_rows, tt_call_out_at(call, 0, at), NULL, tt_call_in_at(call, 0, at), gates.places,
                  gates.sigmoids, part.n, 1, width);
}

static void gate_bwd_tile(const struct tt_call *call, struct tt_range part)
{
    int64_t width = tt_value_width(tt_call_in(call, 0)), at = part.begin * width;
    tt_real dg[GATED_ROWS];
    struct gates gates;

    make_gates(call, 2, part, &gates);
    TT_RUN_KERNEL(call, mix_rows_bwd, tt_call_out_at(call, 0, at), dg, tt_call_in_at(call, 0, at),
                  tt_call_in_at(call, 1, at), gates.places, gates.sigmoids, part.n, 1, width);
    for (int64_t r = 0; r < part.n; r++)
        dg[r] *= gates.sigmoids[r] * (1.0F - gates.sigmoids[r]);
    if (tt_call_out(call, 1)->dtype == TT_BF16)
        tt_kernels()->bf16_round(tt_call_out_at(call, 1, part.begin), dg, part.n);
    else
        memcpy(tt_call_out_at(call, 1, part.begin), dg, (size_t)part.n * sizeof *dg);
}

const struct tt_op_row TT_OF_TYPE(tt_op_gate_rows) = {
    .name = "gate_rows",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .infer = gate_infer,
    .backward = tt_rule_backward,
    .gradients = {{TT_OP_GATE_ROWS_BWD, 0, 2, {TT_DY0, TT_X0, TT_X1}}},
    .run = tt_op_run_rows,
    .tile = gate_tile,
    .tile_rows = GATED_ROWS,
    .flops = 1.0,
};

const struct tt_op_row TT_OF_TYPE(tt_op_gate_rows_bwd) = {
    .name = "gate_rows_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .infer = gate_infer,
    .run = tt_op_run_rows,
    .tile = gate_bwd_tile,
    .tile_rows = GATED_ROWS,
    .flops = 3.0,
    .alias = {2},
};

/* --- dropout --- */

enum { DROPOUT_ROWS = 8 };

static int dropout_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]];

    if (!tt_op_acc_fits(graph, node, 1, tt_value_rows(&x), tt_value_width(&x)) || node->attr.seq_len < 1)
        return tt_op_mismatch(graph, node, "x (N, D), acc (N, D)");
    return tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape);
}

/* The token of a local row, among all tokens of the microbatch, sequence by sequence. */
static int64_t token_of(const struct tt_attr *attr, int64_t row)
{
    int64_t piece_rows, batch, place;

    row += attr->first_row;
    if (attr->pieces.grains <= 1)
        return row;
    piece_rows = attr->seq_len / tt_pieces_count(&attr->pieces);
    batch = attr->rows.whole / attr->seq_len;
    place = tt_pieces_first(&attr->pieces) + row / (batch * piece_rows);
    return row / piece_rows % batch * attr->seq_len + tt_piece_at(&attr->pieces, place) * piece_rows + row % piece_rows;
}

static void dropout_tile(const struct tt_call *call, struct tt_range part)
{
    const struct tt_attr *attr = &call->node->attr;
    const struct tt_value *x = tt_call_in(call, 0);
    int64_t width = tt_value_width(x), columns = attr->in.whole ? attr->in.whole : width;
    int64_t tokens = attr->rows.whole ? attr->rows.whole : tt_value_rows(x);
    struct tt_dropout dropout = {.seed = call->scalars->step_seed,
                                 .stream = attr->dropout.stream,
                                 .drop = (uint32_t)(attr->dropout.rate * 0x1p32),
                                 .scale = (float)(1.0 / (1.0 - attr->dropout.rate))};

    columns += columns % 2; /* a row begins with a new word */
    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        int64_t token = call->microbatch * tokens + token_of(attr, r);

        TT_RUN_KERNEL(call, dropout, tt_call_out_at(call, 0, r * width), tt_call_in_at(call, 0, r * width),
                      tt_call_in_at(call, 1, r * width), &dropout,
                      (uint64_t)(token * columns + attr->dropout.first_column), width);
    }
}

const struct tt_op_row TT_OF_TYPE(tt_op_dropout) = {
    .name = "dropout",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .cuts = TT_CUT_ROWS | TT_CUT_IN,
    .infer = dropout_infer,
    .backward = tt_rule_backward,
    .gradients = {{TT_OP_DROPOUT, 0, 1, {TT_DY0, TT_DX0}}},
    .run = tt_op_run_rows,
    .tile = dropout_tile,
    .tile_rows = DROPOUT_ROWS,
    .flops = 8.0,
    .alias = {2},
};
