/* SPDX-License-Identifier: MIT */
#ifndef TT_GRAD_CASES_H
#define TT_GRAD_CASES_H

#include "core/graph/graph.h"

/**
 * Graphs whose gradients are checked. Every input of the op under test is a parameter, so autodiff gives its gradient.
 * The op's output goes to the head op, and central differences are taken of its loss.
 */
struct grad_case {
    const char *name;
    void (*build)(struct tt_graph *graph);
    double step; /* step of the central differences; larger if rounding of the loss is the larger error */
};

extern const struct grad_case grad_cases[];
extern const int n_grad_cases;

/* A llama-like model. */
struct llama {
    int64_t batch, seq_len, layers, dim, heads, kv_heads, head_dim, ffn, vocab;
    bool tied, rotate_half;
};

void build_llama(struct tt_graph *graph, const struct llama *m);

/* Of cases_experts.c, in the list of cases.c. */
void build_experts(struct tt_graph *graph);
void build_experts_plain(struct tt_graph *graph);
void build_experts_scaled(struct tt_graph *graph);
void build_experts_sigmoid(struct tt_graph *graph);
void build_experts_biased(struct tt_graph *graph);
void build_experts_balanced(struct tt_graph *graph);
void build_experts_losses(struct tt_graph *graph);
void build_experts_losses_sigmoid(struct tt_graph *graph);
void build_experts_global_loss(struct tt_graph *graph);
void build_experts_global_loss_sigmoid(struct tt_graph *graph);
void build_experts_again(struct tt_graph *graph);
void build_experts_ffn(struct tt_graph *graph);
void build_experts_ffn_again(struct tt_graph *graph);

/* Of cases_latent.c, in the same list. */
void build_latent(struct tt_graph *graph);
void build_latent_queries(struct tt_graph *graph);
void build_join_grains(struct tt_graph *graph);

/* Of cases_gpt_oss.c, in the same list. */
void build_attention_window(struct tt_graph *graph);
void build_attention_window_long(struct tt_graph *graph);
void build_attention_window_documents(struct tt_graph *graph);
void build_attention_capped(struct tt_graph *graph);
void build_attention_capped_long(struct tt_graph *graph);
void build_attention_sinks(struct tt_graph *graph);
void build_attention_sinks_again(struct tt_graph *graph);
void build_swiglu_clamped(struct tt_graph *graph);
void build_swiglu_clamped_again(struct tt_graph *graph);
void build_experts_affine(struct tt_graph *graph);
void build_experts_affine_again(struct tt_graph *graph);

#endif
