/* SPDX-License-Identifier: MIT
 *
 * Code that the rows of the op table share.
 */
#include "core/ops/rule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/kernels/kernels.h"
#include "core/math/tree.h"
#include "core/ops/op.h"

enum { TEXT = 256 };

static void describe(const struct tt_value *value, char *text, size_t size)
{
    size_t used = strlen(text);

    for (int i = 0; i < value->ndim && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : " (", (long long)value->shape[i]);
    if (used < size)
        (void)snprintf(text + used, size - used, ")");
}

int tt_op_mismatch(const struct tt_graph *graph, const struct tt_node *node, const char *wanted)
{
    char found[TEXT] = "";

    for (int i = 0; i < node->n_in; i++) {
        if (node->in[i] != TT_NONE)
            describe(&graph->values[node->in[i]], found, sizeof found);
    }
    return tt_fail(TT_EINTERNAL, "%s wants %s, found%s", tt_op_row(node->op)->name, wanted, found);
}

/* --- inference --- */

static int inputs_of(const struct tt_op_row *row)
{
    int n = 0;

    while (n < TT_MAX_INPUTS && row->in[n] != TT_TYPE_NONE)
        n++;
    return n;
}

/* The type in which a node computes; false if its inputs do not determine it. */
static bool compute_type(const struct tt_graph *graph, const struct tt_node *node, enum tt_dtype *ret_dtype)
{
    for (int i = 0; i < node->n_in; i++) {
        if (tt_op_row(node->op)->in[i] != TT_TYPE_COMPUTE || node->in[i] == TT_NONE)
            continue;
        *ret_dtype = graph->values[node->in[i]].dtype;
        return true;
    }
    return false;
}

static enum tt_dtype operand_type(const struct tt_graph *graph, enum tt_op_type type, enum tt_dtype compute)
{
    const enum tt_dtype types[] = {[TT_TYPE_COMPUTE] = compute,
                                   [TT_TYPE_F32] = tt_dtype_sums(graph->dtype),
                                   [TT_TYPE_IDS] = TT_I32,
                                   [TT_TYPE_GRAPH] = graph->dtype};

    return types[type];
}

bool tt_op_is_bf16(const struct tt_graph *graph, const struct tt_node *node)
{
    enum tt_dtype dtype;

    return compute_type(graph, node, &dtype) && dtype == TT_BF16;
}

static int64_t bytes_before(const struct tt_value *value, int64_t at)
{
    return at * (int64_t)tt_dtype_size(value->dtype);
}

const void *tt_call_in_at(const struct tt_call *call, int i, int64_t at)
{
    return call->in[i] ? (const char *)call->in[i] + bytes_before(tt_call_in(call, i), at) : NULL;
}

void *tt_call_out_at(const struct tt_call *call, int k, int64_t at)
{
    return (char *)call->out[k] + bytes_before(tt_call_out(call, k), at);
}

static int check_types(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_op_row *row = tt_op_row(node->op);
    enum tt_dtype compute;

    if (!compute_type(graph, node, &compute))
        return tt_fail(TT_EINTERNAL, "%s has no input that tells what it computes in", row->name);
    if (compute == TT_F64 ? graph->dtype != TT_F64
        : row->computes   ? !(row->computes & TT_COMPUTES(compute))
                          : compute != TT_F32 && compute != TT_BF16)
        return tt_fail(TT_EINTERNAL, "%s has no arithmetic in %s", row->name, tt_dtype_name(compute));
    for (int i = 0; i < node->n_in; i++) {
        enum tt_dtype wanted = operand_type(graph, row->in[i], compute);

        if (node->in[i] != TT_NONE && graph->values[node->in[i]].partial && row->in[i] == TT_TYPE_COMPUTE)
            continue; /* an earlier term, which is always F32 */

        if (node->in[i] != TT_NONE && graph->values[node->in[i]].dtype != wanted)
            return tt_fail(TT_EINTERNAL, "%s wants input %d ('%s') in %s, found %s", row->name, i,
                           graph->values[node->in[i]].name, tt_dtype_name(wanted),
                           tt_dtype_name(graph->values[node->in[i]].dtype));
    }
    return 0;
}

/* Only products read packed rows. */
static int check_packing(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_op_row *row = tt_op_row(node->op);

    for (int i = 0; i < node->n_in; i++)
        if (node->in[i] != TT_NONE && graph->values[node->in[i]].packing && !(row->unpacks & 1U << i))
            return tt_fail(TT_EINTERNAL, "%s cannot read input %d ('%s') as %s", row->name, i,
                           graph->values[node->in[i]].name, tt_packing_name(graph->values[node->in[i]].packing));
    return 0;
}

static int check_cuts(const struct tt_node *node)
{
    const struct tt_op_row *row = tt_op_row(node->op);
    const struct tt_extent *extents[] = {&node->attr.rows, &node->attr.out, &node->attr.in};
    static const char *const names[] = {"rows", "out", "in"};

    for (unsigned i = 0; i < 3; i++)
        if (extents[i]->grains > 1 && !(row->cuts & 1U << i))
            return tt_fail(TT_EINTERNAL, "%s cannot be cut in %s", row->name, names[i]);
    return 0;
}

int tt_op_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_op_row *row = tt_op_row(node->op);
    int wanted = inputs_of(row), rc = 0;

    while (node->n_in < wanted && node->n_in >= wanted - row->may_lack)
        node->in[node->n_in++] = TT_NONE;
    if (node->n_in != wanted)
        return tt_fail(TT_EINTERNAL, "%s wants %d input%s, found %d", row->name, wanted, wanted == 1 ? "" : "s",
                       node->n_in);
    TT_TRY(check_types(graph, node));
    TT_TRY(check_packing(graph, node));
    TT_TRY(check_cuts(node));
    TT_TRY(row->infer(graph, node, name));
out:
    return rc;
}

static bool inputs_are_constant(const struct tt_graph *graph, const struct tt_node *node)
{
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i] != TT_NONE && !graph->values[node->in[i]].constant)
            return false;
    return true;
}

int tt_graph_try_node(struct tt_graph *graph, const struct tt_node *node, const char *name)
{
    struct tt_node added = *node;
    int rc = 0;

    TT_TRY(tt_op_infer(graph, &added, name));
    for (int k = 0; k < added.n_out; k++)
        graph->values[added.out[k]].constant = inputs_are_constant(graph, &added);
    tt_graph_append(graph, &added);
out:
    return rc;
}

int tt_graph_node(struct tt_graph *graph, enum tt_op_id op, const char *name, const int *in, int n_in,
                  const struct tt_attr *attr)
{
    struct tt_node node = {.op = op, .block = graph->block, .n_in = n_in};

    memcpy(node.in, in, (size_t)n_in * sizeof *in);
    if (attr)
        node.attr = *attr;
    if (tt_graph_try_node(graph, &node, name) < 0) {
        (void)fprintf(stderr, "titan: bug in a graph builder: %s '%s': %s\n", tt_op_row(op)->name, name,
                      tt_error_message());
        abort();
    }
    return graph->n_nodes - 1;
}

int tt_op_output(struct tt_graph *graph, struct tt_node *node, int k, const char *name, const char *suffix, int ndim,
                 const int64_t *shape)
{
    enum tt_op_type type = tt_op_row(node->op)->out[k];
    bool chosen = k < node->n_out;
    bool is_term = type == TT_TYPE_COMPUTE || tt_op_row(node->op)->sums_terms;
    bool partial = is_term && (chosen ? graph->values[node->out[k]].partial : node->attr.partial);
    enum tt_dtype dtype = graph->dtype;
    char *full;

    (void)compute_type(graph, node, &dtype);
    dtype = partial ? tt_dtype_sums(graph->dtype) : operand_type(graph, type, dtype);
    if (chosen) {
        const struct tt_value *out = &graph->values[node->out[k]];

        if (out->dtype != dtype)
            return tt_fail(TT_EINTERNAL, "%s yields '%s' in %s, not in %s", tt_op_row(node->op)->name, out->name,
                           tt_dtype_name(dtype), tt_dtype_name(out->dtype));
        if (out->ndim == ndim && memcmp(out->shape, shape, (size_t)ndim * sizeof *shape) == 0)
            return 0;
        return tt_op_mismatch(graph, node, "inputs that fit its output");
    }
    full = suffix ? tt_format("%s.%s", name, suffix) : tt_strdup(name);
    node->out[k] = tt_graph_value(graph, TT_VALUE_ACTIVATION, dtype, full, ndim, shape);
    graph->values[node->out[k]].partial = partial;
    node->n_out = k + 1;
    tt_free(full);
    return 0;
}

bool tt_op_acc_fits(const struct tt_graph *graph, const struct tt_node *node, int i, int64_t rows, int64_t width)
{
    const struct tt_value *acc;

    if (i >= node->n_in || node->in[i] == TT_NONE)
        return true;
    acc = &graph->values[node->in[i]];
    return tt_value_rows(acc) == rows && tt_value_width(acc) == width;
}

bool tt_op_positions_fit(const struct tt_graph *graph, const struct tt_node *node, int i, int64_t rows)
{
    return node->in[i] == TT_NONE || tt_value_elements(&graph->values[node->in[i]]) == rows;
}

/* On each rank, the nodes that read gathered rows produce one term of the gradient of these rows. */
static bool is_gathered(const struct tt_graph *graph, const struct tt_value *value)
{
    return value->producer != TT_NONE && tt_op_row(graph->nodes[value->producer].op)->exchange == TT_EXCHANGE_GATHER;
}

int tt_rule_value(struct tt_graph *graph, int of, const char *suffix, enum tt_dtype dtype, int ndim,
                  const int64_t *shape, bool partial)
{
    char *name = tt_format("%s.%s", graph->values[of].name, suffix);
    int id = tt_graph_value(graph, TT_VALUE_GRAD, dtype, name, ndim, shape);

    graph->values[id].partial = partial;
    tt_free(name);
    return id;
}

int tt_graph_grad_value(struct tt_graph *graph, int of)
{
    const struct tt_value value = graph->values[of]; /* a copy: adding moves the array */
    bool param = value.kind == TT_VALUE_PARAM, partial = is_gathered(graph, &value);
    int id = tt_rule_value(graph, of, "grad",
                           param || partial ? tt_dtype_sums(graph->dtype)
                           : value.partial  ? graph->dtype
                                            : value.dtype,
                           value.ndim, value.shape, partial);

    if (param && !value.constant) {
        graph->values[id].kind = TT_VALUE_PARAM_GRAD;
        graph->values[id].param = value.param;
        graph->values[id].part = value.part;
    }
    return id;
}

int tt_rule_push(struct tt_graph *graph, const struct tt_node *node)
{
    struct tt_node checked = *node;
    int rc = 0;

    for (int k = 0; k < node->n_out; k++)
        graph->values[node->out[k]].producer = graph->n_nodes;
    TT_TRY(tt_op_infer(graph, &checked, ""));
    TT_PUSH(graph->nodes, graph->n_nodes, graph->cap_nodes) = checked;
out:
    return rc;
}

/* Whether output k, the gradient of a value that `forward` reads, is a term of a sum over the node's peers. */
static bool is_term(const struct tt_graph *graph, enum tt_op_id op, int k, const struct tt_node *forward, int of)
{
    const struct tt_value *value = &graph->values[of];

    return forward->attr.peers.n > 1 && tt_op_row(op)->out[k] == TT_TYPE_F32 && tt_op_row(op)->alias[k] > 0 &&
           value->kind == TT_VALUE_PARAM && value->tp == TT_TP_WHOLE && !value->constant;
}

int tt_rule_node(struct tt_graph *graph, enum tt_op_id op, const struct tt_node *forward, const int *in, int n_in,
                 const int *of, int n_of, int *ret_out)
{
    struct tt_node node = {
        .op = op, .backward = true, .block = forward->block, .n_in = n_in, .n_out = n_of, .attr = forward->attr};
    struct tt_node sum = {.op = TT_OP_SUM_ALL,
                          .backward = true,
                          .block = forward->block,
                          .n_in = 2,
                          .n_out = 1,
                          .attr = {.peers = forward->attr.peers}};
    int acc[TT_MAX_OUTPUTS] = {0}, rc = 0;

    memcpy(node.in, in, (size_t)n_in * sizeof *in);
    node.attr.partial = false;
    for (int k = 0; k < n_of; k++) {
        const struct tt_value value = graph->values[of[k]]; /* a copy: adding moves the array */
        int acc_in = tt_op_row(op)->alias[k] - 1;

        if (is_term(graph, op, k, forward, of[k])) {
            acc[k] = node.in[acc_in];
            node.in[acc_in] = TT_NONE;
            node.out[k] =
                tt_rule_value(graph, of[k], "grad.term", tt_dtype_sums(graph->dtype), value.ndim, value.shape, true);
        } else {
            node.out[k] = tt_graph_grad_value(graph, of[k]);
            node.attr.partial = node.attr.partial || graph->values[node.out[k]].partial;
        }
    }
    TT_TRY(tt_rule_push(graph, &node));
    memcpy(ret_out, node.out, (size_t)n_of * sizeof *ret_out);
    for (int k = 0; k < n_of; k++) {
        if (!is_term(graph, op, k, forward, of[k]))
            continue;
        sum.in[0] = node.out[k];
        sum.in[1] = acc[k];
        ret_out[k] = sum.out[0] = tt_graph_grad_value(graph, of[k]);
        TT_TRY(tt_rule_push(graph, &sum));
    }
out:
    return rc;
}

int tt_rule_gradient(struct tt_graph *graph, const struct tt_node *forward, const struct tt_gradient *gradient,
                     const int *grad_out, int *grad_in)
{
    const int *const operands[] = {grad_out, forward->in, forward->out, grad_in};
    int in[TT_MAX_INPUTS], n_in = 0, grad[TT_MAX_OUTPUTS], rc = 0;
    bool wanted = false, adds[TT_MAX_INPUTS] = {false};

    for (int i = gradient->first; i < gradient->first + gradient->n; i++)
        wanted = wanted || tt_rule_wanted(graph, forward->in[i]);
    if (!wanted)
        return 0;
    for (; n_in < TT_MAX_INPUTS && gradient->in[n_in]; n_in++) {
        int kind = (gradient->in[n_in] - TT_DY0) / (TT_X0 - TT_DY0),
            i = (gradient->in[n_in] - TT_DY0) % (TT_X0 - TT_DY0);

        in[n_in] = operands[kind][i];
        adds[i] = adds[i] || operands[kind] == grad_in;
    }
    TT_TRY(tt_rule_node(graph, gradient->op, forward, in, n_in, &forward->in[gradient->first], gradient->n, grad));
    for (int i = gradient->first; i < gradient->first + gradient->n; i++)
        if (adds[i])
            tt_rule_set(forward, i, grad[i - gradient->first], grad_in);
        else
            TT_TRY(tt_rule_add(graph, forward, i, grad[i - gradient->first], grad_in));
out:
    return rc;
}

int tt_rule_backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node]; /* a copy: adding moves the array */
    const struct tt_op_row *row = tt_op_row(forward.op);
    int rc = 0;

    for (int i = 0; i < row->passes; i++)
        TT_TRY(tt_rule_add(graph, &forward, i, grad_out[0], grad_in));
    for (int i = 0; i < TT_GRADIENTS && row->gradients[i].n; i++)
        TT_TRY(tt_rule_gradient(graph, &forward, &row->gradients[i], grad_out, grad_in));
out:
    return rc;
}

void tt_rule_move_last(struct tt_graph *graph, int to)
{
    struct tt_node node = graph->nodes[graph->n_nodes - 1];

    memmove(&graph->nodes[to + 1], &graph->nodes[to], (size_t)(graph->n_nodes - 1 - to) * sizeof *graph->nodes);
    graph->nodes[to] = node;
    for (int n = to; n < graph->n_nodes; n++)
        for (int k = 0; k < graph->nodes[n].n_out; k++)
            graph->values[graph->nodes[n].out[k]].producer = n;
}

void tt_rule_set(const struct tt_node *forward, int i, int grad, int *grad_in)
{
    for (int j = 0; j < forward->n_in; j++) {
        if (forward->in[j] == forward->in[i])
            grad_in[j] = grad;
    }
}

int tt_rule_add(struct tt_graph *graph, const struct tt_node *forward, int i, int grad, int *grad_in)
{
    int in[2] = {grad_in[i], grad}, sum = grad, rc = 0;

    if (grad_in[i] != TT_NONE)
        TT_TRY(tt_rule_node(graph, TT_OP_ADD, forward, in, 2, &forward->in[i], 1, &sum));
    tt_rule_set(forward, i, sum, grad_in);
out:
    return rc;
}

bool tt_rule_wanted(const struct tt_graph *graph, int value)
{
    return !graph->values[value].constant;
}

/* Bytes of all inputs and outputs of a node. */
static double bytes_of(const struct tt_graph *graph, const struct tt_node *node)
{
    double bytes = 0.0;

    for (int i = 0; i < node->n_in; i++) {
        if (node->in[i] != TT_NONE)
            bytes += (double)tt_value_bytes(&graph->values[node->in[i]]);
    }
    for (int k = 0; k < node->n_out; k++)
        bytes += (double)tt_value_bytes(&graph->values[node->out[k]]);
    return bytes;
}

struct tiles {
    const struct tt_call *call;
    int64_t n, size;
    void (*fn)(const struct tt_call *call, struct tt_range part);
};

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tiles *t = arg;

    (void)worker;
    t->fn(t->call, tt_tile_range(t->n, t->size, tile));
}

void tt_op_run_tiles(const struct tt_call *call, int64_t n, int64_t size,
                     void (*fn)(const struct tt_call *call, struct tt_range part))
{
    struct tiles t = {call, n, size, fn};

    tt_team_run(call->team, tt_tiles(n, size), run_tile, &t);
}

void tt_op_run_rows(const struct tt_call *call)
{
    const struct tt_op_row *row = tt_op_row(call->node->op);

    tt_op_run_tiles(call, tt_value_rows(tt_call_out(call, row->tiled)), row->tile_rows, row->tile);
}

void tt_op_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_op_row *row = tt_op_row(node->op);

    ret_cost->flops = row->flops > 0.0 ? row->flops * (double)tt_value_elements(&graph->values[node->in[0]]) : 0.0;
    ret_cost->bytes = bytes_of(graph, node);
    if (row->cost)
        row->cost(graph, node, ret_cost);
}

double tt_op_elements(const struct tt_graph *graph, const struct tt_node *node)
{
    return (double)tt_value_elements(&graph->values[node->out[0]]);
}

/* --- grains, and the sums over them --- */

enum {
    MOST_DEPTH = 8,   /* depth of the stack of partial sums: enough for TT_MOST_GRAINS */
    SUM_COLUMNS = 64, /* columns of a tile of sums by blocks */
    SUM_TILE = 16384  /* elements of a tile of sums by arrays */
};

int64_t tt_grain_size(const struct tt_extent *extent)
{
    return extent->grains > 1 ? tt_tiles(extent->whole, extent->grains) : 0;
}

int64_t tt_grain_or(const struct tt_extent *extent, int64_t local)
{
    int64_t size = tt_grain_size(extent);

    return size ? size : local;
}

bool tt_grain_fits(const struct tt_extent *extent, int64_t local)
{
    int64_t size = tt_grain_size(extent);

    if (!size)
        return extent->whole == 0 || extent->whole == local;
    return extent->grains <= TT_MOST_GRAINS && local <= extent->whole &&
           (local % size == 0 || local % size == extent->whole % size);
}

struct tt_row_blocks tt_row_blocks_of(const struct tt_extent *extent, int64_t rows, int64_t groups, int64_t most)
{
    int64_t grain = tt_grain_or(extent, rows) * groups;

    return (struct tt_row_blocks){.grains = rows * groups / grain,
                                  .per_grain = tt_tiles(grain, most),
                                  .grain_step = grain,
                                  .block_step = most,
                                  .most = most,
                                  .grain_rows = grain};
}

static struct tt_range row_block(const struct tt_row_blocks *blocks, int64_t i)
{
    int64_t in_grain = i % blocks->per_grain, left = blocks->grain_rows - in_grain * blocks->most;

    return (struct tt_range){i / blocks->per_grain * blocks->grain_step + in_grain * blocks->block_step,
                             left < blocks->most ? left : blocks->most};
}

/* y[0, columns) = [acc +] the sum of the blocks' results: x + i * stride for block i. At most SUM_COLUMNS columns. */
static void sum_blocks(const struct tt_row_blocks *blocks, tt_real *y, const tt_real *acc, const tt_real *x,
                       int64_t stride, int64_t columns)
{
    tt_real sums[MOST_DEPTH][SUM_COLUMNS];
    int depth = 0;

    if (blocks->grains == 1) {
        tt_kernels()->sum_rows(y, acc, x, blocks->per_grain, stride, columns);
        return;
    }
    for (int64_t g = 0; g < blocks->grains; g++) {
        int carries = g + 1 < blocks->grains ? tt_tree_carries(g) : depth;

        tt_kernels()->sum_rows(sums[depth++], NULL, x + g * blocks->per_grain * stride, blocks->per_grain, stride,
                               columns);
        for (; carries > 0; carries--, depth--)
            tt_kernels()->add(sums[depth - 2], sums[depth - 2], sums[depth - 1], columns);
    }
    for (int64_t i = 0; i < columns; i++)
        y[i] = acc ? acc[i] + sums[0][i] : sums[0][i];
}

static struct tt_row_sums sums_of(const struct tt_graph *graph, const struct tt_node *node)
{
    struct tt_row_sums sums = tt_op_row(node->op)->sums(graph, node);

    sums.sums = sums.sums ? sums.sums : 1;
    return sums;
}

/* The number of blocks of one sum. */
static int64_t blocks_of(const struct tt_row_sums *sums)
{
    return sums->blocks.grains * sums->blocks.per_grain;
}

static void block_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_row_sums sums = sums_of(call->graph, call->node);
    struct tt_range rows = row_block(&sums.blocks, tile % blocks_of(&sums));

    (void)worker;
    rows.begin += tile / blocks_of(&sums) * sums.blocks.grains * sums.blocks.grain_rows;
    sums.block(call, rows, (tt_real *)call->scratch + tile * sums.n * sums.columns);
}

static void sum_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    struct tt_row_sums sums = sums_of(call->graph, call->node);
    int64_t tiles = tt_tiles(sums.columns, SUM_COLUMNS), k = tile / tiles % sums.n, sum = tile / tiles / sums.n;
    struct tt_range part = tt_tile_range(sums.columns, SUM_COLUMNS, tile % tiles);
    int64_t stride = sums.n * sums.columns;
    const tt_real *acc = call->in[sums.acc + k], *terms = sums.block ? call->scratch : call->in[0];

    (void)worker;
    sum_blocks(&sums.blocks, (tt_real *)call->out[sums.out + k] + sum * sums.columns + part.begin,
               acc ? acc + part.begin : NULL, terms + sum * blocks_of(&sums) * stride + k * sums.columns + part.begin,
               stride, part.n);
}

void tt_op_run_sums(const struct tt_call *call)
{
    struct tt_row_sums sums = sums_of(call->graph, call->node);

    if (sums.block)
        tt_team_run(call->team, sums.sums * blocks_of(&sums), block_tile, (void *)call);
    tt_team_run(call->team, sums.sums * sums.n * tt_tiles(sums.columns, SUM_COLUMNS), sum_tile, (void *)call);
}

int64_t tt_op_sums_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_row_sums sums = sums_of(graph, node);

    (void)threads;
    return sums.sums * blocks_of(&sums) * sums.n * sums.columns * (int64_t)sizeof(tt_real);
}

/* to = a + b */
struct addition {
    tt_real *to;
    const tt_real *a, *b;
    int64_t n;
};

static void add_tile(void *arg, int64_t tile, int worker)
{
    const struct addition *add = arg;
    struct tt_range part = tt_tile_range(add->n, SUM_TILE, tile);

    (void)worker;
    tt_kernels()->add(add->to + part.begin, add->a + part.begin, add->b + part.begin, part.n);
}

void tt_op_sum_grains(struct tt_team *team, int64_t grains, int64_t n, tt_real *stack, const tt_real *acc, tt_real *y,
                      void (*fn)(void *arg, int64_t grain, tt_real *to), void *arg)
{
    int64_t depth = 0;

    for (int64_t g = 0; g < grains; g++) {
        int64_t carries = g + 1 < grains ? tt_tree_carries(g) : depth;

        fn(arg, g, stack + depth++ * n);
        for (; carries > 0; carries--, depth--) {
            tt_real *into = stack + (depth - 2) * n;

            tt_team_run(team, tt_tiles(n, SUM_TILE), add_tile, &(struct addition){into, into, into + n, n});
        }
    }
    if (acc)
        tt_team_run(team, tt_tiles(n, SUM_TILE), add_tile, &(struct addition){y, acc, stack, n});
    else
        memcpy(y, stack, (size_t)n * sizeof *y);
}

/* --- the table, in the order of ops.def --- */

static const struct tt_op_row *const rows[] = {
#define TT_OP(id, row) &TT_OF_TYPE(tt_op_##row),
#include "core/graph/ops.def"
#undef TT_OP
};

const struct tt_op_row *tt_op_row(enum tt_op_id op)
{
    return rows[op];
}

#ifndef TT_WIDE
const struct tt_op_row *tt_op_row_of(const struct tt_graph *graph, const struct tt_node *node)
{
    return graph->dtype == TT_F64 ? tt_op_row_f64(node->op) : rows[node->op];
}
#endif
