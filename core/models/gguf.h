/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_GGUF_H
#define TT_MODELS_GGUF_H

#include <stddef.h>

#include "core/base/error.h"
#include "core/gguf/gguf.h"
#include "core/models/model.h"

/** A size, and the end of the key that it has in a file. */
struct tt_gguf_size {
    const char *key;
    size_t at; /* in struct tt_model_dims */
    enum {
        TT_GGUF_SIZE_INT,
        TT_GGUF_SIZE_FLOAT,
        TT_GGUF_SIZE_REAL,
        TT_GGUF_SIZE_DIVISOR, /* files have 1 / it */
        TT_GGUF_SIZE_BOOL,
    } kind;
    bool may_lack;
};

#define TT_GGUF_SIZE(key, kind, member, may_lack)                                  \
    {                                                                              \
        key, offsetof(struct tt_model_dims, member), TT_GGUF_SIZE_##kind, may_lack \
    }

/** The sizes of any blocks; of blocks like Llama's, with RMSNorm or LayerNorm; of their experts. */
#define TT_GGUF_BLOCKS                                                                                    \
    TT_GGUF_SIZE("block_count", INT, n_layers, false), TT_GGUF_SIZE("embedding_length", INT, dim, false), \
        TT_GGUF_SIZE("feed_forward_length", INT, ffn_dim, true),                                          \
        TT_GGUF_SIZE("attention.head_count", INT, n_heads, false)
#define TT_GGUF_DECODER    TT_GGUF_ATTENTION, TT_GGUF_SIZE("attention.layer_norm_rms_epsilon", FLOAT, norm_eps, false)
#define TT_GGUF_LAYER_NORM TT_GGUF_ATTENTION, TT_GGUF_SIZE("attention.layer_norm_epsilon", FLOAT, norm_eps, false)
#define TT_GGUF_ATTENTION                                                           \
    TT_GGUF_BLOCKS, TT_GGUF_SIZE("attention.head_count_kv", INT, n_kv_heads, true), \
        TT_GGUF_SIZE("attention.key_length", INT, head_dim, true),                  \
        TT_GGUF_SIZE("attention.value_length", INT, head_dim, true),                \
        TT_GGUF_SIZE("rope.dimension_count", INT, rotary_dim, true),                \
        TT_GGUF_SIZE("rope.freq_base", REAL, rope.theta, true)
#define TT_GGUF_WINDOW TT_GGUF_SIZE("attention.sliding_window", INT, sliding_window, true)
#define TT_GGUF_EXPERTS \
    TT_GGUF_SIZE("expert_count", INT, moe.experts, false), TT_GGUF_SIZE("expert_used_count", INT, moe.top_k, false)
#define TT_GGUF_EXPERT_WIDTH TT_GGUF_SIZE("expert_feed_forward_length", INT, moe.ffn_dim, false)

/** An architecture of llama.cpp that computes models of a family, all of them with experts or none. */
struct tt_gguf_arch {
    const char *name;
    const struct tt_gguf_size *size;
    int n_sizes;
    bool experts;
    bool rope_factors;    /* it reads rope_freqs.weight, which Llama 3.1's scaling needs */
    bool long_factors;    /* it reads the two tensors of LongRoPE's factors */
    bool part_rotated;    /* RoPE may turn only the first elements of a head */
    bool latents;         /* DeepSeek's: latent attention, its routers, dense first layers */
    bool exact_yarn;      /* YaRN's limits are not rounded */
    bool own_head;        /* the output is a tensor, although it may be a copy of the embedding */
    bool tied;            /* the output is the embedding */
    bool ffn_is_expert;   /* feed_forward_length is the width of an expert */
    bool full_heads;      /* all heads of queries are as wide as the model */
    bool equal_heads;     /* n_kv_heads must equal n_heads */
    bool parallel;        /* attention and feed-forward read the same x, unless a size says which */
    bool tanh_gelu;       /* it computes GELU in its tanh form */
    bool windowless;      /* it computes the family's models without windows; another architecture, those with them */
    int plain_layers;     /* deeper models have norms of each head of q and k; 0: none has */
    bool gates_as_scored; /* a token's gates are not divided by their sum */
    int window_period;    /* all layers but every n-th have a window; 0: none has */
    bool needs_window;    /* it has one even if the file does not say so */
    bool local_rope;      /* layers with a window have unscaled RoPE, with a base of their own or that of the others */
    double local_theta;   /* this base if a file does not say; 0: that of the others */
    int unrotated_every;  /* every n-th layer is without RoPE */
    enum { TT_GGUF_ANY_BIAS, TT_GGUF_NO_BIAS, TT_GGUF_QKV_BIAS, TT_GGUF_ALL_BIASES } biases; /* which it computes */
    double (*score_scale)(
        const struct tt_model_dims *dims); /* of attention, if it is not 1 / sqrt(head_dim) or a size */
};

/** How a tensor has the rows of a parameter, or of several. */
enum tt_gguf_layout {
    TT_GGUF_SAME,    /* parameters one after the other along dimension 0 */
    TT_GGUF_PAIRS,   /* rows within each head: theirs 2i+c, ours c*(E/2)+i (mixtral's q and k) */
    TT_GGUF_EVEN,    /* rows 0, 2, ... of each expert (gpt-oss has gates and factors in turn) */
    TT_GGUF_ODD,     /* rows 1, 3, ... */
    TT_GGUF_KEYS,    /* of wkv_b, the rows of each head that make keys, transposed */
    TT_GGUF_VALUES,  /* of wkv_b, the rows that make values */
    TT_GGUF_OFFSET,  /* 1 + the parameter, a norm's weights (Gemma) */
    TT_GGUF_ROW,     /* the only row of the parameter, as a vector */
    TT_GGUF_FACTORS, /* no parameter, but the factors of RoPE; then LongRoPE's for short and for long contexts */
    TT_GGUF_SHORT_FACTORS,
    TT_GGUF_LONG_FACTORS,
};

/** The name of a parameter in a file. */
struct tt_gguf_name {
    const char *ours;   /* after "layers.N." */
    const char *theirs; /* after "blk.N." */
    enum tt_gguf_layout layout;
    int part, parts; /* of the tensor; parts 0: it is whole */
};

/**
 * The sizes of a model as values of a GGUF file, by the architectures of llama.cpp, and back. A file of titan's also
 * has its model.json ("titan.model"), which says all that llama.cpp's values do not.
 */

/**
 * Adds the values, from general.architecture on. TT_EDATA says which part of the model llama.cpp does not compute.
 *   context   the longest sequence that the file should promise; 0: the model's
 */
int tt_gguf_put_model(const struct tt_model *model, int64_t context, struct tt_gguf_values *values) TT_MUST_CHECK;

/** Whether the file has the embedding once more as its head, where the model's is tied. */
bool tt_gguf_copies_head(const struct tt_model *model);

/** Whether the file has a tensor of RoPE's factors, rope_freqs.weight, with a float for each pair; and factor i. */
bool tt_gguf_has_rope_factors(const struct tt_model *model);
float tt_gguf_rope_factor(const struct tt_model *model, int64_t i);

/** Whether a file of such a model may have a tensor of that name, which becomes scaling of RoPE. */
bool tt_gguf_reads_rope_factors(const struct tt_model *model, const char *name);

/** The model.name of a file; TT_EDATA lists the known architectures. Static. */
int tt_gguf_model_name(const struct tt_gguf *file, const char **ret_name) TT_MUST_CHECK;

/** The sizes of a file's model; TT_EDATA names what is missing, or what titan does not compute. */
int tt_gguf_read_dims(const struct tt_gguf *file, struct tt_model_dims *ret_dims) TT_MUST_CHECK;

#endif
