/* SPDX-License-Identifier: MIT */
#ifndef TT_OPS_OP_H
#define TT_OPS_OP_H

#include "core/graph/graph.h"
#include "core/keys/choices.h"
#include "core/math/real.h"
#include "core/math/round.h"
#include "core/os/team.h"

/**
 * The op table: an op's row contains everything that titan knows about the op. core/graph/ops.def says how to add one.
 */

/* Numbers that change from step to step; ops and instructions read them by name. */
struct tt_scalars {
    double inv_valid_tokens; /* 1 / the number of tokens in the global batch whose label counts */
    double inv_tokens;       /* 1 / all tokens of the global batch; the engine sets it */
    double clip;             /* multiplies the gradients: min(1, max_norm / (norm + 1e-6)) */
    double lr;               /* double, because 1 - beta in float would lose digits that PyTorch keeps */
    double beta1, beta2, eps, weight_decay;
    double bias_correction1; /* 1 - beta1^step */
    double bias_correction2; /* 1 - beta2^step */
    double average_decay;    /* decay of the averages of weights */
    double balance_coeff;    /* how far a step moves the biases of experts */
    const int64_t *loads;    /* experts' loads in the previous step, [block][expert]; NULL: even. The engine sets it */
    double momentum;         /* Muon's numbers (core/optim/muon.c); it uses the lr and weight_decay above */
    enum tt_adjust_choice muon_lr; /* how the learning rate of a matrix depends on its shape */
    bool nesterov;
    uint64_t step_seed; /* tt_rng_seed_of_step: for weights and moments in bfloat16, and for dropout */
    int64_t sequence;   /* generation: the sequence to which the rows belong, if they are of one */
    int64_t position;   /* generation: its tokens in the cache, which is the position of this run's first row */
    int64_t rows;       /* generation: rows that are tokens; the others pad to a fixed shape */
};

/* One execution of a node: resolved addresses. in[i] is NULL for an absent optional input. */
struct tt_call {
    const struct tt_graph *graph; /* shapes only */
    const struct tt_node *node;
    void *in[TT_MAX_INPUTS];
    void *out[TT_MAX_OUTPUTS];
    void *scratch; /* tt_op_row.scratch_bytes, 64-byte aligned, undefined contents */
    const struct tt_scalars *scalars;
    int64_t microbatch; /* its number in the step, among those of all ranks */
    struct tt_team *team;
};

struct tt_cost {
    double flops; /* multiplications and additions; for causal attention, only those that the mask leaves */
    double bytes; /* read or written at least once */
    double inner; /* number of terms in a sum of these products; 0: unknown, or no products */
    bool bf16;    /* its flops are products or attention in bfloat16 */
};

/* The cost of running an op twice, compared with keeping its outputs (core/passes/recompute.h). */
enum tt_op_weight {
    TT_WEIGHT_LIGHT, /* bound by memory: cheaper to run again than to keep */
    TT_WEIGHT_MATMUL,
    TT_WEIGHT_ATTENTION, /* the work grows with the square of seq_len, the outputs do not */
    TT_WEIGHT_EXCHANGE,  /* limited by the links between ranks */
};

/* The part of a step's time to which an op counts, in reports. */
enum tt_op_part {
    TT_PART_OTHER, /* elementwise, embedding */
    TT_PART_GEMM,
    TT_PART_ATTENTION,
    TT_PART_NORM,
    TT_PART_HEAD, /* output projection and loss */
};

/* The element type of an operand. */
enum tt_op_type {
    TT_TYPE_NONE,    /* the op has no such operand */
    TT_TYPE_COMPUTE, /* the node's type: the same for all of these operands, inferred from the inputs */
    TT_TYPE_F32,     /* float32 in any case: losses, statistics of rows, tables of angles, sums of gradients */
    TT_TYPE_IDS,     /* I32: tokens and labels */
    TT_TYPE_GRAPH,   /* an output in the type in which the graph is built, whatever type the node computes in */
};

/*
 * The exchange with its peers (tt_attr.peers) that a node makes in place of a computation. Such a row has no `run`. A
 * program begins it as a collective, and waits for it before the first use of its output.
 */
enum tt_op_exchange {
    TT_EXCHANGE_NONE,
    TT_EXCHANGE_GATHER,  /* an all-gather of rows */
    TT_EXCHANGE_SCATTER, /* a reduce-scatter of rows, added over the peers in the order of core/math/tree.h */
    TT_EXCHANGE_SUM,     /* an all-reduce in the same order */
    TT_EXCHANGE_BLOCKS,  /* an all-to-all of blocks of rows */
};

/* Dimensions that may be cut, for tt_op_row.cuts. */
enum { TT_CUT_ROWS = 1, TT_CUT_OUT = 2, TT_CUT_IN = 4, TT_CUT_ANY = 7 };

/*
 * An input of a node that computes gradients, in terms of the differentiated node: the gradient of an output (DY), an
 * input (X), an output (Y), or the earlier gradient of an input (DX), to which it adds its own.
 */
enum tt_gradient_operand {
    TT_DY0 = 1,
    TT_DY1,
    TT_X0 = 5,
    TT_X1,
    TT_X2,
    TT_Y0 = 9,
    TT_Y1,
    TT_Y2,
    TT_DX0 = 13,
    TT_DX1,
    TT_DX2
};

/* How the gradients of inputs first to first + n - 1 are computed. */
struct tt_gradient {
    enum tt_op_id op;
    int first, n;                               /* the outputs of the op are these gradients */
    enum tt_gradient_operand in[TT_MAX_INPUTS]; /* ended by the first 0 */
};

enum { TT_GRADIENTS = 2 };

struct tt_row_sums;

/* A set of element types, for tt_op_row.computes. */
#define TT_COMPUTES(dtype) (1U << (dtype))

struct tt_op_row {
    const char *name;
    enum tt_op_weight weight;
    enum tt_op_part part;
    enum tt_op_type in[TT_MAX_INPUTS]; /* types of all inputs, optional ones included, and so also their number */
    enum tt_op_type out[TT_MAX_OUTPUTS];
    int may_lack; /* how many inputs, at the end, are optional */
    /*
     * For a backward op: how many inputs, at the end, it recomputes if they are absent. Selective recomputation omits
     * these instead of keeping them (core/passes/recompute.h).
     */
    int remakes;
    enum tt_op_exchange exchange;
    unsigned cuts;     /* TT_CUT_*: the dimensions that may be in grains (tt_attr); others are whole */
    bool sums_terms;   /* its outputs in F32 may be terms of a sum over ranks, too (tt_attr.partial) */
    unsigned unpacks;  /* bits of the inputs that may be packed (tt_value.packing) */
    unsigned computes; /* the types in which run can compute (TT_TYPE_COMPUTE); 0: float32 and bfloat16 */
    /*
     * Checks input shapes and adds the outputs to graph (tt_op_output in rule.h); 0 or TT_EINTERNAL with the shapes. If
     * the node already has its outputs (backward rules choose them: tt_rule_node in rule.h), checks their shapes
     * instead. Only tt_op_infer calls this, after checking the number of inputs and their types.
     */
    int (*infer)(struct tt_graph *graph, struct tt_node *node, const char *name);
    /*
     * Appends the backward nodes of `node`. grad_out[k]: gradient of output k or TT_NONE. grad_in[i]: on entry the sum
     * of the gradients of input i so far, or TT_NONE; on return the new sum (an op that can accumulate takes the old
     * sum as an input). NULL: not differentiable (backward ops).
     *
     * tt_rule_backward follows two members: the first `passes` inputs get the gradient of output 0 as it is, and the
     * nodes of `gradients` compute the gradients of other inputs. A node that no input needs is left out.
     */
    int (*backward)(struct tt_graph *graph, int node, const int *grad_out, int *grad_in);
    int passes;
    struct tt_gradient gradients[TT_GRADIENTS];
    /*
     * `backward` of an op whose output is the differentiated loss (TT_GRAD_OF_LOSS): it may replace the node by one
     * that also yields the gradients of its inputs. NULL: the op cannot yield the loss.
     */
    int (*backward_of_loss)(struct tt_graph *graph, int node, int *grad_in);
    /* Computes the outputs. Cuts the work into tiles that depend on shapes only. Cannot fail. NULL: an exchange. */
    void (*run)(const struct tt_call *call);
    /* Corrects the cost. Its initial value is `flops` for each element of the first input, and the bytes of all
     * operands. */
    void (*cost)(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost);
    double flops;
    /* With tt_op_run_rows as `run`, the team calls `tile` for ranges of `tile_rows` rows of output `tiled`. */
    void (*tile)(const struct tt_call *call, struct tt_range rows);
    int tile_rows, tiled;
    /* The sums over rows of an op whose `run` is tt_op_run_sums; tt_op_sums_scratch makes room for them (rule.h). */
    struct tt_row_sums (*sums)(const struct tt_graph *graph, const struct tt_node *node);
    int64_t (*scratch_bytes)(const struct tt_graph *graph, const struct tt_node *node, int threads); /* NULL: none */
    /*
     * alias[k] - 1 is the input whose memory output k may take over when nobody reads that input later; 0: none. That
     * input may be absent (TT_NONE: no alias). Its size is that of the output. Two outputs of a node never share one
     * input.
     */
    int alias[TT_MAX_OUTPUTS];
};

#define TT_OP(id, row) extern const struct tt_op_row TT_OF_TYPE(tt_op_##row);
#include "core/graph/ops.def"
#undef TT_OP

/** The row of an op; the second function: in the copy for double. */
const struct tt_op_row *tt_op_row(enum tt_op_id op);
const struct tt_op_row *tt_op_row_f64(enum tt_op_id op);

/**
 * The row of a node's op whose run, tile, sums and scratch_bytes compute in the graph's type; for a graph in F64 these
 * are the functions that were compiled for double. Everything else is the same in both rows.
 */
const struct tt_op_row *tt_op_row_of(const struct tt_graph *graph, const struct tt_node *node);

/**
 * Checks the number, types and shapes of a node's inputs against the op's row. Adds its outputs to the graph, or checks
 * those that it already has. 0, or TT_EINTERNAL with the expected and the actual inputs.
 */
int tt_op_infer(struct tt_graph *graph, struct tt_node *node, const char *name) TT_MUST_CHECK;

/**
 * Adds a node; the op's row checks the inputs and adds the outputs, named `name` (and name.suffix).
 * Returns the node id.
 */
int tt_graph_node(struct tt_graph *graph, enum tt_op_id op, const char *name, const int *in, int n_in,
                  const struct tt_attr *attr);

/**
 * The same for a node that the caller has filled in, except for its outputs. TT_EINTERNAL in cases where tt_graph_node
 * would end the process.
 */
int tt_graph_try_node(struct tt_graph *graph, const struct tt_node *node, const char *name) TT_MUST_CHECK;

/** The cost of a node. The caller must first set ret_cost->inner and bf16 to zero, since most ops do not set them. */
void tt_op_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost);

/** Shapes of a call. */
static inline const struct tt_value *tt_call_in(const struct tt_call *call, int i)
{
    return &call->graph->values[call->node->in[i]];
}

static inline const struct tt_value *tt_call_out(const struct tt_call *call, int i)
{
    return &call->graph->values[call->node->out[i]];
}

#endif
