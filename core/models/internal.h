/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_INTERNAL_H
#define TT_MODELS_INTERNAL_H

#include "core/models/model.h"

/**
 * The rows of the families, each in the file of its family.
 *
 * To add a family:
 *   1. families/<name>.c with the row tt_model_<name> (struct tt_model_row in model.h): flavors, one of them
 *      debugmodel; classes of config.json with their defaults and the keys that they read (hf.h, hf_keys.def), and how
 *      keys that are not Llama's are read and written; architectures of llama.cpp and names of its tensors that are not
 *      Llama's (gguf.h; none: GGUF is refused); add_block, which lists the parameters of a block; its norm, attention
 *      and feed_forward, from the layers below. Llama's blocks are a struct tt_decoder; a difference is a new member of
 *      it. Layers that ranks cannot share: `undivided`. If its head may be tied, its ops are in `carry` of
 *      core/models/first_loss.c.
 *   2. A line of families/families.def.
 *   3. Golden runs in tests/golden/data, <name> or <name>_<word>: tests/golden/make_reference.py says how. Without
 *      experts there is a run <name>, of which ranks can divide all sizes by 2.
 *   4. Its model_types in tests/unit/data/hf_classes.json (tests/interop/class_defaults.py prints them), with
 *      published models.
 *   5. A line of titan-models(1), FAMILIES.
 * Tests of files, ranks, generation, transformers and llama.cpp enumerate rows, runs and classes. A new kind of part
 * has tests of its own; a key that other classes must refuse has a line in hf_keys.def.
 */
#define X(file, name) extern const struct tt_model_row tt_model_##name;
#include "core/models/families/families.def"
#undef X

/** The number of rows of a table. */
#define TT_COUNT(table) (int)(sizeof(table) / sizeof *(table))

/** Members of a row: the file's tables flavors, classes and archs. */
#define TT_MODEL_TABLES                                                                                     \
    .flavors = flavors, .n_flavors = TT_COUNT(flavors), .classes = classes, .n_classes = TT_COUNT(classes), \
    .archs = archs, .n_archs = TT_COUNT(archs)

/** Members of a row: Hugging Face's names outside of the blocks, and the text before a block's number. */
#define TT_MODEL_LLAMA_NAMES \
    .hf_blocks = "model.layers.", .hf_embeddings = "model.embed_tokens.weight", .hf_norm = "model.norm"

/** Every member of `with` that is not 0 (tied: not -1) replaces the same member of dims. */
void tt_dims_override(struct tt_model_dims *dims, const struct tt_model_dims *with);

/**
 * Functions for writing a row's add_block. The pointers that they return are valid until the next call, because
 * model->params may move. In block `block`, names are relative: titan's get the prefix "layers.<block>.", and Hugging
 * Face's the row's hf_blocks and the number. Outside of the blocks (TT_BLOCK_*) names are complete.
 */
struct tt_normal {
    double std, cut, depth; /* as in struct tt_param; if depth is given, std follows from it */
};

struct tt_param *tt_params_matrix(struct tt_model *model, int block, const char *name, const char *hf_name,
                                  int64_t rows, int64_t columns, struct tt_normal normal);

/** A matrix "<name>.weight" and, if `bias`, "<name>.bias" of zeros, which is the next parameter. */
struct tt_param *tt_params_linear(struct tt_model *model, int block, const char *name, const char *hf_name,
                                  int64_t rows, int64_t columns, struct tt_normal normal, bool bias);

/** The matrices (rows, columns) of `experts` experts in one tensor; hf_name has a * for an expert's number. */
struct tt_param *tt_params_experts(struct tt_model *model, int block, const char *name, const char *hf_name,
                                   int64_t experts, int64_t rows, int64_t columns, struct tt_normal normal);

/** A vector with all elements equal. */
struct tt_param *tt_params_vector(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t n,
                                  enum tt_param_init init);

/** The weights of a norm of the row's kind: "<name>.weight", and of a LayerNorm "<name>.bias" of zeros. */
void tt_params_norm(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t n);

/** A buffer: a vector of zeros. hf_name NULL: Hugging Face's class does not have it. */
struct tt_param *tt_params_buffer(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t n);

/**
 * Functions for writing model builders: one per layer, each taking and returning value ids. `name` is the name of the
 * value and `weight` that of the parameter, without ".weight"; both get the block's prefix ("layers.3."). A weight that
 * the model does not list, or a shape that does not fit, is a mistake in the builder and ends the process.
 */
struct tt_build {
    const struct tt_model *model;
    struct tt_graph *graph;
    enum tt_dtype dtype; /* type of parameters and activations: the graph's */
    int64_t seq_len;     /* length of the context: T, or cache_len */
    int layer;           /* the block, or TT_NONE */
    char prefix[32];
    bool trains;    /* there is dropout */
    int next_param; /* where the search for a parameter by name begins: after the last one found */
    /* of the last adapter: its input, A, the scaled product with A, and A's parameter */
    int dropped, lora_a, narrow, narrow_of;
};

/**
 * Begins a graph of B sequences of T tokens: adds its tokens, labels and, unless positions are learned, RoPE table.
 * With graph->cache_len it is a decode graph (tt_model_decode_graph): T rows at the end of a longer context, or one row
 * of each of B > 1 sequences, without labels; the functions below then build decoding layers. With graph->documents,
 * and with several sequences of a decode graph, it has positions, which the layers below read.
 */
void tt_build_begin(struct tt_build *b, const struct tt_model *model, int64_t batch, int64_t seq_len,
                    struct tt_graph *graph);

/** Whether rows are at positions from tt_scalars.position on. */
static inline bool tt_build_from_position(const struct tt_build *b)
{
    return b->graph->cache_len > 0 && !tt_graph_is_of_sequences(b->graph);
}

/** The following layers are in block `block`; TT_NONE: outside of the blocks. */
void tt_build_block(struct tt_build *b, int block);

/** (B, T) tokens -> (N, D) */
int tt_build_embedding(struct tt_build *b, const char *name, const char *weight);

/**
 * x, normalised as the row says, by the parameters of the same name; with a weight of one head's width, or one for each
 * head, each head by itself.
 */
int tt_build_norm(struct tt_build *b, const char *name, int x);

/** x times the transpose of the weight, plus the layer's bias. */
int tt_build_affine(struct tt_build *b, const char *name, const char *layer, int x);

/** x times the transpose of the weight, plus the product with its low-rank adapter if it has one. */
int tt_build_linear(struct tt_build *b, const char *name, const char *weight, int x);

/** RMSNorm with another epsilon than the model's. */
int tt_build_rmsnorm_of(struct tt_build *b, const char *name, int x, double eps);

/**
 * x, heads side by side in its last dimension, with every head rotated by its position (pairs as in tt_attr), as the
 * block's layer does it.
 */
int tt_build_rope(struct tt_build *b, const char *name, int x, int64_t heads, bool rotate_half);

/**
 * Causal attention of q, k and v, in a decode graph over the cache, which it adds. Each head may have a sink (a value,
 * or TT_NONE), and a row sees `window` keys at most, itself included (0: all before it).
 */
int tt_build_attention(struct tt_build *b, const char *name, const int *qkv, int sinks, int64_t window);

/** A value that is a cache of a decode graph, called "<name>.<what>": `heads` heads of rows of `dim` elements for
 * each sequence. */
int tt_build_cache(struct tt_build *b, const char *name, const char *what, int64_t heads, int64_t dim);

/** The value of the parameter "<layer>.<which>". */
int tt_build_param(struct tt_build *b, const char *layer, const char *which);

/** A node; ret_out gets its first n outputs. The first one has the name `name`. */
void tt_build_node(struct tt_build *b, enum tt_op_id op, const char *name, const int *in, int n_in,
                   const struct tt_attr *attr, int n, int *ret_out);

/** The feed-forwards of all experts, applied to rows that are sorted by expert; ends: the end of each expert's rows. */
typedef int (*tt_expert_fn)(struct tt_build *b, int rows, int ends, const struct tt_attr *attr);

/** The weighted sum of the outputs of each token's experts. Parameters "moe.router.gate"; the sizes are the model's. */
int tt_build_experts(struct tt_build *b, int x, bool router_bias, tt_expert_fn expert);

/** x + y; silu(gate) * up, or with the decoder's activation in place of silu. */
int tt_build_add(struct tt_build *b, const char *name, int x, int y);
int tt_build_gated(struct tt_build *b, const char *name, int gate, int up);

/** The loss of every token, or in a decode graph the logits of the last; ends the graph. */
void tt_build_head_loss(struct tt_build *b, const char *weight, int x);

/** The norm of q and of k, before RoPE. */
enum tt_qk_norm {
    TT_QK_NONE,
    TT_QK_HEADS, /* every head by itself, with one weight for all (Qwen3) */
    TT_QK_WIDTH, /* all heads as one row (OLMo 2) */
    TT_QK_EACH,  /* every head by itself, each with weights of its own (Command R+) */
};

/**
 * A Hugging Face name for each norm of a block. If one is NULL, the norm does not exist; if all are, they are Llama's.
 */
struct tt_norm_names {
    const char *before_attention, *after_attention, *before_ffn, *after_ffn;
};

/**
 * Llama-style decoders: blocks of grouped-query attention with RoPE and a feed-forward. The members describe the
 * differences between architectures; if all of them are 0, the blocks are Llama's: norms before both, a SwiGLU
 * feed-forward, no biases. The choices of a configuration within an architecture are sizes (struct tt_model_dims):
 * windows, layers without RoPE, multipliers, further biases, a parallel residual, experts.
 *
 * Hugging Face's names of linear layers are without ".weight". Neighbours of the same name are parts of one tensor, one
 * after the other.
 */
struct tt_decoder {
    bool qkv_bias; /* q, k and v always have biases (Qwen2) */
    enum tt_qk_norm qk_norm;
    enum tt_qk_norm head_norms; /* the same, in models whose sizes say head_norms */
    /* RoPE pairs (i, i + E/2), as in Hugging Face's files; else (2i, 2i+1). If `pairs_in_files` is set, files are in
     * the same order; otherwise their rows are permuted. */
    bool rotate_half, pairs_in_files;
    bool heads_in_turn; /* q, k and v are one tensor there, which holds the rows of each head from all three in turn */
    enum tt_activation activation;
    bool scaled_embeddings; /* multiplies embeddings by sqrt(D) (Gemma) */
    struct tt_norm_names hf_norms;
    const char *hf_heads[4]; /* names of q, k, v and of the product with their result; NULL: Llama's */
    const char *hf_ffn[3];   /* names of w1, w2 and w3; NULL: Llama's, but without w3 if there is a w1 */
    const char *hf_bias; /* Hugging Face's name of the biases of experts, of routers with sigmoids; NULL: its class has
                          * none */
    const char *hf_shared[3];   /* of w1, w2 and w3 of the experts that see all tokens; NULL: its class has none */
    const char *hf_shared_gate; /* and of the gate whose sigmoid multiplies their output, if there is shared_dim */
    const char *hf_experts[4];  /* Hugging Face's names of the router, and of w1, w2 and w3 of expert *; NULL: none */
};

/** The norm of q and of k in a model with a decoder. */
static inline enum tt_qk_norm tt_qk_norm_of(const struct tt_model *model)
{
    return model->dims.head_norms ? model->row->decoder->head_norms : model->row->decoder->qk_norm;
}

/** The norms of a row's blocks. */
const struct tt_norm_names *tt_norm_names_of(const struct tt_model_row *row);

/** Parts of a row with a decoder; parameters have torchtitan's names and init rules, and Llama's names in files. */
extern const struct tt_model_parts tt_decoder_parts;

#endif
