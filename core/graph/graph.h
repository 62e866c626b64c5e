/* SPDX-License-Identifier: MIT */
#ifndef TT_GRAPH_GRAPH_H
#define TT_GRAPH_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/graph/dtype.h"
#include "core/math/packing.h"

/**
 * A graph: the work of one microbatch as ops on values. Values have names and shapes; the memory plan assigns storage
 * to them later. Nodes are listed in an order in which they can run. Each value is written once (SSA): an op that
 * accumulates takes the earlier sum as an input and produces a new value, and the memory plan lets the two share
 * storage if nothing else reads the old one.
 *
 * Dimension letters, used all over titan:
 *   B sequences of a microbatch   T tokens of a sequence (seq_len)   N = B*T tokens   D model width
 *   H query heads   K key/value heads   E head_dim   F ffn width   V vocabulary   L layers
 *   X experts   k experts of a token
 */
enum { TT_MAX_DIMS = 4, TT_MAX_INPUTS = 11, TT_MAX_OUTPUTS = 4, TT_NONE = -1 };

enum tt_value_kind {
    TT_VALUE_PARAM,      /* a model parameter, whole (unsharded) */
    TT_VALUE_INPUT,      /* tokens, labels, positions: filled by the loader */
    TT_VALUE_CONST,      /* filled once before the first step (RoPE table) */
    TT_VALUE_CACHE,      /* keys and values of the tokens so far, kept between runs; a node adds its rows in place */
    TT_VALUE_ACTIVATION, /* produced by a forward node or, if there is none, by the previous stage (stage.h) */
    TT_VALUE_GRAD,       /* gradient of an activation; without a producing node, it comes from the next stage */
    /* whole gradient of a parameter in this microbatch; without a producing node, the sum of earlier microbatches */
    TT_VALUE_PARAM_GRAD,
};

/* How tensor parallelism splits a parameter; torchtitan's terms are replicated, column-wise and row-wise. */
enum tt_param_tp {
    TT_TP_WHOLE,   /* on every rank: norms, positions, weights of latents, biases of whole rows */
    TT_TP_ROWS,    /* dimension 0: the outputs of wq, wk, wv, w1, w3, with their biases; the vocabulary */
    TT_TP_COLUMNS, /* dimension 1: the inputs of wo and w2 */
};

struct tt_value {
    char *name;
    enum tt_value_kind kind;
    enum tt_dtype dtype;
    int ndim;
    int64_t shape[TT_MAX_DIMS];
    int param; /* index of the model's parameter for PARAM and PARAM_GRAD, else TT_NONE */
    /* for PARAM and PARAM_GRAD of a tied weight: which of the two sums of its gradient; else 0 */
    int part;
    int producer;  /* node that writes it, or TT_NONE */
    int grad;      /* the value of its whole gradient, once the graph is differentiated; TT_NONE: it has none */
    bool constant; /* inputs, tables, frozen parameters, and values that depend only on these: they need no gradient */
    bool partial;  /* a term of a sum over ranks, always in F32; only an exchange reads it */
    enum tt_param_tp tp;            /* for PARAM */
    enum tt_packing_choice packing; /* for PARAM: how its rows are stored; products read them as elements of dtype */
};

/*
 * A dimension of a node over all ranks, and the number of equal grains (the last may be shorter) into which ranks may
 * cut it. Kernels cut their work by grains of the whole dimension and never by the local extent, so the bits do not
 * change when a pass makes the local extent smaller. Sums over the dimension are trees over its grains, so they do not
 * depend on which rank holds which grain. The number of grains affects the bits. Zeros: the dimension is whole and
 * cannot be cut.
 */
struct tt_extent {
    int64_t whole;
    int grains;
};

enum { TT_MOST_GRAINS = 64 };

/* The ways in which ranks divide a layer: by heads and width, by sequences, or by experts. */
enum tt_axis { TT_AXIS_NONE, TT_AXIS_TP, TT_AXIS_CP, TT_AXIS_EP, TT_AXES };

/* This rank's place among the ranks that share a dimension of a node. */
struct tt_axis_peers {
    enum tt_axis axis;
    int n, index; /* 0: nothing is shared */
};

/*
 * The grains into which ranks may cut sequences. Attention adds the gradients of keys and values over grains as a tree.
 * Either the sequence has C pieces and grain g is piece g, or it has 2C pieces and grain g is piece g and its mirror
 * image, piece 2C-1-g. The mirror images give all grains equal work under a causal mask. Zeros: sequences are whole.
 * The order of the rows is in pieces.h.
 */
struct tt_pieces {
    int grains; /* C */
    bool mirrored;
    int first, own; /* the grains of the local queries; keys and values are those of all grains */
    int head_ranks; /* number of ranks that divide the heads of the same sequences, or 1 */
};

/*
 * How the tokens of an op on expert rows are split. For each expert there is one GEMM per grain of tokens. Ranks that
 * share a layer hold consecutive blocks of the same tokens; a block may begin or end inside a grain; then a GEMM takes
 * rows from several blocks. Zeros: one grain, one block.
 */
struct tt_token_parts {
    int grains;        /* the number of grains in all blocks together */
    int blocks, block; /* the number of blocks, and the number of this rank's block */
};

/* For an op that reads blocks [a][b] and writes them in the order [b][a]; the output has `rows` rows. */
struct tt_reorder {
    int64_t a, b, rows;
};

enum tt_router_score { TT_SCORE_SOFTMAX, TT_SCORE_SIGMOID };

/* The score of a group of experts: its best score, or the sum of its two best. */
enum tt_group_rule { TT_GROUP_BEST, TT_GROUP_TWO_BEST };

/* How a router chooses experts and weights them (core/ops/experts/router.c). */
struct tt_router {
    enum tt_router_score score;
    enum tt_group_rule group_rule;
    bool normalize;  /* divide the gates of a token by their sum */
    bool balanced;   /* experts get slots in turn, regardless of their scores */
    int groups;      /* groups of neighbouring experts; 0 or 1: there are none */
    int kept_groups; /* number of groups from which a token's experts may come */
    double scale;    /* final factor of the gates; 0 means 1 */
};

/* Coefficients of the auxiliary losses of a router (core/ops/experts/router.h); 0: none. */
struct tt_router_losses {
    double sequence, microbatch; /* for an uneven load within a sequence, and within the microbatch */
    double z;                    /* for the squared logsumexp of the logits */
    double global_batch;         /* for an uneven load in the global batch of the previous step */
};

/* Dropout (core/ops/elementwise.c). */
struct tt_dropout_attr {
    double rate;          /* the share of elements that become 0 */
    uint64_t stream;      /* of random numbers (core/math/rng.h) */
    int64_t first_column; /* of this rank */
};

/* What an op needs besides its inputs. Each op uses the members that its file names. */
struct tt_attr {
    struct tt_extent rows; /* tokens, N */
    /* of a GEMM: M, the weight's rows; attention: key/value heads; rmsnorm: groups; split, join: heads; head: V */
    struct tt_extent out;
    struct tt_extent in; /* of a GEMM: K, the weight's columns */
    /* For an exchange: its ranks. Otherwise the ranks that hold the other parts of a cut dimension; if all of them
     * hold a parameter, its gradient is a sum over these ranks. */
    struct tt_axis_peers peers;
    bool partial;           /* outputs of the node's own type are terms of a sum (tt_value.partial) */
    int64_t seq_len;        /* T */
    int heads;              /* H: heads in the last dimension of the input */
    int kv_heads;           /* K */
    int head_dim;           /* E: width of a head of queries and keys */
    int value_dim;          /* attention: width of a head of values; 0: E */
    int64_t sliding_window; /* attention: the most keys that a row sees, with its own; 0: all up to it */
    int prefix;             /* the first elements of a head: unchanged (rope), or the first part (split, join) */
    int rotated;            /* rope: the number of following elements that are rotated; 0: all the others */
    double eps;             /* norms */
    bool unit_offset;       /* rmsnorm: the weights are 1 + w */
    double scale;           /* scale: the factor of x; attention: the factor of the scores, 0: 1 / sqrt(E) */
    double soft_cap;        /* attention: scores s become soft_cap tanh(s / soft_cap); head: logits; 0: unchanged */
    int experts;            /* X, for ops on the rows of experts */
    int top_k;              /* router: experts of a token */
    struct tt_token_parts parts;         /* router, and ops on the rows of experts */
    struct tt_axis_peers sequence_peers; /* router: the ranks that share its sequences */
    struct tt_router router;
    struct tt_router_losses losses; /* router */
    int64_t window;                 /* experts on several ranks: the most rows of all ranks that one takes at once */
    /* for the same op: round the gradient of each rank's rows to bfloat16 before adding it */
    bool round_leaves;
    double z_loss;      /* head: coefficient of the squared logsumexp of each token; 0: none */
    int64_t first_row;  /* head in phases: first row of the chunk, among all N rows; router, dropout: of this rank */
    int64_t chunk_rows; /* head in phases: R */
    struct tt_reorder reorder;
    struct tt_dropout_attr dropout;
    bool shared;             /* split, join: all heads share one second part */
    struct tt_pieces pieces; /* attention; dropout; router (which reads only their number): pieces of the rows */
    bool inverse;            /* rope: rotate in the opposite direction (backward) */
    bool rotate_half;        /* rope: pairs (i, i + E/2), as in Hugging Face's Qwen3, else (2i, 2i+1), as in Llama */
    bool from_position;      /* row 0 is at tt_scalars.position of a context of seq_len tokens, not at 0 (generation) */
};

/* The most pairs of a head that LongRoPE may scale. */
enum { TT_ROPE_PAIRS = 128 };

/* RoPE frequencies. If factor > 0, they are scaled: by YaRN (Peng et al. 2023) if beta_fast > 0, by LongRoPE (Ding
 * et al. 2024) if its factors are set, as the flags below say, or otherwise as in Llama 3.1. */
struct tt_rope {
    double theta;
    double factor;
    double low_freq_factor;
    double high_freq_factor;
    double original_max; /* original_max_position_embeddings */
    /* YaRN: turns within original_max above which a pair stays unscaled, and below which it is fully scaled */
    double beta_fast, beta_slow;
    double mscale; /* YaRN: functions of these two multiply the table and the scores */
    double mscale_all_dim;
    double attention_factor; /* YaRN, LongRoPE: factor of the table; 0: it follows from the other numbers */
    bool linear;             /* all frequencies are divided by factor */
    bool dynamic;            /* unscaled up to original_max; for longer contexts theta follows from their length */
    bool fractional;         /* YaRN: the borders between unscaled and scaled pairs need not be whole numbers */
    /* LongRoPE: pair i turns slower by one of these factors: the first list is for contexts up to original_max, the
     * second for longer ones. 0 ends each list. */
    float short_factor[TT_ROPE_PAIRS], long_factor[TT_ROPE_PAIRS];
};

enum tt_op_id {
#define TT_OP(id, row) TT_OP_##id,
#include "core/graph/ops.def"
#undef TT_OP
    TT_OPS
};

struct tt_node {
    enum tt_op_id op;
    bool backward; /* runs after the loss */
    int block;     /* its transformer block (for a backward node, the block of its forward node), or TT_NONE */
    int n_in, n_out;
    int in[TT_MAX_INPUTS]; /* value ids; TT_NONE for an optional input that is absent */
    int out[TT_MAX_OUTPUTS];
    struct tt_attr attr;
};

struct tt_graph {
    struct tt_value *values;
    int n_values, cap_values;
    struct tt_node *nodes;
    int n_nodes, cap_nodes;
    int *param_values; /* two per parameter: the values of its parts 0 and 1, or TT_NONE */
    int n_param_values, cap_param_values;
    enum tt_dtype dtype; /* types of parameters, as nodes read them, and of activations, while models are built */
    int block;           /* transformer block of the nodes added next, or TT_NONE */
    bool documents;      /* models are built with positions */
    int tokens, labels;  /* TT_VALUE_INPUT (B, T) I32; labels may be TT_NONE (generation) */
    /* TT_VALUE_INPUT (B, T) I32: the position of each token in its document; TT_NONE: documents do not matter */
    int positions;
    int rope_table;            /* TT_VALUE_CONST (T, E/2, 2) cos and sin, or TT_NONE */
    struct tt_rope rope;       /* fills rope_table */
    int local_rope_table;      /* the same for layers with a window, if their table differs, or TT_NONE */
    struct tt_rope local_rope; /* fills that table */
    bool carries;              /* gradients carry over from one microbatch to the next: tt_graph_carry_gradients */
    /* (N) F32 loss of each token, 0 if the label is ignored; TT_NONE before the head. With a z-loss (2, N): the
     * second row holds the z-loss of each token */
    int token_loss;
    int64_t cache_len; /* rows of each head of a TT_VALUE_CACHE: the longest context; 0: not a decode graph */
    int64_t sequences; /* of a decode graph: the sequences that its caches hold */
    /* (1, V) F32 logits of the token after the last, in a decode graph, or (N, V) if its rows are of several sequences;
     * else TT_NONE */
    int logits;
};

/**
 * Whether this is a decode graph with a row for each sequence, at the row's own position. Each row must get the bits
 * that it has alone.
 */
static inline bool tt_graph_is_of_sequences(const struct tt_graph *graph)
{
    return graph->cache_len > 0 && graph->positions != TT_NONE;
}

struct tt_graph *tt_graph_new(void);
void tt_graph_free(struct tt_graph *graph);

/** An array of n ids, all TT_NONE. Free it with tt_free. */
int *tt_ids_new(size_t n);

/** Adds a value; name is copied. Returns its id. */
int tt_graph_value(struct tt_graph *graph, enum tt_value_kind kind, enum tt_dtype dtype, const char *name, int ndim,
                   const int64_t *shape);

/**
 * The value of a model parameter in the type that nodes read, added at the first use; later calls return the same id.
 * The caller sets `tp` and, for a frozen parameter, `constant`, before nodes read it. Each part of a parameter is a
 * separate value with the same contents and its own gradient: for a tied weight, the embedding uses part 0 and the
 * output part 1.
 */
int tt_graph_param(struct tt_graph *graph, int param, int part, enum tt_dtype dtype, const char *name, int ndim,
                   const int64_t *shape);

/** Appends a copy of a node. The copy produces the outputs, which must already be in the graph. */
void tt_graph_append(struct tt_graph *graph, const struct tt_node *node);

/** The frequencies that fill a constant. */
static inline const struct tt_rope *tt_graph_rope_of(const struct tt_graph *graph, int value)
{
    return value == graph->local_rope_table ? &graph->local_rope : &graph->rope;
}

/** The first output of a node. */
static inline int tt_graph_out(const struct tt_graph *graph, int node)
{
    return graph->nodes[node].out[0];
}

/** Elements of a value, and its bytes as it is stored. */
int64_t tt_value_elements(const struct tt_value *value);
int64_t tt_value_bytes(const struct tt_value *value);

/** Rows: the product of all dimensions except the last. */
int64_t tt_value_rows(const struct tt_value *value);

/** The last dimension. */
static inline int64_t tt_value_width(const struct tt_value *value)
{
    return value->ndim ? value->shape[value->ndim - 1] : 1;
}

#endif
