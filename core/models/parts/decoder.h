/* SPDX-License-Identifier: MIT */
#ifndef TT_MODELS_PARTS_DECODER_H
#define TT_MODELS_PARTS_DECODER_H

#include "core/models/model.h"

/**
 * Llama-style decoders: pre-norm blocks of grouped-query attention with RoPE and a SwiGLU feed-forward, RMSNorm, no
 * biases, and a head that may be tied. The members are what differs between architectures.
 */
struct tt_decoder {
    bool qk_norm;        /* every head of q and of k has an RMSNorm before RoPE (Qwen3) */
    bool rotate_half;    /* RoPE pairs (i, i + E/2), as in Hugging Face's files; else (2i, 2i+1), rows permuted there */
    const char *hf_bias; /* Hugging Face's name of the biases of experts, of routers with sigmoids; NULL: its class has
                          * none */
    const char *hf_shared[3];  /* of w1, w2 and w3 of the experts that see all tokens; NULL: its class has none */
    const char *hf_experts[4]; /* Hugging Face's names of the router, and of w1, w2 and w3 of expert *; NULL: none */
};

/** The parameters: torchtitan's names and init rules, Llama's names in Hugging Face's files. */
void tt_decoder_params(struct tt_model *model, const struct tt_decoder *decoder);

/** The forward graph of B sequences of T tokens (tt_model_row.build). */
void tt_decoder_build(const struct tt_model *model, const struct tt_decoder *decoder, int64_t batch, int64_t seq_len,
                      struct tt_graph *graph);

/** Reads the dims from a config.json with Llama's keys; refuses what such a decoder does not have. */
int tt_decoder_read_hf(const void *config, const char *where, struct tt_model_dims *ret_dims) TT_MUST_CHECK;

#endif
