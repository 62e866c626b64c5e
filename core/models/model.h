/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_MODEL_H
#define TT_MODELS_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/graph/graph.h"
#include "core/keys/choices.h"
#include "core/math/box.h"

/**
 * The model registry: one row per architecture, each with its flavors. A model consists of its parameters (names,
 * shapes, init rules, Hugging Face names) and a builder that writes its forward graph. Neither allocates storage for
 * weights, so a laptop can describe a 405B model.
 */

/* Low-rank adapters; see core/models/lora.h. */
struct tt_lora {
    int64_t rank; /* 0: none */
    double alpha;
    bool rslora;                /* the factor is alpha / sqrt(rank), not alpha / rank */
    bool dora;                  /* the rows of the weights have magnitudes of their own */
    double dropout;             /* share of the input of A that is 0 in training */
    unsigned modules;           /* which linear layers have one: bits of tt_lora_modules */
    const char *const *targets; /* the words that say so, with more of them; their owner is the model of the dims */
    int n_targets;
    enum tt_packing_choice packing; /* of the frozen weights of the blocks' linear layers */
};

/* How many layers a set of bits can name. */
#define TT_LAYER_BITS 62

/* More layers than any model has. */
#define TT_MOST_LAYERS 16384

/* The feed-forward layers of experts: a router gives each token to top_k of them. */
struct tt_moe {
    int64_t experts; /* 0: none, all layers are dense */
    int64_t top_k;
    int64_t ffn_dim;            /* width of an expert; 0 in overrides and flavors: as tt_model_dims.ffn_dim */
    int64_t shared;             /* experts that see all tokens, as one feed-forward `shared` times as wide */
    int64_t shared_dim;         /* or one of this width, times the sigmoid of a product with the token (Qwen2-MoE) */
    int64_t dense_layers;       /* the first layers, which have a dense feed-forward */
    int64_t dense_set;          /* more dense layers: bit l is layer l < TT_LAYER_BITS */
    bool gates_as_scored;       /* the gates of a token are not divided by their sum */
    bool biased;                /* each layer has biases of its experts, which only choose (tt_params_buffer) */
    bool balanced;              /* debugging: experts get tokens in turn, whatever the router says */
    enum tt_router_score score; /* how the router turns logits into scores */
    int64_t groups;             /* groups of neighbouring experts; 0: none */
    int64_t kept_groups;        /* number of groups from which a token's experts come */
    enum tt_group_rule group_rule;
    double route_scale; /* factor of the gates; 0: 1 */
};

/*
 * Multi-head latent attention (DeepSeek-AI 2024): keys and values of all heads follow from one latent of a token, and
 * from one key of rope_dim elements, the only ones that are rotated. A head of queries and keys has head_dim elements,
 * of which the last rope_dim are rotated.
 */
struct tt_mla {
    int64_t kv_rank; /* width of the latent of keys and values; 0: none, attention is Llama's */
    int64_t q_rank;  /* width of a latent of queries; 0: there is none */
    int64_t rope_dim;
    int64_t value_dim; /* of a head */
};

/* Some layers: every n-th (n - 1, 2 n - 1, ...), or the layers given by bits (bit l is layer l < TT_LAYER_BITS). */
struct tt_layers {
    int64_t every; /* 0: the bits decide */
    int64_t bits;
};

/* Constant factors; 0 is 1. */
struct tt_multipliers {
    double embedding; /* factor of the embeddings */
    double residual;  /* factor of the outputs of attention and feed-forward that are added to the residual */
    double attention; /* factor of the scores; 0: 1 / sqrt(head_dim) */
    double logits;    /* factor of the logits */
};

/* Sizes of a model; in overrides 0 (or rope.theta 0, norm_eps 0, tied -1) means "from the flavor". */
struct tt_model_dims {
    int64_t dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size;
    float norm_eps;
    struct tt_rope rope; /* factor 0: no scaling */
    int64_t
        max_positions; /* config.json's max_position_embeddings, a limit only if positions are learned; 0: unknown */
    int tied;          /* output shares tok_embeddings: 0, 1, or -1 in overrides */
    int64_t sliding_window; /* keys that a row sees at most in layers with a window, itself included; 0: none has one */
    int64_t window_from;    /* layers with a window: 0: layers 0, 2, 4, ...; n: all layers from n - 1 on */
    struct tt_layers full;  /* if this is not empty: exactly these layers have no window */
    struct tt_layers unrotated; /* layers without RoPE */
    int64_t rotary_dim;         /* the number of first elements of a head that are rotated; 0: all of them */
    double local_theta;         /* RoPE's base in layers with a window, which then is not scaled; 0: as in others */
    bool qkv_bias, out_bias,
        mlp_bias;    /* the linear layers that have biases, besides the family's own (struct tt_decoder) */
    bool parallel;   /* attention and feed-forward read the same x, and both are added to it */
    bool head_norms; /* q and k have norms that other models of the family lack (Command R+, GLM-4.5) */
    bool tanh_gelu;  /* GELU in its tanh form, if the family's is the exact one */
    struct tt_multipliers multipliers;
    double score_cap, logit_cap; /* soft caps of the scores of attention and of the logits; 0: none */
    struct tt_mla mla;
    struct tt_moe moe;
    struct tt_lora lora;
};

/* How a parameter is initialised; parallel/layout/init.h detects a row that does not say. */
enum tt_param_init {
    TT_PARAM_NONE,
    TT_PARAM_ONES,
    TT_PARAM_ZEROS,
    TT_PARAM_NORMAL,
    TT_PARAM_UNIFORM,
    TT_PARAM_CONSTANT,
};

/* The standard deviation on which the families' rules are based; model.init_std replaces it. */
#define TT_INIT_STD 0.02

/* Where in the model a parameter lives; the wrap policy `block` makes its units from this. */
enum { TT_BLOCK_EMBEDDINGS = -1, TT_BLOCK_HEAD = -2 };

/* How a tensor of a Hugging Face file maps to a parameter. */
enum tt_hf_transform {
    TT_HF_SAME,
    TT_HF_ROPE_PAIRS,        /* rows inside each head: ours 2i+c, theirs c*(E/2)+i (llama q and k) */
    TT_HF_TRANSPOSE,         /* theirs is [in, out] (gpt2) */
    TT_HF_EXPERTS,           /* theirs is a tensor for each expert, with its number in place of the * in hf_name */
    TT_HF_HEADS_IN_TURN,     /* theirs holds the rows of each head from every part in turn (gpt_neox's q, k and v) */
    TT_HF_EXPERTS_TRANSPOSE, /* theirs is one tensor, with the matrix of each expert as [in, out] (gpt-oss) */
};

struct tt_param {
    char *name; /* torchtitan's name, for instance layers.0.attention.wq.weight */
    int ndim;
    int64_t shape[TT_MAX_DIMS]; /* sharded on dimension 0 */
    int block;                  /* transformer block, or TT_BLOCK_* */
    bool tied; /* also the output's weight: the gradient is two sums (tt_value.part), one for each use */
    enum tt_param_init init;
    double std, cut;            /* TT_PARAM_NORMAL; cut is absolute, 0: none */
    double depth;               /* if not 0, std is TT_INIT_STD / depth */
    double low, high;           /* TT_PARAM_UNIFORM; TT_PARAM_CONSTANT is low */
    double lr_factor;           /* factor of the learning rate */
    bool no_decay;              /* without weight decay */
    enum tt_optim_choice optim; /* its optimizer: AdamW, unless tt_param_groups_set_optim sets another one */
    enum tt_param_tp tp;
    bool frozen; /* not trained: it has neither a gradient nor moments */
    bool buffer; /* frozen, in float32 whatever the weights are, and whole on every rank of its stage */
    enum tt_packing_choice packing; /* of a frozen matrix: how a run keeps its rows */
    bool adapted;               /* it has a low-rank adapter, of which lora_a and lora_b are the parameters A and B */
    int lora_a, lora_b, lora_m; /* and lora_m the magnitudes of the rows; 0: there are none */
    bool adapter;               /* A, B or the magnitudes of an adapter */
    bool of_experts;            /* dimension 0 is the experts of a layer */
    bool vectors;               /* its rows are vectors that are trained like other vectors, not one matrix */
    char *hf_name;              /* NULL: it does not exist in Hugging Face's class */
    enum tt_hf_transform hf_transform;
    int hf_heads;            /* heads along dimension 0, for TT_HF_ROPE_PAIRS and TT_HF_HEADS_IN_TURN */
    int hf_part, hf_parts;   /* their tensor contains hf_parts parameters along dimension 0; 0: only this one */
    int64_t hf_row, hf_rows; /* rows of their tensor: where this parameter begins, and the number of all; 0: as ours */
};

/** Whether dimension 0 of a parameter is the experts of a layer. */
static inline bool tt_param_is_of_experts(const struct tt_param *param)
{
    return param->of_experts;
}

struct tt_model_row;

struct tt_model {
    const struct tt_model_row *row;
    char *flavor;
    char *title; /* for people: "llama3 8B"; "llama3" if nothing remains of a flavor */
    struct tt_model_dims dims;
    struct tt_param *params; /* in the order of the forward pass; a tied weight once, as tok_embeddings.weight */
    int n_params, cap_params;
};

/* FORWARD is TRAIN without its backward pass: to be divided, and then differentiated. */
enum tt_graph_mode { TT_GRAPH_TRAIN, TT_GRAPH_FORWARD, TT_GRAPH_VALIDATE };

struct tt_build;

/** What a feed-forward applies: with w3 to the gate, which multiplies the other product; else to the only product. */
enum tt_activation {
    TT_ACTIVATION_SILU,
    TT_ACTIVATION_GELU_TANH,
    TT_ACTIVATION_GELU, /* exact, unless the model's sizes say tanh_gelu */
};

/** The norms of a family: all of one kind. */
enum tt_norm_kind {
    TT_NORM_RMS,         /* RMSNorm */
    TT_NORM_LAYER,       /* LayerNorm with a bias */
    TT_NORM_LAYER_PLAIN, /* LayerNorm without a bias (Cohere) */
    TT_NORM_RMS_OFFSET,  /* RMSNorm with weights of 1 + w (Gemma) */
};

/** The blocks of a family. */
struct tt_model_parts {
    /* Lists the parameters of a block (internal.h). */
    void (*add_block)(struct tt_model *model, int block);
    /* The parts of block `layer`, applied to x. Norms come before both, unless the row's decoder places them. */
    int (*attention)(struct tt_build *b, int layer, int x);
    int (*feed_forward)(struct tt_build *b, int layer, int x);
};

/** A family: everything that titan knows about it. */
struct tt_model_row {
    const char *name; /* "llama3" */
    const struct tt_flavor *flavors;
    int n_flavors;
    const struct tt_hf_class *classes; /* the classes that its config.json may have (core/models/hf.h) */
    int n_classes;
    const char *hf_blocks;               /* the text before a block's number in Hugging Face's names */
    const char *hf_embeddings, *hf_norm; /* Hugging Face's names of tok_embeddings.weight, and of the last norm */
    const char *hf_head;                 /* and name of output.weight; NULL: lm_head.weight */
    const char *hf_prefix;               /* a prefix of names that some files leave out; may be NULL */
    /* The architectures of llama.cpp that compute it (core/models/gguf.h), and its tensors' names that are not Llama's.
     */
    const struct tt_gguf_arch *archs;
    int n_archs;
    const struct tt_gguf_name *gguf_names;
    int n_gguf_names;
    enum tt_norm_kind norm;
    bool learned_positions; /* max_positions rows of them, and a key and value head for each query head */
    bool adaptable;         /* it can have low-rank adapters: its linear layers are tt_lora_modules */
    bool plain_embeddings;  /* embeddings and head are initialised like other matrices; else by torchtitan's rules */
    bool undivided;         /* ranks can divide neither its layers, nor its sequences, nor its experts */
    const struct tt_decoder *decoder; /* if its blocks are Llama's: how they differ */
    /*
     * Reads the keys of a parsed config.json (json_t *) that the common reader leaves out. The common reader has filled
     * dims with the defaults of the class and, if the row has a decoder, with the sizes under Llama's keys. NULL: there
     * are no other keys.
     */
    int (*read_hf_config)(const void *json, const char *where, struct tt_model_dims *dims);
    /* The number of the class that writes a model of these sizes; NULL: 0. */
    int (*class_of)(const struct tt_model_dims *dims);
    /*
     * The reverse: adds the keys that transformers 4 and 5 need to load the exported weights to a new config.json
     * (json_t *), which already has Llama's keys if the class reads them. NULL: there are no other keys.
     */
    void (*write_hf_config)(const struct tt_model *model, void *json);
    const struct tt_model_parts *parts;
};

struct tt_flavor {
    const char *name;
    struct tt_model_dims dims;
};

extern const struct tt_model_row *const tt_model_rows[];
extern const int tt_model_n_rows;

/** Receives one fault: the keys that it is about, ended by TT_KEY_NONE, and the message. */
typedef void (*tt_model_fault_fn)(void *arg, const enum tt_key *keys, const char *message);

/**
 * Reports every fault in the arguments of tt_model_new to fn. If there is none, ret_model (may be NULL) is the model.
 * Returns 0, or the code of a fault.
 */
int tt_model_check(const char *name, const char *flavor, const struct tt_model_dims *overrides, const char *hf_folder,
                   tt_model_fault_fn fn, void *arg, struct tt_model **ret_model) TT_MUST_CHECK;

/**
 * The model `name` of flavor `flavor`, with the members of overrides that are not 0 (tied: not -1) replacing the
 * flavor's. flavor "hf": dims from hf_folder/config.json, or of the GGUF file hf_folder. Unknown names, impossible dims
 * (heads that do not divide, odd head_dim): TT_EUSAGE listing the choices. The caller frees the model (tt_model_free).
 */
int tt_model_new(const char *name, const char *flavor, const struct tt_model_dims *overrides, const char *hf_folder,
                 struct tt_model **ret_model) TT_MUST_CHECK;
void tt_model_free(struct tt_model *model);

/** The same with all dims given (flavor is only a name): for the model of a checkpoint. */
int tt_model_from_dims(const char *name, const char *flavor, const struct tt_model_dims *dims,
                       struct tt_model **ret_model) TT_MUST_CHECK;

/**
 * A new config.json (json_t *; the caller releases it). torch_dtype is float32, and bos_token_id and eos_token_id are
 * null: the exporter sets the dtype and the token ids.
 */
void *tt_model_hf_config(const struct tt_model *model);

/**
 * The model.name of a Hugging Face folder, by the model_type of its config.json, or of a GGUF file; TT_EDATA lists the
 * known ones.
 */
int tt_model_hf_name(const char *folder, const char **ret_name) TT_MUST_CHECK;

/** The model of a Hugging Face folder or a GGUF file; errors are as above. */
int tt_model_from_hf(const char *folder, struct tt_model **ret_model) TT_MUST_CHECK;

/** The elements of all parameters except buffers. */
int64_t tt_model_n_elements(const struct tt_model *model);

/** The elements of the parameters that are not frozen. */
int64_t tt_model_n_trained(const struct tt_model *model);

/** The elements that a token uses; for experts, the share top_k / experts. */
int64_t tt_model_n_active(const struct tt_model *model);

/**
 * torchtitan's model flops per token: 6 (n - n_embedding) + 6 L H (E + Ev) T, where n are the elements that a token
 * uses, and E and Ev the elements of a head of keys and of values. Neither the causal mask nor a sliding window is
 * discounted. A frozen element counts 4, since it has no gradient.
 */
double tt_model_flops_per_token(const struct tt_model *model, int64_t seq_len);

/** The same without the attention to masked positions. */
double tt_model_flops_per_token_causal(const struct tt_model *model, int64_t seq_len);

/**
 * TT_EUSAGE when sequences of seq_len tokens are longer than the model's learned positions; or, if tokens attend only
 * within their documents, than those up to which dynamic scaling does not depend on the lengths of documents.
 */
int tt_model_check_seq_len(const struct tt_model *model, int64_t seq_len, bool documents) TT_MUST_CHECK;

/**
 * A new forward graph (caller frees) whose parameters and activations are of type dtype, TT_F32 or TT_BF16. With
 * documents it has the input graph->positions, and tokens attend only within their own documents. TRAIN also
 * differentiates the loss: ret_param_grad[p] is the value of parameter p's whole gradient (for a tied one, the
 * embedding's part), or TT_NONE if nothing reads the parameter or it is frozen; otherwise ret_param_grad is NULL. Fails
 * as tt_model_check_seq_len does.
 */
int tt_model_graph(const struct tt_model *model, enum tt_graph_mode mode, enum tt_dtype dtype, int64_t batch,
                   int64_t seq_len, bool documents, struct tt_graph **ret_graph, int *ret_param_grad) TT_MUST_CHECK;

/* What a graph of generation computes. */
struct tt_decode {
    int64_t context;   /* most tokens of a sequence */
    int64_t sequences; /* whose keys and values are cached; 0: one */
    bool each;         /* a run takes the next token of each sequence; there are several */
    int64_t rows;      /* otherwise, the most tokens of one sequence that a run takes */
};

/**
 * A new graph of generation (caller frees), to graph->logits. Parameters, caches and activations are of type dtype,
 * TT_F32 or TT_BF16. Sequence, position and rows of a run are tt_scalars', or with `each` the input graph->positions.
 * Graphs of the same context and number of sequences have the same TT_VALUE_CACHEs in the same order. Fails as
 * tt_model_check_seq_len does, and with TT_EUSAGE if dynamic scaling would change with every token.
 */
int tt_model_decode_graph(const struct tt_model *model, enum tt_dtype dtype, const struct tt_decode *of,
                          struct tt_graph **ret_graph) TT_MUST_CHECK;

/**
 * Finds the matrices that a graph of generation, or of validation, can read in packed rows: ret_packable[p] of each
 * parameter. A packed one must be frozen.
 */
int tt_model_packable(const struct tt_model *model, bool generation, bool *ret_packable) TT_MUST_CHECK;

/** Fills a part of a parameter, packed, from its init rule. An element has the same bits in every part. */
void tt_param_fill(const struct tt_param *param, uint64_t seed, const struct tt_box *part, float *data);

static inline bool tt_layers_have(const struct tt_layers *layers, int64_t layer)
{
    return layers->every > 0 ? (layer + 1) % layers->every == 0
                             : layer < TT_LAYER_BITS && (layers->bits & INT64_C(1) << layer) != 0;
}

/** Whether the attention of a layer has the sliding window. */
static inline bool tt_model_is_windowed(const struct tt_model_dims *dims, int64_t layer)
{
    if (dims->full.every || dims->full.bits)
        return dims->sliding_window > 0 && !tt_layers_have(&dims->full, layer);
    return dims->sliding_window > 0 && (dims->window_from > 0 ? layer >= dims->window_from - 1 : layer % 2 == 0);
}

/** Whether the feed-forward of a layer is experts. */
static inline bool tt_model_has_experts(const struct tt_model_dims *dims, int64_t layer)
{
    const struct tt_moe *moe = &dims->moe;

    return moe->experts > 0 && layer >= moe->dense_layers &&
           !(layer < TT_LAYER_BITS && moe->dense_set & INT64_C(1) << layer);
}

/** The width of the feed-forward that sees all tokens in layers of experts; 0: there is none. */
static inline int64_t tt_moe_shared_width(const struct tt_moe *moe)
{
    return moe->shared_dim ? moe->shared_dim : moe->shared * moe->ffn_dim;
}

/** Whether a feed-forward has a gate, w3; otherwise it has two matrices. */
bool tt_model_is_gated(const struct tt_model_row *row);

/** The number of layers without experts in a model with experts. */
int64_t tt_model_dense_layers(const struct tt_model_dims *dims);

/** YaRN's factor of the scores of attention, in addition to 1 / sqrt(E); 1 without YaRN. */
double tt_rope_score_scale(const struct tt_rope *rope);

/** The factor of cos and sin with YaRN and LongRoPE, as in transformers; otherwise 1. */
double tt_rope_table_scale(const struct tt_rope *rope);

/** Whether the scaling is LongRoPE's. */
static inline bool tt_rope_is_long(const struct tt_rope *rope)
{
    return rope->short_factor[0] != 0.0F;
}

/**
 * RoPE of head_dim rotated elements for a context of so many positions: of LongRoPE's two lists of factors,
 * short_factor is the one that counts, and theta is that of dynamic scaling.
 */
struct tt_rope tt_rope_of_context(const struct tt_rope *rope, int64_t head_dim, int64_t context);

/**
 * The angle by which pair i of head_dim rotated elements turns from one position to the next (LongRoPE: with
 * short_factor).
 */
double tt_rope_frequency(const struct tt_rope *rope, int64_t head_dim, int64_t i);

/** Fills a graph's constants (RoPE table). data: (T, E/2, 2) cos, sin, in TT_F32 or TT_F64. */
void tt_rope_fill(const struct tt_rope *rope, int64_t seq_len, int64_t head_dim, enum tt_dtype dtype, void *data);

#endif
